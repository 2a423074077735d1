"""Whether the node works. A failure is recorded here, once, and checked here before any further step."""

from __future__ import annotations

from collections.abc import Callable

from .. import log_events
from ..errors import ServerError
from ..logs import event


class Health:
    """``failure`` is why the node has stopped, or None while it works."""

    def __init__(self) -> None:
        self.failure: ServerError | None = None
        self.on_failure: list[Callable[[ServerError], None]] = []

    def end(self, error: ServerError) -> None:
        """Do nothing more. Nobody is told, because whoever ends the node does the rest."""
        self.failure = error

    def fail(self, error: ServerError) -> None:
        """Stop for good: the outcome of requests in flight cannot be told any more."""
        if self.failure is not None:
            return
        event(log_events.NODE_FAILED, error=str(error))
        self.failure = error
        for listener in list(self.on_failure):
            listener(error)

    def stop_for_bug(self, error: BaseException) -> None:
        """Stop for a broken invariant: going on could lose or invent data, and the next start begins from the disk."""
        event(log_events.BUG, exc_info=error, where="the node")
        self.fail(ServerError(f"stopped by a bug, see the log: {type(error).__name__}: {error}"))

    def stop_for(self, error: BaseException) -> None:
        """Stop for a server's own error, which says what is wrong, or otherwise for a bug."""
        if isinstance(error, ServerError):
            self.fail(error)
        else:
            self.stop_for_bug(error)
