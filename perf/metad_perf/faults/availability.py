"""Measures how long a group accepts no writes, by a write to every group every few milliseconds, answered or not."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable

import msgspec

from metad_client import Client
from metad_client.errors import MetadError
from metad_wire import messages as m
from metad_wire import methods
from metad_wire.cluster import ClusterMap, GroupId, unpack_slots
from metad_wire.routing import ROUTES, SLOT_MASK

PROBE_S = 0.02
_WAITING_MAX = 200  # probes of one group without an answer
_DEADLINE_S = 10.0
_TENANT = "probe"


class Window(msgspec.Struct, frozen=True, kw_only=True):
    """The duration of a fault, from its begin until all nodes were well again; seconds on the monotonic clock."""

    fault: str
    begin_s: float
    end_s: float


class Availability:
    """Probes every group and records when each last acknowledged a write."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._yes: dict[str, list[float]] = {}
        self.acknowledged = 0
        self.failed = 0
        self.longest_s = 0.0
        """Latencies of the acknowledged writes."""

    async def run(self, cluster: ClusterMap, writing: Callable[[], bool]) -> None:
        """Run until ``writing`` is false; returns when nothing is in flight."""
        async with asyncio.TaskGroup() as tasks:
            for group, name in names_in(cluster).items():
                tasks.create_task(self._probe(group, name, writing))

    async def _probe(self, group: str, name: str, writing: Callable[[], bool]) -> None:
        yes = self._yes[group] = []
        waiting: set[asyncio.Task[None]] = set()

        async def one(number: int) -> None:
            begin = time.monotonic()
            try:
                if group.startswith("offset"):
                    await self._client.offsets.commit(_TENANT, name, "topic", 0, number, deadline_s=_DEADLINE_S)
                else:
                    await self._client.kv.put(name, "probe", b"%d" % number, deadline_s=_DEADLINE_S)
            except MetadError:
                self.failed += 1
                return
            self.acknowledged += 1
            now = time.monotonic()
            self.longest_s = max(self.longest_s, now - begin)
            yes.append(now)

        number = 0
        while writing():
            if len(waiting) < _WAITING_MAX:
                number += 1
                task = asyncio.create_task(one(number))
                waiting.add(task)
                task.add_done_callback(waiting.discard)
            await asyncio.sleep(PROBE_S)
        if waiting:
            await asyncio.wait(waiting)

    def longest_ms(self, windows: Iterable[Window]) -> dict[str, float]:
        """By fault, the longest time in which some group acknowledged nothing during one of its windows."""
        listed = list(windows)
        longest = {one.fault: 0.0 for one in listed}
        for times in self._yes.values():
            for window in listed:
                longest[window.fault] = max(longest[window.fault], gap_ms(times, window))
        return longest


def gap_ms(times: list[float], window: Window) -> float:
    """The longest gap between two of these ascending times that overlaps a window, without the part before the
    window."""
    longest, last = 0.0, window.begin_s
    for at in times:
        if at <= window.begin_s:
            continue
        longest = max(longest, at - last)
        last = at
        if at > window.end_s:
            return 1e3 * longest
    return 1e3 * max(longest, window.end_s - last)


def names_in(cluster: ClusterMap) -> dict[str, str]:
    """For each group with slots a name that belongs to it, for a key-value namespace or a consumer group of the
    probes."""
    found: dict[str, str] = {}
    for kind, method in (("data", methods.KV_PUT), ("offset", methods.OFFSET_COMMIT)):
        slots = unpack_slots(cluster.slots[kind])
        wanted = {GroupId(kind, ordinal).name for ordinal in set(slots)}
        number = 0
        while wanted - found.keys():
            name = f"probe-{number}"
            number += 1
            item = m.KvKey(name, "") if kind == "data" else m.OffsetKey(_TENANT, name, "topic", 0)
            (crc,) = ROUTES[method.code].crcs([item])
            found.setdefault(GroupId(kind, slots[crc & SLOT_MASK]).name, name)
    return found
