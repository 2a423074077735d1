"""``metad-perf near``: reads that the nearest replica answers, a long way from the leader, and how old they are.

Three nodes are in three places, as far from each other as ``--rtt-ms`` says, and so are the clients: one beside the
leader of a group counts records up, one in another place reads them. Every client reaches the nodes of the other places
by the relay only. First nothing is wrong, and the times of reads count; then the place of the reader is cut off, its
node stands still, and the leader does. All reads are judged, by the one clock of this machine: each has what was
acknowledged so long before it began as it says.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import msgspec

from metad_client import Client, MetadError, NotFreshError, Options
from metad_judge.freshness import Read, Writes, judge
from metad_wire.messages import StatusReply
from metad_wire.program.running import run_async

from ..commands import Near
from ..errors import ServerError
from ..experiment.actor import Actor
from ..faults import netns
from ..faults.availability import names_in
from ..faults.members import Members
from ..report.conclusion import conclude, reported
from ..report.histogram import Latencies
from ..target import open_client
from . import relay
from .regions import NAMES, members_of
from .relay import Places
from .relay_line import Path as LinePath

P99_MS_MAX = 2.0
"""Of a read that a replica in the reader's own place answers."""
_GROUPS = {"data": 1, "offset": 1}
_KEYS = 8
_WRITE_EVERY_S = 0.01
_READ_EVERY_S = 0.002  # the reader leaves the cores to the nodes
_DEADLINE_S = 3.0  # of a read
_WRITE_DEADLINE_S = 60.0
_WARM_UP_S = 2.0  # the first read finds no proof
_FORMED_S = 60.0
_POLL_S = 0.2
_TROUBLE_S = 7.0  # longer than the reads may be old
_REST_S = 3.0


class Look(msgspec.Struct, frozen=True):
    """Order: wait until all groups have a voter in each place (:class:`Seen`)."""


class Seen(msgspec.Struct, frozen=True):
    """The group that is read, a namespace that it has, and the node that leads it."""

    group: str
    namespace: str
    leader: str


class Count(msgspec.Struct, frozen=True):
    """Order: count the records up for so long; the reply has (record, number, when it was acknowledged, ns)."""

    namespace: str
    seconds: float


class Ask(msgspec.Struct, frozen=True):
    """Order: read the records for so long (:class:`Heard`). ``freshness_ms`` 0: the leader answers."""

    namespace: str
    seconds: float
    freshness_ms: int


class Heard(msgspec.Struct, frozen=True, kw_only=True):
    """``found``: (record, number, when the read began, ns). ``refused``: answers of replicas that could
    prove too little; ``failed``: those that nobody answered in time."""

    found: list[tuple[str, int, int]]
    latencies: bytes
    refused: int
    failed: int


class Hand:
    """A client in one of the places."""

    def __init__(self, client: Client) -> None:
        self._client = client

    async def carry_out(self, order: Look | Count | Ask) -> Any:
        """Do it."""
        match order:
            case Look():
                return await self._look()
            case Count():
                return await self._count(order)
        return await self._ask(order)

    async def _look(self) -> Seen:
        until = time.monotonic() + _FORMED_S
        while time.monotonic() < until:
            with contextlib.suppress(MetadError):
                known = (await self._client.cluster.map()).map
                found = await self._client.cluster.statuses()
                statuses = [one for one in found.values() if isinstance(one, StatusReply)]
                led = {g.name: g for one in statuses for g in one.groups if g.role == "leader"}
                every = {g.name for one in statuses for g in one.groups}
                whole = led.keys() == every and all(len(g.voters) == len(NAMES) for g in led.values())
                if known is not None and whole and "data-0" in led:
                    leader = next(o.node_id for o in statuses for g in o.groups if g is led["data-0"])
                    wanted = next(each.preferred for each in known.groups if each.group_id.name == "data-0")
                    if leader == wanted:
                        return Seen("data-0", names_in(known)["data-0"], leader)
            await asyncio.sleep(_POLL_S)
        raise ServerError("the cluster across places did not form: some group lacks a voter or its leader")

    async def _count(self, order: Count) -> list[tuple[str, int, int]]:
        done: list[tuple[str, int, int]] = []
        until, number = time.monotonic() + order.seconds, 0
        while time.monotonic() < until:
            number += 1
            record = f"k{number % _KEYS}"
            # None is given up while the leader stands still, so each record has one write after the other.
            await self._client.kv.put(order.namespace, record, b"%d" % number, deadline_s=_WRITE_DEADLINE_S)
            done.append((record, number, time.monotonic_ns()))
            await asyncio.sleep(_WRITE_EVERY_S)
        return done

    async def _ask(self, order: Ask) -> Heard:
        found: list[tuple[str, int, int]] = []
        latencies, failed, number = Latencies(), 0, 0
        before = self._refused()
        until = time.monotonic() + order.seconds
        while time.monotonic() < until:
            number += 1
            await asyncio.sleep(_READ_EVERY_S)
            record, begun_ns = f"k{number % _KEYS}", time.monotonic_ns()
            try:
                row = await self._client.kv.get(
                    order.namespace, record, freshness_ms=order.freshness_ms, deadline_s=_DEADLINE_S
                )
            except MetadError:
                failed += 1
                continue
            latencies.note(time.monotonic_ns() - begun_ns)
            found.append((record, 0 if row is None else int(row.value), begun_ns))
        return Heard(found=found, latencies=latencies.encode(), refused=self._refused() - before, failed=failed)

    def _refused(self) -> int:
        """Reads that were asked of the leader at once, or of a replica again where the leader was out of reach."""
        verb = self._client.statistics().verbs.get("kv.get")
        return 0 if verb is None else verb.redirects + verb.retries.get(NotFreshError.name, 0)


@contextlib.asynccontextmanager
async def open_hand(space: str, target: str, region: str) -> AsyncIterator[Hand]:
    """The role of a process in a place."""
    netns.enter(space)
    options = Options(client_name="near", region=region, connect_timeout_s=30.0)
    async with open_client(target, options) as client:
        yield Hand(client)


def run(options: Near) -> int:
    """Returns the exit code: 1 if a read was older than it says, or slower than a near read may be. Raises
    ServerError."""
    if lacking := relay.missing():
        raise ServerError(lacking)
    with relay.places(len(NAMES), options.seed) as places:
        path = LinePath(delay_ms=options.rtt_ms / 2)
        for a, b in ((0, 1), (0, 2), (1, 2)):
            places.shape(a, b, path)
        with members_of(places, _GROUPS, near=False) as members:
            made = run_async(_play(options, places, members))
    return conclude("near", reported(options, made), options, "staler_than_said")


async def _play(options: Near, places: Places, members: Members) -> dict[str, Any]:
    await asyncio.to_thread(members.start)
    actors: list[Actor] = []

    def at(place: int) -> Actor:
        actor = Actor(open_hand, places.network.space(place), members.target, NAMES[place])
        actors.append(actor)
        return actor

    try:
        seen: Seen = await at(0).ask(Look())
        leading = NAMES.index(seen.leader)
        far = (leading + 1) % len(NAMES)
        troubles = _troubles(places, members, leading, far)
        writer, reader = at(leading), at(far)
        trouble_s = len(troubles) * (_TROUBLE_S + _REST_S) if options.trouble else 0.0
        asked = [options.freshness_ms, options.freshness_ms, 0]
        spans_s = [_WARM_UP_S, options.seconds, max(2.0, 20 * options.rtt_ms / 1e3)]
        writer.begin(Count(seen.namespace, sum(spans_s) + trouble_s))
        await asyncio.sleep(0.5)
        heard = [
            await reader.ask(Ask(seen.namespace, span_s, freshness_ms))
            for span_s, freshness_ms in zip(spans_s, asked, strict=True)
        ]
        if options.trouble:
            reader.begin(Ask(seen.namespace, trouble_s, options.freshness_ms))
            for begin, end in troubles:
                await begin()
                await asyncio.sleep(_TROUBLE_S)
                await end()
                await asyncio.sleep(_REST_S)
            heard.append(await asyncio.to_thread(reader.reply))
            asked.append(options.freshness_ms)
        return _judged(await asyncio.to_thread(writer.reply), heard, asked)
    finally:
        for actor in actors:
            actor.stop()


Step = Callable[[], Awaitable[None]]


def _troubles(places: Places, members: Members, leading: int, far: int) -> list[tuple[Step, Step]]:
    """What begins and what ends each trouble: the place of the reader is cut off, its node stands still, the leader
    does."""

    def step(what: Callable[[], None]) -> Step:
        return lambda: asyncio.to_thread(what)

    pauses = [(step(one.pause), step(one.resume)) for one in (members.all[far], members.all[leading])]
    return [(step(lambda: places.cut_off(far)), step(places.heal)), *pauses]


def _judged(written: list[tuple[str, int, int]], heard: list[Heard], asked: list[int]) -> dict[str, Any]:
    writes = {f"k{number}": Writes() for number in range(_KEYS)}
    for record, number, at_ns in written:
        writes[record].acknowledged(number, at_ns / 1e9)
    reads = [
        Read(record, number, begun_ns / 1e9, freshness_ms / 1e3)
        for one, freshness_ms in zip(heard, asked, strict=True)
        for record, number, begun_ns in one.found
    ]
    verdict = judge(writes, reads)
    near, leader = (Latencies.merged([one.latencies]) for one in heard[1:3])
    near_p99_ms = near.percentile_ms(99)
    problems = []
    if near_p99_ms > P99_MS_MAX:
        problems.append(f"a near read took {near_p99_ms:.3g} ms at p99, more than {P99_MS_MAX:g} ms")
    if not near.count or not leader.count:
        problems.append("no read was answered")
    return {
        "near_ms_p50": near.percentile_ms(50),
        "near_ms_p99": near_p99_ms,
        "leader_ms_p50": leader.percentile_ms(50),
        "staler_than_said": verdict.staler_than_said,
        "reads": verdict.reads,
        "refused": sum(one.refused for one, freshness_ms in zip(heard, asked, strict=True) if freshness_ms),
        "unanswered": sum(one.failed for one in heard),
        "oldest_ms": verdict.oldest_ms,
        "writes": len(written),
        "examples": verdict.examples,
        "problems": problems,
    }
