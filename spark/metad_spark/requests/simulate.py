"""One storm, from its settings and the costs of each step to what ``metad-perf storm`` would report of it.

Beside it are small writes at an even pace, as ``metad_perf.storm.background`` sends them. Their CPU time is a part of
what a node uses without a storm (:attr:`.costs.Costs.idle_cores`). But they make entries of their own, and while one is
in progress heavy work rests (:mod:`metad_wire.policy.fair_queue`).

When a broker begins a new life, the leaders look through all owner rows for the sessions of its old
one, some rows at a time, and name those that they find, as in ``metad.node.chores.session_sweeps`` and
``metad.node.chores.sweeps``.
"""

from __future__ import annotations

import itertools
import random
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt

from .brokers import Crew, begins_anew_s
from .clients import AWAY, Clients
from .cores import Machine
from .costs import Costs, working_set
from .messages import NOBODY, Request
from .node import Cluster, Node
from .storm import Storm
from .way import Way

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
_ANSWER_S: Final = 5.0


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
            request = Request(self, NOBODY, group, 0, b"sweep", now + _ANSWER_S, background=items)
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


_KILL_LOOK_S: Final = 0.1
"""How often the harness looks whether it is time to kill the leader."""
_LOOK_STEPS: Final = 2_000
"""Whoever looks on is told after so many events."""
CURVE_POINTS: Final = 1_000


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a storm. Times are in seconds, each client's from when it lost its connection; None where fewer
    clients came back."""

    returning: int
    restored: int
    t50_s: float | None
    t99_s: float | None
    t999_s: float | None
    attempts_per_session: float
    rejected: int
    timeouts: int
    storm_s: tuple[float | None, float | None, float | None]
    """As ``t50_s``, ``t99_s`` and ``t999_s``, from the trigger on."""
    node_cpu_s: list[float]
    broker_cpu_s: list[float]
    waits_s: tuple[float, ...]
    """Quantiles, evenly spaced, over the clients that were to come back; infinite for those that did not."""

    @property
    def recovered(self) -> bool:
        """Whether everybody came back."""
        return self.restored == self.returning


def quantiles(waited_s: npt.NDArray[np.float64]) -> tuple[float, ...]:
    """The curve of a storm in :data:`CURVE_POINTS` points. ``waited_s``: infinite for a client that is not back."""
    if not len(waited_s):
        return ()
    ordered = np.sort(waited_s)
    at = np.ceil((np.arange(CURVE_POINTS) + 1) / CURVE_POINTS * len(ordered) - 1e-9).astype(np.int64) - 1
    return tuple(ordered[np.maximum(at, 0)].tolist())


def restored_by_s(waited_s: npt.NDArray[np.float64], percent: float) -> float | None:
    """The time by which that share of all clients was back. ``waited_s``: infinite for one that is not."""
    wanted = int(np.ceil(len(waited_s) * percent / 100 - 1e-9))
    if not wanted:
        return None
    found = float(np.partition(waited_s, wanted - 1)[wanted - 1])
    return None if found == float("inf") else found


def _times(waited_s: npt.NDArray[np.float64]) -> tuple[float | None, float | None, float | None]:
    return restored_by_s(waited_s, 50.0), restored_by_s(waited_s, 99.0), restored_by_s(waited_s, 99.9)


Look: TypeAlias = Callable[[float, int], None]
"""Is told now and then how many simulated seconds are over, and how many clients are back."""


class Played(NamedTuple):
    """A storm that is over."""

    clients: Clients
    cluster: Cluster
    processes: list[Crew]


def play(storm: Storm, costs: Costs, seed: int = 0, look: Look | None = None) -> Played:
    """Let a storm happen. The same storm, costs and seed give the same one."""
    settings = storm.settings
    crews = settings.processes
    costs = costs.at_speed(storm.core_us)
    unused = costs.unused_cores + costs.unled_cores * max(0, storm.nodes - storm.data_groups)
    cores = max(0.1 * costs.cores, costs.cores - costs.idle_cores * storm.nodes)
    machine = Machine(cores, storm.beside, min(unused, cores / 2))
    rng = random.Random(seed)
    cluster = Cluster(
        machine,
        costs,
        rng,
        nodes=storm.nodes,
        groups=storm.data_groups + 1,  # one of offsets
        sessions=working_set(settings.sessions, storm.returning),
        queue_s=storm.queue_s,
        fsync=storm.fsync,
    )
    clients = Clients(storm)
    way = Way(machine, clients) if storm.keeps else None
    processes = [Crew(machine, cluster, costs, clients, way, number, seed) for number in range(crews)]
    sweep_restarts(machine, cluster, clients, begins_anew_s(storm, costs))
    if settings.background:
        Background(machine, cluster, storm.data_groups, settings.background)
    returning = storm.returning
    for change in storm.leader_changes:
        machine.at(change.at_s, cluster.hand_over, change)
    if settings.trigger == "leader-kill":
        machine.at(0.0, _look, machine, cluster, clients, settings.kill_at * returning)
    steps = itertools.count()

    def over() -> bool:
        if look is not None and next(steps) % _LOOK_STEPS == 0:
            look(machine.now, clients.restored)
        return clients.restored >= returning

    machine.run(settings.limit_s, over)
    return Played(clients, cluster, processes)


def simulate(storm: Storm, costs: Costs, seed: int = 0, look: Look | None = None) -> Outcome:
    """Predict a storm."""
    clients, cluster, processes = play(storm, costs, seed, look)
    returning = storm.returning
    back = clients.restored_s[storm.returns]
    waited_s = np.where(back == AWAY, np.inf, back - storm.begin_ns[storm.returns] / 1e9)
    t50_s, t99_s, t999_s = _times(waited_s)
    return Outcome(
        returning=returning,
        restored=clients.restored,
        t50_s=t50_s,
        t99_s=t99_s,
        t999_s=t999_s,
        attempts_per_session=(clients.sent + clients.again) / max(1, returning),
        rejected=clients.refused,
        timeouts=clients.timeouts,
        storm_s=_times(np.where(back == AWAY, np.inf, back)),
        node_cpu_s=[node.process.used_s for node in cluster.nodes],
        broker_cpu_s=[crew.process.used_s for crew in processes],
        waits_s=quantiles(waited_s),
    )


def _look(machine: Machine, cluster: Cluster, clients: Clients, wanted: float) -> None:
    if clients.restored >= wanted:
        cluster.kill(0)  # it leads metadata-0, and its share of the others
    else:
        machine.at(machine.now + _KILL_LOOK_S, _look, machine, cluster, clients, wanted)
