"""Groups that sleep."""

from __future__ import annotations

from metad.raft.messages import Append, PreVote, PreVoteReply

from .scene import TIMING, Scene, scenario, started


def _asleep() -> Scene:
    scene = started(timing=TIMING._replace(sleep_after_s=0.3))
    scene.write("n1", 1)
    scene.until(lambda: all(scene.group(name).asleep for name in scene.names), 3.0, "the group does not sleep")
    return scene


@scenario
def sleeping_group_is_silent_and_wakes() -> None:
    """While nothing happens, the leader asks now and then who follows it, and nothing else is sent; a write wakes
    everybody."""
    scene = _asleep()
    scene.run(0.1)
    before = len(scene.sent)
    scene.run(10.0)
    assert len(scene.sent) - before == 2 * 2, "it talks in its sleep"
    assert all(scene.group(name).asleep for name in scene.names)
    scene.write("n1", 2)
    answer = scene.get("n1")
    scene.run(0.05)
    assert answer.outcome == "done"
    assert answer.result == 2


@scenario
def sleeping_group_notices_that_its_leader_is_gone() -> None:
    """The connection breaks: the others wake up, and one leads."""
    scene = _asleep()
    scene.crash("n1")
    scene.until(lambda: scene.leads("n2") or scene.leads("n3"), 3.0, "nobody leads")
    scene.converge()


@scenario
def sleeping_leader_is_alive() -> None:
    """The connection between two followers breaks, so these wake up and ask who leads. The leader sleeps on until it is
    asked; it must not agree that there is none."""
    scene = _asleep()
    term = scene.group("n1").term
    scene.run(5.0)
    scene.world.network.cut_both("n2", "n3")
    scene.run(5.0)
    assert scene.leads("n1")
    assert scene.group("n1").term == term, "a living leader was deposed"
    scene.converge()


@scenario
def sleeping_follower_consents_to_no_campaign() -> None:
    """n3 misses the leader. The promise of n2, which sleeps, is long over, and a sleeping leader says nothing."""
    scene = _asleep()
    scene.run(5.0)
    n2 = scene.group("n2")
    before = len(scene.sent)
    scene.world.deliver("n3", "n2", PreVote(n2.term + 1, n2.log.last_index, n2.log.last_term))
    scene.run(0.05)
    assert not any(isinstance(m, PreVoteReply) and m.granted for _, _, m in scene.sent[before:])
    assert scene.leads("n1")
    scene.converge()


@scenario
def sleeping_leader_looks_for_its_followers() -> None:
    """Nothing that a sleeping leader's followers send arrives, and no connection breaks: it must not believe for ever
    that it leads."""
    scene = _asleep()
    scene.hold(target="n1", lose=True)
    scene.until(lambda: not scene.leads("n1"), 25.0, "a leader that nobody answers leads on in its sleep")
    scene.converge()


@scenario
def follower_that_missed_good_night_does_no_harm() -> None:
    """n3 did not hear that the leader would sleep, and misses it. The leader is there."""
    scene = started(timing=TIMING._replace(sleep_after_s=0.3))
    scene._rules.append((lambda s, t, m: isinstance(m, Append) and m.sleep and t == "n3", False))
    scene.write("n1", 1)
    scene.until(lambda: scene.group("n1").asleep)
    term = scene.group("n1").term
    scene.run(5.0)
    assert scene.leads("n1")
    assert scene.group("n1").term == term, "a living leader was deposed"
    scene.converge()


@scenario
def leader_does_not_sleep_while_a_peer_lacks_entries() -> None:
    """An entry is lost on its way to n3, and nothing else happens."""
    scene = started(timing=TIMING._replace(sleep_after_s=0.3))
    scene.hold(Append, target="n3", lose=True)
    scene.write("n1", 1)
    scene.run(0.5)
    assert not scene.group("n1").asleep, "the leader sleeps, and n3 lacks an entry"
    scene.open()
    scene.converge()


@scenario
def leader_knows_what_a_peer_has_yet_to_apply() -> None:
    """n3 has the whole log when it is back, and must do much of it again before it could serve. The leader knows that,
    and does not sleep before n3 is done: it would never hear of it."""
    scene = started(timing=TIMING._replace(sleep_after_s=0.3))
    for value in range(20):
        scene.write("n1", value)
    scene.crash("n3")
    assert scene.group("n1").lag("n3") == 0, "as it was when it was last heard"
    node = scene.node("n3")
    node.start()
    hosted = scene.hosted("n3")
    hosted.applying = True  # it is slow: nothing is applied until this is over
    scene.run(0.5)
    group = scene.group("n1")
    assert group.peers["n3"].match == group.log.last_index
    assert group.lag("n3") == group.commit - hosted.group.applied > 0
    assert not group.asleep, "the leader sleeps, and believes for ever that n3 has much to do"
    hosted.applying = False
    node.run(node.life, node.committed, hosted.group)
    scene.until(lambda: group.lag("n3") == 0, 0.3, "the leader does not learn that n3 has applied everything")
    scene.until(lambda: all(scene.group(name).asleep for name in scene.names), 3.0, "the group does not sleep")
    scene.converge()
