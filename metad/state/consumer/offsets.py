"""Consumer offsets: commit with fencing, compare-and-set and monotonic mode; fetch, list, delete.

On disk an offset is the wire's Offset record. A consumer group's highest generation is a row of its own, written
only when it grows, or is reset; a commit of an older generation is fenced.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from zlib import crc32

import msgspec

from metad_wire import messages as m
from metad_wire import methods
from metad_wire.errors import (
    ConflictError,
    FencedError,
    InvalidRequestError,
    OffsetRegressionError,
)
from metad_wire.key import SLOT_MASK
from metad_wire.methods import encode
from metad_wire.tables.consumer import CONSUMER, MEMBER_NAME_BYTES_MAX, ConsumerGroupInfo
from metad_wire.tables.offset import (
    OFFSET,
    KnownGroup,
    OffsetDeleteGroups,
    OffsetDeleteGroupsReply,
    OffsetExpireGroups,
    OffsetGroups,
)

from ...storage import keys
from ..cluster.quotas import may_refuse, refusal
from ..core.distinct import distinct
from ..core.limits import ENTRY_BYTES_FULL
from ..core.part import Origin
from ..core.verb import (
    Command,
    Reader,
    Verb,
    delete_rows,
    mismatch,
    read_list,
    read_records,
    read_values,
    wanted_slots,
    written,
)
from ..core.view import Rows, View, crcs_of
from .consumer_groups import generation_of, group_row

_OFFSET, _GENERATION = OFFSET.rows["offset"], OFFSET.rows["generation"]
_MEMBER, _GROUP = CONSUMER.rows["member"], CONSUMER.rows["group"]
_NOBODY = 2**63
"""Of a commit in the name of a member that there is not: no generation is so high."""
_DELETED_MAX = 1_000  # offsets that one request deletes with their groups
_GROUP_ROWS = 20  # a group that has none costs as much as so many
_LOOKED_AT_BYTES = 1024 * 1024
_decode = msgspec.msgpack.Decoder(m.Offset).decode
_decode_generation = msgspec.msgpack.Decoder(int).decode


def _rows_of_groups(
    body: m.OffsetGenerations | m.OffsetResetGenerations | OffsetDeleteGroups | OffsetExpireGroups,
) -> Rows:
    items: Sequence[m.ConsumerGroup | m.GenerationReset] = body.items
    suffixes = [keys.text2(item.tenant, item.group) for item in items]
    return Rows(items, suffixes, crcs_of(suffixes))


def _evaluate_commit(view: View, command: Command[m.OffsetCommit]) -> m.WriteReply:
    monotonic = command.body.monotonic
    prefix = keys.table_prefix(view.group, _OFFSET)
    writes, now_ms, is_short = view.writes_of(_OFFSET), view.now_ms, may_refuse(view)
    generations: dict[tuple[str, str], int] = {}
    errors: list[m.ItemError] = []
    member = command.body.member
    if len(member.encode()) > MEMBER_NAME_BYTES_MAX:  # it would be in the error of each item
        raise InvalidRequestError(f"the member's name takes over {MEMBER_NAME_BYTES_MAX} bytes")
    for position, item, suffix in command.rows:
        tenant, group, generation = item.tenant, item.group, item.generation
        current_generation = generations.get((tenant, group))
        if current_generation is None:
            current_generation = _generation(view, tenant, group)
            if member and not _is_member(view, tenant, group, member):
                current_generation = _NOBODY
            generations[tenant, group] = current_generation
        if generation < current_generation:
            if current_generation == _NOBODY:
                errors.append(m.ItemError(position, FencedError.code, f"{member} is no member of the group"))
            else:
                errors.append(mismatch(position, FencedError, "generation", current_generation, generation))
            continue
        key = prefix + suffix
        if is_short and (why := refusal(view, tenant)) is not None and view.get(key) is None:
            errors.append(m.ItemError(position, why.code, why.message))
            continue
        if monotonic or item.expected is not None:
            value = view.get(key)
            current = -1 if value is None else _decode(value).offset
            if item.expected is not None and item.expected != current:
                errors.append(mismatch(position, ConflictError, "offset", current, item.expected, absent=current < 0))
                continue
            if monotonic and item.offset < current:
                errors.append(mismatch(position, OffsetRegressionError, "offset", current, item.offset))
                continue
        if generation > current_generation:
            if _has_members(view, tenant, group):
                errors.append(mismatch(position, FencedError, "generation", current_generation, generation))
                continue
            generations[tenant, group] = generation
            view.writes_of(_GENERATION)[_generation_key(view, tenant, group)] = encode(generation)
        # An Offset as a tuple: the bytes are the same, and it is made sooner.
        writes[key] = encode(
            (tenant, group, item.topic, item.partition, item.offset, generation, now_ms, item.metadata)
        )
    return written(view, errors)


def _is_member(view: View, tenant: str, group: str, member: str) -> bool:
    key = keys.table_prefix(view.group, _MEMBER) + keys.text2(tenant, group) + keys.text(member)
    return view.get(key) is not None


def _has_members(view: View, tenant: str, group: str) -> bool:
    info = group_row(view, keys.text2(tenant, group))
    return info is not None and info.members > 0


def _generation_key(view: View, tenant: str, group: str) -> bytes:
    return keys.table_prefix(view.group, _GENERATION) + keys.text2(tenant, group)


def _generation(view: View, tenant: str, group: str) -> int:
    return generation_of(view, keys.text2(tenant, group))


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
            errors.append(mismatch(position, ConflictError, "generation", current, item.expected))
        elif _has_members(view, item.tenant, item.group):
            errors.append(m.ItemError(position, ConflictError.code, "the group has members"))
        elif item.generation:
            if item.generation != current:
                writes[key] = encode(item.generation)
        elif current:
            # Undone, a write of the same batch shows what was there before it: if nothing was, nothing is deleted.
            writes.pop(key, None)
            if view.get(key) is not None:
                writes[key] = None
    return written(view, errors)


def _evaluate_delete_groups(view: View, command: Command[OffsetDeleteGroups]) -> OffsetDeleteGroupsReply:
    return _delete_groups(view, command, None)


def _evaluate_expire_groups(view: View, command: Command[OffsetExpireGroups]) -> OffsetDeleteGroupsReply:
    # During an amnesty nothing has passed: consumers may not have reached this leader.
    return _delete_groups(view, command, min(command.body.before_ms, view.past_ms))


def _delete_groups(
    view: View, command: Command[OffsetDeleteGroups] | Command[OffsetExpireGroups], before_ms: int | None
) -> OffsetDeleteGroupsReply:
    """``before_ms``: only groups that nobody has used since then."""
    errors: list[m.ItemError] = []
    left: list[bool] = []
    deleted: list[int] = []
    room = _DELETED_MAX
    for position, _, suffix in command.rows:
        left.append(False)
        deleted.append(0)
        if room < _GROUP_ROWS or view.grown > ENTRY_BYTES_FULL // 2:
            left[-1] = True
            continue
        room -= _GROUP_ROWS
        info = group_row(view, suffix)
        if info is not None and info.members:
            errors.append(m.ItemError(position, ConflictError.code, "the group has members"))
            continue
        offsets, is_last = _offsets_of(view, suffix, room)
        room -= len(offsets)
        if before_ms is not None and not _is_unused(info, offsets.values(), before_ms):
            errors.append(m.ItemError(position, ConflictError.code, "the group is used"))
            continue
        found = [*offsets]
        deleted[-1], left[-1] = len(found), not is_last
        view.writes_of(_OFFSET).update(dict.fromkeys(found))
        if is_last:
            found += _drop_group(view, suffix)
        view.grown += sum(map(len, found))
    return OffsetDeleteGroupsReply([m.Revision(view.name, view.revision)], errors, deleted, left)


def _is_unused(info: ConsumerGroupInfo | None, offsets: Iterable[bytes], before_ms: int) -> bool:
    """Whether a group has had no members, and these offsets were not committed, since then."""
    since_ms = 0 if info is None else info.since_ms
    return since_ms <= before_ms and all(_decode(offset).committed_ms <= before_ms for offset in offsets)


def _offsets_of(view: View, suffix: bytes, limit: int) -> tuple[dict[bytes, bytes], bool]:
    """A group's offsets by key, ``limit`` at most; and whether these are all."""
    prefix = keys.table_prefix(view.group, _OFFSET) + suffix
    rows, is_last = view.scan(prefix, keys.after_prefix(prefix), limit, _LOOKED_AT_BYTES)
    found = dict(rows)
    if is_last:
        young, old = view.in_flight(_OFFSET)
        for writes in (old, young):
            found |= {key: value for key, value in writes.items() if key.startswith(prefix)}
    there = [(key, value) for key, value in found.items() if value is not None]
    return dict(there[:limit]), is_last and len(there) <= limit


def _drop_group(view: View, suffix: bytes) -> list[bytes]:
    """Delete what a group has beside its offsets: the keys."""
    dropped: list[bytes] = []
    for row in (_GENERATION, _GROUP):
        key = keys.table_prefix(view.group, row) + suffix
        if view.get(key) is not None:
            view.writes_of(row)[key] = None
            dropped.append(key)
    return dropped


def _read_groups(reader: Reader, command: Command[OffsetGroups]) -> m.ListReply[KnownGroup]:
    """The consumer groups of a tenant, by their offsets and generations: both rows begin with tenant and group."""
    body = command.body
    wanted = wanted_slots(reader, body.slots)
    start = keys.text(body.tenant) + keys.text_prefix(body.prefix)
    after = keys.after_prefix(keys.text2(body.tenant, body.after)) if body.after else b""
    prefixes = [keys.table_prefix(reader.group, row) for row in (_OFFSET, _GENERATION)]
    found, cursor = distinct(
        reader,
        prefixes,
        start,
        max(start, after, body.page.cursor),
        body.page.limit,
        _group_of,
        lambda group: wanted is None or bool(wanted[crc32(group) & SLOT_MASK]),
    )
    generations = reader.engine.get_many([prefixes[1] + group for group in found])
    reader.spent += len(found)
    groups = []
    for group, generation in zip(found, generations, strict=True):
        tenant, at = keys.split_text(group, 0)
        name, _ = keys.split_text(group, at)
        groups.append(KnownGroup(tenant, name, 0 if generation is None else _decode_generation(generation)))
    return m.ListReply(groups, cursor)


def _group_of(key: bytes) -> bytes:
    """The first two fields of a key."""
    tenant_end = key.index(keys.TEXT_END) + len(keys.TEXT_END)
    return key[: key.index(keys.TEXT_END, tenant_end) + len(keys.TEXT_END)]


VERBS = (
    Verb(methods.OFFSET_COMMIT, OFFSET, evaluate=_evaluate_commit, coalesces=True, grows=None),
    Verb(methods.OFFSET_FETCH, OFFSET, read=partial(read_records, row=_OFFSET)),
    Verb(methods.OFFSET_DELETE, OFFSET, evaluate=partial(delete_rows, row=_OFFSET), grows=False),
    Verb(methods.OFFSET_GROUPS, OFFSET, read=_read_groups),
    Verb(methods.OFFSET_LIST, OFFSET, read=partial(read_list, row=_OFFSET)),
    Verb(methods.OFFSET_GENERATIONS, OFFSET, rows=_rows_of_groups, read=_read_generations),
    Verb(methods.OFFSET_RESET_GENERATIONS, OFFSET, rows=_rows_of_groups, evaluate=_evaluate_reset, grows=False),
    Verb(methods.OFFSET_DELETE_GROUPS, OFFSET, rows=_rows_of_groups, evaluate=_evaluate_delete_groups, grows=False),
    Verb(
        methods.OFFSET_EXPIRE_GROUPS,
        OFFSET,
        rows=_rows_of_groups,
        evaluate=_evaluate_expire_groups,
        grows=False,
        origin=Origin.EXPIRY,
    ),
)
