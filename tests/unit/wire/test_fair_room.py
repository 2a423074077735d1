"""Room that clients share: it is bounded, whoever takes what it can keeps nobody else out, and what nobody else needs
may be used."""

from __future__ import annotations

import gc
import itertools
import random
import weakref

import pytest

from metad_wire.policy.fair_room import FairRoom, Place

MAX = 1_000


def room_of(size_max: int = MAX) -> FairRoom:
    return FairRoom("things", size_max, ends="at last")


_numbers = itertools.count()


class Holder:
    """A holder; with ``of``, one of that holder's connections. ``lends``: what it takes can be taken back."""

    def __init__(self, room: FairRoom, *, lends: bool, of: str = "") -> None:
        self.room = room
        self.lends = lends
        self.name, self.line = (of, self) if of else (f"holder {next(_numbers)}", None)
        self.places: list[Place] = []
        self.lost = 0

    def take(self, size: int = 10) -> bool:
        found: list[Place] = []

        def take_back() -> None:
            self.lost += 1
            self.places.remove(found[0])
            self.room.give(found[0])

        place = self.room.take(self.name, size, take_back if self.lends else None, source=self.line)
        if place is None:
            return False
        found.append(place)
        self.places.append(place)
        return True

    def fill(self, size: int = 10) -> int:
        count = 0
        while self.take(size):
            count += 1
        return count


def test_what_can_be_taken_back_fills_the_room_and_others_get_it_back() -> None:
    room = room_of()
    hog, modest = Holder(room, lends=True), Holder(room, lends=True)
    assert hog.fill() == MAX // 10
    assert modest.fill() == MAX // 10 // 2, "as much as the other then has"
    assert hog.lost == MAX // 10 // 2
    assert room.held == MAX


def test_the_newest_of_the_one_that_holds_most_is_taken_back() -> None:
    room = room_of()
    most, less, new = (Holder(room, lends=True) for _ in range(3))
    assert all(less.take(100) for _ in range(3))
    assert most.fill(100) == 7
    older = most.places[:6]
    assert new.take(100)
    assert most.places == older
    assert less.lost == 0


@pytest.mark.parametrize("connections", [1, 5, 50])
def test_however_many_hoard_one_more_gets_an_equal_share(connections: int) -> None:
    room = room_of()
    hogs = [Holder(room, lends=True) for _ in range(connections)]
    for _ in range(3):
        for hog in hogs:
            hog.fill(1)
    assert Holder(room, lends=True).fill(1) == pytest.approx(MAX / (connections + 1), abs=1)
    assert room.held <= MAX


def test_what_cannot_be_taken_back_leaves_as_much_as_its_party_holds() -> None:
    room = room_of()
    counts = [Holder(room, lends=False).fill(1) for _ in range(4)]
    assert counts == [500, 250, 125, 63]


def test_what_cannot_be_taken_back_takes_from_what_can() -> None:
    room = room_of()
    hog, kept = Holder(room, lends=True), Holder(room, lends=False)
    hog.fill(1)
    assert kept.fill(1) >= MAX // 4
    assert hog.lost >= MAX // 4


def test_alone_anything_fits_and_beside_others_only_what_there_is_room_for() -> None:
    room = room_of()
    first, second = Holder(room, lends=False), Holder(room, lends=True)
    assert first.take(5 * MAX)
    assert not second.take(1)
    room.give(first.places.pop())
    assert second.take(1)


def test_the_node_itself_may_fill_the_room() -> None:
    room = room_of()
    taken = [room.take("", 100) for _ in range(11)]
    assert [place is not None for place in taken] == [True] * 10 + [False]


def test_what_is_given_back_keeps_its_owner_no_longer_in_memory() -> None:
    """A connection that had ended stayed in memory, with the megabytes that it had read, until the next collection."""
    room = room_of()

    class Owner:
        place: Place | None = None

        def lost(self) -> None: ...

    owner = Owner()
    owner.place = room.take("a", 1, owner.lost)
    gone = weakref.ref(owner)
    assert owner.place is not None
    room.give(owner.place)
    gc.disable()
    try:
        del owner
        assert gone() is None
    finally:
        gc.enable()


def test_nothing_is_taken_back_for_one_that_would_not_fit_all_the_same() -> None:
    room = room_of()
    keeps, lends = Holder(room, lends=False), Holder(room, lends=True)
    assert keeps.take(400)
    assert lends.fill(100) == 6
    assert not Holder(room, lends=False).take(450)
    assert lends.lost == 0


def test_whatever_happens_it_is_counted_and_bounded() -> None:
    rng = random.Random(7)
    for _ in range(50):
        room = room_of(rng.randrange(50, 500))
        holders = [Holder(room, lends=rng.random() < 0.6) for _ in range(rng.randrange(1, 8))]
        for _ in range(300):
            holder = rng.choice(holders)
            if holder.places and rng.random() < 0.4:
                room.give(holder.places.pop(rng.randrange(len(holder.places))))
            else:
                holder.take(rng.randrange(1, 40))
            held = {one: sum(place.size for place in one.places) for one in holders}
            assert room.held == sum(held.values()) <= room.size_max
            assert all(room.held_by(one.name) == size for one, size in held.items())
            assert len(room) == sum(size > 0 for size in held.values())
        for holder in holders:
            while holder.places:
                room.give(holder.places.pop())
        assert (room.held, len(room)) == (0, 0)


# --- a holder of many connections ------------------------------------------------------------------------


def crowd_of(room: FairRoom, name: str, count: int, *, lends: bool) -> list[Holder]:
    return [Holder(room, lends=lends, of=name) for _ in range(count)]


def fill(crowd: list[Holder], size: int = 1) -> None:
    """Each takes one at a time, while any of them gets some and nothing has to be taken back."""
    while sum(one.take(size) for one in crowd if not one.lost):
        if any(one.lost for one in crowd):
            break


@pytest.mark.parametrize("connections", [1, 10, 300])
def test_with_however_many_connections_a_holder_takes_back_no_more_than_its_share(connections: int) -> None:
    room = room_of()
    hogs = crowd_of(room, "hog", connections, lends=True)
    fill(hogs)
    assert room.held == MAX, "who is alone may use it all"
    assert Holder(room, lends=True, of="modest").fill(1) == MAX // 2


@pytest.mark.parametrize("connections", [10, 300])
def test_with_however_many_connections_a_holder_keeps_an_eighth_free(connections: int) -> None:
    room = room_of()
    fill(crowd_of(room, "hog", connections, lends=False))
    assert MAX * 3 // 4 <= room.held <= MAX * 7 // 8, "who is alone may use most of it"
    assert Holder(room, lends=False, of="modest").fill(1) >= MAX // 20


def test_a_connection_finds_its_share_beside_others_of_its_holder() -> None:
    room = room_of()
    hogs = crowd_of(room, "one", 4, lends=False)
    for hog in hogs:
        hog.fill(1)
    assert len(hogs[0].places) <= MAX * 7 // 16 + 1
    assert Holder(room, lends=False, of="one").take(10)


def test_between_connections_of_one_holder_the_one_that_lends_most_gives_back() -> None:
    room = room_of()
    rich, poor = crowd_of(room, "one", 2, lends=True)
    assert poor.fill(100) == 10
    assert rich.take(100)
    assert (poor.lost, room.held) == (1, MAX)


def test_what_a_rich_holder_has_goes_before_what_a_neighbour_has() -> None:
    room = room_of()
    rich, neighbour, new = Holder(room, lends=True, of="rich"), *crowd_of(room, "poor", 2, lends=True)
    assert all(neighbour.take(100) for _ in range(3))
    assert rich.fill(100) == 7
    assert new.take(100)
    assert (rich.lost, neighbour.lost) == (1, 0)


def test_however_many_there_are_few_are_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    room = room_of(20_000)
    hogs = crowd_of(room, "hog", 4_000, lends=True)
    assert all(hog.take(5) for hog in hogs)
    assert room.held == room.size_max
    looks = 0
    held = type(hogs[0].places[0].source).held

    class Counted:
        def __get__(self, line: object, _: object = None) -> int:
            nonlocal looks
            looks += 1
            return held.__get__(line)  # type: ignore[no-any-return]

        def __set__(self, line: object, value: int) -> None:
            held.__set__(line, value)

    base = type(hogs[0].places[0].source).__mro__[1]
    monkeypatch.setattr(base, "held", Counted())
    newcomers = [*crowd_of(room, "new", 50, lends=True), *crowd_of(room, "hog", 50, lends=True)]
    assert all(new.take(1) for new in newcomers)
    assert looks <= 30 * len(newcomers)
