"""Snapshots between nodes: what arrives is what was sent or nothing, whatever the network does; and a node that dies
while it installs one finds out where its log goes on."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from pathlib import Path
from zlib import crc32

import msgspec
import pytest
from journal_rig import GROUP, Rig
from snapshot_rig import LIMITS, FakeGroup, World

from metad.config import Config
from metad.errors import DamagedStoreError, StorageError
from metad.raft.base import UnsafeStateError
from metad.raft.messages import Configuration, Snapshot
from metad.raft.replicas import PeerProtocolError
from metad.raft.snapshots.snapshots import SnapshotMark, read_mark, replace_state, restore_log
from metad.raft.snapshots.staging import FileStaging
from metad.raft.snapshots.transfer import NO_ROOM, Abandon, AnyStreamMessage, Begin, End, Part, PartReply
from metad.state.core.entry import NO_WRITES
from metad.state.core.part import NodeMemory
from metad.state.machine import Machine
from metad.storage import keys
from metad.storage.log import DurableMark
from metad.storage.memory import MemoryEngine
from metad_wire.cluster import GroupId

FOUR = Configuration(("a", "b"), ("c",))


def started(world: World, group: FakeGroup, *peers: str) -> dict[bytes, bytes]:
    pairs = group.fill(world.engines["a"])
    for peer in peers or ("b",):
        world.nodes["a"].wanted(group, peer)  # type: ignore[arg-type]
    return pairs


def test_a_peer_gets_the_range_and_the_mark() -> None:
    world, group = World(), FakeGroup("data", 1, ["b"])
    pairs = started(world, group)
    # Keys of other groups on both sides stay where they are; what the peer had of this one goes.
    other = keys.group_prefix(GroupId("data", 2)) + b"x"
    world.engines["a"].write({other: b"of a"})
    world.engines["b"].write({other: b"of b", group.prefix + b"\x30old": b"1"})
    world.run(done=lambda: bool(group.streamed))
    [(peer, message)] = group.streamed
    assert (peer, message.index, message.index_term, message.configuration) == ("b", 7, 3, FOUR)
    assert group.woken == 1  # else the message would wait for the next heartbeat
    world.install(group, "b", message)
    mark = read_mark(world.engines["b"], group.prefix)
    assert mark == SnapshotMark(1, 7, 3, FOUR)
    found = group.pairs(world.engines["b"])
    assert found.pop(keys.snapshot_mark(group.prefix)) == msgspec.msgpack.encode(mark)
    assert found == pairs
    assert world.engines["b"].get(other) == b"of b"
    world.run()
    assert group.failed == []
    assert world.staging["b"].streams == {}  # type: ignore[attr-defined]


def test_a_mark_of_the_senders_own_past_does_not_travel() -> None:
    world, group = World(), FakeGroup("data", 1, ["b"], applied=9)
    old = SnapshotMark(1, 2, 1, Configuration(("z",)))
    world.engines["a"].write({keys.snapshot_mark(group.prefix): msgspec.msgpack.encode(old)})
    started(world, group)
    world.run(done=lambda: bool(group.streamed))
    world.install(group, "b", group.streamed[0][1])
    mark = read_mark(world.engines["b"], group.prefix)
    assert mark is not None
    assert (mark.index, mark.term) == (9, 3)


def test_an_empty_range_has_no_parts_and_arrives_all_the_same() -> None:
    world, group = World(), FakeGroup("data", 1, ["b"], applied=0)
    world.engines["b"].write({group.prefix + b"\x30old": b"1"})
    world.nodes["a"].wanted(group, "b")  # type: ignore[arg-type]
    world.run(done=lambda: bool(group.streamed))
    world.install(group, "b", group.streamed[0][1])
    assert list(group.pairs(world.engines["b"])) == [keys.snapshot_mark(group.prefix)]


def test_no_more_than_the_window_is_unanswered() -> None:
    world, group = World(), FakeGroup("data", 1, ["b"])
    started(world, group)
    unanswered: list[int] = []

    def network(source: str, target: str, message: AnyStreamMessage) -> list[AnyStreamMessage]:
        parts, replies = world.of(Part), world.of(PartReply)
        staged = max((reply.staged for reply in replies), default=0)  # type: ignore[union-attr]
        unanswered.append(len(parts) - staged)
        return [message]

    world.network = network
    world.run(done=lambda: bool(group.streamed))
    assert max(unanswered) == LIMITS.window - 1  # and the one that is being delivered
    assert len(world.of(Part)) > 5


Fault = Callable[[random.Random, list[AnyStreamMessage], AnyStreamMessage], list[AnyStreamMessage]]


def lose(rng: random.Random, held: list[AnyStreamMessage], message: AnyStreamMessage) -> list[AnyStreamMessage]:
    return [] if rng.random() < 0.3 else [message]


def duplicate(rng: random.Random, held: list[AnyStreamMessage], message: AnyStreamMessage) -> list[AnyStreamMessage]:
    return [message] * rng.choice([1, 1, 2, 3])


def reorder(rng: random.Random, held: list[AnyStreamMessage], message: AnyStreamMessage) -> list[AnyStreamMessage]:
    held.append(message)
    if len(held) < 2 and rng.random() < 0.5:
        return []
    rng.shuffle(held)
    out = held[:]
    held.clear()
    return out


def corrupt(rng: random.Random, held: list[AnyStreamMessage], message: AnyStreamMessage) -> list[AnyStreamMessage]:
    if isinstance(message, Part) and rng.random() < 0.3:
        data = bytearray(message.data)
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        return [Part(message.group, message.stream, message.number, message.crc32, bytes(data))]
    return [message]


def everything(rng: random.Random, held: list[AnyStreamMessage], message: AnyStreamMessage) -> list[AnyStreamMessage]:
    messages = [message]
    for fault in (corrupt, duplicate, reorder):
        messages = [out for one in messages for out in fault(rng, held, one)]
    return messages if rng.random() < 0.9 else []


@pytest.mark.parametrize("fault", [lose, duplicate, reorder, corrupt, everything], ids=lambda fault: fault.__name__)
@pytest.mark.parametrize("seed", range(8))
def test_what_arrives_is_what_was_sent_whatever_the_network_does(seed: int, fault: Fault) -> None:
    world, group = World(), FakeGroup("data", 1, ["b"])
    pairs = started(world, group)
    rng = random.Random(seed)
    held: dict[str, list[AnyStreamMessage]] = {"a": [], "b": []}
    world.network = lambda source, target, message: fault(rng, held[source], message)

    def again() -> bool:
        # A stream that failed is wanted again once the leader has probed.
        while group.failed:
            group.peers[group.failed.pop()].wait_for_snapshot()
            world.nodes["a"].wanted(group, "b")  # type: ignore[arg-type]
        return bool(group.streamed)

    world.run(until=5000.0, done=again)
    world.install(group, "b", group.streamed[0][1])
    found = group.pairs(world.engines["b"])
    del found[keys.snapshot_mark(group.prefix)]
    assert found == pairs


def test_a_lost_part_is_sent_again_after_a_while() -> None:
    world, group = World(), FakeGroup("data", 1, ["b"])
    started(world, group)
    lost: list[AnyStreamMessage] = []

    def network(source: str, target: str, message: AnyStreamMessage) -> list[AnyStreamMessage]:
        if isinstance(message, Part) and message.number == 3 and not lost:
            lost.append(message)
            return []
        return [message]

    world.network = network
    world.run(done=lambda: bool(group.streamed))
    assert LIMITS.resend_s <= world.now < LIMITS.resend_s + 1
    assert group.failed == []


def test_what_is_written_while_it_is_streamed_is_not_in_it() -> None:
    world, group = World(), FakeGroup("data", 1, ["b"])
    pairs = started(world, group)
    world.run(done=lambda: len(world.of(Part)) == 3)
    world.engines["a"].write(
        dict.fromkeys(pairs, b"later"), {keys.applied(group.prefix): keys.u64(8), group.prefix + b"\x30zzz": b"1"}
    )
    assert world.nodes["a"].held_index(group) == 7  # type: ignore[arg-type]
    world.run(done=lambda: bool(group.streamed))
    world.install(group, "b", group.streamed[0][1])
    found = group.pairs(world.engines["b"])
    assert {key: found[key] for key in pairs} == pairs
    assert group.prefix + b"\x30zzz" not in found
    world.due["a"] = world.now
    world.run()
    assert world.nodes["a"].held_index(group) is None  # type: ignore[arg-type]


def test_a_silent_peer_is_given_up_and_tried_again_not_at_once() -> None:
    world, group = World(), FakeGroup("data", 1, ["b"])
    started(world, group)
    world.network = lambda source, target, message: []
    world.run(done=lambda: bool(group.failed))
    assert world.now == LIMITS.timeout_s
    assert world.nodes["a"].held_index(group) is None  # type: ignore[arg-type]
    failed_s = world.now
    world.network = lambda source, target, message: [message]
    group.peers["b"].wait_for_snapshot()
    world.nodes["a"].wanted(group, "b")  # type: ignore[arg-type]
    world.run(done=lambda: bool(group.streamed))
    assert failed_s + LIMITS.retry_s <= world.now < failed_s + LIMITS.retry_s + 1


def test_a_peer_that_stops_staging_midway_is_given_up() -> None:
    world, group = World(), FakeGroup("data", 1, ["b"])
    started(world, group)
    world.run(done=lambda: len(world.of(Part)) == 3)
    stalled_s = world.now
    world.network = lambda source, target, message: [] if source == "b" else [message]
    world.run(done=lambda: bool(group.failed))
    assert stalled_s + LIMITS.timeout_s <= world.now < stalled_s + LIMITS.timeout_s + 1
    world.run()
    assert world.staging["b"].streams == {}  # type: ignore[attr-defined]  # it was told, or found out


def test_a_peer_that_is_lost_midway_leaves_nothing_on_either_side() -> None:
    world, group = World(), FakeGroup("data", 1, ["b"])
    started(world, group)
    world.run(done=lambda: len(world.of(Part)) == 3)
    assert world.staging["b"].streams  # type: ignore[attr-defined]
    world.queue.clear()
    world.nodes["a"].peer_lost("b")
    world.nodes["b"].peer_lost("a")
    assert group.failed == ["b"]
    assert world.staging["b"].streams == {}  # type: ignore[attr-defined]
    world.queue.clear()
    world.run()
    assert group.streamed == []
    assert world.nodes["a"].held_index(group) is None  # type: ignore[arg-type]


def test_two_groups_to_one_peer_go_one_after_the_other_and_two_peers_at_once() -> None:
    world = World("abc", limits=LIMITS._replace(sending_max=9))
    first, second = FakeGroup("data", 1, ["b", "c"]), FakeGroup("data", 2, ["b"])
    started(world, first, "b", "c")
    started(world, second)
    world.run(done=lambda: len(first.streamed) == 2 and len(second.streamed) == 1)
    order = [
        (target, message.group) for source, target, message in world.heard if source == "a" if isinstance(message, Part)
    ]
    to_b = [group for target, group in order if target == "b"]
    assert to_b == sorted(to_b)
    assert len(set(to_b)) == 2
    begun = [position for position, (target, _) in enumerate(order) if target == "c"]
    assert begun[0] < order.index(("b", second.prefix))  # c did not wait for b
    for group, peer, message in [
        *((first, *streamed) for streamed in first.streamed),
        *((second, *streamed) for streamed in second.streamed),
    ]:
        world.install(group, peer, message)
        found = group.pairs(world.engines[peer])
        del found[keys.snapshot_mark(group.prefix)]
        assert found == group.pairs(world.engines["a"])


def test_a_third_peer_waits_until_one_of_two_is_done() -> None:
    world, group = World("abcd"), FakeGroup("data", 1, ["b", "c", "d"])
    started(world, group, "b", "c", "d")
    world.run(done=lambda: len(group.streamed) == 3)
    targets = [target for source, target, message in world.heard if isinstance(message, Part)]
    assert targets.index("d") > len(targets) // 2


@pytest.mark.parametrize("how", ["demoted", "caught up", "removed"])
def test_what_nobody_wants_any_more_is_stopped(how: str) -> None:
    world, group = World(), FakeGroup("data", 1, ["b"])
    started(world, group)
    world.run(done=lambda: len(world.of(Part)) == 2)
    if how == "demoted":
        group.is_leader = False
    elif how == "caught up":
        group.peers["b"].replicate_from(8)
    else:
        group.peers.clear()
    world.run()
    assert len(world.of(Part)) <= 4
    assert world.of(Abandon)
    assert world.staging["b"].streams == {}  # type: ignore[attr-defined]
    assert (group.streamed, group.failed) == ([], [])


def test_a_peer_that_does_not_install_gets_another() -> None:
    world, group = World(), FakeGroup("data", 1, ["b"])
    started(world, group)
    world.run(done=lambda: bool(group.failed))
    assert len(group.streamed) == 1
    assert LIMITS.install_timeout_s <= world.now < LIMITS.install_timeout_s + 1


def test_a_peer_that_has_lost_the_stream_says_so_when_it_is_to_install_it() -> None:
    world, group = World(), FakeGroup("data", 1, ["b"])
    started(world, group)
    world.run(done=lambda: bool(group.streamed))
    message = group.streamed[0][1]
    world.nodes["b"].peer_lost("a")  # only one side has noticed
    assert world.nodes["b"].install(group, message) is None  # type: ignore[arg-type]
    now = world.now
    world.run(done=lambda: bool(group.failed))
    assert world.now == now


def test_a_snapshot_is_installed_once_however_often_it_is_announced() -> None:
    world, group = World(), FakeGroup("data", 1, ["b"])
    started(world, group)
    world.run(done=lambda: bool(group.streamed))
    message = group.streamed[0][1]
    node = world.nodes["b"]
    assert node.install(group, message)  # type: ignore[arg-type]
    assert node.install(group, message) is None  # type: ignore[arg-type]
    # Meanwhile nothing takes its parts away, and no second stream of the group comes in.
    node.peer_lost("a")
    world.now += 10 * LIMITS.stale_s
    node.tick(world.now)
    assert world.staging["b"].streams  # type: ignore[attr-defined]
    node.receive("a", msgspec.msgpack.encode(Begin(group.prefix, "another")))
    world.step()
    assert world.of(PartReply)[-1].refused == "another snapshot of this group is being installed"  # type: ignore[union-attr]
    node.installed(group, message)  # type: ignore[arg-type]
    assert world.staging["b"].streams == {}  # type: ignore[attr-defined]


def test_a_leader_of_a_new_term_announces_what_was_streamed_in_the_old_one() -> None:
    world, group = World(), FakeGroup("data", 1, ["b"])
    started(world, group)
    world.run(done=lambda: bool(group.streamed))
    parts = len(world.of(Part))
    world.nodes["a"].wanted(group, "b")  # type: ignore[arg-type]
    world.run(done=lambda: len(group.streamed) == 2)
    assert group.streamed[0] == group.streamed[1]
    assert len(world.of(Part)) == parts
    # Unless the log behind it is gone: then only a newer one helps.
    group.log.restart(20, 4, FOUR)
    world.engines["a"].write({keys.applied(group.prefix): keys.u64(20)})
    world.nodes["a"].wanted(group, "b")  # type: ignore[arg-type]
    world.run(done=lambda: len(group.streamed) == 3)
    assert group.streamed[2][1].index == 20
    world.install(group, "b", group.streamed[2][1])


# --- the receiver against peers that do what they should not ----------------------------------------------


def refusals(world: World) -> list[str]:
    return [message.refused for message in world.of(PartReply) if message.refused]  # type: ignore[union-attr]


def test_a_node_without_a_replica_refuses_and_no_range_is_read() -> None:
    world, group = World(), FakeGroup("data", 1, ["b"])
    world.receives = lambda prefix: False
    started(world, group)
    world.run(done=lambda: bool(group.failed))
    assert refusals(world) == ["no replica of this group is here"]
    assert world.of(Part) == []


def test_streams_and_bytes_are_bounded() -> None:
    limits = LIMITS._replace(streams_per_peer_max=2, staged_bytes_max=300)
    world = World(limits=limits)
    for ordinal in range(3):
        world.nodes["b"].receive("a", msgspec.msgpack.encode(Begin(keys.group_prefix(GroupId("data", ordinal)), "s")))
    world.run(until=0.0)
    assert refusals(world) == ["too many streams"]
    world.now += limits.stale_s
    world.nodes["b"].tick(world.now)
    group = FakeGroup("data", 1, ["b"])
    started(world, group)  # has more
    world.run(done=lambda: bool(group.failed))
    assert refusals(world)[1:] == ["too many bytes are staged"]
    assert world.staging["b"].streams == {}  # type: ignore[attr-defined]


def test_a_new_stream_of_a_group_takes_the_place_of_the_one_before() -> None:
    world, prefix = World(), keys.group_prefix(GroupId("data", 0))
    for number in range(100):
        world.nodes["b"].receive("a", msgspec.msgpack.encode(Begin(prefix, f"s{number}")))
    assert refusals(world) == []


def test_a_stream_that_nobody_continues_is_dropped() -> None:
    world, group = World(), FakeGroup("data", 1, ["b"])
    started(world, group)
    world.run(done=lambda: len(world.of(Part)) == 3)
    world.network = lambda source, target, message: []
    world.nodes["a"].close()
    begun_s = world.now
    world.run()  # the node has nothing else to do than to hear of parts
    assert world.staging["b"].streams == {}  # type: ignore[attr-defined]
    assert world.now == pytest.approx(begun_s + LIMITS.stale_s, abs=1)


def test_a_stream_that_is_complete_and_will_not_be_installed_is_taken_back() -> None:
    """Guards the peer's room for streams: a leader that is deposed in between left one that nobody would ask for."""
    world, group = World(), FakeGroup("data", 1, ["b"])
    started(world, group)
    world.run(done=lambda: bool(group.streamed))
    group.is_leader = False
    world.due["a"] = world.now
    world.run(until=world.now + 1)
    assert world.of(Abandon)
    assert world.staging["b"].streams == {}  # type: ignore[attr-defined]


def encoded(message: AnyStreamMessage) -> bytes:
    return msgspec.msgpack.encode(message)


def test_garbage_and_nonsense_are_errors_of_the_protocol() -> None:
    world, group = World(), FakeGroup("data", 1, ["b"])
    prefix = group.prefix
    node = world.nodes["b"]
    rng = random.Random(1)
    for garbage in (b"", b"\xc1", b"\x93\x01\x02\x03", msgspec.msgpack.encode([9, b"", "s"]), rng.randbytes(100)):
        with pytest.raises(PeerProtocolError, match="unreadable"):
            node.receive("a", garbage)
    with pytest.raises(PeerProtocolError, match="too long"):
        node.receive("a", encoded(Begin(prefix, "s" * 65)))
    node.receive("a", encoded(Begin(prefix, "s")))
    with pytest.raises(PeerProtocolError, match="part 0"):
        node.receive("a", encoded(Part(prefix, "s", 0, 0, b"")))
    node.receive("a", encoded(Part(prefix, "s", 1, 0, b"")))
    with pytest.raises(PeerProtocolError, match="ends before"):
        node.receive("a", encoded(End(prefix, "s", 0, 0, 0)))
    node.receive("a", encoded(End(prefix, "s", 1, 0, 1)))  # the sum is wrong: refused, for it may be damage
    world.run(until=0.0)
    assert refusals(world) == ["the parts are not those that were sent"]
    started(world, group)
    world.run(done=lambda: len(world.of(Part)) == 2)
    stream = world.of(Part)[0].stream
    with pytest.raises(PeerProtocolError, match="acknowledges"):
        world.nodes["a"].receive("b", encoded(PartReply(prefix, stream, 99)))
    with pytest.raises(PeerProtocolError, match="acknowledges"):
        world.nodes["a"].receive("b", encoded(PartReply(prefix, stream, 1, True)))


def test_a_stream_belongs_to_the_peer_that_began_it() -> None:
    world, group = World(), FakeGroup("data", 1, ["b"])
    started(world, group)
    world.run(done=lambda: len(world.of(Part)) == 3)
    stream = world.of(Part)[0].stream
    for message in (
        Begin(group.prefix, stream),
        Part(group.prefix, stream, 4, 0, b""),
        End(group.prefix, stream, 3, 0, 0),
        Abandon(group.prefix, stream),
    ):
        world.nodes["b"].receive("x", encoded(message))
    world.nodes["a"].receive("x", encoded(PartReply(group.prefix, stream, 0, False, "refused")))
    world.run(done=lambda: bool(group.streamed))
    assert group.failed == []


def test_messages_after_the_end_of_a_stream_change_nothing() -> None:
    world, group = World(), FakeGroup("data", 1, ["b"])
    started(world, group)
    world.run(done=lambda: bool(group.streamed))
    sent = [(source, target, message) for source, target, message in world.heard]
    for source, target, message in sent:
        world.nodes[target].receive(source, encoded(message))
    world.install(group, "b", group.streamed[0][1])
    for source, target, message in sent:
        world.nodes[target].receive(source, encoded(message))
    assert len(group.streamed) == 1
    assert group.failed == []


def test_a_state_that_cannot_be_read_stops_the_node_and_not_just_the_stream() -> None:
    class Rotten(MemoryEngine):
        def export(self, begin: bytes, end: bytes, part_bytes: int = 0) -> object:  # type: ignore[override]
            raise DamagedStoreError("rot")

    world, group = World(engine=lambda name: Rotten()), FakeGroup("data", 1, ["b"])
    started(world, group)
    world.run(done=lambda: bool(group.failed))
    assert [str(error) for error in world.broken] == [str(DamagedStoreError("rot"))]
    assert world.of(Part) == []


# --- parts on disk -----------------------------------------------------------------------------------------


class Beside:
    """Runs what is to be done beside the loop when the test says so."""

    def __init__(self) -> None:
        self.works: deque[tuple[Callable[[], None], Callable[[BaseException | None], None]]] = deque()

    def __call__(self, work: Callable[[], None], done: Callable[[BaseException | None], None]) -> None:
        self.works.append((work, done))

    def run(self) -> None:
        while self.works:
            work, done = self.works.popleft()
            error: BaseException | None = None
            try:
                work()
            except OSError as caught:
                error = caught
            done(error)


def test_parts_are_staged_in_files_and_acknowledged_only_then(tmp_path: Path) -> None:
    (tmp_path / "snapshots" / "7").mkdir(parents=True)
    (tmp_path / "snapshots" / "7" / "000001.part").write_bytes(b"of an earlier life")
    beside = Beside()
    world = World(staging=lambda name: FileStaging(tmp_path / "snapshots" / name, beside))
    assert list(FileStaging(tmp_path / "snapshots", beside).directory.iterdir()) == []
    world = World(staging=lambda name: FileStaging(tmp_path / name, beside))
    group = FakeGroup("data", 1, ["b"])
    pairs = started(world, group)
    world.run(until=1.0)
    assert len(world.of(Part)) == LIMITS.window  # nothing is acknowledged before it is on the disk

    def go_on() -> bool:
        beside.run()
        return bool(group.streamed)

    world.run(done=go_on)
    assert len(list((tmp_path / "b").rglob("*.part"))) == len(world.of(Part))
    world.install(group, "b", group.streamed[0][1])
    assert {**pairs, **group.pairs(world.engines["b"])} == group.pairs(world.engines["b"])
    beside.run()
    assert list((tmp_path / "b").iterdir()) == []


def test_a_stream_is_complete_only_when_its_last_part_is_on_the_disk(tmp_path: Path) -> None:
    beside = Beside()
    world = World(staging=lambda name: FileStaging(tmp_path / name, beside))
    prefix, data = keys.group_prefix(GroupId("data", 1)), b"part"
    checksum = crc32(data)
    node = world.nodes["b"]
    node.receive("a", encoded(Begin(prefix, "s")))
    node.receive("a", encoded(Part(prefix, "s", 1, checksum, data)))
    node.receive("a", encoded(End(prefix, "s", 1, len(data), crc32(checksum.to_bytes(4, "big")))))
    world.run(until=0.0)
    assert not any(reply.complete or reply.staged for reply in world.of(PartReply))  # type: ignore[union-attr]
    beside.run()
    world.run(until=0.0)
    assert world.of(PartReply)[-1] == PartReply(prefix, "s", 1, True)


def test_a_full_disk_refuses_the_stream(tmp_path: Path) -> None:
    beside = Beside()
    world = World(staging=lambda name: FileStaging(tmp_path / name, beside))
    group = FakeGroup("data", 1, ["b"])
    started(world, group)
    world.run(until=1.0)
    (tmp_path / "b").rmdir()  # so that nothing can be written there
    beside.run()
    world.run(done=lambda: bool(group.failed))
    assert "No such file or directory" in refusals(world)[0]


def test_a_staging_directory_that_cannot_be_made_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(StorageError, match="Not a directory"):
        FileStaging(tmp_path / "file" / "snapshots", Beside())


# --- the state and its log -----------------------------------------------------------------------------------


MESSAGE = Snapshot(9, 40, 3, FOUR, "s")


def a_state(applied: int) -> tuple[MemoryEngine, list[bytes]]:
    """An engine, and the parts of a snapshot that ends with that entry."""
    source = MemoryEngine()
    source.write({keys.applied(GROUP): keys.u64(applied), GROUP + b"\x30k": b"new"})
    return MemoryEngine(), [part for part in source.export(GROUP, keys.after_prefix(GROUP)) if part]


@pytest.mark.parametrize("entries", [0, 10, 60], ids=["empty", "shorter", "longer and different"])
def test_after_a_crash_between_state_and_log_the_log_goes_on_behind_the_snapshot(entries: int, tmp_path: Path) -> None:
    rig = Rig(mark=DurableMark(tmp_path / "durable"))
    rig.fill(entries, term=1)
    rig.sync()
    state, parts = a_state(40)
    replace_state(state, GROUP, MESSAGE, parts)
    # The process dies here: the log knows nothing of it.
    rig = Rig(rig.engine, mark=DurableMark(tmp_path / "durable"))
    assert restore_log(rig.log, state)
    assert (rig.log.base_index, rig.log.base_term, rig.log.last_index) == (40, 3, 40)
    assert rig.log.configuration == FOUR
    rig.sync()
    rig.fill(2, term=3)
    rig.sync()
    # And once that is durable there is nothing left to do, be the log compacted since or not.
    rig = Rig(rig.engine, mark=DurableMark(tmp_path / "durable"))
    assert not restore_log(rig.log, state)
    assert (rig.log.base_index, rig.log.last_index) == (40, 42)
    rig.log.compact(41)
    assert not restore_log(rig.log, state)


def test_a_log_that_holds_the_snapshots_last_entry_keeps_what_follows_it() -> None:
    rig = Rig()
    rig.fill(60, term=3)
    rig.sync()
    state, parts = a_state(40)
    replace_state(state, GROUP, MESSAGE, parts)
    assert not restore_log(rig.log, state)
    assert rig.log.last_index == 60
    assert rig.log.base_index == 0


def test_a_state_without_a_snapshot_leaves_the_log_alone() -> None:
    assert not restore_log(Rig().log, MemoryEngine())


def test_a_snapshot_that_does_not_end_where_it_says_is_our_bug() -> None:
    state, parts = a_state(39)
    with pytest.raises(UnsafeStateError, match="said to end with 40 ends with 39"):
        replace_state(state, GROUP, MESSAGE, parts)


@pytest.mark.parametrize(
    ("stored", "error"),
    [
        (b"\xc1", "is unreadable"),
        (
            msgspec.msgpack.encode(SnapshotMark(2, 1, 1, FOUR)),
            "has format 2, this version reads 1: start a newer metad",
        ),
    ],
)
def test_an_unreadable_mark_is_refused(stored: bytes, error: str) -> None:
    state = MemoryEngine()
    state.write({keys.snapshot_mark(GROUP): stored})
    with pytest.raises(StorageError, match=error):
        restore_log(Rig().log, state)


def test_the_applied_index_is_where_the_machine_writes_it() -> None:
    engine = MemoryEngine()
    machine = Machine(GroupId("data", 0), engine, NodeMemory(Config()), clock=lambda: 0.0, wall_ms=lambda: 0)
    batches: list[dict[bytes, bytes | None]] = []
    machine.stage(1, NO_WRITES, batches)
    engine.write(*batches)
    assert engine.get(keys.applied(GROUP)) == keys.u64(1)


def test_a_snapshot_that_finds_too_little_room_is_refused_and_not_begun_again_before_there_is_enough() -> None:
    world = World()
    group = FakeGroup("data", 1, ["b"])
    pairs = started(world, group)
    world.room_bytes = 3 * LIMITS.part_bytes
    world.run(done=lambda: bool(group.failed))
    assert refusals(world) == [NO_ROOM]
    assert group.failed == ["b"]
    taken = len(world.of(Part))
    assert taken, "nobody knows its size before"

    group.peers["b"].wait_for_snapshot()
    world.nodes["a"].wanted(group, "b")  # type: ignore[arg-type]
    world.run(done=lambda: len(group.failed) == 2)
    assert refusals(world) == [NO_ROOM, NO_ROOM]
    assert len(world.of(Part)) == taken, "it takes more than there is"

    world.room_bytes = 1 << 40
    group.peers["b"].wait_for_snapshot()
    world.nodes["a"].wanted(group, "b")  # type: ignore[arg-type]
    world.run(done=lambda: bool(group.streamed))
    world.install(group, "b", group.streamed[0][1])
    assert {**pairs, **group.pairs(world.engines["b"])} == group.pairs(world.engines["b"])


def test_a_snapshot_for_whose_copy_there_is_no_room_is_refused_at_its_end() -> None:
    world = World()
    prefix, data = keys.group_prefix(GroupId("data", 1)), b"part"
    checksum = crc32(data)
    world.room_bytes = 2 * len(data) - 1
    for message in (
        Begin(prefix, "s"),
        Part(prefix, "s", 1, checksum, data),
        End(prefix, "s", 1, len(data), crc32(checksum.to_bytes(4, "big"))),
    ):
        world.nodes["b"].receive("a", encoded(message))
    world.run(until=0.0)
    assert refusals(world) == [NO_ROOM]
    assert world.nodes["b"].install(FakeGroup("data", 1, ["b"]), Snapshot(1, 1, 1, Configuration(()), "s")) is None  # type: ignore[arg-type]
