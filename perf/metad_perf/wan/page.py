"""The page of ``metad-perf wan``: a map per verb, RTT down and loss across. The colour shows the winner and its margin,
the big number the factor by which its p99 is better, the small ones the p99s; a framed cell means that
``metad+auto://`` chose the other transport."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from metad_spark.report.page import Page, Picture, Table
from metad_spark.report.picture import INK, Square, mixed, squares

from .table import EVEN, QUIC, RULE, TCP, Cell, auto_share

_FULL_RATIO = 4.0  # from this factor on the colour is at its strongest
_VERBS = {"put": "Single puts", "batch": "Batches"}
_GROUND, _COLOURS = "#f3f1ec", {TCP: "#2f6fb3", QUIC: "#d9622b"}
_WORDS, _WORDS_ON_STRONG = "#1c1b19", "#ffffff"
"""On a square, whose colour no dark screen changes."""
_LEGEND = (
    *((_COLOURS[TCP], "TCP wins; the stronger, the clearer"), (_GROUND, "even")),
    *((_COLOURS[QUIC], "QUIC wins"), (INK, "framed: metad+auto:// chose the other")),
)


def heatmap_page(cells: Sequence[Cell], setting: Mapping[str, Any], words: Sequence[str]) -> str:
    """The whole page. ``setting``: names and values of the measurement's settings; ``words``: sentences above the
    maps."""
    won = sum(cell.winner == QUIC for cell in cells)
    share = auto_share(cells)
    auto = [] if share is None else [(f"{100 * share:.0f} %", "of the cells: metad+auto:// chose the winner")]
    verbs = dict.fromkeys(cell.verb for cell in cells)
    return Page(
        title="TCP or QUIC?",
        verdict="p99 of concurrent requests to one metad node over a long path, by round-trip time and loss.",
        good=True,
        notice=" ".join([*words, RULE]),
        figures=[
            (str(won), f"of {len(cells)} cells: QUIC wins"),
            (str(len(cells) - won), f"of {len(cells)} cells: TCP wins"),
            *auto,
        ],
        parts=[*(_map(verb, [cell for cell in cells if cell.verb == verb]) for verb in verbs), _numbers(cells)],
        settings=[(str(key), str(one)) for key, one in setting.items()],
        settings_heading="Measured with",
    ).html()


def _map(verb: str, cells: Sequence[Cell]) -> Picture:
    rtts = list(dict.fromkeys(cell.rtt_ms for cell in cells))
    losses = list(dict.fromkeys(cell.loss_pct for cell in cells))
    at = {(cell.rtt_ms, cell.loss_pct): _square(cell) for cell in cells}
    heading = _VERBS.get(verb, verb)
    return Picture(
        heading=heading,
        caption="The factor by which the winner's p99 is lower, and both.",
        svg=squares(
            [[at.get((rtt, loss)) for loss in losses] for rtt in rtts],
            rows=[f"{rtt:g} ms" for rtt in rtts],
            columns=[f"{loss:g} %" for loss in losses],
            row_name="round-trip time",
            column_name="loss in each direction",
            label=f"heat map: {heading}",
            height=92,
        ),
        legend=_LEGEND,
    )


def _square(cell: Cell) -> Square:
    factor = max(cell.p99_ratio, 1 / cell.p99_ratio) if cell.p99_ratio else 0.0
    strength = _strength(factor)
    return Square(
        fill=mixed(_GROUND, _COLOURS[cell.winner], strength),
        ink=_WORDS_ON_STRONG if strength > 0.7 else _WORDS,
        words=[
            "even" if cell.even else f"{cell.winner.upper()} {_times(factor)}",
            f"TCP {_ms(cell.tcp.p99_ms)}",
            f"QUIC {_ms(cell.quic.p99_ms)}",
        ],
        frame=INK if cell.auto and cell.auto != cell.winner else "",
    )


def _numbers(cells: Sequence[Cell]) -> Table:
    others = list(dict.fromkeys(name for cell in cells for name in cell.others))
    head = ["verb", "RTT", "loss", "winner", "auto"]
    for name in ("TCP", "QUIC", *(f"TCP {other}" for other in others)):
        head += [f"{name} p50", f"{name} p99", f"{name} items/s"]
    rows = []
    for cell in cells:
        row = [cell.verb, f"{cell.rtt_ms:g} ms", f"{cell.loss_pct:g} %", cell.winner + (", even" if cell.even else "")]
        row.append(cell.auto or "–")
        for figures in (cell.tcp, cell.quic, *(cell.others[other] for other in others if other in cell.others)):
            row += [_ms(figures.p50_ms), _ms(figures.p99_ms), f"{figures.items_per_s:,.0f}"]
        rows.append(row)
    return Table(heading="All numbers", caption="", columns=head, rows=rows)


def _strength(factor: float) -> float:
    """0.1 if the cell is even, 1 from :data:`_FULL_RATIO` on, by the logarithm: twice as good is as far as half as
    bad."""
    if factor < EVEN:
        return 0.1
    return 0.18 + 0.82 * min(1.0, math.log(factor) / math.log(_FULL_RATIO))


def _times(factor: float) -> str:
    return f"{factor:.0f}×" if factor >= 9.95 else f"{factor:.1f}×"


def _ms(value: float) -> str:
    if value >= 9_950:
        return f"{value / 1e3:.0f} s"
    if value >= 995:
        return f"{value / 1e3:.1f} s"
    return f"{value:.0f} ms" if value >= 9.95 else f"{value:.1f} ms"
