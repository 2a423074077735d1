"""``metad-perf drill``: plays the operator's drills of docs/OPERATE.md on real clusters, one after the other.

Plays one drill: starts its cluster, lets clients write and read all the while, runs the script, and judges.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable, Sequence

import msgspec

from metad_client import Client, Options
from metad_client.errors import MetadError
from metad_judge import linearizability
from metad_wire.policy import Backoff
from metad_wire.program.running import run_async

from ..commands import Drill as Settings
from ..errors import PerfError, ServerError, UsageError
from ..faults.availability import names_in
from ..faults.cluster import STEPS_MAX
from ..faults.crowd import Crowd, Size
from ..faults.members import Members, temporary_members
from ..report import output
from ..report.conclusion import reported
from ..report.story import Story
from ..target import open_client
from .drills import DRILLS
from .nodes import Nodes
from .operator import Operator
from .script import Drill
from .steps import Step, Steps

_PATIENT_S = 60.0
_FORMED_S = 30.0
_CROWD = Size(writers=1, sharers=3, readers=0, deadlines_s=(_PATIENT_S,), pause_s=0.02)
"""Few clients, because their nodes share this machine; all of them wait through an election, as brokers do."""
_BACKOFF = Backoff(base_s=0.01, cap_s=0.2)


class Played(msgspec.Struct, kw_only=True):
    """How a drill went. ``skipped``: why it could not be played; then it has not passed."""

    name: str
    passed: bool
    seconds: float = 0.0
    acknowledged: int = 0
    lost: int = 0
    failed_calls: int = 0
    skipped: str = ""
    steps: Sequence[Step] = ()


def play(drill: Drill, seed: int, tell: Callable[[str], None]) -> Played:
    """Play it. ``tell`` hears what happens."""
    if why := drill.missing():
        tell(f"  skipped: {why}")
        return Played(name=drill.name, passed=False, skipped=why)
    begin = time.monotonic()
    with temporary_members(
        drill.nodes,
        groups="",
        config=None,
        namespaces=drill.own_network,
        cuts=False,
        disks=drill.small_disks,
        visitors=drill.newcomers,
        regions=drill.regions,
        scheme="metads" if drill.encrypted else "metad",
    ) as members:
        made = run_async(_Playing(drill, members, seed, tell).run())
    made.seconds = time.monotonic() - begin
    return made


class _Playing:
    """One drill while it is played."""

    def __init__(self, drill: Drill, members: Members, seed: int, tell: Callable[[str], None]) -> None:
        self._drill = drill
        self._members = members
        self._steps = Steps(tell)
        self._nodes = Nodes(members, self._steps)
        self._crowd = Crowd(self._client, seed, _CROWD)
        self._writing = True

    def _client(self, name: str, deadline_s: float) -> Client:
        options = Options(deadline_s=deadline_s, backoff=_BACKOFF, client_name=name)
        return open_client(self._members.target, options)

    async def run(self) -> Played:
        await self._nodes.start(*self._nodes.names)
        async with self._client("operator", _PATIENT_S) as client, self._crowd as crowd:
            known = (await client.cluster.map()).map
            if known is None:
                raise ServerError("the cluster has no map")
            operator = Operator(self._nodes, self._steps, self._drill.commands, client, names_in(known))
            await operator.status("ok", within_s=_FORMED_S)
            async with asyncio.TaskGroup() as tasks:
                crowd.begin(tasks, lambda: self._writing)
                try:
                    await self._drill.play(self._nodes, operator)
                except (MetadError, PerfError) as error:
                    operator.expects("the drill", "goes on to its end", f"{error.name}: {error}", False)
                finally:
                    self._writing = False
            await self._judge(operator)
        steps = self._steps.all
        return Played(
            name=self._drill.name,
            passed=all(step.passed for step in steps),
            acknowledged=crowd.acknowledged,
            lost=crowd.verdict.lost + crowd.verdict.duplicated,
            failed_calls=crowd.failed_calls,
            steps=steps,
        )

    async def _judge(self, operator: Operator) -> None:
        """Read all that was written, and look for an order that explains the history of the shared registers."""
        crowd, verdict = self._crowd, self._crowd.verdict
        if operator.not_run:
            operator.expects("the runbook", "all its commands are run", f"not {', '.join(operator.not_run)}", False)
        try:
            await crowd.read_all()
        except MetadError as error:
            operator.expects("the clients read all they wrote", "it is there", str(error), False)
            return
        found = f"{verdict.lost} lost, {verdict.duplicated} duplicated of {crowd.acknowledged:,}"
        fault = "; ".join([found, *verdict.examples[:3]])
        clean = crowd.acknowledged > 0 and not verdict.lost and not verdict.duplicated
        operator.expects("the clients read all they wrote", "no acknowledged write is lost or doubled", fault, clean)
        searched = await asyncio.to_thread(linearizability.check, crowd.history.operations, STEPS_MAX)
        operator.expects("the order of all calls", "linearizable", str(searched), searched.linearizable)
        failed = f"{crowd.failed_calls} of the clients' calls failed"
        shown = f"{failed} {crowd.history.errors or ''}".strip()
        operator.expects("calls", "0 of the clients' calls failed", shown, not crowd.failed_calls)


_PLAIN_S = 10.0


def show_list() -> int:
    """Print the drills, and what this machine lacks for each."""
    rows = [[drill.name, drill.about, drill.missing() or "yes"] for drill in DRILLS.values()]
    output.table("drills", ["drill", "what happens", "can be played here"], rows)
    return 0


def run(options: Settings) -> int:
    """Play these drills, or all. Returns the exit code: 1 if an expectation was not met. Raises UsageError."""
    if options.shown:
        return show_list()
    for name in options.names:
        if name not in DRILLS:
            raise UsageError(f"there is no drill {name!r}, but {', '.join(DRILLS)}")
    seed = secrets.randbits(32) if options.seed is None else options.seed
    played: list[Played] = []
    with Story(plain_s=_PLAIN_S) as story:
        for name in options.names or DRILLS:
            story.step(name)
            played.append(play(DRILLS[name], seed, story.event))
    passed = all(one.passed or one.skipped for one in played) and any(one.passed for one in played)
    found = {"drills": [msgspec.to_builtins(one) for one in played], "passed": passed, "seed": seed}
    output.write_json(options.json, reported(options, found))
    _show(played)
    return 0 if passed else 1


def _show(played: Sequence[Played]) -> None:
    output.table(
        "drills",
        ["drill", "passed", "steps passed", "seconds", "acknowledged", "lost", "failed calls"],
        [
            [
                one.name,
                "skipped" if one.skipped else "yes" if one.passed else "NO",
                f"{sum(step.passed for step in one.steps)} of {len(one.steps)}",
                one.seconds,
                one.acknowledged,
                one.lost,
                one.failed_calls,
            ]
            for one in played
        ],
    )
    for one in played:
        if one.skipped:
            output.say(f"{one.name} was skipped: {one.skipped}")
        for step in one.steps:
            if not step.passed:
                output.say(f"{one.name}: {step.what}: expected {step.expected}; saw {step.seen}")
