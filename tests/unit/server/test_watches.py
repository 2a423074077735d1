"""Watches of a node: their streams begin, are served in turns, held within bounds, and end when the replica does; and
what the log keeps for them."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from server_rig import Answer, Rig
from wire_strategies import values_of

import metad.node.watches.watches as watches_module
import metad.watch.frames as rows_module
import metad.watch.hub as hub_module
import metad.watch.log_reader as reader_module
from metad.errors import StorageError
from metad.node.requests.near import answer_read_index
from metad.state.core.slot_assignment import pack, unpack
from metad.watch.stream import Stream
from metad_wire import cluster as c
from metad_wire import messages as m
from metad_wire import methods
from metad_wire.errors import MetadError, NotLeaderError, error_of
from metad_wire.methods import GROUP_COMMAND, WATCH_OPEN
from metad_wire.tables.kv import KV
from metad_wire.watch import (
    Brought,
    ChangeKind,
    MarkerStep,
    SlotMarker,
    StreamFlag,
    WatchEvents,
    WatchFilter,
    WatchOpen,
    WatchOpened,
)

ALL = b"\xff" * 128
FILTERS = [WatchFilter("kv")]


class Client:
    """One stream's other end."""

    def __init__(self, node: Any) -> None:
        self._node = node
        self.bytes = 1 << 20
        self.opens: list[WatchOpened] = []
        self.refusals: list[MetadError] = []
        self.frames: list[WatchEvents] = []
        self.over = False
        self.stream: Stream | None = None

    def room(self) -> int:
        return self.bytes

    def wait(self) -> None: ...

    def opened(self, payload: bytes) -> None:
        self.opens.append(WATCH_OPEN.decode_reply(payload))

    def refused(self, error: MetadError) -> None:
        self.refusals.append(error)

    def event(self, payload: bytes, *, last: bool = False) -> None:
        assert not self.over
        self.over = last
        self.frames.append(msgspec.msgpack.decode(payload, type=WatchEvents))

    def open(
        self, filters: list[WatchFilter] = FILTERS, *, group: str = "data-0", requires: int = 0, **fields: Any
    ) -> None:
        payload = WATCH_OPEN.encode_request(WatchOpen(filters, **fields), group=group, requires=requires)
        self.stream = self._node.watches.open(payload, self)

    @property
    def refusal(self) -> str:
        (error,) = self.refusals
        return error.name

    @property
    def ended(self) -> str:
        ended = self.frames[-1].ended
        assert ended is not None
        return error_of(ended).name

    @property
    def indexes(self) -> list[int]:
        return [one.index for frame in self.frames for one in frame.entries]

    @property
    def keys(self) -> list[bytes]:
        return [change.key for frame in self.frames for one in frame.entries for change in one.changes]

    @property
    def rows(self) -> int:
        return sum(len(rows.keys) for frame in self.frames for rows in frame.rows)


Make = Callable[..., Any]


@pytest.fixture
async def make() -> AsyncIterator[Make]:
    rigs: list[Rig] = []

    async def open_one(**settings: Any) -> Rig:
        rig = Rig(**settings)
        rigs.append(rig)
        await rig.open()
        return rig

    yield open_one
    for rig in rigs:
        await rig.close()


async def put(rig: Rig, *names: str, size: int = 1) -> None:
    for name in names:
        await rig.ask(methods.KV_PUT, m.KvPut([m.KvPutItem("n", name, bytes(size))]))


async def until(rig: Rig, condition: Callable[[], object]) -> None:
    async with asyncio.timeout(120):
        while not condition():
            await rig.settle()
            await asyncio.sleep(0.001)


async def test_a_watch_follows_writes_from_where_it_wants(make: Make) -> None:
    rig = await make()
    live, late, whole = Client(rig.node), Client(rig.node), Client(rig.node)
    await put(rig, "a", "b")
    base = rig.driver("data-0").machine.applied - 2
    live.open()
    late.open(position=base)
    whole.open(snapshot=ALL)
    await put(rig, "c")
    await until(rig, lambda: len(late.keys) == 3 and whole.keys)
    assert live.keys == whole.keys == [b"n\0\x01c\0\x01"]
    assert late.keys == [b"n\0\x01a\0\x01", b"n\0\x01b\0\x01", b"n\0\x01c\0\x01"]
    assert whole.rows == 2
    assert all(client.opens[0].leader and client.opens[0].held == ALL for client in (live, late, whole))
    assert rig.node.status().watch_streams == 3


async def test_a_takeover_tells_the_broker_before_and_the_one_after(make: Make) -> None:
    rig = await make()
    clients = {name: Client(rig.node) for name in ("b1", "b2", "b3")}
    for name, client in clients.items():
        client.open([WatchFilter("session", broker=name)])
    items = [m.SessionTakeoverItem("t", f"c{number}") for number in range(3)]
    await rig.ask(methods.SESSION_TAKEOVER, m.SessionTakeover("b1", 1, items))
    await rig.ask(methods.SESSION_TAKEOVER, m.SessionTakeover("b2", 1, items[:1]))
    await until(rig, lambda: len(clients["b2"].keys) == 1)
    kinds = {
        name: [c.kind for f in client.frames for e in f.entries for c in e.changes] for name, client in clients.items()
    }
    created, changed = ChangeKind.CREATED, ChangeKind.CHANGED
    assert kinds == {"b1": [created, created, created, changed], "b2": [changed], "b3": []}


async def test_a_node_without_watches_listens_to_nothing(make: Make) -> None:
    rig = await make()
    driver = rig.driver("data-0")
    assert not driver._listeners
    first, second = Client(rig.node), Client(rig.node)
    first.open()
    second.open()
    assert len(driver._listeners) == 1
    for client in (first, second):
        assert client.stream is not None
        client.stream.forget()
    assert not driver._listeners
    await put(rig, "a")
    assert not first.frames


@pytest.mark.parametrize(
    ("asked", "error"),
    [
        ({"group": ""}, "invalid_request"),
        ({"group": "data-7"}, "not_replica"),
        ({"group": "nonsense"}, "not_replica"),
        ({"filters": []}, "invalid_request"),
        ({"snapshot": b"\xff"}, "invalid_request"),
        ({"filters": [WatchFilter("offset")]}, "invalid_request"),
        ({"requires": 1 << 40}, "unsupported"),
    ],
)
async def test_a_watch_that_cannot_be_is_refused(make: Make, asked: dict[str, Any], error: str) -> None:
    rig = await make()
    client = Client(rig.node)
    client.open(**asked)
    assert client.refusal == error
    assert rig.node.watches.count == 0
    assert not rig.node.watches._hubs


async def test_bytes_that_are_no_request_are_refused(make: Make) -> None:
    rig = await make()
    client = Client(rig.node)
    assert rig.node.watches.open(b"\xc1", client) is None
    assert client.refusal == "invalid_request"


async def test_a_watch_needs_a_connection(make: Make) -> None:
    rig = await make()
    answer = rig.send(WATCH_OPEN, WatchOpen(FILTERS), group="data-0")
    assert answer.error.name == "unsupported"


async def test_a_node_that_drains_sends_its_watches_away(make: Make) -> None:
    rig = await make()
    client, late = Client(rig.node), Client(rig.node)
    client.open()
    await put(rig, "a")
    await rig.node.drain(5)
    assert client.ended == "draining"
    assert client.frames[-1].index == rig.driver("data-0").machine.applied
    assert client.keys == [b"n\0\x01a\0\x01"]
    late.open()
    assert late.refusal == "draining"


async def test_a_node_that_fails_ends_its_watches(make: Make) -> None:
    rig = await make()
    client, behind = Client(rig.node), Client(rig.node)
    client.open()
    await put(rig, "a")
    rig.node.health.fail(StorageError("disk full"))
    assert client.ended == "not_replica"
    behind.open()
    assert behind.refusal == "not_replica"


async def test_storage_that_fails_under_a_stream_ends_it(make: Make) -> None:
    rig = await make()
    client = Client(rig.node)
    client.open(flags=StreamFlag.PREVIOUS)
    answer = rig.send(methods.KV_PUT, m.KvPut([m.KvPutItem("n", "a", b"")]))
    rig.turn()
    rig.state_engine.broken["get"] = StorageError("cannot read")
    await rig.settle()
    assert answer.error.outcome_known is False
    assert rig.node.failure is not None
    assert client.ended == "not_replica"
    assert not client.keys


async def test_a_bug_in_a_stream_costs_streams_and_nothing_else(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    rig = await make()
    client, behind = Client(rig.node), Client(rig.node)
    client.open()

    def broken(_: object) -> None:
        raise RuntimeError("a bug")

    with monkeypatch.context() as patched:
        patched.setattr(hub_module, "EntryChanges", broken)
        await put(rig, "a")
        assert client.ended == "internal"
        patched.setattr(reader_module, "EntryChanges", broken)
        behind.open(position=rig.driver("data-0").group.log.base_index)
        await until(rig, lambda: behind.over)
        assert behind.ended == "internal"
    assert rig.node.failure is None
    await put(rig, "b")
    assert rig.node.watches.count == 0


async def test_a_replica_that_is_taken_from_the_node_ends_its_watches(make: Make) -> None:
    rig = await make(groups={"data": 2})
    gone, stays, waits = Client(rig.node), Client(rig.node), Client(rig.node)
    gone.open(group="data-1")
    waits.open(group="data-1", position=10_000)
    stays.open()
    rig.node.lifecycle.close(rig.driver("data-1").group.group_id)
    assert gone.ended == "not_replica"
    assert waits.refusal == "not_replica"
    assert not stays.over
    assert rig.node.watches.count == 1


async def test_a_position_that_never_comes_is_refused(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watches_module, "_WAIT_S", 0.01)
    rig = await make()
    client = Client(rig.node)
    client.open(position=10_000)
    await until(rig, lambda: client.refusals)
    assert client.refusal == "position_ahead"
    assert rig.node.watches.count == 0


# --- bounds -----------------------------------------------------------------------------------------------------


async def test_streams_of_a_node_are_bounded(make: Make) -> None:
    rig = await make(limits={"watch_streams_max": 2})
    clients = [Client(rig.node) for _ in range(3)]
    for client in clients:
        client.open()
    assert clients[2].refusal == "overloaded"
    assert clients[0].stream is not None
    clients[0].stream.forget()
    again = Client(rig.node)
    again.open()
    assert again.opens


async def test_filters_and_snapshots_of_a_node_are_bounded(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watches_module, "_INTEREST_BYTES_MAX", 100_000)
    monkeypatch.setattr(watches_module, "_PINS_MAX", 2)
    rig = await make()
    many = [WatchFilter("kv", [f"n{number}"]) for number in range(1_000)]
    first, second = Client(rig.node), Client(rig.node)
    first.open(many)
    second.open(many)
    assert first.opens
    assert second.refusal == "overloaded"
    assert first.stream is not None
    first.stream.forget()
    snapshots = [Client(rig.node) for _ in range(3)]
    for client in snapshots:
        client.open(snapshot=ALL, credit_bytes=0)
    assert snapshots[2].refusal == "overloaded"
    assert snapshots[0].stream is not None
    snapshots[0].stream.forget()
    again = Client(rig.node)
    again.open(snapshot=ALL)
    await until(rig, lambda: again.frames and again.frames[-1].snapshot_done)
    assert not snapshots[1].frames
    assert len(rig.node.watches._pinned) == 1


async def test_snapshots_that_waited_are_bounded_too(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watches_module, "_PINS_MAX", 2)
    rig = await make()
    clients = [Client(rig.node) for _ in range(5)]
    position = rig.driver("data-0").machine.applied + 1
    for client in clients:
        client.open(position=position, snapshot=ALL, credit_bytes=0)
    assert not any(client.opens or client.refusals for client in clients)
    await put(rig, "a")
    await until(rig, lambda: all(client.opens or client.refusals for client in clients))
    assert [len(client.opens) for client in clients] == [1, 1, 0, 0, 0]
    assert [client.refusal for client in clients[2:]] == ["overloaded"] * 3
    assert len(rig.node.watches._pinned) == rig.node.watches.count == 2


async def test_a_bug_costs_the_stream_that_waited_and_no_other(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    rig = await make()
    broken, sound = Client(rig.node), Client(rig.node)
    position = rig.driver("data-0").machine.applied + 1
    broken.open(position=position, snapshot=ALL)
    sound.open(position=position)

    def pin(_: object) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr(watches_module.WatchedReplica, "pin", pin)
    await put(rig, "a", "b")
    await until(rig, lambda: broken.refusals and sound.keys)
    assert broken.refusal == "internal"
    assert rig.node.failure is None
    assert rig.node.watches.count == 1
    assert not rig.node.watches._pinned


async def test_what_waits_to_be_sent_is_bounded(make: Make) -> None:
    rig = await make(limits={"watch_held_bytes_max": 50_000})
    clients = [Client(rig.node) for _ in range(20)]
    for client in clients:
        client.bytes = 0
        client.open(credit_bytes=1 << 30)
    for number in range(10):
        await put(rig, f"k{number}", size=10_000)
        assert rig.node.watches.held_bytes <= 50_000
    for client in clients:
        client.bytes = 1 << 20
        assert client.stream is not None
        client.stream.wake()
    await until(rig, lambda: all(len(client.keys) == 10 for client in clients))
    assert rig.node.watches.held_bytes == 0


async def test_a_snapshot_that_nobody_takes_ends(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watches_module, "_SLOW_S", 0.05)
    rig = await make()
    await put(rig, *map(str, range(5)), size=1_000)
    client, live = Client(rig.node), Client(rig.node)
    client.open(snapshot=ALL, credit_bytes=0)
    live.open(credit_bytes=0)
    await until(rig, lambda: client.over)
    assert client.ended == "slow_reader"
    assert not live.over


async def test_a_snapshot_that_nobody_takes_makes_room_for_another(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also between connections of one holder, each of which has one."""
    monkeypatch.setattr(watches_module, "_PINS_MAX", 2)
    rig = await make()
    await put(rig, "a")
    silent, taking, soon, later = (Client(rig.node) for _ in range(4))
    for client in (silent, taking):
        client.open(snapshot=ALL, credit_bytes=0)
    assert silent.stream is not None
    await until(rig, lambda: silent.stream.stalled_since_s)
    soon.open(snapshot=ALL)
    assert soon.refusal == "overloaded"
    monkeypatch.setattr(watches_module, "_SILENT_S", 0.05)
    silent.stream.stalled_since_s -= 0.05
    later.open(snapshot=ALL)
    assert (silent.ended, later.refusals) == ("slow_reader", [])
    assert not taking.over


async def test_a_snapshot_that_is_taken_for_ever_ends(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watches_module, "_PIN_S", 0.05)
    rig = await make()
    await put(rig, "a")
    client = Client(rig.node)
    client.open(snapshot=ALL, credit_bytes=0)
    stream = client.stream
    assert stream is not None

    def over() -> bool:
        stream.stalled_since_s = 0.0  # as if it had just been taken from
        return client.over

    await until(rig, over)
    assert client.ended == "slow_reader"
    assert not rig.node.watches._pinned


# --- progress, bookmarks, the log -------------------------------------------------------------------------------


async def test_progress_is_told_as_long_as_somebody_asks(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watches_module, "_PROGRESS_S", 0.005)
    rig = await make()
    await put(rig, "a")
    asks, silent = Client(rig.node), Client(rig.node)
    silent.open()
    assert rig.node.watches._progress_timer is None
    asks.open(progress_ms=1)
    assert asks.stream is not None
    assert asks.stream.progress_ms == 100
    await until(rig, lambda: len(asks.frames) >= 3)
    assert all(frame.progress is not None and frame.progress.behind_ms == 0 for frame in asks.frames)
    assert {frame.index for frame in asks.frames} == {rig.driver("data-0").machine.applied}
    assert not silent.frames
    asks.stream.forget()
    await until(rig, lambda: rig.node.watches._progress_timer is None)


async def test_a_live_stream_says_now_and_then_how_far_it_is(make: Make) -> None:
    rig = await make(storage={"log_retained_bytes": 40_000})
    client, busy = Client(rig.node), Client(rig.node)
    client.open([WatchFilter("kv", ["other"])])
    busy.open()
    await put(rig, *map(str, range(30)), size=1_000)
    await until(rig, lambda: client.frames)
    assert not client.keys
    assert 1 <= len(client.frames) <= 4
    assert client.frames[-1].index > 10
    assert len(busy.frames) == 30


async def test_catching_up_rests_while_the_log_grows(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader_module, "_PIECE_WORK", 10)  # of one or two entries
    monkeypatch.setattr(watches_module, "_BUSY_S", 0.0)
    rig = await make()
    base = rig.driver("data-0").machine.applied
    await put(rig, *map(str, range(10)))
    quiet, busy = Client(rig.node), Client(rig.node)
    quiet.open(position=base)
    await until(rig, lambda: quiet.stream is not None and quiet.stream.live)
    # From now on what happened last is not over, and a rest after a piece does not end.
    monkeypatch.setattr(watches_module, "_BUSY_S", 1e9)
    monkeypatch.setattr(watches_module, "_REST", 1e9)
    await put(rig, "x")
    busy.open(position=base)
    await until(rig, lambda: busy.stream is not None and busy.stream.position > base)
    for _ in range(10):
        await rig.settle()
    assert busy.stream is not None
    assert busy.stream.position <= base + 2
    assert len(quiet.keys) == 11  # who is live hears of it at once


async def test_a_snapshot_rests_little_while_the_log_grows(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever reads the log beside it rests for good, and does not hold it up."""
    monkeypatch.setattr(rows_module, "_PIECE_ROWS", 1)
    monkeypatch.setattr(reader_module, "_PIECE_WORK", 10)
    rig = await make()
    base = rig.driver("data-0").machine.applied
    await put(rig, *map(str, range(40)))
    monkeypatch.setattr(watches_module, "_BUSY_S", 1e9)
    monkeypatch.setattr(watches_module, "_REST", 1e9)
    await put(rig, "x")
    whole, behind = Client(rig.node), Client(rig.node)
    behind.open(position=base)
    await until(rig, lambda: behind.stream is not None and behind.stream.position > base)
    for _ in range(10):
        await rig.settle()
    assert behind.stream is not None
    rests_at = behind.stream.position
    assert rests_at < base + 40
    whole.open(snapshot=ALL)
    await until(rig, lambda: whole.rows == 41)
    assert behind.stream.position == rests_at


async def test_streams_that_are_behind_are_level_one_after_the_other(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader_module, "_PIECE_WORK", 1)
    rig = await make()
    base = rig.driver("data-0").machine.applied
    await put(rig, *map(str, range(20)))
    turns: list[object] = []
    piece = reader_module.LogReader.piece

    def noted(reader: reader_module.LogReader, end: int) -> Any:
        turns.append(reader)
        return piece(reader, end)

    monkeypatch.setattr(reader_module.LogReader, "piece", noted)
    far, near = Client(rig.node), Client(rig.node)
    far.open(position=base)
    near.open(position=base + 15)
    await until(rig, lambda: len(near.keys) == 5 and len(far.keys) == 20)
    readers, pieces = zip(*[(reader, len(list(group))) for reader, group in itertools.groupby(turns)], strict=True)
    assert [reader is turns[0] for reader in readers] == [True, False, True]
    assert pieces[0] == watches_module._PIECES


async def test_streams_that_wait_for_their_turn_hold_nothing_of_the_log(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many there are, and though an entry takes longer than a turn: one is within an entry at a time."""
    monkeypatch.setattr(reader_module, "_PIECE_WORK", 10)
    monkeypatch.setattr(watches_module, "_PIECES", 3)
    rig = await make()
    base = rig.driver("data-0").machine.applied
    for _ in range(4):
        await rig.ask(methods.KV_PUT, m.KvPut([m.KvPutItem("n", f"k{number}", b"v") for number in range(100)]))
        await put(rig, "x", "y", "z")
    clients = [Client(rig.node) for _ in range(8)]
    streams: list[Stream] = []
    holders: list[int] = []
    turns: list[object] = []
    piece = reader_module.LogReader.piece

    def noted(reader: reader_module.LogReader, end: int) -> Any:
        done = piece(reader, end)
        others = [stream._reader for stream in streams if stream._reader not in (None, reader)]
        holders.append(sum([other.within or other._ahead is not None or any(other._fetched) for other in others]))
        turns.append(reader)
        return done

    monkeypatch.setattr(reader_module.LogReader, "piece", noted)
    for number, client in enumerate(clients):
        client.open(position=base, flags=StreamFlag.PREVIOUS if number % 2 else 0)
        assert client.stream is not None
        streams.append(client.stream)
    await until(rig, lambda: all(stream.live for stream in streams))
    assert max(holders) == 0
    lengths = [len(list(group)) for _, group in itertools.groupby(turns)]
    assert len(lengths) > 2 * len(clients), "they did not take turns"
    assert max(lengths) <= 3 + 12, "a turn is longer than an entry"
    assert all(len(client.keys) == 4 * 103 for client in clients)
    assert len({tuple(client.indexes) for client in clients}) == 1
    assert rig.node.watches.held_bytes == 0


async def test_the_log_waits_for_a_stream_that_is_behind(make: Make) -> None:
    rig = await make(raft={"log_cache_bytes": 1})
    log = rig.driver("data-0").group.log
    await put(rig, *map(str, range(10)), size=100)
    at = rig.driver("data-0").machine.applied
    client = Client(rig.node)
    client.open(position=at - 5, credit_bytes=0)
    await put(rig, *map(str, range(20)), size=100)
    await rig.checkpoint()
    assert log.base_index == at - 5
    assert client.stream is not None
    client.stream.grant(1 << 20)
    await until(rig, lambda: len(client.keys) == 25)
    client.stream.forget()
    await put(rig, "x")
    await rig.checkpoint()
    assert log.base_index > at + 15


async def test_the_log_waits_within_bounds_only(make: Make) -> None:
    rig = await make(raft={"log_cache_bytes": 1}, storage={"watch_retained_bytes": 5_000})
    log = rig.driver("data-0").group.log
    await put(rig, *map(str, range(10)), size=1_000)
    client = Client(rig.node)
    client.open(position=log.base_index, credit_bytes=0)
    await put(rig, *map(str, range(20)), size=1_000)
    await rig.checkpoint()
    assert 3 <= log.last_index - log.base_index <= 6
    assert client.stream is not None
    client.stream.grant(1 << 20)
    await until(rig, lambda: client.over)
    assert client.ended == "log_cut"


async def test_the_log_waits_for_a_time_only(make: Make) -> None:
    rig = await make(raft={"log_cache_bytes": 1}, storage={"watch_retained_ms": 1})
    log = rig.driver("data-0").group.log
    client = Client(rig.node)
    client.open(position=log.base_index, credit_bytes=0)
    await put(rig, *map(str, range(20)))
    await asyncio.sleep(0.005)
    rig.node.watches.log_grown(1 << 30)
    rig.node.watches.log_grown(1 << 30)
    await rig.checkpoint()
    assert log.base_index > 15


async def test_a_client_that_was_told_how_far_it_is_can_go_on_from_there(make: Make) -> None:
    """The log goes back to what live streams were told last, though none is behind."""
    rig = await make(raft={"log_cache_bytes": 1}, storage={"log_retained_bytes": 40_000})
    log = rig.driver("data-0").group.log
    client = Client(rig.node)
    client.open([WatchFilter("kv", ["other"])])
    told = []
    for number in range(60):
        await put(rig, str(number), size=1_000)
        told.append(client.frames[-1].index if client.frames else client.opens[0].index)
        assert told[-1] >= log.base_index
    assert log.base_index > 5, "no checkpoint was made"


async def test_the_value_before_comes_from_the_log_or_is_unknown(make: Make) -> None:
    rig = await make(raft={"log_cache_bytes": 1})
    await put(rig, "a", "b", size=1)
    await put(rig, "a", size=2)
    position = rig.driver("data-0").machine.applied
    await put(rig, "a", "b", "a", size=3)
    client = Client(rig.node)
    client.open(position=position, flags=StreamFlag.PREVIOUS)
    await until(rig, lambda: len(client.keys) == 3)
    changes = [change for frame in client.frames for one in frame.entries for change in one.changes]
    sizes = [None if c.previous is None else len(msgspec.msgpack.decode(c.previous, type=m.Kv).value) for c in changes]
    assert sizes == [2, 1, 3]
    assert all(change.previous_known for change in changes)
    last = rig.driver("data-0").machine.applied
    await rig.checkpoint()
    await put(rig, "a", "a", "b", size=4)
    cut = Client(rig.node)
    cut.open(position=last, flags=StreamFlag.PREVIOUS)
    await until(rig, lambda: len(cut.keys) == 3)
    changes = [change for frame in cut.frames for one in frame.entries for change in one.changes]
    known = [change.previous_known for change in changes]
    assert known[1], "the stream has read the write before"
    for change in changes:
        if not change.previous_known:
            assert change.previous is None
    assert False in known, "the log has been cut: nobody knows what was there"


# --- slots that move --------------------------------------------------------------------------------------------


async def step(rig: Rig, group: str, name: str, move: int, **fields: Any) -> c.GroupReply:
    """A step of a slot move, as the mover takes it."""
    answer = Answer()
    body = c.GroupCommand(name, move, **fields)
    rig.node.requests.submit_peer(GROUP_COMMAND.code, GROUP_COMMAND.encode_request(body, group=group), answer)
    return (await rig.answered(answer)).reply(GROUP_COMMAND)


def record(namespace: str, value: bytes, version: int) -> dict[bytes, bytes | None]:
    """A row as a slot move carries it."""
    return {b"\x30" + KV.key_of([namespace, "k"]): methods.encode((namespace, "k", value, version, 1, version))}


async def test_slots_that_move_are_markers_in_every_stream_and_no_changes(make: Make) -> None:
    rig = await make(groups={"data": 2})
    names = [f"n{number}" for number in range(40)]
    slot = {name: KV.slot_of(KV.key_of([name])) or 0 for name in names}
    held = rig.driver("data-0").machine.holding.slots
    name = next(name for name in names if unpack(held)[slot[name]])
    bits = pack(np.arange(c.SLOTS) == slot[name])
    clients = {group: Client(rig.node) for group in ("data-0", "data-1")}
    for group, client in clients.items():
        client.open([WatchFilter("session", ["nobody"]), WatchFilter("kv", [name])], group=group)
        assert client.opens[0].brought == [Brought(0, client.opens[0].held)]
    await rig.ask(methods.KV_PUT, m.KvPut([m.KvPutItem(name, "k", b"1")]))
    await step(rig, "data-0", "seal", 1, slots=bits, other=1)
    during, unsealed = Client(rig.node), Client(rig.node)
    during.open(snapshot=bits)
    await step(rig, "data-0", "unseal", 1)
    unsealed.open(snapshot=bits)
    sealed_index = (await step(rig, "data-0", "seal", 2, slots=bits, other=1)).index
    await step(rig, "data-1", "open", 2, attempt=1, slots=bits)
    await step(rig, "data-1", "import", 2, attempt=1, batch=1, slots=bits, rows=record(name, b"1", 1))
    before, after = Client(rig.node), Client(rig.node)
    before.open(snapshot=ALL, group="data-1")
    await step(rig, "data-1", "adopt", 2, attempt=1, batch=2, slots=bits, other=0, sealed_index=sealed_index)
    await step(rig, "data-0", "close", 2)
    after.open(snapshot=ALL, group="data-1")
    await until(rig, lambda: after.rows and unsealed.rows and during.rows and before.frames)

    def markers(client: Client) -> list[SlotMarker]:
        return [one.marker for frame in client.frames for one in frame.entries if one.marker is not None]

    seals = [SlotMarker(MarkerStep.SEALED, move, bits, 1) for move in (1, 2)]
    assert markers(clients["data-0"]) == [seals[0], SlotMarker(MarkerStep.UNSEALED, 1, bits), seals[1]]
    assert markers(clients["data-1"]) == [SlotMarker(MarkerStep.ADOPTED, 2, bits, 0, sealed_index)]
    assert [len(clients[group].keys) for group in clients] == [1, 0], "an imported row is no change"
    assert (during.rows, unsealed.rows, before.rows, after.rows) == (1, 1, 0, 1)
    (said,) = during.opens
    assert (said.sealed, said.sealed_move) == (bits, 1)
    assert not unpack(said.held)[slot[name]]
    (said,) = after.opens
    assert unpack(said.held)[slot[name]]
    assert Brought(2, bits) in said.brought
    late = Client(rig.node)
    late.open([WatchFilter("session", ["nobody"])], position=rig.driver("data-0").group.log.base_index)
    await until(rig, lambda: late.frames)
    assert markers(late) == markers(clients["data-0"])


# --- strangers --------------------------------------------------------------------------------------------------

TEXTS = st.sampled_from(["", "kv", "session", "offset", "cluster", "group", "owner", "record", "n", "a", "c\0", "é"])
OPENINGS = st.lists(
    st.tuples(values_of(WatchOpen, TEXTS), st.sampled_from(["data-0", "offset-0", "metadata-0"])), max_size=8
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(OPENINGS)
def test_no_watch_stops_a_node(openings: list[tuple[WatchOpen, str]]) -> None:
    async def run() -> None:
        rig = Rig()
        await rig.open()
        clients = [Client(rig.node) for _ in openings]
        for client, (opening, group) in zip(clients, openings, strict=True):
            client.stream = rig.node.watches.open(WATCH_OPEN.encode_request(opening, group=group), client)
            assert len(client.opens) + len(client.refusals) == 1 or (opening.position or 0) > 0
        await put(rig, "a", "b", "a")
        items = [m.SessionTakeoverItem("t", "c")]
        await rig.ask(methods.SESSION_TAKEOVER, m.SessionTakeover("b", 1, items))
        for client in clients:
            if client.stream is not None:
                client.stream.grant(0xFFFF_FFFF)
        await rig.settle()
        assert rig.node.failure is None
        rig.node.watches.drain()
        assert all(client.over or client.refusals for client in clients)
        watches = rig.node.watches
        assert watches.count == watches.held_bytes == watches._interests.held == watches._pins.held == 0
        assert not rig.node.watches._pinned
        assert not rig.driver("data-0")._listeners
        await put(rig, "c")
        await rig.close()

    asyncio.run(run())


class _Leader:
    """Stands for a driver and its replica."""

    def __init__(self) -> None:
        self.group = self
        self.commit = 3
        self.proofs: list[Callable[[bool], None]] = []

    def read(self, done: Callable[[bool], None]) -> None:
        self.proofs.append(done)

    def not_leader(self) -> NotLeaderError:
        return NotLeaderError("it leads no longer")


@pytest.mark.parametrize("leads", [True, False])
def test_a_leader_says_how_far_the_group_is_once_it_has_proven_that_it_leads(leads: bool) -> None:
    leader: Any = _Leader()
    told: list[Any] = []
    answer_read_index(leader, told.append)
    leader.commit = 4
    assert not told, "another one may lead by now"
    leader.proofs[0](leads)
    assert [type(answer) for answer in told] == [int if leads else NotLeaderError]
    assert told == [4] or not leads
