"""The nodes of a run: started for it, looked after, and their memory."""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from metad_client import Client, Options
from metad_spark.pipeline.progress import repeated

from ..faults import netns
from ..faults.health import STATUS_S, Health
from ..faults.members import Member, Members, temporary_members
from ..load.measure import MIB
from ..spawn import Server, Shape
from ..target import open_client

_SAMPLE_S = 0.02
_QUIET_LOOK_S = 0.5
_QUIET_SHARE = 0.05  # of one core, each node: below it, background work is done
_QUIET_WAIT_S = 60.0


class Nodes(NamedTuple):
    """Nodes that serve: their processes, their health, a client of ours, and whether they write to disk at once."""

    members: Members
    health: Health
    client: Client
    fsync: bool


@contextlib.asynccontextmanager
async def running(shape: Shape, *, config: Path | None, problems: list[str], guests: int = 0) -> AsyncIterator[Nodes]:
    """Nodes that are all well. With ``guests``, each has a namespace of its own if the machine allows it, and so many
    are for programs beside them."""
    with temporary_members(
        shape.nodes,
        groups=shape.groups,
        config=config,
        namespaces=bool(guests) and not netns.missing(cuts=False),
        cuts=False,
        disks=False,
        visitors=guests,
        replicas=min(shape.nodes, 3),
        scheme=shape.scheme,
    ) as members:
        await asyncio.to_thread(members.start)
        options = Options(deadline_s=STATUS_S, client_name="overseer")
        async with open_client(members.target, options) as client:
            health = Health(client, [member.name for member in members.all], problems)
            statuses = await health.settle()
            yield Nodes(members, health, client, all(one.fsync for one in statuses))
            for member in members.all:
                if (code := member.ended()) is not None:
                    problems.append(f"{member.name} ended with {code}, unasked: {member.words()}")


def rss_bytes(members: Sequence[Member]) -> int:
    """Resident memory of all nodes."""
    return sum(member.rss_bytes() for member in members)


def cpu_s(members: Sequence[Member]) -> dict[str, float]:
    """User and system time so far, by node."""
    return {member.name: member.cpu_s() for member in members}


async def quiet(members: Sequence[Server], wait_s: float = _QUIET_WAIT_S) -> bool:
    """Wait until the nodes use next to no CPU. False if they still do after so long."""
    for _ in range(math.ceil(wait_s / _QUIET_LOOK_S)):
        before = sum(member.cpu_s() for member in members)
        await asyncio.sleep(_QUIET_LOOK_S)
        if sum(member.cpu_s() for member in members) - before <= _QUIET_SHARE * _QUIET_LOOK_S * len(members):
            return True
    return False


class Peak:
    """The largest memory that was seen, of all nodes together and of each."""

    def __init__(self, members: Sequence[Server]) -> None:
        self._members = members
        self._before = [member.rss_bytes() for member in members]
        self._each = list(self._before)
        self._all = sum(self._before)

    def look(self) -> None:
        """Take one sample."""
        now = [member.rss_bytes() for member in self._members]
        self._each = [max(pair) for pair in zip(self._each, now, strict=True)]
        self._all = max(self._all, sum(now))

    @property
    def growth_mib(self) -> float:
        """Of all nodes together."""
        return (self._all - sum(self._before)) / MIB

    @property
    def max_mib_each(self) -> list[float]:
        """The largest of each node."""
        return [peak / MIB for peak in self._each]

    @property
    def growth_mib_each(self) -> list[float]:
        """Of each node by itself."""
        return [(peak - before) / MIB for peak, before in zip(self._each, self._before, strict=True)]


@contextlib.contextmanager
def sampled(members: Sequence[Server]) -> Iterator[Peak]:
    """Samples memory from a thread, until the end."""
    peak = Peak(members)
    with repeated(peak.look, _SAMPLE_S, "rss-sampler"):
        yield peak
