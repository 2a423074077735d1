"""Sessions that all end at the same time: how fast they are cleaned up, and what other work feels of it.

All sessions are disconnected; a share of them has an expiry interval that ends at one moment, and the others stay. A
watch counts the sessions that end, so each is seen to end, none before its time, and none of those that stay.

Other work is measured in windows on the same nodes with the same sessions, before the moment and behind it: puts as
fast as some clients send them, which leave the nodes nothing, and single puts at a low rate, whose time is their own.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from metad_client import Client, SessionDeleteItem, SessionDisconnectItem, Watched
from metad_wire.watch import ChangeKind

from ..load.fleet import Result
from ..load.measure import Load, epoch_now
from ..load.workload import TENANT
from ..report import output
from ..watch.windows import window
from .live import BATCH, BROKERS, FOREGROUND, hold

_PACED: Final = Load(verb="kv.put", batch=1, in_flight=64, rate=300.0, value_bytes=200, items=1_000_000, keys=100_000)
_WORKS: Final = {"foreground": FOREGROUND, "paced": _PACED}
_STAYS_S = 86_400
_LEAD_S = 2.0  # between the last disconnection and the moment
_DISCONNECTED_PER_S = 20_000  # at least, to choose the moment
_WINDOWS = 3  # of each work, before the moment; as many behind it, or fewer if the sessions have ended by then
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
    limit_s: float,
    progress: Callable[[int], None],
) -> dict[str, Any]:
    """Hold ``count`` sessions, let ``share`` of them end at once, and see them go."""
    ending = round(count * share)
    epoch = epoch_now()
    await hold(client, count, epoch, lambda at: "ends" if at < ending else "stays", progress)
    curve = Curve("ends-")
    before, during = _Works(target, seconds), _Works(target, seconds)
    opened = asyncio.Event()
    following = asyncio.create_task(curve.follow(client, opened))
    try:
        await opened.wait()
        measured_s = _WINDOWS * len(_WORKS) * (seconds + _WINDOW_S)
        moment = time.time() + count / _DISCONNECTED_PER_S + measured_s + _LEAD_S
        await _disconnect(client, count, epoch, ending, moment)
        for _ in range(_WINDOWS):
            await before.measure(curve, ending)
        late_s = max(0.0, time.time() - moment)
        await asyncio.sleep(max(0.0, moment - time.time()))
        curve.points.append((time.time() - moment, curve.ended))
        measuring = asyncio.create_task(_measure(during, curve, ending))
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


async def _measure(works: _Works, curve: Curve, ending: int) -> tuple[float, int]:
    """Measure while sessions end: (for how long, how many have ended)."""
    begin, ended = time.time(), curve.ended
    for _ in range(_WINDOWS):
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
