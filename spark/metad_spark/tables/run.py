"""A run: a storm that was asked for, what became of it, and its identity.

The identity is that of the question: scenario, calibration, models, seeds, and the version of the code that answers.
Whoever asks the same again finds the same run.
"""

from __future__ import annotations

import functools
import hashlib
import json
import math
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np
import pyarrow as pa

import metad_wire
from metad_wire import __version__

from ..brokers.coupling import Pass
from ..brokers.storm import Storms, faults
from ..calibration import Calibration
from ..models import collapse
from ..models.results import NodeResult, StormResult
from ..requests import slices
from ..requests.costs import Costs
from ..scenario import Scenario
from .schema import METRICS

Kind = Literal["storm", "comparison"]
REQUESTS = "requests"
"""The model of requests, which answers by slices."""
_ID_DIGITS = 16
_CODE = ("brokers/*.py", "models/*.py", "requests/*.py", "reduced.py", "scenario.py", "calibration.py")
"""The files of this package that a storm's digits depend on."""


class Question(msgspec.Struct, frozen=True, kw_only=True):
    """What a run answers."""

    kind: Kind = "storm"
    scenario: Scenario
    calibration: Calibration | None = None
    """Of the vector model."""
    costs: Costs | None = None
    """Of the model of requests."""
    model: str
    """The model that is asked; "compared" for comparisons (:func:`metad_spark.reduced.compared`)."""
    seed: int = 0
    brokers_seed: int = 0
    """The seed with which brokers and nodes came to agree, or which drew the slices: the first one of a command."""
    sampled: int = 0
    """Of the model of requests: how many slices are simulated."""
    version: str

    @property
    def run(self) -> str:
        """The identity: hexadecimal digits. A scenario's description, and where its calibration was read, are not in
        it."""
        plain = {
            **{key: getattr(self, key) for key in ("kind", "model", "seed", "brokers_seed", "version")},
            "scenario": finite(self.scenario) | {"description": "", "calibration": ""},
            "calibration": finite(self.priced),
        } | ({"sampled": self.sampled} if self.sampled else {})
        text = json.dumps(plain, sort_keys=True, separators=(",", ":"), allow_nan=False)
        return hashlib.sha256(text.encode()).hexdigest()[:_ID_DIGITS]

    @property
    def priced(self) -> Calibration | Costs:
        """The costs of the model that is asked."""
        return self.measured if self.costs is None else self.costs

    @property
    def measured(self) -> Calibration:
        """The costs of the vector model, of a question to it."""
        assert self.calibration is not None
        return self.calibration


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """An answered question: a row of ``runs``."""

    run: str
    question: Question
    storm: StormResult
    """Without its curves, which are in other tables."""
    scale: float = 1.0
    """Of its clients; of the model of requests the share of the slices that were simulated."""
    settled: bool = True
    delay_max_s: float = 0.0
    passes: list[Pass] = []
    runner: str = ""
    made: datetime

    @property
    def faults(self) -> list[str]:
        """Why the result must not be relied on, in words."""
        return faults(self.settled)


def questions(
    scenario: Scenario, calibration: Calibration, *, model: str, seeds: Sequence[int], version: str
) -> list[Question]:
    """The questions of one command that simulates a storm for each seed."""
    return [
        Question(
            scenario=scenario, calibration=calibration, model=model, seed=seed, brokers_seed=seeds[0], version=version
        )
        for seed in seeds
    ]


def comparison(scenario: Scenario, calibration: Calibration, version: str) -> Question:
    """The question of a comparison."""
    return Question(kind="comparison", scenario=scenario, calibration=calibration, model="compared", version=version)


def runs_of(asked: Sequence[Question], found: Storms, scale: float, runner: str) -> list[Run]:
    """The runs that answer the questions, in their order."""
    return [
        Run(
            run=question.run,
            question=question,
            storm=without_curves(storm),
            scale=scale,
            settled=found.settled,
            delay_max_s=found.delay_max_s,
            passes=found.passes,
            runner=runner,
            made=datetime.now(UTC),
        )
        for question, storm in zip(asked, found.by_seed, strict=True)
    ]


def sums_and_curve(rows: pa.Table) -> tuple[slices.Sums, list[dict[str, Any]]]:
    """Rows of slices (:data:`..requests.slices.SCHEMA`) added up, and the curve (restored, attempts) by seed, slice and
    second."""
    curve = rows.group_by(["seed", "slice", "second"]).aggregate([("restored", "sum"), ("attempts", "sum")])
    curve = curve.rename_columns([name.removesuffix("_sum") for name in curve.column_names])
    return slices.summed(rows.to_batches()), curve.to_pylist()


def run_of_slices(
    question: Question, sums: slices.Sums, curve: Sequence[dict[str, Any]], runner: str
) -> tuple[Run, slices.Estimate]:
    """The run that answers a question to the model of requests, and its numbers with their errors. ``sums`` and
    ``curve`` may have those of other seeds, too."""
    scenario = question.scenario
    found = slices.estimated(sums, question.seed, scenario)
    collapses = _collapses(scenario, sums, curve, question.seed)
    metrics: dict[str, Any] = msgspec.to_builtins(found) | {"clients": scenario.clients, "collapsed": collapses}
    del metrics["errors_pct"]
    unknown = dict.fromkeys(("queue_max", "wasted", "expired"))
    run = Run(
        run=question.run,
        question=question,
        storm=storm_of(metrics | unknown, regions=[region.name for region in scenario.regions], model=REQUESTS),
        scale=question.sampled / len(slices.slices_of(scenario)),
        runner=runner,
        made=datetime.now(UTC),
    )
    return run, found


def _collapses(scenario: Scenario, sums: slices.Sums, curve: Sequence[dict[str, Any]], seed: int) -> bool:
    by_s = np.zeros((2, math.ceil(scenario.horizon_s) + 1))
    clients = {number: count for (of, number), count in sums.clients.items() if of == seed}
    weight = slices.weights(scenario, clients)
    for row in curve:
        if row["seed"] == seed:
            by_s[:, row["second"]] += weight[row["slice"]] * np.array([row["restored"], row["attempts"]])
    whole = sum(weight[number] * count for number, count in clients.items())
    return collapse.collapsed(whole, by_s[0], by_s[1], collapse.keepalive_s(scenario.disconnect))


def compared_run(question: Question, storm: StormResult, runner: str) -> Run:
    """The run of a comparison."""
    return Run(run=question.run, question=question, storm=without_curves(storm), runner=runner, made=datetime.now(UTC))


def without_curves(storm: StormResult) -> StormResult:
    """Only the numbers of a storm."""
    metrics = {key: getattr(storm, key) for key in METRICS}
    return storm_of(metrics, regions=storm.regions, model=storm.model)


def storm_of(metrics: dict[str, Any], *, regions: Sequence[str] = (), model: str = "") -> StormResult:
    """A storm of these numbers, without curves."""
    empty: dict[str, Any] = {
        key: []
        for key in (
            *("restored_by_s", "attempts_by_s", "rejected_by_s", "served_by_s", "restored_fine", "attempts_fine"),
            *("served_fine", "queue_by_s", "capacity_by_s"),
        )
    }
    return StormResult(**metrics, **empty, regions=list(regions), model=model)


def at_full_size(nodes: Sequence[NodeResult], scale: float) -> list[NodeResult]:
    """Nodes that were simulated at a reduced scale: each stands for so many more, with longer queues."""
    if scale == 1.0:
        return list(nodes)
    return [
        msgspec.structs.replace(
            node,
            copies=node.copies / scale,
            queue_max=node.queue_max / scale,
            queue_by_s=node.queue_by_s / scale,
        )
        for node in nodes
    ]


@functools.cache
def version() -> str:
    """The version of metad, and a digest of the code that a storm's digits depend on. To be called where the package is
    a folder: not in a worker that imports it from a zip."""
    here = Path(__file__).resolve().parent.parent
    policies = Path(metad_wire.__path__[0]).resolve() / "policy"
    files = [file for pattern in _CODE for file in sorted(here.glob(pattern))] + sorted(policies.rglob("*.py"))
    digest = hashlib.sha256()
    for file in files:
        digest.update(file.name.encode() + b"\0" + file.read_bytes() + b"\0")
    return f"{__version__}+{digest.hexdigest()[:8]}"


def finite(value: Any) -> Any:
    """A Struct as JSON can have it: a time without end is ``"inf"``."""
    if isinstance(value, msgspec.Struct):
        value = msgspec.to_builtins(value)
    if isinstance(value, dict):
        return {key: finite(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [finite(each) for each in value]
    return "inf" if isinstance(value, float) and math.isinf(value) else value


def infinite(value: Any) -> Any:
    """The inverse of :func:`finite`."""
    if isinstance(value, dict):
        return {
            key: math.inf if each == "inf" and key.endswith("_s") else infinite(each) for key, each in value.items()
        }
    return [infinite(each) for each in value] if isinstance(value, list) else value
