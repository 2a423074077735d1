"""When a node orders the end of leases: after a look, a proof that it leads, and another look. On the leases of a real
state, with a clock and a proof that the test moves."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from metad.config import Config
from metad.node.chores.leases import _IDLE_S, _LASTING, LOOK_S, LeaseEnds
from metad.state.core.part import NodeMemory
from metad.state.core.slot_assignment import ALL_SLOTS
from metad.state.live.live import LiveRows
from metad.state.live.live_leases import LiveLeases
from metad.state.machine import Machine
from metad.storage import keys
from metad.storage.memory import MemoryEngine
from metad_wire.cluster import GroupId, slot_bits
from metad_wire.errors import MetadError, StaleRouteError, TooLargeError
from metad_wire.messages import ItemError, WriteReply
from metad_wire.methods import encode
from metad_wire.tables.lease import LEASE, LeaseExpire, LeaseKey

DATA = GroupId("data", 0)
TTL_S = 10.0


class World:
    """A node that leads a group with leases."""

    def __init__(self, *leases: str, namespaced: bool = False) -> None:
        """``namespaced``: the first word of a lease is its namespace."""
        self.now_s = 100.0
        self.timers: list[tuple[float, Callable[[], None]]] = []
        self.reads: list[Callable[[bool], None]] = []
        self.ordered: list[str] = []
        self.orders: list[list[str]] = []
        self.answer: Callable[[list[str]], bytes | MetadError] = lambda _: encode(WriteReply([], []))
        """Of the group, to an order."""
        self.engine = MemoryEngine()
        prefix = keys.table_prefix(keys.group_prefix(DATA), LEASE.rows["lease"])
        for name in leases:
            namespace = name.split()[0] if namespaced else "n"
            row = encode((namespace, name, int(1000 * TTL_S), "", b"", 1, 1, 1, 0, 0))
            self.engine.write({prefix + keys.text2(namespace, name): row})
        self.machine = Machine(DATA, self.engine, NodeMemory(Config()), clock=self.now, wall_ms=lambda: 0)
        self.live = self.machine.parts[LiveLeases]
        self.group = SimpleNamespace(ready=True, term=1, name="data-0", read=self.reads.append)
        self.holding = SimpleNamespace(slots=ALL_SLOTS)
        machine = SimpleNamespace(parts=self.machine.parts, holding=self.holding)
        driver = SimpleNamespace(group=self.group, installing=False, machine=machine)
        self.driver = driver
        groups: Any = SimpleNamespace(drivers={DATA: driver})
        environment: Any = self
        requests: Any = self
        health: Any = SimpleNamespace(failure=None)
        self.stood_still = False
        self.listeners: list[Callable[[], None]] = []
        standstills: Any = self
        LeaseEnds(groups, requests, environment, health, standstills).start()

    def look(self, _: float) -> None:
        if self.stood_still:
            self.stood_still = False
            for listener in self.listeners:
                listener()

    def now(self) -> float:
        return self.now_s

    def call_at(self, when_s: float, callback: Callable[[], None]) -> None:
        self.timers.append((when_s, callback))

    def call_soon(self, callback: Callable[[], None]) -> None:
        self.timers.append((self.now_s, callback))

    def request(self, method: Any, body: LeaseExpire, done: Callable[[Any], None], group: str) -> None:
        names = [item.lease for item in body.items]
        self.ordered += names
        self.orders.append(names)
        done(self.answer(names))

    def end(self, lease: str) -> None:
        """It has ended, as the entry says."""
        self.live.end(keys.text2("n", lease))
        self.live.end(keys.text2(lease.split()[0], lease))

    def pass_s(self, seconds: float) -> None:
        """Time passes, and the node looks."""
        end_s = self.now_s + seconds
        while due := [timer for timer in self.timers if timer[0] <= end_s]:
            first = min(due, key=lambda timer: timer[0])
            self.timers.remove(first)
            self.now_s = first[0]
            first[1]()
        self.now_s = end_s

    def go_on_s(self, seconds: float) -> None:
        """Time passes, and each proof succeeds at once."""
        for _ in range(round(seconds / LOOK_S)):
            self.pass_s(LOOK_S)
            self.prove()

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
    world.pass_s(2 * LOOK_S)
    world.hear("late")
    while not world.reads:
        world.pass_s(LOOK_S)
    world.pass_s(3 * LOOK_S)
    assert world.live.over(ALL_SLOTS) == [keys.text2("n", name) for name in ("early", "late")]
    assert len(world.reads) == 1, "one proof at a time"
    world.prove()
    world.pass_s(LOOK_S)
    assert world.ordered == ["early"]


def test_a_node_that_stood_still_gives_full_leases_and_forgets_what_was_proven() -> None:
    world = World("a")
    world.pass_s(TTL_S + _IDLE_S)
    world.prove()
    world.now_s += 60.0
    world.stood_still = True
    world.go_on_s(TTL_S - 2 * LOOK_S)
    assert world.ordered == []
    world.go_on_s(1.0)
    assert world.ordered[:1] == ["a"]


def test_all_that_lasts_while_somebody_speaks_for_it_is_judged_here() -> None:
    assert {lasting.part for lasting in _LASTING.values()} == {*LiveRows.__subclasses__()}


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
    world.holding.slots = slot_bits(())
    slot = LEASE.slot_of(keys.text2("n", "here"))
    assert slot == next(iter(LEASE.crcs([LeaseKey("n", "there")]))) % 1024, "the namespace alone routes"
    world.pass_s(TTL_S + _IDLE_S)
    assert (world.reads, world.ordered) == ([], [])
    world.holding.slots = slot_bits((slot,))
    world.pass_s(TTL_S - LOOK_S)
    assert (world.reads, world.ordered) == ([], []), "nobody could keep them alive until now"
    world.pass_s(3 * LOOK_S)
    world.prove()
    world.pass_s(2 * LOOK_S)
    assert {*world.ordered} == {"here", "there"}


@pytest.mark.parametrize("foreign", [999, 1_000, 5_000])
def test_leases_of_slots_that_are_not_held_keep_no_other_waiting(foreign: int) -> None:
    """They came with a move that has not ended, or are yet to be dropped, and are over as the group's own are."""
    world = World("mine", *[f"foreign {number}" for number in range(foreign)], namespaced=True)
    world.holding.slots = slot_bits((LEASE.slot_of(keys.text2("mine", "mine")) or 0,))
    assert LEASE.slot_of(keys.text2("foreign", "")) != LEASE.slot_of(keys.text2("mine", ""))
    world.go_on_s(TTL_S + 1.0)
    assert {*world.ordered} == {"mine"}
    world.end("mine")
    world.holding.slots = ALL_SLOTS
    world.go_on_s(TTL_S - LOOK_S)
    assert {*world.ordered} == {"mine"}
    world.go_on_s(TTL_S)
    assert len({*world.ordered}) == 1 + min(foreign, 1_000), "the others follow as these end"


# --- what is refused again and again ---------------------------------------------------------------------


def poisoned(world: World, *refused: str, whole: bool) -> None:
    """The group refuses the end of these: the whole order that has one of them, or it alone."""

    def answer(names: list[str]) -> bytes | MetadError:
        errors = [ItemError(at, TooLargeError.code) for at, name in enumerate(names) if name in refused]
        if errors and whole:
            return TooLargeError("these leases have too many keys")
        for name in names:
            if name not in refused:
                world.end(name)
        return encode(WriteReply([], errors))

    world.answer = answer


@pytest.mark.parametrize("whole", [False, True])
def test_what_is_refused_keeps_no_other_waiting(whole: bool) -> None:
    """Once wrong: the same first hundred were ordered again at each look, and failed as one."""
    world = World(*[f"lease{number:04}" for number in range(1_200)])
    refused = [f"lease{number:04}" for number in range(0, 50, 7)]
    poisoned(world, *refused, whole=whole)
    world.pass_s(TTL_S)
    world.go_on_s(2.0)
    assert len(world.live) == len(refused)
    assert max(world.ordered.count(name) for name in refused) <= (9 if whole else 1)


@pytest.mark.parametrize("whole", [False, True])
def test_more_refused_than_are_looked_at_keep_no_other_waiting(whole: bool) -> None:
    names = [f"lease{number:04}" for number in range(1_100)]
    world = World(*names, "last")
    poisoned(world, *names, whole=whole)
    world.pass_s(TTL_S - 1.0)
    world.hear("last")
    world.go_on_s(TTL_S + 3.0)
    assert "last" in world.ordered
    assert len(world.live) == len(names)


def test_what_is_refused_is_ordered_again_after_a_full_lease() -> None:
    world = World("a")
    poisoned(world, "a", whole=False)
    world.pass_s(TTL_S)
    world.go_on_s(1.0)
    assert world.ordered == ["a"]
    world.go_on_s(TTL_S - 2.0)
    assert world.ordered == ["a"]
    world.go_on_s(2.5)
    assert world.ordered == ["a", "a"]


def test_orders_grow_again_once_they_fit() -> None:
    names = [f"lease{number:03}" for number in range(400)]
    world = World(*names)
    poisoned(world, "lease000", whole=True)
    world.pass_s(TTL_S)
    world.go_on_s(1.0)
    sizes = [len(order) for order in world.orders]
    assert sizes[:8] == [100, 50, 25, 12, 6, 3, 1, 1]
    assert max(sizes[8:]) == 100


def test_an_order_that_came_to_the_wrong_node_is_given_again_as_it_was() -> None:
    names = [f"lease{number:03}" for number in range(150)]
    world = World(*names)
    world.answer = lambda _: StaleRouteError()
    world.pass_s(TTL_S)
    world.go_on_s(1.0)
    assert len(world.orders) > 1
    assert {tuple(order) for order in world.orders} == {tuple(names[:100])}


def test_nothing_is_looked_at_while_a_snapshot_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """And whoever leads behind it gives full leases."""
    world = World("a")
    world.pass_s(TTL_S - 1.0)
    with monkeypatch.context() as installing:
        installing.setattr(world.driver, "installing", True)
        installing.setattr(world.driver, "machine", None)
        world.go_on_s(2.0)
    assert world.ordered == []
    world.go_on_s(TTL_S - 1.0)
    assert world.ordered == []
    world.go_on_s(2.0)
    assert "a" in world.ordered


def test_a_leader_of_a_new_term_gives_full_leases_though_it_never_looked_in_between() -> None:
    """It lost the lead and has it again: whoever led meanwhile has heard the keep-alives."""
    world = World("a")
    world.go_on_s(TTL_S - 1.0)
    world.group.term += 1
    world.go_on_s(TTL_S - 1.0)
    assert world.ordered == []
    world.go_on_s(3.0)
    assert "a" in world.ordered
