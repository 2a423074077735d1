"""The rules of a watch's position, followed through all small worlds of slot moves in every order of the streams.

It guards that each change is delivered once and in order per key whatever moves, or a gap is announced; that no watch
waits for ever; and that a token leads to the very position that it was made of. For each clause of the rules there is
a planted bug, which must be found. ``METAD_WATCH_WORLDS=1`` follows larger worlds, for an hour.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import ModuleType

import pytest
from watch_worlds import Bounds, Violated, explore

from metad_client import InvalidRequestError
from metad_client.watch import position, token

pytestmark = pytest.mark.slow

SMALL = [
    # bounds, from pins, cuts
    (Bounds((0,), groups=2, writes=2, moves=2, aborts=0, strangers=0), True, 0),
    (Bounds((0,), groups=2, writes=2, moves=2, aborts=1, strangers=0), True, 1),
    (Bounds((0,), groups=3, writes=2, moves=2, aborts=0, strangers=0), True, 0),
    (Bounds((0,), groups=3, writes=1, moves=2, aborts=0, strangers=0), True, 1),
    (Bounds((0, 1), groups=2, writes=2, moves=1, aborts=1, strangers=0), True, 0),
    (Bounds((0, 0), groups=2, writes=2, moves=1, aborts=0, strangers=0), True, 1),
    (Bounds((0,), groups=2, writes=1, moves=2, aborts=0, strangers=1), True, 0),
    (Bounds((0,), groups=2, writes=1, moves=2, aborts=0, strangers=0), True, 2),
]
LARGE = [
    (Bounds((0,), groups=2, writes=3, moves=3, aborts=1, strangers=1), True, 1),
    (Bounds((0,), groups=3, writes=1, moves=3, aborts=0, strangers=0), True, 1),
    (Bounds((0, 1), groups=2, writes=2, moves=2, aborts=1, strangers=0), True, 1),
    (Bounds((0, 1), groups=3, writes=2, moves=2, aborts=0, strangers=0), True, 1),
    (Bounds((0,), groups=2, writes=2, moves=2, aborts=1, strangers=1), True, 2),
]

TWIN = "planted"

BUGS = {
    "sealed counts wherever the slot is read": (
        "return Reader(group, reader.move, move) if reader.group == group else reader",
        "return Reader(group, reader.move, move)",
    ),
    "sealed does not count": (
        "return Reader(group, reader.move, move) if reader.group == group else reader",
        "return reader",
    ),
    "unsealed counts wherever the slot is read": (
        "return Reader(group, reader.move) if reader.group == group and reader.sealed == move else reader",
        "return Reader(group, reader.move)",
    ),
    "unsealed does not count": (
        "return Reader(group, reader.move) if reader.group == group and reader.sealed == move else reader",
        "return reader",
    ),
    "adopted waits for nothing": ("self.index(marker.other) < marker.sealed_index", "False"),
    "adopted waits for more than the seal": (
        "self.index(marker.other) < marker.sealed_index",
        "self.index(marker.other) <= marker.sealed_index",
    ),
    "adopted takes a slot back from a later move": ("if reader.move >= move:\n        return reader", "pass"),
    "adopted takes a slot sealed by any move": (
        "if reader.sealed == move else _missing",
        "if reader.sealed else _missing",
    ),
    "adopted takes a slot that is not sealed": (
        "return Reader(group, move) if reader.sealed == move else _missing(reader, move)",
        "return Reader(group, move)",
    ),
    "adopted leaves a slot with the source": (
        "if reader.sealed == move else _missing(reader, move)",
        "if reader.sealed == move else reader",
    ),
    "the lowest move wins among pins": ("sorted(offers, key=_by_move)", "sorted(offers, key=_by_move, reverse=True)"),
    "only holders count among pins": ("if sealed := slots & self.sealed & ~self.held:", "if sealed := 0:"),
    "a pin's seal is forgotten": (
        "yield Reader(group, move, self.sealed_move), sealed",
        "yield Reader(group, move), sealed",
    ),
    "a cut loses nothing that was read there": (
        "return Reader(NOBODY, reader.move) if reader.group == group else reader",
        "return reader",
    ),
    "a cut forgets by which move a slot was read": (
        "return Reader(NOBODY, reader.move) if reader.group == group else reader",
        "return Reader(NOBODY, 0) if reader.group == group else reader",
    ),
    "a cut does not look for unheard moves": (
        "return _missing(reader, move) if move > reader.move else reader",
        "return reader",
    ),
    "an unheard move does not raise the least": ("max(reader.move, move)", "reader.move"),
    "a cut waits where it was": ("self.indexes[group] = pin.index", "pass"),
    "a snapshot of an older move is taken": ("if offer.move >= reader.move:", "if True:"),
    "a snapshot of the least move is not taken": ("if offer.move >= reader.move:", "if offer.move > reader.move:"),
    "a snapshot is taken before its position": ("if self.index(group) != pin.index:", "if False:"),
    "a snapshot's seal is forgotten": (
        "self._assign(slots & has, offer)",
        "self._assign(slots & has, Reader(offer.group, offer.move))",
    ),
    "changes of a missing slot count": (
        "return self._counts.get(group, 0)",
        "return self._counts.get(group, 0) | self._counts.get(NOBODY, 0)",
    ),
    "a group that was not named counts as read": ("self.indexes.get(group, 0)", "self.indexes.get(group, 1)"),
}
TOKEN_BUGS = {
    "a token forgets seals": ("Reader(*part.slots.readers[number])", "Reader(*part.slots.readers[number][:2])"),
    "a token mixes the slots up": ("<< left", "<< (SLOTS - left - count)"),
}


def planted(
    module: ModuleType, bug: tuple[str, str] | None = None, names: dict[str, object] | None = None
) -> ModuleType:
    """The module anew, with one place of its source changed, and with other imports."""
    source = Path(str(module.__file__)).read_text()
    if bug is not None:
        assert source.count(bug[0]) == 1, f"{bug[0]} is not in {module.__name__} once"
        source = source.replace(*bug)
    changed = ModuleType(module.__name__)
    changed.__dict__["__package__"] = module.__package__
    sys.modules[TWIN] = changed  # dataclasses and structs look their module up
    changed.__dict__["__name__"] = TWIN
    exec(compile(source, str(module.__file__), "exec"), changed.__dict__)
    changed.__dict__.update(names or {})
    return changed


def finds(positions: ModuleType, tokens: ModuleType, slots_least: int = 1) -> str:
    """What the small worlds show that have so many slots; empty if nothing is wrong."""
    for bounds, pins, cuts in SMALL:
        if len(bounds.homes) < slots_least:
            continue
        try:
            explore(bounds, positions, tokens, pins=pins, cuts=cuts)
        except Violated as violated:
            return str(violated)
    return ""


@pytest.mark.parametrize("world", SMALL, ids=str)
def test_every_small_world_is_read_right(world: tuple[Bounds, bool, int]) -> None:
    bounds, pins, cuts = world
    worlds, states = explore(bounds, position, token, pins=pins, cuts=cuts)
    assert worlds >= 50
    assert states > 2_000


@pytest.mark.skipif(not os.environ.get("METAD_WATCH_WORLDS"), reason="takes long; METAD_WATCH_WORLDS=1 runs it")
@pytest.mark.parametrize("world", LARGE, ids=str)
def test_every_larger_world_is_read_right(world: tuple[Bounds, bool, int]) -> None:
    bounds, pins, cuts = world
    worlds, states = explore(bounds, position, token, pins=pins, cuts=cuts, limit=5_000_000)
    print(f"{bounds}, cuts={cuts}: the {worlds} shortest histories, {states} states")
    assert states > 500_000


@pytest.mark.parametrize("bug", BUGS)
def test_a_planted_bug_is_found(bug: str) -> None:
    changed = planted(position, BUGS[bug])
    tokens = planted(token, names={"Position": changed.Position, "Reader": changed.Reader})
    assert finds(changed, tokens)


@pytest.mark.parametrize(("bug", "slots"), [*zip(TOKEN_BUGS, (1, 2), strict=True)])
def test_a_planted_bug_of_tokens_is_found(bug: str, slots: int) -> None:
    assert finds(position, planted(token, TOKEN_BUGS[bug]), slots)


def test_what_is_no_token_is_refused() -> None:
    good = token.to_text(
        "c1",
        {"data": ({0: 7, 1: 300}, token.packed_slots(position.Position({}, {position.Reader(0, 0): position.ALL})))},
    )
    cluster_id, kinds = token.from_text(good)
    assert (cluster_id, kinds["data"].index(1)) == ("c1", 300)
    damaged = good[:-3] + ("A" if good[-3] != "A" else "B") + good[-2:]
    for text in (
        "",
        "w1.",
        "x" + good,
        good[:-1],
        good[:20],
        damaged,
        good + "AAAA",
        "w1.é",
        good.replace("w1.", "w2."),
    ):
        with pytest.raises(InvalidRequestError, match="token: "):
            token.from_text(text)


def test_a_token_is_short() -> None:
    groups = {position.Reader(group, 0): ((1 << 128) - 1) << (128 * (7 - group)) for group in range(8)}
    whole = position.Position(dict.fromkeys(range(8), 1_000_000), groups)
    assert len(token.to_text("c1", {"data": (whole.indexes, token.packed_slots(whole))})) < 250
