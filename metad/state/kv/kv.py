"""Key-value records: a plain table with transactions within a namespace, which one group holds."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import msgspec

from metad_wire import messages as m
from metad_wire import methods
from metad_wire.methods import encode
from metad_wire.tables.kv import KV

from ...storage import keys
from ..core.limits import check_change, check_reply
from ..core.part import Writes
from ..core.plain import CommandHeads
from ..core.verb import Command, Reader, Verb, may_transact, read_again, read_list, read_records
from ..core.view import Rows, View, crcs_of
from ..live.live_leases import LiveLeases
from .kv_records import RECORDS, LeasedRecords, decode_head, lease_of


def _rows_of_transactions(body: m.KvTransact) -> Rows:
    prefixes = [keys.text(transaction.namespace) for transaction in body.items]
    return Rows(body.items, prefixes, crcs_of(prefixes))


def _evaluate_transact(view: View, command: Command[m.KvTransact]) -> m.KvTransactReply:
    table = RECORDS.prefix(view.group)
    records = LeasedRecords(RECORDS, view)
    heads, writes, leases = records.heads, records.writes, view.parts[LiveLeases]
    results: list[m.KvTransactionResult | None] = []
    errors: list[m.ItemError] = []
    read = 0
    for position, transaction, prefix in command.rows:
        base = table + prefix
        succeeded = all(_holds(view, heads, base + keys.text(compare.key), compare) for compare in transaction.compares)
        operations = transaction.then if succeeded else transaction.otherwise
        if leases.any or any(operation.lease for operation in operations):
            error = _operate_with_leases(records, position, transaction.namespace, prefix, operations)
            if error is not None:
                errors.append(error)
                results.append(None)
                continue
        else:
            _operate(view, heads, writes, transaction.namespace, base, operations)
        found: list[Any] = []
        for name in transaction.reads:
            row = view.get(base + keys.text(name))
            found.append(_raw(row))
            # A few bytes of request can name a megabyte each, thousands of times.
            read += 0 if row is None else len(row)
            check_reply(read, command.reply_bytes_max)
        results.append(m.KvTransactionResult(succeeded, found))
    records.finish()
    return m.KvTransactReply([m.Revision(view.name, view.revision)], errors, results)


def _operate(
    view: View,
    heads: CommandHeads,
    writes: Writes,
    namespace: str,
    base: bytes,
    operations: Sequence[m.KvOperation],
) -> None:
    """Do the operations of a transaction, in order, where no record is attached to a lease."""
    for operation in operations:
        key = base + keys.text(operation.key)
        if operation.value is None:
            heads.delete(key, writes)
        else:
            version, created = heads.next(key)
            writes[key] = encode((namespace, operation.key, operation.value, version, created, view.revision))
        # Few bytes name a namespace for many operations, and each of their rows holds it twice.
        view.grown += len(key) + len(writes.get(key) or b"")
        check_change(view.grown)


def _operate_with_leases(
    records: LeasedRecords, position: int, namespace: str, prefix: bytes, operations: Sequence[m.KvOperation]
) -> m.ItemError | None:
    """The same where some may be. Returns why none of them was done; None if all were."""
    attached: dict[str, dict[str, bytes]] = {}
    for operation in operations:
        if operation.value is not None and operation.lease:
            suffix = prefix + keys.text(operation.key)
            if lease_of(records.head(suffix)) != operation.lease:
                attached.setdefault(operation.lease, {})[operation.key] = suffix
    for lease, names in attached.items():
        error = records.fault(position, namespace, lease, list(names.values()))
        if error is not None:
            return error
    for operation in operations:
        suffix = prefix + keys.text(operation.key)
        if operation.value is None:
            records.delete(namespace, suffix)
        else:
            records.put(namespace, operation.key, suffix, operation.value, operation.lease)
    return None


def _forget_reads(reply: m.KvTransactReply) -> m.KvTransactReply:
    """A few bytes of request can read megabytes, which are not to be in the log: a retry reads again."""
    results = [None if result is None else m.KvTransactionResult(result.succeeded, []) for result in reply.results]
    return msgspec.structs.replace(reply, results=results)


def _recall_reads(reader: Reader, command: Command[m.KvTransact], reply: m.KvTransactReply) -> m.KvTransactReply:
    table = RECORDS.prefix(reader.group)
    wanted = [[table + prefix + keys.text(key) for key in one.reads] for _, one, prefix in command.rows]
    found = read_again(reader, command, wanted, len(reply.results))
    results = [
        None if result is None else m.KvTransactionResult(result.succeeded, [*map(_raw, records)])
        for result, records in zip(reply.results, found, strict=False)
    ]
    return msgspec.structs.replace(reply, results=results) if found else reply


def _raw(row: bytes | None) -> Any:
    """A record as it is stored is a record as it goes over the wire."""
    return None if row is None else msgspec.Raw(row)


def _puts(body: m.KvTransact) -> bool:
    operations = (one for transaction in body.items for one in (*transaction.then, *transaction.otherwise))
    return any(operation.value is not None for operation in operations)


def _holds(view: View, heads: CommandHeads, key: bytes, compare: m.KvCompare) -> bool:
    if compare.version is not None:
        head = heads.get(key)
        if compare.version != (head[0] if head else 0):
            return False
    if compare.create_revision is not None:
        head = heads.get(key)
        if compare.create_revision != (head[1] if head else 0):
            return False
    if compare.value is None:
        return True
    row = view.get(key)
    if row is None:
        return False
    # The row is as it goes on the wire: comparing it as such copies nothing of a value that is of another length.
    wanted, value = encode(compare.value), memoryview(decode_head(row).value)
    return value.nbytes == len(wanted) and bytes(value) == wanted


VERBS = (
    Verb(methods.KV_GET, KV, read=partial(read_records, row=RECORDS.row)),
    Verb(methods.KV_PUT, KV, evaluate=RECORDS.evaluate_put),
    Verb(methods.KV_DELETE, KV, evaluate=RECORDS.evaluate_delete, grows=False),
    Verb(methods.KV_SCAN, KV, read=partial(read_list, row=RECORDS.row)),
    Verb(
        methods.KV_TRANSACT,
        KV,
        rows=_rows_of_transactions,
        operations=m.operations_of,
        evaluate=_evaluate_transact,
        grows=_puts,
        forget=_forget_reads,
        recall=_recall_reads,
        may_write=may_transact,
    ),
)
