"""The causes of failures: one row for each class of error, and what helps.

Every path asks this table: a dial, the next dial, a call in flight, a watch, the question for the map. So an error has
one meaning on all of them, and a refusal that stays is never waited for as if it were an outage. Pure.
"""

from __future__ import annotations

import enum
from typing import Final, NamedTuple

from metad_wire.errors import NodeRefusedError
from metad_wire.transport.credentials import CertificateError, TlsError

from . import errors as e


class Remedy(enum.Enum):
    """What helps."""

    WAIT = "wait"
    """The same call, later or at another node. Until the call's deadline, the client tries by itself."""
    ANEW = "anew"
    """The attempt is over. A call that gets this answer ends. A watch opens its stream anew. If the error ends a
    connection, the calls in flight on it are tried on another one, as after :class:`ConnectionLostError`."""
    CHANGE_CALL = "change the call"
    """Another attempt gets the same answer: the call or the watch ends at once."""
    CHANGE_CLIENT = "change the client"
    """A node refuses this client, whatever it asks. If no node is left that may accept it, all calls and watches end at
    once. The client goes on to dial, because its files and the nodes' may change."""
    MOVE = "move"
    """The client was used where it does not live. The call ends at once, and the client is as it was."""


class Cause(NamedTuple):
    """One row."""

    error: type[e.MetadError]
    what: str
    remedy: Remedy
    foreign: tuple[type[Exception], ...] = ()
    """Errors of the operating system and of the transports that mean this while a node is dialled."""


_WAIT, _ANEW, _CALL, _CLIENT = Remedy.WAIT, Remedy.ANEW, Remedy.CHANGE_CALL, Remedy.CHANGE_CLIENT

CAUSES: Final = (
    # A dial is told by the first row that fits: a CertificateError is a TlsError, and both are OSErrors.
    Cause(
        e.UnauthenticatedError, "the certificate or token is missing, wrong or withdrawn", _CLIENT, (CertificateError,)
    ),
    Cause(
        e.HandshakeError,
        "the peer speaks another protocol, or another version",
        _CLIENT,
        (TlsError, e.FrameError, e.FrameTooLargeError, e.UnexpectedFrameError),
    ),
    Cause(NodeRefusedError, "between nodes: the peer is not taken for what it says it is", _CLIENT),
    Cause(e.ConnectionLostError, "nobody answers there, or the connection ended", _WAIT, (OSError,)),
    # the connection
    Cause(e.FrameError, "the bytes form no frame", _ANEW),
    Cause(e.FrameTooLargeError, "a frame is over the connection's limit", _ANEW),
    Cause(e.UnexpectedFrameError, "a frame came in a wrong state", _ANEW),
    Cause(e.CreditError, "more is unanswered than the window allows", _ANEW),
    Cause(e.SlowReaderError, "the peer does not read", _ANEW),
    # the node, now
    Cause(e.OverloadedError, "no room now", _WAIT),
    Cause(e.QuotaError, "a tenant or a principal asks for too much a second", _WAIT),
    Cause(e.DrainingError, "the node ends in order", _WAIT),
    Cause(e.NotLeaderError, "another node leads the group, or none does", _WAIT),
    Cause(e.StaleRouteError, "the group does not hold the slots any more", _WAIT),
    Cause(e.TooEarlyError, "0-RTT data may be a replay", _WAIT),
    Cause(e.UnknownOutcomeError, "the leader was lost while the write was under way", _WAIT),
    Cause(e.LogCutError, "the replica's log begins too late", _WAIT),
    Cause(e.NotReplicaError, "the node has no replica of the group", _WAIT),
    Cause(e.NotFreshError, "the replica cannot prove that it is as new as the read wants", _WAIT),
    Cause(e.TenantMovingError, "the tenant moves to another cluster, and neither serves it for a moment", _WAIT),
    Cause(e.PositionAheadError, "the replica is behind the position", _WAIT),
    Cause(e.IndexBuildingError, "the index is being built", _WAIT),
    Cause(e.UnknownTableError, "the node has not heard of the table yet", _WAIT),
    # the attempt
    Cause(e.DeadlineExceededError, "no answer in time", _ANEW),
    Cause(e.CancelledError, "the request was given up", _ANEW),
    Cause(e.InternalError, "a bug, or a broken disk", _ANEW),
    # the call
    Cause(e.UnknownMethodError, "the server does not know the method", _CALL),
    Cause(e.InvalidRequestError, "the request makes no sense", _CALL),
    Cause(e.TooLargeError, "the request asks for too much at once", _CALL),
    Cause(e.IdentityExpiredError, "the retry came too late", _CALL),
    Cause(e.PermissionDeniedError, "the method is for administrators", _CALL),
    Cause(e.UnsupportedError, "the server lacks a feature", _CALL),
    Cause(e.TenantMovedError, "the tenant is in another cluster, which the text names", _CALL),
    Cause(e.NotFoundError, "there is no such record or node", _CALL),
    Cause(e.FencedError, "a newer life was seen", _CALL),
    Cause(e.NotOwnerError, "another broker owns the session", _CALL),
    Cause(e.ConflictError, "the record is not as expected", _CALL),
    Cause(e.OffsetRegressionError, "the offset would go back", _CALL),
    Cause(e.InvalidItemError, "the item makes no sense", _CALL),
    Cause(e.QuotaExceededError, "there are as many as there may be", _CALL),
    Cause(e.NoRoomError, "the disks are too full for what grows", _CALL),
    Cause(e.NoPlaceError, "there are too few brokers for the replicas", _CALL),
    Cause(e.NoReplicaError, "the broker has no replica of the partition", _CALL),
    Cause(e.IneligibleError, "a life is over, or the group has not heard of it yet", _CALL),
    Cause(e.NoCandidateError, "nobody who lives may lead the partition", _CALL),
    Cause(e.ShrinkError, "a topic would lose what is not read", _CALL),
    Cause(e.IncompatibleSchemaError, "a schema does not go with earlier versions", _CALL),
    Cause(e.MissingExtraError, "a package of an extra is not installed", _CALL),
    Cause(e.ClosedError, "the client was closed", _CALL),
    # the place
    Cause(e.ForeignCallError, "the caller is in another event loop or thread, or that loop is over", Remedy.MOVE),
    Cause(e.ForkedError, "the caller is a fork of the client's process", Remedy.MOVE),
)

_BY_ERROR: Final = {cause.error: cause for cause in CAUSES}


def remedy(error: e.MetadError) -> Remedy:
    """What helps against an error. That of a class that has no row is that of the class above it."""
    return next((_BY_ERROR[kind].remedy for kind in type(error).__mro__ if kind in _BY_ERROR), Remedy.CHANGE_CALL)


def stays(error: e.MetadError) -> bool:
    """Whether an error is the answer of every attempt, until the call, the client or the nodes' files are changed."""
    return remedy(error) not in (Remedy.WAIT, Remedy.ANEW)


def error_of_dial(error: Exception) -> type[e.MetadError] | None:
    """metad's class for a foreign error that ended a dial; None for an error that is metad's own."""
    return next((cause.error for cause in CAUSES if isinstance(error, cause.foreign)), None)
