"""The loads of the comparison: the same keys, values and mixes for every system, as calls made before the clock
starts.

A load-generating process makes its calls, and sends them round and round, each at most once at a time; loads that
write what must not exist yet go through theirs once. The values of a process's calls are larger together than any
cache of a processor.
"""

from __future__ import annotations

import gc
import itertools
import random
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager

import msgspec

from ..load.draw import Values, Walk
from ..load.loop import Source
from ..load.prepare import pour
from ..load.worker import Plan
from ..load.workload import ABSENT, Settings, kv_keys, session_names
from . import catalog
from .peer import Answer, Call, Client, checked

BATCH = 1_000
PUTS, TAKEOVERS, INSERTS = "batched_put", "batched_takeover", "batched_insert"
SINGLES, PACED, PAIRS, RESTORE = "single_put", "single_put_paced", "session_create_close", "storm"
_TAKING = (TAKEOVERS, RESTORE)
MIXES = {"ycsb_a": 0.5, "ycsb_b": 0.95, "ycsb_c": 1.0}
"""The share of reads; the rest are updates. Keys by Zipf's law."""
LATEST, LATEST_READS = "ycsb_d", 0.95
"""The rest are inserts, and the newest keys are read most."""
_POOL_BYTES = 24 * 1024 * 1024
_POOL_CALLS_MIN = 16
_INSERT_CALLS = 250  # per process; all of them are in memory
_ZIPF = 0.99
_IN_FLIGHT_BEHIND = 16_384  # a key younger than this many calls may not be written yet, so it is not read
_FILL_IN_FLIGHT = 4
_FILL_BATCH = 500
_MEASURED_SHARE = 0.85  # of calls that are made once; the warm-up takes up to a tenth of the measured ones


class Work(msgspec.Struct, frozen=True):
    """What a load consists of. ``once``: its calls cannot be repeated."""

    batch: int
    once: bool
    make: Callable[[Client, Settings], Iterator[Call]]


def _puts(client: Client, settings: Settings) -> Iterator[Call]:
    rng, keys, values = _drawn(settings)
    while True:
        yield client.put(list(zip(rng.sample(keys, settings.batch), values.pick(settings.batch), strict=True)))


def _inserts(client: Client, settings: Settings) -> Iterator[Call]:
    _, _, values = _drawn(settings)
    names = (f"namespace-{i % 64:02}/new-{settings.epoch}-{settings.share}-{i}" for i in itertools.count())
    while True:
        yield client.insert(
            list(zip(itertools.islice(names, settings.batch), values.pick(settings.batch), strict=True))
        )


def _takeovers(client: Client, settings: Settings) -> Iterator[Call]:
    """Twice round the process's own sessions in a scattered order, the second time for another broker: no broker takes
    over what it owns, however often this is repeated."""
    names = session_names(settings.keys)
    walk = Walk(random.Random(settings.seed), settings.keys, settings.share, settings.shares)
    batches = walk.length // settings.batch
    for broker in _takers(settings):
        walk = Walk(random.Random(settings.seed), settings.keys, settings.share, settings.shares)
        for _ in range(batches):
            yield client.take_over(names.at(walk.take(settings.batch)), broker)


def _takers(settings: Settings) -> Sequence[str]:
    """The brokers of a process, others in each run."""
    return [f"broker-{settings.epoch}-{settings.share}-{round_}" for round_ in range(2)]


def _mixed(share_of_reads: float) -> Callable[[Client, Settings], Iterator[Call]]:
    def make(client: Client, settings: Settings) -> Iterator[Call]:
        rng, keys, values = _drawn(settings)
        rng.shuffle(keys)
        weights = list(itertools.accumulate((i + 1) ** -_ZIPF for i in range(len(keys))))
        while True:
            for key in rng.choices(keys, cum_weights=weights, k=BATCH):
                yield client.get([key]) if rng.random() < share_of_reads else client.put([(key, values.one())])

    return make


def _latest(client: Client, settings: Settings) -> Iterator[Call]:
    rng, keys, values = _drawn(settings)
    made: list[str] = []
    at_call: list[int] = []
    ready = 0
    weights = list(itertools.accumulate((i + 1) ** -_ZIPF for i in range(len(keys))))
    ranks = range(len(keys))
    for call in itertools.count():
        if rng.random() >= LATEST_READS:
            made.append(f"namespace-{call % 64:02}/late-{settings.epoch}-{settings.share}-{call}")
            at_call.append(call)
            yield client.insert([(made[-1], values.one())])
            continue
        while ready < len(made) and at_call[ready] + _IN_FLIGHT_BEHIND < call:
            ready += 1
        (rank,) = rng.choices(ranks, cum_weights=weights)
        yield client.get([made[ready - 1 - rank] if rank < ready else keys[rank - ready]])


def _pairs(client: Client, settings: Settings) -> Iterator[Call]:
    _, _, values = _drawn(settings)
    for i in itertools.count():
        name = f"lapsing-{settings.share}-{i}"
        yield _then(client.begin([(name, values.one())]), client.end([name]))


def _then(first: Call, second: Call) -> Call:
    async def call() -> Answer:
        answer = await first()
        return answer if answer.failed else await second()

    return call


LOADS: dict[str, Work] = {
    PUTS: Work(BATCH, False, _puts),
    TAKEOVERS: Work(BATCH, False, _takeovers),
    INSERTS: Work(BATCH, True, _inserts),
    SINGLES: Work(1, False, _puts),
    PACED: Work(1, False, _puts),
    **{name: Work(1, False, _mixed(share)) for name, share in MIXES.items()},
    LATEST: Work(1, True, _latest),
    PAIRS: Work(1, False, _pairs),
    RESTORE: Work(BATCH, False, _takeovers),
}


def calls_of(load: str, settings: Settings) -> int:
    """How many calls a process makes ahead."""
    if load in _TAKING:
        return 2 * restored_calls(settings.keys, settings.batch, settings.share, settings.shares)
    if load == INSERTS:
        return _INSERT_CALLS
    return max(_POOL_CALLS_MIN, _POOL_BYTES // (settings.batch * (settings.value_bytes + 64)))


def restored_calls(sessions: int, batch: int, share: int, shares: int) -> int:
    """How many takeovers a process needs for all of its sessions."""
    return len(range(share, sessions, shares)) // batch


def requests_of(load: str, settings: Settings) -> int | None:
    """After so many requests a process is done; None: it goes on until its time is over."""
    if load == RESTORE:
        return restored_calls(settings.keys, settings.batch, settings.share, settings.shares)
    return int(_MEASURED_SHARE * calls_of(load, settings)) if LOADS[load].once else None


class Ahead:
    """Sends calls that were made ahead."""

    def __init__(self, calls: Sequence[Call]) -> None:
        self._calls = deque(calls)

    def batch(self) -> Call:
        """The next call that is not under way."""
        return self._calls.popleft()

    async def send(self, batch: Call) -> Sequence[str]:
        """What a read does not find has failed."""
        answer = await batch()
        self._calls.append(batch)
        return answer.failed or [ABSENT] * answer.values.count(None)


@asynccontextmanager
async def open_peer(name: str, plan: Plan) -> AsyncIterator[Source]:
    """The role of a load-generating process."""
    settings = plan.settings
    async with catalog.open_client(name, plan.endpoint, plan.in_flight) as client:
        made = LOADS[settings.verb].make(client, settings)
        if settings.verb in _TAKING:
            for broker in _takers(settings):
                await checked(client.enter(broker))
        calls = list(itertools.islice(made, max(calls_of(settings.verb, settings), 2 * plan.in_flight)))
        gc.collect()
        gc.freeze()  # collections need not look at what was made ahead
        yield Ahead(calls)


async def fill(name: str, endpoints: str, *, keys: int, sessions: int, value_bytes: int, seed: int) -> None:
    """Write the keys and the sessions that the loads need. Raises PeerError."""
    values = Values(random.Random(seed), value_bytes)
    names = session_names(sessions)
    every = [f"{namespace}/{key}" for namespace, key in kv_keys(keys)]
    async with catalog.open_client(name, endpoints, _FILL_IN_FLIGHT) as client:

        def calls() -> Iterator[Call]:
            for begin in range(0, keys, _FILL_BATCH):
                chunk = every[begin : begin + _FILL_BATCH]
                yield client.insert(list(zip(chunk, values.pick(len(chunk)), strict=True)))
            for begin in range(0, sessions, _FILL_BATCH):
                some = names[begin : begin + _FILL_BATCH]
                yield client.create(list(zip(some, values.pick(len(some)), strict=True)), "broker-fill")

        async def send(call: Call) -> None:
            await checked(call)

        await pour(calls(), send, _FILL_IN_FLIGHT)


def _drawn(settings: Settings) -> tuple[random.Random, list[str], Values]:
    rng = random.Random(f"{settings.seed}/{settings.share}")
    keys = [f"{namespace}/{key}" for namespace, key in kv_keys(settings.keys)]
    return rng, keys, Values(rng, settings.value_bytes)
