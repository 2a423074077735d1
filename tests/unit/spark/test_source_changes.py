"""Changes become columns, each kind of row by itself, and a token says how far each group is."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any

import pytest

from metad_client import GroupId, SessionOwner, SessionProperties, WatchChange, WatchRows
from metad_client.watch.events import WatchBatch
from metad_client.watch.position import ALL, NOBODY, Position, Reader
from metad_client.watch.token import packed_slots, to_text
from metad_spark.source import changes
from metad_spark.source.errors import LostChangesError
from metad_spark.source.options import Settings
from metad_spark.source.schema import arrow_of, changes_schema_of
from metad_spark.source.shapes import shape_of
from metad_wire.method import encode
from metad_wire.table import TABLES
from metad_wire.watch import WatchEntry

SESSION = shape_of("session")
SCHEMA = arrow_of(changes_schema_of("session"))
SETTINGS = Settings(source="metad://a:1", table="session")


def key(client: str) -> bytes:
    return TABLES["session"].key_of(["acme", client])


def collected(*, columns: list[str] | None = None, **given: Any) -> list[dict[str, Any]]:
    schema = SCHEMA if columns is None else SCHEMA.empty_table().select(columns).schema
    collector = changes._Collector(SESSION, schema)
    for batch in given.get("batches", ()):
        collector.add(batch)
    for rows, changed in given.get("rows", ()):
        collector.add_rows(rows, changed, 40)
    return [record for table in collector.tables() for record in table.to_pylist()]


def batch(*entries: tuple[int, list[WatchChange]]) -> WatchBatch:
    found = [(WatchEntry(index, index * 10, index * 100, of), of) for index, of in entries]
    return WatchBatch("changes", "data-0", "cluster", {}, entries=found)


def test_each_change_is_a_row_with_the_columns_of_its_row() -> None:
    owner, properties = SessionOwner(True, "b-1", 7, 0), SessionProperties(5, b"x")
    created = [WatchChange(16, 1, key("a"), encode(owner)), WatchChange(17, 1, key("a"), encode(properties))]
    found = collected(batches=[batch((3, created), (4, [WatchChange(16, 4, key("a"))]))])
    assert [(row["client_id"], row["row"], row["change"], row["revision"], row["time_ms"]) for row in found] == [
        ("a", "owner", "created", 30, 300),
        ("a", "owner", "expired", 40, 400),
        ("a", "properties", "created", 30, 300),
    ]
    assert [(row["broker"], row["payload"]) for row in found] == [("b-1", None), (None, None), (None, b"x")]
    assert all(row["slot"] == TABLES["session"].slot_of(key("a")) for row in found)


def test_only_wanted_columns() -> None:
    found = collected(columns=["change", "client_id"], batches=[batch((1, [WatchChange(16, 3, key("a"))]))])
    assert found == [{"change": "deleted", "client_id": "a"}]


def test_rows_that_have_changed_are_left_out_of_the_beginning() -> None:
    rows = WatchRows(16, [key("a"), key("b")], [encode(SessionOwner(True, "b-1", 7, 0))] * 2)
    found = collected(rows=[(rows, {(16, key("a")), (17, key("b"))})])
    assert [(row["client_id"], row["change"], row["revision"], row["time_ms"]) for row in found] == [
        ("b", "snapshot", 40, 0)
    ]


def test_a_token_says_how_far_each_group_is_and_what_to_read_first() -> None:
    half = ALL >> 512
    position = Position({0: 5, 3: 9}, {Reader(0, 0): ALL & ~half, Reader(3, 2): half})
    token = to_text("cluster", {"data": (position.indexes, packed_slots(position))})
    assert changes.indexes_of(token) == {"data-0": 5, "data-3": 9}
    shares = {share.group: share for share in changes.shares(token, SESSION)}
    assert set(shares) == {GroupId("data", 0), GroupId("data", 3)}
    assert shares[GroupId("data", 3)].slots == half.to_bytes(128, "big")
    assert all(share.least == {"data-0": 5, "data-3": 9} for share in shares.values())
    missing = Position({0: 5}, {Reader(0, 0): ALL & ~half, Reader(NOBODY, 1): half})
    token = to_text("cluster", {"data": (missing.indexes, packed_slots(missing))})
    assert [share.ordinal for share in changes.shares(token, SESSION)] == [0]


def test_what_is_in_no_slot_is_read_once_wherever_slots_are() -> None:
    first, last = 1 << 1023, ALL >> 512
    position = Position({0: 5, 1: 9}, {Reader(0, 0): ALL & ~last & ~2, Reader(0, 7): 2, Reader(1, 2): last & ~2})
    token = to_text("cluster", {"metadata": (position.indexes, packed_slots(position))})
    assert len(changes.shares(token, shape_of("topic_settings"))) == 3
    for name in ("broker", "cluster", "declaration"):
        (share,) = changes.shares(token, shape_of(name))
        assert (share.group, share.slots) == (GroupId("metadata", 0), first.to_bytes(128, "big"))


HALF = ALL >> 512
BOTH = {Reader(0, 0): ALL & ~HALF, Reader(1, 0): HALF}


def token_of(indexes: dict[int, int], readers: dict[Reader, int]) -> str:
    position = Position(indexes, readers)
    return to_text("cluster", {"data": (position.indexes, packed_slots(position))})


def test_a_batch_has_a_task_for_each_group_and_range_of_its_slots() -> None:
    begin, end = token_of({0: 5, 1: 9}, BOTH), token_of({0: 7, 1: 12}, BOTH)
    first, second = changes.pieces(begin, end, SESSION, 1)
    assert [(piece.end, piece.slots) for piece in (first, second)] == [(end, b"")] * 2
    assert changes.indexes_of(first.begin) == {"data-0": 5, "data-1": 12}
    assert changes.indexes_of(second.begin) == {"data-0": 7, "data-1": 9}
    four = changes.pieces(begin, end, SESSION, 2)
    assert [piece.begin for piece in four] == [first.begin] * 2 + [second.begin] * 2
    slots = [int.from_bytes(piece.slots, "big") for piece in four]
    assert (slots[0] | slots[1], slots[0] & slots[1], slots[2] | slots[3]) == (ALL & ~HALF, 0, HALF)


def test_a_group_in_which_nothing_has_happened_has_no_task() -> None:
    begin, end = token_of({0: 5, 1: 9}, BOTH), token_of({0: 5, 1: 12}, BOTH)
    (only,) = changes.pieces(begin, end, SESSION, 1)
    assert changes.indexes_of(only.begin) == {"data-0": 5, "data-1": 9}
    new = token_of({0: 7, 1: 9, 2: 4}, BOTH)  # a group that holds nothing yet
    assert [changes.indexes_of(piece.begin) for piece in changes.pieces(begin, new, SESSION, 1)] == [
        {"data-0": 5, "data-1": 9, "data-2": 4}
    ]


@pytest.mark.parametrize(
    "after",
    [
        {Reader(0, 0): ALL & ~HALF & ~(1 << 1023), Reader(1, 0): HALF, Reader(1, 7): 1 << 1023},
        {Reader(0, 0): ALL & ~HALF, Reader(1, 0, sealed=3): HALF},
        {Reader(0, 0): ALL & ~HALF, Reader(NOBODY, 1): HALF},
    ],
)
def test_where_slots_move_one_task_reads_all_groups_in_order(after: dict[Reader, int]) -> None:
    begin, end = token_of({0: 5, 1: 9}, BOTH), token_of({0: 7, 1: 12}, after)
    assert changes.pieces(begin, end, SESSION, 4) == [changes.Piece(begin, end)]
    begin = token_of({0: 5, 1: 9}, after)
    whole = Reader(1, 7) in after  # they have moved before, and stay
    assert len(changes.pieces(begin, end, SESSION, 1)) == (2 if whole else 1)


def test_a_task_takes_only_changes_of_its_slots() -> None:
    slot = TABLES["session"].slot_of(key("a"))
    assert slot is not None
    collector = changes._Collector(SESSION, SCHEMA, 1 << (1023 - slot))
    other = next(name for name in map(str, range(100)) if TABLES["session"].slot_of(key(name)) != slot)
    collector.add(batch((1, [WatchChange(16, 3, key("a")), WatchChange(16, 3, key(other))])))
    assert [row["client_id"] for table in collector.tables() for row in table.to_pylist()] == ["a"]


def test_a_page_is_given_out_before_the_next_one_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """A task held all of its batch: 500,000 changes, and their columns, at once."""
    watch: Any = _Watch(CHANGE, mark(), CHANGE, CHANGE)

    @contextlib.asynccontextmanager
    async def opened(_: object) -> AsyncIterator[_Watch]:
        yield watch

    monkeypatch.setattr(changes, "opened", opened)
    monkeypatch.setattr(changes, "_ROWS", 1)
    found = changes.read(SETTINGS, SESSION, changes.Piece("a", "b"), SCHEMA)
    assert next(found).num_rows == 1
    assert watch.taken == 1
    assert sum(each.num_rows for each in found) == 2
    (watch.taken, watch.batches) = (0, [CHANGE, WatchBatch("gap", "data-0", "cluster", {}, slots=3)])
    with pytest.raises(LostChangesError):
        list(changes.read(SETTINGS, SESSION, changes.Piece("a", "b"), SCHEMA))


def test_the_time_of_a_change_is_a_timestamp() -> None:
    (found,) = collected(batches=[batch((2, [WatchChange(16, 3, key("a"))]))])
    assert found["change_time"] == datetime.fromtimestamp(0.2, UTC)
    (found,) = collected(rows=[(WatchRows(16, [key("b")], [encode(SessionOwner(True, "b-1", 7, 0))]), set())])
    assert found["change_time"] is None


def test_changes_that_are_lost_end_the_query() -> None:
    with pytest.raises(LostChangesError, match=r"changes of 2 slots of data-0 are in no log any more: begin again"):
        changes.check(WatchBatch("gap", "data-0", "cluster", {}, slots=3), SETTINGS)
    changes.check(batch(), SETTINGS)


class _Watch:
    """One that has these batches, and is settled from some number of them on."""

    def __init__(self, *batches: WatchBatch, settled_at: int = 0) -> None:
        self.batches = list(batches)
        self.taken = 0
        self.settled_at = settled_at

    @property
    def token(self) -> str:
        return f"token {self.taken}"

    @property
    def is_settled(self) -> bool:
        return self.taken >= self.settled_at

    async def __aenter__(self) -> _Watch:
        return self

    async def __aexit__(self, *_: object) -> None:
        pass

    def __aiter__(self) -> _Watch:
        return self

    async def __anext__(self) -> WatchBatch:
        if self.taken == len(self.batches):
            raise StopAsyncIteration
        self.taken += 1
        return self.batches[self.taken - 1]

    def watch(self, *_: object, **__: object) -> _Watch:
        """The client's."""
        return self


def mark(age_ms: float = 0.0) -> WatchBatch:
    return WatchBatch("progress", "", "cluster", {}, age_ms=age_ms)


CHANGE = batch((1, [WatchChange(16, 3, key("a"))]))


def test_a_stream_with_a_target_ends_there_and_never_earlier() -> None:
    """It ended at the first mark whose age was 0, because a group had said nothing yet: 164,407 of 500,000 keys."""
    watch: Any = _Watch(mark(), CHANGE, mark(), CHANGE)
    assert asyncio.run(changes.next_token(watch, SETTINGS, 0, None)) == ("token 4", 2)
    watch = _Watch(mark(), CHANGE, mark(), CHANGE)
    assert asyncio.run(changes.next_token(watch, SETTINGS, 1, None)) == ("token 2", 1)


def test_a_stream_without_a_target_takes_a_batch_up_to_a_moment() -> None:
    watch: Any = _Watch(mark(1e12), CHANGE, mark(), CHANGE)
    assert asyncio.run(changes.next_token(watch, SETTINGS, 0, 0.0)) == ("token 3", 1)


def test_now_is_where_every_slot_is_read() -> None:
    """A target with a slot that is missing, or on its way, would end the stream without what its group has."""
    at = WatchBatch("progress", "", "cluster", {"data": ({0: 5}, packed_slots(Position({0: 5}, {Reader(0, 0): ALL})))})
    watch: Any = _Watch(mark(), CHANGE, at, settled_at=3)
    assert asyncio.run(changes.here(watch, SETTINGS, SESSION)) == at.token
