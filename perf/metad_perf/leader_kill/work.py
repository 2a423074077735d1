"""A process of brokers that work at an even pace, whatever happens to their requests, and know what must be there.

An open loop: a request is due at its time, and its latency counts from then. Brokers are registered, each with a
client and a life of its own; the SDK repeats what may be repeated. An observer counts what a caller without
repetitions would have seen.
"""

from __future__ import annotations

import asyncio
import random
from array import array
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, NamedTuple

import msgspec

from metad_client import (
    BrokerLife,
    Client,
    KvKey,
    KvPutItem,
    LifeState,
    MetadError,
    Observer,
    OffsetCommitItem,
    OffsetKey,
    Options,
    Redirected,
    Retried,
    SessionKey,
    SessionProperties,
    SessionTakeoverItem,
    SessionUpdateItem,
)
from metad_client.observer import Ended
from metad_client.results import WriteResult
from metad_judge.acknowledged import Seen, Verdict, fresh, handed_on, settled
from metad_wire.cluster import ClusterMap

from ..commands import LeaderKill
from ..errors import PreparationError, WorkerError
from ..load.draw import Values
from ..load.timing import SYSTEM
from ..target import open_client
from .plan import (
    COMMIT,
    PUT,
    READ,
    SEQUENCE_BYTES,
    TAKEOVER,
    TENANT,
    TOPIC,
    UPDATE,
    VERBS,
    Draw,
    Ledger,
    Lot,
    Namer,
    number_of,
    numbered,
)

_EXPIRY_S = 86_400
_LEASE_S = 60.0
"""Longer than any outage of a round: a broker that loses its life measures nothing any more."""
_READ_IN_FLIGHT = 16
_OBSERVED = frozenset({PUT, UPDATE, TAKEOVER, COMMIT, "kv.get", "session.get"})


class Begin(msgspec.Struct, frozen=True):
    """Work from now on."""


class Take(msgspec.Struct, frozen=True):
    """The reply: :class:`Done`, what has ended since the last time."""


class End(msgspec.Struct, frozen=True):
    """Make no more requests, and wait for those under way. The reply: :class:`Done`."""


class Judge(msgspec.Struct, frozen=True):
    """Read everything. The reply: :class:`~metad_judge.acknowledged.Verdict`."""


class Done(msgspec.Struct, frozen=True):
    """Requests that have ended. By position: when each was due by the machine's monotonic clock, how long it took, and
    :func:`code` of what it was. ``first``: what happened to requests that a caller without repetitions would have seen
    fail, by name; ``errors``: failures of items, by name, after the repetitions."""

    due_ns: array[int]
    took_ns: array[int]
    codes: array[int]
    first: dict[str, int]
    errors: dict[str, int]


class What(NamedTuple):
    """What a request was: a number of :data:`~.plan.VERBS`, the number of its group, and whether it succeeded."""

    verb: int
    group: int
    ok: bool


def code(what: What) -> int:
    """As one number."""
    return (what.group * len(VERBS) + what.verb) * 2 + what.ok


def decoded(number: int) -> What:
    """What :func:`code` has made."""
    group, verb = divmod(number >> 1, len(VERBS))
    return What(verb, group, bool(number & 1))


class First(Observer):
    """Counts requests whose first attempt failed: ``refused`` (nothing was done), ``unknown`` (perhaps it was), and in
    ``failed`` all of them, by the end of each."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()

    def retried(self, event: Retried) -> None:
        if event.attempts == 1 and event.verb in _OBSERVED:
            self.counts["refused" if event.reason.outcome_known else "unknown"] += 1
            self.counts[f"by {event.reason.name}"] += 1

    def redirected(self, event: Redirected) -> None:
        if event.verb in _OBSERVED:
            self.counts["redirected"] += 1

    def ended(self, event: Ended) -> None:
        if event.verb in _OBSERVED and (event.attempts > 1 or event.outcome != "ok"):
            self.counts["failed"] += 1


class Broker(NamedTuple):
    """One of the process."""

    client: Client
    life: BrokerLife


class Work:
    """The role of the process."""

    def __init__(
        self, measurement: LeaderKill, share: int, cluster: ClusterMap, brokers: Sequence[Broker], first: First
    ):
        self._measurement = measurement
        self._brokers = brokers
        self._first = first
        rng = random.Random(f"{measurement.seed}/{share}")
        self._draw = Draw(rng, cluster)
        self._namer = Namer(cluster, f"p{share}")
        self._groups = {name: at for at, name in enumerate(group_names(cluster))}
        self._values = Values(rng, max(1, measurement.value_bytes - SEQUENCE_BYTES))
        self.ledger = Ledger()
        self.verdict = Verdict()
        self._due, self._took, self._codes = array("q"), array("q"), array("l")
        self._errors: Counter[str] = Counter()
        self._reads = 0
        self._pacing: asyncio.Task[None] | None = None
        self._calls: set[asyncio.Task[None]] = set()
        self._bug: BaseException | None = None

    async def carry_out(self, order: Any) -> Any:
        match order:
            case Begin():
                self._pacing = asyncio.create_task(self._pace())
                return None
            case Take():
                return self._done()
            case End():
                await self.stop()
                return self._done()
            case Judge():
                return await self._judge()
        raise TypeError(f"no order {order!r}")

    async def stop(self) -> None:
        """Make no more requests, and wait for those under way. Raises what ended the pace earlier."""
        pacing, self._pacing = self._pacing, None
        if pacing is not None:
            pacing.cancel()
            (ended,) = await asyncio.gather(pacing, return_exceptions=True)
            if isinstance(ended, Exception):
                raise ended
        if self._calls:
            await asyncio.wait(self._calls)

    def _done(self) -> Done:
        if self._bug is not None:
            raise self._bug
        lost = [one.life for one in self._brokers if one.life.state is LifeState.LOST]
        if lost:
            why = f"{lost[0].broker} has lost its life ({lost[0].over})"
            raise WorkerError(f"{why}: --rate is too high for this machine, or nobody leads")
        done = Done(self._due, self._took, self._codes, dict(self._first.counts), dict(self._errors))
        self._due, self._took, self._codes = array("q"), array("q"), array("l")
        self._first.counts.clear()
        self._errors.clear()
        return done

    # --- the load ---

    async def _pace(self) -> None:
        measurement = self._measurement
        interval_ns = 1e9 * measurement.batch * measurement.processes / measurement.rate
        begin_ns = SYSTEM.now_ns()
        count = 0
        while True:
            due_ns = begin_ns + round(count * interval_ns)
            if due_ns > SYSTEM.now_ns():
                await SYSTEM.sleep_until_ns(due_ns)
            elif count % 16 == 0:
                await asyncio.sleep(0)  # behind: answers must be read all the same
            count += 1
            task = asyncio.create_task(self._one(due_ns))
            self._calls.add(task)
            task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._calls.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._bug = self._bug or error

    async def _one(self, due_ns: int) -> None:
        verb, group = self._draw.next()
        failed = await (self._read(group) if verb == READ else self._write(verb, group))
        if failed:
            self._errors.update(failed)
        self._due.append(due_ns)
        self._took.append(SYSTEM.now_ns() - due_ns)
        self._codes.append(code(What(VERBS.index(verb), self._groups[group], not failed)))

    async def _write(self, verb: str, group: str) -> Sequence[str]:
        """Returns a name for each item that was not acknowledged."""
        ledger = self.ledger
        lot = ledger.take(verb, group, lambda: self._new(verb, group))
        try:
            result = await self._send(lot)
        except MetadError as error:
            ledger.failed(lot, known=error.outcome_known)
            return [error.name] * len(lot.names)
        if result.ok:
            ledger.acknowledged(lot)
            return ()
        errors = result.errors
        # Items of one request that have different outcomes: nobody knows the lot's number any more.
        all_known = len(errors) == len(lot.names) and all(error.outcome_known for error in errors.values())
        ledger.failed(lot, known=all_known)
        return [error.name for error in errors.values()]

    def _new(self, verb: str, group: str) -> Lot:
        place, names = self._namer.names(verb, group, self._measurement.batch)
        return Lot(verb=verb, group=group, place=place, names=names, home=len(self.ledger.lots) % len(self._brokers))

    def _taker(self, lot: Lot, number: int) -> Broker:
        """Who takes the sessions of a lot for the n-th time. Those of updates stay where they are."""
        return self._brokers[(lot.home + (number if lot.verb == TAKEOVER else 0)) % len(self._brokers)]

    async def _send(self, lot: Lot) -> WriteResult:
        number = lot.next
        values = [numbered(number, filling) for filling in self._values.pick(len(lot.names))]
        client, life = self._taker(lot, number)
        match lot.verb:
            case "kv.put":
                return await client.kv.put_many(
                    [KvPutItem(lot.place, name, value) for name, value in zip(lot.names, values, strict=True)]
                )
            case "offset.commit":
                return await client.offsets.commit_many(
                    [OffsetCommitItem(TENANT, lot.place, TOPIC, int(name), number) for name in lot.names]
                )
        properties = [SessionProperties(_EXPIRY_S, value) for value in values]
        pairs = list(zip(lot.names, properties, strict=True))
        if lot.verb == UPDATE and number > 1:
            return await client.sessions.update_many(
                life.broker, life.epoch, [SessionUpdateItem(TENANT, name, one) for name, one in pairs]
            )
        taken = await client.sessions.takeover_many(
            life.broker, life.epoch, [SessionTakeoverItem(TENANT, name, False, one) for name, one in pairs]
        )
        if taken.ok:
            before = self._taker(lot, number - 1).life.broker if number > 1 else None
            for name, at in zip(lot.names, taken.previous_index, strict=True):
                handed_on(self.verdict, lot.label(name), taken.owners[at].broker if at >= 0 else None, before)
        return taken

    async def _read(self, group: str) -> Sequence[str]:
        self._reads += 1
        lot = self.ledger.any(PUT if self._reads % 2 else UPDATE, group)
        if lot is None:
            return ()  # at the very beginning
        least = lot.acknowledged
        try:
            seen = await self._look(lot)
        except MetadError as error:
            return [error.name] * len(lot.names)
        for name, one in zip(lot.names, seen, strict=True):
            fresh(self.verdict, lot.label(name), one, least)
        return ()

    # --- the judgement ---

    async def _look(self, lot: Lot) -> list[Seen | None]:
        """What is stored of a lot. Raises MetadError if one of its records could not be read."""
        client = self._brokers[lot.home].client
        if lot.verb == PUT:
            rows = await client.kv.get_many([KvKey(lot.place, name) for name in lot.names])
            rows.raise_for_error()
            return [None if row is None else Seen(number_of(row.value), row.version) for row in rows]
        if lot.verb == COMMIT:
            offsets = await client.offsets.fetch_many(
                [OffsetKey(TENANT, lot.place, TOPIC, int(name)) for name in lot.names]
            )
            offsets.raise_for_error()
            return [None if one is None else Seen(one.offset) for one in offsets]
        sessions = await client.sessions.get_many([SessionKey(TENANT, name) for name in lot.names])
        sessions.raise_for_error()
        return [None if one is None else Seen(number_of(one.properties.payload)) for one in sessions]

    async def _judge(self) -> Verdict:
        waiting = iter(self.ledger.lots)

        async def reader() -> None:
            for lot in waiting:  # shared: each reader takes the next
                for name, one in zip(lot.names, await self._look(lot), strict=True):
                    settled(self.verdict, lot.label(name), one, lot.acknowledged, lot.in_doubt)

        async with asyncio.TaskGroup() as tasks:
            for _ in range(_READ_IN_FLIGHT):
                tasks.create_task(reader())
        return self.verdict


def group_names(cluster: ClusterMap) -> list[str]:
    """All groups, in the order of their numbers in samples."""
    return sorted(group.group_id.name for group in cluster.groups)


@asynccontextmanager
async def open_work(target: str, measurement: LeaderKill, share: int) -> AsyncIterator[Work]:
    """The role of a process: its brokers begin their lives."""
    first = First()
    async with AsyncExitStack() as stack:
        brokers = []
        cluster: ClusterMap | None = None
        for n in range(measurement.clients):
            name = f"broker-{share}-{n}"
            options = Options(deadline_s=measurement.deadline_s, batch_items=measurement.batch, client_name=name)
            client = await stack.enter_async_context(open_client(target, options, first))
            brokers.append(Broker(client, await client.brokers.register(name, lease_s=_LEASE_S)))
            cluster = (await client.cluster.map()).map
        if cluster is None:
            raise PreparationError("the cluster has no map")
        work = Work(measurement, share, cluster, brokers, first)
        try:
            yield work
        finally:
            await work.stop()
