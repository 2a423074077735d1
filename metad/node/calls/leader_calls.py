"""Requests of a node to whoever leads a group, on this node or another: also those of the registry of brokers, and the
steps of slot moves."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from metad_wire.cluster import METADATA, GroupCommand, GroupFence, GroupId, GroupReply, Moved, ReadIndex
from metad_wire.errors import ConflictError, MetadError, NotLeaderError, OverloadedError, UnknownOutcomeError
from metad_wire.messages import WriteReply
from metad_wire.methods import (
    AUDIT_NOTE,
    BROKER_CHANGE,
    CLUSTER_MOVED,
    GROUP_COMMAND,
    GROUP_FENCE,
    READ_INDEX,
    Body,
    Method,
    Reply,
)
from metad_wire.tables.broker import BrokerChange

from ...control.brokers.evidence import Answer
from ...control.host import Done
from ..environment import Dial, Environment
from ..replicas.driver import GroupDriver
from ..replicas.groups import Groups
from ..requests.requests import Requests, set_result
from .peer_sender import PeerSender

_ANSWER_S = 10.0  # for one request
_AGAIN_S = 0.02


class LeaderCalls:
    """Finds the leader, and asks it."""

    def __init__(
        self, node_id: str, groups: Groups, requests: Requests, environment: Environment, outbound: PeerSender
    ) -> None:
        self._node_id = node_id
        self._groups = groups
        self._requests = requests
        self._environment = environment
        self._outbound = outbound

    async def ask_here(self, group: GroupId, method: Method[Body, Reply], body: Body) -> Reply:
        """Ask this node, as the group's leader. Raises MetadError."""
        return await self._requests.call(method, body, group=group.name)

    async def ask_group(
        self, group: GroupId, method: Method[Body, Reply], body: Body, *, patient: bool = False
    ) -> Reply:
        """Ask the leader of a group, wherever it is, and follow it for a while. Who is ``patient`` waits for the answer
        until the connection is lost. Raises MetadError."""
        deadline_s = self._environment.now() + _ANSWER_S
        target = ""
        while True:
            try:
                return await self._ask_group(group, method, body, target, patient)
            except (NotLeaderError, OverloadedError) as error:  # nothing was done
                if self._environment.now() >= deadline_s:
                    raise
                target = error.leader
                await asyncio.sleep(_AGAIN_S)

    async def _ask_group(
        self, group: GroupId, method: Method[Body, Reply], body: Body, target: str, patient: bool
    ) -> Reply:
        driver = self._groups.drivers.get(group)
        if driver is not None and (driver.group.is_leader or not target):
            target = driver.group.leader or ""
        if not target:
            target = self._groups.elsewhere(group).leader
        return await self.ask_node(target, method, body, group.name, patient=patient)

    def note(self, payload: bytes, done: Done) -> None:
        """Send an encoded ``audit.note`` to whoever leads metadata-0, as far as this node knows."""
        self._send(AUDIT_NOTE.code, payload, done)

    def last(self, done: Done) -> None:
        """Ask whoever leads metadata-0 for the last index that is committed, as an encoded ``ReadIndexReply``. A copy
        that has applied so much has all that was acknowledged before."""
        self._send(READ_INDEX.code, READ_INDEX.encode_request(ReadIndex(), group=METADATA.name), done)

    def _send(self, code: int, payload: bytes, done: Done) -> None:
        driver = self._groups.drivers.get(METADATA)
        leader = None if driver is None else driver.group.leader
        if leader == self._node_id:
            self._requests.submit_peer(code, payload, done)
        elif leader is None:
            done(NotLeaderError("metadata-0 has no leader"))
        else:
            self._outbound.call(leader, code, payload, done)

    async def ask_node(
        self, node: str, method: Method[Body, Reply], body: Body, group: str = "", *, patient: bool = False
    ) -> Reply:
        """Ask a node. ``patient``: see :meth:`ask_group`. Raises MetadError."""
        if node == self._node_id:
            return await self._requests.call(method, body, group=group)
        answer: asyncio.Future[bytes | MetadError] = asyncio.get_running_loop().create_future()
        self._outbound.call(node, method.code, method.encode_request(body, group=group), set_result(answer))
        try:
            async with asyncio.timeout(None if patient else _ANSWER_S):
                result = await answer
        except TimeoutError:
            raise UnknownOutcomeError(f"{node} has not answered in time") from None
        if isinstance(result, MetadError):
            raise result
        return method.decode_reply(result)


class BrokerCalls:
    """A :class:`metad.control.brokers.brokers.Host`."""

    def __init__(self, requests: Requests, leaders: LeaderCalls, dial: Dial) -> None:
        self._requests = requests
        self._leaders = leaders
        self._dial = dial

    def change(self, body: BrokerChange, done: Done) -> None:
        self._requests.request(BROKER_CHANGE, body, done)

    async def fence(self, group: GroupId, body: GroupFence) -> WriteReply:
        return await self._leaders.ask_group(group, GROUP_FENCE, body)

    def dial(self, host: str, port: int, done: Callable[[Answer], None]) -> None:
        self._dial(host, port, done)


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
