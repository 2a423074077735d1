"""How far a watch has come in the groups of one kind, and which group's changes of a slot count. Pure.

Each group has a log of its own, and slots move between groups. The markers in the logs (:class:`SlotMarker`) and the
pins (the state that a replica shows when a stream opens) say when a slot's changes go on in another group. What follows
holds for whichever order the streams arrive in, for moves that are aborted, repeated and chained, and for logs that are
cut: per key each change counts exactly once and in order, or its slot is *missing* for a time, and is then read anew.

- A change counts if its slot is read from the group whose log has it, and is not sealed there.
- ``sealed`` by move m: if the slot is read from that group, it is sealed by m there.
- ``unsealed`` by m: if the slot is sealed by m there, it is so no longer.
- ``adopted`` by m from a source that sealed it at index s: waits until the source's position is at least s. Then a slot
  that m or a later move has brought stays as it is; a slot that is sealed by m is read from the target; any other is
  missing, and only a group that has it by m or a later move can show it.
- A missing slot is read as a snapshot, from a group that holds it, or has sealed it and not closed the move, in the
  state of the group's own position.

Slots are bit maps: integers with the bits of :func:`metad_wire.cluster.slot_bits`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import repeat
from typing import Final, NamedTuple, Self

from metad_wire.cluster import SLOTS, slots_in
from metad_wire.table import ROWS
from metad_wire.watch import MarkerStep, SlotMarker, WatchChange, WatchOpened

NOBODY: Final = -1
ALL: Final = (1 << SLOTS) - 1


class Reader(NamedTuple):
    """From which group a slot is read, the move that brought it there, and the move that it is sealed by; 0: none. If
    the group is :data:`NOBODY`, the slot is missing, and ``move`` is the least that a group must have it by."""

    group: int
    move: int
    sealed: int = 0


@dataclass(frozen=True, slots=True)
class Pin:
    """The slots of a group at an index of its log."""

    index: int
    held: int
    sealed: int
    sealed_move: int
    brought: tuple[tuple[int, int], ...]
    """Move -> those of both that it has brought."""
    revision: int = 0
    """The number of the group's revision there; 0: not known."""

    @classmethod
    def of(cls, opened: WatchOpened) -> Self:
        """The pin that a stream begins with."""
        brought = tuple((each.move, bits_of(each.slots)) for each in opened.brought)
        held, sealed = bits_of(opened.held), bits_of(opened.sealed)
        return cls(opened.index, held, sealed, opened.sealed_move, brought, opened.revision)

    def readers(self, group: int) -> Iterator[tuple[Reader, int]]:
        """How slots would be read from the group, and which."""
        for move, slots in self.brought:
            if held := slots & self.held:
                yield Reader(group, move), held
            if sealed := slots & self.sealed & ~self.held:
                yield Reader(group, move, self.sealed_move), sealed


def bits_of(slots: bytes) -> int:
    """A bit map as a number."""
    return int.from_bytes(slots, "big")


def is_among(slots: int, row: int, key: bytes) -> bool:
    """Whether the slot of a row with this key is one of these. A table that is not routed is in ``metadata-0``, which
    keeps slot 0, and its rows go as those of slot 0: before the snapshot of that is there, no change of theirs
    counts."""
    return bool(slots >> (SLOTS - 1 - (ROWS[row].slot_of(key) or 0)) & 1)


def among(slots: int, changes: Sequence[WatchChange]) -> list[WatchChange]:
    """Those changes whose row is among these slots, in their order: five times as fast as to look at one by one."""
    wanted = _members(slots)
    places: dict[int, Iterator[int | None]] = {}
    for row in {change.row for change in changes}:
        found = ROWS[row].slots_of([change.key for change in changes if change.row == row])
        places[row] = repeat(0) if found is None else iter(found)
    return [change for change in changes if (next(places[change.row]) or 0) in wanted]


@lru_cache(maxsize=64)  # of each group that is read
def _members(slots: int) -> frozenset[int]:
    return frozenset(slots_in(slots.to_bytes(SLOTS // 8, "big")))


class Position:
    """Of the groups of one kind: ``indexes``, how far each has been read (a group that is not in it: not at all), and
    ``readers``, how each slot is read."""

    def __init__(self, indexes: Mapping[int, int], readers: Mapping[Reader, int]) -> None:
        self.indexes = dict(indexes)
        self.readers = dict(readers)
        self._count_in()

    @classmethod
    def at(cls, pins: Mapping[int, Pin], slots: int = ALL) -> Self:
        """The position of a watch that begins at these pins. A slot is read from the group that has it by the highest
        move; where no pin has it, it is missing."""
        begun = cls({group: pin.index for group, pin in pins.items()}, {Reader(NOBODY, 0): slots})
        offers = [offer for group, pin in pins.items() for offer in pin.readers(group)]
        for reader, offered in sorted(offers, key=_by_move):
            begun._assign(offered & slots, reader)
        return begun

    def unread(self) -> None:
        """Nothing of what the groups have is known: all slots are missing, until their rows are read."""
        self._change(ALL, _unread)

    def copy(self) -> Self:
        """Another position like this one."""
        return type(self)(self.indexes, self.readers)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Position):
            return NotImplemented
        groups = self.indexes.keys() | other.indexes.keys()
        return self.readers == other.readers and all(self.index(group) == other.index(group) for group in groups)

    __hash__ = None  # type: ignore[assignment]

    def index(self, group: int) -> int:
        """How far the group's log has been read."""
        return self.indexes.get(group, 0)

    def counts(self, group: int) -> int:
        """The slots whose changes in the group's log count."""
        return self._counts.get(group, 0)

    @property
    def missing(self) -> int:
        """The slots that no group is read for."""
        return self.counts(NOBODY)

    @property
    def sealed(self) -> int:
        """The slots that are on their way to another group: what that one writes is not read yet."""
        return sum(slots for reader, slots in self.readers.items() if reader.sealed)

    def read_from(self, group: int) -> int:
        """The slots that are read from a group, whether they are sealed there or not."""
        return sum(slots for reader, slots in self.readers.items() if reader.group == group)

    @property
    def groups(self) -> set[int]:
        """Those that it names."""
        return {*self.indexes, *(reader.group for reader in self.readers)} - {NOBODY}

    def waits(self, marker: SlotMarker | None) -> bool:
        """Whether an entry with this marker has to wait until more of the other group's log has been read. What the
        reader knows of the move does not matter: an aborted attempt may have told it."""
        return (
            marker is not None and marker.step == MarkerStep.ADOPTED and self.index(marker.other) < marker.sealed_index
        )

    def read(self, group: int, index: int, marker: SlotMarker | None = None) -> int:
        """The group's log has been read up to this index, which has this marker. Returns the slots that are missing
        because of it."""
        before = self.missing
        if marker is not None:
            rule = _RULES.get(marker.step)
            if rule is not None:
                self._change(bits_of(marker.slots), partial(rule, group, marker.move))
        self.indexes[group] = index
        return self.missing & ~before

    def gone(self, group: int) -> int:
        """There is no such group any more. Returns the slots that are missing because of it: those read from it."""
        before = self.missing
        self._change(ALL, partial(_lost, group))
        return self.missing & ~before

    def cut(self, group: int, pin: Pin) -> int:
        """The group's log behind the position is lost; it goes on at this pin. Returns the slots that are missing
        because of it: those read from the group, and those that moves have brought there that the reader has not
        heard of."""
        before = self.missing
        self._change(ALL, partial(_lost, group))
        for offer, slots in pin.readers(group):
            self._change(slots, partial(_unheard, offer.move))
        self.indexes[group] = pin.index
        return self.missing & ~before

    def offered(self, group: int, pin: Pin) -> int:
        """The missing slots that the group's state at this pin can show."""
        found = 0
        for reader, slots in self.readers.items():
            if reader.group == NOBODY:
                for offer, has in pin.readers(group):
                    if offer.move >= reader.move:
                        found |= slots & has
        return found

    def take(self, group: int, pin: Pin, slots: int) -> int:
        """The rows of these slots have been read from the group's state at this pin, where the group's position is.
        Returns which of them are read from there from now on: the others are not missing, or only a later move may show
        them."""
        if self.index(group) != pin.index:
            return 0
        slots &= self.offered(group, pin)
        for offer, has in pin.readers(group):
            self._assign(slots & has, offer)
        return slots

    def _change(self, slots: int, rule: Callable[[Reader], Reader]) -> None:
        changed: dict[Reader, int] = {}
        for reader, has in self.readers.items():
            for new, part in ((reader, has & ~slots), (rule(reader), has & slots)):
                if part:
                    changed[new] = changed.get(new, 0) | part
        self.readers = changed
        self._count_in()

    def _assign(self, slots: int, reader: Reader) -> None:
        self._change(slots, lambda _: reader)

    def _count_in(self) -> None:
        self._counts: dict[int, int] = {}
        for reader, slots in self.readers.items():
            if not reader.sealed:
                self._counts[reader.group] = self._counts.get(reader.group, 0) | slots


def _by_move(offer: tuple[Reader, int]) -> int:
    return offer[0].move


def _missing(reader: Reader, move: int) -> Reader:
    return Reader(NOBODY, max(reader.move, move))


def _sealed(group: int, move: int, reader: Reader) -> Reader:
    return Reader(group, reader.move, move) if reader.group == group else reader


def _unsealed(group: int, move: int, reader: Reader) -> Reader:
    return Reader(group, reader.move) if reader.group == group and reader.sealed == move else reader


def _adopted(group: int, move: int, reader: Reader) -> Reader:
    if reader.move >= move:
        return reader
    return Reader(group, move) if reader.sealed == move else _missing(reader, move)


def _lost(group: int, reader: Reader) -> Reader:
    return Reader(NOBODY, reader.move) if reader.group == group else reader


def _unread(reader: Reader) -> Reader:
    return Reader(NOBODY, reader.move)


def _unheard(move: int, reader: Reader) -> Reader:
    return _missing(reader, move) if move > reader.move else reader


_RULES: Final[dict[int, Callable[[int, int, Reader], Reader]]] = {
    MarkerStep.SEALED: _sealed,
    MarkerStep.UNSEALED: _unsealed,
    MarkerStep.ADOPTED: _adopted,
}
