"""Joins single calls of one kind into batches, and gives each caller its outcome.

One batcher exists per kind (verb, group, shared header fields, deadline) while it has work. A batch closes when its
window says so (:class:`metad_wire.policy.BatchWindow`), but while enough batches of its kind are unanswered it fills
further instead: the slower the server, the larger the batches. A batch that a node has told when to come back does not
count: others need not wait for its time.

The server answers by position; the text of an error names what its item is about, by table and key.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final, Generic, NamedTuple, TypeVar

from msgspec.structs import replace

from metad_wire.messages import ItemError, Message, TableTransaction, WriteReply
from metad_wire.methods import Method, encode
from metad_wire.policy import BatchWindow

from ..dispatch.dispatcher import Dispatcher
from ..errors import ClosedError, InternalError, InvalidItemError, MetadError, TooLargeError, another, error_of_item
from .wrong import UNFIT, too_long_items, wrong_item

Reply = TypeVar("Reply", bound=Message)
Item = TypeVar("Item")
Outcome = TypeVar("Outcome")

PART_CHARACTERS_MAX: Final = 80
"""Of one field of a key in a text."""


def about(method: Method[Any, Any], item: Any) -> str:
    """Table and key, as in ``kv config/greeting``."""
    table = method.table
    if table is None:
        return method.name
    keyed = table.routed.get(method)
    holder = item if keyed is None else keyed([item])[0]
    parts = [str(value) for field in table.key if (value := getattr(holder, field, None)) is not None]
    if isinstance(item, TableTransaction):
        parts = [*map(str, item.route)]
    cut = [part if len(part) <= PART_CHARACTERS_MAX else part[: PART_CHARACTERS_MAX - 1] + "…" for part in parts]
    return f"{table.name} {'/'.join(cut)}".rstrip()


def named(method: Method[Any, Any], items: Sequence[Any], reply: Reply) -> Reply:
    """The reply, with errors that say which item they are about. What is wrong with an item as it was given says which
    field that is, instead."""
    errors: list[ItemError] = getattr(reply, "errors", [])
    if not errors:
        return reply
    return replace(reply, errors=[_named(method, items, error) for error in errors])


def _named(method: Method[Any, Any], items: Sequence[Any], error: ItemError) -> ItemError:
    if error.code == InvalidItemError.code or not 0 <= error.index < len(items):
        return error
    text = error_of_item(error).message
    if not error.message:  # the sentence of the class
        text = text[:1].lower() + text[1:].removesuffix(".")
    return replace(error, message=f"{about(method, items[error.index])}: {text}")


def with_errors(outcomes: Sequence[Outcome], errors: Sequence[ItemError]) -> list[Outcome | MetadError]:
    """The outcomes by position, with the errors of the items that failed in their places."""
    merged: list[Outcome | MetadError] = list(outcomes)
    for error in errors:
        merged[error.index] = error_of_item(error)
    return merged


def wrote(items: list[Any], reply: WriteReply) -> list[MetadError | None]:
    """None for each item that was written."""
    return with_errors([None] * len(items), reply.errors)


Outcomes = Callable[[list[Item], Reply], list[Outcome | MetadError]]
"""(items, reply) -> by position, what each caller is given or its error."""


class How(NamedTuple):
    """Says what those who share a batch agree on: how long they wait, and how old the state may be that answers."""

    deadline_s: float
    freshness_ms: int


class Batcher(Generic[Item, Reply, Outcome]):
    """The open batch of one kind, and those in flight. ``on_idle`` is called when neither is left."""

    def __init__(
        self,
        dispatcher: Dispatcher,
        method: Method[Any, Reply],
        group: str | None,
        body_of: Callable[[list[Item]], Message],
        outcomes: Outcomes[Item, Reply, Outcome],
        *,
        window: BatchWindow,
        in_flight_max: int,
        how: How,
        on_idle: Callable[[], None],
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._dispatcher = dispatcher
        self._method = method
        self._group = group  # None: it was not known when the batcher was made
        self._body_of = body_of
        self._outcomes = outcomes
        self._window = window
        self._in_flight_max = in_flight_max
        self._deadline_s = how.deadline_s
        self._submitted = partial(dispatcher.submit, method, freshness_ms=how.freshness_ms)
        self._on_idle = on_idle
        self._items: list[Item] = []  # the open batch
        self._futures: list[asyncio.Future[Outcome]] = []
        self._size_bytes = 0
        self._version = 0  # of the map when the open batch got its first item
        self._deadline = 0.0  # of the open batch: that of its first item, so that no caller waits beyond its own
        self._due: asyncio.Handle | None = None
        self._overdue = False  # the window has closed, but too many are in flight
        self._in_flight = 0
        self._away = 0  # batches that were turned away, and wait or have come back
        self.batches = 0

    def add(self, item: Item, size_bytes: int) -> asyncio.Future[Outcome]:
        """Put an item into the open batch; the future ends with its outcome or MetadError, whatever happens to the
        others of its batch."""
        future: asyncio.Future[Outcome] = self._loop.create_future()
        if not self._items:
            self._version = self._dispatcher.routes.version
            self._deadline = self._loop.time() + self._deadline_s
            linger_s = min(self._window.linger_s, self._deadline_s / 2)  # the other half is for the answer
            self._due = (
                self._loop.call_later(linger_s, self._linger_over)
                if linger_s > 0
                else self._loop.call_soon(self._linger_over)
            )
        self._items.append(item)
        self._futures.append(future)
        self._size_bytes += size_bytes
        if self._window.is_full(len(self._items), self._size_bytes):
            self._close()
        return future

    def _linger_over(self) -> None:
        self._due = None
        if self._in_flight < self._in_flight_max:
            self._close()
        else:
            self._overdue = True

    def _close(self) -> None:
        if self._due is not None:
            self._due.cancel()
            self._due = None
        self._overdue = False
        items, futures = self._items, self._futures
        self._items, self._futures, self._size_bytes = [], [], 0
        if any(future.done() for future in futures):  # cancelled before they were sent: they never happen
            live = [(item, future) for item, future in zip(items, futures, strict=True) if not future.done()]
            items, futures = [item for item, _ in live], [future for _, future in live]
        self._send(items, futures, self._deadline, self._group)
        self._rest()

    def _send(
        self, items: list[Item], futures: list[asyncio.Future[Outcome]], deadline: float, group: str | None
    ) -> None:
        try:
            self._submit(items, futures, deadline, group)
        except Exception as error:  # noqa: BLE001 - told to the callers, whose futures nobody else would end
            self._broken(futures, error)

    def _submit(
        self, items: list[Item], futures: list[asyncio.Future[Outcome]], deadline: float, group: str | None
    ) -> None:
        if not items:
            return
        if group is None:
            self._wait_for_map(items, futures, deadline)
            return
        try:
            body = encode(self._body_of(items))
        except UNFIT as error:
            self._apart(items, futures, deadline, group, error)
            return
        try:
            version = min(self._version, self._dispatcher.routes.version)
            begun = deadline - self._deadline_s  # the wait for the batch to close counts
            call = self._submitted(body, deadline, group, version=version, items=len(items), begun=begun)
        except MetadError as error:
            self._fail(futures, error)
            return
        self.batches += 1
        self._in_flight += 1
        away = False

        def turned_away() -> None:
            """A batch that waits for its time to come back does not keep others waiting."""
            nonlocal away
            if not away:
                away = True
                self._in_flight -= 1
                self._away += 1
                if self._overdue and self._items:
                    self._close()

        call.tell(turned_away)

        def done(answer: asyncio.Future[Reply]) -> None:
            if away:
                self._away -= 1
            else:
                self._in_flight -= 1
            error = answer.exception()
            try:
                if call.moved:
                    self._send_anew(items, futures, deadline)
                elif isinstance(error, TooLargeError) and error.outcome_known:
                    self._apart(items, futures, deadline, group, error)
                elif isinstance(error, MetadError):
                    self._fail_each(items, futures, error)
                else:
                    self._hand_out(items, futures, answer.result())
            except Exception as bug:  # noqa: BLE001 - told to the callers
                self._broken(futures, bug)
            self._go_on()

        call.future.add_done_callback(done)

    def _wait_for_map(self, items: list[Item], futures: list[asyncio.Future[Outcome]], deadline: float) -> None:
        """Wait until it is known which groups there are."""
        try:
            call = self._dispatcher.wait_for_map(self._method, deadline)
        except MetadError as error:
            self._fail(futures, error)
            return
        self._in_flight += 1

        def done(answer: asyncio.Future[None]) -> None:
            self._in_flight -= 1
            error = answer.exception()
            try:
                if isinstance(error, MetadError):
                    self._fail(futures, error)
                else:
                    self._send_anew(items, futures, deadline)
            except Exception as bug:  # noqa: BLE001 - told to the callers
                self._broken(futures, bug)
            self._go_on()

        call.future.add_done_callback(done)

    def _send_anew(self, items: list[Item], futures: list[asyncio.Future[Outcome]], deadline: float) -> None:
        """Send items to the groups that hold them by now."""
        self._version = self._dispatcher.routes.version
        groups = self._dispatcher.routes.split(self._method, items)
        if not isinstance(groups, dict):
            self._send(items, futures, deadline, groups)
        else:
            for group, where in groups.items():
                self._send([items[i] for i in where], [futures[i] for i in where], deadline, group)

    def _apart(
        self,
        items: list[Item],
        futures: list[asyncio.Future[Outcome]],
        deadline: float,
        group: str,
        error: Exception,
    ) -> None:
        """The batch is too large, or an item of it cannot be encoded, and nothing was done: try halves of it. Only the
        caller of that item made a mistake."""
        if len(items) > 1:
            middle = len(items) // 2
            self._send(items[:middle], futures[:middle], deadline, group)
            self._send(items[middle:], futures[middle:], deadline, group)
        elif not futures[0].done():
            wrong = error if isinstance(error, MetadError) else wrong_item(self._method, items[0], self._body_of, error)
            futures[0].set_exception(wrong)

    def _hand_out(self, items: list[Item], futures: list[asyncio.Future[Outcome]], reply: Reply) -> None:
        try:
            outcomes = self._outcomes(items, named(self._method, items, reply))
            if len(outcomes) != len(items):
                raise IndexError(f"{len(outcomes)} outcomes for {len(items)} items")
        except Exception as error:  # noqa: BLE001 - told to the callers
            text = f"{self._method.name}: the reply does not fit the request: {error}"
            self._fail(futures, InternalError(text, outcome_known=not self._method.changes))
            return
        for future, outcome in zip(futures, outcomes, strict=True):
            if future.done():  # cancelled meanwhile
                continue
            if isinstance(outcome, MetadError):
                future.set_exception(outcome)
            else:
                future.set_result(outcome)

    def _fail_each(self, items: list[Item], futures: list[asyncio.Future[Outcome]], error: MetadError) -> None:
        """End callers whose request has failed as a whole. The server may have seen none of the items, so those that
        are wrong by themselves are looked for here."""
        wrong = too_long_items(self._method, items) if not isinstance(error, ClosedError) else {}
        for position, future in enumerate(futures):
            if not future.done():
                future.set_exception(wrong.get(position) or another(error))

    def _broken(self, futures: list[asyncio.Future[Outcome]], error: Exception) -> None:
        """End callers whose batch met an exception that nobody expects."""
        text = f"{self._method.name}: the client failed: {type(error).__name__}"
        bug = InternalError(text, outcome_known=not self._method.changes)
        bug.__cause__ = error
        self._fail(futures, bug)

    def _fail(self, futures: list[asyncio.Future[Outcome]], error: MetadError) -> None:
        for future in futures:
            if not future.done():
                future.set_exception(another(error))

    def _go_on(self) -> None:
        """One less is in flight: send what has waited for that."""
        if self._overdue and self._items:
            self._close()
        else:
            self._rest()

    def _rest(self) -> None:
        if not self._items and not self._in_flight and not self._away:
            self._on_idle()
