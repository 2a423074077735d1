"""Votes and terms: who may lead, and until when."""

from __future__ import annotations

from metad.raft.base import CANDIDATE, FOLLOWER, LEADER
from metad.raft.messages import Append, PreVote, PreVoteReply, Vote, VoteReply

from .scene import ELECTION_S, Scene, diverged, scenario, started


def asked_for_votes() -> Scene:
    """n1 has asked for votes, and what the others answer is held."""
    scene = Scene()
    scene.run(0.011)
    scene.hold(VoteReply)
    scene.ranks("n1")
    scene.until(lambda: any(isinstance(m, VoteReply) for _, _, m in scene.held))
    return scene


@scenario
def vote_waits_for_the_disk() -> None:
    """A vote that is out but not on the disk is given a second time after a power failure."""
    scene = Scene(fsync=(0.05, 0.05))
    scene.run(0.011)
    scene.elect("n1", 2.0)


@scenario
def vote_survives_power_failure() -> None:
    """n2 has voted for n1 in term 1; it must remember that when n3 asks in the same term."""
    scene = Scene()
    scene.run(0.011)
    scene.hold(VoteReply)
    scene.ranks("n1")
    scene.until(lambda: any(isinstance(m, VoteReply) and s == "n2" for s, _, m in scene.sent))
    scene.crash("n2")
    scene.start("n2")
    assert scene.group("n2").vote == "n1"
    before = len(scene.sent)
    scene.run(ELECTION_S)
    scene.world.deliver("n3", "n2", Vote(1, 0, 0))
    scene.run(0.01)
    assert not any(isinstance(m, VoteReply) and m.granted and t == "n3" for _, t, m in scene.sent[before:])


@scenario
def votes_are_voters() -> None:
    """The network delivers one vote many times over: that is still one voter of five."""
    scene = Scene(5)
    scene.run(0.011)
    scene.hold(VoteReply)
    scene.ranks("n1")
    scene.until(lambda: any(s == "n2" and t == "n1" for s, t, _ in scene.held))
    vote = next((s, t, m) for s, t, m in scene.held if s == "n2" and t == "n1")
    for _ in range(5):
        scene.world.deliver(*vote)
    assert not scene.leads("n1"), "n1 leads by two votes of five"


@scenario
def votes_are_members() -> None:
    """Whoever is no voter has no say."""
    scene = Scene(3, spares=2)
    scene.run(0.011)
    scene.hold(VoteReply)
    scene.ranks("n1")
    scene.until(lambda: any(isinstance(m, VoteReply) for _, _, m in scene.held))
    for stranger in ("n4", "n5"):
        scene.world.deliver(stranger, "n1", VoteReply(scene.group("n1").term, granted=True))
    assert not scene.leads("n1"), "n1 leads by the votes of strangers"


@scenario
def refusals_are_no_votes() -> None:
    """Both others answer that they do not vote for n1."""
    scene = asked_for_votes()
    for peer in ("n2", "n3"):
        scene.world.deliver(peer, "n1", VoteReply(scene.group("n1").term, granted=False))
    assert not scene.leads("n1"), "n1 leads by refusals"


@scenario
def one_vote_a_term() -> None:
    """n3 asks in a term in which n2 has voted for n1."""
    scene = asked_for_votes()
    scene.world.deliver("n3", "n2", Vote(scene.group("n2").term, 5, 5))
    scene.run(0.02)


@scenario
def vote_needs_the_newer_log() -> None:
    """n3 lacks what n1 and n2 have committed, and asks n2 for its vote."""
    scene = started()
    scene.isolate("n3")
    scene.write("n1", 1)
    scene.crash("n1")
    scene.heal()
    scene.ranks("n3")
    scene.run(ELECTION_S + 0.05)
    before = len(scene.sent)
    scene.world.deliver("n3", "n2", Vote(scene.group("n2").term + 1, scene.group("n3").log.last_index, 1, True))
    scene.run(0.2)
    assert not any(isinstance(m, VoteReply) and m.granted and t == "n3" for _, t, m in scene.sent[before:])
    assert not scene.leads("n3")
    scene.converge()
    assert scene.value("n3") == 1


@scenario
def consent_needs_the_newer_log() -> None:
    """n2 has just consented to the campaign of n1, so it gives way. n3 lacks what n2 has, and asks whether it would be
    elected: it would not, so it raises no term."""
    scene = started()
    scene.isolate("n3")
    scene.write("n1", 1)
    scene.crash("n1")
    scene.hold(PreVote)
    scene.run(2 * ELECTION_S)
    n2, n3 = scene.group("n2"), scene.group("n3")
    scene.world.deliver("n1", "n2", PreVote(n2.term + 1, 1 << 20, n2.term))
    assert n2._elections._would_vote is None
    before = len(scene.sent)
    scene.world.deliver("n3", "n2", PreVote(n2.term + 1, n3.log.last_index, n3.log.last_term))
    scene.run(0.05)
    assert not any(isinstance(m, PreVoteReply) and m.granted and s == "n2" for s, _, m in scene.sent[before:])


@scenario
def consent_that_nobody_waits_for_counts_for_nothing() -> None:
    """n2 has asked, has heard the leader since, and hears now that n3 would elect it in the next term."""
    scene = started()
    term = scene.group("n2").term
    scene.world.deliver("n3", "n2", PreVoteReply(term + 1, granted=True))
    scene.run(0.2)
    assert scene.leads("n1")
    assert scene.group("n2").term == term


@scenario
def newer_term_beats_longer_log() -> None:
    """n3 has many entries of term 1, n2 fewer, but of term 2, and they are committed."""
    scene = diverged()
    assert scene.group("n3").log.last_index > scene.group("n2").log.last_index
    scene.crash("n1")
    scene.heal()
    scene.ranks("n3")
    scene.run(3.0)
    assert scene.leads("n2")
    scene.converge()


@scenario
def pre_vote_keeps_the_term() -> None:
    """A replica that was cut off comes back and does not end a leadership."""
    scene = started()
    term = scene.group("n1").term
    scene.isolate("n3")
    scene.run(4.0)
    scene.heal()
    scene.run(2.0)
    assert scene.leads("n1")
    assert scene.group("n3").term == scene.group("n1").term == term, "the one that was cut off ended a leadership"


@scenario
def living_leader_is_not_voted_against() -> None:
    """n2 wants to lead while n3 hears n1. If n3 let it, n1's lease would be a lie."""
    scene = started()
    scene.write("n1", 1)
    scene.hold(target="n1")  # n1 is not told
    scene.hold(Append, source="n1", target="n2")
    n2 = scene.group("n2")
    scene.do("n2", lambda group: group._elections._campaign(transfer=False))
    scene.run(0.05)
    if n2.role == LEADER:
        scene.until(lambda: n2.ready)
        scene.write("n2", 2)
        scene.get("n1")
        raise AssertionError("n3 voted against a leader that it hears")


@scenario
def promise_outlives_a_restart() -> None:
    """n3 has just echoed n1's round, and restarts. It must still not vote for n2, for n1 reads by lease."""
    scene = started()
    scene.write("n1", 1)
    scene.world.network.cut_both("n1", "n2")
    scene.run(1.0)
    scene.isolate("n1")
    scene.crash("n3")
    scene.world.network.heal("n2", "n3")
    scene.start("n3")
    scene.run(0.02)  # connected
    scene.group("n2")._timer.deadline_s = 0.0
    scene.do("n2", lambda group: group.wake())
    scene.run(0.05)
    if scene.leads("n2"):
        scene.until(lambda: scene.group("n2").ready, 0.2)
        scene.write("n2", 2)
        scene.get("n1")
        raise AssertionError("n3 forgot its promise")


@scenario
def isolated_leader_steps_down() -> None:
    """A leader that hears from nobody stops being one, so its clients go elsewhere."""
    scene = started()
    scene.isolate("n1")
    scene.until(lambda: not scene.leads("n1"), 2 * ELECTION_S + 0.2, "n1 still leads though it hears nobody")


@scenario
def replies_end_a_leadership() -> None:
    """An old leader is heard again: the first reply tells it that its term is over."""
    scene = started()
    scene.isolate("n1")
    scene.ready("n2")
    scene.hold(Append, target="n1")
    scene.heal()
    scene.until(lambda: scene.group("n1").term == scene.group("n2").term, 0.3, "n1 does not learn that it was deposed")
    scene.converge()


@scenario
def vote_of_an_earlier_term_counts_for_nothing() -> None:
    """n2 votes for n1 in one term, and n1 hears of it when it campaigns in the next."""
    scene = Scene()
    scene.run(0.011)
    scene.hold(VoteReply)
    scene.ranks("n1")
    scene.until(lambda: any(m.granted for _, _, m in scene.held if isinstance(m, VoteReply)))
    late = [held for held in scene.held if isinstance(held[2], VoteReply)]
    scene.held.clear()
    first = scene.group("n1").term
    scene.hold((PreVote, Vote), lose=True)
    scene.do("n1", lambda group: group._elections._campaign(transfer=False))
    scene.run(0.01)
    assert scene.group("n1").term == first + 1
    for source, target, vote in late:
        scene.world.deliver(source, target, vote)
    assert not scene.leads("n1"), "n1 leads by votes of an earlier term"


@scenario
def votes_of_two_campaigns_do_not_add_up() -> None:
    """n2 votes for n1 in one term and n3 in the next: with its own that is two of five in each."""
    scene = Scene(5)
    scene.run(0.011)
    scene.hold(VoteReply)
    scene.ranks("n1")
    scene.until(lambda: any(isinstance(m, VoteReply) for _, _, m in scene.held))
    group = scene.group("n1")
    scene.world.deliver("n2", "n1", VoteReply(group.term, granted=True))
    scene.hold((PreVote, Vote), lose=True)
    scene.do("n1", lambda group: group._elections._campaign(transfer=False))
    scene.run(0.01)
    scene.world.deliver("n3", "n1", VoteReply(group.term, granted=True))
    assert not scene.leads("n1"), "n1 leads by two votes of five"


@scenario
def late_consent_to_a_campaign_counts_for_nothing() -> None:
    """n1 asks again, in a later term, whether it would be elected, and hears what others said to its first question."""
    scene = started()
    scene.isolate("n1")
    group = scene.group("n1")
    scene.until(lambda: group._elections._would_vote is not None)
    term = group.term
    for peer in ("n2", "n3"):
        scene.world.deliver(peer, "n1", PreVoteReply(term, granted=True))
    assert group.term == term, "it campaigns by an old consent"
    scene.converge()


@scenario
def campaign_in_a_term_that_is_not_new_finds_no_consent() -> None:
    """n3 asks in a term that the others have reached: it is told the term that there is."""
    scene = started()
    scene.hold((PreVote, Vote), lose=True)
    scene.isolate("n1")
    scene.run(2.0)  # nobody is believed any more
    n2 = scene.group("n2")
    before = len(scene.sent)
    scene.world.deliver("n3", "n2", PreVote(n2.term, 1 << 20, n2.term))
    scene.run(0.01)
    replies = [m for s, t, m in scene.sent[before:] if isinstance(m, PreVoteReply) and (s, t) == ("n2", "n3")]
    assert [(m.granted, m.term) for m in replies] == [(False, n2.term)]
    scene.converge()


@scenario
def who_follows_a_leader_votes_for_nobody_else_in_its_term() -> None:
    """n3 follows n1 and has voted for nobody in this term."""
    scene = Scene()
    scene.run(0.011)
    scene.hold(Vote, target="n3", lose=True)
    scene.ready("n1")
    scene.run(0.1)
    n3 = scene.group("n3")
    assert (n3.leader, n3.vote) == ("n1", None)
    before = len(scene.sent)
    scene.world.deliver("n2", "n3", Vote(n3.term, 1 << 20, n3.term, True))
    scene.run(0.01)
    assert not any(isinstance(m, VoteReply) and m.granted for _, _, m in scene.sent[before:])
    scene.converge()


@scenario
def who_knows_no_group_yet_elects_nobody() -> None:
    """n4 is to become a replica, and has not heard from the group. Maybe it was one before, and has forgotten what it
    helped to commit."""
    scene = started(3, spares=1)
    scene.node("n4").join(scene.world.groups[0])
    scene.run(2 * ELECTION_S)
    before = len(scene.sent)
    scene.world.deliver("n3", "n4", PreVote(50, 1 << 20, 49))
    scene.world.deliver("n3", "n4", Vote(50, 1 << 20, 49, True))
    scene.run(0.05)
    replies = [m for s, _, m in scene.sent[before:] if isinstance(m, PreVoteReply | VoteReply) and s == "n4"]
    assert [m.granted for m in replies] == [False, False]


@scenario
def campaign_that_is_overtaken_before_its_vote_is_durable_ends() -> None:
    """n1's disk is slow when it campaigns. Meanwhile it hears of a later term: when its disk is done, it must neither
    vote for itself there nor ask for votes."""
    scene = Scene()
    scene.run(0.011)
    scene.node("n1").fsync_s = lambda: 0.2  # type: ignore[method-assign]
    scene.do("n1", lambda group: group._elections._campaign(transfer=False))
    term = scene.group("n1").term
    scene.world.deliver("n2", "n1", VoteReply(term + 5, granted=False))
    before = len(scene.sent)
    scene.run(0.45)
    asked = [m for s, _, m in scene.sent[before:] if isinstance(m, Vote) and s == "n1"]
    assert not [m for m in asked if m.term == term + 5], "it asks for votes in a term in which it has not campaigned"
    assert "n1" not in scene.group("n1")._elections._votes
    scene.converge()


@scenario
def candidate_that_hears_the_elected_leader_follows() -> None:
    """n3 campaigned in the term that n1 has won."""
    scene = Scene()
    scene.run(0.011)
    scene.hold((Vote, VoteReply, PreVote), lose=True)
    scene.do("n3", lambda group: group._elections._campaign(transfer=False))
    term = scene.group("n3").term
    scene.run(0.02)
    assert scene.group("n3").role == CANDIDATE
    scene.world.deliver("n1", "n3", Append(term, 0, 0, 0, 1))
    assert scene.group("n3").role == FOLLOWER, "who has lost campaigns on"
    assert scene.group("n3").leader == "n1"


@scenario
def leader_that_leads_again_has_a_lease_again() -> None:
    """The rounds of its first leadership say nothing about those of its second."""
    scene = started()
    scene.run(1.0)
    scene.isolate("n1")
    scene.until(lambda: scene.leads("n2") or scene.leads("n3"), 4.0)
    scene.heal()
    scene.run(0.3)
    scene.crash("n2", "n3")
    scene.start("n2", "n3")
    scene.ready("n1")
    scene.until(lambda: bool(scene.do("n1", lambda group: group.may_read())), 0.3, "it has no lease")
    numbers = [number for number, _ in scene.group("n1")._leadership._rounds]
    assert numbers == sorted(numbers)
    assert numbers[-1] - numbers[0] == len(numbers) - 1
    scene.converge()
