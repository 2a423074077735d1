"""What a client sends, in whole packets that are right.

amqtt reads a packet in pieces and believes the lengths in it. Here each packet is read whole and checked before amqtt
sees any of it. One that is wrong or too large ends the connection, as MQTT 3.1.1 wants (section 4.8).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Final, Protocol

from amqtt.adapters import ReaderAdapter, StreamWriterAdapter

from metad_wire.text.topics import is_hidden, topic_fault

CONNECT: Final = 1
PUBLISH: Final = 3
PUBACK: Final = 4
PUBREC: Final = 5
PUBREL: Final = 6
PUBCOMP: Final = 7
SUBSCRIBE: Final = 8
UNSUBSCRIBE: Final = 10
PINGREQ: Final = 12
DISCONNECT: Final = 14
_FLAGS: Final = {
    CONNECT: 0, PUBACK: 0, PUBREC: 0, PUBREL: 2, PUBCOMP: 0, SUBSCRIBE: 2, UNSUBSCRIBE: 2, PINGREQ: 0, DISCONNECT: 0,
}  # fmt: skip
_LEVEL: Final = 4  # of MQTT 3.1.1
TAKE_S: Final = 5.0
"""A client that takes nothing of what is sent for so long is disconnected, and what it has not taken is dropped."""
PACKET_S: Final = 30.0
"""A packet that has begun has ended by then."""
UNFINISHED_BYTES_MAX: Final = 32 * 1024 * 1024
"""Of packets that have begun and not ended, on all connections together."""
_PIECE_BYTES: Final = 16 * 1024  # are counted and read at a time: not all that a client only says will come
_TURN: Final = 16  # packets; then whatever else is to be done has its turn


class WrongPacketError(Exception):
    """A packet that no client may send; the text says why."""


class _Body:
    """What follows the length of a packet, read from its begin to its end."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self.at = 0

    @property
    def left(self) -> int:
        return len(self._data) - self.at

    def take(self, count: int) -> bytes:
        if count > self.left:
            raise WrongPacketError("a packet that ends too early")
        self.at += count
        return self._data[self.at - count : self.at]

    def number(self, count: int) -> int:
        return int.from_bytes(self.take(count), "big")

    def binary(self) -> bytes:
        return self.take(self.number(2))

    def text(self) -> str:
        try:
            text = self.binary().decode()
        except UnicodeDecodeError:
            raise WrongPacketError("a text that is not UTF-8") from None
        if "\0" in text:
            raise WrongPacketError("a text with a NUL")
        return text

    def packet_id(self) -> None:
        if self.number(2) == 0:
            raise WrongPacketError("a packet identifier of 0")

    def end(self) -> None:
        if self.left:
            raise WrongPacketError("a packet that is longer than its content")


def check(first: int, data: bytes) -> None:
    """Check a packet: its first byte, and what follows its length. Raises WrongPacketError."""
    kind, flags, body = first >> 4, first & 0x0F, _Body(data)
    if kind == PUBLISH:
        _check_publish(flags, body)
        return
    if kind not in _FLAGS:
        raise WrongPacketError(f"a packet of type {kind}")
    if flags != _FLAGS[kind]:
        raise WrongPacketError(f"a packet of type {kind} with flags {flags}")
    if kind == CONNECT:
        if not _check_connect(body):
            return
    elif kind in (SUBSCRIBE, UNSUBSCRIBE):
        body.packet_id()
        if not body.left:
            raise WrongPacketError("a packet without a filter")
        while body.left:
            body.text()
            if kind == SUBSCRIBE and body.number(1) > 2:
                raise WrongPacketError("a filter with a QoS that does not exist")
    elif kind not in (PINGREQ, DISCONNECT):
        body.packet_id()
    body.end()


def _check_publish(flags: int, body: _Body) -> None:
    qos = flags >> 1 & 3
    if qos == 3:
        raise WrongPacketError("a message of a QoS that does not exist")
    if not qos and flags & 8:
        raise WrongPacketError("a message of QoS 0 that is sent again")
    _check_topic("a message to", body.text())
    if qos:
        body.packet_id()


def _check_topic(what: str, topic: str) -> None:
    """Raises WrongPacketError unless a client may publish to it."""
    fault = topic_fault(topic) or ("it is the broker's own" if is_hidden(topic) else None)
    if fault is not None:
        raise WrongPacketError(f"{what} {topic[:100]!r}: {fault}")


def _check_connect(body: _Body) -> bool:
    """False if it is of a version that amqtt will refuse by itself."""
    name, level, flags, _ = body.binary(), body.number(1), body.number(1), body.number(2)
    if name != b"MQTT" or level != _LEVEL:
        return False
    if flags & 1:
        raise WrongPacketError("a CONNECT with the reserved flag")
    has_will, will_qos = flags & 4, flags >> 3 & 3
    if will_qos == 3 or (not has_will and flags & 0x38):
        raise WrongPacketError("a CONNECT with flags of a will that cannot be")
    body.text()
    if has_will:
        _check_topic("a will for", body.text())
        body.binary()
    if flags & 0x80:
        body.text()
    if flags & 0x40:
        body.binary()
    return True


class Unfinished:
    """The packets of all connections that have begun and not ended. One byte too many ends the connection whose packet
    began first: a client whose packets arrive is not the one."""

    def __init__(self, bytes_max: int = UNFINISHED_BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        self._begun: dict[asyncio.Timeout, int] = {}  # the oldest first
        self.bytes = 0
        """That are held of them, or are read next."""

    @asynccontextmanager
    async def packet(self) -> AsyncIterator[Callable[[int], None]]:
        """Around the rest of a packet; gives what to call with the number of bytes that are read next. Raises
        WrongPacketError."""
        try:
            async with asyncio.timeout(PACKET_S) as limit:
                self._begun[limit] = 0
                yield partial(self._comes, limit)
        except TimeoutError:
            raise WrongPacketError(
                "a packet too slowly: it takes the room of others, or has not ended in time"
            ) from None
        finally:
            self.bytes -= self._begun.pop(limit, 0)

    def _comes(self, limit: asyncio.Timeout, count: int) -> None:
        if limit in self._begun:
            self._begun[limit] += count
            self.bytes += count
        while self.bytes > self._bytes_max:
            oldest = next(iter(self._begun))
            self.bytes -= self._begun.pop(oldest)  # its task lets go in the loop's next turn
            oldest.reschedule(0)


class Below(Protocol):
    """A connection that is read."""

    async def read(self, n: int = -1) -> bytes:
        """As of amqtt's adapters."""

    def feed_eof(self) -> None:
        """As of amqtt's adapters."""

    async def hung_up(self) -> None:
        """See :meth:`Packets.hung_up`."""


class Packets(ReaderAdapter):
    """The bytes of a connection, for amqtt: those of whole packets that are right, and then none. ``refused`` is told
    why a client's packets end."""

    def __init__(self, below: Below, bytes_max: int, refused: Callable[[str], None], unfinished: Unfinished) -> None:
        self._below = below
        self._bytes_max = bytes_max
        self._refused = refused
        self._unfinished = unfinished
        self._room: Callable[[], Awaitable[None]] | None = None
        self._packet = b""
        self._at = 0
        self._count = 0
        self._ended = False

    async def hung_up(self) -> None:
        """Wait until the client has hung up."""
        await self._below.hung_up()

    def wait_for(self, room: Callable[[], Awaitable[None]]) -> None:
        """Await this before each packet from now on."""
        self._room = room

    async def read(self, n: int = -1) -> bytes:
        """Up to so many bytes of one packet; fewer at its end, and none at the end of all."""
        if self._at == len(self._packet) and not self._ended:
            if self._room is not None:
                if self._count % _TURN == 0:  # they are read without a pause as long as there are some
                    await asyncio.sleep(0)
                await self._room()
            try:
                self._packet = await self._next()
            except WrongPacketError as error:
                self._refused(str(error))
                self._packet, self._ended = b"", True
            except (OSError, asyncio.IncompleteReadError):
                self._packet, self._ended = b"", True
            self._at = 0
        part = self._packet[self._at :] if n < 0 else self._packet[self._at : self._at + n]
        self._at += len(part)
        return part

    def feed_eof(self) -> None:
        """As of the stream below."""
        self._below.feed_eof()

    async def _next(self) -> bytes:
        head = await self._below.read(1)
        if not head:
            return b""
        async with self._unfinished.packet() as comes:
            head, body = await self._rest(head, comes)
        if not head:
            return b""
        if (head[0] >> 4 == CONNECT) != (self._count == 0):
            raise WrongPacketError("a second CONNECT" if self._count else "a first packet that is no CONNECT")
        check(head[0], body)
        self._count += 1
        return head + body

    async def _rest(self, head: bytes, comes: Callable[[int], None]) -> tuple[bytes, bytes]:
        """The fixed header of a packet, and what follows; nothing if the client has gone."""
        length, shift = 0, 0
        while True:
            byte = await self._below.read(1)
            if not byte:
                return b"", b""
            head += byte
            length |= (byte[0] & 0x7F) << shift
            if not byte[0] & 0x80:
                break
            shift += 7
            if shift > 21:
                raise WrongPacketError("a packet whose length does not end")
        if length > self._bytes_max:
            raise WrongPacketError(f"a packet of {length} bytes, {self._bytes_max} are allowed")
        pieces: list[bytes] = []
        while length:
            size = min(length, _PIECE_BYTES)
            comes(size)
            piece = await self._below.read(size)
            if len(piece) < size:
                return b"", b""
            length -= size
            pieces.append(piece)
        return head, b"".join(pieces)


class ClientWriter(StreamWriterAdapter):
    """What a client is sent. amqtt's own waits for ever for one that reads nothing."""

    async def drain(self) -> None:
        """Raises OSError."""
        async with asyncio.timeout(TAKE_S):
            await super().drain()

    def abort(self) -> None:
        """Let go of the socket: the client has hung up."""
        self._writer.transport.abort()

    def hurry(self) -> None:
        """Wait no longer until the client has taken what it was sent, once the connection is closed."""
        if self._writer.transport.get_write_buffer_size():
            self._writer.transport.abort()

    async def close(self) -> None:
        """Close the connection for certain."""
        if self.is_closed:
            return
        self.is_closed = True
        self._writer.close()
        try:
            async with asyncio.timeout(TAKE_S):
                await self._writer.wait_closed()
        except OSError:
            pass
        finally:
            self._writer.transport.abort()
