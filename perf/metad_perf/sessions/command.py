"""The command: starts nodes, measures one mode, reports."""

from __future__ import annotations

import asyncio
import statistics
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any, Final

import msgspec

from metad_client import Client, Options

from ..errors import UsageError
from ..load.measure import epoch_now
from ..report import output
from ..running import run_async
from ..spawn import Shape
from ..target import open_client
from ..watch.nodes import Nodes, rss_bytes, running
from .create_close import left, run_rate
from .expiry_storm import storm
from .live import Pair, compared, hold

MODES: Final = ("create-close", "live", "expiry-storm")
_DEADLINE_S = 60.0


class Measurement(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of a run: ``rates`` and ``in_flight`` are of create-close, ``sessions`` of the other modes,
    ``shares`` of expiry-storm, ``pairs`` of live: windows on nodes with sessions and without. ``seconds``: of a rate,
    or of a window."""

    mode: str
    rates: Sequence[float] = (1_000.0, 2_500.0, 5_000.0)
    seconds: float = 10.0
    sessions: int = 1_000_000
    shares: Sequence[float] = (0.1, 0.5, 1.0)
    pairs: int = 11
    processes: int = 1
    in_flight: int = 512
    limit_s: float = 600.0

    def checked(self) -> Measurement:
        """This. Raises UsageError."""
        if self.mode not in MODES:
            raise UsageError(f"there is no mode {self.mode!r}, but {', '.join(MODES)}")
        if min(self.seconds, self.sessions, self.pairs, self.processes) <= 0 or self.in_flight < self.processes:
            raise UsageError("--seconds, --sessions, --pairs, --processes and --in-flight must be over 0")
        if not self.rates or min(self.rates) < 0:
            raise UsageError("--rates must not be negative")
        if not self.shares or min(self.shares) <= 0 or max(self.shares) > 1:
            raise UsageError("--shares must be over 0, and 1 at most")
        return self


def run(measurement: Measurement, *, shape: Shape, config: Path | None, json: Path | None) -> int:
    """Returns the exit code: 1 if a session ended that was to stay, or stayed, or a node was not well."""
    measurement, shape = measurement.checked(), shape.checked()
    problems: list[str] = []
    found = run_async(_run(measurement, shape, config, problems))
    made: dict[str, Any] = output.rounded(
        {"mode": measurement.mode}
        | found
        | {
            "problems": problems,
            "nodes": shape.nodes,
            "groups": shape.groups,
            "scheme": shape.scheme,
            "setting": output.machine(),
            "versions": output.versions(),
        }
    )
    output.write_json(json, made)
    output.table(f"sessions: {measurement.mode}", ["", "value"], [row for row in made.items() if _is_plain(row[1])])
    for row in made.get("rates", made.get("shares", [])):
        output.table("", ["", "value"], [pair for pair in row.items() if _is_plain(pair[1])])
    for line in problems:
        output.say(line)
    return 1 if problems or made["wrong"] else 0


def _is_plain(value: Any) -> bool:
    return not isinstance(value, dict | list)


async def _run(measurement: Measurement, shape: Shape, config: Path | None, problems: list[str]) -> dict[str, Any]:
    def start() -> AbstractAsyncContextManager[Nodes]:
        return running(shape.nodes, groups=shape.groups, config=config, scheme=shape.scheme, problems=problems)

    async with start() as cluster:
        options = Options(deadline_s=_DEADLINE_S, client_name="metad-perf")
        async with open_client(cluster.members.target, options) as client:
            if measurement.mode == "live":
                async with start() as bare:
                    found = await _live(measurement, cluster, bare, client)
            else:
                found = await _MEASURED[measurement.mode](measurement, cluster, client)
        return found | {"fsync": cluster.fsync}


async def _create_close(measurement: Measurement, cluster: Nodes, client: Client) -> dict[str, Any]:
    rows = []
    for rate in measurement.rates:
        with output.progress(f"{rate:g} a second", round(rate * measurement.seconds)) as progress:
            rows.append(
                await asyncio.to_thread(
                    run_rate,
                    cluster.members.target,
                    rate=rate,
                    seconds=measurement.seconds,
                    processes=measurement.processes,
                    in_flight=measurement.in_flight,
                    progress=progress,
                )
            )
    sustained = [row for row in rows if row["sustained"]]
    best = max(sustained, key=lambda row: row["rate"]) if sustained else None
    return {
        "sustained_per_s": best["done_per_s"] if best else 0.0,
        "p99_ms": best["p99_ms"] if best else None,
        "errors": sum(sum(row["errors_by_name"].values()) for row in rows),
        "wrong": await left(client),
        "rates": rows,
    }


async def _live(measurement: Measurement, cluster: Nodes, bare: Nodes, client: Client) -> dict[str, Any]:
    pair = Pair(cluster.members, bare.members, measurement.seconds)
    with output.progress("windows before", measurement.pairs) as progress:
        before = await pair.measure(measurement.pairs, progress)
    grown = -rss_bytes(cluster.members.all)
    with output.progress("hold", measurement.sessions) as progress:
        await hold(client, measurement.sessions, epoch_now(), lambda _: "live", progress)
    grown += rss_bytes(cluster.members.all)
    with output.progress("windows with sessions", measurement.pairs) as progress:
        after = await pair.measure(measurement.pairs, progress)
    connected = 0
    async for session in client.sessions.list():
        connected += session.connected
    return {
        "sessions": measurement.sessions,
        "connected": connected,
        "wrong": measurement.sessions - connected,
        **compared(before, after),
        "server_bytes_per_session": grown / measurement.sessions,
    }


async def _expiry_storm(measurement: Measurement, cluster: Nodes, client: Client) -> dict[str, Any]:
    rows = []
    for share in measurement.shares:
        with output.progress(f"hold, then {share:.0%} end", measurement.sessions) as progress:
            rows.append(
                await storm(
                    client,
                    cluster.members.target,
                    count=measurement.sessions,
                    share=share,
                    seconds=measurement.seconds,
                    limit_s=measurement.limit_s,
                    progress=progress,
                )
            )
    return {
        "wrong": sum(row["ended_wrongly"] + row["ended_early"] + abs(row["ended"] - row["ending"]) for row in rows),
        "foreground_p99_ratio": statistics.median(row["foreground_p99_ratio"] for row in rows),
        "paced_p99_ratio": statistics.median(row["paced_p99_ratio"] for row in rows),
        "shares": rows,
    }


_MEASURED: Final = {"create-close": _create_close, "expiry-storm": _expiry_storm}
