"""What Prometheus and Grafana are told about the metrics: rules of alerts, and a dashboard. Both follow from the
declarations here and in :mod:`.metrics`."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any, Final, Literal, NamedTuple

from metad_wire.tables.broker import SILENT

from .metrics import METRICS, TIMES

JOB: Final = 'job="metad"'
"""The nodes are scraped as this job."""


class Alert(NamedTuple):
    """Declares one alert: what must not hold, and what to do then."""

    name: str
    severity: Literal["warning", "critical"]
    for_s: int
    """For how long it has to hold."""
    anchor: str
    """Of OPERATE.md: what to do."""
    expr: str
    """In PromQL. Its metrics are declared, or ``up`` of the scrape."""
    text: str
    """What is so."""


ALERTS: Final = (
    Alert(
        *("MetadNodeDown", "critical", 30, "each-problem"),
        'up{job="metad"} == 0 or metad_node_up == 0',
        "A node does not answer.",
    ),
    Alert(
        *("MetadNodeFailing", "critical", 0, "each-problem"),
        "metad_failing == 1",
        "A node can store nothing: its disk hangs or is full, or it has stopped.",
    ),
    Alert(
        *("MetadPeerCutOff", "warning", 30, "each-problem"),
        "metad_peer_up == 0",
        "A node has no connection with {{ $labels.peer }}.",
    ),
    Alert(
        *("MetadGroupWithoutLeader", "critical", 5, "majority-lost"),
        "min by (group) (metad_group_leaderless_seconds) > 5",
        "Nobody leads {{ $labels.group }}: its requests fail.",
    ),
    Alert(
        *("MetadFollowerLags", "warning", 60, "each-problem"),
        "max by (group, follower) (metad_follower_lag_entries) > 1000",
        "{{ $labels.follower }} lacks more than 1,000 entries of {{ $labels.group }}.",
    ),
    Alert(
        *("MetadReplicaUnlike", "warning", 0, "each-problem"),
        'max(increase(metad_events_total{event=~"replica_unlike|replicas_undecided"}[5m])) > 0'
        " or max(metad_group_unlike_replicas) > 0",
        "The state of a replica is not that of the others: a disk or a memory has changed it.",
    ),
    Alert(
        *("MetadDiskFull", "critical", 0, "disk-full"),
        "metad_disk_short > 0 or metad_disk_free_bytes < metad_disk_low_bytes",
        "A disk is nearly full: what takes more room may be refused.",
    ),
    Alert(
        *("MetadDiskLow", "warning", 0, "disk-full"),
        "metad_disk_free_bytes < 2 * metad_disk_low_bytes",
        "A disk has less than twice the room that its node needs to take everything.",
    ),
    Alert(
        *("MetadDiskFills", "warning", 300, "disk-full"),
        "metad_disk_lasts_seconds < 86400",
        "A disk will be nearly full within a day.",
    ),
    Alert(
        *("MetadDiskSlow", "warning", 300, "a-group-is-overloaded"),
        "histogram_quantile(0.99, sum by (instance, node, le) (rate(metad_log_sync_duration_seconds_bucket[5m])))"
        " > 0.25",
        "One fsync in a hundred takes longer than 250 ms.",
    ),
    Alert(
        *("MetadCertificateEnds", "warning", 0, "wrong-certificate"),
        "metad_certificate_end_timestamp_seconds - time() < 1209600",
        "A certificate ends within two weeks.",
    ),
    Alert(
        *("MetadCertificateEnded", "critical", 0, "wrong-certificate"),
        "metad_certificate_end_timestamp_seconds < time()",
        "A certificate has ended: clients and nodes refuse whoever shows it.",
    ),
    Alert(
        *("MetadOverloaded", "warning", 60, "a-group-is-overloaded"),
        "sum by (instance, node) (rate(metad_lane_refused_total[1m])) > 1",
        "Requests are turned away: more is asked for than the node can do.",
    ),
    Alert(
        *("MetadLoopHeldUp", "warning", 60, "a-group-is-overloaded"),
        "histogram_quantile(0.99, sum by (instance, node, le) (rate(metad_loop_delay_seconds_bucket[1m]))) > 0.25",
        "The event loop of a node is late by more than 250 ms, once in a hundred times.",
    ),
    Alert(
        *("MetadQuotaExceeded", "warning", 60, "two-teams-on-one-cluster"),
        'sum by (instance, node) (rate(metad_items_refused_total{error=~"quota.*"}[1m])) > 1',
        "Somebody asks for more than its quota. `metadctl quotas use` says who.",
    ),
    Alert(
        *("MetadBrokerSilent", "warning", 0, "a-broker-hangs"),
        f"max(metad_broker_silence_ratio) > {SILENT}",
        "A broker was not heard of for most of its lease, and is about to be ended.",
    ),
    Alert(
        *("MetadBrokerEnded", "warning", 0, "a-broker-hangs"),
        'max(increase(metad_events_total{event="broker_fenced"}[5m])) > 0',
        "The life of a broker was ended: it was silent, or somebody fenced it.",
    ),
    Alert(
        *("MetadExpiryLate", "warning", 0, "sessions-end-late"),
        "metad_overdue_seconds > 300",
        "Sessions or wills should have ended more than five minutes ago.",
    ),
    Alert(
        *("MetadWillsUnclaimed", "warning", 300, "wills-are-not-published"),
        'sum(metad_backlog{what="unclaimed"}) > 0',
        "Wills are due, and no broker claims them.",
    ),
    Alert(
        *("MetadNotDurable", "warning", 0, "each-problem"),
        "metad_fsync == 0",
        "A node acknowledges what a power failure takes away.",
    ),
    Alert(
        *("MetadVersionsDiffer", "warning", 3600, "rolling-restart"),
        "count(count by (version) (metad_node)) > 1",
        "Nodes run different versions for more than an hour.",
    ),
)


def rules(page: str = "OPERATE.md", *, for_s: int | None = None, window: str = "") -> str:
    """The file of rules, YAML. ``page``: where the operator's page is. ``for_s`` and ``window`` are for a test that
    cannot wait: the most for which each has to hold, and the windows of rates."""
    lines = ["groups:", "  - name: metad", "    rules:"]
    for alert in ALERTS:
        expr = alert.expr
        for usual in ("[1m]", "[5m]") if window else ():
            expr = expr.replace(usual, f"[{window}]")
        lines += [
            f"      - alert: {alert.name}",
            f"        expr: {json.dumps(expr)}",
            f"        for: {alert.for_s if for_s is None else min(for_s, alert.for_s)}s",
            f"        labels: {{severity: {alert.severity}}}",
            "        annotations:",
            f"          summary: {json.dumps(alert.text)}",
            f"          page: {json.dumps(f'{page}#{alert.anchor}')}",
        ]
    return "\n".join([*lines, ""])


_ROWS: Final = (
    ("Requests", ("metad_request", "metad_item", "metad_queue", "metad_deadlines", "metad_lane", "metad_turned")),
    ("Log and groups", ("metad_log", "metad_entry", "metad_apply", "metad_group", "metad_follower", "metad_peer")),
    (
        "Brokers, sessions and watches",
        ("metad_broker", "metad_sess", "metad_will", "metad_over", "metad_back", "metad_w"),
    ),
    ("Disk and stores", ("metad_disk", "metad_store", "metad_fail", "metad_fsync")),
    ("Node", ("metad_",)),
)
"""Title of each row of the dashboard, and how the names of its metrics begin; the first row that fits has a metric."""
_COLUMNS, _HEIGHT = 3, 7
_WHERE: Final = ("instance", "node")
"""Labels of the scrape, and of the port of a machine, which tells its workers apart."""


def dashboard() -> str:
    """The dashboard of Grafana, JSON: every metric, and which alerts there are now."""
    rows: dict[str, list[dict[str, Any]]] = {title: [] for title, _ in _ROWS}
    for metric in METRICS:
        query = f"rate({metric.name}_total[$__rate_interval])" if metric.kind == "counter" else metric.name
        legend = " ".join(f"{{{{{label}}}}}" for label in dict.fromkeys([*_WHERE, *metric.labels]))
        if metric.name == "metad_certificate_end_timestamp_seconds":
            query = f"({query} - time()) / 86400"
        title = f"{metric.name}{' a second' if metric.kind == 'counter' else ''}"
        rows[_row(metric.name)].append(_panel(title, metric.help, [(query, legend)]))
    for times in TIMES:
        by = ", ".join(["le", *(times.labels or _WHERE)])
        legend = " ".join(f"{{{{{label}}}}}" for label in times.labels or _WHERE)
        rate = f"sum by ({by}) (rate({times.name}_bucket[$__rate_interval]))"
        targets = [
            (f"histogram_quantile({part}, {rate})", f"{legend} p{name}") for part, name in ((0.5, "50"), (0.99, "99"))
        ]
        rows[_row(times.name)].append(_panel(times.name, times.help, targets))
    panels: list[dict[str, Any]] = [
        {
            "type": "alertlist",
            "title": "Alerts",
            "gridPos": {"x": 0, "y": 0, "w": 24, "h": 5},
            "options": {"stateFilter": {"firing": True, "pending": True}, "alertInstanceLabelFilter": '{job="metad"}'},
        }
    ]
    y = 5
    for title, found in rows.items():
        panels.append({"type": "row", "title": title, "gridPos": {"x": 0, "y": y, "w": 24, "h": 1}, "collapsed": False})
        y += 1
        for at, panel in enumerate(found):
            x = at % _COLUMNS * (24 // _COLUMNS)
            panel["gridPos"] = {"x": x, "y": y + at // _COLUMNS * _HEIGHT, "w": 24 // _COLUMNS, "h": _HEIGHT}
            panels.append(panel)
        y += -(-len(found) // _COLUMNS) * _HEIGHT
    for number, panel in enumerate(panels):
        panel["id"] = number + 1
    return json.dumps(
        {
            "title": "metad",
            "uid": "metad",
            "schemaVersion": 39,
            "refresh": "10s",
            "time": {"from": "now-1h", "to": "now"},
            "templating": {"list": [{"name": "source", "type": "datasource", "query": "prometheus"}]},
            "panels": panels,
        },
        indent=1,
    )


def _row(name: str) -> str:
    return next(title for title, begins in _ROWS if name.startswith(begins))


def _panel(title: str, help: str, targets: Iterable[tuple[str, str]]) -> dict[str, Any]:
    source = {"type": "prometheus", "uid": "${source}"}
    unit = "s" if title.endswith("_seconds") else "bytes" if title.endswith("_bytes") else "short"
    return {
        "type": "timeseries",
        "title": title,
        "description": help,
        "datasource": source,
        "fieldConfig": {"defaults": {"unit": unit, "min": 0}, "overrides": []},
        "targets": [
            {"refId": chr(ord("A") + at), "datasource": source, "expr": query, "legendFormat": legend}
            for at, (query, legend) in enumerate(targets)
        ],
    }
