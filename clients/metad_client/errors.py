"""The errors a caller may meet: the wire's table, and the one that only a client can raise.

Catch :class:`MetadError` and nothing of metad escapes. ``error.retryable`` says whether the same call may
succeed later; ``error.outcome_known`` is False where a write may have happened; ``error.current`` is the version,
offset, generation or epoch that a condition did not match.
"""

from __future__ import annotations

from metad_wire.errors import (
    CancelledError,
    ConflictError,
    ConnectionLostError,
    CreditError,
    DeadlineExceededError,
    DrainingError,
    ErrorBody,
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
    error_of,
)
from metad_wire.messages import ItemError


class ClosedError(MetadError):
    """The client was closed before the answer came (you did it, not the peer); a write may have happened."""

    name = "closed"
    outcome_known = False


def error_of_item(item: ItemError) -> MetadError:
    """The exception for one failed item of a batch."""
    error = error_of(ErrorBody(item.code, item.message))
    error.current = item.current
    return error


def another(error: MetadError) -> MetadError:
    """An equal error for another caller: an exception gathers the traceback of whoever raises it."""
    twin = type(error)(
        error.message,
        retry_after_ms=error.retry_after_ms,
        retry_jitter_ms=error.retry_jitter_ms,
        leader=error.leader,
    )
    twin.current = error.current
    twin.__cause__ = error.__cause__
    return twin


__all__ = [
    "CancelledError",
    "ClosedError",
    "ConflictError",
    "ConnectionLostError",
    "CreditError",
    "DeadlineExceededError",
    "DrainingError",
    "FencedError",
    "FrameError",
    "FrameTooLargeError",
    "HandshakeError",
    "IdentityExpiredError",
    "InternalError",
    "InvalidRequestError",
    "MetadError",
    "NotFoundError",
    "NotLeaderError",
    "NotOwnerError",
    "OffsetRegressionError",
    "OverloadedError",
    "PermissionDeniedError",
    "SlowReaderError",
    "StaleRouteError",
    "TooEarlyError",
    "UnauthenticatedError",
    "UnexpectedFrameError",
    "UnknownMethodError",
    "UnknownOutcomeError",
    "UnsupportedError",
    "another",
    "error_of_item",
]
