"""One client's connection: received chunks become requests, answers become one write per chunk or turn.

What has come is cut into frames at once. Requests begin at once too, in slices, while this turn of the loop has some
left. A peer that sends more than :data:`_SLICE_BYTES` at a time, or at the same moment as many others, takes turns with
them. Its requests wait in an :class:`.Inbox` meanwhile, while it is read on. What keeps somebody alive waits for
nothing (:data:`metad_wire.methods.AHEAD`); nor do cancels, pings, credits.

This module bounds what a peer can make the server hold: an unfinished frame by the frame limit, requests by the credit
window (the session closes a peer that exceeds it), and replies by beginning no further requests while the peer does not
read, then reading no more of them, and closing the connection if that lasts. :mod:`.budgets` bounds all connections
together. No task runs per request.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from functools import partial
from math import inf
from typing import Any

from metad_wire import messages as m
from metad_wire.connection.frame import Frame, FrameType
from metad_wire.connection.session import ServerSession, State
from metad_wire.errors import (
    CancelledError,
    DrainingError,
    FrameError,
    MetadError,
    OverloadedError,
    SlowReaderError,
    TooEarlyError,
    UnauthenticatedError,
    UnknownOutcomeError,
)
from metad_wire.methods import AHEAD, METHODS, READS, WATCH_OPEN
from metad_wire.policy.fair_queue import is_small
from metad_wire.policy.fair_room import FairRoom
from metad_wire.program.build import build
from metad_wire.transport import Stream
from metad_wire.transport.credentials import PEERCERT, WORN, Principal
from metad_wire.transport.fair_share import FairShare, Rank

from .. import log_events
from ..logs import event
from ..node.node import Node
from ..node.replicas.driver import Work
from .access import Access, Trust
from .budgets import SMALL_BYTES, Inbox, ReceiveBudget, SendBudget
from .jwt_keys import Jwt
from .watching import Watching

_REQUEST = int(FrameType.REQUEST)  # comparing with the enum's member takes several times as long

# Replies are handed to the stream in pieces of this size even within one chunk of requests, so that the stream's own
# back-pressure takes effect before the next request begins.
_FLUSH_BYTES = 256 * 1024
# Requests begin in slices, because everything else in the loop waits for one. A slice ends when it has taken this long.
# Bytes, frames and rows that reads look at also bound it, because no time passes in a simulation.
_SLICE_S = 0.0005
_SLICE_BYTES = 16 * 1024
_SLICE_FRAMES = 128
_SLICE_SPENT = 256
# Cutting takes a microsecond for a frame. So many, or as many as a slice of time allows, are cut in one go. It counts
# as small work: a connection that comes when a turn of the loop has none left is read no more until its own turn.
_CUT_FRAMES = 512
_SMALL_BYTES = 2 * 1024  # what waits of a connection goes before that of others if it is less, and scans nothing
# While the peer does not read its replies it is still heard, for as long as this little waits in either direction.
_UNREAD_BYTES = 64 * 1024
# Replies to writes already taken may still come while the peer does not read; over this many bytes it is cut off.
_STALLED_BYTES_MAX = 64 * 1024 * 1024
_WAITS = frozenset(code for code, method in METHODS.items() if "wait_ms" in method.body.__struct_fields__)
"""Methods whose requests may wait for as long as they say: they are not slow."""
_NAME_CHARACTERS_MAX = 64  # of a client's own name, in the log


class Connection:
    """Implements :class:`metad_wire.transport.StreamHandler`."""

    def __init__(
        self,
        node: Node,
        intake: ReceiveBudget,
        unbegun: FairRoom,
        unsent: SendBudget,
        access: Access,
        *,
        opened: Callable[[Connection], None],
        welcomed: Callable[[Connection], bool],
        closed: Callable[[Connection], None],
    ) -> None:
        self._node = node
        self._intake = intake
        self._unsent = unsent
        self._access = access
        self.limits = node.config.limits
        self._opened = opened
        self._welcomed = welcomed
        self._closed = closed
        self._loop = asyncio.get_running_loop()
        self._session = ServerSession()
        self._stream: Stream | None = None
        self._works: dict[int, Work] = {}  # by request id, for CANCEL
        self._watching: Watching | None = None
        self._inbox = Inbox(unbegun)
        self._is_broken = False  # the peer has broken the protocol, or was not admitted
        self._uncut = False  # frames that have come are not cut yet
        self._reading = True
        self._unflushed_bytes = 0
        self._flush_scheduled = False
        self._processing = False
        self._stalled_bytes = 0
        self._waiting_intake = False
        self._waiting_unsent = False
        self._turns = FairShare.here()
        self._waits = False  # more requests, for another slice
        self._rank = Rank.SMALL  # of its turn
        self._heavy = False  # whether its last slice was
        self._early = False  # arriving data may be a replay
        self._administers = False
        self._ends_here = False  # this node ends the connection, or has asked the client to
        self._is_quic = False  # then the end of the stream says nothing of the peer
        self.host = ""
        self.principal: Principal | None = None
        """See :class:`metad.control.host.Source`, also for the host and the holder."""
        self.holder = ""
        self.held_bytes = 0  # of unfinished frames; set by the intake, as is the next
        self.finished_bytes = 0
        self.paused_since_s: float | None = None
        self.closing_since_s: float | None = None
        self.last_heard_s = self.opened_s = self._loop.time()
        self.peer = ""
        self.trust = Trust()
        self.certificate_ends_s = inf
        """Unix time from which on the certificate of the peer does not count any more."""
        self.jwt: Jwt | None = None
        """By which the client was admitted, or that it has shown beside its certificate."""
        self.client = ""
        """The holder of the certificate or token and the client's own name, for the log; empty before the welcome."""

    @property
    def in_turns(self) -> bool:
        """Whether what has come waits for its turn."""
        return self._waits or self._uncut

    # --- StreamHandler -----------------------------------------------------------------------------------

    def connection_made(self, stream: Stream) -> None:
        self._stream = stream
        peername = stream.get_extra_info("peername")
        self.peer = str(peername)
        if isinstance(peername, tuple):
            self.host = self.holder = self._inbox.holder = str(peername[0])
        self._is_quic = stream.get_extra_info("transport") == "quic"
        self._early = bool(stream.get_extra_info("early"))
        self._opened(self)
        self._node.brokers.came(self)

    def data_received(self, data: bytes) -> None:
        self.last_heard_s = self._loop.time()
        self._session.receive_data(data)
        if self.in_turns or self._inbox or not self._may_begin:
            self._take_in()
        else:
            self._process()

    def eof_received(self) -> bool | None:
        return None

    def pause_writing(self) -> None:
        self.paused_since_s = self._loop.time()
        self._stalled_bytes = 0
        self._steer_reading()

    def resume_writing(self) -> None:
        self.paused_since_s = None
        self._unsent.update(self, self._loop.time())
        self._go_on()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stream = None
        closed = exc is None or isinstance(exc, ConnectionResetError | BrokenPipeError)
        self._node.brokers.ended(self, by_peer=closed and not self._ends_here and not self._is_quic)
        self._session.close()
        for work in self._works.values():
            self._node.requests.cancel(work)
        self._works.clear()
        self._inbox.clear()
        self._node.requests.gone(self)
        if self._watching is not None:
            self._watching.forget()
        self._intake.update(self, 0, self.last_heard_s, progress=False)
        self._unsent.forget(self)
        self._closed(self)

    # --- requests ----------------------------------------------------------------------------------------

    def _process(self) -> None:
        """Begin the requests that have come, and take turns with other connections for the rest."""
        if self._waits:
            return
        # Connections that each ask for a little would otherwise hold up everybody in one turn of the loop, if they are
        # many.
        rank = self._ranked()
        if rank is Rank.HEAVY or not self._turns.has_left(rank) or self._slice():
            self._take_in()
            self._wait_for_turn()
        elif not self._may_begin:
            self._take_in()

    def _wait_for_turn(self) -> None:
        if not self._waits:
            self._waits = True
            self._rank = self._ranked()
            self._turns.take(self._next_slice, self.holder, self._rank)

    def _ranked(self) -> Rank:
        if self._heavy:
            return Rank.HEAVY
        waiting = self._inbox.held_bytes + self._session.decoder.buffered_bytes
        small = waiting <= _SMALL_BYTES and not self._inbox.scans
        return Rank.SMALL if small else Rank.PLAIN

    def _next_slice(self) -> bool:
        if (rank := self._ranked()) > self._rank and self._stream is not None:
            self._waits = False
            self._wait_for_turn()
            return False
        if rank is Rank.HEAVY and (wait_s := self._node.requests.precedence.heavy_wait_s):
            self._turns.rest(wait_s)
            return True
        self._waits = self._slice()
        if not self._waits:
            self._steer_reading()
        return self._waits

    def _cut_later(self) -> None:
        if not self._uncut:
            self._uncut = True
            self._turns.take(self._cut, self.holder, Rank.UNCUT)
            self._steer_reading()

    def _cut(self) -> bool:
        self._uncut = False
        self._take_in()
        if self._inbox:
            self._wait_for_turn()
        return False  # what is left has asked for a turn of its own

    def _take_in(self) -> None:
        """Cut what has come into frames. What goes ahead is done at once, and requests wait in the inbox."""
        if self._stream is None or self._is_broken:
            return
        if not self._turns.has_left(Rank.UNCUT):
            self._cut_later()
            return
        session, inbox, arrived_s = self._session, self._inbox, self.last_heard_s
        now = self._node.requests.precedence.now
        begun_s = now()
        until_s = begun_s + _SLICE_S
        count = size = 0
        ahead = 0.0
        self._processing = True
        try:
            while (frame := session.next_event()) is not None:
                count += 1
                size += frame.length
                if frame.type != _REQUEST or frame.method in AHEAD:
                    self._handle(frame, arrived_s)
                    ahead += max(1 / _SLICE_FRAMES, frame.length / _SLICE_BYTES)
                elif not inbox.add(frame, arrived_s, self._turn_away):
                    self._turn_away(frame)
                if count >= _CUT_FRAMES or ahead >= 1.0 or now() >= until_s:
                    self._cut_later()
                    break
            self._turns.spend(max(count / _CUT_FRAMES + ahead, (now() - begun_s) / _SLICE_S), Rank.UNCUT)
        except MetadError as error:
            self._broken(error)
            return
        finally:
            self._processing = False
        self.finished_bytes += size
        if not self._uncut:
            self._count_unfinished(progress=count > 0)
        self._flush()
        self._steer_reading()

    def _turn_away(self, frame: Frame) -> None:
        """Refuse a request that finds no room to wait for its turn."""
        error = self._node.requests.turn_away(frame.method, frame.payload, self)
        self._session.fail(frame.request_id, error)
        self._unflushed_bytes += 64
        self._flush_soon()

    def _broken(self, error: MetadError) -> None:
        self._is_broken = True
        event(log_events.CLIENT_REFUSED, peer=self.peer, client=self.client, error=error.name, detail=error.message)
        self.close()

    def _count_unfinished(self, *, progress: bool) -> None:
        held_bytes = self._session.decoder.buffered_bytes
        if held_bytes or self.held_bytes:
            self._intake.update(self, held_bytes, self.last_heard_s, progress=progress)

    def _slice(self) -> bool:
        """Begin requests for a while; returns whether there may be more."""
        if self._stream is None or self._is_broken:
            return False
        self._processing = True
        session, inbox, arrived_s = self._session, self._inbox, self.last_heard_s
        count = size = cut = 0
        more = False
        requests = self._node.requests
        spent_before = requests.spent
        spent_max = spent_before + _SLICE_SPENT
        now = requests.precedence.now
        begun_s, rank = now(), self._ranked()
        until_s = begun_s + _SLICE_S
        try:
            while self._may_begin:
                if inbox.held_bytes:
                    frame, came_s = inbox.pop()
                    self._handle(frame, came_s)
                else:
                    following = session.next_event()
                    if following is None:
                        break
                    frame = following
                    cut += frame.length
                    self._handle(frame, arrived_s)
                count += 1
                if self._unflushed_bytes >= _FLUSH_BYTES:
                    self._flush()
                size += frame.length
                if size >= _SLICE_BYTES or count >= _SLICE_FRAMES or requests.spent >= spent_max or now() >= until_s:
                    more = True
                    break
        except MetadError as error:
            self._broken(error)
            return False
        finally:
            self._processing = False
        if count:
            spent, ended_s = requests.spent - spent_before, now()
            self._heavy = not is_small(spent // count, size // count)
            if self._heavy:
                requests.precedence.heavy_done(begun_s)
            parts = count / _SLICE_FRAMES, size / _SLICE_BYTES, spent / _SLICE_SPENT, (ended_s - begun_s) / _SLICE_S
            self._turns.spend(max(parts), rank)
        self.finished_bytes += cut
        if not more:
            self._count_unfinished(progress=cut > 0)
        self._flush()
        return more

    @property
    def _may_begin(self) -> bool:
        """Whether the peer reads its replies."""
        return self.paused_since_s is None and not self._waiting_unsent

    def _go_on(self) -> None:
        """The peer reads again, or others have made room."""
        self._steer_reading()
        self._loop.call_soon(self._process)
        if self._watching is not None:
            self._watching.wake()

    def _steer_reading(self) -> None:
        if self._stream is None:
            return
        reading = not self._waiting_intake and not self._uncut
        if not self._may_begin:
            reading &= self._inbox.held_bytes <= _UNREAD_BYTES and self._stalled_bytes <= _UNREAD_BYTES
        if reading is not self._reading:
            self._reading = reading
            if reading:
                self._stream.resume_reading()
            else:
                self._stream.pause_reading()

    def _handle(self, frame: Frame, arrived_s: float) -> None:
        if frame.type == _REQUEST:
            request_id = frame.request_id
            if self._early and self._too_early(frame.method):
                self._session.fail(request_id, TooEarlyError())
                return
            if frame.method == WATCH_OPEN.code:
                if self._watching is None:
                    self._watching = Watching(
                        self._node.watches, self, lambda: self.limits.connection_watch_streams_max
                    )
                self._watching.open(request_id, frame.payload)
                return
            work = self._node.requests.submit(
                frame.method,
                frame.payload,
                partial(self._answer, request_id, frame.method, frame.length, arrived_s),
                administers=self._administers,
                waited_s=self._loop.time() - arrived_s,
                source=self,
            )
            if work is not None and request_id in self._session.unanswered:
                self._works[request_id] = work
        elif frame.type == FrameType.CANCEL:
            if (begun := self._works.get(frame.request_id)) is not None:
                self._node.requests.cancel(begun)
            elif self._inbox.discard(frame.request_id):
                why = "the request was cancelled before it was begun; nothing was done"
                self._session.fail(frame.request_id, CancelledError(why))
                self._unflushed_bytes += 64
            elif self._watching is not None:
                self._watching.cancel(frame.request_id)
        elif frame.type == FrameType.CREDIT:
            if self._watching is not None:
                try:
                    self._watching.grant(frame.request_id, frame.payload)
                except FrameError as error:
                    self._session.fail_connection(error)
                    raise
        elif frame.type == FrameType.HELLO:
            self._welcome()

    def _too_early(self, method: int) -> bool:
        """Whether to refuse a request because the peer has not proven yet that it sent it just now."""
        self._early = self._stream is not None and bool(self._stream.get_extra_info("early"))
        return self._early and method not in READS

    def _welcome(self) -> None:
        session, limits = self._session, self.limits
        assert self._stream is not None
        assert session.hello is not None
        try:
            now_s = self._node.environment.wall_ms() / 1000
            principal, self.jwt = self._access.admit(self._stream, session.hello.credentials, now_s)
            self.principal, self.trust.admitted_s = principal, now_s
            self._administers = self._access.may_administer(principal)
            if certificate := self._stream.get_extra_info(PEERCERT):
                self.certificate_ends_s = _ends_s(certificate)
                self.trust.issuer, self.trust.authorities = certificate.get("issuer", ()), self._access.authorities
            if self._node.permissions.denies(principal):
                raise UnauthenticatedError(f"{principal} is denied everything")
            if principal is not None:
                self.holder = self._inbox.holder = principal.uri
                if not self._administers:  # who changes quotas must not be locked out by one
                    self._node.permissions.quotas.may_connect(self.holder)
            if not self._welcomed(self):
                raise _too_many()
            named = session.hello.client_name[:_NAME_CHARACTERS_MAX]
            self.client = " ".join(filter(None, [str(principal or ""), named and repr(named)]))
            event(log_events.CLIENT_ADMITTED, peer=self.peer, client=self.client)
        except MetadError as error:
            session.fail_connection(error)
            raise
        session.welcome(
            m.Welcome(
                session.version,
                session.features,
                self._node.identity.node_id,
                self._node.identity.cluster_id,
                limits.connection_window_bytes,
                limits.frame_bytes_max,
                limits.idle_timeout_ms,
                build(),
            )
        )
        if self._node.requests.draining:
            self._ends_here = True
            session.goaway(0, "draining")

    def _answer(self, request_id: int, method: int, size: int, arrived_s: float, result: bytes | MetadError) -> None:
        took_s = self._loop.time() - arrived_s
        self._node.requests.meters.answered(method, size, took_s, result)
        session = self._session
        work = self._works.pop(request_id, None)
        if 0 < self.limits.slow_ms < 1000 * took_s and method not in _WAITS:
            self._node.requests.note_slow(method, size, took_s, result, self.client or self.peer, work)
        if session.state is State.CLOSED:
            return
        if isinstance(result, bytes) and len(result) > SMALL_BYTES:
            result = self._fitting(result, was_write=work is not None)
        if isinstance(result, MetadError):
            session.fail(request_id, result)
            self._unflushed_bytes += 64
        else:
            session.respond(request_id, result)
            self._unflushed_bytes += len(result)
        self._flush_soon()

    def _flush_soon(self) -> None:
        if not self._processing and not self._flush_scheduled:
            self._flush_scheduled = True
            self._loop.call_soon(self._flush)

    def _fitting(self, reply: bytes, *, was_write: bool) -> bytes | MetadError:
        """A long reply, or the error in its place if too many replies are unread."""
        if self._unsent.take(self, len(reply), self._loop.time()):
            return reply
        why = "too many bytes of replies are unread on this node"
        if was_write:
            return UnknownOutcomeError(f"the request was done, but {why}", retry_after_ms=50, retry_jitter_ms=50)
        return OverloadedError(why, retry_after_ms=50, retry_jitter_ms=50)

    def _flush(self) -> None:
        self._flush_scheduled = False
        self._unflushed_bytes = 0
        data = self._session.data_to_send()
        if not data or self._stream is None:
            return
        stalled = not self._may_begin  # what makes the peer stall does not count as unread by a stalled one
        self._stream.write(data)
        self._unsent.update(self, self._loop.time())
        if stalled:
            self._stalled_bytes += len(data)
            if self._stalled_bytes > _STALLED_BYTES_MAX:
                self.abort(f"{self._stalled_bytes} bytes of replies are unread")

    # --- watches -----------------------------------------------------------------------------------------

    def room(self) -> int:
        """How many bytes of events may be sent now."""
        if self._stream is None or not self._may_begin:
            return 0
        return _FLUSH_BYTES if self._unsent.has_room(self._loop.time()) else SMALL_BYTES

    def wait_for_room(self) -> None:
        """Wake the watches once there may be more."""
        if self._stream is not None and self._may_begin:  # otherwise the peer wakes them
            self._unsent.wait(self)

    def begin_stream(self, request_id: int, payload: bytes) -> None:
        """Answer a request, which begins a stream."""
        if self._session.state is not State.CLOSED:
            self._session.begin_stream(request_id, payload)
            self._unflushed_bytes += len(payload)
            self._flush_soon()

    def refuse_stream(self, request_id: int, error: MetadError) -> None:
        """Answer it with an error."""
        self._answer(request_id, WATCH_OPEN.code, 0, self._loop.time(), error)

    def send_event(self, request_id: int, payload: bytes, *, last: bool) -> None:
        """Send an event of a stream."""
        if self._session.state is State.CLOSED:
            return
        self._session.event(request_id, payload, last=last)
        self._unflushed_bytes += len(payload)
        if self._unflushed_bytes >= _FLUSH_BYTES:
            self._flush()
        else:
            self._flush_soon()

    # --- called by the server ----------------------------------------------------------------------------

    @property
    def handshaken(self) -> bool:
        """Whether the client has been welcomed."""
        return self._session.state is not State.OPENING

    @property
    def certified(self) -> bool:
        """Whether the transport has verified a certificate of the peer."""
        return self._stream is not None and bool(self._stream.get_extra_info(PEERCERT))

    @property
    def credentials(self) -> bytes:
        """The token that the client has shown; empty if it has shown none."""
        return b"" if self._session.hello is None else self._session.hello.credentials

    @property
    def worn(self) -> bool:
        """Whether the client should open a new connection, because this one's keys are used up."""
        return self._session.state is State.OPEN and bool(self._stream and self._stream.get_extra_info(WORN))

    def goaway(self, reason: str) -> None:
        """Ask the client to go elsewhere."""
        if self._session.state is State.OPEN:
            self._ends_here = True
            self._session.goaway(0, reason)
            if self._watching is not None:
                self._watching.end(DrainingError(reason))
            self._flush()

    def unsent_bytes(self) -> int:
        """The bytes of replies in the stream and in this object."""
        return self._unflushed_bytes + (0 if self._stream is None else self._stream.get_write_buffer_size())

    def wait_unsent(self, waiting: bool) -> None:
        """Begin no request until the peer has taken more of its replies, or go on."""
        self._waiting_unsent = waiting
        if waiting:
            self._stalled_bytes = 0
            self._steer_reading()
        else:
            self._go_on()

    def wait_intake(self, waiting: bool) -> None:
        """Stop reading until others have finished their frames, or go on."""
        self._waiting_intake = waiting
        self._steer_reading()

    def refuse_intake(self) -> None:
        """Close, because others wait for the memory."""
        error = OverloadedError("no memory left to wait for the rest of a frame")
        event(log_events.CLIENT_REFUSED, peer=self.peer, client=self.client, error=error.name, detail=error.message)
        self.close(error)

    def close(self, error: MetadError | None = None) -> None:
        """Send the answers that are ready, then close."""
        self._ends_here = True
        if error is not None:
            self._session.fail_connection(error)
        if self._session.state is State.CLOSED:
            self._inbox.clear()
        if isinstance(error, OverloadedError):
            self._node.brokers.excuse()  # others may be turned away, too
        self._flush()
        if self._stream is not None:
            if self.closing_since_s is None:
                self.closing_since_s = self._loop.time()
            self._stream.close()

    def abort(self, reason: str) -> None:
        """Cut off a peer that does not read; no message can reach it."""
        self._ends_here = True
        event(log_events.CLIENT_ABORTED, peer=self.peer, client=self.client, error=SlowReaderError.name, detail=reason)
        if self._stream is not None:
            self._stream.abort()


def _ends_s(certificate: Any) -> float:
    ends = certificate and certificate.get("notAfter")
    return ssl.cert_time_to_seconds(ends) if ends else inf


def _too_many() -> OverloadedError:
    return OverloadedError("too many connections", retry_after_ms=1_000, retry_jitter_ms=1_000)
