"""What every node says, put together."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import TypeVar

from metad_wire.cluster import MapReply

from ..client import Client
from ..errors import MetadError, UnknownMethodError
from .grammar import Arguments
from .printing import in_line
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


Reply = TypeVar("Reply")


def answered(found: Mapping[str, Reply | MetadError]) -> dict[str, Reply]:
    """What nodes have answered, by node, without their errors."""
    return {node: one for node, one in sorted(found.items()) if not isinstance(one, MetadError)}


def raise_failed(found: Mapping[str, object]) -> None:
    """Say what nodes have not done. Raises the error of the last of them."""
    failed = {node: one for node, one in sorted(found.items()) if isinstance(one, MetadError)}
    for node, error in failed.items():
        if node == max(failed):
            raise error if len(found) == 1 else type(error)(f"{node}: {error}")
        sys.stderr.write(f"metadctl: {in_line(f'{node}: {error}')}\n")


def is_electing(cluster: ClusterView) -> bool:
    """Whether some group changes its leader: it is gone for some milliseconds, and that is no alarm."""
    return any(0 < group.leaderless_ms < ELECTION_MS for group in cluster.groups)
