"""What must be there: the records that one process writes, with the number of the last acknowledged write of each.
Pure.

The records of a request are a *lot*: they are always written together, with one number, which counts up. A lot has
one write under way at most. One whose write has an unknown outcome is never written again, so what is read in the end
is either the last acknowledged number or the one in doubt, and anything else is a fault. Puts count in the record's
version too, so a lost put shows even if a later one is there; a takeover names its predecessor.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

import msgspec

_FREE_MIN = 64
"""So many lots of a verb and group are there before one is written again."""
_EXAMPLES_MAX = 10


class Lot(msgspec.Struct, kw_only=True, eq=False):
    """Records that are written together. ``home``: the broker that writes first; ``acknowledged``: the number of the
    last acknowledged write, which is also how many there were; ``in_doubt``: the number of a write that may have
    happened, 0: none; ``busy``: a write is under way."""

    verb: str
    group: str
    place: str
    names: Sequence[str]
    home: int
    acknowledged: int = 0
    in_doubt: int = 0
    busy: bool = False

    @property
    def next(self) -> int:
        """The number of the next write."""
        return self.acknowledged + 1


class Seen(msgspec.Struct, frozen=True):
    """A record as it was read: the number of its last write, and how many writes it has had, if it says so."""

    number: int
    writes: int | None = None


class Verdict(msgspec.Struct, kw_only=True):
    """What the judge found, in records (``lost`` also in takeovers that were not there for the next). ``invented``: a
    number that nobody wrote last; ``duplicated``: a put that was done twice."""

    read: int = 0
    lost: int = 0
    duplicated: int = 0
    invented: int = 0
    in_doubt: int = 0
    examples: list[str] = []


class Ledger:
    """The lots of one process."""

    def __init__(self) -> None:
        self.lots: list[Lot] = []
        self._free: dict[tuple[str, str], deque[Lot]] = {}
        self.verdict = Verdict()

    def take(self, verb: str, group: str, make: Callable[[], Lot]) -> Lot:
        """A lot that is free, which is busy now: the one that was written longest ago, or a new one."""
        free = self._free.setdefault((verb, group), deque())
        if len(free) < _FREE_MIN:
            lot = make()
            self.lots.append(lot)
        else:
            lot = free.popleft()
        lot.busy = True
        return lot

    def any(self, verb: str, group: str) -> Lot | None:
        """A lot to read: the one that was written last."""
        free = self._free.get((verb, group))
        return free[-1] if free else None

    def acknowledged(self, lot: Lot) -> None:
        """The write that was under way is there."""
        lot.acknowledged += 1
        self._release(lot)

    def failed(self, lot: Lot, *, known: bool) -> None:
        """The write was not acknowledged. ``known``: it did not happen."""
        if known:
            self._release(lot)
        else:
            lot.in_doubt = lot.next

    def _release(self, lot: Lot) -> None:
        lot.busy = False
        self._free[lot.verb, lot.group].append(lot)

    def judge(self, lot: Lot, seen: Sequence[Seen | None]) -> None:
        """Hold what was read of a lot, when nothing is under way any more, against what was acknowledged."""
        found = self.verdict
        allowed = {lot.acknowledged} | ({lot.in_doubt} if lot.in_doubt else set())
        for name, one in zip(lot.names, seen, strict=True):
            found.read += 1
            found.in_doubt += bool(lot.in_doubt)
            number = 0 if one is None else one.number
            writes = number if one is None or one.writes is None else one.writes
            if number < lot.acknowledged or writes < number:
                found.lost += 1
                self.example(
                    lot, name, f"has write {number} ({writes} in all), and {lot.acknowledged} were acknowledged"
                )
            elif number not in allowed:
                found.invented += 1
                self.example(lot, name, f"has write {number}, and only {max(allowed)} were made")
            elif writes > number:
                found.duplicated += 1
                self.example(lot, name, f"has {writes} writes, and {number} were made")

    def taken_from(self, lot: Lot, name: str, owner: str | None, expected: str | None) -> None:
        """A takeover says whose the session was."""
        if owner != expected and not lot.in_doubt:
            self.verdict.lost += 1
            self.example(lot, name, f"was of {owner}, and {expected} had taken it")

    def was_read(self, lot: Lot, name: str, seen: Seen | None, least: int) -> None:
        """A read has to see the write that was acknowledged before it began. There may have been none: a lot is free
        again, too, if its first write was turned away."""
        number = 0 if seen is None else seen.number
        if number < least:
            self.verdict.lost += 1
            self.example(lot, name, f"was read as of write {number}, and {least} were acknowledged")

    def example(self, lot: Lot, name: str, what: str) -> None:
        """Keep some of them in words."""
        if len(self.verdict.examples) < _EXAMPLES_MAX:
            self.verdict.examples.append(f"{lot.verb} of {lot.group}: {lot.place}/{name} {what}")
