"""A listening server: accepts, sweeps out what is idle or stuck, drains on request."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from metad_wire.errors import DrainingError, FrameError, OverloadedError, SlowReaderError
from metad_wire.transport import Listener, Transport, split_endpoint

from ..config import Config
from ..errors import ConfigError, ServerError
from ..logs import event
from .connection import Connection
from .environment import Environment
from .intake import Intake
from .node import Node
from .peers import Peers
from .stores import Stores

_SWEEP_S = 0.5


class Server:
    """A node and its listener. ``await Server.start(...)``, ``await server.run()``, ``await server.stop()``."""

    def __init__(self, config: Config, node: Node) -> None:
        self.config = config
        self.node = node
        self.endpoint = ""
        self.peers: Peers | None = None
        self._listener: Listener | None = None
        self._connections: set[Connection] = set()
        self._intake = Intake(config.limits.unfinished_bytes_max)

    @classmethod
    async def start(
        cls,
        config: Config,
        transport: Transport,
        *,
        stores: Stores | None = None,
        environment: Environment | None = None,
        locked: Callable[[], None] | None = None,
    ) -> Server:
        """Open the node, recover, listen. ``locked`` is called once the stores are this process's, before recovery.
        ``stores`` and ``environment`` take the place of the real ones. Raises :class:`ServerError`."""
        try:
            host, port = split_endpoint(config.listen)
        except ValueError as error:
            raise ConfigError(f"listen: {error}") from None
        node = await Node.open(config, stores=stores, environment=environment, locked=locked)
        server = cls(config, node)
        try:
            server._listener = await transport.listen(host, port, server._accept)
        except (OSError, ValueError) as error:  # ValueError: a host that cannot be encoded
            await node.close()
            reason = error.strerror if isinstance(error, OSError) and error.strerror else error
            raise ConfigError(f"cannot listen on {config.listen}: {reason}") from None
        server.endpoint = server._listener.endpoint
        node.controller.endpoint = config.cluster.advertise_clients or server.endpoint
        server.peers = Peers(config, node, transport)
        try:
            await server.peers.start()
        except ServerError:
            await server.stop()
            raise
        event("listening", endpoint=server.endpoint, node=config.node_id, fsync=config.fsync)
        return server

    async def run(self) -> None:
        """Work until cancelled, or until the node fails, whose error is raised."""
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self.node.run())
                tasks.create_task(self._sweep())
        except* ServerError as group:
            error: BaseException = group
            while isinstance(error, BaseExceptionGroup):
                error = error.exceptions[0]
            raise error from None

    async def stop(self) -> bool:
        """Drain and close. True if every request taken was answered in time."""
        if self._listener is not None:
            await self._listener.close()
        for connection in list(self._connections):
            connection.goaway("the node is shutting down")
        drained = await self.node.drain(self.config.drain_timeout_ms / 1000)
        # One turn of the loop lets the last answers reach their streams.
        await asyncio.sleep(0)
        for connection in list(self._connections):
            connection.close(DrainingError("the node has shut down"))
        if self.peers is not None:
            await self.peers.stop()
        await self.node.close()
        event("stopped", drained=drained)
        return drained

    def _accept(self) -> Connection:
        return Connection(self.node, self._intake, opened=self._opened, closed=self._closed)

    def _opened(self, connection: Connection) -> bool:
        if len(self._connections) >= self.config.limits.connections_max:
            return False
        self._connections.add(connection)
        self.node.connections = len(self._connections)
        return True

    def _closed(self, connection: Connection) -> None:
        self._connections.discard(connection)
        self.node.connections = len(self._connections)

    async def _sweep(self) -> None:
        limits = self.config.limits
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(_SWEEP_S)
            now_s = loop.time()
            for holder in self._intake.stuck(now_s):
                assert isinstance(holder, Connection)
                holder.close(OverloadedError("no memory to wait any longer for the rest of a frame"))
            for connection in list(self._connections):
                stalled_s, closing_s = connection.paused_since_s, connection.closing_since_s
                if closing_s is not None:
                    # What was said last may never be read: a peer cannot keep its connection that way.
                    if now_s - closing_s > limits.write_stall_timeout_ms / 1000:
                        connection.abort("the connection was closed and its last replies were not read")
                elif stalled_s is not None and now_s - stalled_s > limits.write_stall_timeout_ms / 1000:
                    connection.abort(f"no reply was read for {limits.write_stall_timeout_ms} ms")
                elif not connection.handshaken and now_s - connection.opened_s > limits.handshake_timeout_ms / 1000:
                    connection.close(FrameError(f"no handshake within {limits.handshake_timeout_ms} ms"))
                elif stalled_s is None and now_s - connection.last_heard_s > limits.idle_timeout_ms / 1000:
                    event("connection idle", logging.DEBUG, peer=connection.peer)
                    connection.close(SlowReaderError(f"nothing was heard for {limits.idle_timeout_ms} ms"))
