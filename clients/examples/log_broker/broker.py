"""The broker: it leads and follows what ``m.serve`` tells it, and answers requests."""

from __future__ import annotations

import asyncio
import resource
import socket
from contextlib import suppress
from pathlib import Path

from metad_client import Client, FencedError, Following, Held, Led, MetadError, NoReplicaError, Owner
from metad_client.assignment.serving import Key, Serving

from . import protocol
from .log import Fenced, Log
from .protocol import ERRORS, KIND, Append, Appended, Connection, Ended, EndOf, Fetch, Fetched, Record, Stale

ACKNOWLEDGED_S = 15.0  # so long an append waits: longer than a follower that stands still is waited for, LAG_S
APPENDS_MAX = 64  # of a partition, that are not on the disk yet
CLIENTS_MAX = resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 2
STRANGERS_MAX = CLIENTS_MAX // 4  # the rest: followers, logs, metad
WAIT_S, _ANSWER_S, _AGAIN_S = 0.5, 3.0, 0.1


class Partition:
    """One partition here, and what this broker is to it now."""

    def __init__(self, log: Log) -> None:
        self.log = log
        self.led: Led | None = None
        self.following: asyncio.Task[None] | None = None
        self.turn, self.room, self.grown = asyncio.Lock(), asyncio.Semaphore(APPENDS_MAX), asyncio.Event()

    async def stop(self) -> None:
        self.led = None
        if self.following is not None:
            self.following.cancel()
            await asyncio.gather(self.following, return_exceptions=True)
            self.following = None

    async def append(self, led: Led, payloads: list[bytes]) -> tuple[int, int]:
        """Append as the leader. Returns the first offset and the end. Raises FencedError, Fenced: nothing was done."""
        async with self.room, self.turn:
            led.check()
            first = self.log.end
            records = [Record(led.leader_epoch, first + at, payload) for at, payload in enumerate(payloads)]
            end = await asyncio.to_thread(self.log.append, led.leader_epoch, records)
            led.appended(end)
            self.grown.set()
            self.grown = asyncio.Event()
            return first, end


class Broker:
    """One life of a broker. Its partitions are files in ``folder``."""

    def __init__(self, metad: Client, me: Owner, folder: Path) -> None:
        self.metad, self.me, self.folder = metad, me, folder
        self.partitions: dict[Key, Partition] = {}

    async def lead(self, led: Led) -> None:
        """This broker leads it from now on."""
        partition = await self._opened(led)
        led.begin(partition.log.end)
        partition.led = led

    async def follow(self, followed: Following) -> None:
        """Another broker leads it, or nobody."""
        partition = await self._opened(followed)
        if followed.leader is not None:
            partition.following = asyncio.create_task(self._follow(partition.log, followed, followed.leader))

    async def release(self, held: Held) -> None:
        """It is served no more here."""
        partition = self.partitions.get(held.key) or (await self._opened(held) if held.gone else None)
        if partition is not None:
            await partition.stop()
            del self.partitions[held.key]
            await asyncio.to_thread(partition.log.close, delete=held.gone)

    async def _opened(self, held: Held) -> Partition:
        """A partition whose log takes nothing of an earlier ``leader_epoch`` any more."""
        partition = self.partitions.get(held.key)
        if partition is None:
            partition = self.partitions[held.key] = Partition(await asyncio.to_thread(Log, self._path(held)))
        await partition.stop()
        await asyncio.to_thread(partition.log.take, held.leader_epoch)
        return partition

    def _path(self, held: Held) -> Path:
        return self.folder / f"{held.record.resource_id}-{held.record.partition}.log"

    async def tidy(self, serving: Serving) -> None:
        """Delete the logs of partitions that were moved away while this broker was dead."""
        with suppress(MetadError):  # its life or its time is over
            await serving.caught_up()
            mine = {self._path(held) for held in serving.held.values()}  # of all, if nothing is awaited from here on
            for path in {*self.folder.glob("*.log")} - mine:
                path.unlink()

    async def _follow(self, log: Log, followed: Following, leader: Owner) -> None:
        (tenant, topic, _, number), epoch = followed.key, followed.leader_epoch
        while True:
            connection = None
            with suppress(*ERRORS):
                found = await self.metad.brokers.get(leader.broker)
                if found is not None:
                    connection = await Connection.open(found.address)
                    await self._agree(log, connection, followed)
                    while True:
                        fetch = Fetch(tenant, topic, number, epoch, log.end, WAIT_S, self.me)
                        fetched = await connection.ask(fetch, Fetched, WAIT_S + _ANSWER_S)
                        if fetched.records:
                            await asyncio.to_thread(log.append, epoch, fetched.records)
                            await followed.copied(sum(len(record.payload) for record in fetched.records))
            if connection is not None:
                connection.close()
            await asyncio.sleep(_AGAIN_S)

    async def _agree(self, log: Log, connection: Connection, followed: Following) -> None:
        """Drop what the leader does not have: it says where the records of an epoch end with it."""
        (tenant, topic, _, number), epoch = followed.key, followed.leader_epoch
        while log.end:
            ended = await connection.ask(EndOf(tenant, topic, number, epoch, log.last_epoch), Ended, _ANSWER_S)
            mine, end = log.end_of(ended.epoch)
            if min(end, ended.end) < log.end:
                await asyncio.to_thread(log.truncate, epoch, min(end, ended.end))
            if mine == ended.epoch:
                return

    async def answer(self, ask: protocol.Request) -> protocol.Reply:
        partition = self.partitions.get((ask.tenant, ask.topic, KIND, ask.partition))
        led = None if partition is None else partition.led
        if partition is None or led is None or led.over or led.leader_epoch != ask.leader_epoch:
            return Stale(0 if led is None or led.over else led.leader_epoch)
        try:
            match ask:
                case Append(payloads=payloads):
                    if led.in_sync is None or not led.in_sync.is_enough or partition.room.locked():
                        return protocol.Busy()
                    first, end = await asyncio.shield(partition.append(led, payloads))  # what is begun is ended
                    try:
                        async with asyncio.timeout(ACKNOWLEDGED_S):
                            await led.acknowledged(end)
                    except (FencedError, TimeoutError):
                        return protocol.Unknown()
                    return Appended(ask.partition, first, led.leader_epoch)
                case Fetch():
                    return await self._fetch(partition, led, ask)
                case EndOf(epoch=epoch):
                    return Ended(*partition.log.end_of(epoch))
        except (FencedError, Fenced, NoReplicaError):
            return Stale(0)

    async def _fetch(self, partition: Partition, led: Led, ask: Fetch) -> Fetched:
        log = partition.log
        if ask.follower is not None:
            led.fetched(ask.follower, ask.leader_epoch, ask.offset)
        with suppress(TimeoutError):
            async with asyncio.timeout(min(ask.wait_s, WAIT_S)):
                if ask.follower is None:
                    await led.acknowledged(ask.offset + 1)
                elif ask.offset >= log.end:
                    await partition.grown.wait()
        led.check()
        assert led.in_sync is not None
        reached = led.in_sync.high_watermark
        return Fetched(log.read(ask.offset, reached if ask.follower is None else log.end), reached)


class Listener:
    """Answers connections. What a connection waits for ends with it. Clients have their share of the files that the
    process may open, and who has not said what it is another: so followers always find room."""

    def __init__(self) -> None:
        self.broker: Broker | None = None
        self.clients, self.strangers = set[asyncio.StreamWriter](), dict[asyncio.StreamWriter, None]()
        self.connections = dict[asyncio.StreamWriter, asyncio.Task[None]]()

    async def accept(self, listening: socket.socket) -> None:
        """Until this is cancelled. That of asyncio does not survive that no file is left."""
        while True:
            try:
                accepted, _ = await asyncio.get_running_loop().sock_accept(listening)
                reader, writer = await asyncio.open_connection(sock=accepted)
            except OSError:
                await asyncio.sleep(_AGAIN_S)
            else:
                self.strangers[writer] = None
                self.connections[writer] = asyncio.create_task(self._serve(reader, writer))
            if len(self.strangers) > STRANGERS_MAX:
                self.strangers.pop(oldest := next(iter(self.strangers)))
                oldest.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.TaskGroup() as tasks:
                asked = asyncio.Queue[protocol.Request](1)
                tasks.create_task(self._answer(asked, writer))
                while True:
                    await asked.put(await protocol.read(reader, protocol.REQUESTS))
        except* ERRORS:
            pass
        finally:
            self.strangers.pop(writer, None)
            self.clients.discard(writer)
            self.connections.pop(writer)
            writer.close()

    async def _answer(self, asked: asyncio.Queue[protocol.Request], writer: asyncio.StreamWriter) -> None:
        while True:
            request = await asked.get()
            self.strangers.pop(writer, None)
            follows = isinstance(request, EndOf) or (isinstance(request, Fetch) and request.follower is not None)
            if not follows and len(self.clients) < CLIENTS_MAX:
                self.clients.add(writer)
            has_room = follows or writer in self.clients
            reply = await self.broker.answer(request) if has_room and self.broker is not None else protocol.Busy()
            await protocol.write(writer, reply)
            if isinstance(reply, protocol.Busy):
                raise EOFError
