"""Reads and writes the golden files; what a row means is told at the top of each file."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from metad.raft.messages import AnyMessage
from metad.raft.snapshots.transfer import AnyStreamMessage
from metad_wire import cluster, declaration, errors, families, messages, tables, watch
from metad_wire.connection import peer
from metad_wire.connection.frame import FrameType, encode_frame
from metad_wire.methods import METHODS
from metad_wire.operator import backup, moving, settings

HERE = Path(__file__).parent
MESSAGES = HERE / "messages.txt"
FRAMES = HERE / "frames.txt"
RAFT = HERE / "raft.txt"
SNAPSHOTS = HERE / "snapshots.txt"
PAYLOAD = list[tuple[bytes, AnyMessage]]
_ROW = re.compile(r"^(?P<name>\w\S*)\n  value (?P<value>.+)\n(?:  bytes (?P<hex>[0-9a-f]*)\n)?", re.MULTILINE)


MODULES = (
    *(messages, cluster, peer, watch, declaration, backup, moving, settings),
    *(sys.modules[f"{tables.__name__}.{name}"] for name in tables.NAMES),
    *(sys.modules[f"{families.__name__}.{name}"] for name in families.NAMES),
)
"""That have messages."""
_DECLARED = {kind.__name__: kind for method in METHODS.values() for kind in (method.body, method.reply)}


class Row(NamedTuple):
    """One row: ``hex`` is empty where it has not been filled in yet."""

    name: str
    value: str
    hex: str


def rows(path: Path) -> list[Row]:
    """The rows of a golden file. Raises ValueError where a line belongs to none."""
    text = path.read_text(encoding="utf-8")
    left = "".join(line for line in _ROW.sub("", text).splitlines() if not line.startswith("#")).strip()
    if left:
        raise ValueError(f"{path.name}: not a row: {left[:80]!r}")
    return [Row(match["name"], match["value"], match["hex"] or "") for match in _ROW.finditer(text)]


def is_whole(row: Row) -> bool:
    """Whether a messages.txt row, and what is in it, has all fields that there are today; older rows only decode."""
    return bool(json.loads(msgspec.json.encode(message_value(row))) == json.loads(row.value))


def fill(path: Path, encode: Any) -> None:
    """Write the bytes of every row anew, but for those of shorter, older messages."""

    def filled(match: re.Match[str]) -> str:
        if path == MESSAGES and not is_whole(Row(match["name"], match["value"], "")):
            return match[0]
        data: bytes = encode(match["name"], match["value"])
        return f"{match['name']}\n  value {match['value']}\n  bytes {data.hex()}\n"

    path.write_text(_ROW.sub(filled, path.read_text(encoding="utf-8")), encoding="utf-8")


def message_type(name: str) -> Any:
    """``Hello`` or ``Request[KvPut]`` -> its type."""
    outer, _, inner = name.partition("[")
    if (declared := _DECLARED.get(name)) is not None:
        return declared
    named = (getattr(module, outer, None) for module in (*MODULES, errors))
    type_ = next(one for one in named if isinstance(one, type))  # ``Topic`` is a kind of text, too
    return type_[message_type(inner.removesuffix("]"))] if inner else type_


def message_value(row: Row) -> Any:
    """The message that a row's ``value`` describes."""
    return msgspec.json.decode(row.value, type=message_type(row.name))


def encode_message(name: str, value: str) -> bytes:
    """The bytes of a messages.txt row."""
    return msgspec.msgpack.encode(message_value(Row(name, value, "")))


def encode_raft(name: str, value: str) -> bytes:
    """The bytes of a raft.txt row."""
    payload = msgspec.json.decode(value, type=PAYLOAD)
    if [type(message).__name__ for _, message in payload][:1] != [name]:
        raise ValueError(f"the payload does not begin with {name}")
    return msgspec.msgpack.encode(payload)


def encode_stream(name: str, value: str) -> bytes:
    """The bytes of a snapshots.txt row."""
    message = msgspec.json.decode(value, type=AnyStreamMessage)
    if type(message).__name__ != name:
        raise ValueError(f"this is no {name}")
    return msgspec.msgpack.encode(message)


def encode_frame_row(name: str, value: str) -> bytes:
    """The bytes of a frames.txt row."""
    type_, method, request_id, payload = json.loads(value)
    if FrameType[name] != type_:
        raise ValueError(f"{name} is not type {type_}")
    return encode_frame(type_, bytes.fromhex(payload), request_id, method)
