"""The stage of an experiment: what every experiment does alike."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from functools import cached_property
from pathlib import Path
from typing import Any

from metad_client import Client, ClusterMap, Options
from metad_judge.undisturbed import leaders
from metad_wire.program.running import run_async

from ..commands import Options as Settings
from ..errors import ServerError, UsageError
from ..faults.members import Member
from ..report.conclusion import reported
from ..report.story import Story
from ..spawn import Shape
from ..target import open_client
from .actor import Actor, Role
from .nodes import Nodes, running

_LOOK_S = 0.1
_LED_S = 60.0


class Stage:
    """Nodes that are well, and what an experiment has beside them, which ends with it. ``problems`` are what went
    wrong, in words."""

    def __init__(self, nodes: Nodes, problems: list[str], stack: AsyncExitStack) -> None:
        self.nodes = nodes
        self.members = nodes.members
        self.health = nodes.health
        self.problems = problems
        self.stack = stack

    @cached_property
    def story(self) -> Story:
        """Tells what happens, from its first use on."""
        return self.stack.enter_context(Story())

    def actor(
        self, role: Callable[..., AbstractAsyncContextManager[Role]], *arguments: object, idle: bool = False
    ) -> Actor:
        """A process with this role."""
        made = Actor(role, *arguments, idle=idle)
        self.stack.push_async_callback(asyncio.to_thread, made.stop)
        return made

    async def client(self, name: str = "metad-perf", deadline_s: float = 60.0) -> Client:
        """A client of the nodes, open."""
        options = Options(deadline_s=deadline_s, client_name=name)
        return await self.stack.enter_async_context(open_client(self.members.target, options))

    async def leader(self, group: str) -> Member:
        """The node that leads a group. Raises ServerError."""
        name = leaders(await self.health.statuses()).get(group)
        found = next((member for member in self.members.all if member.name == name), None)
        if found is None:
            raise ServerError(f"{group} has no leader")
        return found

    async def map(self) -> ClusterMap:
        """The map of the cluster. Raises ServerError."""
        known = (await self.nodes.client.cluster.map()).map
        if known is None:
            raise ServerError("the cluster has no map")
        return known

    async def settled(self) -> list[str]:
        """Wait until each group is led by the node that should lead it. Returns those that are not after a minute."""
        until = time.monotonic() + _LED_S
        wanted = {group.group_id.name: group.preferred for group in (await self.map()).groups}
        while True:
            led = leaders(await self.health.statuses())
            astray = [name for name, node in wanted.items() if led.get(name) is None or (node and led[name] != node)]
            if not astray or time.monotonic() > until:
                return astray
            await asyncio.sleep(_LOOK_S)


async def ask_all(actors: Iterable[Actor], order: Any) -> list[Any]:
    """The same order for all; their replies."""
    return list(await asyncio.gather(*(actor.ask(order) for actor in actors)))


def conduct(
    settings: Settings,
    play: Callable[[Stage], Awaitable[dict[str, Any]]],
    *,
    three_because: str = "",
    guests: int = 0,
) -> dict[str, Any]:
    """Start the nodes of a command, ``play``, and return the report. ``guests`` are those of :func:`.running`. Raises
    UsageError, also with fewer than three nodes if there is a reason for three."""
    shape = settings.shape
    if three_because and shape.nodes < 3:
        raise UsageError(f"--nodes must be at least 3: {three_because}")
    problems: list[str] = []
    found = run_async(staged(shape, getattr(settings, "server_config", None), problems, play, guests))
    return reported(settings, found | {"problems": problems})


async def staged(
    shape: Shape,
    config: Path | None,
    problems: list[str],
    play: Callable[[Stage], Awaitable[dict[str, Any]]],
    guests: int = 0,
) -> dict[str, Any]:
    """What ``play`` found on nodes of its own."""
    async with running(shape, config=config, problems=problems, guests=guests) as nodes, AsyncExitStack() as stack:
        return await play(Stage(nodes, problems, stack)) | {"fsync": nodes.fsync}


async def side_by_side(
    shape: Shape,
    configs: tuple[Path | None, Path | None],
    problems: list[str],
    measure: Callable[[Stage, Stage], Awaitable[dict[str, Any]]],
    times: int = 1,
) -> list[dict[str, Any]]:
    """What was measured on two clusters at the same time, twice so often: each second time the other one is started
    first, for the older one is a little slower. Each time they are new ones, for one cluster differs from the next."""
    found = []
    for first in (0, 1) * times:

        async def inner(outer: Stage, first: int = first) -> dict[str, Any]:
            async def both(other: Stage) -> dict[str, Any]:
                return await measure(*((outer, other) if first == 0 else (other, outer)))

            return await staged(shape, configs[1 - first], problems, both)

        found.append(await staged(shape, configs[first], problems, inner))
    return found


def mean_ratios(found: Sequence[dict[str, Any]], name: str) -> dict[str, float]:
    """The geometric mean of ratios that were measured several times, by the load."""
    return {load: math.prod(each[name][load] for each in found) ** (1 / len(found)) for load in found[0][name]}
