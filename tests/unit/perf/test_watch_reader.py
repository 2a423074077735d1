"""One watch of the watch run: it tells the judge exactly what the batches say."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from metad_client import WatchBatch
from metad_perf.watch.judge import Verdict
from metad_perf.watch.places import KINDS, Cell, Kind, Place
from metad_perf.watch.reader import Delays, Reader
from metad_perf.watch.track import Outcome, Stamp, Track, stamped
from metad_wire import messages as m
from metad_wire.cluster import SLOTS
from metad_wire.tables.kv import KV
from metad_wire.tables.offset import OFFSET
from metad_wire.tables.session import SESSION
from metad_wire.watch import ChangeKind, WatchChange, WatchEntry, WatchRows

RUN = 77


class Scene:
    """A place, its records' writes, and a reader that gets batches of the SDK."""

    def __init__(self, kind: Kind, *, previous: bool = False) -> None:
        self.place = Place(kind, "w0-1", 4, 10)
        self.verdict = Verdict()
        self.delays = Delays()
        self.reader = Reader(
            None,  # type: ignore[arg-type]  # nothing is asked of the client
            self.place,
            "watch",
            run=RUN,
            previous=previous,
            verdict=self.verdict,
            delays=lambda: self.delays,
            rng=random.Random(1),
        )
        self.index = 100

    def cell(self, n: int = 0) -> Cell:
        return self.place.cells[n]

    def write(self, track: Track, *, deletes: bool = False, name: Any = None) -> int:
        index = track.write(time.perf_counter_ns(), deletes=deletes, name=name)
        track.settle(index, Outcome.ACKNOWLEDGED, time.perf_counter_ns())
        return index

    def kv(self, cell: Cell, index: int, *, version: int | None = None, stamp: Stamp | None = None) -> bytes:
        """The encoded record that a put has made."""
        key, track = cell.key, cell.tracks[0]
        assert isinstance(key, m.KvKey)
        value = stamped(RUN, stamp or Stamp(track.number, index), 50)
        version = track.versions[index] if version is None else version
        return msgspec.msgpack.encode(m.Kv(key.namespace, key.key, value, version, 1, 1))

    def change(
        self, cell: Cell, value: bytes | None, kind: ChangeKind, row: str = "record", **more: Any
    ) -> WatchChange:
        return WatchChange(_ROWS[row], kind, _encoded(cell.key), value, **more)

    def get(self, *changes: WatchChange) -> None:
        """A batch of one entry."""
        self.index += 1
        entry = WatchEntry(self.index, self.index, 1, list(changes))
        self.reader.take(WatchBatch("changes", "data-0", "c", {}, entries=[(entry, changes)]))

    def get_rows(
        self, rows: Sequence[tuple[Cell, bytes]], *, first: bool = True, last: bool = True, slots: int | None = None
    ) -> None:
        """A batch of a snapshot of all slots, or of these."""
        keys, values = [_encoded(cell.key) for cell, _ in rows], [value for _, value in rows]
        columns = [WatchRows(_ROWS["record"], keys, list(values))] if rows else []
        self.reader.take(
            WatchBatch(
                "snapshot",
                "data-0",
                "c",
                {},
                rows=columns,
                slots=_ALL_SLOTS if slots is None else slots,
                first=first,
                last=last,
            )
        )

    def found(self) -> dict[str, int]:
        self.reader.judge.close()
        kinds = ("missed", "repeated", "out_of_order", "phantom", "wrong", "split")
        return {kind: count for kind in kinds if (count := getattr(self.verdict, kind))}


_ALL_SLOTS = (1 << SLOTS) - 1
_ROWS = {
    "record": KV.rows["record"],
    "owner": SESSION.rows["owner"],
    "properties": SESSION.rows["properties"],
    "offset": OFFSET.rows["offset"],
}


def _encoded(key: Any) -> bytes:
    table = {m.KvKey: KV, m.SessionKey: SESSION, m.OffsetKey: OFFSET}[type(key)]
    return table.key_of(list(msgspec.structs.astuple(key)))


@pytest.fixture
def scene() -> Scene:
    return Scene(Kind.NAMESPACE)


def test_puts_and_deletions_are_known_again(scene: Scene) -> None:
    cell = scene.cell()
    track = cell.tracks[0]
    scene.get(scene.change(cell, scene.kv(cell, scene.write(track)), ChangeKind.CREATED))
    scene.get(scene.change(cell, scene.kv(cell, scene.write(track)), ChangeKind.CHANGED))
    scene.write(track, deletes=True)
    scene.get(scene.change(cell, None, ChangeKind.DELETED))
    assert scene.found() == {}
    assert (scene.verdict.delivered, scene.delays.sent.count, scene.delays.acknowledged.count) == (3, 3, 3)


def test_values_that_nobody_wrote_are_phantoms(scene: Scene) -> None:
    cell, other = scene.cell(0), scene.cell(1)
    index = scene.write(cell.tracks[0])
    good = scene.kv(cell, index)
    scene.get(scene.change(cell, scene.kv(cell, index, stamp=Stamp(99, index)), ChangeKind.CREATED))
    scene.get(scene.change(other, good, ChangeKind.CREATED))  # of another key
    assert scene.found() == {"phantom": 2, "missed": 1}


def test_a_record_that_is_not_watched_is_a_phantom(scene: Scene) -> None:
    stranger = Cell(m.KvKey("elsewhere", "k"), (Track("k", 9, 0),))
    scene.get(scene.change(stranger, None, ChangeKind.DELETED))
    assert scene.found() == {"phantom": 1}


def test_a_wrong_kind_and_a_wrong_version_are_seen(scene: Scene) -> None:
    cell = scene.cell()
    scene.get(scene.change(cell, scene.kv(cell, scene.write(cell.tracks[0])), ChangeKind.CHANGED))
    scene.get(scene.change(cell, scene.kv(cell, scene.write(cell.tracks[0]), version=7), ChangeKind.CHANGED))
    assert scene.found() == {"wrong": 2}


@pytest.mark.parametrize(("said", "faults"), [(0, {}), (None, {"wrong": 1}), (1, {"wrong": 1})])
def test_a_wrong_previous_value_is_seen(said: int | None, faults: dict[str, int]) -> None:
    scene = Scene(Kind.NAMESPACE, previous=True)
    cell = scene.cell()
    scene.write(cell.tracks[0])
    scene.get(scene.change(cell, scene.kv(cell, 0), ChangeKind.CREATED, previous_known=True))
    scene.write(cell.tracks[0])
    previous = None if said is None else scene.kv(cell, said)
    scene.get(scene.change(cell, scene.kv(cell, 1), ChangeKind.CHANGED, previous=previous, previous_known=True))
    assert scene.found() == faults


def test_a_transaction_in_two_batches_is_split(scene: Scene) -> None:
    cells = [scene.cell(0), scene.cell(1)]
    changes = []
    for cell in cells:
        index = scene.write(cell.tracks[0])
        stamp = Stamp(cell.tracks[0].number, index, 5, 2)
        changes.append(scene.change(cell, scene.kv(cell, index, stamp=stamp), ChangeKind.CREATED))
    scene.get(*changes)
    assert scene.verdict.split == 0
    for cell, n in zip(cells, (6, 6), strict=True):
        index = scene.write(cell.tracks[0])
        stamp = Stamp(cell.tracks[0].number, index, n, 2)
        scene.get(scene.change(cell, scene.kv(cell, index, stamp=stamp), ChangeKind.CHANGED))
    assert scene.found() == {"split": 2}


def test_sessions_have_two_rows() -> None:
    scene = Scene(Kind.SESSIONS)
    cell = scene.cell()
    owner, properties = cell.tracks
    scene.write(owner, name=("b", 3, True))
    index = scene.write(properties)
    value = m.SessionProperties(1, stamped(RUN, Stamp(properties.number, index), 30))
    encode = msgspec.msgpack.encode
    scene.get(
        scene.change(cell, encode(m.SessionOwner(True, "b", 3, 0)), ChangeKind.CREATED, "owner"),
        scene.change(cell, encode(value), ChangeKind.CREATED, "properties"),
    )
    scene.write(owner, name=("b", 3, False))
    scene.get(scene.change(cell, encode(m.SessionOwner(False, "b", 3, 99)), ChangeKind.CHANGED, "owner"))
    assert scene.verdict.faults == 0
    scene.get(scene.change(cell, encode(m.SessionOwner(True, "b", 4, 0)), ChangeKind.CHANGED, "owner"))
    assert scene.found() == {"phantom": 1}


def test_offsets_say_which_write_they_are() -> None:
    scene = Scene(Kind.OFFSETS)
    cell = scene.cell()
    key = cell.key
    assert isinstance(key, m.OffsetKey)
    for _ in range(2):
        index = scene.write(cell.tracks[0])
        offset = m.Offset(key.tenant, key.group, key.topic, key.partition, index, 0, 1, "")
        scene.get(scene.change(cell, msgspec.msgpack.encode(offset), ChangeKind.WRITTEN, "offset"))
    assert scene.found() == {}


def test_a_gap_and_its_snapshot_in_parts(scene: Scene) -> None:
    cells = [scene.cell(n) for n in range(3)]
    for cell in cells:
        scene.get(scene.change(cell, scene.kv(cell, scene.write(cell.tracks[0])), ChangeKind.CREATED))
    for cell in cells:
        scene.write(cell.tracks[0]), scene.write(cell.tracks[0])
    scene.reader.take(WatchBatch("gap", "data-0", "c", {}, slots=_ALL_SLOTS))
    scene.get_rows([(cells[2], scene.kv(cells[2], 0))], last=False)  # void, because another begins
    scene.get_rows([(cells[0], scene.kv(cells[0], 2))], last=False)
    assert not scene.reader.judge.complete()
    scene.get_rows([(cell, scene.kv(cell, 2)) for cell in cells[1:]], first=False)
    assert scene.reader.judge.complete()
    assert scene.found() == {}
    assert (scene.verdict.gaps, scene.verdict.excused) == (1, 3)


def test_rows_of_slots_that_the_last_batch_does_not_name_are_in_vain(scene: Scene) -> None:
    cell = scene.cell()
    for _ in range(2):
        scene.get(scene.change(cell, scene.kv(cell, scene.write(cell.tracks[0])), _kind(cell)))
    scene.get_rows([(cell, scene.kv(cell, 0))], last=False)
    scene.get_rows([], first=False, slots=0)
    assert scene.found() == {}


def test_a_row_of_a_slot_that_its_batch_does_not_name_is_a_phantom(scene: Scene) -> None:
    cell = scene.cell()
    scene.get(scene.change(cell, scene.kv(cell, scene.write(cell.tracks[0])), _kind(cell)))
    scene.get_rows([(cell, scene.kv(cell, 0))], slots=0)
    assert scene.found() == {"phantom": 1}


def _kind(cell: Cell) -> ChangeKind:
    return ChangeKind.CREATED if len(cell.tracks[0]) == 1 else ChangeKind.CHANGED


def test_a_snapshot_that_lacks_a_record_is_seen(scene: Scene) -> None:
    cell = scene.cell()
    scene.get(scene.change(cell, scene.kv(cell, scene.write(cell.tracks[0])), ChangeKind.CREATED))
    scene.reader.take(WatchBatch("gap", "data-0", "c", {}, slots=_ALL_SLOTS))
    scene.get_rows([])
    assert scene.found() == {"missed": 1}


def test_every_kind_of_place_has_a_watch() -> None:
    class Client:
        def __init__(self) -> None:
            self.asked: list[dict[str, Any]] = []

        def watch(self, tables: list[str], **said: Any) -> None:
            self.asked.append({"tables": tables} | said)

    client = Client()
    for n, kind in enumerate(KINDS[:5]):
        place = Place(kind, f"w0-{n}", 2, 0)
        Reader(
            client,  # type: ignore[arg-type]
            place,
            "watch",
            run=RUN,
            previous=False,
            verdict=Verdict(),
            delays=Delays,
            rng=random.Random(1),
        ).watch()
    assert [one["tables"] for one in client.asked] == [["kv"], ["session"], ["offset"], ["kv"], ["kv"]]
    assert [one.get("tenant") for one in client.asked] == ["w0-0", "w0-1", "w0-2", "shared-w0", None]
    assert client.asked[3]["prefix"] == "w0-3/"
    assert client.asked[4]["keys"] == [m.KvKey("w0-4", "key-0"), m.KvKey("w0-4", "key-1")]
