"""How fast a core is while something is measured.

On a shared machine the same instructions take a third more CPU time in one minute than in the next, because the other
half of a core, its caches or its clock serve somebody else. CPU time says nothing of that, so each measurement has this
beside it: what costs are fitted to, and what a prediction is held against, are told at which speed.
"""

from __future__ import annotations

import threading
import time
from types import TracebackType
from typing import Final, Self

import numpy as np

_ADDITIONS: Final = 5_000
_READS: Final = 6_000
"""Half of a sample's time each: what an interpreter does, and what a store does."""
_MEMORY_ITEMS: Final = 1_000_000
"""Of 8 bytes: more than a core's own caches hold."""
_REST_S: Final = 0.02
"""Between two samples, which so take a hundredth of a core."""


class CoreSpeed:
    """Times a fixed piece of work now and then, in a thread, from entering to leaving."""

    def __init__(self) -> None:
        self._memory = np.arange(_MEMORY_ITEMS)
        self._places = np.random.default_rng(0).integers(0, _MEMORY_ITEMS, _READS)
        self._samples_ns = [self._sample_ns()]
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, name="core-speed", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._end.set()
        self._thread.join()

    @property
    def us(self) -> float:
        """CPU time of that work, microseconds: the mean of all samples until now."""
        return sum(self._samples_ns) / len(self._samples_ns) / 1000

    def _run(self) -> None:
        while not self._end.wait(_REST_S):
            self._samples_ns.append(self._sample_ns())

    def _sample_ns(self) -> int:
        begin_ns, total = time.thread_time_ns(), 0
        for number in range(_ADDITIONS):
            total += number
        self._memory[self._places].sum()
        self._places = (self._places + total) % _MEMORY_ITEMS  # others than those that the caches have now
        return time.thread_time_ns() - begin_ns
