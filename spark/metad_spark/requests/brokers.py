"""The brokers of one process: clients arrive, calls begin and are repeated by the SDK, and those who were turned away
wait as their policy says. As in ``metad_perf.storm.wave``.
"""

from __future__ import annotations

import random
from collections import deque
from typing import Final

import msgspec
import numpy as np

from metad_wire.messages import Identity
from metad_wire.policy import Backoff
from metad_wire.policy.vector import reserve_us

from .clients import Clients, Floats, Wheel, divided
from .cores import Machine, Process
from .costs import BROKER, Costs, growth
from .messages import NOBODY, Ints, Request
from .node import Cluster, Node
from .storm import Storm
from .way import Way

YIELD_CALLS: Final = 4
"""Calls that a process of brokers begins in one turn of its loop."""


class Lane:
    """The clients of one broker and one group that wait for a call, where only so many calls may be in flight; each
    chunk with when it came, and what :attr:`.way.Way.given_up` was then."""

    __slots__ = ("broker", "chunks", "in_flight", "timed")

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.chunks: deque[tuple[Ints, float, int]] = deque()
        self.in_flight = 0
        self.timed = False

    def take(self, most: int, way: Way | None) -> tuple[Ints, float]:
        """The next call's clients, and when the first of them came. Those who have given up meanwhile are left out, and
        there may be no others."""
        found: list[Ints] = []
        came_s, count = self.chunks[0][1], 0
        while self.chunks and count < most:
            clients, at_s, noted = self.chunks.popleft()
            if way is not None:
                clients = way.still(clients, noted)
                if not len(clients):
                    continue
                came_s = came_s if found else at_s
            if len(clients) > most - count:
                self.chunks.appendleft((clients[most - count :], at_s, noted))
                clients = clients[: most - count]
            found.append(clients)
            count += len(clients)
        return (found[0] if len(found) == 1 else np.concatenate(found or [NOBODY])), came_s


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
            state.parts(clients),
            state.tenants[int(self._storm.kinds[clients[0]])],
            (now if came_s is None else came_s) + self._storm.settings.population.timeout_s,
        )
        if crew.way is not None:
            crew.way.called(clients)
            request.noted = crew.way.given_up
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
            clients = self._crew.waiting(request)
            self._crew.clients.timeouts += len(clients)
            self._crew.clients.tell("timeouts", clients, self._crew.machine.now)
            self._crew.in_vain(clients, None)
            self._crew.ended(request.clients)

    # --- Asker ---

    def done(self, request: Request, now: float) -> None:
        """Its clients are back once the broker has looked at the answer."""
        crew = self._crew
        request.waits = False
        crew.flying.pop(request, None)
        cost_s = crew.back_s * request.items + crew.costs.back_part_s * request.parts
        crew.process.add(lambda at: (cost_s, lambda end: crew.back(crew.waiting(request), end)))
        crew.ended(request.clients)

    def refused(self, request: Request, after_ms: int, jitter_ms: int, now: float) -> None:
        """Repeat it if the SDK does, and it fits the deadline; otherwise tell its clients."""
        self._crew.flying.pop(request, None)
        clients = self._crew.waiting(request)
        self._crew.clients.refused += len(clients)
        self._crew.clients.tell("refused", clients, now)
        if self._repeats:
            if self._backoff.retry_after == "honour" and after_ms:
                due_s = now + self._backoff.returning_s(after_ms, jitter_ms, self._crew.rng)
            else:
                due_s = now + self._backoff.delay_s(request.attempts - 1, self._crew.rng)
            if due_s < request.deadline_s:
                self._crew.clients.again += len(clients)
                self._crew.clients.tell("attempts", clients, now)
                self._crew.machine.at(due_s, self._resend, request, request.number)
                return
        request.waits = False
        slot = (after_ms, jitter_ms) if self.obeys and after_ms > 0 else None
        crew = self._crew
        crew.process.add(lambda at: (crew.costs.vain_s, lambda end: crew.in_vain(crew.waiting(request), slot)))
        crew.ended(request.clients)

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
    """A process of brokers. ``way``: between its clients and it, if anything can keep them there."""

    def __init__(
        self,
        machine: Machine,
        cluster: Cluster,
        costs: Costs,
        clients: Clients,
        way: Way | None,
        number: int,
        seed: int,
    ) -> None:
        storm = clients.storm
        share = storm.broker_share
        costs = msgspec.structs.replace(costs, **{key: getattr(costs, key) / share for key in BROKER})
        self.machine, self.cluster, self.costs, self.clients, self.way = machine, cluster, costs, clients, way
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
        self._arrivals = Wheel(machine, storm.settings.linger_ms / 1e3, self._due)
        self._lanes: dict[int, Lane] = {}
        self._arriving = False
        self._beginning = 0  # calls of what has arrived
        self._brokers = {n: Broker(self, n) for n in range(number, storm.settings.brokers, storm.settings.processes)}
        mine = np.flatnonzero((storm.brokers % storm.settings.processes == number) & storm.returns)
        if ready_s := begins_anew_s(storm, costs):
            for n, broker in self._brokers.items():
                broker.ready_s = ready_s[n]
        cluster.kept.append(self._led)
        cluster.dead.append(self._died)
        if way is not None:
            way.hosts[number] = self
        self._begin_attempts(mine, clients.begun_s[mine] + clients.rtt_s[mine])

    # --- arrivals ---

    def _begin_attempts(self, clients: Ints, due_s: Floats) -> None:
        """``due_s``: when they come, unless something keeps them on their way."""
        if self.way is None:
            self.come(clients, due_s)
        else:
            self.way.go(self, clients, due_s)

    def come(self, clients: Ints, due_s: Floats) -> None:
        """They are here at these times."""
        self._arrivals.push(clients, due_s)

    def _due(self) -> None:
        """A tick has come: what is due by the time that the loop gets there, and has begun what came before, arrives
        together."""
        if not self._arriving:
            self._arriving = True
            self.process.add(lambda now: (0.0, self._arrive))

    def _arrive(self, now: float) -> None:
        found = self._arrivals.take(now)
        if found:
            self._divide(found, now)
        if not self._beginning:
            self._begun(now)

    def _begun(self, now: float) -> None:
        """All that arrived is with its brokers."""
        self._arriving = False
        if self._arrivals.is_due(now):
            self._due()

    def _divide(self, found: list[Ints], now: float) -> None:
        where = np.concatenate(found)
        if self.way is not None:
            where = self.way.arrived(where, now)
        batch, groups = self.clients.storm.settings.batch, self.clients.storm.data_groups
        for number, part, _ in divided(self.clients.lane[where], where, where):
            broker = self._brokers[number // groups]
            if self.clients.storm.lane_calls:
                lane = self._lanes.get(number)
                if lane is None:
                    lane = self._lanes[number] = Lane(broker)
                lane.chunks.append((part, self.machine.now, 0 if self.way is None else self.way.given_up))
                self._fill(lane)
                continue
            for at in range(0, len(part), batch):
                self._beginning += 1
                self._begin(broker, part[at : at + batch], first=True)

    def _begin(self, broker: Broker, clients: Ints, came_s: float | None = None, *, first: bool = False) -> None:
        """Begin a call once the loop gets there. ``first``: of those that arrived together, which others wait for."""
        if broker.ready_s > self.machine.now:
            self.machine.at(broker.ready_s, self._begin, broker, clients, came_s)
            self._beginning -= first
            return
        cost_s = self.costs.call_s + self.costs.attempt_s * len(clients)
        way = self.way
        noted = 0 if way is None else way.given_up

        def call(now: float) -> None:
            left = clients if way is None else way.still(clients, noted)
            if len(left):
                broker.call(left, came_s)
            else:
                self.ended(clients)
            self._beginning -= first
            if first and not self._beginning:
                self._begun(now)

        self.process.add_to_begin(lambda now: (cost_s, call), 1 / YIELD_CALLS)

    # --- calls in flight ---

    def _fill(self, lane: Lane) -> None:
        """Begin what calls may be begun. Clients that have waited for as long as they wait for an answer give up."""
        state, storm = self.clients, self.clients.storm
        patience_s = storm.settings.population.timeout_s
        late: list[Ints] = []
        while lane.chunks and lane.chunks[0][1] + patience_s <= self.machine.now + 1e-9:
            clients, _, noted = lane.chunks.popleft()
            late.append(clients if self.way is None else self.way.still(clients, noted))
        if late:
            clients = np.concatenate(late)
            state.attempts[clients] += 1
            state.sent += len(clients)
            state.timeouts += len(clients)
            for what in ("attempts", "timeouts"):
                state.tell(what, clients, self.machine.now)
            self.in_vain(clients, None)
        while lane.chunks and lane.in_flight < storm.lane_calls:
            clients, came_s = lane.take(storm.settings.batch, self.way)
            if len(clients):
                lane.in_flight += 1
                self._begin(lane.broker, clients, came_s)
        if lane.chunks and not lane.timed:
            lane.timed = True
            self.machine.at(lane.chunks[0][1] + patience_s, self._expired, lane)

    def _expired(self, lane: Lane) -> None:
        lane.timed = False
        self._fill(lane)

    def ended(self, clients: Ints) -> None:
        """Their call has its answer, or is given up: the next one of its lane may begin."""
        if self._lanes:
            lane = self._lanes[int(self.clients.lane[clients[0]])]
            lane.in_flight -= 1
            if lane.chunks:
                self._fill(lane)

    # --- what becomes of them ---

    def waiting(self, request: Request) -> Ints:
        """The clients of a call that wait for its answer: those who have not given up."""
        return request.clients if self.way is None else self.way.still(request.clients, request.noted)

    def back(self, clients: Ints, now: float) -> None:
        """They are restored."""
        if self.way is not None:
            self.way.back(clients)
        self.clients.restored_s[clients] = now
        self.clients.restored += len(clients)

    def in_vain(self, clients: Ints, slot: tuple[int, int] | None) -> None:
        """They are not: each waits, and comes again. ``slot``: when they do as they were told, in milliseconds."""
        state, now = self.clients, self.machine.now
        u = self._draws.random(len(clients))
        if slot is not None:
            waits_s = np.maximum(0.0, slot[0] + (2 * u - 1) * slot[1]) / 1e3
        else:
            kinds, retries = state.storm.kinds[clients], state.attempts[clients] - 1
            waits_us = state.backoffs.waits_us(kinds, retries, state.waited_us[clients], u)
            state.waited_us[clients] = waits_us
            waits_s = waits_us / 1e6
        begun_s = now + waits_s
        if (budget := state.storm.budget) is not None:
            wanted_us = np.rint(begun_s * 1e6).astype(np.int64)
            due_us, state.clock_us[clients] = reserve_us(budget, wanted_us, state.clock_us[clients])
            begun_s = np.maximum(begun_s, due_us / 1e6)
        state.begun_s[clients] = begun_s
        self._begin_attempts(clients, begun_s + state.rtt_s[clients])

    def _died(self, node: Node) -> None:
        for request in [one for one in self.flying if one.target is node]:
            request.asker.lost(request, self.machine.now)

    def _led(self, now: float) -> None:
        stranded, self.stranded = self.stranded, []
        for request in stranded:
            if request.waits:
                clients = self.waiting(request)
                self.clients.again += len(clients)
                self.clients.tell("attempts", clients, now)
                self.machine.at(now, self._resend, request)

    def _resend(self, request: Request) -> None:
        if request.waits:
            request.asker.send(request)
