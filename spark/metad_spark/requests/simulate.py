"""One storm, from its settings and the costs of each step to what ``metad-perf storm`` would report of it."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt

from .background import Background
from .brokers import AWAY, Clients, Crew, begins_anew_s
from .cores import Machine
from .costs import Costs, working_set
from .node import Cluster
from .storm import Storm
from .sweep import sweep_restarts

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


def simulate(storm: Storm, costs: Costs, seed: int = 0, look: Callable[[float, int], None] | None = None) -> Outcome:
    """Predict a storm. The same storm, costs and seed give the same outcome. ``look`` is told now and then how many
    simulated seconds are over, and how many clients are back."""
    settings = storm.settings
    crews = settings.processes
    costs = costs.at_speed(storm.core_us)
    unused = costs.unused_cores + costs.unled_cores * max(0, storm.nodes - storm.data_groups)
    cores = costs.cores - costs.idle_cores * storm.nodes - unused
    machine = Machine(max(0.1 * costs.cores, cores), storm.beside)
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
    processes = [Crew(machine, cluster, costs, clients, number, seed) for number in range(crews)]
    sweep_restarts(machine, cluster, clients, begins_anew_s(storm, costs))
    if settings.background:
        Background(machine, cluster, storm.data_groups, settings.background)
    returning = storm.returning
    if settings.trigger == "leader-kill":
        machine.at(0.0, _look, machine, cluster, clients, settings.kill_at * returning)
    steps = itertools.count()

    def over() -> bool:
        if look is not None and next(steps) % _LOOK_STEPS == 0:
            look(machine.now, clients.restored)
        return clients.restored >= returning

    machine.run(settings.limit_s, over)
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
