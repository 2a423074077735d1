"""The faults of the watch run: nodes are killed in turn, leaders and followers; groups are added and slots move."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Sequence

from metad_client import Client
from metad_client.errors import MetadError
from metad_wire import cluster as c

from ..errors import ServerError
from ..faults.health import Health
from ..faults.members import START_S, Member, Members

STRIKES = ("kill", "move", "compact")
"""``compact`` is no strike: the nodes keep a short log all the while, and some watches are slow, or away."""
_CALM_S = (0.5, 1.5)  # between faults
_DOWN_S = (0.2, 1.5)
_MOVES_WITHIN_S = 120.0
_POLL_S = 0.1
_GROUPS_MAX = 8  # data and offset groups: more of them only share the same cores
_TRIES = 20


class Strikes:
    """Strikes nodes; the next fault of a kind waits until all are well."""

    def __init__(
        self, members: Members, health: Health, client: Client, rng: random.Random, tell: Callable[[str], None]
    ) -> None:
        self._members = members
        self._health = health
        self._client = client
        self._rng = rng
        self._tell = tell
        self._kills = 0
        self.counts: dict[str, int] = {}
        self.slots = 0
        """How many slots have moved."""

    async def run(self, names: Sequence[str], seconds: float) -> None:
        """Strike until the time is over, in each of these ways once at least. Nodes are killed while slots move."""
        strikes: dict[str, Callable[[], Awaitable[str]]] = {"kill": self._kill, "move": self._move}
        until = time.monotonic() + seconds
        async with asyncio.TaskGroup() as tasks:
            for name in strikes.keys() & set(names):
                tasks.create_task(self._again(name, strikes[name], until))
            await asyncio.sleep(seconds)

    async def _again(self, name: str, strike: Callable[[], Awaitable[str]], until: float) -> None:
        while name not in self.counts or time.monotonic() < until:
            await asyncio.sleep(self._rng.uniform(*_CALM_S))
            what = await strike()
            await self._health.settle()
            self.counts[name] = self.counts.get(name, 0) + 1
            self._tell(f"{name}: {what}")

    async def _kill(self) -> str:
        """A node that leads a data group, and then one that follows in one, in turn."""
        self._kills += 1
        leads = self._kills % 2 == 1
        victim = await self._victim(leads)
        victim.kill()
        await asyncio.sleep(self._rng.uniform(*_DOWN_S))
        await asyncio.to_thread(victim.start, START_S)
        return f"{victim.name}, which {'led' if leads else 'followed in'} a group, was killed and restarted"

    async def _victim(self, leads: bool) -> Member:
        statuses = await self._health.statuses()
        wanted = "leader" if leads else "follower"
        names = {one.node_id for one in statuses for g in one.groups if g.role == wanted and g.name.startswith("data")}
        return self._rng.choice([member for member in self._members.all if member.name in names] or self._members.all)

    async def _move(self) -> str:
        """Add a group, as long as there are few, and move slots to it; or spread what is not spread evenly."""
        known = await self._map()
        kinds = [group.kind for group in known.groups if group.kind != "metadata"]
        what = "slots were spread evenly"
        if len(kinds) < _GROUPS_MAX:
            kind = "data" if kinds.count("data") <= 2 * kinds.count("offset") else "offset"
            await self._done(lambda: self._client.cluster.add_group(kind))
            what = f"a group of kind {kind} was added"
        await self._done(self._client.cluster.rebalance)
        moved = await self._moved(known)
        self.slots += moved
        return f"{what}, and {moved:,} slots moved"

    async def _done(self, call: Callable[[], Awaitable[object]]) -> None:
        """The cluster may just have no leader: ask again."""
        for attempt in range(_TRIES):
            try:
                await call()
                return
            except MetadError:
                if attempt == _TRIES - 1:
                    raise
            await asyncio.sleep(_POLL_S * 5)

    async def _moved(self, before: c.ClusterMap) -> int:
        """Wait until no slot moves any more; returns how many have."""
        until = time.monotonic() + _MOVES_WITHIN_S
        last: bytes | None = None
        same = 0
        while time.monotonic() < until:
            await asyncio.sleep(_POLL_S)
            try:
                known = await self._map()
            except MetadError:
                continue
            slots = b"".join(known.slots[kind] for kind in sorted(known.slots))
            same = same + 1 if not known.moves and slots == last else 0
            last = slots
            if same >= 5:
                return sum(
                    a != b
                    for kind, table in known.slots.items()
                    for a, b in zip(c.unpack_slots(before.slots[kind]), c.unpack_slots(table), strict=True)
                )
        raise ServerError(f"slots still moved after {_MOVES_WITHIN_S:g} s")

    async def _map(self) -> c.ClusterMap:
        reply = await self._client.cluster.map()
        if reply.map is None:
            raise ServerError("the cluster has no map")
        return reply.map
