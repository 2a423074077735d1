"""Bounded room that clients share: memory for what waits, streams, names, leases. One class, one rule.

Who takes room is a *party*: the connection, for what ends with it, and the holder of the certificate or token (without
one the host) for what outlives it.

- What can be *taken back* may fill the room. When another party needs room and holds less, the newest of the party
  that holds most is taken back, as often as needed.
- What cannot be taken back leaves at least as much room free as its party holds. So a party has one half at most, and
  the next one finds as much as it has itself.

So who takes all it can keeps nobody else out, and room that nobody else needs is not kept empty for them. None, or
an empty text, is the node itself: what it asks for may fill the room. Pure.
"""

from __future__ import annotations

from collections.abc import Callable

_TAKEN_BACK_MAX = 128
"""So much is taken back for one request, or the request is refused: each time somebody is told, in the same step."""


class Place:
    """What a party has taken. It is given back once."""

    __slots__ = ("party", "size", "take_back")

    def __init__(self, party: object, size: int, take_back: Callable[[], None] | None) -> None:
        self.party = party
        self.size = size
        self.take_back = take_back


class _Party:
    __slots__ = ("held", "lent", "lent_size")

    def __init__(self) -> None:
        self.held = 0
        self.lent: dict[Place, None] = {}  # what can be taken back, the oldest first
        self.lent_size = 0


class FairRoom:
    """``what``: what it is room for. ``ends``: when it is given back at the latest. ``size_max``: how much there is."""

    def __init__(self, what: str, size_max: int, *, ends: str) -> None:
        self.what = what
        self.ends = ends
        self.size_max = size_max
        self.held = 0
        self._lent = 0  # of it, what can be taken back
        self._parties: dict[object, _Party] = {}

    def __len__(self) -> int:
        """How many parties hold something."""
        return len(self._parties)

    def held_by(self, party: object) -> int:
        """How much a party holds."""
        holder = self._parties.get(party)
        return 0 if holder is None else holder.held

    def take(self, party: object, size: int, take_back: Callable[[], None] | None = None) -> Place | None:
        """Take room; None: there is none for this party. ``take_back`` is called when others need the room: it makes
        the owner call :meth:`give` at once. Alone, anything fits."""
        lent = take_back is not None
        if self.has_room(party, size, lent=lent) or self._make_room(party, size, lent=lent):
            return self.hold(party, size, take_back)
        return None

    def hold(self, party: object, size: int, take_back: Callable[[], None] | None = None) -> Place:
        """Count what is there already, whether or not there is room."""
        holder = self._parties.get(party)
        if holder is None:
            holder = self._parties[party] = _Party()
        place = Place(party, size, take_back)
        if take_back is not None:
            holder.lent[place] = None
            holder.lent_size += size
            self._lent += size
        holder.held += size
        self.held += size
        return place

    def has_room(self, party: object, size: int, *, lent: bool = False) -> bool:
        """Whether so much is there for a party, without anything being taken back."""
        return not self.held or self._needed(party, size, lent) <= self.size_max - self.held

    def give(self, place: Place) -> None:
        """It is over."""
        holder = self._parties[place.party]
        if place.take_back is not None:
            del holder.lent[place]
            holder.lent_size -= place.size
            self._lent -= place.size
            place.take_back = None  # it likely knows the owner of the place: together they would stay in memory
        holder.held -= place.size
        self.held -= place.size
        if not holder.held and not holder.lent:
            del self._parties[place.party]

    def forget(self, place: Place | None) -> None:
        """Give it back, where there is any."""
        if place is not None:
            self.give(place)

    def _needed(self, party: object, size: int, lent: bool) -> int:
        """How much must be free."""
        return size if lent or party is None or party == "" else size + self.held_by(party)

    def _make_room(self, party: object, size: int, *, lent: bool) -> bool:
        """Take back from those that hold more than the party then has, if that is enough."""
        missing = self._needed(party, size, lent) - (self.size_max - self.held)
        if self._lent < missing:
            return False  # under overload it is writes that wait: they are refused without a look at all parties
        after = self.held_by(party) + size
        sharing = len(self._parties) + (party not in self._parties)
        if after * sharing > self.size_max:
            return False  # more than an equal share: looking for more than that would cost more than it is worth
        richer = [holder for name, holder in self._parties.items() if name != party and holder.held > after]
        if sum([min(holder.held - after, holder.lent_size) for holder in richer]) < missing:
            return False
        for _ in range(_TAKEN_BACK_MAX):
            if self.has_room(party, size, lent=lent):
                return True
            newest = next(reversed(max(filter(_lends, richer), key=_held).lent))
            assert newest.take_back is not None
            newest.take_back()
        return self.has_room(party, size, lent=lent)


def _lends(holder: _Party) -> bool:
    return bool(holder.lent)


def _held(holder: _Party) -> int:
    return holder.held
