"""A request in parts, one for each group that holds some of its items, and their answers put together again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from metad_wire import messages as m
from metad_wire.errors import (
    CancelledError,
    DeadlineExceededError,
    InternalError,
    InvalidRequestError,
    MetadError,
    UnknownOutcomeError,
)
from metad_wire.frame import FRAME_BYTES_MAX, HEADER_BYTES
from metad_wire.methods import encode
from metad_wire.table import Table

from ..logs import bug
from ..state.limits import reply_share
from ..state.rows import Rows
from ..state.tables import SCAN_ROWS_MAX, Command, Verb
from .room import Room

Done = Callable[[bytes | MetadError], None]
"""Takes the encoded reply, or why there is none. Called exactly once."""


class Replies:
    """How long replies may be: ``bytes_max`` is what fits a frame."""

    def __init__(self, frame_bytes_max: int) -> None:
        self.bytes_max = min(frame_bytes_max, FRAME_BYTES_MAX) - HEADER_BYTES
        self._alone_bytes = reply_share(self.bytes_max, 1, 1, 1)

    def part(
        self, verb: Verb[Any, Any], body: Any, rows: Rows, parts: int, size: int = 0, of: Rows | None = None
    ) -> Command[Any]:
        """One group's part of a request of ``size`` bytes, and its share of the frame that will carry the reply.
        ``of`` is the whole part, where ``rows`` are a piece of it."""
        share = self._alone_bytes
        if parts > 1:
            share = reply_share(self.bytes_max, len(of or rows), len(getattr(body, "items", ())), parts)
        items = sum(map(_operations, rows.items)) + len(rows) if isinstance(body, m.KvTransact) else None
        return Command(verb.method, body, rows, share, size, items, max(SCAN_ROWS_MAX // parts, 1))


class Gather:
    """The answers to the parts of one write, and the room that it takes until all are there."""

    __slots__ = ("_body", "_done", "_missing", "_parts", "_room", "_size", "_verb")

    def __init__(self, room: Room, verb: Verb[Any, Any], body: Any, parts: int, size: int, done: Done) -> None:
        self._room = room
        self._verb = verb
        self._body = body
        self._missing = parts
        self._size = size
        self._done = done
        self._parts: list[tuple[Rows, tuple[Any, bytes] | MetadError]] = []

    def answer_alone(self, outcome: tuple[Any, bytes] | MetadError) -> None:
        """The only part is the whole."""
        self._room.give(self._size)
        self._done(outcome if isinstance(outcome, MetadError) else outcome[1])

    def part(self, rows: Rows) -> Callable[[tuple[Any, bytes] | MetadError], None]:
        """Takes the answer to these rows."""

        def answer(outcome: tuple[Any, bytes] | MetadError) -> None:
            self._parts.append((rows, outcome))
            self._missing -= 1
            if not self._missing:
                self._room.give(self._size)
                self._done(self._merged())

        return answer

    def _merged(self) -> bytes | MetadError:
        errors = [outcome for _, outcome in self._parts if isinstance(outcome, MetadError)]
        if len(errors) == len(self._parts):
            # "Nothing was done" must not be said for a request of which any part may have happened.
            return min(errors, key=_done_less)
        # Some groups did their part: the others' items fail one by one.
        refuse = self._verb.refuse
        assert refuse is not None  # only verbs that write have parts in flight
        try:
            merged = [
                (rows, refuse(self._body, rows, outcome) if isinstance(outcome, MetadError) else outcome[0])
                for rows, outcome in self._parts
            ]
            return encode(self._verb.merge(self._body, merged))
        except ValueError:
            # A group answered a retry with what it had done for other rows as well: their slots have moved since.
            return UnknownOutcomeError("parts of this request were done by the group that held the slots before")
        except Exception as error:  # noqa: BLE001 - this runs where entries are applied, which must go on
            name = self._verb.method.name
            bug(name, error)
            return InternalError(f"{name} failed; the server's log says why")


def _done_less(error: MetadError) -> int:
    """0 where the part may have been done, 1 where it was not by this attempt, 2 where it was not at all."""
    return 2 if error.outcome_known else int(isinstance(error, CancelledError | DeadlineExceededError))


def items_of(table: Table[Any], body: Any, size: int) -> int:
    """How many items a request of that many bytes has, counted by what they will take. Raises InvalidRequestError where
    they are too many, or a value is too long."""
    items: Any = getattr(body, "items", ())
    if len(items) > m.BATCH_ITEMS_MAX:  # what comes over the wire was counted by its decoder already
        raise InvalidRequestError(f"{len(items)} items in one request, {m.BATCH_ITEMS_MAX} are allowed")
    if size > table.value_bytes_max:  # only then could it hold one over the limit
        _check_values(table, items)
    if isinstance(body, m.KvTransact):
        operations = sum(map(_operations, items))
        if operations > m.BATCH_ITEMS_MAX:
            raise InvalidRequestError(
                f"{operations} compares, operations and reads in one request, {m.BATCH_ITEMS_MAX} are allowed"
            )
        return operations + len(items)
    return len(items)


def _operations(transaction: m.KvTransaction) -> int:
    t = transaction
    return len(t.compares) + len(t.then) + len(t.otherwise) + len(t.reads)


def _check_values(table: Table[Any], items: Any) -> None:
    for position, item in enumerate(items):
        size = table.value_bytes(item)
        if size > table.value_bytes_max:
            raise InvalidRequestError(
                f"item {position}: its value takes {size} bytes, {table.value_bytes_max} are allowed"
            )
