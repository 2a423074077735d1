"""Key-value records: get, put, delete, scan and transactions within a namespace, which one group holds.

On disk a record is the wire's Kv, so a read copies bytes and decodes nothing.
"""

from __future__ import annotations

from itertools import islice

import msgspec

from metad_wire import messages as m
from metad_wire import methods
from metad_wire.errors import (
    ConflictError,
    IdentityExpiredError,
    InvalidRequestError,
    MetadError,
    NotFoundError,
)
from metad_wire.key import check_key
from metad_wire.methods import encode
from metad_wire.tables.kv import KV

from ..storage import keys
from .limits import check_change, check_reply
from .rows import Numbers, Rows, crcs_of, partition
from .tables import (
    Command,
    GroupPage,
    Reader,
    Verb,
    by_position,
    check_same_rows,
    looked_at,
    merge_writes,
    mismatch,
    page_of,
    read_page,
    refuse_writes,
)
from .view import Head, Missing, View

_RECORD = KV.rows["record"]


def _split_namespace(body: m.KvScan, slots: Numbers) -> dict[int, Rows]:
    return looked_at(body.page, partition([body], [b""], crcs_of([keys.text(body.namespace)]), slots))


def _split_transactions(body: m.KvTransact, slots: Numbers) -> dict[int, Rows]:
    prefixes: list[bytes] = []
    for position, transaction in enumerate(body.items):
        prefix = keys.text(transaction.namespace)
        named = [compare.key for compare in transaction.compares]
        named += [operation.key for operation in (*transaction.then, *transaction.otherwise)]
        named += transaction.reads
        for key in named:
            check_key(prefix + keys.text(key), position)
        prefixes.append(prefix)
    return partition(body.items, prefixes, crcs_of(prefixes), slots)


class _Head(m.Message, frozen=True):
    """A record's numbers, without making objects of the rest."""

    namespace: msgspec.Raw
    key: msgspec.Raw
    value: msgspec.Raw  # encoded
    version: int
    create_revision: int
    mod_revision: int


_decode_head = msgspec.msgpack.Decoder(_Head).decode


def _head(view: View, key: bytes) -> Head | None:
    if key in view.head_writes:
        return view.head_writes[key]
    head = view.rows.heads.get(key)
    return _read_head(view, key) if isinstance(head, Missing) else head


def _read_head(view: View, key: bytes) -> Head | None:
    """Of a row that is not remembered."""
    value = view.get(key)
    head = None
    if value is not None:
        row = _decode_head(value)
        head = (row.version, row.create_revision)
    view.rows.heads.add({key: head})
    return head


def _put(view: View, key: bytes, namespace: str, name: str, value: bytes) -> int:
    """Write the next version of a record; returns it."""
    current = _head(view, key)
    version, created = (1, view.revision) if current is None else (current[0] + 1, current[1])
    view.writes[key] = encode((namespace, name, value, version, created, view.revision))  # a Kv, as it goes on the wire
    view.head_writes[key] = (version, created)
    return version


def _evaluate_put(view: View, command: Command[m.KvPut]) -> m.KvPutReply:
    rows = command.rows
    written = list(map(keys.table_prefix(view.group, _RECORD).__add__, rows.keys))
    revisions = [m.Revision(view.name, view.revision)]
    if len(set(written)) < len(written) or [i.expected_version for i in rows.items].count(None) < len(written):
        errors, versions = _put_in_turn(view, rows, written)
        return m.KvPutReply(revisions, errors, versions)
    # Different keys and no conditions, as nearly always: by columns. 100,000 puts a second pass here.
    revision, heads = view.revision, view.rows.heads.get_many(written)
    known = [_read_head(view, written[at]) if isinstance(head, Missing) else head for at, head in enumerate(heads)]
    versions = [1 if head is None else head[0] + 1 for head in known]
    created = [revision if head is None else head[1] for head in known]
    records = [
        encode((item.namespace, item.key, item.value, version, create_revision, revision))
        for item, version, create_revision in zip(rows.items, versions, created, strict=True)
    ]
    view.writes = dict(zip(written, records, strict=True))
    view.head_writes = dict(zip(written, zip(versions, created, strict=True), strict=True))
    return m.KvPutReply(revisions, [], versions)


def _put_in_turn(view: View, rows: Rows, written: list[bytes]) -> tuple[list[m.ItemError], list[int]]:
    errors: list[m.ItemError] = []
    versions: list[int] = []
    for (position, item, _), key in zip(rows, written, strict=True):
        if item.expected_version is not None:
            current = _head(view, key)
            if item.expected_version != (current[0] if current else 0):
                errors.append(_conflict(position, current))
                versions.append(0)
                continue
        versions.append(_put(view, key, item.namespace, item.key, item.value))
    return errors, versions


def _conflict(position: int, current: Head | None) -> m.ItemError:
    return mismatch(position, ConflictError, "version", current[0] if current else 0)


def _merge_put(body: m.KvPut, parts: list[tuple[Rows, m.KvPutReply]]) -> m.KvPutReply:
    plain = merge_writes(body, parts)  # type: ignore[arg-type]  # the fields it reads are the same
    return m.KvPutReply(plain.revisions, plain.errors, by_position([(rows, r.versions) for rows, r in parts]))


def _refuse_put(body: m.KvPut, rows: Rows, error: MetadError) -> m.KvPutReply:
    return m.KvPutReply([], refuse_writes(body, rows, error).errors, [0] * len(rows))


def _evaluate_delete(view: View, command: Command[m.KvDelete]) -> m.WriteReply:
    prefix = keys.table_prefix(view.group, _RECORD)
    errors: list[m.ItemError] = []
    for position, item, suffix in command.rows:
        key = prefix + suffix
        current = _head(view, key)
        if current is None:
            errors.append(m.ItemError(position, NotFoundError.code))
        elif item.expected_version is not None and item.expected_version != current[0]:
            errors.append(_conflict(position, current))
        else:
            view.writes[key] = view.head_writes[key] = None
    return m.WriteReply([m.Revision(view.name, view.revision)], errors)


def _evaluate_transact(view: View, command: Command[m.KvTransact]) -> m.KvTransactReply:
    table = keys.table_prefix(view.group, _RECORD)
    results: list[m.KvTransactionResult | None] = []
    read = 0
    for _, transaction, prefix in command.rows:
        base = table + prefix
        succeeded = all(_holds(view, base + keys.text(compare.key), compare) for compare in transaction.compares)
        for operation in transaction.then if succeeded else transaction.otherwise:
            key = base + keys.text(operation.key)
            if operation.value is None:
                view.writes[key] = view.head_writes[key] = None
            else:
                _put(view, key, transaction.namespace, operation.key, operation.value)
            # Few bytes name a namespace for many operations, and each of their rows holds it twice.
            view.grown += len(key) + len(view.writes[key] or b"")
            check_change(view.grown)
        records: list[msgspec.Raw | None] = []
        for name in transaction.reads:
            row = view.get(base + keys.text(name))
            records.append(None if row is None else msgspec.Raw(row))
            # A few bytes of request can name a megabyte each, thousands of times.
            read += 0 if row is None else len(row)
            check_reply(read, command.reply_bytes_max)
        results.append(m.KvTransactionResult(succeeded, records))  # type: ignore[arg-type]  # rows are encoded records
    return m.KvTransactReply([m.Revision(view.name, view.revision)], [], results)


def _forget_reads(reply: m.KvTransactReply) -> m.KvTransactReply:
    """A few bytes of request can read megabytes, which are not to be in the log: a retry reads again."""
    results = [None if result is None else m.KvTransactionResult(result.succeeded, []) for result in reply.results]
    return msgspec.structs.replace(reply, results=results)


def _recall_reads(reader: Reader, command: Command[m.KvTransact], reply: m.KvTransactReply) -> m.KvTransactReply:
    table = keys.table_prefix(reader.group, _RECORD)
    wanted = [table + prefix + keys.text(key) for _, transaction, prefix in command.rows for key in transaction.reads]
    if not wanted:
        return reply
    check_same_rows(command, len(reply.results))
    reader.check_still_held(command.rows)
    try:
        values = iter(reader.get_many(wanted, command.reply_bytes_max))
    except InvalidRequestError:
        raise IdentityExpiredError("this was done before; what it read has outgrown a reply since") from None
    results: list[m.KvTransactionResult | None] = []
    for (_, transaction, _), result in zip(command.rows, reply.results, strict=True):
        records = [None if value is None else msgspec.Raw(value) for value in islice(values, len(transaction.reads))]
        answer = None if result is None else m.KvTransactionResult(result.succeeded, records)  # type: ignore[arg-type]
        results.append(answer)
    return msgspec.structs.replace(reply, results=results)


def _may_write(body: m.KvTransact) -> bool:
    return any(transaction.then or transaction.otherwise for transaction in body.items)


def _holds(view: View, key: bytes, compare: m.KvCompare) -> bool:
    if compare.version is not None:
        head = _head(view, key)
        if compare.version != (head[0] if head else 0):
            return False
    if compare.value is None:
        return True
    row = view.get(key)
    if row is None:
        return False
    # The row is as it goes on the wire: comparing it as such copies nothing of a value that is of another length.
    wanted, value = encode(compare.value), memoryview(_decode_head(row).value)
    return value.nbytes == len(wanted) and bytes(value) == wanted


def _merge_transact(body: m.KvTransact, parts: list[tuple[Rows, m.KvTransactReply]]) -> m.KvTransactReply:
    plain = merge_writes(body, parts)  # type: ignore[arg-type]  # the fields it reads are the same
    return m.KvTransactReply(plain.revisions, plain.errors, by_position([(rows, r.results) for rows, r in parts]))


def _refuse_transact(body: m.KvTransact, rows: Rows, error: MetadError) -> m.KvTransactReply:
    return m.KvTransactReply([], refuse_writes(body, rows, error).errors, [None] * len(rows))


def _read_get(reader: Reader, command: Command[m.KvGet]) -> list[msgspec.Raw | None]:
    prefix = keys.table_prefix(reader.group, _RECORD)
    values = reader.get_many([prefix + suffix for suffix in command.rows.keys], command.reply_bytes_max)
    return [None if value is None else msgspec.Raw(value) for value in values]


def _merge_get(body: m.KvGet, parts: list[tuple[Rows, list[msgspec.Raw | None]]]) -> m.KvGetReply:
    return m.KvGetReply(by_position(parts))


def _read_scan(reader: Reader, command: Command[m.KvScan]) -> GroupPage:
    body = command.body
    start = keys.text(body.namespace) + keys.text_prefix(body.prefix)
    return read_page(reader, command, _RECORD, start)


def _merge_scan(body: m.KvScan, parts: list[tuple[Rows, GroupPage]]) -> m.KvScanReply:
    records, cursor = page_of([page for _, page in parts], body.page.limit)
    return m.KvScanReply([msgspec.Raw(record) for record in records], cursor)  # type: ignore[misc]


VERBS = (
    Verb(methods.KV_GET, KV, merge=_merge_get, read=_read_get),
    Verb(methods.KV_PUT, KV, merge=_merge_put, evaluate=_evaluate_put, refuse=_refuse_put),
    Verb(methods.KV_DELETE, KV, merge=merge_writes, evaluate=_evaluate_delete, refuse=refuse_writes),
    Verb(methods.KV_SCAN, KV, split=_split_namespace, merge=_merge_scan, read=_read_scan),
    Verb(
        methods.KV_TRANSACT,
        KV,
        split=_split_transactions,
        merge=_merge_transact,
        evaluate=_evaluate_transact,
        refuse=_refuse_transact,
        forget=_forget_reads,
        recall=_recall_reads,
        may_write=_may_write,
    ),
)
