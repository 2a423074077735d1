"""The brokers of one process: clients arrive, calls begin and are repeated by the SDK, and those who were turned away
wait as their policy says. As in ``metad_perf.storm.wave``.
"""

from __future__ import annotations

import heapq
import math
import random
from collections import deque
from collections.abc import Iterator
from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt

from metad_wire.messages import Identity
from metad_wire.policy import Backoff
from metad_wire.policy.vector import Backoffs

from .cores import Machine, Process
from .costs import BROKER, Costs, growth
from .messages import Ints, Request
from .node import Cluster, Node
from .storm import Storm

AWAY: Final = -1.0
TOLD: Final = ("attempts", "refused", "timeouts")
_TURN: Final = 64
"""Ticks that are divided together."""


def _divided(keys: Ints, one: Ints, other: Ints) -> Iterator[tuple[int, Ints, Ints]]:
    """Two columns by key, in order of the keys, and of the columns within."""
    order = np.argsort(keys, kind="stable")
    keys, one, other = keys[order], one[order], other[order]
    begins = np.concatenate(([0], np.flatnonzero(np.diff(keys)) + 1)).tolist()
    for begin, end in zip(begins, [*begins[1:], len(keys)], strict=True):
        yield int(keys[begin]), one[begin:end], other[begin:end]


class Clients:
    """The state of all clients, in columns; times are seconds after the trigger."""

    def __init__(self, storm: Storm) -> None:
        count = len(storm.kinds)
        self.storm = storm
        self.begun_s = storm.begin_ns / 1e9
        self.restored_s: npt.NDArray[np.float64] = np.full(count, AWAY)
        self.attempts: Ints = np.zeros(count, dtype=np.int64)
        self.waited_us: Ints = np.zeros(count, dtype=np.int64)
        kinds = storm.settings.population.kinds
        self.rtt_s = np.array([kind.rtt_ms / 1e3 for kind in kinds])[storm.kinds]
        self.parts: Ints = np.array([kind.subscriptions + kind.inflight for kind in kinds], dtype=np.int64)[storm.kinds]
        self.tenants = [kind.tenant.encode() for kind in kinds]
        self.backoffs = Backoffs(storm.backoffs)
        self.lane: Ints = storm.brokers * storm.data_groups + storm.groups
        self.restored = self.sent = self.again = self.refused = self.timeouts = 0
        regions = list(dict.fromkeys(kind.region for kind in kinds))
        self.region: Ints = np.array([regions.index(kind.region) for kind in kinds], dtype=np.int64)[storm.kinds]
        shape = (len(regions), math.ceil(storm.settings.limit_s) + 1)
        self.told: dict[str, Ints] = {name: np.zeros(shape, dtype=np.int64) for name in TOLD}
        """By region and second."""

    def tell(self, what: str, clients: Ints, now: float) -> None:
        """Count these clients."""
        counts = self.told[what]
        counts[:, min(int(now), counts.shape[1] - 1)] += np.bincount(self.region[clients], minlength=len(counts))


class Lane:
    """The clients of one broker and one group that wait for a call, where only so many calls may be in flight; each
    chunk with when it came."""

    __slots__ = ("broker", "chunks", "in_flight", "timed")

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.chunks: deque[tuple[Ints, float]] = deque()
        self.in_flight = 0
        self.timed = False

    def take(self, most: int) -> tuple[Ints, float]:
        """The next call's clients, and when the first of them came."""
        came_s, found, count = self.chunks[0][1], [], 0
        while self.chunks and count < most:
            clients, at_s = self.chunks.popleft()
            if len(clients) > most - count:
                self.chunks.appendleft((clients[most - count :], at_s))
                clients = clients[: most - count]
            found.append(clients)
            count += len(clients)
        return (found[0] if len(found) == 1 else np.concatenate(found)), came_s


class Broker:
    """One broker: its calls, with what the SDK does."""

    def __init__(self, crew: Crew, number: int) -> None:
        self._crew = crew
        self._storm = crew.clients.storm
        self.number = number
        self.obeys, ignores = self._storm.obeys(number), self._storm.ignores(number)
        self._backoff = Backoff(retry_after="ignore" if ignores else "honour")
        self._repeats = self._storm.settings.sdk_retries
        self._calls = 0
        self.ready_s = 0.0

    def call(self, clients: Ints, came_s: float | None = None) -> None:
        """Begin a call. ``came_s``: when the first of its clients came, if they had to wait for it."""
        crew, state = self._crew, self._crew.clients
        self._calls += 1
        now = crew.machine.now
        request = Request(
            self,
            clients,
            int(self._storm.groups[clients[0]]),
            int(state.parts[clients].sum()),
            state.tenants[int(self._storm.kinds[clients[0]])],
            (now if came_s is None else came_s) + self._storm.settings.population.timeout_s,
        )
        request.identity = Identity(self.number + 1, self._calls, 0, 0)
        state.attempts[clients] += 1
        state.sent += request.items
        state.tell("attempts", clients, now)
        crew.calls += 1
        crew.attempted += request.items
        crew.machine.at(request.deadline_s, self._late, request)
        self.send(request)

    def send(self, request: Request) -> None:
        """Begin an attempt, at the leader of its group."""
        machine = self._crew.machine
        request.attempts += 1
        request.number += 1
        request.sent_s = machine.now
        leader = request.target = self._crew.cluster.leaders[request.group]
        self._crew.flying[request] = None
        machine.at(machine.now + self._crew.costs.delay_s, leader.receive, request, request.number)

    def _late(self, request: Request) -> None:
        if request.waits:
            request.waits = False
            request.number += 1
            self._crew.flying.pop(request, None)
            self._crew.clients.timeouts += request.items
            self._crew.clients.tell("timeouts", request.clients, self._crew.machine.now)
            self._crew.in_vain(self, request.clients, None)
            self._crew.ended(request)

    # --- Asker ---

    def done(self, request: Request, now: float) -> None:
        """Its clients are back once the broker has looked at the answer."""
        crew = self._crew
        request.waits = False
        crew.flying.pop(request, None)
        cost_s = crew.back_s * request.items + crew.costs.back_part_s * request.parts
        crew.process.add(lambda at: (cost_s, lambda end: crew.back(request.clients, end)))
        crew.ended(request)

    def refused(self, request: Request, after_ms: int, jitter_ms: int, now: float) -> None:
        """Repeat it if the SDK does, and it fits the deadline; otherwise tell its clients."""
        self._crew.flying.pop(request, None)
        self._crew.clients.refused += request.items
        self._crew.clients.tell("refused", request.clients, now)
        if self._repeats:
            if self._backoff.retry_after == "honour" and after_ms:
                due_s = now + self._backoff.returning_s(after_ms, jitter_ms, self._crew.rng)
            else:
                due_s = now + self._backoff.delay_s(request.attempts - 1, self._crew.rng)
            if due_s < request.deadline_s:
                self._crew.clients.again += request.items
                self._crew.clients.tell("attempts", request.clients, now)
                self._crew.machine.at(due_s, self._resend, request, request.number)
                return
        request.waits = False
        self._crew.in_vain(self, request.clients, (after_ms, jitter_ms))
        self._crew.ended(request)

    def _resend(self, request: Request, number: int) -> None:
        if request.waits and request.number == number:
            self.send(request)

    def lost(self, request: Request, now: float) -> None:
        """Its node is dead: it waits until another leads the group."""
        self._crew.flying.pop(request, None)
        if request.waits:
            request.number += 1
            self._crew.stranded.append(request)


def begins_anew_s(storm: Storm, costs: Costs) -> list[float]:
    """When each broker takes clients in its next life, in seconds; none if they are not restarted."""
    return [at_ns / 1e9 + costs.restart_s for at_ns in storm.restarts_ns()]


class Crew:
    """A process of brokers."""

    def __init__(
        self, machine: Machine, cluster: Cluster, costs: Costs, clients: Clients, number: int, seed: int
    ) -> None:
        storm = clients.storm
        share = storm.broker_share
        costs = msgspec.structs.replace(costs, **{key: getattr(costs, key) / share for key in BROKER})
        self.machine, self.cluster, self.costs, self.clients = machine, cluster, costs, clients
        self.process = Process(machine)
        self.rng = random.Random(seed * 1_000_003 + number)
        self.calls = self.attempted = 0
        self.back_s = costs.back_s + costs.grown_back_s * growth(
            storm.settings.sessions / share / storm.settings.processes
        )
        self.stranded: list[Request] = []
        self.flying: dict[Request, None] = {}
        """Without an answer."""
        self._draws = np.random.default_rng([seed, number])
        self._tick_s = storm.settings.linger_ms / 1e3
        self._wheel: dict[int, list[Ints]] = {}
        self._ticks: list[int] = []
        self._turns: dict[int, list[tuple[Ints, Ints]]] = {}
        """Clients and their ticks, of :data:`_TURN` ticks together that are far ahead."""
        self._turned = -1  # the last of these that has been divided into its ticks
        self._lanes: dict[int, Lane] = {}
        self._arriving = False
        self._brokers = {n: Broker(self, n) for n in range(number, storm.settings.brokers, storm.settings.processes)}
        mine = np.flatnonzero((storm.brokers % storm.settings.processes == number) & storm.returns)
        if ready_s := begins_anew_s(storm, costs):
            for n, broker in self._brokers.items():
                broker.ready_s = ready_s[n]
        cluster.kept.append(self._led)
        cluster.dead.append(self._died)
        self._push(mine, clients.begun_s[mine] + clients.rtt_s[mine])

    # --- arrivals ---

    def _push(self, where: Ints, due_s: npt.NDArray[np.float64]) -> None:
        if not len(where):
            return
        ticks = np.ceil(due_s / self._tick_s - 1e-9).astype(np.int64)
        for turn, part, of_part in _divided(ticks // _TURN, where, ticks):
            if turn <= self._turned:
                self._at_ticks(part, of_part)
            elif (kept := self._turns.get(turn)) is None:
                self._turns[turn] = [(part, of_part)]
                self.machine.at((turn * _TURN - 1) * self._tick_s, self._turn, turn)
            else:
                kept.append((part, of_part))

    def _turn(self, turn: int) -> None:
        """Ticks are near: divide their clients. Once for many, because each is an event and an array."""
        self._turned = max(self._turned, turn)
        kept = self._turns.pop(turn)
        self._at_ticks(*(np.concatenate(each) for each in zip(*kept, strict=True)))

    def _at_ticks(self, where: Ints, ticks: Ints) -> None:
        for tick, part, _ in _divided(ticks, where, ticks):
            spoke = self._wheel.get(tick)
            if spoke is None:
                self._wheel[tick] = [part]
                heapq.heappush(self._ticks, tick)
                self.machine.at(tick * self._tick_s, self._due)
            else:
                spoke.append(part)

    def _due(self) -> None:
        """A tick has come: what is due by the time that the loop gets there arrives together."""
        if not self._arriving:
            self._arriving = True
            self.process.add(lambda now: (0.0, self._arrive))

    def _arrive(self, now: float) -> None:
        self._arriving = False
        found: list[Ints] = []
        while self._ticks and self._ticks[0] * self._tick_s <= now + 1e-9:
            found += self._wheel.pop(heapq.heappop(self._ticks))
        if not found:
            return
        where = np.concatenate(found)
        batch, groups = self.clients.storm.settings.batch, self.clients.storm.data_groups
        for number, part, _ in _divided(self.clients.lane[where], where, where):
            broker = self._brokers[number // groups]
            if self.clients.storm.lane_calls:
                lane = self._lanes.get(number)
                if lane is None:
                    lane = self._lanes[number] = Lane(broker)
                lane.chunks.append((part, self.machine.now))
                self._fill(lane)
                continue
            for at in range(0, len(part), batch):
                self._begin(broker, part[at : at + batch])

    def _begin(self, broker: Broker, clients: Ints, came_s: float | None = None) -> None:
        if broker.ready_s > self.machine.now:
            self.machine.at(broker.ready_s, self._begin, broker, clients, came_s)
            return
        cost_s = self.costs.call_s + self.costs.attempt_s * len(clients)
        self.process.add_to_begin(lambda now: (cost_s, lambda end: broker.call(clients, came_s)))

    # --- calls in flight ---

    def _fill(self, lane: Lane) -> None:
        """Begin what calls may be begun. Clients that have waited for as long as they wait for an answer give up."""
        state, storm = self.clients, self.clients.storm
        patience_s = storm.settings.population.timeout_s
        late: list[Ints] = []
        while lane.chunks and lane.chunks[0][1] + patience_s <= self.machine.now + 1e-9:
            late.append(lane.chunks.popleft()[0])
        if late:
            clients = np.concatenate(late)
            state.attempts[clients] += 1
            state.sent += len(clients)
            state.timeouts += len(clients)
            for what in ("attempts", "timeouts"):
                state.tell(what, clients, self.machine.now)
            self.in_vain(lane.broker, clients, None)
        while lane.chunks and lane.in_flight < storm.lane_calls:
            lane.in_flight += 1
            self._begin(lane.broker, *lane.take(storm.settings.batch))
        if lane.chunks and not lane.timed:
            lane.timed = True
            self.machine.at(lane.chunks[0][1] + patience_s, self._expired, lane)

    def _expired(self, lane: Lane) -> None:
        lane.timed = False
        self._fill(lane)

    def ended(self, request: Request) -> None:
        """A call has its answer, or is given up: the next one of its lane may begin."""
        if self._lanes:
            lane = self._lanes[int(self.clients.lane[request.clients[0]])]
            lane.in_flight -= 1
            if lane.chunks:
                self._fill(lane)

    # --- what becomes of them ---

    def back(self, clients: Ints, now: float) -> None:
        """They are restored."""
        self.clients.restored_s[clients] = now
        self.clients.restored += len(clients)

    def in_vain(self, broker: Broker, clients: Ints, slot: tuple[int, int] | None) -> None:
        """They are not: each waits, and comes again."""
        state, now = self.clients, self.machine.now
        u = self._draws.random(len(clients))
        if slot is not None and slot[0] > 0 and broker.obeys:
            waits_s = np.maximum(0.0, slot[0] + (2 * u - 1) * slot[1]) / 1e3
        else:
            kinds, retries = state.storm.kinds[clients], state.attempts[clients] - 1
            waits_us = state.backoffs.waits_us(kinds, retries, state.waited_us[clients], u)
            state.waited_us[clients] = waits_us
            waits_s = waits_us / 1e6
        begun_s = now + waits_s
        state.begun_s[clients] = begun_s
        self._push(clients, begun_s + state.rtt_s[clients])

    def _died(self, node: Node) -> None:
        for request in [one for one in self.flying if one.target is node]:
            request.asker.lost(request, self.machine.now)

    def _led(self, now: float) -> None:
        stranded, self.stranded = self.stranded, []
        for request in stranded:
            if request.waits:
                self.clients.again += request.items
                self.clients.tell("attempts", request.clients, now)
                self.machine.at(now, self._resend, request)

    def _resend(self, request: Request) -> None:
        if request.waits:
            request.asker.send(request)
