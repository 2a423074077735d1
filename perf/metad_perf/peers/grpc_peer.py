"""Our own gRPC service as a peer: one node of metad's core behind the service of baseline.proto, not replicated.

It shows what the protocol costs, so metad is compared with it as one node, too. Requests are made before the clock
starts. A batch is one request.
"""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc

from metad_wire.errors import ERRORS

from ..load.measure import epoch_now
from ..load.workload import ABSENT, EXPIRY_INTERVAL_S, TENANT
from ..spawn import Server
from .baseline import pb
from .etcd_client import GrpcCalls, grpc_call, grpc_channels
from .grpc_client import cpu_us
from .peer import LAPSING_S, Answer, Call, Lifeless, Record

_SERVICE = "/metad.baseline.Sessions/"
_LAPSING_BROKER = "broker-lapsing"


class Grpc:
    """See :class:`~metad_perf.peers.peer.Peer`."""

    def __init__(self, directory: Path) -> None:
        command = [sys.executable, "-m", "metad_perf.peers.grpc_server"]
        self._server = Server(directory, command=command)

    def start(self) -> None:
        """One process."""
        self._server.start()

    def endpoints(self) -> str:
        """The one node."""
        return self._server.endpoint

    def settings(self) -> dict[str, object]:
        """metad's durability."""
        return {"nodes": 1, "fsync": True, "version": grpc.__version__, "transport": "gRPC over HTTP/2, no TLS"}

    def cpu_us(self) -> int:
        """By its own account."""
        return cpu_us(self.endpoints())

    def rss_bytes(self) -> int:
        """Of the process."""
        return self._server.rss_bytes()

    def kill_leader(self) -> None:
        """There is no other node."""
        self._server.kill()

    def stop(self) -> None:
        """In good order."""
        try:
            self._server.stop()
        finally:
            self._server.kill()


class GrpcClient(Lifeless):
    """See :class:`~metad_perf.peers.peer.Client`. Keys are ``NAMESPACE/KEY``."""

    def __init__(self, calls: GrpcCalls) -> None:
        self._calls = calls
        self._epoch = epoch_now()
        self._begun: set[str] = set()

    def insert(self, records: Sequence[Record]) -> Call:
        """As put."""
        return self.put(records)

    def put(self, records: Sequence[Record]) -> Call:
        """Put."""
        items = [_record(key, value) for key, value in records]
        return self._call("Put", pb.PutRequest(items=items), len(items), _written)

    def get(self, keys: Sequence[str]) -> Call:
        """Read."""
        items = [_record(key) for key in keys]

        def read(reply: bytes) -> Answer:
            return Answer(values=_values(pb.ReadReply.FromString(reply).items))

        return self._call("Read", pb.ReadRequest(items=items), len(items), read)

    def delete(self, keys: Sequence[str]) -> Call:
        """Delete."""
        items = [_record(key) for key in keys]
        return self._call("Delete", pb.DeleteRequest(items=items), len(items), _written)

    def create(self, sessions: Sequence[Record], owner: str) -> Call:
        """Takeover with a clean start."""
        return self._take(sessions, owner, EXPIRY_INTERVAL_S)

    def take_over(self, sessions: Sequence[str], owner: str) -> Call:
        """Takeover with restoring."""
        items = [pb.TakeoverItem(tenant=TENANT, client_id=name) for name in sessions]
        request = pb.TakeoverRequest(broker=owner, broker_epoch=self._epoch, items=items, restore=True)

        def read(reply: bytes) -> Answer:
            made = pb.WriteReply.FromString(reply)
            values = _values(made.restored)
            return Answer(_failures(made) or [ABSENT] * values.count(None), values)

        return self._call("Takeover", request, len(items), read)

    def owners(self, sessions: Sequence[str]) -> Call:
        """Get."""
        return self._sessions(sessions, lambda session: session.broker.encode())

    def begin(self, sessions: Sequence[Record]) -> Call:
        """Takeover with a clean start."""
        begin = self._take(sessions, _LAPSING_BROKER, LAPSING_S)

        async def call() -> Answer:
            self._begun.update(name for name, _ in sessions)
            return await begin()

        return call

    def alive(self, sessions: Sequence[str]) -> Call:
        """Get."""
        return self._sessions(sessions, lambda session: session.properties.payload)

    def end(self, sessions: Sequence[str]) -> Call:
        """Disconnect, with an expiry interval of 0."""
        end = self._disconnect(sessions, expiry_interval_s=0)

        async def call() -> Answer:
            self._begun.difference_update(sessions)
            return await end()

        return call

    async def abandon(self) -> None:
        """Disconnect; their time runs."""
        if self._begun:
            await self._disconnect(sorted(self._begun))()

    def _call(self, method: str, request: Any, count: int, read: Callable[[bytes], Answer]) -> Call:
        return grpc_call(self._calls.method(_SERVICE + method), request.SerializeToString(), count, read)

    def _take(self, sessions: Sequence[Record], owner: str, expiry_interval_s: int) -> Call:
        items = [
            pb.TakeoverItem(
                tenant=TENANT,
                client_id=name,
                clean_start=True,
                properties=pb.Properties(expiry_interval_s=expiry_interval_s, payload=value),
            )
            for name, value in sessions
        ]
        request = pb.TakeoverRequest(broker=owner, broker_epoch=self._epoch, items=items)
        return self._call("Takeover", request, len(items), _written)

    def _disconnect(self, sessions: Sequence[str], expiry_interval_s: int | None = None) -> Call:
        request = pb.DisconnectRequest(
            broker=_LAPSING_BROKER,
            broker_epoch=self._epoch,
            items=[pb.Key(tenant=TENANT, client_id=name) for name in sessions],
            expiry_interval_s=expiry_interval_s,
        )
        return self._call("Disconnect", request, len(sessions), _written)

    def _sessions(self, sessions: Sequence[str], value_of: Callable[[Any], bytes]) -> Call:
        request = pb.GetRequest(items=[pb.Key(tenant=TENANT, client_id=name) for name in sessions])

        def read(reply: bytes) -> Answer:
            found = pb.GetReply.FromString(reply).sessions
            return Answer(values=[value_of(one) if one.client_id else None for one in found])

        return self._call("Get", request, len(sessions), read)


@asynccontextmanager
async def open_grpc(endpoints: str, in_flight: int) -> AsyncIterator[GrpcClient]:
    """Connections to the one node."""
    async with grpc_channels(endpoints, in_flight) as calls:
        yield GrpcClient(calls)


def _record(key: str, value: bytes = b"") -> Any:
    namespace, _, name = key.partition("/")
    return pb.Record(namespace=namespace, key=name, value=value)


def _failures(reply: Any) -> list[str]:
    return [ERRORS[one.code].name for one in reply.errors]


def _written(reply: bytes) -> Answer:
    return Answer(_failures(pb.WriteReply.FromString(reply)))


def _values(found: Any) -> list[bytes | None]:
    return [one.value if one.there else None for one in found]
