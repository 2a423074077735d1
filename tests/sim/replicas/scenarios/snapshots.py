"""Snapshots, and a log that is cut."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from metad.errors import StorageError
from metad.raft.log.journal import REGULAR, RaftLog, record
from metad.raft.messages import Append, AppendReply, Configuration, Snapshot
from metad.raft.roles.leadership import Sending
from metad.storage.log import LogStore, LogWriter
from metad_wire.cluster import GroupId

from ...disk import SimDisk
from .scene import Scene, scenario, started


def _left_behind(**settings: Any) -> Scene:
    """n3 needs a snapshot."""
    scene = started(compact_entries=5, cache_bytes=0, **settings)
    scene.isolate("n3")
    for value in range(20):
        scene.write("n1", value)
    scene.run(0.1)
    assert scene.group("n1").log.base_index > scene.group("n3").log.last_index
    return scene


@scenario
def snapshot_replaces_a_diverged_log() -> None:
    """n3 led alone and has a long tail that nobody has; what it needs is in a snapshot only."""
    scene = Scene(compact_entries=5, cache_bytes=0)
    scene.run(0.011)
    scene.ready("n3")
    scene.run(0.25)
    scene.isolate("n3")
    for value in range(40):
        scene.put("n3", f"lost {value}")
    scene.run(0.1)
    scene.ready("n1")
    for value in range(15):
        scene.write("n1", value)
    scene.converge()
    assert scene.value("n3") == 14


@scenario
def snapshot_is_acknowledged_when_it_is_durable() -> None:
    """n3's disk is slow: until the log begins anew there, the leader has only its own word for it."""
    scene = _left_behind()
    scene.node("n3").disk_slow_until = scene.world.clock.now + 0.3
    scene.heal()
    scene.run(0.3)
    scene.converge()


@scenario
def snapshot_that_fails_is_not_acknowledged() -> None:
    """n3 never gets it installed, and n2 is gone: nothing can be committed."""
    scene = _left_behind()
    scene.group("n3")._host.install_snapshot = lambda message: None
    scene.heal()
    scene.isolate("n2")
    scene.world.network.heal("n1", "n3")
    answer = scene.put("n1", "new")
    scene.run(1.0)
    assert answer.outcome != "done"


@scenario
def old_snapshot_is_ignored() -> None:
    """The order to install comes again when n3 has long gone on."""
    scene = _left_behind()
    scene.heal()
    scene.until(lambda: any(isinstance(m, Snapshot) for _, _, m in scene.sent))
    scene.world.require_convergence(5.0)
    for value in range(3):
        scene.write("n1", value)
    scene.run(0.3)
    order = next((s, t, m) for s, t, m in scene.sent if isinstance(m, Snapshot))
    asked: list[Any] = []
    scene.group("n3")._host.install_snapshot = asked.append
    scene.world.deliver(*order)
    scene.run(0.1)
    assert not asked, "it is to install what it has gone beyond"
    scene.converge()


@scenario
def snapshot_that_is_outrun_is_followed_by_another() -> None:
    """While n3 installs it, the leader drops what follows it. It would not of its own accord."""
    scene = _left_behind()
    scene.node("n1").snapshots.held_index = lambda group: None  # type: ignore[method-assign]
    scene.node("n3").disk_slow_until = scene.world.clock.now + 0.1
    scene.heal()
    scene.until(lambda: scene.hosted("n3").installing is not None)
    for value in range(20):
        scene.write("n1", value)
    scene.converge(3.0)


@scenario
def snapshot_does_not_take_a_commit_back() -> None:
    """While n3 installs n1's snapshot, n2 leads, which has the log from its beginning: it sends and commits what n3
    lacks, and more."""
    scene = started(compact_entries=5, cache_bytes=0)
    scene.node("n2")._compact = lambda hosted: None  # type: ignore[method-assign]
    scene.isolate("n3")
    for value in range(20):
        scene.write("n1", value)
    scene.run(0.1)
    scene.node("n3").disk_slow_until = scene.world.clock.now + 0.2
    scene.node("n3").fsync_s = lambda: 2.0  # type: ignore[method-assign]
    scene.heal()
    scene.until(lambda: scene.hosted("n3").installing is not None)
    del scene.node("n3").fsync_s
    scene.isolate("n1")
    scene.ready("n2")
    for value in range(20, 25):
        scene.write("n2", value)
    index = scene.group("n2").commit
    scene.until(lambda: scene.group("n3").commit == index)
    assert scene.hosted("n3").installing is not None, "the snapshot was installed too soon"
    scene.until(lambda: scene.hosted("n3").installing is None)
    scene.converge()
    assert scene.value("n3") == 24


@scenario
def snapshot_carries_the_configuration_of_its_index() -> None:
    """A change is in n1's log, and never committed, when it sends n3 a snapshot that ends before it."""
    scene = _left_behind(spares=1)
    scene.hold(Append, source="n1", target="n2", lose=True)
    scene.do("n1", lambda group: group.add_learner("n4"))
    scene.world.network.heal("n1", "n3")
    scene.until(lambda: scene.world.snapshots > 0)
    scene.node("n4").join(scene.world.groups[0])
    scene.converge()


@scenario
def snapshot_in_place_of_a_wrong_state_leaves_the_log() -> None:
    """n3 is to take a snapshot of what it has applied, and has acknowledged an entry after that. Nobody else has it but
    n1, which dies."""
    scene = _left_behind()
    scene.heal()
    scene.until(lambda: scene.hosted("n3").installing is None and scene.group("n3").applied == 21)
    assert scene.group("n3").log.base_index == 21
    scene.isolate("n2")
    scene.hold(AppendReply, source="n3", lose=True)
    scene.put("n1", "acknowledged")
    scene.until(lambda: scene.group("n3").log.durable_index == 22)
    group = scene.group("n3")
    order = Snapshot(group.term, 21, 1, group.configuration, "stream")
    asked: list[Any] = []
    install, group._host.install_snapshot = group._host.install_snapshot, asked.append
    scene.world.deliver("n1", "n3", order)
    scene.run(0.01)
    assert not asked, "nothing is wrong with it"
    scene.do("n3", lambda group: group.rebuild(True))
    older = Snapshot(group.term, 20, 1, group.configuration, "stream")
    scene.world.deliver("n1", "n3", older)
    scene.run(0.01)
    assert not asked, "its state would go back"
    scene.world.deliver("n1", "n3", order)
    scene.until(lambda: bool(asked))
    scene.do("n3", lambda group: group.snapshot_installed(asked[0]))
    assert group.log.last_index == 22, "it has lost what it acknowledged"
    group._host.install_snapshot = install
    scene.converge()


@scenario
def replica_that_lacks_one_entry_needs_no_snapshot() -> None:
    """n3 has nothing of its log in memory since it was started, and all of it in its state. n2 lacks the last entry of
    it, and n3 leads."""
    scene = started(compact_entries=5, cache_bytes=0)
    for value in range(8):
        scene.write("n1", value)
    scene.run(0.3)
    scene.isolate("n2")
    scene.write("n1", "last")
    scene.run(0.3)
    scene.crash("n3")
    scene.start("n3")
    scene.isolate("n2")
    n3 = scene.hosted("n3")
    scene.until(lambda: n3.group.applied == n3.log.last_index)
    scene.node("n3")._flushed(n3, n3.group.applied, scene.node("n3").state_disk.begin_sync())
    scene.run(0.05)
    scene.crash("n1")
    scene.heal()
    scene.ready("n3")
    scene.until(lambda: scene.value("n2") == "last")
    assert not scene.world.snapshots, "n2 lacked one entry and got a snapshot"


@scenario
def snapshot_order_that_is_lost_is_repeated() -> None:
    """The stream arrives, the word that it has does not."""
    scene = _left_behind()
    scene.hold(Snapshot, lose=True)
    scene.heal()
    scene.until(lambda: any(isinstance(m, Snapshot) for _, _, m in scene.sent))
    scene.run(0.15)
    scene.open()
    scene.world.require_convergence(2.0)


@scenario
def snapshot_stream_is_begun_again_after_a_restart() -> None:
    """n3 had all of it and crashed before it was told to install. The leader asks it what it has, whatever became of
    the stream."""
    scene = _left_behind()
    scene.hold(Snapshot, lose=True)
    scene.heal()
    scene.until(lambda: any(isinstance(m, Snapshot) for _, _, m in scene.sent))
    scene.crash("n3")
    scene.node("n1").snapshots.peer_lost = lambda peer: None  # type: ignore[method-assign]  # nobody tells
    scene.hold(AppendReply, source="n3")
    scene.start("n3")
    scene.until(lambda: scene.group("n1").peers["n3"].sending is Sending.PROBE, 0.5, "n3 is not asked what it has")
    scene.open()
    scene.world.require_convergence(2.0)


@scenario
def snapshot_ends_in_what_is_not_written_yet() -> None:
    """The entries that a snapshot replaces came in the same turn as the word that it is installed."""
    disk = SimDisk()
    three = Configuration(("n1", "n2", "n3"))

    def opened() -> tuple[LogWriter, RaftLog]:
        store = LogStore(disk)
        writer = LogWriter(store, _Now(disk), failed=_fail)
        return writer, RaftLog(GroupId("data", 0), store, writer, initial=three, cache_bytes=1 << 20)

    writer, log = opened()
    log.append([record(1, REGULAR, b"%d" % index) for index in range(1, 6)])
    log.restart(3, 1, three)
    writer.flush()
    _, log = opened()
    assert (log.base_index, log.last_index) == (3, 5)


class _Now:
    """An fsync that takes no time."""

    def __init__(self, disk: SimDisk) -> None:
        self._disk = disk

    def sync(self, done: Callable[[StorageError | None], None]) -> None:
        self._disk.sync()
        done(None)

    def close(self) -> None:
        """Nothing runs."""


def _fail(error: StorageError) -> None:
    raise error


class _PowerCutError(Exception):
    """At a chosen write."""


@scenario
def power_fails_at_every_write_of_a_snapshot() -> None:
    """n3 installs a snapshot over a log of its own and loses power before the first write, the second, and so on, with
    nothing or everything unsynced kept."""
    for keep in (0, 1 << 30):
        for fatal in range(1, 100):
            scene = _left_behind()
            if not _power_cut(scene, "n3", fatal, keep):
                break
            scene.converge()
            assert scene.value("n3") == 19
        else:
            raise AssertionError("there are always more writes")
        assert fatal > 4


@scenario
def power_fails_at_every_write_of_a_compaction() -> None:
    """The same for a leader that flushes its state and drops the log behind it."""
    for keep in (0, 1 << 30):
        for fatal in range(1, 100):
            scene = started(compact_entries=5, cache_bytes=0)
            for value in range(3):
                scene.write("n1", value)
            if not _power_cut(scene, "n1", fatal, keep, writes=4):
                break
            scene.converge()
        else:
            raise AssertionError("there are always more writes")
        assert fatal > 4


def _power_cut(scene: Scene, name: str, fatal: int, keep: int, writes: int = 0) -> bool:
    """Have a node crash when it writes or syncs for the ``fatal``-th time, then start it. False if it does not come to
    that."""
    node = scene.node(name)
    left = fatal

    def watch(disk: SimDisk, method: str) -> None:
        original = getattr(disk, method)

        def counted(*arguments: Any, **named: Any) -> Any:
            nonlocal left
            left -= 1
            if left == 0:
                raise _PowerCutError
            return original(*arguments, **named)

        setattr(disk, method, counted)

    for disk in (node.log_disk, node.state_disk):
        watch(disk, "write")
        watch(disk, "finish_sync")
    cut = False
    try:
        if writes:
            for value in range(writes):
                scene.put("n1", f"more {value}")
                scene.run(0.02)
            scene.run(0.1)
        else:
            scene.heal()
            scene.world.require_convergence(5.0)
    except _PowerCutError:
        cut = True
    for disk in (node.log_disk, node.state_disk):
        for method in ("write", "finish_sync"):
            delattr(disk, method)
    if cut:
        node.crash(keep=keep)
        node.start()
    return cut


@scenario
def log_is_not_compacted_past_the_state() -> None:
    """What is dropped from the log must be in the state that a power failure leaves."""
    scene = started(compact_entries=5, cache_bytes=0, apply_entries=1)
    for value in range(10):
        scene.put("n1", value)
    scene.run(0.3)
    scene.crash(*scene.names)
    scene.start(*scene.names)
    scene.converge()
    assert scene.value("n1") == 9
