"""What the pages of one session show live: the state of the cluster, asked for once a second while a page is open."""

from __future__ import annotations

import asyncio
import time
from collections import Counter, deque
from collections.abc import Awaitable, Callable
from contextlib import aclosing, suppress
from typing import Any, Final, NamedTuple

from metad_client import Client
from metad_client.cli import overview
from metad_client.cli.looking import STATUS_S, ask, is_electing
from metad_client.cli.verdict import Problem, Verdict, problems, verdict
from metad_client.cli.view import ClusterView, Statuses, view
from metad_client.errors import MetadError, PermissionDeniedError
from metad_wire.cluster import MapReply
from metad_wire.tables.broker import STATES

from .samples import SAMPLES_MAX, Meter, Sample

POLL_S: Final = 1.0
LATE_MS: Final = 5_000
"""A state of the cluster that is older is not shown without saying so. A node that does not answer delays each by
:data:`~metad_client.cli.looking.STATUS_S`, and so may the count of brokers."""
ELECTING_S: Final = 0.25
"""While a group changes its leader, look again sooner, and say so only if that does not end."""
ELECTING_MAX: Final = 4
BROKERS_S: Final = 5.0
BROKERS_MAX: Final = 10_000
"""Brokers that are counted by state; more are not counted."""


class Reading(NamedTuple):
    """The cluster at one moment. Without an ``error`` there is everything else."""

    at_s: float
    error: MetadError | None
    known: MapReply | None = None
    cluster: ClusterView | None = None
    judged: Verdict = "unknown"
    found: list[Problem] = []  # noqa: RUF012 - nobody writes to it
    row: dict[str, Any] = {}  # noqa: RUF012 - the same


class Poll:
    """Asks while ``is_wanted``. ``number`` grows with every reading."""

    def __init__(self, client: Callable[[], Awaitable[Client]], is_wanted: Callable[[], bool]) -> None:
        self.reading: Reading | None = None
        self.number = 0
        self.samples: deque[Sample] = deque(maxlen=SAMPLES_MAX)
        self._client, self._is_wanted = client, is_wanted
        self._meter = Meter()
        self._task: asyncio.Task[None] | None = None
        self._good_s: float | None = None  # when the last reading without an error was there
        self._brokers: dict[str, int] | None = None
        self._brokers_s = -BROKERS_S

    def wake(self) -> None:
        """Begin to ask, unless that is so. What was read for pages that are gone is forgotten."""
        if self._task is None or self._task.done():
            self.reading, self._good_s = None, None
            self._task = asyncio.get_running_loop().create_task(self._run(), name="console-poll")

    def age_ms(self) -> int | None:
        """For how long there has been no answer; None before the first one."""
        return None if self._good_s is None else int((time.monotonic() - self._good_s) * 1_000)

    @property
    def is_late(self) -> bool:
        """Whether the last answer is too old to be shown as if it were new."""
        return (self.age_ms() or 0) >= LATE_MS

    async def close(self) -> None:
        """Ask no more."""
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task

    async def _run(self) -> None:
        while self._is_wanted():
            begin_s = time.monotonic()
            try:
                self.reading = await self._read()
                self._good_s = time.monotonic()
            except MetadError as error:
                self.reading = Reading(time.time(), error)
            self.number += 1
            await asyncio.sleep(max(0.1, begin_s + POLL_S - time.monotonic()))

    async def _read(self) -> Reading:
        client = await self._client()
        known, statuses = await self._ask(client)
        cluster = view(known, statuses)
        for _ in range(ELECTING_MAX):
            if not is_electing(cluster):
                break
            await asyncio.sleep(ELECTING_S)
            known, statuses = await self._ask(client)
            cluster = view(known, statuses)
        self.samples.append(self._meter.note(statuses, time.time()))
        found = problems(cluster)
        judged = verdict(cluster, found)
        if judged == "unknown":
            row = overview.unknown(next((node.error for node in cluster.nodes), "the map names no node"))
        else:
            await self._count_brokers(client)
            row = overview.status(cluster, client.statistics().via, judged, found, self._brokers)
        return Reading(time.time(), None, known, cluster, judged, found, row)

    async def _ask(self, client: Client) -> tuple[MapReply, Statuses]:
        known, statuses = await ask(client, STATUS_S)
        denied = [one for one in statuses.values() if isinstance(one, PermissionDeniedError)]
        if denied and len(denied) == len(statuses):
            raise denied[0]
        return known, statuses

    async def _count_brokers(self, client: Client) -> None:
        """Count the brokers by state, now and then. None is known if they may not be read, or not in time."""
        if time.monotonic() < self._brokers_s + BROKERS_S:
            return
        self._brokers_s = time.monotonic()
        states, looked = Counter[str](), 0
        try:
            listing = client.brokers.list(deadline_s=STATUS_S)
            async with asyncio.timeout(STATUS_S), aclosing(listing):  # type: ignore[type-var]
                async for broker in listing:
                    states[broker.state] += 1
                    looked += 1
                    if looked == BROKERS_MAX:
                        break
        except (TimeoutError, MetadError):
            self._brokers = None
            return
        self._brokers = {state: states[state] for state in STATES if states[state]}
