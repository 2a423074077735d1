"""Who wants which key: found with a look-up or two however many watch, and forgotten with the last who wanted it."""

from __future__ import annotations

import random

from watch_rig import PREFIX, entry, key

from metad.state.core.part import Writes
from metad.watch.changes import EntryChanges
from metad.watch.filters import Interest
from metad.watch.index import Index
from sim.counting import lines_run

OWNER, PROPERTIES, RECORD = 0x10, 0x11, 0x30


class Counted(bytes):
    """A key that counts how often it is cut."""

    cuts = 0

    def __getitem__(self, at: object) -> object:  # type: ignore[override]
        Counted.cuts += isinstance(at, slice)
        return super().__getitem__(at)  # type: ignore[index]


def test_whoever_comes_and_goes_the_right_ones_are_found() -> None:
    """Against a plain search: prefixes of many lengths, some of others, that come and go."""
    rng = random.Random(3)
    index: Index[int] = Index(PREFIX)
    members: dict[int, list[Interest]] = {}
    for step in range(3_000):
        if members and rng.random() < 0.45:
            member = rng.choice([*members])
            index.remove(member, members.pop(member))
        else:
            some = {
                Interest(rng.choice([OWNER, PROPERTIES, RECORD]), bytes(rng.choices(b"ab", k=rng.randint(0, 12))))
                for _ in range(rng.randint(1, 3))
            }
            members[step] = sorted(some)
            index.add(step, members[step])
        if step % 7:
            continue
        writes: Writes = {
            PREFIX + bytes((rng.choice([PROPERTIES, RECORD]),)) + bytes(rng.choices(b"ab", k=rng.randint(0, 14))): None
            for _ in range(5)
        }
        owners: Writes = {PREFIX + bytes((OWNER,)) + bytes(rng.choices(b"ab", k=6)): None}
        found = index.matches(EntryChanges(entry(writes, owners=owners)))
        expected = {
            member: {
                at
                for at in (*writes, *owners)
                if any(at[3:].startswith(bytes((interest.row,)) + interest.prefix) for interest in interests)
            }
            for member, interests in members.items()
        }
        assert {
            member: {PREFIX + bytes((change[0],)) + change[2] for change in changes}
            for member, changes in found.items()
        } == {member: keys for member, keys in expected.items() if keys}
    for of_length in index._lengths:
        longer = {at for one in index._lengths if one.length >= of_length.length for at in one.by_prefix}
        assert of_length.stems is None or sum(of_length.stems.values()) == len(longer), "what is gone is remembered"
    for member, interests in members.items():
        index.remove(member, interests)
    assert not index._lengths, "what nobody wants is still looked for"


def test_a_key_that_nobody_wants_costs_a_look_or_two() -> None:
    index: Index[int] = Index(PREFIX)
    for number in range(1_000):
        index.add(number, [Interest(RECORD, b"idle\0\x01" + b"x" * (number % 40) + b"%d" % number)])
    index.add(1_000, [Interest(OWNER, b"")])
    writes: Writes = {Counted(key("kv", "record", "busy", f"k{number}")): None for number in range(1_000)}
    Counted.cuts = 0
    assert not index.matches(EntryChanges(entry(writes)))
    assert Counted.cuts <= 2 * len(writes)
    near: Writes = {Counted(key("kv", "record", "idle", f"k{number}")): None for number in range(1_000)}
    Counted.cuts = 0
    assert not index.matches(EntryChanges(entry(near)))
    assert Counted.cuts <= 5 * len(near)


def test_brokers_that_have_nothing_to_do_with_a_change_cost_nothing() -> None:
    index: Index[int] = Index(PREFIX)
    for number in range(1_000):
        index.add(number, [Interest(OWNER, b"", f"b{number}")])
    at = key("session", "owner", "t", "c")
    changes = EntryChanges(entry(owners={at: None}, previous={OWNER: [(b"\x94\xc3\xa2b7\x01\x00", [])]}))
    assert {
        member: [PREFIX + bytes((change[0],)) + change[2] for change in found]
        for member, found in index.matches(changes).items()
    } == {7: [at]}


def test_lengths_beyond_a_key_cost_it_nothing() -> None:
    """In whatever order they come, the longest first, and though the key begins like all of them."""
    index: Index[int] = Index(PREFIX)
    for number in range(250, 0, -1):
        index.add(number, [Interest(RECORD, b"n\0\x01" + b"a" * number + b"b")])
    short: Writes = {
        Counted(PREFIX + bytes((RECORD,)) + b"n\0\x01aa" + b"%03d" % number): None for number in range(999)
    }
    Counted.cuts = 0
    assert not index.matches(EntryChanges(entry(short)))
    assert Counted.cuts <= 8 * len(short)


def test_a_prefix_that_comes_or_goes_costs_the_same_however_many_lengths_there_are() -> None:
    def steps(lengths: int) -> int:
        index: Index[int] = Index(PREFIX)
        interests = [Interest(RECORD, b"n\0\x01" + b"a" * number + b"b") for number in range(lengths)][::-1]
        once = lines_run(lambda: index.add(1, interests))
        for other, interest in enumerate(interests, 2):
            index.add(other, [interest])
        for other, interest in reversed([*enumerate(interests, 2)]):
            index.remove(other, [interest])
        twice = once + lines_run(lambda: index.remove(1, interests))
        assert not index._lengths
        return twice

    assert steps(480) < 2.5 * steps(240)


def test_a_short_prefix_that_comes_and_goes_costs_nothing_for_the_long_ones() -> None:
    def steps(long: int) -> int:
        index: Index[int] = Index(PREFIX)
        for number in range(long):
            index.add(number, [Interest(RECORD, b"%06d" % number + b"a" * 100)])
        at = [Interest(RECORD, b"00000")]
        return lines_run(lambda: (index.add(-1, at), index.remove(-1, at)))

    assert steps(2_000) == steps(20)
