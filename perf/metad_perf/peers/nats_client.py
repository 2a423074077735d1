"""A client of NATS's key-value buckets: messages to JetStream that are encoded before the clock starts.

NATS has no batch: a batch is as many messages, sent in one piece, each with its own acknowledgement. All keys are in
one bucket, which is one stream with three replicas. A session has two keys, one for its properties and one for its
owner; a takeover is a put of the owner and a get of the properties. Gets go to the node that leads the stream, so they
see what was acknowledged. A lapsing session is a key of a bucket with a time to live, as this NATS knows none for a
single key.
"""

from __future__ import annotations

import asyncio
import base64
import itertools
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, cast

import msgspec

from ..load.workload import ABSENT
from . import nats_wire as wire
from .peer import CALL_TIMEOUT_S, LAPSING_S, Answer, Call, Lifeless, PeerError, Record
from .pipe import LOST, TIMEOUT

BUCKET, LAPSING = "metad", "metad_lapsing"
REPLICAS = 3
CONNECTIONS_MAX = 4  # of each process; at most its calls in flight
_CONNECT_S = 10.0
_BUFFER_BYTES = 1 << 30
_API_S = 10.0
_NOT_FOUND = 404
_EXISTS = 10058  # a stream of that name, with another configuration


class Connection(asyncio.Protocol):
    """One connection, whose replies find their calls by number."""

    def __init__(self) -> None:
        self._received = bytearray()
        self._transport: asyncio.Transport | None = None
        self._loop = asyncio.get_running_loop()
        self._waiting: dict[int, tuple[asyncio.Future[str], list[wire.Message | None], list[int]]] = {}

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called by asyncio."""
        # uvloop's transports are of no class of asyncio's.
        self._transport = cast("asyncio.Transport", transport)
        # What is in flight is bounded by the callers.
        self._transport.set_write_buffer_limits(high=_BUFFER_BYTES)
        self._transport.write(wire.CONNECT)

    def data_received(self, data: bytes) -> None:
        """Called by asyncio."""
        self._received += data
        for event in wire.cut(self._received):
            if isinstance(event, wire.Message):
                self._answered(event)
            elif self._transport is not None:
                if isinstance(event, wire.Pinged):
                    self._transport.write(wire.PONG)
                else:
                    self._transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """Called by asyncio."""
        self._transport = None
        for future, _, _ in self._waiting.values():
            if not future.done():
                future.set_result(LOST)
        self._waiting.clear()

    async def ask(self, call: int, request: bytes, items: int) -> Sequence[wire.Message | None] | str:
        """Send, and wait for the reply of each item; or why there are none."""
        if self._transport is None:
            await asyncio.sleep(0)  # a caller's loop must not starve the others
            return LOST
        future: asyncio.Future[str] = self._loop.create_future()
        replies: list[wire.Message | None] = [None] * items
        self._waiting[call] = (future, replies, [items])
        self._transport.write(request)
        try:
            async with asyncio.timeout(CALL_TIMEOUT_S):
                return await future or replies
        except TimeoutError:
            return TIMEOUT
        finally:
            self._waiting.pop(call, None)

    def close(self) -> None:
        """End the connection."""
        if self._transport is not None:
            self._transport.close()

    def _answered(self, message: wire.Message) -> None:
        _, call, item = message.subject.split(b".")
        found = self._waiting.get(int(call))
        if found is None:
            return  # it has timed out
        future, replies, left = found
        at = int(item)
        if replies[at] is None:
            replies[at] = message
            left[0] -= 1
            if not left[0] and not future.done():
                future.set_result("")


class NatsClient(Lifeless):
    """See :class:`~metad_perf.peers.peer.Client`."""

    def __init__(self, connections: Sequence[Connection]) -> None:
        self._connections = connections
        self._turns = itertools.cycle(connections)
        self._calls = itertools.count(1)

    def insert(self, records: Sequence[Record]) -> Call:
        """As put."""
        return self.put(records)

    def put(self, records: Sequence[Record]) -> Call:
        """A message to the key's subject."""
        return self._write([(_subject(BUCKET, "k", key), value) for key, value in records])

    def get(self, keys: Sequence[str]) -> Call:
        """A direct get."""
        return self._read([_subject(BUCKET, "k", key) for key in keys])

    def delete(self, keys: Sequence[str]) -> Call:
        """A marker; it stays."""
        return self._mark([_subject(BUCKET, "k", key) for key in keys], wire.DELETED)

    def create(self, sessions: Sequence[Record], owner: str) -> Call:
        """Two messages for each session."""
        records = [(_subject(BUCKET, "s", name), value) for name, value in sessions]
        records += [(_subject(BUCKET, "o", name), owner.encode()) for name, _ in sessions]
        return self._write(records)

    def take_over(self, sessions: Sequence[str], owner: str) -> Call:
        """The puts of the owners and, right behind them, the gets of the properties."""
        call, count = next(self._calls), len(sessions)
        request = b"".join(
            wire.published(_subject(BUCKET, "o", name), wire.reply_to(call, at), owner.encode())
            for at, name in enumerate(sessions)
        )
        request += b"".join(
            wire.published(_direct(_subject(BUCKET, "s", name)), wire.reply_to(call, count + at), b"")
            for at, name in enumerate(sessions)
        )

        async def take() -> Answer:
            replies = await next(self._turns).ask(call, request, 2 * count)
            if isinstance(replies, str):
                return Answer([replies] * count)
            failed = _failures(replies[:count])
            values = [_value(one) for one in replies[count:]]
            return Answer(failed or [ABSENT] * values.count(None), values)

        return take

    def owners(self, sessions: Sequence[str]) -> Call:
        """A read."""
        return self._read([_subject(BUCKET, "o", name) for name in sessions])

    def begin(self, sessions: Sequence[Record]) -> Call:
        """A message to the bucket with the time to live."""
        return self._write([(_subject(LAPSING, "l", name), value) for name, value in sessions])

    def alive(self, sessions: Sequence[str]) -> Call:
        """A get from whichever node leads that bucket's stream."""
        call, count = next(self._calls), len(sessions)
        path = b"$JS.API.STREAM.MSG.GET.KV_" + LAPSING.encode()
        request = b"".join(
            wire.published(
                path,
                wire.reply_to(call, at),
                msgspec.json.encode({"last_by_subj": _subject(LAPSING, "l", name).decode()}),
            )
            for at, name in enumerate(sessions)
        )

        async def read() -> Answer:
            replies = await next(self._turns).ask(call, request, count)
            if isinstance(replies, str):
                return Answer([replies] * count)
            values, failed = [], []
            for one in replies:
                said = _json(one)
                message = said.get("message")
                if message is None and said.get("error", {}).get("code") != _NOT_FOUND:
                    failed.append(_wrong(one))
                marked = b"KV-Operation" in base64.b64decode((message or {}).get("hdrs", ""))
                values.append(None if message is None or marked else base64.b64decode(message.get("data", "")))
            return Answer(failed, values)

        return read

    def end(self, sessions: Sequence[str]) -> Call:
        """A marker that takes the place of the value."""
        return self._mark([_subject(LAPSING, "l", name) for name in sessions], wire.PURGED)

    async def abandon(self) -> None:
        """Nobody renews the time to live anyway."""

    def _write(self, records: Sequence[tuple[bytes, bytes]]) -> Call:
        call = next(self._calls)
        parts = [wire.published(key, wire.reply_to(call, at), value) for at, (key, value) in enumerate(records)]
        return self._send(call, b"".join(parts), len(parts))

    def _mark(self, keys: Sequence[bytes], headers: bytes) -> Call:
        call = next(self._calls)
        parts = [wire.published_with(headers, key, wire.reply_to(call, at)) for at, key in enumerate(keys)]
        return self._send(call, b"".join(parts), len(parts))

    def _send(self, call: int, request: bytes, count: int) -> Call:
        async def send() -> Answer:
            replies = await next(self._turns).ask(call, request, count)
            return Answer([replies] * count if isinstance(replies, str) else _failures(replies))

        return send

    def _read(self, keys: Sequence[bytes]) -> Call:
        call, count = next(self._calls), len(keys)
        request = b"".join(wire.published(_direct(key), wire.reply_to(call, at), b"") for at, key in enumerate(keys))

        async def read() -> Answer:
            replies = await next(self._turns).ask(call, request, count)
            if isinstance(replies, str):
                return Answer([replies] * count)
            failed = [_wrong(one) for one in replies if one is not None and one.status not in (0, _NOT_FOUND)]
            return Answer(failed, [_value(one) for one in replies])

        return read


@asynccontextmanager
async def open_nats(endpoints: str, in_flight: int) -> AsyncIterator[NatsClient]:
    """Connections to the first endpoint. Raises PeerError if the buckets cannot be made."""
    connections = await _connected(endpoints.partition(",")[0], max(1, min(CONNECTIONS_MAX, in_flight)))
    try:
        await make_buckets(connections[0])
        yield NatsClient(connections)
    finally:
        for one in connections:
            one.close()


async def leader(endpoint: str) -> str:
    """The name of the server that leads the bucket's stream, which is made if need be; empty if there is none yet."""
    try:
        (connection,) = await _connected(endpoint, 1)
    except OSError:
        return ""
    try:
        await make_buckets(connection)
        said = await _api(connection, f"STREAM.INFO.KV_{BUCKET}", b"")
        cluster = said.get("cluster", {})
        current = [one.get("current") for one in cluster.get("replicas", [])]
        return str(cluster.get("leader", "")) if current == [True] * (REPLICAS - 1) else ""
    except PeerError:
        return ""
    finally:
        connection.close()


async def make_buckets(connection: Connection) -> None:
    """Make the buckets; those that exist stay. Raises PeerError."""
    for name, ttl_s in ((BUCKET, 0), (LAPSING, LAPSING_S)):
        said = await _api(connection, f"STREAM.CREATE.KV_{name}", wire.bucket(name, replicas=REPLICAS, ttl_s=ttl_s))
        if "error" in said and said["error"].get("err_code") != _EXISTS:
            raise PeerError(f"nats: bucket {name} cannot be made: {said['error']}")


async def _connected(endpoint: str, count: int) -> list[Connection]:
    host, _, port = endpoint.rpartition(":")
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(_CONNECT_S):
        return [(await loop.create_connection(Connection, host, int(port)))[1] for _ in range(count)]


async def _api(connection: Connection, path: str, body: bytes) -> dict[str, Any]:
    try:
        async with asyncio.timeout(_API_S):
            request = wire.published(b"$JS.API." + path.encode(), wire.reply_to(0, 0), body)
            replies = await connection.ask(0, request, 1)
    except TimeoutError:
        raise PeerError(f"nats: {path}: no answer") from None
    if isinstance(replies, str) or (replies[0] is not None and replies[0].status):
        raise PeerError(f"nats: {path}: {replies}")
    return _json(replies[0])


def _json(reply: wire.Message | None) -> dict[str, Any]:
    if reply is None or not reply.payload:
        return {}
    return msgspec.json.decode(reply.payload, type=dict[str, Any])


def _failures(replies: Sequence[wire.Message | None]) -> list[str]:
    """An acknowledgement has a number, and no error."""
    return [_wrong(one) for one in replies if one is None or one.status or b'"error"' in one.payload]


def _wrong(reply: wire.Message | None) -> str:
    if reply is None:
        return "nats: no reply"
    return f"nats {reply.status or _json(reply).get('error', {}).get('err_code', 0)}"


def _value(reply: wire.Message | None) -> bytes | None:
    if reply is None or reply.status or b"KV-Operation" in reply.headers:
        return None
    return reply.payload


def _subject(name: str, kind: str, key: str) -> bytes:
    return f"$KV.{name}.{kind}/{key}".encode()


def _direct(subject: bytes) -> bytes:
    return b"$JS.API.DIRECT.GET.KV_%b.%b" % (BUCKET.encode(), subject)
