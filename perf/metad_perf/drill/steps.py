"""The looks of a drill: what was looked at, what should have been seen, and what was."""

from __future__ import annotations

from collections.abc import Callable

import msgspec


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """One look, or one command and its answer."""

    what: str
    expected: str
    seen: str
    passed: bool


class Steps:
    """All looks of a drill so far. ``tell`` hears of each, and of what is done in between."""

    def __init__(self, tell: Callable[[str], None]) -> None:
        self.all: list[Step] = []
        self._tell = tell

    def done(self, what: str) -> None:
        """Something was done to a node."""
        self._tell(f"  {what}")

    def saw(self, what: str, expected: str, seen: str, passed: bool) -> None:
        """Somebody looked."""
        self.all.append(Step(what=what, expected=expected, seen=seen, passed=passed))
        self._tell(f"  {'✓' if passed else '✗'} {what}: {seen if passed else f'expected {expected}, saw {seen}'}")
