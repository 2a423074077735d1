"""Shows the counters of clients to Prometheus, in the registry that the program has already::

    from prometheus_client import REGISTRY
    from metad_client.prometheus import MetadCollector

    async with connect("metad://127.0.0.1:7420") as m:
        REGISTRY.register(MetadCollector(m))

It needs the extra ``prometheus``, and serves no port of its own. ``m.statistics()`` has the same without any package.
Each metric is declared here, with what it is read from; ``python -m metad_client.prometheus`` prints them as a page.

The number of series is bounded by the number of clients, verbs and errors. It does not grow with records, tenants,
nodes or groups.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, Literal, NamedTuple, Protocol

from metad_wire.program.extras import advice

from .client import Statistics, VerbStatistics
from .dispatch.calls.call import BOUNDS_S
from .dispatch.states import ClientState
from .errors import ForeignCallError, ForkedError

try:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
    from prometheus_client.registry import Collector
except ModuleNotFoundError as missing:
    text = f"metad_client.prometheus: {advice(missing, 'prometheus')}"
    raise ModuleNotFoundError(text, name=missing.name) from None

Sample = tuple[tuple[str, ...], float]
"""The values of the labels, and the value."""


class Counted(Protocol):
    """Has statistics: a :class:`metad_client.Client` or a blocking one."""

    def statistics(self) -> Statistics:
        """Read them, in any thread."""


class Metric(NamedTuple):
    """Declares one metric. A counter's name gets ``_total`` on the page, and the first label of all is ``client``."""

    name: str
    kind: Literal["counter", "gauge"]
    help: str
    of: Callable[[Statistics], Iterable[Sample]]
    labels: tuple[str, ...] = ()


def _one(value: Callable[[Statistics], float]) -> Callable[[Statistics], Iterable[Sample]]:
    return lambda statistics: (((), value(statistics)),)


def _verbs(value: Callable[[VerbStatistics], float]) -> Callable[[Statistics], Iterable[Sample]]:
    return lambda statistics: (((verb,), value(counts)) for verb, counts in statistics.verbs.items())


def _named(values: Callable[[VerbStatistics], dict[str, int]]) -> Callable[[Statistics], Iterable[Sample]]:
    return lambda statistics: (
        ((verb, name), count) for verb, counts in statistics.verbs.items() for name, count in values(counts).items()
    )


def _vias(statistics: Statistics) -> Iterator[Sample]:
    vias = list(statistics.via.values())
    for via in sorted(set(vias)):
        yield (via,), vias.count(via)


def _age(statistics: Statistics) -> Iterator[Sample]:
    if statistics.watch_age_s is not None:
        yield (), statistics.watch_age_s


_VERB: Final = ("verb",)
METRICS: Final = (
    Metric(
        *("metad_client_state", "gauge", "1: the state of the client; 0: the others."),
        lambda s: (((state.value,), s.state == state.value) for state in ClientState),
        ("state",),
    ),
    Metric(
        *("metad_client_kind_connected", "gauge", "1: all groups of the kind have a leader that answers."),
        lambda s: (((kind,), state == ClientState.CONNECTED.value) for kind, state in s.kinds.items()),
        ("kind",),
    ),
    Metric(
        "metad_client_alone_seconds", "gauge", "For how long no node has taken requests.", _one(lambda s: s.alone_s)
    ),
    Metric("metad_client_nodes", "gauge", "Connected to now.", _one(lambda s: s.nodes)),
    Metric("metad_client_connections", "gauge", "To nodes, by transport; absent: none.", _vias, ("via",)),
    Metric("metad_client_connects", "counter", "Handshakes that succeeded.", _one(lambda s: s.connects)),
    Metric("metad_client_reconnects", "counter", "Those after the first to each node.", _one(lambda s: s.reconnects)),
    Metric("metad_client_disconnects", "counter", "Connections that were lost.", _one(lambda s: s.disconnects)),
    Metric("metad_client_unreachable", "counter", "Attempts to connect that failed.", _one(lambda s: s.unreachable)),
    Metric("metad_client_transport_changes", "counter", "As the path changed.", _one(lambda s: s.changes)),
    Metric("metad_client_in_flight_requests", "gauge", "Sent and unanswered.", _one(lambda s: s.in_flight)),
    Metric("metad_client_waiting_requests", "gauge", "For room, or the next attempt.", _one(lambda s: s.waiting)),
    Metric("metad_client_returning_requests", "gauge", "Of these: for their slot.", _one(lambda s: s.returning)),
    Metric("metad_client_turned_away", "counter", "Answers: a node has no room.", _one(lambda s: s.turned_away)),
    Metric(
        *("metad_client_requests", "counter", "That have ended: ok, abandoned or an error, as deadline_exceeded."),
        _named(lambda counts: counts.outcomes),
        ("verb", "outcome"),
    ),
    Metric(
        "metad_client_items", "counter", "Of these requests, if they were batches.", _verbs(lambda c: c.items), _VERB
    ),
    Metric("metad_client_refused_items", "counter", "Not done, in what was ok.", _verbs(lambda c: c.refused), _VERB),
    Metric(
        *("metad_client_retries", "counter", "Further attempts after a wait, by the error before."),
        _named(lambda counts: counts.retries),
        ("verb", "reason"),
    ),
    Metric("metad_client_redirects", "counter", "Further attempts at once.", _verbs(lambda c: c.redirects), _VERB),
    Metric("metad_client_watches", "gauge", "Watches, images and snapshots.", _one(lambda s: s.watches)),
    Metric(
        *("metad_client_watch_batches", "counter", "Delivered. A gap: changes were lost, a snapshot follows."),
        lambda s: (((kind,), count) for kind, count in s.watch_batches.items()),
        ("kind",),
    ),
    Metric("metad_client_watch_resumes", "counter", "Streams that went on elsewhere.", _one(lambda s: s.watch_resumes)),
    Metric("metad_client_watch_age_seconds", "gauge", "Of the oldest picture; absent: not known.", _age),
)
LATENCY: Final = "metad_client_request_duration_seconds"
_LATENCY: Final = "From the call until its end, with all waits and attempts."
_HEAD: Final = """# Metrics of the SDK

`REGISTRY.register(MetadCollector(m))` of `metad_client.prometheus` (extra `prometheus`) shows them in the program's own
registry. The label `client` is the name that the program has given the client; without a name it is empty. The number
of series does not grow with records, tenants, nodes or groups.
"""


class MetadCollector(Collector):
    """The clients of one program, for one registry.

    A registry takes one collector: further clients are added to it under names of their own. It holds them weakly, so
    the series of a client end when the program lets go of it, or forgets it here.
    """

    def __init__(self, client: Counted, name: str = "") -> None:
        """``name`` is the label ``client`` of all series of the client."""
        self._clients: dict[str, weakref.ref[Counted]] = {}
        self.add(client, name)

    def add(self, client: Counted, name: str) -> None:
        """Show another client. Raises ValueError if the name is that of a client which the program still has."""
        known = self._clients.get(name)
        held = known() if known is not None else None
        if held is not None and held is not client:
            raise ValueError(f"name: {name!r} is the name of another client; forget that one first")
        self._clients[name] = weakref.ref(client)

    def forget(self, client: Counted) -> None:
        """End the series of a client. Nothing happens if it has none."""
        for name, known in self._clients.copy().items():
            if known() in (client, None):
                self._clients.pop(name, None)

    def describe(self) -> Iterator[Any]:
        """The metrics without values: what a registry compares before it takes a collector."""
        return self._families({})

    def collect(self) -> Iterator[Any]:
        """The metrics of now, in any thread."""
        statistics: dict[str, Statistics] = {}
        for name, known in self._clients.copy().items():
            client = known()
            try:
                if client is not None:
                    statistics[name] = client.statistics()
            except (ForkedError, ForeignCallError):  # in a fork, it is the client of another process
                continue
        return self._families(statistics)

    @staticmethod
    def _families(clients: dict[str, Statistics]) -> Iterator[Any]:
        for metric in METRICS:
            kind = CounterMetricFamily if metric.kind == "counter" else GaugeMetricFamily
            family = kind(metric.name, metric.help, labels=("client", *metric.labels))
            for name, statistics in clients.items():
                for labels, value in metric.of(statistics):
                    family.add_metric((name, *labels), float(value))
            yield family
        latency = HistogramMetricFamily(LATENCY, _LATENCY, labels=("client", *_VERB))
        for name, statistics in clients.items():
            for verb, counts in statistics.verbs.items():
                total, buckets = 0, []
                for bound, count in zip([*map(str, BOUNDS_S), "+Inf"], counts.buckets, strict=True):
                    total += count
                    buckets.append((bound, total))
                latency.add_metric((name, verb), buckets, counts.seconds)
        yield latency


def reference() -> str:
    """Print every metric as a page of Markdown."""
    lines = [_HEAD, "| metric | kind | labels | meaning |", "| --- | --- | --- | --- |"]
    for metric in METRICS:
        suffix = "_total" if metric.kind == "counter" else ""
        labels = ", ".join(("client", *metric.labels))
        lines.append(f"| `{metric.name}{suffix}` | {metric.kind} | {labels} | {metric.help} |")
    lines.append(f"| `{LATENCY}` | histogram | client, verb | {_LATENCY} |")
    return "\n".join([*lines, ""])


if __name__ == "__main__":
    print(reference(), end="")
