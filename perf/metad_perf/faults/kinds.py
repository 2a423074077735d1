"""The faults of the fault run: one at a time, on one node, ended again, so that the other nodes can continue.

Each fault acts, lasts a while, ends, and returns a line about what it observed, or None.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Iterable

from . import disks, netns
from .members import START_S, Member, Members

_LASTS_S = (1.0, 4.0)
_PAUSE_S = (0.3, 4.0)
_HANGS_S = (1.0, 6.0)
_DOWN_S = (0.2, 2.0)
_KILL_AGAIN_SHARE = 0.25
_FULL_MAX_S = 15.0
_FILL_AGAIN_S = 0.05
_SLOW_WRITES_PER_S = 15


class Faults:
    """The faults that strike these nodes."""

    def __init__(self, members: Members, rng: random.Random) -> None:
        self._members = members
        self._rng = rng
        self.expected_down: set[str] = set()
        """Nodes that have ended, or will end, because of a fault."""
        self.unclear: list[str] = []
        """Nodes that ended on a full disk, and what they said: they should wait for room."""

    def named(self, fault: str) -> Callable[[Member], Awaitable[str]]:
        """The fault of a name; it returns what was done."""
        found: Callable[[Member], Awaitable[str]] = getattr(self, f"_{fault.replace('-', '_')}")
        return found

    async def _kill(self, victim: Member) -> str:
        self.expected_down.add(victim.name)
        victim.kill()
        await asyncio.sleep(self._rng.uniform(*_DOWN_S))
        again = self._rng.random() < _KILL_AGAIN_SHARE
        if again:
            victim.launch()
            await asyncio.sleep(self._rng.uniform(0.0, 0.6))
            victim.kill()
        await self._restart(victim)
        return "killed twice" if again else "killed"

    async def _term(self, victim: Member) -> str:
        self.expected_down.add(victim.name)
        drained_s = await asyncio.to_thread(victim.stop)
        await asyncio.sleep(self._rng.uniform(*_DOWN_S))
        await self._restart(victim)
        return f"told to end, which took {drained_s:.2f} s"

    async def _pause(self, victim: Member) -> str:
        lasts = self._rng.uniform(*_PAUSE_S)
        victim.pause()
        try:
            await asyncio.sleep(lasts)
        finally:
            victim.resume()
        return f"paused for {lasts:.1f} s"

    async def _partition(self, victim: Member) -> str:
        others = [n for n, one in enumerate(self._members.all) if one is not victim]
        if self._rng.random() < 0.3:
            others = [self._rng.choice(others)]
        me = self._members.all.index(victim)
        return await self._cut([(me, other) for other in others] + [(other, me) for other in others])

    async def _oneway(self, victim: Member) -> str:
        others = [n for n, one in enumerate(self._members.all) if one is not victim]
        if self._rng.random() < 0.3:
            others = [self._rng.choice(others)]
        me = self._members.all.index(victim)
        deaf = self._rng.random() < 0.5
        return await self._cut([(other, me) if deaf else (me, other) for other in others])

    async def _cut(self, ways: list[tuple[int, int]]) -> str:
        network = self._members.network
        assert network is not None
        lasts = self._rng.uniform(*_LASTS_S)
        try:
            for source, target in ways:
                await asyncio.to_thread(network.cut, source, target)
            await asyncio.sleep(lasts)
        finally:
            await asyncio.to_thread(network.heal)
        names = [one.name for one in self._members.all]
        return f"cut {', '.join(f'{names[a]}→{names[b]}' for a, b in ways)} for {lasts:.1f} s"

    async def _diskfull(self, victim: Member) -> str:
        disk = victim.disk
        assert disk is not None
        self.expected_down.add(victim.name)
        begin = time.monotonic()
        code: int | None = None
        try:
            while code is None and time.monotonic() - begin < _FULL_MAX_S:
                await asyncio.to_thread(disk.fill)
                await asyncio.sleep(_FILL_AGAIN_S)
                code = victim.ended()
            ended_s = time.monotonic() - begin
            if code is None:
                said = f"went on with a full disk for {ended_s:.1f} s"
            else:
                said = f"ended with {code} {ended_s:.1f} s after the disk was full"
                self.unclear.append(f"{victim.name} {said}: {victim.words()}")
            await asyncio.sleep(self._rng.uniform(*_DOWN_S))
        finally:
            await asyncio.to_thread(disk.free)
        if code is not None:
            await self._restart(victim)
        else:
            self.expected_down.discard(victim.name)
        return said

    async def _slowdisk(self, victim: Member) -> str:
        disk = victim.disk
        assert disk is not None
        lasts = self._rng.uniform(*_LASTS_S)
        pid = victim.pid
        await asyncio.to_thread(disk.slow, pid, _SLOW_WRITES_PER_S)
        try:
            await asyncio.sleep(lasts)
        finally:
            await asyncio.to_thread(disk.fast, pid)
        return f"{_SLOW_WRITES_PER_S} writes/s for {lasts:.1f} s"

    async def _disk_hang(self, victim: Member) -> str:
        disk = victim.disk
        assert disk is not None
        lasts = self._rng.uniform(*_HANGS_S)
        try:
            await asyncio.to_thread(disk.hang)
            await asyncio.sleep(lasts)
        finally:
            await asyncio.to_thread(disk.unhang)
        return f"no fsync returned for {lasts:.1f} s"

    async def _restart(self, victim: Member) -> None:
        await asyncio.to_thread(victim.start, START_S)
        self.expected_down.discard(victim.name)


def possible(names: Iterable[str]) -> tuple[list[str], dict[str, str]]:
    """The faults that this machine can do, and the reasons why it cannot do the others."""
    lacking = {
        "partition": netns.missing(),
        "oneway": netns.missing(),
        "diskfull": disks.missing(),
        "slowdisk": disks.throttle_missing(),
        "disk-hang": disks.hang_missing(),
    }
    skipped = {name: lacking[name] for name in names if lacking.get(name)}
    return [name for name in names if name not in skipped], skipped
