"""What naive clients have sent and heard, by phase of the run. Pure."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from ..report.histogram import Latencies


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
