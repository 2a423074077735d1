"""Reads that a replica answers without leading: only with a proof that it has all that was acknowledged so long before,
counted from when it asked for the proof, by clocks that have not stood still, and only for slots that it holds."""

from __future__ import annotations

from typing import Any

from metad_client import KvKey, MetadError, NotFreshError, StaleRouteError
from metad_judge.freshness import Writes
from metad_wire.errors import MetadError as WireError
from metad_wire.methods import KV_GET

from ..cluster import DATA, SimNode
from .scene import Scene, scenario


def at(scene: Scene, sim: SimNode, freshness_ms: int, group: str = "data-0", key: str = "a") -> Any:
    """The value that a node itself answers, None if there is no record, or the error."""
    assert sim.node is not None
    assert sim.process is not None
    answers: list[bytes | WireError] = []
    body = KV_GET.body(items=[KvKey("space", key)])
    payload = KV_GET.encode_request(body, group=group, freshness_ms=freshness_ms)
    sim.process.context.run(sim.node.requests.submit, KV_GET.code, payload, answers.append)
    assert scene.run_until(lambda: bool(answers), 5.0), "there is no answer"
    if isinstance(answers[0], MetadError):
        return answers[0]
    (found,) = KV_GET.decode_reply(answers[0]).found
    return None if found is None else found.value


def warmed(scene: Scene, name: str, freshness_ms: int, value: bytes = b"1") -> SimNode:
    """A follower that has proven itself, and answers."""
    sim = scene.nodes[name]
    assert scene.run_until(lambda: at(scene, sim, freshness_ms) == value, 5.0), f"{name} proves nothing"
    return sim


def refuses(scene: Scene, sim: SimNode, freshness_ms: int) -> bool:
    return isinstance(at(scene, sim, freshness_ms), NotFreshError)


@scenario
def a_follower_answers_what_it_can_prove_and_the_leader_the_rest() -> None:
    """By the SDK, and without the leader in reach."""
    with Scene() as scene:
        scene.transfer("n3")
        scene.put(scene.one, "a", b"1")
        sim = warmed(scene, "n1", 2_000)
        reader = scene.client()
        scene.ask(reader, lambda c: c.cluster.map())
        scene.network.partition([reader.name], ["n2", "n3"])
        scene.run(3.0)
        assert scene.ask(reader, lambda c: c.kv.get("space", "a", freshness_ms=2_000)).value == b"1"
        assert sim.node is not None
        assert sim.node.near.served
        scene.network.heal()
        assert scene.ask(reader, lambda c: c.kv.get("space", "a", freshness_ms=1)).value == b"1"
        assert scene.ask(reader, lambda c: c.kv.get("space", "a")).value == b"1"


@scenario
def a_follower_that_is_cut_off_answers_only_what_may_be_that_old() -> None:
    with Scene() as scene:
        scene.transfer("n3")
        scene.put(scene.one, "a", b"1")
        sim = warmed(scene, "n1", 1_000)
        scene.isolate("n1")
        scene.put(scene.two, "a", b"2")
        scene.run(1.5)
        assert refuses(scene, sim, 1_000)
        assert at(scene, sim, 30_000) == b"1", "it says how old it may be, and is"
        scene.network.heal()
        warmed(scene, "n1", 1_000, b"2")


@scenario
def a_leader_that_leads_no_more_proves_nothing() -> None:
    """The leader and a follower are cut off from the others, who elect another and go on."""
    with Scene(nodes=5, replicas=5) as scene:
        scene.transfer("n1")
        scene.put(scene.one, "a", b"1")
        sim = warmed(scene, "n2", 400)
        others = ["n3", "n4", "n5", scene.one.name, scene.two.name]
        scene.network.partition(["n1", "n2"], others)
        assert scene.run_until(lambda: scene.lead().name not in ("n1", "n2"), 5.0)
        scene.put(scene.two, "a", b"2")
        written_s = scene.loop.now
        for _ in range(20):
            scene.run(0.1)
            assert at(scene, sim, 400) != b"1" or scene.loop.now - written_s < 0.4, "a leader of old has proven it"
        assert refuses(scene, sim, 400)


@scenario
def a_proof_is_as_old_as_its_question() -> None:
    """Question and answer take long, and what the leader has written since is on the same long way."""
    with Scene() as scene:
        scene.transfer("n3")
        scene.put(scene.one, "a", b"1")
        sim = warmed(scene, "n1", 2_000)
        scene.network.slow("n3", "n1", 220.0)
        writes = Writes()
        for number in range(2, 60):
            scene.put(scene.two, "a", b"%d" % number)
            writes.acknowledged(number, scene.loop.now)
            for _ in range(5):
                scene.run(0.01)
                begun_s, found = scene.loop.now, at(scene, sim, 100)
                if isinstance(found, bytes):
                    assert int(found) >= writes.by(begun_s - 0.1), "it is older than it says"
        assert isinstance(at(scene, sim, 20_000), bytes)


@scenario
def a_proof_is_given_up_when_a_clock_stood_still() -> None:
    """What the machine runs on stops it for seconds: its monotonic clock does not notice, and its calendar does."""
    with Scene() as scene:
        scene.transfer("n3")
        scene.put(scene.one, "a", b"1")
        sim = warmed(scene, "n1", 1_000)
        scene.isolate("n1")
        assert sim.process is not None
        assert sim.environment is not None
        begun_s = sim.environment.now()
        sim.process.pause(5.0)
        scene.put(scene.two, "a", b"2")
        scene.run(4.9)
        sim.environment.stand_still(sim.environment.now() - begun_s)
        scene.run_until(lambda: sim.process is not None and not sim.process.paused, 1.0)
        assert refuses(scene, sim, 1_000), "it takes its proof for a new one"
        scene.network.heal()
        warmed(scene, "n1", 1_000, b"2")


@scenario
def a_follower_answers_only_for_slots_that_it_holds() -> None:
    """All slots have moved away, and a client asks by an old map."""
    with Scene(data=2) as scene:
        everything = scene.slots_of(1)
        if everything:
            scene.move(1, 0)
        scene.transfer("n3")
        scene.put(scene.one, "a", b"1")
        sim = warmed(scene, "n1", 2_000)
        scene.move(0, 1)
        scene.put(scene.two, "a", b"2")
        assert scene.run_until(lambda: isinstance(at(scene, sim, 2_000), StaleRouteError | NotFreshError), 1.0)
        scene.run(2.5)
        assert isinstance(at(scene, sim, 2_000), StaleRouteError)
        assert scene.ask(scene.one, lambda c: c.kv.get("space", "a", freshness_ms=2_000)).value in (b"1", b"2")


@scenario
def a_follower_that_has_not_applied_what_was_committed_proves_nothing() -> None:
    """Its disk hangs: it hears of everything, and applies nothing."""
    with Scene() as scene:
        scene.transfer("n3")
        scene.put(scene.one, "a", b"1")
        sim = warmed(scene, "n1", 500)
        assert sim.environment is not None
        sim.environment.hang_disk()
        scene.put(scene.two, "a", b"2")
        for _ in range(15):
            scene.run(0.1)
            at(scene, sim, 500)
        assert refuses(scene, sim, 500)
        assert at(scene, sim, 30_000) == b"1"
        assert sim.process is not None
        sim.process.context.run(sim.environment.unhang_disk)
        warmed(scene, "n1", 500, b"2")


@scenario
def a_group_that_is_read_near_sleeps_when_nobody_reads() -> None:
    """Questions go on for a while after the last read, and then nobody asks."""
    with Scene() as scene:
        scene.transfer("n3")
        scene.put(scene.one, "a", b"1")
        sim = warmed(scene, "n1", 2_000)
        scene.run(5.0)
        assert at(scene, sim, 2_000) == b"1", "a proof is there already"
        scene.run(25.0)
        leader = scene.lead().node
        assert leader is not None
        assert leader.drivers[DATA].group.asleep
        assert refuses(scene, sim, 2_000), "nobody has asked, and it says so"
        warmed(scene, "n1", 2_000)
