"""What the verbs of the tables are made of.

A table is declared in :mod:`metad_wire.tables`; its module here has a :class:`Verb` per method. A verb that writes has
``evaluate``, one that reads has ``read``; both work on one group's part of the batch. ``split`` says which part of a
request belongs to which group, ``merge`` puts the parts' replies together.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, NamedTuple, TypeVar

import msgspec

from metad_wire import messages as m
from metad_wire.cluster import SLOTS as SLOTS
from metad_wire.errors import IdentityExpiredError, MetadError
from metad_wire.methods import Body, Method
from metad_wire.table import Keyed, Table

from ..storage.engine import Engine
from ..storage.keys import GROUP_PREFIX_BYTES, after_prefix, slot_of_key, table_prefix
from .limits import REPLY_BYTES_MAX, check_reply
from .part import Origin, Parts
from .rows import Numbers, Rows, column, partition
from .slot_assignment import SlotAssignment
from .view import View, in_chunks

PAGE_BYTES_MAX = 1024 * 1024  # of one page; a client that reads on gets the rest with the next
# Rows that all groups of a node together look at for one page: a filter that matches little must not stall the others.
SCAN_ROWS_MAX = 256
_SCAN_BYTES_MAX = 4 * PAGE_BYTES_MAX  # the same in bytes, where rows are long and none of them is wanted
SPENT_BYTES = 1024  # that take about as long as a row to be looked at


class Command(Generic[Body]):
    """One group's part of a request. ``rows`` may be empty for verbs that are not about single records. Records in the
    reply may take ``reply_bytes_max``. ``size`` is that of the whole request, as it came; 0 where it is not known.
    ``items`` is how much work it is: rows, or more where a row is more than one thing to do. A listing may look at
    ``look_rows_max``."""

    __slots__ = ("arrived_s", "body", "digest", "items", "look_rows_max", "method", "reply_bytes_max", "rows", "size")

    def __init__(
        self,
        method: Method[Body, Any],
        body: Body,
        rows: Rows,
        reply_bytes_max: int = REPLY_BYTES_MAX,
        size: int = 0,
        items: int | None = None,
        look_rows_max: int = SCAN_ROWS_MAX,
    ) -> None:
        self.method = method
        self.body = body
        self.rows = rows
        self.reply_bytes_max = reply_bytes_max
        self.size = size
        self.items = len(rows) if items is None else items
        self.look_rows_max = look_rows_max
        self.digest = 0
        """Of the request, where it has an identity, which is then good for no other."""
        self.arrived_s: float | None = None
        """When the request reached this node, by its monotonic clock."""


class Reader:
    """What a read sees: the applied state of one group."""

    def __init__(self, group: bytes, engine: Engine, parts: Parts) -> None:
        self.group = group
        self.engine = engine
        self.parts = parts
        self._slots = parts[SlotAssignment]
        self.spent = 0
        """What all reads have cost so far, in rows looked at: to be compared with what it was before."""

    @property
    def held(self) -> Numbers | None:
        """The slots that the group holds, a boolean per slot; None if it holds all of its kind. No read shows rows of
        other slots: they came early, or are yet to be dropped."""
        return self._slots.mask

    def check_still_held(self, rows: Rows) -> None:
        """For a retry whose answer is read again. Raises IdentityExpiredError where rows have moved away since: what is
        left of them here is old."""
        if not self._slots.holds_all and not self._slots.holds(rows.crcs):
            raise IdentityExpiredError("this write was done before; the records it reads belong to another group now")

    def get_many(self, keys: list[bytes], bytes_max: int) -> list[bytes | None]:
        """Values by position. Raises InvalidRequestError when they are more than ``bytes_max`` together."""
        self.spent += len(keys)
        if len(keys) == 1:
            value = self.engine.get(keys[0])  # one value is never over the limit
            if value is not None:
                self.spent += len(value) // SPENT_BYTES
            return [value]
        values: list[bytes | None] = []
        remaining = bytes_max
        for chunk, size in in_chunks(self.engine, keys):
            self.spent += size // SPENT_BYTES
            check_reply(size, remaining)
            remaining -= size
            values += chunk
        return values

    def scan(
        self,
        begin: bytes,
        end: bytes,
        limit: int,
        keep: Callable[[bytes], bool] | None = None,
        *,
        look_rows_max: int = SCAN_ROWS_MAX,
    ) -> Scan:
        """Up to ``limit`` rows whose value ``keep`` accepts, of the next ``look_rows_max``, with a bound on their
        bytes."""
        rows: list[tuple[bytes, bytes]] = []
        size = looked_at = looked_at_bytes = 0
        held = self.held
        while True:
            all_count = keep is None and held is None
            wanted = look_rows_max - looked_at
            if all_count:
                wanted = min(wanted, limit)
            chunk = self.engine.scan(begin, end, wanted, PAGE_BYTES_MAX)
            chunk_bytes = sum([len(key) + len(value) for key, value in chunk])
            self.spent += len(chunk) + chunk_bytes // SPENT_BYTES
            for key, value in chunk:
                if (keep is None or keep(value)) and (held is None or _is_held(held, key)):
                    rows.append((key, value))
                    size += len(key) + len(value)
                    if len(rows) >= limit or size >= PAGE_BYTES_MAX:
                        return Scan(rows, key)
            looked_at += len(chunk)
            looked_at_bytes += chunk_bytes
            if len(chunk) < wanted and chunk_bytes < PAGE_BYTES_MAX:
                return Scan(rows, None)
            begin = chunk[-1][0] + b"\0"
            if looked_at >= look_rows_max or looked_at_bytes >= _SCAN_BYTES_MAX:
                return Scan(rows, chunk[-1][0])


def _is_held(held: Numbers, key: bytes) -> bool:
    slot = slot_of_key(key[GROUP_PREFIX_BYTES:])
    return slot is None or bool(held[slot])


class Scan(NamedTuple):
    """Rows found, in order, and the last key looked at; None where the range is exhausted."""

    rows: list[tuple[bytes, bytes]]
    stopped_at: bytes | None


class GroupPage(NamedTuple):
    """One group's contribution to a page: (key behind the table prefix, encoded record), and where it stopped."""

    rows: list[tuple[bytes, bytes]]
    stopped_at: bytes | None


def page_of(pages: list[GroupPage], limit: int) -> tuple[list[bytes], bytes]:
    """Merge the groups' pages into (encoded records in key order, cursor).

    A group that stopped early has said nothing about keys behind its stop, so the page ends at the lowest stop.
    """
    stops = [page.stopped_at for page in pages if page.stopped_at is not None]
    bound = min(stops, default=None)
    rows = sorted(
        (row for page in pages for row in page.rows if bound is None or row[0] <= bound), key=lambda row: row[0]
    )
    records: list[bytes] = []
    size = 0
    for key, record in rows:
        records.append(record)
        size += len(record)
        if (len(records) >= limit or size >= PAGE_BYTES_MAX) and key != rows[-1][0]:
            return records, key
    return records, bound or b""


_Body = TypeVar("_Body", bound=m.Message)
_Reply = TypeVar("_Reply", bound=m.Message)


class Verb(Generic[_Body, _Reply]):
    """One row of the registry. ``read`` returns what ``merge`` takes; ``evaluate`` returns a reply.

    ``split`` is given where the body has no items, or its items lack fields of the table's key.
    ``refuse`` is the reply in place of a group's that could not do its part while others did theirs.
    ``forget``/``recall``: what of a reply need not be remembered for retries because it can be read again.
    ``origin``: of the entries that it makes.
    ``may_write``: whether a body can change anything at all; a request that cannot needs no identity (None: any can).
    """

    def __init__(
        self,
        method: Method[_Body, _Reply],
        table: Table[Any],
        *,
        merge: Callable[[_Body, list[tuple[Rows, Any]]], _Reply],
        split: Callable[[_Body, Numbers], dict[int, Rows]] | None = None,
        evaluate: Callable[[View, Command[_Body]], _Reply] | None = None,
        refuse: Callable[[_Body, Rows, MetadError], _Reply] | None = None,
        read: Callable[[Reader, Command[_Body]], Any] | None = None,
        origin: Origin = Origin.CLIENT,
        forget: Callable[[_Reply], _Reply] | None = None,
        may_write: Callable[[_Body], bool] | None = None,
        recall: Callable[[Reader, Command[_Body], _Reply], _Reply] | None = None,
    ) -> None:
        if not method.mutates == (evaluate is not None) == (refuse is not None) == (read is None):
            raise TypeError(f"{method.name}: a verb either evaluates (mutates, can refuse) or reads")
        self.method = method
        self.table = table
        self._keyed: Keyed | None = table.routed.get(method)
        self.split: Callable[[_Body, Numbers], dict[int, Rows]] = split or self._split
        self.merge = merge
        self.evaluate = evaluate
        self.refuse = refuse
        self.read = read
        self.origin = origin
        self.forget = forget
        self.recall = recall
        self.may_write = may_write

    def _split(self, body: Any, slots: Numbers) -> dict[int, Rows]:
        return split_items(self.table, body.items, slots, self._keyed)


def split_items(table: Table[Any], items: Any, slots: Numbers, keyed: Keyed | None = None) -> dict[int, Rows]:
    """The rows of each group, by the table's key; ``keyed``: what of an item has its fields. Raises
    InvalidRequestError."""
    keys, crcs = table.keys(items if keyed is None else keyed(items))
    return partition(items, keys, column(crcs, len(keys)), slots)


def check_same_rows(command: Command[Any], answered: int) -> None:
    """Raise IdentityExpiredError where a retry is not about the rows that its first attempt was about."""
    if len(command.rows) != answered:
        raise IdentityExpiredError("this write was done before; some of its records have moved to another group since")


def merge_writes(body: m.Message, parts: list[tuple[Rows, m.WriteReply]]) -> m.WriteReply:
    """Merge for every verb that answers with a plain WriteReply. Item errors carry request positions already."""
    replies = [reply for _, reply in parts]
    return m.WriteReply(
        [revision for reply in replies for revision in reply.revisions],
        sorted((error for reply in replies for error in reply.errors), key=lambda error: error.index),
    )


def mismatch(position: int, error: type[MetadError], what: str, current: int) -> m.ItemError:
    """An item that was compared with ``what`` and did not match."""
    return m.ItemError(position, error.code, f"{what} is {current}", current)


def refuse_writes(body: m.Message, rows: Rows, error: MetadError) -> m.WriteReply:
    """Refuse for every verb that answers with a plain WriteReply: each item fails with the group's error."""
    return m.WriteReply([], [m.ItemError(position, error.code, error.message) for position in rows.positions])


def by_position(parts: list[tuple[Rows, list[Any]]]) -> list[Any]:
    """Put per-row results of several groups back into request order."""
    if len(parts) == 1:
        return parts[0][1]
    merged: list[Any] = [None] * sum(len(rows) for rows, _ in parts)
    for rows, results in parts:
        for position, result in zip(rows.positions, results, strict=True):
            merged[position] = result
    return merged


def merge_get(reply: type[Any]) -> Callable[[Any, list[tuple[Rows, list[Any]]]], Any]:
    """Merge for a reply of records by position."""
    return lambda _, parts: reply(by_position(parts))


def merge_list(reply: type[Any]) -> Callable[[Any, list[tuple[Rows, GroupPage]]], Any]:
    """Merge for a reply of records and a cursor."""

    def merge(body: Any, parts: list[tuple[Rows, GroupPage]]) -> Any:
        records, cursor = page_of([page for _, page in parts], body.page.limit)
        return reply([msgspec.Raw(record) for record in records], cursor)

    return merge


def looked_at(page: m.Page, parts: dict[int, Rows]) -> dict[int, Rows]:
    """Those of the groups that the page names; all of them where it names none."""
    return {group: rows for group, rows in parts.items() if group in page.groups} if page.groups else parts


def after_cursor(group: bytes, table: int, begin: bytes, cursor: bytes) -> bytes:
    """Where a listing starts in a group's table: at ``begin``, or just behind the cursor if that is further on."""
    return table_prefix(group, table) + max(begin, cursor + b"\0" if cursor else b"")


def read_values(reader: Reader, command: Command[Any], row: int) -> list[bytes | None]:
    """The values that a row of the table has for a command's items, by position."""
    prefix = table_prefix(reader.group, row)
    return reader.get_many([prefix + suffix for suffix in command.rows.keys], command.reply_bytes_max)


def read_records(reader: Reader, command: Command[Any], row: int) -> list[msgspec.Raw | None]:
    """The same of a row that is a record as the wire has it."""
    return [None if value is None else msgspec.Raw(value) for value in read_values(reader, command, row)]


def read_page(reader: Reader, command: Command[Any], table: int, start: bytes) -> GroupPage:
    """A page of a table whose rows are records as the wire has them: those whose key starts with ``start``."""
    page = command.body.page
    prefix = table_prefix(reader.group, table)
    begin = after_cursor(reader.group, table, start, page.cursor)
    scan = reader.scan(begin, after_prefix(prefix + start), page.limit, look_rows_max=command.look_rows_max)
    skip = len(prefix)
    rows = [(key[skip:], value) for key, value in scan.rows]
    return GroupPage(rows, None if scan.stopped_at is None else scan.stopped_at[skip:])
