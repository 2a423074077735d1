"""Streams of real nodes, frame by frame: every replica of a group reports the same changes, through the death of a
leader, a restart and a node that shuts down, and a slow reader holds up nobody."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import msgspec
import pytest
from e2e_nodes import NAMES, Nodes

from metad import embedded
from metad_client import Client, InvalidRequestError, KvPutItem, Record, connect
from metad_client.options import Options
from metad_wire import messages as m
from metad_wire.connection.frame import FrameType
from metad_wire.connection.session import ClientSession, decode_error
from metad_wire.errors import error_of
from metad_wire.methods import WATCH_OPEN
from metad_wire.transport import split_endpoint
from metad_wire.watch import WatchEvents, WatchFilter, WatchOpen, WatchOpened
from waiting import until

GROUPS = ("data-0", "data-1")
ALL = b"\xff" * 128
TIMEOUT_S = 120.0
KV = WatchFilter("kv")
KEYS = 16


class Stream:
    """What one replica has reported of one group."""

    def __init__(self, group: str) -> None:
        self.group = group
        self.opened: WatchOpened | None = None
        self.refused = ""
        self.index = 0
        self.changes: list[tuple[int, m.Kv]] = []
        self.rows: list[m.Kv] = []
        self.snapshot_done = False
        self.ended = ""
        self.bytes = 0

    def take(self, payload: bytes) -> None:
        events = msgspec.msgpack.decode(payload, type=WatchEvents)
        assert events.index >= self.index
        self.index = events.index
        self.bytes += len(payload)
        for one in events.entries:
            assert not self.changes or self.changes[-1][0] <= one.index, "an entry twice, or out of order"
            for change in one.changes:
                assert change.value is not None
                self.changes.append((one.index, msgspec.msgpack.decode(change.value, type=m.Kv)))
        for rows in events.rows:
            self.rows += [msgspec.msgpack.decode(value or b"", type=m.Kv) for value in rows.values]
        self.snapshot_done = self.snapshot_done or events.snapshot_done
        if events.ended is not None:
            self.ended = error_of(events.ended).name


class Watcher(asyncio.Protocol):
    """A connection with streams."""

    def __init__(self) -> None:
        self._session = ClientSession()
        self._asked: list[tuple[Stream, bytes]] = []
        self.streams: dict[int, Stream] = {}
        self.lost = False
        self.grants = True

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        self._flush()

    def watch(self, group: str, **opening: Any) -> Stream:
        stream = Stream(group)
        self._asked.append((stream, WATCH_OPEN.encode_request(WatchOpen([KV], **opening), group=group)))
        self._ask()
        return stream

    def data_received(self, data: bytes) -> None:
        self._session.receive_data(data)
        while (frame := self._session.next_event()) is not None:
            if frame.type == FrameType.WELCOME:
                self._ask()
            elif frame.type == FrameType.RESPONSE:
                stream = self.streams[frame.request_id]
                stream.opened = WATCH_OPEN.decode_reply(frame.payload)
                self._session.stream_begun(frame.request_id)
            elif frame.type == FrameType.ERROR:
                self.streams[frame.request_id].refused = decode_error(frame.payload).name
            elif frame.type == FrameType.EVENT:
                stream = self.streams[frame.request_id]
                stream.take(frame.payload)
                if stream.ended:
                    self._session.stream_ended(frame.request_id)
                elif self.grants:
                    self._session.grant(frame.request_id, len(frame.payload))
        self._flush()

    def _ask(self) -> None:
        while self._asked and self._session.can_send(len(self._asked[0][1])):
            stream, payload = self._asked.pop(0)
            self.streams[self._session.request(WATCH_OPEN.code, payload)] = stream
        self._flush()

    def _flush(self) -> None:
        if data := self._session.data_to_send():
            self.transport.write(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost = True


Dial = Callable[[str], Awaitable[Watcher]]


@pytest.fixture
async def dial() -> AsyncIterator[Dial]:
    watchers: list[Watcher] = []

    async def one(endpoint: str) -> Watcher:
        _, watcher = await asyncio.get_running_loop().create_connection(Watcher, *split_endpoint(endpoint))
        watchers.append(watcher)
        return watcher

    yield one
    for watcher in watchers:
        watcher.transport.close()
    await until(lambda: all(watcher.lost for watcher in watchers), "a connection stays open")


async def write(client: Client, rounds: int, size: int = 10) -> None:
    """Every key once more in each round: groups have some each, and the versions show what is missing."""
    for _ in range(rounds):
        items = [KvPutItem(f"n{at}", "k", bytes(size)) for at in range(KEYS)]
        (await client.kv.put_many(items)).raise_for_error()


def versions(*streams: Stream) -> dict[str, list[int]]:
    """Of each namespace, as streams that follow each other report them."""
    found: dict[str, list[int]] = {}
    for stream in streams:
        for _, kv in stream.changes:
            found.setdefault(kv.namespace, []).append(kv.version)
    return found


def complete(streams: dict[str, list[Stream]], rounds: int) -> bool:
    """Whether both groups together have every version of every key, once and in order."""
    found = {name: value for group in GROUPS for name, value in versions(*streams[group]).items()}
    return found == {f"n{at}": list(range(1, rounds + 1)) for at in range(KEYS)}


async def test_every_replica_reports_everything_once_through_deaths_and_restarts(nodes: Nodes, dial: Dial) -> None:
    async with connect(nodes.url, options=Options(deadline_s=60)) as client:
        watchers = {name: await dial(nodes.endpoints[name]) for name in NAMES}
        seen = {name: {group: [watchers[name].watch(group, position=0)] for group in GROUPS} for name in NAMES}
        await write(client, 10)
        for name in NAMES:
            await until(lambda name=name: complete(seen[name], 10), f"{name} reports too little")
            assert all(seen[name][group][0].opened is not None for group in GROUPS)
        led = (await client.cluster.map()).leaders
        leads = [name for name in NAMES for group in GROUPS if (o := seen[name][group][0].opened) and o.leader]
        assert len(leads) <= len(GROUPS)
        victim = led["data-0"]
        nodes.kill(victim)
        await until(lambda: watchers[victim].lost, "the connection outlives its node")
        await write(client, 10)
        others = [name for name in NAMES if name != victim]
        for name in others:
            await until(lambda name=name: complete(seen[name], 20), f"{name} reports too little without a leader")
        nodes.restart(victim)
        watchers[victim] = await dial(nodes.endpoints[victim])
        for group in GROUPS:
            streams = seen[victim][group]
            streams.append(watchers[victim].watch(group, position=streams[-1].index))
        await write(client, 10)
        for name in NAMES:
            await until(lambda name=name: complete(seen[name], 30), f"{name} reports too little after the restart")
        # A node that shuts down says up to where it has reported, and a follower elsewhere goes on from there.
        gone, heir = others
        assert nodes.servers[gone].terminate() == 0
        await until(lambda: watchers[gone].lost, "the connection outlives its node")
        for group in GROUPS:
            streams = seen[gone][group]
            assert streams[-1].ended == "draining"
            streams.append(watchers[heir].watch(group, position=streams[-1].index))
        await write(client, 10)
        for name in NAMES:
            await until(lambda name=name: complete(seen[name], 40), f"{name} reports too little after the shutdown")


async def test_a_snapshot_and_its_tail_under_writes(nodes: Nodes, dial: Dial) -> None:
    async with connect(nodes.url, options=Options(deadline_s=60)) as client:
        await write(client, 3, 20_000)
        writing = asyncio.create_task(write(client, 60, 2_000))
        streams: list[Stream] = []
        for name in NAMES:
            watcher = await dial(nodes.endpoints[name])
            streams += [watcher.watch(group, snapshot=ALL, credit_bytes=50_000) for group in GROUPS]
        await writing
        await until(lambda: all(stream.snapshot_done for stream in streams), "a snapshot never ends")

        def level(stream: Stream) -> bool:
            at = {kv.namespace: kv.version for kv in stream.rows}
            for _, kv in stream.changes:
                assert kv.version == at.get(kv.namespace, 0) + 1, "a change is missing, or is in the snapshot too"
                at[kv.namespace] = kv.version
            return set(at.values()) == {63}

        for stream in streams:
            await until(lambda stream=stream: level(stream), f"{stream.group}: changes are missing")
            assert len(stream.rows) == len({kv.namespace for kv in stream.rows})
        assert {kv.namespace for stream in streams for kv in stream.rows} == {f"n{at}" for at in range(KEYS)}


async def test_who_does_not_read_holds_up_nobody(nodes: Nodes, dial: Dial) -> None:
    async with connect(nodes.url, options=Options(deadline_s=60)) as client:
        slow = await dial(nodes.endpoints["n1"])
        fast = await dial(nodes.endpoints["n1"])
        slow.grants = False
        slows = {group: [slow.watch(group, position=0)] for group in GROUPS}
        fasts = {group: [fast.watch(group, position=0)] for group in GROUPS}
        await write(client, 40, 30_000)
        await until(lambda: complete(fasts, 40), "the fast one reports too little")
        assert all(slows[group][0].bytes < 1.5 * 1024 * 1024 for group in GROUPS)
        status = await client.status("n1")
        assert status.watch_streams == 4
        for number, stream in slow.streams.items():
            slow._session.grant(number, 100_000_000)
            assert stream.ended == ""
        slow._flush()
        await until(lambda: complete(slows, 40), "the slow one never catches up")
        slow.transport.close()
        await until_watches(client, 2)


async def until_watches(client: Client, count: int) -> None:
    async with asyncio.timeout(TIMEOUT_S):
        while (await client.status("n1")).watch_streams != count:  # noqa: ASYNC110 - the node does not call back
            await asyncio.sleep(0.02)


class Row(Record, frozen=True):
    name: str
    value: int = 0


async def test_a_token_is_of_the_declared_tables_that_its_watch_has_read() -> None:
    """Dropped and declared anew, it is another one: a watch that went on there kept records that were gone."""
    async with embedded.serve() as server, connect(server.url) as m:
        first = await m.tables.declare("row", Row, key=("name",), kind="data")
        await m.table(first).put(Row("old"))
        tokens: list[str] = []
        async with m.watch(first, start="snapshot") as watch:
            async for batch in watch:
                tokens.append(batch.token)
                if batch.last:
                    break
            tokens.append(watch.token)
        async with m.image(first) as image:
            await image.caught_up()
            tokens.append(image.token)
        async with m.watch(first, token=tokens[0], start="now") as watch, asyncio.timeout(30):
            await m.table(first).put(Row("old", 2))
            async for batch in watch:
                if [event.record.record.value for event in batch.events][-1:] == [2]:
                    break
        other = await m.tables.declare("other", Row, key=("name",), kind="data")
        await m.tables.drop("row")
        again = await m.tables.declare("row", Row, key=("name",), kind="data")
        for token in tokens:
            for table in (again, other):
                with pytest.raises(InvalidRequestError, match=f"a watch without this {table.name}, which was declared"):
                    m.watch(table, token=token)
            async with m.watch("kv", token=token):
                pass
