"""Plain tables: records that are put, read, deleted and listed by their key, and have a version to compare.

A plain table needs nothing but its declaration. On disk a record is what a read returns, so a read copies bytes and
decodes nothing.
"""

from __future__ import annotations

import typing
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, Final

import msgspec

from metad_wire import messages as m
from metad_wire.declaration import INDEXES_MAX
from metad_wire.errors import (
    ConflictError,
    IndexBuildingError,
    InvalidItemError,
    InvalidRequestError,
    NotFoundError,
    UnknownTableError,
)
from metad_wire.faults import MALFORMED, reason
from metad_wire.key import SLOT_MASK, text, text_prefix
from metad_wire.methods import encode
from metad_wire.table import Table
from metad_wire.tables.table import DECLARED, DUES, INDEXES, Index, PlainTable
from metad_wire.text.fields import check_of

from ...storage import keys
from .due import RECORD_DUE
from .indexes import IndexStates
from .limits import LOOKED_AT_BYTES_MAX
from .part import Writes
from .verb import (
    PAGE_BYTES_MAX,
    SCAN_ROWS_MAX,
    SPENT_BYTES,
    Command,
    Page,
    Reader,
    Verb,
    after_cursor,
    mismatch,
    page_of,
    read_records,
    read_values,
    wanted_slots,
    written,
)
from .view import NO_ROWS, Head, HeadCache, Heads, Missing, Rows, View, column, in_chunks

_INDEX: Final = INDEXES.rows["index"]
_BUILDING_MS: Final = 2_000
"""A listing by an index that is being built may be asked for again after that."""
_COUNTED_MAX: Final = 1_024
"""For one answer, in rows: some two milliseconds, for which nobody else is served."""

EncodeRow = Callable[[Any, int, int, int], bytes]
"""(item of a put, its version, its create revision, revision) -> its row."""
EncodeRows = Callable[[Sequence[Any], Sequence[int], Sequence[int], int], list[bytes]]
"""The same of many items."""


class _Row(m.Message, frozen=True):
    """A row's numbers, without making objects of the rest. See :class:`metad_wire.messages.TableRecord`."""

    record: msgspec.Raw
    version: int
    create_revision: int
    mod_revision: int


_decode_row = msgspec.msgpack.Decoder(_Row).decode


def _encode_row(item: m.TablePutItem[Any], version: int, create_revision: int, revision: int) -> bytes:
    return encode((item.record, version, create_revision, revision))


class Plain:
    """What the methods of one plain table do.

    ``encode_row`` and ``decode_row``, which yields the numbers of a row, are given by a table whose rows are of another
    shape than :class:`metad_wire.messages.TableRecord`. ``encode_rows`` may be given where a call per row is too slow.
    """

    def __init__(
        self,
        table: Table[Any],
        encode_row: EncodeRow = _encode_row,
        decode_row: Callable[[bytes], Any] = _decode_row,
        encode_rows: EncodeRows | None = None,
    ) -> None:
        self.table = table
        (self.row,) = table.rows.values()
        self._encode_row = encode_row
        self._encode_rows = encode_rows or self.general_encode_rows
        self._decode_row = decode_row

    def general_encode_rows(
        self, items: Sequence[Any], versions: Sequence[int], created: Sequence[int], revision: int
    ) -> list[bytes]:
        """The rows of many items, one by one."""
        if self._encode_row is _encode_row:  # as of every declared table: spelled out, a call less for each
            numbered = zip(items, versions, created, strict=True)
            return [encode((item.record, version, born, revision)) for item, version, born in numbered]
        return [self._encode_row(*row, revision) for row in zip(items, versions, created, strict=True)]

    def prefix(self, group: bytes) -> bytes:
        """What the keys of all records of a group begin with."""
        return keys.table_prefix(group, self.row)

    def heads(self, view: View) -> CommandHeads:
        """The numbers of records, for a command that writes some of them one by one."""
        return CommandHeads(self, view)

    def read_head(self, view: View, key: bytes) -> Head | None:
        """The numbers of a record that is not remembered; None if there is no record."""
        value = view.get(key)
        head = None
        if value is not None:
            row = self._decode_row(value)
            head = (row.version, row.create_revision)
        view.parts[HeadCache].add({key: head})
        return head

    def evaluate_put(self, view: View, command: Command[Any]) -> Any:
        """Write records. The reply is one of versions."""
        rows = command.rows
        targets = list(map(self.prefix(view.group).__add__, rows.keys))
        revisions = [m.Revision(view.name, view.revision)]
        count = len(targets)
        if count == 1 or len(set(targets)) < count or [i.expected_version for i in rows.items].count(None) < count:
            errors, versions = self.put_in_turn(view, command, targets)
            return command.method.reply(revisions, errors, versions)
        # Different keys and no conditions, as nearly always: by columns. 100,000 puts a second pass here.
        revision, cache = view.revision, view.parts[HeadCache]
        known = [
            self.read_head(view, key) if isinstance(head, Missing) else head
            for key, head in zip(targets, cache.get_many(targets), strict=True)
        ]
        if self.takes_turns(view, command, known):
            errors, versions = self.put_in_turn(view, command, targets)
            return command.method.reply(revisions, errors, versions)
        versions = [1 if head is None else head[0] + 1 for head in known]
        created = [revision if head is None else head[1] for head in known]
        view.write(
            self.row, dict(zip(targets, self._encode_rows(rows.items, versions, created, revision), strict=True))
        )
        heads: Heads = dict(zip(targets, zip(versions, created, strict=True), strict=True))
        view.on_accept.append(partial(cache.add, heads))
        return command.method.reply(revisions, [], versions)

    def takes_turns(self, view: View, command: Command[Any], known: Sequence[Head | None]) -> bool:
        """Whether a put of records with these heads has to look at one after the other."""
        return False

    def put_in_turn(
        self, view: View, command: Command[Any], targets: list[bytes]
    ) -> tuple[list[m.ItemError], list[int]]:
        """Write records one after the other: (errors, new versions)."""
        rows = command.rows
        errors: list[m.ItemError] = []
        versions: list[int] = []
        heads, writes = self.heads(view), view.writes_of(self.row)
        for position, (item, key) in enumerate(zip(rows.items, targets, strict=True)):
            if item.expected_version is not None:
                current = heads.get(key)
                if item.expected_version != (current[0] if current else 0):
                    errors.append(conflict(position, current, item.expected_version))
                    versions.append(0)
                    continue
            version, created = heads.next(key)
            versions.append(version)
            writes[key] = self._encode_row(item, version, created, view.revision)
        return errors, versions

    def evaluate_delete(self, view: View, command: Command[Any]) -> m.WriteReply:
        """Delete records."""
        prefix = self.prefix(view.group)
        errors: list[m.ItemError] = []
        heads, writes = self.heads(view), view.writes_of(self.row)
        for position, item, suffix in command.rows:
            key = prefix + suffix
            current = heads.get(key)
            if current is None:
                errors.append(m.ItemError(position, NotFoundError.code))
            elif item.expected_version is not None and item.expected_version != current[0]:
                errors.append(conflict(position, current, item.expected_version))
            elif (born := self.born(item)) is not None and born != current[1]:
                errors.append(mismatch(position, ConflictError, "create_revision", current[1], born))
            else:
                writes[key] = heads.written[key] = None
        return written(view, errors)

    def born(self, item: Any) -> int | None:
        """The revision at which the record must have been created that this item of a delete names; None: any."""
        return None


class CommandHeads:
    """The numbers of records as one command sees and changes them."""

    __slots__ = ("_cache", "_plain", "_view", "written")

    def __init__(self, plain: Plain, view: View) -> None:
        self.written: Heads = {}
        """Those that the command changes; None of a record that it deletes."""
        self._plain = plain
        self._view = view
        self._cache = view.parts[HeadCache]
        view.on_accept.append(partial(self._cache.add, self.written))

    def get(self, key: bytes) -> Head | None:
        """The numbers of a record as the command must believe them; None if there is no record."""
        if key in self.written:
            return self.written[key]
        head = self._cache.get(key)
        return self._plain.read_head(self._view, key) if isinstance(head, Missing) else head

    def next(self, key: bytes, lease: str = "") -> tuple[int, int]:
        """The numbers of a record once it is written again, which the caller does."""
        current = self.get(key)
        head = (1, self._view.revision) if current is None else (current[0] + 1, current[1])
        self.written[key] = (*head, lease) if lease else head
        return head

    def delete(self, key: bytes, writes: Writes) -> None:
        """Delete a record, if there is one, among the command's writes. A key without a record both before the command
        and after it is left without a write: who follows the log must not hear of a record that nobody could see."""
        writes.pop(key, None)
        self.written.pop(key, None)
        if self.get(key) is not None:  # what was there before the command, as its own write is undone
            writes[key] = None
        self.written[key] = None


def check_ruled(table: PlainTable[Any]) -> None:
    """Raise InvalidRequestError if other methods alone write the records."""
    if table.ruled_by:
        raise InvalidRequestError(f"the records of {table.name} are written by the methods of {table.ruled_by} only")


class DeclaredRecords(Plain):
    """A table that is declared as data."""

    table: PlainTable[Any]

    def __init__(self, table: PlainTable[Any]) -> None:
        super().__init__(table)
        self._names = table.record.__struct_fields__
        self._decode_record = msgspec.msgpack.Decoder(m.TableRecord[table.record]).decode  # type: ignore[name-defined]
        indexed = _first_fields(
            table.record,
            [*table.key, *filter(None, [table.expires]), *(name for i in table.indexes.values() for name in i.fields)],
        )
        self._decode_indexed = msgspec.msgpack.Decoder(m.TableRecord[indexed]).decode  # type: ignore[valid-type]
        self._decode_put = msgspec.msgpack.Decoder(table.record).decode
        plain = table.plain
        self._check_put: Callable[[Any], str | None] = check_of(plain.put.item) or (lambda item: None)
        self.verbs: dict[int, Verb[Any, Any]] = {
            verb.method.code: verb
            for verb in (
                Verb(plain.get, table, read=self.read_get if table.expires else partial(read_records, row=self.row)),
                Verb(plain.put, table, evaluate=self.evaluate_put),
                Verb(plain.delete, table, evaluate=self.evaluate_delete, grows=False),
                Verb(plain.list, table, rows=self.list_rows, read=self.read_list),
                Verb(plain.counts, table, rows=self.list_rows, read=self.read_count),
            )
        }

    def evaluate_put(self, view: View, command: Command[Any]) -> Any:
        check_ruled(self.table)
        known = command.body.known
        self._check_known(known)
        if known < len(self._names):
            self._keep_the_rest(view, command, known)
        return self._indexed(view, command, super().evaluate_put)

    def _check_known(self, known: int) -> None:
        if known > len(self._names):
            raise UnknownTableError(f"this node knows {len(self._names)} fields of {self.table.name}, not {known} yet")

    def evaluate_delete(self, view: View, command: Command[Any]) -> m.WriteReply:
        check_ruled(self.table)
        reply: m.WriteReply = self._indexed(view, command, super().evaluate_delete)
        return reply

    def born(self, item: m.TableDeleteItem[Any]) -> int | None:
        return item.create_revision

    def _indexed(self, view: View, command: Command[Any], evaluate: Callable[[View, Command[Any]], Any]) -> Any:
        """Write records, and with them their rows in the indexes that their slots keep, and when they end."""
        states, table, suffixes = view.parts[IndexStates], self.table, command.rows.keys
        if states.has_none(table) and not table.expires:
            return evaluate(view, command)
        slots = (command.rows.crcs & SLOT_MASK).tolist()
        kept = states.kept(view, table, slots)
        prefix, now_ms = self.prefix(view.group), view.now_ms
        slot_of = dict(zip(map(prefix.__add__, suffixes), slots, strict=True))
        targets = [*slot_of]
        before = view.get_many(targets, LOOKED_AT_BYTES_MAX)
        decode, cache = self._decode_indexed, view.parts[HeadCache]
        decoded = [None if value is None else decode(value) for value in before]
        heads: Heads = {
            key: None if old is None else (old.version, old.create_revision)
            for key, old, head in zip(targets, decoded, cache.get_many(targets), strict=True)
            if isinstance(head, Missing)
        }
        # What has ended is no record for who writes, as for who reads, also while its row is still there.
        heads |= {key: None for key, old in zip(targets, decoded, strict=True) if old and _ended(table, old, now_ms)}
        cache.add(heads)  # or each record would be read once more for its head
        reply = evaluate(view, command)
        written = view.writes_of(self.row)
        for key, value, old in zip(targets, before, decoded, strict=True):
            now = written.get(key, value)
            if now is not value:
                indexes = self.indexes(kept[slot_of[key]])
                view.beside += self.follow(view, indexes, key[len(prefix) :], None if old is None else old.record, now)
        return reply

    def follow(self, view: View, indexes: Sequence[Index], key: bytes, was: Any, now: bytes | None) -> int:
        """Write what follows where what the record of this key was, as :meth:`decoded_indexed` says, becomes this row:
        in these indexes, and in what is due. Returns how many bytes that is."""
        new = self.decoded_indexed(now)
        size = self._reindex(view, indexes, was, new) if indexes else 0
        if not self.table.expires:
            return size
        old_ms, new_ms = (0 if one is None else getattr(one, self.table.expires) for one in (was, new))
        if old_ms != new_ms:
            prefix, writes = keys.table_prefix(view.group, RECORD_DUE), view.writes_of(RECORD_DUE)
            for at_ms, row in ((old_ms, None), (new_ms, b"")):
                if at_ms:
                    due = prefix + DUES.key_for(at_ms, key)
                    writes[due] = row
                    size += len(due)
        return size

    def ended(self, value: bytes | None, now_ms: int) -> bool:
        """Whether this is the row of a record that has ended by this time."""
        return (
            bool(self.table.expires) and value is not None and _ended(self.table, self._decode_indexed(value), now_ms)
        )

    def end(self, view: View, key: bytes, at_ms: int | None = None) -> bool:
        """Delete the record of a key with what follows, if it has ended: by the time of the log, or ``at_ms`` as it
        says itself. Whether it has."""
        target = self.prefix(view.group) + key
        value = view.get(target)
        if value is None:
            return False
        row = self._decode_indexed(value)
        if getattr(row.record, self.table.expires) != at_ms if at_ms else not _ended(self.table, row, view.now_ms):
            return False
        view.parts[HeadCache].add({target: (row.version, row.create_revision)})  # as the engine has it
        view.writes_of(self.row)[target] = None
        size = self.follow(view, self.indexes_of(view, key), key, row.record, None)
        view.beside += size + len(target)
        return True

    def indexes(self, kept: int, first: int = 0) -> list[Index]:
        """As many of the indexes as are kept, without the first."""
        return [*self.table.indexes.values()][first:kept]

    def indexes_of(self, view: View, key: bytes) -> list[Index]:
        """Those that the slot of the record with this key keeps. Raises UnknownTableError."""
        states = view.parts[IndexStates]
        if states.has_none(self.table):
            return []
        (kept,) = states.kept(view, self.table, [DECLARED.slot_of(key)]).values()
        return self.indexes(kept)

    def build_indexes(self, view: View, rows: Rows) -> None:
        """Write the rows that these records lack in the indexes that were added, where their slots keep these."""
        prefix, slots = self.prefix(view.group), rows.crcs.tolist()
        kept = view.parts[IndexStates].kept(view, self.table, slots)
        found = view.get_many([prefix + key for key in rows.keys], LOOKED_AT_BYTES_MAX)
        for value, slot in zip(found, slots, strict=True):
            indexes = self.indexes(kept[slot], self.table.first_indexes)
            view.beside += self._reindex(view, indexes, None, self.decoded_indexed(value))

    def _reindex(self, view: View, indexes: Sequence[Index], was: Any, new: Any) -> int:
        """Write the rows of these indexes where what a record was becomes this. Returns how many bytes they are."""
        stay = was is not None and new is not None
        changed = [index for index in indexes if not stay or index.values(was) != index.values(new)]
        if not changed:
            return 0
        prefix, rows = keys.table_prefix(view.group, _INDEX), view.writes_of(_INDEX)
        gone, come = _index_rows(was, changed), _index_rows(new, changed)
        rows.update((prefix + row, None) for row in gone - come)
        rows.update((prefix + row, b"") for row in come - gone)
        return sum(map(len, gone ^ come))

    def decoded_indexed(self, value: bytes | None) -> Any:
        """As much of the record of a row as its indexes need; None if there is no row."""
        return None if value is None else self._decode_indexed(value).record

    def kept(self, record: Any, stored: Any, known: int) -> Any:
        """A record of who knows so many fields, with the others as they are stored."""
        return msgspec.structs.replace(record, **{name: getattr(stored, name) for name in self._names[known:]})

    def decoded(self, value: bytes) -> Any:
        """The record of a row."""
        return self._decode_record(value).record

    def read_put(self, record: bytes, known: int) -> Any:
        """A record that is to be put, of who knows so many fields. Raises InvalidItemError, UnknownTableError."""
        self._check_known(known)
        try:
            item = self._decode_put(record)
        except MALFORMED as error:
            raise InvalidItemError(f"record of {self.table.name}: {reason(error, self.table.record)}") from None
        put = m.TablePutItem(item)
        if (why := self._check_put(put) or self.table.fault(put)) is not None:
            raise InvalidItemError(why)
        return item

    def _keep_the_rest(self, view: View, command: Command[Any], known: int) -> None:
        """Who writes knows ``known`` fields only: the others stay as they are."""
        prefix, rows = self.prefix(view.group), command.rows
        stored = view.get_many([prefix + suffix for suffix in rows.keys], m.CHANGE_BYTES_MAX)  # it is written again
        view.beside += sum(map(len, filter(None, stored)))
        items = list(rows.items)
        decode = self._decode_record
        for position, value in enumerate(stored):
            if value is not None and not self.ended(value, view.now_ms):
                record = self.kept(items[position].record, decode(value).record, known)
                items[position] = msgspec.structs.replace(items[position], record=record)
        command.rows = Rows(items, rows.keys, rows.crcs)

    def list_rows(self, body: m.TableList) -> Rows:
        """One for the slot of all records that are asked for; none if they have several. Raises InvalidRequestError."""
        table, fields = self.table, body.fields
        if len(table.indexes) < body.index <= INDEXES_MAX:
            raise UnknownTableError(f"this node knows {len(table.indexes)} indexes of {table.name}")
        order = table.index(body.index) or table
        names = order.names
        if order.of_elements and not fields:
            raise InvalidRequestError(f"fields: a listing by this index names an element of {names[0]}")
        if body.after and len(body.after) < len(names):
            raise InvalidRequestError(f"after: {len(body.after)} of {len(names)} fields")
        for given in (fields, body.after):
            if (why := order.fields_fault(given)) is not None:
                raise InvalidRequestError(why)
        if body.prefix and (len(fields) == len(names) or order.encoders[len(fields)] is not text):
            raise InvalidRequestError("a prefix needs a field of text behind the fields that are given")
        if not table.routed_by(fields, body.index):
            return NO_ROWS
        return Rows((body,), (b"",), column(table.crcs(table.listed_by((body,))), 1))

    def read_list(self, reader: Reader, command: Command[m.TableList]) -> Any:
        """A page of records."""
        body, index = command.body, self._complete_index(reader, command)
        order = index or self.table
        start = order.key_of(body.fields) + text_prefix(body.prefix)
        after = order.key_of(body.after) + order.behind if body.after else b""
        keep = self._lasts(reader)
        row, kept = (self.row, keep) if index is None else (_INDEX, None)
        page = page_of(reader, command, row, kept, start=start, after=after)
        rows, cursor = page if index is None else self._records_of(reader, index, page, keep)
        return m.ListReply([msgspec.Raw(value) for _, value in rows], cursor)

    def _complete_index(self, reader: Reader, command: Command[m.TableList]) -> Index | None:
        """The index that a listing or a count goes by; None for the key. Raises IndexBuildingError if a slot is not
        complete that it is about."""
        index = self.table.index(command.body.index)
        if index is None or index.number <= self.table.first_indexes:
            return index
        lacking = reader.parts[IndexStates].incomplete(self.table, index.number)
        if len(command.rows):
            lacks = bool(lacking[command.rows.crcs & SLOT_MASK].any())
        else:
            wanted = wanted_slots(reader, command.body.slots)
            lacks = bool((lacking if wanted is None else lacking[wanted]).any())
        if lacks:
            raise IndexBuildingError(
                f"index {index.name} of {self.table.name} is being built from the records that there were",
                retry_after_ms=_BUILDING_MS,
                retry_jitter_ms=_BUILDING_MS // 4,
            )
        return index

    def read_count(self, reader: Reader, command: Command[m.TableList]) -> m.TableCountReply:
        """How many records a page has that shows none, so that it has room for more of them."""
        body, count = command.body, 0
        if body.after:
            raise InvalidRequestError("after: a count goes on behind a cursor")
        index = self._complete_index(reader, command)
        start = (index or self.table).key_of(body.fields) + text_prefix(body.prefix)
        row, keep = self.row if index is None else _INDEX, self._lasts(reader)
        prefix, begin = keys.table_prefix(reader.group, row), after_cursor(reader.group, row, start, body.page.cursor)
        end, of_row = keys.after_prefix(prefix + start), keep if index is None else None
        spent_max, limit = reader.spent + _COUNTED_MAX, body.page.limit
        while True:
            rows, stopped_at = reader.scan(begin, end, min(SCAN_ROWS_MAX, limit - count), of_row, body.slots)
            if index is not None and keep is not None:
                page = Page([(key[len(prefix) :], value) for key, value in rows], b"")
                rows, short_of = self._records_of(reader, index, page, keep)
                if short_of:
                    return m.TableCountReply(count + len(rows), short_of)
            count += len(rows)
            if stopped_at is None:
                return m.TableCountReply(count)
            if count >= limit or reader.spent >= spent_max:
                return m.TableCountReply(count, stopped_at[len(prefix) :])
            begin = stopped_at + b"\0"

    def read_get(self, reader: Reader, command: Command[Any]) -> m.GetReply[Any]:
        """As :func:`.verb.read_records`, without those that have ended."""
        now_ms, values = reader.now_ms(), read_values(reader, command, self.row)
        found = [None if value is None or self.ended(value, now_ms) else msgspec.Raw(value) for value in values]
        reply: m.GetReply[Any] = command.method.reply(found)
        return reply

    def _lasts(self, reader: Reader) -> Callable[[bytes], bool] | None:
        """Whether a row is that of a record which has not ended; None if no record of the table ends."""
        if not self.table.expires:
            return None
        now_ms = reader.now_ms()
        return lambda value: not self.ended(value, now_ms)

    def _records_of(self, reader: Reader, index: Index, page: Page, keep: Callable[[bytes], bool] | None) -> Page:
        """A page of the records of these rows of an index that ``keep`` accepts: as many as a page has room for."""
        rows, prefix, size = [row for row, _ in page.rows], self.prefix(reader.group), 0
        found: list[tuple[bytes, bytes]] = []
        names = iter(rows)
        for chunk, chunk_bytes in in_chunks(reader.engine, [prefix + index.record_key(row) for row in rows]):
            reader.spent += len(chunk) + chunk_bytes // SPENT_BYTES
            for value, row in zip(chunk, names, strict=False):
                assert value is not None  # one entry writes both
                size += len(value)
                if keep is None or keep(value):
                    found.append((row, value))
                if size >= PAGE_BYTES_MAX:
                    return Page(found, row)
        return Page(found, page.cursor)


def _ended(table: PlainTable[Any], row: Any, now_ms: int) -> bool:
    """Whether a record has ended, by what was decoded of its row."""
    return bool(table.expires) and 0 < getattr(row.record, table.expires) <= now_ms


def _index_rows(record: Any, indexes: Iterable[Index]) -> set[bytes]:
    """The rows of the indexes that a record has, or none has."""
    return set() if record is None else {row for index in indexes for row in index.rows_of(record)}


def _first_fields(record: type[m.Message], names: Iterable[str]) -> Any:
    """The type of a record of which only these fields are looked at, and nothing is behind the last of them."""
    wanted, fields, default_of = {*names}, msgspec.structs.fields(record), typing.cast("Any", msgspec.field)
    last = max(at for at, field in enumerate(fields) if field.name in wanted)
    kind: Any
    default: Any
    shape: list[Any] = []
    for field in fields[: last + 1]:
        kind, default = msgspec.Raw, msgspec.Raw()
        if field.name in wanted:  # of others the default may be long, and would be made for each record
            kind, default = field.type, default_of(default=field.default, default_factory=field.default_factory)
        shape.append((field.name, kind) if field.required else (field.name, kind, default))
    return msgspec.defstruct(record.__name__, shape, bases=(m.Message,), frozen=True, array_like=True)


def conflict(position: int, current: Head | None, said: int) -> m.ItemError:
    """An item that expected another version than that of a record with this head."""
    version = current[0] if current else 0
    return mismatch(position, ConflictError, "version", version, said, absent=not version)
