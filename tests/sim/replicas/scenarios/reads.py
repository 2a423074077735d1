"""Reads: what proves that a leader is one."""

from __future__ import annotations

from metad.raft.messages import Append, AppendReply, TimeoutNow
from metad.raft.roles.leadership import ROUNDS_REMEMBERED

from .scene import ELECTION_S, TIMING, Answer, Scene, scenario, started


def _overtaken(scene: Scene, by: str = "n2") -> None:
    """Have another lead behind n1's back, and write."""
    scene.ready(by)
    scene.write(by, "new")


@scenario
def cut_off_leader_does_not_read() -> None:
    """Another leads and has written, n1 does not know."""
    scene = started()
    scene.write("n1", "old")
    scene.isolate("n1")
    scene.hold(target="n1")
    _overtaken(scene)
    assert scene.leads("n1")
    answer = scene.get("n1")
    scene.run(0.1)
    assert answer.outcome != "done", "a deposed leader answers"
    scene.converge()
    assert answer.outcome == "refused"


@scenario
def round_before_the_read_proves_nothing() -> None:
    """A round was begun, another leader came and wrote, a read comes, and then an echo of that round."""
    scene = Scene(timing=TIMING._replace(heartbeat_s=0.9))
    scene.run(0.011)
    scene.hold(AppendReply, source="n3", target="n1")
    scene.ready("n1")
    scene.write("n1", "old")
    scene.isolate("n1")
    scene.ranks("n2")
    scene.until(lambda: scene.leads("n2") and scene.group("n2").ready, 0.7)
    scene.write("n2", "new")
    answer = scene.get("n1")
    scene.open()
    scene.release()
    assert answer.outcome != "done", "a read was answered by an old round"
    scene.converge()


@scenario
def forgotten_round_proves_nothing() -> None:
    """n1 leads on with n5 alone. It is asked so often that it forgets when the rounds of the first reads began."""
    scene = started(5)
    scene.write("n1", "old")
    scene.split("n1", "n5")
    _overtaken(scene)
    answers: list[Answer] = []
    for _ in range(2 * ROUNDS_REMEMBERED):
        answers.append(scene.get("n1"))
        scene.run(0.0005)
    assert scene.leads("n1"), "n1 was to believe that it leads"
    assert scene.group("n1")._leadership.round > ROUNDS_REMEMBERED, "n1 was to forget rounds"
    assert all(answer.outcome != "done" for answer in answers), "a forgotten round was taken for a confirmed one"
    scene.converge()
    assert all(answer.outcome == "refused" for answer in answers)


@scenario
def lease_begins_with_the_round() -> None:
    """The echoes of a round come late: what they prove is as old as the round."""
    scene = started()
    scene.write("n1", "old")
    scene.run(0.05)
    scene.hold(AppendReply, target="n1")
    scene.run(0.15)
    scene.isolate("n1")
    _overtaken(scene)
    scene.open()
    scene.release()
    assert scene.leads("n1")
    answer = scene.get("n1")
    scene.run(0.01)
    assert answer.outcome != "done", "the lease was counted from the echo"
    scene.converge()


@scenario
def lease_allows_for_drift() -> None:
    """n1's clock is slow and the others' are fast, as much as is allowed."""
    scene = Scene()
    for name, rate in (("n1", 0.95), ("n2", 1.05), ("n3", 1.05)):
        scene.node(name)._rate = rate
    scene.run(0.011)
    scene.ready("n1")
    scene.write("n1", "old")
    scene.run(0.3)
    n1 = scene.group("n1")
    fresh_s = ELECTION_S * (1 - scene.node("n1").replicas.timing.drift) - 0.003
    scene.until(lambda: min(peer.lease_until_s for peer in n1.peers.values()) - scene.node("n1").now() > fresh_s)
    scene.world.network.isolate("n1")
    scene.ranks("n2")
    scene.until(lambda: scene.leads("n2") and scene.group("n2").ready, 0.7)
    scene.write("n2", "new")
    scene.get("n1")
    scene.converge()


@scenario
def machine_that_slept_does_not_read_by_its_lease() -> None:
    """n1's machine sleeps for long. What it is asked when it wakes comes before any word of the others."""
    scene = started()
    scene.write("n1", "old")
    scene.run(0.05)
    scene.isolate("n1")
    scene.node("n1").suspend(3.0)
    _overtaken(scene)
    answer = scene.get("n1")
    scene.run(3.1)
    assert answer.outcome != "done", "the lease was counted by a clock that had stood still"
    scene.converge()


@scenario
def lease_rests_on_what_the_others_promise() -> None:
    """n1 is configured to be patient, the others are not: they elect another long before n1 would."""
    patient = TIMING._replace(election_s=5 * ELECTION_S, lease_s=5 * ELECTION_S, step_down_s=10 * ELECTION_S)
    scene = Scene(timings={"n1": patient})
    scene.run(0.011)
    scene.ready("n2")
    scene.do("n2", lambda group: group.transfer("n1"))
    scene.until(lambda: scene.leads("n1") and scene.group("n1").ready)
    scene.write("n1", "old")
    scene.run(0.25)
    scene.isolate("n1")
    _overtaken(scene)
    assert scene.leads("n1")
    answer = scene.get("n1")
    scene.run(0.01)
    assert answer.outcome != "done", "the lease was as long as the leader's own election timeout"
    scene.converge()


@scenario
def promise_outlives_a_new_configuration() -> None:
    """n2 and n3 promise n1 a long time, and restart with a configuration that promises less."""
    patient = TIMING._replace(election_s=5 * ELECTION_S, lease_s=5 * ELECTION_S, step_down_s=10 * ELECTION_S)
    timings = {"n1": patient, "n2": patient, "n3": patient}
    scene = Scene(timings=timings)
    scene.run(0.011)
    scene.elect("n1", 5 * 1.5)
    scene.until(lambda: scene.group("n1").ready)
    scene.write("n1", "old")
    scene.run(0.25)
    scene.isolate("n1")
    scene.crash("n2", "n3")
    scene.world.timings["n2"] = scene.world.timings["n3"] = patient._replace(election_s=ELECTION_S)
    scene.start("n2", "n3")
    scene.until(lambda: any(scene.leads(name) and scene.group(name).ready for name in ("n2", "n3")), 6.0)
    scene.write("n2" if scene.leads("n2") else "n3", "new")
    answer = scene.get("n1")
    scene.run(0.01)
    assert answer.outcome != "done", "a restart broke a promise that a lease rests on"
    scene.converge(10.0)


@scenario
def promise_is_given_once_it_is_durable() -> None:
    """n2 and n3 restart with a configuration that promises longer than what their disks have."""
    scene = started()
    patient = TIMING._replace(election_s=5 * ELECTION_S)
    for name in ("n2", "n3"):
        scene.crash(name)
        scene.world.timings[name] = patient
        scene.node(name).fsync_s = lambda: 0.5  # type: ignore[method-assign]
        before = len(scene.sent)
        scene.start(name)
        scene.run(0.3)
        replies = [m for s, _, m in scene.sent[before:] if isinstance(m, AppendReply) and s == name]
        assert replies
        assert {m.promise_ms for m in replies} == {0}, "a power failure would shorten the promise"
        scene.run(0.6)
        last = [m for s, _, m in scene.sent if isinstance(m, AppendReply) and s == name][-1]
        assert last.promise_ms
        del scene.node(name).fsync_s
    scene.converge()


@scenario
def new_leader_reads_what_it_has_applied() -> None:
    """n2 is elected and has n1's last entry, but does not know that it is committed: it must not read yet."""
    scene = started()
    scene.hold(Append, source="n1", target="n3")
    scene.write("n1", "acknowledged")
    scene.isolate("n1")
    scene.open()
    scene.elect("n2")
    scene.hold(Append, source="n2")
    n2 = scene.group("n2")
    answer = None
    for probe in range(1, 40):  # heartbeats that prove its leadership arrive, entries do not
        if probe == 20:
            answer = scene.get("n2")  # it has a lease by now, and for this read it begins a round, too
        scene.world.deliver("n3", "n2", AppendReply(n2.term, probe, 0, 0, promise_ms=500))
        scene.run(0.01)
    assert answer is not None
    assert answer.outcome == ""
    scene.open()
    scene.until(lambda: answer.outcome == "done", 2.0)
    assert answer.result == "acknowledged"


@scenario
def echo_is_of_this_leader() -> None:
    """n3 has heard many rounds of an old leader. Its first reply to the new one, delayed until that has begun as many,
    must not prove them."""
    scene = started()
    scene.run(3.0)  # n1's rounds reach 30 and more
    scene.isolate("n1")
    scene.hold(AppendReply, source="n3", target="n2")
    scene.elect("n2")
    scene.until(lambda: any(isinstance(m, AppendReply) and s == "n3" for s, _, m in scene.held), 0.5)
    echo = next(m for s, _, m in scene.held if isinstance(m, AppendReply) and s == "n3")
    assert echo.probe <= scene.group("n2")._leadership.round, "n3 echoes a round that n2 has not begun"


@scenario
def lease_is_given_up_before_a_hand_over() -> None:
    """The order to campaign is under way for long; n1 has given up waiting and leads on. When it arrives, n2 leads at
    once and n1 does not know."""
    scene = started()
    scene.write("n1", "old")
    scene.hold(TimeoutNow)
    scene.do("n1", lambda group: group.transfer("n2"))
    scene.run(2 * ELECTION_S + 0.1)
    assert scene.group("n1").accepting
    scene.hold(target="n1")
    scene.open()
    scene.hold(target="n1")
    scene.hold(Append, source="n1")
    scene.release()
    scene.run(0.02)
    scene.until(lambda: scene.leads("n2") and scene.group("n2").ready, 0.3)
    scene.write("n2", "new")
    answer = scene.get("n1")
    scene.run(0.01)
    assert answer.outcome != "done"
    scene.converge()


@scenario
def old_hand_over_is_not_obeyed() -> None:
    """The order to campaign arrives terms later. The leader of now did not give it, and reads by lease."""
    scene = started()
    scene.write("n1", "old")
    scene.hold(TimeoutNow)
    scene.do("n1", lambda group: group.transfer("n2"))
    scene.run(0.05)
    scene.isolate("n1")
    scene.ready("n3")
    scene.heal()
    scene.run(0.3)
    assert scene.group("n1").leader == scene.group("n2").leader == "n3"
    term = scene.group("n3").term
    scene.open()
    scene.hold(target="n3")
    scene.hold(source="n3")
    order = next(held for held in scene.held if isinstance(held[2], TimeoutNow))
    scene.world.deliver(*order)
    scene.run(0.05)
    if scene.group("n2").term > term:
        scene.until(lambda: scene.leads("n2") and scene.group("n2").ready, 0.3)
        scene.write("n2", "new")
        scene.get("n3")
        raise AssertionError("n2 obeyed an order of a leader that is none any more")


@scenario
def removed_leader_has_no_lease() -> None:
    """n2 removes itself and leaves n1 alone, which restarts: alone, it leads at once. n2 has not heard."""
    scene = Scene(2)
    scene.run(0.011)
    scene.ready("n2")
    scene.write("n2", "old")
    scene.run(0.25)
    scene.hold(target="n2")
    index = scene.do("n2", lambda group: group.remove("n2"))
    scene.until(lambda: scene.group("n1").log.durable_index == index, 0.1)
    scene.crash("n1")
    scene.start("n1")
    scene.until(lambda: scene.leads("n1") and scene.group("n1").ready, 0.1)
    scene.write("n1", "new")
    assert scene.leads("n2")
    answer = scene.get("n2")
    scene.run(0.01)
    assert answer.outcome != "done"
