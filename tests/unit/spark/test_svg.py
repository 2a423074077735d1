"""Pictures: ticks are round, names can be told apart, no peak is lost when points are left out, text is escaped."""

from __future__ import annotations

import itertools
import xml.etree.ElementTree as ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metad_spark.report.svg import POINTS_MAX, Axis, Plane, round_step, spread, thinned
from metad_spark.wording import seconds, short


@pytest.mark.parametrize(
    ("low", "high", "log", "ticks"),
    [
        (0, 300, False, [0, 100, 200, 300]),
        (0, 1, False, [0, 0.2, 0.4, 0.6000000000000001, 0.8, 1.0]),
        (1, 10, True, [1, 2, 5, 10]),
        (1, 2000, True, [1, 10, 100, 1000]),
    ],
)
def test_ticks_are_round_numbers(low: float, high: float, log: bool, ticks: list[float]) -> None:
    assert Axis(low=low, high=high, start=0, end=100, log=log).ticks() == ticks


def test_an_axis_draws_what_lies_beyond_it_at_its_end() -> None:
    axis = Axis(low=1, high=100, start=0, end=10, log=True)
    assert [axis.at(value) for value in (0, 1, 10, 100, 1e9)] == [0, 0, 5, 10, 10]


@given(st.lists(st.floats(0, 400), max_size=12))
def test_names_stand_apart_and_inside(tops: list[float]) -> None:
    placed = [at for at, _, _ in spread([(top, "name", "red") for top in tops], gap=15, low=10, high=300)]
    assert all(after - before >= 15 - 1e-9 for before, after in itertools.pairwise(placed))
    assert all(10 - 1e-9 <= at <= 300 + 1e-9 for at in placed)


def test_a_name_with_room_stands_at_its_line() -> None:
    assert [at for at, _, _ in spread([(200, "b", ""), (50, "a", "")], gap=15, low=0, high=300)] == [50, 200]


@given(st.lists(st.floats(-1e9, 1e9), min_size=1, max_size=3000))
def test_thinning_keeps_ends_and_extremes(ys: list[float]) -> None:
    xs = [float(index) for index in range(len(ys))]
    kept = thinned(xs, ys)
    assert len(kept) <= POINTS_MAX + 2
    assert kept[0] == (xs[0], ys[0])
    assert kept[-1] == (xs[-1], ys[-1])
    assert {min(ys), max(ys)} <= {y for _, y in kept}
    assert [x for x, _ in kept] == sorted(x for x, _ in kept)


def test_a_picture_is_well_formed_whatever_the_names() -> None:
    plane = Plane(x=(0, 10), y=(0, 1), label='a "label" & <more>')
    plane.grid(x_name="x <s>", y_name="y & z")
    plane.line([0, 10], [0, 1], "red", "<region> & co")
    plane.area([0, 10], [0, 1], "red", "<a>")
    plane.mark(5, "a < b")
    drawn = ElementTree.fromstring(plane.svg())
    assert drawn.attrib["aria-label"] == 'a "label" & <more>'
    assert "<region> & co" in {node.text for node in drawn.iter("{http://www.w3.org/2000/svg}text")}


@pytest.mark.parametrize(
    ("value", "text"), [(0.1234, "0.123"), (999.9, "1 k"), (31_500_000, "31.5 M"), (1e9, "1 G"), (0, "0")]
)
def test_numbers_as_people_say_them(value: float, text: str) -> None:
    assert short(value) == text


@pytest.mark.parametrize(("value", "text"), [(0.4, "0.4 s"), (243, "243 s"), (1080, "18 min"), (12600, "3.5 h")])
def test_durations_as_people_say_them(value: float, text: str) -> None:
    assert seconds(value) == text


@given(st.floats(1e-6, 1e12))
def test_steps_are_round_and_not_smaller(rough: float) -> None:
    step = round_step(rough)
    assert rough * 0.999 <= step <= rough * 2.5
    assert f"{step:.0e}"[0] in "125"
