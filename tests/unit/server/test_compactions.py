"""A range of the state that scans take long to pass is compacted, one at a time and not too often."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from metad.config import Config
from metad.errors import StorageError
from metad.node.disk.checkpoints import _COMPACT_S, Checkpoints
from metad.node.environment import Queue
from metad.storage.memory import MemoryEngine


class Worn(MemoryEngine):
    """Every scan takes long."""

    def __init__(self) -> None:
        super().__init__()
        self.compacted: list[tuple[bytes, bytes]] = []

    def take_worn(self) -> Any:
        return b"a", b"b"

    def compact(self, begin: bytes, end: bytes) -> None:
        self.compacted.append((begin, end))


class World:
    def __init__(self) -> None:
        self.now_s = 0.0
        self.state = Worn()
        self.works: list[tuple[Callable[[], None], Callable[[BaseException | None], None]]] = []
        self.failures: list[BaseException] = []
        stand_in: Any = SimpleNamespace(now=lambda: self.now_s, beside=self.beside, stop_for=self.failures.append)
        nothing: Any = None
        self.checkpoints = Checkpoints(
            Config(), self.state, nothing, nothing, nothing, nothing, nothing, stand_in, stand_in
        )

    def beside(self, work: Any, done: Any, queue: Any = None) -> None:
        assert queue is Queue.LONG, "it takes seconds, and checkpoints must not wait for it"
        self.works.append((work, done))


def test_what_is_worn_is_compacted_one_at_a_time_and_not_too_often() -> None:
    world = World()
    world.checkpoints.look()
    world.checkpoints.look()
    ((work, done),) = world.works
    work()
    world.now_s = 10.0
    done(None)
    assert world.state.compacted == [(b"a", b"b")]
    world.now_s = 49.0
    world.checkpoints.look()
    assert len(world.works) == 1
    world.now_s = 50.0
    world.checkpoints.look()
    world.works[1][1](None)
    world.now_s += _COMPACT_S
    world.checkpoints.look()
    assert len(world.works) == 3
    assert not world.failures


def test_a_compaction_that_fails_stops_the_node() -> None:
    world = World()
    world.checkpoints.look()
    error = StorageError("no space")
    world.works[0][1](error)
    assert world.failures == [error]
