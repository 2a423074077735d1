"""Small worlds of slot moves, all of them; and a reader that follows each in every order in which its streams may come.

A world is what the groups' logs hold in the end. It grows by the steps that real groups take: writes; moves that seal
slots at the source, give up or adopt them at the target, and close; adoptions of slots that the world does not have.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from types import ModuleType
from typing import Any, NamedTuple

from metad_wire.cluster import SLOTS
from metad_wire.watch import MarkerStep, SlotMarker


class Bounds(NamedTuple):
    """How large the worlds are."""

    homes: tuple[int, ...]  # per slot the group that it begins in
    groups: int
    writes: int
    moves: int
    aborts: int
    strangers: int  # adoptions of other slots


class Entry(NamedTuple):
    """One entry of a log: a write, a marker, or the end of a move at its source."""

    slot: int = -1
    version: int = 0  # that is written; of an adoption, that came with the rows
    marker: SlotMarker | None = None
    closes: int = 0


class Move(NamedTuple):
    """A move on its way. ``sealed_at`` is 0 while it is not sealed."""

    number: int
    slot: int
    source: int
    target: int
    sealed_at: int


class World(NamedTuple):
    """What there is after some steps. ``holders``: -1 while a slot is between two groups. ``unclosed``: per group the
    move that it has sealed slots for."""

    logs: tuple[tuple[Entry, ...], ...]
    holders: tuple[int, ...]
    versions: tuple[int, ...]
    move: Move | None
    unclosed: tuple[int, ...]
    begun: int
    aborts: int
    strangers: int

    def grown(self, group: int, entry: Entry, **changed: Any) -> World:
        logs = tuple((*log, entry) if number == group else log for number, log in enumerate(self.logs))
        return self._replace(logs=logs, **changed)


class Violated(AssertionError):
    """The reader has broken its word."""


def with_item(items: tuple[int, ...], at: int, value: int) -> tuple[int, ...]:
    return (*items[:at], value, *items[at + 1 :])


def slot_bits_of(bounds: Bounds) -> list[int]:
    """The slots of the world share all slots that there are, so that tokens can name them."""
    count = len(bounds.homes)
    share = SLOTS // count
    bits = [((1 << share) - 1) << (SLOTS - share * (slot + 1)) for slot in range(count - 1)]
    return [*bits, (1 << (SLOTS - share * (count - 1))) - 1]


def worlds(bounds: Bounds) -> set[World]:
    """All worlds, unfinished ones included."""
    as_bytes = [bits.to_bytes(SLOTS // 8, "big") for bits in slot_bits_of(bounds)]
    groups, none = bounds.groups, (0,) * bounds.groups
    first = World(((),) * groups, bounds.homes, (0,) * len(bounds.homes), None, none, 0, 0, 0)
    seen, todo = {first}, [first]
    while todo:
        for world in _steps(todo.pop(), bounds, as_bytes):
            if world not in seen:
                seen.add(world)
                todo.append(world)
    return seen


def _steps(world: World, bounds: Bounds, as_bytes: list[bytes]) -> Iterator[World]:
    move = world.move
    number = 10 * (world.begun + world.strangers + 1)
    for slot, holder in enumerate(world.holders):
        if holder >= 0 and sum(world.versions) < bounds.writes:
            version = world.versions[slot] + 1
            yield world.grown(holder, Entry(slot, version), versions=with_item(world.versions, slot, version))
        if move is None and world.begun < bounds.moves:
            for target in range(bounds.groups):
                if target != holder:
                    yield world._replace(move=Move(number, slot, holder, target, 0), begun=world.begun + 1)
    if move is None and world.strangers < bounds.strangers:
        for group in range(bounds.groups):
            stranger = SlotMarker(MarkerStep.ADOPTED, number, b"", (group + 1) % bounds.groups, 0)
            yield world.grown(group, Entry(marker=stranger), strangers=world.strangers + 1)
    if move is not None and not move.sealed_at and not world.unclosed[move.source]:
        sealed = SlotMarker(MarkerStep.SEALED, move.number, as_bytes[move.slot], move.target)
        yield world.grown(
            move.source,
            Entry(move.slot, marker=sealed),
            holders=with_item(world.holders, move.slot, -1),
            move=move._replace(sealed_at=len(world.logs[move.source]) + 1),
            unclosed=with_item(world.unclosed, move.source, move.number),
        )
    if move is not None and move.sealed_at:
        adopted = SlotMarker(MarkerStep.ADOPTED, move.number, as_bytes[move.slot], move.source, move.sealed_at)
        yield world.grown(
            move.target,
            Entry(move.slot, world.versions[move.slot], adopted),
            holders=with_item(world.holders, move.slot, move.target),
            move=None,
        )
        if world.aborts < bounds.aborts:
            unsealed = SlotMarker(MarkerStep.UNSEALED, move.number, as_bytes[move.slot])
            yield world.grown(
                move.source,
                Entry(move.slot, marker=unsealed),
                holders=with_item(world.holders, move.slot, move.source),
                move=move._replace(sealed_at=0),
                unclosed=with_item(world.unclosed, move.source, 0),
                aborts=world.aborts + 1,
            )
    for group, unclosed in enumerate(world.unclosed):
        if unclosed and (move is None or move.number != unclosed):
            yield world.grown(group, Entry(closes=unclosed), unclosed=with_item(world.unclosed, group, 0))


class State(NamedTuple):
    """A group at an index of its log: its pin, and the version of each slot's row there."""

    pin: Any
    versions: tuple[int, ...]


def states(log: tuple[Entry, ...], group: int, bounds: Bounds, bits: list[int], position: ModuleType) -> list[State]:
    """The states of a group, from its beginning to the end of its log."""
    brought = dict.fromkeys((slot for slot, home in enumerate(bounds.homes) if home == group), 0)  # what it has
    sealed: dict[int, int] = {}
    versions = [0] * len(bounds.homes)
    found: list[State] = []
    for index, entry in enumerate((Entry(), *log)):
        marker = entry.marker
        if marker is None and entry.slot >= 0:
            versions[entry.slot] = entry.version
        if marker is not None and entry.slot >= 0:
            if marker.step == MarkerStep.ADOPTED:
                brought[entry.slot], versions[entry.slot] = marker.move, entry.version
                sealed.pop(entry.slot, None)
            elif marker.step == MarkerStep.SEALED:
                sealed[entry.slot] = marker.move
            else:
                sealed.pop(entry.slot)
        for slot in [slot for slot, move in sealed.items() if entry.closes == move]:
            del brought[slot], sealed[slot]
        by_move: dict[int, int] = {}
        for slot, move in brought.items():
            by_move[move] = by_move.get(move, 0) | bits[slot]
        held = sum(bits[slot] for slot in brought if slot not in sealed)
        moves = set(sealed.values())
        pin = position.Pin(
            index, held, sum(bits[slot] for slot in sealed), max(moves, default=0), tuple(by_move.items())
        )
        found.append(State(pin, tuple(versions)))
    return found


class Reading:
    """Follows one world from one start in all orders. ``cuts``: how many times a log may be cut."""

    def __init__(
        self, world: World, bounds: Bounds, position: ModuleType, token: ModuleType, resumed: set[Any]
    ) -> None:
        self.world = world
        self.groups = range(bounds.groups)
        self.bits = slot_bits_of(bounds)
        self.bounds = bounds
        self.position = position
        self.token = token
        self.resumed = resumed  # the readers that were once made a token of
        self._seen: tuple[set[Any], set[Any]] = set(), set()  # states without pins, and with pins
        self.states = [states(log, group, bounds, self.bits, position) for group, log in enumerate(world.logs)]
        self.ends = [len(log) for log in world.logs]

    def starts(self) -> Iterator[Any]:
        """From the beginning, and from every choice of pins."""
        homes: dict[Any, int] = {}
        for slot, home in enumerate(self.bounds.homes):
            reader = self.position.Reader(home, 0)
            homes[reader] = homes.get(reader, 0) | self.bits[slot]
        yield self.position.Position({}, homes)
        for indexes in itertools.product(*[range(end + 1) for end in self.ends]):
            pins = {
                group: self.states[group][index].pin
                for group, index in enumerate(indexes)
                if index or group in self.bounds.homes  # a group that was added later is not named
            }
            yield self.position.Position.at(pins)

    def run(self, start: Any, cuts: int) -> int:
        """Read to the end in every order. Returns how many states the reader was in that no other start has led to;
        raises Violated."""
        self._pinned = bool(start.indexes)
        last = tuple(self._first_version(start, slot) for slot in range(len(self.bits)))
        todo, seen = [(start, last, cuts)], self._seen[self._pinned]
        before, first = len(seen), self._key(*todo[0])
        if first in seen:
            return 0
        seen.add(first)
        while todo:
            position, last, left = todo.pop()
            self._resume(position)
            following = list(self._steps(position, last, left, cuts))
            if not following:
                self._ended(position, last)
            for step in following:
                key = self._key(*step)
                if key not in seen:
                    seen.add(key)
                    todo.append(step)
        return len(seen) - before

    def _first_version(self, start: Any, slot: int) -> int:
        for reader, slots in start.readers.items():
            if slots & self.bits[slot] and reader.group in self.groups:
                return self.states[reader.group][start.indexes.get(reader.group, 0)].versions[slot]
        return -1

    def _key(self, position: Any, last: tuple[int, ...], left: int) -> Any:
        return tuple(position.index(group) for group in self.groups), frozenset(position.readers.items()), last, left

    def _resume(self, position: Any) -> None:
        """A token of here leads here."""
        readers = frozenset(position.readers.items())
        if readers not in self.resumed:
            self.resumed.add(readers)
            text = self.token.to_text("c1", {"data": (position.indexes, self.token.packed_slots(position))})
            if self.token.from_text(text) != ("c1", {"data": position}):
                raise Violated("a token leads elsewhere")

    def _steps(self, position: Any, last: tuple[int, ...], left: int, cuts: int) -> Iterator[Any]:
        for group in self.groups:
            at = position.index(group)
            if at < self.ends[group]:
                entry = self.world.logs[group][at]
                if not position.waits(entry.marker):
                    yield self._read(position, last, left, cuts, group, entry)
                for index in range(at + 1, self.ends[group] + 1) if left else ():
                    yield self._cut(position, last, left, group, index)
            if position.missing:
                yield from self._taken(position, last, left, group)

    def _read(
        self, position: Any, last: tuple[int, ...], left: int, cuts: int, group: int, entry: Entry
    ) -> tuple[Any, tuple[int, ...], int]:
        if entry.marker is None and entry.slot >= 0 and position.counts(group) & self.bits[entry.slot]:
            if entry.version != last[entry.slot] + 1:
                raise Violated(f"version {entry.version} follows {last[entry.slot]}")
            last = with_item(last, entry.slot, entry.version)
        after = position.copy()
        lost = after.read(group, position.index(group) + 1, entry.marker)
        if lost != after.missing & ~position.missing:
            raise Violated("a gap that is not announced")
        if entry.marker is not None and lost:
            for reader, slots in position.readers.items():
                if lost & slots and (reader.move >= entry.marker.move or reader.group == entry.marker.other):
                    raise Violated("a gap in what the reader has")
        if lost and not cuts and not self._pinned:
            raise Violated("a gap without a cut")
        return after, last, left

    def _cut(
        self, position: Any, last: tuple[int, ...], left: int, group: int, index: int
    ) -> tuple[Any, tuple[int, ...], int]:
        after = position.copy()
        lost = after.cut(group, self.states[group][index].pin)
        if lost != after.missing & ~position.missing:
            raise Violated("a gap that is not announced")
        if after.index(group) != index:
            raise Violated("the reader waits for what is gone")
        return after, last, left - 1

    def _taken(self, position: Any, last: tuple[int, ...], left: int, group: int) -> Iterator[Any]:
        for state, (slot, bits) in itertools.product(self.states[group], enumerate(self.bits)):
            after = position.copy()
            taken = after.take(group, state.pin, bits)
            if taken:
                if not position.missing & bits or taken != bits or after.missing & bits:
                    raise Violated("a slot was taken that was not missing")
                if state.versions[slot] < last[slot]:
                    raise Violated("a snapshot goes back")
                yield after, with_item(last, slot, state.versions[slot]), left

    def _ended(self, position: Any, last: tuple[int, ...]) -> None:
        if any(position.index(group) < end for group, end in enumerate(self.ends)):
            raise Violated("it waits for ever")
        if position.missing:
            raise Violated("a slot stays missing")
        if last != self.world.versions:
            raise Violated(f"it ends with {last}, not {self.world.versions}")
        for slot, holder in enumerate(self.world.holders):
            if holder >= 0 and not position.counts(holder) & self.bits[slot]:
                raise Violated("a slot is read from a group that does not hold it")


def explore(
    bounds: Bounds, position: ModuleType, token: ModuleType, *, pins: bool, cuts: int, limit: int = 1 << 62
) -> tuple[int, int]:
    """Follow all worlds, the shortest first, up to about ``limit`` states. Returns how many worlds and states there
    were; raises Violated with what happened."""
    resumed: set[Any] = set()
    count = total = 0
    for world in sorted(worlds(bounds), key=lambda world: (sum(map(len, world.logs)), repr(world))):
        reading = Reading(world, bounds, position, token, resumed)
        count += 1
        for start in reading.starts() if pins else itertools.islice(reading.starts(), 1):
            try:
                total += reading.run(start, cuts)
            except Violated as violated:
                logs = "\n".join(f"  group {group}: {log}" for group, log in enumerate(world.logs))
                raise Violated(f"{violated}\nfrom {start.indexes} {sorted(start.readers)}\n{logs}") from None
            if total >= limit:
                return count, total
    return count, total
