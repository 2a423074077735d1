"""Entries of the log outlive the version that wrote them, so their bytes are pinned."""

from __future__ import annotations

import msgspec
import pytest

from metad.errors import DamagedStoreError
from metad.raft.journal import REGULAR, record
from metad.state.entry import ENTRY_FORMAT, Entry, decode_entry
from metad.state.part import Origin
from metad.state.registry import PARTS
from metad_wire.methods import encode

# format, origin, now_ms, writes, heard
ROWS = [
    (Entry(3, Origin.CLIENT, 0, {}, {}), "9503000080" + "80"),
    (Entry(3, Origin.CLIENT, 1, {b"k": b"v", b"gone": None}, {}), "95030001" + "82c4016bc40176c404676f6e65c0" + "80"),
    (Entry(3, Origin.MIGRATION, 1, {}, {0x10: {b"k": b"v"}}), "9503010180" + "811081c4016bc40176"),
    (Entry(3, Origin.CONTROLLER, 1, {b"a": b""}, {2: {b"k": None}}), "95030301" + "81c40161c400" + "810281c4016bc0"),
]


@pytest.mark.parametrize(
    ("entry", "golden"), ROWS, ids=[f"{entry.origin.name}-{i}" for i, (entry, _) in enumerate(ROWS)]
)
def test_golden_bytes(entry: Entry, golden: str) -> None:
    assert encode(entry).hex() == golden
    assert decode_entry("data-0", 7, record(1, REGULAR, bytes.fromhex(golden))) == entry


def test_the_rows_that_entries_hold_apart_belong_to_the_format() -> None:
    """An entry of a row that becomes one of these is in logs already, among the writes that nobody looks at."""
    assert (ENTRY_FORMAT, {row for part in PARTS for row in part.rows}) == (3, {0x00, 0x01, 0x02, 0x10})


@pytest.mark.parametrize(
    ("payload", "message"),
    [
        (msgspec.msgpack.encode([2, 1_700_000_000_000, {b"k": b"v"}, {}]), "format 2, this version reads 3"),
        (msgspec.msgpack.encode([4, 0, 0, {}, {}, "more"]), "format 4, this version reads 3"),
        (msgspec.msgpack.encode([3, 2, 0, {}, {}]), "unreadable"),  # no origin is known by this number yet
        (msgspec.msgpack.encode([3, 0, 0, {}]), "unreadable"),
        (b"\xc1", "unreadable"),
    ],
)
def test_other_entries_are_refused(payload: bytes, message: str) -> None:
    with pytest.raises(DamagedStoreError, match=f"entry 7 of group data-0.*{message}"):
        decode_entry("data-0", 7, record(1, REGULAR, payload))
