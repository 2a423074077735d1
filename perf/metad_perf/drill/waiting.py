"""Waits for a condition of another process, by looking again and again."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

POLL_S = 0.1


async def until(condition: Callable[[], bool], within_s: float) -> bool:
    """Whether the condition was met in time."""
    end = time.monotonic() + within_s
    while not condition():
        if time.monotonic() > end:
            return False
        await asyncio.sleep(POLL_S)
    return True
