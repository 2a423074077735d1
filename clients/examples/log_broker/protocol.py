"""What goes over TCP: each message is a length of four bytes, and msgpack. A connection answers in order."""

from __future__ import annotations

import asyncio
from typing import Final, Self, TypeVar

import msgspec

from metad_client import MetadError, OverloadedError, Owner, StaleRouteError, UnknownOutcomeError

MESSAGE_BYTES_MAX: Final = 16 * 1024 * 1024
KIND: Final = "topic"  # of the resources whose partitions are logs


class Record(msgspec.Struct, frozen=True, array_like=True):
    """A record of a partition. ``leader_epoch``: of the leader that took it."""

    leader_epoch: int
    offset: int
    payload: bytes


class Ask(msgspec.Struct, frozen=True, tag=True):
    """Base of all requests. ``leader_epoch``: by which the sender has chosen whom to ask."""

    tenant: str
    topic: str
    partition: int
    leader_epoch: int


class Append(Ask, frozen=True):
    """Append records; answered with :class:`Appended` once they are acknowledged."""

    payloads: list[bytes]


class Fetch(Ask, frozen=True):
    """Read from ``offset`` on; waits for up to ``wait_s`` if there is nothing. Consumers get what is acknowledged, a
    ``follower`` everything; it says that it has all before ``offset``."""

    offset: int
    wait_s: float
    follower: Owner | None = None


class EndOf(Ask, frozen=True):
    """Where the records of ``epoch`` end, for a follower that may have others than the leader."""

    epoch: int


class Appended(msgspec.Struct, frozen=True, tag=True):
    """The records are acknowledged; the first has this offset."""

    partition: int
    offset: int
    leader_epoch: int


class Fetched(msgspec.Struct, frozen=True, tag=True):
    """The records from the offset on."""

    records: list[Record]
    high_watermark: int


class Ended(msgspec.Struct, frozen=True, tag=True):
    """``epoch`` is the greatest up to the one that was asked for of which the leader has records, and ends there."""

    epoch: int
    end: int


class Stale(msgspec.Struct, frozen=True, tag="stale_route"):
    """Nothing was done: who was asked does not lead under this ``leader_epoch``, but under its own; 0: not at all."""

    leader_epoch: int


class Unknown(msgspec.Struct, frozen=True, tag=True):
    """The leader was replaced, or has waited for long, and does not know whether the records are acknowledged."""


class Busy(msgspec.Struct, frozen=True, tag=True):
    """Nothing was done: too few are in sync, or there is no room. Come again, on a new connection."""


Request = Append | Fetch | EndOf
Reply = Appended | Fetched | Ended | Stale | Unknown | Busy
Message = TypeVar("Message")
REQUESTS: Final = msgspec.msgpack.Decoder(Request)
_encode, _reply = msgspec.msgpack.Encoder().encode, msgspec.msgpack.Decoder(Reply)


async def read(reader: asyncio.StreamReader, decoder: msgspec.msgpack.Decoder[Message]) -> Message:
    """The next message. Raises EOFError, OSError, ValueError."""
    size = int.from_bytes(await reader.readexactly(4), "big")
    if size > MESSAGE_BYTES_MAX:
        raise ValueError(f"a message of {size} bytes")
    return decoder.decode(await reader.readexactly(size))


async def write(writer: asyncio.StreamWriter, message: Request | Reply) -> None:
    encoded = _encode(message)
    writer.write(len(encoded).to_bytes(4, "big") + encoded)
    await writer.drain()


class Connection:
    """To one broker. One request at a time."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self.writer = reader, writer
        self._turn = asyncio.Lock()

    @classmethod
    async def open(cls, address: str, timeout_s: float = 2.0) -> Self:
        """Connect to HOST:PORT. Raises OSError."""
        host, _, port = address.rpartition(":")
        async with asyncio.timeout(timeout_s):
            return cls(*await asyncio.open_connection(host, int(port)))

    async def ask(self, request: Request, answer: type[Message], timeout_s: float) -> Message:
        """The answer. Raises StaleRouteError, OverloadedError, UnknownOutcomeError, and what :func:`read` raises: then
        nobody knows what was done, and the connection is closed."""
        try:
            async with self._turn, asyncio.timeout(timeout_s):
                await write(self.writer, request)
                reply = await read(self._reader, _reply)
        except BaseException:
            self.close()
            raise
        match reply:
            case Stale(epoch):
                raise StaleRouteError(f"it leads under leader_epoch {epoch}", current=epoch)
            case Unknown():
                raise UnknownOutcomeError("the leader does not know whether the records are acknowledged")
            case Busy():
                self.close()
                raise OverloadedError("too few are in sync, or the broker has no room")
        assert isinstance(reply, answer), reply
        return reply

    def close(self) -> None:
        self.writer.close()


ERRORS = (MetadError, OSError, EOFError, TimeoutError, ValueError)  # what a later attempt may not meet
