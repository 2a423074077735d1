"""The command: starts nodes and brokers, kills a leader round after round, reads everything, reports.

It reads what the nodes say of a kill in their logs.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import Any, NamedTuple

import msgspec

from metad_client import ClusterMap
from metad_judge.acknowledged import Verdict

from ..commands import LeaderKill
from ..errors import ServerError, UsageError
from ..experiment.actor import Actor
from ..experiment.stage import Stage, ask_all, conduct
from ..faults.members import START_S, Member
from ..report import output
from ..report.conclusion import conclude
from .plan import MIX, groups_of
from .rounds import Curve, Kill, Sample, curve, row, served_ms, summary
from .work import Begin, Done, End, Judge, Take, decoded, group_names, open_work

BROKEN = ("lost", "duplicated", "invented")
"""None of these may be more than 0."""


class Said(NamedTuple):
    """When, in milliseconds after the kill, another node said that its connection is lost, and by group that it
    leads. None and no entry: it was not said."""

    detected_ms: float | None
    led_ms: dict[str, float]


def said(lines: Iterable[str], *, node: str, groups: Iterable[str], killed_unix_s: float, end_unix_s: float) -> Said:
    """``lines`` of the logs of the other nodes; ``groups``: those that the killed node led."""
    lost: list[float] = []
    led: dict[str, float] = {}
    wanted = set(groups)
    for line in lines:
        try:
            told: dict[str, Any] = msgspec.json.decode(line, type=dict)
            at_s = datetime.fromisoformat(told["ts"]).timestamp()
        except (msgspec.DecodeError, KeyError, ValueError):
            continue  # not of our log: a traceback, or half a line
        # The log has whole milliseconds, cut off.
        if not killed_unix_s - 0.001 <= at_s <= end_unix_s:
            continue
        after_ms = max(0.0, (at_s - killed_unix_s) * 1e3)
        if told.get("event") == "peer_lost" and told.get("peer") == node:
            lost.append(after_ms)
        elif told.get("event") == "leader_gained" and told.get("group") in wanted:
            group = str(told["group"])
            led[group] = min(led.get(group, after_ms), after_ms)
    return Said(min(lost, default=None), dict(sorted(led.items())))


_LOOK_S = 0.1
_WARM_S = 2.0
_BEFORE_MS, _STEP_MS = 1_000, 50
_AFTER_MS_MIN = 2_000
_NS_PER_S = 1_000_000_000


def run(options: LeaderKill) -> int:
    """Returns the exit code: 1 if an acknowledged write is not there, or something was not well."""
    curves: list[Curve] = []
    made = conduct(options, partial(_play, options, curves), three_because="a leader is killed")
    if options.report is not None:
        from .page import page  # its pictures take half a second to import

        options.report.write_text(page(made, curves))
    output.table("leader-kill: rounds", _COLUMNS, [_shown(one) for one in made["by_round"]])
    return conclude("leader-kill", made, options, *BROKEN)


_COLUMNS = ("round", "node", "led", "led again after ms", "says so after ms", "failed", "worst ms", "settled s")


def _shown(one: Mapping[str, Any]) -> Sequence[object]:
    """A row of the table of rounds."""
    again, leads = (max(one[name].values(), default=0.0) for name in ("led_again_ms", "leads_ms"))
    return (
        *(one["round"], one["node"], len(one["led"]), again, leads),
        *(one["failed_operations"], one["worst_ms"], one["settled_s"]),
    )


async def _play(options: LeaderKill, curves: list[Curve], stage: Stage) -> dict[str, Any]:
    cluster = await stage.map()
    served = [*groups_of(cluster, "data"), *groups_of(cluster, "offset")]
    if options.group and options.group not in served:
        raise UsageError(f"--group: no {options.group}; there are {', '.join(served)}")
    crew = [stage.actor(open_work, stage.members.target, options, share) for share in range(options.processes)]
    found, drawn = await _Killing(options, stage, cluster, crew).run()
    curves += drawn
    return found | {"mix": dict(MIX)}


class _Killing:
    """One run."""

    def __init__(self, options: LeaderKill, stage: Stage, cluster: ClusterMap, crew: Sequence[Actor]) -> None:
        self._options = options
        self._stage = stage
        self._crew = crew
        self._story = stage.story
        self._problems = stage.problems
        self._groups = group_names(cluster)
        self._served = {*groups_of(cluster, "data"), *groups_of(cluster, "offset")}
        self._rng = random.Random(options.seed)
        self._samples: list[Sample] = []  # of the round
        self._first: Counter[str] = Counter()
        self._errors: Counter[str] = Counter()

    async def run(self) -> tuple[dict[str, Any], list[Any]]:
        """All of it. Returns the report, and a curve of each round."""
        measurement, story = self._options, self._story
        story.step(f"{measurement.rate:,.0f} operations a second begin")
        await self._ask_all(Begin())
        await asyncio.sleep(_WARM_S)
        await self._balanced()
        await self._take()
        begin_ns = self._begin_round()
        kills: list[Kill] = []
        rows: list[dict[str, Any]] = []
        kept: list[list[Sample]] = []
        warm_ns = begin_ns
        for number in range(1, measurement.rounds + 1):
            kill = await self._round(number, begin_ns)
            samples, kill.first, kill.errors = self._samples, dict(self._first), dict(self._errors)
            rows.append(row(kill, samples, measurement.batch))
            kills.append(kill)
            kept.append([one for one in samples if abs(one.due_ns - kill.killed_ns) < 60 * _NS_PER_S])
            begin_ns = self._begin_round()
            self._tell(rows[-1])
        for done in await self._ask_all(End()):
            self._add(done)
        seconds = (kills[-1].end_ns - warm_ns) / 1e9
        story.step("everything is read")
        verdict = Verdict.summed(await self._ask_all(Judge()))
        operations = sum(one["operations"] for one in rows)
        found = summary(rows) | {
            "lost": verdict.lost,
            "duplicated": verdict.duplicated,
            "invented": verdict.invented,
            "records_read": verdict.read,
            "records_in_doubt": verdict.in_doubt,
            "operations": operations,
            "operations_per_s": operations / seconds,
            "seconds": seconds,
            "rounds": len(rows),
            "by_round": rows,
            "examples": verdict.examples,
        }
        # The errors of the last round may come after it.
        late = sum(self._errors.values())
        if late:
            found["failed_operations"] += late
            self._problems.append(f"{late} operations failed after the last round: {dict(self._errors)}")
        served = max((ms for one in rows for ms in one["led_again_ms"].values()), default=0.0)
        after_ms = max(_AFTER_MS_MIN, int(-(-served * 1.3 // 500) * 500))
        how = {"before_ms": _BEFORE_MS, "after_ms": after_ms, "step_ms": _STEP_MS}
        curves = [curve(kill, one, measurement.batch, **how) for kill, one in zip(kills, kept, strict=True)]
        return found, curves

    def _begin_round(self) -> int:
        self._samples = []
        self._first.clear()
        self._errors.clear()
        return time.monotonic_ns()

    def _tell(self, made: Mapping[str, Any]) -> None:
        self._story.event(
            f"round {made['round']}: {made['node']} led {len(made['led'])} groups; others serve them after "
            f"{max(made['led_again_ms'].values(), default=0.0):,.0f} ms; {made['failed_operations']} operations "
            f"failed, the longest took {made['worst_ms']:,.0f} ms"
        )

    # --- a round ---

    async def _round(self, number: int, begin_ns: int) -> Kill:
        measurement = self._options
        self._story.step(f"round {number} of {measurement.rounds}: all is well for {measurement.quiet_s:g} s")
        await asyncio.sleep(measurement.quiet_s)
        victim, led = await self._victim()
        self._story.step(f"round {number}: kill -9 of {victim.name}, which leads {', '.join(led)}")
        unix_s, killed_ns = time.time(), time.monotonic_ns()
        victim.kill()
        kill = Kill(
            number=number,
            node=victim.name,
            led=led,
            begin_ns=begin_ns,
            killed_ns=killed_ns,
            dead_ns=time.monotonic_ns(),
        )
        await self._served_again(kill)
        await asyncio.sleep(measurement.quiet_s)
        lines = [line for one in self._stage.members.all if one is not victim for line in one.log()]
        heard = said(lines, node=victim.name, groups=led, killed_unix_s=unix_s, end_unix_s=time.time())
        kill.detected_ms, kill.led_ms = heard
        begin_s = time.monotonic()
        await asyncio.to_thread(victim.start, START_S)
        await self._stage.health.settle()
        await self._balanced()
        kill.settled_s = time.monotonic() - begin_s
        kill.end_ns = time.monotonic_ns()
        await self._take()
        return kill

    async def _victim(self) -> tuple[Member, list[str]]:
        """The node to kill, and the groups that it leads."""
        led: dict[str, list[str]] = {member.name: [] for member in self._stage.members.all}
        for status in await self._stage.health.statuses():
            led[status.node_id] = [group.name for group in status.groups if group.role == "leader"]
        if self._options.group:
            candidates = [name for name, groups in led.items() if self._options.group in groups]
        else:
            counts = {name: len(self._served & set(groups)) for name, groups in led.items()}
            candidates = [name for name, count in counts.items() if count == max(counts.values())]
        if not candidates:
            raise ServerError(f"{self._options.group} has no leader")
        name = self._rng.choice(candidates)
        return next(member for member in self._stage.members.all if member.name == name), led[name]

    async def _served_again(self, kill: Kill) -> None:
        """Wait until each group that it led has acknowledged a write."""
        wanted = self._served & set(kill.led)
        until = time.monotonic() + self._options.limit_s
        while wanted - served_ms(kill, self._samples).keys():
            if time.monotonic() > until:
                missing = sorted(wanted - served_ms(kill, self._samples).keys())
                self._problems.append(
                    f"round {kill.number}: nobody serves {', '.join(missing)} {self._options.limit_s:g} s later"
                )
                return
            await asyncio.sleep(_LOOK_S)
            await self._take()

    async def _balanced(self) -> None:
        if astray := await self._stage.settled():
            self._problems.append(f"a minute after a restart {', '.join(astray)} are not led by their own nodes")

    # --- the processes ---

    async def _take(self) -> None:
        for done in await self._ask_all(Take()):
            self._add(done)

    def _add(self, done: Done) -> None:
        for due_ns, took_ns, number in zip(done.due_ns, done.took_ns, done.codes, strict=True):
            what = decoded(number)
            self._samples.append(Sample(due_ns, took_ns, what.verb, self._groups[what.group], what.ok))
        self._first.update(done.first)
        self._errors.update(done.errors)

    async def _ask_all(self, order: Any) -> list[Any]:
        return await ask_all(self._crew, order)
