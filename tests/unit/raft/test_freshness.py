"""How old a replica says that its state is: never younger than it is, and for how long its leader has been silent."""

from __future__ import annotations

import pytest

from metad.raft.base import Timing
from metad.raft.messages import AppendReply
from metad.testing.replicas.scenarios.scene import ELECTION_S, Scene, started


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
