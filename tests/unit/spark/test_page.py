"""The report is one file that loads nothing, runs nothing, and shows words as they are, whatever is in them."""

from __future__ import annotations

import itertools
import math
import re
import xml.etree.ElementTree as ElementTree

import pictures
from metad_spark.report import content as charts
from metad_spark.report.content import Cell
from metad_spark.report.page import Page, Picture, Table

_SVG = "{http://www.w3.org/2000/svg}"


def _page() -> str:
    picture = Picture(heading="A <b>", caption="c & d", svg=charts.restored([0, 1, 2], {"x<y": [0, 0.5, 1]}))
    table = Table(heading="t", caption="", columns=["a"], rows=[["<script>alert(1)</script>"]], strong=frozenset([0]))
    page = Page(
        title="<title>",
        verdict="a & b",
        good=False,
        figures=[("1 <", "n")],
        parts=[picture, table],
        settings=[("k", "<v>")],
    )
    return page.html()


def test_nothing_is_loaded_and_nothing_runs() -> None:
    html = _page()
    assert not re.search(r"<(script|link|img|iframe|object)\b", html)
    assert set(re.findall(r"https?://[^\s\"'<]+", html)) == {"http://www.w3.org/2000/svg"}
    assert set(re.findall(r"url\((.)", html)) <= {"#"}


def test_words_are_escaped() -> None:
    html = _page()
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in html
    assert "x&lt;y" in html
    assert "<title>&lt;title&gt;</title>" in html


def test_each_region_has_a_line_with_its_share() -> None:
    drawn = ElementTree.fromstring(charts.restored([0, 1, 2], {"here": [0, 0.5, 0.9996], "there": [0, 0, 0.99949]}))
    words = {node.text for node in drawn.iter(f"{_SVG}text")}
    assert "here  99.96 %" in words
    assert "there  99.95 %" in words  # never 100 % where somebody is missing


def _squares(drawn: ElementTree.Element) -> list[str]:
    """The styles of the squares of a map."""
    groups = [group for group in drawn.iter(f"{_SVG}g") if group.attrib.get("id", "").startswith("square")]
    return [path.attrib["style"] for group in groups for path in group.iter(f"{_SVG}path")]


def test_the_map_tells_slow_from_never_and_marks_where_we_are() -> None:
    cells = [[Cell(t999_s=20, restored=1), Cell(t999_s=200, restored=1, here=True), Cell(t999_s=None, restored=0.65)]]
    drawn = ElementTree.fromstring(
        charts.collapse_map(cells, rows=["r"], columns=["a", "b", "c"], row_name="rows", column_name="columns")
    )
    boxes = _squares(drawn)
    assert len({re.search(r"fill: (#\w+)", style)[1] for style in boxes}) == 3
    assert ["stroke: var(--ink" in style for style in boxes] == [False, True, False]
    words = [node.text for node in drawn.iter(f"{_SVG}text")]
    assert {"20 s", "200 s", "never: 65 % back", "r", "a", "b", "c", "rows", "columns"} == set(words)


def test_the_map_makes_nothing_of_a_thousandth() -> None:
    cells = [[Cell(t999_s=time_s, restored=1) for time_s in (2.41, 2.412)]]
    drawn = ElementTree.fromstring(
        charts.collapse_map(cells, rows=["r"], columns=["a", "b"], row_name="rows", column_name="columns")
    )
    first, second = (bytes.fromhex(style.partition("fill: #")[2][:6]) for style in _squares(drawn))
    assert all(abs(one - other) <= 2 for one, other in zip(first, second, strict=True))


def test_pictures_of_a_storm_in_which_nothing_happens() -> None:
    for svg in (
        charts.restored([0, 1], {"here": [0, 0]}),
        charts.load([0, 1], arrivals=[0, 0], served=[0, 0], limits={"nodes": 1}),
        charts.amplification([0, 1], [0, 0]),
    ):
        assert pictures.faults(svg) == []


def _lightness(colour: str) -> tuple[float, float, float, float]:
    """CIELAB of a colour, and its luminance."""
    red, green, blue = (int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5))
    r, g, b = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in (red, green, blue))
    xyz = (
        (0.4124 * r + 0.3576 * g + 0.1805 * b) / 0.95047,
        0.2126 * r + 0.7152 * g + 0.0722 * b,
        (0.0193 * r + 0.1192 * g + 0.9505 * b) / 1.08883,
    )
    x, y, z = (t ** (1 / 3) if t > 0.008856 else 7.787 * t + 16 / 116 for t in xyz)
    return 116 * y - 16, 500 * (x - y), 200 * (y - z), xyz[1]


def test_eight_colours_can_be_told_apart_on_white_and_on_black() -> None:
    places = [_lightness(colour) for colour in charts.COLOURS]
    assert len(places) == 8
    for one, other in itertools.combinations(places, 2):
        assert math.dist(one[:3], other[:3]) > 45
    for *_, luminance in places:
        for ground in (_lightness("#ffffff")[3], _lightness("#111827")[3]):
            low, high = sorted((luminance, ground))
            assert (high + 0.05) / (low + 0.05) > 2.7


def test_capacity_can_be_read_under_a_spike() -> None:
    """It was once a line at the bottom, under a spike of 85 M/s."""
    svg = charts.load([0.5, 1.5, 2.5], arrivals=[85e6, 2e6, 1e6], served=[1e6, 1e6, 1e6], limits={"nodes": 1.2e6})
    drawn = ElementTree.fromstring(svg)
    dashed = next(path for path in drawn.iter(f"{_SVG}path") if "stroke-dasharray" in path.attrib.get("style", ""))
    y = float(dashed.attrib["d"].split()[2])
    assert 60 < y < 220  # of some 20 at the top to 280 at the bottom
    assert pictures.faults(svg) == []


def test_a_dark_screen_and_a_phone_are_thought_of() -> None:
    html = _page()
    assert "prefers-color-scheme:dark" in html
    assert "max-width:700px" in html
    for svg in re.findall(r"<svg.*?</svg>", html, re.DOTALL):
        assert "#1f2937" not in svg.replace("var(--ink,#1f2937)", "")
