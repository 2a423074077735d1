"""The sweep of a group without a node: what it asks for is evaluated and applied at once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, Generic, Protocol, TypeVar, cast

import pytest
from state_rig import Group, command_of

from metad.node.chores.chore import Chore, Means
from metad.node.environment import Environment
from metad.node.replicas.driver import GroupDriver
from metad.node.requests.requests import Requests
from metad.storage import keys
from metad.storage.engine import UNBOUNDED_BYTES
from metad.storage.memory import MemoryEngine
from metad_wire.errors import MetadError

BATCH = 10
HOUR_MS = 3_600_000
SweepT = TypeVar("SweepT", bound=Chore, covariant=True)


class Kind(Protocol[SweepT]):
    """A class of sweeps."""

    def __call__(self, driver: GroupDriver, batch: int, means: Means, /) -> SweepT: ...


class World(Generic[SweepT]):
    """A group that this node leads, and what its sweep of a ``kind`` sees of the node. ``refusal`` is the answer to
    what it asks. ``row``: that in which the sweep looks."""

    def __init__(self, kind: Kind[SweepT], row: int, group: Group, monkeypatch: pytest.MonkeyPatch) -> None:
        self.group = group
        self.refusal: MetadError | None = None
        self.waits: Callable[[Any], bool] = lambda body: False
        """Whether a request waits in the queue, until :meth:`let_go`."""
        self._waiting: list[Callable[[], None]] = []
        self.asked: list[list[str]] = []
        """The clients of each batch."""
        self.done: list[int | None] = []
        self.begins: list[bytes] = []
        """From where the row was read."""
        scan = MemoryEngine.scan

        def noted(
            engine: MemoryEngine, begin: bytes, end: bytes, limit: int, bytes_max: int = UNBOUNDED_BYTES
        ) -> list[tuple[bytes, bytes]]:
            if begin.startswith(keys.table_prefix(group.prefix, row)):
                self.begins.append(begin)
            return scan(engine, begin, end, limit, bytes_max)

        monkeypatch.setattr(MemoryEngine, "scan", noted)
        raft = SimpleNamespace(accepting=True, prefix=group.prefix, name=group.name)
        self.driver = SimpleNamespace(machine=group.machine, installing=False, group=raft)
        self.counts: Counter[str] = Counter()
        means = Means(cast("Requests", self), cast("Environment", self), self.counts)
        self.sweep = kind(cast("GroupDriver", self.driver), BATCH, means)

    # What the sweep asks of a node.

    def now(self) -> float:
        return self.group.now_s

    def wall_ms(self) -> int:
        return self.group.now_ms

    def call_soon(self, callback: Callable[[], None]) -> None:
        callback()

    def request(self, method: Any, body: Any, done: Callable[[bytes | MetadError], None], *, group: str) -> None:
        assert group == self.group.name
        if self.waits(body):
            self._waiting.append(lambda: self.request(method, body, done, group=group))
            return
        self.asked.append([item.client_id for item in body.items])
        if self.refusal is not None:
            done(self.refusal)
            return
        (outcome,) = self.group.propose([(command_of(method, body), None)], self.group.now_ms)
        self.group.apply(len(self.group.in_flight))
        done(outcome)

    # What a test does.

    def turns(self, room: int = 1_000) -> int:
        """How many turns it takes until there is nothing to do."""
        for turn in range(1_000):
            if not self.sweep.begin(room, self.done.append):
                return turn
        raise AssertionError("it never ends")

    def let_go(self) -> None:
        """The turn of what waits has come."""
        self.waits = lambda body: False
        (waiting,) = self._waiting
        self._waiting.clear()
        waiting()

    def advance(self, passed_ms: int) -> None:
        self.group.now_ms += passed_ms
        self.group.now_s += passed_ms / 1000


def do(group: Group, method: Any, body: Any, *, applied: bool = True) -> Any:
    (outcome,) = group.propose([(command_of(method, body), None)], group.now_ms)
    if applied:
        group.apply(len(group.in_flight))
    assert isinstance(outcome, bytes), outcome
    return method.decode_reply(outcome)
