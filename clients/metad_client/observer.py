"""What a program may be told about its client: connections, retries, redirects, and how each request ended.

::

    class Latencies(Observer):
        def ended(self, event: Ended) -> None:
            histogram(event.verb, event.outcome).observe(event.seconds)

    async with connect("metad://127.0.0.1:7420", observer=Latencies()) as m: ...
"""

from __future__ import annotations

import msgspec

from .errors import MetadError


class Connected(msgspec.Struct, frozen=True, kw_only=True):
    """A node takes requests from now on, by a connection that was just made."""

    node: str
    endpoint: str
    """host:port."""
    via: str
    """``tcp``, ``tls`` or ``quic``."""


class Disconnected(msgspec.Struct, frozen=True, kw_only=True):
    """A node takes no more requests. The client tries to reach it again, unless the node has left the cluster or the
    client is closed."""

    node: str
    endpoint: str
    reason: MetadError | None
    """None if it ended in order: the node said goodbye or has left, or you closed the client."""


class StateChanged(msgspec.Struct, frozen=True, kw_only=True):
    """The client has another state, or a kind of groups has."""

    state: str
    """``connected``, ``suspended`` or ``lost``, as ``m.state``."""
    kinds: dict[str, str]
    """The same for each kind of groups (``metadata``, ``data``, ``offset``), as ``m.states``; empty before the map is
    known."""


class Retried(msgspec.Struct, frozen=True, kw_only=True):
    """An attempt has failed, and there will be another one after a wait."""

    verb: str
    """Of the request, for example ``session.takeover``."""
    group: str
    """That answers, for example ``data-0``; empty if any node may answer."""
    items: int
    """Of the request; 0 if it is none of a batch."""
    attempts: int
    """Made so far."""
    reason: MetadError


class Redirected(msgspec.Struct, frozen=True, kw_only=True):
    """A node did not lead the request's group, or does not answer: the request goes to another one at once."""

    verb: str
    group: str
    left: str
    """The node that it was sent to."""
    to: str
    """The node that it is sent to now."""


class Begun(msgspec.Struct, frozen=True, kw_only=True):
    """A request begins, in the context (:mod:`contextvars`) of the call that asks for it first."""

    verb: str
    group: str


class Ended(msgspec.Struct, frozen=True, kw_only=True):
    """A request has ended. Single calls of one kind that are made at the same time are one request, and a long
    ``*_many`` call is several."""

    verb: str
    group: str
    seconds: float
    """From the call until its end, with all waits and attempts."""
    attempts: int
    """1 if the first attempt was answered; 0 if none was sent."""
    outcome: str
    """``ok``, the name of the error, or ``abandoned`` if the caller was cancelled. ``stale_route`` means that slots
    have moved: the client sends the same items as new requests."""
    error: MetadError | None
    refused: int
    """Items that a request with the outcome ``ok`` did not do; their callers get an error for each."""


class Trace:
    """What traces one request."""

    def __init__(self, context: bytes) -> None:
        """``context``: goes to the node, as :func:`metad_wire.messages.trace_context` makes it."""
        self.context = context

    def ended(self, event: Ended) -> None:
        """The request has ended."""


class Observer:
    """Override what you want to know. The methods do nothing here.

    They are called in the thread of the client's event loop, between its other work: they must return quickly, and must
    not wait for a call of this client. The client logs the first exception of each method and goes on. Metrics per verb
    need a few labels only: verbs and outcomes are few, groups and nodes as many as the cluster has.
    """

    def connected(self, event: Connected) -> None:
        """A node takes requests from now on."""

    def disconnected(self, event: Disconnected) -> None:
        """A node takes no more requests."""

    def state_changed(self, event: StateChanged) -> None:
        """The client reaches the cluster, or does not any more."""

    def retried(self, event: Retried) -> None:
        """A request will be sent again."""

    def redirected(self, event: Redirected) -> None:
        """A request goes to another node."""

    def began(self, event: Begun) -> Trace | None:
        """A request begins. What this returns is told of its end: :class:`metad_client.otel.Tracing` makes a span."""
        return None

    def ended(self, event: Ended) -> None:
        """A request has ended."""
