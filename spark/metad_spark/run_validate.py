"""``metad-spark validate``: storms that happened, predicted from their settings. Needs no Java.

``--blind N`` makes the storms, too: N settings are drawn at random from declared ranges after the model and its costs
are frozen (a hash of both is in the report), and each happens three times on this machine. So nothing of the model can
have been chosen to fit them.
"""

from __future__ import annotations

import hashlib
import math
import random
import secrets
import statistics
import subprocess
import tempfile
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import msgspec

from metad_wire import policy
from metad_wire.program.extras import installed

from . import requests, validation
from .errors import CalibrationError, ScenarioError, UsageError
from .output import say, table, warn, write_json
from .requests.costs import Costs, load_costs, to_toml
from .requests.storm import storm_of


def run(
    *,
    traces: Sequence[Path],
    blind: int | None,
    scale: float,
    calibration: str,
    seeds: int,
    json: Path | None,
    verdict: Path | None,
    tables: Path | None,
) -> int:
    """Returns 0 if the predictions pass, 1 if not. Raises UsageError, CalibrationError, ScenarioError."""
    costs = load_costs(calibration)
    if seeds < 1:
        raise UsageError("--seeds must be at least 1")
    if bool(traces) == (blind is not None):
        raise UsageError("name storms that happened, or give --blind N")
    if blind is not None:
        return _blind(blind, scale, costs, seeds, json, verdict)
    judged, left_out = [], []
    for runs in validation.by_storm(validation.storms_of(traces)):
        try:
            judged.append(validation.judge(runs, costs, seeds))
        except ScenarioError as why:
            left_out.append({"trace": runs[0].name, "why": str(why)})
    if not judged:
        raise ScenarioError(f"no storm can be predicted: {left_out[0]['trace']}: {left_out[0]['why']}")
    judged.sort(key=lambda one: (not one.seen, one.trace))
    said = _verdict_of(judged, costs)
    write_json(
        json,
        {
            "storms": [msgspec.to_builtins(one) | {"runs": one.runs, "within": one.within} for one in judged],
            "passed": said.passed,
            "verdict": msgspec.to_builtins(said),
            "left_out": left_out,
            "bars_pct": validation.BARS_PCT,
        },
    )
    _keep(said, verdict)
    if tables is not None:
        page = tables.read_text(encoding="utf-8")
        tables.write_text(validation.replaced(page, validation.table_of(judged, said)), encoding="utf-8")
    _show(judged)
    for one in left_out:
        warn(f"{one['trace']} is left out: {one['why']}.")
    if said.disturbed:
        warn(f"{said.disturbed} of {said.storms} storms had other programs beside them: their times are those' too.")
    say(validation.headline(said, "requests"))
    return 0 if said.passed else 1


def _verdict_of(judged: Sequence[validation.Judged], costs: Costs) -> validation.Verdict:
    return validation.verdict_of(judged, costs, f"{datetime.now(UTC):%Y-%m-%d}")


def _keep(verdict: validation.Verdict, file: Path | None) -> None:
    if file is not None:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(validation.to_toml(verdict), encoding="utf-8")


# --- storms of settings that nobody has chosen

LINGERS_MS: Final = (2.0, 5.0, 20.0)
NODES: Final = (1, 3, 5)
GROUPS: Final = (1, 3, 12)
PROCESSES: Final = (1, 2)
QUEUES_MS: Final = (250, 1_500, 10_000)
POLICIES: Final = ("return-slot", "full-jitter", "exponential", "decorrelated-jitter", "none")
DRAWN_TRIGGERS: Final = ("all", "all", "rolling", "leader-kill")
SESSIONS: Final = (40_000, 600_000)
"""From the least to the most, alike on a logarithmic scale."""
BROKERS: Final = (4, 24)
_HARD: Final = ("", "", "refuses", "", "", "ends not", "", "refuses", "", "", "refuses", "ends not")
"""What storms are to do, in turns: at random few are turned away, and nearly all end. Where a queue is to be passed in
a quarter of a second, nodes turn away most of a large storm. Clients that then wait without jitter come back together,
and are turned away together."""
_HARD_SESSIONS_MIN: Final = 250_000
_RUNS: Final = 3
_LIMIT_S: Final = 60.0
_STORM_S_MAX: Final = 900.0
_NEAR_PCT, _FAR_PCT, _ATTEMPTS_PCT = 15.0, 25.0, 10.0
"""Bars of times: the first for three quarters of the storms, the second for all; and that of attempts."""


def drawn(count: int, seed: int, scale: float) -> list[dict[str, Any]]:
    """Settings of storms, at random. They are those of a command line of ``metad-perf storm``, and ``queue_ms``."""
    rng = random.Random(seed)
    found = []
    for number in range(count):
        nodes = rng.choice(NODES)
        hard = _HARD[number % len(_HARD)]
        least, most = (math.log(sessions) for sessions in (_HARD_SESSIONS_MIN if hard else SESSIONS[0], SESSIONS[1]))
        brokers = rng.randint(*BROKERS)
        found.append(
            {
                "nodes": nodes,
                "groups": rng.choice(GROUPS),
                "sessions": max(100 * brokers, round(scale * math.exp(rng.uniform(least, most)))),
                "brokers": brokers,
                "processes": rng.choice(PROCESSES),
                "linger_ms": rng.choice(LINGERS_MS),
                "queue_ms": QUEUES_MS[0] if hard else rng.choice(QUEUES_MS),
                "policy": "exponential" if hard == "ends not" else rng.choice(POLICIES),
                "trigger": "all" if hard else rng.choice(DRAWN_TRIGGERS if nodes > 1 else DRAWN_TRIGGERS[:-1]),
                "seed": rng.randrange(1, 1_000_000),
            }
        )
    return found


def frozen(costs: Costs) -> dict[str, str]:
    """What the predictions rest on, as hashes: the code of the model with the policies that it runs, and the costs."""
    code = hashlib.sha256()
    for package in (requests, policy):
        for file in sorted(Path(package.__path__[0]).glob("*.py")):
            code.update(file.name.encode() + b"\0" + file.read_bytes())
    return {"model": code.hexdigest(), "costs": hashlib.sha256(to_toml(costs).encode()).hexdigest()}


def happened(settings: dict[str, Any], folder: Path, name: str) -> list[validation.Measured]:
    """Make a storm three times, each with a cluster of its own. Raises CalibrationError."""
    config = folder / "metad.toml"
    config.write_text(f"[limits]\nqueue_ms = {settings['queue_ms']}\n", encoding="utf-8")
    given = {key: value for key, value in settings.items() if key not in ("groups", "queue_ms")}
    given |= {"groups": f"data={settings['groups']},offset=1", "seconds_limit": _LIMIT_S, "server_config": config}
    words = [word for key, value in given.items() for word in (f"--{key.replace('_', '-')}", f"{value}")]
    program = installed("metad-perf")
    if program is None:
        raise UsageError("--blind makes storms with metad-perf, which is not installed")
    reports = [folder / f"{name}-{number}.json" for number in range(1, _RUNS + 1)]
    for report in reports:
        command = [program, "storm", *words, "--json", str(report)]
        try:
            # Exit code 1: not all came back in time, which is an outcome.
            done = subprocess.run(command, capture_output=True, text=True, timeout=_STORM_S_MAX, check=False)
        except subprocess.TimeoutExpired:
            raise CalibrationError(f"{name}: the storm did not end in {_STORM_S_MAX:g} s") from None
        if not report.exists():
            last = ((done.stderr or done.stdout).strip().splitlines() or ["no word of why"])[-1]
            raise CalibrationError(f"{name}: {last}")
    return [msgspec.structs.replace(one, name=name) for one in validation.storms_of(reports)]


def _blind(count: int, scale: float, costs: Costs, seeds: int, json: Path | None, verdict: Path | None) -> int:
    seed = secrets.randbits(32)
    told = {**frozen(costs), "seed": str(seed)}
    storms, judged = [], []
    with tempfile.TemporaryDirectory(prefix="metad-blind-") as folder:
        for number, settings in enumerate(drawn(count, seed, scale), 1):
            say(f"{number} of {count}: {', '.join(f'{key} {value}' for key, value in settings.items())}")
            runs = happened(settings, Path(folder), f"blind-{number}")
            one = validation.judge(runs, costs, seeds)
            judged.append(one)
            differs = _differs(runs[0], one)
            storms.append(
                {
                    "settings": settings,
                    "inside": not differs,
                    "refused": max(run.report["rejected"] for run in runs),
                    "recovered": one.recovered,
                    "metrics": msgspec.to_builtins(one.metrics),
                    "class_right": one.class_right,
                }
            )
    said = {"frozen": told, "storms": storms, **blind_errors(judged), "earlier": earlier(json)}
    write_json(json, said)
    _keep(msgspec.structs.replace(_verdict_of(judged, costs), passed=blind_passes(judged)), verdict)
    _show(judged)
    inside = sum(storm["inside"] for storm in storms)
    right = f"{said['class_right']} of {count} storms are predicted to end, or not, as they did"
    say(f"{right}; {inside} are as those that the costs were checked with.")
    return 0 if blind_passes(judged) else 1


def earlier(json: Path | None) -> list[dict[str, Any]]:
    """The verdicts that this file has from before, the oldest first: a model that was mended until it passed is told
    from one that passed."""
    try:
        last = {} if json is None else msgspec.json.decode(json.read_bytes(), type=dict[str, Any])
    except (FileNotFoundError, msgspec.MsgspecError):
        return []
    if "frozen" not in last:
        return []
    kept = ("frozen", "class_right", "t50_pct_median", "t999_pct_p90", "attempts_pct_p90")
    verdict = {key: last.get(key) for key in kept} | {"storms": len(last.get("storms", []))}
    return [*last.get("earlier", []), verdict]


def _differs(run: validation.Measured, judged: validation.Judged) -> list[str]:
    verdict = validation.last_verdict()
    storm = storm_of(run.report, run.begin_ns)
    return (
        ["no storm was checked"]
        if verdict is None
        else validation.differences(verdict, storm, judged.rejected, apart=False)
    )


def _off_pct(judged: Sequence[validation.Judged], name: str) -> list[float]:
    """How far each prediction is off; infinite where only it, or only the storm, has a number."""
    found = []
    for one in judged:
        metric = one.metrics[name]
        known = 0.0 if metric.predicted is metric.measured else math.inf
        found.append(known if metric.error_pct is None else abs(metric.error_pct))
    return sorted(found)


def blind_errors(judged: Sequence[validation.Judged]) -> dict[str, Any]:
    """What the report says of all storms together."""
    t50, t999, attempts = (_off_pct(judged, name) for name in ("t50_s", "t999_s", "attempts_per_session"))
    at = math.ceil(0.9 * len(judged)) - 1
    return {
        "class_right": sum(one.class_right for one in judged),
        "t50_pct_median": statistics.median(t50),
        "t999_pct_p90": t999[at],
        "attempts_pct_p90": attempts[at],
    }


def blind_passes(judged: Sequence[validation.Judged]) -> bool:
    """Whether every storm is of the class that was predicted, and within the bars. The machine itself varies by a tenth
    from run to run."""
    times = [[_off_pct([one], name)[0] for name in ("t50_s", "t99_s", "t999_s")] for one in judged]
    near = sum(max(each) <= _NEAR_PCT for each in times)
    return (
        all(one.class_right for one in judged)
        and near >= 0.75 * len(judged)
        and all(max(each) <= _FAR_PCT for each in times)
        and max(_off_pct(judged, "attempts_per_session")) <= _ATTEMPTS_PCT
    )


def _show(judged: Sequence[validation.Judged]) -> None:
    rows = []
    for one in judged:
        for at, (name, metric) in enumerate(one.metrics.items()):
            error = "" if metric.error_pct is None else f"{metric.error_pct:+.1f} %"
            rows.append(
                [
                    "" if at else one.trace,
                    "" if at else ("seen" if one.seen else "unseen"),
                    name,
                    *("never" if value is None else f"{value:.3g}" for value in (metric.predicted, metric.measured)),
                    error,
                    "" if one.runs == 1 else " ".join(validation.rounded_errors(one.errors_pct[name])),
                    "" if at else f"{one.ks:.2f}",
                    "" if at else ("right" if one.class_right else "WRONG"),
                ]
            )
    columns = ["storm", "fit", "metric", "predicted", "measured", "error", "runs", "KS", "recovers"]
    table("Predicted and measured storms", columns, rows)
