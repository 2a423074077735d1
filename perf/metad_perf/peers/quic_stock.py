"""Unmodified aioquic: its ``serve`` and ``connect``, one long stream, handlers of the transport seam on top.

The comparison uses aioquic's own way: a datagram per wake-up, its pacing and congestion control, its sockets. One long
stream rather than one per request, which costs it twice as much.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable
from typing import Any

from aioquic.asyncio.client import connect
from aioquic.asyncio.protocol import QuicConnectionProtocol
from aioquic.asyncio.server import QuicServer, serve
from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.events import QuicEvent, StreamDataReceived

from metad_wire.transport.credentials import TlsFiles

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
    server: QuicServer = await serve(
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
