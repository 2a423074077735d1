"""``m.cluster``: the nodes, the groups and their leaders, and changes of these."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated

from msgspec import Meta

from metad_wire import cluster as c
from metad_wire import methods
from metad_wire.cluster import GroupId
from metad_wire.messages import (
    Activity,
    ActivityReply,
    Compact,
    CompactReply,
    Events,
    EventsReply,
    Page,
    Status,
    StatusReply,
)
from metad_wire.methods import Body, Method, Reply
from metad_wire.operator.settings import GetSettings, SetSetting, SettingsReply

from ..dispatch.calls.call import Call
from ..dispatch.dispatcher import Dispatcher
from ..errors import MetadError, NotFoundError
from ..requests.requests import Requests
from ..requests.wrong import argument, sequence
from . import Facade

_Slot = Annotated[int, Meta(ge=0, lt=c.SLOTS)]
_Version = Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]


class Cluster(Facade):
    """The cluster as a whole. The leader of ``metadata-0`` decides about changes. A method that changes something
    returns as soon as the change has begun; replicas and leaders move later. ``deadline_s`` counts from now, and None
    means the client's default."""

    def __init__(self, requests: Requests, dispatcher: Dispatcher) -> None:
        super().__init__(requests)
        self._dispatcher = dispatcher

    async def map(self, *, newer_than: int | None = None, deadline_s: float | None = None) -> c.MapReply:
        """The cluster map of some node, and the leaders of that node's groups. ``map`` is None while the cluster is
        being formed. ``newer_than``: ask every node for a newer map than that version, and wait for all of them; the
        newest reply, whose ``map`` is None if no node has a newer one. Raises the error of a node if none answers."""
        if newer_than is None:
            return await self._requests.one(methods.CLUSTER_MAP, c.MapRequest(), deadline_s)
        argument("newer_than", newer_than, _Version)
        asked = c.MapRequest(newer_than)
        found = await self._of_each(methods.CLUSTER_MAP, lambda _: asked, (), deadline_s)
        replies = [one for one in found.values() if isinstance(one, c.MapReply)]
        if not replies:
            errors = [one for one in found.values() if isinstance(one, MetadError)]
            raise errors[0] if errors else NotFoundError("no node is known")
        return max(replies, key=lambda one: one.version)

    async def statuses(self, *, deadline_s: float | None = None) -> dict[str, StatusReply | MetadError]:
        """The status of every node, by id; for a node that does not answer, the error."""
        return await self._of_each(methods.STATUS, lambda _: Status(), (), deadline_s)

    async def activity(
        self, most: int = 20, *, nodes: Sequence[str] = (), deadline_s: float | None = None
    ) -> dict[str, ActivityReply | MetadError]:
        """What was slow of late, and who asks for most, by each node or each of these, by id; for a node that does not
        answer, the error. ``most``: of each kind, up to 256."""
        named = sequence("nodes", nodes, "str")
        return await self._of_each(methods.ACTIVITY, lambda _: Activity(most), named, deadline_s)

    async def events(
        self,
        *,
        since_ms: int = 0,
        cursors: dict[str, bytes] | None = None,
        nodes: Sequence[str] = (),
        page_size: int = 1_000,
        deadline_s: float | None = None,
    ) -> dict[str, EventsReply | MetadError]:
        """What has changed since then, in Unix milliseconds, as the logs of all nodes tell it, or of these: a page of
        each by id; for a node that does not answer, the error. ``cursors``: those of the replies before, by node, also
        of one without ``more``, for what follows."""
        argument("cursors", cursors, dict[str, bytes] | None)
        known = cursors or {}

        def asked(node: str) -> Events:
            return Events(since_ms, Page(page_size, known.get(node, b"")))

        return await self._of_each(methods.EVENTS, asked, sequence("nodes", nodes, "str"), deadline_s)

    async def compact(
        self, *, begin: bool = True, nodes: Sequence[str] = (), deadline_s: float | None = None
    ) -> dict[str, CompactReply | MetadError]:
        """Have every node, or each of these, drop what is deleted from its files; by id, how far it is, or the error
        of one that does not answer or has too little room. ``begin=False`` only asks."""
        argument("begin", begin, bool)
        asked = Compact(begin)
        return await self._of_each(methods.COMPACT, lambda _: asked, sequence("nodes", nodes, "str"), deadline_s)

    async def settings(
        self, setting: str = "", *, nodes: Sequence[str] = (), deadline_s: float | None = None
    ) -> dict[str, SettingsReply | MetadError]:
        """The settings of every node, or of each of these, or one of them, as ``limits.slow_ms``; by id, or the error
        of one that does not answer or has no such setting."""
        asked = GetSettings(setting)
        return await self._of_each(methods.SETTINGS, lambda _: asked, sequence("nodes", nodes, "str"), deadline_s)

    async def set(
        self, setting: str, value: str | None, *, nodes: Sequence[str] = (), deadline_s: float | None = None
    ) -> dict[str, SettingsReply | MetadError]:
        """Set a setting of every node, or of each of these, while they run and for their later starts; by id, what
        counts then, or the error of one that does not take it. ``value``: as in the configuration file, or as ``30s``
        or ``64MiB``; None: what that file says counts again."""
        wanted = SetSetting(setting, value)
        return await self._of_each(methods.SETTING_SET, lambda _: wanted, sequence("nodes", nodes, "str"), deadline_s)

    async def _of_each(
        self,
        method: Method[Body, Reply],
        body_of: Callable[[str], Body],
        nodes: Sequence[str],
        deadline_s: float | None,
    ) -> dict[str, Reply | MetadError]:
        """The reply or the error of each of these nodes, or of all, by id."""
        calls: dict[str, Call] = {}
        found: dict[str, Reply | MetadError] = {}
        try:
            for node in nodes or sorted(self._dispatcher.nodes.queues):
                calls[node] = self._requests.begin(method, body_of(node), deadline_s, node=node)
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
        """Make one of a group's voters its preferred leader. Raises NotFoundError, InvalidRequestError."""
        known = self._dispatcher.routes.map
        if known is not None and isinstance(group, str) and known.group(GroupId.parse(group)) is None:
            raise NotFoundError(f"there is no group {group}")
        return await self._requests.one(methods.CLUSTER_TRANSFER, c.Transfer(group, to), deadline_s)

    async def prefer(self, group: str, region: str, *, deadline_s: float | None = None) -> c.Done:
        """Have a group be led by a voter in a region whenever one can; with an empty region, by those of any. This
        lasts until it is taken back, and needs the feature ``leader-regions``. Raises NotFoundError,
        InvalidRequestError, ConflictError."""
        body = c.Transfer(group, "", region)
        return await self._requests.one(methods.CLUSTER_TRANSFER, body, deadline_s)

    async def join(self, node: c.NodeRecord, *, deadline_s: float | None = None) -> c.Done:
        """Add a node. A node with ``[cluster] join`` set does this by itself. Raises ConflictError."""
        return await self._requests.one(methods.CLUSTER_JOIN, c.Join(node), deadline_s)

    async def leave(
        self, node_id: str, *, fewer: bool = False, lost: bool = False, deadline_s: float | None = None
    ) -> c.Done:
        """Move a node's replicas to other nodes; then the cluster removes the node from the map. ``fewer``: even if
        groups then have fewer replicas than the cluster wants. ``lost``: only if the node is out of reach, and then
        also with fewer replicas. Called again, it says which groups still need the node. Raises NotFoundError,
        InvalidRequestError, ConflictError."""
        return await self._requests.one(methods.CLUSTER_LEAVE, c.Leave(node_id, fewer, lost), deadline_s)

    async def add_group(self, kind: str, *, deadline_s: float | None = None) -> c.Done:
        """Add a group of a kind. If the answer is lost, the client does not repeat the call, which could add two
        groups: look at the map. Raises InvalidRequestError, ConflictError."""
        return await self._requests.one(methods.CLUSTER_ADD_GROUP, c.AddGroup(kind), deadline_s, once=True)

    async def rebalance(
        self, *, replicas: int = 0, keep_slots: bool = False, deadline_s: float | None = None
    ) -> c.Done:
        """Spread slots, replicas and leaders evenly. ``replicas`` is how many every group should have from now on; 0
        means as many as before. ``keep_slots``: slots stay in the groups in which they are, however many each has, and
        only groups without any get some. Raises InvalidRequestError, ConflictError."""
        return await self._requests.one(methods.CLUSTER_REBALANCE, c.Rebalance(replicas, keep_slots), deadline_s)

    async def drain(self, node_id: str, *, undo: bool = False, deadline_s: float | None = None) -> c.Done:
        """Have a node lead nothing and keep its replicas, so that it can be restarted or serviced; with ``undo`` it
        leads its share again. Raises NotFoundError, ConflictError."""
        return await self._requests.one(methods.CLUSTER_DRAIN, c.Drain(node_id, undo), deadline_s)

    async def move_slots(
        self,
        to: str = "",
        *,
        group: str = "",
        slots: Sequence[int] = (),
        half: bool = False,
        deadline_s: float | None = None,
    ) -> c.Done:
        """Move slots to another group of their kind, empty: to one that is added for them. ``slots`` are numbers; none:
        all that ``group`` has. ``half``: only the upper half of these. If the answer is lost where a group is added,
        the client does not repeat the call: look at the map. Raises NotFoundError, InvalidRequestError,
        ConflictError."""
        numbers = sequence("slots", slots, "int")
        argument("slots", numbers, list[_Slot])
        body = c.MoveSlots(to, group, c.slot_bits({*numbers}) if numbers else b"", half)
        return await self._requests.one(methods.CLUSTER_MOVE_SLOTS, body, deadline_s, once=not to)

    async def move_replica(self, group: str, source: str, target: str, *, deadline_s: float | None = None) -> c.Done:
        """Move one replica of a group from node ``source`` to node ``target``. Raises NotFoundError,
        InvalidRequestError, ConflictError."""
        body = c.MoveReplica(group, source, target)
        return await self._requests.one(methods.CLUSTER_MOVE_REPLICA, body, deadline_s)

    async def remove_group(self, group: str, *, deadline_s: float | None = None) -> c.Done:
        """Remove a group that has no slots. Raises NotFoundError, InvalidRequestError, ConflictError."""
        return await self._requests.one(methods.CLUSTER_REMOVE_GROUP, c.RemoveGroup(group), deadline_s)
