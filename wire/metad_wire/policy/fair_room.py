"""Bounded room that clients share: memory for what waits, streams, names, leases. One class, one rule.

The room is shared in two levels. First between *holders*: the holder of the certificate or token, or the host where
nobody is checked. Then, for what ends with a connection, between the connections of each holder (``source``). So a
thousand connections of one holder count as one.

- What can be *taken back* may fill the room. When a holder needs room and holds less than another, the newest of the
  connection that lends most, of the holder that lends most, is taken back, as often as needed. Within a holder the same
  holds between its connections.
- What cannot be taken back leaves room free. A holder leaves a seventh of what it holds, and each of its connections
  leaves as much as it holds itself of what its holder may still take. What outlives a connection has no such level: its
  holder leaves as much as it holds. (Choudhury and Hahne, *Dynamic Queue Length Thresholds*, 1998.)

So whoever takes all it can keeps nobody else out, with however many connections, and room that nobody else needs is not
kept empty. An empty holder is the node itself, or sources without an address: it may fill the room.

"Most" is within a factor of two, and equals take turns, so nothing here looks at all parties. Pure.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Generic, Protocol, TypeVar

_TAKEN_BACK_MAX = 128
"""So much is taken back for one request, or the request is refused: each time somebody is told, in the same step. So
many parties are looked at, too."""
_KEPT = 7
"""A holder of many connections may keep so many times as much as it leaves free: seven eighths where it is alone."""


class Held(Protocol):
    """A connection that has a holder."""

    @property
    def holder(self) -> str:
        """The URI of the certificate or token's holder, or the host where nobody is checked."""


def holder_of(source: Held | None) -> str:
    """The holder of a connection. Empty: the node itself."""
    return "" if source is None else source.holder


class _Party:
    """``held``: how much it has taken. ``lent``: of that, what can be taken back."""

    __slots__ = ("held", "lent")

    def __init__(self) -> None:
        self.held = 0
        self.lent = 0


P = TypeVar("P", bound=_Party)


class _Source(_Party):
    __slots__ = ("holder", "key", "places")

    def __init__(self, holder: _Holder, key: object) -> None:
        super().__init__()
        self.holder = holder
        self.key = key
        self.places: dict[Place, None] = {}  # what can be taken back, the oldest first


class _Holder(_Party):
    __slots__ = ("lenders", "name", "sources")

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name
        self.sources: dict[object, _Source] = {}
        self.lenders: _Lenders[_Source] = _Lenders()


class _Lenders(Generic[P]):
    """Parties by the length of the number that says how much they lend."""

    __slots__ = ("_ranks",)

    def __init__(self) -> None:
        self._ranks: dict[int, OrderedDict[P, None]] = {}

    def lends(self, party: P, size: int) -> None:
        """A party lends so much more, or less."""
        before, party.lent = party.lent.bit_length(), party.lent + size
        after = party.lent.bit_length()
        if before == after:
            return
        if before:
            del self._ranks[before][party]
        if after:
            rank = self._ranks.get(after)
            if rank is None:
                rank = self._ranks[after] = OrderedDict()
            rank[party] = None

    def richer(self, held: int, but: object) -> Iterator[P]:
        """Those that hold more than this, without one of them: first those that lend most. Equals take turns."""
        looks = _TAKEN_BACK_MAX
        for length in sorted(self._ranks, reverse=True):
            rank = self._ranks[length]
            for _ in range(min(len(rank), looks)):
                looks -= 1
                party = next(iter(rank))
                rank.move_to_end(party)
                if party.held > held and party is not but:
                    yield party


class Place:
    """What a source of a holder has taken. It is given back once."""

    __slots__ = ("size", "source", "take_back")

    def __init__(self, source: _Source, size: int, take_back: Callable[[], None] | None) -> None:
        self.source = source
        self.size = size
        self.take_back = take_back

    @property
    def holder(self) -> str:
        """Who has it."""
        return self.source.holder.name


class FairRoom:
    """``what``: what it is room for. ``ends``: when it is given back at the latest. ``size_max``: how much there is."""

    def __init__(self, what: str, size_max: int, *, ends: str) -> None:
        self.what = what
        self.ends = ends
        self.size_max = size_max
        self.held = 0
        self._lent = 0  # of it, what can be taken back
        self._holders: dict[str, _Holder] = {}
        self._lenders: _Lenders[_Holder] = _Lenders()

    def __len__(self) -> int:
        """How many holders have something."""
        return len(self._holders)

    def held_by(self, holder: str) -> int:
        """How much a holder has, with all of its connections."""
        of = self._holders.get(holder)
        return 0 if of is None else of.held

    def take(
        self, holder: str, size: int, take_back: Callable[[], None] | None = None, *, source: object = None
    ) -> Place | None:
        """Take room; None: there is none for this party. ``source``: the connection, for what ends with it.
        ``take_back`` is called when others need the room: it makes the owner call :meth:`give` at once. Alone, anything
        fits."""
        lent = take_back is not None
        if self.has_room(holder, size, lent=lent, source=source) or self._make_room(holder, source, size, lent):
            return self.hold(holder, size, take_back, source=source)
        return None

    def hold(
        self, holder: str, size: int, take_back: Callable[[], None] | None = None, *, source: object = None
    ) -> Place:
        """Count what is there already, whether or not there is room."""
        of = self._holders.get(holder)
        if of is None:
            of = self._holders[holder] = _Holder(holder)
        party = of.sources.get(source)
        if party is None:
            party = of.sources[source] = _Source(of, source)
        place = Place(party, size, take_back)
        party.held += size
        of.held += size
        self.held += size
        if take_back is not None:
            party.places[place] = None
            of.lenders.lends(party, size)
            self._lenders.lends(of, size)
            self._lent += size
        return place

    def has_room(self, holder: str, size: int, *, lent: bool = False, source: object = None) -> bool:
        """Whether so much is there for a party, without anything being taken back."""
        return not self.held or self._missing(holder, source, size, lent) <= 0

    def give(self, place: Place) -> None:
        """It is over."""
        source, size = place.source, place.size
        of = source.holder
        if place.take_back is not None:
            del source.places[place]
            of.lenders.lends(source, -size)
            self._lenders.lends(of, -size)
            self._lent -= size
            place.take_back = None  # it likely knows the owner of the place: together they would stay in memory
        source.held -= size
        of.held -= size
        self.held -= size
        if not source.held and not source.places:
            del of.sources[source.key]
            if not of.sources:
                del self._holders[of.name]

    def forget(self, place: Place | None) -> None:
        """Give it back, where there is any."""
        if place is not None:
            self.give(place)

    def _missing(self, holder: str, source: object, size: int, lent: bool) -> int:
        """How much more must be free; at most 0 if there is room."""
        free = self.size_max - self.held
        if lent or (not holder and source is None):
            return size - free
        of = self._holders.get(holder)
        held, party = (0, None) if of is None else (of.held, of.sources.get(source))
        if holder and source is not None:
            free = (free + held) * _KEPT // (_KEPT + 1) - held
        return size - free + (0 if party is None else party.held)

    def _make_room(self, holder: str, source: object, size: int, lent: bool) -> bool:
        """Take back from those that hold more than the party then has, if that is enough."""
        missing = self._missing(holder, source, size, lent)
        if self._lent < missing:
            return False  # under overload it is writes that wait: they are refused without a look at others
        of = self._holders.get(holder)
        party = None if of is None else of.sources.get(source)
        after, source_after = (size + (0 if one is None else one.held) for one in (of, party))
        if not lent:
            missing += missing // _KEPT + 1  # of what others give back, a part has to stay free
        if not self._is_lent(missing, of, after, party, source_after):
            return False
        for _ in range(_TAKEN_BACK_MAX):
            lender = self._lender(of, after, party, source_after)
            if lender is None:
                return False
            newest = next(reversed(lender.places))
            assert newest.take_back is not None
            newest.take_back()
            if self.has_room(holder, size, lent=lent, source=source):
                return True
        return False

    def _is_lent(self, missing: int, of: _Holder | None, after: int, party: _Source | None, source_after: int) -> bool:
        """Whether those that hold more lend so much."""
        found = 0
        for other in self._lenders.richer(after, of):
            found += min(other.held - after, other.lent)
            if found >= missing:
                return True
        for source in () if of is None else of.lenders.richer(source_after, party):
            found += min(source.held - source_after, source.lent)
            if found >= missing:
                return True
        return False

    def _lender(self, of: _Holder | None, after: int, party: _Source | None, source_after: int) -> _Source | None:
        """Whose newest is taken back: a source of another holder, or else another source of the same."""
        for other in self._lenders.richer(after, of):
            return next(other.lenders.richer(0, None))
        return None if of is None else next(of.lenders.richer(source_after, party), None)
