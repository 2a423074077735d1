"""Many answers that one event makes due, given in slices: everything else in the loop waits for one step only.

One round of heartbeats proves the lead for thousands of reads, one lost leadership ends thousands of requests, one
replica that goes ends thousands of streams. Whoever has many to answer gives each as a piece. So the work of a step is
bounded here, and not where an event happens. Pure.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

SLICE_PIECES = 128
"""Pieces in one step: each tells somebody something."""
SLICE_ROWS = 256
"""The same in rows that they have looked at, about a millisecond. The piece that reaches it is the last of its step."""

Piece = Callable[[], int | None]
"""Answers one; returns how many rows it has looked at, or nothing if it looks at none. It must not raise."""


class Slices:
    """``call_soon`` calls back in the next step of the loop."""

    def __init__(self, call_soon: Callable[[Callable[[], None]], object]) -> None:
        self._call_soon = call_soon
        self._pieces: deque[Piece] = deque()
        self._called = False
        self._count = self._rows = 0  # of this step

    def __len__(self) -> int:
        """How many pieces wait."""
        return len(self._pieces)

    def now(self, piece: Piece) -> None:
        """Do a piece at once, if nothing waits and this step has room for it; otherwise in its turn."""
        if self._pieces or self._is_full:
            self.later(piece)
        else:
            self._do(piece)

    def later(self, piece: Piece) -> None:
        """Do a piece in one of the next steps, after those that wait."""
        self._pieces.append(piece)
        self._again()

    @property
    def _is_full(self) -> bool:
        return self._count >= SLICE_PIECES or self._rows >= SLICE_ROWS

    def _again(self) -> None:
        if not self._called:
            self._called = True
            self._call_soon(self._next)

    def _do(self, piece: Piece) -> None:
        self._again()
        self._count += 1
        self._rows += piece() or 0

    def _next(self) -> None:
        self._called = False
        self._count = self._rows = 0
        while self._pieces and not self._is_full:
            self._do(self._pieces.popleft())
