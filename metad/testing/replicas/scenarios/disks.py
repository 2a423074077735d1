"""Disks that hang."""

from __future__ import annotations

from ....raft.disk_watch import DISK_ELECTIONS
from .scene import ELECTION_S, scenario, started

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
