"""What must hold of whole nodes, played out by hand: each of these objects to a bug that :mod:`...mutants.nodes`
plants. Seeds would find most of them as well, but not every time. :mod:`.watches` has those of watches."""

from __future__ import annotations

import asyncio
import contextlib
import random
from typing import Any

from metad.config import CommitConfig, DedupeConfig, RaftConfig, StorageConfig
from metad_client import (
    Client,
    ConflictError,
    KvKey,
    KvPutItem,
    MetadError,
    NotFoundError,
    NotLeaderError,
    Options,
    PutResult,
)
from metad_wire import messages as m
from metad_wire.cluster import METADATA, unpack_slots
from metad_wire.methods import KV_GET, KV_PUT, encode

from ..cluster import DATA, SimClient, SimNode
from ..host import Pace
from ..workload import Caller
from .scene import Scene, scenario

_DEADLINE_S = 5.0


# --- exactly once ----------------------------------------------------------------------------------------


@scenario
def retry_happens_once() -> None:
    """The answer to a write is lost with its connection."""
    with Scene() as scene:
        leader = scene.lead().name
        scene.network.cut(leader, scene.one.name)
        task = scene.begin(scene.one, lambda c: c.kv.put("space", "a", b"1"))
        scene.run(0.1)
        scene.network.reset(leader, scene.one.name)
        scene.network.heal()
        assert scene.run_until(task.done, _DEADLINE_S)
        assert task.result() == 1
        assert scene.get(scene.two, "a") == (b"1", 1)


@scenario
def retry_at_the_next_leader_happens_once() -> None:
    """The leader is killed between the write and its answer."""
    with Scene() as scene:
        leader = scene.lead()
        scene.network.cut(leader.name, scene.one.name)
        task = scene.begin(scene.one, lambda c: c.kv.put("space", "a", b"1"))
        scene.run(0.1)
        leader.crash(power=False)
        scene.network.heal()
        assert scene.run_until(task.done, _DEADLINE_S)
        assert task.result() == 1
        assert scene.get(scene.two, "a") == (b"1", 1)


@scenario
def bad_items_fail_alone() -> None:
    """Some items of a batch are wrong by themselves. The leader is killed between the write and its answer: the next
    one refuses the same items, and does nothing twice."""
    with Scene(data=2) as scene:
        wrong: Any = None
        items = [KvPutItem(f"n{number}", "k", b"1") for number in range(12)]
        bad = [1, 4, 5]
        items[1] = KvPutItem("x" * 5_000, "k", b"")
        items[4] = KvPutItem("n", "k", wrong)
        items[5] = KvPutItem("n5", "x" * 5_000, b"")

        def check(result: PutResult, bad: list[int], version: int) -> None:
            assert sorted(result.errors) == bad, f"not the items that are bad: {result.errors}"
            assert {error.name for error in result.errors.values()} == {"invalid_item"}
            assert result.versions == [0 if position in bad else version for position in range(12)]

        check(scene.ask(scene.one, lambda c: c.kv.put_many(items)), bad, 1)
        leader = scene.lead()
        scene.network.cut(leader.name, scene.one.name)
        task = scene.begin(scene.one, lambda c: c.kv.put_many(items))
        scene.run(0.1)
        leader.crash(power=False)
        scene.network.heal()
        assert scene.run_until(task.done, _DEADLINE_S)
        check(task.result(), bad, 2)
        keys = [KvKey(item.namespace, item.key) for item in items]
        found = scene.ask(scene.two, lambda c: c.kv.get_many(keys))
        assert sorted(found.errors) == [1, 5]
        assert [record and record.version for record in found] == [None if at in bad else 2 for at in range(12)]
        items[11] = KvPutItem("\udfff", "k", b"")  # which the client finds before it sends anything
        check(scene.ask(scene.one, lambda c: c.kv.put_many(items)), [*bad, 11], 3)


def _retry(scene: Scene, at: SimNode, first_s: float) -> Any:
    """Write number 1 of client 7, again."""
    age_ms = int(1000 * (scene.loop.now - first_s)) + 1
    return scene.at(at, KV_PUT, m.KvPut([_item("a", b"1")]), m.Identity(7, 1, 1, age_ms))


@scenario
def retry_at_a_leader_that_got_a_snapshot_happens_once() -> None:
    """It knows the write from the snapshot only."""
    small = StorageConfig(engine="memory", log_retained_bytes=500)
    with Scene(storage=small, raft=_raft(log_cache_bytes=1)) as scene:
        leader = scene.lead()
        late = next(name for name in scene.nodes if name != leader.name)
        scene.isolate(late)
        first_s = scene.loop.now
        assert scene.at(leader, KV_PUT, m.KvPut([_item("a", b"1")]), m.Identity(7, 1, 1)).versions == [1]
        scene.catch_up_by_snapshot()
        scene.transfer(late)
        assert _retry(scene, scene.nodes[late], first_s).versions == [1]
        assert scene.get(scene.two, "a") == (b"1", 1)


@scenario
def next_leader_knows_how_far_back_it_remembers() -> None:
    """A write is forgotten, for its client has many in the window. Neither the leader that forgot it does its retry,
    nor the next."""
    with Scene(dedupe=DedupeConfig(identities_max=20)) as scene:
        leader = scene.lead()
        first_s = scene.loop.now
        for number in range(1, 41):
            item = _item("a" if number == 1 else f"k{number}", b"1")
            scene.at(leader, KV_PUT, m.KvPut([item]), m.Identity(7, number, 1))
        other = next(name for name in scene.nodes if name != leader.name)
        for name in (leader.name, other):
            scene.transfer(name)
            try:
                _retry(scene, scene.nodes[name], first_s)
            except MetadError:
                continue
            finally:
                assert scene.get(scene.two, "a") == (b"1", 1), f"{name} has done it again"


@scenario
def log_is_cut_behind_what_is_flushed() -> None:
    """The state is flushed, which takes long; meanwhile more is applied, and then the power fails."""
    small = StorageConfig(engine="memory", log_retained_bytes=500)
    with Scene(nodes=1, storage=small, raft=_raft(log_cache_bytes=1), pace=Pace(beside=(0.4, 0.5))) as scene:
        (sim,) = scene.nodes.values()
        for number in range(60):
            scene.put(scene.one, f"k{number}", b"." * 100)
        assert sim.node is not None
        log = sim.node.drivers[DATA].group.log
        before = log.base_index
        for number in range(1_000):
            scene.put(scene.one, "a", b"%d" % number)
            if log.base_index > before:
                break
        else:
            raise AssertionError("the log was not cut")
        sim.crash(power=True)
        sim.start()
        assert scene.get(scene.two, "a") == (b"%d" % number, number + 1)


@scenario
def log_is_cut_behind_what_a_calm_node_flushed() -> None:
    """A calm node flushes its state and its log, of which it keeps all entries; meanwhile more is applied. Later the
    log is cut without a flush, and then the power fails."""
    large, mib = b"." * 500_000, 1024 * 1024
    storage = StorageConfig(engine="memory", log_retained_bytes=9 * mib)
    with Scene(nodes=1, storage=storage, raft=_raft(log_cache_bytes=1), pace=Pace(beside=(0.4, 0.5))) as scene:
        (sim,) = scene.nodes.values()
        assert sim.node is not None
        log, checkpoints = sim.node.drivers[DATA].group.log, sim.node.checkpoints
        for number in range(10):
            scene.put(scene.one, f"k{number}", large)
        assert scene.run_until(lambda: checkpoints.flushing, 10 * _DEADLINE_S), "a calm node flushes"
        puts = 0
        while checkpoints.flushing:
            puts += 1
            scene.put(scene.one, "a", b"%d" % puts)
        assert puts > 0
        assert sim.disks.log.flushes == 1, "its log, too"
        assert log.base_index == 0, "it keeps its entries"
        for number in range(10):
            assert not checkpoints.flushing
            if log.base_index:
                break
            scene.put(scene.one, f"k{number}", large)
        else:
            raise AssertionError("the log was not cut")
        sim.crash(power=True)
        sim.start()
        assert scene.get(scene.two, "a") == (b"%d" % puts, puts)


@scenario
def calm_node_flushes_its_log_behind_a_checkpoint() -> None:
    """Just before the node is calm its log has grown so much that the state was flushed: little of that is left to do,
    but all of the log is in memory."""
    storage = StorageConfig(engine="memory", log_retained_bytes=9 * 1024 * 1024)
    with Scene(nodes=1, storage=storage, raft=_raft(log_cache_bytes=1)) as scene:
        (sim,) = scene.nodes.values()
        assert sim.node is not None
        log = sim.node.drivers[DATA].group.log
        for number in range(30):
            scene.put(scene.one, f"k{number}", b"." * 500_000)
            if log.base_index:
                break
        else:
            raise AssertionError("the log was not cut")
        assert sim.disks.log.flushes == 0
        assert scene.run_until(lambda: sim.disks.log.flushes == 1, 10 * _DEADLINE_S), "a calm node flushes its log"


@scenario
def write_waits_for_the_quorum() -> None:
    """A leader alone answers nothing, and what it could not answer the others do not have."""
    with Scene() as scene:
        leader = scene.lead().name
        scene.isolate(leader, scene.one)
        task = scene.begin(scene.one, lambda c: c.kv.put("space", "a", b"1", deadline_s=0.2))
        assert scene.run_until(task.done, 1.0)
        assert isinstance(task.exception(), MetadError), "a minority has answered a write"


@scenario
def answered_writes_survive_the_power() -> None:
    """On one node, with a disk that takes its time."""
    with Scene(nodes=1, pace=Pace(fsync=(0.05, 0.1))) as scene:
        assert scene.put(scene.one, "a", b"1") == 1
        (node,) = scene.nodes.values()
        node.crash(power=True)
        node.start()
        assert scene.get(scene.two, "a") == (b"1", 1)


@scenario
def who_knows_no_such_group_does_not_speak_for_it() -> None:
    """A node that has just started has an old map. To a client, "stale" says that the group itself had not done it."""
    with Scene() as scene:
        node = scene.lead().node
        assert node is not None
        answers: list[bytes | MetadError] = []
        request = m.Request(1_000, m.Identity(1, 1, 1), m.KvPut([_item("a", b"1")]), "data-7")
        node.requests.submit(KV_PUT.code, encode(request), answers.append)
        assert len(answers) == 1
        assert isinstance(answers[0], NotLeaderError), answers


# --- what a leader remembers -----------------------------------------------------------------------------


@scenario
def what_was_lost_is_not_believed() -> None:
    """A leader evaluates writes that never happen, and leads again later."""
    with Scene(commit=CommitConfig(entry_items_max=1), data=1) as scene:
        leader = scene.lead().name
        other = next(name for name in scene.nodes if name != leader)
        scene.isolate(leader, scene.one)
        keys = [f"x{number}" for number in range(6)] + ["a"]
        lost = [
            scene.begin(scene.one, lambda c, key=key: c.kv.put_many([_item(key, b"lost")], deadline_s=0.15))  # type: ignore[misc]
            for key in keys
        ]
        scene.run(0.2)
        assert all(task.done() for task in lost)
        assert scene.run_until(lambda: scene.leader() not in (None, scene.nodes[leader]), 5.0)
        scene.network.heal()
        scene.transfer(other)
        scene.transfer(leader)
        assert scene.put(scene.two, "a", b"1", expected_version=0) == 1
        assert scene.get(scene.two, "a") == (b"1", 1)


def _item(key: str, value: bytes) -> Any:
    return KvPutItem("space", key, value)


@scenario
def what_others_wrote_is_known() -> None:
    """A leader remembers a row, and the owner of a session, that others write while it does not lead."""
    with Scene() as scene:
        first = scene.lead().name
        other = next(name for name in scene.nodes if name != first)
        assert scene.put(scene.one, "a", b"1") == 1
        scene.ask(scene.one, lambda c: c.sessions.takeover("first", 1, "acme", "device"))
        scene.transfer(other)
        assert scene.put(scene.one, "a", b"2") == 2
        scene.ask(scene.one, lambda c: c.sessions.takeover("second", 1, "acme", "device"))
        scene.transfer(first)
        assert scene.put(scene.one, "a", b"3") == 3
        taken = scene.ask(scene.one, lambda c: c.sessions.takeover("third", 1, "acme", "device"))
        assert taken.previous.broker == "second", taken


@scenario
def snapshot_replaces_what_memory_knew() -> None:
    """A node that has led and knows who owns a session gets a snapshot in which somebody else does."""
    small = StorageConfig(engine="memory", log_retained_bytes=500)
    with Scene(storage=small, raft=_raft(log_cache_bytes=1)) as scene:
        late = scene.lead().name
        scene.ask(scene.one, lambda c: c.sessions.takeover("first", 1, "acme", "device"))
        scene.run(0.5)
        scene.isolate(late)
        scene.ask(scene.one, lambda c: c.sessions.takeover("second", 1, "acme", "device"))
        scene.catch_up_by_snapshot()
        scene.transfer(late)
        taken = scene.ask(scene.one, lambda c: c.sessions.takeover("third", 1, "acme", "device"))
        assert taken.previous.broker == "second", taken


@scenario
def others_go_on_while_a_snapshot_is_installed() -> None:
    """That takes seconds; meanwhile a group has entries to apply that may not be, and the others have some as well."""
    with Scene(nodes=1) as scene:
        (sim,) = scene.nodes.values()
        assert sim.node is not None
        driver = sim.node.drivers[DATA]
        driver.installing = True
        waits = scene.begin(scene.one, lambda c: c.kv.put("space", "a", b"1"))
        scene.run(0.1)
        before = scene.loop.callbacks
        scene.ask(scene.two, lambda c: c.offsets.commit("acme", "group", "topic", 0, 1, deadline_s=0.5))
        scene.run(0.1)
        assert not waits.done()
        assert scene.loop.callbacks - before < 1_000, "it spins"
        driver.installing = False
        sim.node.replicas.committed(driver.group)
        assert scene.run_until(waits.done, 1.0)


def _raft(**changes: Any) -> RaftConfig:
    return RaftConfig(**{"election_timeout_ms": 300, "heartbeat_ms": 50, "sleep_after_ms": 500, **changes})


# --- time ------------------------------------------------------------------------------------------------


@scenario
def time_of_a_log_believes_no_calendar() -> None:
    """Calendars are set while their nodes lead, and while others do. The judge of what was written compares the times
    of the entries with the time that has really passed."""
    with Scene() as scene:
        assert scene.put(scene.one, "a", b"0") == 1
        for number, step_ms in enumerate((3_600_000, -7_200_000, 60_000)):
            leader = scene.lead()
            other = next(name for name in scene.nodes if name != leader.name)
            for sim, step in ((leader, step_ms), (scene.nodes[other], -step_ms)):
                assert sim.environment is not None
                sim.environment.stepped_ms += step
            assert scene.put(scene.one, "a", b"1") == 2 * number + 2
            scene.run(1.0)
            scene.transfer(other)
            assert scene.put(scene.one, "a", b"2") == 2 * number + 3
        scene.require_settled(20.0)


@scenario
def time_of_a_log_believes_no_lost_entry() -> None:
    """The first entry of a log has the time of its leader's calendar, ten hours ahead, and nobody else gets it."""
    with Scene() as scene:
        first = scene.lead()
        assert first.environment is not None
        first.environment.stepped_ms += 36_000_000
        scene.isolate(first.name, scene.one)
        lost = scene.begin(scene.one, lambda client: client.kv.put("space", "a", b"0", deadline_s=30.0))
        assert scene.run_until(lambda: scene.leader(DATA) not in (None, first), 10.0)
        scene.put(scene.two, "b", b"1")
        scene.network.heal()
        assert scene.run_until(lost.done, 30.0)
        lost.result()
        scene.require_settled(20.0)
        scene.transfer(first.name)
        scene.put(scene.two, "b", b"2")


@scenario
def time_of_a_log_survives_a_restart() -> None:
    """All nodes start anew while calendars are an hour behind what they were: the time of the log is in the state."""
    small = StorageConfig(engine="memory", log_retained_bytes=500)
    with Scene(storage=small, raft=_raft(log_cache_bytes=1)) as scene:
        for number in range(40):
            scene.put(scene.one, f"k{number}", b"." * 100)
        scene.run(2.0)
        for sim in scene.nodes.values():
            sim.crash(power=False)
        for sim in scene.nodes.values():
            sim.start()
        scene.run(0.1)
        for sim in scene.nodes.values():
            assert sim.environment is not None
            sim.environment.stepped_ms -= 3_600_000
        assert scene.put(scene.one, "a", b"1") == 1
        scene.require_settled(20.0)


# --- reads -----------------------------------------------------------------------------------------------


@scenario
def cut_off_leader_does_not_answer_reads() -> None:
    """It still believes that it leads, and the next leader has taken a write."""
    met = 0
    for seed in range(1, 4):
        with Scene(seed, raft=_raft(step_down_ms=600)) as scene:
            assert scene.put(scene.one, "a", b"1") == 1
            old = scene.lead()
            scene.isolate(old.name)
            assert scene.run_until(lambda old=old, scene=scene: scene.leader() not in (None, old), 5.0)  # type: ignore[misc]
            new = scene.lead()
            assert scene.at(new, KV_PUT, m.KvPut([_item("a", b"2")])).versions == [2]
            assert old.node is not None
            if not old.node.drivers[DATA].group.is_leader:
                continue
            met += 1
            try:
                found = scene.at(old, KV_GET, KV_GET.body([m.KvKey("space", "a")])).found
            except MetadError:
                continue
            assert found[0].version == 2, f"seed {seed}: an old leader reads {found}"
    assert met, "no old leader was one long enough"


# --- slots that move -------------------------------------------------------------------------------------


def _moving(seed: int, *, chaos: bool = False) -> None:
    """Callers write all the time while slots move."""
    with Scene(seed, data=1, clients=3) as scene:
        for number, host in enumerate((scene.one, scene.two)):

            def callers(client: Client, number: int = number) -> list[Caller]:
                made = []
                for at in range(2):
                    rng = random.Random(f"{seed}/{number}/{at}")
                    caller = Caller(scene, scene.history, client, f"c{number}.{at}", rng)
                    caller.think_s, caller.deadline_s, caller.keys = 0.004, _DEADLINE_S, 4
                    made.append(caller)
                return made

            host.run(callers)
        admin = scene.client(Options(deadline_s=_DEADLINE_S))
        scene.run(0.3)
        for kind in ("data", "offset"):
            scene.ask(admin, lambda c, kind=kind: c.cluster.add_group(kind))  # type: ignore[misc]
        scene.run(0.5)
        try:
            scene.ask(admin, lambda c: c.cluster.rebalance())
        except ConflictError:
            scene.run(0.5)
            scene.ask(admin, lambda c: c.cluster.rebalance())
        for _ in range(4):
            scene.run(0.4)
            if chaos:
                scene.lead().crash(power=False)
                scene.run(0.3)
                for node in scene.nodes.values():
                    if not node.up:
                        node.start()
        scene.quiet = True
        scene.run(_DEADLINE_S + 0.5)
        scene.require_answers()
        scene.require_settled(20.0)
        last = Caller(scene, scene.history, _opened(admin), "last", random.Random(seed))
        last.deadline_s = 10.0
        scene.do(admin, last.look_at_everything())
        scene.history.check()
        leader = scene.lead(METADATA).node
        assert leader is not None
        assert leader.map is not None
        assert set(unpack_slots(leader.map.slots["data"])) == {0, 1}, "nothing has moved"


def _opened(client: SimClient) -> Client:
    assert client.client is not None
    return client.client


@scenario
def slots_move_while_clients_write() -> None:
    """Nothing that was acknowledged before, during or after a move is lost, and nothing happens twice."""
    _moving(1)


@scenario
def slots_move_while_leaders_die() -> None:
    """The same, and the mover is killed again and again."""
    _moving(2, chaos=True)


# --- nodes that leave ------------------------------------------------------------------------------------


@scenario
def healthy_replica_stays_while_its_replacement_is_down() -> None:
    """A node leaves, its replacement dies, and then one of those that stay dies too."""
    with Scene(spares=1) as scene:
        scene.nodes["n4"].start()
        scene.require_settled(10.0)
        leaver = scene.lead().name
        first, second = (name for name in ("n1", "n2", "n3") if name != leaver)
        assert scene.put(scene.one, "a", b"1") == 1
        scene.nodes["n4"].crash()
        # It is held to be reachable still, so it is who gets the replicas.
        scene.ask(scene.two, lambda c: c.cluster.leave(leaver))
        scene.run(30.0)
        assert _copies(scene) >= {leaver, first, second}
        scene.nodes[first].crash()
        assert scene.put(scene.one, "a", b"2") == 2, "two of three copies are a quorum"
        scene.nodes[first].start()
        scene.nodes["n4"].start()
        scene.require_settled(30.0)
        assert _copies(scene) == {first, second, "n4"}


@scenario
def who_was_away_hears_of_a_leader_that_joined_meanwhile() -> None:
    """A node comes back with a map that does not name the leader of metadata-0, from whom it is to get a newer one: the
    leader reaches it, and its answers have to reach the leader."""
    with Scene(spares=1) as scene:
        scene.require_settled(10.0)
        away = next(name for name in ("n1", "n2", "n3") if name != scene.lead(METADATA).name)
        scene.nodes[away].crash()
        scene.nodes["n4"].start()

        def votes() -> bool:
            leader = scene.leader(METADATA)
            node = None if leader is None else leader.node
            return node is not None and "n4" in node.drivers[METADATA].group.configuration.voters

        assert scene.run_until(votes, 20.0)
        scene.transfer("n4", METADATA)
        scene.nodes[away].start()
        scene.require_settled(20.0)


@scenario
def two_leave_at_once() -> None:
    """One of the two leads. Every group keeps as many copies as it should have, all the way."""
    with Scene(spares=2) as scene:
        for name in ("n4", "n5"):
            scene.nodes[name].start()
        scene.require_settled(10.0)
        leaver = scene.lead().name
        other = next(name for name in ("n1", "n2", "n3") if name != leaver)
        for name in (leaver, other):
            scene.ask(scene.two, lambda c, name=name: c.cluster.leave(name))  # type: ignore[misc]
        fewest = 3

        def gone() -> bool:
            nonlocal fewest
            fewest = min(fewest, len(_copies(scene)))
            return not {leaver, other} & _copies(scene)

        assert scene.run_until(gone, 20.0)
        assert fewest == 3
        scene.require_settled(20.0)
        assert scene.put(scene.one, "a", b"1") == 1


@scenario
def one_that_is_gone_leaves() -> None:
    """A node is lost for good, and leaves: its replicas are replaced, and it is forgotten."""
    with Scene(spares=1) as scene:
        scene.nodes["n4"].start()
        scene.require_settled(10.0)
        lost = next(name for name in ("n1", "n2", "n3") if name != scene.lead(METADATA).name)
        scene.nodes[lost].crash()

        def forgotten() -> bool:
            try:
                scene.ask(scene.two, lambda c: c.cluster.leave(lost))
            except ConflictError:  # it may still be needed
                return False
            except NotFoundError:
                return True
            return False

        assert scene.run_until(forgotten, 30.0)
        assert lost not in _copies(scene)
        assert len(_copies(scene)) == 3
        assert scene.put(scene.one, "a", b"1") == 1


@scenario
def who_has_left_ends() -> None:
    """One node hears that it leaves. The other is away meanwhile, comes back as if nothing had happened, and is told by
    the others, who do not dial it any more."""
    with Scene(spares=2) as scene:
        for name in ("n4", "n5"):
            scene.nodes[name].start()
        scene.require_settled(10.0)
        here, away = (name for name in ("n1", "n2", "n3") if name != scene.lead(METADATA).name)
        scene.nodes[away].crash()
        for name in (here, away):
            scene.ask(scene.two, lambda c, name=name: c.cluster.leave(name))  # type: ignore[misc]
        assert scene.run_until(lambda: not scene.nodes[here].up, 30.0), "it leaves, and lives on"
        assert scene.run_until(lambda: {here, away}.isdisjoint(_members(scene)), 30.0)
        scene.nodes[away].start()
        assert scene.run_until(lambda: not scene.nodes[away].up, 10.0), "it has left, and does not hear of it"
        assert scene.nodes[here].left
        assert scene.nodes[away].left
        scene.require_settled(10.0)
        assert scene.put(scene.one, "a", b"1") == 1


@scenario
def who_is_let_go_before_it_has_a_map_is_not_taken_in_anew() -> None:
    """It asks until it has the map. When it asks again it has left."""
    with Scene(spares=1) as scene:
        new, others = scene.nodes["n4"], ["n1", "n2", "n3"]
        new.start()
        assert scene.run_until(lambda: new.node is not None, 10.0)
        assert new.node is not None
        departure = new.node.controller.departure
        assert scene.run_until(lambda: departure.member_at > 0, 10.0)
        assert new.node.map is None, "the answer is there before the map"
        scene.network.partition(others, ["n4"])

        def forgotten() -> bool:
            with contextlib.suppress(ConflictError):
                scene.ask(scene.two, lambda c: c.cluster.leave("n4"))
            return "n4" not in _members(scene)

        assert scene.run_until(forgotten, 30.0)
        scene.network.heal()
        assert scene.run_until(lambda: not new.up, 10.0), "it has left, and does not hear of it"
        assert new.left
        assert "n4" not in _members(scene)


@scenario
def groups_that_have_too_few_replicas_are_repaired() -> None:
    """A cluster of one grows to three. Then one of three is lost for good and leaves, and another takes its place. The
    cluster adds the replicas by itself, a few groups at a time, and moves nothing else."""
    with Scene(nodes=1, spares=4, data=4, offset=2) as scene:
        assert scene.put(scene.one, "a", b"1") == 1
        before = scene.map
        for name in ("n2", "n3"):
            scene.nodes[name].start()
        assert scene.run_until(lambda: len(scene.map.nodes) == 3, 20.0)
        assert scene.run_until(lambda: _on(scene) == {("n1", "n2", "n3")}, 30.0), _on(scene)
        scene.require_settled(20.0)
        assert (before.slots, before.moves) == (scene.map.slots, scene.map.moves)
        lost = next(name for name in ("n1", "n2", "n3") if name != scene.lead(METADATA).name)
        scene.nodes[lost].crash()
        scene.run(11.0)
        scene.ask(scene.two, lambda c: c.cluster.leave(lost, lost=True))
        assert scene.run_until(lambda: len(scene.map.nodes) == 2, 20.0)
        scene.nodes["n4"].start()
        scene.require_settled(40.0)
        now = tuple(sorted({"n1", "n2", "n3", "n4"} - {lost}))
        assert _on(scene) == {now}
        assert scene.get(scene.two, "a") == (b"1", 1)
        scene.nodes["n5"].start()
        scene.require_settled(20.0)
        scene.nodes[next(name for name in now if name != scene.lead(METADATA).name)].crash()
        scene.run(15.0)
        assert _on(scene) == {now}, "an operator decides that a node is lost"


def _replaced(victim: str, *, chaos: bool) -> None:
    """Callers write all the time while a node loses its disk, leaves, and joins again under its old name."""
    with Scene(7, data=2, clients=3) as scene:
        for number, host in enumerate((scene.one, scene.two)):
            host.run(lambda client, number=number: _callers(scene, client, number))  # type: ignore[misc]
        admin = scene.client(Options(deadline_s=_DEADLINE_S))
        scene.ask(admin, lambda c: c.cluster.map())
        scene.run(0.5)
        lost = scene.nodes[victim]
        lost.lose_disk()
        others = [node for node in scene.nodes.values() if node is not lost]
        lost.start()  # as it was: it is refused, and founds nothing
        scene.run(3.0)
        lost.crash()
        if chaos:
            others[0].crash()
            scene.run(1.0)
            others[0].start()

        def gone() -> bool:
            """Ask again and again, as ``metadctl replace`` does."""
            try:
                scene.ask(admin, lambda c: c.cluster.leave(victim, lost=True))
            except NotFoundError:
                return True
            except (ConflictError, NotLeaderError):
                scene.run(0.5)
            return False

        assert scene.run_until(gone, 60.0)
        lost.lose_disk()
        lost.join()
        for _ in range(1_500):
            scene.run(0.002)
            _hears_first(lost)
        if chaos:
            for node in others:
                scene.run(0.3)
                node.crash()
                scene.run(1.0)
                node.start()
        scene.run(5.0)
        scene.quiet = True
        scene.run(_DEADLINE_S + 0.5)
        scene.require_answers()
        scene.require_settled(40.0)
        assert _on(scene) == {("n1", "n2", "n3")}
        last = Caller(scene, scene.history, _opened(admin), "last", random.Random(7))
        last.deadline_s = 10.0
        scene.do(admin, last.look_at_everything())
        scene.history.check()


def _hears_first(sim: SimNode) -> None:
    """A replica without an entry knows no voters: it was not there when the group began, whatever its name is."""
    for driver in sim.node.drivers.values() if sim.node is not None else ():
        group = driver.group
        assert group.log.last_index or not group.configuration.voters, f"{sim.name} believes in {group.configuration}"


def _callers(scene: Scene, client: Client, number: int) -> list[Caller]:
    made = []
    for at in range(4):
        caller = Caller(scene, scene.history, client, f"c{number}.{at}", random.Random(f"{number}/{at}"))
        caller.think_s, caller.deadline_s, caller.keys = 0.1, _DEADLINE_S, 4
        made.append(caller)
    return made


@scenario
def lost_disk_is_replaced_under_the_same_name() -> None:
    """One that leads groups, and one that does not."""
    for victim in ("n1", "n2"):
        _replaced(victim, chaos=False)


@scenario
def lost_disk_is_replaced_while_others_die() -> None:
    """The others lose power before and after, one at a time."""
    _replaced("n1", chaos=True)


@scenario
def node_that_others_need_does_not_leave() -> None:
    """A group has its writes on one living node, and one whose disk is lost, for the third is away. Nobody may decide
    that the lost one is not needed before the third is back."""
    with Scene(nodes=5) as scene:
        names = {group.group_id: group.replicas for group in scene.map.groups}[DATA]
        leader = scene.lead().name
        away, victim = (name for name in names if name != leader)
        scene.nodes[away].crash()
        assert scene.put(scene.one, "a", b"1") == 1
        scene.nodes[victim].lose_disk()
        scene.run(12.0)
        for _ in range(5):
            try:
                scene.ask(scene.two, lambda c: c.cluster.leave(victim, lost=True))
                raise AssertionError("it may leave")
            except (ConflictError, NotLeaderError):
                scene.run(1.0)
        assert victim in _members(scene)
        scene.nodes[away].start()
        scene.run(12.0)  # whoever leads now must have missed it for as long
        scene.ask(scene.two, lambda c: c.cluster.leave(victim, lost=True))
        assert scene.run_until(lambda: victim not in _members(scene), 30.0)
        scene.nodes[victim].join()
        scene.require_settled(40.0)
        assert scene.get(scene.two, "a") == (b"1", 1)


@scenario
def any_region_may_die() -> None:
    """Six nodes in three regions: every namespace is written, and the cluster is decided about, without any one."""
    where = {"n1": "eu", "n2": "eu", "n3": "us", "n4": "us", "n5": "ap", "n6": "ap"}
    for region in ("eu", "us", "ap"):
        with Scene(nodes=6, data=4, offset=2, regions=tuple(where.values())) as scene:
            puts = [KvPutItem(f"space-{number}", "k", b"v") for number in range(40)]
            assert scene.ask(scene.one, lambda c, puts=puts: c.kv.put_many(puts)).ok  # type: ignore[misc]
            scene.run(2.0)
            for name in where:
                if where[name] == region:
                    scene.nodes[name].crash()
            written = scene.ask(scene.one, lambda c, puts=puts: c.kv.put_many(puts))  # type: ignore[misc]
            assert not written.errors, f"without {region}, {len(written.errors)} of {len(puts)} are not writable"
            scene.ask(scene.two, lambda c: c.cluster.rebalance())
            for sim in scene.nodes.values():
                if not sim.up:
                    sim.start()
            scene.require_settled(20.0)


@scenario
def a_node_that_ends_hands_over_first() -> None:
    """One node after the other is told to end, as when a version is rolled out, while clients write: none of them waits
    for an election."""
    with Scene(data=3, offset=2) as scene:
        loop, longest_s, writes, over = scene.loop, 0.0, 0, False

        async def write(client: Client, key: str) -> None:
            nonlocal longest_s, writes
            while not over:
                begin_s = loop.time()
                await client.kv.put(f"space-{key}", "k", b"v")
                longest_s, writes = max(longest_s, loop.time() - begin_s), writes + 1
                await asyncio.sleep(0.02)

        async def all_of(client: Client, name: str) -> None:
            await asyncio.gather(*(write(client, f"{name}-{number}") for number in range(3)))

        tasks = [
            scene.begin(scene.one, lambda client: all_of(client, "one")),
            scene.begin(scene.two, lambda client: all_of(client, "two")),
        ]
        for name in ("n1", "n2", "n3"):
            scene.run(0.5)
            sim = scene.nodes[name]
            ended = sim.end()
            assert scene.run_until(ended.done, 5.0), f"{name} does not end"
            assert ended.result(), "not everything was answered"
            scene.run(0.5)
            sim.start()
            assert scene.run_until(scene.serving, 5.0)
            scene.run(2.0)  # the groups that prefer it come back
        over = True
        assert scene.run_until(lambda: all(task.done() for task in tasks), 5.0)
        for task in tasks:
            task.result()
        assert writes > 1_000
        promise_s = scene.settings.raft.promised_ms / 1000  # which an election waits for, even if the death is seen
        assert longest_s < promise_s, f"a write waited {longest_s:.3f} s"
        scene.require_settled(20.0)


def _copies(scene: Scene) -> set[str]:
    """The voters of data-0."""
    leader = scene.lead().node
    assert leader is not None
    return {*leader.drivers[DATA].group.configuration.voters}


def _members(scene: Scene) -> set[str]:
    """The nodes of the map."""
    return {node.node_id for node in scene.map.nodes}


def _on(scene: Scene) -> set[tuple[str, ...]]:
    """The nodes that groups with records should be on."""
    return {tuple(sorted(group.replicas)) for group in scene.map.groups if group.group_id != METADATA}


@scenario
def a_voter_that_starts_again_knows_the_other_by_its_log_alone() -> None:
    """A node was alone, and another one joined and votes; the map that says where that is is in the log, and not in the
    state that survives. Neither can do anything without the other, which only the log can tell of."""
    with Scene(nodes=1, spares=1) as scene:
        scene.put(scene.one, "a", b"1")
        first, second = scene.nodes["n1"], scene.nodes["n2"]
        assert first.node is not None
        assert first.process is not None
        second.start()
        group = first.node.drivers[METADATA].group
        assert scene.run_until(lambda: group.configuration.voters == ("n1", "n2"), 20.0)
        assert scene.run_until(lambda: group.commit == group.log.last_index == group.log.durable_index, 5.0)
        second.crash()
        first.crash(power=False)
        first.start()
        scene.run(1.0)
        second.start()
        scene.require_settled(40.0)
        assert scene.get(scene.two, "a") == (b"1", 1)
