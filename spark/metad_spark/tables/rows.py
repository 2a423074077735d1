"""Runs and nodes' results as rows, and back. What is zero has no row, except for a node's load."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from ..brokers.coupling import Pass
from ..calibration import Calibration
from ..models.histogram import RATIO, TIME_MIN_S
from ..models.node_input import FINE_US
from ..models.results import NodeResult
from ..scenario import Scenario
from .run import Question, Run, finite, infinite, storm_of
from .schema import METRICS, TABLES


def run_row(run: Run) -> pa.Table:
    """The row of ``runs``."""
    question, storm = run.question, run.storm
    row: dict[str, Any] = {key: getattr(storm, key) for key in METRICS}
    row |= {key: getattr(question, key) for key in ("kind", "version", "seed", "brokers_seed")}
    row |= {key: getattr(run, key) for key in ("scale", "settled", "doubt", "disagreement", "delay_max_s", "runner")}
    row |= {
        "name": question.scenario.name,
        "made": run.made,
        "asked_model": question.model,
        "model": storm.model,
        "passes": [msgspec.to_builtins(each) for each in run.passes],
        "scenario": json.dumps(finite(question.scenario)),
        "calibration": json.dumps(finite(question.calibration)),
    }
    return pa.Table.from_pylist([row], schema=TABLES["runs"])


def run_of(name: str, row: dict[str, Any]) -> Run:
    """The inverse of :func:`run_row`. Raises msgspec.ValidationError, ValueError and KeyError where a value is not one
    of a run."""
    scenario = msgspec.convert(infinite(json.loads(row["scenario"])), type=Scenario)
    question = Question(
        kind=row["kind"],
        scenario=scenario,
        calibration=msgspec.convert(infinite(json.loads(row["calibration"])), type=Calibration),
        model=row["asked_model"],
        seed=row["seed"],
        brokers_seed=row["brokers_seed"],
        version=row["version"],
    )
    storm = storm_of(
        {key: row[key] for key in METRICS}, regions=[region.name for region in scenario.regions], model=row["model"]
    )
    return Run(
        run=name,
        question=question,
        storm=storm,
        passes=msgspec.convert(row["passes"], type=list[Pass]),
        made=row["made"],
        **{key: row[key] for key in ("scale", "settled", "doubt", "disagreement", "delay_max_s", "runner")},
    )


def node_tables(nodes: Sequence[NodeResult], regions: Sequence[str]) -> dict[str, pa.Table]:
    """The other tables of a storm, from its nodes' results; ``regions``: their names."""
    made: dict[str, list[pa.Table]] = {name: [] for name in TABLES if name != "runs"}
    for node in nodes:
        made["nodes"].append(_node(node))
        made["load"].append(_load(node))
        by_s = {"attempts": node.attempts_by_s, "restored": node.restored_by_s, "passed": node.passed_by_s}
        made["regions"].append(_by_region("regions", node, regions, by_s, "second", 1))
        step_ms = FINE_US // 1000
        fine = {"attempts": node.attempts_fine, "restored": node.restored_fine}
        made["regions_fine"].append(_by_region("regions_fine", node, regions, fine, "at_ms", step_ms))
        at = np.flatnonzero(node.served_fine)
        made["load_fine"].append(_table("load_fine", node, {"at_ms": at * step_ms, "served": node.served_fine[at]}))
        for name in ("storm", "own"):
            counts = getattr(node, name)
            at = np.flatnonzero(counts)
            edges = {"bin": at, "from_s": TIME_MIN_S * RATIO**at, "to_s": TIME_MIN_S * RATIO ** (at + 1)}
            columns = {"name": [name] * len(at), **edges, "clients": counts[at]}
            made["histograms"].append(_table("histograms", node, columns))
    return {name: pa.concat_tables(parts) if parts else TABLES[name].empty_table() for name, parts in made.items()}


def _node(node: NodeResult) -> pa.Table:
    schema = TABLES["nodes"]
    return pa.Table.from_pylist([{name: getattr(node, name) for name in schema.names}], schema=schema)


def _load(node: NodeResult) -> pa.Table:
    columns = {
        "second": np.arange(len(node.served_by_s)),
        "served": node.served_by_s,
        "rejected": node.rejected_by_s,
        "queue_max": node.queue_by_s,
        "capacity": node.capacity_by_s,
    }
    return _table("load", node, columns)


def _by_region(
    table: str, node: NodeResult, regions: Sequence[str], values: dict[str, Any], step: str, width: int
) -> pa.Table:
    """Arrays (region, step) as rows."""
    some = np.zeros_like(next(iter(values.values())), dtype=bool)
    for array in values.values():
        some |= array != 0
    region, at = np.nonzero(some)
    names = pa.array(list(regions), pa.string()).take(pa.array(region))
    return _table(
        table, node, {"region": names, step: at * width, **{name: each[region, at] for name, each in values.items()}}
    )


def _table(table: str, node: NodeResult, columns: dict[str, Any]) -> pa.Table:
    schema = TABLES[table]
    rows = len(next(iter(columns.values())))
    columns = {"node": np.full(rows, node.node), "copies": np.full(rows, node.copies), **columns}
    return pa.Table.from_arrays([pa.array(columns[field.name]).cast(field.type) for field in schema], schema=schema)
