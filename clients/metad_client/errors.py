"""The errors that a caller may meet: the wire's, and one that only a client can raise.

All are a :class:`MetadError`. ``error.retryable`` says whether the same call may
succeed later; ``error.outcome_known`` is False if a write may have happened; ``error.current`` is the version,
offset, generation or epoch that a condition did not match.
"""

from __future__ import annotations

from metad_wire.errors import (
    CancelledError as CancelledError,
    ConflictError as ConflictError,
    ConnectionLostError as ConnectionLostError,
    CreditError as CreditError,
    DeadlineExceededError as DeadlineExceededError,
    DrainingError as DrainingError,
    ErrorBody,
    FencedError as FencedError,
    FrameError as FrameError,
    FrameTooLargeError as FrameTooLargeError,
    HandshakeError as HandshakeError,
    IdentityExpiredError as IdentityExpiredError,
    InternalError as InternalError,
    InvalidRequestError as InvalidRequestError,
    MetadError as MetadError,
    NotFoundError as NotFoundError,
    NotLeaderError as NotLeaderError,
    NotOwnerError as NotOwnerError,
    OffsetRegressionError as OffsetRegressionError,
    OverloadedError as OverloadedError,
    PermissionDeniedError as PermissionDeniedError,
    SlowReaderError as SlowReaderError,
    StaleRouteError as StaleRouteError,
    TooEarlyError as TooEarlyError,
    UnauthenticatedError as UnauthenticatedError,
    UnexpectedFrameError as UnexpectedFrameError,
    UnknownMethodError as UnknownMethodError,
    UnknownOutcomeError as UnknownOutcomeError,
    UnsupportedError as UnsupportedError,
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
    """An equal error for another caller: an exception keeps the traceback of the place that raises it."""
    twin = type(error)(
        error.message,
        retry_after_ms=error.retry_after_ms,
        retry_jitter_ms=error.retry_jitter_ms,
        leader=error.leader,
    )
    twin.current = error.current
    twin.__cause__ = error.__cause__
    return twin
