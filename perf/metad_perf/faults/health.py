"""Whether all nodes of a run are well: each answers, every group is led, and every replica has what was committed."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

from metad_client import Client
from metad_wire.messages import StatusReply

STATUS_S = 2.0
_SETTLE_S = 60.0
_POLL_S = 0.1


class Health:
    """Asks the nodes of these names, through ``client``. ``problems`` gets a line for each wait that was in vain."""

    def __init__(self, client: Client, names: Sequence[str], problems: list[str]) -> None:
        self._client = client
        self._names = set(names)
        self._problems = problems

    async def statuses(self) -> list[StatusReply]:
        """The statuses of these nodes, without those that come and go."""
        found = await self._client.cluster.statuses(deadline_s=STATUS_S)
        return [one for one in found.values() if isinstance(one, StatusReply) and one.node_id in self._names]

    async def settle(self) -> list[StatusReply]:
        """Wait until every node answers, every group is led, and every replica has the entries that were committed at
        the start of the wait. Returns the statuses."""
        until = time.monotonic() + _SETTLE_S
        goal: dict[str, int] = {}
        seen: list[StatusReply] = []
        while time.monotonic() < until:
            seen = await self.statuses()
            if len(seen) == len(self._names):
                if not goal:
                    goal = {
                        group.name: max(g.commit for one in seen for g in one.groups if g.name == group.name)
                        for one in seen
                        for group in one.groups
                    }
                led = {group.name for one in seen for group in one.groups if group.role == "leader"}
                behind = any(group.commit < goal.get(group.name, 0) for one in seen for group in one.groups)
                if led >= goal.keys() and not behind:
                    return seen
            await asyncio.sleep(_POLL_S)
        lag = [
            f"{one.node_id} {g.name} {g.role} term {g.term} commit {g.commit} of {goal.get(g.name)}"
            for one in seen
            for g in one.groups
            if g.commit < goal.get(g.name, 0)
        ]
        self._problems.append(f"not well {_SETTLE_S:g} s after a fault: {len(seen)} nodes answer; {'; '.join(lag[:6])}")
        return seen
