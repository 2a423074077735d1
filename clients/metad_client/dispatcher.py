"""Every request between its caller and a connection: waiting for room, in flight, or about to be tried again.

The way of a call: :meth:`Dispatcher.submit` -> (waiting) -> :class:`Connection` -> answered, or failed and then
a retry, until its deadline. All of it happens in callbacks: a request costs no task, and no timer of its own
(one sweep finds passed deadlines, one timer the next retry).
"""

from __future__ import annotations

import asyncio
import math
import random
from collections import OrderedDict
from typing import Any

import msgspec

from metad_wire.frame import FRAME_BYTES_MAX, HEADER_BYTES
from metad_wire.messages import Identity, Request
from metad_wire.methods import Method, encode

from .call import Call
from .connection import Connection
from .errors import ClosedError, FrameError, InvalidRequestError, MetadError, OverloadedError
from .identity import IdentitySource
from .options import Options
from .outcomes import reply_of, worth_a_retry
from .retry import RetryQueue, deadline_error, lost, verdict

_CLOSED = "the client is closed; nothing was done"

# Array header, deadline, identity: 1 + 9 + 1 + 4 * 9 bytes at most.
ENVELOPE_BYTES_MAX = 48
DEADLINE_MS_MAX = 0xFFFF_FFFF  # the field is a u32
# Deadlines are kept to within this: a sweep looks at every call, so sweeps must not follow each other at once.
SWEEP_INTERVAL_MIN_S = 0.01


class Dispatcher:
    """The calls of one client. ``connection`` is the one that takes new requests, None while there is none."""

    def __init__(self, options: Options, rng: random.Random) -> None:
        self._loop = asyncio.get_running_loop()
        self._options = options
        self._rng = rng
        self._identities = IdentitySource(rng.getrandbits(64))
        self.connection: Connection | None = None
        self._connections: set[Connection] = set()  # those with calls that may be in flight, draining ones included
        self._waiting: OrderedDict[Call, None] = OrderedDict()
        self._waiting_bytes = 0
        self._retrying = RetryQueue()
        self._retry_timer: asyncio.TimerHandle | None = None
        self._retry_at = math.inf
        self._sweep_timer: asyncio.TimerHandle | None = None
        self._sweep_at = math.inf
        self._obstacle: MetadError | None = None  # why there is no connection, as far as known
        self._closed = False
        self.requests = 0
        self.answers = 0
        self.retries = 0

    # --- callers ---

    def submit(self, method: Method[Any, Any], body: bytes, deadline: float) -> Call:
        """Send or queue a request; its ``future`` ends with the reply or a MetadError.

        Raises :class:`OverloadedError` where too many wait already, :class:`ClosedError` on a closed client.
        """
        if self._closed:
            raise ClosedError(_CLOSED)
        call = Call(method, body, deadline, self._loop.create_future())
        connection = self.connection
        if connection is not None and not self._waiting and connection.can_send(len(body) + ENVELOPE_BYTES_MAX):
            self.requests += 1
            self._send(connection, call)
        else:
            self._check_room(len(body))
            self.requests += 1
            self._wait(call)
        if deadline < self._sweep_at:
            self._arm_sweep(deadline)
        return call

    def abandon(self, call: Call) -> None:
        """The caller no longer waits. What is in flight is cancelled at the server."""
        carrier = call.carrier
        if carrier is not None:
            carrier.cancel(call)
        self._forget(call)
        call.future.cancel()

    @property
    def body_bytes_max(self) -> int:
        """The largest body of a request that the server takes."""
        connection = self.connection
        frame_bytes_max = FRAME_BYTES_MAX if connection is None else connection.session.decoder.frame_bytes_max
        return frame_bytes_max - HEADER_BYTES - ENVELOPE_BYTES_MAX

    # --- connections: the Owner of each ---

    def attach(self, connection: Connection) -> None:
        """New requests go to this connection from now on."""
        self.connection = connection
        self._connections.add(connection)
        self._obstacle = None
        self.ready()

    def detach(self, obstacle: MetadError | None) -> None:
        """No connection takes new requests: they wait for the next one."""
        self.connection = None
        self._obstacle = obstacle

    def answered(self, call: Call, payload: bytes) -> None:
        """The reply has come."""
        self.answers += 1
        future = call.future
        try:
            reply = reply_of(call.method, payload)
        except MetadError as error:
            self._fail(call, error)
            return
        if not future.done():
            if call.method.mutates and reply.errors and self._heals(call, reply):
                return
            future.set_result(reply)
        if call.seq:
            self._identities.release(call.seq)

    def failed(self, call: Call, error: MetadError) -> None:
        """The peer answered with an error: try again later, or tell the caller."""
        self.answers += 1
        self._again(call, error)

    def lost(self, connection: Connection, calls: list[Call], error: MetadError) -> None:
        """A connection has ended. Whether its calls were carried out is for a retry with the same identity to see."""
        self._connections.discard(connection)
        for call in calls:
            self._again(call, lost(error))

    def ready(self) -> None:
        """Send what waits, as far as it fits."""
        waiting = self._waiting
        while waiting:
            connection = self.connection
            call = next(iter(waiting))
            if connection is None or not connection.can_send(len(call.body) + ENVELOPE_BYTES_MAX):
                return
            self._unwait(call)
            self._send(connection, call)

    # --- the client ---

    def close(self) -> list[Connection]:
        """Every call ends with :class:`ClosedError`, and none is taken any more. Returns the connections, closing."""
        if self._closed:
            return []
        self._closed = True
        for timer in (self._retry_timer, self._sweep_timer):
            if timer is not None:
                timer.cancel()
        for call in self._calls():
            sent = call.carrier is not None or call.in_doubt
            if call.carrier is not None:
                call.carrier.cancel(call)
            self._fail(call, ClosedError("" if sent else _CLOSED))
        self.connection = None
        connections = list(self._connections)
        for connection in connections:
            connection.close()
        return connections

    @property
    def in_flight(self) -> int:
        """Requests sent and not yet answered."""
        return sum(len(connection.calls) for connection in self._connections)

    @property
    def waiting(self) -> int:
        """Requests that wait for room, or for their next attempt."""
        return len(self._waiting) + len(self._retrying)

    # --- inside ---

    def _send(self, connection: Connection, call: Call) -> None:
        now = self._loop.time()
        identity: Identity | None = None
        if call.method.mutates:
            age_ms = 0
            if call.seq == 0:
                call.seq = self._identities.take()
                call.first_sent = now
            else:  # never 0 again: 0 says that no attempt came before
                age_ms = max(1, int((now - call.first_sent) * 1000))
            identity = self._identities.identity(call.seq, age_ms)
        if call.attempts:
            self.retries += 1
        call.attempts += 1
        deadline_ms = min(max(1, int((call.deadline - now) * 1000)), DEADLINE_MS_MAX)
        try:
            connection.send(call, encode(Request(deadline_ms, identity, msgspec.Raw(call.body))))
        except FrameError as error:  # over the limit of this server, which no retry changes
            self._fail(call, InvalidRequestError(f"{call.method.name}: {error}"))

    def _check_room(self, size_bytes: int) -> None:
        if self.waiting >= self._options.waiting_max:
            raise OverloadedError(f"{self.waiting} requests wait already in this client; nothing was done")
        if self._waiting and self._waiting_bytes + size_bytes > self._options.waiting_bytes_max:
            raise OverloadedError(f"{self._waiting_bytes} bytes wait already in this client; nothing was done")

    def _wait(self, call: Call, *, first: bool = False) -> None:
        self._waiting[call] = None
        self._waiting_bytes += len(call.body)
        if first:
            self._waiting.move_to_end(call, last=False)

    def _unwait(self, call: Call) -> None:
        del self._waiting[call]
        self._waiting_bytes -= len(call.body)

    def _again(self, call: Call, error: MetadError) -> None:
        if call.future.done():
            self._forget(call)
            return
        call.obstacle = error
        if not error.outcome_known:
            call.in_doubt = True
        decision = verdict(call, error, self._loop.time(), self._options.backoff, self._rng)
        if isinstance(decision, MetadError):
            self._fail(call, decision)
        else:
            self._retrying.push(decision, call)
            self._arm_retry()

    def _heals(self, call: Call, reply: Any) -> bool:
        """Whether the call is tried again for the sake of items that some group could not answer for."""
        error = worth_a_retry(call.method, reply)
        if error is None:
            return False
        decision = verdict(call, error, self._loop.time(), self._options.backoff, self._rng)
        if isinstance(decision, MetadError):
            return False  # no time left: the reply says per item what is known
        call.obstacle = error
        call.in_doubt = True
        self._retrying.push(decision, call)
        self._arm_retry()
        return True

    def _fail(self, call: Call, error: MetadError) -> None:
        self._forget(call)
        if not call.future.done():
            call.future.set_exception(error)

    def _forget(self, call: Call) -> None:
        if call.seq:
            self._identities.release(call.seq)
        if call in self._waiting:
            self._unwait(call)

    def _calls(self) -> list[Call]:
        in_flight = [call for connection in self._connections for call in connection.calls.values()]
        return [*in_flight, *self._waiting, *self._retrying.calls()]

    # --- timers ---

    def _arm_retry(self) -> None:
        due = self._retrying.next_due()
        if due is None:
            return
        if self._retry_timer is not None:
            if self._retry_at <= due:
                return
            self._retry_timer.cancel()
        # Kept here and not asked of the timer: for a time that has passed, uvloop returns a handle without one.
        self._retry_at = due
        self._retry_timer = self._loop.call_at(due, self._retry)

    def _retry(self) -> None:
        self._retry_timer = None
        # The loop may call a little early, by its clock's resolution.
        now = max(self._loop.time(), self._retry_at)
        for call in reversed(self._retrying.pop_due(now)):
            self._wait(call, first=True)  # they have waited longest
        self._arm_retry()
        self.ready()

    def _arm_sweep(self, deadline: float) -> None:
        self._sweep_at = deadline
        if self._sweep_timer is not None:
            self._sweep_timer.cancel()
        self._sweep_timer = self._loop.call_at(max(deadline, self._loop.time() + SWEEP_INTERVAL_MIN_S), self._sweep)

    def _sweep(self) -> None:
        """End the calls whose deadline has passed."""
        self._sweep_timer, self._sweep_at = None, math.inf
        now = self._loop.time()
        earliest = math.inf
        for call in self._calls():
            if call.deadline > now:
                earliest = min(earliest, call.deadline)
                continue
            error = deadline_error(call, call.obstacle or self._obstacle)
            if call.carrier is not None:
                call.carrier.cancel(call)
            self._fail(call, error)
        if earliest < self._sweep_at:
            self._arm_sweep(earliest)
