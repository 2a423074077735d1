"""What a simulated disk may lose and what not. That it is an engine, tests/contract checks."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from metad.errors import DamagedStoreError, StorageError
from sim.disk import SimDisk


def everything(disk: SimDisk) -> dict[bytes, bytes]:
    return dict(disk.scan(b"", b"\xff" * 9, 1_000_000))


def numbered(count: int) -> SimDisk:
    """A disk with that many unsynced writes."""
    disk = SimDisk()
    for i in range(count):
        disk.write({b"%d" % i: b""})
    return disk


def test_a_crash_keeps_any_number_of_unsynced_writes_and_says_how_many_it_lost() -> None:
    left = set()
    for seed in range(100):
        disk = numbered(4)
        lost = disk.crash(random.Random(seed))
        assert list(everything(disk)) == [b"0", b"1", b"2", b"3"][: 4 - lost]
        left.add(4 - lost)
    assert left == {0, 1, 2, 3, 4}


def test_a_torn_write_is_dropped_whole() -> None:
    for seed in range(50):
        whole, torn = numbered(4), numbered(4)
        kept = 4 - whole.crash(random.Random(seed))
        assert 4 - torn.crash(random.Random(seed), torn=True) == max(0, kept - 1)
        assert len(everything(torn)) == max(0, kept - 1)


def test_what_survived_a_crash_survives_the_next_one() -> None:
    outcomes = set()
    for seed in range(50):
        disk = numbered(9)
        disk.crash(random.Random(3))
        survived = everything(disk)
        assert survived
        assert disk.unsynced == 0
        disk.write({b"0": None}, delete_ranges=[(b"1", b"9")])
        lost = disk.crash(random.Random(seed))
        outcomes.add(lost)
        assert everything(disk) == (survived if lost else {})
    assert outcomes == {0, 1}


def test_a_sync_in_two_steps_covers_what_was_written_when_it_began() -> None:
    for seed in range(20):
        disk = SimDisk()
        disk.write({b"before": b"1"})
        token = disk.begin_sync()
        disk.write({b"meanwhile": b"2"})
        assert disk.unsynced == 2  # nothing is durable until it is over
        disk.finish_sync(token)
        assert disk.unsynced == 1
        disk.crash(random.Random(seed))
        assert disk.get(b"before") == b"1"


def test_syncs_may_end_in_another_order_than_they_began() -> None:
    disk = numbered(1)
    first = disk.begin_sync()
    disk.write({b"x": b""})
    second = disk.begin_sync()
    disk.finish_sync(second)
    assert disk.unsynced == 0
    disk.write({b"y": b""})
    disk.finish_sync(first)
    assert disk.unsynced == 1


@pytest.mark.parametrize("seed", range(6))
def test_a_sync_from_before_a_crash_covers_nothing_after_it(seed: int) -> None:
    disk = numbered(5)
    token = disk.begin_sync()
    disk.crash(random.Random(seed))
    disk.write({b"after": b""})
    disk.finish_sync(token)
    assert disk.unsynced == 1


def test_a_full_disk_refuses_a_write_and_changes_nothing() -> None:
    disk = numbered(2)
    disk.fail_writes = True
    with pytest.raises(StorageError, match="no space"):
        disk.write({b"0": b"new"}, delete_ranges=[(b"1", b"2")])
    disk.fail_writes = False
    assert everything(disk) == {b"0": b"", b"1": b""}
    assert disk.unsynced == 2


def test_a_failed_sync_makes_nothing_durable_and_the_next_may() -> None:
    disk = numbered(2)
    disk.fail_syncs = True
    with pytest.raises(StorageError, match="cannot sync"):
        disk.sync()
    assert disk.unsynced == 2
    disk.fail_syncs = False
    disk.sync()
    assert disk.unsynced == 0


def test_a_flipped_bit_is_an_error_for_whoever_reads_that_entry() -> None:
    disk = SimDisk()
    disk.write({b"a1": b"", b"b1": b"", b"b2": b"", b"c1": b""})
    key = disk.flip_bit(random.Random(1), b"b")
    assert key in (b"b1", b"b2")
    for read in (
        lambda: disk.get(key),
        lambda: disk.get_many([b"a1", key]),
        lambda: disk.scan(b"a", b"z", 10),
        lambda: disk.scan_backwards(b"a", b"z", 10),
    ):
        with pytest.raises(DamagedStoreError, match=f"{key.hex()} is damaged"):
            read()
    assert disk.scan(b"a", b"b", 10) == [(b"a1", b"")]
    assert disk.scan(b"a", b"z", 1) == [(b"a1", b"")]
    assert disk.scan_backwards(b"c", b"z", 10) == [(b"c1", b"")]


def test_any_entry_may_be_hit_and_there_may_be_none() -> None:
    disk = SimDisk()
    assert disk.flip_bit(random.Random(0)) is None
    disk.write({b"": b"1", b"\xff\xff": b"2"})
    assert {disk.flip_bit(random.Random(seed)) for seed in range(20)} == {b"", b"\xff\xff"}
    assert disk.flip_bit(random.Random(0), b"\xff") == b"\xff\xff"
    assert disk.flip_bit(random.Random(0), b"x") is None


def test_damage_goes_with_a_new_value_and_comes_back_where_that_is_lost() -> None:
    disk = SimDisk()
    disk.write({b"k": b"1"})
    disk.sync()
    disk.flip_bit(random.Random(0))
    disk.write({b"k": b"2"})
    assert disk.get(b"k") == b"2"
    disk.crash(random.Random(0), torn=True)  # torn: of one write none stays
    with pytest.raises(DamagedStoreError):
        disk.get(b"k")
    disk.write(delete_ranges=[(b"a", b"z")])
    assert disk.get(b"k") is None


keys = st.sampled_from([b"a", b"b", b"c", b"d"])
operations = st.one_of(
    st.tuples(st.just("write"), st.dictionaries(keys, st.none() | st.sampled_from([b"1", b"2"]), max_size=3)),
    st.tuples(st.just("delete"), st.tuples(keys, keys)),
    st.tuples(st.just("begin"), st.none()),
    st.tuples(st.just("finish"), st.none()),
    st.tuples(st.just("crash"), st.tuples(st.integers(0, 99), st.booleans())),
)


@settings(max_examples=100, deadline=None)
@given(steps=st.lists(operations, max_size=40))
def test_a_crash_leaves_one_of_the_states_that_were_not_durable_yet(steps: list[tuple[str, object]]) -> None:
    disk = SimDisk()
    states: list[dict[bytes, bytes]] = [{}]  # the last durable one, and one per write since
    tokens: list[tuple[int, int]] = []  # of syncs under way, and the number of the write they cover
    durable = 0
    for name, argument in steps:
        state = dict(states[-1])
        if name == "write":
            assert isinstance(argument, dict)
            disk.write(argument)
            state.update(argument)
            states.append({key: value for key, value in state.items() if value is not None})
        elif name == "delete":
            assert isinstance(argument, tuple)
            disk.write(delete_ranges=[argument])
            states.append({key: value for key, value in state.items() if not argument[0] <= key < argument[1]})
        elif name == "begin":
            tokens.append((disk.begin_sync(), durable + len(states) - 1))
        elif name == "finish" and tokens:
            token, covers = tokens.pop(0)
            disk.finish_sync(token)
            del states[: covers - durable]
            durable = covers
        elif name == "crash":
            assert isinstance(argument, tuple)
            seed, torn = argument
            lost = disk.crash(random.Random(seed), torn=torn)
            assert everything(disk) == states[len(states) - 1 - lost]
            states, durable, tokens = [everything(disk)], 0, []
        assert everything(disk) == states[-1]
        assert disk.unsynced == len(states) - 1
