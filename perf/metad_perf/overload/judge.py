"""What must not have happened, and what the numbers of the phases say. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec

from metad_wire.messages import Session, StatusReply
from metad_wire.tables.broker import LIVE, Broker

from ..report.histogram import Latencies
from .guard import Beats, broker_name, names_of
from .plan import Measurement
from .tally import Tally

REACHED: Final = 0.95
"""A factor is reached if so much of it was there on time."""
RECOVERED: Final = 0.9
"""The goodput is back if it is so much of that before."""
RAMP_GAIN: Final = 1.05
"""The ramp goes on while a step brings so much more."""
_EXAMPLES_MAX: Final = 10


class Verdict(msgspec.Struct, kw_only=True):
    """``expired_wrongly``: sessions that are gone, or do not look as they were left; ``wills_fired_wrongly``: wills
    that were due; ``brokers_fenced``: brokers whose life is over."""

    elections: int = 0
    leaders_changed: int = 0
    brokers_fenced: int = 0
    expired_wrongly: int = 0
    wills_fired_wrongly: int = 0
    examples: list[str] = []


def terms(statuses: Iterable[StatusReply]) -> dict[str, int]:
    """The highest term of each group."""
    found: dict[str, int] = {}
    for one in statuses:
        for group in one.groups:
            found[group.name] = max(found.get(group.name, 0), group.term)
    return found


def leaders(statuses: Iterable[StatusReply]) -> dict[str, str]:
    """The node that leads each group."""
    return {group.name: one.node_id for one in statuses for group in one.groups if group.role == "leader"}


def judge(
    measurement: Measurement,
    *,
    before: Sequence[StatusReply],
    after: Sequence[StatusReply],
    lives: Mapping[str, int],
    lost_lives: int,
    brokers: Sequence[Broker | None],
    sessions: Iterable[Session],
    waiting_wills: Sequence[str],
) -> Verdict:
    """``lives``: name and epoch of each broker as it began; ``lost_lives``: those that the SDK has given up;
    ``brokers``: what the registry says of each; ``sessions``: all that are left; ``waiting_wills``: clients whose
    will is due."""
    verdict = Verdict()
    terms_before, terms_after = terms(before), terms(after)
    # A group that nobody speaks of any more counts as one that has elected.
    verdict.elections = sum(max(0, terms_after.get(name, term + 1) - term) for name, term in terms_before.items())
    leaders_before, leaders_after = leaders(before), leaders(after)
    verdict.leaders_changed = sum(leaders_after.get(name) != node for name, node in leaders_before.items())
    over = {
        name
        for (name, epoch), one in zip(lives.items(), brokers, strict=True)
        if one is None or one.state not in LIVE or one.broker_epoch != epoch
    }
    verdict.brokers_fenced = max(len(over), lost_lives)
    verdict.examples += [f"the life of {name} is over" for name in sorted(over)]
    left = {one.client_id: one for one in sessions}
    for n in range(measurement.brokers):
        name = broker_name(n)
        for clients, connected in zip(names_of(measurement, n), (True, False), strict=True):
            for client in clients:
                one = left.get(client)
                if one is None:
                    _wrong(verdict, f"the session of {client} is gone")
                elif (one.connected, one.broker, one.broker_epoch) != (connected, name, lives.get(name)):
                    _wrong(verdict, f"the session of {client} is of {one.broker}, connected: {one.connected}")
    counted = sum(one.wills_due for one in after) - sum(one.wills_due for one in before)
    verdict.wills_fired_wrongly = max(len(waiting_wills), counted)
    verdict.examples += [f"the will of {client} is due" for client in waiting_wills[:3]]
    return verdict


def _wrong(verdict: Verdict, what: str) -> None:
    verdict.expired_wrongly += 1
    if len(verdict.examples) < _EXAMPLES_MAX:
        verdict.examples.append(what)


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


def reached(measurement: Measurement, during: Mapping[str, Any]) -> str:
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
