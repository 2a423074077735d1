"""Pictures: no text is over another or cut, no peak is lost when points are left out, text is escaped."""

from __future__ import annotations

import itertools
import re
import xml.etree.ElementTree as ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

import pictures
from metad_spark.report.picture import INK, POINTS_MAX, Bar, Plane, Square, bars, mixed, spread, squares, thinned
from metad_spark.wording import seconds, short


@given(st.lists(st.floats(0, 400), max_size=12))
def test_names_stand_apart_and_inside(tops: list[float]) -> None:
    placed = spread(tops, gap=15, low=10, high=300)
    assert all(after - before >= 15 - 1e-9 for before, after in itertools.pairwise(sorted(placed)))
    assert sorted(placed) == [at for _, at in sorted(zip(tops, placed, strict=True))]
    assert all(10 - 1e-9 <= at <= 300 + 1e-9 for at in placed)


def test_a_name_with_room_stands_at_its_line() -> None:
    assert spread([200, 50], gap=15, low=0, high=300) == [200, 50]


@given(st.lists(st.floats(-1e9, 1e9), min_size=1, max_size=3000))
def test_thinning_keeps_ends_and_extremes(ys: list[float]) -> None:
    xs = [float(index) for index in range(len(ys))]
    kept = thinned(xs, ys)
    assert len(kept) <= POINTS_MAX + 2
    assert kept[0] == (xs[0], ys[0])
    assert kept[-1] == (xs[-1], ys[-1])
    assert {min(ys), max(ys)} <= {y for _, y in kept}
    assert [x for x, _ in kept] == sorted(x for x, _ in kept)


@pytest.mark.parametrize("log_y", [False, True])
@pytest.mark.parametrize("top", [1.2, 37.0, 1_049_999.0, 3.3e9])
def test_texts_have_room_whatever_the_names_and_numbers(top: float, log_y: bool) -> None:
    plane = Plane(x=(0, 60.4), y=(0.9, top), label='a "label" & <more>', log_y=log_y)
    plane.grid(x_name="x <s>", y_name="y & z, and much more that a reader has to know of it")
    for at in range(8):
        plane.line([0, 60], [0, top * (1 - at / 100)], "red", f"<region {at}> & co, {10**at:,}")
    plane.area([0, 60], [0, top], "red")
    plane.mark(5, "a < b")
    plane.mark(59, "near the end")
    drawn = ElementTree.fromstring(plane.svg())
    assert drawn.attrib["aria-label"] == 'a "label" & <more>'
    assert "<region 0> & co, 1" in {node.text for node in drawn.iter(f"{pictures.SVG}text")}
    assert pictures.faults(plane.svg()) == []


def test_what_lies_beyond_an_axis_is_drawn_at_its_end() -> None:
    plane = Plane(x=(0, 10), y=(1, 100), label="", log_y=True)
    plane.line([0, 10], [0, 1e9], "#ff0000")
    (path,) = re.findall(r'<path d="([^"]+)"[^>]*stroke: #ff0000', plane.svg())
    assert all(0 <= float(number) <= 860 for number in re.findall(r"[\d.]+", path))


def test_squares_and_bars_have_room_for_their_words() -> None:
    cell = Square(fill=mixed("#000000", "#ffffff", 0.5), ink=INK, words=["QUIC 12.3×", "TCP 1,234 ms", "QUIC 999 ms"])
    shown = squares(
        [[cell, None, cell], [None, cell, cell]],
        rows=["0.25 ms", "1,000 ms"],
        columns=["0 %", "0.1 %", "5 %"],
        row_name="round-trip time",
        column_name="loss in each direction",
        label="a map",
        height=92,
    )
    assert shown.count("#808080") == 4
    assert pictures.faults(shown) == []
    rows = [
        Bar(
            name=name,
            value=value,
            low=0.9 * value,
            high=1.2 * value,
            words=f"{value:,.0f}\n12,345 a CPU second",
            colour=INK,
        )
        for name, value in (("metad", 1_000_000.0), ("a system <with> a name", 0.0))
    ]
    assert pictures.faults(bars(rows, label="bars")) == []


def test_texts_that_are_cut_or_over_others_are_found() -> None:
    plane = Plane(x=(0, 10), y=(0, 1), label="")
    plane.mark(5, "one")
    plane.mark(5.1, "other")
    assert pictures.faults(plane.svg()) == ["'one' is over 'other'"]
    plane = Plane(x=(0, 10), y=(0, 1), label="")
    plane.mark(1, "long " * 40)
    assert [fault.rpartition(" is ")[2] for fault in pictures.faults(plane.svg())] == ["cut"]


@pytest.mark.parametrize(
    ("value", "text"), [(0.1234, "0.123"), (999.9, "1 k"), (31_500_000, "31.5 M"), (1e9, "1 G"), (0, "0")]
)
def test_numbers_as_people_say_them(value: float, text: str) -> None:
    assert short(value) == text


@pytest.mark.parametrize(("value", "text"), [(0.4, "0.4 s"), (243, "243 s"), (1080, "18 min"), (12600, "3.5 h")])
def test_durations_as_people_say_them(value: float, text: str) -> None:
    assert seconds(value) == text
