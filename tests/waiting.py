"""How a test on a real loop waits: for a condition, for as long as it takes, and never for a fixed time."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Callable
from typing import Any

WAIT_S = 120.0
"""What takes longer hangs: no machine is that slow."""
_PAUSE_S = 0.002
_PAUSE_MAX_S = 1.0
_PAUSE_SHARE = 0.03
"""Of what was waited already: a process takes a second to start, and hundreds of looks each while hundreds start."""


async def until(condition: Callable[[], Any], what: str = "the condition", timeout_s: float = WAIT_S) -> Any:
    """Look until it is so; what it was. What ``condition`` gives is awaited if it can be. Raises AssertionError."""
    try:
        async with asyncio.timeout(timeout_s):
            first_s = time.monotonic()
            while True:
                begin_s = time.monotonic()
                seen = condition()
                if inspect.isawaitable(seen):
                    seen = await seen
                if seen:
                    return seen
                await asyncio.sleep(_pause_s(first_s, begin_s))
    except TimeoutError:
        raise AssertionError(f"{what}: not within {timeout_s} s") from None


def wait_until(condition: Callable[[], object], what: str, timeout_s: float = WAIT_S) -> None:
    """The same without a loop."""
    first_s = time.monotonic()
    while True:
        begin_s = time.monotonic()
        if condition():
            return
        if time.monotonic() > first_s + timeout_s:
            raise AssertionError(f"{what}: not within {timeout_s} s")
        time.sleep(_pause_s(first_s, begin_s))


def _pause_s(first_s: float, begin_s: float) -> float:
    """Before the next look, after one that began at ``begin_s``: looking takes a quarter of the time at most. A look
    may start a command, or read a long log, and what is waited for needs the processors, too."""
    now_s = time.monotonic()
    return min(max(_PAUSE_S, 3 * (now_s - begin_s), _PAUSE_SHARE * (now_s - first_s)), _PAUSE_MAX_S)
