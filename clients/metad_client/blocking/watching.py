"""The blocking watch."""

from __future__ import annotations

import contextlib
from types import TracebackType
from typing import Self

from ..errors import ClosedError
from ..watch import watch
from ..watch.events import WatchBatch
from .portal import Portal
from .verbs import Twin


class Watch(Twin):
    """Changes as batches, each as soon as it comes: ``for batch in watch``. See :class:`metad_client.Watch`."""

    def __init__(self, portal: Portal, target: watch.Watch) -> None:
        super().__init__(portal, target)
        self._watch = target

    def opened(self) -> Self:
        """Wait until every group that the watch reads has begun its stream: changes from now on are seen. Raises the
        error that ends the watch, or ClosedError if it is closed meanwhile."""
        self._portal.run(self._watch.opened())
        return self

    @property
    def token(self) -> str:
        """Where a watch resumes, so that it delivers exactly what this one has not delivered; the token that it was
        given, or empty, until it has begun."""
        return self._portal.call(lambda: self._watch.token)

    @property
    def age_ms(self) -> float | None:
        """How old what was delivered may be, by the last words of the servers; None while that is not known. It is
        known if the watch was opened with ``progress_s``."""
        return self._portal.call(lambda: self._watch.age_ms)

    def close(self) -> None:
        """End it: the server sends nothing more, and the iteration ends. Safe to call again."""
        with contextlib.suppress(ClosedError):  # the client was closed, and so was the watch
            self._portal.run(self._watch.close())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> WatchBatch:
        try:
            batch = self._portal.run(self._watch.next())
        except ClosedError:
            batch = None
        if batch is None:
            raise StopIteration
        return batch

    def next(self) -> WatchBatch | None:
        """The next batch; None once the watch is closed, or its client."""
        return next(self, None)
