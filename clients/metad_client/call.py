"""One request from its caller's point of view: it lives through every attempt to have it answered."""

from __future__ import annotations

import asyncio
from typing import Any, Protocol

from metad_wire.errors import MetadError
from metad_wire.methods import Method


class Carrier(Protocol):
    """What carries an attempt: a connection."""

    def cancel(self, call: Call) -> None:
        """The answer to the attempt in flight is no longer wanted."""


class Call:
    """A request between submission and outcome. ``future`` ends with the reply or a MetadError.

    ``body`` is encoded once, so every attempt carries the same bytes. ``carrier`` is set while an attempt is
    in flight; ``in_doubt`` once an attempt ended without an answer, for then it may have been carried out.
    Times are of the event loop's clock, in seconds.
    """

    __slots__ = (
        "attempts",
        "body",
        "carrier",
        "deadline",
        "first_sent",
        "future",
        "in_doubt",
        "method",
        "obstacle",
        "request_id",
        "seq",
    )

    def __init__(self, method: Method[Any, Any], body: bytes, deadline: float, future: asyncio.Future[Any]) -> None:
        self.method = method
        self.body = body
        self.deadline = deadline
        self.future = future
        self.carrier: Carrier | None = None
        self.request_id = 0  # of the attempt in flight
        self.seq = 0  # of the identity; 0 until a write is first sent, and for reads
        self.first_sent = 0.0
        self.attempts = 0
        self.in_doubt = False
        self.obstacle: MetadError | None = None  # why the last attempt failed
