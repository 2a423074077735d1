"""What a node tells Prometheus. Each metric is declared here, with what it is read from.

The number of series is bounded by the number of nodes, groups and methods. It does not grow with records, tenants or
clients.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, Literal, NamedTuple

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from metad_wire.messages import GroupStatus, StatusReply

from ...node.requests.requests import BOUNDS_S, Meter

Sample = tuple[tuple[str, ...], float]
"""The values of the labels, and the value."""


class Reading(NamedTuple):
    """Holds what one scrape shows."""

    status: StatusReply
    meters: dict[str, Meter]


class Metric(NamedTuple):
    """Declares one metric. A counter's name gets ``_total`` on the page."""

    name: str
    kind: Literal["counter", "gauge"]
    help: str
    of: Callable[[Reading], Iterable[Sample]]
    labels: tuple[str, ...] = ()


def _one(value: Callable[[StatusReply], float]) -> Callable[[Reading], Iterable[Sample]]:
    return lambda reading: (((), value(reading.status)),)


def _groups(value: Callable[[GroupStatus], float]) -> Callable[[Reading], Iterable[Sample]]:
    return lambda reading: (((group.name,), value(group)) for group in reading.status.groups)


def _lags(reading: Reading) -> Iterator[Sample]:
    for group in reading.status.groups:
        for follower in group.followers:
            yield (group.name, follower.node_id), max(0, group.last - follower.match)


def _lasts(reading: Reading) -> Iterator[Sample]:
    if (lasts_ms := reading.status.disk.lasts_ms) is not None:
        yield (), lasts_ms / 1_000


def _named(reading: Reading) -> Iterator[Sample]:
    status = reading.status
    yield (status.node_id, status.cluster_id, status.region, status.version), 1


def _backlog(reading: Reading) -> Iterator[Sample]:
    backlog = reading.status.backlog
    for what in ("deadlines", "fences", "wills", "unclaimed", "tenants"):
        yield (what,), getattr(backlog, what)


_GROUP: Final = ("group",)
METRICS: Final = (
    Metric("metad_node", "gauge", "1; the labels say which.", _named, ("node", "cluster", "region", "version")),
    Metric("metad_uptime_seconds", "gauge", "Since the process started.", _one(lambda s: s.uptime_ms / 1_000)),
    Metric("metad_cpu_seconds", "counter", "Of the process, user and system.", _one(lambda s: s.cpu_us / 1e6)),
    Metric("metad_resident_memory_bytes", "gauge", "Of the process; 0: unknown.", _one(lambda s: s.rss_bytes)),
    Metric("metad_fsync", "gauge", "0: acknowledges what is not on the disk yet.", _one(lambda s: s.fsync)),
    Metric("metad_authorization", "gauge", "1: clients may do what their roles say.", _one(lambda s: s.authorization)),
    Metric("metad_failing", "gauge", "1: the node can store nothing.", _one(lambda s: bool(s.failing))),
    Metric("metad_connections", "gauge", "Of clients.", _one(lambda s: s.connections)),
    Metric("metad_in_flight_bytes", "gauge", "Of unanswered requests.", _one(lambda s: s.in_flight_bytes)),
    Metric("metad_watch_streams", "gauge", "Of watches.", _one(lambda s: s.watch_streams)),
    Metric("metad_log_entries", "counter", "Written to the log.", _one(lambda s: s.entries)),
    Metric("metad_log_syncs", "counter", "Of the log.", _one(lambda s: s.syncs)),
    Metric("metad_disk_free_bytes", "gauge", "Room for the node.", _one(lambda s: s.disk.free_bytes)),
    Metric("metad_disk_size_bytes", "gauge", "Size of the file system.", _one(lambda s: s.disk.total_bytes)),
    Metric("metad_disk_low_bytes", "gauge", "The low-water mark.", _one(lambda s: s.disk.low_bytes)),
    Metric("metad_disk_short", "gauge", "1: refuses what grows. 2: takes no entries.", _one(lambda s: s.disk.short)),
    Metric("metad_disk_lasts_seconds", "gauge", "Until it is low; absent: it does not shrink.", _lasts),
    Metric("metad_sessions_ended", "counter", "Whose time had come.", _one(lambda s: s.sessions_ended)),
    Metric("metad_wills_due", "counter", "Whose time had come.", _one(lambda s: s.wills_due)),
    Metric("metad_wills_dropped", "counter", "That no broker published.", _one(lambda s: s.wills_dropped)),
    Metric("metad_overdue_seconds", "gauge", "Of the oldest late deadline.", _one(lambda s: s.overdue_ms / 1_000)),
    Metric("metad_backlog", "gauge", "What is late or waits, in led groups.", _backlog, ("what",)),
    Metric("metad_turned_away", "counter", "Requests that are to return.", _one(lambda s: s.turned_away.requests)),
    Metric(
        *("metad_lane_admitted", "counter", "Writes that were let in."),
        lambda reading: (((lane.lane,), lane.admitted) for lane in reading.status.lanes),
        ("lane",),
    ),
    Metric(
        *("metad_lane_refused", "counter", "Requests that would have waited too long."),
        lambda reading: (((lane.lane,), lane.refused) for lane in reading.status.lanes),
        ("lane",),
    ),
    Metric(
        *("metad_peer_up", "gauge", "Whether the node is connected to another."),
        lambda reading: (((link.node_id,), link.up) for link in reading.status.links),
        ("peer",),
    ),
    Metric(
        *("metad_peer_rtt_seconds", "gauge", "Round-trip time; 0: unknown."),
        lambda reading: (((link.node_id,), link.rtt_us / 1e6) for link in reading.status.links),
        ("peer",),
    ),
    Metric("metad_group_leads", "gauge", "1: this node leads it.", _groups(lambda g: g.role == "leader"), _GROUP),
    Metric("metad_group_term", "gauge", "Raft term.", _groups(lambda g: g.term), _GROUP),
    Metric("metad_group_commit_index", "gauge", "Known to be committed.", _groups(lambda g: g.commit), _GROUP),
    Metric("metad_group_applied_index", "gauge", "In the state.", _groups(lambda g: g.applied), _GROUP),
    Metric("metad_group_last_index", "gauge", "In the log.", _groups(lambda g: g.last), _GROUP),
    Metric("metad_group_log_bytes", "gauge", "A restart may replay.", _groups(lambda g: g.log_bytes), _GROUP),
    Metric("metad_group_slots", "gauge", "It holds.", _groups(lambda g: g.slots), _GROUP),
    Metric(
        *("metad_group_leaderless_seconds", "gauge", "For how long this node knows no leader."),
        _groups(lambda g: g.leaderless_ms / 1_000),
        _GROUP,
    ),
    Metric("metad_group_waiting_items", "gauge", "Of writes, to begin.", _groups(lambda g: g.waiting_items), _GROUP),
    Metric("metad_group_wait_seconds", "gauge", "How long these take.", _groups(lambda g: g.wait_ms / 1_000), _GROUP),
    Metric("metad_follower_lag_entries", "gauge", "It lacks of what the leader has.", _lags, ("group", "follower")),
    Metric(
        *("metad_requests", "counter", "Of clients that were answered: done, or an error."),
        lambda reading: (
            ((method, outcome), count)
            for method, meter in reading.meters.items()
            for outcome, count in meter.outcomes.items()
        ),
        ("method", "outcome"),
    ),
    Metric(
        *("metad_request_bytes", "counter", "Of the same."),
        lambda reading: (((method,), meter.bytes) for method, meter in reading.meters.items()),
        ("method",),
    ),
)
_HEAD: Final = """# Metrics

`metad serve --http HOST:PORT` shows them at `/metrics`, as OpenMetrics where that is asked for. The number of series
does not grow with records, tenants or clients. The same port has `/livez`, which is 200 while the process runs, however
much it has to do, and `/readyz`, which is 200 while the node serves, else 503. `/readyz?verbose` shows each check:
`storage`, `draining`, `groups` (all have leaders) and `read` (the leader of `metadata-0` has just answered this node).
Of workers, and of the nodes of `metad cluster`, each takes the next port.

On a loopback address it is in clear text and for all. Elsewhere it has the node's certificate, and needs a certificate
or `Authorization: Bearer TOKEN`; with `authorization` also a role that may read `cluster`, as `operator` does.
"""
LATENCY: Final = "metad_request_duration_seconds"
_LATENCY: Final = "From when a request of a client has come until it is answered."


class _Page(Collector):
    def __init__(self, reading: Reading) -> None:
        self._reading = reading

    def collect(self) -> Iterator[Any]:
        for metric in METRICS:
            kind = CounterMetricFamily if metric.kind == "counter" else GaugeMetricFamily
            family = kind(metric.name, metric.help, labels=metric.labels)
            for labels, value in metric.of(self._reading):
                family.add_metric(labels, float(value))
            yield family
        latency = HistogramMetricFamily(LATENCY, _LATENCY, labels=("method",))
        for method, meter in self._reading.meters.items():
            total, buckets = 0, []
            for bound, count in zip([*map(str, BOUNDS_S), "+Inf"], meter.buckets, strict=True):
                total += count
                buckets.append((bound, total))
            latency.add_metric((method,), buckets, meter.seconds)
        yield latency


def page(reading: Reading, accept: str = "") -> tuple[bytes, str]:
    """The page, and its content type, as an ``Accept`` header asks: OpenMetrics, or Prometheus' text."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Page(reading))
    encoder, content_type = choose_encoder(accept)
    return encoder(registry), content_type


def reference() -> str:
    """What ``metad metrics`` prints, as a page."""
    lines = [_HEAD, "| metric | kind | labels | meaning |", "| --- | --- | --- | --- |"]
    for metric in METRICS:
        suffix = "_total" if metric.kind == "counter" else ""
        labels = ", ".join(metric.labels)
        lines.append(f"| `{metric.name}{suffix}` | {metric.kind} | {labels} | {metric.help} |")
    lines.append(f"| `{LATENCY}` | histogram | method | {_LATENCY} |")
    return "\n".join([*lines, ""])
