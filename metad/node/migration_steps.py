"""Delivers the steps of slot moves: to the leader of a group, on this node or another, or to that of the cluster."""

from __future__ import annotations

import asyncio

from metad_wire.cluster import GroupCommand, GroupReply, Moved
from metad_wire.errors import ConflictError, MetadError, NotLeaderError, OverloadedError, UnknownOutcomeError
from metad_wire.group import METADATA, GroupId
from metad_wire.methods import CLUSTER_MOVED, GROUP_COMMAND, Body, Method, Reply

from .driver import GroupDriver
from .environment import Environment
from .groups import Groups
from .peer_sender import PeerSender
from .requests import Requests, set_result

_STEP_S = 10.0  # for one step
_AGAIN_S = 0.02


class MigrationSteps:
    """What a :class:`metad.control.migration.Mover` works with."""

    def __init__(
        self, node_id: str, groups: Groups, requests: Requests, environment: Environment, outbound: PeerSender
    ) -> None:
        self.drivers: dict[GroupId, GroupDriver] = groups.drivers
        self._node_id = node_id
        self._groups = groups
        self._requests = requests
        self._environment = environment
        self._outbound = outbound

    async def ask_here(self, group: GroupId, command: GroupCommand) -> GroupReply:
        return await self._requests.call(GROUP_COMMAND, command, group=group.name)

    async def ask_group(self, group: GroupId, command: GroupCommand) -> GroupReply:
        deadline_s = self._environment.now() + _STEP_S
        target = ""
        while True:
            try:
                return await self._ask_group(group, command, target)
            except (NotLeaderError, OverloadedError) as error:  # nothing was done
                if self._environment.now() >= deadline_s:
                    raise
                target = error.leader
                await asyncio.sleep(_AGAIN_S)

    async def _ask_group(self, group: GroupId, command: GroupCommand, target: str) -> GroupReply:
        driver = self.drivers.get(group)
        if driver is not None and (driver.group.is_leader or not target):
            target = driver.group.leader or ""
        if not target:
            target = self._groups.elsewhere(group).leader
        return await self._ask(target, GROUP_COMMAND, command, group.name)

    async def ask_metadata(self, body: Moved) -> None:
        """See :class:`metad.control.migration.Host`."""
        for _ in range(100):
            leader = self.drivers[METADATA].group.leader
            try:
                if leader is not None:
                    await self._ask(leader, CLUSTER_MOVED, body)
                    return
            except (NotLeaderError, ConflictError):  # another change of the map was quicker
                pass
            await asyncio.sleep(_AGAIN_S)
        raise NotLeaderError("no leader of metadata-0 answered")

    async def _ask(self, node: str, method: Method[Body, Reply], body: Body, group: str = "") -> Reply:
        if node == self._node_id:
            return await self._requests.call(method, body, group=group)
        answer: asyncio.Future[bytes | MetadError] = asyncio.get_running_loop().create_future()
        self._outbound.call(node, method.code, method.encode_request(body, group=group), set_result(answer))
        try:
            async with asyncio.timeout(_STEP_S):
                result = await answer
        except TimeoutError:
            raise UnknownOutcomeError(f"{node} has not answered in time") from None
        if isinstance(result, MetadError):
            raise result
        return method.decode_reply(result)
