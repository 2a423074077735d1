"""``metad-perf compare``: metad against other systems on the same cores, one system at a time.

For each peer, runs of it and of metad alternate in pairs: a pair is one run of each load on either system, in changing
order, each system freshly started and filled. The report gives the median of the pairs' own ratios, and their spread.
A sweep beforehand finds for each system, load and batch how many calls in flight serve it best: each is measured at
its own best. The number of load-generating processes is the same for all.
"""

from __future__ import annotations

import functools
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from metad_wire.program.running import run_async

from ..commands import Compare
from ..errors import UsageError, WorkerError
from ..load.fleet import run_fleet
from ..load.measure import MIB, epoch_now
from ..load.worker import Plan
from ..load.workload import Settings
from ..report import output
from ..spawn import Shape, disk_directory
from .catalog import KINDS, METAD, METAD_ALONE, Chosen, parse, with_pids
from .loads import (
    BATCH,
    INSERTS,
    LATEST,
    LOADS,
    MIXES,
    PACED,
    PAIRS,
    PUTS,
    RESTORE,
    SINGLES,
    TAKEOVERS,
    calls_of,
    fill,
    open_peer,
    requests_of,
)
from .metad_peer import MetadNodes
from .peer import Peer
from .publish import Pages, publish
from .verdict import BARS, Run, Way, best_of, ratios

VALUE_BYTES = 200
STEADY = (PUTS, INSERTS, TAKEOVERS, SINGLES, PACED, *MIXES, LATEST, PAIRS)
BATCHES_IN_FLIGHT = (4, 16, 48)
SINGLES_IN_FLIGHT = (128, 512, 2_048)
RESTORE_WAYS = ((200, 32), (1_000, 6), (1_000, 16))
PACED_SHARE = 0.7
"""Of the single puts a second that the slower of the two systems reached in its sweep: both get that rate."""
_SWEPT = {INSERTS: PUTS, PACED: SINGLES, LATEST: SINGLES, PAIRS: SINGLES, **dict.fromkeys(MIXES, SINGLES)}
"""Loads that are sent in the way that was best for another."""
_SWEEP_SHARE = 0.5  # of a run's length
_SEED = 1


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """The size of a comparison. ``loads``: of the steady ones. ``sessions``: of the storm; 0: none."""

    pairs: int
    seconds: float
    keys: int
    loads: tuple[str, ...]
    sessions: int
    processes: int
    shape: Shape
    config: Path | None = None

    @classmethod
    def of(cls, command: Compare) -> Options:
        """Those of a command line. Raises UsageError."""
        loads = {"": STEADY, "-": ()}.get(command.loads, tuple(command.loads.split(",")))
        if command.pairs < 1 or command.seconds <= 0 or command.processes < 1:
            raise UsageError("--pairs, --seconds and --processes must be over 0")
        batches = BATCH * command.processes
        if command.keys < 2 * batches:
            raise UsageError(f"--keys must be at least {2 * batches}")
        if command.storm and command.sessions % batches:
            raise UsageError(f"--sessions must be a multiple of {batches}: a process restores batches of {BATCH}")
        if unknown := set(loads) - set(STEADY):
            raise UsageError(f"--loads {','.join(sorted(unknown))}: there are {', '.join(STEADY)}")
        return cls(
            pairs=command.pairs,
            seconds=command.seconds,
            keys=command.keys,
            loads=loads,
            sessions=command.sessions if command.storm else 0,
            processes=command.processes,
            shape=command.shape,
            config=command.server_config,
        )

    def runs(self, peers: Sequence[Chosen]) -> int:
        """How many runs there are, for the progress bar."""
        sweeps = sum(len(_ways(load, self.processes)) for load in self._all() if load not in _SWEPT)
        swept = len(peers) + len({one.kind.alone for one in peers})
        return swept * sweeps + 2 * len(peers) * self.pairs * len(self._all())

    def _all(self) -> tuple[str, ...]:
        return (*self.loads, RESTORE) if self.sessions else self.loads


class _Against:
    """metad and one peer."""

    def __init__(
        self, peer: Chosen, options: Options, best: dict[tuple[str, str], Run], progress: Callable[[int], None]
    ) -> None:
        self.runs: list[Run] = []
        self.systems: dict[str, dict[str, object]] = {}
        self._peer, self._options, self._progress = peer, options, progress
        self._best = best
        """By system and load: the best run of its sweep. metad is swept once for all peers."""

    def run(self) -> None:
        """Both sweeps, then the pairs."""
        order = (self._peer.name, METAD)
        for load in self._options.loads:
            if load in _SWEPT and _SWEPT[load] not in self._options.loads:
                raise UsageError(f"--loads {load} needs {_SWEPT[load]}, too: its sweep finds the way for both")
        for name in order:
            if not any(system == name for system, _ in self._best):
                self._on_each(name, self._sweep)
        for pair in range(self._options.pairs):
            for name in order if pair % 2 == 0 else order[::-1]:
                self._on_each(name, functools.partial(self._pair, pair))

    def _on_each(self, name: str, work: Callable[[str, Peer, Sequence[str]], None]) -> None:
        """The steady loads on one fresh system, the storm on another, which has its sessions and nothing else."""
        if self._options.loads:
            with self._running(name, self._options.keys, self._options.keys) as system:
                work(name, system, self._options.loads)
        if self._options.sessions:
            with self._running(name, 0, self._options.sessions) as system:
                work(name, system, (RESTORE,))

    @contextmanager
    def _running(self, name: str, keys: int, sessions: int) -> Iterator[Peer]:
        directory = Path(tempfile.mkdtemp(prefix=f"metad-perf-{name}-", dir=disk_directory()))
        try:
            system = MetadNodes(self._shape(), self._options.config) if name == METAD else self._peer.make(directory)
            try:
                system.start()
                run_async(
                    fill(
                        name,
                        system.endpoints(),
                        keys=keys,
                        sessions=sessions,
                        value_bytes=VALUE_BYTES,
                        seed=_SEED,
                    )
                )
                self.systems[_as(name, self._peer)] = system.settings()
                yield system
            finally:
                system.stop()
        finally:
            shutil.rmtree(directory, ignore_errors=True)

    def _shape(self) -> Shape:
        """One node of metad if the peer is one."""
        return msgspec.structs.replace(self._options.shape, nodes=1) if self._peer.kind.alone else self._options.shape

    def _sweep(self, name: str, system: Peer, loads: Sequence[str]) -> None:
        for load in loads:
            if load in _SWEPT:
                continue
            runs = [
                self._measure(name, system, load, -1, way, self._options.seconds * _SWEEP_SHARE)
                for way in _ways(load, self._options.processes)
            ]
            self._best[name, load] = best_of(runs)

    def _pair(self, pair: int, name: str, system: Peer, loads: Sequence[str]) -> None:
        for load in loads:
            best = self._best[name, _SWEPT.get(load, load)]
            rate = PACED_SHARE * self._slower() if load == PACED else 0.0
            if load == RESTORE:  # once over before its time counts: a new JVM is three times as slow
                self._run(name, system, load, pair, best.way, self._options.seconds)
            self._measure(name, system, load, pair, best.way, self._options.seconds, rate)

    def _slower(self) -> float:
        return min(self._best[name, SINGLES].items_per_s for name in (METAD, self._peer.name))

    def _measure(
        self, name: str, system: Peer, load: str, pair: int, way: Way, seconds: float, rate: float = 0.0
    ) -> Run:
        one = self._run(name, system, load, pair, way, seconds, rate)
        self.runs.append(one)
        self._progress(1)
        return one

    def _run(self, name: str, system: Peer, load: str, pair: int, way: Way, seconds: float, rate: float = 0.0) -> Run:
        cpu: list[int] = []
        result = run_fleet(
            self._plans(name, system.endpoints(), load, way, seconds, rate),
            on_begin=lambda: cpu.append(system.cpu_us()),
            on_end=lambda: cpu.append(system.cpu_us()),
            progress=lambda _: None,
        )
        one = Run(
            system=name,
            peer=self._peer.name,
            load=load,
            pair=pair,
            way=way,
            rate=rate,
            items=result.items,
            failed=result.failed,
            seconds=result.seconds,
            items_per_s=result.items_per_s(),
            items_per_server_cpu_s=output.ratio(result.items * 1e6, cpu[1] - cpu[0]),
            items_per_client_cpu_s=output.ratio(result.items, result.client_cpu_s),
            server_rss_mib=system.rss_bytes() / MIB,
            p50_ms=result.latencies.percentile_ms(50),
            p99_ms=result.latencies.percentile_ms(99),
            p999_ms=result.latencies.percentile_ms(99.9),
            max_ms=result.latencies.max_ms(),
            errors=result.errors,
        )
        if not result.items - result.failed:
            raise WorkerError(f"{name}, {load}: nothing went well: {result.errors}")
        return one

    def _plans(self, name: str, endpoints: str, load: str, way: Way, seconds: float, rate: float) -> list[Plan]:
        epoch = epoch_now()
        plans = []
        for share in range(way.processes):
            settings = Settings(
                verb=load,
                batch=way.batch,
                keys=self._options.sessions if load == RESTORE else self._options.keys,
                value_bytes=VALUE_BYTES,
                epoch=epoch,
                seed=_SEED,
                share=share,
                shares=way.processes,
            )
            plans.append(
                Plan(
                    endpoint=endpoints,
                    settings=settings,
                    # Small key spaces have fewer takeovers than that.
                    in_flight=max(1, min(way.in_flight // way.processes, calls_of(load, settings) // 2)),
                    requests=requests_of(load, settings),
                    seconds=None if load == RESTORE else seconds,
                    interval_ns=1e9 * way.batch * way.processes / rate if rate else 0,
                    open_source=functools.partial(open_peer, name),
                )
            )
        return plans


def _as(name: str, peer: Chosen) -> str:
    """The name under which a system's settings are reported: metad alone is another."""
    return METAD_ALONE if name == METAD and peer.kind.alone else name


def _ways(load: str, processes: int) -> list[Way]:
    if load == RESTORE:
        return [Way(batch, in_flight, processes) for batch, in_flight in RESTORE_WAYS]
    counts = SINGLES_IN_FLIGHT if LOADS[load].batch == 1 else BATCHES_IN_FLIGHT
    return [Way(LOADS[load].batch, in_flight, processes) for in_flight in counts]


def run(command: Compare) -> int:
    """Returns the exit code: 1 if items failed. The report says whether the bars are met. Raises UsageError."""
    pages = Pages(json=command.json, report=command.report, tables=command.tables).checked()
    if command.made is not None:
        return publish(command.made, pages)
    chosen = with_pids(parse(command.peers), command.pids)
    options = Options.of(command)
    with tempfile.TemporaryDirectory() as nowhere:
        for one in chosen:
            one.make(Path(nowhere))  # is everything installed, before anything runs?
    found: list[_Against] = []
    best: dict[tuple[str, str], Run] = {}
    with output.progress("runs", options.runs(chosen)) as progress:
        for one in chosen:
            found.append(_Against(one, options, {} if one.kind.alone else best, progress))
            found[-1].run()
    compared = _report(chosen, options, found)
    pages.write(compared)
    show(compared)
    return 1 if any(one.failed for against in found for one in against.runs) else 0


def _report(chosen: Sequence[Chosen], options: Options, found: Sequence[_Against]) -> dict[str, Any]:
    runs = [one for against in found for one in against.runs]
    return {
        **{one.name: msgspec.to_builtins(ratios(runs, one.name)) for one in chosen},
        "peers": [one.name for one in chosen],
        "bars": BARS,
        "systems": _systems(found),
        "pairs": options.pairs,
        "seconds": options.seconds,
        "keys": options.keys,
        "sessions": options.sessions,
        "processes": options.processes,
        "value_bytes": VALUE_BYTES,
        "batch": BATCH,
        "runs": output.rounded([msgspec.to_builtins(one) for one in runs]),
        "setting": output.machine(),
        "versions": output.versions(),
    }


def _systems(found: Sequence[_Against]) -> dict[str, dict[str, object]]:
    said: dict[str, dict[str, object]] = {}
    for against in found:
        for name, about in against.systems.items():
            kind = KINDS[METAD if name == METAD_ALONE else name]
            title = f"{kind.title}, one node" if name == METAD_ALONE else kind.title
            said[name] = {"title": title, "label": kind.label} | about
            said[name] |= {"session": kind.session, "takeover": kind.takeover, "batch": kind.batch}
    return said


def show(compared: dict[str, Any]) -> None:
    """Print the report as tables."""
    output.table(
        "every run: calls in flight; items per second, and per second of the nodes' and the clients' CPU",
        ["peer", "system", "load", "pair", "batch", "calls", "items/s", "/server CPU s", "/client CPU s", "p99 ms"],
        [
            [
                *(one["peer"], one["system"], one["load"], one["pair"] if one["pair"] >= 0 else "-"),
                *(one["way"]["batch"], one["way"]["in_flight"], one["items_per_s"]),
                *(one["items_per_server_cpu_s"], one["items_per_client_cpu_s"], one["p99_ms"]),
            ]
            for one in compared["runs"]
        ],
    )
    for name in compared["peers"]:
        rows = [
            [ratio, one["median"], one["low"], one["high"], one["bar"] or "", one["met"] if one["bar"] else ""]
            for ratio, one in compared[name].items()
        ]
        output.table(f"metad ÷ {name}: medians of the pairs", ["", "ratio", "lowest", "highest", "bar", "met"], rows)
