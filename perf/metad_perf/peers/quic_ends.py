"""``python -m metad_perf.peers.quic_ends``: one end of ``metad-perf quic``, in a process of its own.

``server SIDE WORK CERT KEY CA`` prints its port and serves until stdin ends. ``client SIDE WORK CERT KEY CA PORT
SERVER_PID AMOUNT`` prints one JSON object with its measurements. SIDE is ``ours`` or ``stock``, WORK ``put`` or
``bulk``.

*stock* is unmodified aioquic: its ``serve`` and ``connect``, one long stream, handlers of the transport seam on top. It
runs in aioquic's own way: a datagram per wake-up, its pacing and congestion control, its sockets. It has one long
stream and not one per request, which costs it twice as much.

The work of both stacks is metad's own frames and messages, without a node. They are handlers of the transport seam
(metad_wire.transport), so they run unchanged on metad's transport, and on aioquic's own protocol through a few lines.
"""

from __future__ import annotations

import asyncio
import json
import os
import ssl
import sys
import time
from collections.abc import Callable
from typing import Any

from aioquic.asyncio import server as stock
from aioquic.asyncio.client import connect
from aioquic.asyncio.protocol import QuicConnectionProtocol
from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.events import QuicEvent, StreamDataReceived

from metad_wire import messages as m
from metad_wire.connection.frame import FRAME_BYTES_MAX, FrameType
from metad_wire.connection.session import ClientSession, ServerSession
from metad_wire.methods import KV_PUT, encode
from metad_wire.transport import split_endpoint
from metad_wire.transport.credentials import TlsFiles
from metad_wire.transport.quic import QuicTransport
from metad_wire.transport.tcp import install_uvloop

from ..spawn import cpu_s

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


ALPN = "metad/1"
_UNSENT_HIGH, _UNSENT_LOW = 1 << 20, 1 << 18


class StockStream(QuicConnectionProtocol):
    """A connection of aioquic and the one stream on it, as the seam's stream."""

    def __init__(self, quic: Any, stream_handler: Any = None, *, factory: Callable[[], Any]) -> None:
        super().__init__(quic)
        self._handler: Any = None
        self._factory = factory
        self._stream_id = -1
        self._paused = False
        self._receiving = False

    def open(self) -> Any:
        """Open the client's end."""
        self._stream_id = self._quic.get_next_available_stream_id()
        self._handler = self._factory()
        self._handler.connection_made(self)
        return self._handler

    def quic_event_received(self, event: QuicEvent) -> None:
        """Take an event of aioquic."""
        if isinstance(event, StreamDataReceived):
            if self._handler is None:
                self._stream_id = event.stream_id
                self._handler = self._factory()
                self._handler.connection_made(self)
            self._receiving = True
            self._handler.data_received(event.data)
            self._receiving = False

    def datagram_received(self, data: bytes | str, addr: Any) -> None:
        """Take a datagram: aioquic handles it and transmits; then the sender may have drained."""
        super().datagram_received(data, addr)
        if self._paused and self._unsent() <= _UNSENT_LOW:
            self._paused = False
            self._handler.resume_writing()

    def write(self, data: bytes) -> None:
        """Send data. aioquic transmits by itself after it received something, and must otherwise be asked."""
        if not data:
            return
        self._quic.send_stream_data(self._stream_id, data)
        if not self._receiving:
            self.transmit()
        if not self._paused and self._unsent() > _UNSENT_HIGH:
            self._paused = True
            self._handler.pause_writing()

    def _unsent(self) -> int:
        sender = self._quic._streams[self._stream_id].sender
        return int(sender._buffer_stop - sender.highest_offset)


async def listen(files: TlsFiles, host: str, port: int, factory: Callable[[], Any]) -> tuple[str, int]:
    """Serve until the process ends."""
    configuration = QuicConfiguration(is_client=False, alpn_protocols=[ALPN])
    configuration.load_cert_chain(files.certificate, files.key)
    server: stock.QuicServer = await stock.serve(
        host,
        port,
        configuration=configuration,
        create_protocol=lambda quic, **_: StockStream(quic, factory=factory),
    )
    assert server._transport is not None
    address = server._transport.get_extra_info("sockname")
    return str(address[0]), int(address[1])


def dial(files: TlsFiles, host: str, port: int, factory: Callable[[], Any]) -> Any:
    """A context manager of a connection; call its :meth:`StockStream.open`."""
    configuration = QuicConfiguration(is_client=True, alpn_protocols=[ALPN], verify_mode=ssl.CERT_NONE)
    configuration.load_verify_locations(files.ca)
    return connect(
        host,
        port,
        configuration=configuration,
        create_protocol=lambda quic, **_: StockStream(quic, factory=factory),
    )


HOST = "127.0.0.1"
IN_FLIGHT = 256
_WARM_UP_S = 0.5


async def serve(side: str, work: str, files: TlsFiles) -> None:
    """Serve until stdin ends."""
    factory: Any = PutServer if work == "put" else BulkServer
    if side == "ours":
        listener = await QuicTransport(files, certificate_required=False).listen(HOST, 0, factory)
        port = split_endpoint(listener.endpoint)[1]
    else:
        port = (await listen(files, HOST, 0, factory))[1]
    print(port, flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)


async def put(side: str, files: TlsFiles, port: int, server: int, seconds: float) -> dict[str, float]:
    """Keep ``IN_FLIGHT`` puts in flight for ``seconds``."""

    async def measure(handler: PutClient) -> dict[str, float]:
        await asyncio.wait((handler.lost,), timeout=_WARM_UP_S)
        used_s, own_s, answered, began = cpu_s([server]), cpu_s([os.getpid()]), handler.answered, time.perf_counter()
        await asyncio.wait((handler.lost,), timeout=seconds)
        elapsed_s, requests = time.perf_counter() - began, handler.answered - answered
        if handler.lost.done():
            handler.lost.result()
        return {
            "requests_per_s": requests / elapsed_s,
            "server_cpu_us": (cpu_s([server]) - used_s) / requests * 1e6,
            "client_cpu_us": (cpu_s([os.getpid()]) - own_s) / requests * 1e6,
        }

    if side == "ours":
        return await measure(await QuicTransport(files).dial(HOST, port, lambda: PutClient(IN_FLIGHT), 5.0))
    async with dial(files, HOST, port, lambda: PutClient(IN_FLIGHT)) as connection:
        return await measure(connection.open())


async def bulk(side: str, files: TlsFiles, port: int, server: int, total: float) -> dict[str, float]:
    """Send ``total`` bytes, one way, on one stream."""

    async def measure(handler: BulkClient, began: float, used_s: float) -> dict[str, float]:
        await handler.complete
        return {
            "mb_per_s": total / (time.perf_counter() - began) / 1e6,
            "server_cpu_us_per_kb": (cpu_s([server]) - used_s) / total * 1e9,
        }

    began, used_s = time.perf_counter(), cpu_s([server])
    if side == "ours":
        handler = await QuicTransport(files).dial(HOST, port, lambda: BulkClient(int(total)), 5.0)
        return await measure(handler, began, used_s)
    async with dial(files, HOST, port, lambda: BulkClient(int(total))) as connection:
        return await measure(connection.open(), began, used_s)


def main() -> None:
    """Entry point."""
    end, side, work, certificate, key, ca = sys.argv[1:7]
    install_uvloop()
    if end == "server":
        asyncio.run(serve(side, work, TlsFiles(certificate=certificate, key=key, ca=ca)))
        return
    port, server, amount = int(sys.argv[7]), int(sys.argv[8]), float(sys.argv[9])
    files = TlsFiles(ca=ca)
    measured = asyncio.run((put if work == "put" else bulk)(side, files, port, server, amount))
    print(json.dumps(measured), flush=True)
    sys.stdout.flush()
    os._exit(0)  # unfinished work does not matter


if __name__ == "__main__":
    main()
