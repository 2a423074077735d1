"""A node that waits for its peer, and a test in the place of that peer: it says what it likes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from metad.config import load_config
from metad.server.network import Network
from metad.server.serve import Server
from metad_wire.connection import peer as p
from metad_wire.connection.frame import Frame, FrameDecoder, FrameType, encode_frame
from metad_wire.connection.peer import Channel, PeerHello
from metad_wire.transport import Stream
from sim.memory import MemoryTransport
from waiting import until

TIMEOUT_S = 120.0


@asynccontextmanager
async def node(network: MemoryTransport, name: str = "a", **settings: Any) -> AsyncIterator[Server]:
    """One of the founders ``a`` and ``b``."""
    overrides = {
        "node_id": name,
        "listen": f"{name}:2",
        "storage": {"engine": "memory"},
        "cluster": {"seeds": {"a": "a:1", "b": "b:1"}},
    }
    server = await Server.start(load_config(None, {**overrides, **settings}), Network.only(network))
    running = asyncio.create_task(server.run())
    try:
        yield server
    finally:
        await server.stop()
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


class Stranger:
    """A connection to a node's peer listener."""

    def __init__(self) -> None:
        self.frames: list[Frame] = []
        self.last: Frame | None = None
        self.lost = False
        self._decoder = FrameDecoder(p.PEER_FRAME_BYTES_MAX)
        self._stream: Stream | None = None

    @classmethod
    async def dial(cls, network: MemoryTransport, where: str = "a") -> Stranger:
        return await network.dial(where, 1, cls, TIMEOUT_S)

    def connection_made(self, stream: Stream) -> None:
        self._stream = stream

    def data_received(self, data: bytes) -> None:
        self._decoder.feed(data)
        while (frame := self._decoder.next()) is not None:
            self.frames.append(frame)
            self.last = frame

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost = True

    def eof_received(self) -> bool | None:
        return None

    def pause_writing(self) -> None:
        pass

    def resume_writing(self) -> None:
        pass

    def send(self, type_: FrameType, payload: bytes = b"", method: int = 0, request_id: int = 0) -> None:
        assert self._stream is not None
        self._stream.write(encode_frame(type_, payload, request_id, method))

    def raft(self, payload: bytes) -> None:
        """A payload of Raft messages."""
        self.send(FrameType.PEER, payload, Channel.RAFT)

    async def greet(self, server: Server, name: str = "b", **fields: Any) -> Frame:
        """Say who this is, and wait for the answer."""
        said = {"cluster_id": server.node.identity.cluster_id, "store_id": f"store of {name}", "target": ""}
        hello = PeerHello(p.PEER_MAGIC, node_id=name, **{"version": p.PEER_VERSION, **said, **fields})
        self.send(FrameType.HELLO, p.encode(hello))
        return await self.next()

    async def next(self) -> Frame:
        """What the node says next."""
        await until(lambda: self.frames or self.lost)
        return self.frames.pop(0)

    async def refused(self) -> str:
        """Why the node has closed the connection."""
        await until(lambda: self.lost)
        frame = self.last
        assert frame is not None
        assert frame.type == FrameType.ERROR
        return str(p.decode_error(frame.payload).message)
