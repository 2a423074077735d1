"""The cells of a WAN run: a server in one place, a client in another, the relay between, one transport at a time.

Over short paths each transport is measured in two halves and in changing order, so that a machine that becomes slow in
the middle of a cell slows all of them. Over long and lossy paths each has twice the time, because losses are rare. All
share one seed for the path's random losses, but their packets differ, so a cell is a sample and not a replay.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from metad_client import Options
from metad_wire.operator.authority import issue_fleet

from ..errors import ServerError
from ..load.workload import Settings
from ..report.histogram import Latencies
from ..spawn import Server, metad_serve
from .client import Answer, Order, WanClient, options_for
from .relay import Places
from .relay_line import Path as LinePath
from .table import Cell, Figures

VERBS = ("put", "batch")
LONG_MS = 50.0
"""Round-trip time from which a path is long: the machine's own speed matters little there, and a second half would cost
handshakes."""
_KEYS = 10_000
SERVER, CLIENT = 0, 1  # places
_PORT = 7420  # for TCP and UDP


class Load(msgspec.Struct, frozen=True, kw_only=True):
    """The requests of a verb. ``put``: requests of one item; ``batch``: requests of ``batch`` items."""

    batch: int = 100
    in_flight_puts: int = 64
    in_flight_batches: int = 16
    value_bytes: int = 200
    seconds: float = 3.0
    """Measured per transport, besides warm-ups and handshakes; twice that over long paths that lose packets."""
    seed: int = 1

    def settings(self, verb: str, epoch: int) -> tuple[Settings, int]:
        """The workload, and the number of requests in flight."""
        batch = 1 if verb == "put" else self.batch
        settings = Settings(
            verb="kv.put", batch=batch, keys=_KEYS, value_bytes=self.value_bytes, epoch=epoch, seed=self.seed
        )
        return settings, self.in_flight_puts if verb == "put" else self.in_flight_batches


class Way(msgspec.Struct, frozen=True, kw_only=True):
    """A way from the client to the server. ``control``: TCP's congestion control, if that matters."""

    name: str
    url: str
    options: Options
    control: str = ""


def served(places: Places, directory: Path, config: Path | None = None) -> tuple[Server, str, Options]:
    """A node in its place, not yet started; the address it listens on, by TCP and UDP; and a client's options for
    it."""
    files = issue_fleet(directory / "certificates", ["node-1"], ["wan"])
    node, at = files["node-node-1"], f"{places.address(SERVER)}:{_PORT}"
    command = [*places.network.prefix(SERVER), *metad_serve(), "--quic", at]
    command += ["--tls-cert", node.certificate, "--tls-key", node.key, "--tls-ca", node.ca]
    return Server(directory, command=command, config=config, listen=at), at, Options(tls=files["client-wan"])


def grid(
    rtts_ms: Sequence[float], losses_pct: Sequence[float], verbs: Sequence[str]
) -> Iterator[tuple[float, float, str]]:
    """Every cell, in the order of measurement."""
    return ((rtt, loss, verb) for verb in verbs for rtt in rtts_ms for loss in losses_pct)


class Wan:
    """Measures cells. ``others`` are TCP with other congestion controls; ``clients`` has one client per way, ``auto``
    included."""

    def __init__(
        self,
        places: Places,
        clients: Sequence[WanClient],
        load: Load,
        *,
        tcp: Way,
        quic: Way,
        others: Sequence[Way] = (),
        auto: Way | None = None,
        base: LinePath,
        epoch: int,
    ) -> None:
        self._places = places
        self._load = load
        self._ways = [tcp, quic, *others, *([auto] if auto is not None else [])]
        self._clients = {way.name: client for way, client in zip(self._ways, clients, strict=True)}
        self._auto = auto
        self._base = base
        self._epoch = epoch

    def cell(self, rtt_ms: float, loss_pct: float, verb: str) -> Cell:
        """Measure every way through one path."""
        path = msgspec.structs.replace(self._base, delay_ms=rtt_ms / 2, loss_pct=loss_pct)
        self._places.shape(SERVER, CLIENT, path)
        answers: dict[str, list[Answer]] = {way.name: [] for way in self._ways}
        seconds = self._load.seconds
        orders = [(self._ways, seconds / 2), (self._ways[::-1], seconds / 2)]
        if rtt_ms >= LONG_MS:
            orders = [(self._ways, 2 * seconds if loss_pct else seconds)]
        for ways, each_s in orders:
            for way in ways:
                self._begin(way, verb, rtt_ms, each_s)
                answers[way.name].append(self._clients[way.name].end())
        measured = {name: _figures(some) for name, some in answers.items()}
        tcp, quic, *others = (way for way in self._ways if way is not self._auto)
        auto = self._auto.name if self._auto is not None else ""
        return Cell(
            rtt_ms=rtt_ms,
            loss_pct=loss_pct,
            verb=verb,
            tcp=measured[tcp.name],
            quic=measured[quic.name],
            others={way.control: measured[way.name] for way in others},
            auto=answers[auto][-1].transport if auto else "",
            chosen=measured.get(auto),
        )

    def _begin(self, way: Way, verb: str, rtt_ms: float, seconds: float) -> None:
        if way.control:
            self._places.control(way.control)
        settings, in_flight = self._load.settings(verb, self._epoch)
        options = options_for(way.options, settings, in_flight)
        order = Order(
            url=way.url, options=options, settings=settings, in_flight=in_flight, seconds=seconds, rtt_ms=rtt_ms
        )
        self._clients[way.name].begin(order)


def _figures(answers: Sequence[Answer]) -> Figures:
    latencies = Latencies.merged(answer.latencies for answer in answers)
    items = sum(answer.items - answer.failed for answer in answers)
    if not latencies.count:
        raise ServerError("nothing was answered in a cell: give it more --seconds")
    return Figures(
        p50_ms=latencies.percentile_ms(50),
        p99_ms=latencies.percentile_ms(99),
        items_per_s=items / sum(answer.seconds for answer in answers),
        connect_ms=min(answer.connect_ms for answer in answers),
        requests=latencies.count,
        failed=sum(answer.failed for answer in answers),
    )
