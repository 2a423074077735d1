"""Messages from broker to broker, over TCP or TLS: they never pass through metad.

Each broker listens. A broker that sends connects, both prove which lives they are, and it sends frames: a length, then
a message of MessagePack. The other answers each with its number once the clients have the message, or metad has it for
them. What either end holds is bounded, whatever the other one does.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import logging
import ssl
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

import msgspec

from metad_client import MetadError
from metad_wire.transport.tls_context import explain

from ..envelope import Envelope
from ..listening import for_brokers, listen
from ..seldom import Seldom
from .link_proof import Hello, LinkKey, Peer, Proof, RefusedError, Welcome
from .link_tls import LinkTls, SilentError
from .routes import Target


class Budget:
    """A semaphore of bytes. Whoever comes first is served first."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._left = most
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    @property
    def left(self) -> int:
        """Bytes that nobody has."""
        return self._left

    async def take(self, size: int) -> int:
        """Wait for so many bytes, or for all of them if they are fewer. Returns what is to be given back."""
        size = min(size, self._most)
        if self._left >= size and not self._waiting:
            self._left -= size
            return size
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((size, turn))
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.give(size)
            else:
                self._waiting.remove((size, turn))
                self.give(0)
            raise
        return size

    def give(self, size: int) -> None:
        """Give bytes back."""
        self._left += size
        while self._waiting and self._left >= self._waiting[0][0]:
            size, turn = self._waiting.popleft()
            if not turn.done():
                self._left -= size
                turn.set_result(None)


MESSAGE_BYTES_MAX: Final = 4 * 1024 * 1024
"""A topic and its payload."""
TARGETS_MAX: Final = 1_000
"""Of one frame. A message for more clients is several."""
FRAME_BYTES_MAX: Final = 2 * MESSAGE_BYTES_MAX
IN_HAND_BYTES_MAX: Final = 4 * FRAME_BYTES_MAX
"""Frames of one connection that are not answered; the next one waits."""
ANSWER_S: Final = 30.0
"""A broker that does not answer for so long is treated as gone."""
HELLO_S: Final = 5.0
"""Until then a caller has proved who it is."""
HOPS_MAX: Final = 3
"""A message follows a client that moves on while it is under way; not for ever."""
STRANGERS_MAX: Final = 64
"""Callers that have not proved who they are. One more ends the oldest."""
_HELLO_BYTES_MAX: Final = 1_024
_HANDLED_MAX: Final = 256  # frames of one connection at a time
_FRAME_COST: Final = 512  # of a frame in memory, beside its bytes

log = logging.getLogger("metad_client.amqtt")


class Delivery(msgspec.Struct, frozen=True, array_like=True):
    """A message for clients of that broker. Without a message: something waits for them in metad."""

    number: int
    message: Envelope | None
    targets: list[Target]
    hops: int = 0


class Unreachable(Exception):
    """The other broker did not answer, so nobody knows what it has done."""


Handle = Callable[[Delivery], Awaitable[None]]
Find = Callable[[str, int], Awaitable[str | None]]
"""The public key of a life of a broker; None if it is over. Raises MetadError."""

_encode = msgspec.msgpack.Encoder().encode
_decode_hello = msgspec.msgpack.Decoder(Hello).decode
_decode_welcome = msgspec.msgpack.Decoder(Welcome).decode
_decode_proof = msgspec.msgpack.Decoder(Proof).decode
_decode_delivery = msgspec.msgpack.Decoder(Delivery).decode
_decode_number = msgspec.msgpack.Decoder(int).decode


async def _length(reader: asyncio.StreamReader, most: int) -> int:
    length = int.from_bytes(await reader.readexactly(4), "big")
    if length > most:
        raise RefusedError(f"it sends a frame of {length} bytes")
    return length


async def _said(reader: asyncio.StreamReader) -> bytes:
    """A frame of the greeting."""
    return await reader.readexactly(await _length(reader, _HELLO_BYTES_MAX))


async def introduce(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, key: LinkKey, called: Peer) -> None:
    """Know whom one has called, and prove who calls. Raises OSError, TimeoutError, IncompleteReadError or
    MsgspecError."""
    async with asyncio.timeout(HELLO_S):
        hello = key.hello()
        writer.write(_frame(hello))
        writer.write(_frame(key.proof(hello, _decode_welcome(await _said(reader)), called)))


def _frame(message: object) -> bytes:
    encoded = _encode(message)
    return len(encoded).to_bytes(4, "big") + encoded


class Listener:
    """The end that is called. ``find`` knows the callers. With ``tls`` both ends show a certificate."""

    def __init__(self, handle: Handle, find: Find, key: LinkKey, tls: LinkTls | None = None) -> None:
        self._handle = handle
        self._find = find
        self._key = key
        self._tls = tls
        self._server: Any = None
        self._connections: set[asyncio.Task[None]] = set()
        self._strangers: dict[asyncio.Task[None], None] = {}  # the oldest first
        self._refused = Seldom(log)

    async def listen(self, host: str, port: int) -> str:
        """Listen; returns HOST:PORT."""
        self._server = await listen(host, port, self._called, for_brokers())
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
        self._strangers[task] = None
        if len(self._strangers) > STRANGERS_MAX:
            oldest = next(iter(self._strangers))
            del self._strangers[oldest]
            oldest.cancel()
        host, port = (writer.get_extra_info("peername") or ("?", "?"))[:2]
        caller = f"{host}:{port}"
        try:
            await self._meet(reader, writer)
            self._strangers.pop(task, None)
            await self._serve(reader, writer)
        except (TimeoutError, OSError, asyncio.IncompleteReadError, msgspec.MsgspecError, MetadError) as error:
            if task in self._strangers and _said_nothing(error, encrypted=self._tls is not None):
                log.debug("%s has connected and gone: perhaps metad, to see whether this broker lives", caller)
            elif task in self._strangers or isinstance(error, RefusedError | msgspec.MsgspecError):
                self._refused.warn("a caller of the link, %s, is refused: %s", caller, _why(error))
            else:
                log.info("a connection of another broker has ended: %s", error)
        except asyncio.CancelledError:
            pass  # by close, or by newer strangers
        finally:
            self._strangers.pop(task, None)
            self._connections.discard(task)
            writer.close()

    async def _meet(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Know the caller. Raises OSError, TimeoutError, IncompleteReadError, MsgspecError or MetadError."""
        async with asyncio.timeout(HELLO_S):
            shown = None if self._tls is None else await self._tls.accept(writer)
            hello = _decode_hello(await _said(reader))
            if shown is not None and shown != hello.broker:
                raise RefusedError(f"it calls itself broker {hello.broker!r}, and its certificate is that of {shown!r}")
            public = await self._find(hello.broker, hello.epoch)
            if public is None:
                raise RefusedError(f"metad knows no life {hello.epoch} of broker {hello.broker!r}, or it is over")
            welcome, wanted = self._key.welcome(hello, Peer((hello.broker, hello.epoch), public))
            writer.write(_frame(welcome))
            if not hmac.compare_digest(_decode_proof(await _said(reader)).proof, wanted.proof):
                raise RefusedError(f"it cannot prove that it is life {hello.epoch} of broker {hello.broker!r}")

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        room = asyncio.Semaphore(_HANDLED_MAX)
        budget = Budget(IN_HAND_BYTES_MAX)

        async def handle(delivery: Delivery, size: int) -> None:
            try:
                await self._handle(delivery)
            except MetadError as error:  # it is not answered, so its sender finds another way
                log.warning("a message of another broker was not delivered: %s", error)
            except Exception:
                log.exception("a message of another broker was not delivered")
            else:
                writer.write(_frame(delivery.number))
            finally:
                budget.give(size)
                room.release()

        wrong: Exception | None = None
        async with asyncio.TaskGroup() as tasks:
            with contextlib.suppress(OSError, asyncio.IncompleteReadError):
                while True:  # what has come is delivered, also if its sender has gone
                    await room.acquire()
                    try:
                        length = await _length(reader, FRAME_BYTES_MAX)
                        size = await budget.take(length + _FRAME_COST)
                        delivery = _decode_delivery(await reader.readexactly(length))
                    except (RefusedError, msgspec.MsgspecError) as error:
                        wrong = error
                        break
                    tasks.create_task(handle(delivery, size))
                    await writer.drain()
        if wrong is not None:
            raise wrong


class Link:
    """The end that calls one life of another broker. It connects when there is something to send."""

    def __init__(self, address: str, called: Peer, key: LinkKey, tls: LinkTls | None = None) -> None:
        self._address = address
        self._called = called
        self._broker = called.life[0]
        self._key = key
        self._tls = tls
        self._writer: asyncio.StreamWriter | None = None
        self._reading: asyncio.Task[None] | None = None
        self._waiting: dict[int, asyncio.Future[None]] = {}
        self._connecting = asyncio.Lock()
        self._budget = Budget(IN_HAND_BYTES_MAX)
        self._refused = Seldom(log)
        self._number = 0

    async def send(self, message: Envelope | None, targets: Sequence[Target], hops: int = 0) -> None:
        """Send, and wait until the message is delivered or stored. Raises Unreachable."""
        number = self._number = self._number + 1
        frame = _frame(Delivery(number, message, list(targets), hops))
        size = 0
        try:
            async with asyncio.timeout(ANSWER_S):
                size = await self._budget.take(len(frame) + _FRAME_COST)
                writer = await self._connected()
                answered = self._waiting[number] = asyncio.get_running_loop().create_future()
                writer.write(frame)
                await writer.drain()
                await answered
        except (OSError, TimeoutError) as error:
            raise Unreachable(f"{self._address}: {_why(error)}") from None
        finally:
            self._waiting.pop(number, None)
            self._budget.give(size)

    async def close(self) -> None:
        """Nothing more is sent."""
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.gather(self._reading, return_exceptions=True)

    async def _connected(self) -> asyncio.StreamWriter:
        async with self._connecting:
            if self._writer is None:
                host, _, port = self._address.rpartition(":")
                try:
                    reader, writer = await self._dial(host, int(port))
                except ssl.SSLError as error:
                    self._refuse(explain(error))
                    raise
                except OSError as error:
                    if self._tls is not None:
                        self._refuse(error)
                    raise
                await self._introduce(reader, writer)
                self._writer = writer
                self._reading = asyncio.create_task(self._read(reader, writer))
            return self._writer

    async def _dial(self, host: str, port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if self._tls is not None:
            return await self._tls.dial(host, port, self._broker)
        return await asyncio.open_connection(host, port)

    async def _introduce(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Raises OSError."""
        try:
            await introduce(reader, writer, self._key, self._called)
        except BaseException as error:
            writer.transport.abort()
            if isinstance(error, ssl.SSLError):  # it has refused our certificate, which TLS tells after the handshake
                self._refuse(explain(error))
            elif isinstance(error, RefusedError | msgspec.MsgspecError):
                self._refuse(error)
            if isinstance(error, asyncio.IncompleteReadError | msgspec.MsgspecError):
                raise ConnectionError(_why(error)) from None
            raise

    def _refuse(self, error: Exception) -> None:
        self._refused.warn("no link to broker %s at %s: %s", self._broker, self._address, _why(error))

    async def _read(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                answer = _decode_number(await reader.readexactly(await _length(reader, 16)))
                answered = self._waiting.get(answer)
                if answered is not None and not answered.done():
                    answered.set_result(None)
        except ssl.SSLError as error:  # it has refused our certificate, which TLS tells after the handshake
            self._refuse(explain(error))
        except (RefusedError, msgspec.MsgspecError) as error:
            self._refuse(error)
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            self._writer = None
            writer.transport.abort()  # nobody waits for what it has not read
            for left in self._waiting.values():
                if not left.done():
                    left.set_exception(ConnectionError("the connection has ended"))
                    left.exception()  # taken: its sender may have failed before it waits


def _said_nothing(error: Exception, *, encrypted: bool) -> bool:
    """Whether the caller has gone without a byte."""
    if encrypted:
        return isinstance(error, SilentError)
    return isinstance(error, ConnectionResetError) or (
        isinstance(error, asyncio.IncompleteReadError) and not error.partial
    )


def _why(error: BaseException) -> str:
    if isinstance(error, ssl.SSLError):
        return str(explain(error))
    if isinstance(error, asyncio.IncompleteReadError):
        return "it hung up"
    if isinstance(error, TimeoutError):
        return "it was silent for too long"
    return str(error) or type(error).__name__
