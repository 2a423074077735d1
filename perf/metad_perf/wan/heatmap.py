"""The WAN table as a page: a map per verb, RTT down and loss across, coloured by winner and margin. Pure.

One HTML file without scripts or external files, readable in light and dark. The colour shows the winner and its margin,
the big number the factor by which its p99 is better, the small ones the p99s; a framed cell means that
``metad+auto://`` chose the other transport.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from .table import EVEN, QUIC, RULE, Cell, auto_share

_CELL_WIDTH, _CELL_HEIGHT, _GAP = 120, 92, 6
_LEFT, _TOP = 92, 58
_FULL_RATIO = 4.0  # from this factor on the colour is at its strongest
_VERBS = {"put": "Single puts", "batch": "Batches"}


def page(cells: Sequence[Cell], setting: Mapping[str, Any], words: Sequence[str]) -> str:
    """The whole page. ``setting``: names and values of the measurement's settings; ``words``: sentences above the
    maps."""
    verbs = list(dict.fromkeys(cell.verb for cell in cells))
    maps = "".join(
        f"<figure><figcaption>{escape(_VERBS.get(verb, verb))}</figcaption>{_map([c for c in cells if c.verb == verb])}"
        "</figure>"
        for verb in verbs
    )
    won = sum(cell.winner == QUIC for cell in cells)
    share = auto_share(cells)
    auto = "" if share is None else _figure(f"{100 * share:.0f} %", "of the cells: metad+auto:// chose the winner")
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>metad: TCP or QUIC, by path</title><style>{_STYLE}</style></head><body><main>
<h1>TCP or QUIC?</h1>
<p class="lead">p99 of concurrent requests to one metad node over a long path, by round-trip time and loss.</p>
<div class="figures">{_figure(str(won), f"of {len(cells)} cells: QUIC wins")}
{_figure(str(len(cells) - won), f"of {len(cells)} cells: TCP wins")}{auto}</div>
{"".join(f"<p>{escape(word)}</p>" for word in words)}
{_legend()}<div class="maps">{maps}</div>
<p class="rule">{escape(RULE)}</p>
<details open><summary>All numbers</summary>{_numbers(cells)}</details>
<details open><summary>Measured with</summary><table class="setting">{_setting(setting)}</table></details>
</main></body></html>
"""


def _map(cells: Sequence[Cell]) -> str:
    rtts = list(dict.fromkeys(cell.rtt_ms for cell in cells))
    losses = list(dict.fromkeys(cell.loss_pct for cell in cells))
    width = _LEFT + len(losses) * (_CELL_WIDTH + _GAP)
    height = _TOP + len(rtts) * (_CELL_HEIGHT + _GAP)
    parts = [f'<svg viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="img" aria-label="heat map">']
    middle = _LEFT + (width - _LEFT - _GAP) / 2
    parts.append(_text(middle, 16, "axis", "loss in each direction"))
    for at, loss in enumerate(losses):
        parts.append(_text(_LEFT + at * (_CELL_WIDTH + _GAP) + _CELL_WIDTH / 2, 44, "tick", f"{loss:g} %"))
    for at, rtt in enumerate(rtts):
        y = _TOP + at * (_CELL_HEIGHT + _GAP) + _CELL_HEIGHT / 2
        parts.append(_text(_LEFT - 14, y + 1, "tick end", f"{rtt:g} ms"))
        parts.append(_text(_LEFT - 14, y + 19, "axis end", "RTT"))
    for cell in cells:
        parts.append(_cell(cell, losses.index(cell.loss_pct), rtts.index(cell.rtt_ms)))
    return "".join(parts) + "</svg>"


def _cell(cell: Cell, column: int, row: int) -> str:
    x, y = _LEFT + column * (_CELL_WIDTH + _GAP), _TOP + row * (_CELL_HEIGHT + _GAP)
    centre = x + _CELL_WIDTH / 2
    factor = max(cell.p99_ratio, 1 / cell.p99_ratio) if cell.p99_ratio else 0.0
    strength = _strength(factor)
    headline = "even" if cell.even else f"{cell.winner.upper()} {_times(factor)}"
    strong = " strong" if strength > 0.7 else ""
    tip = (
        f"{cell.rtt_ms:g} ms, {cell.loss_pct:g} %: TCP p50 {_ms(cell.tcp.p50_ms)} p99 {_ms(cell.tcp.p99_ms)}, "
        f"QUIC p50 {_ms(cell.quic.p50_ms)} p99 {_ms(cell.quic.p99_ms)}"
    )
    parts = [
        f'<g class="cell{strong}"><title>{escape(tip)}</title>',
        f'<rect class="ground" x="{x}" y="{y}" width="{_CELL_WIDTH}" height="{_CELL_HEIGHT}" rx="8"/>',
        f'<rect class="{cell.winner}" x="{x}" y="{y}" width="{_CELL_WIDTH}" height="{_CELL_HEIGHT}" rx="8" '
        f'fill-opacity="{strength:.2f}"/>',
        _text(centre, y + 34, "headline", headline),
        _text(centre, y + 57, "p99", f"TCP {_ms(cell.tcp.p99_ms)}"),
        _text(centre, y + 75, "p99", f"QUIC {_ms(cell.quic.p99_ms)}"),
    ]
    if cell.auto and cell.auto != cell.winner:
        width, height = _CELL_WIDTH - 4, _CELL_HEIGHT - 4
        parts.append(f'<rect class="wrong" x="{x + 2}" y="{y + 2}" width="{width}" height="{height}" rx="7"/>')
    return "".join(parts) + "</g>"


def _legend() -> str:
    steps = (4.0, 2.0, 1.3)
    swatches = [(f"TCP {_times(step)}", "tcp", _strength(step)) for step in steps]
    swatches += [("even", "ground", 1.0)]
    swatches += [(f"QUIC {_times(step)}", "quic", _strength(step)) for step in reversed(steps)]
    items = "".join(
        f'<span><svg width="26" height="16"><rect class="ground" width="26" height="16" rx="4"/>'
        f'<rect class="{kind}" width="26" height="16" rx="4" fill-opacity="{strength:.2f}"/></svg>{text}</span>'
        for text, kind, strength in swatches
    )
    other = (
        '<span><svg width="26" height="16"><rect class="ground" width="26" height="16" rx="4"/>'
        '<rect class="wrong" x="1.5" y="1.5" width="23" height="13" rx="4"/></svg>metad+auto:// chose the other</span>'
    )
    return f'<div class="legend">{items}{other}</div>'


def _numbers(cells: Sequence[Cell]) -> str:
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
        rows.append("<tr>" + "".join(f"<td>{escape(value)}</td>" for value in row) + "</tr>")
    heads = "".join(f"<th>{escape(name)}</th>" for name in head)
    return f'<div class="scroll"><table><thead><tr>{heads}</tr></thead><tbody>{"".join(rows)}</tbody></table></div>'


def _setting(setting: Mapping[str, Any]) -> str:
    return "".join(f"<tr><th>{escape(str(key))}</th><td>{escape(str(one))}</td></tr>" for key, one in setting.items())


def _figure(number: str, text: str) -> str:
    return f'<div class="figure"><b>{escape(number)}</b><span>{escape(text)}</span></div>'


def _text(x: float, y: float, kind: str, text: str) -> str:
    return f'<text class="{kind}" x="{x:g}" y="{y:g}">{escape(text)}</text>'


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


_STYLE = """
:root{--ground:#f3f1ec;--paper:#fff;--ink:#1c1b19;--soft:#6b675f;--line:#e2ded5;--tcp:#2f6fb3;--quic:#d9622b;
--wrong:#1c1b19}
@media(prefers-color-scheme:dark){:root{--ground:#2a2925;--paper:#171614;--ink:#f2efe8;--soft:#a39d92;--line:#3a3833;
--tcp:#4a90d9;--quic:#e8733a;--wrong:#f2efe8}}
*{box-sizing:border-box}
body{margin:0;background:var(--paper);color:var(--ink);
font:16px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,sans-serif}
main{max-width:1360px;margin:0 auto;padding:40px 32px 64px}
h1{font-size:40px;line-height:1.1;margin:0 0 6px;letter-spacing:-.02em}
.lead{font-size:19px;color:var(--soft);margin:0 0 24px}
p{max-width:80ch;margin:0 0 12px}
.figures{display:flex;gap:40px;flex-wrap:wrap;margin:0 0 24px}
.figure b{display:block;font-size:34px;line-height:1.15;letter-spacing:-.02em}
.figure span{color:var(--soft);font-size:14px}
.legend{display:flex;flex-wrap:wrap;gap:8px 18px;margin:24px 0 20px;font-size:13px;color:var(--soft)}
.legend span{display:inline-flex;align-items:center;gap:7px}
.maps{display:flex;flex-wrap:wrap;gap:36px}
figure{margin:0}figcaption{font-weight:650;font-size:19px;margin-bottom:6px}
svg{max-width:100%;height:auto;overflow:visible}
svg text{fill:var(--ink);text-anchor:middle;font-family:inherit}
svg text.end{text-anchor:end}
svg .axis{fill:var(--soft);font-size:13px}svg .tick{font-size:15px;font-weight:600}
svg .headline{font-size:19px;font-weight:700;letter-spacing:-.01em}
svg .p99{font-size:13.5px}
svg .strong text{fill:#fff}
svg .ground{fill:var(--ground)}svg .tcp{fill:var(--tcp)}svg .quic{fill:var(--quic)}
svg .wrong{fill:none;stroke:var(--wrong);stroke-width:2.5;stroke-dasharray:6 4}
.rule{color:var(--soft);font-size:14px;margin-top:20px}
details{margin-top:24px}summary{font-weight:650;cursor:pointer}
.scroll{overflow-x:auto}
table{border-collapse:collapse;font-size:13.5px;font-variant-numeric:tabular-nums;margin-top:10px}
th,td{padding:5px 14px 5px 0;text-align:right;border-bottom:1px solid var(--line);white-space:nowrap}
th{color:var(--soft);font-weight:600}
th:first-child,td:first-child{text-align:left}
.setting th,.setting td{text-align:left;white-space:normal}
"""
