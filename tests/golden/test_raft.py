"""What nodes say to each other outlives any of their versions, for a cluster is upgraded node by node."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from golden_rows import PAYLOAD, RAFT, SNAPSHOTS, Row, encode_raft, encode_stream, rows

from metad.raft.messages import AnyMessage, Message
from metad.raft.snapshots.transfer import AnyStreamMessage, StreamMessage

ROWS = rows(RAFT)
STREAM_ROWS = rows(SNAPSHOTS)
each_row = pytest.mark.parametrize("row", ROWS, ids=[f"{row.name}-{i}" for i, row in enumerate(ROWS)])
each_stream_row = pytest.mark.parametrize(
    "row", STREAM_ROWS, ids=[f"{row.name}-{i}" for i, row in enumerate(STREAM_ROWS)]
)


def test_every_message_has_a_row() -> None:
    assert {row.name for row in ROWS} == {class_.__name__ for class_ in Message.__subclasses__()}


@each_row
def test_golden_bytes(row: Row) -> None:
    assert encode_raft(row.name, row.value).hex() == row.hex
    payload = msgspec.msgpack.decode(bytes.fromhex(row.hex), type=PAYLOAD)
    assert payload == msgspec.json.decode(row.value, type=PAYLOAD)
    assert json.loads(msgspec.json.encode(payload)) == json.loads(row.value), "a field is missing in the row"


@each_row
def test_a_newer_node_may_append_fields_and_an_older_one_may_lack_the_optional(row: Row) -> None:
    for group, array in msgspec.msgpack.decode(bytes.fromhex(row.hex)):
        (message,) = decode([[group, array]])
        assert decode([[group, [*array, {"a": [1, b"\x00"]}, None, "later"]]]) == [message]
        fields = msgspec.structs.fields(type(message))
        required = 1 + sum(field.required for field in fields)  # the tag is in front
        for kept in range(len(array)):
            if kept < required:
                with pytest.raises(msgspec.ValidationError):
                    decode([[group, array[:kept]]])
            else:
                (shortened,) = decode([[group, array[:kept]]])
                for field in fields[kept - 1 :]:
                    default = field.default_factory() if field.default is msgspec.NODEFAULT else field.default
                    assert getattr(shortened, field.name) == default


def test_every_message_of_a_snapshot_has_a_row() -> None:
    assert {row.name for row in STREAM_ROWS} == {class_.__name__ for class_ in StreamMessage.__subclasses__()}


@each_stream_row
def test_golden_bytes_of_snapshots(row: Row) -> None:
    assert encode_stream(row.name, row.value).hex() == row.hex
    message = msgspec.msgpack.decode(bytes.fromhex(row.hex), type=AnyStreamMessage)
    assert message == msgspec.json.decode(row.value, type=AnyStreamMessage)
    assert json.loads(msgspec.json.encode(message)) == json.loads(row.value), "a field is missing in the row"
    array = [*msgspec.msgpack.decode(bytes.fromhex(row.hex)), {"a": [1, b"\x00"]}, None, "later"]
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(array), type=AnyStreamMessage) == message


def decode(payload: Any) -> list[AnyMessage]:
    return [message for _, message in msgspec.msgpack.decode(msgspec.msgpack.encode(payload), type=PAYLOAD)]
