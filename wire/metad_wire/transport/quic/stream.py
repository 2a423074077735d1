"""One end of a stream of a QUIC connection, as the seam's :class:`metad_wire.transport.Stream`."""

from __future__ import annotations

import asyncio
from typing import Any, Final, Protocol, cast

from aioquic.quic.stream import QuicStream

from .. import StreamHandler
from .flow.receiving import Receiver
from .flow.sending import Sender

CHUNK_BYTES: Final = 256 * 1024
"""The most bytes that a handler is given at once."""
CODE_CLOSED: Final = 0
"""Code of STOP_SENDING: this end was closed, and reads no more."""
CODE_ABORTED: Final = 1
CODE_REFUSED: Final = 2
"""Error code: the server accepts no new streams."""


class Owner(Protocol):
    """The carrier of the stream."""

    def schedule(self) -> None:
        """Ask for a turn: there is something to send."""

    def detach(self, end: StreamEnd) -> None:
        """Forget a stream that has ended."""

    def reset(self, end: StreamEnd, code: int) -> None:
        """Cut off both directions of a stream."""

    def stop(self, end: StreamEnd, code: int) -> None:
        """Tell the peer that nobody reads its data any more."""

    def extra_info(self, name: str, default: Any) -> Any:
        """Information about the connection, by name."""


class StreamEnd:
    """Connects one QUIC stream with its handler."""

    def __init__(self, owner: Owner, stream: QuicStream, handler: StreamHandler, high: int, low: int) -> None:
        self._loop = asyncio.get_running_loop()
        self._owner = owner
        self._handler = handler
        self.stream = stream
        self.id = stream.stream_id or 0
        self.receiver = cast("Receiver", stream.receiver)
        self._sender = cast("Sender", stream.sender)
        self._high, self._low = high, low
        self._reading = True
        self._paused = False  # the handler was asked to pause
        self._closing = False
        self._ended = False
        self._over: tuple[Exception | None] | None = None  # set when the connection has ended: its error or None

    # --- Stream ------------------------------------------------------------------------------------------

    def write(self, data: bytes) -> None:
        if self._closing or not data:
            return
        sender = self._sender
        if self._over is not None or sender._reset_error_code is not None:
            if self._reading:
                self._loop.call_soon(self._hang_up)  # data that the peer sent before it went is delivered first
            else:
                self._lose(ConnectionResetError("the peer has gone"))
            return
        sender.write(data)
        self._owner.schedule()
        if not self._paused and sender.unsent_bytes > self._high:
            self._paused = True
            self._handler.pause_writing()

    def pause_reading(self) -> None:
        self._reading = False

    def resume_reading(self) -> None:
        if not self._reading:
            self._reading = True
            self._loop.call_soon(self._resumed)

    def close(self) -> None:
        if self._closing:
            return
        self._closing = True
        if self._over is not None or self._sender._reset_error_code is not None:
            self._lose(self._over[0] if self._over is not None else None)
            return
        self.receiver.discard()
        if self.receiver._final_size is None:
            self._owner.stop(self, CODE_CLOSED)
        self._sender.write(b"", end_stream=True)
        self._owner.schedule()

    def abort(self) -> None:
        if self._ended:
            return
        self._closing = True
        self.receiver.discard()
        self._owner.reset(self, CODE_ABORTED)
        self._lose(None)

    def get_write_buffer_size(self) -> int:
        return self._sender.held_bytes

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self._owner.extra_info(name, default)

    # --- called by the carrier ---------------------------------------------------------------------------

    def begin(self) -> None:
        """Connect stream and handler."""
        try:
            self._handler.connection_made(self)
        except Exception as error:  # noqa: BLE001 - reported; a handler that fails loses its connection
            self._failed(error)

    def deliver(self) -> None:
        """Hand received data to the handler."""
        receiver = self.receiver
        while receiver.ready and self._reading and not self._closing:
            try:
                self._handler.data_received(receiver.take(CHUNK_BYTES))
            except Exception as error:  # noqa: BLE001 - reported; a handler that fails loses its connection
                self._failed(error)
        if self._closing:
            return
        if receiver.reset_with is not None:
            self._lose(ConnectionResetError("the peer has gone"))
        elif self._reading and receiver.finished:
            self._end_reached()
        elif self._reading and self._over is not None:
            self._lose(self._over[0] or ConnectionResetError("the peer has gone"))

    def sent(self) -> None:
        """Note that datagrams were sent or acknowledged: a paused handler may resume."""
        sender = self._sender
        if self._paused and not self._ended and sender.unsent_bytes <= self._low:
            self._paused = False
            if not self._closing:
                self._handler.resume_writing()
        if self._closing and sender.is_finished:
            self._lose(None)

    def connection_over(self, error: Exception | None) -> None:
        """The connection has ended. Data that came before may still be read."""
        self._over = (error,)
        if self._closing or (error is not None and not self.receiver.finished):
            self._lose(error)
        else:
            self.deliver()

    # --- inside ------------------------------------------------------------------------------------------

    def _resumed(self) -> None:
        self.deliver()
        self._owner.schedule()  # to grant credit

    def _hang_up(self) -> None:
        self.deliver()
        if not self._closing:
            self._lose(ConnectionResetError("the peer has gone"))

    def _end_reached(self) -> None:
        try:
            self._handler.eof_received()
        except Exception as error:  # noqa: BLE001 - reported; a handler that fails loses its connection
            self._failed(error)
        self.close()

    def _failed(self, error: Exception) -> None:
        self.abort()
        self._loop.call_exception_handler(
            {"message": "a stream's handler failed", "exception": error, "transport": self, "protocol": self._handler}
        )

    def _lose(self, error: Exception | None) -> None:
        if not self._ended:
            self._ended = self._closing = True
            self.receiver.discard()
            self._loop.call_soon(self._lost, error)

    def _lost(self, error: Exception | None) -> None:
        self._owner.detach(self)
        self._handler.connection_lost(error)
