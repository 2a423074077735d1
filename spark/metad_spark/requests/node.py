"""A node: requests come in, are turned away or wait for their group, become entries, are synced and replicated, and are
answered. Who is turned away, and when it may come back, is decided by the server's own policies
(:mod:`metad_wire.policy`): admission by time, the fair queue, return slots, the share of the cluster's budget.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Final

from metad_wire.policy import Admission, QueueRate
from metad_wire.policy.fair_queue import SHARE_ITEMS, FairQueue
from metad_wire.policy.queue_rate import FULL_ITEMS
from metad_wire.policy.return_budget import ReturnBudget
from metad_wire.policy.return_share import ReturnShare
from metad_wire.policy.service_rate import ServiceRate

from .cores import Machine, Process
from .costs import Costs, growth
from .messages import Entry, Request

ENTRY_ITEMS: Final = 1_000
"""As ``metad.config``: the window of a commit."""
PIPELINE_ITEMS: Final = 1_500
PIPELINE_ENTRIES: Final = 8
"""As the server's driver: entries on their way, and their items."""
_AT_ONCE_ITEMS: Final = 128
"""So many waiting items become an entry although an fsync is under way."""
_COMPANY_S: Final = 0.001
"""How long few requests wait behind an entry on its way."""
_APPLY_ITEMS: Final = 500
"""Answers go out in slices of so many items."""
_SHARE_S: Final = 1.0
"""How often a busy node asks for its part of the budget of returns."""


class Disk:
    """One fsync at a time; what is appended meanwhile waits for the next, and shares it."""

    def __init__(self, machine: Machine, costs: Costs, rng: random.Random, *, syncs: bool) -> None:
        self._machine = machine
        self._times_s = costs.fsync_s if syncs else (0.0,)
        self._rng = rng
        self._waiting: list[Callable[[float], None]] = []
        self.busy = False
        self.after: Callable[[float], None] = lambda now: None
        """Called when it has become idle."""

    def append(self, synced: Callable[[float], None]) -> None:
        """Call this once what was appended now is durable."""
        self._waiting.append(synced)
        if not self.busy:
            self._sync()

    def _sync(self) -> None:
        self.busy = True
        covered, self._waiting = self._waiting, []
        self._machine.at(self._machine.now + self._rng.choice(self._times_s), self._synced, covered)

    def _synced(self, covered: list[Callable[[float], None]]) -> None:
        if self._waiting:
            self._sync()
        else:
            self.busy = False
        for synced in covered:
            synced(self._machine.now)
        if not self.busy:
            self.after(self._machine.now)


class Group:
    """A group where it is led."""

    def __init__(self, node: Node, number: int) -> None:
        self.node = node
        self.number = number
        self.queue: FairQueue[Request] = FairQueue()
        self.rate = QueueRate()
        self.in_flight = 0
        self.in_flight_items = 0
        self.followers: list[Node] = []
        self.first_s = 0.0
        self.timed = False


class Cluster:
    """Its nodes, their groups, and the leader of metadata-0 with the budget of returns."""

    def __init__(
        self,
        machine: Machine,
        costs: Costs,
        rng: random.Random,
        *,
        nodes: int,
        groups: int,
        sessions: int,
        queue_s: float,
        fsync: bool,
    ) -> None:
        self.machine = machine
        self.costs = costs
        grown = growth(sessions, nodes)
        self.item_s = costs.item_s / 2 + costs.restore_s + grown * costs.grown_item_s
        """Of an item that is evaluated, applied and answered; the rest of ``costs.item_s`` falls due when it comes."""
        self.follower_item_s = costs.follower_item_s + grown * costs.grown_follower_item_s
        self.budget = ReturnBudget()
        self.nodes = [Node(self, number, rng, queue_s=queue_s, fsync=fsync) for number in range(nodes)]
        self.leaders = [self.nodes[group % nodes] for group in range(groups)]
        self.kept: list[Callable[[float], None]] = []
        """Called when a group has another leader."""
        self.dead: list[Callable[[Node], None]] = []
        """Called with a node that has died: its connections break."""
        for number, leader in enumerate(self.leaders):
            leader.lead(number)

    def alive(self) -> Sequence[Node]:
        """Nodes that have not died."""
        return [node for node in self.nodes if node.process.alive]

    def kill(self, number: int) -> None:
        """A node dies; after the failover others lead its groups."""
        node = self.nodes[number]
        node.die()
        for tell in self.dead:
            tell(node)
        self.machine.at(self.machine.now + self.costs.failover_s, self._failover, node)

    def _failover(self, dead: Node) -> None:
        left = self.alive()
        for number, leader in enumerate(self.leaders):
            if leader is dead:
                self.leaders[number] = left[number % len(left)]
                self.leaders[number].lead(number)
        for tell in self.kept:
            tell(self.machine.now)


class Node:
    """One node, on one core at most."""

    def __init__(self, cluster: Cluster, number: int, rng: random.Random, *, queue_s: float, fsync: bool) -> None:
        machine = cluster.machine
        self.process = Process(machine)
        self.refused_requests = self.refused_items = self.entries = 0
        self._cluster = cluster
        self._costs = cluster.costs
        self._machine = machine
        self._groups: dict[int, Group] = {}
        self._disk = Disk(machine, cluster.costs, rng, syncs=fsync)
        self._disk.after = self._turn
        self._admission = Admission(items_max=0, wait_max_s=queue_s)
        self._asked = False
        self._share = ReturnShare(
            f"n{number}", ServiceRate(0.0), 0, lambda: len(cluster.nodes), lambda: machine.at(machine.now, self._ask)
        )

    def lead(self, number: int) -> None:
        """Lead this group from now on."""
        group = self._groups[number] = Group(self, number)
        others = [node for node in self._cluster.nodes if node is not self and node.process.alive]
        group.followers = others[:2]

    def die(self) -> None:
        """End, with all that waits here."""
        self.process.kill()
        self._groups = {}

    # --- requests ---

    def receive(self, request: Request, number: int) -> None:
        """An attempt arrives."""
        if not self.process.alive:
            self._machine.at(self._machine.now, request.asker.lost, request, self._machine.now)
            return
        self.process.add_to_begin(lambda now: self._begin(request, number, now))

    def _begin(self, request: Request, number: int, now: float) -> tuple[float, Callable[[float], None] | None]:
        group = self._groups.get(request.group)
        if group is None:
            return self._costs.refusal_s, lambda end: request.asker.lost(request, end)
        returns = self._share.returns
        answer: tuple[int, int] | None = None
        if group.queue.items >= FULL_ITEMS:
            before = group.queue.before(request.tenant, request.source)
            if not self._admission.admitted(before, 1, group.rate.estimate(now), request.deadline_s - now):
                self._share.refused(now)
                answer = returns.returning(request.items, now, request.identity)
        if answer is None and returns.promised:
            answer = returns.early(request.identity, now)
        costs = self._costs
        if answer is not None:
            self.refused_requests += 1
            self.refused_items += request.items
            after_ms, jitter_ms = answer
            cost_s = costs.refusal_s + costs.refused_item_s * request.items
            return cost_s, lambda end: self._reply(request, number, end, refused=(after_ms, jitter_ms))
        # An item's cost falls due where it is received, evaluated and answered; a half of it in each direction.
        return costs.request_s / 2 + costs.item_s * request.items / 2, lambda end: self._queue(group, request, end)

    def _queue(self, group: Group, request: Request, now: float) -> None:
        if not group.queue:
            group.first_s = now
        group.queue.add(request)
        if group.queue.items >= FULL_ITEMS:
            group.rate.full(now)
        if group.queue.items >= _AT_ONCE_ITEMS or not self._disk.busy:
            self._pump(group, now)

    def _turn(self, now: float) -> None:
        for group in list(self._groups.values()):
            self._pump(group, now)

    def _pump(self, group: Group, now: float) -> None:
        """Make an entry of what waits, as far as the server's rules allow."""
        queue = group.queue
        if not queue or not self.process.alive or group.in_flight >= PIPELINE_ENTRIES:
            return
        first = queue.first()
        if first.items > SHARE_ITEMS and group.in_flight and group.in_flight_items + first.items > PIPELINE_ITEMS:
            return
        if group.in_flight and queue.items < ENTRY_ITEMS and now < group.first_s + _COMPANY_S:
            if not group.timed:
                group.timed = True
                self._machine.at(group.first_s + _COMPANY_S, self._later, group)
            return
        waiting, items = queue.items, 0
        taken: list[tuple[Request, int]] = []
        while queue:
            first = queue.first()
            if taken and items + first.items > ENTRY_ITEMS:
                break
            queue.pop()
            if first.deadline_s >= now:
                taken.append((first, first.number))
                items += first.items
        if waiting >= FULL_ITEMS:
            group.rate.left(waiting - queue.items, now)
            if queue.items < FULL_ITEMS:
                group.rate.calm(now)
        group.first_s = now
        if not taken:
            return
        entry = Entry(taken)
        self.entries += 1
        group.in_flight += 1
        group.in_flight_items += entry.items
        self.process.add_first(lambda at: (self._costs.entry_s, lambda end: self._append(group, entry, end)))
        if queue:
            self.process.add(lambda at: (0.0, lambda end: self._pump(group, end)))

    def _later(self, group: Group) -> None:
        group.timed = False
        self._pump(group, self._machine.now)

    def _append(self, group: Group, entry: Entry, now: float) -> None:
        voters = 1 + len(group.followers)
        quorum = voters // 2 + 1

        def synced(at: float) -> None:
            entry.synced += 1
            if entry.synced == quorum:
                self._commit(group, entry)

        self._disk.append(synced)
        delay_s = self._costs.delay_s

        def acknowledged(at: float) -> None:
            self._machine.at(at + delay_s, synced, at + delay_s)

        for follower in group.followers:
            self._machine.at(now + delay_s, follower.follow, entry, acknowledged)

    def follow(self, entry: Entry, synced: Callable[[float], None]) -> None:
        """Append, apply and sync an entry of another node's group."""
        costs = self._costs
        cost_s = costs.follower_entry_s + self._cluster.follower_item_s * entry.items
        self.process.add(lambda now: (cost_s, lambda end: self._disk.append(synced)))

    def _commit(self, group: Group, entry: Entry) -> None:
        if not self.process.alive:
            return
        group.in_flight -= 1
        group.in_flight_items -= entry.items
        part: list[tuple[Request, int]] = []
        items = 0
        for one in entry.requests:
            part.append(one)
            items += one[0].items
            if items >= _APPLY_ITEMS:
                self._apply(part)
                part, items = [], 0
        if part:
            self._apply(part)
        self.process.add(lambda now: (0.0, lambda end: self._pump(group, end)))

    def _apply(self, answered: list[tuple[Request, int]]) -> None:
        costs = self._costs
        items = sum(request.items for request, _ in answered)
        parts = sum(request.parts for request, _ in answered)
        cost_s = len(answered) * costs.request_s / 2 + items * self._cluster.item_s + parts * costs.part_s

        def ended(end: float) -> None:
            self._share.answered(items)
            for request, number in answered:
                self._reply(request, number, end)

        self.process.add(lambda now: (cost_s, ended))

    def _reply(self, request: Request, number: int, now: float, refused: tuple[int, int] | None = None) -> None:
        self._machine.at(now + self._costs.delay_s, self._answer, request, number, refused)

    def _answer(self, request: Request, number: int, refused: tuple[int, int] | None) -> None:
        if request.number != number:
            return  # nobody waits for this attempt any more
        if refused is None:
            request.asker.done(request, self._machine.now)
        else:
            request.asker.refused(request, *refused, self._machine.now)

    # --- its part of the budget of returns ---

    def _ask(self) -> None:
        now = self._machine.now
        if not self.process.alive:
            return
        report = self._share.report(now)
        if report is not None:
            grant = self._cluster.budget.grant(report, len(self._cluster.nodes), now)
            self._machine.at(now + 2 * self._costs.delay_s, self._share.granted, grant, now)
            if not self._asked:
                self._asked = True
                self._machine.at(now + _SHARE_S, self._again)

    def _again(self) -> None:
        self._asked = False
        self._ask()
