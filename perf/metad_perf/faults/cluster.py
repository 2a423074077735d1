"""``metad-perf crash --nodes 3``: a cluster under one fault after the other. Checks that every write is there, once, in
order.

This process runs the nodes, each in a network namespace and on a small disk of its own if the machine allows it, and
all clients. Three kinds of clients write at once: the lanes of the one-node run, whose ledgers detect lost and repeated
writes; clients that share registers, whose history is searched for an order that explains it; and probes, which measure
how long a group accepts no writes. Readers keep hundreds of reads of the same registers in flight. Nodes join, take
part and leave. A fault strikes one node, so the others must continue; the next comes when all are well again. In the
end everything is read through fresh connections.

*Visitors* are nodes that join the cluster, get replicas and leave again: one at a time, each under a new name, while
everything else continues. They are learners: the groups already have all their voters.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any

import msgspec

from metad_client import Client, MetadError, Options
from metad_client.errors import NotFoundError
from metad_judge import linearizability
from metad_wire.messages import StatusReply
from metad_wire.policy import Backoff
from metad_wire.program.running import run_async

from ..commands import Crash
from ..commands import Options as Settings
from ..errors import PerfError, ServerError, UsageError
from ..report import output
from ..report.conclusion import conclude, reported
from ..target import open_client
from . import disks, netns
from .availability import Availability, Window
from .crowd import PATIENT_S, Crowd, Size
from .health import STATUS_S, Health
from .members import START_S, Member, Members, temporary_members
from .registers import History

_LASTS_S = (1.0, 4.0)
_PAUSE_S = (0.3, 4.0)
_HANGS_S = (1.0, 6.0)
_DOWN_S = (0.2, 2.0)
_KILL_AGAIN_SHARE = 0.25
_FULL_MAX_S = 15.0
_FILL_AGAIN_S = 0.05
_SLOW_WRITES_PER_S = 15


class Faults:
    """The faults that strike these nodes. Each acts, lasts a while, ends, and returns a line about it."""

    def __init__(self, members: Members, rng: random.Random) -> None:
        self._members = members
        self._rng = rng
        self.expected_down: set[str] = set()
        """Nodes that have ended, or will end, because of a fault."""
        self.unclear: list[str] = []
        """Nodes that ended on a full disk, and what they said: they should wait for room."""

    def named(self, fault: str) -> Callable[[Member], Awaitable[str]]:
        """The fault of a name; it returns what was done."""
        found: Callable[[Member], Awaitable[str]] = getattr(self, f"_{fault.replace('-', '_')}")
        return found

    async def _kill(self, victim: Member) -> str:
        self.expected_down.add(victim.name)
        victim.kill()
        await asyncio.sleep(self._rng.uniform(*_DOWN_S))
        again = self._rng.random() < _KILL_AGAIN_SHARE
        if again:
            victim.launch()
            await asyncio.sleep(self._rng.uniform(0.0, 0.6))
            victim.kill()
        await self._restart(victim)
        return "killed twice" if again else "killed"

    async def _term(self, victim: Member) -> str:
        self.expected_down.add(victim.name)
        drained_s = await asyncio.to_thread(victim.stop)
        await asyncio.sleep(self._rng.uniform(*_DOWN_S))
        await self._restart(victim)
        return f"told to end, which took {drained_s:.2f} s"

    async def _pause(self, victim: Member) -> str:
        lasts = self._rng.uniform(*_PAUSE_S)
        victim.pause()
        try:
            await asyncio.sleep(lasts)
        finally:
            victim.resume()
        return f"paused for {lasts:.1f} s"

    async def _partition(self, victim: Member) -> str:
        others = [n for n, one in enumerate(self._members.all) if one is not victim]
        if self._rng.random() < 0.3:
            others = [self._rng.choice(others)]
        me = self._members.all.index(victim)
        return await self._cut([(me, other) for other in others] + [(other, me) for other in others])

    async def _oneway(self, victim: Member) -> str:
        others = [n for n, one in enumerate(self._members.all) if one is not victim]
        if self._rng.random() < 0.3:
            others = [self._rng.choice(others)]
        me = self._members.all.index(victim)
        deaf = self._rng.random() < 0.5
        return await self._cut([(other, me) if deaf else (me, other) for other in others])

    async def _cut(self, ways: list[tuple[int, int]]) -> str:
        network = self._members.network
        assert network is not None
        lasts = self._rng.uniform(*_LASTS_S)
        try:
            for source, target in ways:
                await asyncio.to_thread(network.cut, source, target)
            await asyncio.sleep(lasts)
        finally:
            await asyncio.to_thread(network.heal)
        names = [one.name for one in self._members.all]
        return f"cut {', '.join(f'{names[a]}→{names[b]}' for a, b in ways)} for {lasts:.1f} s"

    async def _diskfull(self, victim: Member) -> str:
        disk = victim.disk
        assert disk is not None
        self.expected_down.add(victim.name)
        begin = time.monotonic()
        code: int | None = None
        try:
            while code is None and time.monotonic() - begin < _FULL_MAX_S:
                await asyncio.to_thread(disk.fill)
                await asyncio.sleep(_FILL_AGAIN_S)
                code = victim.ended()
            ended_s = time.monotonic() - begin
            if code is None:
                said = f"went on with a full disk for {ended_s:.1f} s"
            else:
                said = f"ended with {code} {ended_s:.1f} s after the disk was full"
                self.unclear.append(f"{victim.name} {said}: {victim.words()}")
            await asyncio.sleep(self._rng.uniform(*_DOWN_S))
        finally:
            await asyncio.to_thread(disk.free)
        if code is not None:
            await self._restart(victim)
        else:
            self.expected_down.discard(victim.name)
        return said

    async def _slowdisk(self, victim: Member) -> str:
        disk = victim.disk
        assert disk is not None
        lasts = self._rng.uniform(*_LASTS_S)
        pid = victim.pid
        await asyncio.to_thread(disk.slow, pid, _SLOW_WRITES_PER_S)
        try:
            await asyncio.sleep(lasts)
        finally:
            await asyncio.to_thread(disk.fast, pid)
        return f"{_SLOW_WRITES_PER_S} writes/s for {lasts:.1f} s"

    async def _disk_hang(self, victim: Member) -> str:
        disk = victim.disk
        assert disk is not None
        lasts = self._rng.uniform(*_HANGS_S)
        try:
            await asyncio.to_thread(disk.hang)
            await asyncio.sleep(lasts)
        finally:
            await asyncio.to_thread(disk.unhang)
        return f"no fsync returned for {lasts:.1f} s"

    async def _restart(self, victim: Member) -> None:
        await asyncio.to_thread(victim.start, START_S)
        self.expected_down.discard(victim.name)


def possible(names: Iterable[str]) -> tuple[list[str], dict[str, str]]:
    """The faults that this machine can do, and the reasons why it cannot do the others."""
    lacking = {
        "partition": netns.missing(),
        "oneway": netns.missing(),
        "diskfull": disks.missing(),
        "slowdisk": disks.throttle_missing(),
        "disk-hang": disks.hang_missing(),
    }
    skipped = {name: lacking[name] for name in names if lacking.get(name)}
    return [name for name in names if name not in skipped], skipped


_LOOK_S = 0.2
_ASK_S = 2.0
_TAKES_PART_S = 20.0
_STAYS_S = 3.0
_GOES_S = 60.0


class Visitors:
    """All visitors, one after the other. Failures are added to ``problems``."""

    def __init__(self, members: Members, problems: list[str]) -> None:
        self._members = members
        self._problems = problems
        self.joined = 0
        self.left = 0
        self.learned = 0
        """Visitors that were seen as learners of a group."""

    async def run(self, client: Client, going_on: Callable[[], bool]) -> None:
        """Run until ``going_on`` is false; returns when the last visitor has left."""
        visit = self._members.visit
        if visit is None:
            return
        while going_on():
            visitor = visit(f"v{self.joined + 1}")
            try:
                await asyncio.to_thread(visitor.start, START_S)
            except ServerError as error:
                self._problems.append(f"{visitor.name} could not join: {error}")
                return
            self.joined += 1
            await self._asked(lambda: client.cluster.rebalance(deadline_s=_ASK_S), _TAKES_PART_S)
            await self._takes_part(client, visitor, going_on)
            if await self._leaves(client, visitor):
                self.left += 1
            else:
                self._problems.append(f"{visitor.name} could not leave within {_GOES_S:g} s: {visitor.words()}")
            await asyncio.to_thread(visitor.kill)

    async def _takes_part(self, client: Client, visitor: Member, going_on: Callable[[], bool]) -> None:
        until = time.monotonic() + _TAKES_PART_S
        while going_on() and time.monotonic() < until:
            found = await client.cluster.statuses(deadline_s=_ASK_S)
            groups = [group for one in found.values() if isinstance(one, StatusReply) for group in one.groups]
            leaders = [group for group in groups if group.role == "leader"]
            if any(visitor.name in group.learners for group in leaders):
                self.learned += 1
                await asyncio.sleep(_STAYS_S)
                return
            await asyncio.sleep(_LOOK_S)

    async def _leaves(self, client: Client, visitor: Member) -> bool:
        """Repeat the leave until the node is no longer a member."""
        until = time.monotonic() + _GOES_S
        while time.monotonic() < until:
            try:
                await client.cluster.leave(visitor.name, deadline_s=_ASK_S)
            except NotFoundError:
                return True
            except MetadError:
                pass
            await asyncio.sleep(_LOOK_S)
        return False

    async def _asked(self, what: Callable[[], Awaitable[object]], seconds: float) -> None:
        """Repeat ``what`` until it succeeds, for a limited time."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            with contextlib.suppress(MetadError):
                await what()
                return
            await asyncio.sleep(_LOOK_S)


_VOTERS_MAX = 5  # of each group
_CALM_S = (0.5, 2.0)  # between faults
_LEADER_SHARE = 0.7  # share of the faults that strike the leader of some group
_POLL_S = 0.1
_RESTART_S = 1.0
_BACKOFF = Backoff(base_s=0.01, cap_s=0.2)
STEPS_MAX = 20_000_000


class Struck(msgspec.Struct, kw_only=True):
    """One fault and its outcome."""

    fault: str
    node: str
    at_s: float
    what: str
    lasted_s: float
    settled_s: float
    """Seconds from its end until all nodes were well."""


def run(options: Crash) -> int:
    """Returns the exit code: 1 if the run found a fault in metad. Raises UsageError."""
    assert options.seed is not None
    striking, skipped = possible(options.faults)
    for name, why in skipped.items():
        output.say(f"fault {name} is left out: {why}")
    if not striking:
        raise UsageError("none of the faults can be done on this machine")
    namespaces = not netns.missing()
    if not namespaces:
        output.say(f"nodes run on loopback, without partitions: {netns.missing()}")
    small_disks = bool({"diskfull", "slowdisk", "disk-hang"} & set(striking)) and not disks.missing()
    with temporary_members(
        options.nodes,
        groups=options.groups,
        config=options.server_config,
        namespaces=namespaces,
        disks=small_disks,
        hangs="disk-hang" in striking,
        visitors=options.scheme == "metad",  # the fleet has no administrator, who could let them leave
        replicas=min(options.nodes, _VOTERS_MAX),
        scheme=options.scheme,
    ) as members:
        ordeal = Ordeal(members, striking, options.seconds, options.seed)
        made = run_async(ordeal.run())
    begin = time.monotonic()
    searched = linearizability.check(ordeal.history.operations, STEPS_MAX)
    made |= {
        "linearizable": searched.linearizable,
        "linearizability": str(searched),
        "search_s": time.monotonic() - begin,
        "faults_skipped": skipped,
        "network": "a namespace per node" if namespaces else "loopback",
        "disks": "ext4 on a loop device per node" if small_disks else "shared",
    }
    return show(reported(options, made), options)


class Ordeal:
    """The nodes, the clients that write to them, and the faults. ``names`` are those of the faults."""

    def __init__(self, members: Members, names: list[str], seconds: float, seed: int) -> None:
        self._members = members
        self._names = names
        self._seconds = seconds
        self._rng = random.Random(seed)
        self._faults = Faults(members, self._rng)
        self._crowd = Crowd(self._client, seed, Size())
        self._struck: list[Struck] = []
        self._windows: list[Window] = []
        self._problems: list[str] = []
        self._writing = True
        self._terms = 0
        self._begin = 0.0

    @property
    def history(self) -> History:
        """What the clients did to the shared registers."""
        return self._crowd.history

    async def run(self) -> dict[str, Any]:
        """Run everything except the search. The report lists the problems."""
        await asyncio.to_thread(self._members.start)
        async with contextlib.AsyncExitStack() as stack:
            watcher = await stack.enter_async_context(self._client("watcher", STATUS_S))
            health = Health(watcher, [member.name for member in self._members.all], self._problems)
            before = await health.settle()
            prelude = await self.prelude(watcher)
            crowd = await stack.enter_async_context(self._crowd)
            visitors = Visitors(self._members, self._problems)
            administrator = await stack.enter_async_context(self._client("visitors", STATUS_S))
            availability = Availability(await stack.enter_async_context(self._client("probe", PATIENT_S)))
            cluster = (await watcher.cluster.map()).map
            if cluster is None:
                raise ServerError("the cluster has no map")
            self._begin = time.monotonic()
            async with asyncio.TaskGroup() as tasks:
                crowd.begin(tasks, lambda: self._writing)
                tasks.create_task(visitors.run(administrator, lambda: self._writing))
                tasks.create_task(availability.run(cluster, lambda: self._writing))
                watching = tasks.create_task(self._watch())
                try:
                    await self._strike(health)
                finally:
                    self._writing = False
                    watching.cancel()
            seconds = time.monotonic() - self._begin
            after = await health.settle()
            retries = crowd.retries
        await crowd.read_all()
        for member in self._members.all:
            await asyncio.to_thread(self._stop, member)
        longest = availability.longest_ms(self._windows)
        return prelude | {
            "acknowledged": crowd.acknowledged + availability.acknowledged,
            "lost": crowd.verdict.lost,
            "duplicated": crowd.verdict.duplicated,
            "operations": len(crowd.history.operations),
            "reads_pipelined": crowd.reads_pipelined,
            "reads_in_flight_max": crowd.reads_in_flight_max,
            "joined": visitors.joined,
            "learners_seen": visitors.learned,
            "left": visitors.left,
            "elections": sum(_terms(after).values()) - sum(_terms(before).values()),
            "failed_calls": crowd.failed_calls + availability.failed,
            "longest_write_ms": 1e3 * availability.longest_s,
            "unavailable_ms_max": max(longest.values(), default=0.0),
            "unavailable_ms_max_by_fault": longest,
            "settle_s_max": max((one.settled_s for one in self._struck), default=0.0),
            "unknown": crowd.verdict.unknown + crowd.history.unknown,
            "refused": crowd.verdict.refused,
            "failed": crowd.history.failed,
            "errors_by_name": crowd.history.errors,
            "retries": retries,
            "nodes": len(self._members.all),
            "groups": len(_terms(after)),
            "seconds": seconds,
            "faults": {name: sum(one.fault == name for one in self._struck) for name in self._names},
            "problems": self._problems + self._faults.unclear,
            "examples": crowd.verdict.examples,
            "struck": [msgspec.to_builtins(one) for one in self._struck],
        }

    async def prelude(self, watcher: Client) -> dict[str, Any]:
        """Measurements in peace, for the report; subclasses override it."""
        return {}

    def _client(self, name: str, deadline_s: float) -> Client:
        options = Options(deadline_s=deadline_s, backoff=_BACKOFF, client_name=name)
        return open_client(self._members.target, options)

    async def _strike(self, health: Health) -> None:
        """One fault after the other until the time is over; each kind before any is repeated."""
        until = self._begin + self._seconds
        waiting: list[str] = []
        while time.monotonic() < until:
            await asyncio.sleep(self._rng.uniform(*_CALM_S))
            if not waiting:
                waiting = self._rng.sample(self._names, len(self._names))
            await self._one(waiting.pop(), health)

    async def _one(self, name: str, health: Health) -> None:
        victim = self._next() if name == "term" else await self._victim(health)
        begin = time.monotonic()
        what = await self._faults.named(name)(victim)
        over = time.monotonic()
        await health.settle()
        settled = time.monotonic()
        self._windows.append(Window(fault=name, begin_s=begin, end_s=settled))
        self._struck.append(
            Struck(
                fault=name,
                node=victim.name,
                at_s=begin - self._begin,
                what=what,
                lasted_s=over - begin,
                settled_s=settled - over,
            )
        )

    def _next(self) -> Member:
        """The next node in order, as in a rolling upgrade."""
        self._terms += 1
        return self._members.all[self._terms % len(self._members.all)]

    async def _victim(self, health: Health) -> Member:
        if self._rng.random() < _LEADER_SHARE:
            statuses = await health.statuses()
            leaders = [one.node_id for one in statuses for group in one.groups if group.role == "leader"]
            if leaders:
                name = self._rng.choice(leaders)
                return next(one for one in self._members.all if one.name == name)
        return self._rng.choice(self._members.all)

    async def _watch(self) -> None:
        """A node that ends without a fault that explains it is a finding; it is restarted."""
        while True:
            await asyncio.sleep(_POLL_S)
            for member in self._members.all:
                if member.name not in self._faults.expected_down and (code := member.ended()) is not None:
                    self._problems.append(f"{member.name} ended with {code}, unasked: {member.words()}")
                    await asyncio.sleep(_RESTART_S)
                    await asyncio.to_thread(member.start, START_S)

    def _stop(self, member: Member) -> None:
        try:
            member.stop()
        except PerfError as error:
            self._problems.append(f"{member.name}: {error}")


def _terms(statuses: Sequence[StatusReply]) -> dict[str, int]:
    """The highest term of each group."""
    terms: dict[str, int] = {}
    for one in statuses:
        for group in one.groups:
            terms[group.name] = max(terms.get(group.name, 0), group.term)
    return terms


def show(made: dict[str, Any], options: Settings) -> int:
    """Write the report, and show it. Returns the exit code."""
    output.table(
        "crash: what struck whom",
        ["fault", "node", "at s", "what", "settled after s"],
        [[one["fault"], one["node"], one["at_s"], one["what"], one["settled_s"]] for one in made["struck"]],
    )
    output.table("longest without a write", ["fault", "ms"], made["unavailable_ms_max_by_fault"].items())
    code = conclude("crash", made, options, "lost", "duplicated")
    output.say(
        f"{made['acknowledged']:,} writes were acknowledged through {len(made['struck'])} faults; {made['lost']} lost, "
        f"{made['duplicated']} duplicated (seed {made['seed']})."
    )
    return code if made["linearizable"] else 1
