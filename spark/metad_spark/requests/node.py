"""A node: requests come in, are turned away or wait for their group, become entries, are synced and replicated, and are
answered. Who is turned away, and when it may come back, is decided by the server's own policies
(:mod:`metad_wire.policy`): admission by time, the fair queue, return slots, the share of the cluster's budget.
"""

from __future__ import annotations

import random
from collections import Counter, deque
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Final

from metad_wire.policy import Admission, QueueRate
from metad_wire.policy.fair_queue import SMALL_ITEMS, FairQueue, Precedence
from metad_wire.policy.rates import FULL_ITEMS, ServiceRate
from metad_wire.policy.returns import ReturnBudget, ReturnShare
from metad_wire.transport.fair_share import TURN

from .cores import Machine, Process
from .costs import REPLICAS, Costs, growth, memtables
from .messages import Entry, Request
from .storm import Handover

ENTRY_ITEMS: Final = 1_000
"""The window of a commit, as the server's (``commit.entry_items_max``); a longer request has an entry of its own."""
PIPELINE_ITEMS: Final = 1_500
PIPELINE_ENTRIES: Final = 8
"""As the server's driver: entries on their way, and their items."""
_ENTRY_WORTH: Final = 16
"""Items that an entry counts for beside its own."""
_AT_ONCE_ITEMS: Final = 128
"""So many items that have come for a group become an entry although an fsync is under way."""
_COMPANY_S: Final = 0.001
"""How long few requests wait behind an entry on its way."""
_CROWD_S: Final = 0.01
"""How long they wait while others have come that are yet to be begun."""
_CROWD_ITEMS: Final = 8
"""Fewer do not wait for those."""
_COMPANY_ITEMS: Final = 256
"""More do not wait."""
_WAITED_S: Final = 0.05
"""What has waited less to be taken in is not late."""
LOOK_UPS: Final = 1
"""In the store, for an item that is restored: the row that has all of it. A leader that did not lead when its sessions
changed hands does not know their owners, which takes another."""
RECEIVED: Final = 0.5
RECEIVED_ITEMS: Final = 0.1
"""The parts of what a request and its items cost that fall due where they are received; the rest where they are applied
and answered."""
_SLICE_BYTES: Final = 16 * 1024
_SLICE_FRAMES: Final = 128
_SLICE_S: Final = 0.0005
"""What a slice of begun requests is worth at most: as in the server's connection."""
_SMALL_BYTES: Final = 2 * 1024
"""Shorter requests may take as many slices again of a turn."""
_LOOK_FOR_SMALL: Final = 8
"""Sources that are asked for something small."""
_DOWN_S: Final = 1.0
"""From the death of a node until the harness starts it again."""
_SHARE_S: Final = 1.0
"""How often a busy node asks for its part of the budget of returns."""


class Disk:
    """One fsync at a time; what is appended meanwhile waits for the next, and shares it. A thread does it, and the loop
    hears of its end once it has done what it is at."""

    def __init__(self, process: Process, costs: Costs, rng: random.Random, *, syncs: bool) -> None:
        self._process = process
        self._machine = process.machine
        self._times_s = costs.fsync_s if syncs else (0.0,)
        self._rng = rng
        self._waiting: list[Callable[[float], None]] = []
        self.busy = False
        self.after: Callable[[float], None] = lambda now: None
        """Called when it has become idle."""

    def start_again(self) -> None:
        """Forget what was on its way when the node died."""
        self._waiting, self.busy = [], False

    def append(self, synced: Callable[[float], None]) -> None:
        """Call this once what was appended now is durable."""
        self._waiting.append(synced)
        if not self.busy:
            self._sync()

    def _sync(self) -> None:
        self.busy = True
        covered, self._waiting = self._waiting, []
        self._machine.at(self._machine.now + self._rng.choice(self._times_s), self._tell, covered)

    def _tell(self, covered: list[Callable[[float], None]]) -> None:
        self._process.add(lambda now: (0.0, lambda end: self._synced(covered)))

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

    def __init__(self, node: Node, number: int, look_ups: int) -> None:
        self.node = node
        self.look_ups = look_ups
        """For each item: of what is restored, and of its owner where that is not known."""
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
        sessions: float,
        queue_s: float,
        fsync: bool,
    ) -> None:
        self.machine = machine
        self.costs = costs
        self._sessions = sessions
        self._data_groups = max(1, groups - 1)  # the last one is of offsets
        self.budget = ReturnBudget()
        self._node = partial(Node, self, rng=rng, queue_s=queue_s, fsync=fsync)
        self.nodes = [self._node(number) for number in range(nodes)]
        # As when a cluster is formed: the first node leads metadata-0, the next one the offsets, and so on in turns.
        self.leaders = [self.nodes[(group + 2) % nodes] for group in range(groups - 1)] + [self.nodes[1 % nodes]]
        self.kept: list[Callable[[float], None]] = []
        """Called when a group has another leader."""
        self.dead: list[Callable[[Node], None]] = []
        """Called with a node that has died: its connections break."""
        self.done_items = 0
        """That were answered so far."""
        for number, leader in enumerate(self.leaders):
            leader.lead(number)

    def look_up_s(self, groups: Collection[int], costs: Costs) -> float:
        """What is looked up for an item by a node that leads these groups: among their sessions, and in each memtable
        that has been filled."""
        led = sum(number < self._data_groups for number in groups) / self._data_groups
        grown_s = costs.grown_item_s * growth(self._sessions * led)
        return costs.restore_s + grown_s + costs.memtable_s * memtables(self.done_items, len(self.nodes))

    def alive(self) -> Sequence[Node]:
        """Nodes that have not died."""
        return [node for node in self.nodes if node.process.alive]

    def followers(self, leader: Node, group: int) -> list[Node]:
        """The nodes that follow a leader in a group: those behind it in a ring that turns by a step whenever each node
        leads one group more, so that no node follows in more groups than others. They hear of an entry in the order of
        their numbers."""
        ring = [node for node in self.nodes[leader.number + 1 :] + self.nodes[: leader.number] if node.process.alive]
        if not ring:
            return []
        turn = group // len(self.nodes) * (REPLICAS - 1)
        chosen = [ring[(turn + at) % len(ring)] for at in range(min(REPLICAS - 1, len(ring)))]
        return sorted(chosen, key=lambda node: node.number)

    def kill(self, number: int) -> None:
        """A node dies; after the failover others lead its groups."""
        node = self.nodes[number]
        node.die()
        for tell in self.dead:
            tell(node)
        self.machine.at(self.machine.now + self.costs.failover_s, self._failover, node)
        self.machine.at(self.machine.now + _DOWN_S, self._start_again, node, self.done_items)

    def _start_again(self, node: Node, had_items: int) -> None:
        """It follows again, and first does what it lacks. It leads nothing while the crowd waits."""
        node.start_again(self.costs.start_s + self.costs.follower_item_s * (self.done_items - had_items))
        for leader in self.alive():
            leader.followed_by(node)

    def _failover(self, dead: Node) -> None:
        left = self.alive()
        for number, leader in enumerate(self.leaders):
            if leader is dead:
                self.leaders[number] = left[number % len(left)]
                self.leaders[number].lead(number, knows_owners=False)
        for tell in self.kept:
            tell(self.machine.now)

    def hand_over(self, change: Handover) -> None:
        """The groups of a node have no leader. Nodes elsewhere lead them after the outage; one more node stands for
        these, with a core of its own, as many times slower as they have other work. The old one follows as before."""
        node = self.nodes[change.node]
        node.resign()
        for tell in self.dead:
            tell(node)
        self.machine.at(self.machine.now + change.outage_s, self._take_over, node, change.slowdown)

    def _take_over(self, old: Node, slowdown: float) -> None:
        node = self._node(old.number, costs=self.costs.slower(slowdown))
        for number, leader in enumerate(self.leaders):
            if leader is old:
                self.leaders[number] = node
                node.lead(number, knows_owners=False)
        for tell in self.kept:
            tell(self.machine.now)


class Node:
    """One node, on one core at most."""

    def __init__(
        self,
        cluster: Cluster,
        number: int,
        rng: random.Random,
        *,
        queue_s: float,
        fsync: bool,
        costs: Costs | None = None,
    ) -> None:
        machine = cluster.machine
        self.number = number
        self.process = Process(machine)
        self.refused_requests = self.refused_items = self.entries = 0
        self._cluster = cluster
        self._costs = cluster.costs if costs is None else costs
        self._machine = machine
        self._groups: dict[int, Group] = {}
        self._disk = Disk(self.process, cluster.costs, rng, syncs=fsync)
        self._disk.after = self._turn_soon
        self._admission = Admission(items_max=0, wait_max_s=queue_s)
        self._precedence = Precedence(lambda: machine.now)
        self._long: deque[tuple[Request, int]] = deque()  # requests that have come, and are heavy to take in
        self._taking_in = False
        self._arrived: Counter[int] = Counter()  # items by group, since the last turn
        self._turn_comes = False  # all groups are looked at soon
        self._asked = False
        self._share = ReturnShare(
            f"n{number}", ServiceRate(), 0, lambda: len(cluster.nodes), lambda: machine.at(machine.now, self._ask)
        )

    def lead(self, number: int, *, knows_owners: bool = True) -> None:
        """Lead this group from now on."""
        group = self._groups[number] = Group(self, number, LOOK_UPS if knows_owners else LOOK_UPS + 1)
        group.followers = self._cluster.followers(self, number)

    def die(self) -> None:
        """End, with all that waits here."""
        self.process.kill()
        self._groups = {}
        self._long.clear()

    def resign(self) -> None:
        """Lead nothing any more. Entries on their way, and the little that waits for one, are answered to nobody."""
        self._groups = {}
        self._long.clear()

    def start_again(self, catch_up_s: float) -> None:
        """Serve after a death, and do this much work first."""
        self.process.alive = True
        self._precedence.small = 0
        self._turn_comes = False
        self._disk.start_again()
        self.process.add(lambda now: (catch_up_s, None))

    def followed_by(self, node: Node) -> None:
        """A node serves again."""
        for group in self._groups.values():
            if len(group.followers) < REPLICAS - 1:
                group.followers.append(node)

    # --- requests ---

    def receive(self, request: Request, number: int) -> None:
        """An attempt arrives."""
        if not self.process.alive:
            self._machine.at(self._machine.now, request.asker.lost, request, self._machine.now)
            return
        request.arrived_s = self._machine.now
        if not request.long or not self._groups:
            worth = 1.0 if request.long else self._worth(request)
            self.process.add_to_begin(lambda now: self._begin(request, number, now), worth)
            return
        self._long.append((request, number))
        if not self._taking_in:
            self._take_in()

    def _worth(self, request: Request) -> float:
        """The part of a turn of the loop that it takes to begin a request: by bytes, by frames, or by time."""
        slices = max(request.size / _SLICE_BYTES, 1 / _SLICE_FRAMES, self._received_s(request.items) / _SLICE_S)
        return slices / (2 * TURN if request.size <= _SMALL_BYTES else TURN)

    def _received_s(self, items: int) -> float:
        return RECEIVED * self._costs.request_s + RECEIVED_ITEMS * self._costs.item_s * items

    def _take_in(self) -> None:
        """Begin the next long request, once the node has rested from the last heavy piece of work."""
        self._taking_in = bool(self._long) and self.process.alive
        if not self._taking_in:
            return
        if wait_s := self._precedence.heavy_wait_s:
            self._machine.at(self._machine.now + wait_s, self._take_in)
            return
        request, number = self._long.popleft()

        def begin(begun_s: float) -> tuple[float, Callable[[float], None]]:
            cost_s, then = self._begin(request, number, begun_s)

            def ended(end: float) -> None:
                self._precedence.heavy_done(begun_s)
                if then is not None:
                    then(end)
                self._take_in()

            return cost_s, ended

        self.process.add_heavy(begin)

    def _begin(self, request: Request, number: int, now: float) -> tuple[float, Callable[[float], None] | None]:
        group = self._groups.get(request.group)
        if group is None:

            def not_led(end: float) -> None:
                if request.number == number:  # otherwise its broker knows already
                    request.asker.lost(request, end)

            return self._costs.refusal_s, not_led
        returns = self._share.returns
        answer: tuple[int, int] | None = None
        if self._waits_too_long(group, request, now):
            self._share.refused(now)
            answer = returns.returning(request.items, now, request.identity)
        if answer is None and returns.promised:
            answer = returns.early(request.identity, now)
        costs = self._costs
        if answer is not None:
            self.refused_requests += 1
            self.refused_items += request.items
            after_ms, jitter_ms = answer
            cost_s = RECEIVED * costs.request_s + costs.refusal_s + costs.refused_item_s * request.items
            return cost_s, lambda end: self._reply(request, number, end, refused=(after_ms, jitter_ms))
        clients = len(request.clients)
        cost_s = self._received_s(clients) if clients else 0.0
        return cost_s, lambda end: self._queue(group, request, end)

    def _waits_too_long(self, group: Group, request: Request, now: float) -> bool:
        waited_s = now - request.arrived_s
        if waited_s >= _WAITED_S and self._admission.is_late(waited_s, request.deadline_s - request.arrived_s):
            return True
        if group.queue.items < FULL_ITEMS:
            return False
        before = group.queue.before(request.tenant, request.source)
        patience_s = request.deadline_s - now
        return not self._admission.admitted(before, 1, group.rate.estimate(now), patience_s, waited_s)

    def _queue(self, group: Group, request: Request, now: float) -> None:
        if not group.queue:
            group.first_s = now
        group.queue.add(request)
        self._precedence.small += request.small
        if group.queue.items >= FULL_ITEMS:
            group.rate.full(now)
        self._arrived[group.number] += request.items
        if self._arrived[group.number] >= _AT_ONCE_ITEMS:
            self._turn(now)
        elif not self._disk.busy:
            self._turn_soon(now)

    def _turn_soon(self, now: float) -> None:
        """The disk is idle: once the loop has done what waits, all groups may begin something."""
        if not self._turn_comes:
            self._turn_comes = True
            self.process.add(lambda at: (0.0, self._turn))

    def _turn(self, now: float) -> None:
        self._turn_comes = False
        self._arrived.clear()
        for group in self._groups.values():
            self._pump(group, now)

    def _pump_next(self, group: Group) -> None:
        self.process.add(lambda now: (0.0, lambda end: self._pump(group, end)))

    def _pump(self, group: Group, now: float) -> None:
        """Make an entry of what waits, as far as the server's rules allow."""
        queue = group.queue
        if not queue or not self.process.alive or group.in_flight >= PIPELINE_ENTRIES:
            return
        if not self._may_begin(group):
            if wait_s := self._precedence.heavy_wait_s:
                self._look_again(group, now + wait_s)
            return
        behind = queue.items >= _CROWD_ITEMS and bool(self.process.waiting)
        company_s = _CROWD_S if behind else _COMPANY_S if group.in_flight else 0.0
        if queue.items < _COMPANY_ITEMS and now < group.first_s + company_s:
            self._look_again(group, now + _COMPANY_S if behind else group.first_s + company_s)
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
            else:
                self._precedence.small -= first.small
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
        group.in_flight_items += _ENTRY_WORTH + entry.items
        self.process.add_first(lambda at: self._evaluate(group, entry, at))
        if queue:
            self._pump_next(group)

    def _may_begin(self, group: Group) -> bool:
        """Whether what is next may begin; where it may not, that of another source is next."""
        for _ in range(_LOOK_FOR_SMALL):
            first = group.queue.first()
            fits = not group.in_flight or group.in_flight_items + first.items <= PIPELINE_ITEMS
            if first.small or (fits and not self._precedence.heavy_wait_s):
                return True
            if not group.queue.skip():
                break
        return False

    def _evaluate(self, group: Group, entry: Entry, begun_s: float) -> tuple[float, Callable[[float], None]]:
        def ended(end: float) -> None:
            if entry.items > SMALL_ITEMS:
                self._precedence.heavy_done(begun_s)
            self._append(group, entry, end)

        parts = sum(request.parts for request, _ in entry.requests)
        item_s = self._cluster.look_up_s(self._groups, self._costs)
        look_up_s = entry.clients * item_s * group.look_ups / LOOK_UPS + parts * self._costs.part_s
        return self._costs.entry_s + look_up_s, ended

    def _look_again(self, group: Group, at_s: float) -> None:
        """Look again at that time."""
        if not group.timed:
            group.timed = True
            self._machine.at(at_s, self._later, group)

    def _later(self, group: Group) -> None:
        group.timed = False
        self._pump_next(group)

    def _append(self, group: Group, entry: Entry, now: float) -> None:
        voters = 1 + len(group.followers)
        quorum = voters // 2 + 1

        def synced(at: float) -> None:
            entry.synced += 1
            if entry.synced == quorum:
                self._commit(group, entry)

        self._disk.append(synced)
        delay_s = self._costs.delay_s

        def hear(at: float) -> None:
            self.process.add(lambda now: (0.0, synced))

        for follower in group.followers:
            self._machine.at(now + delay_s, follower.follow, entry, hear)

    def follow(self, entry: Entry, acknowledged: Callable[[float], None]) -> None:
        """Append and sync an entry of another node's group, say so, and apply it."""

        def synced(now: float) -> None:
            self._machine.at(now + self._costs.delay_s, acknowledged, now + self._costs.delay_s)
            self.process.add(lambda at: (self._costs.follower_item_s * entry.clients, None))

        self.process.add(lambda now: (self._costs.follower_entry_s, lambda end: self._disk.append(synced)))

    def _commit(self, group: Group, entry: Entry) -> None:
        costs = self._costs
        answers = sum(bool(len(request.clients)) for request, _ in entry.requests)

        def apply(now: float) -> tuple[float, Callable[[float], None]]:
            group.in_flight -= 1
            group.in_flight_items -= _ENTRY_WORTH + entry.items
            self._precedence.small -= entry.small
            cost_s = (1 - RECEIVED) * answers * costs.request_s
            return cost_s + (1 - RECEIVED_ITEMS) * entry.clients * costs.item_s, ended

        def ended(end: float) -> None:
            self._share.answered(entry.items)
            self._cluster.done_items += entry.clients
            for request, number in entry.requests:
                self._reply(request, number, end)
            self._turn(end)

        self.process.add(apply)

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
