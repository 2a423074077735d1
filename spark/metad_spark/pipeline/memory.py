"""Memory of a run: the driver, its JVM and its Python workers together."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import psutil

from .progress import repeated

_EVERY_S = 0.25
"""Often enough to catch a task's arrays, which live for seconds."""


class Peak:
    """The largest sum seen so far."""

    def __init__(self) -> None:
        self.rss_max_mib = 0.0

    def look(self) -> None:
        """Add up the resident memory of this process and all its descendants. Pages that forked workers share count in
        each of them, so the sum is never too small."""
        me = psutil.Process()
        total = 0
        for process in (me, *me.children(recursive=True)):
            with contextlib.suppress(psutil.Error):  # it ended between the listing and the reading
                total += process.memory_info().rss
        self.rss_max_mib = max(self.rss_max_mib, total / 2**20)


@contextlib.contextmanager
def watched() -> Iterator[Peak]:
    """Measures four times a second while the block runs, and once more at its end. Executors on other machines, and a
    Connect server that was there before, are not included."""
    peak = Peak()
    try:
        with repeated(peak.look, _EVERY_S, "memory"):
            yield peak
    finally:
        peak.look()
