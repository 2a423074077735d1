"""MQTT clients that cost little: thousands of connections with wills in one process, some of which publish all the
time. They count what no client may see: a connection that the broker has closed, a message that was acknowledged and
has not come, and a will of one that is still connected."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Final, cast

_CONNACK, _PUBLISH, _PUBACK, _SUBACK = 0x20, 0x30, 0x40, 0x90
_KEEP_ALIVE_S: Final = 120
_PING: Final = b"\xc0\x00"
WAIT_S: Final = 60.0
WILLS: Final = "outage/wills/"
MESSAGES: Final = "outage/messages/"


def _text(text: str) -> bytes:
    data = text.encode()
    return len(data).to_bytes(2, "big") + data


def packet(first: int, body: bytes) -> bytes:
    """An MQTT packet."""
    length, size = b"", len(body)
    while True:
        size, digit = divmod(size, 128)
        length += bytes([digit | (0x80 if size else 0)])
        if not size:
            return bytes([first]) + length + body


class Counts:
    """What all clients have seen."""

    def __init__(self) -> None:
        self.closed = 0
        self.wills = 0
        self.sent: set[bytes] = set()
        """Payloads of messages that were acknowledged."""
        self.got: set[bytes] = set()
        self.refused = 0


class RawClient(asyncio.Protocol):
    """One connection, with a will of QoS 1. Messages that come are acknowledged at once."""

    def __init__(self, client_id: str, counts: Counts, *, with_will: bool = True) -> None:
        self.client_id = client_id
        self._counts = counts
        self._with_will = with_will
        self._data = bytearray()
        self._waits: dict[tuple[int, int], asyncio.Future[bytes]] = {}
        self._transport: asyncio.Transport | None = None
        self._leaving = False
        self._number = 0

    async def connect(self, port: int) -> None:
        """Raises OSError where the broker refuses."""
        loop = asyncio.get_running_loop()
        await loop.create_connection(lambda: self, "127.0.0.1", port)
        flags = 0x04 | 0x08 if self._with_will else 0
        body = b"\x00\x04MQTT\x04" + bytes([flags]) + _KEEP_ALIVE_S.to_bytes(2, "big") + _text(self.client_id)
        if self._with_will:
            body += _text(f"{WILLS}{self.client_id}") + _text("gone")
        answer = await self._asked(packet(0x10, body), _CONNACK, 0)
        if answer[1]:
            raise ConnectionRefusedError(f"CONNACK {answer.hex()}")

    async def subscribe(self, filter_: str) -> None:
        """With QoS 1."""
        number = self._next()
        body = number.to_bytes(2, "big") + _text(filter_) + b"\x01"
        await self._asked(packet(0x82, body), _SUBACK, number)

    async def publish(self, topic: str, payload: bytes, timeout_s: float) -> None:
        """With QoS 1; returns once it is acknowledged."""
        number = self._next()
        body = _text(topic) + number.to_bytes(2, "big") + payload
        await self._asked(packet(0x32, body), _PUBACK, number, timeout_s)
        self._counts.sent.add(payload)

    def ping(self) -> None:
        """Show that it is there."""
        if self._transport is not None:
            self._transport.write(_PING)

    def leave(self) -> None:
        """DISCONNECT."""
        self._leaving = True
        if self._transport is not None:
            self._transport.write(b"\xe0\x00")
            self._transport.close()

    def _next(self) -> int:
        self._number = self._number % 0xFFFF + 1
        return self._number

    async def _asked(self, data: bytes, kind: int, number: int, timeout_s: float = WAIT_S) -> bytes:
        if self._transport is None:
            raise ConnectionError(f"{self.client_id} is not connected")
        answer = self._waits[kind, number] = asyncio.get_running_loop().create_future()
        self._transport.write(data)
        try:
            return await asyncio.wait_for(answer, timeout_s)
        finally:
            self._waits.pop((kind, number), None)

    # --- asyncio.Protocol ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        self._data += data
        while (found := self._packet()) is not None:
            first, body = found
            kind = first & 0xF0
            if kind == _PUBLISH:
                self._came(first, body)
            elif kind in (_CONNACK, _PUBACK, _SUBACK):
                number = 0 if kind == _CONNACK else int.from_bytes(body[:2], "big")
                wait = self._waits.get((kind, number))
                if wait is not None and not wait.done():
                    wait.set_result(body)

    def _packet(self) -> tuple[int, bytes] | None:
        data, size = self._data, 0
        for at in range(1, min(len(data), 5)):
            size |= (data[at] & 0x7F) << 7 * (at - 1)
            if not data[at] & 0x80:
                end = at + 1 + size
                if len(data) < end:
                    return None
                found = data[0], bytes(data[at + 1 : end])
                del data[:end]
                return found
        return None

    def _came(self, first: int, body: bytes) -> None:
        size = int.from_bytes(body[:2], "big")
        topic, rest = body[2 : 2 + size].decode(), body[2 + size :]
        if first & 0x06:
            assert self._transport is not None
            self._transport.write(packet(_PUBACK, rest[:2]))
            rest = rest[2:]
        if topic.startswith(WILLS):
            self._counts.wills += 1
        else:
            self._counts.got.add(rest)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._counts.closed += not self._leaving
        for wait in self._waits.values():
            if not wait.done():
                wait.set_exception(ConnectionError(f"the connection of {self.client_id} has ended"))


class Publisher:
    """Publishes one message after the other, each once the one before is acknowledged. ``done`` is called with the time
    at which each was."""

    def __init__(self, client: RawClient, number: int, done: Callable[[float], None]) -> None:
        self._client = client
        self._topic = f"{MESSAGES}{number}"
        self._done = done
        self._count = 0
        self.over = False

    async def run(self, timeout_s: float, pause_s: float) -> None:
        """Until it is over."""
        while not self.over:
            self._count += 1
            payload = f"{self._client.client_id} {self._count}".encode()
            try:
                await self._client.publish(self._topic, payload, timeout_s)
            except (TimeoutError, OSError):
                if self._client._transport is None:
                    return  # which is counted
                continue
            self._done(time.monotonic())
            await asyncio.sleep(pause_s)
