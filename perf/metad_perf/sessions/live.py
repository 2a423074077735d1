"""Sessions that are held: what of the other work is lost while so many are connected.

A connected session needs no word from its broker, so it should cost memory and disk, and no time. Windows of other
work are measured on nodes without sessions, then with all of them, on the same nodes.
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable

from metad_client import Client, SessionProperties, SessionTakeoverItem

from ..load.draw import Values
from ..load.measure import Load
from ..load.workload import TENANT
from ..report import output
from ..watch.windows import window

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


async def foreground(target: str, windows: int, seconds: float, progress: Callable[[int], None]) -> dict[str, float]:
    """Medians of some windows."""
    rates: list[float] = []
    p99_ms: list[float] = []
    for _ in range(windows):
        result = await window(target, FOREGROUND, seconds)
        rates.append(result.items_per_s())
        p99_ms.append(result.latencies.percentile_ms(99))
        progress(1)
    return {"items_per_s": statistics.median(rates), "p99_ms": statistics.median(p99_ms)}


def compared(before: dict[str, float], after: dict[str, float]) -> dict[str, float]:
    """What the foreground has lost."""
    return {
        "foreground_loss": 1 - output.ratio(after["items_per_s"], before["items_per_s"]),
        "foreground_p99_ratio": output.ratio(after["p99_ms"], before["p99_ms"]),
    }
