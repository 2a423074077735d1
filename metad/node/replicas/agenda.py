"""What the node's groups have for the next turns of the event loop. :mod:`.scheduler` works it off."""

from __future__ import annotations

from collections.abc import Callable

from ..environment import Environment
from .driver import GroupDriver


class Agenda:
    """The groups that wait for a turn, in order. The turns are called soon after something was put here."""

    def __init__(self, environment: Environment) -> None:
        self.dirty: dict[GroupDriver, None] = {}
        """Groups with requests that wait."""
        self.committed: dict[GroupDriver, None] = {}
        """Groups with entries to apply."""
        self.stalled: dict[GroupDriver, None] = {}
        """Groups whose writes wait until the leader is sure of itself."""
        self._environment = environment
        self._turn: Callable[[], None] = _nothing
        self._apply: Callable[[], None] = _nothing
        self._turn_scheduled = self._apply_scheduled = False
        self._wakes_replicas = False

    def serve(self, turn: Callable[[], None], apply: Callable[[], None]) -> None:
        """Have these called from now on: ``turn`` for what waits, ``apply`` for what is committed."""
        self._turn, self._apply = turn, apply

    def schedule(self, driver: GroupDriver | None = None) -> None:
        """Ask for a turn soon. A group that is given looks at its waiting requests in it."""
        if driver is not None:
            self.dirty[driver] = None
        if not self._turn_scheduled:
            self._turn_scheduled = True
            self._environment.call_soon(self._scheduled_turn)

    def woken(self) -> None:
        """Ask for a turn because a replica has something to do."""
        if not self._wakes_replicas:
            self.schedule()

    def commit(self, driver: GroupDriver) -> None:
        """Have the group's committed entries applied soon."""
        self.committed[driver] = None
        self.schedule_apply()

    def schedule_apply(self) -> None:
        """Have committed entries applied soon."""
        if not self._apply_scheduled:
            self._apply_scheduled = True
            self._environment.call_soon(self._scheduled_apply)

    def hold(self, driver: GroupDriver) -> None:
        """Apply nothing of the group until it is committed again. Otherwise it would hold up the others."""
        self.committed.pop(driver, None)

    def forget(self, driver: GroupDriver) -> None:
        """Drop everything of a group that is closed."""
        for drivers in (self.dirty, self.committed, self.stalled):
            drivers.pop(driver, None)

    def begin(self) -> list[GroupDriver]:
        """Take the groups whose requests wait. Until :meth:`end` no turn is needed for woken replicas: theirs comes
        next."""
        self._wakes_replicas = True
        taken = list(self.dirty)
        self.dirty.clear()
        return taken

    def end(self) -> None:
        """Ask for turns again if a replica wakes up."""
        self._wakes_replicas = False

    def put_first(self, drivers: list[GroupDriver]) -> None:
        """Have these groups come before those that wait already."""
        behind = list(self.dirty)
        self.dirty.clear()
        self.dirty.update(dict.fromkeys([*drivers, *behind]))

    def _scheduled_turn(self) -> None:
        self._turn_scheduled = False
        self._turn()

    def _scheduled_apply(self) -> None:
        self._apply_scheduled = False
        self._apply()


def _nothing() -> None:
    """Nobody serves the agenda yet."""
