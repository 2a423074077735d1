"""``metad-perf outage``: nodes of metad stand still, all of them, a majority, or the leader of the metadata alone,
under two MQTT brokers whose clients have wills. Nothing may end by it, and everything goes on soon after."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final, cast

from metad_client import MetadError, SessionDisconnectItem, SessionKey, SessionProperties, SessionTakeoverItem, Will
from metad_judge.undisturbed import leaders
from metad_wire.program.open_files import raise_files_limit
from metad_wire.tables.broker import LIVE

from ..commands import Outage
from ..errors import PerfError
from ..experiment.stage import Stage, conduct
from ..mqtt.brokers import BrokerProcess
from ..report import output

WHO: Final = ("all", "majority", "leader")
RESUMED_MS_MAX: Final = 2_000
BARS: Final = ("lives_lost", "connections_closed", "wills_wrong", "expired_wrong", "lost")
"""None of these may be more than 0."""
_TENANT: Final = "mqtt"
_AWAY: Final = "outage-away"
_AWAY_SESSIONS: Final = 200
_AT_ONCE: Final = 50
_PAUSE_S: Final = 0.05
_PING_S: Final = 55.0
_WARM_S: Final = 3.0
_CLEAR_S: Final = 30.0
_LOOK_S: Final = 0.02
_CONNECT_TIMES: Final = 3


def run(options: Outage) -> int:
    """Returns the exit code: 1 if a bar is missed."""
    if (files := raise_files_limit()) < options.clients + 500:
        raise PerfError(f"{options.clients + 500} files have to be open, and the limit of this process is {files}")
    made = conduct(options, partial(_play, options))
    output.write_json(options.json, made)
    columns = (*BARS, "resumed_ms", "acknowledged")
    rows = [[who, *(found[name] for name in columns)] for who, found in made["runs"].items()]
    output.table(f"outage of {options.seconds:g} s", ["who stands still", *columns], rows)
    for line in (*missed(made), *made["problems"]):
        output.say(line)
    return 1 if missed(made) or made["problems"] else 0


def missed(made: Mapping[str, Any]) -> list[str]:
    """The bars that are missed, in words."""
    found = [f"{name} is {made[name]}, and must be 0" for name in BARS if made[name]]
    if made["resumed_ms"] > RESUMED_MS_MAX:
        found.append(f"resumed_ms is {made['resumed_ms']}, and may be {RESUMED_MS_MAX}")
    return found


async def _play(options: Outage, stage: Stage) -> dict[str, Any]:
    folder = Path(stage.stack.enter_context(TemporaryDirectory(prefix="metad-perf-outage-")))
    outage = _Outage(options, stage, folder)
    await outage.settle()
    runs = {who: await outage.stand_still(who) for who in ((options.who,) if options.who else WHO)}
    if left := await outage.end():
        stage.problems.append(f"{left} wills are left that this command has made, in tenant {_AWAY}")
    worst: dict[str, Any] = {name: sum(found[name] for found in runs.values()) for name in BARS}
    resumed_ms = max(found["resumed_ms"] for found in runs.values())
    return worst | {"resumed_ms": resumed_ms, "runs": runs, "who": [*runs]}


class _Outage:
    """Brokers and clients, over all runs."""

    def __init__(self, options: Outage, stage: Stage, folder: Path) -> None:
        self._options = options
        self._stage = stage
        self._story = stage.story
        self._folder = folder
        self._counts = Counts()
        self._brokers: list[BrokerProcess] = []
        self._clients: list[RawClient] = []
        self._publishers: list[Publisher] = []
        self._tasks: list[asyncio.Task[None]] = []
        self._acknowledged: list[list[float]] = []
        """By broker, and last of the SDK's own writes: when something was acknowledged."""
        self._written: dict[str, bytes] = {}

    # --- before ---

    async def settle(self) -> None:
        """Everybody comes, and some begin to publish."""
        options, story = self._options, self._story
        url = f"metad://{self._stage.members.endpoints}"
        for number in range(1, options.brokers + 1):
            made = BrokerProcess(url, f"broker-{number}", self._folder, lease_s=options.lease_s)
            self._stage.stack.callback(made.end)
            self._brokers.append(made)
        self._acknowledged = [[] for _ in range(options.brokers + 1)]
        story.step(f"{options.clients:,} clients with wills connect", options.clients)
        waiting = list(range(options.clients))
        await asyncio.gather(*(self._connect(waiting) for _ in range(_AT_ONCE)))
        watcher = RawClient("watcher", self._counts, with_will=False)
        await watcher.connect(self._brokers[0].port)
        await watcher.subscribe(f"{WILLS}#")
        self._clients.append(watcher)
        by_id = {client.client_id: client for client in self._clients}
        for number in range(options.publishers):
            # Its subscriber is at another broker, if there is one.
            await by_id[f"client-{number + 1}"].subscribe(f"{MESSAGES}{number}")
            done = self._acknowledged[number % options.brokers].append
            self._publishers.append(Publisher(by_id[f"client-{number}"], number, done))
        await asyncio.sleep(_WARM_S)  # until each broker has heard of the filters at the other
        for publisher in self._publishers:
            self._begin(publisher.run(options.seconds + 60.0, _PAUSE_S))
        self._begin(self._ping())
        self._writer = await self._stage.client("writer", options.seconds + 60.0)
        self._begin(self._write())
        await asyncio.sleep(_WARM_S)

    def _begin(self, work: Any) -> None:
        self._tasks.append(asyncio.create_task(work))

    async def _connect(self, waiting: list[int]) -> None:
        while waiting:
            number = waiting.pop()
            port = self._brokers[number % len(self._brokers)].port
            for attempt in range(_CONNECT_TIMES):
                client = RawClient(f"client-{number}", self._counts)
                try:
                    await client.connect(port)
                    break
                except (OSError, TimeoutError):
                    client.leave()
                    if attempt + 1 == _CONNECT_TIMES:
                        raise
            self._clients.append(client)
            self._story.add(1)

    async def _ping(self) -> None:
        """Every client shows now and then that it is there, one after the other."""
        while True:
            clients = list(self._clients)
            for begin in range(0, len(clients), _AT_ONCE):
                for client in clients[begin : begin + _AT_ONCE]:
                    client.ping()
                await asyncio.sleep(_PING_S * _AT_ONCE / len(clients))

    async def _write(self) -> None:
        """Writes of the SDK itself, one after the other, to slots of all groups."""
        number = 0
        while True:
            number += 1
            key, value = f"key-{number}", str(number).encode()
            with contextlib.suppress(MetadError):
                await self._writer.kv.put(f"outage-{number % 50}", key, value)
                self._written[key] = value
                self._acknowledged[-1].append(time.monotonic())
            await asyncio.sleep(_PAUSE_S)

    # --- one standstill ---

    async def stand_still(self, who: str) -> dict[str, Any]:
        """Returns what has happened."""
        options, story, counts = self._options, self._story, self._counts
        await self._stage.health.settle()
        closed, wills = counts.closed, counts.wills
        lives = {broker.name: broker.epoch for broker in self._brokers}
        away = await self._leave(who) if who != "leader" else []
        led = leaders(await self._stage.health.statuses())
        members = sorted(self._stage.members.all, key=lambda one: one.name != led["metadata-0"])
        standing = members[: {"all": 3, "majority": 2, "leader": 1}[who]]
        story.step(f"{who}: {', '.join(one.name for one in standing)} stand still for {options.seconds:g} s")
        begun_s = time.monotonic()
        for member in standing:
            member.pause()
        try:
            while time.monotonic() < begun_s + options.seconds:
                await asyncio.sleep(min(1.0, options.seconds))
                story.also(f"{counts.closed - closed} connections closed, {counts.wills - wills} wills")
        finally:
            for member in standing:
                member.resume()
        resumed_s = time.monotonic()
        resumed_ms = await self._resumed(resumed_s)
        story.event(f"{who}: served {resumed_ms:.0f} ms after")
        gone, due = await self._look_at(away)
        await asyncio.sleep(options.lease_s + _WARM_S)
        ended = await self._lives_lost(lives)
        lost = await self._lost()
        return {
            "lives_lost": ended,
            "connections_closed": counts.closed - closed,
            "wills_wrong": counts.wills - wills + due + await self._waiting_wills(_TENANT),
            "expired_wrong": gone + await self._absent(),
            "resumed_ms": resumed_ms,
            "lost": len(lost),
            "examples": lost[:5],
            "acknowledged": len(counts.sent) + len(self._written),
            "stood_still": [one.name for one in standing],
        }

    async def _resumed(self, resumed_s: float) -> float:
        """Milliseconds until each broker, and the service itself, has acknowledged something."""
        until_s = resumed_s + 60.0
        while time.monotonic() < until_s:
            first = [next((at for at in reversed(times) if at >= resumed_s), None) for times in self._acknowledged]
            if None not in first:
                break
            await asyncio.sleep(_LOOK_S)
        firsts = [min((at for at in times if at >= resumed_s), default=until_s) for times in self._acknowledged]
        return 1000 * (max(firsts) - resumed_s)

    async def _leave(self, who: str) -> list[str]:
        """Sessions go away whose time is over while the service stands still, with wills that are due then."""
        interval_s = max(1, int(self._options.seconds * 0.6))
        names = [f"{who}-{number}" for number in range(_AWAY_SESSIONS)]
        properties = SessionProperties(interval_s, b"", Will("gone", b"", delay_s=interval_s))
        items = [SessionTakeoverItem(_AWAY, name, True, properties) for name in names]
        (await self._writer.sessions.takeover_many("outage", 1, items)).raise_for_error()
        gone = [SessionDisconnectItem(_AWAY, name, interval_s) for name in names]
        (await self._writer.sessions.disconnect_many("outage", 1, gone)).raise_for_error()
        return names

    async def _look_at(self, away: list[str]) -> tuple[int, int]:
        """Of those sessions, as soon as the service is back: how many have ended, and how many wills are due."""
        if not away:
            return 0, 0
        found = await self._writer.sessions.get_many([SessionKey(_AWAY, name) for name in away])
        names = set(away)
        due = [one async for one in self._writer.wills.list(_AWAY) if one.client_id in names]
        return sum(one is None for one in found), len(due)

    async def _waiting_wills(self, tenant: str) -> int:
        return len([one async for one in self._writer.wills.list(tenant)])

    async def _lives_lost(self, lives: dict[str, int]) -> int:
        found = await self._writer.brokers.get_many([*lives])
        return sum(
            one is None or one.broker_epoch != lives[name] or one.state not in LIVE
            for name, one in zip(lives, found, strict=True)
        )

    async def _absent(self) -> int:
        """Clients that are connected, and whose sessions have ended or look disconnected."""
        there = {one.client_id async for one in self._writer.sessions.list(_TENANT) if one.connected}
        connected = {one.client_id for one in self._clients}
        return len(connected - there)

    async def _lost(self) -> list[str]:
        """Acknowledged messages that have not come to their subscribers, and writes that are not there."""
        sent = set(self._counts.sent)
        until_s = time.monotonic() + 10.0
        while sent - self._counts.got and time.monotonic() < until_s:  # noqa: ASYNC110 - what comes is only counted
            await asyncio.sleep(_LOOK_S)
        written = dict(self._written)
        there: dict[str, bytes] = {}
        for space in range(50):
            async for record in self._writer.kv.scan(f"outage-{space}"):
                there[record.key] = record.value
        missing = [f"message {payload.decode()}" for payload in sorted(sent - self._counts.got)]
        return missing + [f"write {key}" for key, value in written.items() if there.get(key) != value]

    async def end(self) -> int:
        """Everybody goes in good order. Returns how many wills are left of the sessions that went away before."""
        for publisher in self._publishers:
            publisher.over = True
        for task in self._tasks:
            task.cancel()
        await asyncio.wait(self._tasks, timeout=_WARM_S)
        for client in self._clients:
            client.leave()
        await self._writer.sessions.end_tenant(_AWAY, publish_wills=False)
        until_s = time.monotonic() + _CLEAR_S
        while await self._writer.sessions.endings(_AWAY) and time.monotonic() < until_s:  # noqa: ASYNC110
            await asyncio.sleep(_LOOK_S)
        return await self._waiting_wills(_AWAY)


# --- the clients -----------------------------------------------------------------------------------------------------
# MQTT clients that cost little: thousands of connections with wills in one process, some of which publish all the
# time. They count what no client may see: a connection that the broker has closed, a message that was acknowledged and
# has not come, and a will of one that is still connected.


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
