"""What a user may set about a client. Frozen, and validated once, when it is built."""

from __future__ import annotations

import math

import msgspec

from metad_wire.faults import fault
from metad_wire.messages import BATCH_ITEMS_MAX
from metad_wire.policy import Backoff, PathRule, RetryBudget
from metad_wire.transport.credentials import TlsFiles

DEADLINE_S_MAX = 86_400.0
"""A day: a caller that waits longer has forgotten that it waits."""


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of one client. Raises ValueError if a value makes no sense."""

    deadline_s: float = 10.0
    """A call without a deadline of its own ends after this long, retries and waiting included."""
    batch_items: int = 1_000
    """Items in one request at most: longer calls are cut, and singles that meet are joined up to here. More than 1,000
    no longer pays, and makes the other requests wait longer."""
    batch_bytes: int = 1024 * 1024
    """Singles are joined up to about this many bytes: bounds the memory of one batch."""
    linger_s: float = 0.0
    """How long a single waits for company, up to half of its deadline. 0: until the end of the current turn of the
    event loop."""
    batches_in_flight: int = 4
    """While so many batches of singles of one kind are unanswered, the next fills further instead of being sent
    small. Two keep the server's disk busy; four leave room for a slow one."""
    waiting_max: int = 10_000
    """Requests that may wait for the connection or its window; one more raises OverloadedError. At 10,000 the
    last of them waits a fraction of a second at full speed: a caller that would wait longer is told so."""
    waiting_bytes_max: int = 64 * 1024 * 1024
    """The same bound, in bytes of memory."""
    connect_timeout_s: float = 10.0
    """How long opening a client tries to reach an endpoint. 0: each endpoint once."""
    handshake_timeout_s: float = 3.0
    """One endpoint has this long to accept a connection and to greet."""
    ping_interval_s: float = 5.0
    """A quiet connection is pinged this often (or at a third of the server's idle limit, if that is shorter);
    a peer that leaves two pings unanswered counts as dead."""
    backoff: Backoff = Backoff()
    """Waits between retries of a request, and between rounds of dialling."""
    repeat_refused: bool = True
    """A request that a server has turned away because it is overloaded is sent again when the server says. False: its
    caller gets the OverloadedError, which has that time, and can tell clients of its own."""
    retry_budget: RetryBudget | None = None
    """Retries that all calls together may make, so that an overloaded cluster is not asked several times over; a retry
    that finds no token waits for one. None: each call retries as its backoff says."""
    credentials: bytes = b""
    """A token, as ``metadctl token`` prints it, or a JWT, for a client without a certificate. Not for ``metad://``,
    which would show it to everybody."""
    credentials_file: str = ""
    """Instead: a file whose first line is the token. A file that changes is used by the next connection: replace it
    before a JWT ends."""
    tls: TlsFiles | None = None
    """The authority to trust (``ca``), and this client's ``certificate`` and ``key`` (empty for a client with a token),
    for every scheme but ``metad://``. Files that change are used by the next connection."""
    quic_streams: int = 8
    """Over QUIC, requests are spread over so many streams, because a lost packet holds up only its own stream. Each
    costs the server a credit window, and every packet a look; the transport lets eight share a connection."""
    path_rule: PathRule = PathRule()
    """When ``metad+auto://`` takes QUIC."""
    lost_after_s: float = 30.0
    """A client that no node has taken requests of for this long is LOST. Until then it is SUSPENDED."""
    region: str = ""
    """Where the client is. Watches, and reads with ``freshness_ms``, prefer nodes of this region; empty: any."""
    client_name: str = ""
    """Shown in the server's logs."""

    def __post_init__(self) -> None:
        """Check the types and the ranges."""
        for known in msgspec.structs.fields(self):
            wrong = fault(getattr(self, known.name), known.type)
            if wrong is not None:
                raise ValueError(f"{known.name}: {wrong}")
        for field in ("deadline_s", "handshake_timeout_s", "ping_interval_s", "lost_after_s"):
            if not getattr(self, field) > 0:
                raise ValueError(f"{field} must be over 0, not {getattr(self, field)!r}")
        for field in ("linger_s", "connect_timeout_s"):
            if not getattr(self, field) >= 0:
                raise ValueError(f"{field} must not be below 0, not {getattr(self, field)!r}")
        for field in ("batch_bytes", "batches_in_flight", "waiting_max", "waiting_bytes_max", "quic_streams"):
            if getattr(self, field) < 1:
                raise ValueError(f"{field} must be at least 1, not {getattr(self, field)!r}")
        if self.credentials and self.credentials_file:
            raise ValueError("give credentials or credentials_file, not both")
        if math.isinf(self.linger_s):
            raise ValueError(f"linger_s must be finite, not {self.linger_s!r}")
        if self.deadline_s > DEADLINE_S_MAX:
            raise ValueError(f"deadline_s must be at most {DEADLINE_S_MAX}, not {self.deadline_s!r}")
        if not 1 <= self.batch_items <= BATCH_ITEMS_MAX:
            raise ValueError(f"batch_items must be 1 to {BATCH_ITEMS_MAX}, not {self.batch_items!r}")
