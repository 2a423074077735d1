"""The rules of alerts and the dashboard follow from what is declared: each names metrics that there are, and a section
of the operator's page that there is."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from metad.cli import main
from metad.server.lamps.alerts import ALERTS, Alert, dashboard, rules
from metad.server.lamps.metrics import METRICS, TIMES
from metad_client.cli.verdict import CODES

ROOT = Path(__file__).resolve().parents[3]
NAMES = {f"{one.name}_total" if one.kind == "counter" else one.name: set(one.labels) for one in METRICS} | {
    f"{one.name}{suffix}": {*one.labels, "le"} for one in TIMES for suffix in ("_bucket", "_sum", "_count")
}
OF_THE_SCRAPE = {"job", "instance", "node"}  # the last one of workers


def anchors() -> set[str]:
    page = (ROOT / "docs" / "OPERATE.md").read_text()
    return {
        re.sub(r"[^\w -]", "", line.lstrip("# ").lower()).replace(" ", "-")
        for line in re.findall(r"^#+ .*", page, re.M)
    }


def names_in(expr: str) -> set[str]:
    return set(re.findall(r"\bmetad_\w+", expr))


@pytest.mark.parametrize("alert", ALERTS, ids=lambda alert: alert.name)
def test_an_alert_names_what_there_is(alert: Alert) -> None:
    assert names_in(alert.expr) <= NAMES.keys()
    assert names_in(alert.expr) or alert.expr.startswith("up{")
    assert alert.anchor in anchors()
    labels = set().union(*(NAMES[name] for name in names_in(alert.expr)), OF_THE_SCRAPE)
    for named in re.findall(r"\bby \(([^)]*)\)", alert.expr):
        assert set(named.replace(" ", "").split(",")) <= labels
    assert set(re.findall(r"\$labels\.(\w+)", alert.text)) <= labels


def test_an_alert_of_what_the_status_has_a_code_for_is_named_as_it() -> None:
    """The code of what MetadDiskLow said was disk_full, and disk_low was another one."""
    codes = {"Metad" + code.title().replace("_", ""): severity for code, severity in CODES.items()}
    both = {alert.name: alert.severity for alert in ALERTS if alert.name in codes}
    assert {"MetadDiskLow", "MetadDiskFull", "MetadCertificateEnds", "MetadExpiryLate"} <= both.keys()
    assert both == {name: codes[name] for name in both}


def test_the_rules_are_a_file_of_prometheus() -> None:
    (group,) = yaml.safe_load(rules("https://example.com/OPERATE.md"))["groups"]
    assert [rule["alert"] for rule in group["rules"]] == [alert.name for alert in ALERTS]
    assert len({alert.name for alert in ALERTS}) == len(ALERTS)
    for rule, alert in zip(group["rules"], ALERTS, strict=True):
        assert rule["expr"] == alert.expr
        assert rule["for"] == f"{alert.for_s}s"
        assert rule["labels"] == {"severity": alert.severity}
        assert rule["annotations"] == {
            "summary": alert.text,
            "page": f"https://example.com/OPERATE.md#{alert.anchor}",
        }


def test_a_test_need_not_wait_as_long() -> None:
    (group,) = yaml.safe_load(rules(for_s=2, window="10s"))["groups"]
    assert {rule["for"] for rule in group["rules"]} == {"0s", "2s"}
    assert not any("[1m]" in rule["expr"] or "[5m]" in rule["expr"] for rule in group["rules"])


def test_every_metric_is_on_the_dashboard_once() -> None:
    board: dict[str, Any] = json.loads(dashboard())
    panels = [panel for panel in board["panels"] if panel["type"] == "timeseries"]
    shown = [{name for target in panel["targets"] for name in names_in(target["expr"])} for panel in panels]
    assert all(len(names) == 1 for names in shown)
    found = sorted(name for names in shown for name in names)
    assert found == sorted({name for name in NAMES if not name.endswith(("_sum", "_count"))})
    assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"])


def test_no_panels_overlap() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in json.loads(dashboard())["panels"]:
        at = panel["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert not cells & taken
        assert max(x for x, _ in cells) < 24
        taken |= cells


@pytest.mark.parametrize(("flag", "begins"), [("--alerts", "groups:"), ("--dashboard", "{"), (None, "# Metrics")])
def test_the_command_prints_each(flag: str | None, begins: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["metrics", *([flag] if flag else [])]) == 0
    assert capsys.readouterr().out.startswith(begins)
