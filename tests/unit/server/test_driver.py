"""When requests become entries: alone at once, together while the disk is busy, within bounds, and answered once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

import pytest
from server_rig import Rig as NodeRig

from metad.config import Config
from metad.errors import StorageError
from metad.node.meters import Meters
from metad.node.replicas import driver
from metad.node.replicas.driver import ENTRY_ITEMS, Checkpoint, GroupDriver, Work
from metad.raft.log.journal import CONFIGURATION, NO_OP, REGULAR, record
from metad.raft.replica import RaftGroup
from metad.state.core.entry import Entry
from metad.state.core.part import NodeMemory
from metad.state.core.verb import Command
from metad.state.machine import Machine
from metad.state.registry import VERBS
from metad.storage.keys import group_prefix
from metad.storage.memory import MemoryEngine
from metad_wire import cluster as c
from metad_wire import messages as m
from metad_wire import methods
from metad_wire.cluster import GroupId
from metad_wire.errors import MetadError, NotLeaderError
from metad_wire.messages import Identity
from metad_wire.methods import Lane
from metad_wire.policy import BatchWindow
from metad_wire.policy.fair_queue import Precedence
from metad_wire.policy.slices import Slices

NOW_MS = 1_700_000_000_000
MIB = 1024 * 1024


class FakeLog:
    """What a driver reads of a log."""

    bytes = base_index = 0

    def __init__(self) -> None:
        self.all: list[bytes] = []

    @property
    def last_index(self) -> int:
        return len(self.all)

    def records(self, begin: int, bytes_max: int, end: int | None = None) -> list[bytes]:
        assert end is not None
        assert begin < end <= self.last_index + 1
        return self.all[begin - 1 : end - 1]


class FakeGroup:
    """A replica that leads, and commits, when the test says so."""

    name, prefix, term = "data-0", group_prefix(GroupId("data", 0)), 1

    def __init__(self) -> None:
        self.log = FakeLog()
        self.is_leader = self.accepting = self.may_grow = True
        self.leader: str | None = "node-1"
        self.applicable = self.applied = 0
        self.proposed: list[int] = []

    def propose(self, payload: bytes) -> int:
        assert self.accepting
        self.log.all.append(record(self.term, REGULAR, payload))
        self.proposed.append(self.log.last_index)
        return self.log.last_index

    def applied_to(self, index: int) -> None:
        assert index >= self.applied
        self.applied = index


class Rig:
    def __init__(
        self,
        *,
        items_max: int = 10,
        bytes_max: int = 10_000,
        linger_s: float = 0.0,
        pipeline: int = 3,
        log: Sequence[bytes] = (),
    ) -> None:
        self.engine = MemoryEngine()
        self.group = FakeGroup()
        self.group.log.all += log
        self.now_s = 100.0
        self.meters = Meters()
        self.is_behind = False
        self.precedence = Precedence(lambda: self.now_s, lambda: self.is_behind)
        self.soon: list[Callable[[], None]] = []
        self.driver = GroupDriver(
            Machine(
                GroupId("data", 0),
                self.engine,
                NodeMemory(Config()),
                clock=lambda: 0.0,
                wall_ms=lambda: 0,
            ),
            cast("RaftGroup", self.group),
            self.precedence,
            Slices(self.soon.append),
            meters=self.meters,
            window=BatchWindow(items_max=items_max, bytes_max=bytes_max, linger_s=linger_s),
            pipeline_max=pipeline,
        )
        self.answers: list[tuple[int, Any]] = []
        self.sent = 0

    def submit(
        self,
        items: int = 1,
        *,
        size: int = 10,
        identity: Identity | None = None,
        deadline_s: float = 1e9,
        key: str | None = None,
        value: bytes = b"v",
        source: object = None,
    ) -> Work:
        """Each request writes a key of its own, unless it is given: what writes one again takes a further entry."""
        number, self.sent = self.sent, self.sent + 1
        body = m.KvPut([m.KvPutItem("n", f"k{number}" if key is None else key, value)] * items)
        rows = VERBS[methods.KV_PUT.code].rows(body)
        command = Command(methods.KV_PUT, body, rows, size=size)
        work = Work(command, identity, deadline_s, lambda answer: self.answers.append((number, answer)), source)
        self.driver.submit(work, self.now_s)
        return work

    def pump(self) -> float | None:
        return self.driver.pump(self.now_s, NOW_MS)

    def pump_all(self) -> None:
        """Pump until nothing is left to do without a commit, as time goes by."""
        while (due_s := self.pump()) is not None:
            self.now_s = max(self.now_s, due_s)

    def commit(self, count: int = 1, *, items_max: int = 10**9) -> tuple[int, int]:
        self.group.applicable += count
        return self.apply(items_max)

    def apply(self, items_max: int = 10**9) -> tuple[int, int]:
        batches: list[Any] = []
        staged = self.driver.stage(batches, items_max)
        self.engine.write(*batches)
        self.driver.finish(self.now_s)
        return staged

    def names(self) -> list[tuple[int, str]]:
        return [(number, a.name if isinstance(a, MetadError) else "ok") for number, a in self.answers]

    def versions(self) -> list[list[int]]:
        return [methods.KV_PUT.decode_reply(answer).versions for _, answer in self.answers]


async def test_the_fakes_have_only_what_a_replica_has() -> None:
    node_rig = NodeRig()
    await node_rig.open()
    group = node_rig.driver("data-0").group
    for fake, real in ((FakeGroup(), group), (FakeLog(), group.log)):
        names = {name for name in dir(fake) if not name.startswith("_")} - {"all", "proposed"}
        assert not {name for name in names if not hasattr(real, name)}
    await node_rig.close()


def test_a_lone_request_becomes_an_entry_at_once() -> None:
    rig = Rig()
    rig.submit()
    assert rig.pump() is None
    assert len(rig.group.proposed) == 1
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
    assert len(rig.group.proposed) == 1
    rig.commit()
    assert rig.names() == [(number, "ok") for number in range(5)]


def test_what_an_entry_has_and_how_long_its_first_request_waited_is_counted() -> None:
    rig = Rig()
    for arrived_s in (98.0, 99.0):
        rig.submit(2).command.arrived_s = arrived_s
    rig.pump_all()
    assert (rig.meters.entry_items.total, rig.meters.entry_wait_s.total) == (4, 2.0)
    assert sum(rig.meters.entry_items.buckets) == sum(rig.meters.entry_wait_s.buckets) == 1


def test_a_request_knows_what_became_of_it() -> None:
    rig = Rig()
    work = rig.submit()
    assert work.entry is None
    rig.pump_all()
    begun_s = rig.now_s
    rig.now_s += 3.0
    rig.commit()
    assert work.entry is not None
    assert (work.entry.group, work.entry.begun_s, work.entry.applying_s) == ("data-0", begun_s, rig.now_s)


def test_missed_deadlines_are_counted() -> None:
    rig = Rig()
    rig.submit(deadline_s=rig.now_s - 1)
    rig.submit()
    rig.pump_all()
    assert (rig.meters.missed, rig.names()) == (1, [(0, "deadline_exceeded")])


@pytest.mark.parametrize("how", [{"items": 4}, {"size": 4_000}])
def test_an_entry_is_bounded_in_items_and_bytes(how: dict[str, int]) -> None:
    rig = Rig(items_max=10, bytes_max=10_000)
    for _ in range(6):
        rig.submit(**how)
    assert rig.pump() == rig.now_s  # more could be done at once
    rig.pump_all()
    assert len(rig.group.proposed) == 3
    rig.commit(3)
    assert [number for number, _ in rig.answers] == list(range(6))


def test_a_request_over_the_bounds_is_an_entry_of_its_own() -> None:
    rig = Rig(items_max=10, bytes_max=10_000)
    rig.submit()
    rig.submit(50, size=50_000)
    rig.submit()
    rig.pump_all()
    assert len(rig.group.proposed) == 3
    rig.commit(3)
    assert rig.versions() == [[1], list(range(1, 51)), [1]]


def test_the_pipeline_is_bounded_and_goes_on_with_each_commit() -> None:
    rig = Rig(items_max=2, pipeline=3)
    for _ in range(10):
        rig.submit(2)
    rig.pump_all()
    assert len(rig.group.proposed) == 3
    assert rig.pump() is None  # the next commit will do
    rig.commit()
    rig.pump_all()
    assert len(rig.group.proposed) == 4
    while not rig.driver.idle:
        rig.commit()
        rig.pump_all()
    assert [number for number, _ in rig.answers] == list(range(10))


def test_writes_of_one_key_are_on_their_way_together_in_entries_of_their_own() -> None:
    """Else a key that many write would take a commit, or the wait for company, for every few of them."""
    rig = Rig(items_max=20 * ENTRY_ITEMS, linger_s=0.5, pipeline=3)
    for _ in range(15):
        rig.submit(key="k")
    rig.now_s += 0.5
    began_s = rig.now_s
    rig.pump_all()
    assert (len(rig.group.proposed), rig.now_s) == (15, began_s)
    rig.commit(15)
    assert rig.versions() == [[version] for version in range(1, 16)]
    assert rig.driver.idle
    assert rig.precedence.small == 0


def test_writes_of_one_key_that_are_on_their_way_are_bounded() -> None:
    rig = Rig(items_max=10 * (ENTRY_ITEMS + 1), pipeline=3)
    for _ in range(50):
        rig.submit(key="k")
    rig.pump_all()
    assert len(rig.group.proposed) == 10
    rig.commit()
    rig.pump_all()
    assert len(rig.group.proposed) == 11
    while not rig.driver.idle:
        rig.commit()
        rig.pump_all()
    assert rig.versions() == [[version] for version in range(1, 51)]


@pytest.mark.parametrize(
    "flood",
    [{"key": "k"}, {"size": 0, "value": bytes(MIB)}, {"items": 1_000, "size": 10_000}],
    ids=["a row again", "entries that grow", "large requests"],
)
def test_who_needs_an_entry_for_each_request_holds_others_up_for_few_entries(flood: dict[str, Any]) -> None:
    """Guards a good client beside one that writes one key: what was put off went before all others, up to a thousand
    entries of one item were on their way before it, and it stood for seconds."""
    rig = Rig(items_max=1_000, bytes_max=MIB, pipeline=8)
    for _ in range(300):
        rig.submit(source="flood", **flood)
    rig.pump_all()
    assert len(rig.group.proposed) <= 1_000 // ENTRY_ITEMS
    for _ in range(3):
        rig.commit()
        good, begun = rig.sent, rig.group.log.last_index
        rig.submit(source="good")
        for _ in range(100):
            rig.pump_all()
            if good in dict(rig.answers):
                break
            rig.commit()
        assert good in dict(rig.answers)
        assert rig.group.applied - begun <= 2  # what was on its way, the entry that was next, and its own


def test_a_queue_of_writes_of_one_key_is_not_taken_as_a_whole_for_each_of_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rig = Rig(items_max=256)
    given: list[int] = []
    evaluate = rig.driver.machine.evaluate

    def counted(commands: Any, index: int, now_ms: int, no_room: str) -> Any:
        given.append(len(commands))
        return evaluate(commands, index, now_ms, no_room)

    monkeypatch.setattr(rig.driver.machine, "evaluate", counted)
    for number in range(100):
        rig.submit(key="k" if number < 50 else None)
    while not rig.driver.idle:
        rig.pump_all()
        rig.commit(len(rig.group.proposed) - rig.group.applied)
    assert given == [100, *[2] * 49, 49]
    assert rig.names() == [(number, "ok") for number in range(100)]


def test_what_is_put_off_takes_turns_with_the_others_and_each_line_keeps_its_order() -> None:
    rig = Rig(items_max=256)
    for source in ("one", "one", "two", "two"):
        rig.submit(key="k", source=source)
    rig.pump()
    rig.submit(key="k", source="three")
    rig.pump_all()
    rig.commit(5)
    assert [number for number, _ in rig.answers] == [0, 2, 1, 4, 3]


def test_what_is_put_off_may_still_be_cancelled_or_too_late() -> None:
    rig = Rig()
    works = [rig.submit(key="k", deadline_s=100.0 if number == 2 else 1e9) for number in range(4)]
    rig.pump()
    works[1].cancelled = True
    rig.now_s = 100.1
    rig.pump_all()
    assert rig.names() == [(1, "cancelled"), (2, "deadline_exceeded")]
    rig.commit(2)
    assert [methods.KV_PUT.decode_reply(answer).versions for _, answer in rig.answers[2:]] == [[1], [2]]
    assert rig.precedence.small == 0


def test_a_repeat_of_what_was_put_off_is_answered_with_it() -> None:
    rig = Rig()
    rig.submit(key="k")
    for _ in range(2):
        rig.submit(key="k", identity=Identity(1, 1, 0))
    rig.pump_all()
    rig.commit(2)
    assert rig.versions() == [[1], [2], [2]]


def test_what_was_put_off_and_never_begun_goes_to_the_next_leader() -> None:
    rig = Rig()
    for _ in range(2):
        rig.submit(key="k")
    rig.pump()
    rig.group.is_leader = False
    rig.driver.demoted()
    assert rig.names() == [(0, "unknown_outcome"), (1, "not_leader")]


def test_entries_in_flight_are_bounded_in_items() -> None:
    rig = Rig(items_max=10, pipeline=100)
    for _ in range(10):
        rig.submit(1_000, size=10_000)
    rig.pump_all()
    assert len(rig.group.proposed) == 1
    rig.commit()
    rig.pump_all()
    assert len(rig.group.proposed) == 2


def test_small_requests_go_before_large_ones_for_as_long_as_these_took() -> None:
    rig = Rig(items_max=256, pipeline=100)
    for _ in range(2):
        rig.submit(1_000, source="greedy")
    rig.pump()
    rig.precedence.heavy_done(rig.now_s - 0.004)
    rig.submit(source="modest")
    assert rig.pump() == rig.now_s  # the small one is begun
    rig.commit()
    rig.submit(source="modest")
    rig.pump()
    # There is room now, but it is not yet the turn of the large one.
    assert rig.pump() == pytest.approx(rig.now_s + 0.004)
    rig.now_s += 0.005
    rig.pump()
    rig.commit(3)
    assert [number for number, _ in rig.answers] == [0, 2, 3, 1]
    assert rig.precedence.small == 0


def test_a_large_request_whose_wait_ends_while_it_is_looked_at_is_not_forgotten() -> None:
    rig = Rig()
    rig.precedence.small = 1  # in another group
    rig.precedence.heavy_done(rig.now_s - 1.0)
    times = iter([rig.now_s, rig.now_s + 10])
    rig.precedence.now = lambda: next(times)
    rig.submit(1_000)
    assert rig.pump() == rig.now_s


def test_a_connection_that_fills_the_queue_delays_another_by_one_entry() -> None:
    rig = Rig(items_max=256)
    for _ in range(20):
        rig.submit(1_000, source="greedy")
    rig.submit(source="modest")
    rig.pump_all()
    rig.commit(2)
    rig.pump_all()
    rig.commit(len(rig.group.proposed) - 2)
    assert [number for number, _ in rig.answers].index(20) == 1


def test_the_first_request_lingers_for_company_but_not_past_a_full_entry() -> None:
    rig = Rig(items_max=4, linger_s=0.5)
    rig.submit()
    assert rig.pump() == 100.5
    rig.now_s = 100.3
    rig.submit()
    assert rig.pump() == 100.5  # counted from the first
    rig.now_s = 100.5
    assert rig.pump() is None
    assert len(rig.group.proposed) == 1
    rig.commit()
    rig.submit(4)
    rig.pump()
    assert len(rig.group.proposed) == 2
    assert rig.names() == [(0, "ok"), (1, "ok")]


def test_what_was_cancelled_before_it_began_is_not_done() -> None:
    rig = Rig()
    works = [rig.submit(key="k") for _ in range(3)]
    works[1].cancelled = True
    rig.pump_all()
    assert rig.names() == [(1, "cancelled")]
    works[0].cancelled = True  # too late: it is under way
    rig.commit(2)
    assert rig.names() == [(1, "cancelled"), (0, "ok"), (2, "ok")]
    assert [methods.KV_PUT.decode_reply(a).versions for _, a in rig.answers[1:]] == [[1], [2]]


def test_a_deadline_that_passed_in_the_queue_does_nothing() -> None:
    rig = Rig()
    rig.submit(deadline_s=100.0)
    rig.submit(deadline_s=99.9)
    rig.pump_all()
    assert rig.names() == [(1, "deadline_exceeded")]
    rig.commit()
    assert rig.names() == [(1, "deadline_exceeded"), (0, "ok")]


def test_while_a_leader_may_not_work_its_queue_is_looked_through_only_for_a_deadline_that_has_passed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Guards the loop in a hand-over: all that waited was taken out and put back ten times a second."""
    rig = Rig()
    rig.group.accepting = False
    for number in range(1_000):
        rig.submit(deadline_s=110.0 + number)
    looks: list[float] = []
    drain = rig.driver._queue.drain

    def counted() -> list[Work]:
        looks.append(rig.now_s)
        return drain()

    monkeypatch.setattr(rig.driver._queue, "drain", counted)
    for _ in range(400):
        assert not rig.driver.expire(rig.now_s)
        rig.now_s += 0.1
    assert 30 <= len(looks) <= 40
    assert min(looks) > 110.0
    assert rig.names() == [(number, "deadline_exceeded") for number in range(30)]
    rig.submit(deadline_s=rig.now_s + 0.05)
    rig.now_s += 0.1
    rig.driver.expire(rig.now_s)
    assert (1_000, "deadline_exceeded") in rig.names()


def test_a_queue_of_cancelled_requests_makes_no_entry() -> None:
    rig = Rig()
    for _ in range(3):
        rig.submit().cancelled = True
    rig.pump_all()
    assert rig.group.proposed == []
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
    rig.submit(identity=Identity(1, 1, 0), key="k")
    rig.pump_all()
    rig.submit(identity=Identity(1, 1, 0, 5), key="k")
    rig.submit(key="k")
    rig.pump_all()
    assert len(rig.group.proposed) == 2
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


def test_a_state_is_shown_with_an_entry_and_none_after_it() -> None:
    """Also if the entries after it are committed with it. Then it goes on."""
    rig = Rig(items_max=1)
    for _ in range(3):
        rig.submit()
        rig.pump_all()
    seen: list[tuple[int, int]] = []

    def look() -> None:
        seen.append((rig.driver.machine.applied, len(rig.engine.scan(b"", b"\xff", 100))))

    rig.driver.checkpoint = Checkpoint(2, look)
    rig.commit(3)
    assert rig.driver.machine.applied == 2
    assert [applied for applied, _ in seen] == [2]
    assert rig.driver.checkpoint is None
    rig.apply()
    assert rig.driver.machine.applied == 3
    assert len(rig.engine.scan(b"", b"\xff", 100)) > seen[0][1]
    assert rig.names() == [(number, "ok") for number in range(3)]


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
    rig.group.propose = lambda payload: 7  # type: ignore[method-assign]
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


def transacted(rig: Rig, size: int) -> None:
    """A write is done that reads a record of so many bytes; :func:`retry` repeats it."""
    rig.submit(key="large", value=bytes(size), size=0)
    rig.pump_all()
    rig.commit()
    retry(rig)
    rig.pump_all()
    rig.commit()
    assert rig.names() == [(0, "ok"), (1, "ok")]
    rig.answers.clear()


def retry(rig: Rig, source: object = None) -> None:
    number, rig.sent = rig.sent, rig.sent + 1
    body = m.KvTransact([m.KvTransaction("n", [], [m.KvOperation("other", b"v")], [], ["large"])])
    command = Command(methods.KV_TRANSACT, body, VERBS[methods.KV_TRANSACT.code].rows(body))
    identity = Identity(1, 1, 0)
    rig.driver.submit(
        Work(command, identity, 1e9, lambda answer: rig.answers.append((number, answer)), source), rig.now_s
    )


def slices(rig: Rig) -> list[int]:
    """How many answers each call of pump gives, until nothing more happens by itself."""
    given: list[int] = []
    due_s: float | None = rig.now_s
    while due_s is not None:
        before, due_s = len(rig.answers), rig.pump()
        given.append(len(rig.answers) - before)
    return given


def test_retries_that_read_much_are_answered_one_in_each_turn() -> None:
    """Once wrong: hundreds that read megabytes each were answered in one callback of the loop."""
    rig = Rig(items_max=100)
    transacted(rig, MIB)
    for _ in range(20):
        retry(rig)
    assert slices(rig) == [1] * 20
    assert rig.names() == [(number, "ok") for number in range(2, 22)]
    rig.commit()
    assert rig.driver.idle


def test_retries_that_read_little_are_answered_together_within_bounds() -> None:
    rig = Rig(items_max=1_000)
    transacted(rig, 10)
    for _ in range(200):
        retry(rig)
    given = slices(rig)
    assert sum(given) == 200
    assert 32 <= max(given) <= 64


def test_retries_of_what_is_in_flight_are_answered_in_slices_too() -> None:
    rig = Rig(items_max=100)
    rig.submit(key="large", value=bytes(MIB), size=0)
    rig.pump_all()
    rig.commit()
    for _ in range(20):
        retry(rig)
    rig.pump_all()
    rig.commit()
    assert len(rig.answers) == 3  # with the two writes
    assert not rig.driver.idle
    assert slices(rig) == [1] * 18
    rig.commit(len(rig.group.proposed) - rig.group.applied)
    assert rig.driver.idle


def test_a_connection_with_many_retries_delays_anothers_by_one() -> None:
    rig = Rig(items_max=100)
    transacted(rig, MIB)
    for _ in range(20):
        retry(rig, "greedy")
    retry(rig, "modest")
    rig.pump_all()
    assert [number for number, _ in rig.answers].index(22) <= 1


@pytest.mark.parametrize("end", ["demoted", "abandoned"])
def test_retries_that_wait_for_their_turn_are_answered_once_when_the_lead_ends(end: str) -> None:
    rig = Rig(items_max=100)
    transacted(rig, MIB)
    for _ in range(5):
        retry(rig)
    rig.pump()
    assert len(rig.answers) == 1
    if end == "demoted":
        rig.driver.demoted()
    else:
        rig.driver.abandon("gone")
    assert sorted(rig.names()) == [(2, "ok"), *((number, "unknown_outcome") for number in range(3, 7))]
    assert rig.driver.idle
    assert rig.pump() is None
    assert len(rig.answers) == 5


# --- who waits for a revision ----------------------------------------------------------------------------


class Looked(int):
    """A revision that counts how often it is compared."""

    count = 0

    def __lt__(self, other: int) -> bool:
        Looked.count += 1
        return int(self) < int(other)

    def __le__(self, other: int) -> bool:
        Looked.count += 1
        return int(self) <= int(other)


def test_an_entry_looks_only_at_those_who_wait_for_it() -> None:
    """Once wrong: while somebody waited for each next revision, every entry looked at all who wait for others."""
    rig = Rig()
    told: list[int] = []
    for number in range(1_000):
        rig.driver.await_revision(number, Looked(1_000 - number), lambda ok, number=number: told.append(number))  # type: ignore[misc]
    Looked.count = 0
    for _ in range(3):
        rig.submit()
        rig.pump()
        rig.commit()
    assert told == [999, 998, 997]
    assert Looked.count < 200


def test_those_who_wait_for_one_revision_are_told_in_slices() -> None:
    rig = Rig()
    told: list[bool] = []
    for number in range(1_000):
        rig.driver.await_revision(number, 1, told.append)
    rig.submit()
    rig.pump()
    rig.commit()
    assert len(told) <= 256
    while rig.pump() is not None:
        pass
    assert told == [True] * 1_000


def test_those_who_wait_no_more_are_forgotten_though_their_revision_does_not_come() -> None:
    rig = Rig()
    told: list[int] = []
    for number in range(10_000):
        rig.driver.await_revision(number, 10**9 if number % 100 else 1, lambda ok, number=number: told.append(number))  # type: ignore[misc]
        if number % 200:
            rig.driver.await_no_more(number)
    assert len(rig.driver._awaited_order) < 250
    rig.submit()
    rig.pump()
    rig.commit()
    assert told == list(range(0, 10_000, 200))
    rig.driver.demoted()
    assert len(told) == 50


def test_what_has_no_room_in_an_entry_is_in_the_next() -> None:
    rig = Rig()
    for i in range(7):
        rig.submit(size=0, key=f"k{i}", value=bytes(3 * MIB // 4))
    rig.pump_all()
    assert rig.group.proposed == [1, 2]
    rig.commit()
    rig.pump_all()
    assert rig.group.proposed == [1, 2, 3]
    rig.commit()
    rig.pump_all()
    assert rig.group.proposed == [1, 2, 3, 4]
    assert [len(data) // MIB for data in rig.group.log.all] == [1, 1, 1, 0]
    rig.commit(2)
    assert rig.names() == [(i, "ok") for i in range(7)]
    assert rig.driver.idle


def test_few_large_entries_are_on_their_way_at_once() -> None:
    rig = Rig(pipeline=100)
    for i in range(8):
        rig.submit(size=0, key=f"k{i}", value=bytes(3 * MIB // 2))
    rig.pump_all()
    assert rig.group.proposed == [1, 2]
    rig.commit()
    rig.pump_all()
    assert rig.group.proposed == [1, 2, 3]
    rig.driver.demoted()
    assert len(rig.answers) == 8
    rig.submit(size=0, value=bytes(3 * MIB // 2))
    rig.pump_all()
    assert rig.group.proposed == [1, 2, 3, 4]


# --- what another node evaluated, or an earlier life -----------------------------------------------------


def evaluated_elsewhere(count: int) -> list[bytes]:
    """Records of writes to k0, k1 and so on, as the log holds them."""
    rig = Rig(items_max=1)
    for i in range(count):
        rig.submit(key=f"k{i}")
    rig.pump_all()
    rig.commit(0)
    while not rig.driver.idle:
        rig.commit()
        rig.pump_all()
    return rig.group.log.all


def keys_of(rig: Rig) -> list[str]:
    body = m.KvScan("n")
    verb = VERBS[methods.KV_SCAN.code]
    assert verb.read is not None
    rows = verb.rows(body)
    page = verb.read(rig.driver.machine.reader, Command(methods.KV_SCAN, body, rows))
    reply = methods.KV_SCAN.decode_reply(methods.encode(page))
    return [record.key for record in reply.found]


def test_a_follower_applies_what_is_in_its_log() -> None:
    rig = Rig()
    rig.group.is_leader = rig.group.accepting = False
    rig.group.log.all = evaluated_elsewhere(5)
    rig.group.applicable = 3
    assert rig.apply()[0] == 3 * (ENTRY_ITEMS + 1)
    assert (keys_of(rig), rig.group.applied) == (["k0", "k1", "k2"], 3)
    rig.group.applicable = 5
    rig.apply()
    assert (keys_of(rig), rig.group.applied) == ([f"k{i}" for i in range(5)], 5)


def test_a_listener_that_ends_while_it_hears_costs_the_next_nothing() -> None:
    """A hub of watches ends by a bug in one of them. The next in line notes what is written while slots move: what it
    did not hear would be lost."""
    rig = Rig()
    heard: list[Entry] = []

    def ends(entry: Entry) -> None:
        rig.driver.unlisten(ends)

    rig.driver.listen(ends)
    with rig.driver.listening(heard.append):
        for _ in range(2):
            rig.submit()
            rig.pump_all()
            rig.commit()
    assert len(heard) == 2


def test_entries_of_raft_itself_write_nothing_but_their_index() -> None:
    rig = Rig()
    rig.group.log.all = [record(1, NO_OP), *evaluated_elsewhere(1), record(1, CONFIGURATION, b"\x92\x90\x90")]
    rig.group.applicable = 3
    rig.apply()
    assert (keys_of(rig), rig.driver.machine.applied) == (["k0"], 3)
    reopened = Machine(GroupId("data", 0), rig.engine, NodeMemory(Config()), clock=lambda: 0.0, wall_ms=lambda: 0)
    assert reopened.applied == 3


@pytest.mark.parametrize("leads", [False, True])
def test_a_write_that_applies_is_bounded_in_entries_and_the_rest_follows(leads: bool) -> None:
    rig = Rig(items_max=1, pipeline=9)
    if leads:
        for _ in range(9):
            rig.submit()
        rig.pump_all()
    else:
        rig.group.log.all = evaluated_elsewhere(9)
    rig.group.applicable = 9
    rounds = 0
    while rig.group.applied < 9:
        before = rig.group.applied
        rig.apply(items_max=4 * (ENTRY_ITEMS + 1))
        assert 0 < rig.group.applied - before <= 4
        rounds += 1
    assert rounds == 3
    assert len(keys_of(rig)) == 9


def test_what_was_not_evaluated_here_counts_as_growth_of_the_log() -> None:
    # Once wrong: only what an earlier life had written did, so a follower never cut its log.
    records = evaluated_elsewhere(4)
    rig = Rig(log=records[:3])
    rig.group.log.all += records[3:]
    rig.submit()
    rig.pump_all()
    rig.group.applicable = 5
    assert rig.apply() == (5 * (ENTRY_ITEMS + 1), sum(map(len, records)))


def test_entries_of_raft_between_those_in_flight_are_applied_in_their_place() -> None:
    rig = Rig()
    rig.submit(key="a")
    rig.pump_all()
    rig.group.log.all.append(record(1, CONFIGURATION, b"\x92\x90\x90"))
    rig.group.log.all.append(record(1, CONFIGURATION, b"\x92\x90\x90"))
    rig.submit(key="b")
    rig.pump_all()
    rig.commit(2)
    # The next is not committed, though the one behind it is known already.
    assert (rig.names(), rig.driver.machine.applied) == ([(0, "ok")], 2)
    rig.commit(2)
    assert (rig.names(), rig.driver.machine.applied) == ([(0, "ok"), (1, "ok")], 4)


def test_an_applied_index_that_runs_ahead_is_a_bug() -> None:
    rig = Rig()
    rig.submit()
    rig.pump_all()
    rig.driver.machine.applied = 1
    with pytest.raises(AssertionError, match="entry 1 would be applied after 1"):
        rig.commit()


# --- leaderships -----------------------------------------------------------------------------------------


def test_only_the_leader_takes_requests() -> None:
    rig = Rig()
    rig.group.is_leader = rig.group.accepting = False
    rig.group.leader = "node-2"
    rig.submit()
    ((_, error),) = rig.answers
    assert isinstance(error, NotLeaderError)
    assert (error.leader, error.outcome_known, error.retryable) == ("node-2", True, True)
    assert rig.driver.idle


def test_a_leader_that_is_not_ready_lets_requests_wait() -> None:
    rig = Rig()
    rig.group.accepting = False
    rig.submit()
    assert rig.pump() is None
    assert (rig.group.proposed, rig.answers) == ([], [])
    rig.group.accepting = True
    rig.pump_all()
    rig.commit()
    assert rig.names() == [(0, "ok")]


def test_the_end_of_a_leadership_answers_everything_once_and_forgets_what_may_never_be() -> None:
    rig = Rig(items_max=1, pipeline=3)
    rig.submit(identity=Identity(1, 1, 0), key="a")
    rig.pump_all()
    rig.commit()
    rig.submit(identity=Identity(1, 2, 0), key="a")
    rig.submit(identity=Identity(1, 2, 0, 5), key="a")
    rig.pump_all()
    rig.submit(key="b")
    rig.submit(key="c")  # waits: the pipeline is full
    rig.pump_all()
    rig.group.is_leader = rig.group.accepting = False
    rig.group.leader = None
    rig.driver.demoted()
    assert rig.names()[0] == (0, "ok")
    outcomes = dict(rig.names()[1:])
    assert outcomes == {1: "unknown_outcome", 2: "unknown_outcome", 3: "unknown_outcome", 4: "not_leader"}
    assert rig.driver.idle
    # The next leader's log goes on where ours was cut; ours has to see the state without what was lost.
    del rig.group.log.all[1:]
    rig.group.is_leader = rig.group.accepting = True
    rig.submit(identity=Identity(1, 2, 0, 9), key="a")
    rig.pump_all()
    rig.commit()
    assert methods.KV_PUT.decode_reply(rig.answers[-1][1]).versions == [2]


def test_a_leadership_that_ends_with_nothing_in_flight_keeps_what_was_done() -> None:
    rig = Rig()
    rig.submit(identity=Identity(1, 1, 0))
    rig.pump_all()
    rig.commit()
    rig.driver.demoted()
    rig.submit(identity=Identity(1, 1, 0, 5))
    rig.pump_all()
    rig.commit()
    assert rig.versions() == [[1], [1]]


def test_few_requests_behind_an_entry_in_flight_wait_for_company_and_not_for_long() -> None:
    rig = Rig()
    rig.submit()
    assert rig.pump() is None
    rig.submit()
    due_s = rig.pump()
    assert due_s is not None
    assert len(rig.group.proposed) == 1
    rig.commit()  # or for the commit, if that comes first
    assert rig.pump() is None
    assert len(rig.group.proposed) == 2
    rig.submit()
    rig.now_s = rig.pump() or 0.0
    assert rig.pump() is None
    assert len(rig.group.proposed) == 3


def test_few_requests_wait_while_others_that_have_come_are_yet_to_be_begun() -> None:
    rig = Rig(items_max=1_000)
    rig.is_behind = True
    rig.submit(driver._CROWD_ITEMS)
    begun_s = rig.now_s
    while (due_s := rig.pump()) is not None:  # it may be behind no more at any time, so it looks again soon
        assert due_s - rig.now_s == pytest.approx(driver._COMPANY_S)
        rig.now_s = due_s
    assert rig.now_s - begun_s == pytest.approx(driver._CROWD_S)
    rig.commit()
    rig.submit(driver._CROWD_ITEMS)
    assert rig.pump() is not None
    rig.is_behind = False
    assert rig.pump() is None
    rig.commit()
    rig.is_behind = True
    rig.submit(driver._CROWD_ITEMS - 1)
    assert rig.pump() is None, "they are of no batch"
    rig.commit()
    for _ in range(driver._COMPANY_ITEMS):
        rig.submit()
    assert rig.pump() is None, "an entry of many costs little beside its items"
    assert len(rig.group.proposed) == 4


def test_what_keeps_the_cluster_right_waits_for_no_company() -> None:
    rig = Rig()
    rig.is_behind = True
    rig.submit(driver._CROWD_ITEMS)
    work = Work(VERBS[methods.KV_PUT.code].command(m.KvPut([m.KvPutItem("n", "k", b"v")])), None, 1e9, lambda _: None)
    work.lane = Lane.CONTROL
    rig.driver.submit(work, rig.now_s)
    rig.pump()
    assert len(rig.group.proposed) == 1


def test_what_nobody_waits_for_is_not_small_and_so_gives_way() -> None:
    due = VERBS[methods.SESSION_SWEEP.code].command(c.SessionSweep([c.SessionDue("t", "a", NOW_MS, 2)]))
    lost = VERBS[methods.SESSION_LOSE.code].command(c.SessionLose([m.SessionKey("t", "a")]))
    asked = VERBS[methods.SESSION_DELETE.code].command(m.SessionDelete([m.SessionDeleteItem("t", "a")]))
    assert [Work(one, None, 0.0, lambda _: None).small for one in (due, lost, asked)] == [False, False, True]
