"""The pass over the sessions of brokers whose lives are over: it looks at each row once, and names all the lost."""

from __future__ import annotations

import pytest
from state_rig import Group, Rig
from sweep_rig import BATCH, HOUR_MS, World, do

from metad.node.chores.session_sweeps import LostSweep
from metad.state.cluster.fences import Fences
from metad_wire import messages as m
from metad_wire import methods
from metad_wire.cluster import SLOTS, FenceItem, GroupCommand, GroupFence, SessionLose, slot_bits
from metad_wire.errors import MetadError, NotLeaderError, TooLargeError
from metad_wire.messages import SessionProperties, SessionTakeoverItem
from metad_wire.tables.session import SESSION

LostWorld = World[LostSweep]


def come(group: Group, broker: str, *names: str) -> None:
    items = [SessionTakeoverItem("t", name, properties=SessionProperties(60)) for name in names]
    do(group, methods.SESSION_TAKEOVER, m.SessionTakeover(broker, 1, items))


def fence(group: Group, *brokers: str) -> None:
    do(group, methods.GROUP_FENCE, GroupFence([FenceItem(broker, 2, group.now_ms) for broker in brokers]))


def connected(group: Group) -> list[str]:
    """By what the owner rows say."""
    reply = do_list(group)
    return [session.client_id for session in reply.found if session.connected]


def do_list(group: Group) -> m.ListReply[m.Session]:
    rig = Rig()
    rig.group = group
    reply: m.ListReply[m.Session] = rig.read(methods.SESSION_LIST, m.SessionList("t"))
    return reply


def unswept(group: Group) -> list[str]:
    return [item.broker for item in group.machine.parts[Fences].unswept()]


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> LostWorld:
    made = World(LostSweep, SESSION.rows["owner"], Rig().group, monkeypatch)
    come(made.group, "lives", *[f"c{number:03}" for number in range(0, 60, 2)])
    come(made.group, "dies", *[f"c{number:03}" for number in range(1, 60, 2)])
    made.advance(HOUR_MS)
    return made


LOST = [f"c{number:03}" for number in range(1, 60, 2)]


def test_without_a_fence_nothing_is_read(world: LostWorld) -> None:
    assert world.turns() == 0
    assert world.begins == []


def test_a_pass_names_the_sessions_of_the_dead_and_reads_each_row_once(world: LostWorld) -> None:
    fence(world.group, "dies")
    assert world.turns() == 4
    assert [len(batch) for batch in world.asked] == [BATCH, BATCH, BATCH, 0]
    assert [name for batch in world.asked for name in batch] == LOST
    assert world.done == [BATCH, BATCH, BATCH, 0]
    assert len(world.begins) == 2
    assert len(set(world.begins)) == 2
    assert unswept(world.group) == []
    assert connected(world.group) == [f"c{number:03}" for number in range(0, 60, 2)]


def test_a_turn_names_no_more_than_there_is_room_for(world: LostWorld) -> None:
    fence(world.group, "dies")
    world.turns(room=4)
    assert [len(batch) for batch in world.asked] == [4] * 7 + [2, 0]


@pytest.mark.parametrize("outcome", [NotLeaderError("elsewhere"), TooLargeError("too much")])
def test_what_was_refused_is_named_again_by_a_new_pass(world: LostWorld, outcome: MetadError) -> None:
    fence(world.group, "dies")
    world.refusal = outcome
    assert world.sweep.begin(1_000, world.done.append)
    assert unswept(world.group) == ["dies"]
    world.refusal = None
    world.turns()
    assert [name for batch in world.asked[1:] for name in batch] == LOST
    assert unswept(world.group) == []


def test_a_pass_of_a_leadership_that_has_ended_marks_nothing_as_swept(world: LostWorld) -> None:
    fence(world.group, "dies")
    assert world.sweep.begin(1_000, world.done.append)
    world.driver.group.accepting = False
    assert world.turns() == 0
    world.driver.group.accepting = True
    world.asked.clear()
    world.turns()
    assert [name for batch in world.asked for name in batch] == LOST[BATCH:]
    assert len(world.begins) > 2, "it has begun anew"


def test_a_fence_that_comes_during_a_pass_is_swept_by_the_next(world: LostWorld) -> None:
    fence(world.group, "dies")
    assert world.sweep.begin(1_000, world.done.append)
    fence(world.group, "lives")
    world.turns()
    assert unswept(world.group) == []
    assert connected(world.group) == []


# --- slots that are sealed on the way --------------------------------------------------------------------

HALF = slot_bits(range(0, SLOTS, 2))


def step(group: Group, name: str, slots: bytes = HALF) -> None:
    do(group, methods.GROUP_COMMAND, GroupCommand(name, 1, 1, slots=slots, other=1))


def test_a_pass_over_half_of_the_slots_sweeps_no_fence_once_the_others_are_back(world: LostWorld) -> None:
    """The note that ends the pass waits in the queue; the unsealing, which has a lane in front of it, overtakes it."""
    fence(world.group, "dies")
    step(world.group, "seal")
    world.waits = lambda body: bool(body.swept)
    world.turns()
    step(world.group, "unseal")
    world.let_go()
    assert unswept(world.group) == ["dies"]
    world.turns()
    assert unswept(world.group) == []
    assert connected(world.group) == [f"c{number:03}" for number in range(0, 60, 2)]


def test_a_pass_in_which_slots_go_and_come_back_looks_at_all_rows_again(world: LostWorld) -> None:
    """While slots are sealed their rows are passed over, and a move that is given up brings no other rows: nothing but
    the slots themselves says that some were not looked at."""
    group = world.group
    fence(group, "dies")
    slots = slot_bits([SESSION.slot_of(SESSION.key_of(["t", name])) for name in LOST[BATCH : 2 * BATCH]])
    assert world.sweep.begin(1_000, world.done.append)
    step(group, "seal", slots)
    assert world.sweep.begin(1_000, world.done.append)
    step(group, "unseal", slots)
    world.turns()
    assert {name for batch in world.asked for name in batch} == {*LOST}
    assert unswept(group) == []


def test_a_pass_that_was_begun_before_sessions_came_sweeps_no_fence(world: LostWorld) -> None:
    """They may be in front of the place to which it has come; and while slots are sealed it has not seen their rows."""
    group = world.group
    fence(group, "dies")
    (item,) = group.machine.parts[Fences].unswept()
    here = group.machine.holding.adopted_move

    def lose(adopted_move: int) -> None:
        body = SessionLose([], [item], adopted_move, group.machine.holding.slots)
        do(group, methods.SESSION_LOSE, body)

    lose(here + 1)
    assert unswept(group) == ["dies"], "it knew of a move that this group has not adopted"
    step(group, "seal")
    lose(here)
    assert unswept(group) == ["dies"], "it cannot have seen what is sealed"
    step(group, "unseal")
    lose(here)
    assert unswept(group) == []


def test_sessions_of_slots_that_the_group_does_not_hold_are_not_named(world: LostWorld) -> None:
    group = world.group
    gone = LOST[:3]
    slots = slot_bits([SESSION.slot_of(SESSION.key_of(["t", name])) for name in gone])
    step(group, "seal", slots)
    fence(group, "dies")
    assert world.sweep.begin(1_000, world.done.append)
    assert world.asked == [[name for name in LOST if name not in gone][:BATCH]]
    assert world.done == [BATCH], "the group refuses all of them where it does not hold one"


def test_nothing_is_read_while_a_snapshot_is_installed(world: LostWorld) -> None:
    fence(world.group, "dies")
    world.driver.installing = True
    assert world.turns() == 0
    assert (world.begins, world.asked) == ([], [])
