"""Delivers the steps of slot moves: to the leader of a group, on this node or another, or to that of the cluster."""

from __future__ import annotations

import asyncio

from metad_wire.cluster import GroupCommand, GroupReply, Moved
from metad_wire.errors import ConflictError, NotLeaderError
from metad_wire.group import METADATA, GroupId
from metad_wire.methods import CLUSTER_MOVED, GROUP_COMMAND

from ..replicas.driver import GroupDriver
from ..replicas.groups import Groups
from .leader_calls import LeaderCalls

_AGAIN_S = 0.02


class MigrationSteps:
    """What a :class:`metad.control.migration.Mover` works with."""

    def __init__(self, groups: Groups, leaders: LeaderCalls) -> None:
        self.drivers: dict[GroupId, GroupDriver] = groups.drivers
        self._leaders = leaders

    async def ask_here(self, group: GroupId, command: GroupCommand) -> GroupReply:
        return await self._leaders.ask_here(group, GROUP_COMMAND, command)

    async def ask_group(self, group: GroupId, command: GroupCommand, *, patient: bool = False) -> GroupReply:
        return await self._leaders.ask_group(group, GROUP_COMMAND, command, patient=patient)

    async def ask_metadata(self, body: Moved) -> None:
        """See :class:`metad.control.migration.Host`."""
        for _ in range(100):
            leader = self.drivers[METADATA].group.leader
            try:
                if leader is not None:
                    await self._leaders.ask_node(leader, CLUSTER_MOVED, body)
                    return
            except (NotLeaderError, ConflictError):  # another change of the map was quicker
                pass
            await asyncio.sleep(_AGAIN_S)
        raise NotLeaderError("no leader of metadata-0 answered")
