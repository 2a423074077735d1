"""Proofs that the simulation is credible, each with the expected and the measured result and their difference.

Three kinds: the models against each other, the models against queueing theory, the policies against published results.
All seeds are fixed, so a proof that passes here passes everywhere.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence

import msgspec
import numpy as np

from metad_wire.policy import Backoff

from ..models import exact, fluid, vector
from ..models.histogram import quantile_s
from ..models.results import NodeResult
from . import anchors, theory, trials

FLUID_ERROR_MAX = 0.02
THEORY_ERROR_MAX = 0.005
STANDARD_ERRORS_MAX = 3.0


class Proof(msgspec.Struct, frozen=True, kw_only=True):
    """One proof."""

    name: str
    expected: str
    measured: str
    error: float
    """In the unit of the bar; if nothing can be measured, 0 for right and 1 for wrong."""
    bar: float
    """The largest error that passes."""
    unit: str
    """The unit of error and bar."""
    passed: bool


Maker = Callable[[], Iterator[Proof]]


def _proof(name: str, expected: str, measured: str, error: float, bar: float, unit: str) -> Proof:
    error = float(error)
    return Proof(name=name, expected=expected, measured=measured, error=error, bar=bar, unit=unit, passed=error <= bar)


def differences(first: NodeResult, second: NodeResult) -> list[str]:
    """The fields in which two results differ in any bit."""
    return [
        field
        for field in NodeResult.__struct_fields__
        if not np.array_equal(getattr(first, field), getattr(second, field))
    ]


def _oracle() -> Iterator[Proof]:
    for scenario in trials.EQUAL:
        node_input = trials.input_of(scenario, trials.NOISY)
        one, other = exact.simulate(node_input, 1), vector.simulate(node_input, 1)
        wrong = differences(one, other)
        yield _proof(
            f"oracle = vector: {scenario.name}",
            f"{one.restored:,.0f} back in {one.attempts:,.0f} attempts",
            f"{other.restored:,.0f} back in {other.attempts:,.0f} attempts",
            len(wrong),
            0,
            "fields that differ",
        )


def _fluid() -> Iterator[Proof]:
    for scenario in trials.NEAR:
        node_input = trials.input_of(scenario, trials.STEADY)
        one, other = vector.simulate(node_input, 1), fluid.simulate(node_input, 1)
        times = [quantile_s(result.storm, 0.999, result.clients) or float("inf") for result in (one, other)]
        attempts = [result.attempts / result.clients for result in (one, other)]
        error = max(abs(pair[1] / pair[0] - 1) for pair in (times, attempts))
        yield _proof(
            f"fluid = vector: {scenario.name}",
            f"t99.9 {times[0]:.2f} s, {attempts[0]:.3f} attempts",
            f"t99.9 {times[1]:.2f} s, {attempts[1]:.3f} attempts",
            error,
            FLUID_ERROR_MAX,
            "of itself",
        )


def _queues() -> Iterator[Proof]:
    settings = [("M/D/1", load, 0.0005, 0.0, 1, jobs) for load, jobs in ((0.5, 500_000), (0.8, 2_000_000))]
    settings += [("bulk service M/D/1, up to 64", load, 0.003, 50e-6, 64, 2_000_000) for load in (0.5, 0.8, 0.95)]
    for name, load, fixed_s, item_s, batch_max, jobs in settings:
        per_s = load * batch_max / (fixed_s + item_s * batch_max)
        if batch_max == 1:
            expected = theory.md1_response_s(per_s, fixed_s)
        else:
            expected = theory.bulk_response_s(per_s, fixed_s, item_s, batch_max)
        result = vector.simulate(trials.queue(per_s, fixed_s, item_s, batch_max, jobs), 1)
        measured = result.own_s_sum / result.restored - trials.QUEUE_ROUND_TRIPS * 0.001
        yield _proof(
            f"{name} at a load of {load:g}",
            f"{expected * 1000:.4f} ms",
            f"{measured * 1000:.4f} ms",
            abs(measured / expected - 1),
            THEORY_ERROR_MAX,
            "of itself",
        )


def outcome(result: NodeResult) -> str:
    """The outcome of a storm, in a word or two. Regions are in the order of their distance."""
    back = result.restored_by_s.sum(axis=1)
    if result.restored > 0.999 * result.clients:
        return "recovers"
    return "locks out who is far" if back[0] > 0.99 * result.clients / len(back) else "collapses"


def _shapes() -> Iterator[Proof]:
    for queue_items, cap_s, expected in (
        (20_000, 60.0, "recovers"),
        (0, 60.0, "recovers"),
        (0, 4.0, "collapses"),
        (90_000, 4.0, "locks out who is far"),
        (80_000, 4.0, "recovers"),
    ):
        scenario = trials.patience(queue_items, cap_s)
        result = fluid.simulate(trials.input_of(scenario, trials.STEADY), 1)
        found = outcome(result)
        yield _proof(
            f"queue against patience: {scenario.name if queue_items else f'no bound, waits up to {cap_s:g} s'}",
            expected,
            f"{found}: {result.restored / result.clients:.1%} back, {result.attempts / result.clients:.2f} attempts",
            found != expected,
            0,
            "wrong",
        )


def _aws() -> Iterator[Proof]:
    means: dict[str, float] = {}
    for family, published in anchors.AWS_TABLE.items():
        policy = Backoff(base_s=anchors.AWS_BASE_MS, cap_s=anchors.AWS_CAP_MS, family=family)
        races = [anchors.occ_race(policy, seed) for seed in range(anchors.AWS_REPEATS)]
        for what, values, mean, sd in (
            ("calls", [float(calls) for calls, _ in races], published.calls, published.calls_sd),
            ("ms", [time_ms for _, time_ms in races], published.time_ms, published.time_sd_ms),
        ):
            measured = statistics.mean(values)
            deviation = anchors.standard_error(sd, anchors.AWS_REPEATS, statistics.stdev(values), len(values))
            yield _proof(
                f"AWS backoff simulator, {family}: {what}",
                f"{mean:,.1f}",
                f"{measured:,.1f}",
                abs(measured - mean) / deviation,
                STANDARD_ERRORS_MAX,
                "standard errors",
            )
            if what == "calls":
                means[family] = measured
    order = sorted(means, key=lambda family: means[family])
    wanted = sorted(anchors.AWS_TABLE, key=lambda family: anchors.AWS_TABLE[family].calls)
    yield _proof(
        "AWS backoff simulator: order by calls", " < ".join(wanted), " < ".join(order), order != wanted, 0, "wrong"
    )


def _brooker() -> Iterator[Proof]:
    none, jitter = Backoff(family="none"), Backoff(family="full", base_s=20.0, cap_s=40.0)
    settings: list[tuple[anchors.Shape, Backoff, int, int, float, float]] = [
        ("spike", none, 50, 78, 0.0, 25.0),
        ("spike", jitter, 50, 78, 36.0, 60.0),
        ("ramp", none, 35, 78, 0.0, 1.0),
        ("ramp", jitter, 35, 78, 0.0, 1.0),
    ]
    for shape, policy, begin, end, low, high in settings:
        measured = statistics.mean(anchors.collapse(shape, policy)[begin:end])
        how = "no backoff" if policy is none else "backoff and jitter"
        yield _proof(
            f"Brooker's collapse: {shape}, {how}",
            f"{low:g} to {high:g} successes/s from {begin} to {end} s",
            f"{measured:.1f}",
            not low <= measured <= high,
            0,
            "wrong",
        )


def _metastable() -> Iterator[Proof]:
    for trigger in anchors.METASTABLE_CASES:
        down = [anchors.stays_down(trigger, seed) for seed in range(3)]
        words = {True: "stays down", False: "recovers"}
        yield _proof(
            f"Metastable failures: CPU {anchors.CPU:g} to {trigger.cpu:g} for {trigger.seconds:g} s"
            f"{'' if trigger.load == 1 else f' at {trigger.load:g} of the load'}",
            words[trigger.stays_down],
            ", ".join(words[each] for each in down),
            sum(each != trigger.stays_down for each in down),
            0,
            "wrong of 3",
        )


PROOFS: dict[str, Maker] = {
    "oracle": _oracle,
    "fluid": _fluid,
    "theory": _queues,
    "shapes": _shapes,
    "aws": _aws,
    "brooker": _brooker,
    "metastable": _metastable,
}
"""By name; each makes several proofs."""


def verify(on_proof: Callable[[Proof], None] | None = None, only: Sequence[str] = ()) -> list[Proof]:
    """Make all proofs, or those of these names. Takes one to two minutes. ``on_proof`` is called with each as it is
    made."""
    proofs: list[Proof] = []
    for name, make in PROOFS.items():
        if only and name not in only:
            continue
        for proof in make():
            proofs.append(proof)
            if on_proof is not None:
                on_proof(proof)
    return proofs
