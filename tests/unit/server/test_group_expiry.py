"""Which consumer groups a node orders to be deleted, and in how large orders. On the offsets of a real state, with a
clock that the test moves."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from metad.config import Config, ExpiryConfig
from metad.node.chores import group_expiry
from metad.node.chores.sweeps import Sweeps
from metad.node.disk.stores import no_stores
from metad.state.core.part import NodeMemory
from metad.state.core.verb import Command
from metad.state.machine import Machine
from metad.state.registry import VERBS
from metad.storage import keys
from metad.storage.memory import MemoryEngine
from metad_wire import messages as m
from metad_wire import methods
from metad_wire.cluster import SLOTS, GroupId
from metad_wire.errors import MetadError, OverloadedError, TooLargeError
from metad_wire.methods import encode
from metad_wire.tables.consumer import CONSUMER, ConsumerGroupInfo, GroupState
from metad_wire.tables.offset import OFFSET, OffsetExpireGroups

OFFSETS = GroupId("offset", 0)
UNUSED_S = 100.0
COUNT = 50


class Driver(SimpleNamespace):
    """Of the group. It is itself only, as the driver of a node is."""

    __hash__ = object.__hash__  # type: ignore[assignment]


class World:
    """A node that leads a group with consumer groups of one offset each, which nobody has used for long."""

    def __init__(self, metadata: str = "", count: int = COUNT) -> None:
        self.now_s = 1_000.0
        self.timers: list[tuple[float, Callable[[], None]]] = []
        self.orders: list[int] = []
        self.refused: Callable[[OffsetExpireGroups], MetadError | None] = lambda _: None
        """What the group says to an order, instead of carrying it out."""
        self.engine = MemoryEngine()
        self.prefix = keys.group_prefix(OFFSETS)
        for number in range(count):
            name = f"g{number:02}"
            key = keys.table_prefix(self.prefix, OFFSET.rows["offset"]) + OFFSET.key_of(["t", name, "topic", 0])
            self.engine.write({key: encode(m.Offset("t", name, "topic", 0, 1, 0, 1, metadata))})
        self.machine = Machine(OFFSETS, self.engine, NodeMemory(Config()), clock=self.now, wall_ms=self.wall_ms)
        self.index = 0
        group = SimpleNamespace(accepting=True, name=OFFSETS.name, prefix=self.prefix)
        driver = Driver(group=group, installing=False, machine=self.machine, waiting_items=0)
        self.drivers = [driver]
        groups: Any = SimpleNamespace(drivers={OFFSETS: driver})
        environment: Any = self
        requests: Any = self
        health: Any = SimpleNamespace(failure=None)
        config = ExpiryConfig(consumer_group_ms=int(1000 * UNUSED_S))
        self.sweeps = Sweeps(config, groups, requests, no_stores(Config()), environment, health)
        self.sweeps.start()

    @property
    def deleted(self) -> int:
        return self.sweeps.counts["deleted"]

    def now(self) -> float:
        return self.now_s

    def wall_ms(self) -> int:
        return int(1000 * self.now_s)

    def call_at(self, when_s: float, callback: Callable[[], None]) -> Any:
        timer = when_s, callback
        self.timers.append(timer)
        return SimpleNamespace(cancel=lambda: self.timers.remove(timer) if timer in self.timers else None)

    def call_soon(self, callback: Callable[[], None]) -> None:
        self.call_at(self.now_s, callback)

    def request(self, method: Any, body: OffsetExpireGroups, done: Callable[[Any], None], group: str) -> None:
        self.orders.append(len(body.items))
        error = self.refused(body)
        done(self.carried_out(body) if error is None else error)

    def carried_out(self, body: OffsetExpireGroups) -> bytes | MetadError:
        method = methods.OFFSET_EXPIRE_GROUPS
        command = Command(method, body, VERBS[method.code].rows(body))
        self.index += 1
        proposal = self.machine.evaluate([(command, None)], self.index, self.wall_ms())
        batches: list[Any] = []
        self.machine.stage(self.index, proposal.entry, batches)
        self.engine.write(*batches)
        self.machine.staged()
        (outcome,) = proposal.outcomes
        assert isinstance(outcome, bytes | MetadError)
        return outcome

    def pass_s(self, seconds: float) -> None:
        """Time passes, and the node looks."""
        end_s = self.now_s + seconds
        while due := [timer for timer in self.timers if timer[0] <= end_s]:
            first = min(due, key=lambda timer: timer[0])
            self.timers.remove(first)
            self.now_s = max(self.now_s, first[0])
            first[1]()
        self.now_s = end_s


@pytest.mark.parametrize("metadata", ["", "x" * m.VALUE_BYTES_MAX], ids=["short", "long"])
def test_groups_that_nobody_uses_are_deleted(metadata: str) -> None:
    """Once wrong: fifty offsets with long metadata are more than one command may read, so the order failed, and the
    next pass found the same fifty."""
    world = World(metadata)
    world.pass_s(2 * UNUSED_S)
    assert world.deleted == COUNT
    assert world.orders[0] == COUNT
    assert (COUNT // 2 in world.orders) == bool(metadata)


def test_one_that_is_too_much_by_itself_keeps_no_other() -> None:
    world = World()
    world.refused = lambda body: TooLargeError("") if any(item.group == "g07" for item in body.items) else None
    world.pass_s(UNUSED_S)
    assert world.deleted == COUNT - 1
    assert world.orders[:5] == [50, 25, 12, 6, 12], "they grow again"
    world.refused = lambda _: None
    world.pass_s(UNUSED_S)
    assert world.deleted == COUNT, "the next pass has found it again"


def test_after_another_error_the_next_pass_finds_them_again() -> None:
    world = World()
    world.refused = lambda _: OverloadedError()
    world.pass_s(UNUSED_S / 4)
    assert world.orders
    assert {*world.orders} == {COUNT}
    world.refused = lambda _: None
    world.pass_s(UNUSED_S)
    assert world.deleted == COUNT


def test_groups_that_came_early_are_passed_over_in_many_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once each of them was a call within the last: a thousand in a row ended the node's looks for good."""
    world = World(count=2_000)
    slots = world.machine.slots
    with monkeypatch.context() as early:
        early.setattr(slots, "_mask", np.zeros(SLOTS, np.bool_))
        early.setattr(slots, "holds_all", False)
        world.pass_s(UNUSED_S / 10)
    assert not world.orders
    world.pass_s(2 * UNUSED_S)
    assert world.deleted == 2_000


def test_a_group_with_long_offsets_is_looked_at_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_expiry, "_PAGE_BYTES", 100)
    world = World()
    prefix = keys.table_prefix(world.prefix, OFFSET.rows["offset"])
    for partition in range(1, 9):
        late_ms = world.wall_ms() if partition == 8 else 1
        record = encode(m.Offset("t", "g00", "topic", partition, 1, 0, late_ms, "x" * 60))
        world.engine.write({prefix + OFFSET.key_of(["t", "g00", "topic", partition]): record})
    world.pass_s(UNUSED_S)
    assert world.deleted == COUNT - 1, "one offset of the other is new"
    world.pass_s(2 * UNUSED_S)
    assert world.deleted == COUNT + 8


def test_during_an_amnesty_nothing_is_ordered_and_no_order_ends_anything() -> None:
    """Whoever uses a consumer group may not have reached this leader. An order of before may be under way."""
    world = World()
    names = [m.ConsumerGroup("t", f"g{number:02}") for number in range(COUNT)]
    for _ in range(int(2 * UNUSED_S)):
        world.machine.time.amnesty(world.now_s)
        world.pass_s(1.0)
    assert world.orders == []
    answer = world.carried_out(OffsetExpireGroups(names, world.wall_ms()))
    assert isinstance(answer, bytes)
    assert methods.OFFSET_EXPIRE_GROUPS.decode_reply(answer).deleted == [0] * COUNT
    world.pass_s(UNUSED_S)
    assert world.deleted == COUNT


def test_nothing_is_read_while_a_snapshot_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    (driver,) = world.drivers
    with monkeypatch.context() as installing:
        installing.setattr(driver, "installing", True)
        installing.setattr(driver, "machine", None)
        world.pass_s(2 * UNUSED_S)
    assert world.orders == []
    world.pass_s(UNUSED_S)
    assert world.deleted == COUNT


def test_a_group_that_has_members_or_had_some_lately_is_in_use() -> None:
    world = World()
    prefix = keys.table_prefix(world.prefix, CONSUMER.rows["group"])
    for name, members, since_ms in (("g01", 1, 1), ("g02", 0, world.wall_ms() + int(1_000 * UNUSED_S)), ("g03", 0, 1)):
        info = ConsumerGroupInfo("t", name, GroupState.EMPTY, 1, "", "", members, 0, 0, since_ms, [], 0)
        world.engine.write({prefix + keys.text2("t", name): encode(info)})
    ordered: list[str] = []
    world.refused = lambda body: ordered.extend(item.group for item in body.items)  # type: ignore[func-returns-value]
    world.pass_s(UNUSED_S + 60.0)
    assert {"g01", "g02"}.isdisjoint(ordered)
    assert "g03" in ordered
