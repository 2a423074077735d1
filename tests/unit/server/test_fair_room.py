"""Room for requests that wait: whoever takes what it can keeps nobody else out, and all of it is bounded."""

from __future__ import annotations

import pytest

from metad.node.fair_room import FairRoom
from metad_wire.errors import OverloadedError

MAX = 1_000


def fill(room: FairRoom, source: object, size: int = 10) -> int:
    """As many requests as fit; how many those are."""
    count = 0
    while True:
        try:
            room.take(source, size)
        except OverloadedError:
            return count
        count += 1


def test_who_fills_the_room_keeps_nobody_else_out() -> None:
    room = FairRoom(MAX)
    assert fill(room, "hog") == MAX // 2 // 10
    assert fill(room, "a") == MAX // 4 // 10
    assert fill(room, "b") > 5
    assert room.held <= MAX


def test_however_many_share_it_the_room_is_bounded() -> None:
    room = FairRoom(MAX)
    counts = {source: fill(room, source) for source in range(100)}
    assert room.held <= MAX
    for source, count in counts.items():
        for _ in range(count):
            room.give(source, 10)
    assert (room.held, room._held_of) == (0, {})
    assert fill(room, "again") == MAX // 2 // 10


def test_one_request_has_no_more_than_half_of_it() -> None:
    room = FairRoom(MAX)
    room.take("a", MAX // 2)
    with pytest.raises(OverloadedError):
        room.take("b", MAX // 2)
    assert room.held == MAX // 2
