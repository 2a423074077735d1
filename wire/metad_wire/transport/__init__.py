"""The seam to a byte stream: only the subset of asyncio's transport and protocol that metad uses.

A driver implements :class:`StreamHandler` and is given a :class:`Stream`; a :class:`Transport` connects the two.
asyncio's own TCP transports are Streams as they are, so the seam costs nothing per chunk. One contract suite
(tests/contract) checks every implementation against this page:

- chunks arrive in order and whole, none after ``connection_lost``, none while reading is paused for long
  (chunks that were already on their way may still come);
- ``pause_writing`` is called when unsent bytes pass the high-water mark, ``resume_writing`` when they have
  drained; the data of a handler that still writes is buffered, never dropped;
- ``close`` delivers the data written before it, ``abort`` need not; data written after either is dropped;
- ``connection_lost`` is called exactly once, and last; a handler that raises loses its connection;
- after ``connection_lost`` a stream ignores pause, resume, close and abort, but it must not be written to
  (uvloop raises).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, TypeVar


class Stream(Protocol):
    """One end of a connection."""

    def write(self, data: bytes) -> None:
        """Send, or buffer; never blocks."""

    def pause_reading(self) -> None:
        """Deliver no more chunks until :meth:`resume_reading`."""

    def resume_reading(self) -> None:
        """Deliver chunks again."""

    def close(self) -> None:
        """Send what is buffered, then close."""

    def abort(self) -> None:
        """Close at once."""

    def get_write_buffer_size(self) -> int:
        """Bytes written that are still held here. Must not be called after ``connection_lost``."""

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """``peername`` and the like, as asyncio names them."""


class StreamHandler(Protocol):
    """The handler of a connection, which a driver implements."""

    def connection_made(self, stream: Any) -> None:
        """The connection is up; ``stream`` is its :class:`Stream`."""

    def data_received(self, data: bytes) -> None:
        """The next chunk."""

    def eof_received(self) -> bool | None:
        """The peer has sent its last byte, and the stream closes. The result must be false: half-open connections are
        not part of the seam, because asyncio, uvloop and QUIC do not agree on them."""

    def pause_writing(self) -> None:
        """Unsent bytes are over the high-water mark."""

    def resume_writing(self) -> None:
        """Unsent bytes have drained."""

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is over."""


Handler = TypeVar("Handler", bound=StreamHandler)


class Listener(Protocol):
    """A listening endpoint."""

    @property
    def endpoint(self) -> str:
        """host:port that clients can dial."""

    async def close(self) -> None:
        """Accept no more; connections that are up stay up."""


class Transport(Protocol):
    """A way to listen and to dial."""

    async def listen(self, host: str, port: int, factory: Callable[[], StreamHandler]) -> Listener:
        """Accept connections; ``factory`` makes the handler of each. Port 0 picks a free one."""

    async def dial(self, host: str, port: int, factory: Callable[[], Handler], timeout_s: float) -> Handler:
        """Connect. Raises :class:`OSError` (TimeoutError included) if that fails."""


def split_endpoint(endpoint: str) -> tuple[str, int]:
    """``host:port`` or ``[v6]:port`` -> (host, port). Raises ValueError that says what is wrong."""
    host, separator, port = endpoint.rpartition(":")
    if not separator or not host:
        raise ValueError(f"not HOST:PORT: {endpoint!r}")
    if not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise ValueError(f"not a port: {port!r} in {endpoint!r}")
    return host.removeprefix("[").removesuffix("]"), int(port)


def join_endpoint(host: str, port: int) -> str:
    """The inverse of :func:`split_endpoint`."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
