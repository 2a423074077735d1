"""Disks that hang, and disks that are short of room."""

from __future__ import annotations

from metad.raft.base import FULL, LOW, ROOM
from metad.raft.log.journal import DISK_ELECTIONS
from metad.raft.messages import Append
from metad.raft.roles.leadership import Sending

from .scene import ELECTION_S, TIMING, scenario, started

_HANGS_S = DISK_ELECTIONS * ELECTION_S


@scenario
def leader_whose_disk_hangs_hands_over() -> None:
    """Its heartbeats are fine, and it can apply nothing that it has not on its own disk: nobody would get an answer."""
    scene = started()
    scene.write("n1", "old")
    scene.node("n1").hang_disk()
    scene.put("n1", "waits")
    scene.run(_HANGS_S - 0.2)
    assert scene.leads("n1"), "disks do take a second now and then"
    scene.until(lambda: scene.leads("n2") or scene.leads("n3"), 0.5, "nobody else leads")
    assert not scene.leads("n1")
    leader = "n2" if scene.leads("n2") else "n3"
    scene.until(lambda: scene.group(leader).ready)
    scene.write(leader, "new")
    scene.run(4 * ELECTION_S)
    assert scene.leads(leader), "who cannot vote for itself campaigns"
    assert scene.group("n1").term == scene.group(leader).term
    scene.node("n1").unhang_disk()
    scene.converge()


@scenario
def leader_whose_disk_hangs_leads_on_where_others_cannot() -> None:
    """n3 is gone: without n1 there is no quorum. Its disk comes back."""
    scene = started()
    scene.crash("n3")
    scene.node("n1").hang_disk()
    answer = scene.put("n1", "waits")
    scene.run(2 * _HANGS_S)
    assert scene.leads("n1")
    scene.node("n1").unhang_disk()
    scene.until(lambda: bool(answer.outcome))
    assert answer.outcome == "done"
    scene.converge()


@scenario
def pause_is_not_taken_for_a_disk_that_hangs() -> None:
    """n1 gets no CPU for long. What its disk has done meanwhile it hears behind much else."""
    scene = started()
    node = scene.node("n1")
    node.hang_disk()
    scene.put("n1", 1)
    scene.run(0.01)
    node.pause(_HANGS_S + 1.0)
    scene.until(lambda: scene.world.clock.now >= node.paused_until + 0.01, _HANGS_S + 2.0)
    assert not scene.group("n1")._disk.hangs
    node.unhang_disk()
    scene.converge()


@scenario
def replica_with_a_full_disk_gets_no_entries() -> None:
    """It lives, votes, and has everything soon after there is room. The others go on, and do not sleep meanwhile: they
    would not hear that there is room."""
    scene = started(timing=TIMING._replace(sleep_after_s=0.3))
    group = scene.group("n1")
    scene.node("n3").shortage = FULL
    scene.until(lambda: group.peers["n3"].shortage == FULL, 0.5, "the leader does not hear of it")
    said = len(scene.sent)
    for value in range(5):
        scene.write("n1", value)
    scene.run(1.0)
    to_it = [message for _, target, message in scene.sent[said:] if target == "n3" and isinstance(message, Append)]
    assert not any(message.records for message in to_it), "it has got entries"
    assert not group.asleep
    assert scene.group("n3").leader == "n1"
    assert group.may_grow, "two of three have room"
    scene.node("n3").shortage = ROOM
    scene.until(lambda: scene.group("n3").log.last_index == group.log.last_index, 0.5, "it does not get what it lacks")
    scene.converge()


@scenario
def replica_with_a_full_disk_takes_no_entries_that_are_on_their_way() -> None:
    """Its leader has not heard yet that it is full. What it has not taken it gets when there is room."""
    scene = started()
    group, replica = scene.group("n1"), scene.group("n3")
    scene.write("n1", 1)
    scene.converge()
    last = replica.log.last_index
    scene.node("n3").shortage = FULL
    for value in range(3):
        scene.put("n1", value)
    scene.until(lambda: group.commit == last + 3, 0.5, "two of three do not commit")
    assert replica.log.last_index == last, "it has taken them"
    scene.until(lambda: group.peers["n3"].shortage == FULL, 0.5, "the leader does not hear of it")
    assert replica.leader == "n1"
    scene.node("n3").shortage = ROOM
    scene.until(lambda: replica.log.last_index == group.log.last_index, 1.0, "it does not get what it lacks")
    scene.converge()


@scenario
def replica_that_is_short_of_room_gets_no_snapshot() -> None:
    """It gets one when there is room."""
    scene = started(compact_entries=5, cache_bytes=0)
    scene.isolate("n3")
    for value in range(20):
        scene.write("n1", value)
    scene.node("n3").shortage = LOW
    scene.heal()
    group = scene.group("n1")
    scene.until(lambda: group.peers["n3"].sending is Sending.SNAPSHOT, 1.0, "it does not lack what the log has not")
    scene.run(0.5)
    assert scene.group("n3").applied < group.applied, "it has got a snapshot"
    scene.node("n3").shortage = ROOM
    scene.until(lambda: scene.group("n3").applied == group.applied, 2.0, "it gets no snapshot")
    scene.converge()


@scenario
def group_grows_while_a_quorum_has_room() -> None:
    """And its leader is not the one that has none."""
    scene = started()
    group = scene.group("n1")
    nodes = [scene.node(name) for name in scene.names]

    def said(*shortages: int) -> None:
        for node, shortage in zip(nodes, shortages, strict=True):
            node.shortage = shortage
        scene.until(lambda: all(group.peers[node.name].shortage == node.shortage for node in nodes[1:]), 0.5)

    assert group.may_grow
    assert not group.should_leave
    said(ROOM, LOW, ROOM)
    assert group.may_grow
    said(ROOM, LOW, FULL)
    assert not group.may_grow, "one of three has room"
    assert not group.should_leave, "it is the one that has"
    said(LOW, ROOM, ROOM)
    assert group.may_grow
    assert group.should_leave
    said(FULL, ROOM, ROOM)
    assert not group.may_grow, "this leader can store nothing"
    assert group.should_leave
    said(LOW, LOW, ROOM)
    assert not group.may_grow
    assert not group.should_leave, "the others are no better off"
    assert group.short_of_room() == ["n1", "n2"]


@scenario
def leader_hears_that_a_peer_has_room_again() -> None:
    """Nothing else happens, so a group that slept would never hear of it, and take nothing that grows."""
    scene = started(timing=TIMING._replace(sleep_after_s=0.3))
    group = scene.group("n1")
    for name in ("n2", "n3"):
        scene.node(name).shortage = LOW
    scene.until(lambda: not group.may_grow, 0.5)
    scene.run(0.5)
    said = len(scene.sent)
    scene.run(1.0)
    assert not any(isinstance(message, Append) and message.sleep for _, _, message in scene.sent[said:])
    for name in ("n2", "n3"):
        scene.node(name).shortage = ROOM
    scene.until(lambda: group.may_grow, 0.5, "the leader does not hear that there is room")
    scene.until(lambda: group.asleep, 1.0, "the group does not sleep")
