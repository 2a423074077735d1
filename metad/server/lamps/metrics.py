"""What a node tells Prometheus. Each metric is declared here, with what it is read from.

The number of series is bounded by the number of nodes, groups and methods. It does not grow with records, tenants or
clients.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import accumulate
from typing import Any, Final, Literal, NamedTuple

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector
from prometheus_client.samples import Exemplar

from metad_wire.messages import GroupStatus, StatusReply

from ...node.meters import Histogram, Meter, Meters
from ...storage.engine import Figures

Sample = tuple[tuple[str, ...], float]
"""The values of the labels, and the value."""


class Reading(NamedTuple):
    """Holds what one scrape shows."""

    status: StatusReply
    meters: Meters
    methods: Mapping[str, Meter]
    """Of the meters, by the name of the method."""
    stores: dict[str, Figures]
    """By name: ``state`` and ``log``."""
    events: dict[str, int]
    """How often each came about."""
    brokers: dict[str, int]
    """How many are in each state, where this node leads ``metadata-0``."""
    silence: float
    watches_behind: int


class Metric(NamedTuple):
    """Declares one metric. A counter's name gets ``_total`` on the page."""

    name: str
    kind: Literal["counter", "gauge"]
    help: str
    of: Callable[[Reading], Iterable[Sample]]
    labels: tuple[str, ...] = ()


class Times(NamedTuple):
    """Declares one histogram, and where it is read."""

    name: str
    help: str
    of: Callable[[Reading], Iterable[tuple[tuple[str, ...], Histogram]]]
    labels: tuple[str, ...] = ()


def _one(value: Callable[[StatusReply], float]) -> Callable[[Reading], Iterable[Sample]]:
    return lambda reading: (((), value(reading.status)),)


def _groups(value: Callable[[GroupStatus], float]) -> Callable[[Reading], Iterable[Sample]]:
    return lambda reading: (((group.name,), value(group)) for group in reading.status.groups)


def _methods(value: Callable[[Meter], float]) -> Callable[[Reading], Iterable[Sample]]:
    return lambda reading: (((method,), value(meter)) for method, meter in reading.methods.items())


def _stores(value: Callable[[Figures], float]) -> Callable[[Reading], Iterable[Sample]]:
    return lambda reading: (((name,), value(figures)) for name, figures in reading.stores.items())


def _lags(reading: Reading) -> Iterator[Sample]:
    for group in reading.status.groups:
        for follower in group.followers:
            if follower.state == "probe" and not follower.match:  # a new leader does not know yet what it has
                continue
            yield (group.name, follower.node_id), max(0, group.last - follower.match)


def _lasts(reading: Reading) -> Iterator[Sample]:
    if (lasts_ms := reading.status.disk.lasts_ms) is not None:
        yield (), lasts_ms / 1_000


def _named(reading: Reading) -> Iterator[Sample]:
    status = reading.status
    yield (status.node_id, status.cluster_id, status.region, status.version), 1


def _up(reading: Reading) -> Iterator[Sample]:
    yield (reading.status.node_id,), 1


def _backlog(reading: Reading) -> Iterator[Sample]:
    backlog = reading.status.backlog
    for what in ("deadlines", "fences", "wills", "unclaimed", "tenants"):
        yield (what,), getattr(backlog, what)


NODE_UP: Final = "metad_node_up"
_GROUP: Final = ("group",)
_STORE: Final = ("store",)
METRICS: Final = (
    Metric("metad_node", "gauge", "1; the labels say which.", _named, ("node", "cluster", "region", "version")),
    Metric(NODE_UP, "gauge", "0: a worker that does not answer its machine's port.", _up, ("node",)),
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
    Metric("metad_group_unlike_replicas", "gauge", "Whose state is wrong.", _groups(lambda g: len(g.unlike)), _GROUP),
    Metric("metad_follower_lag_entries", "gauge", "It lacks of what the leader has.", _lags, ("group", "follower")),
    Metric("metad_group_unapplied_entries", "gauge", "Committed.", _groups(lambda g: g.commit - g.applied), _GROUP),
    Metric(
        *("metad_requests", "counter", "Of clients that were answered: done, or an error."),
        lambda reading: (
            ((method, outcome), count)
            for method, meter in reading.methods.items()
            for outcome, count in meter.outcomes.items()
        ),
        ("method", "outcome"),
    ),
    Metric("metad_request_bytes", "counter", "Of the same.", _methods(lambda meter: meter.bytes), ("method",)),
    Metric("metad_items", "counter", "Items of requests to groups.", _methods(lambda meter: meter.items), ("method",)),
    Metric(
        *("metad_items_refused", "counter", "Refused before they were begun, one by one or with their request."),
        lambda reading: (((error,), count) for error, count in reading.meters.refused.items()),
        ("error",),
    ),
    Metric("metad_deadlines_missed", "counter", "By writes that waited.", lambda r: (((), r.meters.missed),)),
    Metric("metad_requests_slow", "counter", "Slower than limits.slow_ms.", lambda r: (((), r.meters.slow_count),)),
    Metric("metad_watch_streams_behind", "gauge", "They read the log.", lambda r: (((), r.watches_behind),)),
    Metric(
        *("metad_brokers", "gauge", "In each state; of the node that leads metadata-0."),
        lambda reading: (((state,), count) for state, count in reading.brokers.items()),
        ("state",),
    ),
    Metric(
        *("metad_broker_silence_ratio", "gauge", "Of its lease, by the most silent live broker; 1: its life ends."),
        lambda reading: (((), reading.silence),) if reading.brokers else (),
    ),
    Metric(
        *("metad_certificate_end_timestamp_seconds", "gauge", "When the certificate in the file of this key ends."),
        lambda reading: (((one.key,), one.ends_ms / 1_000) for one in reading.status.certificates),
        ("file",),
    ),
    Metric(
        *("metad_events", "counter", "Of the log, also where the line was left out; `metad logs` explains each."),
        lambda reading: (((event,), count) for event, count in reading.events.items()),
        ("event",),
    ),
    Metric("metad_store_files_bytes", "gauge", "Of RocksDB.", _stores(lambda f: f.files_bytes), _STORE),
    Metric("metad_store_memtables_bytes", "gauge", "In no file yet.", _stores(lambda f: f.memtables_bytes), _STORE),
    Metric("metad_store_cache_bytes", "gauge", "All stores share it.", _stores(lambda f: f.cache_bytes), _STORE),
    Metric("metad_store_level0_files", "gauge", "Not compacted yet.", _stores(lambda f: f.level0_files), _STORE),
    Metric("metad_store_pending_bytes", "gauge", "To be compacted.", _stores(lambda f: f.pending_bytes), _STORE),
    Metric("metad_store_compactions", "gauge", "That run.", _stores(lambda f: f.compactions), _STORE),
    Metric("metad_store_flushes", "gauge", "That run.", _stores(lambda f: f.flushes), _STORE),
    Metric("metad_store_stopped", "gauge", "1: no write goes on.", _stores(lambda f: f.stopped), _STORE),
    Metric(
        *("metad_store_slowed_bytes_per_second", "gauge", "Writes are held back to it; 0: they are not."),
        _stores(lambda figures: figures.slowed_bytes_per_s),
        _STORE,
    ),
    Metric("metad_store_pairs", "gauge", "Keys, about.", _stores(lambda f: f.pairs), _STORE),
)
LATENCY: Final = "metad_request_duration_seconds"
TIMES: Final = (
    Times(
        *(LATENCY, "From when a request of a client has come until it is answered."),
        lambda reading: (((method,), meter.seconds) for method, meter in reading.methods.items()),
        ("method",),
    ),
    Times("metad_log_sync_duration_seconds", "An fsync of the log.", lambda reading: (((), reading.meters.sync_s),)),
    Times("metad_apply_duration_seconds", "To apply what is committed, a turn.", lambda r: (((), r.meters.apply_s),)),
    Times("metad_entry_items", "Items in an entry.", lambda reading: (((), reading.meters.entry_items),)),
    Times(
        *("metad_queue_wait_seconds", "Of the first request of each entry, until that was begun."),
        lambda reading: (((), reading.meters.entry_wait_s),),
    ),
    Times("metad_loop_delay_seconds", "Of a timer, ten a second.", lambda reading: (((), reading.meters.loop_late_s),)),
)
_HEAD: Final = """# Metrics

`metad serve --http HOST:PORT` shows them at `/metrics`, as OpenMetrics where that is asked for; docs/SEE.md says to
whom, and what else the port has. The number of series does not grow with records, tenants or clients. Workers, and the
nodes of `metad cluster`, share one port: there each metric has the label `node`, too.
"""


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
        for times in TIMES:
            histogram = HistogramMetricFamily(times.name, times.help, labels=times.labels)
            for labels, found in times.of(self._reading):
                bounds = [*map(str, found.bounds), "+Inf"]
                counted: list[Any] = list(zip(bounds, accumulate(found.buckets), strict=True))
                for at, (trace_id, value) in list(found.examples.items()):
                    counted[at] = (*counted[at], Exemplar({"trace_id": trace_id}, value))
                histogram.add_metric(labels, counted, found.total)
            yield histogram


class _Missing(Collector):
    def __init__(self, nodes: Iterable[str]) -> None:
        self._nodes = nodes

    def collect(self) -> Iterator[Any]:
        (declared,) = (metric for metric in METRICS if metric.name == NODE_UP)
        family = GaugeMetricFamily(declared.name, declared.help, labels=declared.labels)
        for node in self._nodes:
            family.add_metric((node,), 0.0)
        yield family


def page(reading: Reading, accept: str = "") -> tuple[bytes, str]:
    """The page, and its content type, as an ``Accept`` header asks: OpenMetrics, or Prometheus' text."""
    return _encoded(_Page(reading), accept)


def page_of_missing(nodes: Iterable[str], accept: str) -> str:
    """What there is to say of workers that do not answer."""
    return _encoded(_Missing(nodes), accept)[0].decode()


def _encoded(collector: Collector, accept: str) -> tuple[bytes, str]:
    registry = CollectorRegistry(auto_describe=False)
    registry.register(collector)
    encoder, content_type = choose_encoder(accept)
    return encoder(registry), content_type


def merged(pages: Mapping[str, str]) -> str:
    """One page of those of several nodes, by node id, in one format. Each sample gets a label ``node``, unless its
    metric has one."""
    heads: dict[str, list[str]] = {}
    samples: dict[str, list[str]] = {}
    end = ""
    for node, text in pages.items():
        name = ""
        for line in text.splitlines():
            if line == _END:
                end = f"{_END}\n"
            elif line.startswith("# HELP "):
                name = line.split(" ", 3)[2]
                heads.setdefault(name, [line])
                samples.setdefault(name, [])
            elif line.startswith("#"):
                if line not in heads[name]:
                    heads[name].append(line)
            else:
                samples[name].append(_labelled(line, node))
    return "".join(f"{line}\n" for name, head in heads.items() for line in (*head, *samples[name])) + end


_END: Final = "# EOF"
_SAY_WHICH: Final = {metric.name for metric in METRICS if "node" in metric.labels}


def _labelled(sample: str, node: str) -> str:
    """A line of a page, with one label more."""
    series, space, value = sample.partition(" ")
    name, brace, labels = series.partition("{")
    if not brace:
        return f'{name}{{node="{node}"}}{space}{value}'
    if name in _SAY_WHICH:
        return sample
    return f'{name}{{node="{node}",{labels}{space}{value}'


def reference() -> str:
    """What ``metad metrics`` prints, as a page."""
    lines = [_HEAD, "| metric | kind | labels | meaning |", "| --- | --- | --- | --- |"]
    for metric in METRICS:
        suffix = "_total" if metric.kind == "counter" else ""
        labels = ", ".join(metric.labels)
        lines.append(f"| `{metric.name}{suffix}` | {metric.kind} | {labels} | {metric.help} |")
    for times in TIMES:
        lines.append(f"| `{times.name}` | histogram | {', '.join(times.labels)} | {times.help} |")
    return "\n".join([*lines, ""])
