"""What the keys of several rows begin with, each once: found by a look behind each, without reading all rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from ...storage.keys import after_prefix
from .verb import Reader

_LOOK_ROWS: Final = 4
"""A look into the engine costs about as much as so many rows."""
_LOOKS_MAX: Final = 128
"""For one answer, and one round more: some three milliseconds, for which nobody else is served."""


def distinct(
    reader: Reader,
    prefixes: Sequence[bytes],
    start: bytes,
    begin: bytes,
    limit: int,
    first_of: Callable[[bytes], bytes],
    keep: Callable[[bytes], bool] = lambda first: True,
) -> tuple[list[bytes], bytes]:
    """The first fields of the keys behind ``prefixes`` that begin with ``start`` and come from ``begin`` on, in order;
    and where to go on, empty if these are all. ``first_of``: the fields of a key without its prefix."""
    ahead: list[bytes | None] = [b""] * len(prefixes)  # of each: the next fields that it has
    found: list[bytes] = []
    looks = 0
    while len(found) < limit and looks < _LOOKS_MAX:
        for number, prefix in enumerate(prefixes):
            known = ahead[number]
            if known is not None and (not known or known < begin):
                rows = reader.engine.scan(prefix + begin, after_prefix(prefix + start), 1)
                ahead[number] = first_of(rows[0][0][len(prefix) :]) if rows else None
                looks += 1
                reader.spent += _LOOK_ROWS
        first = min((one for one in ahead if one is not None), default=None)
        if first is None:
            return found, b""
        begin = after_prefix(first)
        if keep(first):
            found.append(first)
    return found, begin
