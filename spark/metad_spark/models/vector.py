"""One node's storm for millions of clients: the events of :mod:`.exact`, a bucket of time at once.

No event at a leader can bring it an item before the shortest handshake is over. So a bucket of that length (the
lookahead of conservative parallel simulation; Chandy and Misra, 1979) can be handled as arrays: sort the arrivals, let
the node take its turns, then have the refused and the given-up clients schedule their next attempts, which fall into
later buckets. Between the starts of two turns a queue only grows, so the admitted items are a slice. Times are whole
microseconds and draws are hashes, so neither order nor rounding can make the two models differ.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from metad_wire.policy import BatchWindow, uniform
from metad_wire.policy.draw import stream
from metad_wire.policy.vector import Backoffs, batch_ends, reserve_slots_ns, reserve_us, slot_waits_us, uniforms

from ..errors import SimulationError
from . import population
from .calendar import CLIENT_BITS, CLIENT_MASK, Calendar
from .doors import GONE, pass_doors
from .exact import turn_us
from .node_input import FINE_POINTS, FINE_US, NodeInput, Outage
from .results import NodeResult
from .tally import Tally

Ints = npt.NDArray[np.int64]

CLIENTS_MAX = 100_000_000
"""Clients of one node: some 5 GB. A calendar's entry could number twenty times as many."""
_CHUNK = 1 << 18
_SECOND_US = 1_000_000
_NONE: Ints = np.empty(0, np.int64)


class Items(NamedTuple):
    """Items on their way, in order: clients, times of arrival at the leader, and the times by which the answers must
    leave."""

    client: Ints
    at_us: Ints
    deadline_us: Ints

    def where(self, which: npt.NDArray[np.bool_] | slice) -> Items:
        """The selected items."""
        return Items(self.client[which], self.at_us[which], self.deadline_us[which])


def together(parts: list[Items]) -> Items:
    """All parts, one after the other."""
    if not parts:
        return Items(_NONE, _NONE, _NONE)
    return parts[0] if len(parts) == 1 else Items(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))


class Queue:
    """The items that wait for one group."""

    def __init__(self) -> None:
        self._chunks: list[Items] = []
        self._taken = 0  # items of the first chunk that were taken
        self.waiting = 0

    def append(self, items: Items) -> None:
        """Append items behind all others."""
        if len(items.client):
            self._chunks.append(items)
            self.waiting += len(items.client)

    def take(self, count: int) -> list[Items]:
        """Take the first ``count`` items."""
        parts: list[Items] = []
        self.waiting -= count
        while count:
            chunk = self._chunks[0]
            end = min(self._taken + count, len(chunk.client))
            parts.append(chunk.where(slice(self._taken, end)))
            count -= end - self._taken
            self._taken = end
            if end == len(chunk.client):
                del self._chunks[0]
                self._taken = 0
        return parts


class Clients:
    """All clients of the node and the next action of each."""

    def __init__(self, node_input: NodeInput, seed: int, step_us: int, begin_us: int) -> None:
        self.input = node_input
        self.tally = Tally(node_input)
        self.reaches = Calendar(step_us, begin_us, node_input.horizon_us)
        self.knocks = Calendar(step_us, begin_us, node_input.horizon_us)
        self.deadlines = Calendar(step_us, begin_us, node_input.horizon_us)
        self.kind = population.kinds_of(node_input)
        self.first_us = population.firsts_us(node_input, seed)
        self.done_us = np.full(node_input.clients, -1, np.int64)
        self.deadline_us = np.zeros(node_input.clients, np.int64)
        self.attempt = np.full(node_input.clients, -1, np.int32)  # the current one
        self._backoffs = Backoffs(node_input.backoffs)
        self._wait_us = np.zeros(node_input.clients, np.int64) if self._backoffs.remembers else None
        self._clock_us = np.zeros(node_input.clients, np.int64) if node_input.budget else None
        self._backoff, self._jitter = stream(seed, population.BACKOFF), stream(seed, population.JITTER)
        self._loss = stream(seed, population.LOSS)
        kinds = node_input.kinds
        self.region = np.array([kind.region for kind in kinds])
        self.back_us = np.array([node_input.back_us(kind.region) for kind in kinds])
        self._sdk = np.array([kind.sdk for kind in kinds])
        self._forth_us = np.array([node_input.forth_us(kind.region, kind.transport) for kind in kinds])
        losses = np.array([population.loss_shares(node_input, kind.region, kind.transport) for kind in kinds])
        self._losses = losses.T.copy() if losses.any() else None
        self._loss_us = np.array([population.loss_us(lost) for lost in range(population.LOST_MAX + 1)])
        self._doors = np.array(node_input.doors, np.int64)
        self._first_door = np.cumsum([0, *node_input.doors])[:-1]
        self._free_ns = np.zeros(sum(node_input.doors), np.int64)
        points = max((len(row) for row in node_input.door_ns), default=0)
        rows = [[*row, *(row[-1:] * (points - len(row)))] for row in node_input.door_ns]
        self._intervals_ns = np.array(rows, np.int64)
        self._noted: list[tuple[Ints, Ints]] = []  # regions and starts; counted when there are many
        self._noted_count = 0
        self.restored = 0

    def begin(self) -> None:
        """Schedule everybody's first attempt."""
        for at in range(0, self.input.clients, _CHUNK):
            client = np.arange(at, min(at + _CHUNK, self.input.clients), dtype=np.int64)
            self._attempt(client, self.kind.take(client), self.first_us[client])

    def retry(self, client: Ints, at_us: Ints, slots_ns: Ints | None = None) -> None:
        """These clients' attempts have failed at these times of the leader's clock."""
        if not len(client):
            return
        node_input = self.input
        kind = self.kind.take(client)
        attempt = self.attempt.take(client).astype(np.int64)
        name = client + node_input.first_client
        if slots_ns is not None and node_input.returns is not None:
            wait_us = slot_waits_us(node_input.returns, at_us, slots_ns, uniforms(self._jitter, name, attempt))
        else:
            before = self._wait_us.take(client) if self._wait_us is not None else None
            u = uniforms(self._backoff, name, attempt)
            wait_us = self._backoffs.waits_us(self._sdk.take(kind), attempt, before, u)
            if self._wait_us is not None:
                self._wait_us[client] = wait_us
        start_us = at_us + self.back_us.take(kind) + wait_us
        if node_input.budget is not None and self._clock_us is not None:
            start_us, self._clock_us[client] = reserve_us(node_input.budget, start_us, self._clock_us.take(client))
        self._attempt(client, kind, start_us)

    def _attempt(self, client: Ints, kind: npt.NDArray[np.uint16], start_us: Ints) -> None:
        """Make these clients' next attempts, begun at ``start_us``."""
        node_input = self.input
        attempt = self.attempt.take(client) + 1
        self.attempt[client] = attempt
        deadline_us = start_us + node_input.timeout_us - self.back_us.take(kind)
        self.deadline_us[client] = deadline_us
        reached_us = start_us + self._forth_us.take(kind)
        if self._losses is not None:
            u = uniforms(self._loss, client + node_input.first_client, attempt.astype(np.int64))
            lost = (u < self._losses[0].take(kind)).astype(np.int64)
            if lost.any():
                for shares in self._losses[1:]:
                    lost += u < shares.take(kind)
                reached_us += self._loss_us.take(lost)
        self._note(self.region.take(kind), start_us)
        due = self.reaches if len(self._doors) else self.knocks
        begun = start_us < node_input.horizon_us
        in_time = reached_us <= deadline_us
        if in_time.all() and begun.all():
            due.add(reached_us, client)
            return
        now = in_time & begun
        due.add(reached_us[now], client[now])
        gone = ~in_time & begun
        self.deadlines.add(deadline_us[gone], client[gone])

    def pass_doors(self, reaches: Ints) -> None:
        """Let through, each at its time, the clients that reach their brokers' doors now."""
        if not len(reaches):
            return
        node_input = self.input
        client, reached_us = reaches & CLIENT_MASK, self.reaches.times_us(reaches)
        region = self.region.take(self.kind.take(client))
        door = self._first_door.take(region) + client // node_input.groups % self._doors.take(region)
        deadline_us = self.deadline_us.take(client)
        pass_us = pass_doors(
            reached_us, deadline_us, region, door, self._free_ns, self._intervals_ns, node_input.wave_us
        )
        gone = pass_us == GONE
        if gone.any():
            self.tally.left += int(np.count_nonzero(gone))
            self.deadlines.add(deadline_us[gone], client[gone])
            client, reached_us, pass_us, region = client[~gone], reached_us[~gone], pass_us[~gone], region[~gone]
        if not len(client):
            return
        self.tally.kept_max_us = max(self.tally.kept_max_us, int((pass_us - reached_us).max()))
        self.knocks.add(pass_us, client)
        begun = pass_us < node_input.horizon_us
        counts = self.tally.passed
        place = region[begun] * counts.shape[1] + pass_us[begun] // _SECOND_US
        counts += np.bincount(place, minlength=counts.size).reshape(counts.shape)

    def _note(self, region: Ints, start_us: Ints) -> None:
        self._noted.append((region, start_us))
        self._noted_count += len(region)
        if self._noted_count >= _CHUNK:
            self.count()

    def count(self) -> None:
        """Count the attempts that were noted."""
        if not self._noted:
            return
        region, start_us = (np.concatenate(column) for column in zip(*self._noted, strict=True))
        # A client whose next attempt would begin after the horizon makes none.
        fine_us = min(FINE_US * FINE_POINTS, self.input.horizon_us)
        for counts, width_us, end_us in (
            (self.tally.attempts, _SECOND_US, self.input.horizon_us),
            (self.tally.attempts_fine, FINE_US, fine_us),
        ):
            begun = start_us < end_us
            place = region[begun] * counts.shape[1] + start_us[begun] // width_us
            counts += np.bincount(place, minlength=counts.size).reshape(counts.shape)
        self._noted.clear()
        self._noted_count = 0

    def succeed(self, client: Ints, at_us: Ints) -> None:
        """These clients' answers leave the leader at these times, none too late."""
        self.done_us[client] = at_us + self.back_us.take(self.kind.take(client))
        self.restored += len(client)

    def give_up(self, due: Ints) -> None:
        """These deadlines (sorted entries) have passed; those without an answer take effect."""
        if len(due):
            due = due[np.concatenate(([True], due[1:] != due[:-1]))]
            client, at_us = due & CLIENT_MASK, self.deadlines.times_us(due)
            live = (self.deadline_us.take(client) == at_us) & (self.done_us.take(client) < 0)
            client, at_us = client[live], at_us[live]
            self.tally.timeouts += len(client)
            self.retry(client, at_us)


class Brokers:
    """Joins clients that knock at one broker for one group, if brokers wait to fill batches."""

    def __init__(self, clients: Clients) -> None:
        node_input = clients.input
        self._input = node_input
        self._clients = clients
        self._window: BatchWindow = node_input.window
        self._lane = self._lanes() if node_input.window.linger_us else None
        self._lane_max = sum(node_input.brokers) * node_input.groups
        self._waiting = Items(_NONE, _NONE, _NONE)  # in open batches; ``at_us`` is when they knocked

    def __len__(self) -> int:
        return len(self._waiting.client)

    def _lanes(self) -> npt.NDArray[np.uint32]:
        """A number for each client's pair of broker and group."""
        node_input = self._input
        bases = population.broker_bases(node_input)
        if bases[-1] * node_input.groups >= 1 << CLIENT_BITS:
            raise SimulationError("brokers times groups of a node are too many for the vector model")
        lanes = np.empty(node_input.clients, np.uint32)
        first = 0
        for kind in node_input.kinds:
            client = np.arange(first, first + kind.clients)
            broker = bases[kind.region] + client // node_input.groups % node_input.brokers[kind.region]
            lanes[first : first + kind.clients] = broker * node_input.groups + client % node_input.groups
            first += kind.clients
        return lanes

    def pass_on(self, knocks: Ints, until_us: int) -> Items:
        """The items that arrive at the leaders before ``until_us``, given the knocks until then."""
        client, at_us = knocks & CLIENT_MASK, self._clients.knocks.times_us(knocks)
        deadline_us = self._clients.deadline_us.take(client)
        if not self._window.linger_us:
            return Items(client, at_us, deadline_us)
        # Their deadline may pass while they wait in a batch, and no other code would handle that.
        late = deadline_us < at_us + self._window.linger_us
        if late.any():
            self._clients.deadlines.add(deadline_us[late], client[late])
        items = together([self._waiting, Items(client, at_us, deadline_us)])
        if not len(items.client):
            return items
        sent_us, items = self._batches(items)
        closed = sent_us < until_us
        self._waiting = items.where(~closed)
        items, sent_us = items.where(closed), sent_us[closed]
        # One client's items can only meet if it gave the first one up; then the older goes first.
        is_late = bool((items.deadline_us < sent_us).any())
        order = np.argsort((sent_us << CLIENT_BITS) | items.client, kind="stable" if is_late else "quicksort")
        return Items(items.client[order], sent_us[order], items.deadline_us[order])

    def _batches(self, items: Items) -> tuple[Ints, Items]:
        """The known times at which items are sent, and the items again, in the order of their lanes."""
        assert self._lane is not None
        lane = self._lane.take(items.client)
        order = np.argsort(lane.astype(np.uint16) if self._lane_max < 1 << 16 else lane, kind="stable")
        items = Items(*(column[order] for column in items))
        lanes: Ints = lane[order].astype(np.int64)
        # Items that waited before are already first in their lane, because they knocked earlier.
        close_us, end = batch_ends(self._window, items.at_us, lanes)
        # Follow each lane from batch to batch, all lanes at once.
        is_first = np.zeros(len(lanes) + 1, np.bool_)
        heads = np.flatnonzero(np.concatenate(([True], lanes[1:] != lanes[:-1])))
        while len(heads):
            is_first[heads] = True
            heads = end[heads]
            heads = heads[heads < len(lanes)]
            heads = heads[~is_first[heads]]
        heads = np.flatnonzero(is_first[:-1])
        sent_us = np.repeat(close_us[heads], np.diff(heads, append=len(lanes)))
        return sent_us, items


class Node:
    """The node: a queue for each group, and turns."""

    def __init__(self, clients: Clients, seed: int) -> None:
        self.input = clients.input
        self._clients = clients
        self._tally = clients.tally
        self._service = stream(seed, population.SERVICE)
        self._queues = [Queue() for _ in range(self.input.groups)]
        self._turns = 0
        self._free_us = 0
        self._slots_ns = [0] * self.input.groups
        self._aborted: list[list[Items]] = [[] for _ in range(self.input.groups)]

    def waiting(self) -> int:
        """The number of items in all groups."""
        return sum(queue.waiting for queue in self._queues)

    def busy(self) -> bool:
        """Whether the node has work left without new arrivals."""
        return self.waiting() > 0 or any(self._aborted)

    def run(self, items: Items, from_us: int, until_us: int) -> None:
        """Handle the arrivals of [``from_us``, ``until_us``)."""
        for outage in self.input.outages:
            if from_us <= outage.at_us < until_us:
                cut = int(np.searchsorted(items.at_us, outage.at_us))
                self._serve(items.where(slice(0, cut)), outage.at_us, outage)
                items, from_us = items.where(slice(cut, None)), outage.at_us
                self._die(outage.at_us)
            if from_us < outage.until_us and outage.at_us <= from_us:
                cut = int(np.searchsorted(items.at_us, outage.until_us))
                self._refuse_all(items.where(slice(0, cut)))
                items, from_us = items.where(slice(cut, None)), min(outage.until_us, until_us)
        self._serve(items, until_us, next((o for o in self.input.outages if o.at_us >= until_us), None))

    def _by_group(self, items: Items) -> list[Items]:
        if len(self._queues) == 1:
            return [items]
        groups = len(self._queues)
        group = items.client.astype(np.uint32) % np.uint32(groups)
        if groups > 1 << 8:
            return [items.where(group == at) for at in range(groups)]
        order = np.argsort(group.astype(np.uint8), kind="stable")
        ends = np.cumsum(np.bincount(group, minlength=groups)).tolist()
        items = Items(*(column[order] for column in items))
        return [items.where(slice(begin, end)) for begin, end in zip([0, *ends[:-1]], ends, strict=True)]

    def _refuse_all(self, items: Items) -> None:
        if len(items.client):
            self._refuse(self._by_group(items))

    def _die(self, at_us: int) -> None:
        """Refuse the waiting items and those of the running turn, and become free."""
        lost = []
        for aborted, queue in zip(self._aborted, self._queues, strict=True):
            items = together(aborted + queue.take(queue.waiting))
            lost.append(Items(items.client, np.full(len(items.client), at_us), items.deadline_us))
            aborted.clear()
        self._refuse(lost)
        self._free_us = at_us

    def _refuse(self, refused: list[Items]) -> None:
        """Refuse these items, by group; clients that still listen will try again."""
        returns = self.input.returns
        slots: list[Ints] = []
        if returns is not None:
            for group, items in enumerate(refused):
                reserved, self._slots_ns[group] = reserve_slots_ns(returns, items.at_us * 1000, self._slots_ns[group])
                slots.append(reserved)
        items = together(refused)
        if not len(items.client):
            return
        self._tally_add(self._tally.rejected, items.at_us // _SECOND_US)
        slots_ns = np.concatenate(slots) if slots else None
        listens = items.deadline_us >= items.at_us
        if not listens.all():
            self._tally.unheard += int(np.count_nonzero(~listens))
            items = items.where(listens)
            slots_ns = slots_ns[listens] if slots_ns is not None else None
        self._clients.retry(items.client, items.at_us, slots_ns)

    @staticmethod
    def _tally_add(counts: Ints, places: Ints, weights: Ints | None = None) -> None:
        first = int(places.min())
        added = np.bincount(places - first, weights=weights)
        counts[first : first + len(added)] += added.astype(np.int64)

    def _serve(self, items: Items, until_us: int, ahead: Outage | None) -> None:
        """Admit items, and take the turns that start before ``until_us``; ``ahead`` may cut one off."""
        node_input, queues = self.input, self._queues
        groups = range(len(queues))
        arriving = self._by_group(items)
        times = [each.at_us for each in arriving]
        seen = [0] * len(queues)  # of the arriving items
        admitted: list[list[tuple[int, int]]] = [[] for _ in groups]  # slices
        full: list[list[tuple[int, int]]] = [[] for _ in groups]
        waiting = [queue.waiting for queue in queues]
        taken: list[list[int]] = [[] for _ in groups]  # items of each turn
        finishes: list[int] = []
        limit = node_input.admission.items_max

        def extend(slices: list[tuple[int, int]], begin: int, end: int) -> None:
            if slices and slices[-1][1] == begin:
                begin = slices.pop()[0]
            slices.append((begin, end))

        def admit(group: int, end: int) -> None:
            begin = seen[group]
            if begin == end:
                return
            seen[group] = end
            room = end - begin if not limit else min(end - begin, max(0, limit - waiting[group]))
            if room:
                extend(admitted[group], begin, begin + room)
                waiting[group] += room
            if room < end - begin:
                extend(full[group], begin + room, end)

        aborted = False
        while not aborted:
            if any(waiting):
                start_us = self._free_us
            else:
                following = [int(times[group][seen[group]]) for group in groups if seen[group] < len(times[group])]
                if not following:
                    break
                start_us = max(self._free_us, min(following))
            if start_us >= until_us:
                break
            for group in groups:
                if seen[group] < len(times[group]):
                    admit(group, int(times[group].searchsorted(start_us, side="right")))
            second = start_us // _SECOND_US
            self._tally.queue[second] = max(self._tally.queue[second], max(waiting))
            counts = [min(node_input.batch_items, each) for each in waiting]
            u = uniform(self._service, node_input.node, self._turns) if len(node_input.factors) > 1 else 0.0
            self._turns += 1
            total = sum(counts)
            finish_us = start_us + turn_us(node_input, start_us, sum(map(bool, counts)), total, u)
            aborted = ahead is not None and finish_us > ahead.at_us
            for group in groups:
                waiting[group] -= counts[group]
                taken[group].append(counts[group])
            finishes.append(finish_us)
            self._free_us = finish_us
            if finish_us < node_input.horizon_us and not aborted:
                self._tally.serve(finish_us, total)
        for group in groups:
            admit(group, len(times[group]))
        self._settle(arriving, admitted, full, taken, finishes, aborted)

    def _settle(
        self,
        arriving: list[Items],
        admitted: list[list[tuple[int, int]]],
        full: list[list[tuple[int, int]]],
        taken: list[list[int]],
        finishes: list[int],
        aborted: bool,
    ) -> None:
        """Carry out, with arrays, the decisions that were made for slices."""
        refused: list[Items] = []
        for group, queue in enumerate(self._queues):
            items = arriving[group]
            if len(admitted[group]) == 1 and not full[group]:
                queue.append(items)
            else:
                for begin, end in admitted[group]:
                    queue.append(items.where(slice(begin, end)))
            refused.append(together([items.where(slice(begin, end)) for begin, end in full[group]]))
        done: list[Items] = []
        done_us: list[Ints] = []
        if finishes:
            times = np.array(finishes)
            for group, queue in enumerate(self._queues):
                counts = taken[group]
                if aborted:
                    whole = sum(counts[:-1])
                    done += queue.take(whole)
                    done_us.append(np.repeat(times[:-1], counts[:-1]))
                    self._aborted[group] = queue.take(counts[-1])
                else:
                    done += queue.take(sum(counts))
                    done_us.append(np.repeat(times, counts))
        if done:
            self._finish(together(done), np.concatenate(done_us))
        # Items that still wait, or were served too late, have deadlines to watch. The broker has handled those that
        # arrived past their own.
        let_in = together(
            [items.where(slice(*cut)) for items, cuts in zip(arriving, admitted, strict=True) for cut in cuts]
        )
        watched = (self._clients.done_us.take(let_in.client) < 0) & (let_in.deadline_us >= let_in.at_us)
        if watched.any():
            self._clients.deadlines.add(let_in.deadline_us[watched], let_in.client[watched])
        self._refuse(refused)

    def _finish(self, items: Items, at_us: Ints) -> None:
        """These items' turns end at these times."""
        if at_us[-1] >= self.input.horizon_us or at_us.max() >= self.input.horizon_us:
            counts = at_us < self.input.horizon_us
            items, at_us = items.where(counts), at_us[counts]
            if not len(at_us):
                return
        wave = items.at_us // self.input.wave_us
        self._tally_add(self._tally.held_us, wave, at_us - items.at_us)
        self._tally_add(self._tally.held, wave)
        in_time = at_us <= items.deadline_us
        if in_time.all():
            self._clients.succeed(items.client, at_us)
            return
        self._tally.wasted += int(np.count_nonzero(~in_time))
        self._clients.succeed(items.client[in_time], at_us[in_time])


def lookahead_us(node_input: NodeInput) -> int:
    """The time within which no event at a leader can bring it another item or another deadline."""
    nearest = min(node_input.round_trips[kind.transport] * node_input.rtt_us[kind.region] for kind in node_input.kinds)
    return min(nearest + 2 * node_input.latency_us, node_input.timeout_us)


def simulate(node_input: NodeInput, seed: int) -> NodeResult:
    """Simulate the node's clients. Raises SimulationError over :data:`CLIENTS_MAX`."""
    if node_input.clients > CLIENTS_MAX:
        raise SimulationError(
            f"the vector model holds {CLIENTS_MAX:,} clients of a node, not {node_input.clients:,}: "
            "take more nodes or fluid"
        )
    step_us = lookahead_us(node_input)
    # If clients are less patient than the way is long, their first deadline at the leader is before the storm.
    ahead_us = max(0, max(node_input.back_us(kind.region) for kind in node_input.kinds) - node_input.timeout_us)
    begin_us = -(-ahead_us // step_us) * -step_us
    clients = Clients(node_input, seed, step_us, begin_us)
    brokers, node = Brokers(clients), Node(clients, seed)
    clients.begin()
    for bucket in range(-((begin_us - node_input.horizon_us) // step_us)):
        from_us = begin_us + bucket * step_us
        until_us = min(from_us + step_us, node_input.horizon_us)
        clients.pass_doors(clients.reaches.take(bucket))
        items = brokers.pass_on(clients.knocks.take(bucket), until_us)
        dies = any(from_us <= outage.at_us < until_us for outage in node_input.outages)
        if len(items.client) or node.busy() or dies:
            node.run(items, from_us, until_us)
        clients.give_up(clients.deadlines.take(bucket))
        if clients.restored == len(clients.kind) and not node.busy() and not len(brokers):
            break
    clients.count()
    return clients.tally.result(clients.first_us, clients.done_us, clients.region.take(clients.kind))
