"""A calibration from reports of ``metad-perf load``: ``python -m metad_spark.calibrate --help``.

The loads have one request in flight, so a request is a turn. The cost of a turn is the CPU time of all replicas
together: in a cluster in which every node leads its share, each spends that much on the groups it leads and follows,
per item that it leads. The variation comes from the latencies. The cost of one more group in a turn needs two loads of
a single node, with one group and with several; it is the same for each replica.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from .calibration import Calibration
from .errors import CalibrationError, SparkError

Report = dict[str, Any]
_QUANTILES = 100
_SHORTEST = 0.75
"""The shortest turn, as a share of the mean: the reports do not contain it; with this value the measured median, 99 %
and 99.9 % have a mean of 1 within 2 %."""
_BATCH_MIN = 16
"""Smaller batches would measure the idle cluster too."""


def fit(cluster: Sequence[Report], alone: Sequence[Report] = (), name: str = "measured") -> Calibration:
    """A calibration from reports of a cluster with one data group, and of a single node with one group and with
    several. Raises CalibrationError if they are not sufficient."""
    try:
        rows = [report for report in cluster if report["batch"] >= _BATCH_MIN and report["in_flight"] == 1]
        batches = np.array([float(report["batch"]) for report in rows])
        if len(set(batches.tolist())) < 2:
            raise CalibrationError(
                f"needs loads of at least two batch sizes from {_BATCH_MIN} on, one request in flight"
            )
        cpu_s = batches * np.array([float(report["server_cpu_us_per_item"]) for report in rows]) * 1e-6
        # Errors are relative to the measured value, so each row is weighted by its inverse.
        design = np.stack([np.ones(len(rows)), batches], axis=1) / cpu_s[:, None]
        (fixed_s, item_s), *_ = np.linalg.lstsq(design, np.ones(len(rows)), rcond=None)
        fitted = fixed_s + item_s * batches
        r2 = 1 - float(((cpu_s - fitted) ** 2).sum() / ((cpu_s - cpu_s.mean()) ** 2).sum())
        entry_s = min(_entry_s(alone) * float(rows[0]["replicas"]), float(fixed_s) / 2) if alone else 0.0
        return Calibration(
            name=name,
            setting=_setting(rows[0]),
            turn_s=float(f"{fixed_s - entry_s:.3g}"),
            entry_s=float(f"{entry_s:.3g}"),
            item_s=float(f"{item_s:.3g}"),
            factors=_factors(rows),
            fsync=all(report["fsync"] for report in rows),
            r2=round(r2, 3),
        )
    except (KeyError, TypeError, IndexError) as why:
        raise CalibrationError(f"not a report of metad-perf load: {type(why).__name__}: {why}") from None


def _entry_s(alone: Sequence[Report]) -> float:
    """The cost of one more group in a turn for one replica."""
    groups = np.array([round(report["entries_per_s"] * report["batch"] / report["items_per_s"]) for report in alone])
    cpu_s = np.array([report["batch"] * report["server_cpu_us_per_item"] * 1e-6 for report in alone])
    if len(set(groups.tolist())) < 2:
        raise CalibrationError("the loads of a single node must differ in the number of groups that a request is for")
    slope, _ = np.polyfit(groups, cpu_s, 1)
    return max(0.0, float(slope))


def _factors(rows: Sequence[Report]) -> tuple[float, ...]:
    """Quantiles of a turn's time over its mean, from the two largest batch sizes: there a turn is longest, and the load
    generator's own part in it smallest."""
    largest = sorted({report["batch"] for report in rows})[-2:]
    chosen = [report for report in rows if report["batch"] in largest]
    known = np.array(
        [
            [
                report[key] * 1e-3 * report["items_per_s"] / report["batch"]
                for key in ("p50_ms", "p99_ms", "p999_ms", "max_ms")
            ]
            for report in chosen
        ]
    ).mean(axis=0)
    places = (np.arange(_QUANTILES) + 0.5) / _QUANTILES
    factors = np.interp(places, [0.0, 0.5, 0.99, 0.999, 1.0], [_SHORTEST, *known.tolist()])
    return tuple(float(f"{factor:.4g}") for factor in factors)


def _setting(report: dict[str, Any]) -> str:
    machine = report["setting"]
    return (
        f"metad-perf load --nodes {report['nodes']} --verb {report['verb']} --in-flight 1, several batch sizes, "
        f"{report['keys']:,} sessions, fsync {'on' if report['fsync'] else 'off'}, all on {machine['cpus']} CPUs "
        f"({machine['cpu']}), Python {report['versions']['python']}"
    )


def to_toml(calibration: Calibration) -> str:
    """The text of a file that :func:`metad_spark.calibration.load_calibration` reads."""
    values = msgspec.to_builtins(calibration)
    return "".join(f"{key} = {msgspec.json.encode(value).decode()}\n" for key, value in values.items())


def main(arguments: Sequence[str] | None = None) -> int:
    """Read reports, print the calibration."""
    parser = argparse.ArgumentParser(prog="metad_spark.calibrate", description="a calibration from load reports")
    parser.add_argument("--cluster", type=Path, nargs="+", required=True, help="of three nodes, one data group")
    parser.add_argument(
        "--alone", type=Path, nargs="*", default=[], help="of one node, with one group and with several"
    )
    parser.add_argument("--name", default="measured")
    chosen = parser.parse_args(arguments)
    try:
        reports = [
            [msgspec.json.decode(path.read_bytes()) for path in paths] for paths in (chosen.cluster, chosen.alone)
        ]
        print(to_toml(fit(reports[0], reports[1], name=chosen.name)), end="")
    except (OSError, msgspec.DecodeError, SparkError) as why:
        print(f"metad_spark.calibrate: {why}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
