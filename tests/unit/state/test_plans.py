"""What plans move, on the records of a real state: a node that leads its group gives orders, and the test carries them
out. The brokers do nothing; the test says what leaders would."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from state_rig import ChoreNode, Rig, item_errors

from metad.config import DedupeConfig
from metad.node.chores.assignments import Assignments
from metad.state.assignment.records import decode_partition
from metad.storage import keys
from metad_wire import messages as m
from metad_wire import methods
from metad_wire.cluster import METADATA, FenceItem, GroupFence
from metad_wire.families.assignment import PARTITIONS
from metad_wire.messages import Owner
from metad_wire.tables.assignment import AssignmentStep, InSync, MovePartition, Partition, ResourceCreate
from metad_wire.tables.plan import NewPlan, Plan, PlanKey

NUMBER = PARTITIONS.key_of(("", "", "", 0))[:4]


class Driver(SimpleNamespace):
    """Of the group. It is itself only, as the driver of a node is."""

    __hash__ = object.__hash__  # type: ignore[assignment]


class World(ChoreNode):
    """A node that leads ``metadata-0``, with these brokers."""

    def __init__(self, *brokers: str) -> None:
        self.rig = Rig("metadata", dedupe=DedupeConfig())
        super().__init__(self.rig.group)
        self.looks: list[Callable[[], None]] = []
        self.ordered: list[AssignmentStep] = []
        self.before: Callable[[], None] = lambda: None
        """Happens before the next order is carried out."""
        self.dead = set[str]()
        self.live(*brokers)
        self.rig.advance(600_000)  # the leader has led for long: what had its deadline is over
        group = SimpleNamespace(accepting=True, term=1, name="metadata-0", prefix=self.rig.group.prefix)
        driver = Driver(group=group, installing=False, machine=self.rig.group.machine)
        known = SimpleNamespace(groups=[SimpleNamespace(group_id=METADATA, kind=METADATA.kind)])
        groups: Any = SimpleNamespace(drivers={METADATA: driver}, map=known)
        node: Any = self
        self.chore = Assignments(groups, node, node, node, node)
        self.failure = None
        self.chore.start()

    def call_at(self, when_s: float, look: Callable[[], None]) -> Any:
        self.looks.append(look)

    def request(self, method: Any, body: Any, done: Any, *, group: str) -> None:
        before, self.before = self.before, lambda: None
        before()
        self.ordered.append(body)
        done(methods.encode(self.rig.write(method, body)))

    async def ask_group(self, group: Any, method: Any, body: Any) -> Any:
        return self.rig.write(method, body)

    def live(self, *brokers: str, live: bool = True) -> None:
        epoch, quiet = (1, 0) if live else (2, 2)
        fences = [FenceItem(name, epoch, age_ms=0, live=live, quiet_epoch=quiet) for name in brokers]
        self.rig.write(methods.GROUP_FENCE, GroupFence(fences))
        self.dead = {*brokers} if not live else self.dead - {*brokers}

    def create(self, name: str, *replicas: list[str], **fields: Any) -> None:
        number = len(replicas[0])
        item = ResourceCreate("t", name, "topic", len(replicas), replication=number, replicas=[*replicas], **fields)
        assert item_errors(self.rig.write(methods.ASSIGNMENT_CREATE, m.Items([item]))) == {}

    def plan(self, name: str, rule: Any, *brokers: str) -> None:
        reply = self.rig.write(methods.PLAN_CREATE, m.Items([NewPlan(name, rule, [*brokers])]))
        assert item_errors(reply) == {}

    def known(self, name: str) -> Plan:
        (found,) = self.rig.read(methods.PLAN_GET, m.Get([PlanKey(name)])).found
        assert isinstance(found, Plan)
        return found

    def partition(self, name: str, number: int = 0) -> Partition:
        """As it is."""
        return next(one for one in self.partitions() if (one.resource, one.partition) == (name, number))

    def partitions(self) -> list[Partition]:
        prefix = keys.table_prefix(self.rig.group.prefix, PARTITIONS.rows["record"])
        rows = self.rig.group.engine.scan(prefix, keys.after_prefix(prefix), 1_000)
        return [decode_partition(value).record for key, value in rows if key[len(prefix) :][:4] == NUMBER]

    def moves(self) -> list[list[str]]:
        return [move.wanted for order in self.ordered for move in order.moves]

    async def look(self, seconds: float = 1.0) -> None:
        """Time passes, and the node looks."""
        for _ in range(int(seconds / 0.25)):
            self.rig.advance(250)
            looks, self.looks = self.looks, []
            for look in looks:
                look()
            await asyncio.sleep(0)
            await asyncio.sleep(0)

    def in_sync(self) -> None:
        """The leaders of what is moved say that all replicas are in sync."""
        for p in self.partitions():
            if p.move is not None and p.leader is not None:
                members = [Owner(name, 1) for name in p.replicas if name not in self.dead]
                item = InSync(*_key(p), p.leader.broker, 1, p.leader_epoch, p.partition_epoch, members)
                assert item_errors(self.rig.write(methods.ASSIGNMENT_IN_SYNC, m.Items([item]))) == {}

    async def settled(self) -> None:
        """What is moved now, and what follows from it, ends."""
        for _ in range(6):
            await self.look()
            self.in_sync()


def _key(p: Partition) -> tuple[str, str, str, int]:
    return p.tenant, p.resource, p.kind, p.partition


async def test_a_broker_that_was_drained_gets_nothing_of_a_later_drain() -> None:
    """Once it got all that the second plan took: two brokers that do not drain are needed, and one is left."""
    world = World("b1", "b2", "b3")
    world.create("orders", ["b1", "b2"], ["b2", "b3"], ["b3", "b1"])
    world.plan("first", "drain", "b1")
    await world.settled()
    assert world.known("first").state == "done"
    assert {*map(frozenset, (p.replicas for p in world.partitions()))} == {frozenset({"b2", "b3"})}
    assert len(world.moves()) == world.known("first").begun == 2

    world.plan("second", "drain", "b2")
    await world.look(3)
    assert len(world.moves()) == 2
    second = world.known("second")
    assert (second.state, second.begun) == ("running", 0)
    world.live("b4")
    await world.settled()
    assert {*map(frozenset, (p.replicas for p in world.partitions()))} == {frozenset({"b3", "b4"})}
    assert (world.known("second").state, world.known("second").begun) == ("done", 3)


async def test_who_is_drained_gets_a_replica_only_where_it_would_be_missing() -> None:
    world = World("b1", "b2", "b3")
    world.plan("away", "drain", "b1", "b2")
    await world.look()
    item = ResourceCreate("t", "new", "topic", 20, replication=2, repair_after_ms=1_000)
    assert item_errors(world.rig.write(methods.ASSIGNMENT_CREATE, m.Items([item]))) == {}
    assert all("b3" in p.replicas for p in world.partitions()), "one that does not drain is in each"
    assert {name for p in world.partitions() for name in p.replicas} == {"b1", "b2", "b3"}
    world.live("b1", live=False)
    await world.settled()
    assert {*map(frozenset, (p.replicas for p in world.partitions()))} == {frozenset({"b2", "b3"})}, "repaired"
    world.live("b4")
    world.plan("again", "drain", "b2")
    await world.settled()
    assert {*map(frozenset, (p.replicas for p in world.partitions()))} == {frozenset({"b3", "b4"})}


async def test_what_cannot_begin_is_not_proposed_nor_counted() -> None:
    """A partition has 16 replicas at most, with those that come: once its move was proposed, and counted, for ever."""
    brokers = [f"b{number:02}" for number in range(18)]
    world = World(*brokers)
    world.create("wide", brokers[:8])
    item = MovePartition("t", "wide", "topic", 0, brokers[:16])
    assert item_errors(world.rig.write(methods.ASSIGNMENT_MOVE, m.Items([item]))) == {}
    world.in_sync()
    assert len(world.partition("wide").replicas) == 16
    world.plan("away", "drain", "b03")
    await world.look(3)
    assert world.moves() == []
    assert (world.known("away").state, world.known("away").begun) == ("running", 0)

    world.create("one", ["b17", "b16"], ["b16", "b17"])
    world.plan("other", "drain", "b17")
    world.before = lambda: world.live(*(name for name in brokers if name not in ("b16", "b17")), live=False)
    await world.look()
    assert len(world.moves()) == 2, "they were proposed while somebody lived who could have them"
    assert all(p.move is None for p in world.partitions())
    assert world.known("other").begun == 0
