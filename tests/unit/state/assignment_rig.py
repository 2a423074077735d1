"""A node that leads a group of partitions, on the records of a real state: it gives orders, and the test carries them
out. The brokers do nothing; the test says what leaders would."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from state_rig import ChoreNode, Rig

from metad.config import DedupeConfig
from metad.node.chores.assignments import Assignments
from metad.state.assignment.records import decode_partition
from metad.storage import keys
from metad_wire import messages as m
from metad_wire import methods
from metad_wire.cluster import METADATA, FenceItem, GroupFence
from metad_wire.families.assignment import PARTITIONS
from metad_wire.messages import Owner
from metad_wire.tables.assignment import AssignmentStep, Explanation, InSync, Partition, PartitionKey, ResourceCreate
from metad_wire.tables.broker import BrokerChange, BrokerRegister, BrokerStep
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
        self.dead, self.registered = set[str](), set[str]()
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

    def live(self, *brokers: str, epoch: int = 1, live: bool = True, unclean: bool = False) -> None:
        """These brokers live in this life, or have died in it, and cannot serve any more."""
        least, quiet = (epoch, 0) if live else (epoch + 1, epoch + 1)
        lost = epoch if unclean else 0
        fences = [
            FenceItem(name, least, age_ms=0, live=live, unclean_epoch=lost, quiet_epoch=quiet) for name in brokers
        ]
        self.rig.write(methods.GROUP_FENCE, GroupFence(fences))
        new = [name for name in brokers if name not in self.registered]
        self.registered.update(new)
        steps = [BrokerStep("register", name, 0, BrokerRegister(name)) for name in new]
        self.rig.write(methods.BROKER_CHANGE, BrokerChange(steps, 0))
        self.dead = self.dead - {*brokers} if live else self.dead | {*brokers}

    def create(self, name: str, *replicas: list[str], **fields: Any) -> None:
        number = len(replicas[0])
        item = ResourceCreate("t", name, "topic", len(replicas), replication=number, replicas=[*replicas], **fields)
        self.say(methods.ASSIGNMENT_CREATE, item)

    def explained(self, name: str) -> Explanation:
        """Of the first partition of a resource."""
        (found,) = self.rig.read(methods.ASSIGNMENT_EXPLAIN, m.Get([PartitionKey("t", name, "topic", 0)])).found
        assert isinstance(found, Explanation)
        return found

    def say(self, method: Any, item: Any) -> None:
        """A broker or an administrator says something, and it is done."""
        reply = self.rig.write(method, m.Items([item]))
        assert reply.errors == []

    def plan(self, name: str, rule: Any, *brokers: str) -> None:
        self.say(methods.PLAN_CREATE, NewPlan(name, rule, [*brokers]))

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
                item = InSync(*key_of(p), p.leader.broker, 1, p.leader_epoch, p.partition_epoch, members)
                self.say(methods.ASSIGNMENT_IN_SYNC, item)

    async def settled(self) -> None:
        """What is moved now, and what follows from it, ends."""
        for _ in range(6):
            await self.look()
            self.in_sync()


def key_of(p: Partition) -> tuple[str, str, str, int]:
    return p.tenant, p.resource, p.kind, p.partition
