"""Steps of TLS handshakes, done beside the event loop.

A step is half a millisecond of signatures that any stranger may ask for, and on the loop a hundred requests of those
who are in would wait for it. OpenSSL lets the interpreter go meanwhile, so a few threads do the steps, at a lower
priority than the loop's: handshakes get what the machine has left, all of it where the node is idle.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar

THREADS_MAX: Final = 4
"""Half the processors, and no more than so many: the rest is for loops, of which a machine runs several."""
_NICER: Final = 5  # than the loop's thread: a third of its share where both want the same processor

T = TypeVar("T")


class Handshakes:
    """The threads of one transport. Who waits is bounded by who may have a handshake under way, each with one step."""

    def __init__(self) -> None:
        count = max(1, min(THREADS_MAX, (os.cpu_count() or 1) // 2))
        # They end with this object.
        self._threads = ThreadPoolExecutor(count, "metad-handshake", initializer=_yield_to_loops)

    def take(self, step: Callable[[], T], done: Callable[[T], None]) -> None:
        """Do a step when its turn comes, then call ``done`` with its result on the running loop. A step does not raise:
        what failed is its result."""

        def report(future: asyncio.Future[T]) -> None:
            if not future.cancelled():
                done(future.result())

        asyncio.get_running_loop().run_in_executor(self._threads, step).add_done_callback(report)


def _yield_to_loops() -> None:
    with contextlib.suppress(OSError, AttributeError):  # threads have priorities of their own on Linux only
        thread = threading.get_native_id()
        os.setpriority(os.PRIO_PROCESS, thread, min(19, os.getpriority(os.PRIO_PROCESS, thread) + _NICER))
