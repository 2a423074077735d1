"""Whether the node goes on. What ends it is said here, once; whoever is about to do something looks here first."""

from __future__ import annotations

import logging
from collections.abc import Callable

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
        """Stop for good: nothing in flight can be told to have happened or not."""
        if self.failure is not None:
            return
        event("node failed", logging.ERROR, error=str(error))
        self.failure = error
        for listener in list(self.on_failure):
            listener(error)

    def stop_for_bug(self, error: BaseException) -> None:
        """A broken invariant: going on could lose or invent data, and the next start begins from what is on disk."""
        logging.getLogger("metad").error("a bug in the node", exc_info=error)
        self.fail(ServerError(f"stopped by a bug, see the log: {type(error).__name__}: {error}"))

    def stop_for(self, error: BaseException) -> None:
        """Whichever of the two it is: errors of the server's own say by themselves what is wrong."""
        if isinstance(error, ServerError):
            self.fail(error)
        else:
            self.stop_for_bug(error)
