"""Pictures as inline SVG, drawn by matplotlib: curves over time, squares by two settings, bars. No script, nothing to
load.

matplotlib measures every text, so it gives the labels of axes the room that they need. It writes still pictures that
print and need no script, which the libraries for interactive ones do not. Colours that a page may change for a dark
screen are CSS variables in the result. Pure: numbers in, text out.
"""

from __future__ import annotations

import io
import math
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from html import escape
from typing import Any

import matplotlib as mpl
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator

from ..wording import short

INK, FAINT, GRID = "#1f2937", "#6b7280", "#e5e7eb"
_VARIABLES = {INK: f"var(--ink,{INK})", FAINT: f"var(--faint,{FAINT})", GRID: f"var(--grid,{GRID})"}
POINTS_MAX = 600
"""Points of a line: a picture has no more pixels across than an eye can distinguish."""
WIDTH = 860
"""Of a picture, in pixels. A page scales it."""
_FONT = 12  # pixels
_GAP = 15.0  # between the names of lines
_MARK_ROOM = 0.12  # of a picture's width: a moment so near to its end has its word on the left
_PIXELS = 72  # of an inch: matplotlib's SVG has so many units
_SETTINGS: Any = {
    "svg.fonttype": "none",
    "svg.hashsalt": "metad",
    "font.family": "DejaVu Sans",
    "font.size": _FONT,
    "text.color": INK,
    "axes.labelcolor": FAINT,
    "axes.edgecolor": FAINT,
    "xtick.color": FAINT,
    "ytick.color": FAINT,
    "grid.color": GRID,
    "path.simplify": False,
    "text.parse_math": False,
}
_FONTS = "'DejaVu Sans', Verdana, sans-serif"
"""Verdana is as wide, and whatever else a reader's machine has is narrower: no text outgrows its room."""


@contextmanager
def _drawing() -> Iterator[None]:
    with mpl.rc_context(_SETTINGS):
        yield


def _figure(width: float, height: float) -> Figure:
    figure = Figure(figsize=(width / _PIXELS, height / _PIXELS), dpi=_PIXELS, layout="constrained")
    FigureCanvasSVG(figure)
    figure.patch.set_visible(False)
    return figure


def _svg(figure: Figure, label: str) -> str:
    """The element, for a page: without a head, and with what it shows in words."""
    made = io.StringIO()
    figure.savefig(made, format="svg", metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
    text = made.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<(metadata|style)\b.*?</\1>\s*", "", text, flags=re.DOTALL)  # a style would hold for the page
    text = re.sub(r' (width|height|version|xmlns:xlink)="[^"]*"', "", text[: (end := text.index(">"))]) + text[end:]
    text = text.replace("xlink:href", "href").replace("'DejaVu Sans'", _FONTS)
    for colour, variable in _VARIABLES.items():
        text = text.replace(colour, variable)
    return text.replace("<svg", f'<svg role="img" aria-label="{escape(label)}"', 1).strip()


class Plane:
    """A picture with two axes. Draw on it, then take ``svg()``."""

    def __init__(
        self,
        *,
        x: tuple[float, float],
        y: tuple[float, float],
        label: str,
        height: int = 320,
        log_y: bool = False,
    ) -> None:
        """``label``: the content of the picture, for readers who cannot see it."""
        self._label = label
        self._names: list[tuple[float, str, str]] = []
        with _drawing():
            self._figure = _figure(WIDTH, height)
            self._axes = axes = self._figure.add_subplot()
            axes.patch.set_visible(False)
            axes.set_yscale("log" if log_y else "linear")
            axes.set_xlim(x[0], max(x[1], x[0] + 1e-9))
            axes.set_ylim(y[0], max(y[1], y[0] + 1e-9))
            for side in ("top", "left", "right"):
                axes.spines[side].set_visible(False)
            axes.tick_params(axis="y", which="both", length=0)

    def grid(self, *, x_name: str, y_name: str, y_ticks: Sequence[tuple[float, str]] | None = None) -> None:
        """Lines across at round values, and the names of the axes."""
        axes = self._axes
        with _drawing():
            axes.grid(axis="y")
            axes.set_axisbelow(True)
            axes.set_xlabel(x_name)
            axes.set_title(y_name, loc="left", fontsize=_FONT, color=FAINT)
            axes.xaxis.set_major_locator(MaxNLocator(8))
            axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
            if y_ticks is not None:
                axes.set_yticks([value for value, _ in y_ticks], [text for _, text in y_ticks])
                axes.set_yticks([], minor=True)
                return
            if axes.get_yscale() == "log":
                low, high = axes.get_ylim()
                few = math.log10(high / low) < 2
                axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if few else (1.0,)))
                axes.set_yticks([], minor=True)
            else:
                axes.yaxis.set_major_locator(MaxNLocator(5))
            axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: short(value)))

    def line(
        self,
        xs: Sequence[float],
        ys: Sequence[float],
        colour: str,
        name: str = "",
        *,
        width: float = 2,
        dash: str = "",
        opacity: float = 1.0,
    ) -> None:
        """A line through points; its name stands at its end. ``dash``: lengths of dashes and gaps."""
        if not (kept := self._kept(xs, ys)):
            return
        style: Any = (0, tuple(map(float, dash.split()))) if dash else "-"
        with _drawing():
            self._axes.plot(*zip(*kept, strict=True), color=colour, linewidth=width, linestyle=style, alpha=opacity)
        if name:
            self._names.append((kept[-1][1], name, colour))

    def area(self, xs: Sequence[float], ys: Sequence[float], colour: str, *, opacity: float = 0.25) -> None:
        """The area under a line."""
        if kept := self._kept(xs, ys):
            at, high = zip(*kept, strict=True)
            with _drawing():
                self._axes.fill_between(at, high, self._axes.get_ylim()[0], color=colour, alpha=opacity, linewidth=0)

    def _kept(self, xs: Sequence[float], ys: Sequence[float]) -> list[tuple[float, float]]:
        """The points to draw; one beyond the axis is drawn at its end."""
        low, high = self._axes.get_ylim()
        return thinned(xs, [min(max(y, low), high) for y in ys])

    def mark(self, x: float, text: str = "", colour: str = FAINT, *, row: int = 0) -> None:
        """A moment: a thin upright line with a word at its foot, ``row`` rows above it."""
        low, high = self._axes.get_xlim()
        near_end = x > high - _MARK_ROOM * (high - low)
        with _drawing():
            self._axes.axvline(x, color=colour, linewidth=1, linestyle=(0, (3, 3)))
            self._axes.annotate(
                text,
                (x, 0),
                (-5 if near_end else 5, 6 + row * _GAP),
                xycoords=("data", "axes fraction"),
                textcoords="offset points",
                ha="right" if near_end else "left",
                color=colour,
            ).set_in_layout(False)

    def svg(self) -> str:
        """The picture, with the lines' names moved apart so that each can be read."""
        axes = self._axes
        with _drawing():
            words = [
                axes.annotate(
                    name,
                    (1, 0),
                    (8, 0),
                    xycoords="axes fraction",
                    textcoords="offset points",
                    va="center",
                    color=colour,
                    annotation_clip=False,
                )
                for _, name, colour in self._names
            ]
            self._figure.draw_without_rendering()  # now the axes have their room
            box = axes.get_window_extent()
            ends = [float(axes.transData.transform((0, y))[1] - box.y0) for y, _, _ in self._names]
            for word, offset in zip(words, spread(ends, gap=_GAP, low=0, high=box.height), strict=True):
                word.xyann = (8, offset)
            made = _svg(self._figure, self._label)
            for word in words:
                word.remove()
            return made


@dataclass(frozen=True, kw_only=True)
class Square:
    """One setting of a map: its colour, the colour of its words, and the words, the first of them large."""

    fill: str
    ink: str
    words: Sequence[str]
    frame: str = ""
    """The colour of its frame; empty: it has none."""


def squares(
    cells: Sequence[Sequence[Square | None]],
    *,
    rows: Sequence[str],
    columns: Sequence[str],
    row_name: str,
    column_name: str,
    label: str,
    height: int = 40,
) -> str:
    """A map of settings: ``cells[row][column]``, each ``height`` pixels high; None: it was not looked at."""
    with _drawing():
        figure = _figure(WIDTH, height * len(rows) + 90)
        axes = figure.add_subplot()
        axes.patch.set_visible(False)
        axes.set_xlim(0, len(columns))
        axes.set_ylim(len(rows), 0)
        for side in axes.spines.values():
            side.set_visible(False)
        axes.tick_params(length=0)
        axes.set_xticks([at + 0.5 for at in range(len(columns))], columns)
        axes.set_yticks([at + 0.5 for at in range(len(rows))], rows)
        axes.set_xlabel(column_name)
        axes.set_title(row_name, loc="left", fontsize=_FONT, color=FAINT)
        for row, line in enumerate(cells):
            for column, cell in enumerate(line):
                if cell is None:
                    continue
                axes.add_patch(
                    FancyBboxPatch(
                        (column + 0.02, row + 0.04),
                        0.96,
                        0.92,
                        boxstyle="round,pad=0,rounding_size=0.06",
                        facecolor=cell.fill,
                        edgecolor=cell.frame or "none",
                        linewidth=3 if cell.frame else 0,
                        gid=f"square-{row}-{column}",
                    )
                )
                for at, word in enumerate(cell.words):
                    size = _FONT + 4 if at == 0 and len(cell.words) > 1 else _FONT
                    place = row + (at + 1) / (len(cell.words) + 1)
                    axes.text(column + 0.5, place, word, ha="center", va="center", color=cell.ink, fontsize=size)
        return _svg(figure, label)


@dataclass(frozen=True, kw_only=True)
class Bar:
    """One of several that are compared: a value with its range, and the words behind it."""

    name: str
    value: float
    low: float
    high: float
    words: str
    colour: str


def bars(rows: Sequence[Bar], *, label: str) -> str:
    """A bar for each, from the top, from 0 on."""
    with _drawing():
        figure = _figure(WIDTH, 40 * len(rows) + 16)
        axes = figure.add_subplot()
        axes.patch.set_visible(False)
        for side in axes.spines.values():
            side.set_visible(False)
        axes.set_xticks([])
        axes.tick_params(length=0)
        at = list(range(len(rows)))
        values = [row.value for row in rows]
        ranges = [[row.value - row.low for row in rows], [row.high - row.value for row in rows]]
        axes.barh(at, values, 0.65, color=[row.colour for row in rows], xerr=ranges, ecolor=INK, capsize=4)
        axes.set_yticks(at, [row.name for row in rows])
        axes.set_xlim(0, max([row.high for row in rows], default=1.0) or 1.0)
        axes.invert_yaxis()
        for place, row in enumerate(rows):
            axes.annotate(
                row.words,
                (row.high, place),
                (10, 0),
                textcoords="offset points",
                va="center",
                annotation_clip=False,
            )
        return _svg(figure, label)


def mixed(first: str, second: str, share: float) -> str:
    """A colour between two: of the second so much, 0 to 1."""
    parts = zip(bytes.fromhex(first[1:]), bytes.fromhex(second[1:]), strict=True)
    return "#" + bytes(round(low + (high - low) * share) for low, high in parts).hex()


def thinned(xs: Sequence[float], ys: Sequence[float]) -> list[tuple[float, float]]:
    """At most :data:`POINTS_MAX` of the points. Each stretch keeps its smallest and largest, so that no peak is
    lost."""
    points = list(zip(xs, ys, strict=True))
    if len(points) <= POINTS_MAX:
        return points
    kept: list[tuple[float, float]] = [points[0]]
    stretch = math.ceil(2 * len(points) / (POINTS_MAX - 2))
    for start in range(1, len(points) - 1, stretch):
        part = points[start : min(start + stretch, len(points) - 1)]
        low, high = min(part, key=lambda point: point[1]), max(part, key=lambda point: point[1])
        kept += sorted({low, high})
    return [*kept, points[-1]]


def spread(places: Sequence[float], *, gap: float, low: float, high: float) -> list[float]:
    """The places, at least ``gap`` apart, in their order, as near to where they were as that and the two ends allow."""
    order = sorted(range(len(places)), key=lambda index: places[index])
    runs: list[list[float]] = []  # of places that touch: where the first wants to be, and how many they are
    for index in order:
        runs.append([places[index], 1])
        while len(runs) > 1 and runs[-2][0] + runs[-2][1] * gap > runs[-1][0]:
            start, count = runs.pop()
            before, many = runs[-1]
            runs[-1] = [(before * many + (start - many * gap) * count) / (many + count), many + count]
    placed = [start + index * gap for start, count in runs for index in range(int(count))]
    for index, at in enumerate(placed):  # first not below the low end, then not above the high one
        placed[index] = max(at, low + index * gap)
    for index, at in enumerate(placed):
        placed[index] = min(at, high - (len(placed) - 1 - index) * gap)
    found = dict(zip(order, placed, strict=True))
    return [found[index] for index in range(len(places))]
