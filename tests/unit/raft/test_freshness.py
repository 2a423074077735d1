"""How old a replica says that its state is: never younger than it is, and for how long its leader has been silent."""

from __future__ import annotations

import pytest

from metad.raft.base import Timing
from metad.raft.messages import Append, AppendReply, Snapshot
from sim.replicas.scenarios.scene import ELECTION_S, Scene, started


def behind_s(scene: Scene, name: str) -> float:
    found: float = scene.do(name, lambda group: group.behind_s(scene.node(name).now()))
    return found


def silent_s(scene: Scene, name: str) -> float:
    found: float = scene.do(name, lambda group: group.silent_s(scene.node(name).now()))
    return found


def test_a_leader_with_a_lease_lacks_nothing_and_a_follower_what_came_since_the_last_heartbeat() -> None:
    scene = started()
    scene.write("n1", 1)
    scene.run(0.5)
    assert behind_s(scene, "n1") == 0
    assert 0 < behind_s(scene, "n2") < 0.25
    assert silent_s(scene, "n1") == 0
    assert silent_s(scene, "n2") < 0.15


def test_a_follower_that_is_cut_off_grows_older() -> None:
    scene = started()
    scene.write("n1", 1)
    scene.run(0.3)
    scene.isolate("n3")
    scene.run(2.0)
    assert 2.0 <= behind_s(scene, "n3") < 2.5
    assert 2.0 <= silent_s(scene, "n3") < 2.2
    assert behind_s(scene, "n2") < 0.25
    scene.heal()
    scene.run(1.5)
    assert silent_s(scene, "n3") < 0.15
    assert behind_s(scene, "n3") < 0.3


def test_a_leader_that_is_cut_off_grows_older_from_the_end_of_its_lease() -> None:
    scene = started()
    scene.run(0.3)
    scene.isolate("n1")
    scene.run(0.2)
    assert behind_s(scene, "n1") == 0
    scene.run(3.0)
    assert not scene.leads("n1")
    assert 3.2 - ELECTION_S - 0.1 < behind_s(scene, "n1") < 3.3
    assert silent_s(scene, "n1") > 3.2 - 2 * ELECTION_S - 0.2


def test_a_word_counts_once_it_is_applied() -> None:
    """A follower that hears its leader, and whose disk makes nothing durable, is not level."""
    scene = started()
    scene.write("n1", 1)
    scene.run(0.3)
    scene.node("n3").hang_disk()
    scene.write("n1", 2)
    scene.run(1.0)
    assert silent_s(scene, "n3") < 0.15
    assert behind_s(scene, "n3") > 0.9


def test_a_follower_of_a_new_leader_is_level_once_that_leader_has_committed() -> None:
    """Before, the leader does not know itself what is committed."""
    scene = started()
    scene.write("n1", 1)
    scene.run(0.3)
    scene.isolate("n1")
    scene.hold(AppendReply, source="n3", target="n2")
    scene.elect("n2")
    scene.run(0.3)
    assert silent_s(scene, "n3") < 0.15
    assert behind_s(scene, "n3") > ELECTION_S / 2
    assert behind_s(scene, "n2") > ELECTION_S / 2, "it is not ready"
    scene.open()
    scene.release()
    scene.ready("n2")
    scene.run(0.3)
    assert behind_s(scene, "n3") < 0.25
    assert behind_s(scene, "n2") == 0


def test_a_follower_that_is_always_a_little_behind_is_level_with_an_older_word(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = started()
    monkeypatch.setattr(scene.node("n3"), "fsync_s", lambda: 0.05)
    for number in range(200):
        scene.put("n1", number)
        scene.run(0.005)
    assert behind_s(scene, "n3") < 0.25


def test_a_sleeping_group_is_not_silent_between_two_looks() -> None:
    timing = Timing(election_s=ELECTION_S, heartbeat_s=0.1, sleep_after_s=0.5, look_after_s=5.0)
    scene = started(timing=timing)
    scene.write("n1", 1)
    scene.run(3.0)
    assert scene.group("n2").asleep
    assert silent_s(scene, "n2") == 0
    assert behind_s(scene, "n2") > 2.0, "it has heard nothing, and says so"
    scene.isolate("n2")
    scene.run(4.0)
    assert silent_s(scene, "n2") > 3.0, "it has woken up"


@pytest.mark.parametrize("seed", range(3))
def test_nothing_is_younger_than_it_is(seed: int) -> None:
    """Whatever a replica lacks was acknowledged no longer ago than it says."""
    scene = started()
    acknowledged: dict[int, float] = {}
    for number in range(1, 40):
        if number == 10:
            scene.isolate("n3")
        if number == 20:
            scene.heal()
        scene.write("n1", number)
        acknowledged[number] = scene.world.clock.now
        scene.run(0.013 * (1 + (number + seed) % 3))
        for name in ("n2", "n3"):
            has = scene.value(name) or 0
            lacks = [at for value, at in acknowledged.items() if value > has]
            if lacks:
                assert behind_s(scene, name) >= scene.world.clock.now - min(lacks) - 0.002, (number, name)


def test_a_leader_that_has_given_up_its_lease_or_is_being_removed_grows_older() -> None:
    """Another may lead by now, without having heard of it."""
    for gives_up in (True, False):
        scene = started()
        scene.write("n1", 1)
        scene.run(0.3)
        assert behind_s(scene, "n1") == 0
        if gives_up:
            scene.do("n1", lambda group: group._reads.give_up_lease())
        else:
            scene.hold(Append, source="n1", target="n2")
            scene.hold(Append, source="n1", target="n3")
            scene.do("n1", lambda group: group.remove("n1"))
        scene.run(0.2)
        assert scene.leads("n1")
        assert behind_s(scene, "n1") >= 0.2, gives_up


def test_a_word_of_an_earlier_leader_makes_nobody_level() -> None:
    """n3 comes to what n1 had named as committed when n2 leads: nobody says how much more there is by then."""
    scene = started()
    scene.write("n1", 1)
    scene.run(0.3)
    group = scene.group("n3")
    index, term = group.commit, group.term
    scene.isolate("n1")
    scene.ready("n2")
    scene.run(0.1)
    assert group.term > term == group.log.term_at(index)
    fresh, now = group._freshness, scene.node("n3").now()
    fresh._level_s, fresh._word = now - 5.0, (now, term, index)
    assert behind_s(scene, "n3") >= 5.0
    assert fresh._word is None


def test_what_follows_a_snapshot_is_not_agreed_upon_because_it_was_kept() -> None:
    """A follower keeps the entries behind a snapshot that its log agrees with. No leader has compared them."""
    scene = started()
    for value in range(5):
        scene.write("n1", value)
    scene.run(0.3)
    follower = scene.group("n3")._follower
    log, state = follower._log, follower._state
    index = log.last_index - 2
    state._SyncObj__raftLastApplied = state._SyncObj__raftCommitIndex = index - 1
    log.restart = lambda *_: None  # type: ignore[method-assign]  # it agrees, and keeps what it has
    follower._verified = 0
    sent: list[AppendReply] = []
    follower._host.send = lambda peer, message: sent.append(message)  # type: ignore[method-assign, arg-type, return-value]
    follower.snapshot_installed(Snapshot(state.term, index, log.term_at(index) or 0, log.configuration, "s"))
    assert log.last_index == index + 2
    assert [(reply.match, reply.agreed) for reply in sent] == [(index, index)]
