"""Who wins a cell of the WAN table, and how often the SDK's own choice did."""

from __future__ import annotations

import pytest

from metad_perf.wan.table import Cell, Figures, auto_share


def _figures(p99_ms: float) -> Figures:
    return Figures(p50_ms=1.0, p99_ms=p99_ms, items_per_s=10.0, connect_ms=5.0, requests=100, failed=0)


def _cell(tcp_ms: float, quic_ms: float, auto: str = "") -> Cell:
    others = {"cubic": _figures(9.0)}
    return Cell(
        rtt_ms=30.0, loss_pct=1.0, verb="put", tcp=_figures(tcp_ms), quic=_figures(quic_ms), others=others, auto=auto
    )


@pytest.mark.parametrize(
    ("tcp_ms", "quic_ms", "winner", "even"),
    [(20.0, 10.0, "quic", False), (10.0, 20.0, "tcp", False), (10.0, 10.5, "tcp", True), (10.5, 10.0, "quic", True)],
)
def test_the_lower_p99_wins(tcp_ms: float, quic_ms: float, winner: str, even: bool) -> None:
    cell = _cell(tcp_ms, quic_ms)
    assert (cell.winner, cell.even) == (winner, even)


def test_a_row_has_the_keys_that_scripts_look_for() -> None:
    row = _cell(20.0, 10.0, auto="tcp").row()
    assert {
        "rtt_ms", "loss_pct", "verb", "tcp_p50_ms", "tcp_p99_ms", "tcp_items_per_s", "quic_p50_ms", "quic_p99_ms",
        "quic_items_per_s", "winner",
    } <= row.keys()  # fmt: skip
    assert row["tcp_cubic_p99_ms"] == 9.0
    assert (row["winner"], row["auto"], row["auto_right"]) == ("quic", "tcp", False)
    assert "auto" not in _cell(20.0, 10.0).row()


def test_the_share_of_right_choices_counts_cells_that_were_asked() -> None:
    assert auto_share([_cell(1.0, 2.0)]) is None
    assert auto_share([_cell(1.0, 2.0, "tcp"), _cell(1.0, 2.0, "quic"), _cell(2.0, 1.0, "quic"), _cell(2.0, 1.0)]) == (
        pytest.approx(2 / 3)
    )
