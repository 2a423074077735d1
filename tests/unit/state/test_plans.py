"""What plans move, and what not."""

from __future__ import annotations

from assignment_rig import World

from metad.state.assignment.fleet import Placing
from metad_wire import methods
from metad_wire.tables.assignment import ResourceCreate
from metad_wire.tables.broker import BrokerChange, BrokerStep


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
    world.say(methods.ASSIGNMENT_CREATE, item)
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
    """A partition with fewer replicas than its min_isr is not moved: once that was proposed, and counted, for ever."""
    world = World("b1", "b2", "b3", "b4")
    world.say(
        methods.ASSIGNMENT_CREATE,
        ResourceCreate("t", "lone", "topic", replication=2, min_isr=2, replicas=[["b1"]]),
    )
    world.plan("away", "drain", "b1")
    await world.look(3)
    assert world.moves() == []
    assert (world.known("away").state, world.known("away").begun) == ("running", 0)

    world.create("pair", ["b4", "b3"], ["b3", "b4"])
    world.plan("other", "drain", "b4")
    world.before = lambda: world.live("b1", "b2", live=False)
    await world.look()
    assert len(world.moves()) == 2, "they were proposed while somebody lived who could have them"
    assert all(p.move is None for p in world.partitions())
    assert world.known("other").begun == 0


async def test_a_dead_broker_can_be_drained() -> None:
    world = World("b1", "b2", "b3")
    world.create("orders", ["b1", "b2"], ["b2", "b1"], repair_after_ms=0)
    world.live("b1", live=False)
    await world.look()
    world.plan("away", "drain", "b1")
    await world.settled()
    assert [sorted(p.replicas) for p in world.partitions()] == [["b2", "b3"], ["b2", "b3"]]
    assert world.known("away").state == "done"


async def test_nothing_moves_to_a_broker_that_drains_by_itself() -> None:
    world = World("b1", "b2", "b3")
    world.create("orders", ["b1", "b2"])
    known = world.rig.group.machine.parts[Placing].fleet.look("b3")
    assert known is not None
    step = BrokerStep("drain", "b3", known.broker_epoch)
    (drains,) = world.rig.write(methods.BROKER_CHANGE, BrokerChange([step], 0)).brokers
    assert drains.state == "draining"
    for name, rule, brokers in (("away", "drain", ["b1"]), ("more", "add", ["b3"]), ("even", "rebalance", [])):
        world.plan(name, rule, *brokers)
    await world.look(3)
    assert world.moves() == []
    world.live("b4")
    await world.settled()
    assert [sorted(p.replicas) for p in world.partitions()] == [["b2", "b4"]]
