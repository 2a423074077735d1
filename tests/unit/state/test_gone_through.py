"""Fences whose partitions were gone through: what comes with slots is gone through anew."""

from __future__ import annotations

from assignment_rig import World

from metad.state.cluster.fences import Fences
from metad_wire import methods
from metad_wire.tables.assignment import AssignmentStep


async def test_a_note_that_all_was_gone_through_counts_only_if_no_slots_have_come_since() -> None:
    world = World("b1")
    fences = world.rig.group.machine.parts[Fences]
    holding = world.rig.group.machine.holding
    world.live("b1", epoch=2)
    items = fences.unstepped()
    assert [item.broker for item in items] == ["b1"]
    for slots, adopted_move in ((holding.slots, holding.adopted_move + 1), (b"", holding.adopted_move)):
        late = AssignmentStep([], stepped=items, slots=slots, adopted_move=adopted_move)
        world.rig.write(methods.ASSIGNMENT_STEP, late)
        assert fences.unstepped() == items
    timely = AssignmentStep([], stepped=items, slots=holding.slots, adopted_move=holding.adopted_move)
    world.rig.write(methods.ASSIGNMENT_STEP, timely)
    assert fences.unstepped() == []


async def test_a_broker_that_nobody_named_is_looked_for_again_when_slots_have_come() -> None:
    world = World("b1", "b2")
    world.live("b1", epoch=2)
    await world.look()
    (led,) = world.chore._led.values()
    assert "b1" in led.through
    led.slots = b"others", 7  # as if those that the group holds had come meanwhile
    world.live("b2", epoch=2)
    led.through["b3"] = 1, True, 0, 0
    await world.look()
    assert "b3" not in led.through
    holding = world.rig.group.machine.holding
    assert led.slots == (holding.slots, holding.adopted_move)
