"""Results of queueing theory for queues that the models can imitate. All times in seconds."""

from __future__ import annotations

import math

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


def mg1_response_s(arrivals_per_s: float, mean_s: float, square_s2: float) -> float:
    """Mean time in an M/G/1 queue, service included, given the mean of the service time and of its square, by
    Pollaczek (1930) and Khinchine (1932). Raises SimulationError at a load from 1 on."""
    load = arrivals_per_s * mean_s
    if load >= 1:
        raise SimulationError(f"a queue with a load of {load:g} has no mean")
    return mean_s + arrivals_per_s * square_s2 / (2 * (1 - load))


def md1_wait_share(arrivals_per_s: float, service_s: float, wait_s: float) -> float:
    """The share of an M/D/1 queue's customers that wait no longer, by Erlang (1909); Crommelin (1932) has it for
    several servers. An alternating sum: good for waits of up to some twenty services."""
    load = arrivals_per_s * service_s
    total = 0.0
    for k in range(int(wait_s / service_s + 1e-12) + 1):
        x = arrivals_per_s * (wait_s - k * service_s)
        total += (-x) ** k / math.factorial(k) * math.exp(x)
    return (1 - load) * total


def md1_wait_quantile_s(arrivals_per_s: float, service_s: float, share: float) -> float:
    """The wait that so large a share of an M/D/1 queue's customers do not exceed. Raises SimulationError at a load from
    1 on, and where the wait is longer than the sum is good for."""
    if arrivals_per_s * service_s >= 1:
        raise SimulationError(f"a queue with a load of {arrivals_per_s * service_s:g} has no distribution")
    low, high = 0.0, 20 * service_s
    if md1_wait_share(arrivals_per_s, service_s, high) < share:
        raise SimulationError("the wait is too long for its sum to be exact")
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if md1_wait_share(arrivals_per_s, service_s, middle) < share else (low, middle)
    return high


def md1k_blocking(arrivals_per_s: float, service_s: float, waiting_max: int) -> float:
    """The share of arrivals that an M/D/1 queue turns away in which so many may wait besides the one in service. The
    chain of customers that a departure leaves behind gives it (Keilson, 1966; Gross and Harris, "Fundamentals of
    Queueing Theory", section 5.1.8)."""
    load = arrivals_per_s * service_s
    states = waiting_max + 1
    coming = [math.exp(-load) * load**k / math.factorial(k) for k in range(states)]
    # Unnormalised: the chain goes down by one at most, so each state follows from those before.
    chain = [1.0]
    for left in range(states - 1):
        known = chain[0] * coming[left] + sum(chain[j] * coming[left - j + 1] for j in range(1, left + 1))
        chain.append((chain[left] - known) / coming[0])
    return 1 - 1 / (chain[0] / sum(chain) + load)


def mmc_response_s(arrivals_per_s: float, service_s: float, servers: int) -> float:
    """Mean time in an M/M/c queue, service included, by Erlang (1917). It is also that of any kind of service whose
    mean is the same if all customers share the servers evenly, at most one each (Cohen, "The Multiple Phase Service
    Network with Generalized Processor Sharing", 1979). Raises SimulationError at a load from 1 on."""
    offered = arrivals_per_s * service_s
    if offered >= servers:
        raise SimulationError(f"a queue with a load of {offered / servers:g} has no mean")
    below = sum(offered**k / math.factorial(k) for k in range(servers))
    waiting = offered**servers / math.factorial(servers) / (1 - offered / servers)
    return service_s + waiting / (below + waiting) * service_s / (servers - offered)


def mdc_response_s(arrivals_per_s: float, service_s: float, servers: int) -> float:
    """Mean time in an M/D/c queue, service included. Of the customers that are there, those in service have left a
    service later, and nobody else has: so their number, seen once in each service, is a chain (Crommelin, 1932), which
    is solved numerically; Little's law converts means to times. Raises SimulationError at a load from 1 on, or so near
    that the chain would not fit."""
    offered = arrivals_per_s * service_s
    if offered >= servers:
        raise SimulationError(f"a queue with a load of {offered / servers:g} has no mean")
    states = 8 * servers + 64
    while states <= _STATES_MAX // 4:
        counts = np.arange(states)
        logs = counts * np.log(offered) - offered - np.concatenate(([0.0], np.cumsum(np.log(counts[1:]))))
        coming = np.exp(logs)
        matrix = np.zeros((states, states))
        for there in range(states):
            left = max(0, there - servers)
            matrix[there, left:] = coming[: states - left]
            matrix[there, -1] += max(0.0, 1.0 - matrix[there].sum())
        stationary = _solved(matrix)
        if stationary[-servers - 1 :].sum() < 1e-12:
            waiting = float((np.maximum(counts - servers, 0) * stationary).sum())
            return service_s + waiting / arrivals_per_s
        states *= 2
    raise SimulationError("the queue is too long to be solved for")


def bulk_all_response_s(arrivals_per_s: float, service_s: float) -> float:
    """Mean time in an M/D/1 queue whose server takes all that wait, service included. The customers of one service,
    and the one that comes first where there are none, are a renewal: those that come during a service wait for half of
    it."""
    during = arrivals_per_s * service_s
    return service_s + during * service_s / 2 / (during + math.exp(-during))


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
    return _solved(matrix)


def _solved(
    matrix: np.ndarray[tuple[int, int], np.dtype[np.float64]],
) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """The stationary distribution of a chain: pi P = pi with sum 1, as a linear system."""
    states = len(matrix)
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
