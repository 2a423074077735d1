"""Functions that numba compiles, and the cache that keeps the machine code from one process to the next.

Compiling takes seconds, and every Python worker of Spark is a process of its own. So machine code is kept on disk:
beside the source file, or in the user's cache directory if that cannot be written; ``NUMBA_CACHE_DIR`` names another.
Nothing is kept, and each process compiles once, if no directory can be written, or if the source comes out of a zip
that was sent to an executor and has another path each time.

The cache is keyed by the text of the file that contains the function. So everything that a kept function calls or reads
must be in the same file or come in as an argument: a change elsewhere would go unnoticed.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from numba import njit

_IN_PLACE: dict[str, Any] = {"_nrt": False}
"""Without numba's own memory, whose references it counts."""
F = TypeVar("F", bound=Callable[..., Any])


def in_place(function: F) -> F:
    """For functions that are called by functions of the same file, into which they are compiled, that work on arrays
    and make none. numba then counts no references to them, which it does atomically at every use, and which costs
    several times as much as a small step of work. Divisions by zero give infinities, as in numpy, and nothing is
    reordered: sums are those of the source, on every machine."""
    made: Any = njit(error_model="numpy", **_IN_PLACE)(function)
    return made  # type: ignore[no-any-return]


def inlined(function: F) -> F:
    """Like :func:`in_place`, for what is done once for each of millions of entries: a call would cost more than it."""
    made: Any = njit(error_model="numpy", **_IN_PLACE, forceinline=True)(function)
    return made  # type: ignore[no-any-return]


def kept_in_place(function: F) -> F:
    """For functions as those of :func:`in_place` that are called from Python. Compiled at the first call, and kept for
    other processes if possible."""
    made: Any
    if Path(inspect.getfile(function)).exists():
        with contextlib.suppress(RuntimeError):  # no directory can be written
            made = njit(error_model="numpy", cache=True, **_IN_PLACE)(function)
            return made  # type: ignore[no-any-return]
    made = njit(error_model="numpy", **_IN_PLACE)(function)
    return made  # type: ignore[no-any-return]
