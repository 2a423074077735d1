"""The Python SDK of metad: sessions, offsets and key-values over self-healing connections to the nodes of a cluster.

::

    from metad_client import connect, SessionTakeoverItem

    async with connect("metad://127.0.0.1:7420") as m:
        result = await m.sessions.takeover_many("broker-1", 7, [SessionTakeoverItem("acme", "device-1")])
        result.raise_for_error()

Layer rule: imports only :mod:`metad_wire`, msgspec and the standard library. The way of a call:

- :mod:`metad_client.sessions`, ``offsets``, ``kv``: the verbs
- :mod:`metad_client.requests`: items -> encoded requests, one group's each; :mod:`~metad_client.batcher` joins singles
- :mod:`metad_client.routes`: which group, and which node leads it, as far as known
- :mod:`metad_client.dispatcher`: waiting, in flight, sent elsewhere, retried, until the deadline
- :mod:`metad_client.connection`: one connection's stream of frames; :mod:`~metad_client.dialer` opens it
- :mod:`metad_client.keeper`: keeps a connection to each node up
- :mod:`metad_client.client`: the whole; :mod:`metad_client.blocking`: the same, without asyncio
- :mod:`metad_client.cli`: ``metadctl``
"""

from metad_wire.messages import (
    ConsumerGroup,
    GenerationReset,
    GroupStatus,
    Kv,
    KvCompare,
    KvDeleteItem,
    KvKey,
    KvOperation,
    KvPutItem,
    KvTransaction,
    KvTransactionResult,
    Offset,
    OffsetCommitItem,
    OffsetKey,
    Owner,
    Revision,
    Session,
    SessionKey,
    SessionProperties,
    SessionTakeoverItem,
    SessionUpdateItem,
    StatusReply,
)
from metad_wire.policy import Backoff, RetryBudget

from .client import Client, Statistics, connect
from .endpoint import PORT_DEFAULT
from .errors import (
    CancelledError,
    ClosedError,
    ConflictError,
    ConnectionLostError,
    CreditError,
    DeadlineExceededError,
    DrainingError,
    FencedError,
    FrameError,
    FrameTooLargeError,
    HandshakeError,
    IdentityExpiredError,
    InternalError,
    InvalidRequestError,
    MetadError,
    NotFoundError,
    NotLeaderError,
    NotOwnerError,
    OffsetRegressionError,
    OverloadedError,
    PermissionDeniedError,
    SlowReaderError,
    StaleRouteError,
    TooEarlyError,
    UnauthenticatedError,
    UnexpectedFrameError,
    UnknownMethodError,
    UnknownOutcomeError,
    UnsupportedError,
)
from .kv import KeyValue
from .offsets import Offsets
from .options import Options
from .results import PutResult, Takeover, TakeoverResult, TransactResult, WriteResult
from .sessions import Sessions

__all__ = [
    "PORT_DEFAULT",
    "Backoff",
    "CancelledError",
    "Client",
    "ClosedError",
    "ConflictError",
    "ConnectionLostError",
    "ConsumerGroup",
    "CreditError",
    "DeadlineExceededError",
    "DrainingError",
    "FencedError",
    "FrameError",
    "FrameTooLargeError",
    "GenerationReset",
    "GroupStatus",
    "HandshakeError",
    "IdentityExpiredError",
    "InternalError",
    "InvalidRequestError",
    "KeyValue",
    "Kv",
    "KvCompare",
    "KvDeleteItem",
    "KvKey",
    "KvOperation",
    "KvPutItem",
    "KvTransaction",
    "KvTransactionResult",
    "MetadError",
    "NotFoundError",
    "NotLeaderError",
    "NotOwnerError",
    "Offset",
    "OffsetCommitItem",
    "OffsetKey",
    "OffsetRegressionError",
    "Offsets",
    "Options",
    "OverloadedError",
    "Owner",
    "PermissionDeniedError",
    "PutResult",
    "RetryBudget",
    "Revision",
    "Session",
    "SessionKey",
    "SessionProperties",
    "SessionTakeoverItem",
    "SessionUpdateItem",
    "Sessions",
    "SlowReaderError",
    "StaleRouteError",
    "Statistics",
    "StatusReply",
    "Takeover",
    "TakeoverResult",
    "TooEarlyError",
    "TransactResult",
    "UnauthenticatedError",
    "UnexpectedFrameError",
    "UnknownMethodError",
    "UnknownOutcomeError",
    "UnsupportedError",
    "WriteResult",
    "connect",
]
