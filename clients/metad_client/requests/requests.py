"""From a verb's items to their replies: splits them by group, cuts what is too long, encodes, pipelines the pieces, and
puts them in order.

A request holds items of one group only. So it is done or not as a whole, and a retry never needs to be split anew.

A :class:`Verb` is what the SDK offers: of many items, and of one that shares a request with others. The rest follows
from its method: the body of a request, the column of a reply with an outcome for each item, and about how long an item
is.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Hashable, Iterator, Sequence
from functools import cache
from operator import attrgetter
from typing import Any, Generic, TypeVar

from msgspec import inspect
from msgspec.structs import replace

from metad_wire.cluster import METADATA
from metad_wire.messages import BATCH_ITEMS_MAX, CHANGE_BYTES_MAX, VALUE_BYTES_MAX, Message, Revision
from metad_wire.methods import By, Method, encode
from metad_wire.policy import BatchWindow

from ..dispatch.calls.call import Call, GivenIdentity
from ..dispatch.dispatcher import BODY_BYTES_MIN, Dispatcher
from ..dispatch.router import ANY, ByGroup
from ..errors import ClosedError, InvalidItemError, InvalidRequestError, MetadError, StaleRouteError, TooLargeError
from ..options import DEADLINE_S_MAX, Options
from ..results import Piece, ReadResult, newest
from .batcher import Batcher, How, Outcomes, named, with_errors, wrote
from .wrong import UNFIT, fresh, sequence_of, too_long, too_long_items, wrong_body, wrong_item, wrong_items

# Pieces of one call in flight: enough to keep the server's pipeline full, few enough that a call of a million
# items neither holds a million encoded ones nor pushes everybody else out of the queue.
PIECES_IN_FLIGHT = 8
# Of the encoded items of a write. What it changes in its group then fits an entry, where keys count three times.
WRITE_BYTES_MAX = CHANGE_BYTES_MAX * 3 // 10
# From so many characters on, the text of a single item may take more bytes than a value may have.
LONG_BYTES = VALUE_BYTES_MAX // 4

Body = TypeVar("Body", bound=Message)
Reply = TypeVar("Reply", bound=Message)
Item = TypeVar("Item")
Outcome = TypeVar("Outcome")


class Requests:
    """What the verbs share. A deadline is in seconds from now; None is the client's default."""

    def __init__(self, dispatcher: Dispatcher, options: Options) -> None:
        self._loop = asyncio.get_running_loop()
        self._home = dispatcher.home
        self._dispatcher = dispatcher
        self._routes = dispatcher.routes
        self._deadline_s = options.deadline_s
        self._batch_items = options.batch_items
        self._batches_in_flight = options.batches_in_flight
        self._window = BatchWindow(
            items_max=options.batch_items, bytes_max=options.batch_bytes, linger_s=options.linger_s
        )
        self._batchers: dict[Hashable, Batcher[Any, Any, Any]] = {}
        self._batches = 0  # of batchers that are no more

    async def one(
        self,
        method: Method[Body, Reply],
        body: Body,
        deadline_s: float | None = None,
        *,
        group: str = "",
        node: str = "",
        once: bool = False,
    ) -> Reply:
        """One request and its reply, by ``node`` or the leader of ``group`` if one is named, otherwise by any node that
        answers the method. Raises the request's MetadError."""
        reply: Reply = await self.reply(self.begin(method, body, deadline_s, group, node=node, once=once))
        return reply

    def begin(
        self,
        method: Method[Body, Any],
        body: Body,
        deadline_s: float | None = None,
        group: str = "",
        *,
        node: str = "",
        once: bool = False,
        freshness_ms: int = 0,
    ) -> Call:
        """Begin such a request: either :meth:`reply` or :meth:`abandon` ends it."""
        deadline = self._deadline(deadline_s)
        if method.by is By.METADATA:
            group = METADATA.name
        if not isinstance(node, str):
            raise InvalidRequestError(f"node: expected str, got {type(node).__name__}")
        try:
            encoded = encode(body)
        except UNFIT as error:
            raise wrong_body(method, body, error) from error
        return self._dispatcher.submit(
            method, encoded, deadline, group or ANY, node=node, once=once, freshness_ms=freshness_ms
        )

    async def given(
        self,
        method: Method[Body, Reply],
        body: Body,
        group: str,
        identity: GivenIdentity,
        deadline_s: float | None,
        version: int | None = None,
    ) -> Reply:
        """One write with an identity that the program has named, by the leader of a group. ``version``: of the map that
        named the group, if that is not the current one. Raises StaleRouteError with nothing done if the group does not
        hold all items, and does not know the write."""
        deadline = self._deadline(deadline_s)
        try:
            encoded = encode(body)
        except UNFIT as error:
            raise wrong_body(method, body, error) from error
        submitted = self._dispatcher.submit(method, encoded, deadline, group, identity=identity, version=version)
        reply: Reply = await self.reply(submitted)
        return reply

    async def reply(self, call: Call) -> Any:
        """The reply of a request. Raises its MetadError."""
        try:
            return await call.future
        except asyncio.CancelledError:
            self._dispatcher.abandon(call)
            raise

    def abandon(self, call: Call) -> None:
        """Nobody waits for it any more."""
        self._dispatcher.abandon(call)

    async def groups(self, method: Method[Any, Any], deadline_s: float | None = None) -> list[str]:
        """The groups that a listing is spread over."""
        deadline = self._deadline(deadline_s)
        while not self._routes.knows(method):
            await self.reply(self._dispatcher.wait_for_map(method, deadline))
        return self._routes.groups(method)

    async def slots(self, method: Method[Any, Any], deadline_s: float | None = None) -> dict[str, bytes]:
        """The groups that a listing is spread over, with bit maps of the slots that each holds by the newest map."""
        await self.groups(method, deadline_s)
        return self._routes.slots(method)

    async def group_of(self, method: Method[Any, Any], body: Message, deadline_s: float | None = None) -> str:
        """The group that answers a request which has the routing fields itself."""
        deadline = self._deadline(deadline_s)
        if method.by is By.METADATA:
            return METADATA.name
        try:
            while (group := self._routes.group_of(method, body)) is None:
                await self.reply(self._dispatcher.wait_for_map(method, deadline))
        except UNFIT as error:
            raise wrong_body(method, body, error) from error
        return group

    async def many(
        self,
        method: Method[Body, Reply],
        items: Sequence[Item],
        body_of: Callable[[list[Item]], Body],
        deadline_s: float | None = None,
        *,
        items_max: int = BATCH_ITEMS_MAX,
        freshness_ms: int = 0,
    ) -> list[Piece[Reply]]:
        """Items in as many requests as they need; ``body_of`` makes the body of each.

        A request that a server refuses as too large is sent in halves. Raises the first error if no piece has a reply;
        otherwise each piece has its reply or its error. An item that is wrong by itself is a piece of its own, with an
        InvalidItemError.
        """
        deadline = self._deadline(deadline_s)
        items = [*items] if type(items) is list else sequence_of(method, items)  # the caller may change its own
        items_max = min(items_max, self._batch_items)
        if not items:
            return []
        while not self._routes.knows(method):
            await self.reply(self._dispatcher.wait_for_map(method, deadline))
        by_group: str | ByGroup | None = None
        if len(items) <= items_max:
            body: bytes | None = None
            try:
                by_group = self._routes.split(method, items)
                if type(by_group) is str:
                    body = encode(body_of(items))
            except UNFIT:
                by_group = None  # the items to blame are found when the pieces are cut
            if body is not None and type(by_group) is str and self._fits(method, len(body), len(items)):
                call = self._dispatcher.submit(
                    method, body, deadline, by_group, items=len(items), freshness_ms=freshness_ms
                )
                try:
                    reply: Reply = await self.reply(call)
                    return [Piece(0, len(items), named(method, items, reply), None)]
                except StaleRouteError:
                    if not call.moved:
                        raise
                    by_group = None
                except TooLargeError as error:
                    if not self._may_halve(error, items):
                        raise
                    items_max = len(items) // 2
        return await self._pieces(method, items, body_of, deadline, items_max, by_group, freshness_ms)

    def single(
        self,
        method: Method[Body, Reply],
        header: object,
        item: Item,
        size_of: Callable[[Item], int],
        body_of: Callable[[list[Item]], Body],
        outcomes: Outcomes[Item, Reply, Outcome],
        deadline_s: float | None = None,
        *,
        items_max: int = BATCH_ITEMS_MAX,
        freshness_ms: int = 0,
    ) -> asyncio.Future[Outcome]:
        """One item, in a batch with others of the same verb, group, ``header`` and deadline. Each group has batches of
        its own, because one that cannot be reached must not delay the singles of others."""
        self._home.check()
        if deadline_s is not None:
            self._checked(deadline_s)
        try:
            size_bytes = size_of(item)
            group = self._routes.group_of(method, item)
            key = (
                method.code,
                group,
                encode(header),
                deadline_s,
                freshness_ms,
            )  # what is merely equal, as 1 and True, may be wrong
            batcher = self._batchers.get(key)
        except UNFIT as error:
            self._dispatcher.check()
            raise wrong_item(method, item, body_of, error) from error
        if (size_bytes > LONG_BYTES or group is None) and (wrong := too_long(method, item)) is not None:
            raise wrong
        if batcher is None:
            batcher = self._batchers[key] = Batcher(
                self._dispatcher,
                method,
                group,
                body_of,
                outcomes,
                window=self._window if items_max >= self._batch_items else replace(self._window, items_max=items_max),
                in_flight_max=self._batches_in_flight,
                how=How(self._checked(deadline_s), freshness_ms),
                on_idle=lambda: self._retire(key),
            )
        future: asyncio.Future[Outcome] = batcher.add(item, size_bytes)
        return future

    @property
    def batches(self) -> int:
        """Requests made of singles so far."""
        return self._batches + sum(batcher.batches for batcher in list(self._batchers.values()))

    def _retire(self, key: Hashable) -> None:
        batcher = self._batchers.pop(key, None)
        if batcher is not None:
            self._batches += batcher.batches

    def _deadline(self, deadline_s: float | None) -> float:
        """When a call that begins now ends. Raises what ends every call of a client that cannot be used here."""
        self._dispatcher.check()
        return self._loop.time() + self._checked(deadline_s)

    def _checked(self, deadline_s: float | None) -> float:
        if deadline_s is None:
            return self._deadline_s
        if not isinstance(deadline_s, int | float) or not 0 < deadline_s <= DEADLINE_S_MAX:
            raise InvalidRequestError(
                f"deadline_s: expected a number over 0 and up to {DEADLINE_S_MAX}, got {deadline_s!r}"
            )
        return deadline_s

    async def _pieces(
        self,
        method: Method[Body, Reply],
        items: Sequence[Item],
        body_of: Callable[[list[Item]], Body],
        deadline: float,
        items_max: int,
        by_group: str | ByGroup | None,
        freshness_ms: int,
    ) -> list[Piece[Reply]]:
        pieces: list[Piece[Reply]] = []
        in_flight: deque[tuple[Sequence[int], Call]] = deque()
        in_flight_max = max(PIECES_IN_FLIGHT, 2 * len(self._routes.groups(method)))

        async def finish() -> None:
            where, call = in_flight[0]
            try:
                reply: Reply = await call.future
                mine = [items[position] for position in where] if getattr(reply, "errors", None) else ()
                pieces.append(Piece(where[0], len(where), named(method, mine, reply), None, where))
            except MetadError as error:
                if call.moved:
                    pieces.extend(await self._anew(method, items, where, body_of, deadline, items_max, freshness_ms))
                elif self._may_halve(error, where):
                    half = len(where) // 2
                    pieces.extend(await self._anew(method, items, where, body_of, deadline, half, freshness_ms))
                else:
                    pieces.append(Piece(where[0], len(where), None, error, where))
            in_flight.popleft()

        try:
            for where, group, version, body in self._cut(method, items, body_of, items_max, by_group):
                if isinstance(body, MetadError):
                    pieces.append(Piece(where[0], 1, None, body, where))
                    continue
                if len(in_flight) == in_flight_max:
                    await finish()
                try:
                    call = self._dispatcher.submit(
                        *(method, body, deadline, group),
                        version=version,
                        items=len(where),
                        freshness_ms=freshness_ms,
                    )
                    in_flight.append((where, call))
                except MetadError as error:
                    pieces.append(Piece(where[0], len(where), None, error, where))
            while in_flight:
                await finish()
        finally:
            for _, call in in_flight:
                self._dispatcher.abandon(call)
        pieces.sort(key=lambda piece: piece.start)
        lost = [piece.error for piece in pieces if not isinstance(piece.error, InvalidItemError | None)]
        if lost and all(piece.reply is None for piece in pieces):
            raise lost[0]
        return self._told_apart(method, items, pieces) if lost else pieces

    @staticmethod
    def _told_apart(method: Method[Any, Reply], items: Sequence[Any], pieces: list[Piece[Reply]]) -> list[Piece[Reply]]:
        """The pieces, with the items that are wrong by themselves taken out of those that failed as a whole: no server
        may have seen them."""
        apart: list[Piece[Reply]] = []
        for piece in pieces:
            failed = piece.error is not None and not isinstance(piece.error, InvalidItemError | ClosedError)
            wrong = too_long_items(method, [items[position] for position in piece.where]) if failed else {}
            rest = [position for at, position in enumerate(piece.where) if at not in wrong]
            apart += [Piece(piece.where[at], 1, None, why, [piece.where[at]]) for at, why in wrong.items()]
            if not wrong:
                apart.append(piece)
            elif rest:
                apart.append(Piece(rest[0], len(rest), None, piece.error, rest))
        return sorted(apart, key=lambda piece: piece.start)

    async def _anew(
        self,
        method: Method[Body, Reply],
        items: Sequence[Item],
        where: Sequence[int],
        body_of: Callable[[list[Item]], Body],
        deadline: float,
        items_max: int,
        freshness_ms: int,
    ) -> list[Piece[Reply]]:
        """The items at these positions in other requests: to the groups that hold their slots now, or of fewer items.
        The request that had them did nothing."""
        try:
            moved = [items[position] for position in where]
            pieces = await self._pieces(method, moved, body_of, deadline, items_max, None, freshness_ms)
        except MetadError as error:
            return [Piece(where[0], len(where), None, error, where)]
        return [piece.within(where) for piece in pieces]

    @staticmethod
    def _may_halve(error: MetadError, items: Sequence[Any]) -> bool:
        """Whether these items may succeed in requests of fewer. None of them was done."""
        return len(items) > 1 and isinstance(error, TooLargeError) and error.outcome_known

    def _fits(self, method: Method[Any, Any], size_bytes: int, items: int) -> bool:
        """Whether items of this size fit one request. A single item may be as long as a value."""
        if size_bytes <= BODY_BYTES_MIN or (items == 1 and size_bytes <= VALUE_BYTES_MAX):
            return True
        bytes_max = self._dispatcher.body_bytes_max
        return size_bytes <= (min(bytes_max, WRITE_BYTES_MAX) if method.mutates else bytes_max)

    def _cut(
        self,
        method: Method[Body, Any],
        items: Sequence[Item],
        body_of: Callable[[list[Item]], Body],
        items_max: int,
        by_group: str | ByGroup | None,
    ) -> Iterator[tuple[Sequence[int], str, int, bytes | MetadError]]:
        """(positions, group, version of the map, encoded body) of each request: of one group's items, at most
        ``items_max``, halved until it fits a frame. An item that cannot be sent has its error in place of a body.
        ``by_group``: all items, if they have been split already."""
        # So many at once that each group's share nearly fills a request, but seldom overfills it.
        groups = len(self._routes.groups(method))
        at_once = items_max if groups <= 1 else max(items_max, groups * items_max * 7 // 8)
        for start in range(0, len(items), at_once):
            chunk = items[start : start + at_once]
            places: Sequence[int] = range(start, start + len(chunk))
            shifted = start > 0
            version = self._routes.version
            if by_group is None or at_once < len(items):
                try:
                    by_group = self._routes.split(method, chunk)
                except UNFIT as error:
                    wrong = wrong_items(method, chunk)
                    if not wrong:
                        raise wrong_body(method, body_of([]), error) from error
                    yield from (((places[at],), ANY, version, why) for at, why in wrong.items())
                    places, shifted = [place for place in places if place - start not in wrong], True
                    by_group = self._routes.split(method, [items[place] for place in places])
            todo: list[tuple[str, Sequence[int]]]
            if isinstance(by_group, dict):
                todo = [
                    (group, [places[position] for position in positions] if shifted else positions)
                    for group, positions in by_group.items()
                ]
            else:
                todo = [(by_group or ANY, places)]
            todo.reverse()
            while todo:
                group, where = todo.pop()
                if not where:
                    continue
                if len(where) <= items_max:
                    try:
                        body = encode(body_of([items[position] for position in where]))
                    except UNFIT as error:
                        wrong = wrong_items(method, [items[position] for position in where])
                        if not wrong:
                            raise wrong_body(method, body_of([]), error) from error
                        yield from (((where[at],), group, version, why) for at, why in wrong.items())
                        todo.append((group, [position for at, position in enumerate(where) if at not in wrong]))
                        continue
                    if self._fits(method, len(body), len(where)):
                        yield where, group, version, body
                        continue
                    if len(where) == 1:
                        yield where, group, version, too_long(method, items[where[0]]) or body
                        continue
                middle = len(where) // 2
                todo += [(group, where[middle:]), (group, where[:middle])]


_FIELDS_BYTES = 16  # of an item, beside its texts


class Verb(Generic[Item, Outcome]):
    """``method`` takes such items, and gives each of their callers such an outcome: by default what the reply's first
    column has of it, or nothing where the reply has errors only. A request has up to ``items_max``. What a request says
    beside its items is named as in the method's body."""

    def __init__(
        self,
        method: Method[Any, Any],
        outcomes: Outcomes[Item, Any, Outcome] | None = None,
        *,
        items_max: int = BATCH_ITEMS_MAX,
    ) -> None:
        columns: dict[str, Any] = method.reply.columns
        column = next(iter(columns), "")
        self._missing = columns.get(column)
        self._method = method
        self._column: Callable[[Any], list[Any]] = attrgetter(column) if column else list
        self._outcomes: Outcomes[Item, Any, Any] = outcomes or (self._in_column if column else wrote)
        self._items_max = items_max
        self._size = _size_of(method.item)

    async def many(
        self,
        requests: Requests,
        items: Sequence[Item],
        deadline_s: float | None,
        /,
        *,
        items_max: int = 0,
        freshness_ms: int = 0,
        **beside: Any,
    ) -> list[Piece[Any]]:
        """:meth:`Requests.many`."""
        how = {"items_max": items_max or self._items_max, "freshness_ms": freshness_ms}
        return await requests.many(self._method, items, self._body(beside), deadline_s, **how)

    async def read(
        self,
        requests: Requests,
        keys: Sequence[Item],
        deadline_s: float | None,
        /,
        min_revisions: Sequence[Revision] | None = None,
        freshness_ms: int = 0,
        **beside: Any,
    ) -> ReadResult[Any]:
        """The column, by position. Of a verb that reads nothing newer than what there is, no revisions. Raises
        InvalidRequestError."""
        if min_revisions is not None:
            beside["min_revisions"] = newest(min_revisions)
        if freshness_ms != 0:
            beside["freshness_ms"] = fresh(freshness_ms)
        return ReadResult(await self.many(requests, keys, deadline_s, **beside), self._column, self._missing)

    def one(
        self, requests: Requests, item: Item, deadline_s: float | None, /, *, freshness_ms: int = 0, **beside: Any
    ) -> asyncio.Future[Outcome]:
        """:meth:`Requests.single`."""
        return requests.single(
            self._method,
            tuple(beside.values()),
            item,
            self._size,
            self._body(beside),
            self._outcomes,
            deadline_s,
            items_max=self._items_max,
            freshness_ms=freshness_ms,
        )

    def one_read(
        self,
        requests: Requests,
        key: Item,
        deadline_s: float | None,
        /,
        min_revisions: Sequence[Revision],
        freshness_ms: int = 0,
        **beside: Any,
    ) -> asyncio.Future[Outcome]:
        """The same, of what is at least as new as these, or was so ``freshness_ms`` ago. Raises
        InvalidRequestError."""
        revisions, freshness_ms = newest(min_revisions), fresh(freshness_ms)
        return self.one(requests, key, deadline_s, freshness_ms=freshness_ms, min_revisions=revisions, **beside)

    def _body(self, beside: dict[str, Any]) -> Callable[[list[Item]], Message]:
        body = self._method.body
        return (lambda items: body(items=items, **beside)) if beside else body

    def _in_column(self, _: list[Item], reply: Any) -> list[Any]:
        return with_errors(self._column(reply), reply.errors)


@cache
def _size_of(item: Any) -> Callable[[Any], int]:
    return _size(inspect.type_info(item)) or (lambda _: 0)


def _size(kind: inspect.Type) -> Callable[[Any], int] | None:
    """About how many bytes a value of this type takes; None: hardly any."""
    match kind:
        case inspect.StrType() | inspect.BytesType():
            return len
        case inspect.UnionType(types):
            sizes = [size for size in map(_size, types) if size is not None]
            return (lambda value: 0 if value is None or isinstance(value, int) else sizes[0](value)) if sizes else None
        case inspect.ListType(item_type=of):
            size_of_one = _size(of) or (lambda _: 1)
            return lambda values: sum(map(size_of_one, values))
        case inspect.StructType(fields=fields):
            return _size_of_struct([(field.name, size) for field in fields if (size := _size(field.type)) is not None])
    return None


def _size_of_struct(sizes: list[tuple[str, Callable[[Any], int]]]) -> Callable[[Any], int]:
    texts = [name for name, size in sizes if size is len]
    others = [(attrgetter(name), size) for name, size in sizes if size is not len]
    if len(texts) == 1:
        others.append((attrgetter(texts.pop()), len))
    of_texts: Callable[[Any], tuple[Any, ...]] = attrgetter(*texts) if texts else lambda _: ()

    def size_of(item: Any) -> int:
        size = _FIELDS_BYTES + sum(map(len, of_texts(item)))
        for of_one, size_of_one in others:
            size += size_of_one(of_one(item))
        return size

    return size_of
