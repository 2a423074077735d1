"""How a test on a real loop waits: for a condition, for as long as it takes, and never for a fixed time."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from typing import Any

WAIT_S = 120.0
"""What takes longer hangs: no machine is that slow."""
_LOOK_S = 0.005


async def until(condition: Callable[[], Any], what: str = "the condition", timeout_s: float = WAIT_S) -> Any:
    """Look until it is so; what it was. What ``condition`` gives is awaited if it can be. Raises AssertionError."""
    try:
        async with asyncio.timeout(timeout_s):
            while True:
                seen = condition()
                if inspect.isawaitable(seen):
                    seen = await seen
                if seen:
                    return seen
                await asyncio.sleep(_LOOK_S)
    except TimeoutError:
        raise AssertionError(f"{what}: not within {timeout_s} s") from None
