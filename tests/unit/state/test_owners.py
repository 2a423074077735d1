"""The owner cache may forget and must never be wrong; it is bounded, and never knows a disconnected session."""

from __future__ import annotations

import random
from typing import Any
from zlib import crc32

import numpy as np
import pytest
from state_rig import MIB, Group, command_of

from metad.config import DedupeConfig
from metad.state.core.verb import Command
from metad.state.session.owners import _SLOTS_MIN, CONNECTED, OwnerCache, SessionOwners
from metad.state.session.session_parts import rows_of_sessions
from metad_wire.messages import (
    SessionDisconnect,
    SessionDisconnectItem,
    SessionOwner,
    SessionTakeover,
    SessionTakeoverItem,
)
from metad_wire.methods import SESSION_DISCONNECT, SESSION_TAKEOVER, encode


def owner(broker: str, epoch: int = 1, *, connected: bool = True) -> bytes:
    return encode(SessionOwner(connected, broker, epoch, 0 if connected else 99))


def key(number: int) -> tuple[bytes, int]:
    name = b"data\x10acme\0\x01client-%d\0\x01" % number
    return name, crc32(name[5:])


def slots(cache: OwnerCache) -> int:
    return cache.slots


SIZES = pytest.mark.parametrize("bytes_max", [1, 16 * MIB], ids=["keys push each other out", "it grows"])


@SIZES
def test_what_was_learned_is_known_or_forgotten_but_never_another(bytes_max: int) -> None:
    # A dict says what is right.
    cache, truth, rng = OwnerCache(bytes_max), {}, random.Random(7)
    rows = [owner(f"b{i}") for i in range(50)]
    hits = 0
    for step in range(120_000):
        number = rng.randrange(40_000)
        name, crc = key(number)
        known = cache.get(name, crc)
        assert known is None or known == truth.get(number), (step, number)
        hits += known is not None
        action = rng.random()
        row = rng.choice(rows) if action < 0.8 else owner("gone", connected=False) if action < 0.9 else None
        cache.learn(name, crc, row)
        truth[number] = row if action < 0.8 else None
        assert cache.get(name, crc) == truth[number]
    assert hits > 10_000
    assert (slots(cache) > _SLOTS_MIN) == (bytes_max > 1)


@SIZES
def test_what_is_noted_is_known_to_whoever_looks_and_the_last_counts(bytes_max: int) -> None:
    cache, rng = OwnerCache(bytes_max), random.Random(11)
    salts = 5 << 32, 6 << 32
    truth: dict[tuple[bytes, int], bytes | None] = {}
    rows = [owner(f"b{i}") for i in range(50)]
    hits = 0
    for _ in range(2_000):
        numbers = rng.choices(range(rng.choice([40, 40_000])), k=rng.choice([1, 7, 8, 100, 100, 300]))
        names, crcs = zip(*map(key, numbers), strict=True)
        one, salt = rng.choice(rows), rng.choice(salts)
        learned = rng.choice(
            [
                [one] * len(names),
                [rng.choice(rows) for _ in names],
                [rng.choice([one, None, owner("gone", connected=False)]) for _ in names],
            ]
        )
        cache.note(names, np.array(crcs), salt, learned)
        for name, row in zip(names, learned, strict=True):
            truth[name, salt] = row if row in rows else None
        if rng.random() < 0.5:
            continue  # so that many wait
        probes, checks = zip(*map(key, [*rng.choices(range(40_000), k=rng.choice([1, 200])), *numbers]), strict=True)
        salt = rng.choice(salts)
        for name, known in zip(probes, cache.get_many(probes, np.array(checks), salt), strict=True):
            assert known is None or known == truth.get((name, salt))
            hits += known is not None
    assert hits > 50_000


def test_what_was_looked_for_is_replaced_in_its_place_unless_something_is_in_the_way() -> None:
    cache, salt = OwnerCache(MIB), 5 << 32
    names, numbers = zip(*map(key, range(100)), strict=True)
    crcs = np.array(numbers)
    rows = [owner(f"b{i}") for i in range(100)]

    def known() -> list[bytes | None]:
        return cache.get_many(names, crcs, salt)

    cache.note(names, crcs, salt, rows)
    found, places = cache.look(names, crcs, salt)
    assert found == rows
    assert places is not None
    assert cache.replace(places, salt, rows[::-1])
    assert known() == rows[::-1]
    assert cache.replace(places, salt, [rows[0]] * 100)
    assert known() == [rows[0]] * 100

    assert not cache.replace(places, salt, [None, *rows[1:]])  # a session that goes
    assert known() == [rows[0]] * 100
    cache.note(names[:1], crcs[:1], salt, [rows[1]])
    assert not cache.replace(places, salt, rows)  # what is noted would be learned behind it
    cache.note(names, crcs, salt, [None, *rows[1:]])
    assert known() == [None, *rows[1:]]
    assert not cache.replace(places, salt, rows)  # one is in no place
    cache.clear()
    assert not cache.replace(places, salt, rows)
    assert known() == [None] * 100


def test_who_was_known_before_it_grows_is_known_until_it_grows_again() -> None:
    cache, salt, count = OwnerCache(16 * MIB), 5 << 32, 40_000
    names, numbers = zip(*map(key, range(count)), strict=True)
    crcs = np.array(numbers)

    def known() -> list[bytes | None]:
        return cache.get_many(names, crcs, salt)

    old, new = owner("b"), owner("c")
    for at in range(0, count, 1_000):  # as a storm's batches come, all for the first time
        cache.note(names[at : at + 1_000], crcs[at : at + 1_000], salt, [old] * 1_000)
        cache.get_many(names[:1], crcs[:1], salt)
    assert slots(cache) > _SLOTS_MIN
    assert known().count(old) > 0.99 * count
    assert [cache.get(name, crc ^ salt) for name, crc in zip(names[:50], numbers, strict=False)].count(old) > 48
    third = count // 3
    cache.note(names[:third], crcs[:third], salt, [new] * third)
    cache.note(names[third : 2 * third], crcs[third : 2 * third], salt, [None] * third)
    for at in range(10):
        cache.learn(names[at], numbers[at] ^ salt, None)
    now = known()
    assert now[:10] == [None] * 10
    assert set(now[10:third]) <= {new, None}
    assert now[third : 2 * third] == [None] * third  # also if they go again
    assert now[2 * third :].count(old) > 0.99 * third
    cache.note(names[:third], crcs[:third], salt, [None] * third)
    assert known()[: 2 * third] == [None] * 2 * third


def test_what_is_noted_is_forgotten_with_everything_else() -> None:
    cache = OwnerCache(MIB)
    name, crc = key(1)
    cache.note([name], np.array([crc]), 0, [owner("b")])
    cache.clear()
    assert cache.get(name, crc) is None


def test_notes_of_coming_and_going_neither_grow_nor_empty_it() -> None:
    cache, some = OwnerCache(160 * MIB), range(1, 10_000)
    names, numbers = zip(*map(key, some), strict=True)
    crcs = np.array(numbers)
    cache.learn(*key(0), owner("kept"))
    for row in [owner("b"), None, owner("b"), owner("b", connected=False)] * 5:
        cache.note([*names, *names], np.concatenate([crcs, crcs]), 0, [owner("c")] * len(some) + [row] * len(some))
        found = cache.get_many(names, crcs)
        if row == owner("b"):
            assert found.count(row) > 9_900
        else:
            assert found == [None] * len(some)
    assert slots(cache) == _SLOTS_MIN
    assert cache.get(*key(0)) == owner("kept")


def test_more_rows_than_are_kept_may_come_together() -> None:
    cache = OwnerCache(MIB)
    for first in range(0, 70_000, 1_000):
        names, crcs = zip(*map(key, range(first, first + 1_000)), strict=True)
        rows = [owner("b", epoch) for epoch in range(first, first + 1_000)]
        cache.note(names, np.array(crcs), 0, rows)
        assert cache.get(names[-1], crcs[-1]) == rows[-1]
    assert cache.rows <= 65_535


def test_a_disconnected_session_is_unknown() -> None:
    cache = OwnerCache(MIB)
    name, crc = key(1)
    cache.learn(name, crc, owner("b", connected=False))
    assert cache.get(name, crc) is None
    cache.learn(name, crc, owner("b"))
    assert cache.get(name, crc) == owner("b")
    cache.learn(name, crc, owner("b", connected=False))
    assert cache.get(name, crc) is None
    cache.learn(name, crc, owner("b"))
    cache.learn(name, crc, None)
    assert cache.get(name, crc) is None


def test_it_grows_with_what_it_holds_and_not_past_its_bound() -> None:
    cache = OwnerCache(MIB)
    row = owner("b")
    assert slots(cache) == _SLOTS_MIN
    for number in range(75_000):
        name, crc = key(number)
        cache.learn(name, crc, row)
    assert slots(cache) * 8 <= MIB < slots(cache) * 16
    assert sum(cache.get(*key(number)) == row for number in range(75_000)) > slots(cache) // 2


def test_what_fits_well_is_kept() -> None:
    cache = OwnerCache(160 * MIB)
    row = owner("b")
    for _ in range(2):  # growing empties it; the second round finds it large enough
        for number in range(20_000):
            cache.learn(*key(number), row)
    assert sum(cache.get(*key(number)) is not None for number in range(20_000)) > 19_000


def test_coming_and_going_neither_grows_nor_empties_it() -> None:
    # Once wrong: every reconnect counted as a further entry, until the cache doubled or, at its bound, was emptied.
    cache = OwnerCache(160 * MIB)
    cache.learn(*key(0), owner("kept"))
    for _ in range(3):
        for number in range(1, 10_000):
            cache.learn(*key(number), owner("b"))
        for number in range(1, 10_000):
            cache.learn(*key(number), None)
    assert slots(cache) == _SLOTS_MIN
    assert cache.get(*key(0)) == owner("kept")


def test_more_lives_of_brokers_than_numbers_start_it_over() -> None:
    cache = OwnerCache(MIB)
    total = 66_000  # it numbers 65,535
    for number in range(total):
        cache.learn(*key(number % 5_000), owner("b", number))
        if number % 997 == 0 or number > 65_500:
            assert cache.get(*key(number % 5_000)) == owner("b", number)
    for number in range(total - 5_000, total):
        known = cache.get(*key(number % 5_000))
        assert known is None or known == owner("b", number)
    assert cache.rows <= 65_535


@pytest.mark.parametrize("bytes_max", [1, 8, 8 * _SLOTS_MIN - 1, 8 * _SLOTS_MIN, 16 * _SLOTS_MIN + 9])
def test_the_bound_is_kept_to_a_floor(bytes_max: int) -> None:
    cache = OwnerCache(bytes_max)
    for number in range(100_000):
        cache.learn(*key(number), owner("b"))
    assert slots(cache) * 8 <= max(bytes_max, 8 * _SLOTS_MIN)


def test_clear_forgets() -> None:
    cache = OwnerCache(MIB)
    cache.learn(*key(1), owner("b"))
    cache.clear()
    assert cache.get(*key(1)) is None


def test_many_are_looked_for_in_all_of_their_slots() -> None:
    cache = OwnerCache(1)
    keys = [key(number) for number in range(_SLOTS_MIN // 4)]  # so that many a first slot is another's
    rows = [owner(f"b{number % 50}") for number in range(len(keys))]
    for (name, crc), row in zip(keys, rows, strict=True):
        cache.learn(name, crc, row)
    strangers = [key(number) for number in range(len(keys), 2 * len(keys))]
    both = [one for pair in zip(keys, strangers, strict=True) for one in pair]
    found = cache.get_many([name for name, _ in both], np.array([crc for _, crc in both]))
    assert found == [cache.get(name, crc) for name, crc in both]
    assert found[1::2] == [None] * len(strangers)
    assert found[::2].count(None) < len(keys) // 100


def test_who_does_not_lead_keeps_no_owners() -> None:
    group = Group("data", 0, DedupeConfig())
    leader, follower = (machine.parts[SessionOwners] for machine in (group.machine, group.follower))
    columns = rows_of_sessions(
        SessionTakeover("", 0, [SessionTakeoverItem("acme", f"c{number}") for number in range(9)])
    )

    def short(broker: str) -> bytes:
        return encode((True, broker, 1, 0))

    def take(broker: str) -> None:
        body = SessionTakeover(broker, 1, list(columns.items))
        group.propose([(command_of(SESSION_TAKEOVER, body), None)], group.now_ms)
        group.apply(1)

    for broker in ("a", "b"):
        take(broker)
    assert leader.get_many(columns) == [short("b")] * 9
    assert follower.get_many(columns) == [None] * 9
    assert follower.read(columns, range(9)) == [short("b")] * 9
    assert follower.cache.rows == 0
    group.machine.forget()
    assert leader.get_many(columns) == [None] * 9
    take("c")  # in the next leadership
    assert leader.get_many(columns) == [short("c")] * 9


def test_what_commands_of_one_entry_write_is_learned_of_each() -> None:
    group = Group("data", 0, DedupeConfig())
    owners = group.machine.parts[SessionOwners]
    names = [f"c{number}" for number in range(120)]
    columns = rows_of_sessions(SessionTakeover("", 0, [SessionTakeoverItem("acme", name) for name in names]))
    rng = random.Random(3)

    def command(broker: str, some: list[str]) -> Command[Any]:
        if rng.random() < 0.1:
            gone = [SessionDisconnectItem("acme", name) for name in some]
            return command_of(SESSION_DISCONNECT, SessionDisconnect(broker, 1, gone))
        taken = [SessionTakeoverItem("acme", name) for name in some]
        return command_of(SESSION_TAKEOVER, SessionTakeover(broker, 1, taken))

    replaced = 0
    for turn in range(100):
        rng.shuffle(names)
        count = rng.choice([7, 30, 60])
        commands = [command(f"b{turn % 3}", names[at : at + count]) for at in range(0, len(names), count)]
        while commands:  # what has to wait for the next entry is in the next entry
            del commands[: len(group.propose([(each, None) for each in commands], group.now_ms))]
            group.apply(rng.choice([0, 1]))
        group.apply(len(group.in_flight))
        replaced += not owners.cache._noted_salts
        rows = [group.engine.get(owners.prefix + key) for key in columns.keys]
        connected = [row if row is not None and row[1] == CONNECTED else None for row in rows]
        assert owners.get_many(columns) == connected
    assert replaced > 10


def test_a_full_cache_keeps_what_is_newest_and_knows_how_full_it_is() -> None:
    cache, row = OwnerCache(1), owner("b")
    salt = cache.new_salt()
    for start in range(0, 3 * _SLOTS_MIN, 1_000):
        names, crcs = zip(*map(key, range(start, start + 1_000)), strict=True)
        cache.note(names, np.array(crcs), salt, [row] * len(names))
        known = cache.get_many(names, np.array(crcs), salt)
        assert known.count(row) > 950
        assert cache._table.used == np.count_nonzero(cache._table.column)
    assert cache._table.used > 0.99 * slots(cache) == 0.99 * _SLOTS_MIN
