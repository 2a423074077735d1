"""Leases: they end with their keys when their holder is silent, and never because the service was."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

from metad.config import RaftConfig
from metad.state.live.liveness import RESUME_S
from metad_client import Client, HeldLease, LeaseState, MetadError
from metad_wire import messages as m
from metad_wire.cluster import SLOTS, GroupId
from metad_wire.methods import (
    KV_GET,
    KV_PUT,
    LEASE_GET,
    LEASE_GRANT,
    LEASE_KEEP_ALIVE,
    LEASE_REVOKE,
    Method,
)
from metad_wire.tables.lease import (
    LEASE,
    LeaseGrant,
    LeaseGrantItem,
    LeaseKeepAlive,
    LeaseKey,
)

from ..cluster import DATA, SimClient, SimNode
from .scene import Scene, scenario

_TTL_S = 1.0
_ENDED_S = 0.6
"""A silent holder's lease has ended so long after its time, with two looks, an order and its entry."""
_LEASE = LeaseKey("space", "L")
_PATIENT = RaftConfig(election_timeout_ms=3_000, heartbeat_ms=100, sleep_after_ms=10_000)
"""A leader that is away for a second or two stays the leader."""


def _granted(scene: Scene) -> SimNode:
    """A lease with two keys, granted a while after the leader has begun; the group's leader."""
    leader = scene.lead()
    scene.run(1.0)
    item = LeaseGrantItem("space", int(_TTL_S * 1000), "L")
    assert scene.at(leader, LEASE_GRANT, LeaseGrant([item])).leases == ["L"]
    items = [m.KvPutItem("space", name, b"1") for name in ("a", "b")]
    assert scene.at(leader, KV_PUT, m.KvPut(items, "L")).errors == []
    return leader


def _speak(scene: Scene, at: SimNode) -> int:
    """A keep-alive: the answer."""
    (ttl_ms,) = scene.at(at, LEASE_KEEP_ALIVE, LeaseKeepAlive([_LEASE])).ttl_ms
    assert isinstance(ttl_ms, int)
    return ttl_ms


def _there(scene: Scene, at: SimNode) -> tuple[bool, int]:
    """Whether the lease is there, and how many of its keys. What is deleted with it goes with it, so the keys are read
    before and after, and both times must agree with the lease in between."""

    def keys() -> int:
        records = scene.at(at, KV_GET, KV_GET.body([m.KvKey("space", "a"), m.KvKey("space", "b")])).found
        return sum(record is not None for record in records)

    before = keys()
    (lease,) = scene.at(at, LEASE_GET, LEASE_GET.body([_LEASE])).found
    after = keys()
    assert before in (0, 2), "one key of a lease is gone, and the other is not"
    assert after in (0, 2), "one key of a lease is gone, and the other is not"
    assert (lease is not None) <= (before == 2), "keys are gone before their lease"
    assert (lease is None) <= (after == 0), "keys are there behind the end of their lease"
    return lease is not None, after


@scenario
def a_silent_holder_loses_its_lease_and_its_keys() -> None:
    with Scene() as scene:
        leader = _granted(scene)
        granted_s = scene.loop.now
        while scene.loop.now < granted_s + _TTL_S - 0.1:
            assert _there(scene, leader) == (True, 2), "it is over before its time"
            scene.run(0.05)
        scene.run(0.1 + _ENDED_S)
        assert _there(scene, leader) == (False, 0), "its holder is gone, and it lasts"
        assert _speak(scene, leader) == 0, "a lease that is over was kept alive"
        scene.require_settled(20.0)


@scenario
def many_silent_holders_lose_their_leases_soon() -> None:
    """More than one order ends."""
    with Scene() as scene:
        leader = scene.lead()
        scene.run(1.0)
        items = [LeaseGrantItem("space", int(_TTL_S * 1000), f"l{number}") for number in range(900)]
        assert scene.at(leader, LEASE_GRANT, LeaseGrant(items)).errors == []
        scene.run(_TTL_S + _ENDED_S)
        found = scene.at(leader, LEASE_GET, LEASE_GET.body([LeaseKey("space", f"l{number}") for number in range(900)]))
        assert found.found == [None] * 900


@scenario
def a_holder_that_speaks_keeps_its_lease() -> None:
    with Scene() as scene:
        leader = _granted(scene)
        for _ in range(10):
            scene.run(_TTL_S * 0.6)
            assert _speak(scene, leader) == _TTL_S * 1000, "its holder was heard of, and lost it"
        assert _there(scene, leader) == (True, 2)


@scenario
def a_revoked_lease_takes_its_keys_at_once() -> None:
    with Scene() as scene:
        leader = _granted(scene)
        assert scene.at(leader, LEASE_REVOKE, m.Items([_LEASE])).errors == []
        assert _there(scene, leader) == (False, 0)
        assert scene.at(leader, KV_PUT, m.KvPut([m.KvPutItem("space", "a", b"2")])).versions == [1]


@scenario
def a_new_leader_gives_full_leases() -> None:
    """The leader dies just before the lease is over. The holder has not heard of the next one yet."""
    with Scene() as scene:
        leader = _granted(scene)
        scene.run(_TTL_S - 0.1)
        leader.crash(power=False)
        assert scene.run_until(lambda: scene.leader(DATA) not in (None, leader), 5.0)
        successor = scene.lead()
        scene.run(_TTL_S - 0.2)
        assert _speak(scene, successor) == _TTL_S * 1000, "it is over because a leader has died"
        scene.run(RESUME_S + _ENDED_S)
        assert _there(scene, successor) == (False, 0)


@scenario
def a_leader_that_leads_again_gives_full_leases() -> None:
    """It has not heard of a holder that spoke to the leader in between."""
    with Scene() as scene:
        leader = _granted(scene)
        other = next(name for name in scene.nodes if name != leader.name)
        scene.transfer(other)
        for _ in range(4):
            assert _speak(scene, scene.nodes[other]) == _TTL_S * 1000
            scene.run(0.5)
        scene.transfer(leader.name)
        scene.run(_TTL_S - 0.3)
        assert _speak(scene, leader) == _TTL_S * 1000, "it is over because leaders have changed"


@scenario
def a_leader_that_stood_still_gives_full_leases() -> None:
    """Nobody else noticed, and the holder speaks only some time after it goes on."""
    with Scene(raft=_PATIENT) as scene:
        leader = _granted(scene)
        scene.run(0.5)
        leader.pause(1.5)
        scene.run(1.5 + 0.5)
        assert scene.lead() is leader
        assert _speak(scene, leader) == _TTL_S * 1000, "it is over because the leader stood still"


@scenario
def a_leader_that_was_cut_off_gives_full_leases() -> None:
    """Holders speak to it all the time, and it cannot answer, for it cannot know whether it leads."""
    with Scene(raft=_PATIENT) as scene:
        leader = _granted(scene)
        node, process = leader.node, leader.process
        assert node is not None
        assert process is not None
        names = list(scene.nodes)
        for number, name in enumerate(names):
            for other in names[:number]:
                scene.network.cut(name, other)
        cut_s = scene.loop.now
        while True:  # the holder asks again once it is answered
            asked = process.start(node.requests.call(LEASE_KEEP_ALIVE, LeaseKeepAlive([_LEASE]), group="data-0"))
            scene.run(_TTL_S / 2)
            if not asked.done():
                break
            assert asked.result().ttl_ms == [_TTL_S * 1000]
            assert scene.loop.now < cut_s + 4.0, "it answers by itself for ever"
        scene.run(1.5 * _TTL_S)
        assert not asked.done()
        scene.network.heal()
        assert scene.run_until(asked.done, 2.0)
        assert scene.lead() is leader, "the scene is too long"
        assert asked.result().ttl_ms == [_TTL_S * 1000], "it is over because the leader was cut off"
        scene.run(_TTL_S / 2)
        assert _there(scene, leader) == (True, 2), "it is over because the leader was cut off"


@scenario
def a_lease_that_moves_is_a_full_one() -> None:
    """Its slot moves to another group. It was copied early, and its time runs out before the other group has it."""
    with Scene(data=2, raft=_PATIENT) as scene:
        slot = next(iter(LEASE.crcs([_LEASE]))) % SLOTS
        source = next(ordinal for ordinal in (0, 1) if slot in scene.slots_of(ordinal))

        def ask(method: Method[Any, Any], body: Any) -> Any:
            leader = scene.lead(GroupId("data", ordinal))
            assert leader.node is not None
            assert leader.process is not None
            task = leader.process.start(leader.node.requests.call(method, body, group=f"data-{ordinal}"))
            assert scene.run_until(task.done, 5.0)
            return task.result()

        item = LeaseGrantItem("space", int(_TTL_S * 1000), "L")
        ordinal = source
        assert ask(LEASE_GRANT, LeaseGrant([item])).leases == ["L"]
        assert ask(KV_PUT, m.KvPut([m.KvPutItem("space", "a", b"1")], "L")).errors == []
        one, other = sorted(scene.nodes)[:2]
        scene.transfer(one, GroupId("data", source))
        scene.transfer(other, GroupId("data", 1 - source))
        assert ask(LEASE_KEEP_ALIVE, LeaseKeepAlive([_LEASE])).ttl_ms == [_TTL_S * 1000]
        scene.once_sealed(GroupId("data", source), lambda: scene.nodes[one].pause(1.5 * _TTL_S))
        begun_s = scene.loop.now
        scene.move(source, 1 - source)
        assert scene.loop.now > begun_s + _TTL_S, "the move was too quick"
        ordinal = 1 - source
        scene.run(_TTL_S / 2)
        assert ask(LEASE_KEEP_ALIVE, LeaseKeepAlive([_LEASE])).ttl_ms == [_TTL_S * 1000], "it is over by a move"
        scene.run(RESUME_S + _ENDED_S)
        assert ask(KV_GET, KV_GET.body([m.KvKey("space", "a")])).found == [None]
        scene.require_settled(20.0)


@scenario
def a_lock_has_one_holder() -> None:
    """Three programs want one lock all the time, while leaders die, programs stand still, and one is cut off."""
    with Scene() as scene:
        clients = [scene.one, scene.two, scene.client()]
        held: list[str] = []
        tokens: list[int] = []
        working = True

        async def work(client: SimClient) -> None:
            opened = client.client or await client.open()
            while working:
                lease = _held(scene, opened)
                with suppress(MetadError):
                    async with lease:
                        while working and lease.state is not LeaseState.LOST:
                            lock = await lease.lock("lock", client.name.encode(), timeout_s=5.0)
                            async with lock:
                                if not lock.is_held:
                                    continue
                                assert not held, f"{client.name} and {held[0]} have the lock"
                                assert not tokens or lock.token > tokens[-1], "a token went back"
                                held.append(client.name)
                                tokens.append(lock.token)
                                for _ in range(20):
                                    if lock.is_held:
                                        await asyncio.sleep(0.01)
                                held.remove(client.name)

        tasks = [client.process.start(work(client)) for client in clients]
        for number in range(6):
            scene.run(3.0)
            if number % 3 == 0:
                leader = scene.lead()
                leader.crash(power=False)
                scene.run(0.5)
                leader.start()
            elif number % 3 == 1:
                scene.isolate(clients[number % 2].name)
                scene.run(3.0)
                scene.network.heal()
            for task in tasks:
                if task.done():
                    task.result()
        working = False
        assert scene.run_until(lambda: all(task.done() for task in tasks), 30.0), "a program waits for ever"
        for task in tasks:
            task.result()
        assert len(tokens) > 10, f"the lock had only {len(tokens)} holders"


@scenario
def a_holder_that_is_cut_off_gives_up_before_others_take_over() -> None:
    with Scene() as scene:
        first, second = (_opened(scene, client) for client in (scene.one, scene.two))
        lock = scene.ask(scene.one, lambda _: first.lock("lock"))
        assert lock.is_held
        scene.isolate(scene.one.name)
        waiting = scene.begin(scene.two, lambda _: second.lock("lock"))
        while not waiting.done():
            scene.run(0.01)
            assert not (waiting.done() and lock.is_held), "two have the lock"
            assert first.state is not LeaseState.CONNECTED or not waiting.done()
        assert first.state is LeaseState.SUSPENDED
        assert waiting.result().token > lock.token
        scene.network.heal()
        assert scene.run_until(lambda: first.state is LeaseState.LOST, 5.0), "it does not hear of its end"
        assert not lock.is_held
        assert waiting.result().is_held


@scenario
def an_answer_that_comes_late_is_believed_from_its_question_on() -> None:
    """Keep-alives arrive; their answers wait on the way, for half as long as the lease lasts."""
    with Scene() as scene:
        first, second = (_opened(scene, client) for client in (scene.one, scene.two))
        lock = scene.ask(scene.one, lambda _: first.lock("lock"))
        waiting = scene.begin(scene.two, lambda _: second.lock("lock"))
        leader = scene.lead()
        scene.run(_TTL_S * 0.15)
        scene.network.cut(leader.name, scene.one.name)
        assert scene.run_until(lambda: first.state is LeaseState.SUSPENDED, _TTL_S)
        scene.run(_TTL_S * 0.08)
        scene.network.heal()
        assert scene.run_until(lambda: first.state is LeaseState.CONNECTED, _TTL_S)
        scene.isolate(scene.one.name)
        while not waiting.done():
            scene.run(0.01)
            assert not (waiting.done() and lock.is_held), "two have the lock"
        assert first.state is LeaseState.SUSPENDED


def _held(scene: Scene, client: Client) -> HeldLease:
    """A lease by the clock of the simulation."""
    return HeldLease(
        client.leases,
        client.kv,
        lambda key: client.watch("kv", keys=[key], start="snapshot"),
        "space",
        ttl_s=_TTL_S,
        holder="",
        attributes=b"",
        now=scene.loop.time,
    )


def _opened(scene: Scene, client: SimClient) -> HeldLease:
    async def opened(connected: Client) -> HeldLease:
        return await _held(scene, connected).opened()

    held: HeldLease = scene.ask(client, opened)
    return held
