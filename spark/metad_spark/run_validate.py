"""``metad-spark validate``: storms that happened, predicted from their settings. Needs no Java."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from . import validation
from .errors import ScenarioError, UsageError
from .output import say, table, warn, write_json
from .requests.costs import load_costs


def run(
    *,
    traces: Sequence[Path],
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
    judged, left_out = [], []
    for runs in validation.by_storm(validation.storms_of(traces)):
        try:
            judged.append(validation.judge(runs, costs, seeds))
        except ScenarioError as why:
            left_out.append({"trace": runs[0].name, "why": str(why)})
    if not judged:
        raise ScenarioError(f"no storm can be predicted: {left_out[0]['trace']}: {left_out[0]['why']}")
    judged.sort(key=lambda one: (not one.seen, one.trace))
    said = validation.verdict_of(judged, costs, f"{datetime.now(UTC):%Y-%m-%d}")
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
    if verdict is not None:
        verdict.parent.mkdir(parents=True, exist_ok=True)
        verdict.write_text(validation.to_toml(said), encoding="utf-8")
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
