"""The command: nodes of another release are upgraded to this build, one by one, and go back, under load.

Brokers work at an even pace all the while, and know what must be there (:mod:`..leader_kill.work`). Before each node
ends, a group is added and gets its share of the slots, so slots move while it is away; and a storm takes all sessions
of a broker over once more. Features are held as soon as a node is there that knows them. At the end they are allowed,
so that the last step shows that they are switched on, and that the release of before is refused from then on.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from metad_client import Client
from metad_client.errors import MetadError
from metad_judge.acknowledged import Verdict
from metad_wire.cluster import unpack_slots
from metad_wire.program.build import build
from metad_wire.tables.feature import FEATURES

from ..commands import LeaderKill, Upgrade
from ..drill.waiting import until
from ..errors import ServerError
from ..experiment.actor import Actor
from ..experiment.stage import Stage, ask_all, conduct
from ..faults.members import START_S, Member
from ..leader_kill.plan import READ, VERBS
from ..leader_kill.work import Begin, Done, End, Judge, Take, decoded, open_work
from ..load.measure import epoch_now
from ..load.prepare import fill_sessions
from ..report import output
from ..report.conclusion import conclude
from .release import unpacked, version_of

_WARM_S = 3.0
_STOP_S = 60.0
_STORM_BYTES = 64
_MOVED_WITHIN_S = 120.0
_SWITCHED_WITHIN_S = 60.0
_REFUSED_WITHIN_S = 60.0
_LOOK_S = 0.2


def run(options: Upgrade) -> int:
    """Returns the exit code: 1 if a call failed, a write was lost, a node did not go back, or something was amiss."""
    with tempfile.TemporaryDirectory(prefix="metad-release-") as directory:
        command = unpacked(options.source, Path(directory))
        made = conduct(options, partial(_play, options, command), three_because="nodes are upgraded one by one")
    columns = ("step", "node", "version", "longest write ms", "failed", "seconds")
    output.table("upgrade: steps", columns, [[*one.values()] for one in made["steps"]])
    if not made["downgraded"]:
        made["problems"].append("the nodes did not all go back to the release of before")
    return conclude("upgrade", made, options, "failed_calls", "lost")


async def _play(options: Upgrade, command: list[str], stage: Stage) -> dict[str, Any]:
    return await _Upgrading(options, command, stage).run()


class _Upgrading:
    """One run."""

    def __init__(self, options: Upgrade, command: list[str], stage: Stage) -> None:
        self._options = options
        self._before = command
        self._stage = stage
        self._story = stage.story
        self._failed: Counter[str] = Counter()
        self._steps: list[dict[str, Any]] = []
        self._operations = self._moved = self._storms = 0
        self._version_before = version_of(command)
        self._now: list[str] = []

    async def run(self) -> dict[str, Any]:
        """All of it. Returns the report."""
        options, stage = self._options, self._stage
        members = stage.members.all
        self._now = members[0].command
        for member in members:  # the stage has started them with this build, without any data of ours
            await self._replace(member, self._before, wipe=True)
        for member in members:  # none serves before they have formed a cluster
            await asyncio.to_thread(member.wait_ready, START_S)
        await stage.health.settle()
        client = await stage.client("operator")
        load = LeaderKill(
            rate=options.rate,
            batch=options.batch,
            processes=options.processes,
            clients=2,
            seed=options.seed,
            deadline_s=options.deadline_s,
        )
        cluster = await stage.map()
        crew = [stage.actor(open_work, stage.members.target, load, share) for share in range(load.processes)]
        self._story.step(f"{options.rate:,.0f} operations a second begin on {self._version_before}")
        await ask_all(crew, Begin())
        await asyncio.sleep(_WARM_S)
        await self._step("before", "", self._version_before, crew, partial(self._storm, client))
        for member in members:
            await self._change("upgrade", member, self._now, build(), client, crew)
        await self._hold(client)
        for member in members:
            await self._change("downgrade", member, self._before, self._version_before, client, crew)
        downgraded = await self._all_run(self._version_before)
        done: list[Done] = await ask_all(crew, End())
        for one in done:
            self._failed.update(one.errors)
        self._story.step("everything is read")
        verdict = Verdict.summed(await ask_all(crew, Judge()))
        refused = await self._switched(client)
        changes = [one for one in self._steps if one["step"] != "before"]
        return {
            "failed_calls": self._failed.total(),
            "lost": verdict.lost + verdict.duplicated + verdict.invented,
            "longest_write_ms": max(one["longest_write_ms"] for one in changes),
            "downgraded": downgraded,
            "refused_after_switch": refused,
            "longest_write_before_ms": self._steps[0]["longest_write_ms"],
            "from": self._version_before,
            "to": build(),
            "operations": self._operations,
            "records_read": verdict.read,
            "slots_moved": self._moved,
            "storms": self._storms,
            "groups_before": len(cluster.groups),
            "groups_after": len((await stage.map()).groups),
            "errors": dict(self._failed),
            "examples": verdict.examples,
            "steps": self._steps,
        }

    # --- the nodes ---

    async def _replace(self, member: Member, command: Sequence[str], *, wipe: bool = False) -> None:
        """End a node, and start it with another command."""
        await asyncio.to_thread(member.stop, _STOP_S)
        if wipe:
            member.wipe()
        member.command = list(command)
        await asyncio.to_thread(member.launch)
        if not wipe:
            await asyncio.to_thread(member.wait_ready, START_S)

    async def _change(
        self, step: str, member: Member, command: Sequence[str], version: str, client: Client, crew: Sequence[Actor]
    ) -> None:
        """One node, while slots move and a storm comes."""

        async def play() -> None:
            async with asyncio.TaskGroup() as tasks:
                moving = tasks.create_task(self._move(client))
                tasks.create_task(self._storm(client))
                await self._replace(member, command)
                await moving
            await self._stage.health.settle()

        await self._step(step, member.name, version, crew, play)

    async def _step(
        self, step: str, node: str, version: str, crew: Sequence[Actor], play: Callable[[], Awaitable[None]]
    ) -> None:
        begin = time.monotonic()
        await play()
        longest_ns, failed = 0, 0
        for done in await ask_all(crew, Take()):
            self._failed.update(done.errors)
            failed += sum(done.errors.values())
            self._operations += len(done.codes) * self._options.batch
            writes = [
                took for took, code in zip(done.took_ns, done.codes, strict=True) if VERBS[decoded(code).verb] != READ
            ]
            longest_ns = max(longest_ns, *writes, 0)
        self._steps.append(
            {
                "step": step,
                "node": node,
                "version": version,
                "longest_write_ms": longest_ns / 1e6,
                "failed": failed,
                "seconds": time.monotonic() - begin,
            }
        )
        self._story.event(f"{step} {node}: the longest write took {longest_ns / 1e6:,.0f} ms, {failed} calls failed")

    async def _all_run(self, version: str) -> bool:
        statuses = await self._stage.health.settle()
        wanted = {version, version.partition("+")[0]}
        return len(statuses) == len(self._stage.members.all) and all(one.version in wanted for one in statuses)

    # --- what happens beside ---

    async def _move(self, client: Client) -> None:
        """Add a group, and wait until it has its share of the slots."""
        before = await self._stage.map()
        until_s = time.monotonic() + _MOVED_WITHIN_S
        await self._insist(lambda: client.cluster.add_group("data"), until_s)
        await self._insist(lambda: client.cluster.rebalance(), until_s)
        while (known := await self._stage.map()).moves:
            if time.monotonic() > until_s:
                raise ServerError(f"{len(known.moves)} slot moves had not ended after {_MOVED_WITHIN_S:g} s")
            await asyncio.sleep(_LOOK_S)
        pairs = zip(*(unpack_slots(one.slots["data"]) for one in (before, known)), strict=True)
        self._moved += sum(one != other for one, other in pairs)

    async def _insist(self, ask: Callable[[], Awaitable[object]], until_s: float) -> None:
        """Another change of the cluster may be on its way, or the node that was asked has ended: an operator tries
        again, too."""
        while True:
            try:
                await ask()
                return
            except MetadError:
                if time.monotonic() > until_s:
                    raise
            await asyncio.sleep(_LOOK_S)

    async def _storm(self, client: Client) -> None:
        """All sessions of a broker come back at once."""
        self._storms += 1
        await fill_sessions(client, epoch_now(), self._options.sessions, _STORM_BYTES, lambda _: None)

    # --- features ---

    async def _hold(self, client: Client) -> None:
        for feature in FEATURES:
            await client.features.hold(feature)
        self._story.event(f"all nodes run {build()}; {', '.join(FEATURES)} is held")

    async def _switched(self, client: Client) -> bool:
        """Upgrade all nodes again, allow the features, and see that a node of the release of before is refused."""
        members = self._stage.members.all
        for member in members:
            await self._replace(member, self._now)
            await self._stage.health.settle()
        for feature in FEATURES:
            await client.features.allow(feature)
        until_s = time.monotonic() + _SWITCHED_WITHIN_S
        while {record.feature async for record in client.features.list() if record.state == "on"} != {*FEATURES}:
            if time.monotonic() > until_s:
                self._stage.problems.append("the features are allowed, and are not switched on")
                return False
            await asyncio.sleep(_LOOK_S)
        await asyncio.to_thread(members[0].stop, _STOP_S)
        members[0].command = list(self._before)
        members[0].launch()
        ended = await until(lambda: members[0].ended() is not None, _REFUSED_WITHIN_S)
        said = members[0].words(1)
        self._story.event(f"{members[0].name} on {self._version_before} after the switch: {said}")
        members[0].kill()
        members[0].command = self._now
        await asyncio.to_thread(members[0].start)
        return ended and "format" in said
