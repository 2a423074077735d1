"""When a node orders the end of leases: after a look, a proof that it leads, and another look. On the leases of a real
state, with a clock and a proof that the test moves."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np

from metad.config import Config
from metad.node.leases import _IDLE_S, LOOK_S, LeaseEnds
from metad.state.live_leases import LiveLeases
from metad.state.machine import Machine
from metad.state.part import NodeMemory
from metad.storage import keys
from metad.storage.memory import MemoryEngine
from metad_wire.group import GroupId
from metad_wire.messages import WriteReply
from metad_wire.methods import encode
from metad_wire.tables.lease import LEASE, LeaseExpire, LeaseKey

DATA = GroupId("data", 0)
TTL_S = 10.0


class World:
    """A node that leads a group with leases."""

    def __init__(self, *leases: str) -> None:
        self.now_s = 100.0
        self.timers: list[tuple[float, Callable[[], None]]] = []
        self.reads: list[Callable[[bool], None]] = []
        self.ordered: list[str] = []
        self.engine = MemoryEngine()
        prefix = keys.table_prefix(keys.group_prefix(DATA), LEASE.rows["lease"])
        for name in leases:
            row = encode(("n", name, int(1000 * TTL_S), "", b"", 1, 1, 1, 0, 0))
            self.engine.write({prefix + keys.text2("n", name): row})
        self.machine = Machine(DATA, self.engine, NodeMemory(Config()), clock=self.now, wall_ms=lambda: 0)
        self.live = self.machine.parts[LiveLeases]
        self.group = SimpleNamespace(ready=True, term=1, name="data-0", read=self.reads.append)
        self.slots = SimpleNamespace(mask=None)
        machine = SimpleNamespace(parts=self.machine.parts, slots=self.slots)
        driver = SimpleNamespace(group=self.group, installing=False, machine=machine)
        groups: Any = SimpleNamespace(drivers={DATA: driver})
        environment: Any = self
        requests: Any = self
        health: Any = SimpleNamespace(failure=None)
        LeaseEnds(groups, requests, environment, health).start()

    def now(self) -> float:
        return self.now_s

    def call_at(self, when_s: float, callback: Callable[[], None]) -> None:
        self.timers.append((when_s, callback))

    def call_soon(self, callback: Callable[[], None]) -> None:
        callback()

    def request(self, method: Any, body: LeaseExpire, done: Callable[[Any], None], group: str) -> None:
        self.ordered += [item.lease for item in body.items]
        done(encode(WriteReply([], [])))

    def pass_s(self, seconds: float) -> None:
        """Time passes, and the node looks."""
        end_s = self.now_s + seconds
        while due := [timer for timer in self.timers if timer[0] <= end_s]:
            first = min(due, key=lambda timer: timer[0])
            self.timers.remove(first)
            self.now_s = first[0]
            first[1]()
        self.now_s = end_s

    def prove(self) -> None:
        reads, self.reads[:] = [*self.reads], []
        for read in reads:
            read(True)

    def hear(self, lease: str) -> None:
        assert self.live.renew(keys.text2("n", lease), self.now_s)


def test_a_lease_ends_that_was_over_before_the_proof_and_still_is() -> None:
    world = World("a")
    world.pass_s(TTL_S + _IDLE_S)
    assert (len(world.reads), world.ordered) == (1, [])
    world.prove()
    world.pass_s(2 * LOOK_S)
    assert world.ordered[:1] == ["a"]


def test_a_lease_that_is_over_only_since_the_proof_began_needs_another() -> None:
    """A keep-alive that came in time may still wait for a proof of its own, which is as old."""
    world = World("early", "late")
    world.pass_s(5.0)
    world.hear("late")
    while not world.reads:
        world.pass_s(LOOK_S)
    world.hear("early")
    world.live.amnesty()
    world.pass_s(TTL_S)
    assert len(world.reads) == 1, "one proof at a time"
    world.prove()
    world.pass_s(LOOK_S)
    assert "late" not in world.ordered


def test_a_new_term_gives_full_leases_and_forgets_what_was_proven() -> None:
    world = World("a")
    world.pass_s(TTL_S + _IDLE_S)
    world.group.term = 2
    world.pass_s(LOOK_S)
    world.prove()
    world.pass_s(TTL_S - 2 * LOOK_S)
    assert world.ordered == []


def test_no_end_is_ordered_of_leases_whose_slots_are_elsewhere() -> None:
    world = World("here", "there")
    world.slots.mask = np.zeros(1024, bool)
    slot = LEASE.slot_of(keys.text2("n", "here"))
    assert slot == next(iter(LEASE.crcs([LeaseKey("n", "there")]))) % 1024, "the namespace alone routes"
    world.pass_s(TTL_S + _IDLE_S)
    assert (world.reads, world.ordered) == ([], [])
    world.slots.mask[slot] = True
    world.pass_s(LOOK_S)
    world.prove()
    world.pass_s(2 * LOOK_S)
    assert {*world.ordered} == {"here", "there"}
