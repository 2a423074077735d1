"""What the log of a group may say of consumer groups: every committed entry is looked at, in order.

Like :mod:`.coordination`, this believes nothing but the bytes of the entries, and keeps the rows that it needs. The
rules: generations only grow, each is assigned once, its number is that of the offsets, and no offset is written with a
generation that was over.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

import msgspec

from metad.state.core.entry import Entry
from metad.state.core.part import Origin
from metad.storage.keys import GROUP_PREFIX_BYTES, text2
from metad_wire.key import TEXT_END
from metad_wire.messages import Offset
from metad_wire.tables.consumer import CONSUMER, ConsumerGroupInfo, GroupState, Member
from metad_wire.tables.offset import OFFSET

from .invariants import Violation

_OFFSET: Final = OFFSET.rows["offset"]
_GENERATION: Final = OFFSET.rows["generation"]
_MEMBER: Final = CONSUMER.rows["member"]
_GROUP: Final = CONSUMER.rows["group"]
_KEPT: Final = frozenset((_GENERATION, _MEMBER, _GROUP))
_decode_offset = msgspec.msgpack.Decoder(Offset).decode
_decode_group = msgspec.msgpack.Decoder(ConsumerGroupInfo).decode
_decode_member = msgspec.msgpack.Decoder(Member).decode
_decode_generation = msgspec.msgpack.Decoder(int).decode


class SentAway(NamedTuple):
    """A member that an entry has sent away because its time was over."""

    member: Member
    group: ConsumerGroupInfo
    """As it was before."""
    moment_s: float


class Consumers:
    """The judge of all groups of a cluster."""

    def __init__(self) -> None:
        self.sent_away: list[Callable[[SentAway], None]] = []
        """Called for each member whose time was over."""
        self._groups: dict[str, dict[bytes, bytes]] = {}

    def enter(self, group: str, index: int, entry: Entry, moment_s: float) -> None:
        """A replica applies an entry of a group, as the first one that does."""
        rows = self._groups.setdefault(group, {})
        before: dict[bytes, bytes | None] = {}
        offsets: list[bytes] = []
        for writes in entry:
            for stored, value in writes.items():
                key = stored[GROUP_PREFIX_BYTES:]
                if key[0] in _KEPT:
                    before[key] = rows.get(key)
                    if value is None:
                        rows.pop(key, None)
                    else:
                        rows[key] = value
                elif key[0] == _OFFSET and value is not None:
                    offsets.append(value)
        if entry.origin == Origin.MIGRATION:
            return  # what was imported was looked at where it was written
        where = f"{group}/{index}"
        for offset in offsets:
            _check_offset(where, rows, before, _decode_offset(offset))
        for suffix in dict.fromkeys([_group_of(key[1:]) for key in before]):
            key = bytes((_GROUP,)) + suffix
            row = before.get(key, rows.get(key))
            was = None if row is None else _decode_group(row)
            _check_group(where, rows, suffix, was)
            _check_assigned(where, suffix, rows, before)
            if entry.origin == Origin.EXPIRY and was is not None:
                self._tell(suffix, was, rows, before, moment_s)

    def _tell(
        self,
        suffix: bytes,
        group: ConsumerGroupInfo,
        rows: dict[bytes, bytes],
        before: dict[bytes, bytes | None],
        moment_s: float,
    ) -> None:
        prefix = bytes((_MEMBER,)) + suffix
        for key, row in before.items():
            if key.startswith(prefix) and key not in rows and row is not None:
                gone = SentAway(_decode_member(row), group, moment_s)
                for heard in self.sent_away:
                    heard(gone)


def _check_offset(where: str, rows: dict[bytes, bytes], before: dict[bytes, bytes | None], offset: Offset) -> None:
    key = bytes((_GENERATION,)) + text2(offset.tenant, offset.group)
    row = before.get(key, rows.get(key))
    generation = 0 if row is None else _decode_generation(row)
    if offset.generation < generation:
        raise Violation("consumers", f"{where}: {offset} is written in generation {generation}")
    group = bytes((_GROUP,)) + text2(offset.tenant, offset.group)
    known = before.get(group, rows.get(group))
    if known is not None and (info := _decode_group(known)).members and offset.generation > info.generation:
        now = _decode_group(rows[group]) if group in rows else info
        if offset.generation > now.generation:
            raise Violation("consumers", f"{where}: {offset} is written, and {now} has members")


def _check_group(where: str, rows: dict[bytes, bytes], suffix: bytes, was: ConsumerGroupInfo | None) -> None:
    row = rows.get(bytes((_GROUP,)) + suffix)
    prefix = bytes((_MEMBER,)) + suffix
    members = [_decode_member(value) for key, value in rows.items() if key.startswith(prefix)]
    if row is None:
        if members:
            raise Violation("consumers", f"{where}: the group of {members} is gone")
        return
    info = _decode_group(row)
    waiting = sum([member.joined <= info.generation for member in members]) if info.state == GroupState.JOINING else 0
    if (info.members, info.waiting) != (len(members), waiting):
        raise Violation("consumers", f"{where}: {info} has {members}")
    if was is None:
        return
    if info.generation < was.generation:
        raise Violation("consumers", f"{where}: {was} became {info}")
    if info.members:
        generation = rows.get(bytes((_GENERATION,)) + suffix)
        if generation is None or _decode_generation(generation) != info.generation:
            raise Violation("consumers", f"{where}: {info}, and its offsets have generation {generation!r}")
    begun = info.generation > was.generation
    if begun and info.state == GroupState.STABLE:
        raise Violation("consumers", f"{where}: {info} has begun with an assignment")
    if info.state == GroupState.STABLE and was.state not in (GroupState.ASSIGNING, GroupState.STABLE):
        raise Violation("consumers", f"{where}: {was} became {info}")
    if info.state == was.state == GroupState.ASSIGNING and not begun and info.leader != was.leader:
        raise Violation("consumers", f"{where}: {was} became {info}, with another leader")


def _check_assigned(where: str, suffix: bytes, rows: dict[bytes, bytes], before: dict[bytes, bytes | None]) -> None:
    prefix = bytes((_MEMBER,)) + suffix
    for key, row in before.items():
        if key.startswith(prefix) and row is not None and key in rows:
            was, now = _decode_member(row), _decode_member(rows[key])
            if was.assigned == now.assigned and was.assignment != now.assignment:
                raise Violation("consumers", f"{where}: {was} became {now}, assigned twice")


def _group_of(key: bytes) -> bytes:
    tenant_end = key.index(TEXT_END) + len(TEXT_END)
    return key[: key.index(TEXT_END, tenant_end) + len(TEXT_END)]
