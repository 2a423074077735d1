"""The consumer groups of a tenant: found by their offsets and generations, without reading all of these.

Both rows begin with tenant and group, so a look into each says which group is next, and the scan goes on behind it.
"""

from __future__ import annotations

from zlib import crc32

import msgspec

from metad_wire import messages as m
from metad_wire import methods
from metad_wire.key import SLOT_MASK
from metad_wire.tables.offset import OFFSET, KnownGroup, OffsetGroups

from ...storage import keys
from ..core.verb import Command, Reader, Verb, wanted_slots

_ROWS = OFFSET.rows["offset"], OFFSET.rows["generation"]
_LOOK_ROWS = 4  # a look into the engine costs about as much as so many rows
_LOOKS_MAX = 128  # for one page: some three milliseconds, for which nobody else is served
_decode_generation = msgspec.msgpack.Decoder(int).decode


def _read_groups(reader: Reader, command: Command[OffsetGroups]) -> m.ListReply[KnownGroup]:
    body = command.body
    wanted = wanted_slots(reader, body.slots)
    start = keys.text(body.tenant) + keys.text_prefix(body.prefix)
    after = keys.after_prefix(keys.text2(body.tenant, body.after)) if body.after else b""
    begin, end = max(start, after, body.page.cursor), keys.after_prefix(start)
    tables = [keys.table_prefix(reader.group, row) for row in _ROWS]
    ahead: list[bytes | None] = [b""] * len(tables)  # of each row: the next group that has one
    found: list[bytes] = []
    looks = 0
    while len(found) < body.page.limit and looks < _LOOKS_MAX:
        for number, table in enumerate(tables):
            known = ahead[number]
            if known is not None and known < begin:
                rows = reader.engine.scan(table + begin, table + end, 1)
                ahead[number] = _group_of(rows[0][0][len(table) :]) if rows else None
                looks += 1
                reader.spent += _LOOK_ROWS
        group = min((one for one in ahead if one is not None), default=None)
        if group is None:
            begin = b""
            break
        begin = keys.after_prefix(group)
        if wanted is None or wanted[crc32(group) & SLOT_MASK]:
            found.append(group)
    generations = reader.engine.get_many([tables[1] + group for group in found])
    reader.spent += len(found)
    groups = []
    for group, generation in zip(found, generations, strict=True):
        tenant, at = keys.split_text(group, 0)
        name, _ = keys.split_text(group, at)
        groups.append(KnownGroup(tenant, name, 0 if generation is None else _decode_generation(generation)))
    return m.ListReply(groups, begin)


def _group_of(key: bytes) -> bytes:
    """The first two fields of a key."""
    tenant_end = key.index(keys.TEXT_END) + len(keys.TEXT_END)
    return key[: key.index(keys.TEXT_END, tenant_end) + len(keys.TEXT_END)]


VERBS = (Verb(methods.OFFSET_GROUPS, OFFSET, read=_read_groups),)
