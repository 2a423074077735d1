"""What travels between a broker and a node in the model: a request, its attempts, and an entry of a group's log."""

from __future__ import annotations

from typing import Final, Protocol

import numpy as np
import numpy.typing as npt

from metad_wire.messages import Identity
from metad_wire.policy.fair_queue import is_small, weight_of

Ints = npt.NDArray[np.int64]
NOBODY: Final[Ints] = np.empty(0, dtype=np.int64)
"""The clients of a request that is not a crowd's."""
ITEM_BYTES: Final = 25
"""Of a takeover's item in a request: tenant, client and a few flags."""


class Asker(Protocol):
    """The broker that waits for an answer. Times are seconds."""

    def done(self, request: Request, now: float) -> None:
        """It is done."""

    def refused(self, request: Request, after_ms: int, jitter_ms: int, now: float) -> None:
        """It was turned away, with a time to come back."""

    def send(self, request: Request) -> None:
        """Begin an attempt."""

    def lost(self, request: Request, now: float) -> None:
        """Its node is dead."""


class Request:
    """One call of a broker: clients of one group. ``number`` counts its attempts, so that an answer to an earlier one
    is told from the answer that is waited for. ``background``: it has no clients, but so many items of the work beside
    the storm."""

    __slots__ = (
        *("arrived_s", "asker", "attempts", "clients", "deadline_s", "group", "identity", "items", "long", "noted"),
        *("number", "parts", "sent_s", "size", "small", "source", "target", "tenant", "waits", "weight"),
    )

    def __init__(
        self,
        asker: Asker,
        clients: Ints,
        group: int,
        parts: int,
        tenant: bytes,
        deadline_s: float,
        *,
        background: int = 0,
    ) -> None:
        self.asker = asker
        self.clients = clients
        self.group = group
        self.items = len(clients) + background
        self.size = ITEM_BYTES * self.items
        self.small = is_small(self.items, self.size)
        self.weight = weight_of(self.items, self.size)
        self.long = not is_small(0, self.size)  # to take it in is a heavy piece of work
        self.parts = parts
        self.tenant = tenant
        self.deadline_s = deadline_s
        self.source: object = asker
        self.identity: Identity | None = None
        self.attempts = 0
        self.number = 0
        self.noted = 0  # of those who give up: as in :class:`.way.Way`
        self.sent_s = self.arrived_s = 0.0
        self.target: object = None  # the node that was asked last
        self.waits = True  # for an answer


class Entry:
    """Of a group's log. ``small``: how many of its requests are. ``clients``: items of the storm. ``synced``: voters
    that have it on disk."""

    __slots__ = ("clients", "items", "requests", "small", "synced")

    def __init__(self, requests: list[tuple[Request, int]]) -> None:
        self.requests = requests
        self.items = sum(request.items for request, _ in requests)
        self.clients = sum(len(request.clients) for request, _ in requests)
        self.small = sum(request.small for request, _ in requests)
        self.synced = 0
