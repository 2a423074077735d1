"""The protocols of ZooKeeper and Oxia by hand: bytes from their specifications, and replies however they are cut."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence

import pytest

from metad_perf.peers import oxia_wire, zookeeper_wire


def _in_pieces(cut: Callable[[bytearray], Sequence[object]], stream: bytes, size: int) -> list[object]:
    received = bytearray()
    found: list[object] = []
    for at in range(0, len(stream), size):
        received += stream[at : at + size]
        found += cut(received)
    assert not received
    return found


def _reply(xid: int, error: int, body: bytes = b"") -> bytes:
    whole = struct.pack(">iqi", xid, 7, error) + body
    return struct.pack(">i", len(whole)) + whole


def _part(kind: int, body: bytes, *, done: bool = False) -> bytes:
    return struct.pack(">i?i", kind, done, 0) + body


END = struct.pack(">i?i", -1, True, -1)
STAT = bytes(68)


@pytest.mark.parametrize("size", [1, 5, 1_000])
def test_replies_of_zookeeper(size: int) -> None:
    stream = _reply(1, 0, b"first") + _reply(-2, 0) + _reply(1, -101)
    found = _in_pieces(zookeeper_wire.cut, stream, size)
    assert [zookeeper_wire.error_of(one) for one in found if isinstance(one, bytes)] == [0, zookeeper_wire.NO_NODE]


def test_what_zookeeper_reads() -> None:
    single = _reply(1, 0, struct.pack(">i", 3) + b"abc" + STAT)[4:]
    assert zookeeper_wire.value_of(single) == b"abc"
    parts = _part(zookeeper_wire.GET, struct.pack(">i", 2) + b"xy" + STAT)
    parts += _part(-1, struct.pack(">i", zookeeper_wire.NO_NODE))
    parts += _part(zookeeper_wire.GET, struct.pack(">i", -1) + STAT)
    assert zookeeper_wire.values_of(_reply(1, 0, parts + END)[4:]) == [b"xy", None, b""]
    stat = bytes(32) + struct.pack(">i", 7) + bytes(32)
    versioned = _part(zookeeper_wire.GET, struct.pack(">i", 2) + b"xy" + stat) + parts + END
    assert zookeeper_wire.versioned(_reply(1, 0, versioned)[4:]) == [(b"xy", 7), (b"xy", 0), None, (b"", 0)]
    assert zookeeper_wire.version_of(_reply(1, 0, stat)[4:]) == 7


def test_a_multi_of_zookeeper_fails_as_a_whole() -> None:
    done = _reply(1, 0, _part(zookeeper_wire.SET, STAT) + END)[4:]
    assert zookeeper_wire.error_of_multi(done) == 0
    first_undone = _part(-1, struct.pack(">i", 0)) + _part(-1, struct.pack(">i", zookeeper_wire.NO_NODE)) + END
    assert zookeeper_wire.error_of_multi(_reply(1, 0, first_undone)[4:]) == zookeeper_wire.NO_NODE
    assert zookeeper_wire.first_error(_reply(1, 0, first_undone)[4:]) == (zookeeper_wire.NO_NODE, 1)
    assert zookeeper_wire.error_of_multi(_reply(1, -4)[4:]) == -4


def test_requests_of_zookeeper() -> None:
    body = struct.pack(">ii", 1, 5) + struct.pack(">i", 2) + b"/k" + struct.pack(">i", 1) + b"v" + struct.pack(">i", -1)
    assert zookeeper_wire.request(zookeeper_wire.set_data(b"/k", b"v")) == struct.pack(">i", len(body)) + body
    assert zookeeper_wire.set_data(b"/k", b"v", 7)[1][-4:] == struct.pack(">i", 7)
    assert zookeeper_wire.check(b"/k", 7) == (13, struct.pack(">i", 2) + b"/k" + struct.pack(">i", 7))
    multi = zookeeper_wire.multi([zookeeper_wire.delete(b"/k")])
    inner = _part(2, struct.pack(">i", 2) + b"/k" + struct.pack(">i", -1))
    inner = inner[:5] + struct.pack(">i", -1) + inner[9:]  # the error of a request is -1
    assert multi == struct.pack(">i", 8 + len(inner) + 9) + struct.pack(">ii", 1, 14) + inner + END
    ephemeral = zookeeper_wire.create(b"/e", b"", ephemeral=True)[1]
    assert ephemeral.endswith(b"anyone" + struct.pack(">i", 1))


def test_messages_of_oxia() -> None:
    put = oxia_wire.put("k", b"v", session=300)
    assert put == b"\x12\x09" + b"\x0a\x01k" + b"\x12\x01v" + b"\x20\xac\x02"
    assert oxia_wire.to_shard(0, [put, oxia_wire.delete("k")]) == b"\x08\x00" + put + b"\x1a\x03\x0a\x01k"
    assert oxia_wire.get("k") == b"\x12\x05" + b"\x0a\x01k" + b"\x10\x01"
    version = b"\x12\x02\x08\x05"
    reply = b"\x0a" + bytes([len(version)]) + version + b"\x0a\x02\x08\x02"
    assert oxia_wire.statuses(reply) == [2]
    found = version + b"\x1a\x03abc"
    assert oxia_wire.values(b"\x0a" + bytes([len(found)]) + found + b"\x0a\x02\x08\x01") == [b"abc", 1]
    assert oxia_wire.session_of(b"\x08\xac\x02") == 300


def test_the_leaders_of_shards_of_oxia() -> None:
    first = b"\x12\x03a:1" + b"\x1a\x0a" + bytes(10)  # shard 0 is left out, as protobuf leaves out zeros
    second = b"\x08\x01" + b"\x12\x03b:2"
    shards = b"".join(b"\x0a" + bytes([len(one)]) + one for one in (first, second)) + b"\x10\x01"
    named = b"\x0a\x07default" + b"\x12" + bytes([len(shards)]) + shards
    other = b"\x0a\x05other" + b"\x12\x00"
    reply = b"".join(b"\x0a" + bytes([len(one)]) + one for one in (other, named))
    assert oxia_wire.leaders(reply) == {0: "a:1", 1: "b:2"}
    assert oxia_wire.leaders(b"") == {}
