"""Clients that share registers, and the history of their requests and answers.

A register is a key-value record, a session's owner, or an offset. Every value is written once in a run, so a value that
is read identifies its write. All clients live in one event loop and number their events, so that the order of events
needs no clock. An operation with an unknown outcome has no end in the history. One that the SDK reports as not done is
left out, so if it was done all the same it shows as a value out of nowhere.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Hashable

from metad_client import Client
from metad_client.errors import ConflictError, MetadError
from metad_judge.linearizability import Kind, Operation
from metad_wire import messages as m

TENANT = "registers"
NAMESPACES = 12  # of key-value registers; a namespace lives in one group
KEYS = 2  # of a namespace, in use at a time
SESSIONS = 8
PARTITIONS = 4
GENERATION_OPERATIONS = 6_000  # after so many all use new registers: a short history is searched quickly
THINK_S = 0.008
PIPELINED = 300  # reads in flight of one reader
_BURST_S = 1.5  # time over which they are sent
_REST_S = 0.3
DEADLINES_S = (0.4, 4.0)  # of the clients in turn: some give up during an election, so that outcomes stay unknown


class History:
    """All events, in one order."""

    def __init__(self) -> None:
        self.operations: list[Operation] = []
        self.acknowledged = 0
        self.unknown = 0
        self.failed = 0
        self.errors: dict[str, int] = {}
        self._moment = 0

    @property
    def generation(self) -> int:
        """The number of the registers in use."""
        return len(self.operations) // GENERATION_OPERATIONS

    def moment(self) -> int:
        """The number of an event."""
        self._moment += 1
        return self._moment

    def answered(self, key: Hashable, kind: Kind, argument: Hashable, result: Hashable, invoked: int) -> None:
        """An operation was answered."""
        if kind != "get" and result is not False:
            self.acknowledged += 1
        self.operations.append(Operation(key, kind, argument, result, invoked, self.moment()))

    def ended(self, key: Hashable, kind: Kind, argument: Hashable, invoked: int, error: MetadError) -> None:
        """An operation ended with an error."""
        self.errors[error.name] = self.errors.get(error.name, 0) + 1
        if error.outcome_known:
            self.failed += 1
            return
        self.unknown += 1
        self.operations.append(Operation(key, kind, argument, None, invoked, None))


class RegisterClient:
    """One client, one operation at a time."""

    def __init__(self, number: int, client: Client, rng: random.Random, history: History) -> None:
        self._number = number
        self._client = client
        self._rng = rng
        self._history = history
        self._made = 0
        self._seen: dict[tuple[str, ...], tuple[int, Hashable]] = {}  # of a key-value register: version and value

    async def run(self, writing: Callable[[], bool]) -> None:
        """Run until ``writing`` is false; returns when nothing is in flight."""
        while writing():
            await self.step()
            await asyncio.sleep(self._rng.expovariate(1 / THINK_S))

    async def step(self) -> None:
        """One operation on one register."""
        kind = self._rng.choices((self._kv, self._session, self._offset), (6, 3, 2))[0]
        await kind(self._history.generation)

    async def read(self, key: tuple[str, ...]) -> None:
        """Read one register."""
        history = self._history
        invoked = history.moment()
        try:
            value = await self._value(key)
        except MetadError as error:
            history.ended(key, "get", None, invoked, error)
        else:
            history.answered(key, "get", None, value, invoked)

    async def _value(self, key: tuple[str, ...]) -> Hashable:
        kind, *name = key
        if kind == "kv":
            record = await self._client.kv.get(*name)
            self._seen[key] = (0, None) if record is None else (record.version, record.value)
            return self._seen[key][1]
        if kind == "session":
            session = await self._client.sessions.get(TENANT, *name)
            return None if session is None else session.broker
        offset = await self._client.offsets.fetch(TENANT, name[0], "topic", int(name[1]))
        return None if offset is None else offset.offset

    async def _kv(self, generation: int) -> None:
        rng, history = self._rng, self._history
        namespace, name = f"register-{rng.randrange(NAMESPACES)}", f"{generation}-{rng.randrange(KEYS)}"
        key = ("kv", namespace, name)
        choice = rng.random()
        if choice < 0.4:
            await self.read(key)
            return
        value = self._fresh().encode()
        expected: int | None = None
        argument: Hashable = value
        kind: Kind = "put"
        if choice > 0.7:
            # Every put makes another version, and nobody deletes: a version identifies a value.
            expected, seen = self._seen.get(key, (0, None))
            kind, argument = "compare_and_set", (seen, value)
        invoked = history.moment()
        try:
            version = await self._client.kv.put(namespace, name, value, expected_version=expected)
        except ConflictError:
            history.answered(key, kind, argument, False, invoked)
            self._seen.pop(key, None)
        except MetadError as error:
            history.ended(key, kind, argument, invoked, error)
        else:
            history.answered(key, kind, argument, True, invoked)
            self._seen[key] = (version, value)

    async def _session(self, generation: int) -> None:
        name = f"{generation}-{self._rng.randrange(SESSIONS)}"
        key = ("session", name)
        if self._rng.random() < 0.4:
            await self.read(key)
            return
        broker = self._fresh()
        invoked = self._history.moment()
        try:
            taken = await self._client.sessions.takeover(
                broker, 1, TENANT, name, properties=m.SessionProperties(60, b"")
            )
        except MetadError as error:
            self._history.ended(key, "get_and_set", broker, invoked, error)
        else:
            previous = None if taken.previous is None else taken.previous.broker
            self._history.answered(key, "get_and_set", broker, previous, invoked)

    async def _offset(self, generation: int) -> None:
        group, partition = f"group-{generation}-{self._rng.randrange(2)}", self._rng.randrange(PARTITIONS)
        key = ("offset", group, str(partition))
        if self._rng.random() < 0.4:
            await self.read(key)
            return
        self._made += 1
        offset = self._made * 1_000 + self._number
        invoked = self._history.moment()
        try:
            await self._client.offsets.commit(TENANT, group, "topic", partition, offset)
        except MetadError as error:
            self._history.ended(key, "put", offset, invoked, error)
        else:
            self._history.answered(key, "put", offset, True, invoked)

    def _fresh(self) -> str:
        self._made += 1
        return f"c{self._number}-{self._made}"


class Reader:
    """A client that sends hundreds of reads without waiting for any, again and again. Reads sent before a leader was
    cut off wait; later ones must not make them look answered."""

    def __init__(self, client: Client, rng: random.Random, history: History) -> None:
        self._registers = RegisterClient(0, client, rng, history)
        self._rng = rng
        self._history = history
        self.asked = 0
        self.in_flight_max = 0
        self._in_flight = 0

    async def run(self, going_on: Callable[[], bool]) -> None:
        """Run until ``going_on`` is false; returns when nothing is in flight."""
        while going_on():
            async with asyncio.TaskGroup() as tasks:
                for _ in range(PIPELINED):
                    tasks.create_task(self._read())
                    if self._in_flight % 10 == 9:
                        await asyncio.sleep(self._rng.uniform(0.0, 20 * _BURST_S / PIPELINED))
            await asyncio.sleep(_REST_S)

    async def _read(self) -> None:
        self._in_flight += 1
        self.asked += 1
        self.in_flight_max = max(self.in_flight_max, self._in_flight)
        namespace, name = self._rng.randrange(NAMESPACES), self._rng.randrange(KEYS)
        await self._registers.read(("kv", f"register-{namespace}", f"{self._history.generation}-{name}"))
        self._in_flight -= 1
