"""A node on engines that a test can break, whose fsyncs happen when the test says so: no thread, no waiting."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

import metad.server.node as node_module
from metad.config import Config, load_config
from metad.errors import StorageError
from metad.raft.writer import LogWriter
from metad.server.driver import Work
from metad.server.node import Node
from metad.server.stores import pair_stores
from metad.storage.engine import Writes
from metad.storage.log import LogStore
from metad.storage.memory import MemoryEngine
from metad_wire.errors import MetadError
from metad_wire.messages import Identity
from metad_wire.methods import Method


class SteppedWriter(LogWriter):
    """A log writer whose fsyncs are :meth:`step`."""

    def start(self) -> None:
        pass

    def _order(self) -> None:
        self._syncing = len(self._written)

    def step(self) -> bool:
        """One fsync, if one is due: what it covers is applied and answered."""
        if not self._syncing or self._broken:
            return False
        error: StorageError | None = None
        try:
            if self._fsync:
                self._store.sync()
        except StorageError as caught:
            error = caught
        self._synced(self._syncing, error)
        return True

    def close(self) -> None:
        self._broken = True


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
        self.works: list[Work] = []

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

    def __init__(self, monkeypatch: pytest.MonkeyPatch, **settings: Any) -> None:
        monkeypatch.setattr(node_module, "LogWriter", SteppedWriter)
        storage = {"engine": "memory"} | settings.pop("storage", {})
        groups = {"offset": 2, "data": 3} | settings.pop("groups", {})
        self.config: Config = load_config(None, {"storage": storage, "groups": groups, **settings})
        self.log_engine, self.state_engine = BreakableEngine(), BreakableEngine()
        self._node: Node | None = None

    async def open(self) -> Node:
        stores = pair_stores(self.config, LogStore(self.log_engine), self.state_engine)
        self._node = await Node.open(self.config, stores=stores)
        return self._node

    @property
    def node(self) -> Node:
        assert self._node is not None
        return self._node

    @property
    def writer(self) -> SteppedWriter:
        writer = self.node._writer
        assert isinstance(writer, SteppedWriter)
        return writer

    def kill(self) -> None:
        """End this life without a word: nothing it still has scheduled may touch the engines."""
        self.writer.close()
        if not self.node.failed.done():
            self.node.failed.set_result(StorageError("killed"))
        if self.node._linger is not None:
            self.node._linger.cancel()
        self.node._checkpoints.shutdown()
        self._node = None

    def send(
        self, method: Method[Any, Any], body: Any, identity: Identity | None = None, deadline_ms: int = 0
    ) -> Answer:
        answer = Answer()
        answer.works = self.node.submit(method.code, method.encode_request(body, deadline_ms, identity), answer)
        return answer

    async def settle(self) -> None:
        """Turns and fsyncs until nothing more happens by itself."""
        idle = 0
        while idle < 3:
            await asyncio.sleep(0)
            idle = 0 if self.writer.step() else idle + 1

    async def ask(self, method: Method[Any, Any], body: Any, identity: Identity | None = None) -> Any:
        answer = self.send(method, body, identity)
        await self.settle()
        return answer.reply(method)

    async def close(self) -> None:
        if self._node is not None:
            await self._node.close()
            self._node = None
