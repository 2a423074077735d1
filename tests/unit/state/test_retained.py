"""Retained messages: what puts and deletes leave, and that a filter finds what a look at every topic would find, in
pages of bounded work."""

from __future__ import annotations

import bisect
from collections.abc import Sequence

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from state_rig import Rig, contents, item_errors

from metad.state.core.due import DUE, Due, retained_due_ms, split_due
from metad.state.core.entry import decode_entry
from metad.state.core.part import Origin
from metad.state.retained.retained import TopicScan
from metad.storage import keys
from metad.storage.engine import Engine, Pin
from metad_wire import cluster as c
from metad_wire import messages as m
from metad_wire import methods
from metad_wire.cluster import SLOTS, slot_bits
from metad_wire.errors import InvalidRequestError, StaleRouteError
from metad_wire.key import SLOT_MASK
from metad_wire.tables.retained import (
    RETAINED,
    Retained,
    RetainedDelete,
    RetainedDeleteItem,
    RetainedKey,
    RetainedMatch,
    RetainedPut,
)
from metad_wire.tables.retained import RetainedPutItem as Put
from metad_wire.text.topics import match

# Levels that sort on both sides of "/", and that begin with each other.
LEVELS = st.sampled_from(["", "a", "aa", "a!", "a0", "a!b", "b", "!", "$x", "ä"])
TOPICS = st.lists(LEVELS, min_size=1, max_size=4).map("/".join).filter(bool)
FILTERS = (
    st.tuples(st.lists(LEVELS | st.just("+"), max_size=4), st.sampled_from([[], ["#"]]))
    .map(lambda parts: "/".join(parts[0] + parts[1]))
    .filter(bool)
)


def put(rig: Rig, *items: Put) -> m.WriteReply:
    reply: m.WriteReply = rig.write(methods.RETAINED_PUT, RetainedPut(list(items)))
    return reply


def delete(rig: Rig, *items: RetainedDeleteItem) -> m.WriteReply:
    reply: m.WriteReply = rig.write(methods.RETAINED_DELETE, RetainedDelete(list(items)))
    return reply


def get(rig: Rig, *topics: str) -> list[Retained | None]:
    rig.settle()
    found: list[Retained | None] = rig.read(
        methods.RETAINED_GET, methods.RETAINED_GET.body([RetainedKey("t", topic) for topic in topics])
    ).found
    return found


def page(rig: Rig, filter_: str, limit: int = 1_000, cursor: bytes = b"", tenant: str = "t") -> m.ListReply[Retained]:
    reply: m.ListReply[Retained] = rig.read(
        methods.RETAINED_MATCH, RetainedMatch(tenant, filter_, page=m.Page(limit, cursor))
    )
    return reply


def found(rig: Rig, filter_: str, limit: int = 1_000) -> list[str]:
    """All topics, page by page."""
    rig.settle()
    topics: list[str] = []
    cursor, pages = b"", 0
    while True:
        reply = page(rig, filter_, limit, cursor)
        assert len(reply.found) <= limit
        topics += [message.topic for message in reply.found]
        assert reply.cursor > cursor or not reply.cursor
        cursor = reply.cursor
        pages += 1
        assert pages < 10_000
        if not cursor:
            return topics


@pytest.fixture(params=(0, 3), ids=lambda lag: f"lag{lag}")
def rig(request: pytest.FixtureRequest) -> Rig:
    return Rig(lag=request.param)


def test_a_topic_retains_its_last_message(rig: Rig) -> None:
    assert put(rig, Put("t", "a/b", b"1", 1, b"p"), Put("t", "a", b"2")).errors == []
    assert put(rig, Put("t", "a", b"3", 2)).errors == []
    assert get(rig, "a/b", "a", "b") == [
        Retained("t", "a/b", b"1", 1, b"p", 0, 1),
        Retained("t", "a", b"3", 2, b"", 0, 2),
        None,
    ]


def test_an_empty_payload_deletes_and_writes_nothing_of_a_topic_without_a_message(rig: Rig) -> None:
    put(rig, Put("t", "a", b"1"), Put("t", "b", b"1"))
    entry = rig.group.last
    reply = put(rig, Put("t", "a", b""), Put("t", "never", b""), Put("t", "new", b"x"), Put("t", "new", b""))
    assert reply.errors == []
    assert get(rig, "a", "b", "never", "new") == [None, Retained("t", "b", b"1", 0, b"", 0, 1), None, None]
    rig.settle()
    assert rig.group.last == entry + 1
    written = decode_entry(rig.group.name, rig.group.last, rig.group.log[-1]).writes
    row = rig.group.prefix + bytes((RETAINED.rows["message"],))
    assert [key for key in written if key.startswith(row)] == [row + RETAINED.key_of(["t", "a"])]


def test_a_wrong_topic_fails_alone(rig: Rig) -> None:
    reply = put(rig, Put("t", "a/+", b"1"), Put("t", "a", b"1"), Put("t", "", b"1"), Put("t", "x\0", b""))
    assert item_errors(reply) == {0: "invalid_item", 2: "invalid_item", 3: "invalid_item"}
    assert reply.errors[0].message == "topic: a topic has no wildcards: + and # are for filters"
    assert found(rig, "#") == ["a"]


def test_a_delete_may_ask_for_the_message_that_it_saw(rig: Rig) -> None:
    put(rig, Put("t", "a", b"1"), Put("t", "b", b"1"))
    put(rig, Put("t", "a", b"2"))
    reply = delete(
        rig,
        RetainedDeleteItem("t", "a", 1),
        RetainedDeleteItem("t", "b", 1),
        RetainedDeleteItem("t", "b"),
        RetainedDeleteItem("t", "c", 1),
    )
    assert item_errors(reply) == {0: "conflict", 2: "not_found", 3: "not_found"}
    assert reply.errors[0].current == 2
    assert item_errors(delete(rig, RetainedDeleteItem("t", "a", 2))) == {}
    assert found(rig, "#") == []


def test_what_has_expired_is_not_read_but_is_still_there(rig: Rig) -> None:
    put(rig, Put("t", "a", b"1", expiry_interval_s=10), Put("t", "b", b"1", expiry_interval_s=0), Put("t", "c", b"1"))
    begin_ms = rig.now_ms
    assert [one and one.expires_ms for one in get(rig, "a", "b", "c")] == [begin_ms + 10_000, None, 0]
    rig.advance(9_999)
    assert found(rig, "#") == ["a", "c"]
    rig.advance(2)
    assert found(rig, "#") == ["c"]
    assert get(rig, "a", "b") == [None, None]
    assert item_errors(delete(rig, RetainedDeleteItem("t", "a"), RetainedDeleteItem("t", "b"))) == {}


def test_a_message_behind_an_outage_lasts_as_long_as_it_is_to(rig: Rig) -> None:
    """Guards messages that were gone as soon as they were acknowledged: the time of the log, by which they expire, is
    late behind an outage, and reads went by the calendar."""
    put(rig, Put("t", "before", b"1"))
    rig.now_ms += 600_000  # nothing ran
    put(rig, Put("t", "a", b"1", expiry_interval_s=60))
    (one,) = get(rig, "a")
    assert one is not None
    assert one.expires_ms < rig.now_ms
    assert found(rig, "#") == ["a", "before"]
    rig.advance(50_000)
    assert found(rig, "#") == ["a", "before"]
    rig.advance(11_000)
    assert found(rig, "#") == ["before"]


def due(rig: Rig) -> list[Due]:
    """What is due, in order."""
    rig.settle()
    prefix = keys.table_prefix(rig.group.prefix, DUE)
    return [split_due(key) for key, _ in contents(rig.group.engine) if key.startswith(prefix)]


def sweep(rig: Rig, *rows: Due) -> tuple[int, int]:
    """(ended, waiting)"""
    items = [
        c.SessionDue("t", keys.split_text(one.session, keys.split_text(one.session, 0)[1])[0], one.at_ms, one.kind)
        for one in rows
    ]
    reply = rig.write(methods.SESSION_SWEEP, c.SessionSweep(items))
    assert (reply.ended, reply.wills) == (0, 0)
    return reply.retained, reply.waiting


def stored(rig: Rig) -> int:
    rig.settle()
    prefix = keys.table_prefix(rig.group.prefix, RETAINED.rows["message"])
    return sum(key.startswith(prefix) for key, _ in contents(rig.group.engine))


def test_the_sweep_deletes_what_has_expired_and_nothing_else(rig: Rig) -> None:
    put(rig, Put("t", "for ever", b"1"))
    rig.advance(60_000)  # the amnesty of a leader that has just begun
    put(rig, *(Put("t", topic, b"1", expiry_interval_s=10) for topic in ("over", "longer", "deleted", "for ever")))
    put(rig, Put("t", "longer", b"2", expiry_interval_s=1_000), Put("t", "deleted", b""), Put("t", "for ever", b"2"))
    rows = due(rig)
    assert len(rows) == 5
    assert sweep(rig, *rows) == (0, 5)
    assert due(rig) == rows, "nothing has passed"
    rig.advance(rows[0].at_ms - rig.now_ms)
    assert stored(rig) == 3
    before = rig.group.last
    assert sweep(rig, *rows) == (1, 1)
    rig.settle()
    entry = decode_entry(rig.group.name, rig.group.last, rig.group.log[before])
    assert entry.origin is Origin.EXPIRY
    assert found(rig, "#") == ["for ever", "longer"]
    assert stored(rig) == 2
    assert due(rig) == rows[4:]
    assert sweep(rig, *rows[:4]) == (0, 0), "it may be said again"
    rig.advance(1_000_000 + 125_000)
    assert sweep(rig, *due(rig)) == (1, 0)
    assert due(rig) == []
    assert found(rig, "#") == ["for ever"]


def test_a_message_is_due_at_its_end_or_an_eighth_of_its_interval_later() -> None:
    for interval_s in (0, 1, 8, 9, 10, 100, 86_400, 2**32 - 1):
        for expires_ms in (1_700_000_000_000 + 1_000 * interval_s + more for more in (0, 1, 511, 1_023, 65_537)):
            late_ms = retained_due_ms(1_000 * interval_s, expires_ms) - expires_ms
            assert 0 <= late_ms < max(1_024, 125 * interval_s + 1)


def test_a_topic_with_a_put_each_second_has_few_rows_of_what_is_due(rig: Rig) -> None:
    for _ in range(300):
        put(rig, Put("t", "a", b"1", expiry_interval_s=100))
        rig.advance(1_000)
    now_ms = rig.now_ms
    rows = due(rig)
    assert len([one for one in rows if one.at_ms > now_ms]) <= 18
    assert sweep(rig, *rows)[0] == 0
    assert found(rig, "a") == ["a"]
    rig.advance(200_000)
    assert sweep(rig, *due(rig)) == (1, 0)


def test_what_is_due_of_a_message_is_in_its_slot() -> None:
    rig = Rig()
    put(rig, *(Put("t", f"a/{number}", b"1", expiry_interval_s=10) for number in range(20)))
    messages = [RetainedKey("t", f"a/{number}") for number in range(20)]
    slots = sorted(crc & SLOT_MASK for crc in RETAINED.crcs(messages))
    prefix = keys.table_prefix(rig.group.prefix, DUE)
    rig.settle()
    rows = [key for key, _ in contents(rig.group.engine) if key.startswith(prefix)]
    assert sorted(keys.slot_of_key(key[keys.GROUP_PREFIX_BYTES :]) or 0 for key in rows) == slots


@settings(max_examples=100, deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from("abc"), st.sampled_from([None, 0, 1, 5, 60, 4_000]), st.integers(0, 20_000)),
        max_size=25,
    ),
    st.integers(0, 3),
)
def test_every_message_that_expires_is_swept_once_its_time_has_come(
    puts: list[tuple[str, int | None, int]], lag: int
) -> None:
    rig = Rig(lag=lag)
    model: dict[str, int] = {}  # topic -> when it expires, 0: never
    for topic, interval_s, pause_ms in puts:
        put(rig, Put("t", topic, b"1", expiry_interval_s=interval_s))
        model[topic] = 0 if interval_s is None else rig.now_ms + 1_000 * interval_s
        rig.advance(pause_ms)
        passed = [one for one in due(rig) if one.at_ms <= rig.now_ms]
        if len(passed) % 2:
            sweep(rig, *passed)
        assert set(found(rig, "#")) == {one for one, at_ms in model.items() if not at_ms or at_ms > rig.now_ms}
    while rows := due(rig):
        rig.advance(max(1_000, rows[0].at_ms - rig.now_ms))  # during an amnesty nothing has passed
        sweep(rig, *[one for one in rows if one.at_ms <= rig.now_ms])
        rig.settle()
    assert stored(rig) == sum(at_ms == 0 for at_ms in model.values())


@pytest.mark.parametrize(
    ("filter_", "why"), [("", "at least one"), ("a#", "whole level"), ("$share/g/a", "shared"), ("a/#/b", "last level")]
)
def test_a_filter_that_cannot_be_is_refused(rig: Rig, filter_: str, why: str) -> None:
    with pytest.raises(InvalidRequestError, match=f"filter: .*{why}"):
        page(rig, filter_)


def test_tenants_do_not_see_each_other(rig: Rig) -> None:
    put(rig, Put("t", "a", b"1"), Put("t2", "a", b"2"), Put("s", "a", b"3"), Put("t\0", "a", b"4"))
    rig.settle()
    assert [one.payload for one in page(rig, "#").found] == [b"1"]
    assert [one.payload for one in page(rig, "+", tenant="t\0").found] == [b"4"]
    # A cursor of somebody else, or of nobody, leads nowhere else.
    for cursor in (b"\0", b"\0\x02", b"\xff" * 50, b"zzz", b"2\0\x01a"):
        assert {one.tenant for one in page(rig, "#", cursor=cursor).found} <= {"t"}


def test_rows_of_slots_that_the_group_does_not_hold_are_not_shown() -> None:
    rig = Rig()
    put(rig, *(Put("t", f"a/{number}", b"1") for number in range(50)))
    rig.settle()
    keys = [RetainedKey("t", f"a/{number}") for number in range(50)]
    slots = {key.topic: crc & SLOT_MASK for key, crc in zip(keys, RETAINED.crcs(keys), strict=True)}
    gone = slots["a/7"]
    rig.group.initial_slots = slot_bits(slot for slot in range(SLOTS) if slot != gone)
    rig.group.machine = rig.group._machine(rig.group.engine)
    left = {topic for topic, slot in slots.items() if slot != gone}
    assert set(found(rig, "a/+")) == left
    assert set(found(rig, "+/7")) == set()
    assert set(found(rig, "+/8")) == {"a/8"} & left


def test_a_group_refuses_to_answer_for_slots_that_it_does_not_hold() -> None:
    rig = Rig()
    put(rig, *(Put("t", f"a/{number}", b"1") for number in range(50)))
    rig.settle()
    rig.group.initial_slots = slot_bits(range(500))
    rig.group.machine = rig.group._machine(rig.group.engine)

    def asked(slots: bytes) -> list[str]:
        return [one.topic for one in rig.read(methods.RETAINED_MATCH, RetainedMatch("t", "#", slots)).found]

    held = asked(b"")
    assert 10 < len(held) < 40
    assert asked(slot_bits(range(500))) == held
    some = asked(slot_bits(range(100)))
    assert set(some) < set(held)
    assert sorted(some + asked(slot_bits(range(100, 500)))) == held
    for slots in (slot_bits([500]), slot_bits(range(SLOTS)), slot_bits([3, 1023])):
        with pytest.raises(StaleRouteError):
            asked(slots)
    for wrong in (b"\xff", b"\0" * 129):
        with pytest.raises(InvalidRequestError, match="slots"):
            asked(wrong)


def test_a_match_goes_on_behind_a_topic(rig: Rig) -> None:
    topics = ["a", "a!", "a/b", "a/b/c", "b"]
    put(rig, *(Put("t", topic, b"1") for topic in topics))
    rig.settle()
    for at, topic in enumerate(topics):
        reply = rig.read(methods.RETAINED_MATCH, RetainedMatch("t", "#", b"", topic))
        assert [one.topic for one in reply.found] == topics[at + 1 :]


def test_a_match_of_named_topics_goes_on_behind_a_topic(rig: Rig) -> None:
    topics = ["a/b", "a/z", "b/a", "b/b", "b/c", "c/a", "c/b"]
    put(rig, *(Put("t", topic, b"1") for topic in topics))
    rig.settle()
    for after, rest in (("a/a", "abc"), ("a/b", "bc"), ("a/b/", "bc"), ("b/a", "bc"), ("b/b", "c"), ("c/b", "")):
        reply = rig.read(methods.RETAINED_MATCH, RetainedMatch("t", "+/b", b"", after))
        assert [one.topic for one in reply.found] == [f"{one}/b" for one in rest]


@settings(max_examples=300, deadline=None)
@given(FILTERS, st.sets(TOPICS, max_size=40))
@example("+/b", {"a", "a!/b", "a/b", "a0/b"})
@example("a/#", {"a", "a!", "a!/b", "a/", "a/b", "a0"})
@example("#", {"$x", "$x/a", "a"})
def test_a_scan_skips_nothing_that_matches(filter_: str, topics: set[str]) -> None:
    keys = sorted(topic.encode() + b"\0\x01" for topic in topics)
    scan, matched = TopicScan(filter_), []
    at: bytes | None = scan.begin
    while at is not None and (place := bisect.bisect_left(keys, at)) < len(keys):
        found, at = scan.look(keys[place][:-2])
        assert at is None or at > keys[place]
        if found is not None:
            assert found >= keys[place][:-2]
            assert at is None or at > found
            if found.decode() in topics:
                matched.append(found.decode())
    assert matched == sorted((topic for topic in topics if match(filter_, topic)), key=str.encode)


@settings(max_examples=100, deadline=None)
@given(FILTERS, st.sets(TOPICS, max_size=30), st.integers(1, 5))
def test_a_group_finds_what_matches_in_pages(filter_: str, topics: set[str], limit: int) -> None:
    rig = Rig()
    if topics:
        put(rig, *(Put("t", topic, b"1") for topic in topics), *(Put("u", topic, b"2") for topic in topics))
    assert found(rig, filter_, limit) == sorted((t for t in topics if match(filter_, t)), key=str.encode)


class Counting:
    """An engine that counts what is read of it."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.scans = self.rows = self.gets = self.pins = 0

    def pin(self, begin: bytes, end: bytes, *, brief: bool) -> CountingPin:
        assert brief
        self.pins += 1
        return CountingPin(self, self._engine.pin(begin, end, brief=True))

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        self.gets += len(keys)
        return self._engine.get_many(keys)


class CountingPin:
    def __init__(self, counting: Counting, pin: Pin) -> None:
        self._counting = counting
        self._pin = pin

    def scan(self, begin: bytes, end: bytes, limit: int, bytes_max: int) -> list[tuple[bytes, bytes]]:
        rows = self._pin.scan(begin, end, limit, bytes_max)
        self._counting.scans += 1
        self._counting.rows += len(rows)
        return rows

    def close(self) -> None:
        self._counting.pins -= 1
        self._pin.close()


def counted(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> Counting:
    counting = Counting(rig.group.engine)
    monkeypatch.setattr(rig.group.machine.reader, "engine", counting)
    return counting


def fleet(rig: Rig, sites: int, devices: int) -> None:
    for site in range(sites):
        put(rig, *(Put("t", f"site/{site}/device/{device}/state", b"1") for device in range(devices)))
    rig.settle()


def test_a_scan_goes_from_site_to_site_and_reads_nothing_between(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig()
    fleet(rig, 20, 200)
    counting = counted(rig, monkeypatch)
    assert len(found(rig, "site/+/device/7/state")) == 20
    assert counting.rows <= 20 + 2, "of 4,000"
    assert counting.gets == 20
    assert counting.pins == 0, "each was closed"


def test_one_page_is_bounded_work_whatever_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig()
    fleet(rig, 20, 200)
    counting = counted(rig, monkeypatch)
    for filter_ in (
        "+/+/+/+/none",
        "#",
        "+/" * 255 + "#",
        "site/+/+/+/state/+",
        "+/+/+/7/#",
        "$none/#",
        "site/+/device/+/state",
    ):
        cursor, pages, expected = b"", 0, [t for t in found(rig, "#") if match(filter_, t)]
        topics: list[str] = []
        while pages == 0 or cursor:
            before = counting.scans, counting.rows, counting.gets
            spent = rig.group.machine.reader.spent
            reply = page(rig, filter_, 10_000, cursor)
            topics += [one.topic for one in reply.found]
            cursor, pages = reply.cursor, pages + 1
            assert counting.scans - before[0] <= 130
            assert counting.rows - before[1] <= 700
            assert counting.gets - before[2] <= 64
            assert rig.group.machine.reader.spent - spent <= 800
        assert topics == expected
