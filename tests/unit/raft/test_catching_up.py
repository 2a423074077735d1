"""A follower that is far behind in many groups is brought up to date in pieces: others wait behind what it is sent."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from metad.errors import StorageError
from metad.raft.base import ROOM, Timing
from metad.raft.log.journal import RaftLog
from metad.raft.messages import AppendReply, Configuration
from metad.raft.replicas import Replicas
from metad.raft.roles.leader import _APPEND_BYTES_LEAST, APPEND_BYTES_MAX
from metad.raft.roles.leadership import IN_FLIGHT_BYTES_MAX
from metad.storage.log import LogStore, LogWriter
from metad.storage.memory import MemoryEngine
from metad_wire.cluster import GroupId

GROUPS, ENTRIES, ENTRY = 12, 200, bytes(16 * 1024)


class Syncer:
    """Durable as soon as somebody asks."""

    def __init__(self) -> None:
        self.orders: list[Callable[[StorageError | None], None]] = []

    def sync(self, done: Callable[[StorageError | None], None]) -> None:
        self.orders.append(done)

    def close(self) -> None:
        pass


class Told:
    """A node that applies what is committed, and does nothing else."""

    def committed(self, group: Any) -> None:
        group.applied_to(group.applicable)

    def role_changed(self, group: Any) -> None: ...

    def configured(self, group: Any) -> None: ...

    def snapshot_wanted(self, group: Any, peer: str) -> None:
        raise AssertionError("the log has everything")

    def install_snapshot(self, group: Any, message: Any) -> None: ...

    def unsafe(self, error: Exception) -> None:
        raise error

    def drained(self) -> list[str]:
        return []


class Node:
    def __init__(self, world: World, name: str, seed: int) -> None:
        self.name, self.world = name, world
        self.syncer = Syncer()
        store = LogStore(MemoryEngine())
        writer = LogWriter(store, self.syncer, failed=lambda error: None)
        told: Any = Told()
        self.replicas = Replicas(
            name,
            writer,
            told,
            clock=lambda: world.now,
            calendar=lambda: world.now,
            schedule=lambda: None,
            transmit=lambda peer, payload: world.sent.append((name, peer, payload)),
            crowded=lambda: False,
            shortage=lambda: ROOM,
            timing=Timing() if name == "a" else Timing(election_s=1_000.0),  # the others never campaign
            rng=random.Random(seed),
        )
        members = Configuration(("a", "b", "c"))
        self.groups = [
            self.replicas.open(
                RaftLog(GroupId("data", ordinal), store, writer, initial=members, cache_bytes=1 << 20), applied=0
            )
            for ordinal in range(GROUPS)
        ]

    def turn(self) -> None:
        self.replicas.turn(self.world.now)
        orders, self.syncer.orders = self.syncer.orders, []
        for done in orders:
            done(None)


class World:
    def __init__(self) -> None:
        self.now = 0.0
        self.sent: list[tuple[str, str, bytes]] = []
        self.nodes = {name: Node(self, name, seed) for seed, name in enumerate("abc")}

    def connect(self, *names: str) -> None:
        for name in names:
            for other in names:
                if name != other:
                    self.nodes[name].replicas.peer_connected(other)

    def step(self, *names: str) -> None:
        self.now += 0.02
        for name in names:
            self.nodes[name].turn()
        sent, self.sent = self.sent, []
        for source, target, payload in sent:
            if target in names:
                self.nodes[target].replicas.receive(source, payload)


def test_what_is_under_way_to_a_peer_is_bounded_over_all_groups() -> None:
    """Guards slow links and the loops at both ends: each group had 8 MiB on its way at once."""
    world = World()
    world.connect("a", "b")
    groups = world.nodes["a"].groups
    while not all(group.ready for group in groups):
        world.step("a", "b")
    for _ in range(ENTRIES):
        for group in groups:
            group.propose(ENTRY)
        world.step("a", "b")
    for _ in range(20):
        world.step("a", "b")
    world.connect("a", "c")
    under_way: list[int] = []
    behind = world.nodes["c"].groups
    for _ in range(400):
        world.step("a", "b", "c")
        under_way.append(sum(group.peers["c"].in_flight_bytes for group in groups))
        assert world.nodes["a"].replicas.traffic("c").bytes == under_way[-1]
        if all(ours.log.last_index == theirs.log.last_index for ours, theirs in zip(groups, behind, strict=True)):
            break
    else:
        raise AssertionError("it never catches up")
    assert GROUPS * ENTRIES * len(ENTRY) > 5 * IN_FLIGHT_BYTES_MAX
    assert (
        IN_FLIGHT_BYTES_MAX // 2
        < max(under_way)
        <= IN_FLIGHT_BYTES_MAX + APPEND_BYTES_MAX + GROUPS * (_APPEND_BYTES_LEAST + len(ENTRY))
    )


def test_what_was_under_way_to_a_peer_is_not_when_a_group_is_closed_or_led_by_another() -> None:
    world = World()
    world.connect("a", "b")
    groups, replicas = world.nodes["a"].groups, world.nodes["a"].replicas
    while not all(group.ready for group in groups):
        world.step("a", "b")
    for group in groups:
        group.propose(ENTRY)
    world.nodes["a"].turn()
    assert replicas.traffic("b").bytes >= GROUPS * len(ENTRY)
    replicas.close(groups[0])
    groups[1].receive("b", AppendReply(groups[1].term + 1, 0, 0, 0))
    for group in groups[2:]:
        replicas.close(group)
    assert not groups[1].is_leader
    assert replicas.traffic("b").bytes == 0
