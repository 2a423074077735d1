"""What the samples say about each kill. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from .plan import READ, VERBS

_WRITES: Final = frozenset(at for at, verb in enumerate(VERBS) if verb != READ)
_NS_PER_MS: Final = 1_000_000


class Sample(NamedTuple):
    """A request. Times are of the machine's monotonic clock. ``verb`` is a number of :data:`~.plan.VERBS`."""

    due_ns: int
    took_ns: int
    verb: int
    group: str
    ok: bool

    @property
    def ended_ns(self) -> int:
        """When its outcome was known."""
        return self.due_ns + self.took_ns


class Kill(msgspec.Struct, kw_only=True):
    """One round. ``begin_ns`` to ``end_ns`` is all of it; SIGKILL was sent at ``killed_ns``, and the process had
    ended by ``dead_ns``. ``led``: the groups that the node led. ``detected_ms``: after which another node said that
    its connection is lost; ``led_ms``: by group, after which another node said that it leads."""

    number: int
    node: str
    led: list[str]
    begin_ns: int
    killed_ns: int
    dead_ns: int
    end_ns: int = 0
    detected_ms: float | None = None
    led_ms: dict[str, float] = {}
    settled_s: float = 0.0
    first: dict[str, int] = {}
    errors: dict[str, int] = {}


def served_ms(kill: Kill, samples: Iterable[Sample]) -> dict[str, float]:
    """By group that the node led: milliseconds from the kill until the first write was acknowledged by another. Only
    writes that were made after the process had ended count: an earlier one may have its answer from the dead."""
    first: dict[str, int] = {}
    for sample in samples:
        if sample.ok and sample.verb in _WRITES and sample.due_ns >= kill.dead_ns and sample.group in kill.led:
            first[sample.group] = min(first.get(sample.group, sample.ended_ns), sample.ended_ns)
    return {group: (at - kill.killed_ns) / _NS_PER_MS for group, at in sorted(first.items())}


def row(kill: Kill, samples: Sequence[Sample], batch: int) -> dict[str, Any]:
    """What the round was like, of the samples that were due in it. Operations are items."""
    mine = [one for one in samples if kill.begin_ns <= one.due_ns < kill.end_ns]
    served = served_ms(kill, mine)
    worst = max(mine, key=lambda one: one.took_ns, default=None)
    before = [one.took_ns for one in mine if one.ended_ns < kill.killed_ns]
    return {
        "round": kill.number,
        "node": kill.node,
        "led": kill.led,
        "led_again_ms": served,
        "leads_ms": kill.led_ms,
        "detected_ms": kill.detected_ms,
        "operations": len(mine) * batch,
        "failed_operations": sum(kill.errors.values()),
        "failed_by_name": kill.errors,
        "failed_without_retries": kill.first.get("failed", 0) * batch,
        "refused": kill.first.get("refused", 0) * batch,
        "unknown": kill.first.get("unknown", 0) * batch,
        "redirected": kill.first.get("redirected", 0) * batch,
        "first_failures_by_name": {
            name.removeprefix("by "): count * batch for name, count in kill.first.items() if name.startswith("by ")
        },
        "worst_ms": 0.0 if worst is None else worst.took_ns / _NS_PER_MS,
        "worst_of": "" if worst is None else f"{VERBS[worst.verb]} of {worst.group}",
        "p99_ms_before": percentile([took / _NS_PER_MS for took in before], 99),
        "settled_s": kill.settled_s,
    }


def summary(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Over all rounds: what the command is about."""
    again = [ms for one in rows for ms in one["led_again_ms"].values()]
    leads = [ms for one in rows for ms in one["leads_ms"].values()]
    detected = [one["detected_ms"] for one in rows if one["detected_ms"] is not None]
    elected = [
        ms - one["detected_ms"] for one in rows if one["detected_ms"] is not None for ms in one["leads_ms"].values()
    ]
    return {
        "failed_operations_max": max((one["failed_operations"] for one in rows), default=0),
        "worst_ms": max((one["worst_ms"] for one in rows), default=0.0),
        "led_again_ms_p50": percentile(again, 50),
        "led_again_ms_p95": percentile(again, 95),
        "led_again_ms_max": max(again, default=None),
        "leads_ms_p50": percentile(leads, 50),
        "leads_ms_p95": percentile(leads, 95),
        "detected_ms_p50": percentile(detected, 50),
        "detected_to_leads_ms_p50": percentile(elected, 50),
        "detected_to_leads_ms_p95": percentile(elected, 95),
        "elections_measured": len(again),
        "failed_operations": sum(one["failed_operations"] for one in rows),
        "failed_without_retries_max": max((one["failed_without_retries"] for one in rows), default=0),
        "refused_max": max((one["refused"] for one in rows), default=0),
        "unknown_max": max((one["unknown"] for one in rows), default=0),
        "worst_ms_median": statistics.median(one["worst_ms"] for one in rows) if rows else 0.0,
    }


def percentile(values: Sequence[float], percent: float) -> float:
    """The smallest value that so many per cent of the values stay within; 0 if there are none."""
    ordered = sorted(values)
    rank = -(-len(ordered) * percent // 100)
    return ordered[max(0, int(rank) - 1)] if ordered else 0.0


class Curve(NamedTuple):
    """One round as a picture shows it: by milliseconds after the kill, the worst latency of what was due then, and the
    operations a second that were done then."""

    number: int
    at_ms: list[float]
    worst_ms: list[float]
    done_per_s: list[float]


def curve(kill: Kill, samples: Iterable[Sample], batch: int, *, before_ms: int, after_ms: int, step_ms: int) -> Curve:
    """The round in steps."""
    count = (before_ms + after_ms) // step_ms
    worst, done = [0.0] * count, [0.0] * count

    def step(at_ns: int) -> int:
        return int(((at_ns - kill.killed_ns) / _NS_PER_MS + before_ms) // step_ms)

    for sample in samples:
        at = step(sample.due_ns)
        if 0 <= at < count:
            worst[at] = max(worst[at], sample.took_ns / _NS_PER_MS)
        at = step(sample.ended_ns)
        if 0 <= at < count and sample.ok:
            done[at] += batch * 1_000 / step_ms
    return Curve(kill.number, [at * step_ms - before_ms for at in range(count)], worst, done)
