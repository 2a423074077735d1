"""What a client sends reaches amqtt in whole packets that are right, and nothing else does."""

from __future__ import annotations

import asyncio

import pytest
from amqtt.adapters import ReaderAdapter, StreamReaderAdapter
from amqtt.mqtt import packet_class
from amqtt.mqtt.packet import MQTTFixedHeader
from hypothesis import given, settings
from hypothesis import strategies as st

from metad_amqtt import packets as packets_module
from metad_amqtt.packets import Packets, Unfinished, WrongPacketError, check

ID = b"\x00\x07"


def text(data: bytes) -> bytes:
    return len(data).to_bytes(2, "big") + data


def packet(first: int, body: bytes) -> bytes:
    length, rest = b"", len(body)
    while True:
        rest, byte = divmod(rest, 128)[0], rest % 128
        length += bytes([byte | (0x80 if rest else 0)])
        if not rest:
            return bytes([first]) + length + body


def connect(flags: int = 2, *fields: bytes) -> bytes:
    return b"\x00\x04MQTT\x04" + bytes([flags]) + b"\x00\x3c" + b"".join(map(text, fields))


RIGHT = [
    (0x10, connect(2, b"client")),
    (0x10, connect(2, b"")),
    (0x10, connect(0x2E | 0xC0, b"client", b"will/topic", b"\xff", b"user", b"\xff")),
    (0x30, text(b"a/b") + b"payload"),
    (0x3D, text(b"a") + ID),
    (0x33, text("ü/𝄞".encode()) + ID + b"\0"),
    (0x40, ID),
    (0x50, ID),
    (0x62, ID),
    (0x70, ID),
    (0x82, ID + text(b"a/#") + b"\x00" + text(b"+") + b"\x02"),
    (0xA2, ID + text(b"a/#") + text(b"b")),
    (0xC0, b""),
    (0xE0, b""),
]
WRONG = [
    (0x00, b"", "type 0"),
    (0xF0, b"", "type 15"),
    (0x20, b"\x00\x00", "type 2"),
    (0x90, ID + b"\x00", "type 9"),
    (0xD0, b"", "type 13"),
    (0x11, connect(2, b"c"), "with flags"),
    (0x10, connect(3, b"c"), "reserved"),
    (0x10, connect(2, b"c", b"more"), "longer"),
    (0x10, connect(2), "too early"),
    (0x10, b"\x00\x04MQ", "too early"),
    (0x10, connect(2, b"a\0b"), "NUL"),
    (0x10, connect(2, b"\xff"), "UTF-8"),
    (0x10, connect(0x1E, b"c", b"t", b"m"), "cannot be"),
    (0x10, connect(0x22, b"c"), "cannot be"),
    (0x10, connect(6, b"c", b"will/+", b"m"), "no wildcards"),
    (0x10, connect(6, b"c", b"will/#", b"m"), "no wildcards"),
    (0x10, connect(6, b"c", b"", b"m"), "a will for ''"),
    (0x10, connect(6, b"c", b"$SYS/x", b"m"), "broker's own"),
    (0x10, connect(6, b"c", b"t"), "too early"),
    (0x36, text(b"a") + ID, "QoS that does not exist"),
    (0x38, text(b"a"), "sent again"),
    (0x32, text(b"a") + b"\x00\x00", "identifier of 0"),
    (0x32, text(b"a") + b"\x01", "too early"),
    (0x30, text(b""), "a message to ''"),
    (0x30, text(b"a/+"), "no wildcards"),
    (0x30, text(b"a/#"), "no wildcards"),
    (0x30, text(b"a\0"), "NUL"),
    (0x30, text(b"\xed\xa0\x80"), "UTF-8"),
    (0x30, text(b"$SYS/broker/uptime"), "broker's own"),
    (0x30, text(b"/".join([b""] * 300)), "a message to"),
    (0x30, b"\xff\xffa", "too early"),
    (0x40, b"", "too early"),
    (0x40, ID + b"x", "longer"),
    (0x40, b"\0\0", "identifier of 0"),
    (0x60, ID, "with flags"),
    (0x80, ID + text(b"a") + b"\x00", "with flags"),
    (0x82, ID, "without a filter"),
    (0x82, ID + text(b"a"), "too early"),
    (0x82, ID + text(b"a") + b"\x03", "QoS that does not exist"),
    (0x82, b"\0\0" + text(b"a") + b"\x00", "identifier of 0"),
    (0x82, ID + text(b"a\0") + b"\x00", "NUL"),
    (0x82, ID + b"\xff\xffa\x00", "too early"),
    (0xA2, ID, "without a filter"),
    (0xA2, ID + text(b"a") + b"\x00", "too early"),
    (0xC0, b"x", "longer"),
    (0xE1, b"", "with flags"),
]


class Bytes(ReaderAdapter):
    """All that a connection brings."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    async def read(self, n: int = -1) -> bytes:
        part, self._data = (self._data[:n], self._data[n:]) if n >= 0 else (self._data, b"")
        return part

    def feed_eof(self) -> None:
        pass


async def amqtt_reads(reader: ReaderAdapter) -> list[int]:
    """The types of the packets that amqtt decodes."""
    found = []
    while (header := await MQTTFixedHeader.from_stream(reader)) is not None:
        await packet_class(header).from_stream(reader, fixed_header=header)
        found.append(header.packet_type)
    return found


async def passed(*packets: bytes, bytes_max: int = 1_000) -> tuple[list[int], list[str]]:
    """What amqtt gets of these after a CONNECT, and why there is no more."""
    why: list[str] = []
    reader = Packets(Bytes(packet(*RIGHT[0]) + b"".join(packets)), bytes_max, why.append, Unfinished())
    return (await amqtt_reads(reader))[1:], why


@pytest.mark.parametrize(("first", "body"), RIGHT)
async def test_amqtt_gets_what_is_right(first: int, body: bytes) -> None:
    check(first, body)
    if first == 0x10:
        why: list[str] = []
        assert await amqtt_reads(Packets(Bytes(packet(first, body)), 1_000, why.append, Unfinished())) == [1]
        assert why == []
    else:
        assert await passed(packet(first, body), packet(0xC0, b"")) == ([first >> 4, 12], [])


@pytest.mark.parametrize(("first", "body", "says"), WRONG)
async def test_amqtt_gets_nothing_that_is_wrong(first: int, body: bytes, says: str) -> None:
    with pytest.raises(WrongPacketError, match=says):
        check(first, body)
    if first != 0x10:
        got, why = await passed(packet(0xC0, b""), packet(first, body), packet(0xC0, b""))
        assert got == [12]
        assert len(why) == 1


@pytest.mark.parametrize(
    "body", [b"\x00\x06MQIsdp\x03\x02\x00\x3c\x00\x06client", b"\x00\x04MQTT\x05\x02\x00\x3c\x00\x00\x06client"]
)
def test_a_connect_of_another_version_is_for_amqtt_to_refuse(body: bytes) -> None:
    check(0x10, body)


async def test_packets_come_in_order_and_are_not_too_large() -> None:
    assert await passed(packet(*RIGHT[0])) == ([], ["a second CONNECT"])
    why: list[str] = []
    assert await amqtt_reads(Packets(Bytes(packet(0xC0, b"")), 1_000, why.append, Unfinished())) == []
    assert why == ["a first packet that is no CONNECT"]
    large = packet(0x30, text(b"a") + bytes(997))
    assert await passed(large) == ([3], [])
    assert await passed(packet(0x30, text(b"a") + bytes(998))) == ([], ["a packet of 1001 bytes, 1000 are allowed"])
    assert await passed(b"\x30\xff\xff\xff\xff\x01") == ([], ["a packet whose length does not end"])
    for end in range(1, len(large), 100):
        assert await passed(large[:end]) == ([], []), "the connection has ended in the packet"


async def test_a_stream_that_ends_or_breaks_is_an_end() -> None:
    for error in (None, ConnectionResetError(), OSError(110, "timed out")):
        stream = asyncio.StreamReader()
        stream.feed_data(packet(*RIGHT[0])[:5])
        stream.feed_eof() if error is None else stream.set_exception(error)
        assert await Packets(StreamReaderAdapter(stream), 1_000, lambda _: None, Unfinished()).read(1) == b""


@settings(max_examples=100, deadline=None)
@given(
    data=st.one_of(
        st.tuples(st.integers(0, 255), st.binary(max_size=40)),
        st.tuples(
            st.sampled_from([0x30, 0x32, 0x34, 0x82, 0xA2, 0x62, 0x40]),
            st.lists(
                st.one_of(st.sampled_from([ID, b"\0\0", b"\x00", b"\x02", b"\x03"]), st.binary(max_size=8).map(text)),
                max_size=5,
            ).map(b"".join),
        ),
    )
)
def test_whatever_passes_amqtt_reads_to_its_end(data: tuple[int, bytes]) -> None:
    """So it is never out of step with the client."""
    got, why = asyncio.run(passed(packet(*data), packet(0xC0, b"")))
    try:
        check(*data)
    except WrongPacketError:
        assert (got, len(why)) == ([], 1)
    else:
        assert got == [data[0] >> 4, 12] if data[0] >> 4 != 1 else why == ["a second CONNECT"]


def begun(unfinished: Unfinished, why: list[str]) -> tuple[asyncio.StreamReader, asyncio.Task[bytes]]:
    """A connection that has sent CONNECT, and of its next packet only the length."""
    stream = asyncio.StreamReader()
    stream.feed_data(packet(*RIGHT[0]) + packet(0x30, text(b"a") + bytes(1_000))[:3])
    packets = Packets(StreamReaderAdapter(stream), 10_000, why.append, unfinished)

    async def read() -> bytes:
        await packets.read()
        return await packets.read()

    return stream, asyncio.create_task(read())


async def test_of_too_many_bytes_of_unfinished_packets_the_oldest_gives_way() -> None:
    unfinished, why = Unfinished(2_500), list[str]()
    first, others = begun(unfinished, why), [begun(unfinished, why) for _ in range(2)]
    assert await first[1] == b""
    assert ["room of others" in one for one in why] == [True]
    assert unfinished.bytes == 2_006
    for stream, reading in others:
        stream.feed_data(text(b"a") + bytes(1_000))
        assert len(await reading) == 1_006
    assert unfinished.bytes == 0
    assert not unfinished._begun


async def test_a_packet_that_has_begun_has_a_time_to_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packets_module, "PACKET_S", 0.01)
    unfinished, why = Unfinished(), list[str]()
    _, reading = begun(unfinished, why)
    assert await reading == b""
    assert len(why) == 1
    assert unfinished.bytes == 0
