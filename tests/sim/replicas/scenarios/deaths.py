"""Deaths of leaders: what is evidence, what it shortens, and what it must not."""

from __future__ import annotations

from random import Random

from metad.raft.base import FOLLOWER, LEADER
from metad.raft.messages import Append, AppendReply, PreVote
from metad.raft.roles.elections import BUSY_PART, OWN_PART
from metad.raft.roles.membership import CAUGHT_UP_ENTRIES

from .scene import ELECTION_S, LEASE_S, PARTED, REDIALLED, Scene, parted, scenario

SOON_S = LEASE_S * (1 + OWN_PART) + 0.05
"""From the death of a leader to the next: the promise, the part of one's own, and the way of the votes."""


def _successor(scene: Scene, seconds: float, text: str = "") -> str:
    """Who leads instead of n1, which may believe that it still leads."""
    others = [name for name in scene.names if name != "n1"]
    scene.until(lambda: any(scene.leads(name) for name in others), seconds, text)
    return next(name for name in others if scene.leads(name))


def _overtaken(scene: Scene) -> None:
    """Another leads behind n1's back as soon as it can, and writes."""
    scene.write("n1", "old")
    scene.run(0.05)
    for name in scene.names[1:]:
        scene.world.network.reject(name, "n1")
    successor = _successor(scene, 3 * ELECTION_S)
    scene.until(lambda: scene.group(successor).ready, 0.1)
    scene.write(successor, "new")


def _does_not_read(scene: Scene, text: str) -> None:
    """n1 must not answer from what it has."""
    answer = scene.get("n1")
    scene.run(0.01)
    assert answer.outcome != "done", text
    scene.converge()


@scenario
def dead_leader_is_replaced_soon() -> None:
    """n1 is killed, and its host refuses who dials it."""
    scene = parted()
    died_s = scene.world.clock.now
    scene.node("n1").crash(power=False)
    _successor(scene, ELECTION_S, "nobody leads soon, though a refusal is evidence")
    took_s = scene.world.clock.now - died_s
    assert took_s <= SOON_S, f"a new leader took {took_s:.3f} s"


@scenario
def crowded_follower_lets_others_ask_first() -> None:
    """n1 is killed, and many requests wait on n2, who would ask first."""
    scene = parted()
    scene.node("n2").crowded = True
    scene.node("n1").crash(power=False)
    assert _successor(scene, ELECTION_S) == "n3", "n2 has two crowds, and n3 none"
    scene = parted()
    scene.node("n2").crowded = scene.node("n3").crowded = True
    scene.node("n1").crash(power=False)
    _successor(scene, SOON_S + BUSY_PART * LEASE_S, "those who are all crowded wait for each other")


@scenario
def drained_follower_lets_others_lead() -> None:
    """n1 is killed, or vanishes without a word, and n2, which would ask first, is drained. It leads where nobody else
    can."""
    for silent in (False, True):
        scene = parted()
        scene.node("n2").is_drained = True
        if silent:
            scene.isolate("n1")
        else:
            scene.node("n1").crash(power=False)
        assert _successor(scene, 4 * ELECTION_S) == "n3", "a node leads that is drained"
    scene = parted()
    scene.node("n2").is_drained = scene.node("n3").is_drained = True
    scene.node("n1").crash(power=False)
    _successor(scene, 4 * ELECTION_S, "nobody leads, because all that are left are drained")


@scenario
def follower_that_has_much_to_apply_lets_others_ask_first() -> None:
    """n1 is killed, and n2, which would ask first, would lead long before it could serve."""
    scene = parted()
    scene.hosted("n2").applying = True  # it is slow: nothing is applied before this is over
    for value in range(CAUGHT_UP_ENTRIES + 2):
        scene.write("n1", value)
    scene.run(0.2)
    scene.node("n1").crash(power=False)
    assert _successor(scene, ELECTION_S) == "n3", "n2 leads, and cannot serve"


@scenario
def dead_leader_of_a_sleeping_group_is_replaced_at_once() -> None:
    """Nobody promises anything to a leader whose group sleeps."""
    scene = parted(timing=PARTED._replace(sleep_after_s=0.3))
    scene.run(2.0)
    assert scene.group("n2").asleep
    scene.node("n1").crash(power=False)
    _successor(scene, 2 * LEASE_S, "nobody leads soon")


@scenario
def silence_alone_waits_long() -> None:
    """n1 vanishes without a word: it may as well be busy."""
    scene = parted()
    scene.isolate("n1")
    scene.run(ELECTION_S - 0.12)
    assert not any(scene.leads(name) for name in ("n2", "n3")), "silence was taken for death"
    _successor(scene, 1.5)
    scene.converge()


@scenario
def busy_leader_is_not_deposed() -> None:
    """n1 gets no processor for longer than the promise lasts. Its connections are up, so nobody campaigns."""
    scene = parted()
    for _ in range(5):
        scene.node("n1").pause(ELECTION_S - 0.12)
        scene.run(ELECTION_S + 0.2)
        assert scene.leads("n1"), "a leader that was busy was deposed"
    assert scene.group("n1").term == 1


@scenario
def evidence_of_one_deposes_nobody() -> None:
    """A firewall between n1 and n2 rejects; n3 hears n1, but late, because n1 is busy. n2's evidence is false."""
    scene = parted()
    scene.world.network.reject("n2", "n1")
    scene.run(0.1)
    for _ in range(4):
        scene.node("n1").pause(2 * LEASE_S)
        scene.run(3 * LEASE_S)
        assert scene.leads("n1"), "the evidence of one replica deposed a leader that another hears"
    assert any(isinstance(m, PreVote) and s == "n2" for s, _, m in scene.sent), "n2 was to ask"
    assert scene.group("n3").term == 1
    scene.converge()


@scenario
def word_of_the_leader_cancels_the_evidence() -> None:
    """n2 is refused by n1's host, and hears n1 all the same. Then n1 falls silent, which is no evidence."""
    scene = parted()
    for name in ("n2", "n3"):
        scene.do(name, lambda group: group.peer_refused("n1"))
    scene.run(2 * LEASE_S)
    scene.isolate("n1")
    scene.run(ELECTION_S - 0.12)
    assert not any(scene.leads(name) for name in ("n2", "n3")), "evidence outlived a word of the leader"
    scene.converge()


@scenario
def promise_outlasts_the_evidence() -> None:
    """A firewall rejects everybody's dials to n1, at a moment that is the worst for each rule: just after n1's round
    was answered. n1 lives, and is asked until its lease is over."""
    for step in range(12):
        scene = parted()
        scene.write("n1", "old")
        scene.run(0.01 * step)
        for name in ("n2", "n3"):
            scene.world.network.reject(name, "n1")
        scene.until(lambda scene=scene: any(scene.leads(name) for name in ("n2", "n3")), 2.0)  # type: ignore[misc]
        successor = "n2" if scene.leads("n2") else "n3"
        scene.until(lambda scene=scene, name=successor: scene.group(name).ready, 0.1)  # type: ignore[misc]
        scene.write(successor, "new")
        _does_not_read(scene, "a leader that was taken for dead reads by its lease")


@scenario
def voter_keeps_its_promise_whatever_the_evidence() -> None:
    """n2 is told that n1's host refuses, and n3 is asked for its vote within its own promise."""
    scene = parted()
    scene.write("n1", 1)
    scene.hold(target="n1")  # n1 is not told
    scene.hold(Append, source="n1", target="n2")
    for name in ("n2", "n3"):
        scene.do(name, lambda group: group.peer_refused("n1"))
    n2 = scene.group("n2")
    scene.do("n2", lambda group: group._elections._campaign(transfer=False))
    scene.run(0.05)
    if n2.role == LEADER:
        scene.until(lambda: n2.ready)
        scene.write("n2", 2)
        scene.get("n1")
        raise AssertionError("n3 voted against a leader that it had promised not to")


@scenario
def candidate_keeps_its_own_promise() -> None:
    """Three of five can do without n1, and n2, which wants to lead, is in both majorities: n1's lease rests on n2."""
    scene = parted(5)
    scene.write("n1", "old")
    for name in ("n4", "n5"):
        scene.world.network.cut_both("n1", name)
    scene.run(2 * ELECTION_S)
    assert scene.leads("n1")
    scene.write("n1", "older")
    scene.run(0.03)
    for name in ("n2", "n3"):
        scene.world.network.reject(name, "n1")
    scene.world.network.cut_both("n2", "n3")
    for name in ("n2", "n4", "n5"):
        scene.do(name, lambda group: group.peer_refused("n1"))
    scene.group("n2")._timer.deadline_s = scene.node("n2").now()
    scene.do("n2", lambda group: group.wake())
    scene.run(0.05)
    if scene.leads("n2"):
        scene.until(lambda: scene.group("n2").ready, 0.1)
        scene.write("n2", "new")
        _does_not_read(scene, "a candidate broke its own promise")
        raise AssertionError("n2 asked for votes against a leader that it had promised not to")


@scenario
def lease_is_counted_from_the_sending() -> None:
    """The answers to n1's last round are slow. What they say is as old as the round."""
    scene = parted()
    scene.write("n1", "old")
    scene.run(0.02)
    scene.hold(AppendReply, target="n1")
    scene.run(0.11)
    for name in ("n2", "n3"):
        scene.world.network.reject(name, "n1")
    successor = _successor(scene, 2.0)
    scene.until(lambda: scene.group(successor).ready, 0.1)
    scene.write(successor, "new")
    scene.open()
    scene.release()
    _does_not_read(scene, "the lease was counted from the answer")


@scenario
def leader_whose_clocks_came_apart_has_no_lease() -> None:
    """What n1 runs on is stopped for a while, and the clock of leases does not know. The calendar does."""
    scene = parted()
    scene.node("n1").counts_suspension = False
    _sleep_and_wake(scene)


@scenario
def echo_of_a_round_before_the_gap_renews_no_lease() -> None:
    """The same, and the answers to n1's last round come once it has noticed."""
    scene = parted()
    scene.node("n1").counts_suspension = False
    scene.run(0.05)
    scene.hold(AppendReply, target="n1")
    scene.run(0.11)
    _sleep_and_wake(scene)


def _sleep_and_wake(scene: Scene) -> None:
    n1 = scene.node("n1")
    for name in ("n2", "n3"):
        scene.world.network.reject(name, "n1")
    n1.suspend(2.0)
    successor = _successor(scene, 1.5)
    scene.until(lambda: scene.group(successor).ready, 0.1)
    scene.write(successor, "new")
    n1.run(n1.life, scene.group("n1")._leadership.compare_clocks)  # before anything else
    held, scene.held = [m for m in scene.held if m[1] == "n1"], []
    for message in held:
        scene.world.deliver(*message)
    answer = scene.get("n1")
    scene.run(2.2)
    assert answer.outcome != "done", "the lease was counted by a clock that had stood still"
    scene.converge()


@scenario
def restart_keeps_the_longest_promise() -> None:
    """n3 has promised n1, which is of an old version, a whole election timeout, and restarts as a node of a cluster in
    which shorter promises are common."""
    scene = Scene(timing=PARTED, old=frozenset({"n1"}), redialled=REDIALLED)
    scene.run(0.011)
    scene.ready("n1")
    scene.write("n1", "old")
    scene.run(0.3)
    for name in ("n2", "n3"):
        scene.world.network.reject(name, "n1")
    scene.crash("n2", "n3")
    scene.start("n2", "n3")
    for name in ("n2", "n3"):
        scene.do(name, lambda group: group.peer_refused("n1"))
    scene.group("n2")._timer.deadline_s = 0.0
    scene.do("n2", lambda group: group.wake())
    scene.run(LEASE_S)
    if scene.leads("n2") or scene.leads("n3"):
        name = "n2" if scene.leads("n2") else "n3"
        scene.until(lambda: scene.group(name).ready, 0.2)
        scene.write(name, "new")
        _does_not_read(scene, "a restart forgot the promise")
        raise AssertionError("a restart forgot the promise")


@scenario
def leader_that_does_not_say_is_promised_the_whole_timeout() -> None:
    """n1 is of an old version, and counts on what old versions promise. Its lease must hold whatever the evidence."""
    scene = Scene(timing=PARTED, old=frozenset({"n1"}), redialled=REDIALLED)
    scene.run(0.011)
    scene.ready("n1")
    scene.run(0.25)
    assert any(isinstance(m, Append) and not m.lease_ms for s, _, m in scene.sent if s == "n1")
    now_s = scene.node("n1").now()
    assert min(peer.lease_until_s for peer in scene.group("n1").peers.values()) > now_s + LEASE_S
    _overtaken(scene)
    _does_not_read(scene, "a node of a new version promised an old leader too little")


@scenario
def follower_of_an_old_version_promises_what_it_always_did() -> None:
    """n2 and n3 are of an old version: n1 may count on more than it asked for, and no less is promised."""
    scene = Scene(timing=PARTED, old=frozenset({"n2", "n3"}), redialled=REDIALLED)
    scene.run(0.011)
    scene.ready("n1")
    scene.run(0.25)
    _overtaken(scene)
    _does_not_read(scene, "a lease outlived the promise that it rests on")


@scenario
def promise_is_never_longer_than_the_stored_one() -> None:
    """n1 counts on more than n2 and n3 keep over a restart."""
    long = PARTED._replace(election_s=5 * ELECTION_S, lease_s=5 * ELECTION_S, step_down_s=10 * ELECTION_S)
    scene = Scene(timing=PARTED, timings={"n1": long}, redialled=REDIALLED)
    scene.run(0.011)
    scene.ready("n2")
    scene.do("n2", lambda group: group.transfer("n1"))
    scene.until(lambda: scene.leads("n1") and scene.group("n1").ready)
    scene.write("n1", "old")
    scene.run(0.25)
    for name in ("n2", "n3"):
        scene.world.network.reject(name, "n1")
    scene.crash("n2", "n3")
    scene.start("n2", "n3")
    scene.until(lambda: scene.leads("n2") or scene.leads("n3"), 2.0, "a promise was as long as n1 wished")
    successor = "n2" if scene.leads("n2") else "n3"
    scene.until(lambda: scene.group(successor).ready, 0.2)
    scene.write(successor, "new")
    _does_not_read(scene, "a lease rests on a promise that a restart forgot")


@scenario
def leader_whose_followers_are_refused_steps_down_soon() -> None:
    """A firewall rejects n1's dials, too: by the time its promises are over, others may lead."""
    scene = parted()
    for name in ("n2", "n3"):
        scene.world.network.reject("n1", name)
    scene.until(lambda: not scene.leads("n1"), LEASE_S + 0.15, "n1 leads on though everybody is taken for dead")
    scene.converge()


@scenario
def leader_of_silent_followers_leads_on_for_a_while() -> None:
    """n2 and n3 get no processor for a while. Their connections are up."""
    scene = parted(timing=PARTED._replace(step_down_s=ELECTION_S))
    for name in ("n2", "n3"):
        scene.node(name).pause(ELECTION_S - 0.15)
    scene.run(ELECTION_S)
    assert scene.leads("n1"), "followers that are busy cost the lead"
    scene.isolate("n1")
    scene.until(lambda: not scene.leads("n1"), ELECTION_S + 0.2, "n1 leads on though it hears nobody")
    scene.converge()


@scenario
def leader_that_was_late_itself_hears_its_followers_first() -> None:
    """n1 gets no processor for longer than it waits for its followers: their answers are yet to be read."""
    scene = parted(timing=PARTED._replace(election_s=2 * ELECTION_S, step_down_s=ELECTION_S))
    scene.node("n1").pause(ELECTION_S + 0.3)
    scene.run(ELECTION_S + 0.29)
    n1 = scene.node("n1")
    n1.run(n1.life, n1.replicas.overslept)
    backlog = n1._backlog
    backlog.rotate(1)  # the loop notices before anything else
    scene.run(0.3)
    assert scene.leads("n1"), "a leader that was late stepped down before it had read what was sent"
    assert scene.group("n1").term == 1


@scenario
def two_that_ask_at_once_do_not_split_the_votes() -> None:
    """n2 and n3 have evidence at the same moment, and draw the same part of their own."""
    for _ in range(3):
        scene = parted()
        scene.write("n1", 1)
        scene.run(0.05)
        for name in ("n2", "n3"):
            scene.group(name)._timer._rng = scene.group("n2")._timer._rng
        scene.node("n1").crash(power=False)
        _successor(scene, SOON_S, "the votes were split")
        assert max(scene.group(name).term for name in ("n2", "n3")) == 2


@scenario
def who_goes_before_one_that_asks_asks_it_again() -> None:
    """n3 has not heard n1 for a while when n1 dies, so its promise ends first. n2 refuses it, and n3 goes before n2."""
    for ahead_s in (0.01, 0.02, 0.06, 0.07):
        scene = _ahead(ahead_s)
        _successor(scene, LEASE_S + 0.025, "nobody led as soon as the last promise was over")


@scenario
def who_asks_before_the_others_may_answer_asks_again_soon() -> None:
    """The same, and n2 does not ask: it was late itself, and gives n1 more time."""
    for ahead_s in (0.02, 0.04, 0.06, 0.08):
        scene = _ahead(ahead_s)
        scene.run(0.05)
        scene.group("n2")._timer.wait_until(scene.node("n2").now() + ELECTION_S)
        _successor(scene, SOON_S, "who was refused because of a promise waited long")


def _ahead(ahead_s: float) -> Scene:
    """n1 is dead, n2 has heard it by so much later than n3, and both ask as soon as they may."""
    scene = parted()
    scene.write("n1", 1)
    scene.run(0.05)
    scene.hold(Append, source="n1", target="n3")
    scene.do("n1", lambda group: group.wake())
    scene.run(ahead_s)
    scene.group("n2")._timer.heard_leader(scene.node("n2").now(), int(LEASE_S * 1000))
    for name in ("n2", "n3"):
        scene.group(name)._timer._rng = _Least()
    scene.node("n1").crash(power=False)
    return scene


class _Least(Random):
    """Draws the smallest number."""

    def random(self) -> float:
        return 0.0


@scenario
def evidence_is_of_the_leader_that_was_heard() -> None:
    """n2's host refuses n3. That says nothing about n1, which leads."""
    scene = parted()
    scene.isolate("n1")
    for _ in range(4):
        scene.do("n3", lambda group: group.peer_refused("n2"))
        scene.run(0.1)
    assert scene.group("n3").role == FOLLOWER
    assert scene.group("n3").term == 1
    assert not any(isinstance(m, PreVote) and m.term > 1 for _, _, m in scene.sent), "a bystander was taken for n1"
    scene.converge()
