"""The cores of the model of requests, against queues of several servers."""

from __future__ import annotations

import random
from collections.abc import Iterator

from ..requests.cores import Machine, Process
from . import theory
from .proof import ANCHOR_ERROR_MAX, Proof, anchor

_JOBS = 400_000


def cores() -> Iterator[Proof]:
    """As many processes as cores, and jobs to each in turn, are one queue with as many servers, because all jobs take
    equally long. A process for each job shares the cores evenly: then the mean does not depend on how long jobs take,
    only on their mean, so it is that of Erlang."""
    for servers, load in ((2, 0.7), (4, 0.8)):
        expected = theory.mdc_response_s(load * servers, 1.0, servers)
        name = f"M/D/{servers} at a load of {load:g}: {servers} processes on as many cores, mean"
        yield anchor(name, expected, response_s(servers, load, servers), "services", ANCHOR_ERROR_MAX)
        expected = theory.mmc_response_s(load * servers, 1.0, servers)
        name = f"{servers} cores shared by any number of processes at a load of {load:g}, mean"
        yield anchor(name, expected, response_s(servers, load, None), "services", ANCHOR_ERROR_MAX)


def response_s(servers: int, load: float, processes: int | None, jobs: int = _JOBS, seed: int = 1) -> float:
    """The mean time of jobs that arrive at random and take a second of a core each; ``processes`` do them in turn, or
    None: each has one of its own."""
    rng = random.Random(seed)
    machine = Machine(float(servers))
    workers = [Process(machine) for _ in range(processes or 0)]
    per_s, total_s, done = load * servers, 0.0, 0

    def ended_of(came_s: float) -> None:
        nonlocal total_s, done

        def ended(now_s: float) -> None:
            nonlocal total_s, done
            total_s += now_s - came_s
            done += 1

        worker = workers[number % len(workers)] if workers else Process(machine)
        worker.add(lambda _: (1.0, ended))

    number = 0

    def come() -> None:
        nonlocal number
        ended_of(machine.now)
        number += 1
        if number < jobs:
            machine.at(machine.now + rng.expovariate(per_s), come)

    machine.at(0.0, come)
    machine.run(float("inf"), lambda: done == jobs)
    return total_s / jobs
