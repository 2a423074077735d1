"""Messages from broker to broker, over TCP: they never pass through metad.

Each broker listens. A broker that sends connects, shows the word that the other has stored in metad beside its
address, and sends frames: a length, then a message of MessagePack. The other answers each with its number once the
clients have the message, or metad has it for them.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import logging
import secrets
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

import msgspec

from .envelope import Envelope
from .routes import Target

FRAME_BYTES_MAX: Final = 300 * 1024 * 1024
"""A message of MQTT has 256 MiB at most."""
ANSWER_S: Final = 30.0
"""A broker that does not answer for so long is treated as gone."""
HOPS_MAX: Final = 3
"""A message follows a client that moves on while it is under way; not for ever."""
_HANDLED_MAX: Final = 256  # frames of one connection at a time

log = logging.getLogger("metad_client.amqtt")


class Hello(msgspec.Struct, frozen=True, array_like=True):
    """The first frame: the word of the broker that is called."""

    word: str


class Delivery(msgspec.Struct, frozen=True, array_like=True):
    """A message for clients of that broker. Without a message: something waits for them in metad."""

    number: int
    message: Envelope | None
    targets: list[Target]
    hops: int = 0


class Unreachable(Exception):
    """The other broker did not answer, so nobody knows what it has done."""


Handle = Callable[[Delivery], Awaitable[None]]

_encode = msgspec.msgpack.Encoder().encode
_decode_hello = msgspec.msgpack.Decoder(Hello).decode
_decode_delivery = msgspec.msgpack.Decoder(Delivery).decode
_decode_number = msgspec.msgpack.Decoder(int).decode


async def _read(reader: asyncio.StreamReader) -> bytes:
    length = int.from_bytes(await reader.readexactly(4), "big")
    if length > FRAME_BYTES_MAX:
        raise ConnectionError(f"a frame of {length} bytes")
    return await reader.readexactly(length)


def _frame(message: object) -> bytes:
    encoded = _encode(message)
    return len(encoded).to_bytes(4, "big") + encoded


class Listener:
    """The end that is called."""

    def __init__(self, handle: Handle) -> None:
        self._handle = handle
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()
        self.word = secrets.token_urlsafe(24)
        """Whoever shows it may send."""

    async def listen(self, host: str, port: int) -> str:
        """Listen; returns HOST:PORT."""
        self._server = await asyncio.start_server(self._called, host, port)
        bound = self._server.sockets[0].getsockname()
        return f"{bound[0]}:{bound[1]}"

    async def close(self) -> None:
        """Take nothing more."""
        if self._server is not None:
            self._server.close()
        for one in list(self._connections):
            one.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    async def _called(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        try:
            await self._serve(reader, writer)
        except (OSError, asyncio.IncompleteReadError, msgspec.MsgspecError) as error:
            log.info("a connection of another broker has ended: %s", error)
        except asyncio.CancelledError:
            pass  # by close
        finally:
            self._connections.discard(task)
            writer.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async with asyncio.timeout(ANSWER_S):
            length = int.from_bytes(await reader.readexactly(4), "big")
            if length > 1_024:
                raise ConnectionError("no word")
            hello = _decode_hello(await reader.readexactly(length))
        if not hmac.compare_digest(hello.word.encode(), self.word.encode()):
            raise ConnectionError("a wrong word")
        room = asyncio.Semaphore(_HANDLED_MAX)

        async def handle(delivery: Delivery) -> None:
            try:
                await self._handle(delivery)
            except Exception:  # it is not answered, so its sender finds another way
                log.exception("a message of another broker was not delivered")
            else:
                writer.write(_frame(delivery.number))
            finally:
                room.release()

        async with asyncio.TaskGroup() as tasks:
            with contextlib.suppress(OSError, asyncio.IncompleteReadError, msgspec.MsgspecError):
                while True:  # what has come is delivered, also if its sender has gone
                    await room.acquire()
                    tasks.create_task(handle(_decode_delivery(await _read(reader))))
                    await writer.drain()


class Link:
    """The end that calls one life of another broker. It connects when there is something to send."""

    def __init__(self, address: str, word: str) -> None:
        self._address = address
        self._word = word
        self._writer: asyncio.StreamWriter | None = None
        self._reading: asyncio.Task[None] | None = None
        self._waiting: dict[int, asyncio.Future[None]] = {}
        self._connecting = asyncio.Lock()
        self._number = 0

    async def send(self, message: Envelope | None, targets: Sequence[Target], hops: int = 0) -> None:
        """Send, and wait until the message is delivered or stored. Raises Unreachable."""
        number = self._number = self._number + 1
        frame = _frame(Delivery(number, message, list(targets), hops))
        try:
            async with asyncio.timeout(ANSWER_S):
                writer = await self._connected()
                answered = self._waiting[number] = asyncio.get_running_loop().create_future()
                writer.write(frame)
                await writer.drain()
                await answered
        except (OSError, TimeoutError) as error:
            raise Unreachable(f"{self._address}: {error or 'no answer'}") from None
        finally:
            self._waiting.pop(number, None)

    async def close(self) -> None:
        """Nothing more is sent."""
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.gather(self._reading, return_exceptions=True)

    async def _connected(self) -> asyncio.StreamWriter:
        async with self._connecting:
            if self._writer is None:
                host, _, port = self._address.rpartition(":")
                reader, writer = await asyncio.open_connection(host, int(port))
                writer.write(_frame(Hello(self._word)))
                self._writer = writer
                self._reading = asyncio.create_task(self._read(reader, writer))
            return self._writer

    async def _read(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            with contextlib.suppress(OSError, asyncio.IncompleteReadError, msgspec.MsgspecError):
                while True:
                    answered = self._waiting.get(_decode_number(await _read(reader)))
                    if answered is not None and not answered.done():
                        answered.set_result(None)
        finally:
            self._writer = None
            writer.close()
            for left in self._waiting.values():
                if not left.done():
                    left.set_exception(ConnectionError("the connection has ended"))
