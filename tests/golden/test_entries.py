"""Entries of the log outlive the version that wrote them, so their bytes are pinned."""

from __future__ import annotations

import msgspec
import pytest

from metad.errors import DamagedStoreError, StorageError
from metad.raft.log.journal import REGULAR, record
from metad.state.core.entry import ENTRY_FORMAT, Entry, decode_entry
from metad.state.core.part import Origin, Writes
from metad.state.registry import PARTS
from metad_wire.watch import MarkerStep, SlotMarker

# format, origin, now_ms, writes, heard, revision; marker, previous
ROWS = [
    (Entry(3, Origin.CLIENT, 0, {}, {}, 7), "9603000080" + "80" + "07"),
    (
        Entry(3, Origin.CLIENT, 1, {b"k": b"v", b"gone": None}, {}, 128),
        "96030001" + "82c4016bc40176c404676f6e65c0" + "80" + "cc80",
    ),
    (Entry(3, Origin.MIGRATION, 1, {}, {0x10: {b"k": b"v"}}, 7), "9603010180" + "811081c4016bc40176" + "07"),
    (Entry(3, Origin.CONTROLLER, 1, {b"a": b""}, {2: {b"k": None}}), "96030301" + "81c40161c400" + "810281c4016bc000"),
    (
        Entry(3, Origin.MIGRATION, 1, {}, {}, 7, SlotMarker(MarkerStep.ADOPTED, 5, b"\x80", 2, 300)),
        "980301018080" + "07" + "950305c4018002cd012c" + "80",
    ),
    (
        Entry(3, Origin.CLIENT, 1, {}, {0x10: {b"k": b"v"}}, 7, None, {0x10: [(b"", [])]}),
        "9803000180" + "811081c4016bc40176" + "07c0" + "811091" + "92c40090",
    ),
    (
        Entry(3, Origin.CLIENT, 1, {}, {0x10: {b"k": b"v", b"l": None}}, 7, None, {0x10: [(b"u", [1]), (b"v", [0])]}),
        "9803000180" + "811082c4016bc40176c4016cc0" + "07c0" + "811092" + "92c4017591" + "01" + "92c4017691" + "00",
    ),
]
CHECKED = [  # with all fields, and a checksum of what is in front of it
    (Entry(4, Origin.CLIENT, 0, {}, {}, 7), "9904000080" + "80" + "07c080" + "ce67a9e716"),
    (
        Entry(4, Origin.CLIENT, 1, {b"k": b"v"}, {0x10: {b"k": b"v"}}, 7, None, {0x10: [(b"", [])]}),
        "9904000181c4016bc40176" + "811081c4016bc40176" + "07c0" + "811091" + "92c40090" + "ce2032c048",
    ),
]
OLDER = [  # as they were before they had a revision
    (Entry(3, Origin.CLIENT, 0, {}, {}), "9503000080" + "80"),
    (Entry(3, Origin.MIGRATION, 1, {}, {0x10: {b"k": b"v"}}), "9503010180" + "811081c4016bc40176"),
]


@pytest.mark.parametrize(
    ("entry", "golden"), ROWS, ids=[f"{entry.origin.name}-{i}" for i, (entry, _) in enumerate(ROWS)]
)
def test_golden_bytes(entry: Entry, golden: str) -> None:
    assert entry.encoded().hex() == golden
    assert decode_entry("data-0", 7, record(1, REGULAR, bytes.fromhex(golden))) == entry


@pytest.mark.parametrize(("entry", "golden"), CHECKED)
def test_golden_bytes_with_a_checksum(entry: Entry, golden: str) -> None:
    assert entry.encoded().hex() == golden
    assert decode_entry("data-0", 7, record(1, REGULAR, bytes.fromhex(golden))) == entry


@pytest.mark.parametrize("at", [3, 6, 8, -5, -1])
def test_an_entry_that_is_not_what_its_leader_made_is_refused(at: int) -> None:
    """Wherever a byte has changed, and also if what is left can be decoded."""
    data = bytearray(CHECKED[1][0].encoded())
    data[at] ^= 1
    with pytest.raises(DamagedStoreError, match="entry 7 of group data-0"):
        decode_entry("data-0", 7, record(1, REGULAR, bytes(data)))


@pytest.mark.parametrize(("entry", "golden"), OLDER)
def test_older_entries_stay_readable(entry: Entry, golden: str) -> None:
    assert decode_entry("data-0", 7, record(1, REGULAR, bytes.fromhex(golden))) == entry


class EntryOfFiveFields(msgspec.Struct, array_like=True):
    """An entry as a version without revisions reads it."""

    format: int
    origin: Origin
    now_ms: int
    writes: Writes
    heard: dict[int, Writes]


@pytest.mark.parametrize(("entry", "golden"), ROWS)
def test_older_versions_read_what_they_know_of_an_entry(entry: Entry, golden: str) -> None:
    read = msgspec.msgpack.decode(bytes.fromhex(golden), type=EntryOfFiveFields)
    assert msgspec.structs.astuple(read) == msgspec.structs.astuple(entry)[:5]


def test_the_rows_that_entries_hold_apart_belong_to_the_format() -> None:
    """An entry of a row that becomes one of these is in logs already, among the writes that nobody looks at."""
    rows = {row for part in PARTS for row in part.rows}
    cluster = {*range(0x0C), 0x0D, 0x0E}
    assert (ENTRY_FORMAT, rows) == (3, cluster | {0x10, 0x22, 0x23, 0x31, 0x32, 0x62, 0x63})


@pytest.mark.parametrize(
    ("payload", "message"),
    [
        (msgspec.msgpack.encode([2, 1_700_000_000_000, {b"k": b"v"}, {}]), "format 2, this version reads 3 to 4"),
        (msgspec.msgpack.encode([5, 0, 0, {}, {}, "more"]), "format 5, this version reads 3 to 4"),
        (
            msgspec.msgpack.encode([5, 0, 0, {b"k": b"v"}, {}]),
            "format 5, this version reads 3 to 4",
        ),  # it can be decoded
        (msgspec.msgpack.encode([2, 0, 0, {b"k": b"v"}, {}]), "format 2, this version reads 3 to 4"),
        (msgspec.msgpack.encode([3, 4, 0, {}, {}]), "unreadable"),  # no origin is known by this number yet
        (msgspec.msgpack.encode([3, 0, 0, {}]), "unreadable"),
        (b"\xc1", "unreadable"),
    ],
)
def test_other_entries_are_refused(payload: bytes, message: str) -> None:
    with pytest.raises(StorageError, match=f"entry 7 of group data-0.*{message}"):
        decode_entry("data-0", 7, record(1, REGULAR, payload))
