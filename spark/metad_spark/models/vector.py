"""One node's storm for millions of clients, a bucket of time at once.

No event at a leader can bring it an item before the shortest handshake is over. So a bucket of that length (the
lookahead of conservative parallel simulation; Chandy and Misra, 1979) can be handled as arrays: sort the arrivals, let
the node take its turns, then have the refused and the given-up clients schedule their next attempts, which fall into
later buckets. Times are whole microseconds and draws are hashes, so that neither order nor rounding decides
anything: the oracle of the tests takes one event after the other, and gives the same result to the last bit.

This module makes the arrays and counts what comes of them (:class:`Tally`), and :mod:`.vector_steps` does the rest in
machine code: an attempt is some tens of nanoseconds of work, and as much again each time that it is read from memory
and written back. So it is moved as seldom as possible.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from metad_wire.policy.draw import CLIENT_STEP, MIX_1, MIX_2, TURN_STEP, UNIT, stream
from metad_wire.policy.vector import Backoffs

from ..errors import TooMany
from . import population, vector_steps
from .histogram import BINS, counted
from .node_input import FINE_POINTS, FINE_US, NodeInput
from .results import Array, NodeResult
from .vector_steps import (
    BUCKETS,
    NEAR_BITS,
    PAGE,
    STATE,
    Calendar,
    Carried,
    Clients,
    Counts,
    Doors,
    Draws,
    Kinds,
    Lanes,
    Queues,
    Scratch,
    Setting,
    Storm,
    advance,
    begin,
)

Ints = npt.NDArray[np.int64]
_SECOND_US = 1_000_000
_TIMES_CHUNK = 1 << 17
"""Clients whose times are looked at together: they fit the cache."""


class Tally:
    """Counters of one node. The models write to them directly; times are microseconds until :meth:`result`."""

    def __init__(self, node_input: NodeInput) -> None:
        self.input = node_input
        regions, seconds, waves = len(node_input.regions), node_input.seconds, node_input.waves
        self.attempts = np.zeros((regions, seconds), np.int64)
        self.attempts_fine = np.zeros((regions, FINE_POINTS), np.int64)
        self.served_fine = np.zeros(FINE_POINTS, np.int64)
        self.rejected = np.zeros(seconds, np.int64)
        self.served = np.zeros(seconds, np.int64)
        self.queue = np.zeros(seconds, np.int64)
        self.passed = np.zeros((regions, seconds), np.int64)
        self.held_us = np.zeros(waves, np.int64)
        self.held = np.zeros(waves, np.int64)
        self.kept_max_us = 0
        self.timeouts = 0
        self.left = 0
        self.wasted = 0
        self.unheard = 0

    def attempt(self, region: int, at_us: int) -> None:
        """An attempt begins."""
        self.attempts[region, at_us // _SECOND_US] += 1
        if at_us < FINE_US * FINE_POINTS:
            self.attempts_fine[region, at_us // FINE_US] += 1

    def serve(self, at_us: int, items: int) -> None:
        """A turn ends in which so many items were served."""
        self.served[at_us // _SECOND_US] += items
        if at_us < FINE_US * FINE_POINTS:
            self.served_fine[at_us // FINE_US] += items

    def result(self, first_us: Ints, done_us: Ints, region: npt.NDArray[np.integer]) -> NodeResult:
        """The result, with the clients' own times: of the first attempt, of CONNACK (-1: never), and their regions."""
        node_input = self.input
        regions, seconds = len(node_input.regions), node_input.seconds
        restored = np.zeros(regions * seconds, np.int64)
        fine = np.zeros(regions * FINE_POINTS, np.int64)
        storm, waited, back, own_us = np.zeros(BINS), np.zeros(BINS), 0, 0
        for at in range(0, len(done_us), _TIMES_CHUNK):
            chunk = slice(at, at + _TIMES_CHUNK)
            is_back = done_us[chunk] >= 0
            done, where = done_us[chunk][is_back], region[chunk][is_back].astype(np.int64)
            own = done - first_us[chunk][is_back]
            second = np.minimum(done // _SECOND_US, seconds - 1)
            restored += np.bincount(where * seconds + second, minlength=len(restored))
            early = done < FINE_US * FINE_POINTS
            fine += np.bincount(where[early] * FINE_POINTS + done[early] // FINE_US, minlength=len(fine))
            storm += counted(done)
            waited += counted(own)
            back += len(done)
            own_us += int(own.sum())
        return NodeResult(
            node=node_input.node,
            copies=node_input.copies,
            clients=float(node_input.clients),
            restored=float(back),
            attempts=float(self.attempts.sum()),
            rejected=float(self.rejected.sum()),
            unheard=float(self.unheard),
            timeouts=float(self.timeouts),
            left=float(self.left),
            wasted=float(self.wasted),
            queue_max=float(self.queue.max()),
            own_s_sum=float(own_us) * 1e-6,
            storm=storm,
            own=waited,
            restored_by_s=restored.reshape(regions, seconds).astype(np.float64),
            attempts_by_s=self.attempts.astype(np.float64),
            rejected_by_s=self.rejected.astype(np.float64),
            served_by_s=self.served.astype(np.float64),
            restored_fine=fine.reshape(regions, FINE_POINTS).astype(np.float64),
            attempts_fine=self.attempts_fine.astype(np.float64),
            served_fine=self.served_fine.astype(np.float64),
            queue_by_s=self.queue.astype(np.float64),
            capacity_by_s=capacity_by_s(node_input),
            passed_by_s=self.passed.astype(np.float64),
            kept_max_s=self.kept_max_us * 1e-6,
            held_s=self.held_us.astype(np.float64) * 1e-6,
            held=self.held.astype(np.float64),
            wave_s=node_input.wave_us * 1e-6,
        )


def capacity_by_s(node_input: NodeInput) -> Array:
    """Items that the node could serve in each second, with outages and their consequences."""
    best = node_input.items_per_s()
    seconds = np.arange(node_input.seconds, dtype=np.float64)
    capacity = np.full(node_input.seconds, best)
    for outage in node_input.outages:
        at, until = outage.at_us * 1e-6, outage.until_us * 1e-6
        down = np.clip(np.minimum(seconds + 1, until) - np.maximum(seconds, at), 0, 1)
        after = np.clip(seconds + 1 - np.maximum(until, seconds), 0, 1)
        before = 1 - down - after
        capacity = capacity * before + best / outage.slowdown * after
    return capacity


CLIENTS_MAX = 100_000_000
"""Clients of one node: some 5 GB."""
_CHUNK = 1 << 18
_ROOM = 1 << 12
"""Entries of a bucket, at first."""
_PLACES, _PLACES_MAX = 1 << 10, 1 << 20
"""Places of a queue at first: without a bound, and with any."""


def lookahead_us(node_input: NodeInput) -> int:
    """The time within which no event at a leader can bring it another item or another deadline."""
    nearest = min(node_input.round_trips[kind.transport] * node_input.rtt_us[kind.region] for kind in node_input.kinds)
    return min(nearest + 2 * node_input.latency_us, node_input.timeout_us)


def simulate(node_input: NodeInput, seed: int) -> NodeResult:
    """Simulate the node's clients. Raises TooMany over :data:`CLIENTS_MAX`."""
    if node_input.clients > CLIENTS_MAX:
        raise TooMany(
            f"the vector model holds {CLIENTS_MAX:,} clients of a node, not {node_input.clients:,}: take more nodes"
        )
    setting, tally = _setting(node_input), Tally(node_input)
    size = node_input.clients
    clients = Clients(
        done_us=np.full(size, -1, np.int64),
        watch=np.full(size, -1, np.int32),
        wait_us=np.zeros(size if setting.remembers else 0, np.int64),
        clock_us=np.zeros(size if setting.budget_us else 0, np.int64),
    )
    knocks = _calendar(setting, size)
    storm = Storm(
        setting=setting,
        draws=_draws(seed),
        kinds=_kinds(node_input),
        clients=clients,
        counts=Counts(*(getattr(tally, field) for field in Counts._fields)),
        state=np.zeros(1, STATE),
        reaches=_calendar(setting, size) if setting.has_doors else knocks,
        knocks=knocks,
        deadlines=_calendar(setting, size),
        doors=_doors(node_input),
        lanes=_lanes(node_input),
        carried=_carried(_ROOM),
        queues=_queues(setting),
        scratch=_scratch(_ROOM),
        factors=np.array(node_input.factors, np.float64),
        outages=np.array([(o.at_us, o.until_us, o.slowdown) for o in node_input.outages], np.float64).reshape(-1, 3),
    )
    first_us = population.firsts_us(node_input, seed)
    for at in range(0, size, _CHUNK):
        begin(storm, at, first_us[at : at + _CHUNK])
    while (why := advance(storm)) != vector_steps.DONE:
        storm = _with_more(storm, why)
    for field in ("timeouts", "left", "wasted", "unheard", "kept_max_us"):
        setattr(tally, field, int(storm.state[field][0]))
    region = storm.kinds.region.astype(np.uint8).repeat([kind.clients for kind in node_input.kinds])
    return tally.result(first_us, clients.done_us, region)


def _with_more(storm: Storm, why: int) -> Storm:
    """The storm with more room for what ``why`` says."""
    match why:
        case vector_steps.PAGES:
            knocks, deadlines = _larger(storm.knocks), _larger(storm.deadlines)
            reaches = _larger(storm.reaches) if storm.setting.has_doors else knocks
            return storm._replace(reaches=reaches, knocks=knocks, deadlines=deadlines)
        case vector_steps.PLACES:
            return storm._replace(queues=_longer(storm.queues))
        case _:
            room = 2 * len(storm.scratch.here)
            carried = _copied(storm.carried, _carried(room), storm.state)
            return storm._replace(scratch=_scratch(room), carried=carried)


def _setting(node_input: NodeInput) -> Setting:
    step_us = lookahead_us(node_input)
    # If clients are less patient than the way is long, their first deadline at the leader is before the storm.
    ahead_us = max(0, max(node_input.back_us(kind.region) for kind in node_input.kinds) - node_input.timeout_us)
    returns, budget, window = node_input.returns, node_input.budget, node_input.window
    return Setting(
        begin_us=-(-ahead_us // step_us) * -step_us,
        step_us=step_us,
        horizon_us=node_input.horizon_us,
        timeout_us=node_input.timeout_us,
        wave_us=node_input.wave_us,
        fine_us=FINE_US,
        fine_end_us=min(FINE_US * FINE_POINTS, node_input.horizon_us),
        node=node_input.node,
        first_client=node_input.first_client,
        groups=node_input.groups,
        batch_items=node_input.batch_items,
        items_max=node_input.admission.items_max,
        turn_us=float(node_input.turn_us),
        entry_us=float(node_input.entry_us),
        item_us=float(node_input.item_us),
        linger_us=window.linger_us,
        window_items=window.items_max,
        has_doors=bool(node_input.doors),
        slot_interval_ns=returns.interval_ns if returns else 0,
        slot_wait_ns=returns.wait_min_ns if returns else 0,
        slot_jitter_us=returns.jitter_us if returns else 0,
        budget_us=budget.interval_us if budget else 0,
        burst_us=(budget.burst - 1) * budget.interval_us if budget else 0,
        has_losses=any(node_input.loss),
        remembers=Backoffs(node_input.backoffs).remembers,
    )


def _draws(seed: int) -> Draws:
    return Draws(
        backoff=np.uint64(stream(seed, population.BACKOFF)),
        jitter=np.uint64(stream(seed, population.JITTER)),
        loss=np.uint64(stream(seed, population.LOSS)),
        service=np.uint64(stream(seed, population.SERVICE)),
        client_step=np.uint64(CLIENT_STEP),
        turn_step=np.uint64(TURN_STEP),
        mix_1=np.uint64(MIX_1),
        mix_2=np.uint64(MIX_2),
        unit=UNIT,
    )


def _kinds(node_input: NodeInput) -> Kinds:
    kinds, backoffs = node_input.kinds, Backoffs(node_input.backoffs)
    ends = np.array(population.kind_bounds(node_input), np.int64)
    bases = population.broker_bases(node_input)
    return Kinds(
        near=np.searchsorted(ends, np.arange(0, node_input.clients, 1 << NEAR_BITS), side="right").astype(np.int32),
        end=ends,
        region=np.array([kind.region for kind in kinds], np.int64),
        sdk=np.array([kind.sdk for kind in kinds], np.int64),
        back_us=np.array([node_input.back_us(kind.region) for kind in kinds], np.int64),
        forth_us=np.array([node_input.forth_us(kind.region, kind.transport) for kind in kinds], np.int64),
        losses=np.array(
            [
                population.loss_shares(node_input.loss[kind.region], node_input.round_trips[kind.transport])
                for kind in kinds
            ]
        ),
        loss_us=np.array([population.loss_us(lost) for lost in range(population.LOST_MAX + 1)], np.int64),
        low=backoffs.low,
        span=backoffs.span,
        cap=backoffs.cap,
        base=backoffs.base,
        decorrelated=backoffs.decorrelated,
        brokers=np.array(node_input.brokers, np.int64),
        first_broker=np.array(bases[:-1], np.int64),
    )


def _calendar(setting: Setting, clients: int) -> Calendar:
    lists = (setting.horizon_us - setting.begin_us) // (setting.step_us * BUCKETS) + 1 + BUCKETS
    pages = clients // PAGE + 2 * lists + BUCKETS
    return Calendar(
        pool=np.empty((pages * PAGE, 2), np.int64),
        after=np.empty(pages, np.int32),
        first=np.full(lists, -1, np.int32),
        end=np.zeros(lists, np.int64),
        size=np.zeros(lists, np.int64),
        at=np.array([-1, -1, 0, 0], np.int64),
    )


def _larger(calendar: Calendar) -> Calendar:
    """The calendar with more room: memory that is not used yet costs nothing."""
    pages, used = 2 * len(calendar.after), int(calendar.at[3])
    pool, after = np.empty((pages * PAGE, 2), np.int64), np.empty(pages, np.int32)
    pool[: used * PAGE] = calendar.pool[: used * PAGE]
    after[:used] = calendar.after[:used]
    return calendar._replace(pool=pool, after=after)


def _doors(node_input: NodeInput) -> Doors:
    points = max((len(row) for row in node_input.door_ns), default=0)
    rows = [[*row, *(row[-1:] * (points - len(row)))] for row in node_input.door_ns]
    return Doors(
        number=np.array(node_input.doors, np.int64),
        first=np.cumsum([0, *node_input.doors], dtype=np.int64)[:-1].copy(),
        free_ns=np.zeros(sum(node_input.doors), np.int64),
        intervals_ns=np.array(rows, np.int64).reshape(len(rows), points),
    )


def _lanes(node_input: NodeInput) -> Lanes:
    lanes = sum(node_input.brokers) * node_input.groups if node_input.window.linger_us else 0
    return Lanes(batch=np.full(lanes, -1, np.int32), filled=np.zeros(lanes, np.int32))


def _queues(setting: Setting) -> Queues:
    groups = setting.groups
    bound = setting.items_max + setting.batch_items if setting.items_max else _PLACES
    return Queues(
        np.empty((groups, min(bound, _PLACES_MAX), 2), np.int64), *(np.zeros(groups, np.int64) for _ in range(5))
    )


def _scratch(room: int) -> Scratch:
    wide, narrow = (np.empty((room, 2), np.int64) for _ in range(3)), (np.empty(room, np.int64) for _ in range(3))
    small = (np.empty(size, np.int32) for size in (2 * room + 2, room, room))
    return Scratch(
        here=next(wide),
        there=next(wide),
        refused=next(wide),
        slots_ns=next(narrow),
        ends=next(small),
        batch=next(small),
        close=next(narrow),
        lane=next(narrow),
        renamed=next(small),
    )


def _carried(room: int) -> Carried:
    return Carried(
        entries=np.empty((room, 2), np.int64),
        batch=np.empty(room, np.int32),
        close=np.empty(room, np.int64),
        lane=np.empty(room, np.int64),
    )


def _copied(old: Carried, new: Carried, state: npt.NDArray[np.void]) -> Carried:
    """``new`` with what brokers carry over."""
    entries, batches = int(state["carried"][0]), int(state["batches"][0])
    new.entries[:entries], new.batch[:entries] = old.entries[:entries], old.batch[:entries]
    new.close[:batches], new.lane[:batches] = old.close[:batches], old.lane[:batches]
    return new


def _longer(queues: Queues) -> Queues:
    """The queues with room for twice as many items."""
    places = queues.ring.shape[1]
    ring = np.empty((len(queues.head), 2 * places, 2), np.int64)
    for group, (head, tail) in enumerate(zip(queues.head.tolist(), queues.tail.tolist(), strict=True)):
        here = np.arange(head, tail)
        ring[group, here % (2 * places)] = queues.ring[group, here % places]
    return queues._replace(ring=ring)
