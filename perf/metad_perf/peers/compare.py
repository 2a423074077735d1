"""``metad-perf compare``: three nodes of metad against three nodes of a peer, on the same cores, one system at a time.

A pair is one run of each load on either system, in changing order, each system freshly started; the report gives the
median of the pairs' own ratios. A sweep beforehand finds the number of requests in flight and of processes for each
system separately: each is measured at its own best.

The peer's client is as cheap as possible: messages are encoded before the clock starts, and replies are only checked
for success. metad's client is the normal SDK, with encoding and checking.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from ..errors import UsageError, WorkerError
from ..load.fleet import run_fleet
from ..load.measure import Load, account_of, create, epoch_now, plans
from ..load.worker import OpenSource, open_metad
from ..report import output
from ..spawn import Server, Shape, temporary_server
from .etcd import Etcd, find_etcd, temporary_etcd
from .etcd_client import CONNECTIONS_MAX, open_etcd

PEERS = ("etcd",)
METAD = "metad"
NODES = 3
BATCH = 1_000
VALUE_BYTES = 200
SINGLES_IN_FLIGHT = 512
BATCHES_IN_FLIGHT = (1, 2, 4, 8, 16)
SINGLES_PROCESSES = (1, 2)
_SWEEP_SHARE = 0.6  # of a run's length
PUTS, TAKEOVER, SINGLES, AT_LOAD = "batched_put", "batched_takeover", "single_put", "single_put_paced"
BARS = {
    "batched_put_ratio": 4.0,
    "batched_takeover_ratio": 2.5,
    "single_put_ratio": 3.0,
    "p99_ratio_at_equal_load": 1.0,
}
"""The last ratio must stay below its bar."""


class Way(msgspec.Struct, frozen=True):
    """How a load is sent."""

    batch: int
    in_flight: int
    processes: int


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """The measurements of one system under one load."""

    system: str
    load: str
    pair: int
    """-1: a run of the sweep."""
    way: Way
    rate: float
    """Items/s of an open loop; 0: closed loop."""
    items: int
    failed: int
    items_per_s: float
    server_cpu_us_per_item: float
    client_cpu_us_per_item: float
    p50_ms: float
    p99_ms: float
    p999_ms: float
    errors: dict[str, int]


class _System:
    """One running system."""

    def __init__(self, name: str, endpoint: str, open_source: OpenSource, cpu_us: Callable[[], int]) -> None:
        self.name = name
        self.open_source = open_source
        self.endpoint = endpoint
        self.cpu_us = cpu_us


class _Comparison:
    def __init__(
        self,
        *,
        pairs: int,
        seconds: float,
        keys: int,
        shape: Shape,
        config: Path | None,
        progress: Callable[[int], None],
    ) -> None:
        self.runs: list[Run] = []
        self.systems: dict[str, dict[str, Any]] = {}
        self._pairs, self._seconds, self._keys = pairs, seconds, keys
        self._shape, self._config = shape, config
        self._progress = progress
        self._best: dict[tuple[str, str], Way] = {}
        self._epoch = 0

    def run(self) -> None:
        """Both sweeps, then the pairs."""
        for name in ("etcd", METAD):
            with self._system(name) as system:
                self._sweep(system)
        for pair in range(self._pairs):
            for name in ("etcd", METAD) if pair % 2 == 0 else (METAD, "etcd"):
                with self._system(name) as system:
                    self._pair(system, pair)

    @contextmanager
    def _system(self, name: str) -> Iterator[_System]:
        if name == METAD:
            with temporary_server(config=self._config, shape=self._shape) as server:
                server.start()
                yield self._metad(server)
                server.stop()
        else:
            with temporary_etcd(NODES) as etcd:
                yield self._etcd(etcd)

    def _metad(self, server: Server) -> _System:
        account = account_of(server.target)
        self._epoch = epoch_now()
        create(server.target, self._load("session.takeover", Way(BATCH, 1, 1)), self._epoch)
        about = {"program": "metad", "nodes": account.nodes, "processes": account.processes, "groups": account.groups}
        about |= {"replicas": account.replicas, "fsync": account.fsync, "leaders": account.leaders}
        about |= {"transport": "metad's protocol over TCP, no TLS, to each group's leader"}
        self.systems[METAD] = about
        return _System(METAD, server.target, open_metad, lambda: account_of(server.target).cpu_us)

    def _etcd(self, etcd: Etcd) -> _System:
        self.systems["etcd"] = etcd.settings() | {"connections_per_process": CONNECTIONS_MAX}
        return _System("etcd", etcd.leader, open_etcd, etcd.cpu_us)

    def _sweep(self, system: _System) -> None:
        for load in (PUTS, SINGLES) if system.name == "etcd" else (PUTS, TAKEOVER, SINGLES):
            ways = (
                [Way(1, SINGLES_IN_FLIGHT, processes) for processes in SINGLES_PROCESSES]
                if load == SINGLES
                else [Way(BATCH, in_flight, 1) for in_flight in BATCHES_IN_FLIGHT]
            )
            runs = [self._measure(system, load, -1, way, self._seconds * _SWEEP_SHARE) for way in ways]
            self._best[system.name, load] = max(runs, key=lambda one: one.items_per_s).way

    def _pair(self, system: _System, pair: int) -> None:
        if system.name == "etcd":
            for load in (PUTS, SINGLES):
                self._measure(system, load, pair, self._best["etcd", load], self._seconds)
            return
        for load in (PUTS, TAKEOVER, SINGLES):
            self._measure(system, load, pair, self._best[METAD, load], self._seconds)
        # The highest rate that etcd has reached so far; if metad comes first in a pair, in earlier pairs.
        rate = max(one.items_per_s for one in self.runs if (one.system, one.load) == ("etcd", SINGLES))
        self._measure(system, AT_LOAD, pair, self._best[METAD, SINGLES], self._seconds, rate)

    def _measure(self, system: _System, load: str, pair: int, way: Way, seconds: float, rate: float = 0.0) -> Run:
        verb = "session.takeover" if load == TAKEOVER else "kv.put"
        made = plans(
            system.endpoint, self._load(verb, way, rate), self._epoch, seconds=seconds, open_source=system.open_source
        )
        cpu: list[int] = []
        result = run_fleet(
            made,
            on_begin=lambda: cpu.append(system.cpu_us()),
            on_end=lambda: cpu.append(system.cpu_us()),
            progress=lambda _: None,
        )
        one = Run(
            system=system.name,
            load=load,
            pair=pair,
            way=way,
            rate=rate,
            items=result.items,
            failed=result.failed,
            items_per_s=result.items_per_s(),
            server_cpu_us_per_item=output.ratio(cpu[1] - cpu[0], result.items),
            client_cpu_us_per_item=output.ratio(result.client_cpu_s * 1e6, result.items),
            p50_ms=result.latencies.percentile_ms(50),
            p99_ms=result.latencies.percentile_ms(99),
            p999_ms=result.latencies.percentile_ms(99.9),
            errors=result.errors,
        )
        if not result.items - result.failed:
            raise WorkerError(f"{system.name}, {load}: nothing went well: {result.errors}")
        self.runs.append(one)
        self._progress(1)
        return one

    def _load(self, verb: str, way: Way, rate: float = 0.0) -> Load:
        return Load(
            verb=verb,
            batch=way.batch,
            in_flight=way.in_flight,
            items=self._keys,
            value_bytes=VALUE_BYTES,
            processes=way.processes,
            rate=rate,
            keys=self._keys,
            singles=way.batch == 1,
        )


def run(
    *, peers: str, pairs: int, seconds: float, keys: int, shape: Shape, config: Path | None, json: Path | None
) -> int:
    """Returns the exit code: 1 if items failed. The report says whether the bars are met."""
    if peers not in PEERS:
        raise UsageError(f"--peers {peers}: there is {', '.join(PEERS)}")
    if pairs < 1 or seconds <= 0 or keys < 2 * BATCH:
        raise UsageError(f"--pairs and --seconds must be over 0, --keys at least {2 * BATCH}")
    find_etcd()
    in_sweep = 2 * len(BATCHES_IN_FLIGHT) + len(SINGLES_PROCESSES) + len(BATCHES_IN_FLIGHT) + len(SINGLES_PROCESSES)
    with output.progress("runs", in_sweep + 6 * pairs) as progress:
        comparison = _Comparison(
            pairs=pairs, seconds=seconds, keys=keys, shape=shape.checked(), config=config, progress=progress
        )
        comparison.run()
    compared = {
        "etcd": verdict(comparison.runs),
        "bars": BARS,
        "systems": comparison.systems,
        "pairs": pairs,
        "seconds": seconds,
        "keys": keys,
        "value_bytes": VALUE_BYTES,
        "batch": BATCH,
        "runs": output.rounded([msgspec.to_builtins(one) for one in comparison.runs]),
        "setting": output.machine(),
        "versions": output.versions(),
    }
    output.write_json(json, compared)
    _show(compared)
    return 1 if any(one.failed for one in comparison.runs) else 0


def verdict(runs: list[Run]) -> dict[str, float]:
    """Medians over the pairs of metad ÷ etcd: of items/s, and of p99 when both get the highest rate that etcd
    reaches."""

    def of(system: str, load: str) -> list[Run]:
        return sorted(
            (one for one in runs if (one.system, one.load) == (system, load) and one.pair >= 0),
            key=lambda one: one.pair,
        )

    def rates(ours: str, theirs: str) -> float:
        pairs = zip(of(METAD, ours), of("etcd", theirs), strict=True)
        return output.median_ratio((mine.items_per_s, other.items_per_s) for mine, other in pairs)

    latencies = zip(of(METAD, AT_LOAD), of("etcd", SINGLES), strict=True)
    return output.rounded(
        {
            "batched_put_ratio": rates(PUTS, PUTS),
            "batched_takeover_ratio": rates(TAKEOVER, PUTS),
            "single_put_ratio": rates(SINGLES, SINGLES),
            "p99_ratio_at_equal_load": output.median_ratio((mine.p99_ms, other.p99_ms) for mine, other in latencies),
        }
    )


def _show(compared: dict[str, Any]) -> None:
    columns = ["system", "load", "pair", "calls", "from", "items/s", "server µs", "client µs", "p50 ms", "p99 ms"]
    output.table(
        "metad and etcd, three nodes each: calls in flight, from processes; CPU per item",
        columns,
        [
            [
                *(one["system"], one["load"], one["pair"] if one["pair"] >= 0 else "-"),
                *(one["way"]["in_flight"], one["way"]["processes"], one["items_per_s"]),
                *(one["server_cpu_us_per_item"], one["client_cpu_us_per_item"]),
                *(one["p50_ms"], one["p99_ms"]),
            ]
            for one in compared["runs"]
        ],
    )
    output.table(
        "medians of the pairs, metad ÷ etcd",
        ["", "ratio", "bar", "met"],
        [
            [name, value, bar := BARS[name], value <= bar if name.startswith("p99") else value >= bar]
            for name, value in compared["etcd"].items()
        ],
    )
