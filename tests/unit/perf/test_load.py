"""How a load is cut into processes, and what makes no sense."""

from __future__ import annotations

import argparse
from typing import Any, get_args

import pytest

from metad_perf import cli
from metad_perf.commands import Verb
from metad_perf.errors import UsageError
from metad_perf.load.measure import Load, plans
from metad_perf.load.workload import VERBS
from metad_spark.arguments import count as count_of


def _load(**settings: Any) -> Load:
    return Load(**({"verb": "kv.put"} | settings)).checked()


CUTS = [(1_000_000, 1_000, 8, 3), (10, 1, 512, 4), (7, 3, 2, 2), (5, 9, 1, 8)]


@pytest.mark.parametrize(("items", "batch", "in_flight", "processes"), CUTS)
def test_plans_share_out_everything(items: int, batch: int, in_flight: int, processes: int) -> None:
    load = _load(items=items, batch=batch, in_flight=in_flight, processes=processes)
    made = plans("host:1", load, 1)
    assert sum(plan.requests or 0 for plan in made) == items // load.batch
    assert sum(plan.in_flight for plan in made) == in_flight
    assert min(plan.in_flight for plan in made) >= 1
    assert [plan.settings.share for plan in made] == list(range(len(made)))


def test_the_rate_is_of_all_processes_together() -> None:
    load = _load(items=10_000, batch=10, in_flight=4, processes=2, rate=1_000.0)
    assert {plan.interval_ns for plan in plans("host:1", load, 1)} == {20e6}


def test_the_key_space_is_as_large_as_the_run_up_to_a_bound() -> None:
    assert _load(items=5_000).keys == 5_000
    assert _load(items=5_000_000).keys == 100_000
    assert _load(items=5_000, keys=10).keys == 10
    assert _load(items=10_000, batch=10_000, in_flight=2, processes=2).keys == 10_000


@pytest.mark.parametrize(
    "settings",
    [{"verb": "kv.sing"}, {"batch": 0}, {"items": 0}, {"in_flight": 0}, {"rate": -1.0}, {"restore": True}],
)
def test_senseless_settings_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        _load(**settings)


def test_the_command_line_knows_the_workloads_verbs() -> None:
    assert tuple(VERBS) == get_args(Verb)


@pytest.mark.parametrize(("text", "count"), [("1e7", 10_000_000), ("10_000", 10_000), ("5,000", 5_000), ("7", 7)])
def test_counts_are_read_as_people_write_them(text: str, count: int) -> None:
    assert count_of(text) == count


@pytest.mark.parametrize("text", ["many", "1.5", "nan", "inf"])
def test_other_counts_are_refused(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError):
        count_of(text)


def test_errors_are_one_line_and_an_exit_code(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["load", "--endpoint", "h:1", "--verb", "kv.put", "--batch", "0"]) == 2
    assert capsys.readouterr().err == "metad-perf: usage: --batch must be at least 1\n"
