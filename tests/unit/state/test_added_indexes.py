"""Indexes that are added to a table which has records, some of which end: they are built while everybody writes, slots
move and leaders change."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from operator import attrgetter
from random import Random
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
import test_slot_migration
from state_rig import ChoreNode, Group
from test_declarations import INDEXED
from test_slot_migration import Pair

from metad.node.chores import tables
from metad.node.chores.chore import Means
from metad.node.chores.tables import IndexBuild, RecordExpiry
from metad.state.cluster.declarations import Declarations
from metad.state.core.indexes import IndexStates
from metad.state.core.plain import DeclaredRecords
from metad.state.core.slot_assignment import ALL_SLOTS, HeldSlots
from metad.state.registry import VERBS
from metad.storage import keys
from metad_wire import messages as m
from metad_wire import methods
from metad_wire.cluster import SLOTS, slot_bits
from metad_wire.declaration import DeclaredField, DeclaredIndex
from metad_wire.errors import IndexBuildingError, MetadError, StaleRouteError, UnknownTableError
from metad_wire.methods import encode
from metad_wire.tables.declaration import FIRST_NUMBER, DeclaredTable
from metad_wire.tables.table import DECLARED, DUES, INDEX_STATES, TableIndexStep, TableSweep

ENDING = msgspec.structs.replace(
    INDEXED, fields=[*INDEXED.fields, DeclaredField("ends_ms", "u63", b"\x00")], expires="ends_ms"
)
ADDED = [
    msgspec.structs.replace(ENDING, indexes=indexes)
    for indexes in (
        INDEXED.indexes[:1],
        INDEXED.indexes,
        [*INDEXED.indexes, DeclaredIndex("by_partitions", ["partitions"])],
    )
]
"""One declaration after the other: each has an index more."""
TENANTS = [f"t{number}" for number in range(12)]


def pass_time(pair: Pair, passed_ms: int) -> None:
    """By all clocks."""
    for group in (pair.source, pair.target):
        group.now_ms += passed_ms
        group.now_s += passed_ms / 1_000
    test_slot_migration.NOW_MS = pair.source.now_ms


class Leader(ChoreNode):
    """Of a group: a node that knows one of the declarations, and whose chore builds indexes. What it asks for is done
    when the test says so."""

    def __init__(self, group: Group, pair: Pair, known: int) -> None:
        super().__init__(group)
        self.pair = pair
        self.known = -1
        self.changes(known)

    def changes(self, known: int) -> None:
        """Another node leads, or this one hears of an index. What was asked for and not done is lost."""
        self.pending = None
        self.answer: Callable[[], None] | None = None
        self.learn(known)
        raft = SimpleNamespace(accepting=True, prefix=self.group.prefix, name=self.group.name)
        self.driver = SimpleNamespace(machine=self.group.machine, installing=False, group=raft)
        means = Means(self, self, Counter())  # type: ignore[arg-type]
        self.chore, self.expiry = IndexBuild(self.driver, 3, means), RecordExpiry(self.driver, 3, means)

    def learn(self, known: int) -> None:
        if known >= 0:
            declared = DeclaredTable("topics", FIRST_NUMBER, ADDED[known], 1, 1, 1, 1)
            self.group.machine.parts[Declarations].known.add(declared)
        self.known = known

    @property
    def records(self) -> DeclaredRecords:
        return self.group.machine.parts[Declarations].known.records(FIRST_NUMBER)

    def request(self, method: Any, body: Any, done: Any, *, group: str) -> None:
        assert self.answer is None
        super().request(method, body, done, group=group)

    # What the test does.

    def build(self) -> bool:
        """A turn of the chore; or what it has asked for last is evaluated, and then answered. False: it has nothing to
        do."""
        pass_time(self.pair, 300)
        if self.answer is not None:
            answer, self.answer = self.answer, None
            answer()
            return True
        if self.pending is None:
            return self.expiry.begin(100, lambda asked: None) or self.chore.begin(100, lambda asked: None)
        (method, body, done), self.pending = self.pending, None
        outcome, entry = self.ask(VERBS[method.code], body, lag=3), self.group.last

        def answer() -> None:
            self.group.apply(entry - self.group.machine.applied)
            done(outcome)

        self.answer = answer
        return True

    def ask(self, verb: Any, body: Any, lag: int = 0) -> Any:
        """The bytes of a reply, or the error."""
        (outcome,) = self.group.propose([(verb.command(body), None)], self.group.now_ms)
        self.group.apply(len(self.group.in_flight) - lag)
        return outcome


class World:
    """Two groups, what the table has, and what was written."""

    def __init__(self, seed: int) -> None:
        self.random, self.pair = Random(seed), Pair()
        self.leaders = [Leader(group, self.pair, 0) for group in (self.pair.source, self.pair.target)]
        self.stored: dict[tuple[str, str], Any] = {}
        self.declared, self.move, self.back, self.phase, self.lag = 0, 1, False, 0, 0
        self.refused, self.taken_back = 0, 0.3

    def leader_of(self, tenant: str) -> Leader:
        slot = self.slot(tenant)
        return (
            self.leaders[0]
            if self.leaders[0].group.machine.slots.holding.slots[slot // 8] & 128 >> slot % 8
            else (self.leaders[1])
        )

    def slot(self, tenant: str) -> int:
        return DECLARED.slot_of(self.leaders[0].records.table.key_of([tenant, "x"]))

    def write(self) -> None:
        random, tenant = self.random, self.random.choice(TENANTS)
        leader, key = self.leader_of(tenant), (tenant, random.choice("xyz"))
        plain, made = leader.records.table.plain, leader.records.table.record
        record = self.record(made, key)
        kind = random.choice(("put", "put", "delete", "transact"))
        if kind == "put":
            verb, body = leader.records.verbs[plain.put.code], plain.put.body(FIRST_NUMBER, 7, [m.TablePutItem(record)])
        elif kind == "delete":
            item = m.TableDeleteItem(plain.key(*key))
            verb, body = leader.records.verbs[plain.delete.code], plain.delete.body(FIRST_NUMBER, [item])
        else:
            there = m.TableCompare(FIRST_NUMBER, [*key], self.version(key))
            steps = [m.TableOperation(FIRST_NUMBER, encode(record), 7), m.TableOperation(FIRST_NUMBER, key=[*key])]
            random.shuffle(steps)
            verb, reads = VERBS[methods.TABLE_TRANSACT.code], [m.TableKey(FIRST_NUMBER, [*key])]
            body = m.TableTransact([m.TableTransaction("data", [tenant], [there], steps, [], reads)])
        version = self.version(key)
        outcome = leader.ask(verb, body, self.lag)
        if isinstance(outcome, MetadError):
            assert isinstance(outcome, StaleRouteError | UnknownTableError), outcome
            self.refused += isinstance(outcome, UnknownTableError)
            return
        reply = verb.method.decode_reply(outcome)
        if kind == "delete":
            assert bool(reply.errors) == (not version)
            if not reply.errors:  # what has ended stays until it is swept, or until a log that is behind shows it again
                del self.stored[key]
        elif kind == "put":
            assert reply.versions == [version + 1]
            self.stored[key] = record, version + 1
        else:
            (result,) = reply.results
            put_last = steps[-1].record is not None
            assert (result.succeeded, result.versions) == (True, [0, 1] if put_last else [version + 1, 0])
            shown = put_last and not 0 < record.ends_ms <= leader.group.machine.reader.now_ms()
            assert (result.found[0] is not None) == shown
            self.stored.pop(key, None)
            if put_last:
                self.stored[key] = record, 1

    def record(self, made: Any, key: tuple[str, str]) -> Any:
        random, now_ms = self.random, self.pair.source.now_ms
        rest = random.choice((None, "a", "b", "b\0")), random.randint(-2, 2), random.random() < 0.5
        ends_ms = random.choice((0, now_ms - 5_000, now_ms, *(now_ms + random.randint(1, 40_000) for _ in range(5))))
        return made(*key, random.randint(0, 2), *rest, ends_ms)

    def version(self, key: tuple[str, str]) -> int:
        """Of a record that has not ended; 0 if there is none."""
        record, version = self.stored.get(key, (None, 0))
        now_ms = self.leader_of(key[0]).group.machine.reader.now_ms()
        return 0 if record is None or 0 < record.ends_ms <= now_ms else version

    def step_of_a_move(self) -> None:
        """One after the other; what is written between them is there to be moved."""
        pair, move = self.pair, self.move
        source, target = (pair.target, pair.source) if self.back else (pair.source, pair.target)
        for group in (source, target):
            group.apply(len(group.in_flight))
        if self.phase == 0:
            pair.step(target, "open", move=move)
            pair.step(target, "drop", move=move, rows=pair.rows(target))
        elif self.phase == 1:
            pair.step(target, "import", move=move, batch=1, rows=pair.rows(source))
        elif self.phase == 2:
            pair.step(source, "seal", move=move)
            if self.random.random() < self.taken_back:
                pair.step(source, "unseal", move=move)
                self.phase -= 1
        elif self.phase == 3:
            rows: dict[bytes, bytes | None] = dict.fromkeys(pair.rows(target))
            pair.step(target, "import", move=move, batch=2, rows=rows | pair.rows(source))
            pair.step(target, "adopt", move=move, batch=3, revision=source.last)
        else:
            pair.step(source, "close", move=move)
            self.move, self.back = move + 1, not self.back
        self.phase = (self.phase + 1) % 5

    def change_leader(self) -> None:
        leader, random = self.random.choice(self.leaders), self.random
        leader.group.apply(len(leader.group.in_flight))
        if random.random() < 0.5:
            leader.ask(VERBS[methods.TABLE_SWEEP.code], TableSweep([]))  # or the log's time would stand still meanwhile
            leader.group.restart()
            leader.changes(leader.known)
        else:
            leader.changes(random.randint(0, self.declared))  # it may not have heard of the newest

    def check(self, *, complete: bool = False) -> int:
        """Compare what the groups list with what was written. Returns how many listings were refused."""
        refused = 0
        assert len({leader.group.machine.reader.now_ms() for leader in self.leaders}) == 1
        for leader in self.leaders:
            leader.group.apply(len(leader.group.in_flight))
            held = leader.group.machine.parts[HeldSlots].held
            here = [
                one
                for key, (one, _) in self.stored.items()
                if self.version(key) and held[self.slot(key[0]) // 8] & 128 >> self.slot(key[0]) % 8
            ]
            for name, index in leader.records.table.indexes.items():
                order = attrgetter(*index.names)
                wanted = sorted((one for one in here if one.owner is not None or name != "by_owner"), key=order)
                try:
                    found = self.listed(leader, index.number, held)
                except IndexBuildingError:
                    with pytest.raises(IndexBuildingError):
                        self.count(leader, held, index.number)
                    assert index.number > 1
                    assert not complete
                    refused += 1
                    continue
                assert found == [*map(msgspec.structs.astuple, wanted)]
                assert not any(held) or self.count(leader, held, index.number) == len(wanted)
            if any(held):
                assert self.count(leader, held) == len(here)
            for key, (one, _) in self.stored.items():
                if held[self.slot(key[0]) // 8] & 128 >> self.slot(key[0]) % 8:
                    assert self.got(leader, key) == (msgspec.structs.astuple(one) if self.version(key) else None)
        return refused

    def rows(self, leader: Leader) -> set[bytes]:
        """The keys of the records of the slots that a group holds, and of all that follows from them."""
        engine, prefix = leader.group.engine, leader.group.prefix
        found = {key[len(prefix) :] for key, _ in engine.scan(prefix, keys.after_prefix(prefix), 100_000)}
        held = leader.group.machine.slots.holds_key
        return {key for key in found if key[0] in (0x60, 0x61, 0x63) and held(prefix + key)}

    def wanted_rows(self, leader: Leader) -> set[bytes]:
        wanted, table = set(), leader.records.table
        for key, (one, _) in self.stored.items():
            record = table.key_of([*key])
            if self.version(key) and leader is self.leader_of(key[0]):
                rows = [row for index in table.indexes.values() for row in index.rows_of(one)]
                wanted |= {b"\x60" + record} | {b"\x61" + row for row in rows}
                wanted |= {b"\x63" + DUES.key_for(one.ends_ms, record)} if one.ends_ms else set()
        return wanted

    def got(self, leader: Leader, key: tuple[str, str]) -> Any:
        plain = leader.records.table.plain
        (found,) = self.read(leader, plain.get, plain.get.body(FIRST_NUMBER, [plain.key(*key)])).found
        return None if found is None else msgspec.structs.astuple(found.record)

    def count(self, leader: Leader, held: bytes, index: int = 0) -> Any:
        body = m.TableList(FIRST_NUMBER, slots=held, index=index)
        return self.read(leader, leader.records.table.plain.counts, body).count

    def read(self, leader: Leader, method: Any, body: Any) -> Any:
        verb = leader.records.verbs[method.code]
        assert verb.read is not None
        return method.decode_reply(encode(verb.read(leader.group.machine.reader, verb.command(body))))

    def listed(self, leader: Leader, index: int, held: bytes) -> list[Any]:
        if not any(held):
            return []
        body = m.TableList(FIRST_NUMBER, index=index, slots=held)
        reply = self.read(leader, leader.records.table.plain.list, body)
        return [msgspec.structs.astuple(one.record) for one in reply.found]


@pytest.fixture(autouse=True)
def small_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "_PASS_ROWS", 4)
    monkeypatch.setattr(test_slot_migration, "NOW_MS", test_slot_migration.NOW_MS)


@pytest.mark.parametrize("seed", range(40))
def test_whoever_writes_moves_and_leads_meanwhile_a_list_is_whole_or_refused(seed: int) -> None:
    world = World(seed)
    random, refused = world.random, 0
    for turn in range(320):
        if turn in (40, 120):
            world.declared += 1
        world.lag = random.choice((0, 0, 2))
        what = random.random()
        if what < 0.4:
            world.write()
        elif what < 0.85:
            random.choice(world.leaders).build()
        elif what < 0.9:
            pass_time(world.pair, random.randint(1, 3_000))
        elif what < 0.94:
            world.step_of_a_move()
        elif what < 0.96:
            world.change_leader()
        else:
            leader = random.choice(world.leaders)
            leader.learn(random.randint(leader.known, world.declared))
        if turn % 7 == 0:
            refused += world.check()
    while world.phase:
        world.step_of_a_move()
    for leader in world.leaders:
        leader.learn(world.declared)
        pass_time(world.pair, 100_000)  # no amnesty any more
        for _ in range(400):
            leader.build()
            leader.group.apply(len(leader.group.in_flight))
        leader.expiry.begin(100, lambda asked: None)
        assert leader.pending is None
        assert world.rows(leader) == world.wanted_rows(leader)
    world.check(complete=True)
    assert world.stored
    assert refused


def test_a_slot_that_goes_and_comes_again_during_a_pass_is_looked_at_anew() -> None:
    world = World(0)
    world.taken_back = 0
    source, target = world.leaders
    verb = source.records.verbs[methods.TABLE_PUT.code]
    for number in range(60):
        record = source.records.table.record(f"{number:02}", "x", 1, "a", 1, False)
        source.ask(verb, verb.method.body(FIRST_NUMBER, 7, [m.TablePutItem(record)]))
        world.stored[record.tenant, "x"] = record, 1
    for leader in world.leaders:
        leader.learn(1)
    while not source.chore._at:
        source.build()
    begun = source.chore._at

    def move() -> None:
        for _ in range(5):
            world.step_of_a_move()

    move()
    world.pair.step(source.group, "drop", rows=world.pair.rows(source.group))
    for _ in range(12):
        source.build()
    assert source.chore._at > begun
    assert source.chore._pass is not None
    move()
    for _ in range(200):
        source.build()
    source.group.apply(3)
    assert world.check(complete=True) == 0
    assert target.known == 1


def test_a_write_behind_an_entry_in_flight_that_keeps_an_index_is_in_it() -> None:
    world = World(0)
    leader, group = world.leaders[0], world.pair.source
    leader.learn(1)
    leader.ask(VERBS[methods.TABLE_INDEX.code], TableIndexStep(FIRST_NUMBER, 2, [], ALL_SLOTS), lag=1)
    record = leader.records.table.record("t1", "x", 1, "a", 1, False)
    verb = leader.records.verbs[methods.TABLE_PUT.code]
    leader.ask(verb, verb.method.body(FIRST_NUMBER, 7, [m.TablePutItem(record)]), lag=2)
    world.stored["t1", "x"] = record, 1
    group.apply(1)
    for _ in range(20):
        leader.build()
    assert world.check(complete=True) == 0


def test_a_record_whose_fields_are_too_long_for_an_added_index_holds_up_its_slot_alone(
    caplog: pytest.LogCaptureFixture,
) -> None:
    world = World(0)
    leader = world.leaders[0]
    plain, verb = leader.records.table.plain, leader.records.verbs[methods.TABLE_PUT.code]

    def put(tenant: str, durable: bool, owner: str) -> None:
        record = leader.records.table.record(tenant, "x", 1, owner, 1, durable)
        assert isinstance(leader.ask(verb, plain.put.body(FIRST_NUMBER, 7, [m.TablePutItem(record)])), bytes)

    bare = msgspec.structs.replace(ENDING, indexes=[])
    known = leader.group.machine.parts[Declarations].known
    known.add(DeclaredTable("topics", FIRST_NUMBER, bare, 1, 1, 1))
    verb = leader.records.verbs[methods.TABLE_PUT.code]
    put("t1", True, "o" * 5_000)
    put("t2", True, "o")
    known.add(
        DeclaredTable("topics", FIRST_NUMBER, msgspec.structs.replace(ENDING, indexes=INDEXED.indexes), 2, 1, 2, 0)
    )
    verb = leader.records.verbs[methods.TABLE_PUT.code]
    for _ in range(20):
        leader.build()
    assert "index_waits" in caplog.text
    others = slot_bits({*range(SLOTS)} - {world.slot("t1")})
    assert [one[0] for one in world.listed(leader, 1, others)] == ["t2"]
    with pytest.raises(IndexBuildingError):
        world.listed(leader, 1, ALL_SLOTS)
    put("t1", True, "short")
    pass_time(world.pair, 60_000)
    for _ in range(20):
        leader.build()
    assert [one[0] for one in world.listed(leader, 1, ALL_SLOTS)] == ["t1", "t2"]


def test_what_is_left_of_a_dropped_table_is_swept() -> None:
    world = World(0)
    leader = world.leaders[0]
    leader.learn(1)
    leader.ask(VERBS[methods.TABLE_INDEX.code], TableIndexStep(FIRST_NUMBER, 2, [], slot_bits([5, 7])))
    states = leader.group.machine.parts[IndexStates]
    assert not states.unkept(leader.records.table)[[5, 7]].any()
    keys_ = [INDEX_STATES.key_for(FIRST_NUMBER, slot) for slot in (5, 7)]
    leader.ask(VERBS[methods.TABLE_SWEEP.code], TableSweep(keys_, states=True))
    assert states.unkept(leader.records.table).all()
