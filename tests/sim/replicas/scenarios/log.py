"""The log: what is appended, replaced, counted as durable, committed and applied."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from metad.raft.base import UnsafeStateError
from metad.raft.messages import Append, AppendReply, VoteReply
from metad.raft.roles import leader as sending

from .scene import ELECTION_S, LEASE_S, PARTED, TIMING, Scene, diverged, scenario, started


@scenario
def late_append_keeps_the_tail() -> None:
    """An append that a follower has already comes again, after newer ones which it has acknowledged: nothing may go."""
    scene = started()
    scene.isolate("n3")
    scene.hold(AppendReply, source="n2")
    answers = []
    for value in range(10):
        answers.append(scene.put("n1", value))
        scene.run(0.01)
    last = scene.group("n2").log.last_index
    early = [(s, t, m) for s, t, m in scene.sent if isinstance(m, Append) and m.records and t == "n2"]
    for message in early[:4]:
        scene.world.deliver(*message)
    assert scene.group("n2").log.last_index == last, "the tail was dropped"
    scene.run(0.05)
    scene.open()
    scene.release()
    scene.run(0.01)
    assert all(answer.outcome == "done" for answer in answers)
    scene.crash("n1")
    scene.heal()
    scene.ready("n2")
    assert scene.value("n2") == 9


@scenario
def who_lost_what_it_acknowledged_counts_no_more() -> None:
    """n3 says that it lacks an entry: at first in a reply from before it acknowledged it, which is only late; then in
    one that has heard of a newer round, as it does on an older copy of its data directory."""
    scene = started()
    scene.write("n1", 1)
    scene.run(0.3)
    leader = scene.group("n1")
    progress = leader.peers["n3"]
    match = progress.match
    assert match == leader.log.last_index
    matched = [m for s, _, m in scene.sent if isinstance(m, AppendReply) and s == "n3" and m.match == match]
    assert progress.acknowledged_in == matched[0].probe > 0

    def rejects(probe: int) -> AppendReply:
        return AppendReply(leader.term, probe, 0, 0, match)

    scene.world.deliver("n3", "n1", rejects(progress.acknowledged_in))
    assert progress.match == match, "a late reply proves nothing"
    scene.world.deliver("n3", "n1", rejects(progress.acknowledged_in + 1))
    scene.isolate("n2")
    answer = scene.put("n1", 2)
    scene.run(0.2)
    assert answer.outcome != "done", "its word is counted"
    scene.until(lambda: not scene.leads("n1"), text="its word is no quorum either")
    scene.heal()
    scene.converge()


@scenario
def who_lost_what_it_acknowledged_is_heard_no_more() -> None:
    """Whatever n3 says from then on, it proves neither that an entry is durable nor that n1 leads, and is sent
    nothing. What it said before, and was not counted yet, is void, too."""
    scene = started(timing=PARTED)
    scene.write("n1", 1)
    scene.run(0.3)
    leader = scene.group("n1")
    progress = leader.peers["n3"]
    scene.node("n1").hang_disk()
    scene.isolate("n2")
    scene.put("n1", 2)
    scene.run(2 * LEASE_S)  # until n2's promise is over
    match = progress.match
    assert match == leader.log.last_index
    scene.world.deliver("n3", "n1", AppendReply(leader.term, progress.acknowledged_in + 1, 0, 0, match))
    assert progress.distrusted
    scene.node("n1").unhang_disk()
    scene.run(0.005)
    assert leader.commit < match, "its disk had the entry once"
    before = len(scene.sent)
    answer = scene.get("n1")
    scene.run(0.005)
    scene.world.deliver("n3", "n1", AppendReply(leader.term, leader._leadership.round, match, match, promise_ms=10_000))
    scene.run(0.005)
    assert leader.commit < match, "its acknowledgement is counted"
    assert answer.outcome != "done", "its echo is counted"
    assert not any(isinstance(m, Append) and t == "n3" for _, t, m in scene.sent[before:])
    scene.heal()
    scene.run(2.0)


@scenario
def word_that_shows_a_loss_proves_nothing() -> None:
    """n3 has forgotten an entry, and maybe its vote for another leader. A read waits for its echo, and it comes with
    the very word that shows it."""
    scene = started(timing=PARTED)
    scene.write("n1", 1)
    scene.isolate("n2")
    scene.run(2 * LEASE_S)
    leader = scene.group("n1")
    match = leader.peers["n3"].match
    scene.do("n1", lambda group: group._reads.give_up_lease())
    scene.hold(AppendReply, source="n3")
    answer = scene.get("n1")
    scene.run(0.05)
    scene.world.deliver("n3", "n1", AppendReply(leader.term, leader._leadership.round, 0, 0, match))
    assert leader.peers["n3"].distrusted
    assert answer.outcome != "done"
    scene.open()
    scene.heal()
    scene.run(2.0)


@scenario
def what_cannot_be_stops_the_replica() -> None:
    """A follower acknowledges what its leader never sent; from then on the replica says and does nothing."""
    scene = started()
    leader = scene.group("n1")
    refused: list[UnsafeStateError] = []
    scene.node("n1").unsafe = refused.append  # type: ignore[method-assign,assignment]
    last = leader.log.last_index
    for reply in (AppendReply(leader.term, 1, last + 1, last), AppendReply(leader.term, 1, last, last + 1)):
        leader._failed = False
        refused.clear()
        scene.world.deliver("n2", "n1", reply)
        assert len(refused) == 1
        assert leader._failed
    before = len(scene.sent)
    scene.run(0.5)
    assert not any(s == "n1" for s, _, _ in scene.sent[before:]), "it goes on"


@scenario
def watched_followers_hear_of_a_commit_soon() -> None:
    """Nothing follows the last entry, and the next heartbeat would be late."""
    scene = started(timing=TIMING._replace(heartbeat_s=ELECTION_S / 3))
    scene.group("n3").watch(True)
    scene.run(0.5)
    for value in range(5):
        scene.write("n1", value)
        scene.run(0.1)
        assert [scene.value(name) for name in ("n2", "n3")] == [value, value]


@scenario
def entries_tell_of_the_commits_before_them() -> None:
    """While entry follows entry, or nobody watches, no round of heartbeats is added."""
    scene = started(timing=TIMING._replace(heartbeat_s=ELECTION_S / 3))
    scene.run(0.5)
    for watched in (True, False):
        scene.group("n3").watch(watched)
        scene.run(0.5)
        before = len(scene.sent)
        for value in range(50):
            scene.write("n1", value)
            if not watched:
                scene.run(0.03)
        rounds = [m for _, to, m in scene.sent[before:] if isinstance(m, Append) and not m.records and to == "n2"]
        assert len(rounds) <= (2 if watched else 10)


@scenario
def heartbeat_keeps_the_tail() -> None:
    """A heartbeat that was sent before the newest entries arrives after them."""
    scene = started()
    scene.isolate("n3")
    scene.write("n1", 1)
    scene.hold(Append, source="n1", target="n2")
    scene.run(0.15)
    late = next((s, t, m) for s, t, m in scene.held if isinstance(m, Append) and not m.records)
    scene.open()
    scene.write("n1", 2)
    scene.write("n1", 3)
    last = scene.group("n2").log.last_index
    scene.world.deliver(*late)
    assert scene.group("n2").log.last_index == last, "the tail was dropped"


@scenario
def diverged_tail_is_not_committed() -> None:
    """What reaches n3 agrees with its log at an early index and tells a late commit, where n3 has other entries."""
    scene = diverged()
    for value in range(4):
        scene.write("n1", value)
    n1 = scene.group("n1")
    scene.world.deliver("n1", "n3", Append(n1.term, 1, 1, n1.commit, 1))
    assert scene.group("n3").commit == 1, "n3 commits what it has not verified"
    scene.converge()
    assert scene.value("n3") == 3


@scenario
def diverged_tail_is_not_acknowledged() -> None:
    """n3's tail is durable and as long as the leader's log. It is not the leader's log."""
    scene = diverged()
    scene.isolate("n2")
    answers = [scene.put("n1", value) for value in range(4)]
    n1 = scene.group("n1")
    scene.run(0.01)
    scene.hold(Append, source="n1")  # nothing but this one, which agrees at the beginning:
    scene.world.network.heal("n1", "n3")
    scene.run(0.02)
    scene.world.deliver("n1", "n3", Append(n1.term, 1, 1, n1.commit, 1))
    scene.run(0.02)
    assert not any(answer.outcome == "done" for answer in answers), "n1 committed alone"
    scene.converge()


@scenario
def verified_is_of_this_leader() -> None:
    """n2's log agreed with n3's up to entry 8, and n3 is gone. It says nothing of n1's, which leads now."""
    scene = Scene(5)
    scene.run(0.011)
    scene.ready("n3")
    scene.run(0.25)
    scene.isolate("n1", "n4", "n5")
    for value in range(6):
        scene.put("n3", f"lost {value}")
    scene.until(lambda: scene.group("n2").log.durable_index == 7, 0.5)
    scene.crash("n3")
    scene.split("n1", "n4", "n5")
    scene.world.network.heal()
    scene.world.network.partition(["n1", "n4", "n5"])
    scene.run(0.02)
    scene.ready("n1")
    scene.hold(target="n5")
    answers = [scene.put("n1", value) for value in range(4)]
    scene.hold(Append, source="n1", target="n4")
    scene.run(0.01)
    n1 = scene.group("n1")
    scene.hold(Append, source="n1", target="n2")
    scene.world.network.heal("n1", "n2")
    scene.run(0.02)
    scene.world.deliver("n1", "n2", Append(n1.term, 1, 1, n1.commit, 1))
    scene.open()
    scene.hold(target="n5")
    scene.hold(Append, source="n1", target="n2")
    scene.run(0.3)
    assert not any(answer.outcome == "done" for answer in answers), "n2's old tail was counted"
    scene.converge()


@scenario
def replaced_entries_are_not_durable() -> None:
    """n3 drops its durable tail for the leader's entries. Those are on the disk when they are."""
    scene = diverged()
    for value in range(4):
        scene.write("n1", value)
    scene.node("n3").disk_slow_until = scene.world.clock.now + 0.5
    scene.heal()
    scene.run(0.5)
    scene.converge()


@scenario
def fsync_under_way_does_not_cover_what_replaces_its_entries() -> None:
    """n3's disk is at work on entries that nobody else has, when the leader's take their place."""
    scene = Scene()
    scene.run(0.011)
    scene.ready("n3")
    scene.run(0.25)
    scene.isolate("n1", "n2")
    scene.world.network.heal("n1", "n2")
    scene.run(0.5)
    scene.node("n3").fsync_s = lambda: 1.0  # type: ignore[method-assign]
    for value in range(6):
        scene.put("n3", f"lost {value}")
    scene.run(0.05)  # the first fsync has begun, and one for the others follows it
    scene.ready("n1")
    for value in range(4):
        scene.write("n1", value)
    scene.heal()
    n3 = scene.group("n3")
    scene.until(lambda: n3.log.last_term == scene.group("n1").term)
    scene.run(4.0)
    del scene.node("n3").fsync_s
    scene.converge()


@scenario
def durable_mark_is_of_what_the_fsync_covers() -> None:
    """The power fails when one fsync is over and the next is not. The mark must not promise what the disk has lost."""
    scene = started(fsync=(0.03, 0.03))
    for value in range(12):
        scene.put("n1", value)
        scene.run(0.007)
    n2 = scene.node("n2")
    before = n2.writer.syncs
    scene.until(lambda: n2.writer.syncs > before and n2.log_disk.unsynced > 0, 0.1)
    scene.crash("n2")
    scene.start("n2")
    scene.converge()


@scenario
def append_must_follow() -> None:
    """Entries behind one that n3 has another of."""
    scene = diverged()
    scene.write("n1", 1)
    n1 = scene.group("n1")
    last = n1.log.last_index
    scene.world.deliver("n1", "n3", Append(n1.term, last - 1, n1.term, last, 1, n1.log.records(last, 1)))
    assert scene.group("n3").log.term_at(last) != n1.term, "n3 put an entry behind one that the leader does not have"
    scene.converge()


@scenario
def old_leader_is_not_obeyed() -> None:
    """An append of a term that is over arrives late."""
    scene = started()
    scene.hold(Append, source="n1", target="n3")
    scene.put("n1", 1)
    scene.run(0.05)
    scene.open()
    scene.isolate("n1")
    scene.ready("n2")
    before = scene.group("n3").log.last_term
    scene.release()
    scene.run(0.01)
    assert scene.group("n3").leader == "n2"
    assert scene.group("n3").log.last_term == before
    scene.converge()


@scenario
def old_acknowledgement_counts_for_nothing() -> None:
    """n2 acknowledged entries in term 1, which it has lost to another leader since. n1, which had lost them in a power
    failure, leads again: the acknowledgement arrives in term 3."""
    scene = started(5)
    scene.isolate("n3", "n4", "n5")
    scene.world.network.heal("n1", "n2")
    scene.run(0.03)
    scene.hold(AppendReply, source="n2", target="n1")
    scene.node("n1").disk_slow_until = scene.world.clock.now + 0.05
    for value in range(8):
        scene.put("n1", value)
    scene.until(lambda: any(isinstance(m, AppendReply) and m.match >= 9 for _, _, m in scene.held), 0.1)
    old = max((m.match, s, t, m) for s, t, m in scene.held if isinstance(m, AppendReply))[1:]
    scene.open()
    scene.crash("n1")
    assert old[2].match > 8
    scene.world.network.heal()
    scene.world.network.partition(["n3", "n4", "n5"])
    scene.run(0.02)
    scene.ready("n3")  # term 2
    scene.isolate("n4", "n5")
    scene.world.network.heal("n2", "n3")
    scene.until(lambda: scene.group("n2").log.last_term >= 2, 1.0)
    scene.crash("n3")
    scene.crash("n2")
    scene.world.network.heal("n4", "n5")
    scene.node("n1").start()
    scene.world.network.heal("n1", "n4")
    scene.world.network.heal("n1", "n5")
    scene.run(0.02)
    term = scene.group("n4").term
    # n4 and n5 have n3's first entry, so n1 gets it first; what is left of the story needs only the late reply.
    scene.ranks("n4")
    scene.ready("n4")
    scene.do("n4", lambda group: group.transfer("n1"))
    scene.until(lambda: scene.leads("n1"), 1.0)
    assert scene.group("n1").term > term
    scene.until(lambda: scene.group("n1").ready, 1.0)
    scene.isolate("n5")
    scene.world.network.heal("n1", "n4")
    scene.run(0.02)
    answers = []
    while scene.group("n1").log.last_index < old[2].match:
        answers.append(scene.put("n1", "late"))
    scene.run(0.05)
    scene.world.deliver(*old)
    scene.run(0.05)
    assert answers
    assert not any(answer.outcome == "done" for answer in answers), "committed by two of five"


@scenario
def figure_8() -> None:
    """An entry of an old term is on a majority, and a candidate that lacks it can still be elected: it must not be
    committed by counting (Raft, figure 8)."""
    scene = started(5)
    scene.isolate("n3", "n4", "n5")
    scene.world.network.heal("n1", "n2")
    scene.run(0.03)
    old = scene.put("n1", "old")  # (b) of the figure: on n1 and n2
    index = scene.group("n1").log.last_index
    scene.until(lambda: scene.group("n2").log.durable_index >= index, 0.3)
    scene.crash("n1")
    scene.crash("n2")
    scene.world.network.heal()
    scene.run(0.02)
    scene.hold(Append, source="n5")
    scene.ranks("n5")
    scene.elect("n5")  # by n3 and n4; its first entry stays with it
    scene.run(0.01)
    scene.crash("n5")
    scene.open()
    scene.node("n1").start()
    scene.node("n2").start()
    scene.run(0.02)
    scene.hold(Append, source="n1")
    scene.elect("n1")  # (c): it sends the old entry on, but its own term's stays with it
    n1 = scene.group("n1")
    scene.run(0.01)
    entry = n1.log.records(index, 1, index + 1)
    for peer in ("n2", "n3"):
        scene.world.deliver("n1", peer, Append(n1.term, index - 1, 1, n1.commit, 1, entry))
    scene.run(0.05)
    assert scene.group("n3").log.term_at(index) == 1
    assert n1.commit < index, "committed by counting replicas of an old entry"
    scene.crash("n1")
    scene.open()
    scene.node("n5").start()
    scene.run(0.02)
    scene.world.deliver(
        "n3", "n5", VoteReply(scene.group("n3").term, granted=False)
    )  # it hears of the term, which saves it a try
    scene.ready("n5")  # (d)
    assert old.outcome in ("", "unknown")
    scene.converge()


@scenario
def acknowledged_writes_survive_a_blackout() -> None:
    """All lose power at the moment a client has its answer. The disks are slower than the heartbeats, whose replies
    must not tell more than the disks hold."""
    scene = started(fsync=(0.15, 0.15))
    for value in range(2):
        scene.write("n1", value)
        scene.crash(*scene.names)
        scene.start(*scene.names)
        scene.ready("n1")
        assert scene.value("n1") == value, "an acknowledged write is lost"
    scene.converge()


@scenario
def writes_during_an_fsync_wait_for_the_next() -> None:
    """An entry comes while the disk is at work on the one before."""
    scene = started(fsync=(0.03, 0.03))
    answers = []
    for value in range(12):
        answers.append(scene.put("n1", value))
        scene.run(0.007)
    scene.run(0.2)
    assert all(answer.outcome == "done" for answer in answers)
    scene.converge()


@scenario
def leader_counts_its_disk() -> None:
    """One follower has acknowledged, the leader's own disk has not: that is one of three."""
    scene = started()
    scene.isolate("n3")
    scene.node("n1").disk_slow_until = scene.world.clock.now + 0.01
    answer = scene.put("n1", 1)
    scene.run(0.03)
    assert answer.outcome == ""
    scene.until(lambda: answer.outcome == "done", 0.3)


@scenario
def follower_applies_what_is_durable() -> None:
    """The others have committed and n3 knows, but its disk is late."""
    scene = started(fsync=(0.004, 0.004))
    scene.node("n3").disk_slow_until = scene.world.clock.now + 0.01
    scene.write("n1", 1)
    scene.run(0.15)
    assert scene.group("n3").commit > scene.group("n3").applied
    scene.converge()


@scenario
def terms_are_durable_before_acknowledgements() -> None:
    """n3 hears of a new term by an append that it could acknowledge at once; its disk is slow."""
    scene = started()
    scene.write("n1", 1)
    scene.run(0.25)
    scene.isolate("n3")
    scene.do("n1", lambda group: group.transfer("n2"))
    scene.until(lambda: scene.leads("n2"))
    scene.node("n3").disk_slow_until = scene.world.clock.now + 1.0
    scene.heal()
    scene.run(0.3)
    scene.converge()


@scenario
def long_divergence_is_mended() -> None:
    """n3 has hundreds of entries nobody else has, and the leader's are larger than a message: it converges in little
    time, also when rejections overtake each other."""
    scene = Scene()
    scene.run(0.011)
    scene.ready("n3")
    scene.run(0.25)
    with _small_messages():
        scene.isolate("n3")
        for value in range(300):
            scene.put("n3", f"lost {value}")
        scene.run(0.05)
        scene.ready("n1")
        for value in range(100):
            scene.put("n1", "." * 50 + str(value))
        scene.run(0.2)
        scene.do("n1", lambda group: group.transfer("n2"))  # which begins to look for agreement at its end
        scene.until(lambda: scene.leads("n2"))
        scene.heal()
        scene.until(lambda: scene.group("n3").log.last_term == scene.group("n2").term, 0.6, "n3 is not mended")
        scene.converge()


@contextmanager
def _small_messages() -> Iterator[None]:
    before = sending.APPEND_BYTES_MAX
    sending.APPEND_BYTES_MAX = 150
    try:
        yield
    finally:
        sending.APPEND_BYTES_MAX = before


@scenario
def unsynced_suffix_is_asked_for_again() -> None:
    """A follower loses what it had not synced, and comes back."""
    scene = started()
    scene.node("n3").disk_slow_until = scene.world.clock.now + 0.05
    for value in range(5):
        scene.write("n1", value)
    scene.crash("n3")
    scene.start("n3")
    scene.until(lambda: scene.value("n3") == 4)
    scene.converge()


@scenario
def restart_applies_nothing_twice() -> None:
    """The state's last writes are lost, those before are not; then everything is replayed once."""
    scene = started()
    for value in range(5):
        scene.write("n1", value)
    scene.node("n2").state_disk.sync()
    scene.write("n1", 5)
    scene.run(0.15)
    scene.crash("n2")
    scene.start("n2")
    scene.until(lambda: scene.value("n2") == 5)
    scene.converge()
