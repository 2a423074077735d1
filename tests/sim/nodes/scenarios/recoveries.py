"""A cluster whose groups lose their majority for ever, and which is recovered from the nodes that are left by the code
of ``metad recover``, while nodes die and lost ones come back with what they have.

What may be lost is judged exactly. The judge finds the newest log of each group by itself. All that this log has goes
on, entry by entry and row by row, and nothing of before is there besides. A group that has kept its majority loses
nothing. Exactly one cluster comes of it: whoever is of before, or of another recovery, ends for good.

Slots are moving meanwhile, and groups are split and merged. Afterwards no two groups hold one slot at any time, and in
the end each slot is held by the group that the map names.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import combinations
from pathlib import Path
from typing import NamedTuple

import msgspec

from metad.config import StorageConfig
from metad.errors import RefusedError
from metad.node.disk import recovery
from metad.node.disk.recovery import Opened, Plan, Report, planned
from metad.node.disk.stores import read_identity, superseded_text
from metad.storage.log import DurableMark, LogStore, LogWriter
from metad_client import ConflictError, MetadError, Options
from metad_judge.invariants import Violation
from metad_judge.written import Written
from metad_wire.cluster import METADATA, ClusterMap, ClusterName, GroupId, slots_in
from metad_wire.messages import KvPutItem
from metad_wire.methods import KV_PUT
from metad_wire.routing import ROUTES, SLOT_MASK

from ..cluster import Cluster, Settings, SimNode
from ..trouble import Trouble
from .scene import scenario

_CONVERGE_S = 60.0
_REFUSED_S = 20.0
_ANSWERED_S = 4.0
"""More than a put may take."""
_SPACES = [f"space-{number}" for number in range(8)]


class _Faults(Trouble):
    """Those of nodes, while slots move all the time."""

    def _client(self, number: int) -> None:
        pass

    def _watch(self, rng: random.Random) -> None:
        for _ in range(2):
            self.later(rng.uniform(0.0, 1.0), self._swing)


class _Writers:
    """Clients that put keys which nobody has put before. They know which puts were acknowledged."""

    def __init__(self, cluster: Cluster, count: int) -> None:
        self._cluster = cluster
        self.acknowledged: dict[tuple[str, str], bytes] = {}
        self.over = self.paused = False
        self.recoveries = 0
        for number in range(count):
            client = cluster.client(Options(deadline_s=3.0))
            cluster.work(client.process, self._write(client.open(), f"w{number}"), client.name)

    async def _write(self, opening: object, name: str) -> None:
        client, number = await opening, 0  # type: ignore[misc]
        while not self.over:
            await asyncio.sleep(0.02)
            if self.paused:
                continue
            number += 1
            space, key, value = _SPACES[number % len(_SPACES)], f"{name}-{number}", b"%d" % number
            recoveries = self.recoveries
            try:
                await client.kv.put(space, key, value, expected_version=0)
            except ConflictError as error:
                if recoveries != self.recoveries:
                    continue  # its first try is in the target of a move, and the source has lost its identity
                raise Violation("a put is done once", f"{space}/{key}: {error}") from None
            except MetadError:
                continue  # nobody knows whether it was done
            if not self.paused:  # otherwise it may be the other recovery that has it
                self.acknowledged[space, key] = value


class _End(NamedTuple):
    """What the newest of the logs that are left has of a group."""

    node: str
    records: dict[int, bytes]
    """By index."""
    base: int
    """Entries until this one are in the state only."""
    last: int


@contextmanager
def _offline(sim: SimNode) -> Iterator[Opened]:
    """The disks of a node that does not run, as ``metad recover`` opens a data directory."""
    assert not sim.up
    store = LogStore(sim.disks.log, DurableMark(Path("durable"), lambda _: sim.disks.mark))
    identity = read_identity(store.engine, "raft")
    assert identity is not None
    if identity.superseded:
        raise RefusedError(superseded_text(identity.cluster_id, identity.superseded))
    writer = LogWriter(store, recovery._AtOnce(store), failed=recovery._raise)
    yield Opened(sim.config, identity, store, sim.disks.state, writer)


class Recovering:
    """One run: what is left, who is lost, and what is judged."""

    def __init__(self, cluster: Cluster, rng: random.Random) -> None:
        self._cluster = cluster
        self._rng = rng
        self._applied: list[tuple[GroupId, int, float]] = []
        """Entries as they were first applied, and when."""
        self._last: dict[GroupId, int] = {}
        cluster.on_applied.append(self._note)
        self.taken = self.lost = self.acknowledged = 0
        """Groups that were taken up; puts that were lost; puts that were acknowledged afterwards."""
        self.decided: list[str] = []
        """About slots, in words."""
        self._holders: dict[str, GroupId] = {}
        """The group that had the slot of a space when the nodes were lost."""

    def _note(self, _: str, group: GroupId, index: int) -> None:
        for at in range(self._last.get(group, 0) + 1, index + 1):
            self._applied.append((group, at, self._cluster.loop.now))
        self._last[group] = max(index, self._last.get(group, 0))

    # --- the operator ---

    def reports(self, left: Iterable[SimNode]) -> list[Report]:
        """``metad recover --json`` on each node that is left."""
        found: list[Report] = []
        for sim in left:
            with _offline(sim) as here:
                text = recovery.encoded(recovery.report(here))
            found.append(msgspec.json.decode(text, type=Report))
        return found

    def carry_out(self, sim: SimNode, others: list[Report], lost: list[str]) -> Plan:
        """``metad recover --lost … --others … --confirm``, and then the power fails."""
        with _offline(sim) as here:
            mine = recovery.report(here)
            plan = planned([mine, *(other for other in others if other.node != mine.node)], lost)
            recovery.carry_out(here, mine, plan, 1_700_000_000_000)
        sim.disks.crash(self._rng, power=True)
        self._cluster.trace(f"{sim.name} is recovered: {plan}")
        return plan

    # --- the judge ---

    def ends(self, left: Iterable[SimNode]) -> dict[GroupId, _End]:
        """The newest log of each group, by the rule of elections."""
        found: dict[GroupId, tuple[tuple[int, int, str], _End]] = {}
        for sim in left:
            with _offline(sim) as here:
                for log in recovery._logs(here):
                    records = log.records(log.base_index + 1, 1 << 30) if log.last_index > log.base_index else []
                    end = _End(sim.name, dict(enumerate(records, log.base_index + 1)), log.base_index, log.last_index)
                    rank = log.last_term, log.last_index, sim.name
                    if log.group_id not in found or rank > found[log.group_id][0]:
                        found[log.group_id] = rank, end
        return {group: end for group, (_, end) in found.items()}

    def begin_anew(self, ends: dict[GroupId, _End], plan: Plan) -> None:
        """From now on that was written which the newest logs have; of groups that have kept a majority, everything."""
        cluster, taken = self._cluster, {one.group for one in plan.taken}
        before, written = cluster.written, Written(cluster.settings.expiry.amnesty_ms / 1000)
        self._holders = {space: _holder(before, space) for space in _SPACES}
        over: set[GroupId] = set()
        for group, at, moment_s in self._applied:
            entry = before.record(group, at)
            if group not in ends:  # it begins anew, if anybody knows it
                over.add(group)
            elif group.name in taken and group not in over:
                end = ends[group]
                if at > end.last or end.records.get(at, entry) != entry:
                    over.add(group)  # from here on, another one was written, or none is left
            if group not in over:
                written.apply("before", group, at, entry, moment_s)
        cluster.begin_anew(written)
        self.decided = plan.slots
        told = taken | {one.group for one in plan.anew}
        after = self.ends(cluster.nodes[name] for name in plan.nodes)
        lasts = {group: end.last for group, end in after.items() if group.name in told}
        cluster.on_applied.append(lambda _, group, __: self._require_apart(group, lasts))

    def _require_apart(self, group: GroupId, lasts: dict[GroupId, int]) -> None:
        """No two groups hold one slot, once those that were taken up know what was decided."""
        written = self._cluster.written
        if any(written.known(one) < last for one, last in lasts.items()):
            return
        mine = _held(written, group)
        for other in written.maps[-1].groups:
            one = other.group_id
            if one != group and one.kind == group.kind and (twice := mine & _held(written, one)):
                text = f"{group.name} and {one.name}: {sorted(twice)[:9]}"
                self._cluster.fail(Violation("one group holds a slot", text))

    def require_held(self) -> None:
        """Each slot is held by the group that the map names."""
        known, written = _known(self._cluster), self._cluster.written
        for kind in known.slots:
            for group, slots in known.holders(kind).items():
                if _held(written, group) != {*slots}:
                    raise Violation("the map names who holds a slot", f"{group.name} holds other slots")

    def require_kept(self, ends: dict[GroupId, _End], plan: Plan) -> None:
        """Every entry of the newest logs is in the log of the group now."""
        for taken in plan.taken:
            group = next(group for group in ends if group.name == taken.group)
            for index, entry in ends[group].records.items():
                if self._cluster.written.known(group) < index or self._cluster.written.record(group, index) != entry:
                    raise Violation("nothing that is left is lost", f"{taken.group}/{index} of {ends[group].node}")

    def judge_puts(
        self, plan: Plan, before: dict[tuple[str, str], bytes], acknowledged: dict[tuple[str, str], bytes]
    ) -> None:
        """Of the puts that were acknowledged ``before`` the nodes were recovered, those may be lost whose slots were in
        groups of which a majority was lost; of all others none."""
        found = _found(self._cluster)
        groups = {one.group for one in plan.taken} | {one.group for one in plan.anew}
        for (space, key), value in acknowledged.items():
            if (space, key) in found:
                assert found[space, key] == value
            elif (space, key) not in before:
                raise Violation("what the recovered cluster acknowledges stays", f"{space}/{key}")
            elif self._holders[space].name not in groups:
                raise Violation("a group with a majority loses nothing", f"{space}/{key}")
            else:
                self.lost += 1
        self.acknowledged = len(acknowledged) - len(before)

    def require_one_cluster(self, plan: Plan) -> None:
        """All nodes that run are of the recovered cluster."""
        ids = {sim.name: sim.node.identity.cluster_id for sim in self._cluster.nodes.values() if sim.node is not None}
        if {*ids.values()} != {plan.cluster}:
            raise Violation("exactly one cluster", f"{plan.cluster} was to be, and there is {ids}")

    def require_refused(self, *others: SimNode) -> None:
        """Who is of before, or of another recovery, ends, and its directory says why for good."""
        cluster = self._cluster
        if not cluster.run_until(lambda: not any(sim.up for sim in others), _REFUSED_S):
            raise Violation("exactly one cluster", f"{[sim.name for sim in others if sim.up]} go on")
        for sim in others:
            try:
                with _offline(sim):
                    pass
            except RefusedError:
                continue
            raise Violation("exactly one cluster", f"the directory of {sim.name} may be started again")


def _known(cluster: Cluster) -> ClusterMap:
    assert cluster.run_until(lambda: cluster.leader(METADATA) is not None, 20.0)
    leader = cluster.leader(METADATA)
    assert leader is not None
    assert leader.node is not None
    assert leader.node.map is not None
    return leader.node.map


def _held(written: Written, group: GroupId) -> set[int]:
    """The slots that a group holds, by its newest entry that anybody has applied."""
    slots = written._of(group.name).slots
    made_with = next((one.initial_slots for known in written.maps if (one := known.group(group)) is not None), b"")
    return {*slots_in(slots[-1][1].slots if slots else made_with)}


def _newest(written: Written) -> ClusterMap:
    return max(written.maps, key=lambda one: one.version)


def _holder(written: Written, space: str) -> GroupId:
    """The group that has the records of a space: it holds the slot, or has given it up and no other has got it."""
    known = _newest(written)
    (crc,) = ROUTES[KV_PUT.code].crcs([KvPutItem(space, "", b"")])
    slot = int(crc) & SLOT_MASK
    of_kind = [one.group_id for one in known.groups if one.kind == KV_PUT.kind]
    holding = [group for group in of_kind if slot in _held(written, group)]
    sealing = [group for group in of_kind if written.sealed(group) and slot in _sealed(written, group)]
    return (holding or sealing)[0]


def _sealed(written: Written, group: GroupId) -> set[int]:
    """The slots that a group has given up and not closed."""
    return {*slots_in(written._of(group.name).slots[-1][1].sealed)}


def _losses(replicas: Iterable[Iterable[str]], names: list[str]) -> Iterator[tuple[str, ...]]:
    """Nodes that are lost together so that one group of these replicas has no majority left."""
    voters = [{*each} for each in replicas]
    for count in range(2, len(names)):
        for lost in combinations(names, count):
            if any(len(group - {*lost}) <= len(group) // 2 for group in voters):
                yield lost


def _replicas(cluster: Cluster) -> Iterator[Iterable[str]]:
    """The voters of each group: those that its leader knows, or that the map wants."""
    for record in _known(cluster).groups:
        leader = cluster.leader(record.group_id)
        led = None if leader is None or leader.node is None else leader.node.drivers[record.group_id].group
        yield record.replicas if led is None else led.configuration.voters


def _end_for_now(sims: Iterable[SimNode], rng: random.Random) -> None:
    """They do not run, and nothing starts them before the operator does."""
    for sim in sims:
        sim.left = True
        sim.crash(power=rng.random() < 0.5)


def _lose(cluster: Cluster, faults: _Faults, rng: random.Random, lost: list[SimNode], left: list[SimNode]) -> None:
    """One node after the other goes for ever, under writes, while slots move. The others go on for a while, without a
    majority."""
    if rng.random() < 0.7:  # one of those that are left lacks what others have
        names = {sim.name for sim in left}
        alone = [names & {*each} for each in _replicas(cluster)]  # such a node takes the group up with what it has
        behind = rng.choice(sorted(name for each in alone if len(each) == 1 for name in each) or sorted(names))
        cluster.network.partition([behind], [name for name in cluster.nodes if name != behind])
        faults._swing()
        cluster.run(rng.uniform(0.2, 1.0))
    for sim in lost:
        faults._swing()
        cluster.run(rng.choice([0.0, rng.uniform(0.0, 0.1)]))
        _end_for_now([sim], rng)
        cluster.run(rng.choice([0.0, rng.uniform(0.0, 0.3)]))
    cluster.run(rng.uniform(0.0, 1.5))


def play_recovery(seed: int, *, rivals: bool = False, tracing: bool = False) -> Recovering:
    """Play a cluster, lose nodes for ever, recover it, go on. ``rivals``: two operators recover one node each. Raises
    what went wrong."""
    rng = random.Random(seed)
    nodes = 5 if rivals else rng.choice([3, 5])
    settings = Settings(
        nodes=nodes,
        replicas=5 if rivals else rng.choice([3, nodes]),
        data=2,
        metadata=rng.choice([1, 2]),
        clients=0,
        storage=StorageConfig(engine="memory", log_retained_bytes=rng.choice([1_000, 10**6])),
    )
    with Cluster(seed, settings, tracing=tracing) as cluster:
        cluster.start()
        run, writers = Recovering(cluster, rng), _Writers(cluster, 3)
        faults = _Faults(cluster, rng)
        cluster.run(rng.uniform(1.0, 3.0))
        losses = list(_losses(_replicas(cluster), [*cluster.nodes]))
        lost = [cluster.nodes[name] for name in rng.choice([one for one in losses if not rivals or len(one) == 3])]
        left = [sim for sim in cluster.nodes.values() if sim not in lost]
        _lose(cluster, faults, rng, lost, left)
        faults.over = True
        cluster.network.heal()
        _end_for_now(left, rng)
        acknowledged = dict(writers.acknowledged)
        plan, ends = _rivals(run, left, cluster) if rivals else _recovered(run, left, lost)
        run.begin_anew(ends, plan)
        writers.recoveries += 1
        run.taken = len(plan.taken) + len(plan.anew)
        writers.paused = rivals
        for sim in left:
            sim.left = False
            faults.later(rng.uniform(0.0, 0.5), lambda sim=sim: None if sim.up else sim.start())  # type: ignore[misc]
        cluster.run(1.0)
        run.require_refused(*(outside := [sim for sim in left if sim.outside]))
        writers.paused = False
        for sim in lost:
            if rng.random() < 0.5:  # with what it has, and not together with others
                sim.outside, sim.left = True, False
                if not sim.up:
                    sim.start()
                run.require_refused(sim)
        for sim in [*lost, *outside]:
            sim.outside = False
            sim.lose_disk()
            sim.join()
        again = _Faults(cluster, rng)
        cluster.run(rng.uniform(0.5, 2.0))
        again.end()
        writers.over = True
        cluster.run(_ANSWERED_S)
        cluster.require_settled(_CONVERGE_S)
        run.require_kept(ends, plan)
        run.require_one_cluster(plan)
        run.require_held()
        run.judge_puts(plan, acknowledged, writers.acknowledged)
        return run


def _recovered(run: Recovering, left: list[SimNode], lost: list[SimNode]) -> tuple[Plan, dict[GroupId, _End]]:
    """On each node that is left, with the reports of the others: all make one plan."""
    ends, reports = run.ends(left), run.reports(left)
    plans = [run.carry_out(sim, reports, [one.name for one in lost]) for sim in left]
    if any(plan != plans[0] for plan in plans):
        raise Violation("all make one plan", f"{plans}")
    return plans[0], ends


def _rivals(run: Recovering, left: list[SimNode], cluster: Cluster) -> tuple[Plan, dict[GroupId, _End]]:
    """Two operators, each of whom takes all nodes but one for lost. The recovery that will remain, by the ids."""
    plans = [(run.carry_out(sim, [], [name for name in cluster.nodes if name != sim.name]), sim) for sim in left]
    (plan, sim), (_, other) = sorted(plans, key=lambda each: ClusterName.parse(each[0].cluster), reverse=True)
    other.outside = True
    return plan, run.ends([sim])


def _found(cluster: Cluster) -> dict[tuple[str, str], bytes]:
    """All records, as a client reads them."""
    client = cluster.client()

    async def look() -> dict[tuple[str, str], bytes]:
        m = await client.open()
        return {(space, one.key): one.value for space in _SPACES async for one in m.kv.scan(space)}

    found: dict[tuple[str, str], bytes] = cluster.do(client, look())
    return found


@scenario
def groups_are_recovered_without_their_majority() -> None:
    """Something was lost with the others, and what was left goes on."""
    runs = [play_recovery(seed) for seed in (6, 5)]
    assert all(run.taken and run.acknowledged for run in runs)
    assert any(run.lost for run in runs)


def slots_decided() -> str:
    """What was said of slots by recoveries of two seeds that lose nodes while slots move."""
    return "; ".join(text for seed in (7, 23) for text in play_recovery(seed).decided)


@scenario
def slots_that_moved_are_held_by_one_group() -> None:
    """However a recovery finds slots that were on their way. What these seeds meet hangs on the order of all that the
    nodes do, which a planted bug may change: test_nodes.py looks at that."""
    slots_decided()


@scenario
def of_two_recoveries_one_remains() -> None:
    """Two operators recover two nodes, each without the other."""
    assert play_recovery(1, rivals=True).taken
