"""Membership, and handing over."""

from __future__ import annotations

import contextlib

from metad.raft.base import CANDIDATE, LEADER
from metad.raft.messages import Append, Configuration, PreVote, TimeoutNow, Vote
from metad.raft.roles.membership import CAUGHT_UP_ENTRIES, ChangeRefusedError

from .scene import ELECTION_S, LEASE_S, PARTED, TIMING, Scene, scenario, started


def _learner(scene: Scene, name: str) -> None:
    scene.node(name).join(scene.world.groups[0])
    index = scene.do("n1", lambda group: group.add_learner(name))
    scene.committed("n1", index)
    scene.until(lambda: scene.group(name).log.durable_index >= index)
    scene.run(0.2)


@scenario
def one_change_at_a_time() -> None:
    """The change before is not committed."""
    scene = started(3, spares=2)
    scene.isolate("n1")
    scene.do("n1", lambda group: group.add_learner("n4"))
    scene.refused("n1", lambda group: group.add_learner("n5"))
    scene.refused("n1", lambda group: group.remove("n3"))


@scenario
def no_change_before_an_entry_of_the_term() -> None:
    """n1's change is in its log alone. n2, which does not know of it, leads and must not change anything before it has
    committed an entry: the majorities of the two changes need not overlap."""
    scene = started(4, spares=1)
    scene.isolate("n1")
    scene.node("n5").join(scene.world.groups[0])
    scene.do("n1", lambda group: group.add_learner("n5"))
    scene.hold(Append, source="n2")
    scene.elect("n2")
    scene.refused("n2", lambda group: group.remove("n1"))
    scene.converge()


@scenario
def configuration_goes_with_the_log() -> None:
    """A change that another leader's log does not have is undone, also in memory, and after a restart."""
    scene = started(3, spares=1)
    scene.isolate("n1")
    scene.do("n1", lambda group: group.add_learner("n4"))
    assert scene.group("n1").configuration.learners == ("n4",)
    scene.run(0.02)
    scene.ready("n2")
    scene.write("n2", 1)
    scene.heal()
    scene.until(lambda: scene.group("n1").log.last_term == scene.group("n2").term)
    assert scene.group("n1").configuration == Configuration(("n1", "n2", "n3"))
    scene.run(0.1)
    scene.crash("n1")
    scene.start("n1")
    assert scene.group("n1").configuration == Configuration(("n1", "n2", "n3"))


@scenario
def configuration_survives_a_restart() -> None:
    """Who decides is in the log, not in what a node was started with; also when that part of the log is gone."""
    for compact in (False, True):
        scene = started(3, spares=1)
        _learner(scene, "n4")
        index = scene.do("n1", lambda group: group.promote("n4"))
        scene.committed("n1", index)
        scene.write("n1", 1)
        scene.run(0.2)
        if compact:
            for name in scene.names:
                scene.node(name).state_disk.sync()
                scene.hosted(name).log.compact(scene.group(name).applied)
            scene.run(0.01)
            scene.put("n1", 2)
            scene.run(0.2)
        scene.crash(*scene.names)
        scene.start(*scene.names)
        for name in scene.names:
            assert scene.group(name).configuration == Configuration(("n1", "n2", "n3", "n4"))
        scene.isolate("n1", "n2")
        scene.run(2.0)
        assert not any(scene.leads(name) for name in scene.names), "two of four lead"
        scene.converge()


@scenario
def learner_does_not_count() -> None:
    """Leader and learner have an entry: one voter of three."""
    scene = started(3, spares=1)
    _learner(scene, "n4")
    scene.isolate("n2", "n3")
    answer = scene.put("n1", 1)
    scene.run(0.2)
    assert scene.group("n4").log.durable_index == scene.group("n1").log.last_index
    assert answer.outcome != "done", "a learner's acknowledgement was counted"
    scene.converge()


@scenario
def learner_is_promoted_when_it_has_caught_up() -> None:
    """n4 counts for a majority from the moment it has a vote: it must have nearly everything by then."""
    scene = started(3, spares=1)
    _learner(scene, "n4")
    scene.isolate("n4")
    for value in range(CAUGHT_UP_ENTRIES + 2):
        scene.put("n1", value)
    scene.run(0.1)
    scene.refused("n1", lambda group: group.promote("n4"))
    scene.heal()
    scene.until(lambda: scene.group("n1").peers["n4"].match == scene.group("n1").log.last_index)
    scene.do("n1", lambda group: group.promote("n4"))
    scene.converge()


@scenario
def learner_does_not_campaign() -> None:
    """A learner that hears nobody stays quiet."""
    scene = started(3, spares=1)
    _learner(scene, "n4")
    scene.isolate("n4")
    before = len(scene.sent)
    scene.run(3.0)
    assert not any(isinstance(m, (PreVote, Vote)) and s == "n4" for s, _, m in scene.sent[before:])
    scene.converge()


@scenario
def new_configuration_counts_at_once() -> None:
    """Three voters become four: from the moment the change is in the log, two are no majority."""
    scene = started(3, spares=1)
    _learner(scene, "n4")
    scene.isolate("n3", "n4")
    index = scene.do("n1", lambda group: group.promote("n4"))
    scene.run(0.3)
    assert scene.group("n1").commit < index, "two of four have committed"
    scene.converge()


@scenario
def removed_replica_is_harmless() -> None:
    """n3 was cut off when it was removed, comes back and thinks that it is a voter."""
    scene = started()
    scene.isolate("n3")
    index = scene.do("n1", lambda group: group.remove("n3"))
    scene.committed("n1", index)
    term = scene.group("n1").term
    scene.heal()
    scene.run(4.0)
    assert scene.leads("n1")
    assert scene.group("n1").term == term, "a removed replica ended a leadership"
    scene.write("n1", 1)


@scenario
def leader_that_removes_itself_leads_until_then() -> None:
    """It commits its removal without counting itself, then goes, and one of the others takes over soon."""
    scene = started()
    scene.write("n1", 1)
    index = scene.do("n1", lambda group: group.remove("n1"))
    scene.until(lambda: not scene.leads("n1"), 0.2, "it leads on")
    assert scene.group("n1").commit >= index
    scene.until(lambda: any(scene.leads(name) for name in ("n2", "n3")), 0.2, "nobody takes over")
    scene.run(3.0)
    leader = scene.world.leader()
    assert leader in ("n2", "n3")
    scene.write(leader, 2)
    assert scene.group("n1").role != LEADER


@scenario
def leader_that_removes_itself_leads_while_earlier_entries_are_committed() -> None:
    """Its removal is in its log, and an entry before it is committed: the removal may yet be lost."""
    scene = started()
    scene.write("n1", 1)
    answer = scene.put("n1", 2)
    scene.run(0.001)  # it is under way
    scene.hold(Append, source="n1")
    index = scene.do("n1", lambda group: group.remove("n1"))
    scene.until(lambda: answer.outcome == "done", 0.1)
    assert scene.group("n1").commit < index
    assert scene.leads("n1"), "it has gone before anybody knows of its removal"
    scene.open()
    scene.release()
    scene.until(lambda: not scene.leads("n1"), 0.3, "it leads on")


@scenario
def leader_that_removes_itself_does_not_count_itself() -> None:
    """Of the two voters that are left, one is not enough."""
    scene = started()
    scene.isolate("n3")
    scene.hold(Append, source="n1", target="n2")
    index = scene.do("n1", lambda group: group.remove("n1"))
    scene.run(0.1)
    assert scene.group("n1").commit < index
    scene.open()
    scene.run(0.3)
    assert scene.group("n1").commit < index, "n2 alone has committed for n2 and n3"
    scene.converge()


@scenario
def replica_whose_removal_is_not_committed_campaigns() -> None:
    """n2 removes itself from two and crashes before n1 hears of it. n1's log is the shorter one: only n2 can lead."""
    scene = Scene(2)
    scene.run(0.011)
    scene.ready("n2")
    scene.run(0.2)
    scene.isolate("n1")
    scene.do("n2", lambda group: group.remove("n2"))
    scene.run(0.05)
    scene.crash("n2")
    scene.start("n2")
    scene.converge(8.0)
    assert scene.group("n1").configuration == Configuration(("n1",))


# --- handing over ----------------------------------------------------------------------------------------


@scenario
def hand_over_is_quick_and_loses_nothing() -> None:
    """Entries under way are committed by either; new ones are refused until it is decided."""
    scene = started()
    answers = [scene.put("n1", value) for value in range(3)]
    scene.do("n1", lambda group: group.transfer("n3"))
    late = scene.put("n1", 99)
    assert late.outcome == "refused"
    scene.until(lambda: scene.leads("n3"), 0.05, "n3 does not lead soon")
    scene.until(lambda: scene.group("n3").ready, 0.05)
    assert scene.value("n3") == 2
    scene.run(0.1)
    assert all(answer.outcome in ("done", "unknown") for answer in answers)
    scene.converge()


@scenario
def hand_over_waits_for_the_successor() -> None:
    """n3 lacks entries: it is not told to campaign before, or it would end one leadership and begin none."""
    scene = started()
    scene.hold(Append, source="n1", target="n3")
    scene.write("n1", 1)
    scene.do("n1", lambda group: group.transfer("n3"))
    scene.run(0.2)
    assert not any(isinstance(m, TimeoutNow) for _, _, m in scene.sent)
    scene.open()
    scene.until(lambda: scene.leads("n3"), 0.3, "n3 does not lead soon")
    scene.converge()


@scenario
def hand_over_to_one_that_is_lost_is_given_up_at_once() -> None:
    """It may be ending itself: the group need not wait until the time for hand-overs has passed."""
    scene = started()
    scene.hold(TimeoutNow, source="n1", target="n3")
    scene.do("n1", lambda group: group.transfer("n3"))
    scene.run(0.1)
    assert not scene.group("n1").accepting
    scene.crash("n3")
    scene.until(lambda: scene.group("n1").accepting, 0.1, "n1 takes no more writes")
    scene.write("n1", 1)
    scene.converge()


@scenario
def hand_over_to_one_that_falls_behind_stops_the_group_for_a_moment() -> None:
    """n3 was level when it was chosen, and is not brought up to date in time. Whoever wished for it wishes again at
    once, as the keeper of the map does."""
    scene = started(timing=PARTED)
    scene.hold(Append, source="n1", target="n3")
    scene.write("n1", 1)
    begun_s, stopped_s = scene.world.clock.now, 0.0
    while scene.world.clock.now < begun_s + 3.0:
        if scene.group("n1").accepting:
            with contextlib.suppress(ChangeRefusedError):
                scene.do("n1", lambda group: group.transfer("n3"))
        stopped_s += 0.0 if scene.group("n1").accepting else 0.01
        scene.run(0.01)
    assert stopped_s, "n1 was to begin"
    assert stopped_s <= LEASE_S + 0.05, f"the group stood still for {stopped_s:.2f} s"
    scene.write("n1", 2)
    scene.converge()


@scenario
def hand_over_that_fails_is_given_up() -> None:
    """The one that is to lead does not hear of it."""
    scene = started()
    scene.hold(TimeoutNow, source="n1", target="n3")
    scene.do("n1", lambda group: group.transfer("n3"))
    scene.run(0.1)
    assert not scene.group("n1").accepting
    scene.until(lambda: scene.group("n1").accepting, 2 * ELECTION_S + 0.2, "n1 takes no more writes")
    scene.write("n1", 1)
    scene.converge()


@scenario
def hand_over_counts_for_the_campaign_that_was_ordered() -> None:
    """n2 is ordered to campaign, and nobody hears of it. Its next campaign is its own, so it must not ask others to
    vote against a leader that they hear."""
    scene = started()
    scene.hold(Vote, source="n2", lose=True)
    scene.do("n1", lambda group: group.transfer("n2"))
    scene.until(lambda: scene.group("n2").role == CANDIDATE, 0.1)
    scene.isolate("n1")
    scene.ranks("n2")
    ordered = scene.group("n2").term
    scene.until(lambda: scene.group("n2").role == CANDIDATE and scene.group("n2").term > ordered, 5.0)
    scene.run(0.01)
    votes = {(m.term, m.transfer) for s, _, m in scene.sent if isinstance(m, Vote) and s == "n2"}
    assert (ordered, True) in votes
    assert {transfer for term, transfer in votes if term > ordered} == {False}, "its own campaign is at nobody's wish"
    scene.converge()


@scenario
def learner_is_not_ordered_to_lead() -> None:
    """Neither does the leader hand over to a learner, nor does one campaign that is told to."""
    scene = started(3, spares=1)
    _learner(scene, "n4")
    scene.refused("n1", lambda group: group.transfer("n4"))
    before = len(scene.sent)
    scene.world.deliver("n1", "n4", TimeoutNow(scene.group("n1").term))
    scene.run(0.1)
    assert not any(isinstance(m, Vote) for _, _, m in scene.sent[before:]), "a learner campaigns"
    scene.converge()


@scenario
def order_to_campaign_counts_of_the_leader_and_its_term_only() -> None:
    """n3 does not lead. n1 has given its order in an earlier term, in which it led, too: promises to it count now."""
    scene = started()
    n2 = scene.group("n2")
    term = n2.term
    for peer, of in (("n3", term), ("n1", term - 1)):
        scene.world.deliver(peer, "n2", TimeoutNow(of))
        scene.run(0.1)
        assert n2.term == term, f"it campaigns because {peer} has said so in term {of}"
    scene.converge()


@scenario
def hand_over_and_change_wait_for_each_other() -> None:
    """A successor might lack the change, or begin another."""
    scene = started(3, spares=1)
    scene.hold(Append, lose=True)
    scene.do("n1", lambda group: group.add_learner("n4"))
    scene.refused("n1", lambda group: group.transfer("n2"))
    scene.open()
    scene.node("n4").join(scene.world.groups[0])
    scene.run(0.3)
    scene.hold(TimeoutNow)
    scene.do("n1", lambda group: group.transfer("n2"))
    scene.refused("n1", lambda group: group.promote("n4"))
    scene.refused("n1", lambda group: group.remove("n3"))
    scene.converge()


@scenario
def only_voter_is_not_removed() -> None:
    """Nobody would be left to decide anything."""
    scene = Scene(1, spares=1)
    scene.run(0.011)
    scene.ready("n1")
    _learner(scene, "n2")
    scene.refused("n1", lambda group: group.remove("n1"))


@scenario
def removed_peer_is_forgotten_by_its_leader() -> None:
    """What is left of it would keep the group from sleep, and get the entries of a group that it is not in."""
    scene = started(timing=TIMING._replace(sleep_after_s=0.3))
    index = scene.do("n1", lambda group: group.remove("n3"))
    scene.committed("n1", index)
    assert "n3" not in scene.group("n1").peers
    before = len(scene.sent)
    scene.write("n1", 1)
    assert not any(isinstance(m, Append) and t == "n3" for _, t, m in scene.sent[before:])
    scene.until(lambda: scene.group("n1").asleep, 3.0, "the group does not sleep")
