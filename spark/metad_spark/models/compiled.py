"""Functions that numba compiles, and where what it made is kept from one process to the next.

Compiling takes seconds, and every Python worker of Spark's is a process of its own, so machine code is kept on disk:
beside the source file, or, where that cannot be written, in the user's cache directory; ``NUMBA_CACHE_DIR`` names
another. Where none can be written, and where the source comes out of a zip that was sent to an executor and has another
place each time, nothing is kept, and each process compiles once.

What is kept goes by the text of the one file in which the function is. So what a kept function calls or reads must be
in the same file or come in as an argument: a change elsewhere would go unnoticed.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from numba import njit

F = TypeVar("F", bound=Callable[..., Any])


def compiled(function: F) -> F:
    """To be called by functions of the same file, into which it is compiled. Divisions by zero give infinities, as
    numpy's do, and nothing is reordered: sums are those that the source says, on every machine."""
    made: Any = njit(error_model="numpy")(function)
    return made  # type: ignore[no-any-return]


def kept(function: F) -> F:
    """To be called from Python. Compiled at the first call, and kept for other processes where it can be."""
    if not Path(inspect.getfile(function)).exists():
        return compiled(function)
    try:
        made: Any = njit(error_model="numpy", cache=True)(function)
    except RuntimeError:  # no directory that can be written
        return compiled(function)
    return made  # type: ignore[no-any-return]
