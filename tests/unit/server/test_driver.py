"""When requests become entries: alone at once, together while the disk is busy, within bounds, and answered once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from metad.config import DedupeConfig
from metad.errors import StorageError
from metad.raft.single import SingleReplica
from metad.routing.slots import even_slots
from metad.server.driver import GroupDriver, Work
from metad.state.machine import Machine
from metad.state.owners import OwnerCache
from metad.state.registry import VERBS
from metad.state.tables import Command
from metad.storage.keys import group_prefix
from metad.storage.memory import MemoryEngine
from metad_wire import messages as m
from metad_wire import methods
from metad_wire.errors import MetadError
from metad_wire.messages import Identity
from metad_wire.policy import BatchWindow

NOW_MS = 1_700_000_000_000


class FakeGroup:
    """A log that commits when the test says so."""

    name, kind, prefix = "data-0", "data", group_prefix("data", 0)
    first_index, last_index, log_bytes = 1, 0, 0

    def __init__(self) -> None:
        self.entries: list[tuple[bytes, Callable[[], None]]] = []

    def propose(self, entry: bytes, committed: Callable[[], None]) -> int:
        self.last_index += 1
        self.entries.append((entry, committed))
        return self.last_index

    def read(self, begin: int, end: int) -> list[tuple[int, bytes]]:
        raise AssertionError("a driver does not read the log")

    def truncate(self, through: int) -> None:
        raise AssertionError("nor does it truncate")


class Rig:
    def __init__(
        self, *, items_max: int = 10, bytes_max: int = 10_000, linger_s: float = 0.0, pipeline: int = 3
    ) -> None:
        self.engine = MemoryEngine()
        self.group = FakeGroup()
        self.committed: list[Any] = []
        self.driver = GroupDriver(
            Machine("data-0", self.group.prefix, self.engine, OwnerCache(1), DedupeConfig()),
            self.group,
            window=BatchWindow(items_max=items_max, bytes_max=bytes_max, linger_s=linger_s),
            pipeline_max=pipeline,
            committed=self.committed.append,
        )
        self.answers: list[tuple[int, Any]] = []
        self.now_s = 100.0
        self.sent = 0

    def submit(
        self,
        items: int = 1,
        *,
        size: int = 10,
        identity: Identity | None = None,
        deadline_s: float = 1e9,
        key: str = "k",
    ) -> Work:
        number, self.sent = self.sent, self.sent + 1
        body = m.KvPut([m.KvPutItem("n", key, b"v")] * items)
        command = Command(methods.KV_PUT, body, VERBS[methods.KV_PUT.code].split(body, even_slots(1))[0])
        work = Work(command, identity, deadline_s, size, lambda answer: self.answers.append((number, answer)))
        self.driver.submit(work, self.now_s)
        return work

    def pump(self) -> float | None:
        return self.driver.pump(self.now_s, NOW_MS)

    def pump_all(self) -> None:
        while self.pump() == self.now_s:
            pass

    def commit(self, count: int = 1) -> None:
        for _ in range(count):
            _, committed = self.group.entries[len(self.committed)]
            committed()
            driver, entry = self.committed[-1]
            assert driver is self.driver
            batches: list[Any] = []
            self.driver.stage(entry, batches)
            self.engine.write(*batches)
            self.driver.finish(entry)

    def names(self) -> list[tuple[int, str]]:
        return [(number, a.name if isinstance(a, MetadError) else "ok") for number, a in self.answers]

    def versions(self) -> list[list[int]]:
        return [answer[0].versions for _, answer in self.answers]


def test_the_fake_group_is_a_group() -> None:
    missing = {name for name in vars(SingleReplica) if not name.startswith("_")} - set(dir(FakeGroup))
    assert not missing


def test_a_lone_request_becomes_an_entry_at_once() -> None:
    rig = Rig()
    rig.submit()
    assert rig.pump() is None
    assert len(rig.group.entries) == 1
    assert rig.answers == []  # not before it is committed
    rig.commit()
    assert rig.names() == [(0, "ok")]
    assert rig.driver.idle


def test_nothing_waits_for_nothing() -> None:
    assert Rig().pump() is None


def test_what_waits_together_shares_an_entry() -> None:
    rig = Rig()
    for _ in range(5):
        rig.submit()
    rig.pump_all()
    assert len(rig.group.entries) == 1
    rig.commit()
    assert rig.versions() == [[1], [2], [3], [4], [5]]


@pytest.mark.parametrize("how", [{"items": 4}, {"size": 4_000}])
def test_an_entry_is_bounded_in_items_and_bytes(how: dict[str, int]) -> None:
    rig = Rig(items_max=10, bytes_max=10_000)
    for _ in range(6):
        rig.submit(**how)
    assert rig.pump() == rig.now_s  # more could be done at once
    rig.pump_all()
    assert len(rig.group.entries) == 3
    rig.commit(3)
    assert [number for number, _ in rig.answers] == list(range(6))


def test_a_request_over_the_bounds_is_an_entry_of_its_own() -> None:
    rig = Rig(items_max=10, bytes_max=10_000)
    rig.submit()
    rig.submit(50, size=50_000)
    rig.submit()
    rig.pump_all()
    assert len(rig.group.entries) == 3
    rig.commit(3)
    assert rig.versions() == [[1], list(range(2, 52)), [52]]


def test_the_pipeline_is_bounded_and_goes_on_with_each_commit() -> None:
    rig = Rig(items_max=2, pipeline=3)
    for _ in range(10):
        rig.submit(2)
    rig.pump_all()
    assert len(rig.group.entries) == 3
    assert rig.pump() is None  # the next commit will do
    rig.commit()
    rig.pump_all()
    assert len(rig.group.entries) == 4
    while not rig.driver.idle:
        rig.commit()
        rig.pump_all()
    assert [number for number, _ in rig.answers] == list(range(10))


def test_the_first_request_lingers_for_company_but_not_past_a_full_entry() -> None:
    rig = Rig(items_max=4, linger_s=0.5)
    rig.submit()
    assert rig.pump() == 100.5
    rig.now_s = 100.3
    rig.submit()
    assert rig.pump() == 100.5  # counted from the first
    rig.now_s = 100.5
    assert rig.pump() is None
    assert len(rig.group.entries) == 1
    rig.commit()
    rig.submit(4)
    rig.pump()
    assert len(rig.group.entries) == 2
    assert rig.names() == [(0, "ok"), (1, "ok")]


def test_what_was_cancelled_before_it_began_is_not_done() -> None:
    rig = Rig()
    works = [rig.submit() for _ in range(3)]
    works[1].cancelled = True
    rig.pump_all()
    assert rig.names() == [(1, "cancelled")]
    works[0].cancelled = True  # too late: it is under way
    rig.commit()
    assert rig.names() == [(1, "cancelled"), (0, "ok"), (2, "ok")]
    assert [a[0].versions for _, a in rig.answers[1:]] == [[1], [2]]


def test_a_deadline_that_passed_in_the_queue_does_nothing() -> None:
    rig = Rig()
    rig.submit(deadline_s=100.0)
    rig.submit(deadline_s=99.9)
    rig.pump_all()
    assert rig.names() == [(1, "deadline_exceeded")]
    rig.commit()
    assert rig.names() == [(1, "deadline_exceeded"), (0, "ok")]


def test_a_queue_of_cancelled_requests_makes_no_entry() -> None:
    rig = Rig()
    for _ in range(3):
        rig.submit().cancelled = True
    rig.pump_all()
    assert rig.group.entries == []
    assert rig.driver.idle
    assert rig.names() == [(n, "cancelled") for n in range(3)]


def test_a_repeat_within_one_entry_gets_the_same_answer() -> None:
    rig = Rig()
    for _ in range(3):
        rig.submit(identity=Identity(1, 1, 0))
    rig.pump_all()
    rig.commit()
    assert rig.versions() == [[1], [1], [1]]


def test_a_repeat_of_what_is_in_flight_is_answered_with_it() -> None:
    rig = Rig()
    rig.submit(identity=Identity(1, 1, 0))
    rig.pump_all()
    rig.submit(identity=Identity(1, 1, 0, 5))
    rig.submit()
    rig.pump_all()
    assert len(rig.group.entries) == 2
    rig.commit()
    assert rig.names() == [(0, "ok"), (1, "ok")]
    rig.commit()
    assert rig.versions() == [[1], [1], [2]]


def test_a_repeat_of_what_was_applied_is_answered_at_once() -> None:
    rig = Rig()
    rig.submit(identity=Identity(1, 1, 0))
    rig.pump_all()
    rig.commit()
    rig.submit(identity=Identity(1, 1, 0, 5))
    rig.pump_all()
    assert rig.versions() == [[1], [1]]
    rig.commit()
    assert rig.driver.idle


def test_abandon_answers_everything_once_and_admits_not_to_know() -> None:
    rig = Rig(items_max=2, pipeline=1)
    rig.submit(2, identity=Identity(1, 1, 0))
    rig.pump_all()
    rig.submit(identity=Identity(1, 1, 0, 5))
    rig.submit()
    rig.driver.abandon("gone")
    assert sorted(rig.names()) == [(0, "unknown_outcome"), (1, "unknown_outcome"), (2, "unknown_outcome")]
    assert rig.driver.idle
    rig.driver.abandon("again")
    assert len(rig.answers) == 3


def test_abandon_answers_repeats_of_what_is_in_flight() -> None:
    rig = Rig()
    rig.submit(identity=Identity(1, 1, 0))
    rig.submit(identity=Identity(1, 1, 0))
    rig.pump_all()
    rig.driver.abandon("gone")
    assert sorted(rig.names()) == [(0, "unknown_outcome"), (1, "unknown_outcome")]


def test_a_group_that_appends_elsewhere_is_a_bug() -> None:
    rig = Rig()
    rig.group.propose = lambda entry, committed: 7  # type: ignore[method-assign]
    rig.submit()
    with pytest.raises(AssertionError, match="evaluated as entry 1, appended as another"):
        rig.pump()


def test_a_recall_that_cannot_read_is_reported_and_answered() -> None:
    rig = Rig()
    rig.submit(identity=Identity(1, 1, 0))
    rig.pump_all()
    rig.commit()

    def fail(key: bytes) -> bytes:
        raise StorageError("disk")

    rig.engine.get = fail  # type: ignore[method-assign]
    rig.submit(identity=Identity(1, 1, 0, 5))
    rig.pump_all()
    assert rig.names()[-1] == (1, "unknown_outcome")
    assert isinstance(rig.driver.machine.unexpected, StorageError)
