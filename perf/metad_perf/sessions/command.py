"""``metad-perf sessions``: starts nodes, measures one mode, reports.

One mode has sessions that begin and end one by one: how many a second the nodes sustain, and how long a pair of calls
takes.

Each client connects with a clean start and an expiry interval of 0, and disconnects: two single calls of the SDK, one
after the other. The load is paced: a client is due at its time whatever happened to the others, and the clock of its
pair starts then, so a stall shows in every client that it delayed.

In the other mode sessions all end at the same time: how fast they are cleaned up, and what other work feels of it.

All sessions are disconnected; a share of them has an expiry interval that ends at one moment, and the others stay. A
watch counts the sessions that end, so each is seen to end, none before its time, and none of those that stay.

Other work is measured in windows on the same nodes with the same sessions, before the moment and behind it: puts as
fast as some clients send them, which leave the nodes nothing, and single puts at a low rate, whose time is their own.

In the third mode sessions are held: what of the other work is lost while so many are connected.

A connected session needs no word from its broker, so it should cost memory and disk, and no time. Other work is
measured in windows on the nodes that hold them and on others that hold none, in turn, as pairs: what the machine and
its disk do changes from minute to minute by more than sessions cost. The same is done before there are any, because two
sets of nodes are never equal.
"""

from __future__ import annotations

import asyncio
import random
import statistics
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, Final, NamedTuple

from metad_client import (
    Client,
    Options,
    SessionDeleteItem,
    SessionDisconnectItem,
    SessionProperties,
    SessionTakeoverItem,
    Watched,
)
from metad_wire.watch import ChangeKind

from ..commands import Sessions
from ..experiment.nodes import quiet, rss_bytes, running
from ..experiment.stage import Stage, conduct
from ..experiment.windows import window
from ..faults.members import Members
from ..load.draw import Values
from ..load.fleet import Result, run_fleet
from ..load.loop import Source
from ..load.measure import Load, epoch_now, plans
from ..load.worker import REQUEST_DEADLINE_S, Plan
from ..load.workload import DIFFERENT, TENANT
from ..report import output
from ..report.conclusion import conclude
from ..target import open_client

FOREGROUND = Load(verb="kv.put", batch=10, in_flight=16, value_bytes=200, items=1_000_000, keys=100_000)
"""The other work: puts of ten items, as many as 16 clients at a time get done."""
BATCH = 1_000
BROKERS = 50
_EXPIRY_S = 3_600
_PAYLOAD_BYTES = 64


async def hold(
    client: Client, count: int, epoch: int, prefix_of: Callable[[int], str], progress: Callable[[int], None]
) -> None:
    """Have so many sessions connected, at fifty brokers, named by prefix and number."""
    values = Values(random.Random(1), _PAYLOAD_BYTES)
    for begin in range(0, count, BATCH):
        names = [f"{prefix_of(number)}-{number}" for number in range(begin, min(count, begin + BATCH))]
        items = [
            SessionTakeoverItem(TENANT, name, True, SessionProperties(_EXPIRY_S, value))
            for name, value in zip(names, values.pick(len(names)), strict=True)
        ]
        taken = await client.sessions.takeover_many(f"live-{begin // BATCH % BROKERS}", epoch, items)
        taken.raise_for_error()
        progress(len(items))


class Pair:
    """Two sets of nodes, measured in turn."""

    def __init__(self, held: Members, bare: Members, seconds: float) -> None:
        self._members = held, bare
        self._seconds = seconds

    async def measure(self, pairs: int, progress: Callable[[int], None]) -> list[tuple[Result, Result]]:
        """Windows of both, once what the nodes have been given is put away, as compactions of sessions that have just
        come are no cost of holding them. The first pair does not count."""
        found = []
        for number in range(pairs + 1):
            for members in self._members:
                await quiet(members.all)
            results = {}
            for members in self._members if number % 2 else reversed(self._members):
                results[members] = await window(members.target, FOREGROUND, self._seconds)
            if number:
                found.append((results[self._members[0]], results[self._members[1]]))
                progress(1)
        return found


def compared(before: list[tuple[Result, Result]], after: list[tuple[Result, Result]]) -> dict[str, Any]:
    """What the foreground has lost: medians of the pairs, nodes with sessions by nodes without, and that by the same
    before there were sessions."""
    rates = [
        [output.ratio(held.items_per_s(), bare.items_per_s()) for held, bare in pairs] for pairs in (before, after)
    ]
    p99 = [[output.ratio(_p99_ms(held), _p99_ms(bare)) for held, bare in pairs] for pairs in (before, after)]
    return {
        "foreground_loss": 1 - output.ratio(*map(statistics.median, reversed(rates))),
        "foreground_p99_ratio": output.ratio(*map(statistics.median, reversed(p99))),
        "foreground_items_per_s_before": statistics.median(held.items_per_s() for held, _ in before),
        "foreground_items_per_s_with": statistics.median(held.items_per_s() for held, _ in after),
        "pairs_before": rates[0],
        "pairs_with": rates[1],
    }


def _p99_ms(result: Result) -> float:
    return result.latencies.percentile_ms(99)


_PACED: Final = Load(verb="kv.put", batch=1, in_flight=64, rate=300.0, value_bytes=200, items=1_000_000, keys=100_000)
_WORKS: Final = {"foreground": FOREGROUND, "paced": _PACED}
_STAYS_S = 86_400
_LEAD_S = 2.0  # between the last disconnection and the moment
_DISCONNECTED_PER_S = 20_000  # at least, to choose the moment
_WINDOW_S = 3.0  # at most, until a window begins
_LOOK_S = 0.25


class Curve:
    """The sessions that have ended so far, by a watch."""

    def __init__(self, prefix: str) -> None:
        self.ended = 0
        self.wrong = 0
        """That were to stay."""
        self.first_ms = 0
        """The log's time of the first end."""
        self.points: list[tuple[float, int]] = []
        self._prefix = prefix

    async def follow(self, client: Client, opened: asyncio.Event) -> None:
        """Count until cancelled."""
        async with client.watch(Watched("session", tenant=TENANT, rows=("owner",)), keys_only=True) as watch:
            await watch.opened()
            opened.set()
            async for batch in watch:
                for event in batch.events:
                    if event.kind in (ChangeKind.EXPIRED, ChangeKind.DELETED):
                        self.ended += 1
                        self.first_ms = min(self.first_ms or event.time_ms, event.time_ms)
                        self.wrong += not event.key.client_id.startswith(self._prefix)


class _Windows(NamedTuple):
    """What was measured of one kind of work."""

    p99_ms: list[float]
    rate: list[float]

    def add(self, result: Result) -> None:
        self.p99_ms.append(result.latencies.percentile_ms(99))
        self.rate.append(result.items_per_s())


class _Works:
    """Windows of all kinds of work, in turn."""

    def __init__(self, target: str, seconds: float) -> None:
        self._target = target
        self._seconds = seconds
        self.found = {name: _Windows([], []) for name in _WORKS}

    async def measure(self, curve: Curve, ending: int) -> None:
        """A window of each, as long as there are sessions to end. A window in which the last one ended counts only if
        it is the first of its kind."""
        for name, load in _WORKS.items():
            windows = self.found[name]
            if curve.ended < ending or not windows.rate:
                result = await window(self._target, load, self._seconds)
                if curve.ended < ending or not windows.rate:
                    windows.add(result)


async def storm(
    client: Client,
    target: str,
    *,
    count: int,
    share: float,
    seconds: float,
    windows: int,
    limit_s: float,
    progress: Callable[[int], None],
) -> dict[str, Any]:
    """Hold ``count`` sessions, let ``share`` of them end at once, and see them go. ``windows``: of each work, before
    the moment; as many behind it, or fewer if the sessions have ended by then."""
    ending = round(count * share)
    epoch = epoch_now()
    await hold(client, count, epoch, lambda at: "ends" if at < ending else "stays", progress)
    curve = Curve("ends-")
    before, during = _Works(target, seconds), _Works(target, seconds)
    opened = asyncio.Event()
    following = asyncio.create_task(curve.follow(client, opened))
    try:
        await opened.wait()
        measured_s = windows * len(_WORKS) * (seconds + _WINDOW_S)
        moment = time.time() + count / _DISCONNECTED_PER_S + measured_s + _LEAD_S
        await _disconnect(client, count, epoch, ending, moment)
        for _ in range(windows):
            await before.measure(curve, ending)
        late_s = max(0.0, time.time() - moment)
        await asyncio.sleep(max(0.0, moment - time.time()))
        curve.points.append((time.time() - moment, curve.ended))
        measuring = asyncio.create_task(_measure(during, windows, curve, ending))
        while curve.ended < ending and time.time() - moment < limit_s:
            await asyncio.sleep(_LOOK_S)
            curve.points.append((time.time() - moment, curve.ended))
        cleaned_s = time.time() - moment
        busy_s, busy_ended = await measuring
    finally:
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)
    left = 0
    async for session in client.sessions.list(TENANT):
        left += session.client_id.startswith("stays-")
    await _forget(client, ending, count)
    return {
        "share": share,
        "sessions": count,
        "ending": ending,
        "ended": curve.ended,
        "ended_wrongly": curve.wrong + (count - ending - left),
        "ended_early": bool(curve.first_ms and curve.first_ms < (moment - 1) * 1000),
        "cleaned_s": cleaned_s,
        "ended_per_s": output.ratio(curve.ended, cleaned_s),
        "ended_per_s_beside_work": output.ratio(busy_ended, busy_s),
        "moment_late_s": late_s,
        "curve": curve.points,
        **{key: value for name in _WORKS for key, value in _compared(name, before, during).items()},
    }


async def _measure(works: _Works, windows: int, curve: Curve, ending: int) -> tuple[float, int]:
    """Measure while sessions end: (for how long, how many have ended)."""
    begin, ended = time.time(), curve.ended
    for _ in range(windows):
        await works.measure(curve, ending)
    return time.time() - begin, curve.ended - ended


def _compared(name: str, before: _Works, during: _Works) -> dict[str, float]:
    """Medians of the windows of one kind of work."""
    p99_ms = [statistics.median(works.found[name].p99_ms) for works in (before, during)]
    rates = [statistics.median(works.found[name].rate) for works in (before, during)]
    return {
        f"{name}_p99_ms_before": p99_ms[0],
        f"{name}_p99_ms_during": p99_ms[1],
        f"{name}_p99_ratio": output.ratio(p99_ms[1], p99_ms[0]),
        f"{name}_rate_ratio": output.ratio(rates[1], rates[0]),
        f"{name}_windows": len(during.found[name].rate),
    }


async def _disconnect(client: Client, count: int, epoch: int, ending: int, moment: float) -> None:
    """Disconnect all sessions. Those that end get the interval that ends at the moment, in whole seconds."""
    for begin in range(0, count, BATCH):
        after_s = max(1, round(moment - time.time()))
        items = [
            SessionDisconnectItem(TENANT, f"ends-{at}", after_s)
            if at < ending
            else SessionDisconnectItem(TENANT, f"stays-{at}", _STAYS_S)
            for at in range(begin, min(count, begin + BATCH))
        ]
        done = await client.sessions.disconnect_many(f"live-{begin // BATCH % BROKERS}", epoch, items)
        done.raise_for_error()


async def _forget(client: Client, begin: int, end: int) -> None:
    """Delete the sessions that were to stay: the next storm counts its own."""
    for at in range(begin, end, BATCH):
        await client.sessions.delete_many(
            [SessionDeleteItem(TENANT, f"stays-{number}") for number in range(at, min(end, at + BATCH))]
        )


_BATCH_ITEMS = 1_000  # that the SDK joins into a request at most
SUSTAINED = 0.98
"""A rate is sustained if so much of it was done, without an error."""


class CreateClose:
    """Clients that nobody has seen before, one at a time."""

    def __init__(self, client: Client, plan: Plan) -> None:
        self._client = client
        self._broker = f"broker-{plan.settings.share}"
        self._epoch = plan.settings.epoch
        self._prefix = f"once-{plan.settings.epoch}-{plan.settings.share}-"
        self._count = 0

    def batch(self) -> str:
        """The next client."""
        self._count += 1
        return f"{self._prefix}{self._count}"

    async def send(self, batch: str) -> Sequence[str]:
        """It comes and goes."""
        sessions = self._client.sessions
        taken = await sessions.takeover(self._broker, self._epoch, TENANT, batch, clean_start=True)
        await sessions.disconnect(self._broker, self._epoch, TENANT, batch)
        return () if taken.previous is None else (DIFFERENT,)


@asynccontextmanager
async def open_create_close(plan: Plan) -> AsyncIterator[Source]:
    """The role of a load-generating process."""
    options = Options(
        deadline_s=REQUEST_DEADLINE_S,
        batch_items=_BATCH_ITEMS,
        waiting_max=max(10_000, 4 * plan.in_flight),
        client_name="metad-perf",
    )
    async with open_client(plan.endpoint, options) as client:
        yield CreateClose(client, plan)


async def left(client: Client) -> int:
    """How many sessions there are still: none, or they were not ended."""
    count = 0
    async for _ in client.sessions.list(tenant=TENANT):
        count += 1
    return count


def run_rate(
    target: str, *, rate: float, seconds: float, processes: int, in_flight: int, progress: Callable[[int], None]
) -> dict[str, Any]:
    """One rate, in pairs a second; 0: as fast as ``in_flight`` clients at a time go."""
    load = Load(
        verb="session.takeover", batch=1, in_flight=in_flight, rate=rate, processes=processes, items=1_000_000
    ).checked()
    result: Result = run_fleet(
        plans(target, load, epoch_now(), seconds=seconds, open_source=open_create_close),
        on_begin=lambda: None,
        on_end=lambda: None,
        progress=progress,
    )
    done = result.items_per_s()
    errors = dict(result.errors)
    return {
        "rate": rate,
        "done_per_s": done,
        "sustained": bool(rate) and done >= SUSTAINED * rate and not errors,
        "p50_ms": result.latencies.percentile_ms(50),
        "p99_ms": result.latencies.percentile_ms(99),
        "p999_ms": result.latencies.percentile_ms(99.9),
        "max_ms": result.latencies.max_ms(),
        "pairs": result.requests,
        "client_cpu_us_per_pair": output.ratio(result.client_cpu_s * 1e6, result.requests),
        "errors_by_name": errors,
    }


def run(options: Sessions) -> int:
    """Returns the exit code: 1 if a session ended that was to stay, or stayed, or a node was not well."""
    made = {"mode": options.mode} | conduct(options, partial(_play, options))
    code = conclude(f"sessions: {options.mode}", made, options, "wrong")
    for row in made["shares" if options.mode == "expiry-storm" else "rates"] if options.mode != "live" else ():
        output.table("", ["", "value"], [pair for pair in row.items() if not isinstance(pair[1], dict | list)])
    return code


async def _play(options: Sessions, stage: Stage) -> dict[str, Any]:
    return await _MEASURED[options.mode](options, stage, await stage.client())


async def _create_close(options: Sessions, stage: Stage, client: Client) -> dict[str, Any]:
    rows = []
    for rate in options.rates:
        with output.progress(f"{rate:g} a second", round(rate * options.seconds)) as progress:
            rows.append(
                await asyncio.to_thread(
                    run_rate,
                    stage.members.target,
                    rate=rate,
                    seconds=options.seconds,
                    processes=options.processes,
                    in_flight=options.in_flight,
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


async def _live(options: Sessions, stage: Stage, client: Client) -> dict[str, Any]:
    others = running(options.shape, config=options.server_config, problems=stage.problems)
    bare = await stage.stack.enter_async_context(others)
    pair = Pair(stage.members, bare.members, options.seconds)
    with output.progress("windows before", options.pairs) as progress:
        before = await pair.measure(options.pairs, progress)
    grown = -rss_bytes(stage.members.all)
    with output.progress("hold", options.sessions) as progress:
        await hold(client, options.sessions, epoch_now(), lambda _: "live", progress)
    grown += rss_bytes(stage.members.all)
    with output.progress("windows with sessions", options.pairs) as progress:
        after = await pair.measure(options.pairs, progress)
    connected = 0
    async for session in client.sessions.list():
        connected += session.connected
    return {
        "sessions": options.sessions,
        "connected": connected,
        "wrong": options.sessions - connected,
        **compared(before, after),
        "server_bytes_per_session": grown / options.sessions,
    }


async def _expiry_storm(options: Sessions, stage: Stage, client: Client) -> dict[str, Any]:
    rows = []
    for share in options.shares:
        with output.progress(f"hold, then {share:.0%} end", options.sessions) as progress:
            rows.append(
                await storm(
                    client,
                    stage.members.target,
                    count=options.sessions,
                    share=share,
                    seconds=options.seconds,
                    windows=options.windows,
                    limit_s=_LIMIT_S,
                    progress=progress,
                )
            )
    return {
        "wrong": sum(row["ended_wrongly"] + row["ended_early"] + abs(row["ended"] - row["ending"]) for row in rows),
        "foreground_p99_ratio": statistics.median(row["foreground_p99_ratio"] for row in rows),
        "paced_p99_ratio": statistics.median(row["paced_p99_ratio"] for row in rows),
        "shares": rows,
    }


_MEASURED: Final = {"create-close": _create_close, "live": _live, "expiry-storm": _expiry_storm}
_LIMIT_S: Final = 600.0
