"""States of replicas that a disk or a memory has changed: found, and replaced."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from metad.config import RaftConfig, StorageConfig
from metad_judge.invariants import Violation
from metad_wire.messages import GroupStatus

from ..cluster import DATA, SimNode
from .scene import Scene, scenario

EVERY_S = StorageConfig().compare_every_ms / 1000
_FOUND_S = 15 * EVERY_S
_TEXT = b"a value that a bad memory changes"


def _flip(sim: SimNode, text: bytes = _TEXT) -> bytes:
    """Change a bit of a row of its state, behind everybody's back. Returns the key."""
    for key, value in sim.disks.state.scan(b"", b"\xff" * 16, 1 << 30):
        if text in value:
            sim.disks.state.write({key: value.replace(text, text[:-1] + bytes((text[-1] ^ 1,)))})
            sim.disks.state.sync()
            return key
    raise AssertionError("the row is not there")


def _told(scene: Scene) -> GroupStatus:
    """What the leader says of the group."""
    node = scene.lead().node
    assert node is not None
    (found,) = [status for status in node.status().groups if status.name == DATA.name]
    return found


def _follower(scene: Scene) -> SimNode:
    leader = scene.lead()
    return next(sim for sim in scene.nodes.values() if sim is not leader)


@contextmanager
def _with_a_value() -> Iterator[Scene]:
    with Scene() as scene:
        scene.put(scene.one, "a", _TEXT)
        scene.require_settled(10.0)
        yield scene


@scenario
def wrong_state_is_replaced() -> None:
    """Nobody writes meanwhile, so the snapshot ends with the entry that the replica has applied."""
    with _with_a_value() as scene:
        late = _follower(scene)
        key = _flip(late)
        assert scene.run_until(lambda: _told(scene).unlike == [late.name], _FOUND_S), "it is not found"
        assert scene.run_until(lambda: not _told(scene).unlike, _FOUND_S), "it is not replaced"
        assert _TEXT in (late.disks.state.get(key) or b"")
        scene.require_settled(10.0)
        scene.transfer(late.name)
        assert scene.get(scene.two, "a") == (_TEXT, 1)


@scenario
def wrong_state_is_replaced_while_others_write() -> None:
    """And nothing of what they write is lost, nor is anybody suspected who is right."""
    with _with_a_value() as scene:
        late = _follower(scene)
        suspects: set[str] = set()

        def write(seconds: float) -> None:
            until_s, number = scene.loop.now + seconds, 0
            while scene.loop.now < until_s:
                scene.put(scene.one, f"k{number % 7}", b"%d" % number)
                scene.run(0.02)
                number += 1
                suspects.update(_told(scene).unlike)

        write(8 * EVERY_S)
        assert not suspects, "nothing was wrong"
        _flip(late)
        write(_FOUND_S)
        assert suspects == {late.name}
        assert not _told(scene).unlike
        scene.require_settled(10.0)


@scenario
def leader_with_a_wrong_state_hands_over() -> None:
    """The next one finds it, and it is replaced then."""
    with _with_a_value() as scene:
        leader = scene.lead()
        _flip(leader)
        assert scene.run_until(lambda: scene.leader() is not leader, _FOUND_S), "it leads on"
        assert scene.run_until(lambda: _told(scene).unlike == [leader.name], _FOUND_S), "it is not found"
        assert scene.run_until(lambda: not _told(scene).unlike, _FOUND_S), "it is not replaced"
        scene.require_settled(20.0)
        assert scene.run_until(lambda: scene.leader() is leader, 30.0), "it is preferred, and right again"


@scenario
def without_a_majority_nothing_is_replaced() -> None:
    """One of three is cut off, and the others differ: nobody knows who is right. Then the third decides."""
    with _with_a_value() as scene:
        leader, late = scene.lead(), _follower(scene)
        (third,) = [sim for sim in scene.nodes.values() if sim not in (leader, late)]
        scene.isolate(third.name)
        key = _flip(late)
        alarm = ""
        try:
            scene.run_until(lambda: _told(scene).undecided, _FOUND_S)
        except Violation as error:  # it is logged as an error
            alarm = str(error)
            scene._failure = None
        assert "replicas_undecided" in alarm, "nobody was told"
        assert sorted(_told(scene).unlike) == sorted([leader.name, late.name])
        assert _TEXT not in (late.disks.state.get(key) or b""), "it was replaced by somebody's choice"
        scene.network.heal()
        assert scene.run_until(lambda: not _told(scene).unlike, 2 * _FOUND_S), "the third does not decide"
        scene.require_settled(20.0)


@scenario
def replica_goes_on_when_its_leader_is_gone() -> None:
    """It waits for a snapshot of a leader that dies. It has a vote and a log, without which nobody leads."""
    with _with_a_value() as scene:
        leader, late = scene.lead(), _follower(scene)
        assert late.node is not None
        late.node.snapshot_received = lambda peer, payload: None  # type: ignore[method-assign]
        key = _flip(late)

        def waits() -> bool:
            node = late.node
            return node is not None and node.drivers[DATA].rebuilding

        assert scene.run_until(waits, _FOUND_S), "it does not wait"
        machine = late.node.drivers[DATA].machine
        applied = machine.applied
        scene.put(scene.one, "c", b"1")
        scene.run(0.2)
        assert machine.applied == applied, "it applies to a state that is wrong"
        leader.crash()
        assert scene.run_until(lambda: scene.leader() not in (None, leader) and not waits(), 10.0), "it waits on"
        assert scene.put(scene.one, "b", b"1") == 1
        leader.start()
        del late.node.snapshot_received
        assert scene.run_until(lambda: _TEXT in (late.disks.state.get(key) or b""), 2 * _FOUND_S), "it is not replaced"
        scene.require_settled(30.0)


@scenario
def what_belongs_to_a_replica_alone_is_not_compared() -> None:
    """One has got a snapshot, and its state says so."""
    small = StorageConfig(engine="memory", log_retained_bytes=500)
    raft = RaftConfig(election_timeout_ms=300, heartbeat_ms=50, sleep_after_ms=500, log_cache_bytes=1)
    with Scene(storage=small, raft=raft) as scene:
        late = _follower(scene)
        scene.isolate(late.name)
        scene.catch_up_by_snapshot()
        until_s = scene.loop.now + _FOUND_S
        while scene.loop.now < until_s:
            scene.run(0.2)
            assert not _told(scene).unlike, "nothing was wrong"
