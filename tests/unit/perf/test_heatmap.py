"""The page of the WAN table: one cell each, coloured by who wins and how clearly, and nothing that must be loaded."""

from __future__ import annotations

import re

import pictures
from metad_perf.wan.page import heatmap_page as page
from metad_perf.wan.table import Cell, Figures


def _figures(p99_ms: float) -> Figures:
    return Figures(p50_ms=p99_ms / 2, p99_ms=p99_ms, items_per_s=1_234.0, connect_ms=5.0, requests=100, failed=0)


def _cell(rtt_ms: float, tcp_ms: float, quic_ms: float, auto: str = "") -> Cell:
    return Cell(
        rtt_ms=rtt_ms, loss_pct=1.0, verb="batch", tcp=_figures(tcp_ms), quic=_figures(quic_ms), others={}, auto=auto
    )


def test_cells_say_who_wins_by_what_factor() -> None:
    made = page([_cell(1, 10, 30), _cell(100, 900, 300), _cell(200, 400, 401)], {"cpu": "<fast> & new"}, ["It's told."])
    shown = {box.text for svg in re.findall(r"<svg.*?</svg>", made, re.DOTALL) for box in pictures.boxes(svg)}
    assert {"TCP 3.0×", "QUIC 3.0×", "even", "1 %", "200 ms"} <= shown
    assert pictures.faults(made) == []
    assert "&lt;fast&gt; &amp; new" in made
    assert "It&#x27;s told." in made


def test_colour_grows_with_the_factor() -> None:
    made = page([_cell(1, 10, 11.5), _cell(30, 10, 20), _cell(100, 10, 40), _cell(200, 10, 400)], {}, [])
    fills = re.findall(r'id="square-\d-0">\s*<path [^>]*fill: #(\w+)', made, re.DOTALL)
    reds = [bytes.fromhex(fill)[0] for fill in fills]
    assert reds == sorted(reds, reverse=True), "from the ground's to the blue of TCP"
    assert len(set(reds[:3])) == 3
    assert fills[2] == fills[3] == "2f6fb3"


def test_a_wrong_choice_has_a_frame() -> None:
    made = [page([_cell(1, 10, 30, auto)], {}, []) for auto in ("tcp", "quic", "")]
    assert ["stroke-width: 3" in one for one in made] == [False, True, False]
