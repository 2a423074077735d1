"""The pages of a comparison: what a report shows of its runs, and that tables are replaced and nothing else."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import msgspec
import pytest

import pictures
from metad_perf.errors import UsageError
from metad_perf.peers.catalog import METAD
from metad_perf.peers.loads import LOADS, PUTS, RESTORE
from metad_perf.peers.publish import BEGIN, END, RATIO_WORDS, TITLES, Pages, figures, markdown, page, publish, replaced
from metad_perf.peers.verdict import P99, RATES


def _run(system: str, load: str, pair: int, rate: float, seconds: float) -> dict[str, Any]:
    return {
        "system": system,
        "peer": "zookeeper",
        "load": load,
        "pair": pair,
        "way": {"batch": 1_000, "in_flight": 4, "processes": 2},
        "failed": 3 if system == "zookeeper" and pair == 1 else 0,
        "seconds": seconds,
        "items_per_s": rate,
        "items_per_server_cpu_s": rate * 2,
        "items_per_client_cpu_s": rate * 3,
        "p99_ms": 1.0,
    }


def _report() -> dict[str, Any]:
    runs = [_run(METAD, PUTS, -1, 1e9, 1.0)]
    for pair, (ours, theirs) in enumerate([(200.0, 100.0), (400.0, 110.0), (300.0, 120.0)]):
        runs += [_run(METAD, PUTS, pair, ours, 1.0), _run("zookeeper", PUTS, pair, theirs, 1.0)]
        runs += [_run(METAD, RESTORE, pair, 1.0, 2.5), _run("zookeeper", RESTORE, pair, 1.0, 7.5)]
    words = {"session": "s", "takeover": "t", "batch": "b"}
    return {
        "zookeeper": {
            "batched_put_ratio": {"median": 2.5, "low": 2.0, "high": 3.64, "bar": 0.0, "met": True},
            "restore_ratio": {"median": 3.0, "low": 3.0, "high": 3.0, "bar": 4.0, "met": False},
        },
        "peers": ["zookeeper"],
        "systems": {
            METAD: {"title": "metad", "label": "", "fsync": True, "transport": "x"} | words,
            "zookeeper": {"title": "ZooKeeper <7>", "label": "a floor", "fsync": True, "transport": "x", "version": "7"}
            | words,
        },
        "pairs": 3,
        "seconds": 1.0,
        "keys": 4_000,
        "sessions": 4_000,
        "processes": 2,
        "value_bytes": 200,
        "batch": 1_000,
        "runs": runs,
        "setting": {"cpu": "a processor", "cpus": 2},
        "versions": {"python": "3.11"},
    }


def test_every_load_and_every_ratio_has_words() -> None:
    assert TITLES.keys() == LOADS.keys()
    assert RATIO_WORDS.keys() == {*RATES, P99}


def test_a_figure_has_medians_and_spread_of_the_pairs_and_the_best_first() -> None:
    storm, puts = figures(_report())
    assert [(one.system, one.low, one.median, one.high) for one in puts.bars] == [
        (METAD, 200.0, 300.0, 400.0),
        ("zookeeper", 100.0, 110.0, 120.0),
    ]
    assert [(one.system, one.median) for one in storm.bars] == [(METAD, 2.5), ("zookeeper", 7.5)]
    assert (storm.less_is_better, puts.less_is_better) == (True, False)
    assert (puts.bars[1].failed, puts.bars[0].per_server_cpu_s) == (3, 600.0)


def test_the_page_shows_every_system_and_needs_nothing_else() -> None:
    made = page(_report())
    assert made.count("<svg") == 2
    assert pictures.faults(made) == []
    assert "ZooKeeper &lt;7&gt;" in made
    assert "ZooKeeper <7>" not in made
    assert "bar 4 missed" in made
    assert "3 failed" in made
    assert set(re.findall(r"https?://[^\s\"'<]+", made)) == {"http://www.w3.org/2000/svg"}


def test_tables_are_replaced_between_their_marks() -> None:
    tables = markdown(_report())
    assert "| restoring all sessions at once | 3 (3 to 3), bar 4 missed |" in tables
    assert "| puts in batches | 2.5 (2 to 3.64) |" in tables
    made = replaced(f"before\n{BEGIN}old\n{END}after\n", tables)
    assert made == f"before\n{BEGIN}{tables}{END}after\n"
    assert replaced(f"before\n{BEGIN}old\n", tables) is None


def test_pages_are_made_again_from_the_json(tmp_path: Path) -> None:
    made, bench, html = tmp_path / "c.json", tmp_path / "B.md", tmp_path / "c.html"
    made.write_bytes(msgspec.json.encode(_report()))
    bench.write_text(f"# Page\n{BEGIN}{END}")
    assert publish(made, Pages(report=html, tables=bench).checked()) == 0
    assert html.read_text() == page(_report())
    assert bench.read_text() == f"# Page\n{BEGIN}{markdown(_report())}{END}"


def test_what_cannot_be_published_is_a_usage_error(tmp_path: Path) -> None:
    wrong = tmp_path / "wrong"
    wrong.write_text("{}")
    with pytest.raises(UsageError, match="--tables"):
        Pages(tables=wrong).checked()
    with pytest.raises(UsageError, match="--tables"):
        Pages(tables=tmp_path / "absent").checked()
    with pytest.raises(UsageError, match="no report of compare"):
        publish(wrong, Pages(report=tmp_path / "page.html"))
    with pytest.raises(UsageError, match="--from"):
        publish(tmp_path / "absent", Pages())
