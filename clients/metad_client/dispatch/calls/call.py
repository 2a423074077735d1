"""One request as its caller sees it: it lives through every attempt to have it answered. And its identity, by which a
retried write happens once.

A server remembers the answers of a client's writes from ``low`` on, so ``low`` must not pass a write that may still be
retried. A number is taken when a write is first sent and released when its caller has an outcome.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Protocol

import msgspec

from metad_wire.errors import (
    DrainingError,
    InvalidRequestError,
    MetadError,
    NotLeaderError,
    OverloadedError,
    StaleRouteError,
    TooLargeError,
    UnknownOutcomeError,
)
from metad_wire.messages import BROKER_BYTES_MAX, Identity, Message, Owner, Request, Traced
from metad_wire.methods import Method

from ...errors import another


class IdentitySource:
    """The identities of one client's lifetime. ``client_id`` is a random u64."""

    def __init__(self, client_id: int) -> None:
        self.client_id = client_id
        self._next = 1
        self._low = 1
        self._unanswered: set[int] = set()

    @property
    def low(self) -> int:
        """The lowest unanswered number, or the next one if all are answered."""
        # Each number is stepped over once in the client's life, so this is constant time, amortised.
        low, unanswered = self._low, self._unanswered
        while low < self._next and low not in unanswered:
            low += 1
        self._low = low
        return low

    def take(self) -> int:
        """A number for a write that is about to be sent for the first time."""
        seq = self._next
        self._next = seq + 1
        self._unanswered.add(seq)
        return seq

    def release(self, seq: int) -> None:
        """The write will not be sent again."""
        self._unanswered.discard(seq)

    def identity(self, seq: int, age_ms: int) -> Identity:
        """The identity that travels with the write. ``age_ms`` is 0 on the first attempt only."""
        return Identity(self.client_id, seq, self.low, age_ms)


class GivenIdentity(IdentitySource):
    """The identity of one write that its program has named, so that another process can repeat the write. ``age_ms``:
    for how long it may have been tried already; 0: it was not."""

    def __init__(self, client_id: int, seq: int, low: int, age_ms: int = 0) -> None:
        super().__init__(client_id)
        self._seq = seq
        self._low = low
        self._age_ms = age_ms

    def take(self) -> int:
        """Its number."""
        return self._seq

    @property
    def is_repeated(self) -> bool:
        """Whether another process may have tried the write."""
        return self._age_ms > 0

    def release(self, seq: int) -> None:
        """Somebody may repeat it yet."""

    def identity(self, seq: int, age_ms: int) -> Identity:
        """The identity that travels with the write."""
        return Identity(self.client_id, seq, self._low, age_ms + self._age_ms)


BOUNDS_S: Final = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
"""Upper bounds of the buckets of :class:`Meter`: from one round trip in a machine room to the default deadline."""


class Meter:
    """Counts the requests of one verb, for as long as the client lives.

    A request runs through it once, in the client's event loop, so it has plain numbers and no lock. Its size does not
    grow with requests: outcomes and reasons are the names of errors.
    """

    __slots__ = ("buckets", "items", "outcomes", "redirects", "refused", "retries", "seconds")

    def __init__(self) -> None:
        self.outcomes: defaultdict[str, int] = defaultdict(int)
        """``ok``, the name of the error, or ``abandoned`` -> requests that have ended so."""
        self.buckets = [0] * (1 + len(BOUNDS_S))
        """Requests by how long they took. The last bucket has those that took longer than all bounds."""
        self.seconds = 0.0
        """That all of them took together."""
        self.items = 0
        """Of the requests that were batches."""
        self.refused = 0
        """Of these, the items that a request with the outcome ``ok`` did not do."""
        self.retries: defaultdict[str, int] = defaultdict(int)
        """The name of the error -> attempts that it was the reason for."""
        self.redirects = 0

    def ended(self, outcome: str, took_s: float, items: int, refused: int) -> None:
        """Count a request that has ended after so many seconds, with all waits and attempts."""
        self.outcomes[outcome] += 1
        self.buckets[bisect_left(BOUNDS_S, took_s)] += 1
        self.seconds += took_s
        self.items += items
        self.refused += refused


# Array header, deadline, identity: 1 + 9 + 1 + 4 * 9 bytes at most, the name of a group, what is required, a life: a
# broker's name and an epoch; how old the state may be, and the context of a trace.
ENVELOPE_BYTES_MAX = 64 + BROKER_BYTES_MAX + 24 + 32
DEADLINE_MS_MAX = 0xFFFF_FFFF  # the field is a u32


class Carrier(Protocol):
    """A connection with an attempt in flight."""

    def cancel(self, call: Call) -> None:
        """The answer to the attempt is no longer wanted. Nothing happens if it has come."""


class EventStream(Protocol):
    """The events of a watch on a connection."""

    def grant(self, count: int) -> None:
        """Let the server send so many bytes more."""

    def end(self, *, ended: bool = False) -> None:
        """No events are wanted any more. ``ended``: the server has said that none follow."""


class Events(Protocol):
    """Takes the events of a watch. It hears nothing after the stream has ended."""

    def opened(self, stream: EventStream, reply: Any) -> None:
        """The stream has begun."""

    def received(self, payload: bytes) -> None:
        """An event has come."""

    def lost(self, error: MetadError) -> None:
        """The connection carries no events any more."""


class Life(Protocol):
    """The life of a broker that writes are made in the name of."""

    @property
    def owner(self) -> Owner:
        """Name and epoch."""

    @property
    def requires(self) -> int:
        """The features that a node needs for its requests."""

    def check(self) -> None:
        """Raise FencedError if it is over."""

    def hurry(self) -> None:
        """A connection takes no more requests: let the cluster hear of the life by another one."""


class Queue(Protocol):
    """The place where a call waits to be sent."""

    def remove(self, call: Call) -> None:
        """Remove a call that does not wait any more."""


@dataclass(eq=False, slots=True)
class Call:
    """A request between submission and outcome. ``future`` ends with the reply or a MetadError.

    ``body`` is encoded once, so every attempt carries the same bytes. ``group`` names the group of its items and never
    changes either, so attempts differ only by their target. Only the methods below change a call. Times are of the
    event loop's clock, in seconds.
    """

    method: Method[Any, Any]
    body: bytes
    deadline: float
    future: asyncio.Future[Any]
    group: str | None = ""  # empty: none; None: not known yet
    node: str = ""  # the only node that can answer; empty: the leader of the group, or any node
    version: int = 0  # of the map that assigned the items to ``group``
    once: bool = False  # never sent again if it may have been done
    items: int = 0  # of the request, where it is one of a batch
    freshness_ms: int = 0  # any replica may answer that can prove that it is no older; 0: the leader does
    is_far: bool = False  # a replica could not
    life: Owner | None = None  # in whose name it is made, of the first attempt and all others
    requires: int = 0  # bits of Feature
    internal: bool = False  # a question of the client itself
    events: Events | None = None  # the reply begins a stream
    stream: EventStream | None = None  # that has begun
    carrier: Carrier | None = None  # of the attempt in flight; after the reply, of the last one
    connection: Any = None  # the NodeConnection by which the last attempt was sent
    request_id: int = 0  # of that attempt
    queue: Queue | None = None  # where the call waits to be sent
    identities: IdentitySource | None = None  # the source of ``seq``; None until a write is first sent
    seq: int = 0  # of the identity
    first_sent: float = 0.0
    sent: float = 0.0  # when the last attempt was sent
    attempts: int = 0
    in_doubt: bool = False  # an attempt ended without an answer: it may have been carried out
    obstacle: MetadError | None = None  # the error of the last attempt
    astray: bool = False  # the node was not the leader, or is not any more: another node may do it at once
    refused_by: str = ""  # the node that refused
    probes: str = ""  # a node that leads the group if it answers: it was tried without better knowledge
    redirects: int = 0  # consecutive attempts that followed a hint without a wait
    was_early: bool = False  # an attempt came before the end of the handshake, and another was sent at once
    stale: bool = False  # to the last attempt the group has answered that it does not hold the items any more
    turned_away: Callable[[], None] | None = None  # called when a node has no room and names a time to come back
    moved: bool = False  # ended because of that, with nothing done: a newer map says where the items are
    too_large: MetadError | None = None  # why its identity was to be spent
    whole: bytes | None = None  # the body, while one without items is sent in its place
    meter: Meter | None = None  # counts how it ends; None: it has, or nobody counts it
    begun: float = 0.0  # when its caller began to wait
    trace: bytes = b""  # the context that goes to the node

    @property
    def is_near(self) -> bool:
        """Whether it is a read for which the leader is not to be asked yet."""
        return self.freshness_ms > 0 and not self.is_far

    @property
    def undone(self) -> bool:
        """Whether it certainly has changed nothing, without any answer."""
        return not self.method.changes or not self.attempts

    @property
    def is_in_doubt(self) -> bool:
        """Whether an attempt may have changed something, of this call or of another process with its identity."""
        repeated = isinstance(self.identities, GivenIdentity) and self.identities.is_repeated
        return self.method.changes and (self.unanswered or repeated)

    @property
    def has_slot(self) -> bool:
        """Whether it waits for the time at which a node without room lets it come back."""
        return isinstance(self.obstacle, OverloadedError) and self.obstacle.retry_after_ms > 0

    @property
    def unanswered(self) -> bool:
        """Whether there was no answer to an attempt, or is none yet."""
        return self.in_doubt or self.carrier is not None

    def tell(self, turned_away: Callable[[], None]) -> None:
        """Call this whenever the call begins to wait for a time that a node has named."""
        self.turned_away = turned_away

    def in_name_of(self, life: Owner, requires: int) -> None:
        """Make the write in the name of a life of a broker, at nodes that have these features."""
        self.life, self.requires = life, requires

    # --- attempts ---

    def attempt(self, now: float, identities: IdentitySource | None) -> Request[msgspec.Raw]:
        """Begin an attempt and return its request. The first attempt of a write takes an identity of its group."""
        identity: Identity | None = None
        if identities is not None:
            if self.identities is None:
                self.identities, self.seq, self.first_sent = identities, identities.take(), now
            # An age of 0 means that no attempt came before.
            age_ms = max(1, int((now - self.first_sent) * 1000)) if self.attempts else 0
            identity = self.identities.identity(self.seq, age_ms)
        self.attempts += 1
        self.stale = False  # it may be carried out, whatever was said before
        self.sent = now
        deadline_ms = min(max(1, int((self.deadline - now) * 1000)), DEADLINE_MS_MAX)
        if self.trace:
            head = deadline_ms, identity, msgspec.Raw(self.body), self.group or ""
            return Traced(*head, self.requires, self.life, self.freshness_ms, self.trace)
        if self.life is None:
            return Request(
                deadline_ms, identity, msgspec.Raw(self.body), self.group or "", freshness_ms=self.freshness_ms
            )
        return Request(deadline_ms, identity, msgspec.Raw(self.body), self.group or "", self.requires, self.life)

    def go_far(self) -> None:
        """A replica could not answer: the leader is to be asked while it is in reach."""
        self.is_far = True

    def carried(self, carrier: Carrier, request_id: int) -> None:
        """The attempt is in flight on this carrier."""
        self.carrier, self.request_id = carrier, request_id

    def began(self, stream: EventStream) -> None:
        """The reply has come, and events follow it."""
        self.stream = stream

    def withdraw(self) -> None:
        """Give up the attempt in flight, if there is one, and tell the peer."""
        carrier, self.carrier = self.carrier, None
        if carrier is not None:
            carrier.cancel(self)

    def lost(self) -> None:
        """The attempt ended without an answer, or is not waited for any more: any other node may be tried."""
        self.carrier, self.in_doubt = None, True
        self.astray, self.refused_by, self.probes = True, "", ""

    def refused(self, node: str, error: MetadError) -> None:
        """A node answered the attempt with an error."""
        self.astray = bool(self.group) and isinstance(error, NotLeaderError | UnknownOutcomeError | DrainingError)
        self.stale = bool(self.group) and isinstance(error, StaleRouteError)
        self.carrier, self.refused_by, self.probes = None, node, ""

    def redirected(self, error: MetadError) -> None:
        """The next attempt follows a hint at once."""
        self.obstacle = error
        self.redirects += 1

    def obstructed(self, error: MetadError, *, in_doubt: bool) -> None:
        """The next attempt, if any, has to wait."""
        self.carrier, self.obstacle = None, error
        self.redirects = 0
        self.in_doubt = self.in_doubt or in_doubt

    # --- the end of what is too large and in doubt ---

    def spends(self, error: MetadError) -> bool:
        """Whether another attempt is to be sent at once, because an earlier one may have been carried out, or may be
        yet, and this one was refused as too large. It has the same identity and no items. If that is done, the identity
        is spent, and no attempt with items can be carried out any more. If the identity was used, the whole request was
        done: it is sent again for its reply."""
        if self.whole is not None and type(error) is InvalidRequestError:
            self.body, self.whole = self.whole, None
            return True
        if self.too_large is not None or not isinstance(error, TooLargeError) or self.identities is None:
            return False
        if not self.in_doubt or self.items < 2:
            return False
        self.too_large, self.whole, self.body = error, self.body, self.method.without_items(self.body)
        return True

    def spent(self) -> None:
        """End, with nothing done: the attempt without items is answered."""
        assert self.too_large is not None
        self.carrier, self.in_doubt = None, False
        self.fail(self.too_large)

    # --- waiting ---

    def waits(self, queue: Queue | None, probes: str = "") -> None:
        """The call waits in this queue to be sent; None: it waits in none. ``probes`` is the field above."""
        self.queue, self.probes = queue, probes

    def unqueue(self) -> None:
        """Remove the call from its queue."""
        if self.queue is not None:
            self.queue.remove(self)

    # --- the end ---

    def release(self) -> None:
        """Make no other attempt, and give up the one in flight."""
        self.withdraw()
        if self.identities is not None:
            self.identities.release(self.seq)
        self.unqueue()

    def succeed(self, reply: Message) -> None:
        """End with the reply."""
        if self.identities is not None:
            self.identities.release(self.seq)
        if not self.future.done():
            self.future.set_result(reply)
            self.ended("ok", len(getattr(reply, "errors", ())))
            if self.events is not None and self.stream is not None:
                self.events.opened(self.stream, reply)
        elif self.stream is not None:
            self.stream.end()

    def fail(self, error: MetadError, *, moved: bool = False) -> None:
        """End with an error. ``moved``: a newer map says that other groups hold the items."""
        known = self.undone or (error.outcome_known and not self.unanswered)
        if error.outcome_known is not known:
            error = another(error, outcome_known=known)
        self.moved = moved
        self.release()
        if self.stream is not None:
            self.stream.end()
        if not self.future.done():
            self.future.set_exception(error)
            self.ended(error.name)

    def ended(self, outcome: str, refused: int = 0) -> None:
        """Count the end, once. ``refused``: items that were not done."""
        meter, self.meter = self.meter, None
        if meter is not None:
            meter.ended(outcome, self.future.get_loop().time() - self.begun, self.items, refused)
