"""Consumer offsets: commit with fencing, compare-and-set and monotonic mode; fetch, list, delete.

On disk an offset is the wire's Offset record. A consumer group's highest generation is a row of its own, written
only when it grows, or is reset; a commit of an older generation is fenced.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from metad_wire import messages as m
from metad_wire import methods
from metad_wire.errors import ConflictError, FencedError, NotFoundError, OffsetRegressionError
from metad_wire.methods import encode
from metad_wire.tables.offset import OFFSET

from ..storage import keys
from .rows import Rows, crcs_of
from .tables import Command, Reader, Verb, mismatch, read_page, read_records, read_values, written
from .view import View

_OFFSET, _GENERATION = OFFSET.rows["offset"], OFFSET.rows["generation"]
_decode = msgspec.msgpack.Decoder(m.Offset).decode
_decode_generation = msgspec.msgpack.Decoder(int).decode


def _rows_of_groups(body: m.OffsetGenerations | m.OffsetResetGenerations) -> Rows:
    items: Sequence[m.ConsumerGroup | m.GenerationReset] = body.items
    suffixes = [keys.text2(item.tenant, item.group) for item in items]
    return Rows(items, suffixes, crcs_of(suffixes))


def _evaluate_commit(view: View, command: Command[m.OffsetCommit]) -> m.WriteReply:
    monotonic = command.body.monotonic
    prefix = keys.table_prefix(view.group, _OFFSET)
    writes, now_ms = view.writes_of(_OFFSET), view.now_ms
    generations: dict[tuple[str, str], int] = {}
    errors: list[m.ItemError] = []
    for position, item, suffix in command.rows:
        tenant, group, generation = item.tenant, item.group, item.generation
        current_generation = generations.get((tenant, group))
        if current_generation is None:
            current_generation = generations[tenant, group] = _generation(view, tenant, group)
        if generation < current_generation:
            errors.append(mismatch(position, FencedError, "generation", current_generation))
            continue
        key = prefix + suffix
        if monotonic or item.expected is not None:
            value = view.get(key)
            current = -1 if value is None else _decode(value).offset
            if item.expected is not None and item.expected != current:
                errors.append(mismatch(position, ConflictError, "offset", current))
                continue
            if monotonic and item.offset < current:
                errors.append(mismatch(position, OffsetRegressionError, "offset", current))
                continue
        if generation > current_generation:
            generations[tenant, group] = generation
            view.writes_of(_GENERATION)[_generation_key(view, tenant, group)] = encode(generation)
        # An Offset as a tuple: the bytes are the same, and it is made sooner.
        writes[key] = encode(
            (tenant, group, item.topic, item.partition, item.offset, generation, now_ms, item.metadata)
        )
    return written(view, errors)


def _generation_key(view: View, tenant: str, group: str) -> bytes:
    return keys.table_prefix(view.group, _GENERATION) + keys.text2(tenant, group)


def _generation(view: View, tenant: str, group: str) -> int:
    value = view.get(_generation_key(view, tenant, group))
    return 0 if value is None else _decode_generation(value)


def _evaluate_delete(view: View, command: Command[m.OffsetDelete]) -> m.WriteReply:
    prefix, writes = keys.table_prefix(view.group, _OFFSET), view.writes_of(_OFFSET)
    errors: list[m.ItemError] = []
    for position, _, suffix in command.rows:
        key = prefix + suffix
        if view.get(key) is None:
            errors.append(m.ItemError(position, NotFoundError.code))
        else:
            writes[key] = None
    return written(view, errors)


def _read_fetch(reader: Reader, command: Command[m.OffsetFetch]) -> m.OffsetFetchReply:
    reply: m.OffsetFetchReply = read_records(reader, command, _OFFSET)
    return reply


def _read_generations(reader: Reader, command: Command[m.OffsetGenerations]) -> m.OffsetGenerationsReply:
    values = read_values(reader, command, _GENERATION)
    return m.OffsetGenerationsReply([0 if value is None else _decode_generation(value) for value in values])


def _evaluate_reset(view: View, command: Command[m.OffsetResetGenerations]) -> m.WriteReply:
    prefix, writes = keys.table_prefix(view.group, _GENERATION), view.writes_of(_GENERATION)
    errors: list[m.ItemError] = []
    for position, item, suffix in command.rows:
        key = prefix + suffix
        value = view.get(key)
        current = 0 if value is None else _decode_generation(value)
        if item.expected != current:
            errors.append(mismatch(position, ConflictError, "generation", current))
        elif item.generation:
            if item.generation != current:
                writes[key] = encode(item.generation)
        elif current:
            # Undone, a write of the same batch shows what was there before it: if nothing was, nothing is deleted.
            writes.pop(key, None)
            if view.get(key) is not None:
                writes[key] = None
    return written(view, errors)


def _read_list(reader: Reader, command: Command[m.OffsetList]) -> m.OffsetListReply:
    body = command.body
    start = keys.text2(body.tenant, body.group) + keys.text_prefix(body.topic_prefix)
    reply: m.OffsetListReply = read_page(reader, command, _OFFSET, start)
    return reply


VERBS = (
    Verb(methods.OFFSET_COMMIT, OFFSET, evaluate=_evaluate_commit),
    Verb(methods.OFFSET_FETCH, OFFSET, read=_read_fetch),
    Verb(methods.OFFSET_DELETE, OFFSET, evaluate=_evaluate_delete),
    Verb(methods.OFFSET_LIST, OFFSET, read=_read_list),
    Verb(methods.OFFSET_GENERATIONS, OFFSET, rows=_rows_of_groups, read=_read_generations),
    Verb(methods.OFFSET_RESET_GENERATIONS, OFFSET, rows=_rows_of_groups, evaluate=_evaluate_reset),
)
