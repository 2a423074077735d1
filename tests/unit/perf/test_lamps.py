"""Every alert is played, and the command says what is missing for that."""

from __future__ import annotations

import pytest

from metad.server.lamps.alerts import ALERTS
from metad_perf.commands import Lamps
from metad_perf.errors import UsageError
from metad_perf.lamps import alerts, command


def test_each_alert_has_a_fault_and_what_mends_it() -> None:
    assert alerts.FAULTS.keys() == {alert.name for alert in ALERTS}


def test_what_is_missing_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(alerts.shutil, "which", lambda program: None)
    with pytest.raises(UsageError, match=r"there is no prometheus.*--no-alerts"):
        command.run(Lamps())


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (Lamps(only="MetadNoSuch,MetadNodeDown"), "no alert MetadNoSuch"),
        (Lamps(only="MetadNodeDown", no_alerts=True), "nothing to do"),
        (Lamps(sessions=10), "at least 1,000"),
    ],
)
def test_what_cannot_be_done_is_refused(options: Lamps, why: str) -> None:
    with pytest.raises(UsageError, match=why):
        command.run(options.checked())
