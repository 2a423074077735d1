"""A stream reports every change that its filters want, once, in order, whole entries at a time: live, from the log, and
behind a snapshot; whatever its credit does and whoever else watches."""

from __future__ import annotations

import random
import tracemalloc
from typing import Any

import pytest
from watch_rig import ALL, PREFIX, Client, World, entry, key, kv, owner

import metad.watch.changes as changes_module
import metad.watch.filters as filters_module
import metad.watch.frames as rows_module
import metad.watch.hub as hub_module
import metad.watch.log_reader as reader_module
import metad.watch.stream as stream_module
from metad.state.core.part import Origin
from metad.watch.frames import FRAME_BYTES
from metad.watch.log_reader import LogReader
from metad.watch.stream import Stream
from metad_wire import messages as m
from metad_wire.errors import LogCutError, NotLeaderError, NotReplicaError, OverloadedError
from metad_wire.key import SLOT_MASK
from metad_wire.methods import encode
from metad_wire.tables import TABLES
from metad_wire.watch import ChangeKind, MarkerStep, SlotMarker, StreamFlag, WatchFilter

CREATED, CHANGED, DELETED, WRITTEN = ChangeKind.CREATED, ChangeKind.CHANGED, ChangeKind.DELETED, ChangeKind.WRITTEN
MARKER = SlotMarker(MarkerStep.SEALED, 3, ALL, 1)
NEVER_LIVE = 1 << 30


@pytest.fixture
def world() -> World:
    return World()


def puts(*names: str, namespace: str = "a", size: int = 1) -> list[object]:
    return [entry(kv(namespace, name, b"v" * size)) for name in names]


# --- live -------------------------------------------------------------------------------------------------------


def test_a_live_stream_reports_what_it_wants_and_how_far_it_is(world: World) -> None:
    client = world.open(WatchFilter("kv", ["a"]))
    other = world.open(WatchFilter("kv", ["b"]))
    world.apply(entry(kv("a", "x")), entry(kv("b", "y")), entry(kv("a", "x", None), revision=17))
    assert client.kinds == [(1, CREATED), (3, DELETED)]
    assert [(one.index, one.revision, one.time_ms) for one in client.entries] == [(1, 1, 7), (3, 17, 7)]
    assert [(change.row, change.key, change.value) for change in client.changes] == [
        (0x30, b"a\0\x01x\0\x01", encode(m.Kv("a", "x", b"v", 1, 1, 1))),
        (0x30, b"a\0\x01x\0\x01", None),
    ]
    assert [(frame.index, len(frame.entries)) for frame in client.frames] == [(1, 1), (3, 1)]
    assert [frame.index for frame in other.frames] == [2]


def test_a_stream_that_wants_nothing_of_an_entry_costs_nothing(world: World) -> None:
    world.open(WatchFilter("kv", ["b"]))
    world.apply(*puts("x", "y", "z"))
    assert world.pieces == 0


def test_what_is_applied_in_one_turn_comes_in_one_event(world: World) -> None:
    client = world.open()
    world.stage(*puts("x", "y"))
    world.stage(*puts("z"))
    world.settle()
    assert [(frame.index, [one.index for one in frame.entries]) for frame in client.frames] == [(3, [1, 2, 3])]


def test_nothing_is_reported_before_it_is_in_the_state(world: World) -> None:
    client = world.open()
    for one in puts("x", "y"):
        world.replica.log.append(one)
        world.hub.stage(one)
        assert not client.frames


def test_filters_are_exact(world: World) -> None:
    """Every change that a filter wants is reported, no other, and none twice, live as well as from the log."""
    rng = random.Random(7)
    names = ["", "a", "ab", "abc", "b", "a\0", "é"]
    filters = [
        WatchFilter(table, fields, prefix, rows, broker)
        for table, fields, prefix, rows, broker in [
            ("kv", [], "", [], ""),
            ("kv", [], "a", [], ""),
            ("kv", ["a"], "", [], ""),
            ("kv", ["a"], "a", [], ""),
            ("kv", ["ab", "abc"], "", [], ""),
            ("session", [], "", ["owner"], ""),
            ("session", ["a"], "b", [], ""),
            ("session", [], "", [], "b1"),
            ("session", ["a"], "", [], "b2"),
            ("session", [], "", ["properties"], ""),
        ]
    ]
    chosen = [rng.sample(filters, rng.randint(1, 4)) for _ in range(30)]
    live = [world.open(*some) for some in chosen]
    brokers: dict[bytes, str] = {}
    wanted: list[list[tuple[int, bytes]]] = [[] for _ in chosen]
    for index in range(1, 200):
        writes: dict[bytes, bytes | None] = {}
        for _ in range(rng.randint(0, 3)):
            writes.update(kv(rng.choice(names), rng.choice(names), rng.choice([b"v", None])))
            if rng.random() < 0.3:
                writes[key("session", "properties", rng.choice(names), rng.choice(names))] = b"\x92\0\xc4\0"
        owners: dict[bytes, bytes | None] = {}
        for _ in range(rng.randint(0, 3)):
            owners.update(owner(rng.choice(names), rng.choice(names), rng.choice(["b1", "b2", None])))
        named = {at: brokers.get(at, "") for at in owners}
        values = [owner("", "", named[at])[key("session", "owner", "", "")] if named[at] else b"" for at in owners]
        previous = {0x10: [(value or b"", [at]) for at, value in enumerate(values)]} if owners else {}
        world.apply(entry(writes, owners=owners, previous=previous))
        for at, value in owners.items():
            now = "" if value is None else ("b1" if b"b1" in value else "b2")
            passing = {named[at], now} - {""}
            for some, expected in zip(chosen, wanted, strict=True):
                if any(wants(filter, at, passing) for filter in some):
                    expected.append((index, at))
            brokers[at] = now
        for at in writes:
            for some, expected in zip(chosen, wanted, strict=True):
                if any(wants(filter, at, set()) for filter in some):
                    expected.append((index, at))
    late = [world.open(*some, position=0) for some in chosen]
    world.settle()
    for clients in (live, late):
        for client, expected in zip(clients, wanted, strict=True):
            seen = [(one.index, PREFIX + bytes((c.row,)) + c.key) for one in client.entries for c in one.changes]
            assert sorted(seen) == sorted(expected)


def wants(filter: WatchFilter, at: bytes, brokers: set[str]) -> bool:
    """As the protocol says it, field by field."""
    table = TABLES[filter.table]
    row = next((name for name, number in table.rows.items() if number == at[3]), None)
    if row is None or (filter.rows and row not in filter.rows):
        return False
    if filter.broker and (row != "owner" or filter.broker not in brokers):
        return False
    fields = table.fields_of(at[4:], 2)
    count = len(filter.fields)
    return fields[:count] == filter.fields and (not filter.prefix or fields[count].startswith(filter.prefix))


# --- the kinds --------------------------------------------------------------------------------------------------


def test_a_counted_record_says_whether_it_was_created(world: World) -> None:
    client = world.open()
    world.apply(
        entry(kv("a", "x", mod=1, created=1)),
        entry(kv("a", "x", version=2, mod=300, created=1)),
        entry(kv("a", "x", version=2, mod=300, created=300)),
        entry(kv("a", "x", None)),
    )
    assert [kind for _, kind in client.kinds] == [CREATED, CHANGED, CREATED, DELETED]


def test_an_owner_is_created_or_changed_as_the_entry_says(world: World) -> None:
    client = world.open(WatchFilter("session"))
    properties = {key("session", "properties", "t", "c1"): b"\x92\0\xc4\0"}
    owners = owner("t", "c1", "b") | owner("t", "c2", "b")
    old = owner("t", "c2", "old")[key("session", "owner", "t", "c2")]
    assert old is not None
    world.apply(
        entry(properties, owners=owners, previous={0x10: [(b"", [0]), (old, [1])]}),
        entry(properties),
        entry(owners=owner("t", "c1", "b"), previous={0x10: [(old, [])]}),
        entry(properties, owners=owner("t", "c1", "b")),  # of a version that did not say
        entry(owners=owner("t", "c1", None), previous={0x10: [(old, [])]}),
    )
    kinds: dict[int, dict[tuple[int, bytes], int]] = {}
    for one in client.entries:
        kinds[one.index] = {(change.row, change.key[3:5]): change.kind for change in one.changes}
    assert kinds == {
        1: {(0x10, b"c1"): CREATED, (0x10, b"c2"): CHANGED, (0x11, b"c1"): CREATED},
        2: {(0x11, b"c1"): CHANGED},
        3: {(0x10, b"c1"): CHANGED},
        4: {(0x10, b"c1"): WRITTEN, (0x11, b"c1"): WRITTEN},
        5: {(0x10, b"c1"): DELETED},
    }


def test_a_slot_move_is_a_marker_and_no_change(world: World) -> None:
    client = world.open(WatchFilter("kv", ["b"]))
    world.apply(entry(kv("b", "x"), origin=Origin.MIGRATION), entry(origin=Origin.MIGRATION, marker=MARKER))
    late = world.open(WatchFilter("kv", ["b"]), position=0)
    world.settle()
    for one in (client, late):
        assert [(one.index, one.marker, one.changes) for one in one.entries] == [(2, MARKER, [])]


# --- flags ------------------------------------------------------------------------------------------------------


def test_the_value_before_is_read_before_it_is_replaced(world: World) -> None:
    client = world.open(flags=StreamFlag.PREVIOUS)
    plain = world.open()
    world.apply(entry(kv("a", "x", b"1")))
    world.stage(entry(kv("a", "x", b"2")), entry(kv("a", "x", b"3")), entry(kv("a", "x", None)))
    world.settle()
    world.apply(entry(kv("a", "x", b"4")))
    values = [kv("a", "x", value)[key("kv", "record", "a", "x")] for value in (b"1", b"2", b"3")]
    assert [change.previous for change in client.changes] == [None, *values, None]
    assert all(change.previous_known for change in client.changes)
    assert not any(change.previous_known or change.previous for change in plain.changes)


def test_values_before_are_read_within_bounds(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who wants more than that is told from the log; who has them all, or wants none, is live on."""
    monkeypatch.setattr(hub_module, "_PREVIOUS_BYTES", 10_000)
    names = [f"k{number}" for number in range(100)]
    world.apply(*puts(*names, size=1_000), *puts("few", size=1_000))
    few, many, plain = (
        world.open(*filters, flags=flags, credit_bytes=1 << 30)
        for filters, flags in [
            ([WatchFilter("kv", ["a"], "few")], StreamFlag.PREVIOUS),
            ([WatchFilter("kv", ["a"])], StreamFlag.PREVIOUS),
            ([WatchFilter("kv", ["a"])], 0),
        ]
    )
    reads: list[bytes] = []
    get = world.replica.get
    monkeypatch.setattr(world.replica, "get", lambda key: reads.append(key) or get(key))
    writes: dict[bytes, bytes | None] = {}
    for name in ("few", *names):
        writes |= kv("a", name, None)
    world.stage(entry(writes, marker=MARKER))
    assert len(reads) <= 11
    assert [stream_of(client).live for client in (few, many, plain)] == [True, False, True]
    world.settle()
    assert [[len(one.changes) for one in client.entries] for client in (few, many, plain)] == [[1], [101], [101]]
    assert [change.previous_known for change in few.changes] == [True]
    for change in many.changes:
        assert change.previous_known is (change.previous is not None)
    world.apply(*puts("few", "k1"))
    assert [[one.index for one in client.entries] for client in (few, many, plain)] == [
        [102, 103], [102, 103, 104], [102, 103, 104],
    ]  # fmt: skip


def test_a_record_that_one_request_deletes_and_creates_is_created_and_has_the_one_before(world: World) -> None:
    client = world.open(flags=StreamFlag.PREVIOUS)
    world.apply(entry(kv("a", "x", b"1")), entry(kv("a", "x", b"2", created=2, mod=2)))
    late = world.open(position=0, flags=StreamFlag.PREVIOUS)
    world.settle()
    first = kv("a", "x", b"1")[key("kv", "record", "a", "x")]
    for one in (client, late):
        assert [(change.kind, change.previous) for change in one.changes] == [(CREATED, None), (CREATED, first)]


def test_a_log_that_is_cut_while_a_stream_looks_back_leaves_no_wrong_value_before(world: World) -> None:
    names = ["x" if number in (10, 150, 299) else f"f{number}" for number in range(300)]
    world.apply(*[entry(kv("a", name, b"v%d" % number)) for number, name in enumerate(names)])
    client = world.open(position=260, flags=StreamFlag.PREVIOUS)
    world.serve_one()
    assert world.replica.reads == [(5, 301)]
    world.replica.base = 255
    world.settle()
    assert world.replica.reads[1][0] == 256, "the log was cut between two pieces of looking back"
    (change,) = [change for change in client.changes if b"x" in change.key]
    assert (change.previous_known, change.previous) == (False, None)


def test_keys_only_has_no_values(world: World) -> None:
    world.apply(entry(kv("a", "x")))
    client = world.open(flags=StreamFlag.KEYS_ONLY | StreamFlag.PREVIOUS, position=None, snapshot=ALL)
    plain = world.open()
    world.settle()
    world.apply(entry(kv("a", "x", version=2, mod=2)))
    assert [(c.kind, c.value, c.previous, c.previous_known) for c in client.changes] == [(CHANGED, None, None, True)]
    assert [rows.values for frame in client.frames for rows in frame.rows] == [[None]]
    assert plain.changes[0].value is not None


def test_coalescing_keeps_the_newest_of_what_is_ready_at_once(world: World) -> None:
    client = world.open(flags=StreamFlag.COALESCE)
    both = kv("a", "x", b"1") | kv("a", "y", b"1")
    world.stage(entry(both), entry(kv("a", "x", b"2")), entry(marker=MARKER), entry(kv("a", "x", b"3")))
    world.settle()
    assert [(one.index, [c.key[3:4] for c in one.changes]) for one in client.entries] == [
        (1, [b"y"]), (3, []), (4, [b"x"]),
    ]  # fmt: skip
    assert client.index == 4


# --- from the log -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("position", [0, 1, 7, 19, 20])
def test_a_stream_goes_on_from_its_position(world: World, position: int) -> None:
    world.apply(*[entry(kv("a" if number % 2 else "b", f"k{number}")) for number in range(1, 21)])
    client = world.open(WatchFilter("kv", ["a"]), position=position)
    world.settle()
    world.apply(entry(kv("a", "k21")))
    assert [one.index for one in client.entries] == [*range(position + 1 + position % 2, 20, 2), 21]
    assert client.index == 21
    assert client.opens[0].pinned is False
    assert world.replica.pins == 0


def test_the_log_is_read_in_pieces_and_the_stream_joins_where_it_ends(world: World) -> None:
    """While it catches up the log goes on; nothing falls between the last piece and the first live entry."""
    world.replica.record_bytes = 10_000
    world.apply(*puts(*map(str, range(100))))
    client = world.open(position=0)
    number = 100
    while world.serve_one():
        if number < 130:
            world.stage(*puts(str(number)))
            number += 1
    assert [one.index for one in client.entries] == list(range(1, 131))
    assert all(begin < end for begin, end in world.replica.reads)
    world.apply(*puts("last"))
    assert client.index == 131
    assert len(world.replica.reads) > 10


def test_a_stream_that_finds_nothing_says_how_far_it_is(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream_module, "_SILENT_WORK", 500)
    world.apply(*puts(*map(str, range(200))))
    client = world.open(WatchFilter("kv", ["b"]), position=0)
    world.settle()
    assert not client.entries
    indexes = [frame.index for frame in client.frames]
    assert indexes == sorted(set(indexes))
    assert indexes[-1] == 200
    assert max(after - before for before, after in zip([0, *indexes], indexes, strict=False)) < 100


def test_a_large_entry_is_looked_at_in_parts(world: World) -> None:
    """A thousand writes in one go would hold up everybody; they are one event all the same."""
    writes: dict[bytes, bytes | None] = {}
    for number in range(3_000):
        writes |= kv("a" if number % 3 else "b", f"k{number}")
    owners: dict[bytes, bytes | None] = {}
    for number in range(500):
        owners |= owner("t", f"c{number}", "b")
    world.apply(entry(kv("a", "first")), entry(writes, owners=owners), entry(kv("a", "last")))
    client = world.open(WatchFilter("kv", ["a"]), WatchFilter("session"), position=0, credit_bytes=1 << 30)
    before = world.pieces
    world.settle()
    assert world.pieces - before >= 3_500 // 256
    assert [(one.index, len(one.changes)) for one in client.entries] == [(1, 1), (2, 2_500), (3, 1)]
    assert len({change.key for change in client.entries[1].changes}) == 2_500


def test_a_position_that_the_log_no_longer_has_is_refused(world: World) -> None:
    world.apply(*puts(*map(str, range(10))))
    world.replica.base = 5
    with pytest.raises(LogCutError):
        world.open(position=4)
    client = world.open(position=5)
    world.settle()
    assert [one.index for one in client.entries] == [6, 7, 8, 9, 10]
    assert not world.hub.waiting
    assert len(world.hub.streams) == 1


def test_a_stream_whose_log_is_cut_meanwhile_ends(world: World) -> None:
    world.apply(*puts(*map(str, range(10))))
    client = world.open(position=2, credit_bytes=1)
    world.serve_one()
    world.serve_one()
    assert client.index == 10 or client.entries
    slow = world.open(position=2, credit_bytes=0)
    world.settle()
    world.replica.base = 9
    assert slow.stream is not None
    slow.stream.grant(1_000)
    world.settle()
    ended = slow.frames[-1].ended
    assert ended is not None
    assert ended.code == LogCutError.code
    assert slow.index == 2
    assert slow.over
    assert slow.stream not in world.hub.streams


@pytest.mark.parametrize("base", [2, 3])
def test_a_cut_takes_away_no_entry_in_silence(world: World, base: int) -> None:
    world.apply(*puts(*map(str, range(10))))
    slow = world.open(position=2, credit_bytes=0)
    world.replica.base = base
    assert slow.stream is not None
    slow.stream.grant(1 << 20)
    world.settle()
    assert slow.over is (base == 3)
    assert [one.index for one in slow.entries] == ([] if base == 3 else list(range(3, 11)))


def test_a_position_ahead_of_the_replica_waits_for_it(world: World) -> None:
    world.apply(*puts("x"))
    client = world.open(position=3)
    late = world.open(position=9)
    world.apply(*puts("y"))
    assert not client.opens
    world.apply(*puts("z"))
    assert client.opens[0].index == 3
    world.apply(*puts("w"))
    assert [one.index for one in client.entries] == [4]
    assert world.hub.expire(world.now_s + 4.9)
    assert not late.refusals
    assert not world.hub.expire(world.now_s + 5)
    assert [error.name for error in late.refusals] == ["position_ahead"]
    assert len(world.hub.streams) == 1


def test_streams_that_waited_begin_in_turns(world: World) -> None:
    world.apply(*puts("x"))
    clients = [world.open(position=2) for _ in range(5)]
    world.stage(*puts("y"))
    assert [len(client.opens) for client in clients] == [0] * 5
    assert not world.hub.waiting
    world.serve_one()
    assert [len(client.opens) for client in clients] == [1, 0, 0, 0, 0]
    for _ in range(2):
        world.hub.mark()
    assert world.hub.floor(world.now_s) == 2, "the log is kept for them meanwhile"
    world.apply(*puts("z"))
    assert [[one.index for one in client.entries] for client in clients] == [[3]] * 5


# --- pins that are proven ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("opening", [{}, {"snapshot": ALL}, {"position": 1, "snapshot": ALL}])
def test_a_proven_pin_has_what_the_leader_had_committed_when_it_was_asked_for(
    world: World, opening: dict[str, Any]
) -> None:
    world.apply(*puts("x"))
    client = world.open(proven=True, **opening)
    world.settle()
    assert not client.opens, "it has begun at the follower's now"
    (answer,) = world.replica.questions
    answer(3)
    world.apply(*puts("y"))
    assert not client.opens, "the follower lacks what was acknowledged"
    world.apply(*puts("z"))
    assert [(said.index, said.proven) for said in client.opens] == [(3, True)]


def test_a_stream_without_a_pin_asks_for_no_proof(world: World) -> None:
    world.apply(*puts("x"))
    client = world.open(position=1, proven=True)
    assert not world.replica.questions
    assert [said.proven for said in client.opens] == [False]


def test_one_question_is_for_all_that_wait_and_a_later_stream_has_one_of_its_own(world: World) -> None:
    first, later, last = (world.open(proven=True) for _ in range(3))
    assert len(world.replica.questions) == 1
    world.replica.questions[0](0)
    world.settle()
    assert [len(client.opens) for client in (first, later, last)] == [1, 0, 0]
    assert len(world.replica.questions) == 2
    world.replica.questions[1](0)
    world.settle()
    assert [len(client.opens) for client in (first, later, last)] == [1, 1, 1]
    assert len(world.replica.questions) == 2


def test_a_refusal_that_is_there_at_once_is_not_asked_for_without_end(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nodes let the streams go a little later."""
    asked, let_go = [], []

    def refuse_at_once(done: Any) -> None:
        asked.append(done)
        done(NotLeaderError("no leader is known"))

    monkeypatch.setattr(world.replica, "read_index", refuse_at_once)
    monkeypatch.setattr(world, "refuse", lambda stream, why: let_go.append(stream))
    world.open(proven=True)
    world.settle()
    assert len(asked) == len(let_go) == 1


def test_a_leader_that_is_silent_is_asked_once_more_and_not_waited_for(world: World) -> None:
    client = world.open(proven=True)
    world.now_s += 1
    assert world.hub.expire(world.now_s)
    assert len(world.replica.questions) == 2
    assert not world.hub.expire(world.now_s + 4)
    assert [error.name for error in client.refusals] == ["not_leader"]
    for answer in world.replica.questions:
        answer(0)  # nobody waits for it any more
    world.settle()
    assert not client.opens


def test_what_the_leader_refuses_and_what_the_replica_lacks_is_told(world: World) -> None:
    refused, lacks = world.open(proven=True), world.open(proven=True)
    world.replica.questions[0](NotLeaderError("no leader"))
    world.replica.questions[1](7)
    assert [error.name for error in refused.refusals] == ["not_leader"]
    assert not world.hub.expire(world.now_s + 5)
    assert [str(error) for error in lacks.refusals] == [
        "this replica of data-0 has applied 0, and its leader has committed 7"
    ]


# --- snapshots --------------------------------------------------------------------------------------------------


def snapshot_world(world: World, count: int = 30) -> None:
    world.apply(*[entry(kv(f"n{number % 7}", f"k{number:03}", created=number, mod=number)) for number in range(count)])


def test_a_snapshot_has_every_row_once_and_then_what_follows(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows_module, "_PIECE_ROWS", 4)
    snapshot_world(world)
    client = world.open(snapshot=ALL)
    assert client.opens[0] == world.replica.opened(pinned=True, proven=False)
    number = 30
    while world.serve_one():
        world.stage(entry(kv("n1", f"k{number:03}"), revision=number)) if number < 40 else None
        world.stage(entry(kv("n2", "k002", None))) if number == 35 else None
        number += 1
    assert len(client.rows) == 30
    assert client.rows == sorted(set(client.rows))
    assert [frame.snapshot_done for frame in client.frames if frame.rows or frame.snapshot_done].count(True) == 1
    done = [frame.snapshot_done for frame in client.frames].index(True)
    assert all(frame.index == 30 and not frame.entries for frame in client.frames[: done + 1])
    assert [one.index for one in client.entries] == list(range(31, 42))
    assert (world.replica.pins, world.replica.pins_closed) == (1, 1)


def test_a_snapshot_behind_a_position_comes_after_the_log_up_to_its_pin(world: World) -> None:
    snapshot_world(world)
    client = world.open(position=10, snapshot=ALL)
    world.apply(entry(kv("n1", "later")))
    order = ["rows" if frame.rows else [one.index for one in frame.entries] for frame in client.frames]
    assert order == [list(range(11, 31)), "rows", [31]]
    assert client.opens[0].pinned
    assert len(client.rows) == 30


def test_only_rows_of_wanted_slots_that_the_group_has_are_sent(world: World) -> None:
    snapshot_world(world)
    slots = {f"n{number}": TABLES["kv"].slot_of(f"n{number}".encode() + b"\0\x01") for number in range(7)}
    bits = {name: 1 << (SLOT_MASK - slot) for name, slot in slots.items() if slot is not None}
    everything = int.from_bytes(ALL, "big")
    world.replica.held = (everything & ~bits["n1"] & ~bits["n2"]).to_bytes(128, "big")
    world.replica.sealed = bits["n2"].to_bytes(128, "big")
    whole = world.open(snapshot=ALL)
    some = world.open(snapshot=(bits["n1"] | bits["n2"] | bits["n3"]).to_bytes(128, "big"))
    world.settle()
    assert {key[:2] for key in whole.rows} == {b"n0", b"n2", b"n3", b"n4", b"n5", b"n6"}
    assert {key[:2] for key in some.rows} == {b"n2", b"n3"}


def test_a_snapshot_passes_the_filters(world: World) -> None:
    for number in range(6):
        properties = {key("session", "properties", "t", f"c{number}"): b"\x92\0\xc4\0"}
        world.apply(entry(kv("n", f"k{number}") | properties, owners=owner("t", f"c{number}", f"b{number % 3}")))
    filters = [
        WatchFilter("session", broker="b1"),
        WatchFilter("session", ["t"], broker="b2"),
        WatchFilter("session", ["t", "c0"], rows=["properties"]),
        WatchFilter("kv", ["n"], "k3"),
    ]
    client = world.open(*filters, snapshot=ALL)
    world.settle()
    found: dict[int, list[bytes]] = {}
    for rows in [rows for frame in client.frames for rows in frame.rows]:
        found.setdefault(rows.row, []).extend(key[-4:-2] for key in rows.keys)
    assert found == {0x10: [b"c1", b"c2", b"c4", b"c5"], 0x11: [b"c0"], 0x30: [b"k3"]}


def test_without_slots_a_stream_begins_at_a_pin_that_holds_nothing(world: World) -> None:
    snapshot_world(world)
    client = world.open()
    world.apply(entry(kv("n1", "later")))
    assert client.opens[0].pinned
    assert world.replica.pins == 0
    assert [one.index for one in client.entries] == [31]


# --- credit -----------------------------------------------------------------------------------------------------


def test_a_stream_without_credit_keeps_its_position_and_nothing_else(world: World) -> None:
    client = world.open(credit_bytes=100)
    fast = world.open(credit_bytes=1 << 30)
    world.apply(*puts("x", size=200))
    assert len(client.entries) == 1, "the credit may be exceeded by one event"
    for number in range(20):
        world.apply(*puts(f"k{number}", size=100_000))
        assert world.held_bytes == 0
    assert len(fast.entries) == 21
    assert len(client.entries) == 1
    assert client.stream is not None
    for _ in range(40):
        client.stream.grant(100_000)
        world.settle()
    assert [one.index for one in client.entries] == list(range(1, 22))
    assert world.held_bytes == 0
    world.apply(*puts("last"))
    assert client.index == 22


def test_entries_cost_nothing_for_a_stream_that_may_not_send(world: World) -> None:
    """Thousands of streams without credit made every entry tell each of them."""
    client = world.open(credit_bytes=0)
    world.apply(*puts("a"))
    assert client.stream is not None
    assert not client.stream.live
    assert not client.entries
    client.stream.grant(1 << 20)
    world.settle()
    assert client.stream.live
    assert len(client.entries) == 1


def test_an_entry_is_told_to_so_many_and_the_others_read_it(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("metad.watch.hub._TOLD_MAX", 3)
    clients = [world.open(credit_bytes=1 << 20) for _ in range(5)]
    world.stage(*puts("a"))
    assert [client.stream.live for client in clients if client.stream] == [True] * 3 + [False] * 2
    world.settle()
    assert [len(client.entries) for client in clients] == [1] * 5
    assert all(client.stream.live for client in clients if client.stream)


def test_an_event_exceeds_the_credit_by_one_at_most(world: World) -> None:
    world.apply(*puts(*map(str, range(50)), size=1_000))
    client = world.open(position=0, credit_bytes=5_000)
    world.settle()
    assert sum(client.sizes[:-1]) < 5_000
    assert sum(client.sizes) < 5_000 + 1_200
    before = len(client.entries)
    assert client.stream is not None
    client.stream.grant(3_000)
    world.settle()
    assert len(client.entries) > before


def test_a_client_that_does_not_read_is_only_behind(world: World) -> None:
    client = world.open(credit_bytes=1 << 30)
    world.apply(*puts("x"))
    client.ready = False
    for number in range(20):
        world.apply(*puts(f"k{number}", size=100_000))
        assert world.held_bytes == 0
    assert len(client.entries) == 1
    client.ready = True
    assert client.stream is not None
    client.stream.wake()
    world.settle()
    assert [one.index for one in client.entries] == list(range(1, 22))


def test_what_waits_for_its_turn_is_bounded_for_each_stream(world: World) -> None:
    client = world.open(credit_bytes=1 << 30)
    for number in range(20):
        world.stage(*puts(f"k{number}", size=100_000))
        assert world.held_bytes <= stream_module.PENDING_BYTES
    world.settle()
    assert [one.index for one in client.entries] == list(range(1, 21))


def test_streams_that_cannot_send_leave_the_others_room(world: World) -> None:
    world.held_max = 250_000
    stuck = [world.open(credit_bytes=1) for _ in range(30)]
    world.apply(*puts("x", "y", size=2_000))
    assert world.held_bytes == 0
    live = world.open(credit_bytes=1 << 30)
    world.apply(*puts("z", size=100_000))
    assert live.stream is not None
    assert live.stream.live
    assert [one.index for one in live.entries] == [3]
    assert not any(client.stream is not None and client.stream.live for client in stuck)


def test_what_all_live_streams_hold_together_is_bounded(world: World) -> None:
    world.held_max = 250_000
    clients = [world.open(credit_bytes=1) for _ in range(10)]
    world.apply(*puts("x"))
    world.apply(*puts("y", size=100_000))
    assert world.held_bytes <= 250_000
    for client in clients:
        assert client.stream is not None
        client.stream.grant(1 << 20)
    world.settle()
    assert all([one.index for one in client.entries] == [1, 2] for client in clients)


def test_frames_are_bounded_but_one_entry_always_fits(world: World) -> None:
    world.apply(*puts(*map(str, range(40)), size=20_000), *puts("large", size=2_000_000), *puts("x", "y"))
    live = world.open(credit_bytes=1 << 30)
    late = world.open(position=0, credit_bytes=1 << 30)
    world.settle()
    world.stage(*puts(*map(str, range(40)), size=20_000), *puts("large", size=900_000))
    world.settle()
    assert [one.index for one in late.entries] == list(range(1, 85))
    assert [one.index for one in live.entries] == list(range(44, 85))
    for client in (live, late):
        for frame, size in zip(client.frames, client.sizes, strict=True):
            assert size <= FRAME_BYTES + 25_000 or len(frame.entries) == 1


def large(count: int, name: str = "k") -> object:
    """An entry with many writes."""
    writes: dict[bytes, bytes | None] = {}
    for number in range(count):
        writes |= kv("a", f"{name}{number}")
    return entry(writes)


def stream_of(client: Client) -> Stream:
    assert client.stream is not None
    return client.stream


def test_a_stream_that_waits_for_credit_holds_nothing_of_the_log(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its credit is used up by a mark, and it is never given more than for one event. It gets through all the same,
    though an entry is larger than what it looks at in silence."""
    monkeypatch.setattr(stream_module, "_SILENT_WORK", 500)
    small = [large(100) for _ in range(7)]
    world.apply(*small, large(2_000), large(1_500), *small)
    client = world.open(WatchFilter("kv", ["b"]), position=0, credit_bytes=1, flags=StreamFlag.PREVIOUS)
    stream = stream_of(client)
    for _ in range(20):
        world.settle()
        assert stream.live or stream._reader is None
        stream.grant(1 - stream.credit)
    indexes = [frame.index for frame in client.frames]
    assert indexes == sorted(set(indexes)), "it says twice how far it is"
    assert indexes[-1] == 16
    assert len(indexes) > 3


@pytest.mark.parametrize("flags", [0, StreamFlag.PREVIOUS])
def test_a_stream_that_cannot_send_within_an_entry_comes_to_its_end(world: World, flags: int) -> None:
    """Then it holds nothing, and has lost nothing."""
    world.apply(*puts("x"), large(2_000), *puts("y"), large(1_500, "l"), *puts("z"))
    client = world.open(position=1, credit_bytes=1 << 30, flags=flags)
    stream = stream_of(client)
    while not stream.within_entry:
        world.serve_one()
    client.ready = False
    world.settle()
    assert not client.entries
    assert stream._reader is None
    assert not stream.live
    assert world.held_bytes == 0
    assert client.waits == 1
    # From now on it can send now and then, and never as long as it takes to read an entry.
    rng = random.Random(5)
    for _ in range(200):
        client.ready = rng.random() < 0.3
        stream.wake()
        world.serve_one()
    client.ready = False
    assert [(one.index, len(one.changes)) for one in client.entries] == [(2, 2_000), (3, 1), (4, 1_500), (5, 1)]
    assert world.held_bytes == 0


def test_a_stream_that_cannot_send_reads_no_further_than_it_has_to(world: World) -> None:
    world.apply(large(1_000), *[large(200) for _ in range(100)])
    client = world.open(position=0, credit_bytes=1 << 30)
    world.serve_one()
    client.ready = False
    before = world.pieces
    world.settle()
    assert world.pieces - before <= 5


def test_a_stream_that_rests_keeps_its_place_and_no_entry(world: World) -> None:
    """What it has found is sent, what it has fetched is fetched again; nothing is lost, and nothing comes twice."""
    world.apply(*puts(*[f"k{number % 50}" for number in range(300)]), *[entry(marker=MARKER)] * 3, *puts("k1"))
    client = world.open(position=260, credit_bytes=1 << 30, flags=StreamFlag.PREVIOUS)
    stream = stream_of(client)
    while world.serve_one():
        stream.rest(1 << 20)
        assert world.held_bytes == 0
        assert stream._reader is None or next(stream._reader._fetched, None) is stream._reader._ahead is None
    assert [one.index for one in client.entries] == list(range(261, 305))
    assert all(change.previous_known for change in client.changes)
    assert stream.live


def test_a_stream_that_rests_may_forget_values_before(world: World) -> None:
    world.apply(*puts(*[f"k{number % 2}" for number in range(300)], size=100))
    client = world.open(position=200, credit_bytes=1 << 30, flags=StreamFlag.PREVIOUS)
    while world.serve_one():
        stream_of(client).rest(0)
    known = [change.previous_known for change in client.changes]
    assert len(known) == 100
    assert False in known
    assert True in known


def test_entries_without_writes_are_passed_like_others(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader_module, "_PIECE_WORK", 20)
    some = [entry(marker=MARKER), *puts("x"), entry(), entry(), large(11), entry(marker=MARKER)]
    world.apply(*some * 20)
    client = world.open(position=0, credit_bytes=1 << 30)
    world.settle()
    wanted = [index for index in range(1, 121) if (index - 1) % 6 in (0, 1, 4, 5)]
    assert [one.index for one in client.entries] == wanted
    assert len(world.replica.reads) == 2, "what was fetched is fetched again"


def test_a_piece_holds_no_more_than_was_fetched_at_once(world: World) -> None:
    """However few writes the entries have: their values may be long."""
    world.replica.record_bytes = 60_000
    world.apply(*puts(*map(str, range(40)), size=60_000))
    client = world.open(position=0, credit_bytes=1 << 30)
    while world.serve_one():
        assert world.held_bytes <= 3 * 60_000
    assert [one.index for one in client.entries] == list(range(1, 41))


# --- the end ----------------------------------------------------------------------------------------------------


def test_a_stream_that_ends_sends_what_it_holds_and_says_why(world: World) -> None:
    client, poor, behind = world.open(), world.open(credit_bytes=1), world.open()
    world.apply(*puts("x"))
    world.stage(*puts("y", "z"))
    behind = world.open(position=1, credit_bytes=0)
    waiting = world.open(position=50)
    world.hub.end(NotReplicaError("gone"))
    for one, indexes, index in ((client, [1, 2, 3], 3), (poor, [1], 1), (behind, [], 1)):
        assert [entry.index for entry in one.entries] == indexes
        ended = one.frames[-1].ended
        assert ended is not None
        assert (ended.code, ended.message, one.index, one.over) == (NotReplicaError.code, "gone", index, True)
    assert [error.name for error in waiting.refusals] == ["not_replica"]
    assert not world.hub.streams
    assert not world.hub.waiting
    assert world.held_bytes == 0
    world.apply(*puts("later"))
    assert len(world.lefts) == 5


def test_a_stream_that_is_cancelled_leaves_nothing_behind(world: World) -> None:
    snapshot_world(world)
    client = world.open(snapshot=ALL)
    live = world.open()
    world.stage(*puts("x"))
    for one in (client, live):
        assert one.stream is not None
        one.stream.forget()
        one.stream.forget()
    world.settle()
    world.apply(*puts("y"))
    assert not client.frames
    assert not live.frames
    assert (world.replica.pins, world.replica.pins_closed) == (1, 1)
    assert (world.held_bytes, len(world.hub.streams), len(world.lefts)) == (0, 0, 2)


def test_a_record_of_a_newer_version_says_too_whether_it_was_created(world: World) -> None:
    """It has further fields behind those that this version knows."""
    client = world.open()
    at = key("kv", "record", "a", "x")
    world.apply(
        entry({at: encode(("a", "x", b"v", 1, 5, 5, 77, 88))}), entry({at: encode(("a", "x", b"v", 2, 5, 6, 77, 77))})
    )
    assert [kind for _, kind in client.kinds] == [CREATED, CHANGED]


def test_every_counted_row_says_where_its_revisions_are() -> None:
    rows = [row for table in TABLES.values() for row, shown in table.shows.items() if shown.counted]
    assert rows
    for row in rows:
        assert changes_module._revisions_of(row) is not None


@pytest.mark.parametrize("lengths", [[20, 21, 22, 40], [200, 180, 160, 140], [60, 66, 120, 250], [1_000, 2_040]])
def test_filters_take_no_more_memory_than_they_are_counted_for(world: World, lengths: list[int]) -> None:
    """A stream that is behind has the most copies of them: in the index of the hub, and in its own."""
    world.apply(*puts("x"))
    names = ["".join(chr(97 + (number >> shift & 15)) for shift in (0, 4, 8)) for number in range(1_000)]
    filters = [
        WatchFilter("kv", [name.ljust(lengths[number % len(lengths)], "-")]) for number, name in enumerate(names)
    ]
    tracemalloc.start()
    try:
        client = world.open(*filters, position=0, credit_bytes=1 << 20)
        stream = client.stream
        assert stream is not None
        world.hub.level(stream, stream._interests)
        reader = LogReader(world.replica, stream._interests, 0, previous=False)
        taken = tracemalloc.get_traced_memory()[0]
        assert reader.work == 0
    finally:
        tracemalloc.stop()
    assert taken <= stream.cost <= 4 * taken


def test_the_lengths_of_all_filters_of_a_group_are_bounded(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is looked for in every key. Streams that wait or are behind may be live at any time."""
    monkeypatch.setattr(filters_module, "SHORT_BYTES", 0)
    monkeypatch.setattr(hub_module, "LENGTHS_MAX", 3)
    world.apply(*puts("x"))
    live, waiting = world.open(WatchFilter("kv", ["a"])), world.open(WatchFilter("kv", ["aa"]), position=9)
    behind = world.open(WatchFilter("kv", ["aaa"]), position=0, credit_bytes=0)
    refused = Client()
    with pytest.raises(OverloadedError, match="4 different lengths"):
        world.open(WatchFilter("kv", ["aaaa"]), client=refused)
    stream_of(refused).forget()
    same = world.open(WatchFilter("kv", ["bbb"]), WatchFilter("kv", ["b"]))
    stream_of(behind).forget()
    with pytest.raises(OverloadedError):
        world.open(WatchFilter("kv", ["aaaa"]), client=refused)
    stream_of(refused).forget()
    for client in (live, waiting, same):
        stream_of(client).forget()
    assert not world.hub._lengths
    world.open(WatchFilter("kv", ["aaaa"]))


def test_an_import_ends_what_was_seen_of_the_values_before(world: World) -> None:
    """The slot was elsewhere in between, where the record was written again: the log of this group has two of three
    values of it."""
    second = kv("a", "x", b"2", version=2, mod=2)
    world.apply(
        entry(kv("a", "x", b"1")),
        entry(second, origin=Origin.MIGRATION),
        entry(kv("a", "x", b"3", version=3, mod=3)),
        entry(kv("a", "x", b"4", version=4, mod=4)),
    )
    client = world.open(position=0, flags=StreamFlag.PREVIOUS)
    world.settle()
    told = {one.index: change for one in client.entries for change in one.changes}
    third = told[3]
    assert (third.previous_known, third.previous) in ((False, None), (True, second[key("kv", "record", "a", "x")]))
    assert told[4].previous == kv("a", "x", b"3", version=3, mod=3)[key("kv", "record", "a", "x")]
