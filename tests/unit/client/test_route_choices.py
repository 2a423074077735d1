"""Which partition and which broker a client of a broker fleet asks: the rules, and all of them on random fleets."""

from __future__ import annotations

from collections import Counter
from typing import Any
from zlib import crc32

import pytest
from fleets import EPOCH, KEY, broker, partition, resource
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from metad_client import Choice, ConflictError, InvalidRequestError, NotFoundError, Owner
from metad_client.assignment.choosing import Copy, Near, To, Wanted, wanted
from metad_wire.messages import TableRecord
from metad_wire.tables import broker as b
from metad_wire.tables.assignment import DELETING, Partition, Resource

ANYWHERE = Near()


def copy(
    resource: Resource | None, *partitions: Partition, brokers: Any = "abc", near: Near = ANYWHERE, **more: Any
) -> Copy:
    rows = {(one.partition,): TableRecord(one, 1, 3, 100 + one.partition) for one in partitions}
    known = [broker(one) if isinstance(one, str) else one for one in brokers]
    return Copy(KEY, resource, rows, {one.broker: one for one in known}, near, **more)


def fleet(count: int, **more: Any) -> Copy:
    """Partition n is led by the n-th of three brokers."""
    parts = [partition(n, *("abc"[n % 3 :] + "abc"[: n % 3])) for n in range(count)]
    return copy(resource(count), *parts, **more)


def asked(copy: Copy, count: int = 60, **what: Any) -> Counter[int]:
    want = wanted(**{"to": "write", "key": None, "partition": None, "order": None} | what)
    return Counter(found.partition for turn in range(count) if (found := copy.choose(want, turn)) is not None)


def one(copy: Copy, **what: Any) -> Choice | None:
    return copy.choose(wanted(**{"to": "write", "key": None, "partition": None, "order": None} | what), 0)


# --- by key ---


def reference(data: bytes) -> int:
    """CRC-32 as other programs write it: reflected, 0xEDB88320, begun and ended with all bits inverted."""
    crc = 0xFFFF_FFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = (crc >> 1) ^ (0xEDB8_8320 if crc & 1 else 0)
    return crc ^ 0xFFFF_FFFF


@pytest.mark.parametrize("key", [b"123456789", "Zoë", "", b"\xff\x00"])
def test_the_hash_is_the_one_that_others_can_compute(key: bytes | str) -> None:
    assert reference(b"123456789") == 0xCBF4_3926, "the published check value"
    crc = reference(key if isinstance(key, bytes) else key.encode())
    found = one(fleet(7), key=key)
    assert found is not None
    assert found.partition == crc % 7


def test_keys_are_spread_evenly() -> None:
    for count in (2, 12, 64, 100):
        shares = Counter(crc32(b"device-%d" % n) % count for n in range(count * 1_000))
        assert len(shares) == count
        assert max(shares.values()) < 1_150


def test_a_key_keeps_its_partition_whoever_leads_it() -> None:
    calm = fleet(12)
    keys = [f"customer-{n}" for n in range(200)]
    known = {key: found.partition for key in keys if (found := one(calm, key=key)) is not None}
    assert len(known) == 200
    parts = [partition(n, "b", "c") for n in range(12)]
    other = copy(resource(15, writes=12), *parts, *(partition(n, "a") for n in (12, 13, 14)), near=Near("eu", "r1"))
    others = {key: found.partition for key in keys if (found := one(other, key=key)) is not None}
    assert others == known
    leaderless = copy(resource(12), *(partition(n, "a", "b", led=n != known[keys[0]]) for n in range(12)))
    assert one(leaderless, key=keys[0]) is None, "it waits for its leader"


def test_the_keys_of_a_sealed_partition_go_to_its_successor_and_no_others_move() -> None:
    before = fleet(3)
    parts = [partition(n, "a") for n in range(4)]
    parts[2] = replace(parts[2], end=17, state="sealed")
    after = copy(resource(4), *parts)
    for key in map(str, range(100)):
        was, now = one(before, key=key), one(after, key=key)
        assert was is not None
        assert now is not None
        assert now.partition == (3 if was.partition == 2 else was.partition)


# --- in turn, nearness, priority ---


def test_partitions_without_a_key_take_turns_among_those_that_are_led() -> None:
    parts = [partition(n, "abc"[n % 3], led=n != 4) for n in range(6)]
    assert asked(copy(resource(6), *parts)) == dict.fromkeys((0, 1, 2, 3, 5), 12)
    assert asked(copy(resource(6), *parts, brokers=["a", "b"])) == dict.fromkeys((0, 1, 3), 20), "c is not known"
    tried: set[tuple[int, str]] = set()
    while (found := copy(resource(6), *parts).choose(Wanted("write"), 3, tried)) is not None:
        tried.add((found.partition, found.broker.broker))
    assert {number for number, _ in tried} == {0, 1, 2, 3, 5}, "each once, also while others take turns between"


def test_the_nearest_come_first_and_who_did_not_answer_last() -> None:
    brokers = [
        broker("a", region="us", rack="r1"),
        broker("b", region="eu", rack="r2"),
        broker("c", region="eu", rack="r1"),
    ]
    near = Near("eu", "r1")
    assert [near.rank(known) for known in brokers] == [2, 1, 0]
    assert Near(rack="r1").rank(brokers[0]) == 0
    assert Near("eu").rank(broker("d", region="eu")) == 1, "it has no rack, and nor has the client"
    assert Near().rank(brokers[0]) == Near(region="ap").rank(brokers[0]) == 2
    assert asked(fleet(6, brokers=brokers, near=near)) == {2: 30, 5: 30}
    assert asked(fleet(6, brokers=brokers[:2], near=near)) == {1: 30, 4: 30}
    shunned = fleet(6, brokers=brokers, near=near).shunning({Owner("c", EPOCH), Owner("b", EPOCH - 1)})
    assert asked(shunned) == {1: 30, 4: 30}
    assert asked(fleet(3, brokers=["a"]).shunning({Owner("a", EPOCH)})) == {0: 60}, "better than nobody"


def test_an_order_is_kept_as_far_as_somebody_leads() -> None:
    parts = [partition(n, "abc"[n], led=n != 1) for n in range(3)]
    assert asked(copy(resource(3), *parts), order=[1, 2, 0]) == {2: 60}
    assert asked(copy(resource(3), *parts).shunning({Owner("c", EPOCH)}), order=[1, 2, 0]) == {0: 60}
    assert asked(copy(resource(3), *parts), order=[9, 0]) == {0: 60}
    assert asked(copy(resource(3), *parts).shunning({Owner(name, EPOCH) for name in "ac"}), order=[2, 0]) == {2: 60}
    assert one(copy(resource(3), *parts), order=[1]) is None


# --- reads ---


def test_who_reads_gets_a_replica_only_where_the_program_says_so() -> None:
    parts = [partition(0, "a", "b", "c", led=False), partition(1, "b", "c", "a")]
    known = copy(resource(2), *parts)
    assert one(known, to="read", partition=0) is None
    found = one(known, to="read_any", partition=0)
    assert found is not None
    assert (found.broker.broker, found.leads, found.leader_epoch) == ("a", False, 40)
    assert asked(known, to="read") == {1: 60}
    assert asked(known, to="read_any") == {0: 30, 1: 30}


def test_of_the_replicas_one_in_sync_is_asked_and_the_nearest_of_these() -> None:
    brokers = [broker("a", rack="r1"), broker("b", rack="r2"), broker("c", rack="r3"), broker("d", rack="r3")]
    p = replace(partition(0, "a", "b", "c", "d"), isr=[Owner("a", EPOCH), Owner("b", EPOCH), Owner("c", EPOCH - 1)])

    def order(near: str, *, shunned: str = "", dead: str = "") -> str:
        known = [replace(one, state=b.FENCED) if one.broker in dead else one for one in brokers]
        got = copy(resource(1), p, brokers=known, near=Near(rack=near)).shunning({Owner(one, EPOCH) for one in shunned})
        names: list[str] = []
        while (found := got.choose(Wanted("read_any", 0), 0, {(0, name) for name in names})) is not None:
            assert found.leads == (found.broker.broker == "a")
            names.append(found.broker.broker)
        return "".join(names)

    assert order("") == "abcd"
    assert order("r2") == "bacd"
    assert order("r3") == "abcd", "c and d are nearer, but not in sync"
    assert order("r3", shunned="a") == "bcda"
    assert order("r1", dead="ab") == "cd"
    assert order("r1", dead="abcd") == ""


def test_sealed_partitions_and_those_behind_the_written_ones_are_read() -> None:
    parts = [partition(n, "a") for n in range(4)]
    parts[0] = replace(parts[0], end=3, state="sealed")
    known = copy(resource(4, writes=2), *parts)
    assert asked(known) == {1: 60}
    assert asked(known, to="read") == dict.fromkeys(range(4), 15)


# --- what there is not ---


@pytest.mark.parametrize(
    ("what", "error"),
    [
        ({"partition": 0}, ConflictError("partition 0 .* takes no writes: those from 1 to before 3 do")),
        ({"partition": 9}, NotFoundError("there is no partition 9 of topic acme/orders")),
        ({"partition": 1}, ConflictError("partition 1 of topic acme/orders takes no writes: it is sealed at 3")),
        ({"partition": 3}, ConflictError("partition 3 .* takes no writes: those from 1 to before 3 do")),
        ({"partition": 2}, NotFoundError("there is no partition 2 of")),
        ({"partition": 4, "to": "read"}, NotFoundError("there is no partition 4 of")),
        ({"order": [3, 0]}, ConflictError("partition 3 .* takes no writes")),
        ({"order": []}, ConflictError("no partition of topic acme/orders is named")),
    ],
)
def test_what_waiting_does_not_change_is_an_error(what: dict[str, Any], error: Exception) -> None:
    parts = [partition(n, "a") for n in range(5)]
    parts[1] = replace(parts[1], end=3, state="sealed")
    parts[2] = replace(parts[2], state=DELETING)
    parts[4] = replace(parts[4], state=DELETING)
    with pytest.raises(type(error), match=str(error)):
        one(copy(resource(5, first=1, writes=3), *parts), **what)


@pytest.mark.parametrize("what", [{}, {"key": b"k"}])
def test_a_resource_that_takes_no_writes_says_so(what: dict[str, Any]) -> None:
    with pytest.raises(NotFoundError, match="there is no topic acme/orders"):
        one(copy(None), **what)
    for known in (resource(1, writes=0), resource(1, state="deleting")):
        with pytest.raises(ConflictError, match="no partition of topic acme/orders takes writes"):
            one(copy(known, partition(0, "a")), **what)


@pytest.mark.parametrize(
    ("what", "text"),
    [
        ({"to": "lead"}, "to: expected one of write, read, read_any"),
        ({"to": []}, "to: expected one of"),
        ({"key": 7}, "key: expected bytes or str, got int"),
        ({"key": "\ud800"}, "key: the text is not valid Unicode"),
        ({"partition": -1}, "partition: "),
        ({"partition": True}, "partition: "),
        ({"order": "123"}, "order: expected a sequence of int"),
        ({"order": [1, "2"]}, "order"),
        ({"order": [0], "key": b"k"}, "give one of key, partition and order"),
    ],
)
def test_arguments_that_make_no_sense_are_named(what: dict[str, Any], text: str) -> None:
    with pytest.raises(InvalidRequestError, match=text):
        one(fleet(1), **what)


# --- all of it, on random fleets ---

NAMES = "abcd"
lives = st.builds(Owner, st.sampled_from(NAMES), st.sampled_from([EPOCH, EPOCH, EPOCH, EPOCH - 1]))
states = st.sampled_from([b.ACTIVE, b.ACTIVE, b.ACTIVE, b.DRAINING, b.FENCED, b.GONE])
brokers_ = st.tuples(
    *(
        st.builds(
            broker,
            st.just(name),
            state=states,
            region=st.sampled_from(["eu", "us"]),
            rack=st.sampled_from(["r1", "r2"]),
        )
        for name in NAMES
    )
)


@st.composite
def copies(draw: st.DrawFn) -> Copy:
    count = draw(st.integers(1, 8))
    parts = []
    for number in range(count):
        replicas = draw(st.lists(st.sampled_from(NAMES), min_size=1, max_size=3, unique=True))
        p = partition(number, *replicas)
        p = replace(p, leader=draw(st.none() | lives), isr=draw(st.lists(lives, max_size=3)))
        p = replace(p, end=draw(st.sampled_from([*[None] * 6, 4])))
        parts.append(replace(p, state=draw(st.sampled_from([*["online"] * 7, DELETING]))))
    first = draw(st.integers(0, min(2, count)))
    known = resource(count, first=first, writes=draw(st.integers(0, count)))
    near = Near(draw(st.sampled_from(["", "eu"])), draw(st.sampled_from(["", "r1"])))
    return copy(
        known,
        *parts,
        brokers=draw(brokers_)[draw(st.integers(0, 1)) :],
        near=near,
        shunned=draw(st.sets(lives, max_size=2)),
    )


def is_there(known: Copy, number: int) -> bool:
    p = known.rows[number,].record
    return p.state != DELETING


def takes_writes(known: Copy, number: int) -> bool:
    assert known.resource is not None
    is_open = known.rows[number,].record.end is None and is_there(known, number)
    return is_open and known.resource.first_partition <= number < known.resource.write_partitions


def is_alive(known: Copy, name: str, epoch: int | None = None) -> bool:
    found = known.brokers.get(name)
    return found is not None and found.state not in (b.FENCED, b.GONE) and epoch in (None, found.broker_epoch)


def leads(known: Copy, number: int) -> bool:
    leader = known.rows[number,].record.leader
    return leader is not None and is_alive(known, leader.broker, leader.broker_epoch)


wants = st.one_of(
    st.builds(wanted, st.just("write"), st.binary(), st.none(), st.none()),
    st.builds(wanted, st.sampled_from(["write", "read", "read_any"]), st.none(), st.integers(0, 8), st.none()),
    st.builds(
        wanted,
        st.sampled_from(["write", "read", "read_any"]),
        st.none(),
        st.none(),
        st.lists(st.integers(0, 8), max_size=4),
    ),
    st.builds(wanted, st.sampled_from(["write", "read", "read_any"]), st.none(), st.none(), st.none()),
)


@settings(max_examples=200)
@given(copies(), wants, st.integers(0, 100))
def test_nobody_is_asked_who_must_not_be_and_nobody_twice(known: Copy, want: Wanted, turn: int) -> None:
    tried: set[tuple[int, str]] = set()
    takers = [number for (number,) in known.rows if takes_writes(known, number)]
    try:
        while (found := known.choose(want, turn, tried)) is not None:
            p = found.found.record
            assert (found.partition, found.leader_epoch) == (p.partition, p.leader_epoch)
            assert p.state != DELETING
            assert is_alive(known, found.broker.broker)
            leader = Owner(found.broker.broker, found.broker.broker_epoch)
            assert found.leads == (p.leader == leader)
            assert found.leads or (want.to == "read_any" and found.broker.broker in p.replicas)
            assert want.to != "write" or p.partition in takers
            assert want.partition in (None, p.partition)
            assert want.order is None or p.partition in want.order
            assert want.crc is None or p.partition == takers[want.crc % len(takers)]
            assert (p.partition, found.broker.broker) not in tried
            tried.add((p.partition, found.broker.broker))
    except (NotFoundError, ConflictError):
        assert not tried
        named = [want.partition] if want.partition is not None else want.order
        able = takers if want.to == "write" else [n for (n,) in known.rows if is_there(known, n)]
        assert not ({*able} if named is None else {*able} & {*named})
    else:
        if want in (Wanted("write"), Wanted("read")):
            able = takers if want.to == "write" else [n for (n,) in known.rows if is_there(known, n)]
            assert {number for number, _ in tried} == {number for number in able if leads(known, number)}


@given(copies(), st.sampled_from(["write", "read", "read_any"]), st.integers(0, 1_000))
def test_turns_are_fair_among_the_nearest(known: Copy, to: To, turn: int) -> None:
    try:
        able = {n: found for (n,) in known.rows if (found := _try(known, Wanted(to, n))) is not None}
        shares = Counter(
            found.partition for at in range(60) if (found := known.choose(Wanted(to), turn + at)) is not None
        )
    except ConflictError:
        return

    def rank(found: Choice) -> int:
        life = Owner(found.broker.broker, found.broker.broker_epoch)
        return 3 if life in known.shunned else known.near.rank(found.broker)

    best = min(map(rank, able.values()), default=0)
    assert {*shares} == {n for n, found in able.items() if rank(found) == best}
    assert not shares or max(shares.values()) - min(shares.values()) <= 1


def _try(known: Copy, want: Wanted) -> Choice | None:
    try:
        return known.choose(want, 0)
    except (NotFoundError, ConflictError):
        return None


def test_a_choice_looks_at_few_of_ten_thousand_partitions() -> None:
    """What is worked out for all of them is worked out once."""
    looked = Counter[str]()

    class Rows(dict[tuple[int], TableRecord[Partition]]):
        def __getitem__(self, key: tuple[int]) -> TableRecord[Partition]:
            looked["rows"] += 1
            return super().__getitem__(key)

        def get(self, key: tuple[int], default: Any = None) -> Any:
            looked["rows"] += 1
            return super().get(key, default)

        def values(self) -> Any:
            looked["all"] += 1
            return super().values()

    known = fleet(10_000)
    known = Copy(KEY, known.resource, Rows(known.rows), known.brokers, Near())
    everything: list[Wanted] = [
        *(wanted(to, None, None, None) for to in ("write", "read", "read_any")),
        wanted("write", b"key", None, None),
        wanted("write", None, 77, None),
        wanted("write", None, None, [5, 6, 7]),
    ]
    for want in everything:
        known.choose(want, 0)
    looked.clear()
    for turn in range(100):
        for want in everything:
            assert known.choose(want, turn) is not None
    assert looked["rows"] <= 100 * len(everything) * 6
    assert not looked["all"]
