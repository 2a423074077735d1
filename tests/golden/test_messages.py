"""The wire format is what these bytes say. Whoever makes a test here fail has broken every deployed peer."""

from __future__ import annotations

import inspect
import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from golden_rows import (
    FRAMES,
    MESSAGES,
    MODULES,
    RAFT,
    SNAPSHOTS,
    Row,
    encode_frame_row,
    is_whole,
    message_type,
    message_value,
    rows,
)

from metad_wire import errors, messages
from metad_wire.connection.frame import FrameDecoder, FrameType
from metad_wire.declaration import Record

ROWS = rows(MESSAGES)
FRAME_ROWS = rows(FRAMES)
MESSAGE_CLASSES = [
    *(
        class_
        for module in MODULES
        for _, class_ in inspect.getmembers(module, inspect.isclass)
        if messages.Message in class_.__mro__[1:] and class_.__module__ == module.__name__ and class_ is not Record
    ),
    errors.ErrorBody,
]
each_frame = pytest.mark.parametrize("row", FRAME_ROWS, ids=[row.name for row in FRAME_ROWS])


def objections(check: Callable[[Row], None]) -> list[str]:
    """What a check has against rows. One test looks at all of them: a test for each row of each check would be a sixth
    of all tests."""
    found = []
    for number, row in enumerate(ROWS):
        try:
            check(row)
        except (AssertionError, msgspec.MsgspecError) as error:
            found.append(f"{row.name}-{number}: {error!r:.2000}")
    return found


def test_every_message_has_a_row_with_all_its_fields() -> None:
    whole = {row.name.partition("[")[0] for row in ROWS if is_whole(row)}
    assert [class_.__name__ for class_ in MESSAGE_CLASSES if class_.__name__ not in whole] == []


def test_encodes_to_the_golden_bytes() -> None:
    def check(row: Row) -> None:
        data = msgspec.msgpack.encode(message_value(row))
        if is_whole(row):
            assert data.hex() == row.hex
        else:
            assert len(data) > len(row.hex) // 2

    assert objections(check) == []


def test_decodes_from_the_golden_bytes() -> None:
    def check(row: Row) -> None:
        assert msgspec.msgpack.decode(bytes.fromhex(row.hex), type=message_type(row.name)) == message_value(row)

    assert objections(check) == []


def test_a_newer_peer_may_append_fields() -> None:
    def check(row: Row) -> None:
        whole = msgspec.msgpack.encode(message_value(row))
        array = [*msgspec.msgpack.decode(whole), {"a": [1, b"\x00"]}, None, "later"]
        assert msgspec.msgpack.decode(msgspec.msgpack.encode(array), type=message_type(row.name)) == message_value(row)

    assert objections(check) == []


def test_an_older_peer_may_lack_optional_fields_and_no_others() -> None:
    def check(row: Row) -> None:
        type_ = message_type(row.name)
        fields = msgspec.structs.fields(type_)
        array = msgspec.msgpack.decode(bytes.fromhex(row.hex))
        required = sum(field.required for field in fields)
        for kept in range(len(array)):
            try:
                value = msgspec.msgpack.decode(msgspec.msgpack.encode(array[:kept]), type=type_)
            except msgspec.ValidationError:
                assert kept < required, f"{kept} of {len(array)} fields"
                continue
            assert kept >= required, f"{kept} of {len(array)} fields"
            for field in fields[kept:]:
                default = field.default_factory() if field.default is msgspec.NODEFAULT else field.default
                assert getattr(value, field.name) == default

    assert objections(check) == []


def test_optional_fields_come_last() -> None:
    for class_ in MESSAGE_CLASSES:
        optional = [not field.required for field in msgspec.structs.fields(class_)]
        assert optional == sorted(optional), class_.__name__


def test_every_frame_type_has_a_row() -> None:
    assert [row.name for row in FRAME_ROWS] == [type_.name for type_ in FrameType]


@each_frame
def test_frame_bytes(row: Row) -> None:
    assert encode_frame_row(row.name, row.value).hex() == row.hex
    type_, method, request_id, payload = json.loads(row.value)
    decoder = FrameDecoder()
    decoder.feed(bytes.fromhex(row.hex))
    frame = decoder.next()
    assert frame is not None
    assert (frame.type, frame.flags, frame.method, frame.request_id) == (type_, 0, method, request_id)
    assert frame.payload.hex() == payload
    assert frame.length == len(row.hex) // 2
    assert decoder.next() is None


def test_regenerating_changes_nothing_and_fills_a_missing_row(tmp_path: Path) -> None:
    for name in ("golden_rows.py", "regenerate.py", "messages.txt", "frames.txt", "raft.txt", "snapshots.txt"):
        shutil.copy(MESSAGES.parent / name, tmp_path)
    with (tmp_path / "messages.txt").open("a") as file:
        file.write("\nCredit\n  value [7]\n")
    subprocess.run([sys.executable, tmp_path / "regenerate.py"], check=True, cwd=tmp_path)
    assert (tmp_path / "messages.txt").read_text() == MESSAGES.read_text() + "\nCredit\n  value [7]\n  bytes 9107\n"
    for path in (FRAMES, RAFT, SNAPSHOTS):
        assert (tmp_path / path.name).read_text() == path.read_text()


def test_a_line_that_is_no_row_is_refused(tmp_path: Path) -> None:
    """Guards the reader: a typo in the file must not make a row vanish from the tests."""
    (tmp_path / "messages.txt").write_text("Credit\n valeu [7]\n")
    with pytest.raises(ValueError, match="not a row"):
        rows(tmp_path / "messages.txt")
