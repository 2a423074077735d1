"""The closed forms of the proofs agree with a queue that is simulated customer by customer, and with each other."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest

from metad_spark.errors import SimulationError
from metad_spark.proofs import theory

_JOBS = 200_000


def _waits(
    per_s: float, service: Callable[[np.random.Generator], float], room: float = math.inf
) -> tuple[list[float], int]:
    """The waits of those that were let in, and how many were not: one server, one customer at a time."""
    rng = np.random.default_rng(7)
    now = 0.0
    waits: list[float] = []
    ends: list[float] = []  # of those that are in the system
    refused = 0
    for gap in rng.exponential(1 / per_s, _JOBS).tolist():
        now += gap
        while ends and ends[0] <= now:
            del ends[0]
        if len(ends) > room:  # one is in service, the others wait
            refused += 1
            continue
        begin = max(now, ends[-1] if ends else 0.0)
        waits.append(begin - now)
        ends.append(begin + service(rng))
    return waits, refused


def test_service_that_varies_makes_the_mean_longer() -> None:
    waits, _ = _waits(600, lambda rng: 0.0005 if rng.random() < 0.5 else 0.0015)
    expected = theory.mg1_response_s(600, 0.001, (0.0005**2 + 0.0015**2) / 2)
    assert np.mean(waits) + 0.001 == pytest.approx(expected, rel=0.03)
    assert theory.mg1_response_s(600, 0.001, 0.001**2) == pytest.approx(theory.md1_response_s(600, 0.001))


def test_quantiles_of_the_wait() -> None:
    waits, _ = _waits(600, lambda _: 0.001)
    for share in (0.5, 0.9, 0.99):
        expected = theory.md1_wait_quantile_s(600, 0.001, share)
        assert np.quantile(waits, share) == pytest.approx(expected, rel=0.04)
    assert theory.md1_wait_share(600, 0.001, 0.0) == pytest.approx(0.4)
    grid = np.arange(0, 0.02, 1e-5)
    tail = sum(1 - theory.md1_wait_share(600, 0.001, wait) for wait in grid.tolist()) * 1e-5
    assert tail + 0.001 == pytest.approx(theory.md1_response_s(600, 0.001), rel=0.02)


@pytest.mark.parametrize(("per_s", "room"), [(900, 4), (1_500, 10), (500, 0)])
def test_a_queue_without_room_refuses(per_s: float, room: int) -> None:
    _, refused = _waits(per_s, lambda _: 0.001, room)
    assert refused / _JOBS == pytest.approx(theory.md1k_blocking(per_s, 0.001, room), rel=0.03)


@pytest.mark.parametrize("servers", [1, 2, 5])
def test_several_servers_are_one_queue(servers: int) -> None:
    """Customers of equal service go to the servers in turn, so each server's queue is a recursion."""
    rng = np.random.default_rng(3)
    came = np.cumsum(rng.exponential(1 / (0.7 * servers), _JOBS))
    free, waits = [0.0] * servers, 0.0
    for number, now in enumerate(came.tolist()):
        begin = max(now, free[number % servers])
        free[number % servers] = begin + 1.0
        waits += begin - now
    expected = theory.mdc_response_s(0.7 * servers, 1.0, servers)
    assert waits / _JOBS + 1.0 == pytest.approx(expected, rel=0.02)


def test_one_server_is_a_case_of_several() -> None:
    assert theory.mdc_response_s(800, 0.001, 1) == pytest.approx(theory.md1_response_s(800, 0.001), rel=1e-9)
    assert theory.mmc_response_s(800, 0.001, 1) == pytest.approx(1 / 200)
    assert theory.mmc_response_s(1e-6, 0.001, 4) == pytest.approx(0.001)
    assert theory.mmc_response_s(1.0, 1.0, 2) == pytest.approx(4 / 3)


def test_without_waiting_room_the_refusals_are_those_of_erlang() -> None:
    assert theory.md1k_blocking(500, 0.001, 0) == pytest.approx(0.5 / 1.5)


def test_service_of_all_that_wait_is_bulk_service_without_a_bound() -> None:
    expected = theory.bulk_response_s(2_000, 0.003, 0.0, 64)
    assert theory.bulk_all_response_s(2_000, 0.003) == pytest.approx(expected, rel=1e-6)


def test_what_has_no_answer_is_refused() -> None:
    with pytest.raises(SimulationError, match="no mean"):
        theory.mg1_response_s(1_000, 0.001, 1e-6)
    with pytest.raises(SimulationError, match="no distribution"):
        theory.md1_wait_quantile_s(1_000, 0.001, 0.5)
    for several in (theory.mdc_response_s, theory.mmc_response_s):
        with pytest.raises(SimulationError, match="no mean"):
            several(3_000, 0.001, 3)
    with pytest.raises(SimulationError, match="too long"):
        theory.md1_wait_quantile_s(990, 0.001, 0.99)
