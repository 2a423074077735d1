"""A process of brokers that lead and follow partitions by ``m.serve``, and keep a log in memory of some of them.

The processes talk over unix sockets, a socket for each broker. A follower fetches in its own life under the
``leader_epoch`` of its record, and cuts off what the leader does not have. Of a partition without a log a follower
fetches only until it is in sync. What a broker leads and serves is noted in a file at once: it dies by SIGKILL.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from bisect import bisect_right
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Iterable, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Final

import msgspec

from metad_client import BrokerLife, Client, LifeState, MetadError, Options
from metad_client.assignment.serving import Followed, Held, Key, Led, Serving
from metad_wire.messages import Owner

from ..target import open_client

LOG: Final = "log"
"""The kind of resources whose partitions have a log."""
TOPIC: Final = "topic"
TASK: Final = "task"
"""The kind of resources with one owner."""
LEASE_S: Final = 2.0
_LOOK_S: Final = 0.02
_FETCH_S: Final = 0.05
_COMMIT_LOOK_S: Final = 0.01
_APPEND_WITHIN_S: Final = 5.0
_TOGETHER_NS: Final = 100_000_000
_UNAVAILABLE: Final = (OSError, asyncio.IncompleteReadError, TimeoutError)


def name_of(number: int) -> str:
    """A broker by its number."""
    return f"broker-{number:03}"


class Log:
    """The records of a partition: of each the ``leader_epoch`` in which it was appended, and its number."""

    def __init__(self) -> None:
        self.epochs: list[int] = []
        self.numbers: list[int] = []

    def __len__(self) -> int:
        return len(self.numbers)

    def append(self, epoch: int, number: int) -> None:
        """At its end."""
        self.epochs.append(epoch)
        self.numbers.append(number)

    def epoch_before(self, position: int) -> int:
        """Of the record before a position; 0 at the beginning."""
        return self.epochs[position - 1] if position else 0

    def agrees_to(self, position: int, epoch: int) -> int:
        """A follower has so many records, the last of them of this epoch. Returns ``position`` if this log has them,
        too; else to how many the follower has to cut before it asks again."""
        if position <= len(self) and self.epoch_before(position) == epoch:
            return position
        return min(position - 1, bisect_right(self.epochs, epoch))

    def cut(self, position: int) -> None:
        """Drop the records from there on."""
        del self.epochs[position:], self.numbers[position:]


class Use(msgspec.Struct, frozen=True):
    """A broker has served a partition from one time to another, by the machine's monotonic clock: ``serves`` held when
    it looked at the beginning, and at the end. Without times: it began to lead."""

    key: Key
    leader_epoch: int
    member: Owner
    begin_ns: int = 0
    end_ns: int = 0


def double_served(uses: Iterable[Use]) -> set[Key]:
    """The partitions that two brokers served at the same time."""
    found: set[Key] = set()
    by_key: defaultdict[Key, list[Use]] = defaultdict(list)
    for use in uses:
        by_key[use.key].append(use)
    for key, each in by_key.items():
        newest: dict[Owner, int] = {}
        for use in sorted(each, key=lambda use: use.begin_ns):
            if any(end_ns > use.begin_ns for member, end_ns in newest.items() if member != use.member):
                found.add(key)
            newest[use.member] = max(use.end_ns, newest.get(use.member, 0))
    return found


def read_uses(directory: Path) -> list[Use]:
    """What brokers have noted, also those that were killed while they wrote a line."""
    decoder = msgspec.json.Decoder(list[Use])
    return [
        use
        for file in directory.glob("*.uses")
        for line in file.read_bytes().splitlines(keepends=True)
        if line.endswith(b"\n")
        for use in decoder.decode(line)
    ]


# --- what they say to each other ----------------------------------------------------------------------------


class Fetch(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """A follower has the records before ``position``; the last of them is of ``last_epoch``."""

    key: Key
    follower: Owner
    leader_epoch: int
    position: int
    last_epoch: int


class Append(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Append a record. It is answered once that is acknowledged."""

    key: Key
    leader_epoch: int
    number: int


class Answer(msgspec.Struct, frozen=True, array_like=True):
    """``cut``: to how many records the follower has to cut its log. ``refused``: why nothing was done, or it is not
    known."""

    refused: str = ""
    cut: int | None = None
    epochs: Sequence[int] = ()
    numbers: Sequence[int] = ()


_decode_request = msgspec.msgpack.Decoder(Fetch | Append).decode
_decode_answer = msgspec.msgpack.Decoder(Answer).decode


async def _read(reader: asyncio.StreamReader) -> bytes:
    return await reader.readexactly(int.from_bytes(await reader.readexactly(4), "big"))


def _write(writer: asyncio.StreamWriter, message: msgspec.Struct) -> None:
    encoded = msgspec.msgpack.encode(message)
    writer.write(len(encoded).to_bytes(4, "big") + encoded)


class Line:
    """Asks one broker after the other, over a connection that it opens when it needs it."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._to = ""
        self._ends: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def ask(self, broker: str, request: Fetch | Append) -> Answer:
        """The broker's answer, or that there is none."""
        try:
            if self._ends is None or self._to != broker:
                self.close()
                self._to, self._ends = broker, await asyncio.open_unix_connection(self._directory / broker)
            _write(self._ends[1], request)
            async with asyncio.timeout(_APPEND_WITHIN_S):
                return _decode_answer(await _read(self._ends[0]))
        except _UNAVAILABLE as error:
            self.close()
            return Answer(f"{broker} does not answer: {error!r}")

    def close(self) -> None:
        """End the connection: an answer that is late is nobody's."""
        ends, self._ends = self._ends, None
        if ends is not None:
            ends[1].close()


# --- a broker -----------------------------------------------------------------------------------------------


class Broker:
    """One broker."""

    def __init__(self, client: Client, life: BrokerLife, directory: Path, noted: list[Use]) -> None:
        self.life = life
        self.logs: defaultdict[Key, Log] = defaultdict(Log)
        self.led: dict[Key, Led] = {}
        self.tasks: dict[Key, Led] = {}
        """Those of what it leads that have one owner."""
        self._directory = directory
        self._noted = noted
        self._fetching: dict[Key, asyncio.Task[None]] = {}
        self._looked: dict[Key, tuple[Led, int]] = {}
        self.serving: Serving = client.serve(on_lead=self._lead, on_follow=self._follow, on_release=self._release)

    async def _lead(self, led: Led) -> None:
        self._stop(led.key)
        self.led[led.key] = led
        if led.record.kind == TASK:
            self.tasks[led.key] = led
        elif led.record.kind == LOG:
            led.begin(len(self.logs[led.key]))
        self._noted.append(Use(led.key, led.leader_epoch, led.me))

    async def _follow(self, followed: Followed) -> None:
        self._stop(followed.key)
        wants = followed.record.kind == LOG or followed.me not in followed.record.isr
        if wants and followed.record.kind != TASK and followed.leader is not None:
            self._fetching[followed.key] = asyncio.create_task(self._fetch(followed, followed.leader.broker))

    async def _release(self, held: Held) -> None:
        self._stop(held.key)
        if held.me.broker not in held.record.replicas:
            self.logs.pop(held.key, None)

    def _stop(self, key: Key) -> None:
        self.led.pop(key, None)
        self.tasks.pop(key, None)
        if (task := self._fetching.pop(key, None)) is not None:
            task.cancel()

    async def _fetch(self, followed: Followed, leader: str) -> None:
        line, log = Line(self._directory), self.logs[followed.key]
        with contextlib.closing(line):
            while not followed.over:
                position = len(log)
                ask = Fetch(followed.key, followed.me, followed.leader_epoch, position, log.epoch_before(position))
                answer = await line.ask(leader, ask)
                if followed.over:
                    return
                if answer.cut is not None:
                    log.cut(answer.cut)
                for record in zip(answer.epochs, answer.numbers, strict=True):
                    log.append(*record)
                if followed.record.kind != LOG and followed.me in followed.record.isr:
                    return
                if not answer.numbers and answer.cut is None:
                    await asyncio.sleep(_FETCH_S)

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer one connection."""
        with contextlib.suppress(*_UNAVAILABLE, asyncio.CancelledError), contextlib.closing(writer):
            while True:
                request = _decode_request(await _read(reader))
                led = self.led.get(request.key)
                try:
                    if led is None or led.leader_epoch != request.leader_epoch:
                        answer = Answer("it does not lead under this leader_epoch")
                    elif isinstance(request, Fetch):
                        answer = self._fetched(led, request)
                    else:
                        answer = await self._append(led, request.number)
                except MetadError as error:
                    answer = Answer(str(error))
                _write(writer, answer)
                await writer.drain()

    def _fetched(self, led: Led, fetch: Fetch) -> Answer:
        if led.in_sync is None:  # without a log everybody has everything
            led.begin(0, lag_s=math.inf)
        log = self.logs[led.key]
        agreed = log.agrees_to(fetch.position, fetch.last_epoch)
        if agreed != fetch.position:
            return Answer(cut=agreed)
        led.fetched(fetch.follower, fetch.leader_epoch, agreed)
        return Answer(epochs=log.epochs[agreed:], numbers=log.numbers[agreed:])

    async def _append(self, led: Led, number: int) -> Answer:
        led.check()
        log, in_sync = self.logs[led.key], led.in_sync
        assert in_sync is not None
        log.append(led.leader_epoch, number)
        position = len(log)
        led.appended(position)
        while in_sync.high_watermark < position:
            led.check()
            await asyncio.sleep(_COMMIT_LOOK_S)
        return Answer()

    def look(self) -> None:
        """Look whether it serves what it owns: a use lies between two looks."""
        for key, led in self.tasks.items():
            end_ns = time.monotonic_ns()
            if not led.serves:
                self._looked.pop(key, None)
                continue
            before, begin_ns = self._looked.get(key, (None, 0))
            if before is led and end_ns - begin_ns < _TOGETHER_NS:
                self._noted.append(Use(key, led.leader_epoch, led.me, begin_ns, end_ns))
            self._looked[key] = led, time.monotonic_ns()


class Ready(msgspec.Struct, frozen=True):
    """Order. It is answered once all brokers live."""


class Serve(msgspec.Struct, frozen=True):
    """Order: begin to serve. The reply, once all are told of what they have: how many partitions they lead."""


class Logs(msgspec.Struct, frozen=True):
    """Order. The reply: for each partition with a log that a broker leads the ``leader_epoch`` and the numbers of its
    records; and the names of brokers that have lost their lives."""


class Brokers:
    """The brokers of one process."""

    def __init__(self, brokers: Sequence[Broker], stack: AsyncExitStack) -> None:
        self._brokers = brokers
        self._stack = stack

    async def carry_out(self, order: Ready | Serve | Logs) -> Any:
        match order:
            case Serve():
                for broker in self._brokers:
                    await self._stack.enter_async_context(broker.serving)
                waits: list[Awaitable[None]] = [broker.serving.caught_up() for broker in self._brokers]
                await asyncio.gather(*waits)
                return sum(len(broker.serving.led) for broker in self._brokers)
            case Logs():
                logs = {
                    key: (led.leader_epoch, broker.logs[key].numbers)
                    for broker in self._brokers
                    for key, led in broker.led.items()
                    if key[2] == LOG and led.serves
                }
                return logs, [one.life.broker for one in self._brokers if one.life.state is LifeState.LOST]


async def _note(brokers: Sequence[Broker], noted: list[Use], file: Path) -> None:
    with file.open("ab", buffering=0) as out:
        while True:
            for broker in brokers:
                broker.look()
            if noted:
                out.write(msgspec.json.encode(noted) + b"\n")
                noted.clear()
            await asyncio.sleep(_LOOK_S)


@contextlib.asynccontextmanager
async def open_brokers(target: str, directory: str, numbers: Sequence[int]) -> AsyncIterator[Brokers]:
    """The role of a process: these brokers begin their lives, and name a port of their process."""
    home, noted, brokers = Path(directory), list[Use](), list[Broker]()
    async with AsyncExitStack() as stack:
        probe = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0)
        port = (await stack.enter_async_context(probe)).sockets[0].getsockname()[1]
        for name in map(name_of, numbers):
            client = await stack.enter_async_context(open_client(target, Options(client_name=name)))
            life = await client.brokers.register(name, lease_s=LEASE_S, probe_port=port)
            broker = Broker(client, life, home, noted)
            server = await asyncio.start_unix_server(broker.answer, home / name)
            stack.callback(server.close)
            brokers.append(broker)
        noting = asyncio.create_task(_note(brokers, noted, home / f"{numbers[0]}.uses"))
        stack.callback(noting.cancel)
        yield Brokers(brokers, stack)
