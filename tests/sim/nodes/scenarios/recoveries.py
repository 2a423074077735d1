"""A cluster whose groups lose their majority for ever, and which is recovered from the nodes that are left by the code
of ``metad recover``, while nodes die and lost ones come back with what they have.

What may be lost is judged exactly. The judge finds the newest log of each group by itself. All that this log has goes
on, entry by entry and row by row, and nothing of before is there besides. A group that has kept its majority loses
nothing. Exactly one cluster comes of it: whoever is of before, or of another recovery, ends for good.
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
from metad_wire.cluster import METADATA, ClusterMap, ClusterName, GroupId
from metad_wire.messages import KvPut, KvPutItem
from metad_wire.methods import KV_PUT

from ...naming import group_of
from ..cluster import Cluster, Settings, SimNode
from ..trouble import Trouble
from .scene import scenario

_CONVERGE_S = 60.0
_REFUSED_S = 20.0
_ANSWERED_S = 4.0
"""More than a put may take."""
_SPACES = [f"space-{number}" for number in range(8)]


class _Faults(Trouble):
    """Those of nodes whose groups keep their slots. Slots that move while a majority is lost may be held by two groups
    after the recovery, or wait for a group of which nothing is left: that is not solved, and not played here."""

    def _client(self, number: int) -> None:
        pass

    def _watch(self, rng: random.Random) -> None:
        pass

    def _rebalance(self) -> None:
        pass

    def _regroup(self) -> None:
        pass


class _Writers:
    """Clients that put keys which nobody has put before. They know which puts were acknowledged."""

    def __init__(self, cluster: Cluster, count: int) -> None:
        self._cluster = cluster
        self.acknowledged: dict[tuple[str, str], bytes] = {}
        self.over = self.paused = False
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
            try:
                await client.kv.put(space, key, value, expected_version=0)
            except ConflictError as error:
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
        over: set[GroupId] = set()
        for group, at, moment_s in self._applied:
            entry = before.record(group, at)
            if group.name in taken:
                end = ends[group]
                if at > end.last or end.records.get(at, entry) != entry:
                    over.add(group)  # from here on, another one was written, or none is left
            if group not in over:
                written.apply("before", group, at, entry, moment_s)
        cluster.begin_anew(written)

    def require_kept(self, ends: dict[GroupId, _End], plan: Plan) -> None:
        """Every entry of the newest logs is in the log of the group now."""
        for taken in plan.taken:
            group = next(group for group in ends if group.name == taken.group)
            for index, entry in ends[group].records.items():
                if self._cluster.written.known(group) < index or self._cluster.written.record(group, index) != entry:
                    raise Violation("nothing that is left is lost", f"{taken.group}/{index} of {ends[group].node}")

    def judge_puts(
        self,
        known: ClusterMap,
        plan: Plan,
        before: dict[tuple[str, str], bytes],
        acknowledged: dict[tuple[str, str], bytes],
    ) -> None:
        """Of the puts that were acknowledged ``before`` the nodes were recovered, those may be lost whose groups were
        taken up; of all others none. ``known``: the map of before."""
        found, groups = _found(self._cluster), {one.group for one in plan.taken}
        for (space, key), value in acknowledged.items():
            if (space, key) in found:
                assert found[space, key] == value
            elif (space, key) not in before:
                raise Violation("what the recovered cluster acknowledges stays", f"{space}/{key}")
            elif group_of(known, KV_PUT, KvPut([KvPutItem(space, key, value)])) not in groups:
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


def _losses(known: ClusterMap, names: list[str]) -> Iterator[tuple[str, ...]]:
    """Nodes that are lost together so that each group has a replica left and one has no majority left."""
    voters = [{*record.replicas} for record in known.groups]
    for count in range(2, len(names)):
        for lost in combinations(names, count):
            rest = [group - {*lost} for group in voters]
            if all(rest) and any(len(left) <= len(group) // 2 for left, group in zip(rest, voters, strict=True)):
                yield lost


def _end_for_now(sims: Iterable[SimNode], rng: random.Random) -> None:
    """They do not run, and nothing starts them before the operator does."""
    for sim in sims:
        sim.left = True
        sim.crash(power=rng.random() < 0.5)


def _lose(cluster: Cluster, rng: random.Random, lost: list[SimNode], left: list[SimNode]) -> None:
    """One node after the other goes for ever, under writes. The others go on for a while, without a majority."""
    if rng.random() < 0.7:  # one of those that are left lacks what others have
        behind = rng.choice(left).name
        cluster.network.partition([behind], [name for name in cluster.nodes if name != behind])
        cluster.run(rng.uniform(0.2, 1.0))
    for sim in lost:
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
        known = _known(cluster)
        losses = list(_losses(known, [*cluster.nodes]))
        lost = [cluster.nodes[name] for name in rng.choice([one for one in losses if not rivals or len(one) == 3])]
        left = [sim for sim in cluster.nodes.values() if sim not in lost]
        _lose(cluster, rng, lost, left)
        faults.over = True
        cluster.network.heal()
        _end_for_now(left, rng)
        acknowledged = dict(writers.acknowledged)
        plan, ends = _rivals(run, left, cluster) if rivals else _recovered(run, left, lost)
        run.begin_anew(ends, plan)
        run.taken = len(plan.taken)
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
        run.judge_puts(known, plan, acknowledged, writers.acknowledged)
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
    runs = [play_recovery(seed) for seed in (4, 5)]
    assert all(run.taken and run.acknowledged for run in runs)
    assert any(run.lost for run in runs)


@scenario
def of_two_recoveries_one_remains() -> None:
    """Two operators recover two nodes, each without the other."""
    assert play_recovery(1, rivals=True).taken
