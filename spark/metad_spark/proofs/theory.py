"""Results of queueing theory for queues that the models can imitate. All times in seconds."""

from __future__ import annotations

import numpy as np

from ..errors import SimulationError

_STATES_MAX = 20_000


def md1_response_s(arrivals_per_s: float, service_s: float) -> float:
    """Mean time in an M/D/1 queue, service included, by Pollaczek and Khinchine. Raises SimulationError at a load from
    1 on."""
    load = arrivals_per_s * service_s
    if load >= 1:
        raise SimulationError(f"a queue with a load of {load:g} has no mean")
    return service_s + load * service_s / (2 * (1 - load))


def bulk_response_s(arrivals_per_s: float, fixed_s: float, item_s: float, batch_max: int) -> float:
    """Mean time in an M/D/1 queue with greedy bulk service, service included: whenever the server is free it takes the
    waiting items, at most ``batch_max``, and spends ``fixed_s + item_s * items`` on them.

    The Markov chain of the items that wait when a batch ends is solved numerically (Bailey, 1954, and Chaudhry and
    Templeton, "A First Course in Bulk Queues", 1983, treat this kind); Little's law converts means to times. Raises
    SimulationError if the load is 1 or more, or so near that the chain would not fit.
    """
    longest_s = fixed_s + item_s * batch_max
    if arrivals_per_s * longest_s >= batch_max:
        raise SimulationError(f"a queue with a load of {arrivals_per_s * longest_s / batch_max:g} has no mean")
    states = 4 * batch_max + 64
    while states <= _STATES_MAX:
        stationary = _stationary(arrivals_per_s, fixed_s, item_s, batch_max, states)
        if stationary[-batch_max:].sum() < 1e-12:
            return _response_s(stationary, arrivals_per_s, fixed_s, item_s, batch_max)
        states *= 2
    raise SimulationError("the queue is too long to be solved for")


def _batches(states: int, batch_max: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """The size of the next batch when so many wait; if none do, it is the first item that comes."""
    return np.clip(np.arange(states), 1, batch_max)


def _stationary(
    arrivals_per_s: float, fixed_s: float, item_s: float, batch_max: int, states: int
) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    batches = _batches(states, batch_max)
    coming = {}
    for size in range(1, batch_max + 1):
        mean = arrivals_per_s * (fixed_s + item_s * size)
        counts = np.arange(states)
        logs = counts * np.log(mean) - mean - np.concatenate(([0.0], np.cumsum(np.log(counts[1:]))))
        coming[size] = np.exp(logs)
    matrix = np.zeros((states, states))
    for waiting in range(states):
        left = max(0, waiting - int(batches[waiting]))
        matrix[waiting, left:] = coming[int(batches[waiting])][: states - left]
        matrix[waiting, -1] += max(0.0, 1.0 - matrix[waiting].sum())
    # pi P = pi with sum 1, as a linear system.
    system = matrix.T - np.eye(states)
    system[-1] = 1.0
    wanted = np.zeros(states)
    wanted[-1] = 1.0
    return np.asarray(np.linalg.solve(system, wanted))


def _response_s(
    stationary: np.ndarray[tuple[int], np.dtype[np.float64]],
    arrivals_per_s: float,
    fixed_s: float,
    item_s: float,
    batch_max: int,
) -> float:
    states = len(stationary)
    waiting = np.arange(states)
    batches = _batches(states, batch_max)
    service_s = fixed_s + item_s * batches
    left = np.maximum(waiting - batches, 0)
    # Over one cycle: the waiting items, integrated over time, and the length of the cycle.
    waited = left * service_s + arrivals_per_s * service_s**2 / 2
    cycle_s = service_s + np.where(waiting == 0, 1 / arrivals_per_s, 0.0)
    in_queue_s = float(stationary @ waited) / float(stationary @ cycle_s) / arrivals_per_s
    in_service_s = float(stationary @ (batches * service_s)) / float(stationary @ batches)
    return in_queue_s + in_service_s
