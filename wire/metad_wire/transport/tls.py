"""TLS 1.3 over any other transport of bytes: TCP in production, the in-memory one in tests.

A layer of the seam on top of another: to the stream below it is the handler, to the handler above it is the stream.
Nothing above hears of a connection before its handshake is over and both certificates were verified; what the peer may
cost until then is bounded (:data:`HANDSHAKES_MAX`, a timeout, OpenSSL's own limits on messages).

An end that comes without TLS's own goodbye is reported like any other. Nothing follows from an end of a metad
connection but that what is unanswered stays unanswered, so whoever cuts one off early gains nothing by it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import ssl
from collections.abc import Callable
from typing import Any, Final, cast

from . import Handler, Listener, Stream, StreamHandler, Transport
from .credentials import PEERCERT, WORN, TlsError, TlsFiles, node_behind
from .reload import Reloaded
from .tls_context import client_context, explain, server_context

HANDSHAKES_MAX: Final = 512
"""Accepted connections whose handshake is under way. One more ends the oldest: honest peers take milliseconds."""
RECORDS_MAX: Final = 1 << 24
"""Sealed under one key, after which :data:`~metad_wire.transport.credentials.WORN` is so. AES-GCM is safe up to 2**24.5
full records (RFC 8446, 5.5); OpenSSL changes no keys by itself, and Python cannot ask it to."""
_RECORD_BYTES: Final = 16 * 1024  # the most that one record holds, and one read returns
_RECORDS_AT_ONCE: Final = 15  # with the rest of one that was incomplete, under the 256 KiB that one delivery may have
_TURN_S: Final = 0.001  # of each turn of the loop, for handshakes; at most a step more
_LINGER_S: Final = 1.0  # for a refused peer to read why, before its unread bytes turn the close into a reset
_REFUSALS_SAID: Final = 10  # a second
_log = logging.getLogger("metad")


class TlsTransport:
    """Dial and listen with TLS over ``below``. Raises CertificateError where the files cannot be used. Files that
    change are read anew by the handshakes that follow.

    ``certificate_required``: a client without one is refused in the handshake; otherwise whoever accepts it looks at
    ``get_extra_info("peercert")`` and decides by something else.
    """

    def __init__(
        self,
        below: Transport,
        files: TlsFiles,
        *,
        certificate_required: bool = True,
        handshake_timeout_s: float = 5.0,
    ) -> None:
        self._below = below
        self._handshake_timeout_s = handshake_timeout_s
        self._dialling = Reloaded(files, client_context)
        self._accepting = (
            Reloaded(files, lambda files: server_context(files, certificate_required=certificate_required))
            if files.certificate
            else None
        )

    async def listen(self, host: str, port: int, factory: Callable[[], StreamHandler]) -> Listener:
        """Accept connections; ``factory`` makes the handler of each whose handshake succeeds."""
        contexts = self._accepting
        if contexts is None:
            raise ValueError("listening needs a certificate")
        pending: dict[_TlsEnd, None] = {}
        turns = _Turns()

        def accept() -> _TlsEnd:
            while len(pending) >= HANDSHAKES_MAX:
                next(iter(pending)).fail(TimeoutError("too many handshakes under way"))
            return _TlsEnd(contexts.current(), factory, pending, self._handshake_timeout_s, turns)

        return await self._below.listen(host, port, accept)

    async def dial(self, host: str, port: int, factory: Callable[[], Handler], timeout_s: float) -> Handler:
        """Connect to a node. Raises TlsError, of which CertificateError is one, besides what the transport below
        raises."""
        context = self._dialling.current()
        async with asyncio.timeout(timeout_s):
            end = await self._below.dial(host, port, lambda: _TlsEnd(context, factory, None, timeout_s), timeout_s)
            try:
                await end.ready
            except BaseException:
                end.abort()
                raise
        return cast("Handler", end.handler)


class _TlsEnd:
    """One end: the handler of the stream below, the stream of the handler above. ``pending`` is given at the end that
    accepts, and holds it while the handshake is under way."""

    def __init__(
        self,
        context: ssl.SSLContext,
        factory: Callable[[], StreamHandler],
        pending: dict[_TlsEnd, None] | None,
        timeout_s: float,
        turns: _Turns | None = None,
    ) -> None:
        loop = asyncio.get_running_loop()
        self._loop = loop
        self._factory = factory
        self._pending = pending
        self._turns = turns
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side=pending is not None)
        self._below: Stream | None = None
        self.handler: StreamHandler | None = None  # once the handshake is over
        self.ready: asyncio.Future[None] = loop.create_future()
        self.ready.add_done_callback(_look_at)  # who dialled may have gone
        self._reading = True
        self._read_scheduled = False
        self._closing = False
        self._failure: Exception | None = None
        self._sealed = self._opened = 0  # records
        self._timer = loop.call_later(timeout_s, self.fail, TimeoutError("no TLS handshake in time"))
        if pending is not None:
            pending[self] = None

    # --- from below: StreamHandler -----------------------------------------------------------------------

    def connection_made(self, stream: Stream) -> None:
        self._below = stream
        if self._closing:
            stream.abort()
        elif self._pending is None:
            self.shake()  # the client speaks first

    def data_received(self, data: bytes) -> None:
        if self._closing:
            return
        self._incoming.write(data)
        if self.handler is not None:
            self._read()
        elif self._turns is not None:
            self._turns.take(self)
        else:
            self.shake()

    def eof_received(self) -> bool | None:
        if self.handler is not None and not self._closing:
            self._reading = True  # what came before the end is delivered before it
            self._read()
            if not self._closing:
                self.handler.eof_received()
                self.close()
        return None

    def pause_writing(self) -> None:
        if self.handler is not None:
            self.handler.pause_writing()

    def resume_writing(self) -> None:
        if self.handler is not None:
            self.handler.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        self._closing = True
        self._settled()
        if not self.ready.done():
            self.ready.set_exception(self._failure or exc or ConnectionResetError("the peer hung up in the handshake"))
        if self.handler is not None:
            self.handler.connection_lost(self._failure or exc)

    # --- from above: Stream ------------------------------------------------------------------------------

    def write(self, data: bytes) -> None:
        if self._closing or not data:
            return
        try:
            self._tls.write(data)
        except ssl.SSLError as error:
            self.fail(explain(error))
            return
        self._sealed += 1 + len(data) // _RECORD_BYTES
        self._flush()

    def pause_reading(self) -> None:
        self._reading = False
        if self._below is not None:
            self._below.pause_reading()

    def resume_reading(self) -> None:
        self._reading = True
        if self._below is not None and not self._closing:
            if not self._read_scheduled:  # what is decrypted already has no event of its own
                self._read_scheduled = True
                self._loop.call_soon(self._read_again)
            self._below.resume_reading()

    def close(self) -> None:
        if self._closing:
            return
        self._closing = True
        if self.handler is not None:
            with contextlib.suppress(ssl.SSLError):  # our goodbye is written; the peer's is not waited for
                self._tls.unwrap()
            self._flush()
        if self._below is not None:
            self._below.close()

    def abort(self) -> None:
        self._closing = True
        if self._below is not None:
            self._below.abort()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        if name == PEERCERT:
            return self._tls.getpeercert() or default
        if name == WORN:
            return max(self._sealed, self._opened) >= RECORDS_MAX
        return default if self._below is None else self._below.get_extra_info(name, default)

    # --- inside ------------------------------------------------------------------------------------------

    def fail(self, error: Exception) -> None:
        """Give the connection up. What OpenSSL wants said is sent, and has a moment to arrive."""
        if self._closing:
            return
        self._closing = True
        self._failure = error
        self._settled()
        if self._pending is not None and self.handler is None:
            peer = self._below.get_extra_info("peername") if self._below is not None else None
            _refusals.say(self._loop.time(), f"TLS handshake refused: {error} ({peer})")
        if not self.ready.done():
            self.ready.set_exception(error)
        if self._below is None:
            return
        self._flush()
        if isinstance(error, TimeoutError):
            self._below.abort()
        elif self._pending is None:
            self._below.close()
        else:
            self._below.resume_reading()  # to drop it: see _LINGER_S
            self._timer = self._loop.call_later(_LINGER_S, self._below.close)

    def _settled(self) -> None:
        """The handshake is over, one way or the other."""
        self._timer.cancel()
        if self._pending is not None:
            self._pending.pop(self, None)

    def shake(self) -> None:
        """The next step of the handshake, with what has come."""
        if self._closing or self.handler is not None:
            return
        try:
            self._tls.do_handshake()
            if self._pending is None:
                node_behind(self._tls.getpeercert())
        except ssl.SSLWantReadError:
            self._flush()
            return
        except ssl.SSLError as error:
            self.fail(explain(error))
            return
        except TlsError as error:
            self.fail(error)
            return
        self._settled()
        self._flush()
        self.handler = self._factory()
        self.handler.connection_made(self)
        if not self.ready.done():
            self.ready.set_result(None)
        self._read()  # what came with the end of the handshake

    def _read(self) -> None:
        """Hand up what can be decrypted, in pieces as large as those of a socket."""
        handler = self.handler
        while handler is not None and self._reading and not self._closing:
            records, over, failure = self._decrypt()
            self._opened += len(records)
            if records:
                handler.data_received(records[0] if len(records) == 1 else b"".join(records))
            if failure is not None:
                self.fail(failure)
            elif over and not self._closing:
                handler.eof_received()
                self.close()
            elif len(records) < _RECORDS_AT_ONCE:
                break
        if self._outgoing.pending and not self._closing:
            self._flush()  # a new key is answered with one

    def _decrypt(self) -> tuple[list[bytes], bool, TlsError | None]:
        """The next records, whether the peer has said goodbye behind them, and what is wrong with what follows."""
        records: list[bytes] = []
        try:
            while len(records) < _RECORDS_AT_ONCE:
                record = self._tls.read(_RECORD_BYTES)
                if not record:
                    return records, True, None
                records.append(record)
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLZeroReturnError:
            return records, True, None
        except ssl.SSLError as error:
            return records, False, explain(error)
        return records, False, None

    def _read_again(self) -> None:
        self._read_scheduled = False
        try:
            self._read()
        except BaseException:
            self.abort()  # as the transport below does: a handler that fails loses its connection
            raise

    def _flush(self) -> None:
        data = self._outgoing.read()
        if data and self._below is not None:
            self._below.write(data)


class _Turns:
    """Steps of handshakes, a few in each turn of the loop: each costs as much CPU as a hundred small requests, and a
    flood of strangers must not hold up those who are in."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._waiting: dict[_TlsEnd, None] = {}
        self._scheduled = False

    def take(self, end: _TlsEnd) -> None:
        """Let an end go on when its turn comes."""
        self._waiting[end] = None
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._run)

    def _run(self) -> None:
        until_s = self._loop.time() + _TURN_S
        try:
            while self._waiting:
                end = next(iter(self._waiting))
                del self._waiting[end]
                try:
                    end.shake()
                except BaseException:
                    end.abort()  # as the transport below does: a handler that fails loses its connection
                    raise
                if self._loop.time() >= until_s:
                    break
        finally:
            self._scheduled = bool(self._waiting)
            if self._waiting:
                self._loop.call_soon(self._run)


class _Refusals:
    """Tells of refused handshakes, and only how many there were where they come in floods: strangers cause them."""

    def __init__(self) -> None:
        self._until_s = 0.0
        self._said = self._unsaid = 0

    def say(self, now_s: float, text: str) -> None:
        if now_s >= self._until_s:
            if self._unsaid:
                _log.warning("%d more TLS handshakes were refused", self._unsaid)
            self._until_s, self._said, self._unsaid = now_s + 1.0, 0, 0
        if self._said < _REFUSALS_SAID:
            self._said += 1
            _log.info(text)
        else:
            self._unsaid += 1


_refusals = _Refusals()


def _look_at(ready: asyncio.Future[None]) -> None:
    if not ready.cancelled():
        ready.exception()
