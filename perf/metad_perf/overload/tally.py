"""What naive clients have sent and heard, by phase of the run, and what these numbers say. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec

from ..commands import Overload
from ..report.histogram import Latencies
from .guard import Beats

REACHED: Final = 0.95
"""A factor is reached if so much of it was there on time."""
RECOVERED: Final = 0.9
"""The goodput is back if it is so much of that before."""
RAMP_GAIN: Final = 1.05
"""The ramp goes on while a step brings so much more."""


class Tally(msgspec.Struct, kw_only=True):
    """Items of one phase, by when they were due. ``offered``: all; ``lagged``: their sender was too slow; ``sent``:
    handed to the network; ``good``: acknowledged before their sender had given up; ``late``: acknowledged after that;
    ``refused``: answered with an error, ``errors`` by name; ``unanswered``: given up without an answer; ``unsent``:
    given up before there was room to send them. ``good_by_second``: the good ones by when they were due, in seconds
    after the begin of the phase; ``latencies`` of the good ones, an encoded histogram, from when each was due."""

    offered: int = 0
    lagged: int = 0
    sent: int = 0
    good: int = 0
    late: int = 0
    refused: int = 0
    unanswered: int = 0
    unsent: int = 0
    errors: dict[str, int] = {}
    good_by_second: dict[int, int] = {}
    latencies: bytes = b""

    @property
    def answered(self) -> int:
        """Items that certainly reached a node."""
        return self.good + self.late + self.refused


def summed(tallies: Iterable[Tally]) -> Tally:
    """Of several processes."""
    total = Tally()
    encoded = []
    for one in tallies:
        for field in ("offered", "lagged", "sent", "good", "late", "refused", "unanswered", "unsent"):
            setattr(total, field, getattr(total, field) + getattr(one, field))
        for name, count in one.errors.items():
            total.errors[name] = total.errors.get(name, 0) + count
        for second, count in one.good_by_second.items():
            total.good_by_second[second] = total.good_by_second.get(second, 0) + count
        if one.latencies:
            encoded.append(one.latencies)
    total.latencies = Latencies.merged(encoded).encode()
    return total


def phase_row(tally: Tally, seconds: float, capacity: float) -> dict[str, Any]:
    """What is told of a phase: rates in items a second."""
    latencies = Latencies.merged([tally.latencies] if tally.latencies else [])

    def rate(items: int) -> float:
        return items / seconds if seconds else 0.0

    return {
        "seconds": seconds,
        "offered_per_s": rate(tally.offered),
        "sent_per_s": rate(tally.sent),
        "answered_per_s": rate(tally.answered),
        "goodput_per_s": rate(tally.good),
        "factor": rate(tally.offered - tally.lagged) / capacity if capacity else 0.0,
        "factor_sent": rate(tally.sent) / capacity if capacity else 0.0,
        "refused_per_s": rate(tally.refused),
        "late_per_s": rate(tally.late),
        "unanswered_per_s": rate(tally.unanswered),
        "unsent_per_s": rate(tally.unsent),
        "p50_ms": latencies.percentile_ms(50),
        "p99_ms": latencies.percentile_ms(99),
        "errors_by_name": tally.errors,
    }


def curve(tallies: Mapping[str, Tally], seconds: Mapping[str, float]) -> list[list[float]]:
    """The goodput over time: seconds after the end of the overload, and items a second of what was due then. The
    last, begun second of a phase is left out."""
    points: list[list[float]] = []
    begin = -seconds["before"] - seconds["during"]
    for phase in ("before", "during", "gap", "after"):
        by_second = tallies[phase].good_by_second
        points += [[begin + second, float(by_second.get(second, 0))] for second in range(int(seconds[phase]))]
        begin += seconds[phase]
    return points


def recovered_s(points: Sequence[Sequence[float]], goodput_before: float) -> float | None:
    """How long after the end of the overload the goodput is back and stays; None: it does not come back."""
    found: float | None = None
    for at, rate in points:
        if at < 0:
            continue
        if rate < RECOVERED * goodput_before:
            found = None
        elif found is None:
            found = at
    return found


def reached(measurement: Overload, during: Mapping[str, Any]) -> str:
    """Why the run is no overload of the factor; empty if it is. What stood at a node's door, and the node did not
    read it, counts; what its sender was too slow to send does not."""
    factor = during["factor"]
    if factor >= REACHED * measurement.factor:
        return ""
    return (
        f"the load reached {factor:.2f} times the capacity and not {measurement.factor:g}: larger --batch, or more "
        "--processes, make more of it"
    )


def peak(steps: Sequence[tuple[int, float]]) -> float:
    """The capacity: the most of all steps of the ramp."""
    return max((rate for _, rate in steps), default=0.0)


def goes_on(steps: Sequence[tuple[int, float]]) -> bool:
    """Whether the ramp may find more with more requests in flight: one of the last two steps brought something."""
    rates = [rate for _, rate in steps]
    if len(rates) < 3:
        return True
    return max(rates[-2:]) > RAMP_GAIN * max(rates[:-2])


def heartbeats(beats: Iterable[Beats]) -> tuple[int, int, float]:
    """How many, how many failed, and their p99 in milliseconds."""
    listed = list(beats)
    merged = Latencies.merged(one.latencies for one in listed)
    return sum(one.count for one in listed), sum(one.failed for one in listed), merged.percentile_ms(99)
