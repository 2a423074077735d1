"""The oracle: one node's storm event by event from a heap, one client at a time, written as plainly as possible.

Slow, but credible: the vector model must give the same result to the last bit. Events of the same microsecond happen in
the order of the kinds below; arrivals of one kind, in the order of the clients.

The leaders' clock runs ahead by the way from the brokers, so a request *arrives* when its broker sends it, and the way
back counts twice.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from enum import IntEnum

import numpy as np

from metad_spark.models import population
from metad_spark.models.node_input import NodeInput
from metad_spark.models.results import NodeResult
from metad_spark.models.vector import Tally
from metad_wire.policy import uniform
from metad_wire.policy.draw import stream

_SECOND_US = 1_000_000


class Event(IntEnum):
    """The kinds of events, in their order at one time."""

    FINISH = 0
    """of a turn"""
    OUTAGE = 1
    """The node dies."""
    REACH = 2
    """A client is at its broker's door."""
    KNOCK = 3
    """A client's CONNECT is with its broker."""
    CLOSE = 4
    """A broker sends a batch."""
    ARRIVE = 5
    """An item is at its leader."""
    START = 6
    """of a turn"""
    DEADLINE = 7
    """An answer that leaves the leader later comes too late."""


class _Client:
    """One client."""

    __slots__ = (
        "attempt",
        "broker",
        "clock_us",
        "deadline_us",
        "done_us",
        "group",
        "name",
        "number",
        "open",
        "wait_us",
    )

    def __init__(self, number: int, name: int, group: int, broker: int) -> None:
        self.number, self.name, self.group, self.broker = number, name, group, broker
        self.attempt = 0  # the current one, or the next
        self.open = False
        self.deadline_us = 0
        self.wait_us = 0  # the last wait
        self.clock_us = 0  # of its retry budget
        self.done_us = -1


class _Batch:
    """The items that a broker has collected for a group and not sent yet."""

    __slots__ = ("items", "sent")

    def __init__(self) -> None:
        self.items: list[tuple[_Client, int]] = []
        self.sent = False


class _Node:
    def __init__(self, node_input: NodeInput, seed: int) -> None:
        self.input, self.seed = node_input, seed
        self.tally = Tally(node_input)
        self.heap: list[tuple[int, Event, int, int, object]] = []
        self.pushed = 0
        self.streams = [stream(seed, purpose) for purpose in range(5)]
        self.open_batches: dict[tuple[int, int], _Batch] = {}
        self.waiting: list[deque[tuple[_Client, int, int]]] = [deque() for _ in range(node_input.groups)]
        self.turn: list[tuple[_Client, int, int]] = []  # client, its attempt, arrival
        self.turns = 0
        self.is_busy = False
        self.slots_ns = [0] * node_input.groups
        self.doors_ns: dict[tuple[int, int], int] = {}  # when each door is free
        self.kind_of: list[int] = population.kinds_of(node_input).tolist()
        bases = population.broker_bases(node_input)
        self.clients = []
        for number, kind in enumerate(self.kind_of):
            region = node_input.kinds[kind].region
            broker = bases[region] + number // node_input.groups % node_input.brokers[region]
            self.clients.append(_Client(number, node_input.first_client + number, number % node_input.groups, broker))

    def push(self, at_us: int, event: Event, order: int, what: object) -> None:
        if at_us < self.input.horizon_us:
            self.pushed += 1
            heapq.heappush(self.heap, (at_us, event, order, self.pushed, what))

    def run(self) -> NodeResult:
        node_input = self.input
        for outage in node_input.outages:
            self.push(outage.at_us, Event.OUTAGE, 0, None)
        firsts = []
        for client in self.clients:
            firsts.append(population.first_us(node_input, self.seed, client.number))
            self.attempt(client, firsts[-1])
        while self.heap:
            now, event, _, _, what = heapq.heappop(self.heap)
            self.handle(now, event, what)
        done = np.array([client.done_us for client in self.clients], np.int64)
        regions = np.array([node_input.kinds[kind].region for kind in self.kind_of])
        return self.tally.result(np.array(firsts, np.int64), done, regions)

    def handle(self, now: int, event: Event, what: object) -> None:
        match event, what:
            case Event.REACH, _Client() as client:
                self.reach(now, client)
            case Event.KNOCK, _Client() as client:
                self.knock(now, client)
            case Event.CLOSE, _Batch() as batch:
                self.close(now, batch)
            case Event.ARRIVE, (_Client() as client, int(attempt)):
                self.arrive(now, client, attempt)
            case Event.START, _:
                self.start(now)
            case Event.FINISH, int(turn):
                self.finish(now, turn)
            case Event.OUTAGE, _:
                self.die(now)
            case Event.DEADLINE, (_Client() as client, int(attempt)):
                if client.open and client.attempt == attempt:
                    self.tally.timeouts += 1
                    self.retry(client, now, None)
            case _:
                raise AssertionError(f"no such event: {event} {what}")

    # -- clients -----------------------------------------------------------------------------------------------------

    def attempt(self, client: _Client, start_us: int) -> None:
        """The client's next attempt, begun at ``start_us``."""
        node_input = self.input
        if start_us >= node_input.horizon_us:
            return
        kind = node_input.kinds[self.kind_of[client.number]]
        self.tally.attempt(kind.region, start_us)
        client.open = True
        client.deadline_us = start_us + node_input.timeout_us - self.back_us(kind.region)
        lost = 0
        if node_input.loss[kind.region]:
            u = uniform(self.streams[population.LOSS], client.name, client.attempt)
            loss, round_trips = node_input.loss[kind.region], node_input.round_trips[kind.transport]
            lost = sum(u < share for share in population.loss_shares(loss, round_trips))
        reached_us = start_us + node_input.forth_us(kind.region, kind.transport) + population.loss_us(lost)
        if reached_us <= client.deadline_us:  # otherwise the client is gone before the broker would send anything on
            self.push(reached_us, Event.REACH if node_input.doors else Event.KNOCK, client.number, client)
        self.push(client.deadline_us, Event.DEADLINE, client.number, (client, client.attempt))

    def retry(self, client: _Client, now: int, slot_ns: int | None) -> None:
        """An attempt has failed at the leader's time ``now``: by a refusal, with or without a slot, or a timeout."""
        node_input = self.input
        kind = node_input.kinds[self.kind_of[client.number]]
        client.open = False
        if slot_ns is not None and node_input.returns is not None:
            u = uniform(self.streams[population.JITTER], client.name, client.attempt)
            wait_us = node_input.returns.wait_us(now, slot_ns, u)
        else:
            u = uniform(self.streams[population.BACKOFF], client.name, client.attempt)
            wait_us = node_input.backoffs[kind.sdk].wait_us(client.attempt, client.wait_us, u)
            client.wait_us = wait_us
        start_us = now + self.back_us(kind.region) + wait_us
        if node_input.budget is not None:
            start_us, client.clock_us = node_input.budget.reserve_us(start_us, client.clock_us)
        client.attempt += 1
        self.attempt(client, start_us)

    def back_us(self, region: int) -> int:
        return self.input.back_us(region)

    # -- brokers -----------------------------------------------------------------------------------------------------

    def reach(self, now: int, client: _Client) -> None:
        node_input = self.input
        region = node_input.kinds[self.kind_of[client.number]].region
        door = region, client.number // node_input.groups % node_input.doors[region]
        turn_ns = max(now * 1000, self.doors_ns.get(door, 0))
        pass_us = -(-turn_ns // 1000)
        if pass_us > client.deadline_us:
            self.tally.left += 1
            return  # the client has gone by then, and costs the broker nothing
        intervals = node_input.door_ns[region]
        self.doors_ns[door] = turn_ns + intervals[min(pass_us // node_input.wave_us, len(intervals) - 1)]
        self.tally.kept_max_us = max(self.tally.kept_max_us, pass_us - now)
        if pass_us < node_input.horizon_us:
            self.tally.passed[region, pass_us // _SECOND_US] += 1
        self.push(pass_us, Event.KNOCK, client.number, client)

    def knock(self, now: int, client: _Client) -> None:
        window = self.input.window
        if not window.linger_us:
            self.push(now, Event.ARRIVE, client.number, (client, client.attempt))
            return
        key = (client.broker, client.group)
        batch = self.open_batches.get(key)
        if batch is None:
            batch = self.open_batches[key] = _Batch()
            self.push(now + window.linger_us, Event.CLOSE, 0, batch)
        batch.items.append((client, client.attempt))
        if window.is_full(len(batch.items), 0):
            self.close(now, batch)

    def close(self, now: int, batch: _Batch) -> None:
        if not batch.sent:
            batch.sent = True
            client, _ = batch.items[0]
            del self.open_batches[client.broker, client.group]
            for client, attempt in batch.items:
                self.push(now, Event.ARRIVE, client.number, (client, attempt))

    # -- the node ----------------------------------------------------------------------------------------------------

    def arrive(self, now: int, client: _Client, attempt: int) -> None:
        node_input = self.input
        waiting = self.waiting[client.group]
        if any(outage.at_us <= now < outage.until_us for outage in node_input.outages):
            self.refuse(now, client, attempt)
        elif node_input.admission.admitted(len(waiting), 1):
            waiting.append((client, attempt, now))
            if not self.is_busy:
                self.is_busy = True
                self.push(now, Event.START, 0, None)
        else:
            self.refuse(now, client, attempt)

    def refuse(self, now: int, client: _Client, attempt: int) -> None:
        self.tally.rejected[now // _SECOND_US] += 1
        slot_ns = None
        if self.input.returns is not None:
            group = client.group
            slot_ns, self.slots_ns[group] = self.input.returns.reserve_ns(now * 1000, self.slots_ns[group])
        if client.open and client.attempt == attempt:
            self.retry(client, now, slot_ns)
        else:
            self.tally.unheard += 1

    def start(self, now: int) -> None:
        if self.turn:
            return  # begun by an arrival at the same time
        node_input, groups = self.input, 0
        second = now // _SECOND_US
        for waiting in self.waiting:
            self.tally.queue[second] = max(self.tally.queue[second], len(waiting))
            taken = min(node_input.batch_items, len(waiting))
            groups += taken > 0
            self.turn += [waiting.popleft() for _ in range(taken)]
        if not self.turn:
            self.is_busy = False
            return
        u = uniform(self.streams[population.SERVICE], node_input.node, self.turns)
        self.turns += 1
        self.push(now + turn_us(node_input, now, groups, len(self.turn), u), Event.FINISH, 0, self.turns)

    def finish(self, now: int, turn: int) -> None:
        if turn != self.turns or not self.turn:
            return  # the node died meanwhile
        self.tally.serve(now, len(self.turn))
        for client, attempt, arrived_us in self.turn:
            self.tally.held_us[arrived_us // self.input.wave_us] += now - arrived_us
            self.tally.held[arrived_us // self.input.wave_us] += 1
            if client.open and client.attempt == attempt:
                client.open = False
                client.done_us = now + self.back_us(self.input.kinds[self.kind_of[client.number]].region)
            else:
                self.tally.wasted += 1
        self.turn = []
        self.push(now, Event.START, 0, None)

    def die(self, now: int) -> None:
        refused, self.turn, self.is_busy = self.turn, [], False
        for group, waiting in enumerate(self.waiting):
            for client, attempt, _ in refused:
                if client.group == group:
                    self.refuse(now, client, attempt)
            while waiting:
                client, attempt, _ = waiting.popleft()
                self.refuse(now, client, attempt)


def turn_us(node_input: NodeInput, now: int, groups: int, items: int, u: float) -> int:
    """How long a turn takes that starts at ``now`` with ``items`` of ``groups``; ``u`` in [0, 1) draws the factor. In
    whole microseconds, and never less than computed: a node must not do more than it can."""
    factor = node_input.factors[int(u * len(node_input.factors))]
    for outage in node_input.outages:
        if outage.until_us <= now:
            factor *= outage.slowdown
    computed_us = factor * (node_input.turn_us + node_input.entry_us * groups + node_input.item_us * items)
    return max(1, math.ceil(computed_us - 1e-6))


def simulate(node_input: NodeInput, seed: int) -> NodeResult:
    """Simulate the node's clients: some thousands, for more would take minutes."""
    return _Node(node_input, seed).run()
