"""One QUIC connection on a socket: connects datagrams, time and streams to an :class:`engine.Engine`.

The carrier takes in everything that one wake-up brings. Then handlers get their data, and what they write leaves in as
few datagrams and system calls as possible. What handlers write at other times leaves in the loop's next turn.

Datagrams of one connection that wait for its turn are kept in order. Who hands them over bounds them.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol, cast

from aioquic.quic import events
from aioquic.quic.packet import QuicErrorCode

from .. import StreamHandler
from ..credentials import PEERCERT, CertificateError, PathSample, TlsError
from ..fair_share import FairShare
from ..tls_context import refusal
from ..unfinished import log_refused
from . import certificates
from .flow.receiving import Receiver
from .flow.recovery import PACKETS_AT_ONCE
from .handshake import alert_of
from .packets import PacketEngine
from .sockets import Address, peer_of
from .stream import CODE_REFUSED, StreamEnd


class Inbox:
    """Runs of datagrams, each from one address: a peer may change its address."""

    __slots__ = ("_count", "_runs")

    def __init__(self) -> None:
        self._runs: deque[tuple[list[bytes], Address]] = deque()
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def put(self, datagrams: list[bytes], address: Address) -> None:
        """Append datagrams. Keeps the list, and may change it."""
        self._count += len(datagrams)
        if self._runs and self._runs[-1][1] == address:
            self._runs[-1][0].extend(datagrams)
        else:
            self._runs.append((datagrams, address))

    def take(self, most: int) -> tuple[list[bytes], Address]:
        """The first datagrams, up to ``most``, all from one address. The inbox must not be empty."""
        datagrams, address = self._runs[0]
        if len(datagrams) <= most:
            self._runs.popleft()
        else:
            self._runs[0] = datagrams[most:], address
            datagrams = datagrams[:most]
        self._count -= len(datagrams)
        return datagrams, address

    def clear(self) -> int:
        """Drop all datagrams and return their number."""
        count, self._count = self._count, 0
        self._runs.clear()
        return count


TICK_S = 0.5
"""Interval at which a connection is checked for silence."""

_log = logging.getLogger("metad")

_REFUSALS = {
    "certificate_required": "it requires a certificate, and we showed none",
    "unknown_ca": "it does not trust the authority of our certificate",
    "certificate_expired": "our certificate has expired, or is not valid yet",
    "unsupported_certificate": "our certificate is for another purpose",
    "bad_certificate": "our certificate is not valid",
    "certificate_unknown": "our certificate is not acceptable",
}


class Owner(Protocol):
    """The endpoint that sends and receives a carrier's datagrams."""

    def send(self, datagrams: list[bytes], address: Address) -> None:
        """Send datagrams to the peer."""

    def issued(self, carrier: Carrier, connection_id: bytes) -> None:
        """The peer may use this id from now on."""

    def retired(self, carrier: Carrier, connection_id: bytes) -> None:
        """The peer may not use this id any longer."""

    def expects(self, carrier: Carrier) -> bool:
        """Whether a connection without streams may still get one."""

    def over(self, carrier: Carrier) -> None:
        """The connection has ended."""

    def local_address(self) -> Address:
        """The address of the socket."""


class Carrier:
    """Drives one connection. ``accept`` makes the handlers of streams that the peer opens, or refuses them by None."""

    def __init__(
        self, engine: PacketEngine, owner: Owner, *, is_client: bool, accept: Callable[[], StreamHandler | None]
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self.engine = engine
        self.inbox = Inbox()  # filled by the endpoint
        self.ends: dict[int, StreamEnd] = {}
        self.reserved = 0  # dials that have not opened their stream yet
        self.connected: asyncio.Future[None] = self._loop.create_future()
        self.connected.add_done_callback(_look_at)  # the dialler may have gone
        self.began_s = self._loop.time()
        self.over = False
        self.failure: Exception | None = None  # why the connection ended, None after a normal end
        self._owner = owner
        self._is_client = is_client
        self._accept = accept
        self._accepting: dict[int, asyncio.Future[None]] = {}
        self._scheduled = False
        self._turns = FairShare.here()
        self._in_turns = False  # has more to send than a burst
        self._timer: asyncio.TimerHandle | None = None
        self._timer_s = 0.0
        self._ticked_s = self._waiting_since_s = self._streamless_since_s = self.began_s
        self._pinged_s = 0.0
        self._pings: dict[int, asyncio.Future[None]] = {}
        self._ping_id = 0
        self._peercert: dict[str, Any] | None = None

    # --- streams -----------------------------------------------------------------------------------------

    def dial(self, handler: StreamHandler) -> StreamEnd:
        """Open a stream."""
        return self._attach(self.engine.open_stream(), handler)

    def acceptance(self, end: StreamEnd) -> asyncio.Future[None]:
        """A future that is done when the peer has accepted the stream."""
        future: asyncio.Future[None] = self._loop.create_future()
        future.add_done_callback(_look_at)
        self._accepting[end.id] = future
        return future

    def _attach(self, stream: Any, handler: StreamHandler) -> StreamEnd:
        settings = self.engine.settings
        end = StreamEnd(self, stream, handler, settings.unsent_bytes_high, settings.unsent_bytes_low)
        self.ends[end.id] = end
        self.schedule()
        end.begin()
        return end

    def detach(self, end: StreamEnd) -> None:
        """Forget a stream that has ended."""
        self.ends.pop(end.id, None)
        self._fail_acceptance(end.id)
        if not self.ends:
            self._streamless_since_s = self._loop.time()
            self.close_if_unused()

    def close_if_unused(self) -> None:
        """Close a connection without streams unless its owner expects more."""
        if not self.ends and not self.reserved and not self.over and not self._owner.expects(self):
            self.close()

    def reset(self, end: StreamEnd, code: int) -> None:
        if not self.over and end.id in self.engine._streams:
            end.stream.sender.reset(code)
            self.stop(end, code)
            self.schedule()

    def stop(self, end: StreamEnd, code: int) -> None:
        if not self.over and not end.receiver.is_finished:
            end.receiver.stop(code)

    def _fail_acceptance(self, stream_id: int) -> None:
        waiter = self._accepting.pop(stream_id, None)
        if waiter is not None and not waiter.done():
            waiter.set_exception(ConnectionRefusedError("the server takes no new connections"))

    # --- datagrams ---------------------------------------------------------------------------------------

    def receive(self, datagrams: list[bytes], address: Address) -> None:
        """Take in datagrams; a call of :meth:`turn` must follow."""
        now = self._loop.time()
        engine = self.engine
        try:
            engine.receive_run(datagrams, address, now)
        except Exception as error:  # noqa: BLE001 - whatever a peer's bytes bring about ends its connection only
            self._broken(error)
            return
        if engine.was_reset:
            self._finish(ConnectionResetError("the server does not know this connection any more: it has restarted"))

    def schedule(self) -> None:
        """Ask for a turn soon."""
        if not self._scheduled and not self.over:
            self._scheduled = True
            self._loop.call_soon(self.turn)

    def turn(self) -> None:
        """Hand over what has arrived, send what is waiting."""
        self._scheduled = False
        if self.over:
            return
        try:
            self._turn()
        except Exception as error:  # noqa: BLE001 - as above
            self._broken(error)

    def _turn(self) -> None:
        engine = self.engine
        self._events()
        if engine.opened:
            self._open_streams()
        touched = engine.touched
        while touched and not self.over:
            stream_id = touched.pop()
            if stream_id in engine.accepted:
                engine.accepted.discard(stream_id)
                waiter = self._accepting.pop(stream_id, None)
                if waiter is not None and not waiter.done():
                    waiter.set_result(None)
            end = self.ends.get(stream_id)
            if end is not None:
                end.deliver()
        if engine.over:
            self._finish(None)
            return
        self.transmit()

    def transmit(self) -> None:
        """Send what may be sent now."""
        engine = self.engine
        now = self._loop.time()
        sent = engine.datagrams_to_send(now)
        if sent:
            self._send(sent)
            if len(sent) >= PACKETS_AT_ONCE and not self._in_turns:
                self._in_turns = True
                self._turns.take(self._send_more)
        for end in tuple(self.ends.values()):
            end.sent()
        if engine._events:
            self._events()
        if engine.over:
            self._finish(None)
            return
        self._arm()

    def _send_more(self) -> bool:
        self._in_turns = False
        self.turn()
        return False  # the rest has asked for a turn of its own

    def _send(self, sent: list[tuple[bytes, Address]]) -> None:
        address = sent[0][1]
        datagrams: list[bytes] = []
        for datagram, to in sent:
            if to != address:
                self._owner.send(datagrams, address)
                datagrams, address = [], to
            datagrams.append(datagram)
        self._owner.send(datagrams, address)

    def _arm(self) -> None:
        """Set the timer. One that fires too early costs less than moving it with each packet."""
        at = self.engine.get_timer()
        if at is None:
            return
        if self._timer is not None:
            if self._timer_s <= at:
                return
            self._timer.cancel()
        self._timer_s = at
        self._timer = self._loop.call_at(at, self._timed)

    def _timed(self) -> None:
        self._timer = None
        if self.over:
            return
        now = self._loop.time()
        try:
            at = self.engine.get_timer()
            if at is not None and at <= now:
                self.engine.handle_timer(now)
        except Exception as error:  # noqa: BLE001 - as above
            self._broken(error)
        self.turn()

    # --- events ------------------------------------------------------------------------------------------

    def _events(self) -> None:
        while (event := self.engine.next_event()) is not None:
            if isinstance(event, events.ConnectionIdIssued):
                self._owner.issued(self, event.connection_id)
            elif isinstance(event, events.ConnectionIdRetired):
                self._owner.retired(self, event.connection_id)
            elif isinstance(event, events.HandshakeCompleted):
                if self._is_client and not event.early_data_accepted:
                    self.engine.send_again_what_was_early(self._loop.time())
                if not self.connected.done():
                    self.connected.set_result(None)
            elif isinstance(event, events.PingAcknowledged):
                waiter = self._pings.pop(event.uid, None)
                if waiter is not None and not waiter.done():
                    waiter.set_result(None)

    def _open_streams(self) -> None:
        opened, self.engine.opened = self.engine.opened, []
        for stream_id in opened:
            stream = self.engine._streams.get(stream_id)
            if stream is None:
                continue
            handler = self._accept()
            if handler is None:
                stream.max_stream_data_local_sent = stream.max_stream_data_local  # the peer has not accepted it
                stream.sender.reset(CODE_REFUSED)
                stream.receiver.stop(CODE_REFUSED)
                cast("Receiver", stream.receiver).discard()
            else:
                self._attach(stream, handler)

    # --- the end -----------------------------------------------------------------------------------------

    def close(self, error_code: int = QuicErrorCode.NO_ERROR, reason: str = "") -> None:
        """Say goodbye once and forget the connection: nothing that the peer still sends is answered."""
        if self.over:
            return
        engine = self.engine
        if engine._network_paths:
            engine.close(error_code=error_code, reason_phrase=reason)
            goodbye = engine.datagrams_to_send(self._loop.time())
            if goodbye:
                self._send(goodbye)
        self._finish(None if error_code == QuicErrorCode.NO_ERROR else ConnectionAbortedError(reason))

    def fail(self, error: Exception) -> None:
        """Give the connection up without a goodbye, which nobody would hear."""
        self._finish(error)

    def _finish(self, error: Exception | None) -> None:
        if self.over:
            return
        self.over = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        error = self.failure = error or self._why()
        if isinstance(error, TlsError) and not self._is_client and not self.engine.handshaken:
            log_refused(f"QUIC handshake refused: {error} ({self.extra_info('peername', None)})")
        self._owner.over(self)
        if not self.connected.done():
            self.connected.set_exception(error or ConnectionResetError("the connection was closed"))
        for waiter in (*self._pings.values(), *self._accepting.values()):
            if not waiter.done():
                waiter.set_exception(error or ConnectionResetError("the connection was closed"))
        self._pings.clear()
        self._accepting.clear()
        for end in tuple(self.ends.values()):
            end.connection_over(error)
        self.engine.let_go()

    def _broken(self, error: Exception) -> None:
        """The engine has failed by a bug, ours or aioquic's. Strangers who can provoke it must not fill the log."""
        level = logging.ERROR if self.engine.handshaken else logging.DEBUG
        _log.log(level, "quic_failed", exc_info=error)
        self._finish(ConnectionAbortedError("the connection failed on this side"))

    def _why(self) -> Exception | None:
        """The exception that the end of the connection means for a stream; None after a normal end."""
        code, words = self.engine.end_reason()
        if code == QuicErrorCode.NO_ERROR:
            return None
        if code == QuicErrorCode.CONNECTION_REFUSED:
            return ConnectionRefusedError("the server takes no new connections")
        alert = alert_of(code)
        if alert is not None:
            if alert.name in _REFUSALS:
                if self.engine.closed_by_peer:
                    return CertificateError(f"the peer refuses us: {_REFUSALS[alert.name]}")
                return refusal(words)
            return TlsError(f"the handshake failed: {words or alert.name.replace('_', ' ')}")
        if words == "Idle timeout":
            return TimeoutError("the peer was silent for too long")
        if code == QuicErrorCode.INVALID_TOKEN:
            return ConnectionAbortedError("the server did not accept the proof of our address")
        return ConnectionAbortedError(f"QUIC error {code:#x}: {words or 'no reason given'}")

    # --- time --------------------------------------------------------------------------------------------

    def tick(self, now: float) -> None:
        """Check for silence. Called every :data:`TICK_S`."""
        engine, settings = self.engine, self.engine.settings
        # this process was late: datagrams that arrived meanwhile are not read yet
        late = now - self._ticked_s > 3 * TICK_S
        self._ticked_s = now
        if not engine.handshaken:
            if now - self.began_s > settings.handshake_timeout_s:
                self._finish(TimeoutError("no QUIC handshake in time"))
            return
        heard_s = engine.heard_s
        if late or not engine.in_flight:
            self._waiting_since_s = now
        elif self.silence_s(now) > max(settings.unanswered_s, 8 * engine.rtt_s):
            self._finish(TimeoutError("the peer does not answer"))
            return
        if self._is_client:
            if now - max(heard_s, self._pinged_s) > settings.keepalive_s:
                self._pinged_s = now
                engine.send_ping(0)
                self.schedule()
        elif not self.ends and now - self._streamless_since_s > settings.handshake_timeout_s:
            self.close(QuicErrorCode.NO_ERROR, "no stream in use")

    def silence_s(self, now: float) -> float:
        """How long the peer has left something unacknowledged; 0.0 if nothing is."""
        return now - max(self.engine.heard_s, self._waiting_since_s) if self.engine.in_flight else 0.0

    def ping(self) -> asyncio.Future[None]:
        """A future that is done when the peer has answered."""
        waiter: asyncio.Future[None] = self._loop.create_future()
        waiter.add_done_callback(_look_at)
        self._ping_id += 1
        self._pings[self._ping_id] = waiter
        self.engine.send_ping(self._ping_id)
        self.schedule()
        return waiter

    def extra_info(self, name: str, default: Any) -> Any:
        """``peername``, ``sockname``, ``peercert``, ``path``, ``transport``, and ``early``: whether data that arrives
        now may be a replay of data sent before."""
        engine = self.engine
        if name == "peername":
            address = engine.get_peer_address()
            return peer_of(address) if address else default
        if name == "sockname":
            return self._owner.local_address()
        if name == "transport":
            return "quic"
        if name == "early":
            return not engine.handshaken
        if name == PEERCERT:
            certificate = engine.verified_certificate
            if certificate is None:
                return default
            if self._peercert is None:
                self._peercert = certificates.peercert(certificate)
            return self._peercert
        if name == "path":
            sample = engine.path_sample()
            return default if sample is None else PathSample(rtt_s=sample[0], sent=sample[1], lost=sample[2])
        return default


def _look_at(waiter: asyncio.Future[None]) -> None:
    if not waiter.cancelled():
        waiter.exception()
