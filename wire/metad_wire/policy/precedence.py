"""Small requests go before large ones, as far as that leaves large ones half of the time.

The loop does one thing at a time, and a small write passes through it several times on its way to the disk and back. If
it waited each time for a batch of a thousand items, or for a piece of a long read, one client's batches would make
everybody's small requests ten times slower. So after a heavy piece of work no other begins while small requests are in
progress, for as long as that piece took. If none is in progress, nothing waits.

Twice as long was measured to help small requests no more than that. In a storm, in which some small request is nearly
always in progress, it left the cores without work for a fifth of the time.
"""

from __future__ import annotations

from collections.abc import Callable

from .fair_queue import SHARE_BYTES, SHARE_ITEMS

SMALL_ITEMS = SHARE_ITEMS  # half a millisecond's work
_SMALL_BYTES = SHARE_BYTES  # also half a millisecond's work
_BYTES_PER_S = 2_000 * SHARE_BYTES
"""As fast as bytes of an entry are worked on at least, with what the log and the engine do with them later."""
_REST = 1  # in durations of a heavy piece of work: time for a small write to reach the disk and come back


def is_small(items: int, size: int) -> bool:
    """Whether a request of so many items (or rows that it looks at) and bytes goes before others."""
    return items <= SMALL_ITEMS and size <= _SMALL_BYTES


class Precedence:
    """The precedence of one node. ``now`` is its monotonic clock, in seconds."""

    def __init__(self, now: Callable[[], float]) -> None:
        self.now = now
        self.small = 0
        """Small writes that are not answered yet."""
        self._heavy_from_s = 0.0

    @property
    def heavy_wait_s(self) -> float:
        """How long heavy work still has to wait; 0 if it may begin."""
        return max(0.0, self._heavy_from_s - self.now()) if self.small else 0.0

    def heavy_done(self, begun_s: float, size: int = 0) -> None:
        """A piece of heavy work that began at ``begun_s`` is done; ``size``: bytes of the entries that it has made."""
        now_s = self.now()
        self._heavy_from_s = now_s + _REST * max(now_s - begun_s, size / _BYTES_PER_S)
