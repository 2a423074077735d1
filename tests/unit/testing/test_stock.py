"""What is said of pysyncobj as it stands is so, and the page that says it names every situation."""

from __future__ import annotations

from pathlib import Path

import pytest

from sim import stock
from sim.replicas.scenarios import SCENARIOS

pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # it leaves a file open
PAGE = Path(__file__).parents[3] / "metad" / "raft" / "README.md"


@pytest.mark.parametrize("name", stock.FAULTS)
def test_the_fault_shows(name: str) -> None:
    assert stock.FAULTS[name]()
    assert name in SCENARIOS
    assert f"`{name}`" in PAGE.read_text()


def test_a_fault_that_does_not_show_fails_the_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    name = "votes_are_voters"

    def holds() -> str:
        raise stock.Holds("it counted voters")

    monkeypatch.setattr(stock, "FAULTS", {name: holds})
    assert stock.main() == 1
    assert "it counted voters" in capsys.readouterr().out


def test_a_scenario_that_does_not_hold_fails_the_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    name = "votes_are_voters"

    def breaks() -> None:
        raise AssertionError("two leaders")

    monkeypatch.setattr(stock, "FAULTS", {name: stock.FAULTS[name]})
    monkeypatch.setitem(SCENARIOS, name, breaks)
    assert stock.main() == 1
    assert "two leaders" in capsys.readouterr().out
