"""What every node says, put together."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable

from metad_wire.cluster import ClusterMap, MapReply

from ..client import Client
from ..errors import DeadlineExceededError, NotFoundError, UnknownMethodError
from .grammar import Arguments, Parser, seconds
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
