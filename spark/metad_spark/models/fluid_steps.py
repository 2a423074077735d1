"""The fluid model's steps, compiled. :mod:`.fluid` makes the arrays that go in and reads them afterwards.

All of it is one file, because its cache is keyed by this file's text (:mod:`.compiled`). Cells are in the order of
their regions, so a region's common values are looked up once and its sums stay in registers. Future mass is kept in
rings: a place for each step ahead, and after the last one the first again.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from .compiled import compiled, kept

Array = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

_TURNS_MAX = 1024
"""Turns of a step that are looked at one by one."""
_SECOND_US = 1_000_000
_DONE_SHARE = 1e-7
"""Fewer clients than this that are still out end the storm, once nothing waits for the node."""

STATE = np.dtype(
    [
        (name, np.float64)
        for name in (
            "waiting",  # items that wait for the node
            "free_us",  # when its turn ends
            "slowdown",  # of its turns, since an outage
            "down_until_us",
            "most",  # most items that waited for the node in this step
            "answer_us",  # the wait of the items admitted last
            "slot_us",  # the next free return slot
            "restored",
            "rejected",
            "timed_out",
            "left",  # of these, at brokers' doors
            "wasted",
            "queue_max",
            "kept_max_us",
            "own_s",
        )
    ]
)
"""The numbers that change from step to step; one record."""


class Setting(NamedTuple):
    """The values that hold for the whole storm."""

    clients: float
    steps: int
    """Steps of the horizon."""
    step_us: float
    horizon_us: float
    wave_us: float
    timeout_us: float
    spread_us: float
    groups: float
    latency_us: float
    linger_us: float
    window_items: float
    """Of a broker's batch for a group."""
    has_doors: bool
    """Whether brokers may keep clients waiting."""
    slot_interval_us: float
    """Interval of return slots; 0 without them."""
    slot_wait_us: float
    """The shortest wait for a return slot."""
    slot_jitter_us: float
    fine_us: float
    """Of a point of the first seconds."""
    time_min_s: float
    """Lower end of the first bin of the histograms."""
    log_ratio: float
    """Logarithm of the ratio of one bin to the next."""


class Node(NamedTuple):
    """The node. All groups are alike, so one queue holds their sum."""

    items_max: float
    """Items that may wait; infinite without a bound."""
    batch_items: float
    factor: float
    """Mean ratio of a turn's time to the computed one."""
    fixed_us: float
    """Cost of a turn."""
    item_us: float
    outages: Array
    """(outage, 3): begin, end, slowdown."""


class Clients(NamedTuple):
    """Arrays over (cell), (region) or (losses, cell)."""

    begin: Ints
    """(region + 1): each region's first cell."""
    is_first: Array
    """1.0 for those that have not failed yet."""
    forth_us: Array
    back_us: Array
    loss_share: Array
    """(losses, cell): shares of attempts with that many losses in a row."""
    loss_us: Array
    """(losses): the time they cost."""
    patience_us: Array
    """(losses, cell): the part of the timeout that is left for waiting."""
    region_back_us: Array
    lanes: Array
    """(region): batches that its brokers may have open."""


class Blocks(NamedTuple):
    """The destinations of failures in a cell (:mod:`.flows`)."""

    begin: Ints
    """(cell + 1): each cell's first block."""
    following: Ints
    told: Ints
    """(cell): where those go on that are told when to come back."""
    share: Array
    low_us: Array
    high_us: Array
    refusal: tuple[Ints, Array]
    """(block, 2) and (block, 4) of :meth:`.flows.Cells.places`: of clients that are refused at once."""
    timeout: tuple[Ints, Array]
    """(losses, block, 2) and (losses, block, 4): of clients that give up, from the step in which they knocked."""
    left: tuple[Ints, Array]
    """As ``timeout``, from the step in which they leave a broker's door (:attr:`Doors.patience`)."""


class Rings(NamedTuple):
    """Mass in future steps."""

    steps: int
    """Rows of the ring of the flow."""
    change: Array
    """(cell, step and more): changes of the rate at which mass comes. The steps of a cell are neighbours, because
    failures of consecutive steps are due in consecutive steps."""
    rate: Array
    """(cell): the current rate."""
    lost: Array
    """(losses - 1, step, cell): mass on its way after losses."""
    door: Array
    """(losses, step, cell): waiting at brokers' doors."""


class Doors(NamedTuple):
    """Brokers that keep clients waiting."""

    per_us: Array
    """(region, point): clients let through; infinite without a bound."""
    in_flight: Array
    """(region): items; infinite without a bound."""
    patience: Ints
    """(losses, cell): steps after which a waiting client is too late for an answer in time, and leaves."""
    queue: Array
    """(step, region): how many of those that came then still wait."""
    head: Ints
    """(region): the first step with clients that are not through."""


class Scratch(NamedTuple):
    """Arrays of one step, reused in each."""

    reached: Array
    arriving: Array
    """(losses, cell)."""
    gone: Array
    refused: Array
    cut_off: Array
    late: Array
    """(losses, cell): who gives up."""
    by_region: Array
    """What reaches brokers now."""
    linger_us: Array
    kept_us: Array
    """(region): how long brokers kept the clients that arrive at the leader now."""


class Books(NamedTuple):
    """The counts, as in :class:`.results.NodeResult`."""

    storm: Array
    own: Array
    restored_by_s: Array
    attempts_by_s: Array
    restored_fine: Array
    attempts_fine: Array
    served_fine: Array
    rejected_by_s: Array
    served_by_s: Array
    queue_by_s: Array
    passed_by_s: Array
    held_s: Array
    held: Array


class Firsts(NamedTuple):
    """(begin): first attempts, each an amount that comes evenly between two times."""

    cell: Ints
    mass: Array
    low_us: Array
    high_us: Array


@kept
def run(
    setting: Setting,
    node: Node,
    clients: Clients,
    blocks: Blocks,
    rings: Rings,
    doors: Doors,
    scratch: Scratch,
    books: Books,
    firsts: Firsts,
    states: npt.NDArray[np.void],
) -> None:
    """All steps of a storm, until the horizon or until all are back. ``states``: one record of :data:`STATE`."""
    state = states[0]
    died = np.zeros(len(node.outages), np.bool_)
    for begin in range(len(firsts.cell)):
        low_us, high_us = firsts.low_us[begin], firsts.high_us[begin]
        _add(setting, rings, 0, firsts.cell[begin], firsts.mass[begin], low_us, high_us)
    for step in range(setting.steps):
        _step(setting, node, clients, blocks, rings, doors, scratch, books, state, died, step)
        if setting.clients - state.restored <= _DONE_SHARE * setting.clients and state.waiting < 0.5:
            break


@compiled
def _step(
    setting: Setting,
    node: Node,
    clients: Clients,
    blocks: Blocks,
    rings: Rings,
    doors: Doors,
    scratch: Scratch,
    books: Books,
    state: Any,
    died: npt.NDArray[np.bool_],
    step: int,
) -> None:
    now = step * setting.step_us
    second = min(int(now // _SECOND_US), books.attempts_by_s.shape[1] - 1)
    wave = min(int(now // setting.wave_us), len(books.held) - 1)
    _come(clients, rings, scratch, step)
    for region in range(len(scratch.by_region)):
        books.attempts_by_s[region, second] += scratch.by_region[region]
        if now < setting.fine_us * books.attempts_fine.shape[1]:
            books.attempts_fine[region, int(now // setting.fine_us)] += scratch.by_region[region]
        scratch.linger_us[region] = _linger_us(setting, scratch.by_region[region], clients.lanes[region])
    arriving = _pass_on(setting, clients, blocks, rings, doors, scratch, books, state, step)
    share, wait_us = _serve(setting, node, books, state, died, now, arriving)
    span_us = _span_us(node, state, share * arriving)
    if wait_us > 0.0:
        state.answer_us = wait_us + max(0.0, span_us - setting.step_us) / 2
    most = state.most / setting.groups
    books.queue_by_s[second] = max(books.queue_by_s[second], most)
    state.queue_max = max(state.queue_max, most)
    if arriving > 0.0:
        middle = now + setting.step_us / 2
        cut_us = _cut_by_us(node, middle)
        books.held[wave] += share * arriving
        books.held_s[wave] += share * arriving * wait_us * 1e-6
        _settle(setting, clients, blocks, rings, scratch, books, state, step, share, wait_us, span_us, cut_us)
        _refuse(setting, clients, blocks, rings, books, state, step, scratch.refused, 0.0)
        if scratch.cut_off.any():
            _refuse(setting, clients, blocks, rings, books, state, step, scratch.cut_off, cut_us)


@compiled
def _add(setting: Setting, rings: Rings, step: int, cell: int, mass: float, low_us: float, high_us: float) -> None:
    """Add mass that comes evenly between two times, counted from the begin of the current step, at least a step
    apart."""
    low, high = low_us / setting.step_us, high_us / setting.step_us
    if high - low < 1.0:
        middle = (low + high) / 2
        low, high = middle - 0.5, middle + 0.5
    low = max(low, 1.0)  # nothing is due before the next step
    high = max(high, low + 1.0)
    rate = mass / (high - low)
    for edge, change in ((low, rate), (high, -rate)):
        whole = int(edge)
        part = change * (edge - whole)
        at = (step + min(whole, rings.steps - 2)) % rings.steps
        after = at + 1 if at + 1 < rings.steps else 0
        rings.change[cell, at] += change - part
        rings.change[cell, after] += part


@compiled
def _add_failed(blocks: Blocks, rings: Rings, step: int, places: Ints, changes: Array, cell: int, mass: float) -> None:
    """:func:`_add` for failures in a cell, by blocks whose places are known."""
    at = step % rings.steps
    for block in range(blocks.begin[cell], blocks.begin[cell + 1]):
        row = rings.change[blocks.following[block]]
        for edge in range(2):
            place = at + places[block, edge]
            place = place if place < rings.steps else place - rings.steps
            after = place + 1 if place + 1 < rings.steps else 0
            row[place] += mass * changes[block, 2 * edge]
            row[after] += mass * changes[block, 2 * edge + 1]


@compiled
def _add_waiting(
    setting: Setting, blocks: Blocks, rings: Rings, step: int, cell: int, mass: float, offset_us: float
) -> None:
    """:func:`_add` for failures in a cell whose waits count from ``offset_us`` after the begin of the step."""
    for block in range(blocks.begin[cell], blocks.begin[cell + 1]):
        low_us, high_us = blocks.low_us[block] + offset_us, blocks.high_us[block] + offset_us
        _add(setting, rings, step, blocks.following[block], mass * blocks.share[block], low_us, high_us)


@compiled
def _come(clients: Clients, rings: Rings, scratch: Scratch, step: int) -> None:
    """Compute the mass that reaches the brokers in this step."""
    change, rate, reached = rings.change, rings.rate, scratch.reached
    at = step % rings.steps
    for region in range(len(scratch.by_region)):
        total = 0.0
        for cell in range(clients.begin[region], clients.begin[region + 1]):
            rate[cell] += change[cell, at]
            change[cell, at] = 0.0
            reached[cell] = max(rate[cell], 0.0)
            total += reached[cell]
        scratch.by_region[region] = total


@compiled
def _linger_us(setting: Setting, coming: float, lanes: float) -> float:
    """Mean time that a client waits for others to share its batch, at this rate of arrivals."""
    if setting.linger_us <= 0.0:
        return 0.0
    rate = coming / lanes / setting.step_us
    window = min(setting.linger_us, (setting.window_items - 1) / max(rate, 1e-12))
    return float(window * (1 + rate * window / 2) / (1 + rate * window))


@compiled
def _pass_on(
    setting: Setting,
    clients: Clients,
    blocks: Blocks,
    rings: Rings,
    doors: Doors,
    scratch: Scratch,
    books: Books,
    state: Any,
    step: int,
) -> float:
    """What arrives at the leader in this step, by losses and cells, and how long brokers kept it; gives how much it is.
    Those that cannot be answered in time are gone before their broker would send them on."""
    arriving, losses = scratch.arriving, len(clients.loss_us)
    scratch.gone[:] = 0.0
    total = 0.0
    for region in range(len(scratch.by_region)):
        first, last = clients.begin[region], clients.begin[region + 1]
        knocking = 0.0
        for lost in range(losses):
            for cell in range(first, last):
                mass = scratch.reached[cell] * clients.loss_share[lost, cell]
                late = clients.patience_us[lost, cell] < 0.0
                scratch.gone[cell] += mass if late else 0.0
                arriving[lost, cell] = 0.0 if late else mass
            if lost:
                _move(rings.lost[lost - 1], step, arriving[lost], first, last, clients.loss_us[lost] / setting.step_us)
            for cell in range(first, last):
                knocking += arriving[lost, cell]
        scratch.kept_us[region] = 0.0
        if setting.has_doors:
            total += _wait(setting, clients, blocks, rings, doors, scratch, books, state, step, region)
        else:
            total += knocking
    gone = 0.0
    places, changes = blocks.timeout
    for cell in range(len(scratch.gone)):
        if scratch.gone[cell] > 0.0:
            gone += scratch.gone[cell]
            _add_failed(blocks, rings, step, places[0], changes[0], cell, scratch.gone[cell])
    state.timed_out += gone
    return total


@compiled
def _wait(
    setting: Setting,
    clients: Clients,
    blocks: Blocks,
    rings: Rings,
    doors: Doors,
    scratch: Scratch,
    books: Books,
    state: Any,
    step: int,
    region: int,
) -> float:
    """Who knocks waits behind who knocked before. In place of those who knock now come those whom brokers pass on, in
    that order, to :attr:`Scratch.arriving`; gives how much it is. Who has left costs a broker nothing."""
    arriving, door, rows = scratch.arriving, rings.door, rings.door.shape[1]
    losses, first, last = len(clients.loss_us), clients.begin[region], clients.begin[region + 1]
    left = 0.0
    now = step % rows
    doors.queue[now, region] = 0.0
    for lost in range(losses):
        places, changes = blocks.left[0][lost], blocks.left[1][lost]
        for cell in range(first, last):
            door[lost, now, cell] = arriving[lost, cell]
            doors.queue[now, region] += arriving[lost, cell]
            arriving[lost, cell] = 0.0
            at = now - doors.patience[lost, cell]
            at = at if at >= 0 else at + rows
            gone = door[lost, at, cell]
            if gone > 0.0:
                left += gone
                _add_failed(blocks, rings, step, places, changes, cell, gone)
                door[lost, at, cell] = 0.0
                doors.queue[at, region] = max(0.0, doors.queue[at, region] - gone)
    state.timed_out += left
    state.left += left
    # They wait for answers as those do who were admitted last.
    taking_us = max(1.0, state.answer_us + 2 * setting.latency_us)
    point = min(int(step * setting.step_us // setting.wave_us), doors.per_us.shape[1] - 1)
    room = min(doors.per_us[region, point], doors.in_flight[region] / taking_us) * setting.step_us
    head = max(doors.head[region], step + 1 - rows)
    passed = kept_us = 0.0
    while head <= step:
        at = head % rows
        waiting = doors.queue[at, region]
        share = 1.0 if waiting <= room else room / waiting
        through = 0.0
        for lost in range(losses):
            for cell in range(first, last):
                part = door[lost, at, cell] * share
                door[lost, at, cell] -= part
                arriving[lost, cell] += part
                through += part
        passed += through
        kept_us += through * (step - head) * setting.step_us
        if through > 1e-9:
            state.kept_max_us = max(state.kept_max_us, (step - head) * setting.step_us)
        if waiting > room:
            doors.queue[at, region] = waiting - room
            break
        room -= waiting
        head += 1
    doors.head[region] = head
    books.passed_by_s[region, min(int(step * setting.step_us // _SECOND_US), books.passed_by_s.shape[1] - 1)] += passed
    if passed > 1e-9:
        scratch.kept_us[region] = kept_us / passed
    return passed


@compiled
def _move(ring: Array, step: int, mass: Array, first: int, last: int, steps: float) -> None:
    """Put ``mass[first:last]`` that many steps later into a ring of (step, cell), and replace it by the mass that comes
    out of the ring now."""
    rows = len(ring)
    steps = min(max(steps, 0.0), rows - 2.0)
    whole = int(steps)
    share = steps - whole
    now, near, far = ring[step % rows], ring[(step + whole) % rows], ring[(step + whole + 1) % rows]
    for cell in range(first, last):
        part = mass[cell] * share
        near[cell] += mass[cell] - part
        far[cell] += part
        mass[cell] = now[cell]
        now[cell] = 0.0


@compiled
def _turn_us(node: Node, state: Any, items: float) -> float:
    """The duration of a turn of the node with so many items."""
    return float(max(1.0, node.factor * state.slowdown * (node.fixed_us + node.item_us * items)))


@compiled
def _serve(
    setting: Setting,
    node: Node,
    books: Books,
    state: Any,
    died: npt.NDArray[np.bool_],
    from_us: float,
    arriving: float,
) -> tuple[float, float]:
    """Take the turns of a step with evenly spread arrivals. Returns the share of them that is let in, and their mean
    time until their turn is over."""
    until_us = from_us + setting.step_us
    state.most = state.waiting
    for outage in range(len(died)):
        if not died[outage] and node.outages[outage, 0] < until_us:
            died[outage] = True
            state.waiting = 0.0
            state.free_us = state.down_until_us = node.outages[outage, 1]
            state.slowdown *= node.outages[outage, 2]
    if from_us < state.down_until_us:
        # Skips to the end of the step: an outage is long, and refused arrivals of its last step will come again.
        return 0.0, 0.0
    rate = arriving / (until_us - from_us)
    now, admitted, waited = from_us, 0.0, 0.0
    for _ in range(_TURNS_MAX):
        start = max(state.free_us, now)
        if start >= until_us or (state.waiting + arriving - admitted) <= 1e-12:
            break
        if state.waiting <= 0.0:
            # Idle: the first item starts a turn.
            start = min(until_us, start + (1.0 / rate if rate > 0 else until_us))
            if start >= until_us:
                break
        share, wait = _admit(node, state, now, start, rate)
        admitted += share
        waited += wait
        items = min(node.batch_items, state.waiting)
        state.most = max(state.most, state.waiting)
        state.waiting -= items
        state.free_us = start + _turn_us(node, state, items)
        if state.free_us < setting.horizon_us:
            books.served_by_s[int(state.free_us // _SECOND_US)] += items
            if state.free_us < setting.fine_us * len(books.served_fine):
                books.served_fine[int(state.free_us // setting.fine_us)] += items
        now = start
    share, wait = _admit(node, state, now, until_us, rate)
    admitted += share
    waited += wait
    state.most = max(state.most, state.waiting)
    return (admitted / arriving if arriving > 0 else 1.0), (waited / admitted if admitted > 0 else 0.0)


@compiled
def _admit(node: Node, state: Any, from_us: float, until_us: float, rate: float) -> tuple[float, float]:
    """Let in as many arrivals of an interval as there is room for. Returns how many, and their summed waits."""
    arriving = rate * (until_us - from_us)
    if arriving <= 0.0:
        return 0.0, 0.0
    admitted = min(arriving, max(0.0, node.items_max - state.waiting))
    if admitted <= 0.0:
        return 0.0, 0.0
    middle_us = from_us + 0.5 * admitted / rate
    ahead = state.waiting + 0.5 * admitted
    state.waiting += admitted
    turns = max(1.0, ahead / node.batch_items + 0.5)
    length = _turn_us(node, state, min(node.batch_items, max(state.waiting, 1.0)))
    return admitted, admitted * (max(0.0, state.free_us - middle_us) + turns * length)


@compiled
def _span_us(node: Node, state: Any, items: float) -> float:
    """How long the node serves so many items; 0 where they are one turn, which answers all of them at once."""
    if items <= node.batch_items:
        return 0.0
    return float(items / node.batch_items * _turn_us(node, state, node.batch_items))


@compiled
def _cut_by_us(node: Node, now: float) -> float:
    """How long until the node dies next; infinite where it does not."""
    found = math.inf
    for outage in range(len(node.outages)):
        at_us = node.outages[outage, 0]
        if at_us > now:
            found = min(found, at_us - now)
    return found


@compiled
def _settle(
    setting: Setting,
    clients: Clients,
    blocks: Blocks,
    rings: Rings,
    scratch: Scratch,
    books: Books,
    state: Any,
    step: int,
    share: float,
    wait_us: float,
    span_us: float,
    cut_us: float,
) -> None:
    """Who is back and who gives up, of what arrived in this step, of which ``share`` was let in; who is refused, and
    who is cut off by an outage (``cut_us``), is left to :func:`_refuse`. What takes the node longer than a step to
    serve (``span_us``) is answered in parts, a step each, around the mean wait."""
    refused, cut_off, late = scratch.refused, scratch.cut_off, scratch.late
    cut_off[:] = 0.0
    late[:] = 0.0
    for cell in range(len(refused)):
        refused[cell] = 0.0
        for lost in range(len(clients.loss_us)):
            refused[cell] += scratch.arriving[lost, cell] * (1.0 - share)
    parts = max(1, math.ceil(span_us / setting.step_us))
    if share > 0.0:
        for part in range(parts):
            place = (part + 0.5) / parts - 0.5
            answer_us = max(0.0, wait_us + place * span_us) if parts > 1 else wait_us
            waited_us = max(0.0, wait_us + place * (span_us - setting.step_us)) if parts > 1 else wait_us
            _answer(setting, clients, scratch, books, state, step, share / parts, answer_us, waited_us, cut_us)
    kept = scratch.kept_us.any()
    for region in range(len(scratch.by_region)):
        for lost in range(len(clients.loss_us)):
            places, changes = blocks.timeout[0][lost], blocks.timeout[1][lost]
            for cell in range(clients.begin[region], clients.begin[region + 1]):
                mass = late[lost, cell]
                if mass <= 0.0:
                    continue
                state.timed_out += mass
                if kept:
                    offset_us = setting.timeout_us + setting.step_us / 2
                    offset_us -= clients.loss_us[lost] + scratch.kept_us[region]
                    _add_waiting(setting, blocks, rings, step, cell, mass, offset_us)
                else:
                    _add_failed(blocks, rings, step, places, changes, cell, mass)


@compiled
def _answer(
    setting: Setting,
    clients: Clients,
    scratch: Scratch,
    books: Books,
    state: Any,
    step: int,
    share: float,
    wait_us: float,
    waited_us: float,
    cut_us: float,
) -> None:
    """What becomes of a share of what arrived in this step, which is answered ``wait_us`` after the middle of the step
    and has waited ``waited_us`` itself."""
    middle = step * setting.step_us + setting.step_us / 2
    is_cut = wait_us > cut_us
    is_served = not is_cut and middle + wait_us < setting.horizon_us
    told_s = min(setting.spread_us, middle) / 2e6
    for region in range(len(scratch.by_region)):
        linger_us, kept_us = scratch.linger_us[region], scratch.kept_us[region]
        used_us = linger_us + kept_us + (cut_us if is_cut else waited_us)
        back = at_once = way_us = 0.0  # the way to the broker of those who are back at their first attempt, added up
        for lost in range(len(clients.loss_us)):
            for cell in range(clients.begin[region], clients.begin[region + 1]):
                let_in = scratch.arriving[lost, cell] * share
                if let_in <= 0.0:
                    continue
                if used_us > clients.patience_us[lost, cell]:
                    scratch.late[lost, cell] += let_in
                    state.wasted += let_in if is_served else 0.0
                elif is_cut:
                    scratch.cut_off[cell] += let_in
                elif is_served:
                    first = let_in * clients.is_first[cell]
                    back += let_in
                    at_once += first
                    way_us += first * (clients.forth_us[cell] + clients.loss_us[lost])
        if back > 0.0:
            answer_us = linger_us + wait_us + clients.region_back_us[region]
            heard_s = (middle + answer_us) * 1e-6
            state.restored += back
            books.storm[_bin_of(setting, books, heard_s)] += back
            books.restored_by_s[region, min(int(heard_s), books.restored_by_s.shape[1] - 1)] += back
            if heard_s * 1e6 < setting.fine_us * books.restored_fine.shape[1]:
                books.restored_fine[region, int(heard_s * 1e6 // setting.fine_us)] += back
            if at_once > 0.0:
                way_us /= at_once
            _waited(setting, books, state, at_once, (way_us + kept_us + answer_us) * 1e-6)
            _waited(setting, books, state, back - at_once, heard_s - told_s)


@compiled
def _waited(setting: Setting, books: Books, state: Any, mass: float, own_s: float) -> None:
    """Count how long restored clients waited themselves."""
    own_s = max(own_s, 1e-3)
    books.own[_bin_of(setting, books, own_s)] += mass
    state.own_s += mass * own_s


@compiled
def _bin_of(setting: Setting, books: Books, time_s: float) -> int:
    """:func:`.histogram.bin_of`."""
    time_s = max(time_s, setting.time_min_s)
    return min(int(math.log(time_s / setting.time_min_s) / setting.log_ratio), len(books.storm) - 1)


@compiled
def _refuse(
    setting: Setting,
    clients: Clients,
    blocks: Blocks,
    rings: Rings,
    books: Books,
    state: Any,
    step: int,
    refused: Array,
    after_us: float,
) -> None:
    """Count refusals of this step or, if the node dies, of a later time."""
    total = 0.0
    for cell in range(len(refused)):
        total += refused[cell]
    if total <= 0.0:
        return
    now = step * setting.step_us
    middle = now + setting.step_us / 2
    state.rejected += total
    books.rejected_by_s[min(int(now // _SECOND_US), len(books.rejected_by_s) - 1)] += total
    first_us = last_us = 0.0
    if setting.slot_interval_us > 0.0:
        first_us = max(state.slot_us, middle + after_us + setting.slot_wait_us)
        state.slot_us = last_us = first_us + total * setting.slot_interval_us
    places, changes = blocks.refusal
    for cell in range(len(refused)):
        if refused[cell] <= 0.0:
            continue
        way_us = clients.back_us[cell] + clients.forth_us[cell]
        if setting.slot_interval_us > 0.0:
            offset_us = setting.step_us / 2 + way_us - middle
            low_us = first_us + offset_us - setting.slot_jitter_us
            high_us = last_us + offset_us + setting.slot_jitter_us
            _add(setting, rings, step, blocks.told[cell], refused[cell], low_us, high_us)
        elif after_us > 0.0:
            offset_us = way_us + setting.step_us / 2 + after_us
            _add_waiting(setting, blocks, rings, step, cell, refused[cell], offset_us)
        else:
            _add_failed(blocks, rings, step, places, changes, cell, refused[cell])
