"""Whether what a watcher was told is what was written, which :class:`.written.Written` knows. The properties, by the
names of the rules that are broken:

- *ordered*: per key, and per group, changes come in the order of the log;
- *unique*: no change comes twice;
- *atomic*: the changes of an entry come in one batch, so no token is within an entry;
- *reliable*: every change comes that was made between start and end, but where a gap was announced; then a snapshot
  that is right takes the place of all rows of the slots concerned;
- *resumable*: a watch that begins at a token goes on exactly behind the batch that had it;
- *bookmarkable*: after progress nothing older follows;
- *previous*: the previous value is the one that was there, and it is known where it has to be;
- *created*: the kind of a change is right;
- *filter*: nothing comes that the filter does not let pass. (What it should have let pass and did not is a change that
  is missing: *reliable*.)

And: *phantom*, a change that nobody has written; *record*, a value that is not the one written; *versions*, which only
grow; *endless*, a watcher that has not come to the end when nothing happens any more.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, NoReturn

from metad_wire import messages as m
from metad_wire.cluster import SLOTS
from metad_wire.families import KNOWN
from metad_wire.tables.session import SESSION
from metad_wire.watch import ChangeKind

from .invariants import Violation
from .written import Change, Key, Written

ALL: Final = (1 << SLOTS) - 1
"""All slots of a kind."""
_OWNER: Final = SESSION.rows["owner"]


class Wanted(NamedTuple):
    """One filter of a watch, as its user means it."""

    table: str
    tenant: str | None = None
    """The first field of the key."""
    prefix: str = ""
    """Of the field behind that; of the first where ``tenant`` is None."""
    keys: tuple[m.Message, ...] = ()
    broker: str | None = None

    def passes(self, key: Key, *values: bytes | None) -> bool:
        """Whether it lets a row pass that has, or had, one of these values."""
        if key.table != self.table:
            return False
        table = KNOWN[self.table]
        if table.key:
            fields = table.fields_of(key.fields, 1 if self.tenant is None else min(2, len(table.key)))
            if self.tenant is not None and fields.pop(0) != self.tenant:
                return False
            if self.prefix and not (fields and isinstance(fields[0], str) and fields[0].startswith(self.prefix)):
                return False
        if self.keys and not any(
            key.fields == table.key_of([getattr(each, field) for field in table.key]) for each in self.keys
        ):
            return False
        if self.broker is None:
            return True
        return key.row == _OWNER and self.broker in [key.record(value).broker for value in values if value is not None]


class Told(NamedTuple):
    """One change, as a watcher was told of it. Values are decoded."""

    key: Key
    kind: ChangeKind
    group: str
    revision: int
    version: int
    record: Any
    previous: Any = None
    previous_known: bool = False


def bit(slot: int | None) -> int:
    """A slot in a bit map, a number with the bits of :func:`metad_wire.cluster.slot_bits`. What has no slot (None) goes
    as slot 0 of its kind."""
    return 1 << (SLOTS - 1 - (slot or 0))


@dataclass(slots=True)
class _Row:
    """What a watcher knows of a key: ``at`` changes of it, the first of which was told of as ``first``."""

    at: int
    first: int
    holes: dict[int, str]
    """Changes that were skipped, and the rule that is broken if they never come."""


class _Mine:
    """The changes that a filter lets pass. All watchers of a lineage share them."""

    def __init__(self, written: Written, wanted: Sequence[Wanted]) -> None:
        self.written = written
        self.wanted = wanted
        self._changes: dict[Key, list[Change]] = {}
        self._looked_at = 0

    def passes(self, key: Key, *values: bytes | None) -> bool:
        """Whether one of the filters does."""
        return any(each.passes(key, *values) for each in self.wanted)

    @property
    def changes(self) -> dict[Key, list[Change]]:
        """Those until now, by key."""
        log = self.written.log
        for change in log[self._looked_at :]:
            # What deletes a row that is not there is no change, and does no harm.
            happens = change.value is not None or change.previous is not None
            if happens and self.passes(change.key, change.value, change.previous):
                self._changes.setdefault(change.key, []).append(change)
        self._looked_at = len(log)
        return self._changes


class WatchJudge:
    """Hears what one watcher is told. Violation says what cannot be."""

    def __init__(
        self,
        name: str,
        written: Written,
        wanted: Sequence[Wanted],
        *,
        snapshot: bool = False,
        previous: bool = False,
        keys_only: bool = False,
        coalesce: bool = False,
    ) -> None:
        """``snapshot``: it begins with the rows, else with what follows."""
        self.name = name
        self.told = 0
        """Changes."""
        self.gaps = 0
        self.unknown = 0
        """Changes whose previous value was not known."""
        self._written = written
        self._mine = _Mine(written, wanted)
        self._previous = previous
        self._keys_only = keys_only
        self._coalesce = coalesce
        self._begun: int | None = None  # changes from this on are due; None: not before it is open
        self._rows: dict[Key, _Row] = {}
        kinds = {KNOWN[each.table].kind for each in wanted}
        self._missing = dict.fromkeys(kinds, ALL if snapshot else 0)
        self._shown = dict.fromkeys(kinds, 0)  # by a snapshot: what is not known of these is not there
        self._snapshot: dict[Key, Any] = {}
        self._last: dict[str, int] = {}  # revision of the last change of each group
        self._promised: dict[str, int] = {}  # by progress: index
        self._versions: dict[Key, int] = {}
        self._resumed = False

    def resumed(self, name: str) -> WatchJudge:
        """That of a watch that begins at the token of the newest batch. To be asked for when there is no other yet."""
        other = object.__new__(WatchJudge)
        vars(other).update(vars(self))
        other.name = name
        other._rows = {key: _Row(row.at, -1, dict(row.holes)) for key, row in self._rows.items()}
        other._missing, other._shown = dict(self._missing), dict(self._shown)
        other._snapshot = {}
        other._last, other._promised = dict(self._last), dict(self._promised)
        other._versions = dict(self._versions)
        other._resumed = True
        return other

    def opened(self) -> None:
        """All streams are open: what is written from now on has to come."""
        if self._begun is None:
            self._begun = len(self._written.log)

    # --- what it is told ---------------------------------------------------------------------------------

    def changes(self, told: Sequence[Told]) -> None:
        """A batch."""
        mine = self._mine.changes
        ended = dict(self._last)
        entries: dict[tuple[str, int], None] = {}
        for each in told:
            change = self._find(each)
            entries[each.group, each.revision] = None
            self._take(each, change, mine.get(each.key, []))
            last = self._last.get(each.group, 0)
            if each.revision <= ended.get(each.group, 0):
                self._no("atomic" if each.revision == ended[each.group] else "ordered", f"{change} after {last}")
            if each.revision < last:
                self._no("ordered", f"{change} after {last}")
            self._last[each.group] = each.revision
            if change.position <= self._promised.get(each.group, 0):
                self._no("bookmarkable", f"{change} after progress said that {self._promised[each.group]} is passed")
            self._look_at(each, change)
            self.told += 1
        for group, revision in entries:
            self._whole(group, revision)

    def progress(self, indexes: Mapping[str, int]) -> None:
        """Nothing follows up to these indexes of the groups."""
        for group, index in indexes.items():
            self._promised[group] = max(index, self._promised.get(group, 0))

    def gap(self, kind: str, slots: int) -> None:
        """Changes in these slots may be lost; a snapshot of them follows."""
        self.gaps += 1
        self._missing[kind] |= slots
        self._shown[kind] &= ~slots
        for key, row in self._rows.items():
            if row.holes and _within(key, kind, slots):
                self._lost(key, row)

    def snapshot(self, kind: str, slots: int) -> None:
        """A snapshot of these slots begins. One that began before and is not complete is void."""
        self._snapshot = {key: row for key, row in self._snapshot.items() if not _within(key, kind, slots)}

    def row(self, key: Key, record: Any) -> None:
        """A row of a snapshot."""
        if key in self._snapshot:
            self._no("unique", f"{key} is in a snapshot twice")
        if not self._is_missing(key):
            self._no("reliable", f"{key} is in a snapshot, and its slot was not missing")
        self._snapshot[key] = record

    def shown(self, group: str, index: int, slots: int) -> None:
        """The snapshot of these slots is complete: the rows are those of a group at an index."""
        kind = group.rpartition("-")[0]
        state = self._written.rows_at(group, index)
        for key in {*state, *self._snapshot}:
            if _within(key, kind, slots):
                self._compare(group, index, key, state.get(key))
        for key, changes in self._mine.changes.items():
            if _within(key, kind, slots):
                self._replace(group, index, key, changes)
        if slots & ~self._written.shows(group, index):
            self._no("reliable", f"{group} had not all slots at {index} that it shows")
        self._snapshot = {key: row for key, row in self._snapshot.items() if not _within(key, kind, slots)}
        self._missing[kind] &= ~slots
        self._shown[kind] |= slots

    def _replace(self, group: str, index: int, key: Key, changes: list[Change]) -> None:
        covered = self._written.covered(group, index, key)
        at = sum(change.number <= covered for change in changes)
        before = self._rows.get(key)
        if before is not None and before.at > at:
            self._no("ordered", f"{key} goes back in a snapshot of {group} at {index}")
        self._rows[key] = _Row(at, -1, {})

    def _compare(self, group: str, index: int, key: Key, value: bytes | None) -> None:
        there = value is not None and self._mine.passes(key, value)
        where = f"{key} in the snapshot of {group} at {index}"
        if (key in self._snapshot) != there:
            rule = "reliable" if there or value is None else "filter"
            self._no(rule, f"{where} is {'lacking' if there else 'too many'}")
        if there and value is not None and not self._keys_only and self._snapshot[key] != key.record(value):
            self._no("record", f"{where} is {self._snapshot[key]!r}, not {key.record(value)!r}")

    # --- a change ----------------------------------------------------------------------------------------

    def _find(self, each: Told) -> Change:
        changes = self._written.entry(each.group, each.revision)
        change = next((change for change in changes if change.key == each.key), None)
        if change is None:
            self._no("phantom", f"nobody has made {each}")
        if not self._mine.passes(change.key, change.value, change.previous):
            self._no("filter", f"{change} does not pass")
        return change

    def _take(self, each: Told, change: Change, mine: list[Change]) -> None:
        """It is the next of its key."""
        key = each.key
        if self._is_missing(key):
            self._no("reliable", f"{change}: its slot is missing")
        if change not in mine:
            return  # it deletes what is not there
        at = mine.index(change)
        row = self._rows.get(key)
        if row is None:
            row = self._rows[key] = _Row(0 if self._is_shown(key) else min(at, self._due(mine)), -1, {})
        if at < row.at:
            if row.holes.pop(at, None) is None and at >= row.first >= 0:
                self._no(self._rule("unique", row), f"{change} comes again")
            if row.first < 0:
                self._no(self._rule("unique", row), f"{change} came before the token, or the snapshot")
            self._no("ordered", f"{change} comes behind {mine[row.at - 1]}")
        if not self._coalesce:
            for hole in range(row.at, at):
                row.holes[hole] = self._rule("reliable", row)
        if at == row.at or not self._coalesce:
            self._check_kind(each, change)
        row.at = at + 1
        if row.first < 0:
            row.first = at

    def _due(self, mine: list[Change]) -> int:
        """The first change that has to come to a watcher that began with what followed."""
        begun = self._begun
        return len(mine) if begun is None else sum(change.number <= begun for change in mine)

    def _rule(self, rule: str, row: _Row) -> str:
        return "resumable" if self._resumed and row.first < 0 else rule

    def _check_kind(self, each: Told, change: Change) -> None:
        if each.kind != change.kind:
            self._no("created", f"{change} is told of as {each.kind.name}")
        if not self._previous:
            return
        if not each.previous_known:
            self.unknown += 1
            if change.key.row == _OWNER:
                self._no("previous", f"{change}: the owner before is not known")
            return
        before = None if change.previous is None or self._keys_only else change.key.record(change.previous)
        if each.previous != before:
            self._no("previous", f"{change}: {each.previous!r} was before, not {before!r}")

    def _look_at(self, each: Told, change: Change) -> None:
        record = None if change.value is None or self._keys_only else change.key.record(change.value)
        if each.record != record:
            self._no("record", f"{change}: {each.record!r} is told of, not {record!r}")
        if not each.previous_known and each.previous is not None:
            self._no("previous", f"{change}: {each.previous!r} was before, which is not known")
        if each.version <= self._versions.get(each.key, 0):
            self._no("versions", f"{change}: {each.version} after {self._versions[each.key]}")
        self._versions[each.key] = each.version

    def _whole(self, group: str, revision: int) -> None:
        """All changes of the entry have come, as far as they count."""
        mine = self._mine.changes
        for change in self._written.entry(group, revision):
            changes = mine.get(change.key, [])
            if change not in changes or self._is_missing(change.key):
                continue
            at, row = changes.index(change), self._rows.get(change.key)
            if self._coalesce and at + 1 < len(changes):
                continue  # a newer one of the key may have been ready
            if row is None:
                if self._is_shown(change.key) or at >= self._due(changes):
                    self._no("atomic", f"{change} has not come with the others of its entry")
            elif at in row.holes or at >= row.at:
                self._no("atomic", f"{change} has not come with the others of its entry")

    # --- the end -----------------------------------------------------------------------------------------

    def _is_missing(self, key: Key) -> bool:
        return bool(self._missing[key.of.kind] & bit(key.slot))

    def _is_shown(self, key: Key) -> bool:
        return bool(self._shown[key.of.kind] & bit(key.slot))

    def late(self) -> tuple[Key, Change | None] | None:
        """Something that has not come yet: a change, or all there is of a key. None if nothing is due."""
        for key, changes in self._mine.changes.items():
            if self._is_missing(key):
                return key, None
            row = self._rows.get(key)
            at = row.at if row is not None else 0 if self._is_shown(key) else self._due(changes)
            if at < len(changes):
                return key, changes[at]
        return None

    @property
    def waits(self) -> bool:
        """Whether something has not come yet."""
        return any(self._missing.values()) or self.late() is not None

    def finish(self, passed: Callable[[str], int] = lambda _: 0) -> None:
        """Everything was to have come by now. ``passed``: up to which index the watcher believes to have read a group:
        what is lacking there was lost, and does not come late."""
        for key, row in self._rows.items():
            if row.holes:
                self._lost(key, row)
        for kind, missing in self._missing.items():
            if missing:
                self._no("endless", f"{missing.bit_count()} slots of {kind} are missing, and nobody shows them")
        if (late := self.late()) is not None:
            key, change = late
            if change is not None and change.position <= passed(change.group):
                self._no("reliable", f"{change} was lost")
            self._no("endless", f"{change or key} has not come")

    def _lost(self, key: Key, row: _Row) -> None:
        hole, rule = next(iter(row.holes.items()))
        self._no(rule, f"{self._mine.changes[key][hole]} was lost")

    def _no(self, rule: str, text: str) -> NoReturn:
        raise Violation(rule, f"{self.name}: {text}")


def _within(key: Key, kind: str, slots: int) -> bool:
    return key.of.kind == kind and bool(slots & bit(key.slot))
