"""``m.cluster``: which nodes and groups there are, who leads what, and changes of that."""

from __future__ import annotations

from metad_wire import cluster as c
from metad_wire import methods
from metad_wire.messages import Status, StatusReply

from ..dispatch.dispatcher import Dispatcher
from ..errors import MetadError, NotFoundError
from ..requests.requests import Requests
from .facade import Facade


class Cluster(Facade):
    """The cluster as a whole. Changes are decided by the leader of ``metadata-0`` and return what was begun: replicas
    and leaders move after it. ``deadline_s`` is seconds from now, None the client's default."""

    def __init__(self, requests: Requests, dispatcher: Dispatcher) -> None:
        super().__init__(requests)
        self._dispatcher = dispatcher

    async def map(self, *, deadline_s: float | None = None) -> c.MapReply:
        """The map as a node has it now, and who leads the groups that node knows. ``map`` is None while the cluster is
        being formed."""
        return await self._requests.one(methods.CLUSTER_MAP, c.MapRequest(), deadline_s)

    async def statuses(self, *, deadline_s: float | None = None) -> dict[str, StatusReply | MetadError]:
        """How every node is, by id; the error where one cannot be asked."""
        calls = {
            node: self._requests.begin(methods.STATUS, Status(), deadline_s, node=node)
            for node in sorted(self._dispatcher.nodes.queues)
        }
        found: dict[str, StatusReply | MetadError] = {}
        try:
            for node, call in calls.items():
                try:
                    found[node] = await self._requests.reply(call)
                except MetadError as error:
                    found[node] = error
        finally:
            for node, call in calls.items():
                if node not in found:
                    self._requests.abandon(call)
        return found

    async def transfer(self, group: str, to: str, *, deadline_s: float | None = None) -> c.Done:
        """Hand the leadership of a group to one of its voters. Raises NotFoundError, InvalidRequestError."""
        known = self._dispatcher.routes.map
        if known is not None and group not in [c.group_name(g.kind, g.ordinal) for g in known.groups]:
            raise NotFoundError(f"there is no group {group}")
        return await self._requests.one(methods.CLUSTER_TRANSFER, c.Transfer(group, to), deadline_s)

    async def join(self, node: c.NodeRecord, *, deadline_s: float | None = None) -> c.Done:
        """Take a node in. One that is configured to join asks for it itself. Raises ConflictError."""
        return await self._requests.one(methods.CLUSTER_JOIN, c.Join(node), deadline_s)

    async def leave(self, node_id: str, *, deadline_s: float | None = None) -> c.Done:
        """Move a node's replicas elsewhere; called again once they have moved, the node is forgotten. Raises
        NotFoundError, InvalidRequestError, ConflictError."""
        return await self._requests.one(methods.CLUSTER_LEAVE, c.Leave(node_id), deadline_s)

    async def add_group(self, kind: str, *, deadline_s: float | None = None) -> c.Done:
        """One more group of a kind. Not repeated where the answer was lost, for that could add two: look at the map.
        Raises InvalidRequestError, ConflictError."""
        return await self._requests.one(methods.CLUSTER_ADD_GROUP, c.AddGroup(kind), deadline_s, once=True)

    async def rebalance(self, *, deadline_s: float | None = None) -> c.Done:
        """Spread replicas and leaders evenly. Raises ConflictError."""
        return await self._requests.one(methods.CLUSTER_REBALANCE, c.Rebalance(), deadline_s)
