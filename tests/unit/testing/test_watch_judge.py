"""The judge of watches: that it agrees with what is right, and objects to each kind of lie by the name of the rule."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from metad.raft.log.journal import REGULAR, record
from metad.state.core.entry import ENTRY_FORMAT, Entry
from metad.state.core.part import Origin
from metad.state.core.slot_assignment import ALL_SLOTS, AssignedSlots
from metad.storage import keys
from metad_judge.invariants import Violation
from metad_judge.watch import ALL, Told, Wanted, WatchJudge, bit
from metad_judge.written import Change, Key, Written
from metad_wire import messages as m
from metad_wire.cluster import GroupId
from metad_wire.methods import encode
from metad_wire.tables.cluster import GROUP
from metad_wire.tables.kv import KV
from metad_wire.tables.session import SESSION
from metad_wire.watch import ChangeKind

ONE, TWO = GroupId("data", 0), GroupId("data", 1)


def kv(name: str, namespace: str = "space") -> Key:
    return Key(KV.rows["record"], KV.key_of([namespace, name]))


def owner(client: str) -> Key:
    return Key(SESSION.rows["owner"], SESSION.key_of(["acme", client]))


class Log:
    """Groups whose entries are made up."""

    def __init__(self) -> None:
        self.written = Written()
        self._writes = 0

    def entry(self, rows: dict[Key, bytes | None], group: GroupId = ONE, origin: Origin = Origin.CLIENT) -> None:
        writes = {group_key(group, key): value for key, value in rows.items()}
        self._append(group, Entry(ENTRY_FORMAT, origin, 0, writes, {}))

    def put(self, *names: str, group: GroupId = ONE) -> None:
        """An entry that writes these keys; each write has a value of its own."""
        self.entry({kv(name): self.value(name) for name in names}, group)

    def value(self, name: str) -> bytes:
        self._writes += 1
        return encode(m.Kv("space", name, b"%d" % self._writes, self._writes, 1, self._writes))

    def own(self, broker: str, client: str = "device") -> None:
        self.entry({owner(client): encode(m.SessionOwner(True, broker, 1, 0))})

    def hold(self, group: GroupId, slots: AssignedSlots) -> None:
        """A step of a slot move."""
        key = keys.table_prefix(keys.group_prefix(group), GROUP.rows["state"]) + b"slots"
        self._append(group, Entry(ENTRY_FORMAT, Origin.MIGRATION, 0, {}, {0: {key: encode(slots)}}))

    def _append(self, group: GroupId, entry: Entry) -> None:
        index = self.written.known(group) + 1
        self.written.apply("n1", group, index, record(1, REGULAR, encode(entry)), float(index))

    @property
    def told(self) -> list[Told]:
        """All changes, as they should be told."""
        return list(map(tell, self.written.log))

    def judge(self, *wanted: Wanted, **how: Any) -> WatchJudge:
        return WatchJudge("w", self.written, wanted or [Wanted("kv")], **how)


def group_key(group: GroupId, key: Key) -> bytes:
    return keys.table_prefix(keys.group_prefix(group), key.row) + key.fields


def tell(change: Change) -> Told:
    shown = None if change.value is None else change.key.record(change.value)
    before = None if change.previous is None else change.key.record(change.previous)
    return Told(change.key, change.kind, change.group, change.revision, change.revision, shown, before, True)


@pytest.fixture
def log() -> Log:
    return Log()


def objection(does: Callable[[], object]) -> str:
    with pytest.raises(Violation) as raised:
        does()
    return raised.value.rule


def show(judge: WatchJudge, rows: dict[Key, Any]) -> None:
    for key, shown in rows.items():
        judge.row(key, shown)


def begun(log: Log, *wanted: Wanted, **how: Any) -> WatchJudge:
    """Of a watcher that began before anything was written."""
    judge = log.judge(*wanted, **how)
    judge.opened()
    return judge


def test_what_is_right_is_right(log: Log) -> None:
    judge = begun(log, Wanted("kv"), Wanted("session"), previous=True)
    for _ in range(3):
        log.put("a", "b")
    log.own("one")
    log.entry({kv("a"): None})
    log.put("a")
    for change in log.written.log:
        assert judge.late()
        if change.key != kv("b"):
            others = log.written.entry(change.group, change.revision)
            judge.changes(list(map(tell, others)))
    judge.finish()
    assert judge.told == len(log.written.log) == 9
    kinds = [change.kind for change in log.written.keys[kv("a")]]
    assert kinds == [ChangeKind.CREATED, ChangeKind.CHANGED, ChangeKind.CHANGED, ChangeKind.DELETED, ChangeKind.CREATED]


def test_replicas_that_apply_different_entries(log: Log) -> None:
    log.put("a")
    entry = record(1, REGULAR, encode(Entry(ENTRY_FORMAT, Origin.CLIENT, 0, {}, {})))
    assert objection(lambda: log.written.apply("n2", ONE, 1, entry, 0.0)) == "same entries"
    assert objection(lambda: log.written.apply("n2", ONE, 3, entry, 0.0)) == "same entries"


def test_a_revision_that_goes_back(log: Log) -> None:
    for _ in range(3):
        log.put("a")
    assert objection(lambda: log.put("a", group=TWO)) == "versions only grow"


def test_ordered(log: Log) -> None:
    judge = begun(log)
    log.put("a")
    log.put("a")
    log.put("b")
    judge.changes(log.told[1:2])
    assert objection(lambda: judge.changes(log.told[:1])) == "ordered"
    judge = log.judge()
    assert objection(lambda: judge.changes([log.told[2], log.told[0]])) == "ordered", "the total order of a group"


def test_unique(log: Log) -> None:
    judge = begun(log)
    log.put("a")
    log.put("b")
    judge.changes(log.told)
    assert objection(lambda: judge.changes(log.told[:1])) == "unique"


def test_atomic(log: Log) -> None:
    judge = begun(log)
    log.put("a", "b", "c")
    assert objection(lambda: judge.changes(log.told[:2])) == "atomic"
    judge = begun(log, Wanted("kv", keys=(m.KvKey("space", "a"), m.KvKey("space", "b"))))
    log.put("a", "b", "c")
    judge.changes(log.told[3:5])
    judge = log.judge()  # one that began between the two
    judge.changes(log.told[3:])


def test_reliable(log: Log) -> None:
    judge = begun(log)
    for _ in range(3):
        log.put("a")
    judge.changes(log.told[:1])
    judge.changes(log.told[2:])
    assert objection(judge.finish) == "reliable"
    judge = log.judge()
    judge.opened()
    log.put("a")
    assert objection(lambda: judge.finish(lambda _: 4)) == "reliable"
    assert objection(lambda: judge.finish(lambda _: 3)) == "endless"


def test_resumable(log: Log) -> None:
    judge = begun(log)
    for _ in range(3):
        log.put("a")
    judge.changes(log.told[:1])
    one, two, three = (judge.resumed(f"r{number}") for number in range(3))
    judge.changes(log.told[1:])
    judge.finish()
    one.changes(log.told[1:2])
    one.changes(log.told[2:])
    one.finish()
    assert objection(lambda: two.changes(log.told[:1])) == "resumable"
    three.changes(log.told[2:])
    assert objection(three.finish) == "resumable"
    log.put("b", "c")
    half = one.resumed("half")
    half._last["data-0"] = log.told[-1].revision
    assert objection(lambda: half.changes(log.told[-2:])) == "atomic", "a token within an entry"


def test_bookmarkable(log: Log) -> None:
    judge = begun(log)
    log.put("a")
    log.put("a")
    judge.changes(log.told[:1])
    judge.progress({"data-0": 1})
    kept = judge.resumed("kept")
    judge.changes(log.told[1:])
    kept.progress({"data-0": 2})
    assert objection(lambda: kept.changes(log.told[1:])) == "bookmarkable"


def test_previous(log: Log) -> None:
    log.put("a")
    log.put("a")
    log.own("one")
    log.own("two")
    lies = [
        log.told[1]._replace(previous=None),
        log.told[1]._replace(previous_known=False),
        log.told[3]._replace(previous=log.told[3].record),
        log.told[3]._replace(previous=None, previous_known=False),
    ]
    for lie in lies:
        judge = log.judge(Wanted("kv"), Wanted("session"), previous=True)
        assert objection(lambda judge=judge, lie=lie: judge.changes([lie])) == "previous"  # type: ignore[misc]
    judge = log.judge(previous=True)
    judge.changes([log.told[1]._replace(previous=None, previous_known=False)])
    assert judge.unknown == 1


def test_created(log: Log) -> None:
    log.put("a")
    log.put("a")
    log.entry({kv("a"): None})
    for told, kind in zip(log.told, (ChangeKind.CHANGED, ChangeKind.CREATED, ChangeKind.EXPIRED), strict=True):
        lie, judge = told._replace(kind=kind), log.judge()
        assert objection(lambda judge=judge, lie=lie: judge.changes([lie])) == "created"  # type: ignore[misc]


@pytest.mark.parametrize(
    ("wanted", "passing"),
    [
        (Wanted("kv"), "0123"),
        (Wanted("kv", tenant="ab"), "12"),
        (Wanted("kv", tenant="ab", prefix="kk"), "2"),
        (Wanted("kv", prefix="ab"), "123"),
        (Wanted("kv", keys=(m.KvKey("ab", "k"), m.KvKey("ab", "x"))), "1"),
        (Wanted("session"), "456"),
        (Wanted("session", tenant="acm"), ""),
        (Wanted("session", broker="two"), "56"),
        (Wanted("session", broker="three"), ""),
    ],
)
def test_filter(log: Log, wanted: Wanted, passing: str) -> None:
    for namespace, name in [("a", "k"), ("ab", "k"), ("ab", "kk"), ("abc", "x")]:
        log.entry({kv(name, namespace): log.value(name)})
    for broker in ("one", "two", "one"):
        log.own(broker)
    for number, told in enumerate(log.told):
        judge = log.judge(wanted)
        if str(number) in passing:
            judge.changes([told])
        else:
            assert objection(lambda judge=judge, told=told: judge.changes([told])) == "filter"  # type: ignore[misc]


def test_phantoms(log: Log) -> None:
    log.put("a")
    log.entry({kv("b"): log.value("b")}, origin=Origin.MIGRATION)
    for lie in (
        log.told[0]._replace(revision=2),
        log.told[0]._replace(key=kv("b")),
        log.told[0]._replace(group="data-1"),
        log.told[0]._replace(key=kv("b"), revision=2, version=2),
    ):
        judge = log.judge()
        assert objection(lambda judge=judge, lie=lie: judge.changes([lie])) == "phantom"  # type: ignore[misc]


def test_records_and_versions(log: Log) -> None:
    log.put("a")
    log.put("a")
    judge = log.judge()
    assert objection(lambda: judge.changes([log.told[0]._replace(record=log.told[1].record)])) == "record"
    judge = log.judge()
    judge.changes(log.told[:1])
    assert objection(lambda: judge.changes([log.told[1]._replace(version=1)])) == "versions"
    judge = log.judge(keys_only=True)
    judge.changes([told._replace(record=None) for told in log.told])
    judge = log.judge(coalesce=True)
    judge.changes(log.told[1:])
    judge.finish()


def test_snapshot_and_its_tail(log: Log) -> None:
    log.put("a", "b")
    log.put("a")
    log.entry({kv("b"): None})
    judge = begun(log, snapshot=True)
    log.put("a")
    assert objection(judge.finish) == "endless"
    rows = {kv("a"): log.told[2].record}
    show(judge, rows)
    assert objection(lambda: show(judge, rows)) == "unique"
    judge.snapshot("data", ALL)  # it begins again
    show(judge, rows)
    judge.shown("data-0", 3, ALL)
    judge.changes(log.told[4:])
    judge.finish()
    judge = begun(log, snapshot=True)
    show(judge, rows)
    judge.shown("data-0", 3, ALL)
    assert objection(lambda: judge.changes(log.told[2:3])) == "unique", "it is in the snapshot"
    for wrong, rule in (
        ({}, "reliable"),
        ({**rows, kv("b"): log.told[1].record}, "reliable"),
        ({kv("a"): log.told[0].record}, "record"),
    ):
        judge = begun(log, snapshot=True)
        show(judge, wrong)
        assert objection(lambda judge=judge: judge.shown("data-0", 3, ALL)) == rule  # type: ignore[misc]


def test_a_gap_and_its_snapshot(log: Log) -> None:
    judge = begun(log)
    for _ in range(3):
        log.put("a")
    judge.changes(log.told[:1])
    here = bit(kv("a").slot)
    judge.gap("data", here)
    kept = [judge.resumed(f"r{number}") for number in range(3)]
    assert objection(judge.finish) == "endless"
    assert objection(lambda: kept[0].changes(log.told[1:2])) == "reliable"
    show(judge, {kv("a"): log.told[2].record})
    judge.shown("data-0", 3, here)
    log.put("a")
    judge.changes(log.told[3:])
    judge.finish()
    show(kept[1], {kv("a"): log.told[0].record})
    assert objection(lambda: kept[1].shown("data-0", 3, here)) == "record"
    kept[2].gap("data", 0)
    assert objection(lambda: kept[2].shown("data-0", 0, here)) == "ordered", "before what was told already"


def test_what_came_with_a_slot_is_covered_by_a_snapshot_of_its_new_group(log: Log) -> None:
    log.hold(TWO, AssignedSlots(bytes(len(ALL_SLOTS))))
    log.put("a")
    log.put("a")
    slots = bit(kv("a").slot).to_bytes(len(ALL_SLOTS), "big")
    held = (ALL & ~bit(kv("a").slot)).to_bytes(len(ALL_SLOTS), "big")
    judge = begun(log, snapshot=True)
    log.hold(ONE, AssignedSlots(held, slots, 7))
    log.entry({kv("a"): log.written.keys[kv("a")][-1].value}, TWO, Origin.MIGRATION)
    log.hold(TWO, AssignedSlots(slots, adopted_move=7, base=10))
    log.put("a", group=TWO)
    log.hold(ONE, AssignedSlots(held))
    assert log.written.shows("data-0", 2) == ALL == log.written.shows("data-0", 3)
    assert log.written.shows("data-0", 4) == ALL & ~bit(kv("a").slot)
    sealed = judge.resumed("sealed")
    late = judge.resumed("late")
    show(judge, {kv("a"): log.told[1].record})
    judge.shown("data-1", 3, bit(kv("a").slot))
    judge.shown("data-0", 3, ALL & ~bit(kv("a").slot))
    judge.changes(log.told[2:])
    judge.finish()
    show(sealed, {kv("a"): log.told[1].record})
    sealed.shown("data-0", 3, ALL)
    sealed.changes(log.told[2:])
    sealed.finish()
    show(late, {kv("a"): log.told[1].record})
    assert objection(lambda: late.shown("data-0", 4, ALL)) == "reliable", "it is closed"
