"""What every node says, put together."""

from __future__ import annotations

from metad_wire.cluster import MapReply

from ..client import Client
from ..errors import UnknownMethodError
from .grammar import Arguments
from .view import ClusterView, Statuses, view

STATUS_S = 2.0


ELECTION_MS = 2_000
"""A group that has had no leader for less time than this is looked at again before that is reported."""


async def look(m: Client, a: Arguments) -> ClusterView:
    """The map and the status of each node, combined. The wait for unreachable nodes is short, because a person is
    waiting."""
    return view(*await ask(m, min(STATUS_S, a.timeout)))


async def ask(m: Client, deadline_s: float) -> tuple[MapReply, Statuses]:
    """The map, and the status of each node, which has ``deadline_s`` to answer."""
    try:
        known = await m.cluster.map()
    except UnknownMethodError:  # a server older than clusters
        known = MapReply(0, None, {})
    return known, await m.cluster.statuses(deadline_s=deadline_s)


def is_electing(cluster: ClusterView) -> bool:
    """Whether some group changes its leader: it is gone for some milliseconds, and that is no alarm."""
    return any(0 < group.leaderless_ms < ELECTION_MS for group in cluster.groups)
