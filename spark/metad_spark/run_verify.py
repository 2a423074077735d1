"""``metad-spark verify``: makes the proofs, prints each with its error, and fails if one does. Needs no Java.

Proofs that the simulation is credible, each with the expected and the measured result and their difference. Two kinds:
the models against queueing theory, the policies against published results. That the vector model does what an oracle
does, event by event, is tested and no proof: the oracle is a part of the tests. All seeds are fixed, so a proof that
passes here passes everywhere. The cores of the model of requests are held against queues of several servers.
"""

from __future__ import annotations

import math
import random
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import msgspec
import numpy as np

from metad_wire.policy import Admission, Backoff

from .errors import UsageError
from .models import vector
from .models.histogram import quantile_s
from .models.node_input import with_doors
from .models.results import NodeResult, added
from .output import say, write_json
from .pipeline.memory import watched
from .proofs import anchors, theory, trials
from .proofs.laws import by_requests, laws
from .proofs.proof import (
    ANCHOR_ERROR_MAX,
    SLICES_ERROR_MAX,
    STANDARD_ERRORS_MAX,
    THEORY_ERROR_MAX,
    Proof,
    anchor,
    proof,
)
from .reduced import reduced
from .requests import slices
from .requests.cores import Machine, Process
from .requests.costs import load_costs
from .requests.simulate import Outcome, simulate
from .scenario import Brokers, Cluster, Disconnect, LeaderChange, Region, Scenario

_JOBS = 400_000


def cores(jobs: int = _JOBS) -> Iterator[Proof]:
    """As many processes as cores, and jobs to each in turn, are one queue with as many servers, because all jobs take
    equally long. A process for each job shares the cores evenly: then the mean does not depend on how long jobs take,
    only on their mean, so it is that of Erlang."""
    for servers, load in ((2, 0.7), (4, 0.8)):
        expected = theory.mdc_response_s(load * servers, 1.0, servers)
        name = f"M/D/{servers} at a load of {load:g}: {servers} processes on as many cores, mean"
        yield anchor(name, expected, response_s(servers, load, servers, jobs), "services", ANCHOR_ERROR_MAX)
        expected = theory.mmc_response_s(load * servers, 1.0, servers)
        name = f"{servers} cores shared by any number of processes at a load of {load:g}, mean"
        yield anchor(name, expected, response_s(servers, load, None, jobs), "services", ANCHOR_ERROR_MAX)


def response_s(servers: int, load: float, processes: int | None, jobs: int, seed: int = 1) -> float:
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


Maker = Callable[[], Iterator[Proof]]


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
        yield proof(
            f"{name} at a load of {load:g}",
            f"{expected * 1000:.4f} ms",
            f"{measured * 1000:.4f} ms",
            abs(measured / expected - 1),
            THEORY_ERROR_MAX,
            "of itself",
        )


def _anchors() -> Iterator[Proof]:
    trips_s = trials.QUEUE_ROUND_TRIPS * 0.001
    for load in (0.5, 0.8):
        varied = msgspec.structs.replace(trials.queue(load / 0.0005, 0.0005, 0.0, 1, 1_500_000), factors=(0.5, 1.5))
        result = added([vector.simulate(varied, seed) for seed in _SEEDS[load]])
        expected = theory.mg1_response_s(load / 0.0005, 0.0005, (0.00025**2 + 0.00075**2) / 2)
        measured = result.own_s_sum / result.restored - trips_s
        yield anchor(f"M/G/1 at a load of {load:g}, mean", expected * 1000, measured * 1000, "ms")
    result = added([vector.simulate(trials.queue(120, 0.005, 0.0, 1, 400_000), seed) for seed in range(1, 9)])
    for share in (0.5, 0.9, 0.99):
        expected = theory.md1_wait_quantile_s(120, 0.005, share) + 0.005
        measured = (quantile_s(result.own, share, result.restored) or 0.0) - trips_s
        yield anchor(f"M/D/1 at a load of 0.6, {share * 100:g} %", expected * 1000, measured * 1000, "ms")
    bounded = msgspec.structs.replace(
        trials.queue(900, 0.001, 0.0, 1, 600_000),
        admission=Admission(items_max=4),
        backoffs=(Backoff(family="exponential", base_s=3_600, cap_s=3_600),),  # refused once is refused for good
    )
    result = vector.simulate(bounded, 1)
    expected = theory.md1k_blocking(900, 0.001, 4)
    measured = result.rejected / result.attempts
    yield anchor("M/D/1 at a load of 0.9 with room for 4, refused", expected * 100, measured * 100, "%")
    result = vector.simulate(trials.queue(2_000, 0.003, 0.0, 100_000, 600_000), 1)
    expected = theory.bulk_all_response_s(2_000, 0.003)
    measured = result.own_s_sum / result.restored - trips_s
    yield anchor("service of all that wait, mean", expected * 1000, measured * 1000, "ms")
    yield from _drains()


def _drains() -> Iterator[Proof]:
    """N over capacity: more come at once, or within a second, than are served in it."""
    per_s = trials.STEADY.items_per_s(1, 256)
    for what, clients, connects_per_s, rate in (
        ("nodes", 300_000, 0.0, per_s),
        ("doors", 120_000, 1_000.0, 10_000.0),
    ):
        for spread_s in (0.0, 0.5, 1.0):
            node_input = trials.input_of(trials.drain(clients, spread_s, connects_per_s), trials.STEADY)
            if connects_per_s:
                node_input = with_doors(node_input, np.full((1, 1), 10 * connects_per_s))
            result = vector.simulate(node_input, 1)
            reached_s = quantile_s(result.storm, 0.999, result.clients) or float("inf")
            name = f"{clients:,} clients in {spread_s:g} s at {what}, 99.9 %"
            yield anchor(name, 0.999 * clients / rate + _LAST_S[what], reached_s, "s")


_SEEDS = {0.5: (1,), 0.8: (1, 2, 3, 4)}
"""Of queues by their load: the mean over a million and a half customers is within 1 % of the truth, give or take, at a
load of 0.8; over four times as many it is within 0.5 %."""
_LAST_S = {"nodes": 0.035, "doors": 0.035 + 0.006}
"""From the last client's turn until it hears: three round trips of 10 ms and the way to the leader and back, and for
doors a turn of the node."""


def outcome(result: NodeResult) -> str:
    """The outcome of a storm, in a word or two. Regions are in the order of their distance."""
    back = result.restored_by_s.sum(axis=1)
    if result.restored > 0.999 * result.clients:
        return "recovers"
    return "locks out who is far" if back[0] > 0.99 * result.clients / len(back) else "collapses"


def shapes(scale: float = 1.0) -> Iterator[Proof]:
    """Where a queue is longer than the patience of those who wait. ``scale``: of clients, queue and speed together."""
    for queue_items, cap_s, expected in (
        (20_000, 60.0, "recovers"),
        (0, 60.0, "recovers"),
        (0, 4.0, "collapses"),
        (90_000, 4.0, "locks out who is far"),
        (80_000, 4.0, "recovers"),
    ):
        scenario = trials.patience(queue_items, cap_s)
        smaller, costs, _ = reduced(scenario, trials.STEADY, round(scale * scenario.clients))
        result = vector.simulate(trials.input_of(smaller, costs), 1)
        found = outcome(result)
        yield proof(
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
            yield proof(
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
    yield proof(
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
        yield proof(
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
        yield proof(
            f"Metastable failures: CPU {anchors.CPU:g} to {trigger.cpu:g} for {trigger.seconds:g} s"
            f"{'' if trigger.load == 1 else f' at {trigger.load:g} of the load'}",
            words[trigger.stays_down],
            ", ".join(words[each] for each in down),
            sum(each != trigger.stays_down for each in down),
            0,
            "wrong of 3",
        )


_SLICED = Scenario(
    name="sliced",
    horizon_s=60,
    regions=(Region(name="near", share=0.7, rtt_ms=20), Region(name="far", share=0.3, rtt_ms=100)),
    brokers=Brokers(count=12, linger_ms=5),
    disconnect=Disconnect(spread_s=0.4),
)
_SLICED_NODE = 30_000
"""Clients for each node."""


def sliced(scenario: Scenario, seed: int = 1) -> tuple[slices.Estimate, Outcome]:
    """A storm as the sum of its slices, and as a whole."""
    costs, parts = load_costs(), slices.slices_of(scenario)
    tasks = slices.tasks_of(scenario.name, scenario, costs, parts, [seed])
    found = slices.summed([slices.simulated(task) for task in tasks.to_pylist()])
    storm = slices.storm_of_scenario(scenario, seed)
    whole = simulate(storm, slices.costs_apart(costs, storm), seed)
    return slices.estimated(found, seed, scenario), whole


def _slices() -> Iterator[Proof]:
    """Three nodes with their groups and clients are the cluster: the sum of its slices is the storm as a whole, also
    where a quarter of the clients has to come again, or where many give up at the brokers' doors and a leader changes.
    One slice is the whole to the last bit; more have other clients, by chance."""
    lossy = tuple(msgspec.structs.replace(region, loss=0.02) for region in _SLICED.regions)
    changes = (LeaderChange(at_s=0.5, outage_s=1.0, slowdown=1.5),)
    for name, patience_s, doors_per_s, more in (
        ("nobody is refused", 10.0, 0, {}),
        ("many are refused", 0.4, 0, {}),
        ("doors, losses and a leader that changes", 2.0, 750, {"regions": lossy, "leader_changes": changes}),
    ):
        for nodes in (3, 6, 9):
            brokers = msgspec.structs.replace(
                _SLICED.brokers, concurrency=16 * nodes, connects_per_s=float(doors_per_s * nodes)
            )
            scenario = msgspec.structs.replace(
                _SLICED,
                clients=_SLICED_NODE * nodes,
                client_timeout_s=patience_s,
                brokers=brokers,
                cluster=Cluster(nodes=nodes, groups=4 * nodes),
                **more,
            )
            found, whole = sliced(scenario)
            pairs = {
                **dict(zip(("t50", "t99", "t99.9"), zip(_times(found), whole.storm_s, strict=True), strict=True)),
                "attempts": (found.attempts_per_client, whole.attempts_per_session),
            }
            errors = {key: abs((one or 0.0) / (other or math.inf) - 1) for key, (one, other) in pairs.items()}
            worst = max(errors, key=lambda key: errors[key])
            yield proof(
                f"slices against unsliced: {nodes} nodes, {name}",
                f"t99.9 {whole.storm_s[2] or math.inf:.4g} s, {whole.attempts_per_session:.4g} attempts",
                f"{found.t999_s or math.inf:.4g} s, {found.attempts_per_client:.4g} attempts; {worst} is worst",
                errors[worst],
                SLICES_ERROR_MAX,
                "of itself",
            )


def _times(found: slices.Estimate) -> tuple[float | None, float | None, float | None]:
    return found.t50_s, found.t99_s, found.t999_s


PROOFS: dict[str, Maker] = {
    "theory": _queues,
    "anchors": _anchors,
    "laws": laws,
    "requests": by_requests,
    "cores": cores,
    "slices": _slices,
    "shapes": shapes,
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
        for made in make():
            proofs.append(made)
            if on_proof is not None:
                on_proof(made)
    return proofs


def run(*, only: Sequence[str], json: Path | None) -> int:
    """Returns 0 if every proof passes, else 1. Raises UsageError for an unknown proof."""
    unknown = [name for name in only if name not in PROOFS]
    if unknown:
        raise UsageError(f"no such proofs: {', '.join(unknown)}; there are {', '.join(PROOFS)}")
    began = time.monotonic()
    with watched() as peak:
        proofs = verify(_tell, only)
    wall_s = time.monotonic() - began
    failed = sum(not proof.passed for proof in proofs)
    report = {
        "passed": not failed,
        "failed": failed,
        "proofs": [msgspec.to_builtins(proof) for proof in proofs],
        "wall_s": wall_s,
        "rss_max_mib": peak.rss_max_mib,
    }
    write_json(json, report)
    say(f"{len(proofs) - failed} of {len(proofs)} proofs passed in {wall_s:.0f} s.")
    return 1 if failed else 0


def _tell(proof: Proof) -> None:
    error, bar = (
        f"{value * 100:.3g} %" if proof.unit == "of itself" else f"{value:.3g}" for value in (proof.error, proof.bar)
    )
    unit = "" if proof.unit == "of itself" else f" {proof.unit}"
    say(f"{'passed' if proof.passed else 'FAILED'}  {proof.name}")
    say(f"        expected {proof.expected}; measured {proof.measured}; error {error}{unit}, at most {bar}")
