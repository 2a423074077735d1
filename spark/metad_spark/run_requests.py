"""``metad-spark simulate --model requests``: a scenario's storm by its requests, in this process. Needs no Java."""

from __future__ import annotations

import math
import time
from pathlib import Path
from typing import Any

import numpy as np

from .output import say, table, warn, write_json
from .pipeline.memory import watched
from .pipeline.progress import clock
from .requests.costs import load_costs
from .requests.scenarios import costs_apart, storm_of_scenario, unknown
from .requests.simulate import Outcome, simulate
from .scenario import Scenario
from .validation import differences, headline, last_verdict
from .wording import seconds, short

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
