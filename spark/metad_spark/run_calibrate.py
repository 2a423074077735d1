"""``metad-spark calibrate``: what each step of a request costs, from the runs of ``metad-perf calibration-grid``. Needs
no Java."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec

from .output import say, table, write_json
from .requests import grid
from .requests.costs import BROKER, NODE, to_toml
from .requests.fitting import fit


def run(*, runs: Sequence[Path], out: Path, name: str, keep: Path | None, json: Path | None) -> int:
    """Returns 0. Raises CalibrationError for runs that are not sufficient."""
    found = grid.read(runs)
    costs = fit(found, name)
    out.write_text(f"# Made by metad-spark calibrate.\n{to_toml(costs)}", encoding="utf-8")
    if keep is not None:
        grid.keep(found, keep)
    write_json(json, msgspec.to_builtins(costs) | {"rows": len(found.rows)})
    rows = []
    for key in (*NODE, *BROKER):
        value, interval = getattr(costs, key), costs.intervals[key]
        scale, unit = (1.0, "cores") if key.endswith("cores") else (1e6, "us")
        bounds = f"{interval.low * scale:.3g} to {interval.high * scale:.3g}"
        rows.append([key, f"{value * scale:.3g}", unit, bounds])
    table("What a step costs", ["cost", "value", "unit", "95 %"], rows)
    say(
        f"From {len({row.run for row in found.rows if row.seen})} runs; they explain {100 * costs.r2['nodes']:.1f} % of"
        f" the variance of the nodes' CPU time, and {100 * costs.r2['brokers']:.1f} % of the brokers'."
    )
    say(costs.setting + ".")
    return 0
