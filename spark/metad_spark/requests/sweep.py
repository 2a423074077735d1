"""What follows when a broker begins a new life: the leaders look through all owner rows for the sessions of its old
one, some rows at a time, and name those that they find. As in ``metad.node.chores.lost_sweep`` and
``metad.node.chores.sweeps``.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

import numpy as np

from .brokers import AWAY, Clients
from .cores import Machine
from .messages import NOBODY, Request
from .node import Cluster, Node

PASS_ROWS: Final = 500
"""Owner rows that are looked at in one turn."""
BATCH: Final = 25
"""Sessions that one request names, as the server's ``expiry.batch_sessions``."""
REST: Final = 4
"""In durations of a turn: the rest behind it."""
LOOK_S: Final = 0.25
"""How often an idle node looks for something to sweep."""
TURN_S: Final = 1.0
"""A turn that has taken so long keeps the next one waiting no more."""
_REST_MIN_S: Final = 0.002
_DEADLINE_S: Final = 5.0


class Sweep:
    """The sweep of one node."""

    def __init__(self, machine: Machine, cluster: Cluster, clients: Clients, node: Node, groups: Sequence[int]) -> None:
        self._machine = machine
        self._node = node
        self._costs = cluster.costs
        self._clients = clients
        self._sessions = {group: np.flatnonzero(clients.storm.groups == group) for group in groups}
        self._turns = deque(groups)
        self._fences: dict[int, set[int]] = {group: set() for group in groups}  # brokers whose old life is to be swept
        self._passing: dict[int, set[int]] = {}  # those for which a group looks through its rows
        self._read = dict.fromkeys(groups, 0)  # rows of this pass so far
        self._lost = dict.fromkeys(groups, 0)  # sessions found in them that are not named yet
        self._begun_s: float | None = None  # when the last turn began; None: there was nothing to do
        self._taken = 0  # turns so far
        machine.at(LOOK_S, self._look, 1)

    def fenced(self, broker: int) -> None:
        """A broker has begun its next life."""
        for fences in self._fences.values():
            fences.add(broker)

    def _look(self, count: int) -> None:
        self._machine.at((count + 1) * LOOK_S, self._look, count + 1)
        if self._begun_s is None or self._machine.now - self._begun_s >= TURN_S:
            self._take(self._taken)

    def _take(self, taken: int) -> None:
        if taken == self._taken:  # or a look has begun the next one
            self._taken += 1
            self._begun_s = self._machine.now
            self._node.process.add(self._turn)

    def _turn(self, begun_s: float) -> tuple[float, Callable[[float], None] | None]:
        self._begun_s = None
        for _ in range(len(self._turns)):
            group = self._turns[0]
            self._turns.rotate(-1)
            if group in self._passing or self._fences[group]:
                self._begun_s = begun_s
                return self._work(group, begun_s)
        return 0.0, None

    def _work(self, group: int, begun_s: float) -> tuple[float, Callable[[float], None]]:
        costs, cost_s = self._costs, 0.0
        if group not in self._passing:
            self._passing[group], self._fences[group] = self._fences[group], set()
            self._read[group] = 0
        if not self._lost[group]:
            rows = self._sessions[group][self._read[group] : self._read[group] + PASS_ROWS]
            self._read[group] += len(rows)
            gone = np.isin(self._clients.storm.brokers[rows], list(self._passing[group]))
            self._lost[group] = int((gone & (self._clients.restored_s[rows] == AWAY)).sum())
            cost_s = costs.sweep_row_s * len(rows)
        named = min(BATCH, self._lost[group])
        self._lost[group] -= named
        cost_s += named * (costs.restore_s + costs.item_s)
        is_over = not self._lost[group] and self._read[group] >= len(self._sessions[group])
        if is_over:
            del self._passing[group]
        return cost_s, lambda end: self._ask(group, named + is_over, begun_s, end)

    def _ask(self, group: int, items: int, begun_s: float, now: float) -> None:
        """Name what was found, or say that the pass is over."""
        if items:
            request = Request(self, NOBODY, group, 0, b"sweep", now + _DEADLINE_S, background=items)
            request.sent_s = begun_s
            request.small = False  # nobody waits for it
            self.send(request)
        else:  # the turn ends once the loop has done what waits
            self._node.process.add(lambda at: (0.0, lambda end: self._rest(begun_s, end)))

    def _rest(self, begun_s: float, now: float) -> None:
        if begun_s == self._begun_s:  # or the next one did not wait for it
            self._machine.at(now + max(_REST_MIN_S, REST * (now - begun_s)), self._take, self._taken)

    # --- Asker ---

    def send(self, request: Request) -> None:
        request.number += 1
        self._node.receive(request, request.number)

    def done(self, request: Request, now: float) -> None:
        self._rest(request.sent_s, now)

    def refused(self, request: Request, after_ms: int, jitter_ms: int, now: float) -> None:
        self._rest(request.sent_s, now)

    def lost(self, request: Request, now: float) -> None:
        self._rest(request.sent_s, now)


def sweep_restarts(machine: Machine, cluster: Cluster, clients: Clients, ready_s: Sequence[float]) -> None:
    """All nodes sweep. ``ready_s``: when each broker begins its next life, in seconds; none if they do not."""
    if not ready_s:
        return
    led = range(clients.storm.data_groups)
    sweeps = [
        Sweep(machine, cluster, clients, node, [group for group in led if cluster.leaders[group] is node])
        for node in cluster.nodes
    ]
    for broker, at_s in enumerate(ready_s):
        for sweep in sweeps:
            machine.at(at_s, sweep.fenced, broker)
