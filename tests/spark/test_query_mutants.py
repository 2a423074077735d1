"""Every planted bug is found by a test of the queries: else it would not find those that nobody planted."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import test_census
import test_postmortem
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from query_mutants import MUTANTS

from metad_spark.pipeline.context import Context
from metad_spark.queries import postmortem
from sim.mutants.planting import Mutant, planted

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def _test(mutant: Mutant) -> Any:
    modules: tuple[ModuleType, ...] = (test_census, test_postmortem)
    (name,) = mutant.scenarios
    return next(vars(module)[f"test_{name}"] for module in modules if f"test_{name}" in vars(module))


@pytest.fixture(scope="module")
def spark(context: Context) -> SparkSession:
    return context.session


@pytest.fixture(scope="module")
def random_storm() -> list[test_postmortem.Attempt]:
    return test_postmortem.storm(7)


@pytest.fixture(scope="module")
def attempts(
    spark: SparkSession, random_storm: list[test_postmortem.Attempt], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[DataFrame]:
    folder = test_postmortem.written(tmp_path_factory.mktemp("storm") / "trace", random_storm)
    frame = postmortem.attempts_of(spark, folder).coalesce(1).cache()
    yield frame
    frame.unpersist()


def test_names_are_unique_and_every_query_has_mutants() -> None:
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS) >= 80
    modules = {edit[0].partition(":")[0].rpartition(".")[2] for mutant in MUTANTS for edit in mutant.edits}
    assert modules == {"census", "lag", "skew", "orphans", "postmortem"}
    assert all(_test(mutant) for mutant in MUTANTS)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_mutant_is_killed(
    mutant: Mutant,
    spark: SparkSession,
    attempts: DataFrame,
    random_storm: list[test_postmortem.Attempt],
    tmp_path: Path,
) -> None:
    known: dict[str, Any] = {"spark": spark, "attempts": attempts, "random_storm": random_storm, "tmp_path": tmp_path}
    check = _test(mutant)
    wanted = inspect.signature(check).parameters
    with planted(mutant):
        if "clients" in wanted:
            known["clients"] = postmortem.clients(attempts, 30.0)
        with pytest.raises((AssertionError, KeyError, ValueError)) as objection:  # a row more, or one fewer
            check(**{name: known[name] for name in wanted})
    assert not isinstance(objection.value, PySparkException), "a query that does not run is no mutant"
