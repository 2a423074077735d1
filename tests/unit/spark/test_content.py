"""The report says what the numbers say: late is late, never is never, and nobody who is missing is rounded away."""

from __future__ import annotations

import re

import pytest
from msgspec.structs import replace

from metad_spark.calibration import load_calibration
from metad_spark.changes import changes, grid
from metad_spark.models.results import StormResult
from metad_spark.report import content
from metad_spark.scenario import load_scenario
from metad_spark.target import Target

COSTS = load_calibration()
SCENARIO = load_scenario("default")
REGIONS = [region.name for region in SCENARIO.regions]
CLIENTS = [1000] * len(REGIONS)
STORM = StormResult(
    clients=sum(CLIENTS),
    restored=sum(CLIENTS),
    t50_s=0.5,
    t99_s=2.0,
    t999_s=3.0,
    p50_s=0.4,
    p99_s=1.9,
    p999_s=2.9,
    attempts_per_client=2.0,
    rejected=8000,
    queue_max=77,
    collapsed=False,
    timeouts=0,
    wasted=0,
    expired=0,
    restored_by_s=[[500.0, 300.0, 200.0, *[0.0] * 97] for _ in REGIONS],
    attempts_by_s=[[1500.0, 400.0, 100.0, *[0.0] * 97] for _ in REGIONS],
    rejected_by_s=[8000.0, *[0.0] * 99],
    served_by_s=[4000.0, 2400.0, 1600.0, *[0.0] * 97],
    queue_by_s=[77.0, *[0.0] * 99],
    capacity_by_s=[1e6] * 100,
    regions=REGIONS,
)
HALF = replace(STORM, restored=4000, t99_s=None, t999_s=None, collapsed=True)


@pytest.mark.parametrize(
    ("storm", "target_s", "said"),
    [
        (STORM, 300, "99.9 % are back after 3 s, within the 300 s wanted."),
        (STORM, 2, "99.9 % are back after 3 s, 1 s later than wanted."),
        (HALF, 300, "It collapses: 50 % are back at the end, and the rest make no headway."),
        (replace(HALF, collapsed=False), 300, "99.9 % are not back by the end; 50 % are."),
    ],
)
def test_the_verdict(storm: StormResult, target_s: float, said: str) -> None:
    assert content.verdict(storm, Target(seconds=target_s)) == said


@pytest.mark.parametrize(
    ("share", "text"), [(1.0, "100 %"), (0.9999999, "99.99 %"), (0.5, "50 %"), (0.12345, "12.35 %")]
)
def test_nobody_who_is_missing_is_rounded_away(share: float, text: str) -> None:
    assert content.percent(share) == text


def _html(storm: StormResult) -> str:
    around = grid(SCENARIO, COSTS)
    return content.report(
        scenario=SCENARIO,
        calibration=COSTS,
        storm=storm,
        clients=CLIENTS,
        target=Target(),
        changes=[(change, storm) for change in changes(SCENARIO, COSTS)],
        grid=around,
        cells=[[storm for _ in line] for line in around.scenarios],
        settings=content.settings(SCENARIO, COSTS),
    ).html()


def test_the_page_has_four_pictures_and_a_row_for_each_change() -> None:
    html = _html(STORM)
    assert html.count("<svg") == 4
    assert html.count("<tr class=strong>") == len(changes(SCENARIO, COSTS))
    assert all(f">{region}" in html for region in REGIONS)
    assert 'class="verdict good"' in html


def test_a_collapse_is_never_green() -> None:
    html = _html(HALF)
    assert 'class="verdict bad"' in html
    assert "<tr class=strong>" not in html
    around = grid(SCENARIO, COSTS)
    assert len(re.findall("never: 50 % back", html)) == len(around.rows) * len(around.columns)
