"""Watches of a cluster in virtual time: what a change of leader, a cut connection and a snapshot do to a stream."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from test_watches import ALL, Client

from metad.config import RaftConfig, StorageConfig
from metad_wire.watch import WatchFilter
from sim.nodes.cluster import SimNode
from sim.nodes.scenarios import Scene

NAMES = ("n1", "n2", "n3")


@pytest.fixture
def scene() -> Iterator[Scene]:
    with Scene() as scene:
        scene.require_settled(10.0)
        yield scene


def watch(scene: Scene, sim: SimNode, **opening: Any) -> Client:
    """A stream of a node, without a connection."""
    assert sim.process is not None
    client = Client(sim.node)

    async def begin() -> None:
        client.open([WatchFilter("kv")], **opening)

    task = sim.process.start(begin())
    assert scene.run_until(task.done, 1.0)
    task.result()
    return client


def test_every_replica_reports_the_same_whoever_leads(scene: Scene) -> None:
    clients = {name: watch(scene, scene.nodes[name]) for name in NAMES}
    scene.put(scene.one, "a", b"1")
    for number, name in enumerate(NAMES):
        scene.transfer(name)
        scene.put(scene.one, f"k{number}", b"1")
    assert scene.run_until(lambda: all(len(client.keys) == 4 for client in clients.values()), 5.0)
    assert len({tuple(client.indexes) for client in clients.values()}) == 1
    assert not any(client.over for client in clients.values())
    assert sum(client.opens[0].leader for client in clients.values()) == 1


def test_a_follower_that_is_cut_off_ends_its_streams(scene: Scene) -> None:
    """A watch of it would be silent for ever, and its client none the wiser."""
    leader = scene.lead().name
    name = next(name for name in NAMES if name != leader)
    cut_off, other = watch(scene, scene.nodes[name]), watch(scene, scene.nodes[leader])
    scene.isolate(name)
    scene.run(5.0)
    assert not cut_off.over
    assert scene.run_until(lambda: cut_off.over, 25.0), "it is silent for ever"
    assert cut_off.ended == "not_replica"
    again = watch(scene, scene.nodes[name])
    assert scene.run_until(lambda: again.over, 2.0), "it serves again at once"
    scene.put(scene.one, "a", b"1")
    assert scene.run_until(lambda: len(other.keys) == 1, 5.0)
    assert not other.over
    scene.network.heal()
    scene.require_settled(20.0)
    whole = watch(scene, scene.nodes[name], snapshot=ALL)
    assert scene.run_until(lambda: whole.rows == 1, 5.0)
    scene.run(30.0)  # the group sleeps meanwhile
    assert not whole.over
    assert not other.over


def test_a_leader_that_is_cut_off_ends_its_streams_too(scene: Scene) -> None:
    leader = scene.lead().name
    client = watch(scene, scene.nodes[leader])
    scene.isolate(leader)
    assert scene.run_until(lambda: client.over, 30.0), "it is silent for ever"
    assert client.ended == "not_replica"


def test_progress_tells_the_age_of_what_a_follower_has(scene: Scene) -> None:
    leader = scene.lead().name
    name = next(name for name in NAMES if name != leader)
    leads, follows = (watch(scene, scene.nodes[one], progress_ms=250) for one in (leader, name))
    scene.put(scene.one, "a", b"1")
    scene.run(0.8)

    def ages(client: Client) -> list[int]:
        return [frame.progress.behind_ms for frame in client.frames if frame.progress is not None]

    assert set(ages(leads)) == {0}
    assert 0 < ages(follows)[-1] < 500
    scene.run(5.0)
    assert set(ages(leads)) == {0}, "a leader whose group sleeps asks whether it still leads"
    assert ages(follows)[-1] < 500
    scene.isolate(name)
    scene.run(4.0)
    assert ages(follows)[-1] > 3_000
    assert follows.frames[-1].index == follows.indexes[-1]


def test_a_replica_that_gets_a_snapshot_ends_its_streams() -> None:
    raft = RaftConfig(log_cache_bytes=1)
    with Scene(storage=StorageConfig(engine="memory", log_retained_bytes=500), raft=raft) as scene:
        scene.require_settled(10.0)
        leader = scene.lead().name
        name = next(name for name in NAMES if name != leader)
        live = watch(scene, scene.nodes[name])
        pinned = watch(scene, scene.nodes[name], snapshot=ALL, credit_bytes=0)
        scene.put(scene.one, "a", b"1")
        scene.isolate(name)
        scene.catch_up_by_snapshot()
        assert live.ended == pinned.ended == "log_cut"
        late = watch(scene, scene.nodes[name], position=1)
        assert late.refusal == "log_cut"
        whole = watch(scene, scene.nodes[name], snapshot=ALL)
        assert scene.run_until(lambda: whole.rows == 21, 5.0)
        node = scene.nodes[name].node
        assert node is not None
        assert node.watches.count == 1
