"""Lines to a descriptor, written beside the event loop: a reader that stops reading, or a disk that hangs, stops
nobody.

What finds no room in the queue is dropped and counted, and the count is said once the reader reads again.
"""

from __future__ import annotations

import logging
import os
import select
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Final, TextIO

QUEUED_BYTES_MAX: Final = 1024 * 1024
"""Of lines that wait to be written: some seconds of a log that is read, and no more memory than that of one that is
not."""
EXIT_S: Final = 1.0
"""For how long a process that ends waits until its last lines are written."""


class LineWriter:
    """Writes lines to a stream's descriptor in a thread of its own. ``dropped`` is called there, once lines are read
    again, with the number of those that were dropped; it may write a line."""

    def __init__(self, stream: TextIO, dropped: Callable[[int], None]) -> None:
        self._stream = stream
        self._descriptor = _descriptor_of(stream)
        self._tell_dropped = dropped
        self._changed = threading.Condition()
        self._lines: deque[bytes] = deque()
        self._bytes = 0
        self._dropped = 0
        self._idle = True
        self._thread: threading.Thread | None = None

    def write(self, line: str) -> None:
        """Have a line written, which ends here. Never waits."""
        data = line.encode(errors="backslashreplace") + b"\n"
        with self._changed:
            if self._bytes + len(data) > QUEUED_BYTES_MAX:
                self._dropped += 1
                return
            self._lines.append(data)
            self._bytes += len(data)
            self._idle = False
            if self._thread is None or not self._thread.is_alive():  # none yet, or it is of the process before a fork
                self._thread = threading.Thread(target=self._run, name="metad-lines", daemon=True)
                self._thread.start()
            self._changed.notify_all()

    def flush(self, timeout_s: float = EXIT_S) -> bool:
        """Wait until everything is written, for so long at most. True if it is."""
        with self._changed:
            return self._changed.wait_for(lambda: self._idle, timeout_s)

    def _run(self) -> None:
        while True:
            with self._changed:
                if not self._lines:
                    self._idle = True
                    self._changed.notify_all()
                    self._changed.wait_for(lambda: self._lines)
                data = self._lines.popleft()
            written = self._put(data)
            with self._changed:
                self._bytes -= len(data)
                self._dropped += not written
                dropped = self._dropped if written and 2 * self._bytes < QUEUED_BYTES_MAX else 0
                self._dropped -= dropped
            if dropped:
                self._tell_dropped(dropped)

    def _put(self, data: bytes) -> bool:
        """Write it all, however long that takes. False if it cannot be written."""
        if self._descriptor is None:
            with suppress(ValueError, OSError):
                self._stream.write(data.decode())
                self._stream.flush()
            return True
        left = memoryview(data)
        while left:
            try:
                left = left[os.write(self._descriptor, left) :]
            except BlockingIOError:
                select.select([], [self._descriptor], [])
            except OSError:  # nobody will read it
                return False
        return True


class LineHandler(logging.Handler):
    """Sends the records of a log to a :class:`LineWriter`."""

    def __init__(self, writer: LineWriter) -> None:
        super().__init__()
        self.writer = writer

    def emit(self, record: logging.LogRecord) -> None:
        """Queue the line of a record."""
        try:
            self.writer.write(self.format(record))
        except Exception:  # noqa: BLE001 - as the handlers of logging do
            self.handleError(record)


def _descriptor_of(stream: TextIO) -> int | None:
    try:
        return stream.fileno()
    except (OSError, ValueError, AttributeError):  # a test's, or none
        return None
