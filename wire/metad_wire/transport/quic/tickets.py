"""Session tickets, each used once: a server's memory of the tickets it gave out, and a client's store of those it got.

A ticket lets a client skip the exchange of certificates and send its first frames at once (0-RTT). So a server's entry
names the ticket's holder, and taking the entry out makes the data that came with it unrepeatable: an attacker who
copies a client's first datagrams presents a ticket that is gone.
"""

from __future__ import annotations

import time
from collections import OrderedDict, deque
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Final, NamedTuple

from aioquic.tls import SessionTicket
from cryptography import x509

KEPT_PER_SERVER: Final = 4
"""Tickets that a client keeps for one server: one for each of a few connections."""
SERVERS_MAX: Final = 1_024
"""Servers that a client keeps tickets for."""


class Granted(NamedTuple):
    """A server's memory of one ticket."""

    ticket: SessionTicket
    holder: x509.Certificate | None
    generation: bytes
    """Names the authorities that were trusted then."""
    until_s: float


class GrantedTickets:
    """The tickets of one listener. The oldest are forgotten first; their holders do a full handshake again."""

    def __init__(self, size: int, life_s: float, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._size = size
        self._life_s = life_s
        self._clock = clock
        self._tickets: OrderedDict[bytes, Granted] = OrderedDict()

    def __len__(self) -> int:
        return len(self._tickets)

    def grant(self, ticket: SessionTicket, holder: x509.Certificate | None, generation: bytes) -> None:
        """Remember a ticket that is being given out."""
        while len(self._tickets) >= self._size:
            self._tickets.popitem(last=False)
        self._tickets[ticket.ticket] = Granted(ticket, holder, generation, self._clock() + self._life_s)

    def redeem(self, identity: bytes, generation: bytes, *, certificate_required: bool) -> Granted | None:
        """Take out a presented ticket; None if it is unknown, used, too old, or its holder would not be admitted
        today."""
        granted = self._tickets.pop(identity, None)
        if granted is None or granted.generation != generation or self._clock() > granted.until_s:
            return None
        if granted.holder is None:
            return None if certificate_required else granted
        return granted if _in_date(granted.holder) else None


class Kept(NamedTuple):
    """A client's copy of one ticket."""

    ticket: SessionTicket
    server: x509.Certificate | None
    """The server's certificate, verified when the ticket was given."""
    generation: bytes


class KeptTickets:
    """The tickets of one dialling transport, and the address tokens that come with them."""

    def __init__(self) -> None:
        self._servers: OrderedDict[tuple[str, int], deque[Kept]] = OrderedDict()
        self._tokens: OrderedDict[tuple[str, int], bytes] = OrderedDict()

    def keep(self, endpoint: tuple[str, int], kept: Kept) -> None:
        """Keep a ticket for the next connection to this endpoint."""
        tickets = self._servers.setdefault(endpoint, deque(maxlen=KEPT_PER_SERVER))
        tickets.append(kept)
        self._servers.move_to_end(endpoint)
        if len(self._servers) > SERVERS_MAX:
            self._servers.popitem(last=False)

    def take(self, endpoint: tuple[str, int], generation: bytes) -> Kept | None:
        """Take out the newest ticket that is still valid; it is never returned again."""
        tickets = self._servers.get(endpoint)
        while tickets:
            kept = tickets.pop()
            if (
                kept.generation == generation
                and kept.ticket.is_valid
                and kept.server is not None
                and _in_date(kept.server)
            ):
                return kept
        return None

    def keep_token(self, endpoint: tuple[str, int], token: bytes) -> None:
        """Keep a proof of our address for the next connection."""
        self._tokens[endpoint] = token
        self._tokens.move_to_end(endpoint)
        if len(self._tokens) > SERVERS_MAX:
            self._tokens.popitem(last=False)

    def take_token(self, endpoint: tuple[str, int]) -> bytes:
        """Take out the token. It is used once, so that it cannot link two connections."""
        return self._tokens.pop(endpoint, b"")


def _in_date(certificate: x509.Certificate) -> bool:
    now = datetime.now(UTC)
    return certificate.not_valid_before_utc <= now <= certificate.not_valid_after_utc
