"""Pictures as inline SVG: a plane with axes, and what can be drawn on it. No script, no fonts, nothing to load.

Pure: numbers in, text out. Positions inside are pixels of the picture's own box, which a page may scale.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from ..wording import short

INK, FAINT, GRID = "var(--ink,#1f2937)", "var(--faint,#6b7280)", "var(--grid,#e5e7eb)"
"""Colours that a page may change, for a dark screen; without it those after the comma."""
POINTS_MAX = 600
"""Points of a line: a picture has no more pixels across than an eye can distinguish."""


@dataclass(frozen=True, kw_only=True)
class Axis:
    """One direction of a plane: values from ``low`` to ``high``, drawn from pixel ``start`` to ``end``."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def at(self, value: float) -> float:
        """The pixel of a value; a value beyond the axis is drawn at its end."""
        low, high, here = self.low, self.high, min(max(value, self.low), self.high)
        if self.log:
            low, high, here = math.log10(low), math.log10(high), math.log10(here)
        return self.start + (self.end - self.start) * ((here - low) / (high - low) if high > low else 0.0)

    def ticks(self, wanted: int = 5) -> list[float]:
        """Round values along the axis, about as many as wanted."""
        if self.log:
            first, last = math.ceil(math.log10(self.low) - 1e-9), math.floor(math.log10(self.high) + 1e-9)
            decades = [10.0**power for power in range(first, last + 1)]
            if len(decades) > 2:
                return decades
            return [one for ten in range(first - 1, last + 1) for one in (10.0**ten, 2 * 10.0**ten, 5 * 10.0**ten)
                    if self.low <= one <= self.high]  # fmt: skip
        step = round_step((self.high - self.low) / wanted)
        first_step = math.ceil(self.low / step - 1e-9)
        count = math.floor(self.high / step + 1e-9) - first_step + 1
        return [(first_step + index) * step for index in range(count)]


def round_step(rough: float) -> float:
    """The next of 1, 2, 5 times a power of ten; 1 for 0."""
    if rough <= 0:
        return 1.0
    ten = 10.0 ** math.floor(math.log10(rough))
    return next(ten * one for one in (1, 2, 5, 10) if ten * one >= rough * 0.999)


class Plane:
    """A picture with two axes. Draw on it, then take ``svg()``."""

    def __init__(
        self,
        *,
        x: tuple[float, float],
        y: tuple[float, float],
        label: str,
        width: int = 860,
        height: int = 320,
        right: int = 150,
        left: int = 64,
        log_y: bool = False,
    ) -> None:
        """``label``: the content of the picture, for readers who cannot see it. ``right``: room for the lines'
        names."""
        self._width, self._height = width, height
        self.x = Axis(low=x[0], high=x[1], start=left, end=width - right)
        self.y = Axis(low=y[0], high=y[1], start=height - 44, end=24, log=log_y)
        self._label = label
        self._parts: list[str] = []
        self._names: list[tuple[float, str, str]] = []

    def grid(self, *, x_name: str, y_name: str, y_ticks: Sequence[tuple[float, str]] | None = None) -> None:
        """Lines across at round values, and the names of the axes."""
        bottom = self.y.start
        for value, text in y_ticks or [(tick, short(tick)) for tick in self.y.ticks()]:
            at = self.y.at(value)
            self._across(at, GRID)
            self.text(self.x.start - 8, at + 4, text, anchor="end", colour=FAINT)
        for tick in self.x.ticks(8):
            at = self.x.at(tick)
            self.add(f'<line x1="{at:.1f}" x2="{at:.1f}" y1="{bottom:.1f}" y2="{bottom + 5:.1f}" stroke="{FAINT}"/>')
            self.text(at, bottom + 18, f"{tick:g}", anchor="middle", colour=FAINT)
        self._across(bottom, FAINT)
        self.text((self.x.start + self.x.end) / 2, bottom + 37, x_name, anchor="middle", colour=FAINT)
        self.text(self.x.start - 56, 10, y_name, colour=FAINT)

    def _across(self, at: float, colour: str) -> None:
        x1, x2 = f"{self.x.start:.1f}", f"{self.x.end:.1f}"
        self.add(f'<line x1="{x1}" x2="{x2}" y1="{at:.1f}" y2="{at:.1f}" stroke="{colour}"/>')

    def line(
        self, xs: Sequence[float], ys: Sequence[float], colour: str, name: str = "", *, width: float = 2, dash: str = ""
    ) -> None:
        """A line through points; its name stands at its end."""
        kept = thinned(xs, ys)
        if not kept:
            return
        path = " ".join(f"{self.x.at(x):.1f},{self.y.at(y):.1f}" for x, y in kept)
        dashes = f' stroke-dasharray="{dash}"' if dash else ""
        self.add(
            f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="{width}" stroke-linejoin="round"'
            f"{dashes}>{_title(name)}</polyline>"
        )
        if name:
            self._names.append((self.y.at(kept[-1][1]), name, colour))

    def area(self, xs: Sequence[float], ys: Sequence[float], colour: str, name: str, *, opacity: float = 0.25) -> None:
        """The area under a line."""
        kept = thinned(xs, ys)
        if not kept:
            return
        floor = self.y.start
        path = " ".join(f"L{self.x.at(x):.1f} {self.y.at(y):.1f}" for x, y in kept)
        ends = self.x.at(kept[0][0]), self.x.at(kept[-1][0])
        self.add(
            f'<path d="M{ends[0]:.1f} {floor:.1f} {path} L{ends[1]:.1f} {floor:.1f} Z" fill="{colour}"'
            f' fill-opacity="{opacity}">{_title(name)}</path>'
        )

    def mark(self, x: float, text: str, colour: str = FAINT) -> None:
        """A moment: a thin upright line with a word at its foot."""
        at = self.x.at(x)
        self.add(
            f'<line x1="{at:.1f}" x2="{at:.1f}" y1="{self.y.end:.1f}" y2="{self.y.start:.1f}" stroke="{colour}"'
            ' stroke-dasharray="3 3"/>'
        )
        near_end = at > self.x.end - 90
        self.text(
            at - 5 if near_end else at + 5, self.y.start - 8, text, anchor="end" if near_end else "start", colour=colour
        )

    def text(self, x: float, y: float, text: str, *, anchor: str = "start", colour: str = INK, size: int = 12) -> None:
        """Words at a pixel; ``anchor``: start, middle or end of them."""
        where = f'x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"'
        self.add(f'<text {where} fill="{colour}" font-size="{size}">{escape(text)}</text>')

    def add(self, part: str) -> None:
        """Any other element."""
        self._parts.append(part)

    def svg(self) -> str:
        """The picture, with the lines' names moved apart so that each can be read."""
        for at, name, colour in spread(self._names, gap=15, low=self.y.end, high=self.y.start):
            self.text(self.x.end + 8, at + 4, name, colour=colour)
        return (
            f'<svg viewBox="0 0 {self._width} {self._height}" role="img" aria-label="{escape(self._label)}"'
            f' xmlns="http://www.w3.org/2000/svg">{"".join(self._parts)}</svg>'
        )


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


def spread(
    names: Sequence[tuple[float, str, str]], *, gap: float, low: float, high: float
) -> list[tuple[float, str, str]]:
    """Names at least ``gap`` pixels apart, in their order from the top, as near to their lines as that allows."""
    placed: list[list[float]] = []  # runs of touching names: the place where they want to begin, their number
    ordered = sorted(names)
    for at, _, _ in ordered:
        placed.append([at, 1])
        while len(placed) > 1 and placed[-2][0] + placed[-2][1] * gap > placed[-1][0]:
            start, count = placed.pop()
            before, many = placed[-1]
            placed[-1] = [(before * many + (start - many * gap) * count) / (many + count), many + count]
    tops = [start + index * gap for start, count in placed for index in range(int(count))]
    for index, top in enumerate(tops):  # first not above the picture, then not below it
        tops[index] = max(top, low + index * gap)
    for index, top in enumerate(tops):
        tops[index] = min(top, high - (len(tops) - 1 - index) * gap)
    return [(top, name, colour) for top, (_, name, colour) in zip(tops, ordered, strict=True)]


def _title(text: str) -> str:
    return f"<title>{escape(text)}</title>" if text else ""
