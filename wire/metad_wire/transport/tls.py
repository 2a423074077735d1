"""TLS 1.3 over any other transport of bytes: TCP in production, the in-memory one in tests.

A layer of our own, because that of the event loop bounds no handshakes and cannot replace files. It is one layer of the
seam on top of another: the handler of the stream below, and the stream of the handler above. The handler above hears of
a connection only after the handshake, once both certificates are verified. The cost of a peer until then is bounded
(:data:`HANDSHAKES_MAX`, a timeout, OpenSSL's own limits on messages), and its work is done beside the loop
(handshakes.py). Later data is decrypted a slice at a time (turns.py), so that a peer's megabytes delay its own
requests and not those of others.

An end without TLS's own close message is reported like any other end. The end of a metad connection has only one
effect: unanswered requests stay unanswered. So an attacker gains nothing by cutting a connection off early.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections import deque
from collections.abc import Callable
from typing import Any, Final, cast

from . import Handler, Listener, Stream, StreamHandler, Transport
from .credentials import PEERCERT, UNFIT, WORN, CertificateError, TlsError, TlsFiles, node_behind
from .der import CLIENT_AUTH, SERVER_AUTH
from .fair_share import FairShare, Rank
from .handshakes import Handshakes, Records
from .reload import Reloaded
from .tls_context import check_purpose, client_context, explain, server_context
from .unfinished import log_refused

HANDSHAKES_MAX: Final = 512
"""Accepted connections with a handshake under way. A further one ends the oldest: honest peers take milliseconds."""
RECORDS_MAX: Final = 1 << 24
"""Records sealed under one key before :data:`~metad_wire.transport.credentials.WORN` becomes true. AES-GCM is safe up
to 2**24.5 full records (RFC 8446, 5.5); OpenSSL changes no keys by itself, and Python cannot ask it to."""
_RECORD_BYTES: Final = 16 * 1024  # the most that one record holds, and that one read returns
_SLICE_BYTES: Final = 4 * _RECORD_BYTES  # decrypted and handed up at a time
_SLICE_RECORDS: Final = 256  # the same limit for small records, which cost some microseconds each
_SEALED_BYTES: Final = 256 * 1024  # sealed and handed down at once: megabytes at a time would be in memory three times
# to OpenSSL at once: a record without data costs it up to 0.1 ms, and no other turn comes between
_FED_RECORDS: Final = 64
_DATALESS_MAX: Final = 64
"""Records without data that a peer may send, plus one for each :data:`_DATALESS_EACH` records with data: occasional new
keys and tickets. A peer that sends more keeps us busy for nothing."""
_DATALESS_EACH: Final = 256
_UNSHAKEN_BYTES_MAX: Final = 64 * 1024  # that wait for a step of the handshake; a chain of certificates is shorter
_HANDSHAKE: Final = 0x16  # the type of a connection's first record (RFC 8446, 5.1)
_RECORD_HEAD_BYTES: Final = 5
_HELLO_BYTES_MAX: Final = 16 * 1024  # of that record
_LINGER_S: Final = 1.0  # time for a refused peer to read why, before its unread bytes turn the close into a reset
_HUNG_UP: Final = "the peer hung up in the TLS handshake"


class TlsTransport:
    """Dial and listen with TLS over ``below``. Raises CertificateError if the files cannot be used. Changed files are
    read again by the next handshake.

    ``certificate_required``: a client without a certificate is refused in the handshake. If false, the handler looks at
    ``get_extra_info("peercert")`` and decides by something else.
    """

    def __init__(
        self,
        below: Transport,
        files: TlsFiles,
        *,
        certificate_required: bool = True,
        handshake_timeout_s: float = 5.0,
        handshakes_max: int = HANDSHAKES_MAX,
    ) -> None:
        self._below = below
        self._handshakes_max = handshakes_max
        self._handshake_timeout_s = handshake_timeout_s
        self._dialling = Reloaded(files, client_context)
        self._accepting = (
            Reloaded(files, lambda files: server_context(files, certificate_required=certificate_required))
            if files.certificate
            else None
        )

    async def listen(self, host: str, port: int, factory: Callable[[], StreamHandler]) -> Listener:
        """Accept connections; ``factory`` makes the handler of each connection whose handshake succeeds."""
        contexts = self._accepting
        if contexts is None:
            raise ValueError("listening needs a certificate")
        pending: dict[_TlsEnd, None] = {}
        handshakes = Handshakes()

        def accept() -> _TlsEnd:
            while len(pending) >= min(HANDSHAKES_MAX, self._handshakes_max):
                next(iter(pending)).fail(TimeoutError("too many handshakes under way"))
            return _TlsEnd(contexts.current(), factory, pending, self._handshake_timeout_s, handshakes)

        return await self._below.listen(host, port, accept)

    async def dial(self, host: str, port: int, factory: Callable[[], Handler], timeout_s: float) -> Handler:
        """Connect to a node. Raises TlsError (CertificateError is one) and the errors of the transport below."""
        context = self._dialling.current()
        async with asyncio.timeout(timeout_s):
            end = await self._below.dial(host, port, lambda: _TlsEnd(context, factory, None, timeout_s), timeout_s)
            try:
                await end.ready
            except TlsError:
                raise  # the connection is being closed, once the peer has been told why
            except BaseException:
                end.abort()
                raise
        return cast("Handler", end.handler)


class _TlsEnd:
    """One end: the handler of the stream below, the stream of the handler above. The accepting end gets ``pending``,
    which holds this object during the handshake."""

    def __init__(
        self,
        context: ssl.SSLContext,
        factory: Callable[[], StreamHandler],
        pending: dict[_TlsEnd, None] | None,
        timeout_s: float,
        handshakes: Handshakes | None = None,
    ) -> None:
        loop = asyncio.get_running_loop()
        self._loop = loop
        self._factory = factory
        self._pending = pending
        self._handshakes = handshakes
        self._context = context
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls: ssl.SSLObject  # made with the peer's first bytes: most peers that only connect never send any
        # arrived during a step of the handshake, which has exclusive use of the buffers above
        self._unshaken = bytearray()
        self._unfed: deque[bytes] = deque()  # arrived after the handshake, not yet fed to OpenSSL
        self._unfed_at = 0  # in the first of them
        self._records = Records()  # that OpenSSL has been fed
        self._stepping = False
        self._greeted = False  # the first record has come
        self._answered = False  # the first step of the handshake is done
        self._hung_up = False  # the peer, with bytes in the hands of a step, or waiting for one
        self._below: Stream | None = None
        self.handler: StreamHandler | None = None  # once the handshake is over
        self.ready: asyncio.Future[None] = loop.create_future()
        self.ready.add_done_callback(_look_at)  # the dialler may have gone
        self._reading = True
        self._read_scheduled = False
        self._turns = FairShare.here()
        self._in_turns = False  # has more to read than a slice, and takes turns
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
        if self.handler is not None:
            self._unfed.append(data)
            self._take()
        elif self._handshakes is None:
            self._incoming.write(data)
            self.shake()
        else:
            self._unshaken += data
            if len(self._unshaken) > _UNSHAKEN_BYTES_MAX and self._below is not None:
                self._below.pause_reading()
            if not self._stepping and (self._greeted or self._greets()):
                self._step_beside(self._handshakes)

    def eof_received(self) -> bool | None:
        if self.handler is not None and not self._closing:
            self._reading = True  # what came before the end is delivered before it
            while self._read():
                pass
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
        if self._pending is not None and self.handler is None and self._greeted and not self._closing:
            self._hung_up = self._answered and self._stepping
            if not self._hung_up:
                self._log_end(_HUNG_UP)
        self._closing = True
        self._settled()
        if not self.ready.done():
            self.ready.set_exception(self._failure or exc or ConnectionResetError(_HUNG_UP))
        if self.handler is not None:
            self.handler.connection_lost(self._failure or exc)

    # --- from above: Stream ------------------------------------------------------------------------------

    def write(self, data: bytes) -> None:
        if self._closing or not data:
            return
        self._sealed += 1 + len(data) // _RECORD_BYTES
        view = data if len(data) <= _SEALED_BYTES else memoryview(data)
        for begin in range(0, len(data), _SEALED_BYTES):
            try:
                self._tls.write(view[begin : begin + _SEALED_BYTES])
            except ssl.SSLError as error:
                self.fail(explain(error))
                return
            self._flush()
            if self._closing:
                return

    def pause_reading(self) -> None:
        self._reading = False
        if self._below is not None:
            self._below.pause_reading()

    def resume_reading(self) -> None:
        self._reading = True
        if self._below is not None and not self._closing and not self._read_scheduled:
            self._read_scheduled = True  # data that has already arrived has no event of its own
            self._loop.call_soon(self._read_again)

    def close(self) -> None:
        if self._closing:
            return
        self._closing = True
        if self.handler is not None:
            with contextlib.suppress(ssl.SSLError):  # our close message is written; we do not wait for the peer's
                self._tls.unwrap()
            with contextlib.suppress(RuntimeError):  # uvloop's, if a dial was cancelled: it closes and tells nobody
                self._flush()
        if self._below is not None:
            self._below.close()

    def abort(self) -> None:
        self._closing = True
        if self._below is not None:
            self._below.abort()

    def get_write_buffer_size(self) -> int:
        return 0 if self._below is None else self._below.get_write_buffer_size()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        if name == PEERCERT:
            return self._tls.getpeercert() or default
        if name == UNFIT:
            return self._unfit() or default
        if name == WORN:
            return max(self._sealed, self._opened) >= RECORDS_MAX
        return default if self._below is None else self._below.get_extra_info(name, default)

    def _unfit(self) -> str:
        """Why an accepted peer's certificate is refused. OpenSSL has already let it in, so no alert can tell the
        peer."""
        certificate = self._tls.getpeercert(binary_form=True)
        try:
            if certificate is not None and self._pending is not None:
                check_purpose(certificate, CLIENT_AUTH)
        except CertificateError as error:
            return str(error)
        return ""

    # --- inside ------------------------------------------------------------------------------------------

    def fail(self, error: Exception) -> None:
        """Give the connection up. The alert that OpenSSL wants to send is sent, and has a moment to arrive."""
        if self._closing:
            return
        self._closing = True
        self._failure = error
        self._settled()
        if self._pending is not None and self.handler is None:
            self._log_end(f"TLS handshake refused: {error}")
        if not self.ready.done():
            self.ready.set_exception(error)
        if self._below is None:
            return
        if not self._stepping:
            self._flush()
        if isinstance(error, TimeoutError):
            self._below.abort()
        elif self._pending is None:
            self._below.close()
        else:
            self._below.resume_reading()  # to drop what arrives: see _LINGER_S
            self._timer = self._loop.call_later(_LINGER_S, self._below.close)

    def _log_end(self, text: str) -> None:
        """Log how a handshake has ended that was accepted and did not succeed."""
        peer = self._below.get_extra_info("peername") if self._below is not None else None
        log_refused(f"{text} ({peer})")

    def _settled(self) -> None:
        """The handshake has ended, with success or without."""
        self._timer.cancel()
        if self._pending is not None:
            self._pending.pop(self, None)

    def shake(self) -> None:
        """Do the next step of the handshake with the bytes that have arrived."""
        if not self._closing and self.handler is None:
            self._stepped(self._step())

    def _greets(self) -> bool:
        """Whether the whole first record has arrived: until then a stranger gets neither OpenSSL's memory nor a
        thread."""
        hello = self._unshaken
        if hello[0] != _HANDSHAKE:
            self.fail(TlsError("the peer does not speak TLS"))
            return False
        if len(hello) < _RECORD_HEAD_BYTES:
            return False
        length = int.from_bytes(hello[3:_RECORD_HEAD_BYTES], "big")
        if length > _HELLO_BYTES_MAX:
            self.fail(TlsError("the peer does not speak TLS"))
            return False
        self._greeted = len(hello) >= _RECORD_HEAD_BYTES + length
        return self._greeted

    def _step_beside(self, handshakes: Handshakes) -> None:
        self._incoming.write(self._unshaken)
        self._unshaken.clear()
        self._stepping = True
        handshakes.take(self._step, self._stepped)

    def _step(self) -> bool | TlsError:
        """Whether the handshake is over, or why it has failed. May run beside the loop: touches only OpenSSL's part of
        this object, which nothing else touches meanwhile."""
        if self._closing and not self._hung_up:
            return False
        try:
            if not hasattr(self, "_tls"):
                accepting = self._pending is not None
                self._tls = self._context.wrap_bio(self._incoming, self._outgoing, server_side=accepting)
            self._tls.do_handshake()
            if self._pending is None:
                check_purpose(self._tls.getpeercert(binary_form=True) or b"", SERVER_AUTH)
                node_behind(self._tls.getpeercert())
        except ssl.SSLWantReadError:
            return False
        except ssl.SSLError as error:
            return explain(error)
        except TlsError as error:
            return error
        return True

    def _stepped(self, outcome: bool | TlsError) -> None:
        self._stepping = False
        self._answered = True
        if self._hung_up:
            self._last_words(outcome)
        if self._closing:
            return
        if isinstance(outcome, TlsError):
            self.fail(outcome)
            return
        self._flush()
        if outcome:
            self._begin()
            return
        if self._handshakes is not None and self._unshaken:
            self._step_beside(self._handshakes)
        if self._below is not None:
            self._below.resume_reading()

    def _last_words(self, outcome: bool | TlsError) -> None:
        """The peer has hung up. What it sent before may say why: many hang up right behind their alert."""
        if outcome is False and self._unshaken and self._handshakes is not None:
            self._step_beside(self._handshakes)
        elif isinstance(outcome, TlsError):
            self._log_end(f"TLS handshake refused: {outcome}")
        elif not outcome:
            self._log_end(_HUNG_UP)

    def _begin(self) -> None:
        """The handshake is over: the handler takes over."""
        self._settled()
        self.handler = self._factory()
        try:
            self.handler.connection_made(self)
        except BaseException:
            self.abort()  # as the transport below does: a handler that fails loses its connection
            raise
        if not self.ready.done():
            self.ready.set_result(None)
        if came := self._incoming.read() + self._unshaken:  # arrived with the end of the handshake
            self._unfed.append(came)
            self._unshaken.clear()
        self._read_again()

    def _take(self) -> None:
        """Read what has arrived: a little at once, more in turns with others."""
        if self._in_turns:
            return
        at_once = len(self._unfed[0]) <= _SLICE_BYTES and self._turns.has_left(Rank.UNCUT)
        if not at_once or self._read():
            self._take_turns()

    def _take_turns(self) -> None:
        if self._below is not None:
            self._below.pause_reading()
            self._in_turns = True
            peer = self._below.get_extra_info("peername")
            self._turns.take(self._slice, str(peer[0]) if isinstance(peer, tuple) else "", Rank.UNCUT)

    def _slice(self) -> bool:
        try:
            more = self._read()
        except BaseException:
            self._in_turns = False
            self.abort()  # as above
            raise
        if not more:
            self._in_turns = False
            if self._reading and not self._closing and self._below is not None:
                self._below.resume_reading()
        return more

    def _read(self) -> bool:
        """Decrypt a slice and hand it up; returns whether there is more."""
        handler = self.handler
        if handler is None or not self._reading or self._closing:
            return False
        records, more, failure = self._decrypt()
        self._opened += len(records)
        self._turns.spend(max(len(records) / _SLICE_RECORDS, sum(map(len, records)) / _SLICE_BYTES), Rank.UNCUT)
        if records:
            handler.data_received(records[0] if len(records) == 1 else b"".join(records))
        if failure is not None:
            self.fail(failure)
        elif more is None and not self._closing:
            handler.eof_received()
            self.close()
        if self._outgoing.pending and not self._closing:
            self._flush()  # a new key is answered with a new key
        return bool(more) and self._reading and not self._closing

    def _decrypt(self) -> tuple[list[bytes], bool | None, TlsError | None]:
        """The next records, whether there may be more (None: the peer has said goodbye), and the error in what
        follows."""
        records: list[bytes] = []
        size = 0
        read = self._tls.read
        fed = not self._incoming.pending and self._feed()
        while size < _SLICE_BYTES and len(records) < _SLICE_RECORDS:
            try:
                record = read(_RECORD_BYTES)
            except ssl.SSLWantReadError:
                if not fed and self._feed():  # what was left was the beginning of a record
                    fed = True
                    continue
                return records, bool(self._unfed), self._dataless(len(records))
            except ssl.SSLZeroReturnError:
                return records, None, None
            except ssl.SSLError as error:
                return records, False, explain(error)
            if not record:
                return records, None, None
            records.append(record)
            size += len(record)
        return records, True, None

    def _feed(self) -> bool:
        """Feed OpenSSL the next records; returns whether there were any."""
        if not self._unfed:
            return False
        data, begin = self._unfed[0], self._unfed_at
        end = self._records.advance(data, begin, _FED_RECORDS)
        if end == len(data):
            self._unfed.popleft()
            self._unfed_at = 0
        else:
            self._unfed_at = end
        self._incoming.write(data if end - begin == len(data) else memoryview(data)[begin:end])
        return True

    def _dataless(self, opened: int) -> TlsError | None:
        """The error if too many records held no data; the newest ``opened`` records are not counted yet."""
        opened += self._opened
        if self._records.whole - opened <= _DATALESS_MAX + opened // _DATALESS_EACH:
            return None
        return TlsError("the peer sends too many records without data, such as new keys")

    def _read_again(self) -> None:
        self._read_scheduled = False
        if self._in_turns or self._closing or not self._reading:
            return
        try:
            more = self._read()
        except BaseException:
            self.abort()  # as above
            raise
        if more:
            self._take_turns()
        elif self._below is not None and self._reading and not self._closing:
            self._below.resume_reading()

    def _flush(self) -> None:
        data = self._outgoing.read()
        if data and self._below is not None:
            self._below.write(data)


def _look_at(ready: asyncio.Future[None]) -> None:
    if not ready.cancelled():
        ready.exception()
