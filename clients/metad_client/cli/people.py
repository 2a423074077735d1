"""Quantities and lists as people read them. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

_UNITS = ("KiB", "MiB", "GiB", "TiB", "PiB")
_LAST_MS = 253_402_300_799_000  # the end of the year 9999, after which there are no dates
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


def when(at_ms: int, now_ms: int) -> str | None:
    """A Unix time, and how far it is from now: ``01:40:12Z, 3 min 10 s ago``; None for 0. The date is there on other
    days."""
    if not at_ms:
        return None
    at, now = (datetime.fromtimestamp(ms / 1_000, UTC) for ms in (min(at_ms, _LAST_MS), now_ms))
    moment = at.strftime("%H:%M:%SZ" if at.date() == now.date() else "%Y-%m-%d %H:%MZ")
    distance = duration(abs(now_ms - at_ms))
    return f"{moment}, {distance} ago" if at_ms <= now_ms else f"{moment}, in {distance}"


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


def room(free_bytes: int, total_bytes: int, lasts_ms: int | None) -> str:
    """``41.0 GiB free of 100.0 GiB, lasts some 3 d``, without the last words if it lasts or is over."""
    lasts = f", lasts some {' '.join(duration(lasts_ms).split()[:2])}" if lasts_ms else ""
    return f"{size(free_bytes)} free of {size(total_bytes)}{lasts}"


def payload(content: bytes) -> str:
    """Bytes of somebody else: as text if they are UTF-8."""
    try:
        return content.decode()
    except UnicodeDecodeError:
        return f"{len(content)} bytes that are no text"


def listed(names: Sequence[str]) -> str:
    """``n1``, ``n1 and n2``, ``n1, n2, n3 and 5 more``."""
    shown = (
        list(names) if len(names) <= _NAMED_MAX else [*names[: _NAMED_MAX - 1], f"{len(names) - _NAMED_MAX + 1} more"]
    )
    return " and ".join([", ".join(shown[:-1]), shown[-1]] if len(shown) > 1 else shown)
