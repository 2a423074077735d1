"""The clients of one process come back: arrivals, calls, answers, and the next attempts of those that were turned away.

All state is in columns by position of the client. A call has clients of one broker and one group, so it is one request.

Clients are kept in order of when they are due (:class:`Wheel`), in arrays: a heap of a million objects would cost too
much.
"""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import time
from collections import Counter
from collections.abc import Coroutine, Mapping
from typing import Any

import msgspec
import numpy as np

from metad_client import MetadError
from metad_client.errors import ClosedError, DeadlineExceededError, OverloadedError
from metad_client.results import TakeoverResult
from metad_judge.sessions import Found, Sessions
from metad_wire.messages import Owner, SessionTakeoverItem
from metad_wire.policy.vector import Backoffs

from .broker import Broker
from .orders import Counts, Finish, Result
from .plan import FAMILIES, RETURN_SLOT, Places, Storm, ignores_slots, rolling_ns, ways
from .population import Clients, Ints, Kind, Stored, client_id
from .trace import Outcome, Tally, Trace

_NONE: Ints = np.empty(0, dtype=np.int64)


class Wheel:
    """Positions of clients, by the tick in which they are due."""

    def __init__(self, tick_ns: int) -> None:
        self._tick_ns = tick_ns
        self._spokes: dict[int, list[Ints]] = {}
        self._ticks: list[int] = []
        self.waiting = 0

    def push(self, where: Ints, due_ns: Ints) -> None:
        """Clients that are due at these times; none comes out before its time."""
        if not len(where):
            return
        ticks = -(-due_ns // self._tick_ns)
        order = np.argsort(ticks, kind="stable")
        where, ticks = where[order], ticks[order]
        cuts = np.flatnonzero(np.diff(ticks)) + 1
        for tick, part in zip(ticks[np.concatenate(([0], cuts))].tolist(), np.split(where, cuts), strict=True):
            spoke = self._spokes.get(tick)
            if spoke is None:
                self._spokes[tick] = [part]
                heapq.heappush(self._ticks, tick)
            else:
                spoke.append(part)
        self.waiting += len(where)

    def pop(self, now_ns: int) -> Ints:
        """All that are due by now."""
        now = now_ns // self._tick_ns
        found: list[Ints] = []
        while self._ticks and self._ticks[0] <= now:
            found += self._spokes.pop(heapq.heappop(self._ticks))
        if not found:
            return _NONE
        popped = np.concatenate(found)
        self.waiting -= len(popped)
        return popped

    @property
    def next_ns(self) -> int | None:
        """When the next client is due; None if none waits."""
        return self._ticks[0] * self._tick_ns if self._ticks else None


_YIELD_CALLS = 4  # begun in one turn of the event loop
_LIVES_LOOK_NS = 250_000_000
_AWAY = -1
_PAUSE_S = 0.1
STEP_S = 0.1
"""Of the series."""


class Wave:
    """The clients of some brokers. ``groups``: the group of each client; ``owners``: each broker's life before."""

    def __init__(
        self,
        storm: Storm,
        clients: Clients,
        mine: Places,
        groups: Ints,
        brokers: Mapping[int, Broker],
        owners: Mapping[int, Owner],
        rng: np.random.Generator,
        trace: Trace,
    ) -> None:
        self._storm = storm
        self._clients = clients
        self._kinds = storm.population.kinds
        self._mine = mine
        self._brokers = brokers
        self._before = owners
        self._rng = rng
        everyone = self._described(np.arange(len(mine.numbers)))
        hashes = (_hash(clients.stored(number, kind)) for number, kind in everyone)
        self._hashes = np.fromiter(hashes, dtype=np.int64, count=len(everyone))
        self._lane = mine.after * (int(groups.max(initial=0)) + 1) + groups
        self._items = [SessionTakeoverItem(kind.tenant, client_id(number)) for number, kind in everyone]
        count = len(mine.numbers)
        self._attempts = np.zeros(count, dtype=np.int64)
        self._begun_ns = mine.begin_ns.copy()  # of the attempt that is next, or under way
        self._restored_ns = np.full(count, _AWAY, dtype=np.int64)
        self._life = np.zeros(count, dtype=np.int64)  # which of its broker's lives has restored it
        self._waited_us = np.zeros(count, dtype=np.int64)  # before the attempt, for the backoff that remembers
        self._doubt = np.zeros(count, dtype=np.bool_)  # an attempt had no answer: it may have happened
        self._rtt_ns = np.array([round(kind.rtt_ms * 1e6) for kind in self._kinds], dtype=np.int64)[mine.kinds]
        self._groups = groups
        regions = [storm.population.regions.index(kind.region) for kind in self._kinds]
        self._regions = np.array(regions, dtype=np.int64)[mine.kinds]
        self._ways = ways(storm, mine.kinds, mine.after)
        own = storm.policy not in FAMILIES
        self._backoffs = Backoffs(
            [
                kind.backoff if own else msgspec.structs.replace(kind.backoff, family=FAMILIES[storm.policy])
                for kind in self._kinds
            ]
        )
        self._obeys = {n: storm.policy == RETURN_SLOT and not ignores_slots(storm, n) for n in brokers}
        self._expected = int(mine.returns.sum())
        self._restored = self._sent = self._refused = 0
        self._failed: Counter[str] = Counter()
        self._done = False
        self._calls: set[asyncio.Task[None]] = set()
        self._lives: set[asyncio.Task[None]] = set()
        self._bugs: list[BaseException] = []
        self._judge = Sessions()
        self._trace = trace
        self._tally = Tally(STEP_S, round(storm.limit_s / STEP_S) + 1)
        self._woken = asyncio.Event()
        self._cpu_s = 0.0
        self._t0_ns = 0
        self._limit_ns = round(storm.limit_s * 1e9)
        self._wheel = Wheel(round(storm.linger_ms * 1e6))

    def counts(self) -> Counts:
        """So far."""
        return Counts(self._sent, self._restored, self._refused, self._failed.total(), self._done)

    def owners(self, where: Ints) -> list[list[Owner]]:
        """The lives that may own each client's session now."""
        restored, doubt, mine = self._restored_ns[where] != _AWAY, self._doubt[where], self._mine
        return [
            [self._brokers[after].lives[life]]
            if back
            else [self._before[before], *(self._brokers[after].lives if maybe else [])]
            for back, maybe, life, before, after in zip(
                restored.tolist(),
                doubt.tolist(),
                self._life[where].tolist(),
                mine.before[where].tolist(),
                mine.after[where].tolist(),
                strict=True,
            )
        ]

    async def run(self, t0_ns: int) -> None:
        """From the trigger until all are back, or the limit is over."""
        self._t0_ns = t0_ns
        for broker in self._brokers.values():
            broker.retries.begin()
        # In no order: in that of the keys, requests that come together would look for neighbours in the store.
        returning = self._rng.permutation(np.flatnonzero(self._mine.returns))
        self._wheel.push(returning, self._begun_ns[returning] + self._rtt_ns[returning])
        cpu_s = time.process_time()
        looked_ns = 0
        restarts = self._restarts()
        try:
            while self._restored < self._expected and (now_ns := self._now_ns()) < self._limit_ns:
                if now_ns - looked_ns >= _LIVES_LOOK_NS:
                    looked_ns = now_ns
                    self._look_at_lives()
                while restarts and restarts[-1][0] <= now_ns:
                    self._spawn(self._lives, self._brokers[restarts.pop()[1]].restart())
                await self._arrive(self._wheel.pop(now_ns))
                next_ns = self._wheel.next_ns
                pause_s = _PAUSE_S if next_ns is None else min(_PAUSE_S, (next_ns - self._now_ns()) / 1e9)
                if restarts:
                    pause_s = min(pause_s, (restarts[-1][0] - self._now_ns()) / 1e9)
                await self._pause(pause_s)
                self._raise_bugs()
        finally:
            for task in (*self._calls, *self._lives):
                task.cancel()
            await asyncio.gather(*self._calls, *self._lives, return_exceptions=True)
            self._cpu_s = time.process_time() - cpu_s  # without what writes the trace
            self._trace.close()
            self._done = True

    def result(self, order: Finish) -> Result:
        """What came of it."""
        back = self._restored_ns[self._mine.returns]
        waited_ns = np.where(back == _AWAY, _AWAY, back - self._mine.begin_ns[self._mine.returns])
        retried: Counter[str] = Counter()
        repeated: Counter[str] = Counter()
        for broker in self._brokers.values():
            retried += broker.retries.reasons
            repeated += broker.retries.clients
        return Result(
            waited_ns,
            int(self._attempts.sum()),
            self._expected,
            self._refused,
            dict(self._failed),
            self._tally.series(order.steps),
            self._judge.verdict,
            dict(retried),
            dict(repeated),
            sum(broker.retries.requests for broker in self._brokers.values()),
            sum(broker.lives_lost for broker in self._brokers.values()),
            self._cpu_s,
        )

    # --- the way of an attempt ---

    async def _pause(self, pause_s: float) -> None:
        """Wait for so long, or until there is something to do."""
        self._woken.clear()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(max(0.0, pause_s)):
                await self._woken.wait()

    async def _arrive(self, where: Ints) -> None:
        """These clients are at their brokers."""
        if not len(where):
            return
        lanes = self._lane[where]
        order = np.argsort(lanes, kind="stable")
        where, lanes = where[order], lanes[order]
        cuts = np.flatnonzero(np.diff(lanes)) + 1
        begun = 0
        for part in np.split(where, cuts):
            broker = self._brokers[int(self._mine.after[part[0]])]
            for at in range(0, len(part), self._storm.batch):
                self._spawn(self._calls, self._attempt(broker, part[at : at + self._storm.batch]))
                begun += 1
                if begun % _YIELD_CALLS == 0:
                    await asyncio.sleep(0)

    async def _attempt(self, broker: Broker, where: Ints) -> None:
        await broker.ready.wait()
        items = [self._items[at] for at in where.tolist()]
        self._attempts[where] += 1
        self._sent += len(items)
        sent_ns = self._now_ns()
        owner = broker.owner
        try:
            taken = await broker.client.sessions.takeover_many(
                owner.broker,
                owner.broker_epoch,
                items,
                restore=True,
                restore_parts=True,
                deadline_s=self._storm.population.timeout_s,
            )
        except MetadError as error:
            self._in_vain(broker, where, sent_ns, error)
            return
        except asyncio.CancelledError:
            self._doubt[where] = True  # the limit is over, and nobody waits for the answer
            raise
        if not taken.ok:
            failed = taken.errors
            for at, why in failed.items():
                self._in_vain(broker, where[at : at + 1], sent_ns, why)
            good = np.array([at for at in range(len(where)) if at not in failed], dtype=np.int64)
        else:
            good = np.arange(len(where))
        if len(good):
            self._back(broker, owner, where, good, sent_ns, taken)

    def _back(self, broker: Broker, owner: Owner, where: Ints, good: Ints, sent_ns: int, taken: TakeoverResult) -> None:
        """The clients at these places of a call are restored."""
        now_ns = self._now_ns()
        self._judge_restored(broker, where, good, taken)
        clients = where[good]
        if now_ns >= self._limit_ns:  # as of calls that are cut off: nobody waits for the answer any more
            self._doubt[clients] = True
            return
        self._restored_ns[clients] = now_ns
        self._life[clients] = broker.lives.index(owner)
        self._restored += len(clients)
        if self._restored == self._expected:
            self._woken.set()
        self._note(broker, clients, sent_ns, now_ns, Outcome.RESTORED)

    def _in_vain(self, broker: Broker, where: Ints, sent_ns: int, error: MetadError) -> None:
        """These clients are not restored: each waits as its policy says, and tries again."""
        now_ns = self._now_ns()
        slot_ms, jitter_ms = -1, 0
        if isinstance(error, OverloadedError):
            outcome = Outcome.REFUSED
            self._refused += len(where)
        else:
            outcome = Outcome.TIMEOUT if isinstance(error, DeadlineExceededError) else Outcome.FAILED
            self._failed[error.name] += len(where)
        if error.retry_after_ms:
            slot_ms, jitter_ms = error.retry_after_ms, error.retry_jitter_ms
        if not error.outcome_known or isinstance(error, ClosedError):
            self._doubt[where] = True
        self._note(broker, where, sent_ns, now_ns, outcome, slot_ms, jitter_ms)
        u = self._rng.random(len(where))
        if slot_ms >= 0 and self._obeys[broker.number]:
            spread_ms = (2 * u - 1) * jitter_ms
            waits_us = (np.maximum(0.0, slot_ms + spread_ms) * 1_000).astype(np.int64)
        else:
            kinds, retries = self._mine.kinds[where], self._attempts[where] - 1
            waits_us = self._backoffs.waits_us(kinds, retries, self._waited_us[where], u)
            self._waited_us[where] = waits_us
        self._begun_ns[where] = now_ns + waits_us * 1_000
        self._wheel.push(where, self._begun_ns[where] + self._rtt_ns[where])
        self._woken.set()

    def _note(
        self,
        broker: Broker,
        where: Ints,
        sent_ns: int,
        now_ns: int,
        outcome: Outcome,
        slot_ms: int = -1,
        jitter_ms: int = 0,
    ) -> None:
        self._tally.note(self._begun_ns[where], sent_ns, now_ns, outcome)
        self._trace.note(
            self._mine.numbers[where],
            broker.number,
            self._attempts[where],
            self._begun_ns[where],
            sent_ns,
            now_ns,
            outcome,
            slot_ms,
            jitter_ms,
            group=self._groups[where],
            kind=self._mine.kinds[where],
            region=self._regions[where],
            policy=self._ways[where],
        )

    def _judge_restored(self, broker: Broker, where: Ints, good: Ints, taken: TakeoverResult) -> None:
        """Look whether what was restored is what was stored, and came from the owner before. A batch that is right
        costs a hash for each client and a comparison of columns."""
        mine, chosen, count = self._mine, where[good], len(where)
        properties = taken.restored or [None] * count
        filters = taken.restored_subscriptions or [None] * count
        states = taken.restored_inflight or [None] * count
        columns = zip(properties, filters, states, strict=True)
        hashes = np.fromiter(map(_hash, columns), dtype=np.int64, count=count)
        places_ = np.array([self._place_of(one) for one in taken.owners] + [_AWAY], dtype=np.int64)
        before = places_[np.array(taken.previous_index, dtype=np.int64)]  # -1, no owner, finds the last
        if (hashes[good] == self._hashes[chosen]).all() and (before[good] == mine.before[chosen]).all():
            return
        owned, doubt = mine.before[chosen].tolist(), self._doubt[chosen].tolist()
        rows = zip(self._described(chosen), owned, doubt, good.tolist(), strict=True)
        for (number, kind), n, maybe, at in rows:
            right = [self._before[n], *(broker.lives if maybe else [])]
            stored = None if properties[at] is None else (properties[at], filters[at] or [], states[at] or [])
            found = Found(taken.previous(at), stored)
            self._judge.see(number, right, self._clients.stored(number, kind), found, "when it came back")

    def _place_of(self, owner: Owner) -> int:
        """The number of the broker whose life before the storm this is; -1 if it is another life."""
        return next((number for number, life in self._before.items() if life == owner), _AWAY)

    def _described(self, where: Ints) -> list[tuple[int, Kind]]:
        mine, kinds = self._mine, self._kinds
        return [
            (number, kinds[kind])
            for number, kind in zip(mine.numbers[where].tolist(), mine.kinds[where].tolist(), strict=True)
        ]

    # --- the brokers' lives ---

    def _restarts(self) -> list[tuple[int, int]]:
        """Times and brokers, the first of them last."""
        if self._storm.trigger != "rolling":
            return []
        times = rolling_ns(self._storm)
        return sorted(((int(times[n]), n) for n in self._brokers), reverse=True)

    def _look_at_lives(self) -> None:
        for broker in self._brokers.values():
            if broker.is_lost:
                broker.ready.clear()
                self._spawn(self._lives, broker.recover())

    def _spawn(self, tasks: set[asyncio.Task[None]], work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._calls.discard(task)
        self._lives.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._bugs.append(error)

    def _raise_bugs(self) -> None:
        if self._bugs:
            raise self._bugs[0]

    def _now_ns(self) -> int:
        return time.monotonic_ns() - self._t0_ns


def _hash(stored: Stored) -> int:
    """What belongs to a session, as a number; the same in all of a process."""
    properties, filters, states = stored
    return hash((properties, tuple(filters or ()), tuple(states or ())))
