"""Records of declared tables that end at a time that they say."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from state_rig import ChoreNode, Rig
from test_declarations import TOPIC, declare

from metad.node.chores.chore import Means
from metad.node.chores.tables import RecordExpiry
from metad.state.cluster.declarations import Declarations
from metad.state.core.due import RECORD_DUE
from metad.state.registry import VERBS
from metad.storage import keys
from metad.watch.changes import EntryChanges
from metad_wire import messages as m
from metad_wire import methods
from metad_wire.declaration import DeclaredField
from metad_wire.errors import MetadError
from metad_wire.methods import encode
from metad_wire.tables.declaration import FIRST_NUMBER, DeclaredTable
from metad_wire.tables.table import DECLARED, DUES, TableExpire
from metad_wire.watch import ChangeKind

ENDING = msgspec.structs.replace(
    TOPIC,
    fields=[*TOPIC.fields, DeclaredField("ends_ms", "u63", b"\x00"), DeclaredField("note", "str", b"\xa4none")],
    expires="ends_ms",
)


class World(ChoreNode):
    """A group that this node leads, and its chore. An order waits until :meth:`answer`."""

    def __init__(self) -> None:
        self.rig = Rig()
        group = self.rig.group
        super().__init__(group)
        self.known = group.machine.parts[Declarations].known
        self.known.add(DeclaredTable("topics", FIRST_NUMBER, ENDING, 1, 1, 1))
        self.records = self.known.records(FIRST_NUMBER)
        self.plain, self.made = self.records.table.plain, self.records.table.record
        raft = SimpleNamespace(accepting=True, prefix=group.prefix, name=group.name)
        driver: Any = SimpleNamespace(machine=group.machine, installing=False, group=raft)
        self.chore = RecordExpiry(driver, 10, Means(self, self, Counter()))  # type: ignore[arg-type]
        self.put("first", 0)
        self.rig.advance(600_000)  # no amnesty any more

    def answer(self) -> Any:
        (method, body, done), self.pending = self.pending, None
        reply = self.ask(VERBS[method.code], body)
        done(encode(reply))
        return reply

    def sweep(self) -> None:
        while self.chore.begin(100, lambda asked: None):
            if self.pending is not None:
                self.answer()

    def ask(self, verb: Any, body: Any) -> Any:
        (outcome,) = self.group.propose([(verb.command(body), None)], self.group.now_ms)
        self.entry = self.group.in_flight[-1][2]
        self.rig.settle()
        if isinstance(outcome, MetadError):
            raise outcome
        return verb.method.decode_reply(outcome)

    def put(self, topic: str, ends_ms: int, *, known: int = 5, **rest: Any) -> int:
        item = m.TablePutItem(self.made("t", topic, 1, ends_ms, **rest))
        body = self.plain.put.body(FIRST_NUMBER, known, [item])
        (version,) = self.ask(self.records.verbs[self.plain.put.code], body).versions
        return int(version)

    def get(self, topic: str) -> Any:
        verb = self.records.verbs[self.plain.get.code]
        body = self.plain.get.body(FIRST_NUMBER, [self.plain.key("t", topic)])
        assert verb.read is not None
        (found,) = self.plain.get.decode_reply(encode(verb.read(self.group.machine.reader, verb.command(body)))).found
        return found

    def dues(self) -> list[tuple[int, str]]:
        """The rows of what is due."""
        prefix = keys.table_prefix(self.group.prefix, RECORD_DUE)
        rows = [DUES.split(key[len(prefix) :]) for key, _ in self.group.engine.scan(prefix, prefix + b"\xff", 100)]
        return [(at_ms, self.records.table.fields_of(record, 2)[1]) for at_ms, record in rows]

    def due(self, topic: str, at_ms: int) -> bytes:
        return DUES.key_for(at_ms, self.records.table.key_of(["t", topic]))


def test_a_record_ends_at_its_time_and_is_told_as_expired() -> None:
    world = World()
    ends_ms = world.group.now_ms + 5_000
    world.put("a", ends_ms)
    world.put("b", ends_ms + 5_000)
    world.rig.advance(4_000)
    world.sweep()
    assert world.get("a") is not None
    world.rig.advance(1_000)
    assert world.get("a") is None
    assert world.dues() == [(ends_ms, "a"), (ends_ms + 5_000, "b")]
    world.sweep()
    assert world.dues() == [(ends_ms + 5_000, "b")]
    row = keys.table_prefix(world.group.prefix, DECLARED.rows["record"]) + world.records.table.key_of(["t", "a"])
    assert world.entry.writes[row] is None
    assert EntryChanges(world.entry).change(row, None)[1] == ChangeKind.EXPIRED
    assert world.group.engine.get(row) is None
    assert world.put("a", 0) == 1


def test_a_write_moves_the_time_and_leaves_no_row_behind() -> None:
    world = World()
    at_ms = world.group.now_ms + 5_000
    for ends_ms in (at_ms, at_ms + 1, 0, at_ms + 2):
        world.put("a", ends_ms)
        assert world.dues() == ([(ends_ms, "a")] if ends_ms else [])
    step = m.TableOperation(FIRST_NUMBER, encode(world.made("t", "a", 1, at_ms + 3)), 5)
    world.ask(VERBS[methods.TABLE_TRANSACT.code], m.TableTransact([m.TableTransaction("data", ["t", "a"], [], [step])]))
    assert world.dues() == [(at_ms + 3, "a")]
    item = m.TableDeleteItem(world.plain.key("t", "a"))
    world.ask(world.records.verbs[world.plain.delete.code], world.plain.delete.body(FIRST_NUMBER, [item]))
    assert world.dues() == []


def test_nothing_ends_early_or_during_an_amnesty() -> None:
    world = World()
    at_ms = world.group.now_ms + 5_000
    world.put("a", at_ms)
    expire = VERBS[methods.TABLE_EXPIRE.code], TableExpire([world.due("a", at_ms)])
    assert world.ask(*expire).waiting == 1
    world.rig.advance(5_000)
    world.group.machine.forget()  # another leads, or this one anew: everybody gets some time
    assert not world.chore.begin(100, lambda asked: None)
    reply = world.ask(*expire)
    assert (reply.ended, reply.waiting, world.dues()) == (0, 1, [(at_ms, "a")])
    assert world.get("a") is None
    world.rig.advance(600_000)
    world.sweep()
    assert world.dues() == []


def test_a_row_of_what_is_no_more_says_nothing() -> None:
    world = World()
    at_ms = world.group.now_ms + 5_000
    world.put("a", at_ms)
    world.rig.advance(6_000)
    stale = [world.due("a", at_ms - 1), world.due("gone", at_ms)]
    reply = world.ask(VERBS[methods.TABLE_EXPIRE.code], TableExpire(stale))
    assert (reply.ended, reply.waiting, world.dues()) == (0, 0, [(at_ms, "a")])
    world.known.drop("topics")
    world.sweep()
    assert world.dues() == []


def test_a_record_that_ended_already_is_found_behind_the_place_of_the_sweep() -> None:
    world = World()
    now_ms = world.group.now_ms
    world.put("a", now_ms - 1_000)
    world.sweep()
    assert world.dues() == []
    assert world.put("b", now_ms - 9_000) == 1
    assert world.get("b") is None
    world.put("c", now_ms - 8_000)
    assert world.chore.begin(100, lambda asked: None)
    world.put("d", now_ms - 9_500)  # while the order waits
    world.answer()
    assert world.dues() == [(now_ms - 9_500, "d")]
    world.sweep()
    assert world.dues() == []


def test_who_knows_fewer_fields_gets_the_defaults_where_a_record_has_ended() -> None:
    world = World()
    world.put("a", world.group.now_ms + 1_000, note="kept")
    assert world.put("a", world.group.now_ms + 2_000, known=4) == 2
    assert world.get("a").record.note == "kept"
    world.rig.advance(2_000)
    assert world.put("a", 0, known=4) == 1
    assert world.get("a").record.note == "none"


@pytest.mark.parametrize(
    ("expires", "why"),
    [("note", "of type u63, and 'note' is none"), ("nothing", "'nothing' is none"), ("tenant", "'tenant' is none")],
)
def test_records_end_by_a_time_of_the_record(expires: str, why: str) -> None:
    reply = declare(Rig("metadata"), msgspec.structs.replace(ENDING, expires=expires))
    assert why in reply.errors[0].message


def test_when_records_end_stays_as_it_was_declared() -> None:
    rig = Rig("metadata")
    assert declare(rig, ENDING).found[0].declaration == ENDING
    reply = declare(rig, msgspec.structs.replace(ENDING, expires=""))
    assert reply.errors[0].message == "expires is ends_ms, and the declaration says none"
    bare = msgspec.structs.replace(ENDING, name="bare", expires="")
    declare(rig, bare)
    reply = declare(rig, msgspec.structs.replace(bare, expires="ends_ms"))
    assert reply.errors[0].message == "expires is none, and the declaration says ends_ms"
