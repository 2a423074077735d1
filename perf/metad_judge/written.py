"""What was really written: every committed entry of every group, as replicas apply it, compared between them. From this
follow the changes that a watch may report, with what was there before.

The product's own word counts for nothing here but the bytes of the entries: what a row was before, which slots a group
had and which revision an entry made is worked out anew.
"""

from __future__ import annotations

import functools
from bisect import bisect_right
from itertools import pairwise
from typing import Any, Final, NamedTuple

import msgspec

from metad.raft.log.journal import REGULAR
from metad.state.cluster.cluster import MAP_KEY
from metad.state.core.entry import Entry, decode_entry
from metad.state.core.part import Origin
from metad.state.core.slot_assignment import AssignedSlots, unpack
from metad.storage.keys import GROUP_PREFIX_BYTES
from metad_wire.cluster import SLOTS, ClusterMap, GroupId
from metad_wire.families import FAMILIES
from metad_wire.key import split_text
from metad_wire.messages import SessionOwner
from metad_wire.table import ROWS, TABLES, Table
from metad_wire.tables.broker import BROKER
from metad_wire.tables.cluster import CLUSTER, GROUP
from metad_wire.tables.offset import OFFSET
from metad_wire.tables.session import SESSION
from metad_wire.tables.table import DECLARED
from metad_wire.watch import ChangeKind

from .consumers import Consumers
from .coordination import Coordination
from .durations import PACE_MAX, Durations
from .invariants import Violation

EXPIRY: Final = 2
"""The origin of an entry that deletes what is over."""
_OWNER: Final = SESSION.rows["owner"]
_FENCE: Final = GROUP.rows["fence"]
_decode_owner = msgspec.msgpack.Decoder(SessionOwner).decode
_SHOWN: Final = frozenset(byte for table in TABLES.values() for byte in table.shows)
_DECLARED: Final = DECLARED.rows["record"]
_NUMBERED: Final = {table.number: table for table in FAMILIES.values()}
_SLOTS_KEY: Final = bytes((GROUP.rows["state"],)) + b"slots"
_BLIND: Final = frozenset([*OFFSET.rows.values(), *BROKER.rows.values()])  # rows that do not say whether they are new
_COMMIT_S_MAX: Final = 60.0  # between the making of an entry and when somebody applies it: through a standstill
_decode_map = msgspec.msgpack.Decoder(ClusterMap).decode
_decode_slots = msgspec.msgpack.Decoder(AssignedSlots).decode


class Key(NamedTuple):
    """A row: its number, and its encoded key fields."""

    row: int
    fields: bytes

    @classmethod
    def stored(cls, behind: bytes) -> Key:
        """Of a stored key, behind its group. A table without a key has one record, whatever it is stored as."""
        return cls(behind[0], behind[1:] if behind[0] == _DECLARED or ROWS[behind[0]].key else b"")

    @property
    def of(self) -> Table[Any]:
        """The table whose row it is."""
        return _NUMBERED[int.from_bytes(self.fields[:4])] if self.row == _DECLARED else ROWS[self.row]

    @property
    def table(self) -> str:
        """Its name."""
        return self.of.name

    @property
    def slot(self) -> int | None:
        """None if its table has no slots."""
        return _slot_of(self.row, self.fields)

    @property
    def shown(self) -> Any:
        """Its key as a watch shows it."""
        key = self.of.shows[self.row].key
        if key is None:
            return None
        return key(*self.of.fields_of(self.fields, len(msgspec.structs.fields(key))))

    def record(self, value: bytes) -> Any:
        """A stored value as a watch shows it."""
        return msgspec.msgpack.decode(value, type=self.of.shows[self.row].record)

    def __str__(self) -> str:
        return f"{self.table}/{self.row:#04x}/{self.fields!r}"


class Change(NamedTuple):
    """One change of a row. ``number`` orders the changes of all groups as they were first applied."""

    number: int
    moment_s: float
    group: str
    position: int
    """The index in the group's log."""
    revision: int
    key: Key
    kind: ChangeKind
    value: bytes | None
    previous: bytes | None

    def __str__(self) -> str:
        return f"{self.kind.name} {self.key} at {self.group}/{self.position} (revision {self.revision})"


class _Group:
    """What is known of one group's log."""

    def __init__(self) -> None:
        self.records: list[bytes] = [b""]  # by index
        self.numbers: list[int] = [0]
        self.entries: dict[int, list[Change]] = {}  # by revision
        self.rows: dict[Key, list[tuple[int, bytes | None]]] = {}  # what each row was, and from which index on
        self.slots: list[tuple[int, AssignedSlots]] = []
        self.adopted: list[tuple[int, int, AssignedSlots]] = []  # (index, number, slots since)
        self.base = 0
        self.now_ms, self.moment_s = 0, 0.0  # the log's time, and when an entry of it was applied first
        self.fences: dict[str, int] = {}  # broker -> its least epoch
        self.term, self.term_s = b"", 0.0  # of the newest entry, and when the first one of it was applied

    def value(self, key: Key, index: int) -> bytes | None:
        """What a row was once the group had applied entry ``index``."""
        history = self.rows.get(key, [])
        at = bisect_right(history, index, key=_first)
        return history[at - 1][1] if at else None

    def slots_at(self, index: int) -> AssignedSlots | None:
        """None: those that it was made with."""
        at = bisect_right(self.slots, index, key=_first)
        return self.slots[at - 1][1] if at else None


class Written:
    """Of all groups of a cluster."""

    def __init__(self, amnesty_s: float = 0.0) -> None:
        self._amnesty_s = amnesty_s
        self.log: list[Change] = []
        """All changes, by number: change 1 is at 0."""
        self.keys: dict[Key, list[Change]] = {}
        self.maps: list[ClusterMap] = []
        """Every map of the cluster that there was."""
        self.coordination = Coordination()
        self.consumers = Consumers()
        self.durations = Durations(amnesty_s)
        self._groups: dict[str, _Group] = {}

    def known(self, group: GroupId) -> int:
        """The last index of the group's log that anybody has applied."""
        return len(self._of(group.name).records) - 1

    def record(self, group: GroupId, index: int) -> bytes:
        """An entry of the group's log that somebody has applied."""
        return self._of(group.name).records[index]

    def _of(self, name: str) -> _Group:
        group = self._groups.get(name)
        if group is None:
            group = self._groups[name] = _Group()
        return group

    def apply(self, node: str, group_id: GroupId, index: int, record: bytes, moment_s: float) -> None:
        """A replica applies an entry."""
        name, group = group_id.name, self._of(group_id.name)
        if index < len(group.records):
            if group.records[index] != record:
                raise Violation(
                    "same entries", f"{node} applies {record!r} as {name}/{index}, {group.records[index]!r}"
                )
            return
        if index > len(group.records):
            raise Violation("same entries", f"{node} applies {name}/{index}, and nobody {name}/{len(group.records)}")
        group.records.append(record)
        if record[:8] != group.term:
            group.term, group.term_s = record[:8], moment_s
        if record[8] == REGULAR:
            self._enter(name, group, index, record, moment_s)
        group.numbers.append(len(self.log))

    def _enter(self, name: str, group: _Group, index: int, record: bytes, moment_s: float) -> None:
        entry = decode_entry(name, index, record)
        _check_time(name, group, index, entry, moment_s)
        self.coordination.enter(name, index, entry, moment_s)
        self.consumers.enter(name, index, entry, moment_s)
        self.durations.enter(f"{name}/{index}", entry, moment_s)
        rows: dict[Key, bytes | None] = {}
        for writes in entry:
            for stored, value in writes.items():
                behind = stored[GROUP_PREFIX_BYTES:]
                if is_shown(behind):
                    rows[Key.stored(behind)] = value
                elif behind[0] == _FENCE and value is not None:
                    group.fences[split_text(behind, 1)[0]] = msgspec.msgpack.decode(value)[0]
                elif behind == _SLOTS_KEY and value is not None:
                    self._hold(group, index, _decode_slots(value))
                if stored == MAP_KEY and value is not None:
                    self.maps.append(_decode_map(value))
        changes: list[Change] = []
        for key, value in rows.items():
            history = group.rows.setdefault(key, [])
            before = history[-1][1] if history else None
            if entry.origin == Origin.EXPIRY and key.row == _OWNER:
                self._check_end(f"{name}/{index}", group, entry.now_ms, before, value, moment_s)
            history.append((index, value))
            if entry.origin != Origin.MIGRATION:
                kind = _kind(key.row, before, value, expired=int(entry.origin) == EXPIRY)
                number = len(self.log) + 1
                change = Change(number, moment_s, name, index, index + group.base, key, kind, value, before)
                earlier = self.keys.setdefault(key, [])
                if earlier and earlier[-1].revision >= change.revision:
                    raise Violation("versions only grow", f"{change} follows {earlier[-1]}")
                earlier.append(change)
                self.log.append(change)
                changes.append(change)
        if changes:
            group.entries[index + group.base] = changes

    def _check_end(
        self, where: str, group: _Group, now_ms: int, before: bytes | None, value: bytes | None, moment_s: float
    ) -> None:
        """What a sweep does to a session has its time, and nothing has for a while after a leader has begun. A session
        that looked connected only gets deadlines, and only if the life of its broker is over."""
        owner = None if before is None else _decode_owner(before)
        if owner is not None and owner.connected and value is not None:
            if _decode_owner(value).connected or owner.broker_epoch >= group.fences.get(owner.broker, 0):
                raise Violation("fences", f"{where} has {owner} disconnected")
            return
        deadline_ms = 0 if owner is None else owner.expires_ms if value is None else owner.will_ms
        if owner is None or owner.connected or not deadline_ms or now_ms < deadline_ms:
            raise Violation("expiry", f"{where} ends {owner} at {now_ms}")
        if moment_s - group.term_s < self._amnesty_s / PACE_MAX:
            raise Violation("amnesty", f"{where} ends {owner} {moment_s - group.term_s} s after its leader began")

    def _hold(self, group: _Group, index: int, slots: AssignedSlots) -> None:
        before = group.slots[-1][1].slots if group.slots else None
        group.base = slots.base
        group.slots.append((index, slots))
        if before is None or (unpack(slots.slots) & ~unpack(before)).any():
            group.adopted.append((index, len(self.log), slots))

    # --- what a watch may say ----------------------------------------------------------------------------

    def entry(self, group: str, revision: int) -> list[Change]:
        """The changes of the entry that made a revision; none if there is no such entry, or it is none of a client, of
        the controller or of time."""
        known = self._groups.get(group)
        return [] if known is None else known.entries.get(revision, [])

    def shows(self, group: str, index: int) -> int:
        """The slots whose rows are those of the group in its state at an index, as a bit map: it holds them then, or
        has sealed them and not closed."""
        slots = self._of(group).slots_at(index)
        if slots is None:
            return (1 << SLOTS) - 1
        return int.from_bytes(slots.slots, "big") | int.from_bytes(slots.sealed, "big")

    def sealed(self, group: GroupId) -> int:
        """The move by which the group has sealed slots that it has not closed; 0: none."""
        slots = self._of(group.name).slots
        return slots[-1][1].sealed_move if slots else 0

    def unsealed(self, group: GroupId) -> int:
        """How often the group has taken back slots that it had sealed."""
        steps = [slots for _, slots in self._of(group.name).slots]
        return sum(
            bool(before.sealed_move and not after.sealed_move and (unpack(after.slots) & unpack(before.sealed)).any())
            for before, after in pairwise(steps)
        )

    def now(self, key: Key) -> bytes | None:
        """What a row is after its last change."""
        changes = self.keys.get(key)
        return changes[-1].value if changes else None

    def values_of(self, key: Key) -> set[bytes | None]:
        """All that a row was in any group, also by a move of its slot."""
        return {value for group in self._groups.values() for _, value in group.rows.get(key, [])}

    def rows_at(self, group: str, index: int) -> dict[Key, bytes]:
        """All rows of a group that watches may show, as they were at an index."""
        known = self._of(group)
        found = {key: known.value(key, index) for key in known.rows}
        return {key: value for key, value in found.items() if value is not None}

    def covered(self, group: str, index: int, key: Key) -> int:
        """The number of the last change that the group's state at an index has of a row that it shows then."""
        known = self._of(group)
        number = known.numbers[min(index, len(known.numbers) - 1)]
        slot = key.slot
        came = 0  # when the slot came to the group: what others wrote until then came with it
        if slot is not None:
            for at, moment, slots in known.adopted:
                if at <= index and unpack(slots.slots)[slot]:
                    came = max(came, moment)
        found = 0
        for change in self.keys.get(key, []):
            if change.number <= came or (change.group == group and change.number <= number):
                found = change.number
        return found


def _check_time(name: str, group: _Group, index: int, entry: Entry, moment_s: float) -> None:
    """The log's time goes forward only, and about as fast as time does, whatever calendars say and slots adopted."""
    if entry.now_ms < group.now_ms:
        raise Violation("log time", f"{name}/{index} is of {entry.now_ms}, and an entry before it of {group.now_ms}")
    most_ms = group.now_ms + 1000 * (PACE_MAX * (moment_s - group.moment_s) + _COMMIT_S_MAX)
    if group.now_ms and entry.now_ms > most_ms:
        raise Violation("log time", f"{name}/{index} is {entry.now_ms - group.now_ms} ms behind an earlier entry")
    if entry.now_ms > group.now_ms:
        group.now_ms, group.moment_s = entry.now_ms, moment_s


def is_shown(behind: bytes) -> bool:
    """Whether a watch may show this row, by its key behind its group. Of declared tables those of the families count:
    what programs declare is not known here."""
    return behind[0] in _SHOWN or (behind[0] == _DECLARED and int.from_bytes(behind[1:5]) in _NUMBERED)


@functools.cache
def _slot_of(row: int, fields: bytes) -> int | None:
    return ROWS[row].slot_of(fields)


def _kind(row: int, before: bytes | None, value: bytes | None, *, expired: bool) -> ChangeKind:
    if value is None:
        return ChangeKind.EXPIRED if expired else ChangeKind.DELETED
    if row in _BLIND:
        return ChangeKind.WRITTEN
    if row == CLUSTER.rows["map"]:
        return ChangeKind.CHANGED
    return ChangeKind.CREATED if before is None else ChangeKind.CHANGED


def _first(pair: tuple[int, object]) -> int:
    return pair[0]
