"""Whether a read was as new as it was said to be. Pure: no SDK, no clock, no server.

One writer counts each record up, one write after the other. A read that says how old the state may be that answers it
has everything that was acknowledged so long before the read began. All times are of one clock.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from . import verdict as verdicts


class Verdict(verdicts.Verdict, kw_only=True):
    """``staler_than_said``: reads that lacked what was acknowledged before the time that they named."""

    staler_than_said: int = 0
    reads: int = 0
    oldest_ms: int = 0
    """For how long, at most, a read lacked what was acknowledged when it began."""


class Read(NamedTuple):
    """A read: of which record, what number it found (0: none), when it began, and how old that may be."""

    record: str
    number: int
    begun_s: float
    freshness_s: float


class Writes:
    """The writes of one record that were acknowledged, in order."""

    def __init__(self) -> None:
        self._numbers: list[int] = []
        self._at_s: list[float] = []

    def acknowledged(self, number: int, at_s: float) -> None:
        """The record has this number, which is higher than those before, and the writer was told at this time."""
        self._numbers.append(number)
        self._at_s.append(at_s)

    def by(self, at_s: float) -> int:
        """The newest number that was acknowledged by then; 0 if none was."""
        at = bisect_right(self._at_s, at_s)
        return self._numbers[at - 1] if at else 0

    def lacked_s(self, number: int, at_s: float) -> float:
        """For how long a newer number than this had been acknowledged by then; 0 if there was none."""
        after = bisect_right(self._numbers, number)
        return max(0.0, at_s - self._at_s[after]) if after < len(self._at_s) else 0.0


def judge(writes: Mapping[str, Writes], reads: Iterable[Read]) -> Verdict:
    """Compare the reads with what was acknowledged."""
    verdict = Verdict()
    for read in reads:
        written = writes[read.record]
        verdict.reads += 1
        verdict.oldest_ms = max(verdict.oldest_ms, int(1000 * written.lacked_s(read.number, read.begun_s)))
        wanted = written.by(read.begun_s - read.freshness_s)
        if read.number < wanted:
            lacked_ms = 1000 * written.lacked_s(read.number, read.begun_s)
            verdict.fault(
                "staler_than_said",
                f"a read of {read.record} that may be {1000 * read.freshness_s:g} ms old found {read.number}, "
                f"and {wanted} was acknowledged; it lacked something for {lacked_ms:.0f} ms",
            )
    return verdict
