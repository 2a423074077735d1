"""What a call costs, in lines of Python: it is the same on every machine, as a time is not."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any


def lines_run(call: Callable[[], object], path: str | None = None) -> int:
    """How many lines a call runs; ``path``: of the code of this file only."""
    count = 0

    def trace(frame: FrameType, event: str, _: object) -> Any:
        nonlocal count
        if path is not None and frame.f_code.co_filename != path:
            return None
        count += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        call()
    finally:
        sys.settrace(before)
    return count
