"""What the runs of a comparison say: ratios of pairs, their spread, and whether the bars are met. Pure.

A ratio is above 1 if metad is better, except for latencies, where it is below 1.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence

import msgspec

from ..report import output
from .catalog import METAD
from .loads import INSERTS, LATEST, MIXES, PACED, PAIRS, PUTS, RESTORE, SINGLES, TAKEOVERS

TO_PUT = "takeover_to_put_ratio"
P99 = "p99_ratio_at_equal_load"
RATES = {
    "batched_put_ratio": (PUTS, PUTS),
    "batched_takeover_ratio": (TAKEOVERS, TAKEOVERS),
    TO_PUT: (TAKEOVERS, PUTS),
    "batched_insert_ratio": (INSERTS, INSERTS),
    "single_put_ratio": (SINGLES, SINGLES),
    **{f"{name}_ratio": (name, name) for name in (*MIXES, LATEST)},
    "session_create_close_ratio": (PAIRS, PAIRS),
    "restore_ratio": (RESTORE, RESTORE),
}
"""By name of the ratio: the loads of metad and of the peer whose items a second are divided."""
BARS: dict[str, dict[str, float]] = {
    "etcd": {
        "batched_put_ratio": 2.5,
        "batched_takeover_ratio": 3.5,
        TO_PUT: 3.5,
        "single_put_ratio": 5.0,
        P99: 1.0,
        "restore_ratio": 4.0,
    },
    "zookeeper": {"restore_ratio": 8.0},
}
"""By peer and ratio. A ratio of latencies must stay below its bar, the others above it."""


class Way(msgspec.Struct, frozen=True):
    """How a load is sent. ``in_flight`` over all processes."""

    batch: int
    in_flight: int
    processes: int


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """The measurements of one system under one load."""

    system: str
    peer: str
    """The peer of the pair, also in metad's runs."""
    load: str
    pair: int
    """-1: a run of the sweep."""
    way: Way
    rate: float
    """Items/s of an open loop; 0: closed loop."""
    items: int
    failed: int
    seconds: float
    items_per_s: float
    items_per_server_cpu_s: float
    """0 if the nodes' CPU time cannot be known."""
    items_per_client_cpu_s: float
    server_rss_mib: float
    p50_ms: float
    p99_ms: float
    p999_ms: float
    max_ms: float
    errors: dict[str, int]


class Ratio(msgspec.Struct, frozen=True, kw_only=True):
    """The median of the pairs' own ratios, and the lowest and highest of them. ``bar`` 0: there is none."""

    median: float
    low: float
    high: float
    bar: float = 0.0
    met: bool = True


def best_of(runs: Sequence[Run]) -> Run:
    """The run with most items a second, of those in which nothing failed if there are any."""
    return max(runs, key=lambda one: (not one.failed, one.items_per_s))


def ratios(runs: Sequence[Run], peer: str) -> dict[str, Ratio]:
    """metad ÷ the peer, for every load that was measured."""
    found: dict[str, Ratio] = {}
    for name, (ours, theirs) in RATES.items():
        pairs = _pairs(runs, peer, ours, theirs)
        if pairs:
            found[name] = _ratio(peer, name, [output.ratio(one.items_per_s, other.items_per_s) for one, other in pairs])
    if pairs := _pairs(runs, peer, PACED, PACED):
        found[P99] = _ratio(peer, P99, [output.ratio(one.p99_ms, other.p99_ms) for one, other in pairs])
    return found


def _pairs(runs: Sequence[Run], peer: str, ours: str, theirs: str) -> list[tuple[Run, Run]]:
    def of(system: str, load: str) -> dict[int, Run]:
        return {
            one.pair: one for one in runs if (one.system, one.load, one.peer) == (system, load, peer) and one.pair >= 0
        }

    mine, others = of(METAD, ours), of(peer, theirs)
    return [(mine[pair], others[pair]) for pair in sorted(mine.keys() & others.keys())]


def _ratio(peer: str, name: str, of_pairs: Sequence[float]) -> Ratio:
    median = statistics.median(of_pairs)
    bar = BARS.get(peer, {}).get(name, 0.0)
    met = not bar or (median <= bar if name == P99 else median >= bar)
    digits = [output.rounded(one) for one in (median, min(of_pairs), max(of_pairs))]
    return Ratio(median=digits[0], low=digits[1], high=digits[2], bar=bar, met=met)
