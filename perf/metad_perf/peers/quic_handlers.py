"""The work of both QUIC stacks in ``metad-perf quic``: metad's own frames and messages, without a node.

These are handlers of the transport seam (metad_wire.transport), so they run unchanged on metad's transport, and on
aioquic's own protocol through a few lines (quic_stock).
"""

from __future__ import annotations

import asyncio
from typing import Any

from metad_wire import messages as m
from metad_wire.connection.frame import FRAME_BYTES_MAX, FrameType
from metad_wire.connection.session import ClientSession, ServerSession
from metad_wire.methods import KV_PUT, encode

VALUE = bytes(range(200))
_REQUEST = int(FrameType.REQUEST)
_RESPONSE = int(FrameType.RESPONSE)


class _Base:
    stream: Any

    def connection_made(self, stream: Any) -> None:
        """Part of the seam; does nothing."""
        self.stream = stream

    def eof_received(self) -> bool | None:
        return None

    def pause_writing(self) -> None:
        """Part of the seam; does nothing."""

    def resume_writing(self) -> None:
        """Part of the seam; does nothing."""

    def connection_lost(self, exc: Exception | None) -> None:
        """Part of the seam; does nothing."""


class PutServer(_Base):
    """Answers each put like a node, but stores nothing."""

    def __init__(self) -> None:
        self._session = ServerSession()
        self._reply = m.KvPutReply([m.Revision("data-0", 1)], [], [1])

    def data_received(self, data: bytes) -> None:
        """Decode, answer, one write."""
        session = self._session
        session.receive_data(data)
        while (frame := session.next_event()) is not None:
            if frame.type == _REQUEST:
                KV_PUT.decode_request(frame.payload)
                session.respond(frame.request_id, encode(self._reply))
            elif frame.type == FrameType.HELLO:
                session.welcome(m.Welcome(1, 0, "bench", "bench", 4 << 20, FRAME_BYTES_MAX, 0))
        self.stream.write(session.data_to_send())


class PutClient(_Base):
    """Keeps ``in_flight`` puts in flight; ``answered`` counts."""

    def __init__(self, in_flight: int) -> None:
        self._session = ClientSession()
        self._in_flight = in_flight
        body = m.KvPut([m.KvPutItem("bench", "/some/key/0001", VALUE)])
        self._payload = KV_PUT.encode_request(body, 5_000, m.Identity(1 << 60, 1, 1))
        self.answered = 0
        self.lost: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, stream: Any) -> None:
        """Greet."""
        super().connection_made(stream)
        stream.write(self._session.data_to_send())

    def data_received(self, data: bytes) -> None:
        """A new put for each answer, one write."""
        session = self._session
        session.receive_data(data)
        more = 0
        while (frame := session.next_event()) is not None:
            if frame.type == _RESPONSE:
                more += 1
            elif frame.type == FrameType.WELCOME:
                more = self._in_flight
        for _ in range(more):
            session.request(KV_PUT.code, self._payload)
        self.answered += more
        self.stream.write(session.data_to_send())

    def connection_lost(self, exc: Exception | None) -> None:
        """Ends a wait for the connection."""
        if not self.lost.done():
            self.lost.set_exception(exc or ConnectionResetError("closed"))
            self.lost.exception()


class BulkServer(_Base):
    """Counts the received bytes, and answers once they are as many as the first 8 bytes announce."""

    def __init__(self) -> None:
        self._head = b""
        self._received = 0
        self._expected = 0

    def data_received(self, data: bytes) -> None:
        """Count."""
        if not self._expected:
            self._head += data[:8]
            self._expected = int.from_bytes(self._head[:8], "big")
        self._received += len(data)
        if self._received >= self._expected:
            self.stream.write(b"complete")


class BulkClient(_Base):
    """Sends ``total`` bytes as fast as allowed; ``complete`` is done when the server has them."""

    def __init__(self, total: int) -> None:
        self._left = total
        self._total = total
        self._may_write = True
        self._chunk = bytes(256 * 1024)
        self.complete: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, stream: Any) -> None:
        """Begin."""
        super().connection_made(stream)
        stream.write(self._total.to_bytes(8, "big"))
        self._left -= 8
        self._fill()

    def _fill(self) -> None:
        while self._may_write and self._left > 0:
            chunk = self._chunk[: self._left]
            self._left -= len(chunk)
            self.stream.write(chunk)

    def pause_writing(self) -> None:
        """Stop sending for now."""
        self._may_write = False

    def resume_writing(self) -> None:
        """Go on."""
        self._may_write = True
        self._fill()

    def data_received(self, data: bytes) -> None:
        """The server has received everything."""
        if not self.complete.done():
            self.complete.set_result(None)

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection ended before the server had everything."""
        if not self.complete.done():
            self.complete.set_exception(exc or ConnectionResetError("closed"))
            self.complete.exception()
