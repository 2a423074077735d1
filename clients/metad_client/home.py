"""Where a client lives: one process, one thread, one event loop. A call from anywhere else would wait for an answer
that only that place can give, so it is refused at once. This is the only module that checks it."""

from __future__ import annotations

import asyncio
import sys
import threading

from metad_wire.program.forks import Process

from .errors import ForeignCallError, ForkedError, MetadError

_FORKED = (
    "the client belongs to the process that made it, and this is a fork of that process: connect anew after a fork, or "
    'start processes with multiprocessing\'s "spawn"; nothing was done'
)
_FOREIGN = (
    "a client belongs to the event loop that it was made in, and was called {}: make one there, or share a "
    "metad_client.blocking client between threads; nothing was done"
)
_ENDING = "the interpreter shuts down, and the client's thread runs no more: close the client before; nothing was done"


class Home:
    """The event loop that runs now, its thread and its process."""

    def __init__(self) -> None:
        self._process = Process()
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()

    def check(self) -> None:
        """Raise ForkedError or ForeignCallError if the caller is not in this event loop."""
        # Two loops never run in one thread at once. To ask which one runs would be a system call.
        if threading.get_ident() != self._thread or not self._loop.is_running() or not self._process.is_here:
            raise self._error()

    def check_process(self) -> None:
        """Raise ForkedError in a fork: for what any thread may read."""
        check_process(self._process)

    def _error(self) -> MetadError:
        if not self._process.is_here:
            return ForkedError(_FORKED)
        if self._loop.is_closed():
            where = "after that loop was closed"
        elif not self._loop.is_running():
            where = "while that loop did not run"
        else:
            where = "in another one"
        return ForeignCallError(_FOREIGN.format(where))


def check_process(process: Process) -> None:
    """Raise ForkedError in a fork of a process, ForeignCallError while the interpreter shuts down: threads run no more
    then."""
    if not process.is_here:
        raise ForkedError(_FORKED)
    if sys.is_finalizing():
        raise ForeignCallError(_ENDING)
