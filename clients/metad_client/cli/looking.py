"""What every node says, put together."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable, Mapping
from typing import TypeVar

from metad_wire.cluster import ClusterMap, MapReply

from ..client import Client
from ..errors import DeadlineExceededError, MetadError, NotFoundError, UnknownMethodError
from .grammar import Arguments, Parser, seconds
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
    """The newest map of all nodes, and the status of each, which has ``deadline_s`` to answer. With the map of one node
    a look could show what the look before, at another node, has seen end."""
    try:
        known = await m.cluster.map()
    except UnknownMethodError:  # a server older than clusters
        return MapReply(0, None, {}), await m.cluster.statuses(deadline_s=deadline_s)
    statuses, newer = await asyncio.gather(
        m.cluster.statuses(deadline_s=deadline_s), _newer(m, known.version, deadline_s)
    )
    if newer is not None and (known.map is None or newer.cluster_id == known.map.cluster_id):
        known = MapReply(newer.version, newer, known.leaders)
    return known, statuses


async def _newer(m: Client, version: int, deadline_s: float) -> ClusterMap | None:
    """A newer map, if any node has one. Who does not answer is told of by its status."""
    try:
        return (await m.cluster.map(newer_than=version, deadline_s=deadline_s)).map
    except MetadError:
        return None


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


async def known(m: Client, a: Arguments) -> tuple[ClusterMap, ClusterView]:
    """The map, and what it and the nodes say together. Raises NotFoundError while the cluster is being formed."""
    found, statuses = await ask(m, min(STATUS_S, a.timeout))
    if found.map is None:
        raise NotFoundError("the cluster is being formed: there are no groups yet")
    return found.map, view(found, statuses)


DEADLINE_S = 600.0
"""How long a command waits for what it has begun, if nothing else is said."""
_LOOK_AGAIN_S = 0.5


def add_wait(parser: Parser, done: str) -> None:
    """Add the options of a command that can wait for what it has begun."""
    parser.set_defaults(if_interrupted="what was ordered goes on")
    parser.add_argument("--wait", action="store_true", help=f"end when {done}")
    parser.add_argument(
        "--deadline",
        type=seconds,
        default=DEADLINE_S,
        metavar="S",
        help=f"with --wait: give up after this long; default {DEADLINE_S:g} s",
    )


async def wait_until(m: Client, a: Arguments, version: int, obstacle: Callable[[ClusterMap, ClusterView], str]) -> None:
    """Look until nothing is in the way any more, and tell on stderr what is. ``version`` is that of the map with what
    was begun. Raises DeadlineExceededError after ``--deadline``; what was begun goes on."""
    until_s, told = time.monotonic() + a.deadline, ""
    while True:
        current, cluster = await known(m, a)
        is_new = current.version >= version
        text = obstacle(current, cluster) if is_new else "the node that is asked has an old map"
        if not text:
            return
        if is_new and text != told:
            told = text
            sys.stderr.write(f"metadctl: waits: {text}\n")
        if time.monotonic() + _LOOK_AGAIN_S > until_s:
            raise DeadlineExceededError(f"not done after {a.deadline:g} s ({text}). It goes on by itself")
        await asyncio.sleep(_LOOK_AGAIN_S)
