"""The clients of a storm, in columns, and wheels that say which of them are due."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterator
from typing import Final

import numpy as np
import numpy.typing as npt

from metad_wire.policy.vector import Backoffs

from .cores import Machine
from .messages import Ints
from .storm import Storm

Floats = npt.NDArray[np.float64]
AWAY: Final = -1.0
TOLD: Final = ("attempts", "refused", "timeouts")
_FEW: Final = 64
"""Keys that are compared one by one: that is quicker than numpy's calls."""
_TURN: Final = 64
"""Ticks that are divided together."""


def divided(keys: Ints, one: Ints, other: Ints) -> Iterator[tuple[int, Ints, Ints]]:
    """Two columns by key, in order of the keys, and of the columns within."""
    if not len(keys):
        return
    order = keys.argsort(kind="stable")
    keys, one, other = keys[order], one[order], other[order]
    if len(keys) <= _FEW:
        begin, values = 0, keys.tolist()
        for at in range(1, len(values)):
            if values[at] != values[begin]:
                yield values[begin], one[begin:at], other[begin:at]
                begin = at
        yield values[begin], one[begin:], other[begin:]
        return
    begins = np.concatenate(([0], np.flatnonzero(np.diff(keys)) + 1)).tolist()
    for begin, end in zip(begins, [*begins[1:], len(keys)], strict=True):
        yield int(keys[begin]), one[begin:end], other[begin:end]


class Clients:
    """The state of all clients, in columns; times are seconds after the trigger."""

    def __init__(self, storm: Storm) -> None:
        count = len(storm.kinds)
        self.storm = storm
        self.begun_s = storm.begin_ns / 1e9
        self.restored_s: npt.NDArray[np.float64] = np.full(count, AWAY)
        self.attempts: Ints = np.zeros(count, dtype=np.int64)
        self.waited_us: Ints = np.zeros(count, dtype=np.int64)
        kinds = storm.settings.population.kinds
        self.rtt_s = np.array([kind.rtt_ms / 1e3 for kind in kinds])[storm.kinds]
        parts = [kind.subscriptions + kind.inflight for kind in kinds]
        self._parts: Ints = np.array(parts, dtype=np.int64)
        self._parts_alike = parts[0] if len(set(parts)) == 1 else None
        self.tenants = [kind.tenant.encode() for kind in kinds]
        self.backoffs = Backoffs(storm.backoffs)
        self.clock_us: Ints = np.zeros(0 if storm.budget is None else count, dtype=np.int64)
        """The clock of each client's retry budget."""
        self.lane: Ints = storm.brokers * storm.data_groups + storm.groups
        self.restored = self.sent = self.again = self.refused = self.timeouts = 0
        regions = list(dict.fromkeys(kind.region for kind in kinds))
        self.region: Ints = np.array([regions.index(kind.region) for kind in kinds], dtype=np.int64)[storm.kinds]
        shape = (len(regions), math.ceil(storm.settings.limit_s) + 1)
        self._told: dict[str, Ints] = {name: np.zeros(shape, dtype=np.int64) for name in TOLD}
        self._telling: dict[str, list[Ints]] = {name: [] for name in TOLD}
        """Those of this second, which are counted together."""
        self._second = 0

    def parts(self, clients: Ints) -> int:
        """What these restore: subscriptions and messages."""
        if self._parts_alike is not None:
            return self._parts_alike * len(clients)
        return int(self._parts[self.storm.kinds[clients]].sum())

    def tell(self, what: str, clients: Ints, now: float) -> None:
        """Count these clients."""
        if int(now) != self._second:
            self._count()
            self._second = int(now)
        self._telling[what].append(clients)

    def told(self, what: str) -> Ints:
        """Those that were counted, by region and second."""
        self._count()
        return self._told[what]

    def _count(self) -> None:
        for what, telling in self._telling.items():
            if telling:
                counts = self._told[what]
                regions = self.region[np.concatenate(telling)]
                second = min(self._second, counts.shape[1] - 1)
                counts[:, second] += np.bincount(regions, minlength=len(counts))
                telling.clear()


class Wheel:
    """Clients, and the ticks at which something is due for them. ``due`` is called at each tick that has some, and
    :meth:`take` gives them."""

    def __init__(self, machine: Machine, tick_s: float, due: Callable[[], None]) -> None:
        self._machine = machine
        self._tick_s = tick_s
        self._due = due
        self._spokes: dict[int, list[Ints]] = {}
        self._ticks: list[int] = []
        self._turns: dict[int, list[tuple[Ints, Ints]]] = {}
        """Clients and their ticks, of :data:`_TURN` ticks together that are far ahead."""
        self._turned = -1  # the last of these that has been divided into its ticks

    def push(self, where: Ints, due_s: Floats) -> None:
        """These clients are due at these times, rounded up to ticks."""
        if not len(where):
            return
        ticks = np.ceil(due_s / self._tick_s - 1e-9).astype(np.int64)
        for turn, part, of_part in divided(ticks // _TURN, where, ticks):
            if turn <= self._turned:
                self._at_ticks(part, of_part)
            elif (kept := self._turns.get(turn)) is None:
                self._turns[turn] = [(part, of_part)]
                self._machine.at((turn * _TURN - 1) * self._tick_s, self._turn, turn)
            else:
                kept.append((part, of_part))

    def is_due(self, now: float) -> bool:
        """Whether some are due by now."""
        return bool(self._ticks) and self._ticks[0] * self._tick_s <= now + 1e-9

    def take(self, now: float) -> list[Ints]:
        """Remove those that are due by now."""
        found: list[Ints] = []
        while self.is_due(now):
            found += self._spokes.pop(heapq.heappop(self._ticks))
        return found

    def _turn(self, turn: int) -> None:
        """Ticks are near: divide their clients. Once for many, because each is an event and an array."""
        self._turned = max(self._turned, turn)
        kept = self._turns.pop(turn)
        self._at_ticks(*(np.concatenate(each) for each in zip(*kept, strict=True)))

    def _at_ticks(self, where: Ints, ticks: Ints) -> None:
        for tick, part, _ in divided(ticks, where, ticks):
            spoke = self._spokes.get(tick)
            if spoke is None:
                self._spokes[tick] = [part]
                heapq.heappush(self._ticks, tick)
                self._machine.at(tick * self._tick_s, self._due)
            else:
                spoke.append(part)
