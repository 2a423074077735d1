"""Quantities and lists as people read them. Pure."""

from __future__ import annotations

from collections.abc import Sequence

_UNITS = ("KiB", "MiB", "GiB", "TiB", "PiB")
_NAMED_MAX = 4  # of a list; more make the line unreadable


def duration(ms: int) -> str:
    """``450 ms``, ``12 s``, ``4 min 10 s``, ``3 h 20 min``, ``12 d 4 h``."""
    if ms < 1_000:
        return f"{ms} ms"
    seconds = ms // 1_000
    for size, unit, smaller, smaller_unit in ((86_400, "d", 3_600, "h"), (3_600, "h", 60, "min"), (60, "min", 1, "s")):
        if seconds >= size:
            rest = seconds % size // smaller
            return f"{seconds // size} {unit}" + (f" {rest} {smaller_unit}" if rest else "")
    return f"{seconds} s"


def size(count: int) -> str:
    """``512 B``, ``12.3 MiB``."""
    if count < 1_024:
        return f"{count} B"
    number = float(count)
    for unit in _UNITS:
        number /= 1_024
        if number < 1_023.95 or unit == _UNITS[-1]:
            return f"{number:.1f} {unit}"
    raise AssertionError("the last unit takes all")


def listed(names: Sequence[str]) -> str:
    """``n1``, ``n1 and n2``, ``n1, n2, n3 and 5 more``."""
    shown = (
        list(names) if len(names) <= _NAMED_MAX else [*names[: _NAMED_MAX - 1], f"{len(names) - _NAMED_MAX + 1} more"]
    )
    return " and ".join([", ".join(shown[:-1]), shown[-1]] if len(shown) > 1 else shown)
