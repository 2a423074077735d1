"""Sessions that all end at the same time: how fast they are cleaned up, and what other work feels of it.

All sessions are disconnected; a share of them has an expiry interval that ends at one moment, and the others stay. A
watch counts the sessions that end, so each is seen to end, none before its time, and none of those that stay.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

from metad_client import Client, SessionDisconnectItem, Watched
from metad_wire.watch import ChangeKind

from ..load.measure import epoch_now
from ..load.workload import TENANT
from ..report import output
from ..watch.windows import window
from .live import BATCH, BROKERS, FOREGROUND, foreground, hold

_STAYS_S = 86_400
_LEAD_S = 2.0  # between the last disconnection and the moment
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
        async with client.watch([Watched("session", tenant=TENANT, rows=("owner",))], keys_only=True) as watch:
            await watch.opened()
            opened.set()
            async for batch in watch:
                for event in batch.events:
                    if event.kind in (ChangeKind.EXPIRED, ChangeKind.DELETED):
                        self.ended += 1
                        self.first_ms = min(self.first_ms or event.time_ms, event.time_ms)
                        self.wrong += not event.key.client_id.startswith(self._prefix)


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
    before = await foreground(target, 3, seconds, lambda _: None)
    epoch = epoch_now()
    await hold(client, count, epoch, lambda at: "ends" if at < ending else "stays", progress)
    curve = Curve("ends-")
    opened = asyncio.Event()
    following = asyncio.create_task(curve.follow(client, opened))
    try:
        await opened.wait()
        estimate_s = count / 50_000 + _LEAD_S
        moment = time.time() + estimate_s
        await _disconnect(client, count, epoch, ending, moment)
        late_s = max(0.0, time.time() - moment)
        await asyncio.sleep(max(0.0, moment - time.time()))
        measuring = asyncio.create_task(window(target, FOREGROUND, 2 * seconds))
        begin = time.time()
        while curve.ended < ending and time.time() - begin < limit_s:
            await asyncio.sleep(_LOOK_S)
            curve.points.append((time.time() - moment, curve.ended))
        cleaned_s = time.time() - moment
        during = await measuring
    finally:
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)
    left = 0
    async for session in client.sessions.list(TENANT):
        left += session.client_id.startswith("stays-")
    return {
        "share": share,
        "sessions": count,
        "ending": ending,
        "ended": curve.ended,
        "ended_wrongly": curve.wrong + (count - ending - left),
        "ended_early": bool(curve.first_ms and curve.first_ms < (moment - 1) * 1000),
        "cleaned_s": cleaned_s,
        "ended_per_s": output.ratio(curve.ended, cleaned_s),
        "disconnect_late_s": late_s,
        "curve": curve.points,
        "foreground_p99_ms_before": before["p99_ms"],
        "foreground_p99_ms_during": during.latencies.percentile_ms(99),
        "foreground_p99_ratio": output.ratio(during.latencies.percentile_ms(99), before["p99_ms"]),
        "foreground_rate_ratio": output.ratio(during.items_per_s(), before["items_per_s"]),
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
