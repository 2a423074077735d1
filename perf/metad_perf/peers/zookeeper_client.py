"""A client of ZooKeeper: its own protocol, with requests that are encoded before the clock starts.

A batch of writes is one multi, a batch of reads one multi-read. A session has two nodes, one for its properties and
one for its owner, so that a takeover writes a few bytes. A multi that writes cannot read, so a takeover that says who
owned the sessions reads first, and writes the owners for the versions that it has read, together with a check that
nobody has begun another life of the broker: two round trips. Where an owner has changed in between it begins again.

A lapsing session is an ephemeral node of the connection's own session, as ZooKeeper has no other: it lapses when the
process that began it falls silent, and not by itself. ZooKeeper's reads are not linearizable; here they go to the
leader.

kazoo, the well-kept Python client, is not used: it cannot send requests that were encoded before, and hands each over
between two threads.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections import deque
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import cast

from ..load.workload import ABSENT
from . import zookeeper_wire as wire
from .peer import CALL_TIMEOUT_S, LAPSING_S, Answer, Call, PeerError, Record

CONNECTIONS_MAX = 4  # of each process; at most its calls in flight
ROOTS = (b"/k", b"/s", b"/o", b"/l", b"/b")
_NO_LIFE = 0x7FFF_FFFF  # no node's version
_TRIES = 10
"""A takeover that meets another in so many of its tries has failed."""
_TIMEOUT_MS = 1_000 * LAPSING_S
_CONNECT_S = 10.0
_BUFFER_BYTES = 1 << 30


class Pipe(asyncio.Protocol):
    """One connection, whose replies come in the order of the requests."""

    def __init__(self) -> None:
        self._received = bytearray()
        self._waiting: deque[tuple[asyncio.Future[list[bytes] | str], list[bytes], int]] = deque()
        self._transport: asyncio.Transport | None = None
        self._loop = asyncio.get_running_loop()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called by asyncio."""
        # uvloop's transports are of no class of asyncio's.
        self._transport = cast("asyncio.Transport", transport)
        # What is in flight is bounded by the callers.
        self._transport.set_write_buffer_limits(high=_BUFFER_BYTES)

    def data_received(self, data: bytes) -> None:
        """Called by asyncio."""
        self._received += data
        for reply in wire.cut(self._received):
            if not self._waiting:
                continue  # an answer to a call that has timed out, or unasked
            future, replies, count = self._waiting[0]
            replies.append(reply)
            if len(replies) == count:
                self._waiting.popleft()
                if not future.done():
                    future.set_result(replies)

    def connection_lost(self, exc: Exception | None) -> None:
        """Called by asyncio."""
        self._transport = None
        while self._waiting:
            future, _, _ = self._waiting.popleft()
            if not future.done():
                future.set_result("connection lost")

    async def ask(self, request: bytes, replies: int = 1) -> list[bytes] | str:
        """Send, and wait for so many replies; or why there are none."""
        if self._transport is None or self._transport.is_closing():
            await asyncio.sleep(0)  # a caller's loop must not starve the others
            return "connection lost"
        future: asyncio.Future[list[bytes] | str] = self._loop.create_future()
        self._waiting.append((future, [], replies))
        self._transport.write(request)
        try:
            async with asyncio.timeout(CALL_TIMEOUT_S):
                return await future
        except TimeoutError:
            return "timeout"

    def tell(self, request: bytes) -> None:
        """Send what has no reply, or one that is cut away."""
        if self._transport is not None:
            self._transport.write(request)

    @property
    def closed(self) -> bool:
        """Whether the connection has ended."""
        return self._transport is None or self._transport.is_closing()

    def close(self) -> None:
        """End the connection."""
        if self._transport is not None:
            self._transport.close()


class ZooKeeperClient:
    """See :class:`~metad_perf.peers.peer.Client`."""

    def __init__(self, pipes: Sequence[Pipe]) -> None:
        self._pipes = pipes
        self._turns = itertools.cycle(pipes)
        self._lives: dict[str, int] = {}  # by broker: the version of its node that is this client's

    def insert(self, records: Sequence[Record]) -> Call:
        """create."""
        return self._write([wire.create(_key(key), value) for key, value in records])

    def put(self, records: Sequence[Record]) -> Call:
        """setData."""
        return self._write([wire.set_data(_key(key), value) for key, value in records])

    def get(self, keys: Sequence[str]) -> Call:
        """getData."""
        return self._read([_key(key) for key in keys])

    def delete(self, keys: Sequence[str]) -> Call:
        """delete."""
        return self._write([wire.delete(_key(key)) for key in keys])

    def create(self, sessions: Sequence[Record], owner: str) -> Call:
        """Two nodes for each session."""
        parts = [wire.create(_properties(name), value) for name, value in sessions]
        parts += [wire.create(_owner(name), owner.encode()) for name, _ in sessions]
        return self._write(parts, len(sessions))

    def enter(self, owner: str) -> Call:
        """setData of the broker's node, whose new version is the life."""
        path = _broker(owner)

        async def call() -> Answer:
            pipe = next(self._turns)
            replies = await pipe.ask(wire.request(wire.create(path, b"")) + wire.request(wire.set_data(path, b"")), 2)
            if isinstance(replies, str):
                return Answer((replies,))
            if error := wire.error_of(replies[1]):
                return Answer((_name(error),))
            self._lives[owner] = wire.version_of(replies[1])
            return Answer()

        return call

    def take_over(self, sessions: Sequence[str], owner: str) -> Call:
        """A multi-read of owners and properties, then a multi of the check and of setData of the owners."""
        count = len(sessions)
        paths = [_owner(name) for name in sessions]
        reads = [wire.get(path) for path in paths] + [wire.get(_properties(name)) for name in sessions]
        read, broker, data = wire.multi(reads, wire.MULTI_READ), _broker(owner), owner.encode()

        async def attempt() -> Answer | None:
            """None: an owner has changed meanwhile."""
            pipe = next(self._turns)
            replies = await pipe.ask(read)
            if isinstance(replies, str):
                return Answer([replies] * count)
            if error := wire.error_of(replies[0]):
                return Answer([_name(error)] * count)
            found = wire.versioned(replies[0])
            before, properties = found[:count], found[count:]
            present = [(old, one) for old, one in zip(before, properties, strict=True) if old and one]
            if len(present) < count:
                return Answer([ABSENT] * (count - len(present)))
            parts = [wire.check(broker, self._lives.get(owner, _NO_LIFE))]
            parts += [wire.set_data(path, data, old[1]) for path, (old, _) in zip(paths, present, strict=True)]
            replies = await pipe.ask(wire.multi(parts))
            if isinstance(replies, str):
                return Answer([replies] * count)
            error, position = wire.first_error(replies[0])
            if error == wire.BAD_VERSION and position > 0:
                return None
            if error:
                return Answer([_name(error)] * count)
            return Answer(values=[one[0] for _, one in present], before=[old[0] for old, _ in present])

        async def call() -> Answer:
            for _ in range(_TRIES):
                answer = await attempt()
                if answer is not None:
                    return answer
            return Answer([_name(wire.BAD_VERSION)] * count)

        return call

    def owners(self, sessions: Sequence[str]) -> Call:
        """A read."""
        return self._read([_owner(name) for name in sessions])

    def begin(self, sessions: Sequence[Record]) -> Call:
        """Ephemeral nodes."""
        return self._write([wire.create(_lapsing(name), value, ephemeral=True) for name, value in sessions])

    def alive(self, sessions: Sequence[str]) -> Call:
        """A read."""
        return self._read([_lapsing(name) for name in sessions])

    def end(self, sessions: Sequence[str]) -> Call:
        """delete."""
        return self._write([wire.delete(_lapsing(name)) for name in sessions])

    async def abandon(self) -> None:
        """Cut the connections without a word; ZooKeeper ends their sessions after the timeout."""
        for pipe in self._pipes:
            pipe.close()

    def _write(self, parts: Sequence[wire.Part], count: int | None = None) -> Call:
        items = len(parts) if count is None else count
        single = len(parts) == 1
        request = wire.request(parts[0]) if single else wire.multi(parts)
        error_of = wire.error_of if single else wire.error_of_multi
        done = Answer()

        async def call() -> Answer:
            replies = await next(self._turns).ask(request)
            if isinstance(replies, str):
                return Answer([replies] * items)
            error = error_of(replies[0])
            return Answer([_name(error)] * items) if error else done

        return call

    def _read(self, paths: Sequence[bytes]) -> Call:
        count = len(paths)
        if count == 1:
            request = wire.request(wire.get(paths[0]))
        else:
            request = wire.multi([wire.get(path) for path in paths], wire.MULTI_READ)

        async def call() -> Answer:
            replies = await next(self._turns).ask(request)
            if isinstance(replies, str):
                return Answer([replies] * count)
            (reply,) = replies
            error = wire.error_of(reply)
            if count > 1:
                return Answer([_name(error)] * count) if error else Answer(values=wire.values_of(reply))
            if error in (0, wire.NO_NODE):
                return Answer(values=(None if error else wire.value_of(reply),))
            return Answer((_name(error),))

        return call


@asynccontextmanager
async def open_zookeeper(endpoints: str, in_flight: int) -> AsyncIterator[ZooKeeperClient]:
    """Connections to the first endpoint, each with a session of its own that pings keep alive."""
    pipes = [await _connect(endpoints.partition(",")[0]) for _ in range(max(1, min(CONNECTIONS_MAX, in_flight)))]
    pings = asyncio.create_task(_ping(pipes))
    try:
        for root in ROOTS:
            answer = await pipes[0].ask(wire.request(wire.create(root, b"")))
            if isinstance(answer, str) or wire.error_of(answer[0]) not in (0, wire.NODE_EXISTS):
                raise PeerError(f"zookeeper: {root.decode()} cannot be made: {answer!r}")
        yield ZooKeeperClient(pipes)
    finally:
        pings.cancel()
        await asyncio.wait([pings])
        for pipe in pipes:
            if not pipe.closed:
                await pipe.ask(wire.CLOSE_REQUEST)
            pipe.close()


async def _connect(endpoint: str) -> Pipe:
    host, _, port = endpoint.rpartition(":")
    async with asyncio.timeout(_CONNECT_S):
        _, pipe = await asyncio.get_running_loop().create_connection(Pipe, host, int(port))
        reply = await pipe.ask(wire.connect(_TIMEOUT_MS))
    if isinstance(reply, str) or not wire.connected(reply[0]):
        raise PeerError(f"zookeeper at {endpoint} refuses a session: {reply!r}")
    return pipe


async def _ping(pipes: Sequence[Pipe]) -> None:
    with contextlib.suppress(asyncio.CancelledError):
        while True:
            await asyncio.sleep(LAPSING_S / 4)
            for pipe in pipes:
                pipe.tell(wire.PING_REQUEST)


def _name(error: int) -> str:
    return f"zookeeper {error}"


def _flat(name: str) -> str:
    """A name within one node: a path's parts would be nodes that someone must have made."""
    return name.replace("/", ":")


def _key(key: str) -> bytes:
    return f"/k/{_flat(key)}".encode()


def _broker(owner: str) -> bytes:
    return f"/b/{_flat(owner)}".encode()


def _properties(session: str) -> bytes:
    return f"/s/{_flat(session)}".encode()


def _owner(session: str) -> bytes:
    return f"/o/{_flat(session)}".encode()


def _lapsing(session: str) -> bytes:
    return f"/l/{_flat(session)}".encode()
