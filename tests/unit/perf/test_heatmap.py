"""The page of the WAN table: one cell each, coloured by who wins and how clearly, and nothing that must be loaded."""

from __future__ import annotations

import re
from html.parser import HTMLParser

from metad_perf.wan.command import heatmap_page as page
from metad_perf.wan.table import Cell, Figures


def _figures(p99_ms: float) -> Figures:
    return Figures(p50_ms=p99_ms / 2, p99_ms=p99_ms, items_per_s=1_234.0, connect_ms=5.0, requests=100, failed=0)


def _cell(rtt_ms: float, tcp_ms: float, quic_ms: float, auto: str = "") -> Cell:
    return Cell(
        rtt_ms=rtt_ms, loss_pct=1.0, verb="batch", tcp=_figures(tcp_ms), quic=_figures(quic_ms), others={}, auto=auto
    )


class _Balanced(HTMLParser):
    """Raises where a tag is closed that is not open."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.texts: list[str] = []

    def handle_starttag(self, tag: str, attrs: object) -> None:
        if tag not in ("meta", "br"):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: object) -> None: ...

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def test_cells_say_who_wins_by_what_factor() -> None:
    made = page([_cell(1, 10, 30), _cell(100, 900, 300), _cell(200, 400, 401)], {"cpu": "<fast> & new"}, ["It's told."])
    parsed = _Balanced()
    parsed.feed(made)
    assert parsed.open == []
    assert {"TCP 3.0×", "QUIC 3.0×", "even"} <= set(parsed.texts)
    assert "&lt;fast&gt; &amp; new" in made


def test_colour_grows_with_the_factor() -> None:
    made = page([_cell(1, 10, 11.5), _cell(30, 10, 20), _cell(100, 10, 40), _cell(200, 10, 400)], {}, [])
    maps = made[made.index('class="maps"') :]
    strengths = [float(one) for one in re.findall(r'class="tcp"[^>]*fill-opacity="([\d.]+)"', maps)]
    assert strengths == sorted(strengths)
    assert len(set(strengths[:3])) == 3
    assert strengths[2] == strengths[3] == 1.0


def test_a_wrong_choice_has_a_frame() -> None:
    maps = [
        made[made.index('class="maps"') :]
        for made in (page([_cell(1, 10, 30, auto)], {}, []) for auto in ("tcp", "quic", ""))
    ]
    assert ["wrong" in one for one in maps] == [False, True, False]
