"""The vector model's steps, compiled. :mod:`.vector` makes the arrays that go in and reads them afterwards.

Compiling takes seconds, and every Python worker of Spark is a process of its own. So machine code is kept on disk:
beside the source file, or in the user's cache directory if that cannot be written; ``NUMBA_CACHE_DIR`` names another.
Nothing is kept, and each process compiles once, if no directory can be written, or if the source comes out of a zip
that was sent to an executor and has another path each time. The cache is keyed by the text of the file that contains
the function. So everything that a kept function calls or reads must be in this file or come in as an argument: a change
elsewhere would go unnoticed.

An *entry* is two numbers, and carries all that there is to know of an attempt on its way: the time above the client's
number, and the deadline above the attempt's number. So most attempts begin, are refused and begin again without a look
at an array of clients. Times inside entries count from the storm's begin (``Setting.begin_us``), and so are never
negative.
"""

from __future__ import annotations

import contextlib
import inspect
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt
from numba import njit

_IN_PLACE: dict[str, Any] = {"_nrt": False}
"""Without numba's own memory, whose references it counts."""
F = TypeVar("F", bound=Callable[..., Any])


def in_place(function: F) -> F:
    """For functions that are called by functions of the same file, into which they are compiled, that work on arrays
    and make none. numba then counts no references to them, which it does atomically at every use, and which costs
    several times as much as a small step of work. Divisions by zero give infinities, as in numpy, and nothing is
    reordered: sums are those of the source, on every machine."""
    made: Any = njit(error_model="numpy", **_IN_PLACE)(function)
    return made  # type: ignore[no-any-return]


def inlined(function: F) -> F:
    """Like :func:`in_place`, for what is done once for each of millions of entries: a call would cost more than it."""
    made: Any = njit(error_model="numpy", **_IN_PLACE, forceinline=True)(function)
    return made  # type: ignore[no-any-return]


def kept_in_place(function: F) -> F:
    """For functions as those of :func:`in_place` that are called from Python. Compiled at the first call, and kept for
    other processes if possible."""
    made: Any
    if Path(inspect.getfile(function)).exists():
        with contextlib.suppress(RuntimeError):  # no directory can be written
            made = njit(error_model="numpy", cache=True, **_IN_PLACE)(function)
            return made  # type: ignore[no-any-return]
    made = njit(error_model="numpy", **_IN_PLACE)(function)
    return made  # type: ignore[no-any-return]


Ints = npt.NDArray[np.int64]
Small = npt.NDArray[np.int32]
Floats = npt.NDArray[np.float64]

CLIENT_BITS = 31
ATTEMPT_BITS = 24
"""An attempt takes a millisecond at least, and a storm an hour at most."""
NEAR_BITS = 10
_CLIENT = (1 << CLIENT_BITS) - 1
_ATTEMPT = (1 << ATTEMPT_BITS) - 1
BUCKETS = 64
"""Buckets of a slot."""
PAGE = 128
"""Entries of a page."""
_FEW = 24
"""So many entries are sorted by insertion."""
_SECOND_US = 1_000_000
DONE, PAGES, PLACES, ROOM = range(4)
"""Why :func:`advance` returned: the storm is over; calendars, queues, or :class:`Scratch` must be larger."""

STATE = np.dtype(
    [
        (name, np.int64)
        for name in (
            "bucket",  # the next one
            "free_us",  # when the node's turn ends
            "turns",
            "waiting",  # items, in all groups
            "aborted",  # items of a turn that an outage will cut off
            "carried",  # items in brokers' open batches
            "batches",  # these batches
            "restored",
            "timeouts",
            "left",
            "wasted",
            "unheard",
            "kept_max_us",
        )
    ]
)
"""The numbers that change; one record."""


class Setting(NamedTuple):
    """The values that hold for the whole storm."""

    begin_us: int
    """Of the first bucket, 0 or before."""
    step_us: int
    """Of a bucket."""
    horizon_us: int
    timeout_us: int
    wave_us: int
    fine_us: int
    fine_end_us: int
    """End of the first seconds, or the horizon if that is sooner."""
    node: int
    first_client: int
    groups: int
    batch_items: int
    items_max: int
    """Items that may wait for a group; 0: any number."""
    turn_us: float
    entry_us: float
    item_us: float
    linger_us: int
    window_items: int
    """Of a broker's batch for a group."""
    has_doors: bool
    slot_interval_ns: int
    """Interval of return slots; 0 without them."""
    slot_wait_ns: int
    """The shortest wait for a return slot."""
    slot_jitter_us: int
    budget_us: int
    """Interval of a client's retry budget; 0 without one."""
    burst_us: int
    """The time that retries may be ahead of it."""
    has_losses: bool
    remembers: bool
    """Whether a wait depends on the wait before it."""


class Draws(NamedTuple):
    """The streams of :mod:`metad_wire.policy.draw`, and its constants."""

    backoff: np.uint64
    jitter: np.uint64
    loss: np.uint64
    service: np.uint64
    client_step: np.uint64
    turn_step: np.uint64
    mix_1: np.uint64
    mix_2: np.uint64
    unit: float


class Kinds(NamedTuple):
    """Arrays over the kinds of clients, their SDKs or their regions."""

    near: Small
    """The kind of the first of each ``2**NEAR_BITS`` clients."""
    end: Ints
    """(kind): the first client after it."""
    region: Ints
    sdk: Ints
    back_us: Ints
    forth_us: Ints
    losses: Floats
    """(kind, losses): shares of attempts with at least so many packets lost in a row."""
    loss_us: Ints
    """(losses): what they cost."""
    low: Floats
    """(SDK, attempt): the shortest wait, in seconds."""
    span: Floats
    cap: Floats
    """(SDK)"""
    base: Floats
    decorrelated: npt.NDArray[np.bool_]
    brokers: Ints
    """(region)"""
    first_broker: Ints


class Calendar(NamedTuple):
    """Entries by their time: *slots* of 64 buckets collect distant ones, and are divided into buckets when their time
    comes. Each slot, and each bucket of the open slot, is a list of pages."""

    pool: Ints
    """(page x entry, 2)"""
    after: Small
    """(page): the next one of its list, or of the free ones."""
    first: Small
    """(list): its first page; -1: none."""
    end: Ints
    """(list): behind its last entry in the pool; 0: empty."""
    size: Ints
    """(list): entries."""
    at: Ints
    """The open slot, a free page or -1, the number of free pages, pages that were ever used."""


class Doors(NamedTuple):
    """The doors of brokers."""

    number: Ints
    """(region)"""
    first: Ints
    free_ns: Ints
    """(door): when it is free."""
    intervals_ns: Ints
    """(region, point): from one client to the next."""


class Lanes(NamedTuple):
    """Brokers' batches, by lane: a pair of broker and group. No lanes if brokers do not linger."""

    batch: Small
    """(lane): its open batch; -1: none."""
    filled: Small
    """(lane): items of its open batch."""


class Carried(NamedTuple):
    """Brokers' open batches, from one bucket to the next."""

    entries: Ints
    """Their times are when clients knocked."""
    batch: Small
    """(entry)"""
    close: Ints
    """(batch): when it closes, at the latest."""
    lane: Ints
    """(batch)"""


class Queues(NamedTuple):
    """Rings of entries that wait at the node."""

    ring: Ints
    """(group, place, 2)"""
    head: Ints
    tail: Ints
    taken: Ints
    """(group): items at the head that belong to a turn which an outage will cut off."""
    watched: Ints
    """(group): items from here on have no deadline in the calendar yet."""
    slot_ns: Ints
    """(group): the next free return slot."""


class Clients(NamedTuple):
    """What is kept of each client."""

    done_us: Ints
    """When it was back; -1: it is not."""
    watch: Small
    """The attempt whose deadline counts; -1: none."""
    wait_us: Ints
    """Its last wait; empty unless needed."""
    clock_us: Ints
    """Of its retry budget; empty without one."""


class Counts(NamedTuple):
    """The arrays of :class:`metad_spark.models.vector.Tally`."""

    attempts: Ints
    attempts_fine: Ints
    served_fine: Ints
    rejected: Ints
    served: Ints
    queue: Ints
    passed: Ints
    held_us: Ints
    held: Ints


class Scratch(NamedTuple):
    """Room for what is under way in one bucket; each array has it for as many entries."""

    here: Ints
    """(entry, 2)"""
    there: Ints
    refused: Ints
    """Entries of clients that will try again; the times are when that was decided."""
    slots_ns: Ints
    """Their return slots."""
    ends: Small
    """(2 x entry + 2)"""
    batch: Small
    """(entry): the batch of a knock."""
    close: Ints
    """(batch)"""
    lane: Ints
    renamed: Small


class Storm(NamedTuple):
    """All of it."""

    setting: Setting
    draws: Draws
    kinds: Kinds
    clients: Clients
    counts: Counts
    state: npt.NDArray[np.void]
    """One record of :data:`STATE`."""
    reaches: Calendar
    """Attempts that come to brokers' doors; ``knocks`` if there are none."""
    knocks: Calendar
    """Clients whose CONNECT comes to their brokers."""
    deadlines: Calendar
    doors: Doors
    lanes: Lanes
    carried: Carried
    queues: Queues
    scratch: Scratch
    factors: Floats
    """Of a turn's time, drawn by lot."""
    outages: Floats
    """(outage, 3): begin, end, slowdown."""


# -- draws -----------------------------------------------------------------------------------------------------------


@inlined
def _uniform(draws: Draws, start: np.uint64, client: int, turn: int) -> float:
    value = start + draws.client_step * (np.uint64(client) + np.uint64(1)) + draws.turn_step * np.uint64(turn)
    value = (value ^ (value >> np.uint64(30))) * draws.mix_1
    value = (value ^ (value >> np.uint64(27))) * draws.mix_2
    value ^= value >> np.uint64(31)
    return float(np.int64(value >> np.uint64(11))) * draws.unit


# -- calendars -------------------------------------------------------------------------------------------------------


@inlined
def _append(calendar: Calendar, which: int | np.int64, key: int, more: int) -> None:
    """Append an entry to a list."""
    end = calendar.end[which]
    if end % PAGE == 0:
        page = calendar.at[1]
        if page >= 0:
            calendar.at[1] = calendar.after[page]
            calendar.at[2] -= 1
        else:
            page = calendar.at[3]
            calendar.at[3] += 1
        if end:
            calendar.after[(end - 1) // PAGE] = page
        else:
            calendar.first[which] = page
        calendar.after[page] = -1
        end = page * PAGE
    calendar.pool[end, 0] = key
    calendar.pool[end, 1] = more
    calendar.end[which] = end + 1
    calendar.size[which] += 1


@inlined
def _add(setting: Setting, calendar: Calendar, key: int, more: int) -> None:
    """Add an entry that is due before the horizon, and not before the bucket that was taken last."""
    bucket = np.uint32(key >> CLIENT_BITS) // np.uint32(setting.step_us)
    slot = np.int64(bucket // np.uint32(BUCKETS))
    if slot == calendar.at[0]:
        slot = len(calendar.first) - BUCKETS + np.int64(bucket % np.uint32(BUCKETS))
    _append(calendar, slot, key, more)


@inlined
def _free(calendar: Calendar, page: int) -> int:
    """Give a page back. Returns the next one of its list."""
    after = calendar.after[page]
    calendar.after[page] = calendar.at[1]
    calendar.at[1] = page
    calendar.at[2] += 1
    return int(after)


@in_place
def _open(setting: Setting, calendar: Calendar, slot: int) -> None:
    """Divide a slot into its buckets."""
    if calendar.at[0] == slot:
        return
    calendar.at[0] = slot
    left = calendar.size[slot]
    page = calendar.first[slot]
    calendar.first[slot] = -1
    calendar.end[slot] = 0
    calendar.size[slot] = 0
    base = len(calendar.first) - BUCKETS
    while left:
        here = min(left, PAGE)
        for place in range(page * PAGE, page * PAGE + here):
            key = calendar.pool[place, 0]
            bucket = np.uint32(key >> CLIENT_BITS) // np.uint32(setting.step_us)
            _append(calendar, base + np.int64(bucket % np.uint32(BUCKETS)), key, calendar.pool[place, 1])
        left -= here
        page = _free(calendar, page)


@in_place
def _take(calendar: Calendar, bucket: int, found: Ints) -> int:
    """Put the entries of a bucket of the open slot into ``found``, in the order in which they were added. Returns their
    number."""
    which = len(calendar.first) - BUCKETS + bucket % BUCKETS
    count = calendar.size[which]
    page = calendar.first[which]
    at = 0
    while at < count:
        here = min(count - at, PAGE)
        base = page * PAGE
        for place in range(here):
            found[at + place, 0] = calendar.pool[base + place, 0]
            found[at + place, 1] = calendar.pool[base + place, 1]
        at += here
        page = _free(calendar, page)
    calendar.first[which] = -1
    calendar.end[which] = 0
    calendar.size[which] = 0
    return int(count)


# -- sorting ---------------------------------------------------------------------------------------------------------


@in_place
def _sort(entries: Ints, count: int, low: int, width: int, found: Ints, ends: Small) -> None:
    """Put ``count`` entries with times in [``low``, ``low + width``) into ``found``, by time and client; those that are
    equal stay in their order. A place for each stretch of time, then what is left to do inside of them."""
    if count <= _FEW:
        for at in range(count):
            found[at, 0] = entries[at, 0]
            found[at, 1] = entries[at, 1]
        _insert(found, 0, count)
        return
    shift = CLIENT_BITS
    while width >> (shift - CLIENT_BITS) > 2 * count:
        shift += 1
    base = low << CLIENT_BITS
    places = (((width << CLIENT_BITS) - 1) >> shift) + 1
    for place in range(places + 1):
        ends[place] = 0
    for at in range(count):
        ends[((entries[at, 0] - base) >> shift) + 1] += 1
    for place in range(places):
        ends[place + 1] += ends[place]
    for at in range(count):
        key = entries[at, 0]
        place = (key - base) >> shift
        to = ends[place]
        ends[place] = to + 1
        found[to, 0] = key
        found[to, 1] = entries[at, 1]
    begin = 0
    for place in range(places):
        end = ends[place]
        if end - begin > 1:
            if end - begin <= _FEW:
                _insert(found, begin, end)
            else:
                _merge(found, entries, begin, end)
        begin = end


@inlined
def _insert(entries: Ints, begin: int, end: int) -> None:
    """Sort a few entries in place."""
    for at in range(begin + 1, end):
        key = entries[at, 0]
        if entries[at - 1, 0] <= key:
            continue
        more = entries[at, 1]
        to = at
        while to > begin and entries[to - 1, 0] > key:
            entries[to, 0] = entries[to - 1, 0]
            entries[to, 1] = entries[to - 1, 1]
            to -= 1
        entries[to, 0] = key
        entries[to, 1] = more


@inlined
def _take_sorted(setting: Setting, calendar: Calendar, bucket: int, scratch: Scratch) -> int:
    """Put the entries of a bucket of the open slot, by time and client, into ``scratch.there``. Returns their
    number."""
    count = _take(calendar, bucket, scratch.here)
    low = bucket * setting.step_us
    _sort(scratch.here, count, low, setting.step_us, scratch.there, scratch.ends)
    return count


@in_place
def _merge(entries: Ints, spare: Ints, begin: int, end: int) -> None:
    """Sort many entries in place: by merging runs. What is sorted already costs one look."""
    at = begin + 1
    while at < end and entries[at - 1, 0] <= entries[at, 0]:
        at += 1
    if at == end:
        return
    for run in range(begin, end, _FEW):
        _insert(entries, run, min(run + _FEW, end))
    width = _FEW
    while width < end - begin:
        for left in range(begin, end - width, 2 * width):
            middle, right = left + width, min(left + 2 * width, end)
            if entries[middle - 1, 0] <= entries[middle, 0]:
                continue
            for at in range(left, middle):
                spare[at, 0] = entries[at, 0]
                spare[at, 1] = entries[at, 1]
            one, other, to = left, middle, left
            while one < middle:
                if other < right and entries[other, 0] < spare[one, 0]:
                    entries[to, 0] = entries[other, 0]
                    entries[to, 1] = entries[other, 1]
                    other += 1
                else:
                    entries[to, 0] = spare[one, 0]
                    entries[to, 1] = spare[one, 1]
                    one += 1
                to += 1
        width *= 2


# -- clients ---------------------------------------------------------------------------------------------------------


@inlined
def _kind(kinds: Kinds, client: int) -> int:
    kind = kinds.near[client >> NEAR_BITS]
    while client >= kinds.end[kind]:
        kind += 1
    return int(kind)


@inlined
def _watch(setting: Setting, watch: Small, deadlines: Calendar, client: int, more: int) -> None:
    """Have an attempt's deadline looked at when it has passed."""
    watch[client] = more & _ATTEMPT
    deadline = more >> ATTEMPT_BITS
    if deadline < setting.horizon_us - setting.begin_us:
        _add(setting, deadlines, (deadline << CLIENT_BITS) | client, more)


@inlined
def _attempt(storm: Storm, client: int, kind: int, attempt: int, start_us: int) -> None:
    """Make a client's attempt, begun at ``start_us``. After the horizon it makes none."""
    setting = storm.setting
    draws = storm.draws
    kinds = storm.kinds
    counts = storm.counts
    if start_us >= setting.horizon_us:
        return
    region = kinds.region[kind]
    counts.attempts[region, start_us // _SECOND_US] += 1
    if start_us < setting.fine_end_us:
        counts.attempts_fine[region, start_us // setting.fine_us] += 1
    deadline_us = start_us + setting.timeout_us - kinds.back_us[kind]
    reached_us = start_us + kinds.forth_us[kind]
    if setting.has_losses:
        u = _uniform(draws, draws.loss, client + setting.first_client, attempt)
        if u < kinds.losses[kind, 0]:
            lost = 0
            for at in range(kinds.losses.shape[1]):
                lost += u < kinds.losses[kind, at]
            reached_us += kinds.loss_us[lost]
    more = ((deadline_us - setting.begin_us) << ATTEMPT_BITS) | attempt
    if reached_us > deadline_us:  # the client is gone before the broker would send anything on
        _watch(setting, storm.clients.watch, storm.deadlines, client, more)
    elif reached_us < setting.horizon_us:
        _add(setting, storm.reaches, ((reached_us - setting.begin_us) << CLIENT_BITS) | client, more)


@kept_in_place
def begin(storm: Storm, first: int, first_us: Ints) -> None:
    """Schedule the first attempts of the clients from ``first`` on."""
    kinds = storm.kinds
    for at in range(len(first_us)):
        client = first + at
        kind = _kind(kinds, client)
        _attempt(storm, client, kind, 0, first_us[at])


@in_place
def _retry(storm: Storm, count: int, has_slots: bool) -> None:
    """The attempts of ``scratch.refused`` have failed; schedule the next ones."""
    setting = storm.setting
    draws = storm.draws
    kinds = storm.kinds
    clients = storm.clients
    scratch = storm.scratch
    for at in range(count):
        key, more = scratch.refused[at, 0], scratch.refused[at, 1]
        client, now_us = key & _CLIENT, (key >> CLIENT_BITS) + setting.begin_us
        attempt = more & _ATTEMPT
        kind = _kind(kinds, client)
        if has_slots:
            u = _uniform(draws, draws.jitter, client + setting.first_client, attempt)
            jitter_us = int(u * np.float64(2 * setting.slot_jitter_us + 1)) - setting.slot_jitter_us
            wait_us = max(scratch.slots_ns[at] // 1000 - now_us + jitter_us, 0)
        else:
            u = _uniform(draws, draws.backoff, client + setting.first_client, attempt)
            sdk = kinds.sdk[kind]
            last = min(attempt, kinds.span.shape[1] - 1)
            span = kinds.span[sdk, last]
            if setting.remembers and kinds.decorrelated[sdk]:
                base = kinds.base[sdk]
                span = max(np.float64(clients.wait_us[client]) / 1e6, base) * 3.0 - base
            wait_us = int(min(u * span + kinds.low[sdk, last], kinds.cap[sdk]) * 1e6)
            if setting.remembers:
                clients.wait_us[client] = wait_us
        start_us = now_us + kinds.back_us[kind] + wait_us
        if setting.budget_us:
            clock_us = clients.clock_us[client]
            start_us = max(start_us, clock_us - setting.burst_us)
            clients.clock_us[client] = max(clock_us, start_us) + setting.budget_us
        _attempt(storm, client, kind, attempt + 1, start_us)


# -- brokers ---------------------------------------------------------------------------------------------------------


@in_place
def _pass_doors(storm: Storm, count: int) -> None:
    """Let the clients in ``scratch.there`` through, each at its time, in the order in which they reach their brokers'
    doors."""
    setting = storm.setting
    kinds = storm.kinds
    counts = storm.counts
    state = storm.state
    knocks = storm.knocks
    doors = storm.doors
    come = storm.scratch.there
    last = doors.intervals_ns.shape[1] - 1
    for at in range(count):
        key, more = come[at, 0], come[at, 1]
        client, reached_us = key & _CLIENT, (key >> CLIENT_BITS) + setting.begin_us
        region = kinds.region[_kind(kinds, client)]
        door = doors.first[region] + client // setting.groups % doors.number[region]
        turn_ns = max(reached_us * 1000, doors.free_ns[door])
        pass_us = (turn_ns + 999) // 1000
        if pass_us - setting.begin_us > more >> ATTEMPT_BITS:  # it has given up by its turn, and costs nothing
            state[0].left += 1
            _watch(setting, storm.clients.watch, storm.deadlines, client, more)
            continue
        doors.free_ns[door] = turn_ns + doors.intervals_ns[region, min(pass_us // setting.wave_us, last)]
        state[0].kept_max_us = max(state[0].kept_max_us, pass_us - reached_us)
        if pass_us < setting.horizon_us:
            counts.passed[region, pass_us // _SECOND_US] += 1
            _add(setting, knocks, ((pass_us - setting.begin_us) << CLIENT_BITS) | client, more)


@in_place
def _batch(storm: Storm, count: int, from_us: int, until_us: int) -> int:
    """Replace the knocks in ``scratch.there`` by the items that brokers send before ``until_us``, in order; their times
    are when they are sent. Returns their number. ``carried`` has what stays in open batches."""
    setting = storm.setting
    kinds = storm.kinds
    state = storm.state
    lanes = storm.lanes
    carried = storm.carried
    scratch = storm.scratch
    before, batches = state[0].carried, state[0].batches
    knocks, batch_of, close, lane_of = scratch.there, scratch.batch, scratch.close, scratch.lane
    for batch in range(batches):
        close[batch], lane_of[batch] = carried.close[batch], carried.lane[batch]
    for at in range(count):
        key, more = knocks[at, 0], knocks[at, 1]
        client, now = key & _CLIENT, key >> CLIENT_BITS
        region = kinds.region[_kind(kinds, client)]
        row, group = client // setting.groups, client % setting.groups
        lane = (kinds.first_broker[region] + row % kinds.brokers[region]) * setting.groups + group
        batch = int(lanes.batch[lane])
        if batch < 0 or now > close[batch]:
            batch = batches
            batches += 1
            lane_of[batch] = lane
            close[batch] = now + setting.linger_us
            lanes.batch[lane] = batch
            lanes.filled[lane] = 0
        batch_of[at] = batch
        lanes.filled[lane] += 1
        if lanes.filled[lane] >= setting.window_items:
            close[batch] = now
            lanes.batch[lane] = -1
        if more >> ATTEMPT_BITS < now + setting.linger_us:  # it may pass meanwhile, and nobody else would see it
            _watch(setting, storm.clients.watch, storm.deadlines, client, more)
    stay = 0
    for batch in range(batches):
        lane = lane_of[batch]
        scratch.renamed[batch] = -1
        if close[batch] >= until_us - setting.begin_us:
            scratch.renamed[batch] = stay
            lanes.batch[lane] = stay
            carried.close[stay], carried.lane[stay] = close[batch], lane
            stay += 1
        elif lanes.batch[lane] == batch:
            lanes.batch[lane] = -1
    sent = waits = 0
    for at in range(before + count):  # what waits moves to the front
        if at < before:
            key, more, batch = carried.entries[at, 0], carried.entries[at, 1], int(carried.batch[at])
        else:
            key, more, batch = knocks[at - before, 0], knocks[at - before, 1], int(batch_of[at - before])
        if scratch.renamed[batch] >= 0:
            carried.entries[waits, 0] = key
            carried.entries[waits, 1] = more
            carried.batch[waits] = scratch.renamed[batch]
            waits += 1
        else:
            scratch.here[sent, 0] = (close[batch] << CLIENT_BITS) | (key & _CLIENT)
            scratch.here[sent, 1] = more
            sent += 1
    state[0].carried, state[0].batches = waits, stay
    # One client's items can only meet if it gave the first one up; then the older goes first.
    _sort(scratch.here, sent, from_us - setting.begin_us, until_us - from_us, scratch.there, scratch.ends)
    return sent


# -- the node --------------------------------------------------------------------------------------------------------


@inlined
def _refuse(storm: Storm, count: int, now_us: int, key: int, more: int, may_be_watched: bool) -> int:
    """Refuse an item. Returns the number of those so far who will try again."""
    setting = storm.setting
    clients = storm.clients
    counts = storm.counts
    state = storm.state
    queues = storm.queues
    scratch = storm.scratch
    client = key & _CLIENT
    counts.rejected[now_us // _SECOND_US] += 1
    slot_ns = 0
    if setting.slot_interval_ns:
        group = client % setting.groups
        slot_ns = max(queues.slot_ns[group], now_us * 1000 + setting.slot_wait_ns)
        queues.slot_ns[group] = slot_ns + setting.slot_interval_ns
    now, deadline = now_us - setting.begin_us, more >> ATTEMPT_BITS
    if deadline < now:
        state[0].unheard += 1
        return count
    if may_be_watched or deadline < now + setting.linger_us:
        clients.watch[client] = -1
    scratch.refused[count, 0] = (now << CLIENT_BITS) | client
    scratch.refused[count, 1] = more
    scratch.slots_ns[count] = slot_ns
    return count + 1


@in_place
def _serve(storm: Storm, begin: int, end: int, until_us: int, ahead_us: int, count: int) -> int:
    """Admit the items of [``begin``, ``end``), and take the turns that start before ``until_us``; an outage at
    ``ahead_us`` may cut one off. Returns the number of refused items."""
    setting = storm.setting
    state = storm.state
    queues = storm.queues
    scratch = storm.scratch
    places, items = queues.ring.shape[1], scratch.there
    at = begin
    while True:
        start_us = until_us
        if not state[0].aborted:
            start_us = state[0].free_us
            if not state[0].waiting:
                start_us = until_us
                if at < end:
                    start_us = max(state[0].free_us, (items[at, 0] >> CLIENT_BITS) + setting.begin_us)
        is_turn = start_us < until_us
        while at < end:
            key, more = items[at, 0], items[at, 1]
            arrived_us = (key >> CLIENT_BITS) + setting.begin_us
            if is_turn and arrived_us > start_us:
                break
            at += 1
            group = (key & _CLIENT) % setting.groups
            tail = queues.tail[group]
            waiting = tail - queues.head[group] - queues.taken[group]
            if setting.items_max and waiting >= setting.items_max:
                count = _refuse(storm, count, arrived_us, key, more, False)
            else:
                place = tail % places
                queues.ring[group, place, 0] = key
                queues.ring[group, place, 1] = more
                queues.tail[group] = tail + 1
                state[0].waiting += 1
        if not is_turn:
            break
        _turn(storm, start_us, ahead_us)
    for group in range(setting.groups):
        head = max(queues.head[group], queues.watched[group])
        for index in range(head, queues.tail[group]):
            key, more = queues.ring[group, index % places, 0], queues.ring[group, index % places, 1]
            if more >> ATTEMPT_BITS >= key >> CLIENT_BITS:  # otherwise the broker has handled it
                _watch(setting, storm.clients.watch, storm.deadlines, key & _CLIENT, more)
        queues.watched[group] = queues.tail[group]
    return count


@in_place
def _turn(storm: Storm, start_us: int, ahead_us: int) -> None:
    """Take a turn that starts at ``start_us``. Items that still wait, or were served too late, have deadlines to
    watch."""
    setting = storm.setting
    draws = storm.draws
    kinds = storm.kinds
    clients = storm.clients
    counts = storm.counts
    state = storm.state
    queues = storm.queues
    factors = storm.factors
    outages = storm.outages
    places = queues.ring.shape[1]
    most = total = groups = 0
    for group in range(setting.groups):
        waiting = queues.tail[group] - queues.head[group]
        most = max(most, waiting)
        total += min(waiting, setting.batch_items)
        groups += waiting > 0
    second = start_us // _SECOND_US
    counts.queue[second] = max(counts.queue[second], most)
    u = _uniform(draws, draws.service, setting.node, state[0].turns) if len(factors) > 1 else 0.0
    state[0].turns += 1
    factor = factors[int(u * np.float64(len(factors)))]
    for at in range(len(outages)):
        if outages[at, 1] <= start_us:
            factor *= outages[at, 2]
    taking_us = factor * (setting.turn_us + setting.entry_us * groups + setting.item_us * total)
    finish_us = start_us + max(1, math.ceil(taking_us - 1e-6))
    state[0].free_us = finish_us
    state[0].waiting -= total
    is_aborted = finish_us > ahead_us
    if is_aborted:
        state[0].aborted = total
        for group in range(setting.groups):
            queues.taken[group] = min(queues.tail[group] - queues.head[group], setting.batch_items)
        return
    is_seen = finish_us < setting.horizon_us
    if is_seen:
        counts.served[finish_us // _SECOND_US] += total
        if finish_us < setting.fine_us * len(counts.served_fine):
            counts.served_fine[finish_us // setting.fine_us] += total
    finish = finish_us - setting.begin_us
    for group in range(setting.groups):
        head = queues.head[group]
        end = head + min(queues.tail[group] - head, setting.batch_items)
        for index in range(head, end):
            key, more = queues.ring[group, index % places, 0], queues.ring[group, index % places, 1]
            client, arrived, deadline = key & _CLIENT, key >> CLIENT_BITS, more >> ATTEMPT_BITS
            if is_seen:
                wave = (arrived + setting.begin_us) // setting.wave_us
                counts.held_us[wave] += finish - arrived
                counts.held[wave] += 1
                if finish <= deadline:
                    clients.done_us[client] = finish_us + kinds.back_us[_kind(kinds, client)]
                    state[0].restored += 1
                    continue
                state[0].wasted += 1
            if index >= queues.watched[group] and deadline >= arrived:
                _watch(setting, storm.clients.watch, storm.deadlines, client, more)
        queues.head[group] = end


@in_place
def _die(storm: Storm, count: int, at_us: int) -> int:
    """Refuse the waiting items and those of the running turn, and become free. Returns the number of refused items."""
    setting = storm.setting
    state = storm.state
    queues = storm.queues
    places = queues.ring.shape[1]
    for group in range(setting.groups):
        for index in range(queues.head[group], queues.tail[group]):
            key, more = queues.ring[group, index % places, 0], queues.ring[group, index % places, 1]
            count = _refuse(storm, count, at_us, key, more, True)
        queues.head[group] = queues.watched[group] = queues.tail[group]
        queues.taken[group] = 0
    state[0].waiting = 0
    state[0].aborted = 0
    state[0].free_us = at_us
    return count


@in_place
def _run(storm: Storm, items: int, from_us: int, until_us: int) -> int:
    """Handle the arrivals of [``from_us``, ``until_us``), so many ``items`` in ``scratch.there``. Returns the number of
    refused ones."""
    setting = storm.setting
    scratch = storm.scratch
    outages = storm.outages
    at = count = 0
    for number in range(len(outages)):
        at_us, back_us = int(outages[number, 0]), int(outages[number, 1])
        if from_us <= at_us < until_us:
            cut = _until(setting, scratch.there, items, at, at_us)
            count = _serve(storm, at, cut, at_us, at_us, count)
            at, from_us = cut, at_us
            count = _die(storm, count, at_us)
        if at_us <= from_us < back_us:
            cut = _until(setting, scratch.there, items, at, back_us)
            for index in range(at, cut):
                key, more = scratch.there[index, 0], scratch.there[index, 1]
                now_us = (key >> CLIENT_BITS) + setting.begin_us
                count = _refuse(storm, count, now_us, key, more, False)
            at, from_us = cut, min(back_us, until_us)
    ahead_us = 1 << 62
    for number in range(len(outages) - 1, -1, -1):
        if outages[number, 0] >= until_us:
            ahead_us = int(outages[number, 0])
    return _serve(storm, at, items, until_us, ahead_us, count)


@inlined
def _until(setting: Setting, items: Ints, end: int, begin: int, until_us: int) -> int:
    """The first item of [``begin``, ``end``) that arrives at ``until_us`` or later."""
    at = begin
    while at < end and (items[at, 0] >> CLIENT_BITS) + setting.begin_us < until_us:
        at += 1
    return at


# -- the storm -------------------------------------------------------------------------------------------------------


@inlined
def _give_up(storm: Storm, due: int) -> int:
    """The deadlines in ``scratch.here`` have passed. Returns the number of those that take effect."""
    clients = storm.clients
    state = storm.state
    scratch = storm.scratch
    count = 0
    for at in range(due):
        key, more = scratch.here[at, 0], scratch.here[at, 1]
        client = key & _CLIENT
        if clients.watch[client] == more & _ATTEMPT and clients.done_us[client] < 0:
            clients.watch[client] = -1
            scratch.refused[count, 0] = key
            scratch.refused[count, 1] = more
            count += 1
    state[0].timeouts += count
    return count


@inlined
def _has_room(calendar: Calendar, added: int) -> bool:
    """Whether so many entries can be added; each may be the first of a page only in as many lists as there are."""
    free = calendar.at[2] + len(calendar.after) - calendar.at[3]
    return bool(free >= added // PAGE + len(calendar.first) + BUCKETS)


@kept_in_place
def advance(storm: Storm) -> int:
    """Simulate bucket by bucket. Returns why it ended: :data:`DONE`, :data:`PAGES`, :data:`PLACES` or :data:`ROOM`.
    ``reaches`` has the attempts that come to brokers' doors; it is ``knocks`` if there are none."""
    setting = storm.setting
    clients = storm.clients
    state = storm.state
    reaches = storm.reaches
    knocks = storm.knocks
    deadlines = storm.deadlines
    carried = storm.carried
    queues = storm.queues
    scratch = storm.scratch
    buckets = -((setting.begin_us - setting.horizon_us) // setting.step_us)
    while state[0].bucket < buckets:
        bucket = state[0].bucket
        from_us = setting.begin_us + bucket * setting.step_us
        until_us = min(from_us + setting.step_us, setting.horizon_us)
        slot, place = bucket // BUCKETS, len(knocks.first) - BUCKETS + bucket % BUCKETS
        _open(setting, knocks, slot)
        _open(setting, deadlines, slot)
        come = knocks.size[place] + state[0].carried
        if setting.has_doors:
            _open(setting, reaches, slot)
            come += reaches.size[place]
        most = come + state[0].waiting + state[0].aborted
        late = deadlines.size[place] + most + come
        if not (_has_room(reaches, late) and _has_room(knocks, come) and _has_room(deadlines, late + most + come)):
            return PAGES
        if late > len(scratch.here) or come > len(carried.entries):
            return ROOM
        longest = 0
        for group in range(setting.groups):
            longest = max(longest, queues.tail[group] - queues.head[group])
        bound = setting.items_max + setting.batch_items if setting.items_max else longest + come
        if min(longest + come, bound) > queues.ring.shape[1]:
            return PLACES
        if setting.has_doors:
            count = _take_sorted(setting, reaches, bucket, scratch)
            _pass_doors(storm, count)
        items = _take_sorted(setting, knocks, bucket, scratch)
        if setting.linger_us:
            items = _batch(storm, items, from_us, until_us)
        count = _run(storm, items, from_us, until_us)
        has_slots = setting.slot_interval_ns > 0
        _retry(storm, count, has_slots)
        count = _take(deadlines, bucket, scratch.here)
        if count:
            count = _give_up(storm, count)
            _retry(storm, count, False)
        state[0].bucket += 1
        is_idle = not (state[0].waiting or state[0].aborted or state[0].carried)
        if is_idle and state[0].restored == len(clients.done_us):
            break
    return DONE
