"""metad-perf outage against real nodes and brokers, in small; and that it sees what must not happen."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from e2e_perf import metad_perf, usage_error

from metad_perf.outage.command import BARS, RESUMED_MS_MAX, missed


def test_nothing_ends_because_the_service_stood_still(tmp_path: Path) -> None:
    """With a lease that is far shorter than the outage. How long it takes to go on is the machine's."""
    path = tmp_path / "report.json"
    size = ("--seconds", 6, "--clients", 60, "--publishers", 4, "--lease-s", 3)
    done = metad_perf("outage", *size, "--json", path)
    assert "Traceback" not in done.stderr
    report: dict[str, Any] = json.loads(path.read_text())
    assert {name: report[name] for name in BARS} == dict.fromkeys(BARS, 0), report["runs"]
    assert [*report["runs"]] == ["all", "majority", "leader"]
    for who, count in (("all", 3), ("majority", 2), ("leader", 1)):
        assert len(report["runs"][who]["stood_still"]) == count
        assert report["runs"][who]["acknowledged"] > 0
    assert not [one for one in report["problems"] if "are left" in one], "it clears up what it has made"
    assert done.returncode == (1 if report["resumed_ms"] > RESUMED_MS_MAX or report["problems"] else 0)


def test_every_bar_that_is_missed_is_named() -> None:
    well = {**dict.fromkeys(BARS, 0), "resumed_ms": RESUMED_MS_MAX}
    assert missed(well) == []
    for name in (*BARS, "resumed_ms"):
        (line,) = missed(well | {name: well[name] + 1})
        assert line.startswith(name)


@pytest.mark.parametrize(
    ("flags", "word"),
    [
        (("--seconds", "0"), "--seconds"),
        (("--brokers", "0"), "--brokers"),
        (("--clients", "1"), "--clients"),
        (("--who", "nobody"), "--who"),
    ],
)
def test_outage_names_what_it_cannot_do(flags: tuple[str, ...], word: str) -> None:
    usage_error(word, "outage", *flags)
