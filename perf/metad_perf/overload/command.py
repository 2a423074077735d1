"""The command: finds the capacity, sends more than that for a while, and judges what must not have happened."""

from __future__ import annotations

import asyncio
import time
from functools import partial
from typing import Any, Final

from metad_judge.undisturbed import judge, leaders

from ..commands import Overload
from ..errors import ServerError
from ..experiment.actor import Actor
from ..experiment.nodes import cpu_s, sampled
from ..experiment.stage import Stage, ask_all, conduct
from ..report import output
from ..report.conclusion import conclude
from .guard import Attach, Look, Phase, Seen, broker_name, left, open_guard
from .naive import Pace, Ramp, Tell, open_naive
from .plan import GUARD_TENANT, MIX
from .tally import Tally, curve, goes_on, heartbeats, peak, phase_row, reached, recovered_s, summed

_RAMP: Final = (8, 16, 32, 64, 128, 256, 512, 1_024)
"""Requests in flight of all processes together, step by step."""
_STEPS_MIN = 4
_LED_S = 30.0
BEFORE, DURING, GAP, AFTER = "before", "during", "gap", "after"
PHASES: Final = (BEFORE, DURING, GAP, AFTER)
BARS: Final = ("elections", "brokers_fenced", "expired_wrongly", "wills_fired_wrongly")
"""None of these may be more than 0."""


def run(options: Overload) -> int:
    """Returns the exit code: 1 if something happened that must not, or the load did not reach its factor."""
    made = conduct(options, partial(_play, options), three_because="one node elects nobody")
    names = ("offered_per_s", "sent_per_s", "answered_per_s", "goodput_per_s", "refused_per_s", "late_per_s", "p99_ms")
    heads = [name.removesuffix("_per_s").replace("_", " ") for name in names]
    rows = [[phase, *(made["phases"][phase][name] for name in names)] for phase in PHASES]
    output.table("overload: items a second", ["phase", *heads], rows)
    return conclude("overload", made, options, *BARS)


async def _play(options: Overload, stage: Stage) -> dict[str, Any]:
    # What moves later is no election of the overload.
    if astray := await stage.settled():
        raise ServerError(f"{', '.join(astray)} are not led by their own nodes")
    led = leaders(await stage.health.statuses())
    endpoints, cluster = [member.endpoint for member in stage.members.all], await stage.map()
    guard = stage.actor(open_guard, stage.members.target, options)
    shares = range(options.processes)
    naive = [stage.actor(open_naive, endpoints, options, cluster, led, share) for share in shares]
    with sampled(stage.members.all) as memory:
        found = await _Overload(options, stage, guard, naive).run()
    each = memory.max_mib_each
    return found | {"rss_max_mib": max(each), "rss_max_mib_each": each, "mix": dict(MIX)}


class _Overload:
    """One run."""

    def __init__(self, options: Overload, stage: Stage, guard: Actor, naive: list[Actor]) -> None:
        self._options = options
        self._stage = stage
        self._guard = guard
        self._naive = naive
        self._story = stage.story
        self._seconds: dict[str, float] = {}
        self._cores: dict[str, dict[str, float]] = {}

    async def run(self) -> dict[str, Any]:
        """All of it. Returns the report."""
        measurement = self._options
        self._story.step(f"{measurement.brokers} brokers begin, and {measurement.sessions:,} sessions come")
        await self._guard.ask(Attach())
        began: Seen = await self._guard.ask(Look())
        # From here on nothing may happen, the ramp included.
        before = await self._stage.health.settle()
        steps = await self._ramp()
        capacity = peak(steps)
        if not capacity:
            raise ServerError("nothing was acknowledged in time: there is no capacity to exceed")
        base, more = measurement.base * capacity, measurement.factor * capacity
        await self._phase(BEFORE, base, measurement.window_s)
        await self._phase(DURING, more, measurement.seconds)
        await self._phase(GAP, base, measurement.gap_s)
        await self._phase(AFTER, base, measurement.window_s)
        await self._all(Pace("", 0.0))
        await asyncio.sleep(measurement.timeout_s)
        return await self._judged(steps, capacity, before, began)

    # --- the load ---

    async def _ramp(self) -> list[tuple[int, float]]:
        """The steps: requests in flight, and items acknowledged a second."""
        steps: list[tuple[int, float]] = []
        await self._guard.ask(Phase("ramp"))
        for in_flight in _RAMP:
            each = -(-in_flight // len(self._naive))
            self._story.step(f"closed loop: {each * len(self._naive)} requests in flight")
            rates = await self._all(Ramp(each, self._options.step_s))
            steps.append((each * len(self._naive), sum(rates)))
            self._story.event(f"{sum(rates):,.0f} items a second")
            if len(steps) >= _STEPS_MIN and not goes_on(steps):
                break
        return steps

    async def _phase(self, name: str, rate: float, seconds: float) -> None:
        self._story.step(f"{name}: {rate:,.0f} items a second for {seconds:g} s")
        await self._guard.ask(Phase(name))
        used_s, begin_s = self._cpu_s(), time.monotonic()
        await self._all(Pace(name, rate / len(self._naive)))
        await asyncio.sleep(seconds)
        took_s = time.monotonic() - begin_s
        self._seconds[name] = took_s
        self._cores[name] = {who: (now_s - used_s[who]) / took_s for who, now_s in self._cpu_s().items()}

    def _cpu_s(self) -> dict[str, float]:
        return {
            "nodes": sum(cpu_s(self._stage.members.all).values()),
            "load": sum(one.cpu_s() for one in self._naive),
            "brokers": self._guard.cpu_s(),
        }

    async def _all(self, order: Any) -> list[Any]:
        return await ask_all(self._naive, order)

    # --- the judgement ---

    async def _judged(
        self, steps: list[tuple[int, float]], capacity: float, before: list[Any], began: Seen
    ) -> dict[str, Any]:
        measurement, client = self._options, self._stage.nodes.client
        self._story.step("every broker, session and will is looked at")
        told: list[dict[str, Tally]] = await self._all(Tell())
        tallies = {phase: summed(one[phase] for one in told if phase in one) for phase in PHASES}
        after = await self._stage.health.settle()
        seen: Seen = await self._guard.ask(Look())
        names = [broker_name(n) for n in range(measurement.brokers)]
        brokers = await client.brokers.get_many(names, deadline_s=_LED_S)
        sessions = [one async for one in client.sessions.list(GUARD_TENANT)]
        wills = [one.client_id async for one in client.wills.list(GUARD_TENANT)]
        verdict = judge(
            left(measurement),
            before=before,
            after=after,
            lives=began.lives,
            lost_lives=seen.states.get("lost", 0),
            brokers=brokers,
            sessions=sessions,
            waiting_wills=wills,
        )
        rows = {phase: phase_row(tallies[phase], self._seconds[phase], capacity) for phase in PHASES}
        if why := reached(measurement, rows[DURING]):
            self._stage.problems.append(why)
        beats = {phase: seen.beats[phase] for phase in ("ramp", *PHASES) if phase in seen.beats}
        count, failed, p99_ms = heartbeats(beats.values())
        _, _, during_ms = heartbeats([beats[DURING]] if DURING in beats else [])
        points = curve(tallies, self._seconds)
        good = {phase: rows[phase]["goodput_per_s"] for phase in PHASES}
        return {
            "elections": verdict.elections,
            "brokers_fenced": verdict.brokers_fenced,
            "expired_wrongly": verdict.expired_wrongly,
            "heartbeat_p99_ms": p99_ms,
            "goodput_ratio_after": output.ratio(good[AFTER], good[BEFORE]),
            "wills_fired_wrongly": verdict.wills_fired_wrongly,
            "leaders_changed": verdict.leaders_changed,
            "heartbeat_p99_ms_during": during_ms,
            "heartbeats": count,
            "heartbeats_failed": failed,
            "lives_suspended": seen.suspended,
            "capacity_per_s": capacity,
            "factor_reached": rows[DURING]["factor"],
            "factor_sent": rows[DURING]["factor_sent"],
            "recovered_s": recovered_s(points, good[BEFORE]),
            "goodput_before": good[BEFORE],
            "goodput_during": good[DURING],
            "goodput_after": good[AFTER],
            "goodput_during_share": output.ratio(good[DURING], capacity),
            "phases": rows,
            "goodput_curve": points,
            "cores": self._cores,
            "ramp": [{"in_flight": in_flight, "goodput_per_s": rate} for in_flight, rate in steps],
            "examples": verdict.examples,
        }
