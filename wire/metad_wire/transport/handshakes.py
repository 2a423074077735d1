"""Steps of TLS handshakes, done in threads beside the event loop.

A step takes half a millisecond of signatures, and any stranger may ask for one. On the loop, a hundred requests of
connected clients would wait for it. OpenSSL releases the interpreter meanwhile, so a few threads do the steps, at a
lower priority than the loop: handshakes get the processor time that is left, which on an idle node is all of it.

Where the records of a TLS stream end (RFC 8446, 5.1) is found without decrypting anything (:class:`Records`). OpenSSL
processes records without data, such as new keys, in one call as long as it has any. A caller that feeds it a
limited number at a time bounds how long that call takes.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar

_HEAD_BYTES: Final = 5
_LENGTH_AT: Final = 3  # u16, the length of what follows the head


class Records:
    """Follows a stream chunk by chunk. ``whole`` counts the records that have ended."""

    def __init__(self) -> None:
        self.whole = 0
        self._left = 0  # bytes left of the current record, once its length is known
        self._head = b""  # of the next record, while it is incomplete

    def advance(self, data: bytes, at: int, count: int) -> int:
        """The offset where ``count`` records from ``at`` on have ended, or the end of the data if that comes first."""
        end = len(data)
        while at < end:
            if not self._left:
                known = len(self._head)
                head = self._head + data[at : at + _HEAD_BYTES - known]
                if len(head) < _HEAD_BYTES:
                    self._head = head
                    return end
                self._head = b""
                self._left = _HEAD_BYTES - known + int.from_bytes(head[_LENGTH_AT:], "big")
            step = min(self._left, end - at)
            at += step
            self._left -= step
            if not self._left:
                self.whole += 1
                count -= 1
                if not count:
                    break
        return at


THREADS_MAX: Final = 4
"""Half the processors, and at most this many: the rest is for event loops, of which a machine runs several."""
_NICER: Final = 5  # above the nice value of the loop's thread: a third of its share if both want the same processor

T = TypeVar("T")


class Handshakes:
    """The threads of one transport. The queue is bounded by the handshakes that may be under way, one step each."""

    def __init__(self) -> None:
        count = max(1, min(THREADS_MAX, (os.cpu_count() or 1) // 2))
        # The threads end with this object.
        self._threads = ThreadPoolExecutor(count, "metad-handshake", initializer=_yield_to_loops)

    def take(self, step: Callable[[], T], done: Callable[[T], None]) -> None:
        """Do a step in a thread, then call ``done`` with its result on the running loop. A step returns its failure."""

        def report(future: asyncio.Future[T]) -> None:
            if not future.cancelled():
                done(future.result())

        asyncio.get_running_loop().run_in_executor(self._threads, step).add_done_callback(report)


def _yield_to_loops() -> None:
    with contextlib.suppress(OSError, AttributeError):  # only Linux has priorities per thread
        thread = threading.get_native_id()
        os.setpriority(os.PRIO_PROCESS, thread, min(19, os.getpriority(os.PRIO_PROCESS, thread) + _NICER))
