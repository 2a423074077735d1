"""A client of etcd: gRPC calls with messages that are encoded before the clock starts.

A batch is one transaction. A session has two keys, one for its properties and one for its owner, so that a takeover
writes a few bytes and reads the properties in the same transaction. The transaction is done if the broker's key still
has the epoch that this client wrote there, and returns the previous owners: what metad's takeover does. A lapsing
session is a key with a lease of its own; the id of the lease comes from the session's name, so nobody has to look it
up. Reads are linearizable, as etcd's are by default.

The client costs as little as Python allows: calls are spread over several connections to the leader, and of a reply to
a write only its success is read.
"""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager

import grpc

from ..load.workload import ABSENT, DIFFERENT
from . import etcd_wire as wire
from .peer import CALL_TIMEOUT_S, LAPSING_S, Answer, Call, Record

CONNECTIONS_MAX = 4  # of each process; at most its calls in flight
_CONNECT_S = 10.0
CHANNEL_OPTIONS = (
    ("grpc.use_local_subchannel_pool", 1),  # a connection of its own for each channel
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
)


class GrpcCalls:
    """Requests that are bytes, over several connections in turn."""

    def __init__(self, channels: Sequence[grpc.aio.Channel]) -> None:
        self._channels = channels
        self._methods: dict[str, Callable[..., grpc.aio.UnaryUnaryCall]] = {}

    def method(self, path: str) -> Callable[..., grpc.aio.UnaryUnaryCall]:
        """A method, over the next connection at each call. No serializers: requests and replies are bytes."""
        known = self._methods.get(path)
        if known is None:
            calls = itertools.cycle([one.unary_unary(path) for one in self._channels])
            known = self._methods[path] = lambda request: next(calls)(request, timeout=CALL_TIMEOUT_S)
        return known


def grpc_call(
    method: Callable[..., grpc.aio.UnaryUnaryCall], request: bytes, count: int, read: Callable[[bytes], Answer]
) -> Call:
    """A call of one request for ``count`` items."""

    async def call() -> Answer:
        try:
            return read(await method(request))
        except grpc.aio.AioRpcError as error:
            return Answer([f"grpc {error.code().name}"] * count)

    return call


@asynccontextmanager
async def grpc_channels(endpoint: str, in_flight: int) -> AsyncIterator[GrpcCalls]:
    """Connections to one node."""
    async with AsyncExitStack() as stack:
        channels = [
            await stack.enter_async_context(grpc.aio.insecure_channel(endpoint, options=CHANNEL_OPTIONS))
            for _ in range(max(1, min(CONNECTIONS_MAX, in_flight)))
        ]
        async with asyncio.timeout(_CONNECT_S):
            for channel in channels:
                await channel.channel_ready()
        yield GrpcCalls(channels)


class EtcdClient:
    """See :class:`~metad_perf.peers.peer.Client`."""

    def __init__(self, calls: GrpcCalls) -> None:
        self._put, self._range = calls.method(wire.PUT), calls.method(wire.RANGE)
        self._txn = calls.method(wire.TXN)
        self._grant, self._revoke = calls.method(wire.LEASE_GRANT), calls.method(wire.LEASE_REVOKE)
        self._epoch = b"%d" % time.time_ns()

    def insert(self, records: Sequence[Record]) -> Call:
        """As put."""
        return self.put(records)

    def put(self, records: Sequence[Record]) -> Call:
        """Put, or a transaction of puts."""
        return self._write([wire.put_request(_key(key), value) for key, value in records])

    def get(self, keys: Sequence[str]) -> Call:
        """Range of one key, or a transaction of them."""
        return self._read([_key(key) for key in keys])

    def delete(self, keys: Sequence[str]) -> Call:
        """A transaction of deletes."""
        return self._transact([wire.delete_op(_key(key)) for key in keys], len(keys))

    def create(self, sessions: Sequence[Record], owner: str) -> Call:
        """Both keys of each session."""
        ops = [wire.put_op(wire.put_request(_properties(name), value)) for name, value in sessions]
        ops += [wire.put_op(wire.put_request(_owner(name), owner.encode())) for name, _ in sessions]
        return self._transact(ops, len(sessions))

    def enter(self, owner: str) -> Call:
        """The broker's key gets this client's epoch."""
        return self._write([wire.put_request(_broker(owner), self._epoch)])

    def take_over(self, sessions: Sequence[str], owner: str) -> Call:
        """If the epoch is the broker's: the owner of each is put, its properties are read, in one transaction."""
        ops = [wire.put_op(wire.put_request(_owner(name), owner.encode(), previous=True)) for name in sessions]
        ops += [wire.range_op(_properties(name)) for name in sessions]
        request = wire.txn(ops, [wire.value_is(_broker(owner), self._epoch)])
        count = len(sessions)

        def read(reply: bytes) -> Answer:
            found = wire.txn_previous(reply, count, count)
            if found is None:
                return Answer([DIFFERENT] * count)
            before, values = found
            return Answer([ABSENT] * (before.count(None) or values.count(None)), values, before)

        return grpc_call(self._txn, request, count, read)

    def owners(self, sessions: Sequence[str]) -> Call:
        """A read."""
        return self._read([_owner(name) for name in sessions])

    def begin(self, sessions: Sequence[Record]) -> Call:
        """The leases, all at once; then the keys."""
        grants = [wire.lease_grant(_lease(name), LAPSING_S) for name, _ in sessions]
        write = self._write([wire.put_request(_lapsing(name), value, lease=_lease(name)) for name, value in sessions])
        return _first(self._grant, grants, write)

    def alive(self, sessions: Sequence[str]) -> Call:
        """A read."""
        return self._read([_lapsing(name) for name in sessions])

    def end(self, sessions: Sequence[str]) -> Call:
        """The end of a lease deletes its key."""
        return _first(self._revoke, [wire.lease_revoke(_lease(name)) for name in sessions], None)

    async def abandon(self) -> None:
        """Nobody renews the leases anyway."""

    def _write(self, puts: Sequence[bytes]) -> Call:
        if len(puts) == 1:
            # A PutResponse has a header.
            return grpc_call(self._put, puts[0], 1, lambda reply: Answer() if reply else Answer((DIFFERENT,)))
        return self._transact([wire.put_op(one) for one in puts], len(puts))

    def _transact(self, ops: Sequence[bytes], count: int) -> Call:
        failed = Answer([DIFFERENT] * count)
        return grpc_call(
            self._txn, wire.txn(ops), count, lambda reply: Answer() if wire.txn_succeeded(reply) else failed
        )

    def _read(self, keys: Sequence[bytes]) -> Call:
        if len(keys) == 1:
            return grpc_call(
                self._range,
                wire.range_request(keys[0]),
                1,
                lambda reply: Answer(values=(wire.range_value(reply),)),
            )
        count = len(keys)
        request = wire.txn([wire.range_op(key) for key in keys])

        def read(reply: bytes) -> Answer:
            values = wire.txn_values(reply, count)
            return Answer([DIFFERENT] * count) if values is None else Answer(values=values)

        return grpc_call(self._txn, request, count, read)


def _first(method: Callable[..., grpc.aio.UnaryUnaryCall], requests: Sequence[bytes], then: Call | None) -> Call:
    """Calls for each item at once, and then ``then``."""
    firsts = [grpc_call(method, one, 1, lambda _: Answer()) for one in requests]

    async def call() -> Answer:
        if len(firsts) == 1:
            failed = list((await firsts[0]()).failed)
        else:
            failed = [name for one in await asyncio.gather(*(one() for one in firsts)) for name in one.failed]
        return Answer(failed) if failed or then is None else await then()

    return call


@asynccontextmanager
async def open_etcd(endpoints: str, in_flight: int) -> AsyncIterator[EtcdClient]:
    """Connections to the first endpoint, the leader."""
    async with grpc_channels(endpoints.partition(",")[0], in_flight) as calls:
        yield EtcdClient(calls)


async def member_status(endpoint: str, timeout_s: float) -> wire.MemberStatus | None:
    """A member's status; None if it does not answer."""
    async with grpc.aio.insecure_channel(endpoint) as channel:
        ask: Callable[..., grpc.aio.UnaryUnaryCall] = channel.unary_unary(wire.STATUS)
        try:
            return wire.MemberStatus(await ask(b"", timeout=timeout_s))
        except grpc.aio.AioRpcError:
            return None


def _key(key: str) -> bytes:
    return f"k/{key}".encode()


def _broker(owner: str) -> bytes:
    return f"b/{owner}".encode()


def _properties(session: str) -> bytes:
    return f"s/{session}".encode()


def _owner(session: str) -> bytes:
    return f"o/{session}".encode()


def _lapsing(session: str) -> bytes:
    return f"l/{session}".encode()


def _lease(session: str) -> int:
    """An id that other sessions do not have: 62 bits of a hash, and never 0."""
    return int.from_bytes(hashlib.blake2b(session.encode(), digest_size=8).digest()) >> 2 | 1
