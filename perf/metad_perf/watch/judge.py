"""The judge of one watch: were the writes of its rows delivered, each once, in order, and nothing else? Pure.

A delivered change names the write that made it (see :mod:`metad_perf.watch.track`), except a deletion, which has no
value: it is the next deletion that may come. A gap excuses the writes up to the state that the snapshot behind it
shows, and that state must be no older than what was delivered before.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from .track import Outcome, Track

_EXAMPLES_MAX = 20


class Verdict(msgspec.Struct, kw_only=True):
    """The sums over all watches. ``missed``: acknowledged writes that were not delivered, and states that a gap lost.
    ``phantom``: changes that nobody wrote or that were refused. ``wrong``: changes with a wrong kind, version or
    previous value. ``split``: transactions that came in more than one batch. ``examples``: the first faults, in words.
    """

    delivered: int = 0
    missed: int = 0
    repeated: int = 0
    out_of_order: int = 0
    phantom: int = 0
    wrong: int = 0
    split: int = 0
    gaps: int = 0
    excused: int = 0
    examples: list[str] = msgspec.field(default_factory=list)

    def fault(self, kind: str, why: str) -> None:
        """Count one more fault of a kind."""
        setattr(self, kind, getattr(self, kind) + 1)
        if len(self.examples) < _EXAMPLES_MAX:
            self.examples.append(f"{kind}: {why}")

    def add(self, other: Verdict) -> None:
        """Add what another judge has found."""
        for field in COUNTS:
            setattr(self, field, getattr(self, field) + getattr(other, field))
        self.examples = (self.examples + other.examples)[:_EXAMPLES_MAX]

    @property
    def faults(self) -> int:
        """The sum of what must not be."""
        return self.missed + self.repeated + self.out_of_order + self.phantom + self.wrong + self.split


COUNTS = tuple(field for field in Verdict.__struct_fields__ if field != "examples")


class _Seen:
    """How far a watch is with one row. All writes before ``next`` were delivered, but those ``skipped`` and those
    ``excused`` by a gap. ``floating``: the last snapshot did not have the row, so any deletion from ``next`` - 1 on may
    have been its newest write."""

    __slots__ = ("excused", "floating", "next", "skipped", "version")

    def __init__(self) -> None:
        self.next = 0
        self.version = 0
        self.skipped: set[int] = set()
        self.excused: set[int] = set()
        self.floating = False


class Judge:
    """Judges the watch of the given rows. ``name`` is for the examples."""

    def __init__(self, name: str, tracks: Iterable[Track], verdict: Verdict) -> None:
        self._name = name
        self._verdict = verdict
        self._seen = {track: _Seen() for track in tracks}

    def begin(self) -> None:
        """The watch begins here: it reports nothing that was written before."""
        for track, seen in self._seen.items():
            seen.next = len(track)
            seen.skipped.clear()

    def delivered(self, track: Track, index: int, version: int) -> None:
        """A change that write ``index`` of the row has made, with the version that only grows."""
        verdict = self._verdict
        verdict.delivered += 1
        seen = self._seen.get(track)
        if seen is None or index >= len(track.outcomes):
            verdict.fault("phantom", f"{self._name} got write {index} of {track.label}, which it does not watch")
            return
        if index == seen.next and not seen.floating:
            seen.next = index + 1
        elif not self._odd(track, seen, index):
            return
        if version <= seen.version:
            what = f"{track.label} has version {version} behind {seen.version}"
            verdict.fault("out_of_order", f"{self._name}: write {index} of {what}")
        seen.version = version

    def deleted(self, track: Track, version: int) -> int | None:
        """The row was deleted. Returns the write that it is taken for; None if no write can have done it."""
        seen = self._seen.get(track)
        if seen is not None:
            index = self._deletion(track, seen, version)
            if index is not None:
                self.delivered(track, index, version)
                return index
        self._verdict.delivered += 1
        self._verdict.fault("phantom", f"{self._name} heard that {track.label} was deleted, which nobody did")
        return None

    def phantom(self, what: str) -> None:
        """Something that nobody wrote was delivered."""
        self._verdict.delivered += 1
        self._verdict.fault("phantom", f"{self._name} got {what}")

    def wrong(self, track: Track, index: int, why: str) -> None:
        """The change that write ``index`` has made is described wrongly."""
        self._verdict.fault("wrong", f"{self._name}: write {index} of {track.label} {why}")

    def split(self, what: str) -> None:
        """What was written at once came in parts."""
        self._verdict.fault("split", f"{self._name} got {what}")

    def gap(self) -> None:
        """The watch says that it has missed something. The snapshot behind it excuses what."""
        self._verdict.gaps += 1

    def snapshot(self, slots: frozenset[int] | None, rows: Mapping[Track, int]) -> None:
        """All rows of these slots (None: of all), each with the write that made it, replace what was known."""
        for track, seen in self._seen.items():
            if slots is None or track.slot in slots:
                index = rows.get(track)
                if index is None:
                    self._absent(track, seen)
                else:
                    self._present(track, seen, index)
        for track in rows:
            if track not in self._seen or (slots is not None and track.slot not in slots):
                self.phantom(f"{track.label} in a snapshot of other rows")

    def complete(self) -> bool:
        """Whether the newest acknowledged write of every row was delivered, or is excused."""
        return all(seen.next > track.last_acknowledged() or self._floats(track, seen) for track, seen in self._all())

    def close(self) -> None:
        """Nothing more comes: count what was not delivered, and what was refused and delivered all the same."""
        for track, seen in self._all():
            if self._floats(track, seen):
                self._excuse(seen, self._last_deletion(track, seen.next - 1, len(track)) + 1)
            missing = seen.skipped | set(range(seen.next, len(track)))
            for index in sorted(missing):
                if track.outcomes[index] == Outcome.ACKNOWLEDGED:
                    self._verdict.fault("missed", f"{self._name}: write {index} of {track.label}, of {len(track)}")
            for index in range(seen.next):
                if track.outcomes[index] == Outcome.REFUSED and index not in missing | seen.excused:
                    self._verdict.fault("phantom", f"{self._name}: write {index} of {track.label} was refused")

    def _all(self) -> Iterable[tuple[Track, _Seen]]:
        return self._seen.items()

    def _odd(self, track: Track, seen: _Seen, index: int) -> bool:
        """Another write than the next was delivered. Returns whether it may count as newer than those before."""
        what = f"{self._name}: write {index} of {track.label} behind {seen.next - 1}"
        if index < seen.next:
            if index in seen.skipped:
                seen.skipped.discard(index)
                if track.outcomes[index] != Outcome.UNKNOWN:
                    self._verdict.fault("out_of_order", what)
                return False
            self._verdict.fault("out_of_order" if index in seen.excused else "repeated", what)
            return False
        if seen.floating:
            self._excuse(seen, self._last_deletion(track, seen.next - 1, index) + 1)
            seen.floating = False
        seen.skipped.update(range(seen.next, index))
        seen.next = index + 1
        return True

    def _deletion(self, track: Track, seen: _Seen, version: int) -> int | None:
        """The write that a delivered deletion is: the next that is one. If acknowledged writes are in between, an
        unknown one that is late is more likely."""
        if seen.next and track.deletes[seen.next - 1] and version == seen.version:
            return seen.next - 1
        passed = False
        for index in range(seen.next, len(track)):
            if track.deletes[index] and track.outcomes[index] != Outcome.REFUSED:
                late = self._late(track, seen) if passed and not seen.floating else None
                return index if late is None else late
            passed = passed or track.outcomes[index] == Outcome.ACKNOWLEDGED
        return self._late(track, seen)

    @staticmethod
    def _late(track: Track, seen: _Seen) -> int | None:
        late = (index for index in seen.skipped if track.deletes[index] and track.outcomes[index] == Outcome.UNKNOWN)
        return min(late, default=None)

    def _present(self, track: Track, seen: _Seen, index: int) -> None:
        if index >= len(track):
            self.phantom(f"write {index} of {track.label} in a snapshot")
            return
        if index < seen.next - 1 and self._certain(track, index + 1, seen.next):
            self._verdict.fault(
                "missed", f"{self._name}: a snapshot has write {index} of {track.label} behind {seen.next - 1}"
            )
            return
        self._excuse(seen, index)
        seen.next = max(seen.next, index + 1)
        seen.skipped.discard(index)
        seen.excused.discard(index)
        seen.floating = False

    def _absent(self, track: Track, seen: _Seen) -> None:
        possible = seen.next == 0 or self._last_deletion(track, seen.next - 1, len(track)) >= 0
        if not possible and self._certain(track, seen.next - 1, seen.next):
            self._verdict.fault(
                "missed", f"{self._name}: a snapshot lacks {track.label}, of which it had write {seen.next - 1}"
            )
            return
        self._excuse(seen, seen.next)
        seen.floating = True

    def _excuse(self, seen: _Seen, until: int) -> None:
        """A snapshot stands for the writes before ``until``."""
        for index in (*seen.skipped, *range(seen.next, until)):
            if index < until:
                seen.excused.add(index)
                self._verdict.excused += 1
        seen.skipped = {index for index in seen.skipped if index >= until}
        seen.next = max(seen.next, until)

    @staticmethod
    def _certain(track: Track, begin: int, end: int) -> bool:
        """Whether one of these writes is certain to have been made."""
        return any(track.outcomes[index] == Outcome.ACKNOWLEDGED for index in range(max(begin, 0), end))

    @staticmethod
    def _last_deletion(track: Track, begin: int, end: int) -> int:
        """The newest write in the range that may have deleted the row; -1 if there is none."""
        for index in range(end - 1, max(begin, 0) - 1, -1):
            if track.deletes[index] and track.outcomes[index] != Outcome.REFUSED:
                return index
        return -1

    def _floats(self, track: Track, seen: _Seen) -> bool:
        """Whether the newest write of a row that a snapshot did not have may be the one that deleted it."""
        if not seen.floating:
            return False
        return track.last_acknowledged() <= self._last_deletion(track, seen.next - 1, len(track))
