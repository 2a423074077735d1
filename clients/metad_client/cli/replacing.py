"""``metadctl replace``: what an operator's desk can do about a node that has lost its disk.

It lets the node leave, waits until no group needs it, says how to start the new node and, if asked, waits until every
group has its replicas again. Each step is found from the cluster itself, so the command may be interrupted and run
again at any moment.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable
from typing import Any

from metad_wire.cluster import METADATA, ClusterMap, NodeRecord, machine_count

from ..client import Client
from ..errors import ConflictError, DeadlineExceededError, MetadError, NotFoundError
from . import people
from .view import METADATA_VOTERS_MIN, ClusterView, GroupView, view

_LOOK_S = 1.0
_REMIND_S = 15.0
"""What the command waits for is told again after so long: an operator must see that it still tries."""
_STATUS_S = 2.0
_NAMED = 3  # groups that a text names; there may be two thousand


class Replacement:
    """One run of the command. Raises MetadError if the node is alive, or when ``deadline_s`` has passed. ``show`` gets
    the configuration of the new node, as soon as it is known. What else is told goes to stderr."""

    def __init__(self, client: Client, node: str, deadline_s: float, show: Callable[[str], None]) -> None:
        self._client = client
        self._node = node
        self._until_s = time.monotonic() + deadline_s
        self._deadline_s = deadline_s
        self._show = show
        self._config: str | None = None
        self._told = ""
        self._told_s = time.monotonic()

    async def run(self, *, wait: bool) -> dict[str, Any]:
        """Replace the node. Returns what was done, for the output."""
        known = (await self._client.cluster.map()).map
        if known is None:
            raise NotFoundError("this node knows no cluster; give the endpoint of another one")
        record = known.node(self._node)
        there = _machines(known)
        wanted = min(known.replicas or there, there if record is not None else there + 1)
        left = await self._leave(known, record, wanted, joined=wait)
        known, cluster = await self._look()
        lacking = _lacking(known, cluster, wanted)
        if left and record is None and (lacking or wait):
            self._advise(None, known)
        if wait:
            lacking = await self._whole(wanted)
            known, _ = await self._look()
        state = "every group has all its replicas" if not lacking else f"{len(lacking)} groups lack a replica"
        return {
            "node": self._node,
            "member": known.node(self._node) is not None,
            "replicas": wanted,
            "groups_lacking": len(lacking),
            "state": state,
            "config": self._config,
        }

    def _advise(self, record: NodeRecord | None, known: ClusterMap) -> None:
        """Say how to start the new node. ``record`` is that of the lost one, None if it is not known any more."""
        self._say(f"when {self._node} has left, start the new node with an empty data directory and this configuration")
        self._config = advice(self._node, record, known)
        self._show(self._config)

    async def _leave(self, known: ClusterMap, record: NodeRecord | None, wanted: int, *, joined: bool) -> bool:
        """Let the node leave, and wait until it is no member any more. With ``joined`` a node that is alive is the new
        one of its name, and stays: then this returns False. How to start the new node is said first: once the node has
        left, nobody knows its record any more."""
        asked = advised = False
        while True:
            _, cluster = await self._look()
            if not asked and (by := self._connected(cluster)):
                alive = f"{self._node} is alive: {people.listed(by)} {'is' if len(by) == 1 else 'are'} connected to it"
                if joined:
                    self._say(f"{alive}, so it stays")
                    return False
                raise ConflictError(f"{alive}. To remove a node that is alive, use: metadctl leave {self._node}")
            if record is not None and not advised:
                self._advise(record, known)
                advised = True
            try:
                done = await self._client.cluster.leave(self._node, lost=True)
                self._say(done.text.partition("; it ends")[0])  # it has ended
                asked = True
            except NotFoundError:
                was_member = asked or record is not None
                self._say(f"{self._node} is no member any more" if was_member else self._absent(known, cluster, wanted))
                return True
            except (ConflictError, DeadlineExceededError) as error:  # not yet
                self._say(str(error))
            await self._pause("it has not left")

    def _absent(self, known: ClusterMap, cluster: ClusterView, wanted: int) -> str:
        """What to say of a node that was no member when the command began: another run has let it leave. Raises
        NotFoundError if no member is missing."""
        if not any(len(group.record.replicas) < _least(group, wanted) for group in cluster.groups if group.record):
            members = people.listed([node.node_id for node in known.nodes])
            raise NotFoundError(
                f"{self._node} is no member of the cluster, whose members are {members}, and no other is missing: "
                "check the name"
            )
        lacking = _lacking(known, cluster, wanted)
        return (
            f"{self._node} has left: it is no member of the cluster, and {len(lacking)} of {len(cluster.groups)} "
            "groups lack a replica until its successor joins"
        )

    def _connected(self, cluster: ClusterView) -> list[str]:
        """The nodes that reach the node."""
        return next((node.connected for node in cluster.nodes if node.node == self._node), [])

    async def _whole(self, wanted: int) -> list[str]:
        """Wait until every group has so many replicas within reach. Returns the groups that lack one: none."""
        while True:
            known, cluster = await self._look()
            lacking = _lacking(known, cluster, wanted)
            if not lacking:
                return []
            groups, machines = len(cluster.groups), _machines(known)
            if machines < wanted:
                self._say(f"waiting for a node to join: {machines} machines for {wanted} replicas of each group")
            else:
                named = people.listed(lacking[:_NAMED]) + (" and others" if len(lacking) > _NAMED else "")
                self._say(f"{groups - len(lacking)} of {groups} groups have {wanted} replicas; missing: {named}")
            await self._pause(f"{len(lacking)} of {groups} groups lack a replica")

    async def _look(self) -> tuple[ClusterMap, ClusterView]:
        """The cluster, as a node says that knows it. A node that has lost its disk does not."""
        while True:
            try:
                reply = await self._client.cluster.map()
                if reply.map is not None:
                    statuses = await self._client.cluster.statuses(deadline_s=_STATUS_S)
                    return reply.map, view(reply, statuses)
            except MetadError as error:
                self._say(str(error))
            await self._pause("no node knows the cluster")

    async def _pause(self, obstacle: str) -> None:
        if time.monotonic() + _LOOK_S > self._until_s:
            raise DeadlineExceededError(
                f"{obstacle}, after {self._deadline_s:g} s ({self._told}). It is safe to run the command again"
            )
        waited_s = time.monotonic() - self._told_s
        if waited_s >= _REMIND_S:
            self._told_s += waited_s
            left_s = max(0.0, self._until_s - self._told_s)
            self._write(f"still waiting, for at most {left_s:.0f} s more: {obstacle} ({self._told})")
        await asyncio.sleep(_LOOK_S)

    def _say(self, text: str) -> None:
        """Tell how far it is, once."""
        if text != self._told:
            self._told, self._told_s = text, time.monotonic()
            self._write(text)

    @staticmethod
    def _write(text: str) -> None:
        sys.stderr.write(f"metadctl: {text}\n")
        sys.stderr.flush()


def _machines(known: ClusterMap) -> int:
    return machine_count(node.node_id for node in known.nodes if not node.leaving)


def _least(group: GroupView, wanted: int) -> int:
    """How many replicas a group has to have."""
    if group.record is not None and group.name == METADATA.name:
        return min(wanted, max(METADATA_VOTERS_MIN, len(group.record.replicas)))
    return wanted


def _lacking(known: ClusterMap, cluster: ClusterView, wanted: int) -> list[str]:
    """The groups that have fewer voters within reach, or voters that should not be there."""
    found: list[str] = []
    for group in cluster.groups:
        record = group.record
        if len(group.available) < _least(group, wanted) or (
            record is not None and {*group.voters} != {*record.replicas}
        ):
            found.append(group.name)
    return found


def advice(node: str, record: NodeRecord | None, known: ClusterMap) -> str:
    """The configuration of the new node, as TOML. ``record`` is that of the lost one, None if it is not known any
    more."""
    others = [each for each in known.nodes if each.node_id != node]
    join = ", ".join(f'"{each.peer_endpoint}"' for each in others if each.peer_endpoint)
    regions = sorted({each.region for each in others if each.region})
    listen = record.peer_endpoint if record is not None and record.peer_endpoint else "HOST:PORT"
    region = record.region if record is not None else "REGION" if regions else ""
    forgotten = "" if record is not None else ", which is not known any more"
    of_others = f"  # not known any more; the others have {people.listed(regions)}" if record is None else ""
    lines = [
        "# The new node, with an empty data directory. It may keep the name; it joins, and has no seeds.",
        f'node_id = "{node}"',
        "[cluster]",
        f"join = [{join}]",
        f'listen = "{listen}"  # its address for other nodes{forgotten}',
        *([f'region = "{region}"{of_others}'] if region else []),
    ]
    return "\n".join(lines)
