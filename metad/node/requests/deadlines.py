"""Checks deadlines at intervals while something waits."""

from __future__ import annotations

from collections.abc import Callable

from ..environment import Environment, Timer

_EVERY_S = 0.1


class Deadlines:
    """Calls ``look`` with the time until it reports that nothing waits any more."""

    def __init__(self, environment: Environment, look: Callable[[float], bool]) -> None:
        self._environment = environment
        self._look = look
        self._timer: Timer | None = None

    def arm(self) -> None:
        """Start checking: something waits."""
        if self._timer is None:
            self._timer = self._environment.call_at(self._environment.now() + _EVERY_S, self._due)

    def stop(self) -> None:
        """Stop checking."""
        if self._timer is not None:
            self._timer.cancel()

    def _due(self) -> None:
        self._timer = None
        if self._look(self._environment.now()):
            self.arm()
