"""docs/BENCHMARKS.md is what the results of the runs say."""

from __future__ import annotations

import pytest
from results_page import PAGE, Result, Run, page, runs


def test_the_page_is_written_from_the_results() -> None:
    assert PAGE.read_text() == page(), "run `python tests/unit/packaging/results_page.py`"


def test_a_result_that_misses_its_bar_stands_first() -> None:
    assert Result(claim="time", value=13, at_most=12).missed
    assert Result(claim="rate", value=11, at_least=12).missed
    assert not Result(claim="time", value=12, at_most=12, at_least=12).missed
    first = page().partition("\n## Missed\n")[2].partition("\n## ")[0]
    for run in runs():
        for result in run.results:
            assert (result.line() in first) == result.missed


@pytest.mark.parametrize("run", runs(), ids=lambda run: run.title)
def test_a_run_says_how_it_was_made(run: Run) -> None:
    assert all((run.title, run.command, run.machine, run.date, run.commit, run.results))
    assert all((result.low is None) == (result.high is None) for result in run.results)


def test_no_two_runs_have_one_place() -> None:
    assert len({run.order for run in runs()}) == len({run.title for run in runs()}) == len(runs())
