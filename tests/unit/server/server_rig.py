"""A node on engines that a test can break, whose fsyncs happen when the test says so: no thread, no waiting."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from metad.config import Config, load_config
from metad.errors import ServerError, StorageError
from metad.node.disk.stores import pair_stores
from metad.node.environment import AsyncEnvironment, Queue
from metad.node.node import Node
from metad.node.replicas.driver import GroupDriver, Work
from metad.storage.engine import UNBOUNDED_BYTES, Writes
from metad.storage.log import LogStore, LogWriter
from metad.storage.memory import MemoryEngine
from metad_wire.cluster import GroupId
from metad_wire.errors import MetadError
from metad_wire.messages import Identity
from metad_wire.methods import Method
from sim.naming import group_of


class SteppedSyncer:
    """Fsyncs are :meth:`step`."""

    def __init__(self, store: LogStore, *, fsync: bool) -> None:
        self._store = store
        self._fsync = fsync
        self._due: Callable[[StorageError | None], None] | None = None
        self.closed = False

    def sync(self, done: Callable[[StorageError | None], None]) -> None:
        assert self._due is None, "the second order of an fsync while one runs"
        self._due = done

    def step(self) -> bool:
        """One fsync, if one is due: what it covers is applied and answered."""
        if self._due is None or self.closed:
            return False
        done, self._due = self._due, None
        error: StorageError | None = None
        try:
            if self._fsync:
                self._store.sync()
        except StorageError as caught:
            error = caught
        done(error)
        return True

    def close(self) -> None:
        self.closed = True


class SteppedEnvironment(AsyncEnvironment):
    """The real one, but for its fsyncs."""

    stepped: SteppedSyncer

    def syncer(self, store: LogStore, *, fsync: bool) -> SteppedSyncer:
        self.stepped = SteppedSyncer(store, fsync=fsync)
        return self.stepped


class VirtualEnvironment(SteppedEnvironment):
    """On a loop in virtual time: the clocks are the loop's, and what is done beside the loop is done at once."""

    def now(self) -> float:
        return self._loop.time()

    def wall_ms(self) -> int:
        return 1_700_000_000_000 + int(1000 * self._loop.time())

    def beside(
        self, work: Callable[[], None], done: Callable[[BaseException | None], None], queue: Queue = Queue.FLUSHES
    ) -> None:
        failed: BaseException | None = None
        try:
            work()
        except Exception as error:  # noqa: BLE001 - whatever it is, the node is told
            failed = error
        self.call_soon(partial(done, failed))


class BreakableEngine(MemoryEngine):
    """Fails when told to: ``broken`` maps a method's name to the error it raises."""

    def __init__(self) -> None:
        super().__init__()
        self.broken: dict[str, Exception] = {}

    def _check(self, name: str) -> None:
        if name in self.broken:
            raise self.broken[name]

    def get(self, key: bytes) -> bytes | None:
        self._check("get")
        return super().get(key)

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        self._check("get_many")
        return super().get_many(keys)

    def scan(self, begin: bytes, end: bytes, limit: int, bytes_max: int = UNBOUNDED_BYTES) -> list[tuple[bytes, bytes]]:
        self._check("scan")
        return super().scan(begin, end, limit, bytes_max)

    def write(self, *batches: Writes, delete_ranges: Sequence[tuple[bytes, bytes]] = ()) -> None:
        self._check("write")
        super().write(*batches, delete_ranges=delete_ranges)

    def sync(self) -> None:
        self._check("sync")
        super().sync()


class Answer:
    """Of one request."""

    def __init__(self) -> None:
        self.results: list[bytes | MetadError] = []
        self.work: Work | None = None

    def __call__(self, result: bytes | MetadError) -> None:
        self.results.append(result)

    @property
    def done(self) -> bool:
        assert len(self.results) <= 1, "answered twice"
        return bool(self.results)

    @property
    def error(self) -> MetadError:
        assert self.done
        result = self.results[0]
        assert isinstance(result, MetadError), result
        return result

    def reply(self, method: Method[Any, Any]) -> Any:
        assert self.done
        result = self.results[0]
        assert isinstance(result, bytes), result
        return method.decode_reply(result)


class Rig:
    """A node that can be crashed and opened again."""

    environment: type[SteppedEnvironment] = SteppedEnvironment

    def __init__(self, **settings: Any) -> None:
        storage = {"engine": "memory"} | settings.pop("storage", {})
        groups = {"offset": 1, "data": 1} | settings.pop("groups", {})
        self.config: Config = load_config(None, {"storage": storage, "groups": groups, **settings})
        self.log_engine, self.state_engine = BreakableEngine(), BreakableEngine()
        self._node: Node | None = None
        self._entries_before = self._syncs_before = 0

    async def open(self) -> Node:
        """A new life, until it serves. Raises ServerError."""
        await self.begin()
        serving = asyncio.create_task(self.node.serving())
        while not serving.done():
            await asyncio.sleep(0)
            self.step()
        try:
            await serving
        except ServerError:
            await self.close()
            raise
        await self.settle()
        self._entries_before, self._syncs_before = self.writer.entries, self.writer.syncs
        return self.node

    async def begin(self) -> Node:
        """A new life that has not made an fsync yet."""
        stores = pair_stores(self.config, LogStore(self.log_engine), self.state_engine)
        self._node = Node(self.config, stores, self.environment())
        try:
            self._node.start()
        except ServerError as error:
            self._node.health.end(error)
            await self.close()
            raise
        return self._node

    @property
    def node(self) -> Node:
        assert self._node is not None
        return self._node

    @property
    def writer(self) -> LogWriter:
        return self.node._writer

    @property
    def entries(self) -> int:
        """Written in this life, but for those with which it began."""
        return self.writer.entries - self._entries_before

    @property
    def syncs(self) -> int:
        """The same of fsyncs."""
        return self.writer.syncs - self._syncs_before

    def step(self) -> bool:
        """One fsync, if one is due."""
        environment = self.node.environment
        assert isinstance(environment, SteppedEnvironment)
        return environment.stepped.step()

    def driver(self, name: str) -> GroupDriver:
        """A group's, by its name."""
        group = GroupId.parse(name)
        assert group is not None
        return self.node.drivers[group]

    async def checkpoint(self) -> None:
        """Flush the state and cut the log behind it."""
        flushed = asyncio.Event()
        self.node.checkpoints.make(flushed.set)
        await flushed.wait()
        await asyncio.sleep(0)  # the turn that writes what was cut

    def kill(self) -> None:
        """End this life without a word: nothing it still has scheduled may touch the engines."""
        self.writer.close()
        self.node.stop_timers()
        self.node.health.end(StorageError("killed"))
        self.node.environment.close()
        self._node = None

    def turn(self) -> None:
        """The loop's turn, at once."""
        self.node._scheduler.turn()

    def send(
        self,
        method: Method[Any, Any],
        body: Any,
        identity: Identity | None = None,
        deadline_ms: int = 0,
        *,
        group: str | None = None,
    ) -> Answer:
        """To the group of the first item, unless it is said which."""
        if group is None:
            group = group_of(self.node.map, method, body)
        answer = Answer()
        payload = method.encode_request(body, deadline_ms, identity, group)
        answer.work = self.node.requests.submit(method.code, payload, answer)
        return answer

    async def settle(self) -> None:
        """Scheduler and fsyncs until nothing more happens by itself."""
        idle = 0
        while idle < 3:
            await asyncio.sleep(0)
            idle = 0 if self.step() else idle + 1

    async def ask(self, method: Method[Any, Any], body: Any, identity: Identity | None = None) -> Any:
        return (await self.answered(self.send(method, body, identity))).reply(method)

    async def answered(self, answer: Answer) -> Answer:
        """Let the node work until this has an answer, or nothing more happens."""
        for _ in range(20):  # what is done in pieces takes some turns of the loop
            await self.settle()
            if answer.done:
                break
        return answer

    async def close(self) -> None:
        if self._node is not None:
            await self._node.close()
            self._node = None
