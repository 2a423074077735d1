"""Retained messages: put, get, delete by topic, and all whose topics match a filter.

On disk a message is the wire's Retained. What has expired stays until somebody deletes it; reads leave it out.
"""

from __future__ import annotations

import msgspec

from metad_wire import messages as m
from metad_wire import methods
from metad_wire.errors import ConflictError, InvalidItemError, InvalidRequestError, NotFoundError
from metad_wire.fields import U63
from metad_wire.methods import encode
from metad_wire.tables.retained import (
    RETAINED,
    RetainedDelete,
    RetainedGet,
    RetainedGetReply,
    RetainedMatch,
    RetainedMatchReply,
    RetainedPut,
)
from metad_wire.topics import filter_fault, subscription, topic_fault

from ..storage import keys
from .tables import (
    PAGE_BYTES_MAX,
    SPENT_BYTES,
    Command,
    Reader,
    Verb,
    is_held,
    mismatch,
    read_values,
    wanted_slots,
    written,
)
from .topic_scan import AFTER, TopicScan
from .view import View

_MESSAGE = RETAINED.rows["message"]
_LOOK_ROWS = 4  # a look into the engine costs about as much as so many rows, and more where it reads from files
_SPENT_MAX = 640  # for one page, in rows: some three milliseconds, for which nobody else is served
_READ_BYTES_MAX = 4 * PAGE_BYTES_MAX  # for one page, where messages are long and do not match
_ROWS_MIN, _ROWS_MAX = 1, 64  # of one look into the engine: few while the scan skips, many while it does not


class _Numbers(m.Message, frozen=True):
    """The numbers of a row, without making objects of the rest."""

    tenant: msgspec.Raw
    topic: msgspec.Raw
    payload: msgspec.Raw
    qos: int
    properties: msgspec.Raw
    expires_ms: U63
    revision: U63


_decode = msgspec.msgpack.Decoder(_Numbers).decode


def _evaluate_put(view: View, command: Command[RetainedPut]) -> m.WriteReply:
    prefix, writes = keys.table_prefix(view.group, _MESSAGE), view.writes_of(_MESSAGE)
    now_ms, revision = view.now_ms, view.revision
    errors: list[m.ItemError] = []
    for position, item, suffix in command.rows:
        fault = topic_fault(item.topic)
        if fault is not None:
            errors.append(m.ItemError(position, InvalidItemError.code, f"topic: {fault}"))
            continue
        key = prefix + suffix
        if not item.payload:
            # Undone, a write of the same batch shows what was there before it: if nothing was, nothing is deleted.
            writes.pop(key, None)
            if view.get(key) is not None:
                writes[key] = None
            continue
        interval_s = item.expiry_interval_s
        expires_ms = 0 if interval_s is None else now_ms + interval_s * 1000
        # A Retained as a tuple: the bytes are the same, and it is made sooner.
        writes[key] = encode((item.tenant, item.topic, item.payload, item.qos, item.properties, expires_ms, revision))
    return written(view, errors)


def _evaluate_delete(view: View, command: Command[RetainedDelete]) -> m.WriteReply:
    prefix, writes = keys.table_prefix(view.group, _MESSAGE), view.writes_of(_MESSAGE)
    errors: list[m.ItemError] = []
    for position, item, suffix in command.rows:
        key = prefix + suffix
        value = view.get(key)
        if value is None:
            errors.append(m.ItemError(position, NotFoundError.code))
            continue
        current = _decode(value).revision
        if item.revision and item.revision != current:
            errors.append(mismatch(position, ConflictError, "revision", current))
        else:
            writes[key] = None
    return written(view, errors)


def _is_over(row: bytes, now_ms: int) -> bool:
    return 0 < _decode(row).expires_ms <= now_ms


def _read_get(reader: Reader, command: Command[RetainedGet]) -> RetainedGetReply:
    now_ms = reader.wall_ms()
    values = read_values(reader, command, _MESSAGE)
    found = [None if value is None or _is_over(value, now_ms) else msgspec.Raw(value) for value in values]
    return RetainedGetReply(found)  # type: ignore[arg-type]  # rows are encoded messages


def _read_match(reader: Reader, command: Command[RetainedMatch]) -> RetainedMatchReply:
    body = command.body
    fault = filter_fault(body.filter)
    if fault is not None:
        raise InvalidRequestError(f"filter: {fault}")
    if subscription(body.filter).group is not None:
        raise InvalidRequestError("filter: a shared subscription is not sent retained messages")
    scan = TopicScan(body.filter)
    prefix = keys.table_prefix(reader.group, _MESSAGE) + keys.text(body.tenant)
    skip, end = len(prefix), keys.after_prefix(prefix)
    found: list[bytes] = []
    found_bytes = spent = spent_bytes = 0
    count = _ROWS_MIN
    now_ms, held, limit = reader.wall_ms(), wanted_slots(reader, body.slots), body.page.limit
    after = body.after.encode() + AFTER if body.after else b""
    begin = prefix + max(scan.begin, after, body.page.cursor)
    while True:
        rows = reader.engine.scan(begin, end, count, PAGE_BYTES_MAX)
        size = sum([len(key) + len(row) for key, row in rows])
        reader.spent += _LOOK_ROWS + len(rows) + size // SPENT_BYTES
        spent += _LOOK_ROWS + len(rows)
        spent_bytes += size
        for key, row in rows:
            if key < begin:
                continue
            matches, behind = scan.look(key[skip : -len(keys.TEXT_END)])
            if matches and (held is None or is_held(held, key)) and not _is_over(row, now_ms):
                found.append(row)
                found_bytes += len(row)
            if behind is None:
                return _page(found, b"")
            begin = prefix + behind
            if len(found) >= limit or found_bytes >= PAGE_BYTES_MAX:
                return _page(found, behind)
        if len(rows) < count and size < PAGE_BYTES_MAX:
            return _page(found, b"")
        if spent >= _SPENT_MAX or spent_bytes >= _READ_BYTES_MAX:
            return _page(found, begin[skip:])
        count = min(2 * count, _ROWS_MAX) if begin.endswith(AFTER) else _ROWS_MIN


def _page(rows: list[bytes], cursor: bytes) -> RetainedMatchReply:
    return RetainedMatchReply([msgspec.Raw(row) for row in rows], cursor)  # type: ignore[misc]


VERBS = (
    Verb(methods.RETAINED_PUT, RETAINED, evaluate=_evaluate_put),
    Verb(methods.RETAINED_GET, RETAINED, read=_read_get),
    Verb(methods.RETAINED_DELETE, RETAINED, evaluate=_evaluate_delete),
    Verb(methods.RETAINED_MATCH, RETAINED, read=_read_match),
)
