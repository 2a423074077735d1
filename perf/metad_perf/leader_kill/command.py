"""The command: starts nodes and brokers, kills a leader round after round, reads everything, reports.

It reads what the nodes say of a kill in their logs. The page shows latency over time around the kill, all rounds laid
over each other: one HTML file without scripts or external files, readable in light and dark.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from metad_client import ClusterMap
from metad_judge.acknowledged import Verdict
from metad_spark.report.page import Page, Picture, Table
from metad_spark.report.picture import INK, Plane

from ..errors import ServerError, UsageError
from ..faults.members import START_S, Member
from ..report import output
from ..report.story import Story
from ..running import run_async
from ..spawn import Shape
from ..watch.actor import Actor
from ..watch.nodes import Nodes, running
from .plan import MIX, Measurement, groups_of
from .rounds import Curve, Kill, Sample, curve, percentile, row, served_ms, summary
from .work import Begin, Done, End, Judge, Take, decoded, group_names, open_work

_ROUND, _MARK = "#2f6fb3", "#d9622b"
_TIME = "seconds after the kill"
_CAPTION = "A thin line is one round, the thick one their median."
_TICKS_MS = (1, 3, 10, 30, 100, 300, 1_000, 3_000, 10_000, 30_000)
_COLUMNS = ("round", "node", "led", "led_again_ms", "worst_ms", "failed_operations", "refused", "unknown")


def page(made: Mapping[str, Any], curves: Sequence[Curve]) -> str:
    """The whole page, of the report and the curves of its rounds."""
    again = [ms for one in made["by_round"] for ms in one["led_again_ms"].values()]
    lost = f"{made['lost']:,} acknowledged writes were lost" if made["lost"] else "No acknowledged write was lost"
    return Page(
        title="A leader is killed",
        verdict=f"{lost}. {made['rounds']} times kill -9 of a node that leads, at {made['rate']:,.0f} operations a"
        f" second on {made['nodes']} nodes.",
        good=not broken(made) and not made["problems"],
        faults=[*made["examples"], *made["problems"]],
        figures=[
            (f"{made['led_again_ms_p95']:,.0f} ms", "until another node leads and serves, p95"),
            (f"{made['led_again_ms_p50']:,.0f} ms", "p50"),
            (f"{made['failed_operations_max']:,}", "operations failed in the worst round"),
            (f"{made['worst_ms']:,.0f} ms", "the longest that an operation took"),
        ],
        parts=[_latency(curves, again), _done(curves, made["rate"]), _rounds(made["by_round"])],
        settings=[
            (name, _cell(value)) for name, value in made.items() if name not in ("by_round", "examples", "problems")
        ],
        settings_heading="Measured with",
    ).html()


def _latency(curves: Sequence[Curve], again: Sequence[float]) -> Picture:
    highest = max((max(one.worst_ms, default=1.0) for one in curves), default=1.0)
    top = next((tick for tick in _TICKS_MS if tick >= highest), _TICKS_MS[-1])
    plane = _plane(curves, "latency around the kill", (1, max(top, 3)), log_y=True)
    plane.grid(x_name=_TIME, y_name="latency", y_ticks=[(tick, _ms(tick)) for tick in _TICKS_MS if tick <= top])
    for above, percent in enumerate((50, 95) if again else (), 1):
        at_ms = percentile(again, percent)
        plane.mark(at_ms / 1e3, f"led again, p{percent}: {at_ms:,.0f} ms", _MARK, row=above)
    _lines(plane, curves, lambda one: [max(value, 1.0) for value in one.worst_ms])
    return Picture(heading="Longest latency of the operations that were due then", caption=_CAPTION, svg=plane.svg())


def _done(curves: Sequence[Curve], rate: float) -> Picture:
    top = max([1.3 * rate, *(percentile(one.done_per_s, 98) for one in curves)])
    plane = _plane(curves, "operations done per second around the kill", (0, top))
    plane.grid(
        x_name=_TIME, y_name="a second", y_ticks=[(rate * share, f"{rate * share:,.0f}") for share in (0, 0.5, 1)]
    )
    _lines(plane, curves, lambda one: one.done_per_s)
    return Picture(heading="Operations done per second", caption=_CAPTION, svg=plane.svg())


def _plane(curves: Sequence[Curve], label: str, y: tuple[float, float], *, log_y: bool = False) -> Plane:
    at_ms = curves[0].at_ms if curves else [0.0, 1_000.0]
    plane = Plane(x=(at_ms[0] / 1e3, at_ms[-1] / 1e3), y=y, label=label, log_y=log_y)
    plane.mark(0, "kill -9", INK)
    return plane


def _lines(plane: Plane, curves: Sequence[Curve], of: Callable[[Curve], Sequence[float]]) -> None:
    """A thin line for each round, and one of their medians."""
    for one in curves:
        plane.line([ms / 1e3 for ms in one.at_ms], of(one), _ROUND, width=1, opacity=0.35)
    if curves:
        middle = [percentile(values, 50) for values in zip(*(of(one) for one in curves), strict=True)]
        plane.line([ms / 1e3 for ms in curves[0].at_ms], middle, _ROUND, width=3)


def _rounds(rows: Sequence[Mapping[str, Any]]) -> Table:
    return Table(
        heading="Rounds",
        caption="",
        columns=[name.replace("_", " ") for name in _COLUMNS],
        rows=[[_cell(one[name]) for name in _COLUMNS] for one in rows],
    )


def _cell(value: object) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {_cell(one)}" for name, one in value.items())
    if isinstance(value, list):
        return ", ".join(_cell(one) for one in value)
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


def _ms(value: float) -> str:
    return f"{value:g} ms" if value < 1_000 else f"{value / 1e3:g} s"


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
_BALANCED_S = 60.0
_WARM_S = 2.0
_BEFORE_MS, _STEP_MS = 1_000, 50
_AFTER_MS_MIN = 2_000
_NS_PER_S = 1_000_000_000


def run(
    measurement: Measurement, *, shape: Shape, config: Path | None, json: Path | None, report: Path | None = None
) -> int:
    """Returns the exit code: 1 if an acknowledged write is not there, or something was not well."""
    measurement, shape = measurement.checked(), shape.checked()
    if shape.nodes < 3:
        raise UsageError("--nodes must be at least 3: a leader is killed")
    problems: list[str] = []
    found, curves = run_async(_run(measurement, shape, config, problems))
    made: dict[str, Any] = output.rounded(
        found
        | {
            "problems": problems,
            "mix": dict(MIX),
            **{name: value for name, value in msgspec.structs.asdict(measurement).items() if name != "rounds"},
            "nodes": shape.nodes,
            "groups": shape.groups,
            "scheme": shape.scheme,
            "setting": output.machine(),
            "versions": output.versions(),
        }
    )
    output.write_json(json, made)
    if report is not None:
        report.write_text(page(made, curves))
    show(made)
    return 1 if broken(made) or problems else 0


def broken(made: Mapping[str, Any]) -> bool:
    """Whether a promise was."""
    return bool(made["lost"] or made["duplicated"] or made["invented"])


def show(made: Mapping[str, Any]) -> None:
    """Print the tables."""
    columns = ("round", "node", "led", "led again after ms", "says so after ms", "failed", "worst ms", "settled s")
    output.table(
        "leader-kill: rounds",
        columns,
        [
            (
                one["round"],
                one["node"],
                len(one["led"]),
                max(one["led_again_ms"].values(), default=0.0),
                max(one["leads_ms"].values(), default=0.0),
                one["failed_operations"],
                one["worst_ms"],
                one["settled_s"],
            )
            for one in made["by_round"]
        ],
    )
    output.table("leader-kill", ["", "value"], [item for item in made.items() if not isinstance(item[1], dict | list)])
    for line in (*made["examples"], *made["problems"]):
        output.say(line)


async def _run(
    measurement: Measurement, shape: Shape, config: Path | None, problems: list[str]
) -> tuple[dict[str, Any], list[Any]]:
    async with running(
        shape.nodes, groups=shape.groups, config=config, scheme=shape.scheme, problems=problems
    ) as nodes:
        cluster = (await nodes.client.cluster.map()).map
        if cluster is None:
            raise ServerError("the cluster has no map")
        served = [*groups_of(cluster, "data"), *groups_of(cluster, "offset")]
        if measurement.group and measurement.group not in served:
            raise UsageError(f"--group: no {measurement.group}; there are {', '.join(served)}")
        async with _crew(measurement, nodes) as crew:
            with Story() as story:
                return await Killing(measurement, nodes, cluster, crew, story, problems).run()


@contextlib.asynccontextmanager
async def _crew(measurement: Measurement, nodes: Nodes) -> AsyncIterator[list[Actor]]:
    with contextlib.ExitStack() as stack:
        crew = []
        for share in range(measurement.processes):
            crew.append(Actor(open_work, nodes.members.target, measurement, share))
            stack.callback(crew[-1].stop)
        yield crew


class Killing:
    """One run."""

    def __init__(
        self,
        measurement: Measurement,
        nodes: Nodes,
        cluster: ClusterMap,
        crew: Sequence[Actor],
        story: Story,
        problems: list[str],
    ) -> None:
        self._measurement = measurement
        self._nodes = nodes
        self._cluster = cluster
        self._crew = crew
        self._story = story
        self._problems = problems
        self._groups = group_names(cluster)
        self._served = {*groups_of(cluster, "data"), *groups_of(cluster, "offset")}
        self._rng = random.Random(measurement.seed)
        self._samples: list[Sample] = []  # of the round
        self._first: Counter[str] = Counter()
        self._errors: Counter[str] = Counter()

    async def run(self) -> tuple[dict[str, Any], list[Any]]:
        """All of it. Returns the report, and a curve of each round."""
        measurement, story = self._measurement, self._story
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
            "fsync": self._nodes.fsync,
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
        measurement = self._measurement
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
        lines = [line for one in self._nodes.members.all if one is not victim for line in one.log()]
        heard = said(lines, node=victim.name, groups=led, killed_unix_s=unix_s, end_unix_s=time.time())
        kill.detected_ms, kill.led_ms = heard
        begin_s = time.monotonic()
        await asyncio.to_thread(victim.start, START_S)
        await self._nodes.health.settle()
        await self._balanced()
        kill.settled_s = time.monotonic() - begin_s
        kill.end_ns = time.monotonic_ns()
        await self._take()
        return kill

    async def _victim(self) -> tuple[Member, list[str]]:
        """The node to kill, and the groups that it leads."""
        led: dict[str, list[str]] = {member.name: [] for member in self._nodes.members.all}
        for status in await self._nodes.health.statuses():
            led[status.node_id] = [group.name for group in status.groups if group.role == "leader"]
        if self._measurement.group:
            candidates = [name for name, groups in led.items() if self._measurement.group in groups]
        else:
            counts = {name: len(self._served & set(groups)) for name, groups in led.items()}
            candidates = [name for name, count in counts.items() if count == max(counts.values())]
        if not candidates:
            raise ServerError(f"{self._measurement.group} has no leader")
        name = self._rng.choice(candidates)
        return next(member for member in self._nodes.members.all if member.name == name), led[name]

    async def _served_again(self, kill: Kill) -> None:
        """Wait until each group that it led has acknowledged a write."""
        wanted = self._served & set(kill.led)
        until = time.monotonic() + self._measurement.limit_s
        while wanted - served_ms(kill, self._samples).keys():
            if time.monotonic() > until:
                missing = sorted(wanted - served_ms(kill, self._samples).keys())
                self._problems.append(
                    f"round {kill.number}: nobody serves {', '.join(missing)} {self._measurement.limit_s:g} s later"
                )
                return
            await asyncio.sleep(_LOOK_S)
            await self._take()

    async def _balanced(self) -> None:
        """Wait until each group is led by the node that should lead it."""
        until = time.monotonic() + _BALANCED_S
        preferred = {group.group_id.name: group.preferred for group in self._cluster.groups}
        astray: list[str] = []
        while time.monotonic() < until:
            statuses = await self._nodes.health.statuses()
            leaders = {group.name: one.node_id for one in statuses for group in one.groups if group.role == "leader"}
            astray = [name for name, node in preferred.items() if node and leaders.get(name) != node]
            if not astray:
                return
            await asyncio.sleep(_LOOK_S)
        self._problems.append(f"{_BALANCED_S:g} s after a restart {', '.join(astray)} are not led by their own nodes")

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
        return list(await asyncio.gather(*(actor.ask(order) for actor in self._crew)))
