"""The work beside a storm: small writes at an even pace, as ``metad_perf.storm.background`` sends them.

Their CPU time is a part of what a node uses without a storm (:attr:`.costs.Costs.idle_cores`). But they make entries of
their own, and while one is in progress heavy work rests (:mod:`metad_wire.policy.fair_queue`).
"""

from __future__ import annotations

from typing import Final

from .cores import Machine
from .messages import NOBODY, Request
from .node import Cluster

_TICK_S: Final = 0.02
_VERBS: Final = 3
"""Two of which are for the data groups, in turns, and one for a group of offsets."""
_DEADLINE_S: Final = 5.0


class Background:
    """Fifty times a second it asks all data groups for something, or the group of offsets that is behind them.
    ``per_s``: items a second."""

    def __init__(self, machine: Machine, cluster: Cluster, data_groups: int, per_s: float) -> None:
        self._machine = machine
        self._cluster = cluster
        self._data_groups = data_groups
        self._items = max(1, round(per_s * _TICK_S))
        self._ticks = 0
        machine.at(0.0, self._tick)

    def _tick(self) -> None:
        self._ticks += 1
        groups = range(self._data_groups) if self._ticks % _VERBS else (self._data_groups,)
        for group in groups:
            items = -(-self._items // len(groups))
            self.send(Request(self, NOBODY, group, 0, b"background", self._machine.now + _DEADLINE_S, background=items))
        self._machine.at(self._ticks * _TICK_S, self._tick)

    # --- Asker: nobody minds what becomes of it ---

    def send(self, request: Request) -> None:
        request.number += 1
        self._cluster.leaders[request.group].receive(request, request.number)

    def done(self, request: Request, now: float) -> None:
        pass

    def refused(self, request: Request, after_ms: int, jitter_ms: int, now: float) -> None:
        pass

    def lost(self, request: Request, now: float) -> None:
        pass
