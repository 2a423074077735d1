"""What ``assignment.explain`` says that a partition waits for: the words, and that they are true."""

from __future__ import annotations

from assignment_rig import World, key_of

from metad_wire import methods
from metad_wire.messages import Owner
from metad_wire.tables.assignment import Claim, Elect, InSync, ReportPosition

BROKERS = ["b1", "b2", "b3"]
FORCE = "only force helps, and records may be lost: partitions elect --force, or force_after_ms of the resource"


def lacking(world: World, name: str) -> dict[str, str]:
    return {one.broker: one.lacks for one in world.explained(name).candidates}


async def test_the_replicas_of_an_external_election_are_waited_for_while_they_live() -> None:
    world = World("b1", "b2")
    world.create("q", ["b1", "b2"], election="external")
    said = world.explained("q").next
    assert said == "waits until the replicas (b1, b2) have elected one, and that says so by a claim"
    world.live("b2", live=False)
    await world.look()
    said = world.explained("q").next
    assert said == "waits until the replicas (b1, b2 (dead)) have elected one, and that says so by a claim"
    world.say(methods.ASSIGNMENT_CLAIM, Claim("t", "q", "topic", 0, "b1", 1, 9))
    assert world.partition("q").leader == Owner("b1", 1)
    world.live("b1", live=False)
    await world.look()
    assert world.explained("q").next == "waits for one of b1, b2 to live"


async def test_who_is_not_in_sync_is_named_while_nothing_is_acknowledged() -> None:
    world = World(*BROKERS)
    world.create("orders", BROKERS, min_isr=2, repair_after_ms=0)
    assert world.explained("orders").next == "nothing is to be done"
    world.live("b3", live=False)
    await world.look()
    p = world.partition("orders")
    assert (len(p.isr), world.explained("orders").next) == (2, "nothing is to be done")
    alone = InSync(*key_of(p), "b1", 1, p.leader_epoch, p.partition_epoch, [Owner("b1", 1)])
    world.say(methods.ASSIGNMENT_IN_SYNC, alone)
    said = world.explained("orders").next
    assert said == "nothing is acknowledged until 2 are in sync: b2, b3 (dead) are not"
    world.plan("away", "drain", "b3")
    world.live("b4")
    await world.look()
    said = world.explained("orders").next
    assert said == (
        "nothing is acknowledged until 2 are in sync: b2, b3 (dead), b4 are not; "
        "waits to end the move until b2, b4 are in sync"
    )


async def test_only_force_helps_once_all_in_sync_began_unclean() -> None:
    world = World("b1", "b2")
    world.create("orders", ["b1", "b2"], min_isr=2)
    world.live("b2", live=False)
    await world.look()
    world.live("b1", live=False)
    await world.look()
    said = world.explained("orders").next
    assert said == "waits for one of b1, b2 to live"
    world.live("b1", epoch=2, unclean=True)
    await world.look()
    said = world.explained("orders").next
    assert said == "waits for b2 to live: nobody else has every acknowledged record for certain"
    world.live("b2", epoch=2, unclean=True)
    await world.look()
    said = world.explained("orders").next
    assert said == f"nobody has every acknowledged record for certain; in sync last: b2; {FORCE}"
    world.say(methods.ASSIGNMENT_ELECT, Elect("t", "orders", "topic", 0, force=True))
    led = world.partition("orders").leader
    assert led is not None
    assert led.broker_epoch == 2


async def test_positions_that_do_not_count_are_not_waited_for() -> None:
    world = World(*BROKERS)
    world.create("master", BROKERS, election="position", copies=2)
    world.live("b1", live=False)
    await world.look()
    p = world.partition("master")
    assert world.explained("master").next == (
        "waits for positions: 0 of 2 replicas that count have reported; b1 (dead), b2, b3 have not"
    )
    world.live("b2", epoch=2, unclean=True)
    world.say(methods.ASSIGNMENT_REPORT, ReportPosition(*key_of(p), "b2", 2, p.leader_epoch, 1, 5))
    said = world.explained("master").next
    assert said == "waits for positions: 0 of 2 replicas that count have reported; b1 (dead), b3 have not"
    assert lacking(world, "master")["b2"] == "it began without all that it had: its position does not count"
    world.live("b1", "b3", epoch=2, unclean=True)
    for name in ("b1", "b3"):
        world.say(methods.ASSIGNMENT_REPORT, ReportPosition(*key_of(p), name, 2, p.leader_epoch, 1, 4))
    said = world.explained("master").next
    assert said == (f"the positions of 2 replicas are needed, and b1, b2, b3 may lack what they acknowledged: {FORCE}")
    world.say(methods.ASSIGNMENT_ELECT, Elect("t", "master", "topic", 0, force=True))
    assert world.partition("master").leader == Owner("b2", 2)


async def test_a_repair_that_finds_nobody_says_so() -> None:
    world = World("b1", "b2")
    world.create("orders", ["b1", "b2"], repair_after_ms=1_000)
    world.live("b2", live=False)
    await world.look(0.25)
    said = world.explained("orders").next
    assert said == "another broker gets the replica of b2 if that does not return in time"
    await world.look(5)
    said = world.explained("orders").next
    assert said == "no broker that lives may get the replica of b2, dead for long: it is looked for again"


async def test_a_task_without_an_owner_waits_for_any_broker() -> None:
    world = World("b1")
    world.create("task", ["b1"], election="owner")
    world.live("b1", live=False)
    await world.look()
    assert world.explained("task").next == "waits for a broker to live that may own it"
