"""The rounds as a page: latency over time around the kill, all rounds laid over each other. Pure.

One HTML file without scripts or external files, readable in light and dark.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from html import escape
from typing import Any

from .rounds import Curve, percentile

_WIDTH, _HEIGHT = 1_000, 330
_LEFT, _RIGHT, _TOP, _BOTTOM = 74, 20, 26, 46
_TICKS_MS = (1, 3, 10, 30, 100, 300, 1_000, 3_000, 10_000, 30_000)
_COLUMNS = ("round", "node", "led", "led_again_ms", "worst_ms", "failed_operations", "refused", "unknown")


def page(made: Mapping[str, Any], curves: Sequence[Curve]) -> str:
    """The whole page, of the report and the curves of its rounds."""
    again = [ms for one in made["by_round"] for ms in one["led_again_ms"].values()]
    figures = [
        (f"{made['led_again_ms_p95']:,.0f} ms", "until another node leads and serves, p95"),
        (f"{made['led_again_ms_p50']:,.0f} ms", "p50"),
        (f"{made['failed_operations_max']:,}", "operations failed in the worst round"),
        (f"{made['worst_ms']:,.0f} ms", "the longest that an operation took"),
        (f"{made['lost']:,}", "acknowledged writes lost"),
    ]
    shown = "".join(
        f'<div class="figure"><b>{escape(one)}</b><span>{escape(text)}</span></div>' for one, text in figures
    )
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>metad: a leader is killed</title><style>{_STYLE}</style></head><body><main>
<h1>A leader is killed</h1>
<p class="lead">{made["rounds"]} times kill -9 of a node that leads, at {made["rate"]:,.0f} operations a second on
{made["nodes"]} nodes. Each line is one round, 0 is the kill.</p>
<div class="figures">{shown}</div>
<figure><figcaption>Longest latency of the operations that were due then</figcaption>{_latency(curves, again)}</figure>
<figure><figcaption>Operations done per second</figcaption>{_done(curves, made["rate"])}</figure>
<details open><summary>Rounds</summary>{_rounds(made["by_round"])}</details>
<details><summary>Measured with</summary>{_settings(made)}</details>
</main></body></html>
"""


def _latency(curves: Sequence[Curve], again: Sequence[float]) -> str:
    highest = max((max(one.worst_ms, default=1.0) for one in curves), default=1.0)
    top = next((tick for tick in _TICKS_MS if tick >= highest), _TICKS_MS[-1])

    def y(value: float) -> float:
        share = math.log10(max(value, 1.0)) / math.log10(top) if top > 1 else 0.0
        return _TOP + (_HEIGHT - _TOP - _BOTTOM) * (1 - min(1.0, share))

    parts = [_frame(curves, "latency around the kill", [(tick, _ms(tick)) for tick in _TICKS_MS if tick <= top], y)]
    if again:
        x = _across(curves)
        for percent in (50, 95):
            at = percentile(again, percent)
            parts.append(f'<line class="mark" x1="{x(at):.1f}" y1="{_TOP}" x2="{x(at):.1f}" y2="{_HEIGHT - _BOTTOM}"/>')
            words = f"led again, p{percent}: {at:,.0f} ms"
            parts.append(
                f'<text class="marked" x="{x(at) + 5:.1f}" y="{_TOP + (10 if percent == 50 else 26)}">{words}</text>'
            )
    parts += _lines(curves, lambda one: one.worst_ms, y)
    return "".join(parts) + "</svg>"


def _done(curves: Sequence[Curve], rate: float) -> str:
    top = max([1.3 * rate, *(percentile(one.done_per_s, 98) for one in curves)])

    def y(value: float) -> float:
        return _TOP + (_HEIGHT - _TOP - _BOTTOM) * (1 - min(1.0, value / top))

    ticks = [(rate * share, f"{rate * share:,.0f}") for share in (0, 0.5, 1)]
    parts = [_frame(curves, "operations done per second around the kill", ticks, y)]
    parts += _lines(curves, lambda one: one.done_per_s, y)
    return "".join(parts) + "</svg>"


def _across(curves: Sequence[Curve]) -> Callable[[float], float]:
    at = curves[0].at_ms if curves else [0.0, 1.0]
    first, last = at[0], max(at[-1], at[0] + 1)
    return lambda ms: _LEFT + (_WIDTH - _LEFT - _RIGHT) * min(1.0, max(0.0, (ms - first) / (last - first)))


def _frame(curves: Sequence[Curve], label: str, ticks: Sequence[tuple[float, str]], y: Callable[[float], float]) -> str:
    x = _across(curves)
    parts = [
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" width="{_WIDTH}" height="{_HEIGHT}" role="img" aria-label="{label}">'
    ]
    for value, text in ticks:
        parts.append(
            f'<line class="grid" x1="{_LEFT}" y1="{y(value):.1f}" x2="{_WIDTH - _RIGHT}" y2="{y(value):.1f}"/>'
        )
        parts.append(f'<text class="end" x="{_LEFT - 8}" y="{y(value) + 4:.1f}">{escape(text)}</text>')
    at = curves[0].at_ms if curves else []
    for ms in at:
        if ms % 500 == 0:
            parts.append(f'<text class="mid" x="{x(ms):.1f}" y="{_HEIGHT - _BOTTOM + 20}">{ms / 1e3:g} s</text>')
    parts.append(f'<line class="kill" x1="{x(0):.1f}" y1="{_TOP - 12}" x2="{x(0):.1f}" y2="{_HEIGHT - _BOTTOM}"/>')
    parts.append(f'<text class="killed" x="{x(0) - 5:.1f}" y="{_TOP - 4}">kill -9</text>')
    return "".join(parts)


def _lines(curves: Sequence[Curve], of: Callable[[Curve], Sequence[float]], y: Callable[[float], float]) -> list[str]:
    """A thin line for each round, and one of their medians."""
    x = _across(curves)
    parts = []
    for one in curves:
        points = " ".join(f"{x(ms):.1f},{y(value):.1f}" for ms, value in zip(one.at_ms, of(one), strict=True))
        parts.append(f'<polyline class="round" points="{points}"><title>round {one.number}</title></polyline>')
    if curves:
        middle = [percentile(values, 50) for values in zip(*(of(one) for one in curves), strict=True)]
        points = " ".join(f"{x(ms):.1f},{y(value):.1f}" for ms, value in zip(curves[0].at_ms, middle, strict=True))
        parts.append(f'<polyline class="median" points="{points}"/>')
    return parts


def _rounds(rows: Sequence[Mapping[str, Any]]) -> str:
    heads = "".join(f"<th>{escape(name.replace('_', ' '))}</th>" for name in _COLUMNS)
    body = "".join(
        "<tr>" + "".join(f"<td>{escape(_cell(one[name]))}</td>" for name in _COLUMNS) + "</tr>" for one in rows
    )
    return f'<div class="scroll"><table><thead><tr>{heads}</tr></thead><tbody>{body}</tbody></table></div>'


def _settings(made: Mapping[str, Any]) -> str:
    rows = [
        f"<tr><th>{escape(name)}</th><td>{escape(_cell(value))}</td></tr>"
        for name, value in made.items()
        if name not in ("by_round", "examples", "problems")
    ]
    return f'<table class="setting">{"".join(rows)}</table>'


def _cell(value: object) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {_cell(one)}" for name, one in value.items())
    if isinstance(value, list):
        return ", ".join(_cell(one) for one in value)
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


def _ms(value: float) -> str:
    return f"{value:g} ms" if value < 1_000 else f"{value / 1e3:g} s"


_STYLE = """
:root{--paper:#fff;--ink:#1c1b19;--soft:#6b675f;--line:#e2ded5;--round:#2f6fb3;--mark:#d9622b}
@media(prefers-color-scheme:dark){:root{--paper:#171614;--ink:#f2efe8;--soft:#a39d92;--line:#3a3833;--round:#4a90d9;
--mark:#e8733a}}
*{box-sizing:border-box}
body{margin:0;background:var(--paper);color:var(--ink);
font:16px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,sans-serif}
main{max-width:1064px;margin:0 auto;padding:40px 32px 64px}
h1{font-size:40px;line-height:1.1;margin:0 0 6px;letter-spacing:-.02em}
.lead{font-size:19px;color:var(--soft);margin:0 0 24px;max-width:80ch}
.figures{display:flex;gap:36px;flex-wrap:wrap;margin:0 0 24px}
.figure b{display:block;font-size:32px;line-height:1.15;letter-spacing:-.02em}
.figure span{color:var(--soft);font-size:14px}
figure{margin:0 0 28px}figcaption{font-weight:650;font-size:19px;margin-bottom:6px}
svg{max-width:100%;height:auto;overflow:visible}
svg text{fill:var(--soft);font-size:13px;font-family:inherit}
svg .end,svg .killed{text-anchor:end}svg .mid{text-anchor:middle}
svg .grid{stroke:var(--line)}
svg .kill{stroke:var(--ink);stroke-width:2}svg .killed{fill:var(--ink);font-weight:650}
svg .mark{stroke:var(--mark);stroke-width:2;stroke-dasharray:5 4}svg .marked{fill:var(--mark);font-weight:650}
svg .round{fill:none;stroke:var(--round);stroke-width:1;opacity:.35}
svg .median{fill:none;stroke:var(--round);stroke-width:3}
details{margin-top:24px}summary{font-weight:650;cursor:pointer}
.scroll{overflow-x:auto}
table{border-collapse:collapse;font-size:13.5px;font-variant-numeric:tabular-nums;margin-top:10px}
th,td{padding:5px 14px 5px 0;text-align:left;border-bottom:1px solid var(--line)}
th{color:var(--soft);font-weight:600}
"""
