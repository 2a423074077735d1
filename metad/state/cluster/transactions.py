"""Transactions over declared tables: on any records that live together, whatever their tables."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from metad_wire import messages as m
from metad_wire import methods
from metad_wire.cluster import GroupId
from metad_wire.errors import InvalidItemError, MetadError, TooLargeError, UnknownTableError
from metad_wire.faults import MALFORMED, reason
from metad_wire.key import text
from metad_wire.methods import encode
from metad_wire.tables.table import DECLARED

from ..core.limits import check_change, check_reply
from ..core.plain import CommandHeads, DeclaredRecords, Plain, check_ruled
from ..core.verb import Command, Reader, Verb, may_transact, read_again
from ..core.view import Rows, View, crcs_of
from .declarations import Declarations, KnownTables

_ROWS: Final = Plain(DECLARED)


class _Step(NamedTuple):
    """One operation, checked. ``record``: None deletes."""

    records: DeclaredRecords
    key: bytes
    record: Any
    known: int


@functools.lru_cache(maxsize=256)
def _types_of(record: Any) -> dict[str, Any]:
    """Those of its fields, by their names: to find them takes longer than a transaction."""
    return {field.name: field.type for field in msgspec.structs.fields(record)}


class _Checked:
    """The parts of one transaction, each fit for its table. Raises InvalidItemError, NotFoundError,
    UnknownTableError and TooLargeError."""

    def __init__(self, known: KnownTables, kind: str, transaction: m.TableTransaction, filled: int) -> None:
        """``filled``: bytes of defaults that the transactions before have been given."""
        self._known = known
        self.filled = filled
        """With its own."""
        self._kind = kind
        self._route = list(transaction.route)
        if kind != transaction.kind:
            raise InvalidItemError(f"kind: this is a group of kind {kind}, not {transaction.kind[:80]!r}")
        self.holds = [self._condition(compare) for compare in transaction.compares]
        self.then = [self._step(operation) for operation in transaction.then]
        self.otherwise = [self._step(operation) for operation in transaction.otherwise]
        self.reads = [self._place(read.table, read.key) for read in transaction.reads]

    def _place(self, number: int, key: Sequence[Any]) -> tuple[DeclaredRecords, bytes]:
        records = self._known.records(number)
        table, routing = records.table, len(records.table.routing)
        if table.kind != self._kind:
            raise InvalidItemError(f"{table.name} is kept by groups of kind {table.kind}, not {self._kind}")
        why = table.fields_fault(key) if len(key) >= len(table.key) else f"{len(key)} of {len(table.key)} fields"
        if why is not None:
            raise InvalidItemError(f"key of {table.name}: {why}")
        if list(key[:routing]) != self._route:
            mine, others = (", ".join(map(str, route)) for route in (key[:routing], self._route))
            raise InvalidItemError(f"{table.name}: its routing fields are {mine}, and those of the others {others}")
        return records, table.key_of(key)

    def _step(self, operation: m.TableOperation) -> _Step:
        records = self._known.records(operation.table)
        check_ruled(records.table)
        if operation.record is None:
            return _Step(*self._place(operation.table, operation.key), None, 0)
        self.filled += records.table.filled_bytes(operation.record)
        check_change(self.filled)
        record = records.read_put(operation.record, operation.known)
        _, key = self._place(operation.table, [getattr(record, field) for field in records.table.key])
        return _Step(records, key, record, operation.known)

    def _condition(self, compare: m.TableCompare) -> Callable[[View, CommandHeads, bytes], bool]:
        records, key = self._place(compare.table, compare.key)
        wanted: Any = None
        if compare.field:
            record: Any = records.table.record
            types = _types_of(record)
            if compare.field not in types:
                raise InvalidItemError(f"{records.table.name} has no field {compare.field[:80]!r}")
            try:
                wanted = msgspec.msgpack.decode(compare.value, type=types[compare.field])
            except MALFORMED as error:
                raise InvalidItemError(f"{compare.field}: {reason(error, types[compare.field])}") from None

        def holds(view: View, heads: CommandHeads, prefix: bytes) -> bool:
            ended = bool(records.table.expires) and records.ended(view.get(prefix + key), view.now_ms)
            if compare.version is not None:
                head = None if ended else heads.get(prefix + key)
                if compare.version != (head[0] if head else 0):
                    return False
            if not compare.field:
                return True
            row = None if ended else view.get(prefix + key)
            return row is not None and bool(getattr(records.decoded(row), compare.field) == wanted)

        return holds


def _rows_of(body: m.TableTransact) -> Rows:
    routes = [b"".join([text(str(value)) for value in one.route]) for one in body.items]
    return Rows(body.items, routes, crcs_of(routes))


def _evaluate(view: View, command: Command[m.TableTransact]) -> m.TableTransactReply:
    group, prefix = GroupId.parse(view.name), _ROWS.prefix(view.group)
    known, heads = view.parts[Declarations].known, CommandHeads(_ROWS, view)
    results: list[m.TableTransactionResult | None] = []
    errors: list[m.ItemError] = []
    read = filled = 0
    for position, transaction, _ in command.rows:
        try:
            checked = _Checked(known, "" if group is None else group.kind, transaction, filled)
        except (UnknownTableError, TooLargeError):
            raise  # soon it is known, or it is sent in parts: the whole request may be asked again
        except MetadError as error:
            errors.append(m.ItemError(position, error.code, error.message))
            results.append(None)
            continue
        filled = checked.filled
        succeeded = all(holds(view, heads, prefix) for holds in checked.holds)
        versions = [_do(view, heads, prefix, step) for step in (checked.then if succeeded else checked.otherwise)]
        found: list[bytes | None] = []
        for records, key in checked.reads:
            row = view.get(prefix + key)
            row = None if records.ended(row, view.now_ms) else row
            found.append(row)
            read += 0 if row is None else len(row)
            check_reply(read, command.reply_bytes_max)
        results.append(m.TableTransactionResult(succeeded, versions, found))
    return m.TableTransactReply([m.Revision(view.name, view.revision)], errors, results)


def _do(view: View, heads: CommandHeads, prefix: bytes, step: _Step) -> int:
    """Do one operation. Returns the version that it writes; 0 for a deletion."""
    records, key, writes = step.records, prefix + step.key, view.writes_of(_ROWS.row)
    if records.table.expires and records.end(view, step.key):
        heads.written[key] = None
    fewer = step.record is not None and step.known < len(records.table.record.__struct_fields__)
    indexes = records.indexes_of(view, step.key)
    old = view.get(key) if indexes or fewer or records.table.expires else None
    version = 0
    if step.record is None:
        heads.delete(key, writes)
        new = None
    else:
        record = step.record
        if old is not None and fewer:
            record = records.kept(record, records.decoded(old), step.known)
        version, created = heads.next(key)
        new = writes[key] = encode((record, version, created, view.revision))
    view.grown += len(key) + len(new or b"")
    if indexes or records.table.expires:
        view.grown += records.follow(view, indexes, step.key, records.decoded_indexed(old), new)
    check_change(view.grown)
    return version


def _forget(reply: m.TableTransactReply) -> m.TableTransactReply:
    """A few bytes of request can read megabytes, which are not to be in the log: a retry reads again."""
    results = [None if one is None else msgspec.structs.replace(one, found=[]) for one in reply.results]
    return msgspec.structs.replace(reply, results=results)


def _recall(reader: Reader, command: Command[m.TableTransact], reply: m.TableTransactReply) -> m.TableTransactReply:
    prefix, known, now_ms = _ROWS.prefix(reader.group), reader.parts[Declarations].known, reader.now_ms()
    places = [
        [(known.records(read.table), read.key) for read in one.reads] if result is not None else []
        for (_, one, _), result in zip(command.rows, reply.results, strict=False)
    ]
    wanted = [[prefix + records.table.key_of(key) for records, key in one] for one in places]
    found = [
        [None if records.ended(row, now_ms) else row for row, (records, _) in zip(rows, one, strict=True)]
        for rows, one in zip(read_again(reader, command, wanted, len(reply.results)), places, strict=False)
    ]
    results = [
        None if result is None else msgspec.structs.replace(result, found=rows)
        for result, rows in zip(reply.results, found, strict=False)
    ]
    return msgspec.structs.replace(reply, results=results) if found else reply


def _puts(body: m.TableTransact) -> bool:
    return any(step.record is not None for one in body.items for step in (*one.then, *one.otherwise))


VERBS = (
    Verb(
        methods.TABLE_TRANSACT,
        DECLARED,
        rows=_rows_of,
        operations=m.operations_of,
        evaluate=_evaluate,
        grows=_puts,
        forget=_forget,
        recall=_recall,
        may_write=may_transact,
    ),
)
