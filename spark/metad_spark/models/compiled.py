"""Functions that numba compiles, and the cache that keeps the machine code from one process to the next.

Compiling takes seconds, and every Python worker of Spark is a process of its own. So machine code is kept on disk:
beside the source file, or in the user's cache directory if that cannot be written; ``NUMBA_CACHE_DIR`` names another.
Nothing is kept, and each process compiles once, if no directory can be written, or if the source comes out of a zip
that was sent to an executor and has another path each time.

The cache is keyed by the text of the file that contains the function. So everything that a kept function calls or reads
must be in the same file or come in as an argument: a change elsewhere would go unnoticed.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from numba import njit

F = TypeVar("F", bound=Callable[..., Any])


def compiled(function: F) -> F:
    """For functions that are called by functions of the same file, into which they are compiled. Divisions by zero give
    infinities, as in numpy, and nothing is reordered: sums are those of the source, on every machine."""
    made: Any = njit(error_model="numpy")(function)
    return made  # type: ignore[no-any-return]


def kept(function: F) -> F:
    """For functions called from Python. Compiled at the first call, and kept for other processes if possible."""
    if not Path(inspect.getfile(function)).exists():
        return compiled(function)
    try:
        made: Any = njit(error_model="numpy", cache=True)(function)
    except RuntimeError:  # no directory can be written
        return compiled(function)
    return made  # type: ignore[no-any-return]
