"""What the registry of brokers asks of groups: of metadata-0 on this node, and of all others wherever they are led."""

from __future__ import annotations

from collections.abc import Callable

from metad_wire.cluster import GroupFence
from metad_wire.group import GroupId
from metad_wire.messages import WriteReply
from metad_wire.methods import BROKER_CHANGE, GROUP_FENCE
from metad_wire.tables.broker import BrokerChange

from ...control.brokers.evidence import Answer
from ...control.host import Done
from ..environment import Dial
from ..requests.requests import Requests
from .leader_calls import LeaderCalls


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
