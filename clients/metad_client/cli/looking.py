"""What every node says, put together."""

from __future__ import annotations

from metad_wire.cluster import MapReply

from ..client import Client
from ..errors import UnknownMethodError
from .grammar import Arguments
from .view import ClusterView, view

STATUS_S = 2.0


async def look(m: Client, a: Arguments) -> ClusterView:
    """The map and the status of each node, combined. The wait for unreachable nodes is short, because a person is
    waiting."""
    try:
        known = await m.cluster.map()
    except UnknownMethodError:  # a server older than clusters
        known = MapReply(0, None, {})
    return view(known, await m.cluster.statuses(deadline_s=min(STATUS_S, a.timeout)))
