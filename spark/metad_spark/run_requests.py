"""``metad-spark simulate --model requests``: a scenario's storm by its requests, in this process. Needs no Java.

A scenario as a storm of the model of requests: the same clients, network, brokers and cluster.

The model's own storms share the cores of one machine. Those of a scenario do not: each node, and each broker, is a
process with a core to itself.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np
from msgspec.structs import replace

from .calibration import Calibration
from .models.node_input import node_inputs, shares
from .models.population import firsts_us
from .output import say, table, warn, write_json
from .pipeline.memory import watched
from .pipeline.progress import clock
from .requests.costs import Costs, load_costs
from .requests.simulate import Outcome, simulate
from .requests.storm import Kind, Population, Settings, Storm, storm_from
from .scenario import ROUND_TRIPS, TRANSPORTS, Brokers, Cluster, Scenario
from .validation import differences, headline, last_verdict
from .wording import seconds, short

_LINGER_MS_MIN: Final = 1.0
"""A tick of the model's brokers, where the scenario's do not wait for further items."""


def unknown(scenario: Scenario) -> Iterator[str]:
    """What the scenario has and the model does not know, in words."""
    if any(region.loss for region in scenario.regions):
        yield "lost packets"
    if scenario.brokers.connects_per_s:
        yield "the brokers' handshakes"
    if scenario.retry_budget is not None:
        yield "clients' retry budgets"
    if scenario.leader_changes:
        yield "leader changes at a time"
    if scenario.cluster.clients:
        yield "uneven groups"


def storm_of_scenario(scenario: Scenario, seed: int) -> Storm:
    """The scenario's storm, without what :func:`unknown` names. A group's queue is bounded by time, as the server's
    is. Raises ScenarioError if the model cannot hold it."""
    brokers = scenario.brokers.count
    settings = Settings(
        population=Population(kinds=tuple(_kinds(scenario)), timeout_s=scenario.client_timeout_s),
        sessions=scenario.clients,
        brokers=brokers,
        processes=brokers,
        policy="return-slot" if scenario.returns.of_capacity else "population",
        batch=min(scenario.brokers.batch_items, 1_000),
        linger_ms=max(scenario.brokers.linger_ms, _LINGER_MS_MIN),
        limit_s=scenario.horizon_s,
        background=0.0,
        seed=seed,
    )
    # When clients learn of the disconnect depends on nothing else, so one node has them all.
    alone = replace(scenario, brokers=Brokers(), cluster=Cluster(nodes=1, groups=1), leader_changes=())
    (node_input,) = node_inputs(alone, Calibration(turn_s=1.0, item_s=1.0))
    begin_ns = firsts_us(node_input, seed) * 1000
    return storm_from(settings, nodes=scenario.cluster.nodes, data_groups=scenario.cluster.groups, begin_ns=begin_ns)


def costs_apart(costs: Costs, storm: Storm) -> Costs:
    """The costs where each process has a core to itself."""
    return replace(costs, cores=storm.nodes + storm.settings.processes, unused_cores=0.0, unled_cores=0.0)


def _kinds(scenario: Scenario) -> Iterator[Kind]:
    for (region, transport, sdk), share in shares(scenario).items():
        near, policy = scenario.regions[region], scenario.sdks[sdk]
        yield Kind(
            name=f"{near.name}, {TRANSPORTS[transport]}, {policy.name}",
            share=share,
            region=near.name,
            rtt_ms=ROUND_TRIPS[transport] * near.rtt_ms,
            backoff=policy.backoff(),
            subscriptions=round(scenario.sessions.subscriptions),
        )


MODEL = "requests"
_MANY_REFUSED = 0.05
"""Of the clients: with more, storms that happened differed from their predictions by more than the headline says."""
_DOUBT = (
    "Many are turned away. How many is hard to say: storms that filled the nodes' queues took up to a fifth longer than"
    " predicted, with up to a third more attempts."
)


def run(scenario: Scenario, *, calibration: str | None, seed: int, seeds: int, json: Path | None) -> int:
    """Returns 0 whatever becomes of the storm: that is the answer, and no fault. Raises ScenarioError and
    CalibrationError."""
    began_s = time.monotonic()
    costs = load_costs(calibration or "default")
    left_out = list(unknown(scenario))
    with watched() as peak:
        found = []
        for each in range(seed, seed + seeds):
            storm = storm_of_scenario(scenario, each)
            with clock(f"seed {each}", storm.settings.limit_s, f"of {storm.returning:,} clients back") as look:
                found.append(simulate(storm, costs_apart(costs, storm), each, look))
        peak.look()
    by_seed = [_told(scenario, outcome) for outcome in found]
    told = sorted(by_seed, key=lambda one: math.inf if one["t999_s"] is None else one["t999_s"])[len(by_seed) // 2]
    doubt = _DOUBT if told["rejected"] > _MANY_REFUSED * scenario.clients else ""
    verdict = last_verdict()
    rejected = max(one["rejected"] for one in by_seed)
    differs = [] if verdict is None else differences(verdict, storm, rejected, apart=True)
    said = headline(verdict, MODEL, differs)
    cost = {"wall_s": time.monotonic() - began_s, "rss_max_mib": peak.rss_max_mib}
    more: dict[str, Any] = {
        "model": MODEL,
        "seeds": seeds,
        "seed": seed,
        "scenario": scenario.name,
        "calibration": costs.setting,
        "left_out": left_out,
        "doubt": doubt,
        "validation": said,
        "differs": differs,
        "runner": "local",
        "runner_why": "the model of requests is one process",
    }
    write_json(json, told | cost | more | ({"by_seed": by_seed} if seeds > 1 else {}))
    names = (("50 %", "50"), ("99 %", "99"), ("99.9 %", "999"))
    table(
        f"A storm of {scenario.clients:,} clients, by its requests",
        ["what", "value"],
        [
            *([f"{name} back", _time(told[f"t{key}_s"])] for name, key in names),
            *([f"{name} of those back waited at most", _time(told[f"p{key}_s"])] for name, key in names),
            ["back at the end", f"{told['restored']:,} of {told['clients']:,}"],
            ["attempts per client", f"{told['attempts_per_client']:.3g}"],
            ["refused", short(told["rejected"])],
        ],
    )
    say(f"{cost['wall_s']:.1f} s, {cost['rss_max_mib']:,.0f} MiB.")
    for what in left_out:
        warn(f"The model of requests leaves out {what}.")
    if doubt:
        warn(doubt)
    say(said)
    return 0


def _told(scenario: Scenario, outcome: Outcome) -> dict[str, Any]:
    """The fields that every model gives."""
    waits = np.array(outcome.waits_s)
    back = waits[np.isfinite(waits)]
    own = [float(np.quantile(back, share)) if len(back) else None for share in (0.5, 0.99, 0.999)]
    t50_s, t99_s, t999_s = outcome.storm_s
    return {
        "clients": scenario.clients,
        "restored": outcome.restored,
        "t50_s": t50_s,
        "t99_s": t99_s,
        "t999_s": t999_s,
        "p50_s": own[0],
        "p99_s": own[1],
        "p999_s": own[2],
        "attempts_per_client": outcome.attempts_per_session,
        "rejected": outcome.rejected,
        "timeouts": outcome.timeouts,
    }


def _time(value: float | None) -> str:
    return "never" if value is None else seconds(value)
