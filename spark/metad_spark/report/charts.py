"""The four pictures of the report, from plain numbers: returns over time, load against capacity, amplification, and the
map of collapse. Pure; knows no scenario and no model."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ..wording import percent, seconds, short
from .svg import FAINT, INK, Plane

COLOURS = ("#0657f9", "#049504", "#f90606", "#1fad96", "#f906f9", "#945738", "#f90680", "#6b8ac7")
"""Of regions, in order; after eight they repeat, with dashes. They can be told apart on white and on black."""
DASHES = ("", "7 3", "2 3", "9 3 2 3")
BLUE, RED = "#2563eb", "#dc2626"
_LINEAR_MAX = 4.0
"""Load this many times over capacity is drawn on a logarithmic scale, so that both can be read."""
_TIME = "seconds since everyone was cut off"
_FAST, _SLOW = (219, 234, 254), (30, 64, 175)
"""Ends of the collapse map's scale: the darker, the longer."""


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One square of the collapse map."""

    t999_s: float | None
    """Seconds until 99.9 % are back; None if they never are."""
    restored: float
    """Share that is back at the end, 0 to 1."""
    here: bool = False
    """Whether it is the scenario's own setting."""


def restored(
    times: Sequence[float],
    regions: Mapping[str, Sequence[float]],
    *,
    target_s: float | None = None,
    events: Mapping[str, float] | None = None,
) -> str:
    """Share of each region's clients that is back (0 to 1), over seconds since the disconnect."""
    plane = Plane(x=(0, times[-1]), y=(0, 1), label="share of clients restored over time, by region")
    quarters = [(share / 4, f"{share * 25} %") for share in range(5)]
    plane.grid(x_name=_TIME, y_name="clients back", y_ticks=quarters)
    for name, at in {**(events or {}), **({f"target {seconds(target_s)}": target_s} if target_s else {})}.items():
        if at < times[-1]:
            plane.mark(at, name)
    for index, (name, shares) in enumerate(regions.items()):
        dash = DASHES[index // len(COLOURS) % len(DASHES)]
        plane.line(times, shares, COLOURS[index % len(COLOURS)], f"{name}  {percent(shares[-1])}", dash=dash)
    return plane.svg()


def load(
    times: Sequence[float],
    *,
    arrivals: Sequence[float],
    served: Sequence[float],
    limits: Mapping[str, float],
) -> str:
    """Attempts a second and what is served of them, against what could be: ``limits``, by name, in items/s."""
    top, most = max(*arrivals, *limits.values(), 1.0) * 1.08, max(*limits.values(), *served)
    is_log = top > _LINEAR_MAX * most  # capacity would be a line at the bottom
    low = min(limits.values()) / 100 if is_log else 0.0
    label = "arriving and answered requests per second against capacity"
    plane = Plane(x=(0, times[-1]), y=(low, top), label=label, log_y=is_log)
    plane.grid(x_name=_TIME, y_name=f"items per second, all groups{', each line ten times the last' if is_log else ''}")
    plane.area(times, arrivals, RED, "arriving", opacity=0.12)
    plane.area(times, served, BLUE, "answered", opacity=0.25)
    plane.line(times, served, BLUE, "", width=1.5)
    plane.line(times, arrivals, RED, "", width=1.5)
    for name, limit in limits.items():
        plane.line([0, times[-1]], [limit, limit], INK, f"{name} {short(limit)}/s", width=1.5, dash="6 4")
    return plane.svg()


def amplification(times: Sequence[float], attempts: Sequence[float]) -> str:
    """Attempts so far for each client that is back so far."""
    shown = [(time, value) for time, value in zip(times, attempts, strict=True) if value > 0 and math.isfinite(value)]
    top = max((value for _, value in shown), default=1.0)
    label = "attempts so far per client restored so far, over time"
    plane = Plane(x=(0, times[-1]), y=(1, max(10.0, top * 1.3)), label=label, log_y=True)
    plane.grid(x_name=_TIME, y_name="attempts so far for each client that is back so far (1 is perfect)")
    if shown:
        plane.line(
            [time for time, _ in shown], [value for _, value in shown], COLOURS[4], f"{shown[-1][1]:.3g} in the end"
        )
    return plane.svg()


def collapse_map(
    cells: Sequence[Sequence[Cell]], *, rows: Sequence[str], columns: Sequence[str], row_name: str, column_name: str
) -> str:
    """A square per setting: time until 99.9 % are back, or that they never are. ``cells[row][column]``."""
    width, left, top, high = 860, 150, 34, 40
    wide = (width - left - 20) / len(columns)
    below = top + high * len(rows)
    plane = Plane(x=(0, 1), y=(0, 1), label="collapse map", width=width, height=below + 50, left=left, right=20)
    times = [cell.t999_s for line in cells for cell in line if cell.t999_s is not None] or [1.0]
    for at, line in enumerate(cells):
        y = top + at * high
        plane.text(left - 12, y + high / 2 + 4, rows[at], anchor="end", colour=FAINT)
        for index, cell in enumerate(line):
            x = left + index * wide
            fill, ink, words = _shade(cell, min(times), max(times))
            box = f'<rect x="{x + 1.5:.1f}" y="{y + 1.5}" width="{wide - 3:.1f}" height="{high - 3}" rx="4"'
            plane.add(f'{box} fill="{fill}"{_HERE if cell.here else ""}/>')
            plane.text(x + wide / 2, y + high / 2 + 4, words, anchor="middle", colour=ink)
    for index, name in enumerate(columns):
        plane.text(left + (index + 0.5) * wide, below + 18, name, anchor="middle", colour=FAINT)
    plane.text(left + wide * len(columns) / 2, below + 40, column_name, anchor="middle", colour=FAINT)
    plane.text(left - 12, top - 14, row_name, anchor="end", colour=FAINT)
    return plane.svg()


_HERE = f' stroke="{INK}" stroke-width="3"'
_PLAIN_INK = "#1f2937"
"""On a square, whose colour no dark screen changes."""


def _shade(cell: Cell, fastest: float, slowest: float) -> tuple[str, str, str]:
    """Fill, ink and words of a square. The scale is logarithmic: twice as long is as much darker everywhere, and a
    ratio under two never spans the whole scale."""
    if cell.t999_s is None:
        return "#fecaca", "#991b1b", f"never: {percent(cell.restored)} back"
    span = max(math.log(2.0), math.log(slowest / fastest)) if fastest > 0 else 1.0
    share = math.log(cell.t999_s / fastest) / span if fastest > 0 else 0.0
    red, green, blue = (round(low + (high - low) * share) for low, high in zip(_FAST, _SLOW, strict=True))
    return f"rgb({red},{green},{blue})", "#fff" if share > 0.45 else _PLAIN_INK, seconds(cell.t999_s)
