"""One request from its caller's point of view: it lives through every attempt to have it answered."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from typing import Any, Protocol

from metad_wire.errors import MetadError
from metad_wire.methods import Method

from .identity import IdentitySource


class Carrier(Protocol):
    """What carries an attempt: a connection."""

    def cancel(self, call: Call) -> None:
        """The answer to the attempt in flight is no longer wanted."""


class Call:
    """A request between submission and outcome. ``future`` ends with the reply or a MetadError.

    ``body`` is encoded once, so every attempt carries the same bytes; ``group`` is what they are about, and never
    changes either, so another attempt differs by its target only. ``carrier`` is set while an attempt is in flight;
    ``in_doubt`` once an attempt ended without an answer, for then it may have been carried out. Times are of the event
    loop's clock, in seconds.
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
    ) -> None:
        self.method = method
        self.body = body
        self.deadline = deadline
        self.future = future
        self.group = group  # empty: of none; None: not known yet
        self.node = node  # only this one can answer; empty: whoever leads the group, or any
        self.carrier: Carrier | None = None
        self.queue: OrderedDict[Call, None] | None = None  # where it waits to be sent
        self.request_id = 0  # of the attempt in flight
        self.seq = 0  # of the identity; 0 until a write is first sent, and for reads
        self.identities: IdentitySource | None = None  # where ``seq`` is from
        self.first_sent = 0.0
        self.sent = 0.0  # when the attempt in flight was
        self.attempts = 0
        self.in_doubt = False
        self.obstacle: MetadError | None = None  # why the last attempt failed
        self.astray = False  # because it was not the leader, or is not any more: another may do it at once
        self.refused_by = ""  # the node that said so
        self.probes = ""  # the node that leads the group if it answers: it was tried on no better grounds
        self.redirects = 0  # attempts in a row that were sent on without a wait
        self.version = 0  # of the map by which ``group`` holds the items
        self.stale = False  # it does not any more
        self.moved = False  # ended for that, with nothing done: a newer map says where the items are
        self.once = False  # not to be sent again where it may have been done
        self.internal = False  # the client's own question
