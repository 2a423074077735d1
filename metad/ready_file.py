"""The file that says that a process serves, written and removed beside the loop: its disk may hang."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from . import log_events
from .errors import ServerError, is_full
from .logs import event

_WRITE_S: Final = 5.0
_REMOVE_S: Final = 60.0
_AGAIN_S: Final = 1.0
_wanted: Final = set[Path]()  # written, or to be written once their disk has room


async def write_ready(path: Path, body: Mapping[str, Any]) -> None:
    """Write a ready file, which appears whole or not at all, beside the loop. If the disk hangs or is full, it appears
    when that is over, and nobody waits longer than some seconds. Raises ServerError if it cannot be written."""
    loop = asyncio.get_running_loop()
    written: asyncio.Future[OSError | None] = loop.create_future()

    def told(error: OSError | None) -> None:
        if not written.done():
            written.set_result(error)

    def write() -> None:
        error: OSError | None = None
        temporary = path.with_name(path.name + ".tmp")
        while path in _wanted:
            try:
                temporary.write_text(json.dumps(body) + "\n")
                os.replace(temporary, path)
            except OSError as caught:
                if is_full(caught):
                    time.sleep(_AGAIN_S)
                    continue
                error = caught
            break
        with contextlib.suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(told, error)

    _wanted.add(path)
    _beside(write)
    try:
        async with asyncio.timeout(_WRITE_S):
            error = await written
    except TimeoutError:
        event(log_events.READY_FILE_LATE, path=str(path))
        return
    if error is not None:
        raise ServerError(f"cannot write the ready file {path}: {error.strerror}")


def remove_ready(path: Path | None, wait_s: float = _REMOVE_S) -> None:
    """Remove a ready file, if there is one. Waits for so long at most."""
    if path is None:
        return
    _wanted.discard(path)

    def remove() -> None:
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            event(log_events.READY_FILE_REMAINS, path=str(path), error=error.strerror)

    _beside(remove).join(wait_s)


def _beside(work: Callable[[], None]) -> threading.Thread:
    """Do what the disk may keep waiting in a thread of its own, for which the process does not wait when it ends."""
    thread = threading.Thread(target=work, name="metad-ready-file", daemon=True)
    thread.start()
    return thread
