"""The sweep of one group's deadlines: it reads no row twice, and misses none."""

from __future__ import annotations

from typing import Any

import pytest
from state_rig import Group, Rig
from sweep_rig import BATCH, HOUR_MS, World, do

from metad.config import DedupeConfig
from metad.node.chores.chore import BEHIND_S
from metad.node.chores.session_sweeps import DueSweep
from metad.state.core.due import DUE
from metad.storage import keys
from metad_wire import messages as m
from metad_wire import methods
from metad_wire.cluster import SLOTS, GroupCommand, slot_bits
from metad_wire.errors import MetadError, NotLeaderError, TooLargeError
from metad_wire.messages import SessionDisconnectItem, SessionProperties, SessionTakeoverItem, Will
from metad_wire.methods import encode

DueWorld = World[DueSweep]


def go(group: Group, *names: str, interval_s: int, applied: bool = True, will: Will | None = None) -> None:
    items = [SessionTakeoverItem("t", name, properties=SessionProperties(interval_s, b"", will)) for name in names]
    do(group, methods.SESSION_TAKEOVER, m.SessionTakeover("b", 1, items), applied=applied)
    gone = [SessionDisconnectItem("t", name) for name in names]
    do(group, methods.SESSION_DISCONNECT, m.SessionDisconnect("b", 1, gone), applied=applied)


def beat(group: Group) -> None:
    """An entry that has nothing to do with sessions."""
    do(group, methods.KV_PUT, m.KvPut([m.KvPutItem("n", "k", b"")]))


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> DueWorld:
    made = World(DueSweep, DUE, Rig().group, monkeypatch)
    beat(made.group)
    made.advance(HOUR_MS)
    return made


def test_no_row_that_is_done_with_is_passed_again(world: DueWorld) -> None:
    for number in range(5 * BATCH):
        go(world.group, f"c{number:03}", interval_s=5)
        world.advance(1)
    assert world.turns() == 0
    assert world.sweep.overdue_ms == 0
    world.advance(10_000)
    beat(world.group)
    assert world.sweep.overdue_ms > 0
    assert [world.sweep.overdue(limit) for limit in (7, 1_000)] == [7, 5 * BATCH]
    world.begins.clear()
    assert world.turns() == 5
    assert world.counts["ended"] == 5 * BATCH
    assert [name for batch in world.asked for name in batch] == [f"c{number:03}" for number in range(5 * BATCH)]
    assert len(set(world.begins)) == len(world.begins)
    assert world.begins == sorted(world.begins)
    world.begins.clear()
    assert world.turns() == 0
    assert (world.sweep.overdue_ms, world.sweep.overdue(1_000)) == (0, 0)
    assert min(world.begins) > keys.table_prefix(world.group.prefix, DUE) + keys.u64(world.group.now_ms - 5_000)


def test_who_does_not_keep_up_is_in_a_hurry_until_it_does(world: DueWorld) -> None:
    for number in range(3 * BATCH):
        go(world.group, f"c{number:03}", interval_s=1)
    world.advance(2_000)
    beat(world.group)
    assert world.sweep.begin(1_000, world.done.append)
    assert world.sweep.hurry == 1.0
    world.advance(1_000 * int(BEHIND_S))
    assert world.sweep.hurry == pytest.approx(2.0)
    assert world.sweep.begin(1_000, world.done.append)
    world.advance(2_000 * int(BEHIND_S))
    assert world.sweep.hurry == pytest.approx(4.0), "since it was behind, not since the last order"
    world.group.machine.time.amnesty(world.group.now_s)
    assert not world.sweep.begin(1_000, world.done.append)
    assert world.sweep.hurry == 1.0, "nothing is over now"
    world.advance(HOUR_MS)
    assert world.sweep.begin(1_000, world.done.append)
    assert not world.sweep.begin(1_000, world.done.append)
    assert world.counts["ended"] == 3 * BATCH
    world.advance(1_000 * int(BEHIND_S))
    assert world.sweep.hurry == 1.0


def test_a_deadline_that_is_not_applied_yet_is_not_passed(world: DueWorld) -> None:
    group = world.group
    go(group, "a", interval_s=1_000)
    world.advance(998_000)
    beat(group)
    go(group, "b", interval_s=1, applied=False)
    world.advance(3_000)
    assert world.sweep.begin(1_000, world.done.append)
    assert world.asked == [["a"]]
    assert world.turns() == 1
    assert world.asked[1:] == [["b"]]
    assert world.turns() == 0


def test_nothing_is_passed_that_an_idle_look_could_not_see(world: DueWorld) -> None:
    group = world.group
    beat(group)
    go(group, "b", interval_s=1, applied=False)
    world.advance(3_000)
    assert world.turns() == 0
    group.apply(len(group.in_flight))
    assert world.turns() == 1
    assert world.asked == [["b"]]


@pytest.mark.parametrize("outcome", [NotLeaderError("elsewhere"), TooLargeError("too much belongs to them")])
def test_what_was_refused_is_asked_for_again(world: DueWorld, outcome: MetadError) -> None:
    names = [f"c{number}" for number in range(BATCH)]
    go(world.group, *names, interval_s=1)
    world.advance(2_000)
    world.refusal = outcome
    assert world.sweep.begin(1_000, world.done.append)
    assert world.done == [None if isinstance(outcome, NotLeaderError) else BATCH]
    world.refusal = None
    assert world.turns() == (1 if isinstance(outcome, NotLeaderError) else 2)
    assert [len(batch) for batch in world.asked[1:]] == ([10] if isinstance(outcome, NotLeaderError) else [5, 5])
    assert world.counts["ended"] == BATCH


def test_what_must_wait_is_asked_for_again(world: DueWorld) -> None:
    go(world.group, "a", interval_s=1)
    world.advance(2_000)
    propose = world.group.propose

    def late(*args: Any) -> Any:  # an amnesty begins between the look and the entry
        world.group.machine.time.amnesty(world.group.now_s)
        return propose(*args)

    world.group.propose = late  # type: ignore[method-assign]
    assert world.sweep.begin(1_000, world.done.append)
    assert (world.done, world.counts["ended"]) == ([None], 0)
    world.group.propose = propose  # type: ignore[method-assign]
    assert world.turns() == 0
    world.advance(HOUR_MS)
    assert world.turns() == 1
    assert world.counts["ended"] == 1


def test_a_will_and_the_end_behind_it_are_both_done(world: DueWorld) -> None:
    go(world.group, "a", interval_s=60, will=Will("gone", b"", delay_s=5))
    world.advance(6_000)
    assert world.turns() == 1
    assert (world.counts["wills"], world.counts["ended"]) == (1, 0)
    world.advance(60_000)
    assert world.turns() == 1
    assert (world.counts["wills"], world.counts["ended"]) == (1, 1)


def test_deadlines_that_come_with_slots_are_done_whatever_their_time(monkeypatch: pytest.MonkeyPatch) -> None:
    source, target = Group("data", 0, DedupeConfig()), Group("data", 1, DedupeConfig(), initial_slots=slot_bits(()))
    world = World(DueSweep, DUE, target, monkeypatch)
    do(source, methods.KV_PUT, m.KvPut([m.KvPutItem("n", "k", b"")]))
    go(source, "a", "b", interval_s=1)
    slots = slot_bits(range(SLOTS))

    def step(group: Group, name: str, **fields: Any) -> int:
        reply = do(group, methods.GROUP_COMMAND, GroupCommand(name, 1, 1, slots=slots, **fields))
        return int(reply.revisions[0].index)

    step(target, "open")
    step(target, "drop", rows={})
    world.advance(HOUR_MS)
    assert world.turns() == 0
    world.advance(HOUR_MS)
    assert world.turns() == 0
    rows = {key[3:]: value for key, value in source.engine.scan(b"", b"\xff" * 9, 1_000) if key[3] in (0x10, 0x11, DUE)}
    step(target, "import", batch=1, rows=rows)
    assert world.turns() == 0
    sealed = step(source, "seal")
    step(target, "adopt", batch=2, revision=sealed)
    assert world.turns() == 0, "an amnesty"
    world.advance(HOUR_MS)
    assert world.turns() == 1
    assert [sorted(batch) for batch in world.asked] == [["a", "b"]]


def test_a_state_that_was_replaced_is_looked_at_from_its_first_row_on(world: DueWorld) -> None:
    group = world.group
    world.advance(HOUR_MS)
    beat(group)
    assert world.turns() == 0
    early = group.now_ms - HOUR_MS
    away = m.SessionOwner(False, "b", 1, early, 0, early)
    session = keys.text2("t", "a")
    group.engine.write(
        {
            keys.table_prefix(group.prefix, 0x10) + session: encode(away),
            keys.table_prefix(group.prefix, DUE) + keys.u64(early) + b"\x02" + session: b"",
        }
    )
    assert world.turns() == 0
    group.restart()
    world.driver.machine = group.machine
    beat(group)
    world.advance(HOUR_MS)
    assert world.turns() == 1
    assert world.asked == [["a"]]


def test_who_does_not_lead_sweeps_nothing(world: DueWorld) -> None:
    go(world.group, "a", interval_s=1)
    world.advance(2_000)
    world.driver.group.accepting = False
    assert world.turns() == 0
    world.driver.group.accepting, world.driver.installing = True, True
    assert world.turns() == 0
    world.driver.installing = False
    assert world.turns() == 1


def test_a_turn_asks_for_no_more_than_there_is_room_for(world: DueWorld) -> None:
    go(world.group, *[f"c{number}" for number in range(BATCH)], interval_s=1)
    world.advance(2_000)
    assert world.turns(room=3) == 4
    assert [len(batch) for batch in world.asked] == [3, 3, 3, 1]
    assert world.done == [3, 3, 3, 1]


def test_what_was_passed_beside_a_seal_that_never_came_to_be_is_done(world: DueWorld) -> None:
    """The seal was in flight, and lost with the lead; this node leads again."""
    go(world.group, *"abcdefgh", interval_s=1)
    world.advance(HOUR_MS)
    beat(world.group)
    seal = GroupCommand("seal", 1, 1, slots=slot_bits(range(SLOTS)), other=1)
    do(world.group, methods.GROUP_COMMAND, seal, applied=False)
    assert world.turns() == 0, "nothing is held"
    world.group.lose()
    world.turns()
    world.advance(HOUR_MS)
    world.turns()
    assert [sorted(batch) for batch in world.asked] == [[*"abcdefgh"]]
