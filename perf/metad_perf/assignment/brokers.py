"""A process of brokers that lead and follow partitions by ``m.serve``, and keep a log in memory of some of them.

They talk over unix sockets, one for each broker. A follower fetches in its own life under the ``leader_epoch`` of its
record, and cuts off what the leader does not have; without a log, it fetches only until it is in sync. What brokers
lead and serve is noted in a file at once: they die by SIGKILL.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from bisect import bisect_right
from collections import defaultdict
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Final, Literal

import msgspec

from metad_client import BrokerLife, Client, LifeState, MetadError, Options
from metad_client.assignment.serving import Following, Held, Key, Led
from metad_wire.messages import Owner

from ..target import open_client

LOG: Final = "log"
"""The kind of resources whose partitions have a log."""
TASK: Final = "task"
"""The kind of those with one owner."""
_LEASE_S: Final = 2.0
_LOOK_S: Final = 0.02
_FETCH_S: Final = 0.05
_ANSWER_S: Final = 5.0
_TOGETHER_NS: Final = 100_000_000
_AWAY: Final = (OSError, asyncio.IncompleteReadError, TimeoutError)


def name_of(number: int) -> str:
    """A broker by its number."""
    return f"broker-{number:03}"


class Log:
    """Of each record the ``leader_epoch`` in which it was appended, and its number."""

    def __init__(self) -> None:
        self.epochs: list[int] = []
        self.numbers: list[int] = []

    def epoch_before(self, position: int) -> int:
        """Of the record before a position; 0 at the beginning."""
        return self.epochs[position - 1] if position else 0

    def agrees_to(self, position: int, epoch: int) -> int:
        """A follower has so many records, the last of them of this epoch. Returns ``position`` if this log has them,
        too; else to how many the follower has to cut its log before it asks again."""
        if position <= len(self.epochs) and self.epoch_before(position) == epoch:
            return position
        return min(position - 1, bisect_right(self.epochs, epoch))

    def take(self, cut: int, epochs: Sequence[int], numbers: Sequence[int]) -> None:
        """Keep so many records, and add these."""
        self.epochs[cut:], self.numbers[cut:] = epochs, numbers


class Use(msgspec.Struct, frozen=True, array_like=True):
    """A broker has served a partition in between, by the machine's monotonic clock: ``serves`` held when it looked
    before, and after. Without times: it began to lead."""

    key: Key
    leader_epoch: int
    member: Owner
    begin_ns: int = 0
    end_ns: int = 0


def double_served(uses: Iterable[Use]) -> set[Key]:
    """The partitions that two brokers served at the same time."""
    found: set[Key] = set()
    newest: defaultdict[Key, dict[Owner, int]] = defaultdict(dict)
    for use in sorted(uses, key=lambda use: use.begin_ns):
        until = newest[use.key]
        if any(end_ns > use.begin_ns for member, end_ns in until.items() if member != use.member):
            found.add(use.key)
        until[use.member] = max(use.end_ns, until.get(use.member, 0))
    return found


def read_uses(directory: Path) -> list[Use]:
    """What was noted, without a line that its process has not ended."""
    files = [file.read_bytes().splitlines(keepends=True) for file in directory.glob("*.uses")]
    decode = msgspec.json.Decoder(list[Use]).decode
    return [use for lines in files for line in lines if line.endswith(b"\n") for use in decode(line)]


class Ask(msgspec.Struct, frozen=True, array_like=True):
    """A follower asks for what comes after its ``position``, where its last record is of ``last_epoch``; or a producer
    has a record appended, and is answered once that is acknowledged."""

    key: Key
    leader_epoch: int
    follower: Owner | None = None
    position: int = 0
    last_epoch: int = 0
    number: int = 0


class Answer(msgspec.Struct, frozen=True, array_like=True):
    """``refused``: why nothing was done, or it is not known. ``agreed``: so many of the follower's records are those of
    the leader; these follow."""

    refused: str = ""
    agreed: int = 0
    epochs: Sequence[int] = ()
    numbers: Sequence[int] = ()


_asked = msgspec.msgpack.Decoder(Ask).decode
_answered = msgspec.msgpack.Decoder(Answer).decode


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

    async def ask(self, broker: str, request: Ask) -> Answer:
        """The broker's answer, or that there is none."""
        try:
            if self._ends is None or self._to != broker:
                self.close()
                self._to, self._ends = broker, await asyncio.open_unix_connection(self._directory / broker)
            _write(self._ends[1], request)
            async with asyncio.timeout(_ANSWER_S):
                return _answered(await _read(self._ends[0]))
        except _AWAY as error:
            self.close()
            return Answer(f"{broker} does not answer: {error!r}")

    def close(self) -> None:
        """End the connection: an answer that is late is nobody's."""
        ends, self._ends = self._ends, None
        if ends is not None:
            ends[1].close()


class Broker:
    """One broker."""

    def __init__(self, client: Client, life: BrokerLife, directory: Path, noted: list[Use]) -> None:
        self.life = life
        self.logs: defaultdict[Key, Log] = defaultdict(Log)
        self.led: dict[Key, Led] = {}
        self._directory = directory
        self._noted = noted
        self._fetching: dict[Key, asyncio.Task[None]] = {}
        self._looked: dict[Key, tuple[Led, int]] = {}
        self.serving = client.serve(on_lead=self._lead, on_follow=self._follow, on_release=self._release)

    async def _lead(self, led: Led) -> None:
        await self._release(led)
        self.led[led.key] = led
        if led.record.kind == LOG:
            led.begin(len(self.logs[led.key].epochs))
        self._noted.append(Use(led.key, led.leader_epoch, led.me))

    async def _follow(self, followed: Following) -> None:
        await self._release(followed)
        wants = followed.record.kind == LOG or followed.me not in followed.record.isr
        if wants and followed.record.kind != TASK and followed.leader is not None:
            self._fetching[followed.key] = asyncio.create_task(self._fetch(followed, followed.leader.broker))

    async def _release(self, held: Held) -> None:
        self.led.pop(held.key, None)
        if (task := self._fetching.pop(held.key, None)) is not None:
            task.cancel()

    async def _fetch(self, followed: Following, leader: str) -> None:
        log, me = self.logs[followed.key], followed.me
        with contextlib.closing(Line(self._directory)) as line:
            while followed.record.kind == LOG or me not in followed.record.isr:
                end = len(log.epochs)
                ask = Ask(followed.key, followed.leader_epoch, me, end, log.epoch_before(end))
                answer = await line.ask(leader, ask)
                if followed.over:
                    return
                if not answer.refused:
                    log.take(answer.agreed, answer.epochs, answer.numbers)
                if answer.refused or (answer.agreed == end and not answer.epochs):
                    await asyncio.sleep(_FETCH_S)

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer one connection."""
        with contextlib.suppress(*_AWAY, asyncio.CancelledError), contextlib.closing(writer):
            while True:
                try:
                    answer = await self._answer(_asked(await _read(reader)))
                except MetadError as error:
                    answer = Answer(str(error))
                _write(writer, answer)
                await writer.drain()

    async def _answer(self, ask: Ask) -> Answer:
        led, log = self.led.get(ask.key), self.logs[ask.key]
        if led is None or led.leader_epoch != ask.leader_epoch:
            return Answer("it does not lead under this leader_epoch")
        led.check()
        in_sync = led.in_sync or led.begin(0, lag_s=math.inf)  # without a log everybody has everything
        if ask.follower is not None:
            agreed = log.agrees_to(ask.position, ask.last_epoch)
            if agreed != ask.position:
                return Answer(agreed=agreed)
            led.fetched(ask.follower, ask.leader_epoch, agreed)
            return Answer("", agreed, log.epochs[agreed:], log.numbers[agreed:])
        log.take(in_sync.end, [led.leader_epoch], [ask.number])
        position = in_sync.end + 1
        led.appended(position)
        while in_sync.high_watermark < position:
            await asyncio.sleep(_LOOK_S / 2)
            led.check()
        return Answer()

    def look(self) -> None:
        """Look whether it serves what it owns. It serves between two looks."""
        for key, led in self.led.items():
            end_ns = time.monotonic_ns()
            before, begin_ns = self._looked.pop(key, (None, 0))
            if key[2] == TASK and led.serves:
                if before is led and end_ns - begin_ns < _TOGETHER_NS:
                    self._noted.append(Use(key, led.leader_epoch, led.me, begin_ns, end_ns))
                self._looked[key] = led, time.monotonic_ns()


class Brokers:
    """The brokers of one process. Orders: ``ready`` is answered once all live; ``serve`` once they know all that they
    have, with how much they lead; ``logs`` with the records that leaders have, each log with its ``leader_epoch``, and
    with who has lost its life."""

    def __init__(self, brokers: Sequence[Broker], stack: AsyncExitStack) -> None:
        self._brokers = brokers
        self._stack = stack

    async def carry_out(self, order: Literal["ready", "serve", "logs"]) -> Any:
        if order == "serve":
            for broker in self._brokers:
                await self._stack.enter_async_context(broker.serving)
            await asyncio.gather(*(broker.serving.caught_up() for broker in self._brokers))
            return sum(len(broker.led) for broker in self._brokers)
        if order == "logs":
            led = [(one.logs[key], key, led) for one in self._brokers for key, led in one.led.items() if not led.over]
            logs = {key: (led.leader_epoch, log.numbers) for log, key, led in led if key[2] == LOG}
            return logs, [one.life.broker for one in self._brokers if one.life.state is LifeState.LOST]
        return None


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
            life = await client.brokers.register(name, lease_s=_LEASE_S, probe_port=port)
            brokers.append(Broker(client, life, home, noted))
            stack.callback((await asyncio.start_unix_server(brokers[-1].answer, home / name)).close)
        noting = asyncio.create_task(_note(brokers, noted, home / f"{numbers[0]}.uses"))
        stack.callback(noting.cancel)
        yield Brokers(brokers, stack)
