"""One request from its caller's point of view: it lives through every attempt to have it answered."""

from __future__ import annotations

import asyncio
from typing import Any, Protocol

import msgspec

from metad_wire.errors import DrainingError, MetadError, NotLeaderError, StaleRouteError, UnknownOutcomeError
from metad_wire.messages import Identity, Message, Request
from metad_wire.methods import Method

from .identity import IdentitySource

# Array header, deadline, identity: 1 + 9 + 1 + 4 * 9 bytes at most, the name of a group, and what is required: a 0.
ENVELOPE_BYTES_MAX = 64
DEADLINE_MS_MAX = 0xFFFF_FFFF  # the field is a u32


class Carrier(Protocol):
    """A connection with an attempt in flight."""

    def cancel(self, call: Call) -> None:
        """The answer to the attempt is no longer wanted."""


class Queue(Protocol):
    """Where a call waits to be sent."""

    def remove(self, call: Call) -> None:
        """The call does not wait any more."""


class Call:
    """A request between submission and outcome. ``future`` ends with the reply or a MetadError.

    ``body`` is encoded once, so every attempt carries the same bytes; ``group`` is what they are about, and never
    changes either, so another attempt differs by its target only. Only the methods below change a call. Times are of
    the event loop's clock, in seconds.
    """

    __slots__ = (
        "astray",
        "attempts",
        "body",
        "carrier",
        "deadline",
        "first_sent",
        "future",
        "group",
        "identities",
        "in_doubt",
        "internal",
        "method",
        "moved",
        "node",
        "obstacle",
        "once",
        "probes",
        "queue",
        "redirects",
        "refused_by",
        "request_id",
        "sent",
        "seq",
        "stale",
        "version",
    )

    def __init__(
        self,
        method: Method[Any, Any],
        body: bytes,
        deadline: float,
        future: asyncio.Future[Any],
        group: str | None = "",
        node: str = "",
        version: int = 0,
        once: bool = False,
        internal: bool = False,
    ) -> None:
        self.method = method
        self.body = body
        self.deadline = deadline
        self.future = future
        self.group = group  # empty: of none; None: not known yet
        self.node = node  # only this one can answer; empty: whoever leads the group, or any
        self.version = version  # of the map by which ``group`` holds the items
        self.once = once  # not to be sent again if it may have been done
        self.internal = internal  # the client's own question
        self.carrier: Carrier | None = None  # of the attempt in flight
        self.request_id = 0  # of the attempt in flight
        self.queue: Queue | None = None  # where it waits to be sent
        self.identities: IdentitySource | None = None  # the source of ``seq``; None until a write is first sent
        self.seq = 0  # of the identity
        self.first_sent = 0.0
        self.sent = 0.0  # when the last attempt was
        self.attempts = 0
        self.in_doubt = False  # an attempt ended without an answer: it may have been carried out
        self.obstacle: MetadError | None = None  # why the last attempt failed
        self.astray = False  # because the node was not the leader, or is not any more: another may do it at once
        self.refused_by = ""  # the node that said so
        self.probes = ""  # the node that leads the group if it answers: it was tried on no better grounds
        self.redirects = 0  # attempts in a row that followed a hint without a wait
        self.stale = False  # the group does not hold the items any more
        self.moved = False  # ended for that, with nothing done: a newer map says where the items are

    # --- attempts ---

    def identify(self, identities: IdentitySource, now: float) -> None:
        """The first attempt of a write begins."""
        self.identities, self.seq, self.first_sent = identities, identities.take(), now

    def attempt(self, now: float) -> Request[msgspec.Raw]:
        """Begin an attempt: the request to send."""
        identity: Identity | None = None
        if self.identities is not None:  # an age of 0 says that no attempt came before
            age_ms = max(1, int((now - self.first_sent) * 1000)) if self.attempts else 0
            identity = self.identities.identity(self.seq, age_ms)
        self.attempts += 1
        self.sent = now
        deadline_ms = min(max(1, int((self.deadline - now) * 1000)), DEADLINE_MS_MAX)
        return Request(deadline_ms, identity, msgspec.Raw(self.body), self.group or "")

    def carried(self, carrier: Carrier | None, request_id: int = 0) -> None:
        """The attempt is in flight on this carrier; on None, it is not any more."""
        self.carrier, self.request_id = carrier, request_id

    def withdraw(self) -> None:
        """Give up the attempt in flight, if there is one, and tell the peer."""
        carrier, self.carrier = self.carrier, None
        if carrier is not None:
            carrier.cancel(self)

    def lost(self) -> None:
        """The attempt ended without an answer, or nobody waits for it any more: any other node may be asked."""
        self.astray, self.refused_by, self.probes = True, "", ""
        self.in_doubt = True

    def refused(self, node: str, error: MetadError) -> None:
        """A node answered the attempt with an error."""
        self.astray = isinstance(error, NotLeaderError | UnknownOutcomeError | DrainingError)
        self.refused_by, self.probes = node, ""
        self.stale = bool(self.group) and isinstance(error, StaleRouteError)

    def redirected(self, error: MetadError) -> None:
        """The next attempt follows a hint at once."""
        self.obstacle = error
        self.redirects += 1

    def obstructed(self, error: MetadError, *, in_doubt: bool) -> None:
        """The next attempt, if there is one, has to wait."""
        self.obstacle = error
        self.redirects = 0
        self.in_doubt = self.in_doubt or in_doubt

    # --- waiting ---

    def waits(self, queue: Queue | None, probes: str = "") -> None:
        """It waits in this queue to be sent, for the node that it ``probes`` if one is named; in None, it does not."""
        self.queue, self.probes = queue, probes

    def unqueue(self) -> None:
        """It does not wait to be sent any more."""
        if self.queue is not None:
            self.queue.remove(self)

    def retried(self) -> None:
        """The wait for the next attempt is over: perhaps the slots have come back."""
        self.stale = False

    # --- the end ---

    def release(self) -> None:
        """No other attempt is made."""
        if self.identities is not None:
            self.identities.release(self.seq)
        self.unqueue()

    def succeed(self, reply: Message) -> None:
        """End with the reply."""
        if self.identities is not None:
            self.identities.release(self.seq)
        if not self.future.done():
            self.future.set_result(reply)

    def fail(self, error: MetadError) -> None:
        """End with an error."""
        self.release()
        if not self.future.done():
            self.future.set_exception(error)

    def move(self, error: MetadError) -> None:
        """End with an error that says: a newer map knows the groups of the items."""
        self.moved = True
        self.fail(error)
