"""What the verbs of the tables are made of.

A table is declared in :mod:`metad_wire.tables`; its module here has a :class:`Verb` per method. A verb that writes has
``evaluate``, one that reads has ``read``. Both work on one group, which holds all items of the request.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import chain, islice
from typing import Any, Generic, NamedTuple, TypeVar

import msgspec

from metad_wire import messages as m
from metad_wire.errors import (
    IdentityExpiredError,
    InvalidRequestError,
    MetadError,
    NotFoundError,
    StaleRouteError,
    TooLargeError,
)
from metad_wire.key import TEXT_END, text_prefix
from metad_wire.messages import BROKER_BYTES_MAX
from metad_wire.methods import Body, For, Method
from metad_wire.refused import Refused, without
from metad_wire.table import ROWS, Keyed, Table
from metad_wire.text.fields import check_of, column_check_of

from ...storage.engine import Engine
from ...storage.keys import after_prefix, table_prefix
from .limits import REPLY_BYTES_MAX, check_reply
from .part import Origin, Parts
from .slot_assignment import ALL_SLOTS, SlotAssignment, is_held, unpack
from .view import NO_ROWS, Numbers, Rows, View, column, in_chunks

PAGE_BYTES_MAX = 1024 * 1024  # of one page; a client that reads on gets the rest with the next
SCAN_ROWS_MAX = 256  # looked at for one page: a filter that matches little must not delay others
_SCAN_BYTES_MAX = 4 * PAGE_BYTES_MAX  # the same in bytes, where rows are long and none of them is wanted
SLIGHT_BYTES = 1024
"""Of a request, for each item: so much may replace what is there while the disks are short of room."""
SPENT_BYTES = 1024  # that take about as long as a row to be looked at


Vouch = Callable[[m.Owner], MetadError | None]
"""Says why a life may not write; None if it may. It is asked on the leader, once for each request that names it."""


class Command(Generic[Body]):
    """A request to one group. ``rows`` may be empty for verbs that are not about single records. Records in the reply
    may take ``reply_bytes_max``. ``size`` is that of the request, as it came; 0 if it is not known. ``items`` is how
    much work it is: rows, or more if a row is more than one thing to do. ``refused`` are further items of the request:
    neither ``body`` nor ``rows`` has them. ``background``: nobody waits for it."""

    __slots__ = (
        "arrived_s",
        "background",
        "body",
        "digest",
        "holder",
        "items",
        "life",
        "method",
        "refused",
        "registered",
        "reply_bytes_max",
        "rows",
        "size",
        "verb",
        "vouch",
    )

    def __init__(
        self,
        method: Method[Body, Any],
        body: Body,
        rows: Rows,
        reply_bytes_max: int = REPLY_BYTES_MAX,
        size: int = 0,
        items: int | None = None,
        refused: Refused | None = None,
        background: bool = False,
        verb: Verb[Body, Any] | None = None,
    ) -> None:
        self.method = method
        self.verb = verb
        """What is done with it; None: what is done with the requests of the method."""
        self.body = body
        self.rows = rows
        self.reply_bytes_max = reply_bytes_max
        self.size = size
        self.items = len(rows) if items is None else items
        self.refused = refused
        self.background = background
        self.digest = 0
        """Of the request, if it has an identity, which is then valid for no other."""
        self.arrived_s: float | None = None
        """When the request reached this node, by its monotonic clock."""
        self.life: m.Owner | None = None
        """In whose name it is made, if the request says so."""
        self.registered = False
        """Whether metad registered that life, as the request says."""
        self.vouch: Vouch | None = None
        """Asked about a life in whose name it is made, where the group does not know it for one that a registration
        gave and that has not ended; None: whoever names a life has it."""
        self.holder = ""
        """Who asks: the party to which counts what the command makes and outlives a connection."""

    @property
    def tenant(self) -> bytes:
        """On whose behalf: the first field of the first row's key, which is a tenant or a namespace. A request about
        several counts for the first. Empty if no row is named."""
        keys = self.rows.keys
        return keys[0][self.method.table.ordered_by :].partition(TEXT_END)[0] if keys else b""


class Reader:
    """What a read sees: the applied state of one group, and the time of the group's log (``now_ms``). No read asks for
    the node's calendar: what is stored are times of the log, and behind an outage that is late."""

    def __init__(self, group: bytes, engine: Engine, parts: Parts, now_ms: Callable[[], int]) -> None:
        self.group = group
        self.engine = engine
        self.parts = parts
        self.now_ms = now_ms
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
        """Values by position. Raises TooLargeError when they are more than ``bytes_max`` together."""
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
        slots: bytes = b"",
    ) -> Scan:
        """Up to ``limit`` rows whose value ``keep`` accepts, of the next :data:`SCAN_ROWS_MAX`, with a bound on their
        bytes. ``slots``: those that the request names, as :func:`wanted_slots` says."""
        rows: list[tuple[bytes, bytes]] = []
        size = looked_at = looked_at_bytes = 0
        held = wanted_slots(self, slots)
        # Nearly all rows of a group are of slots that are wanted. Of what a filter keeps nothing is known.
        at_once = limit if keep is None else SCAN_ROWS_MAX
        while True:
            wanted = min(SCAN_ROWS_MAX - looked_at, at_once)
            at_once *= 2
            chunk = self.engine.scan(begin, end, wanted, PAGE_BYTES_MAX)
            chunk_bytes = sum([len(key) + len(value) for key, value in chunk])
            self.spent += len(chunk) + chunk_bytes // SPENT_BYTES
            for key, value in chunk:
                if (keep is None or keep(value)) and (held is None or is_held(held, key)):
                    rows.append((key, value))
                    size += len(key) + len(value)
                    if len(rows) >= limit or size >= PAGE_BYTES_MAX:
                        return Scan(rows, key)
            looked_at += len(chunk)
            looked_at_bytes += chunk_bytes
            if len(chunk) < wanted and chunk_bytes < PAGE_BYTES_MAX:
                return Scan(rows, None)
            begin = chunk[-1][0] + b"\0"
            if looked_at >= SCAN_ROWS_MAX or looked_at_bytes >= _SCAN_BYTES_MAX:
                return Scan(rows, chunk[-1][0])


def wanted_slots(reader: Reader, bits: bytes) -> Numbers | None:
    """The slots that a listing is about, a boolean per slot; None if that are all of the kind. ``bits``: those that the
    request names; if it names none, those that the group holds. Raises StaleRouteError if the group does not hold one
    of them."""
    if not bits:
        return reader.held
    if len(bits) != len(ALL_SLOTS):
        raise InvalidRequestError(f"slots: a bit map of {len(bits)} bytes, not {len(ALL_SLOTS)}")
    if bits == ALL_SLOTS and reader.held is None:
        return None
    wanted, held = unpack(bits), reader.held
    if held is not None and bool((wanted & ~held).any()):
        raise StaleRouteError
    return wanted


class Scan(NamedTuple):
    """Rows found, in order, and the last key looked at; None where the range is exhausted."""

    rows: list[tuple[bytes, bytes]]
    stopped_at: bytes | None


_Body = TypeVar("_Body", bound=m.Message)
_Reply = TypeVar("_Reply", bound=m.Message)


class Verb(Generic[_Body, _Reply]):
    """What a group does with the requests of one method.

    ``rows``: those of a body. By default the rows of its items, by the table's key; of a listing that has all routing
    fields one row, which only says the slot; of any other body none.
    ``operations``: how many things an item asks for beside itself; each of them may name a key.
    ``forget``/``recall``: what of a reply need not be remembered for retries because it can be read again.
    ``origin``: of the entries that it makes.
    ``background``: nobody waits for what it does, so it gives way to small requests, however small it is.
    ``coalesces``: whether several of its commands may write a row in one entry, which has the last value only. Not of
    rows that a part hears of.
    ``grows``: whether what a body asks for takes more room than before: refused while the disks are short of it. None:
    the verb finds out by item, and looks at :attr:`.View.no_room`; a request that brings much (:data:`SLIGHT_BYTES`) is
    refused as a whole, because the log takes room for what is written again, too.
    ``may_write``: whether a body can change anything at all; a request that cannot needs no identity (None: any can).
    """

    def __init__(
        self,
        method: Method[_Body, _Reply],
        table: Table[Any],
        *,
        rows: Callable[[_Body], Rows] | None = None,
        operations: Callable[[Any], int] | None = None,
        evaluate: Callable[[View, Command[_Body]], _Reply] | None = None,
        read: Callable[[Reader, Command[_Body]], _Reply] | None = None,
        origin: Origin = Origin.CLIENT,
        coalesces: bool = False,
        forget: Callable[[_Reply], _Reply] | None = None,
        may_write: Callable[[_Body], bool] | None = None,
        recall: Callable[[Reader, Command[_Body], _Reply], _Reply] | None = None,
        background: bool = False,
        grows: bool | Callable[[_Body], bool] | None = True,
    ) -> None:
        if not method.mutates == (evaluate is not None) == (read is None):
            raise TypeError(f"{method.name}: a verb either evaluates (mutates) or reads")
        if evaluate is not None and table.routing and rows is None and method not in table.routed:
            raise TypeError(f"{method.name}: a verb that writes rows of slots names those rows")
        fields = method.body.__struct_fields__
        self._has_items = "items" in fields
        self.names_life = "broker" in fields and "broker_epoch" in fields and method.whose is not For.NODES
        """Whether a body names a life of a broker, in whose name the request is made. What nodes ask of each other is
        asked in nobody's name, also where it is about a life that is over."""
        if (
            read is not None
            and self._has_items
            and [*method.reply.__struct_fields__] != [*method.reply.columns, "errors"]
        ):
            raise TypeError(f"{method.name}: the reply to a read of items is a column, and errors")
        self.method = method
        self.table = table
        self._keyed: Keyed | None = table.routed.get(method)
        if rows is None:
            rows = (self._item_rows if self._has_items else self._slot_row) if method in table.routed else _no_rows
        self.rows: Callable[[_Body], Rows] = rows
        by_clients = method.whose is not For.NODES
        self._check = column_check_of(method.item) if by_clients else None
        self._check_body = check_of(method.body, left_out=("items", "after")) if by_clients else None
        self._operations = operations
        self.evaluate = evaluate
        self.read = read
        self.origin = origin
        self.coalesces = coalesces
        self.forget = forget
        self.recall = recall
        self.may_write = may_write
        self._background = background
        self.grows = grows

    def brings_more(self, command: Command[Any]) -> bool:
        """Whether a command of this verb is refused as a whole while the disks are short of room."""
        grows = self.grows
        if grows is None:
            return command.size > SLIGHT_BYTES * max(1, command.items)
        return grows(command.body) if callable(grows) else grows

    def tenant(self, body: Any) -> bytes:
        """:attr:`Command.tenant`, of a request that is no command yet."""
        item = body
        if self._has_items:
            if not body.items:
                return b""
            item = body.items[0]
        if self._keyed is not None:
            (item,) = self._keyed((item,))
        name = getattr(item, self.table.key[0], "") if self.table.key else ""
        return name.encode() if isinstance(name, str) else b""

    def life(self, body: Any) -> m.Owner | None:
        """The life of a broker that a body names, if it names one: the request is made in its name."""
        return m.Owner(body.broker, body.broker_epoch) if self.names_life else None

    def _item_rows(self, body: Any) -> Rows:
        items = body.items
        keys, crcs = self.table.keys(items if self._keyed is None else self._keyed(items))
        return Rows(items, keys, column(crcs, len(keys)))

    def _slot_row(self, body: Any) -> Rows:
        return Rows((body,), (b"",), column(self.table.crcs((body,)), 1))

    def command(
        self,
        body: Any,
        size: int = 0,
        refused: Refused | None = None,
        reply_bytes_max: int = REPLY_BYTES_MAX,
    ) -> Command[Any]:
        """What a request asks for whose body has ``size`` bytes (0: not known), and whose decoder has ``refused`` items
        already. Items with a text against the grammar, or whose key or value is too long, are refused, too. Raises
        TooLargeError if the request has too many items, and InvalidRequestError if a text beside them is wrong."""
        if self._check_body is not None and (why := self._check_body(body)) is not None:
            raise InvalidRequestError(why)
        count, rows = self._count(body), self.rows(body)
        if faults := self._faults(body, rows, size):
            refused = Refused(len(body.items), faults) if refused is None else refused.and_also(faults)
            body = msgspec.structs.replace(body, items=without(body.items, faults))
            rows = self.rows(body)
        if refused is not None:
            count += len(refused)
        return Command(self.method, body, rows, reply_bytes_max, size, count, refused, self._background, self)

    def _faults(self, body: Any, rows: Rows, size: int) -> dict[int, str]:
        """Why items of a body of ``size`` bytes must be refused, by position: a text is against the grammar, a key or a
        value is too long."""
        faults: dict[int, str | None] = {}
        table = self.table
        if self._check is not None and self._has_items:
            faults.update(self._check(body.items))
        if self._operations is not None or max(map(len, rows.keys), default=0) > m.KEY_BYTES_MAX:
            for position, item in enumerate(body.items):
                faults[position] = faults.get(position) or table.key_fault(item)
        if size > table.fits_bytes and self._has_items:  # only then may one be over a limit
            for position, item in enumerate(body.items):
                faults[position] = faults.get(position) or table.value_fault(item)
        return {position: why for position, why in faults.items() if why is not None}

    def _count(self, body: Any) -> int:
        """How many items a body has, counted by the work that they are. Raises TooLargeError if they are too many."""
        items: Any = body.items if self._has_items else ()
        if len(items) > m.BATCH_ITEMS_MAX:  # the decoder has counted those that came over the wire
            raise TooLargeError(f"{len(items)} items in one request, {m.BATCH_ITEMS_MAX} are allowed")
        if self._operations is None:
            return max(1, len(items))  # a request without items is work, too
        operations = sum(map(self._operations, items))
        if operations > m.BATCH_ITEMS_MAX:
            raise TooLargeError(f"{operations} operations in one request, {m.BATCH_ITEMS_MAX} are allowed")
        return max(1, operations + len(items))


def _no_rows(body: m.Message) -> Rows:
    return NO_ROWS


def check_same_rows(command: Command[Any], answered: int) -> None:
    """Raise IdentityExpiredError if a retry is not about as many rows as its first attempt."""
    if len(command.rows) != answered:
        raise IdentityExpiredError("this identity was used for another request")


def written(view: View, errors: list[m.ItemError]) -> m.WriteReply:
    """The reply to a write of which these items failed."""
    return m.WriteReply([m.Revision(view.name, view.revision)], errors)


def mismatch(
    position: int,
    error: type[MetadError],
    what: str,
    current: int,
    said: int | None = None,
    *,
    absent: bool = False,
) -> m.ItemError:
    """An item that was compared with ``what`` and did not match. ``said``: what the request expected; ``absent``: there
    is no record, which is why ``current`` is what it is."""
    why = " (there is none)" if absent else ""
    expected = f", and the request says {said}" if said is not None else ""
    return m.ItemError(position, error.code, f"{what} is {current}{why}{expected}", current)


def after_cursor(group: bytes, table: int, begin: bytes, cursor: bytes, after: bytes = b"") -> bytes:
    """Where a listing starts in a group's table: at ``begin``, or just behind the cursor, or behind the key ``after``,
    whichever is furthest on."""
    return table_prefix(group, table) + max(begin, *(key + b"\0" for key in (cursor, after) if key), b"")


def read_values(reader: Reader, command: Command[Any], row: int) -> list[bytes | None]:
    """The values that a row of the table has for a command's items, by position."""
    return reader.get_many(_keys_of(reader, command, row), command.reply_bytes_max)


def _keys_of(reader: Reader, command: Command[Any], row: int) -> list[bytes]:
    prefix = table_prefix(reader.group, row)
    return [prefix + suffix for suffix in command.rows.keys]


def read_keys(reader: Reader, command: Command[Any], keys: list[bytes]) -> m.GetReply[Any]:
    """The reply to a read of rows that are records as the wire has them, by position of their keys."""
    values = reader.get_many(keys, command.reply_bytes_max)
    reply: m.GetReply[Any] = command.method.reply([None if value is None else msgspec.Raw(value) for value in values])
    return reply


def read_records(reader: Reader, command: Command[Any], row: int) -> m.GetReply[Any]:
    """:func:`read_keys`, of a row of the table."""
    return read_keys(reader, command, _keys_of(reader, command, row))


def may_transact(body: Any) -> bool:
    """Whether transactions can change anything. If all items were wrong by themselves, another body under this identity
    has to be refused, as for other verbs."""
    return not body.items or any(transaction.then or transaction.otherwise for transaction in body.items)


def read_again(
    reader: Reader, command: Command[Any], wanted: Sequence[Sequence[bytes]], results: int
) -> list[list[bytes | None]]:
    """What each of the transactions of a retry reads, of these keys; empty if none reads anything. ``results``: of the
    reply that is remembered. Raises IdentityExpiredError where that cannot be read any more."""
    if not any(wanted):
        return []
    check_same_rows(command, results)
    reader.check_still_held(command.rows)
    try:
        values = iter(reader.get_many([*chain.from_iterable(wanted)], command.reply_bytes_max))
    except TooLargeError:
        raise IdentityExpiredError("this write was done before; the records it reads no longer fit a reply") from None
    return [[*islice(values, len(one))] for one in wanted]


class Page(NamedTuple):
    """What one page of a listing is made of: rows in order, each the key behind the table's prefix, and the value.
    ``cursor``: behind which key the next page begins; empty if there is none."""

    rows: list[tuple[bytes, bytes]]
    cursor: bytes


def page_of(
    reader: Reader,
    command: Command[Any],
    row: int,
    keep: Callable[[bytes], bool] | None = None,
    start: bytes | None = None,
    after: bytes = b"",
) -> Page:
    """A page of a row: of the keys that a listing asks for, or of those that begin with ``start`` and come behind the
    key ``after``; in the slots that the request names, if it names some. Raises InvalidRequestError."""
    body, table = command.body, ROWS[row]
    if start is None:
        start, last = _start(table.listed[command.method].asked, table, body), getattr(body, "after", None)
        after = b"" if last is None else table.keys([last])[0][0]
    prefix = table_prefix(reader.group, row)
    begin = after_cursor(reader.group, row, start, body.page.cursor, after)
    slots = getattr(body, "slots", b"")
    scan, skip = reader.scan(begin, after_prefix(prefix + start), body.page.limit, keep, slots), len(prefix)
    cursor = b"" if scan.stopped_at is None else scan.stopped_at[skip:]
    return Page([(key[skip:], value) for key, value in scan.rows], cursor)


def _start(asked: Iterable[str], table: Table[Any], body: Any) -> bytes:
    """What the keys begin with that are asked for: whole fields of them, and how the next one begins."""
    fields: list[str] = []
    prefix = missing = ""
    for name in asked:
        value = getattr(body, name)
        if name not in table.key:
            prefix = value if name.endswith("prefix") else prefix
            if prefix and missing:
                raise InvalidRequestError(f"{name} needs a {missing}")
        elif value is None:
            missing = name
        else:
            fields.append(value)
    return table.key_of(fields) + text_prefix(prefix)


def read_list(
    reader: Reader,
    command: Command[Any],
    row: int,
    shown: Callable[[Reader, bytes, bytes], Any] | None = None,
) -> m.ListReply[Any]:
    """The reply to a listing of a row that is a record as the wire has it, or of which ``shown`` makes one: of its key
    behind the table's prefix, and its value."""
    rows, cursor = page_of(reader, command, row)
    if shown is None:
        return m.ListReply([msgspec.Raw(value) for _, value in rows], cursor)
    return m.ListReply([shown(reader, key, value) for key, value in rows], cursor)


def delete_rows(view: View, command: Command[Any], row: int) -> m.WriteReply:
    """Delete the rows of a table that items name, where nothing else goes with them."""
    prefix, writes = table_prefix(view.group, row), view.writes_of(row)
    errors: list[m.ItemError] = []
    for position, _, suffix in command.rows:
        if view.get(prefix + suffix) is None:
            errors.append(m.ItemError(position, NotFoundError.code))
        else:
            writes[prefix + suffix] = None
    return written(view, errors)


def check_broker(name: str) -> None:
    """Raise InvalidRequestError if the name of a broker is too long."""
    if (length := len(name.encode())) > BROKER_BYTES_MAX:
        raise InvalidRequestError(f"the broker's name takes {length} bytes, {BROKER_BYTES_MAX} are allowed")
