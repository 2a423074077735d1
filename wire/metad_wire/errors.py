"""The error table: one row per wire code, one exception class per row.

A code never changes its meaning and is never reused. ``retryable`` says whether the same request may
succeed later *and* is safe to send again; ``outcome_known`` is False where a write may have happened: a class
has what its code alone says, an error what the client knows of the call.
The registry refuses two classes with one code.
"""

from __future__ import annotations

from typing import ClassVar, Final

import msgspec

MESSAGE_CHARACTERS_MAX: Final = 1_024
"""The text of an error: it is cut."""


class ErrorBody(msgspec.Struct, frozen=True, array_like=True):
    """Payload of an ERROR frame."""

    code: int
    """See Error codes."""
    message: str = ""
    """For people, 1,024 characters at most; never parse it."""
    retry_after_ms: int = 0
    """With ``retry_jitter_ms``: come back at a random moment of t ± j milliseconds from receipt; 0: no advice."""
    retry_jitter_ms: int = 0
    """The j above."""
    leader: str = ""
    """Id of the node to ask instead, or empty."""


class MetadError(Exception):
    """Root of every error that metad raises on purpose: a caller that catches it catches all of them."""

    code: ClassVar[int] = 0
    name: ClassVar[str] = "error"
    retryable: ClassVar[bool] = False
    outcome_known: bool = True

    current: int | None
    """For a failed item: the value that its condition was compared with. A version (0: absent), an offset (-1: none), a
    generation or an epoch; None if the error is about something else or the server does not report it."""

    def __init__(
        self,
        message: str = "",
        *,
        retry_after_ms: int = 0,
        retry_jitter_ms: int = 0,
        leader: str = "",
        current: int | None = None,
        outcome_known: bool | None = None,
    ):
        super().__init__(message or (self.__doc__ or self.name.replace("_", " ")).splitlines()[0])
        self.message = str(self)
        self.retry_after_ms = retry_after_ms
        self.retry_jitter_ms = retry_jitter_ms
        self.leader = leader
        self.current = current
        if outcome_known is not None:
            self.outcome_known = outcome_known

    def body(self) -> ErrorBody:
        """This error as the payload of an ERROR frame."""
        message = self.message[:MESSAGE_CHARACTERS_MAX]
        return ErrorBody(self.code, message, self.retry_after_ms, self.retry_jitter_ms, self.leader)


ERRORS: dict[int, type[MetadError]] = {}


class _Coded(MetadError):
    """Registers each subclass under its code."""

    def __init_subclass__(
        cls, *, code: int, name: str, retryable: bool = False, outcome_known: bool = True, **kwargs: object
    ) -> None:
        super().__init_subclass__(**kwargs)
        if code in ERRORS:
            raise TypeError(f"error code {code} is taken by {ERRORS[code].__name__}")
        cls.code, cls.name, cls.retryable, cls.outcome_known = code, name, retryable, outcome_known
        ERRORS[code] = cls


# 1-99: the connection. After one of these the sender closes it.
class FrameError(_Coded, code=1, name="bad_frame"):
    """The bytes do not form a frame of this protocol."""


class FrameTooLargeError(_Coded, code=2, name="frame_too_large"):
    """A frame's length is over the limit of the connection."""


class HandshakeError(_Coded, code=3, name="handshake_failed"):
    """The peers share no protocol version, or the first frame was no handshake."""


class UnexpectedFrameError(_Coded, code=4, name="unexpected_frame"):
    """A frame type that is not allowed in this state of the connection."""


class CreditError(_Coded, code=5, name="credit_exceeded"):
    """More request bytes are unanswered than the connection's window allows."""


class UnauthenticatedError(_Coded, code=6, name="unauthenticated"):
    """The credentials are missing or wrong."""


class SlowReaderError(_Coded, code=7, name="slow_reader"):
    """The peer stopped reading its replies."""


class NodeRefusedError(_Coded, code=8, name="node_refused"):
    """Between nodes: the other node cannot take part as what it is, and trying again does not help.

    It is of another cluster, its name is taken, or its data directory is not the one that it had, or an older copy."""


# 100-199: the request as such.
class UnknownMethodError(_Coded, code=100, name="unknown_method"):
    """The server does not know this method."""


class InvalidRequestError(_Coded, code=101, name="invalid_request"):
    """The request's payload is malformed or breaks a documented limit."""


class DeadlineExceededError(_Coded, code=102, name="deadline_exceeded", outcome_known=False):
    """The deadline passed before an answer came; a write may have happened."""


class CancelledError(_Coded, code=103, name="cancelled", outcome_known=False):
    """The caller cancelled the request; a write may have happened."""


class OverloadedError(_Coded, code=104, name="overloaded", retryable=True):
    """The server has no room for this request now; nothing was done."""


class DrainingError(_Coded, code=105, name="draining", retryable=True):
    """The server is shutting down; nothing was done, ask another or come back."""


class InternalError(_Coded, code=106, name="internal", outcome_known=False):
    """A bug or a broken disk in the server; its log says more."""


class NotLeaderError(_Coded, code=107, name="not_leader", retryable=True):
    """Another node leads the group; nothing was done."""


class UnknownOutcomeError(_Coded, code=108, name="unknown_outcome", retryable=True, outcome_known=False):
    """The write may or may not have happened; a retry with the same identity finds out."""


class IdentityExpiredError(_Coded, code=109, name="identity_expired", outcome_known=False):
    """The retry came too late to tell whether its first attempt happened."""


class ConnectionLostError(_Coded, code=110, name="connection_lost", retryable=True, outcome_known=False):
    """The connection ended before the answer; a retry with the same identity finds out. Never on the wire."""


class StaleRouteError(_Coded, code=111, name="stale_route", retryable=True):
    """Some of the items' slots are not this group's any more; nothing was done. A newer cluster map says where."""


class TooEarlyError(_Coded, code=112, name="too_early", retryable=True):
    """The request came in 0-RTT data, which may be a replay; nothing was done, and a repetition is accepted."""


class PermissionDeniedError(_Coded, code=113, name="permission_denied"):
    """The method is for administrators; nothing was done."""


class UnsupportedError(_Coded, code=114, name="unsupported"):
    """The request requires a feature that the server does not have; nothing was done."""


class TooLargeError(InvalidRequestError, code=115, name="too_large"):
    """The request asks for too much at once, or changes too much; nothing was done: send its items in parts."""


class LogCutError(_Coded, code=116, name="log_cut", retryable=True):
    """This replica's log no longer has the entries behind the position; another replica may have them."""


class NotReplicaError(_Coded, code=117, name="not_replica", retryable=True):
    """This node has no replica of the group that can serve; ask another."""


class PositionAheadError(_Coded, code=118, name="position_ahead", retryable=True):
    """The replica has not come to the position; if it leads the group, the position is of a log that is lost."""


class UnknownTableError(_Coded, code=119, name="unknown_table", retryable=True):
    """The node has not heard of the table, or of all its fields, yet; nothing was done."""


class QuotaError(_Coded, code=121, name="quota", retryable=True):
    """A tenant or a principal asks for more a second than it may; nothing was done."""


class NotFreshError(_Coded, code=122, name="not_fresh", retryable=True):
    """The replica cannot prove that it is as new as the read wants; nothing was done. The leader answers."""


class TenantMovingError(_Coded, code=123, name="tenant_moving", retryable=True):
    """The tenant is on its way from one cluster to another, and neither serves it for a moment; nothing was done."""


class TenantMovedError(_Coded, code=124, name="tenant_moved"):
    """The tenant is in another cluster, which the text names; nothing was done."""


class IndexBuildingError(_Coded, code=120, name="index_building", retryable=True):
    """The index is being built: there is no list yet."""


# 200-299: one item of a batch.
class NotFoundError(_Coded, code=200, name="not_found"):
    """There is no such record."""


class FencedError(_Coded, code=201, name="fenced"):
    """A newer life (broker epoch or group generation) has been seen; this one is over."""


class NotOwnerError(_Coded, code=202, name="not_owner"):
    """Another broker owns the session."""


class ConflictError(_Coded, code=203, name="conflict"):
    """The record is not what the request expected it to be."""


class OffsetRegressionError(_Coded, code=204, name="offset_regression"):
    """In monotonic mode an offset may not go back."""


class InvalidItemError(_Coded, code=205, name="invalid_item"):
    """The item is malformed or breaks a documented limit."""


class QuotaExceededError(_Coded, code=208, name="quota_exceeded"):
    """What the item is to be a part of has as many parts as it may have, or as many bytes."""


class NoRoomError(QuotaExceededError, code=209, name="no_room"):
    """The disks of the group's nodes are too full for what takes more room; nothing was done. Deletes make room."""


class NoPlaceError(_Coded, code=210, name="no_place"):
    """There are fewer brokers that may have a replica than replicas; nothing was done."""


class NoReplicaError(_Coded, code=211, name="no_replica"):
    """The broker has no replica of the partition."""


class IneligibleError(_Coded, code=212, name="ineligible"):
    """The life of a broker that the item names is over, or not known to the group yet."""


class NoCandidateError(_Coded, code=213, name="no_candidate"):
    """Nobody who lives may lead the partition."""


def error_of(body: ErrorBody, current: int | None = None) -> MetadError:
    """The exception for a received error; a code from a newer peer becomes a plain :class:`InternalError`."""
    known = ERRORS.get(body.code)
    if known is None:
        return InternalError(f"unknown error code {body.code}: {body.message}")
    return known(
        body.message,
        retry_after_ms=body.retry_after_ms,
        retry_jitter_ms=body.retry_jitter_ms,
        leader=body.leader,
        current=current,
    )
