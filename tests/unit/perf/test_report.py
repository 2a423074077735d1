"""Sums and ratios."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from metad_perf.peers.grpc_baseline import Run, ratios
from metad_perf.report import output


def _run(case: str, side: str, items_per_s: float, cpu_us: float) -> Run:
    return Run(
        verb="session.get",
        case=case,
        side=side,
        items=100,
        failed=0,
        items_per_s=items_per_s,
        server_cpu_us_per_item=cpu_us,
        client_cpu_us_per_item=1.0,
        p50_ms=1.0,
        p99_ms=2.0,
        errors={},
    )


def test_ratios_are_medians_of_the_pairs_own_ratios() -> None:
    """Guards against dividing medians: the slow third pair is slow on both sides, and must not count as one."""
    runs = [
        _run("unary_1", "metad", 100, 1),
        _run("unary_1", "grpc", 10, 20),
        _run("unary_1", "grpc", 10, 30),
        _run("unary_1", "metad", 200, 1),
        _run("unary_1", "metad", 9, 10),
        _run("unary_1", "grpc", 1, 250),
        _run("batch_1000", "metad", 300, 2),
        _run("batch_1000", "grpc", 100, 3),
    ]
    assert ratios(runs, lambda metad, grpc: (metad.items_per_s, grpc.items_per_s)) == {"unary_1": 10, "batch_1000": 3}
    assert ratios(runs, lambda metad, grpc: (grpc.server_cpu_us_per_item, metad.server_cpu_us_per_item)) == {
        "unary_1": 25,
        "batch_1000": 1.5,
    }


def test_nothing_to_divide_by_is_no_crash() -> None:
    assert output.ratio(1, 0) == 0
    assert output.median_ratio([]) == 0


def test_rounding_goes_into_dicts_and_lists_and_leaves_the_rest() -> None:
    told = {"a": 1.23456789, "b": [2.3456789, {"c": 123456.789}], "d": 123456789, "e": None, "f": True, "g": "x"}
    assert output.rounded(told) == {"a": 1.2346, "b": [2.3457, {"c": 123460.0}], "d": 123456789, "e": None} | {
        "f": True,
        "g": "x",
    }


def test_json_is_written_where_asked_for(tmp_path: Path) -> None:
    output.write_json(None, {"a": 1})
    output.write_json(tmp_path / "r.json", {"a": 1, "b": {"c": 2.5}})
    assert json.loads((tmp_path / "r.json").read_text()) == {"a": 1, "b": {"c": 2.5}}


def test_tables_print(capsys: pytest.CaptureFixture[str]) -> None:
    output.table("title", ["", "value"], [["items", 1_234_567], ["fsync", True], ["p50_ms", 0.123456], ["none", ""]])
    shown = capsys.readouterr().out
    assert "1,234,567" in shown
    assert "on" in shown
    assert "0.123" in shown
