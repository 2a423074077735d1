"""A client of RobustMQ's meta service: its key-value calls over gRPC, with messages that are encoded before the clock
starts.

Written from the public definitions (``meta.service.common``), and not tried on a running server. A value is a string
there, so it is sent in base64. There is no batch: a batch is as many calls at once, over several connections. A
session has two keys, one for its properties and one for its owner; nothing lapses. (The service also has sessions of
MQTT clients, in a format of its broker's own.)
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from ..load.workload import ABSENT
from .etcd_client import GrpcCalls, grpc_call, grpc_channels
from .etcd_wire import field, fields
from .peer import Answer, Call, Lifeless, PeerError, Record

_SERVICE = "/meta.service.common.MetaServiceService/"
SET, GET, DELETE = f"{_SERVICE}Set", f"{_SERVICE}Get", f"{_SERVICE}Delete"
_PROBE = "metad-perf/probe"


class RobustMqClient(Lifeless):
    """See :class:`~metad_perf.peers.peer.Client`."""

    def __init__(self, calls: GrpcCalls) -> None:
        self._set, self._get, self._delete = calls.method(SET), calls.method(GET), calls.method(DELETE)

    def insert(self, records: Sequence[Record]) -> Call:
        """As put."""
        return self.put(records)

    def put(self, records: Sequence[Record]) -> Call:
        """Set."""
        return self._write([(f"k/{key}", value) for key, value in records])

    def get(self, keys: Sequence[str]) -> Call:
        """Get."""
        return self._read([f"k/{key}" for key in keys])

    def delete(self, keys: Sequence[str]) -> Call:
        """Delete."""
        return self._remove([f"k/{key}" for key in keys])

    def create(self, sessions: Sequence[Record], owner: str) -> Call:
        """Two keys for each session."""
        records = [(f"s/{name}", value) for name, value in sessions]
        return self._write(records + [(f"o/{name}", owner.encode()) for name, _ in sessions])

    def take_over(self, sessions: Sequence[str], owner: str) -> Call:
        """Sets of the owners and, at the same time, gets of the properties."""
        write = self._write([(f"o/{name}", owner.encode()) for name in sessions])
        read = self._read([f"s/{name}" for name in sessions])

        async def call() -> Answer:
            written, found = await asyncio.gather(write(), read())
            failed = written.failed or found.failed or [ABSENT] * found.values.count(None)
            return Answer(failed, found.values)

        return call

    def owners(self, sessions: Sequence[str]) -> Call:
        """A read."""
        return self._read([f"o/{name}" for name in sessions])

    def begin(self, sessions: Sequence[Record]) -> Call:
        """Keys that do not lapse."""
        return self._write([(f"l/{name}", value) for name, value in sessions])

    def alive(self, sessions: Sequence[str]) -> Call:
        """A read."""
        return self._read([f"l/{name}" for name in sessions])

    def end(self, sessions: Sequence[str]) -> Call:
        """Delete."""
        return self._remove([f"l/{name}" for name in sessions])

    async def abandon(self) -> None:
        """Nothing lapses."""

    def _write(self, records: Sequence[Record]) -> Call:
        return _all([grpc_call(self._set, set_request(key, value), 1, lambda _: Answer()) for key, value in records])

    def _remove(self, keys: Sequence[str]) -> Call:
        return _all([grpc_call(self._delete, key_request(key), 1, lambda _: Answer()) for key in keys])

    def _read(self, keys: Sequence[str]) -> Call:
        return _all([grpc_call(self._get, key_request(key), 1, _found) for key in keys])


def set_request(key: str, value: bytes) -> bytes:
    """SetRequest."""
    return field(1, key.encode()) + field(2, base64.b64encode(value))


def key_request(key: str) -> bytes:
    """GetRequest or DeleteRequest."""
    return field(1, key.encode())


def value_of(reply: bytes) -> bytes | None:
    """Of a GetReply; an absent key has an empty value."""
    value = dict(fields(reply)).get(1, b"")
    assert isinstance(value, bytes)
    return base64.b64decode(value) if value else None


def _found(reply: bytes) -> Answer:
    return Answer(values=(value_of(reply),))


def _all(calls: Sequence[Call]) -> Call:
    if len(calls) == 1:
        return calls[0]

    async def call() -> Answer:
        answers = await asyncio.gather(*(one() for one in calls))
        failed = [name for one in answers for name in one.failed]
        return Answer(failed, [value for one in answers for value in one.values])

    return call


@asynccontextmanager
async def open_robustmq(endpoints: str, in_flight: int) -> AsyncIterator[RobustMqClient]:
    """Connections to the endpoint that accepts writes: the leader. Raises PeerError."""
    wrong: Sequence[str] = ()
    for endpoint in endpoints.split(","):
        async with grpc_channels(endpoint, 1) as calls:
            wrong = (await grpc_call(calls.method(SET), set_request(_PROBE, b"x"), 1, lambda _: Answer())()).failed
        if not wrong:
            async with grpc_channels(endpoint, in_flight) as calls:
                yield RobustMqClient(calls)
            return
    raise PeerError(f"robustmq: no node at {endpoints} accepts writes: {wrong}")
