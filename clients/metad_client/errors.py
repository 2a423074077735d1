"""The errors that a caller may meet: the wire's, and those that only a client can raise.

All are a :class:`MetadError`. ``error.retryable`` says whether the same call may
succeed later; ``error.outcome_known`` is False if the call may have changed something, which no read
has, and no call that was never sent; ``error.current`` is the version, offset, generation or epoch that a condition
did not match.
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
    IndexBuildingError as IndexBuildingError,
    QuotaError as QuotaError,
    InternalError as InternalError,
    InvalidItemError as InvalidItemError,
    InvalidRequestError as InvalidRequestError,
    LogCutError as LogCutError,
    MetadError as MetadError,
    NoPlaceError as NoPlaceError,
    NoRoomError as NoRoomError,
    NotFoundError as NotFoundError,
    NotFreshError as NotFreshError,
    TenantMovedError as TenantMovedError,
    TenantMovingError as TenantMovingError,
    NotLeaderError as NotLeaderError,
    NotOwnerError as NotOwnerError,
    NoReplicaError as NoReplicaError,
    NotReplicaError as NotReplicaError,
    IneligibleError as IneligibleError,
    NoCandidateError as NoCandidateError,
    OffsetRegressionError as OffsetRegressionError,
    OverloadedError as OverloadedError,
    PermissionDeniedError as PermissionDeniedError,
    PositionAheadError as PositionAheadError,
    QuotaExceededError as QuotaExceededError,
    SlowReaderError as SlowReaderError,
    StaleRouteError as StaleRouteError,
    TooEarlyError as TooEarlyError,
    TooLargeError as TooLargeError,
    UnauthenticatedError as UnauthenticatedError,
    UnexpectedFrameError as UnexpectedFrameError,
    UnknownMethodError as UnknownMethodError,
    UnknownOutcomeError as UnknownOutcomeError,
    UnknownTableError as UnknownTableError,
    UnsupportedError as UnsupportedError,
    error_of,
)
from metad_wire.messages import ItemError


class ClosedError(MetadError):
    """The client was closed before the answer came (you did it, not the peer), and a write may have happened; or it was
    not open when the call was made."""

    name = "closed"
    outcome_known = False


class ForeignCallError(MetadError, RuntimeError):
    """The client was used where it does not live: in another event loop or thread than its own, after its loop was
    closed, or while the interpreter shuts down. Nothing was done."""

    name = "foreign_call"


class ForkedError(ForeignCallError):
    """The client was used in a fork of the process that made it: its thread and its connections are not there."""

    name = "forked"


class ShrinkError(MetadError):
    """A topic would lose partitions or queues that may have messages which nobody has read. Nothing was done."""

    name = "shrink_refused"


class IncompatibleSchemaError(MetadError):
    """A schema does not go with the versions that its subject has, as these have to go together. Nothing was done."""

    name = "incompatible_schema"


class MissingExtraError(MetadError):
    """A package is not installed that the call needs, and that an extra of the SDK brings. Nothing was done."""

    name = "missing_extra"


def error_of_item(item: ItemError) -> MetadError:
    """The exception for one failed item of a batch."""
    return error_of(ErrorBody(item.code, item.message), item.current)


def another(error: MetadError, *, text: str = "", outcome_known: bool | None = None) -> MetadError:
    """An equal error for another caller, or with another text or outcome: an exception keeps the traceback of the place
    that raises it."""
    twin = type(error)(
        text or error.message,
        retry_after_ms=error.retry_after_ms,
        retry_jitter_ms=error.retry_jitter_ms,
        leader=error.leader,
        current=error.current,
        outcome_known=error.outcome_known if outcome_known is None else outcome_known,
    )
    twin.__cause__ = error.__cause__
    return twin
