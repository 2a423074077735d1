"""The baseline server: metad's own node core behind grpc.aio unary calls instead of metad's protocol.

``python -m metad_perf.peers.grpc_server`` takes the flags of ``metad serve``. Requests are evaluated, logged, synced
and applied by metad's own code; only the layer between socket and node differs. There is one data group, because a call
is not split.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import resource
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import uvloop

from metad.config import Config, load_config
from metad.node.node import Node
from metad.process import settle_interpreter
from metad_wire import messages as m
from metad_wire import methods
from metad_wire.errors import MetadError

from .baseline import CHANNEL_OPTIONS, pb, stubs

_DRAIN_S = 10.0


class Sessions(stubs.SessionsServicer):  # type: ignore[misc]  # made at run time
    """Translates between protobuf and metad's messages."""

    def __init__(self, node: Node) -> None:
        self._node = node

    async def Takeover(self, request: Any, context: Any) -> Any:
        """See baseline.proto."""
        items = [
            m.SessionTakeoverItem(
                item.tenant,
                item.client_id,
                item.clean_start,
                _properties(item.properties) if item.HasField("properties") else None,
            )
            for item in request.items
        ]
        body = m.SessionTakeover(request.broker, request.broker_epoch, items, request.restore)
        reply = await self._call(methods.SESSION_TAKEOVER, body, context)
        made = _write_reply(reply)
        if request.restore:
            made.restored.extend(_found(None if one is None else one.payload) for one in reply.properties)
        return made

    async def Update(self, request: Any, context: Any) -> Any:
        """See baseline.proto."""
        items = [
            m.SessionUpdateItem(item.tenant, item.client_id, _properties(item.properties)) for item in request.items
        ]
        body = m.SessionUpdate(request.broker, request.broker_epoch, items)
        return _write_reply(await self._call(methods.SESSION_UPDATE, body, context))

    async def Get(self, request: Any, context: Any) -> Any:
        """See baseline.proto."""
        body = methods.SESSION_GET.body([m.SessionKey(item.tenant, item.client_id) for item in request.items])
        reply = await self._call(methods.SESSION_GET, body, context)
        return pb.GetReply(sessions=[pb.Session() if one is None else _session(one) for one in reply.found])

    async def Disconnect(self, request: Any, context: Any) -> Any:
        """See baseline.proto."""
        expiry = request.expiry_interval_s if request.HasField("expiry_interval_s") else None
        items = [m.SessionDisconnectItem(item.tenant, item.client_id, expiry) for item in request.items]
        body = m.SessionDisconnect(request.broker, request.broker_epoch, items)
        return _write_reply(await self._call(methods.SESSION_DISCONNECT, body, context))

    async def Put(self, request: Any, context: Any) -> Any:
        """See baseline.proto."""
        body = m.KvPut([m.KvPutItem(item.namespace, item.key, item.value) for item in request.items])
        return _write_reply(await self._call(methods.KV_PUT, body, context))

    async def Read(self, request: Any, context: Any) -> Any:
        """See baseline.proto."""
        body = methods.KV_GET.body([m.KvKey(item.namespace, item.key) for item in request.items])
        reply = await self._call(methods.KV_GET, body, context)
        return pb.ReadReply(items=[_found(None if one is None else one.value) for one in reply.found])

    async def Delete(self, request: Any, context: Any) -> Any:
        """See baseline.proto."""
        body = m.KvDelete([m.KvDeleteItem(item.namespace, item.key) for item in request.items])
        return _write_reply(await self._call(methods.KV_DELETE, body, context))

    async def Status(self, request: Any, context: Any) -> Any:
        """See baseline.proto."""
        used = resource.getrusage(resource.RUSAGE_SELF)
        return pb.StatusReply(cpu_us=round((used.ru_utime + used.ru_stime) * 1e6))

    async def _call(self, method: methods.Method[Any, Any], body: m.Message, context: Any) -> Any:
        try:
            return await self._node.requests.call(method, body, group="data-0")
        except MetadError as error:
            await context.abort(grpc.StatusCode.UNAVAILABLE, f"{error.name}: {error}")
            raise


def _write_reply(reply: Any) -> Any:
    return pb.WriteReply(
        revisions=[pb.Revision(group=one.group, index=one.index) for one in reply.revisions],
        errors=[pb.ItemError(index=one.index, code=one.code, message=one.message) for one in reply.errors],
    )


def _found(value: bytes | None) -> Any:
    return pb.Found() if value is None else pb.Found(there=True, value=value)


def _session(session: m.Session) -> Any:
    properties = session.properties
    return pb.Session(
        tenant=session.tenant,
        client_id=session.client_id,
        connected=session.connected,
        broker=session.broker,
        broker_epoch=session.broker_epoch,
        disconnected_ms=session.disconnected_ms,
        properties=pb.Properties(expiry_interval_s=properties.expiry_interval_s, payload=properties.payload),
    )


def _properties(properties: Any) -> m.SessionProperties:
    return m.SessionProperties(properties.expiry_interval_s, properties.payload)


@contextlib.asynccontextmanager
async def _serving(config: Config) -> AsyncIterator[str]:
    """Serve and yield the endpoint."""
    node = await Node.open(config)
    checkpoints = asyncio.create_task(node.run())
    try:
        server = grpc.aio.server(options=[*CHANNEL_OPTIONS, ("grpc.so_reuseport", 0)])
        stubs.add_SessionsServicer_to_server(Sessions(node), server)
        host, _, _ = config.listen.rpartition(":")
        port = server.add_insecure_port(config.listen)
        await server.start()
        try:
            yield f"{host}:{port}"
        finally:
            await server.stop(grace=5.0)
            await node.drain(_DRAIN_S)
    finally:
        checkpoints.cancel()
        await asyncio.wait([checkpoints])
        await node.close()


async def _serve(config: Config, ready_file: Path) -> None:
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    async with _serving(config) as endpoint:
        settle_interpreter()
        await asyncio.to_thread(ready_file.write_text, json.dumps({"endpoints": [endpoint]}))
        await stop.wait()


def main() -> int:
    """Serve until SIGTERM."""
    parser = argparse.ArgumentParser(prog="metad_perf.peers.grpc_server", description="The gRPC baseline.")
    parser.add_argument("--data-dir", required=True)
    parser.add_argument("--listen", default="127.0.0.1:0")
    parser.add_argument("--ready-file", type=Path, required=True)
    parser.add_argument("--config", type=Path)
    args = parser.parse_args()
    config = load_config(args.config, {"data_dir": args.data_dir, "listen": args.listen, "groups": {"data": 1}})
    uvloop.run(_serve(config, args.ready_file))
    return 0


if __name__ == "__main__":
    sys.exit(main())
