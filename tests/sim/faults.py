"""What simulated replicas and simulated nodes suffer alike: drawn now and then, and over after a while."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Generic, Protocol, TypeVar

_OUTAGE_S = 0.5  # of a node that has crashed, on average
_OUTAGE_MIN_S = 0.01


class Mortal(Protocol):
    """A node."""

    @property
    def up(self) -> bool:
        """Whether it lives."""

    def start(self) -> None:
        """Begin a life."""

    def crash(self, *, power: bool) -> None:
        """End it; with the power goes what was not synced."""

    def pause(self, seconds: float) -> None:
        """Let it do nothing for so long."""


N = TypeVar("N", bound=Mortal)
Weighted = tuple[Callable[[], None], float]
"""A fault, and how often it comes compared with the others."""


class Faults(Generic[N]):
    """The faults of one run. Whoever inherits has more of them, and says what nodes there are."""

    power_share: float
    """Of crashes, those that take the power as well."""
    pauses_s: Sequence[float]
    heals_s: Sequence[float]
    """How long links stay cut, about."""

    def __init__(self, rng: random.Random, every_s: float) -> None:
        self.over = False
        self._rng = rng
        self._every_s = every_s
        self._faults: list[Weighted] = []

    # --- of whoever inherits ---

    def later(self, seconds: float, what: Callable[[], None]) -> None:
        """Do it after a while."""
        raise NotImplementedError

    def everybody(self) -> Sequence[N]:
        """All nodes."""
        raise NotImplementedError

    def leader(self) -> N | None:
        """The leader of some group, if it has one."""
        raise NotImplementedError

    def heal(self) -> None:
        """Make every link whole."""
        raise NotImplementedError

    # --- now and then ---

    def begin(self) -> None:
        """The first comes soon, if there are any."""
        if self._faults:
            self._soon()

    def _soon(self) -> None:
        self.later(self._rng.expovariate(1 / self._every_s), self._act)

    def _act(self) -> None:
        if self.over:
            return
        self._rng.choices([fault for fault, _ in self._faults], [weight for _, weight in self._faults])[0]()
        self._soon()

    # --- of nodes ---

    def up(self) -> list[N]:
        """The nodes that live."""
        return [node for node in self.everybody() if node.up]

    def crash(self) -> None:
        """One."""
        if up := self.up():
            self._down(self._rng.choice(up))

    def crash_leader(self) -> None:
        """One that leads."""
        if leader := self.leader():
            self._down(leader)

    def blackout(self) -> None:
        """All at once."""
        for node in self.up():
            self._down(node)

    def pause(self) -> None:
        """One does nothing for a while."""
        if up := self.up():
            self._rng.choice(up).pause(self._about(self.pauses_s))

    def _down(self, node: N) -> None:
        node.crash(power=self._rng.random() < self.power_share)

        def wake() -> None:
            if not node.up:
                node.start()

        self.later(self._rng.expovariate(1 / _OUTAGE_S) + _OUTAGE_MIN_S, wake)

    # --- of links ---

    def heal_later(self) -> None:
        """What has just been cut is not cut for ever."""
        self.later(self._about(self.heals_s), self.heal)

    def _about(self, times_s: Sequence[float]) -> float:
        return self._rng.choice(times_s) * self._rng.uniform(0.5, 1.5)
