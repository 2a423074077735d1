"""Sessions that are held: what of the other work is lost while so many are connected.

A connected session needs no word from its broker, so it should cost memory and disk, and no time. Other work is
measured in windows on the nodes that hold them and on others that hold none, in turn, as pairs: what the machine and
its disk do changes from minute to minute by more than sessions cost. The same is done before there are any, because two
sets of nodes are never equal.
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable
from typing import Any

from metad_client import Client, SessionProperties, SessionTakeoverItem

from ..faults.members import Members
from ..load.draw import Values
from ..load.fleet import Result
from ..load.measure import Load
from ..load.workload import TENANT
from ..report import output
from ..watch.nodes import quiet
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
