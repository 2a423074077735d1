"""Tables that programs declare: their rows in metadata-0, what a node knows of them, and their records."""

from __future__ import annotations

from operator import attrgetter
from random import Random
from typing import Any

import msgspec
import pytest
from state_rig import Group, Rig, command_of, item_errors

from metad.config import DedupeConfig
from metad.state.cluster.declarations import Declarations, KnownTables
from metad.state.core.plain import DeclaredRecords
from metad.state.core.verb import Verb
from metad.storage.keys import GROUP_PREFIX_BYTES
from metad_wire import messages as m
from metad_wire import methods
from metad_wire.cluster import slot_bits
from metad_wire.declaration import Declaration, DeclaredField, DeclaredIndex, record_type
from metad_wire.errors import InvalidRequestError, MetadError, NotFoundError, TooLargeError, UnknownTableError
from metad_wire.families import FAMILIES
from metad_wire.key import text, u32
from metad_wire.methods import encode
from metad_wire.table import ROWS
from metad_wire.tables import declaration as d
from metad_wire.tables.declaration import (
    FIRST_NUMBER,
    TABLES_MAX,
    DeclarationKey,
    DeclarationList,
    Declare,
    DeclaredTable,
)
from metad_wire.tables.table import PlainTable, TableSweep

FIELDS = [DeclaredField("tenant", "str"), DeclaredField("topic", "str"), DeclaredField("partitions", "u32", b"\x01")]
TOPIC = Declaration("topics", "data", FIELDS, ["tenant", "topic"], 2, "Topics.")
GROWN = msgspec.structs.replace(TOPIC, fields=[*FIELDS, DeclaredField("note", "str", b"\xa4none")])


@pytest.fixture(params=(0, 3), ids=lambda lag: f"lag{lag}")
def rig(request: pytest.FixtureRequest) -> Rig:
    return Rig("metadata", lag=request.param)


def named(name: str) -> Declaration:
    return msgspec.structs.replace(TOPIC, name=name)


def declare(rig: Rig, *tables: Declaration, identity: m.Identity | None = None) -> Any:
    return rig.write(methods.DECLARATION_DECLARE, Declare([*tables]), identity)


def drop(rig: Rig, *names: str) -> Any:
    return rig.write(methods.DECLARATION_DROP, m.Items([DeclarationKey(name) for name in names]))


def known(rig: Rig, *, follower: bool = False) -> KnownTables:
    machine = rig.group.follower if follower else rig.group.machine
    return machine.parts[Declarations].known


def test_a_table_gets_a_number_that_no_other_has_had(rig: Rig) -> None:
    first = declare(rig, TOPIC, named("other"))
    assert [table.number for table in first.found] == [FIRST_NUMBER, FIRST_NUMBER + 1]
    assert first.found[0] == DeclaredTable("topics", FIRST_NUMBER, TOPIC, 1, 1, 1)
    assert item_errors(drop(rig, "other", "nothing")) == {1: "not_found"}
    assert declare(rig, named("other")).found[0].number == FIRST_NUMBER + 2
    rig.settle()
    found = rig.read(methods.DECLARATION_LIST, DeclarationList()).found
    assert [(table.name, table.number) for table in found] == [("other", FIRST_NUMBER + 2), ("topics", FIRST_NUMBER)]
    assert [table.name for table in rig.read(methods.DECLARATION_LIST, DeclarationList("to")).found] == ["topics"]
    keys = [DeclarationKey("topics"), DeclarationKey("nothing")]
    got = rig.read(methods.DECLARATION_GET, methods.DECLARATION_GET.body(keys)).found
    assert (got[0].number, got[1]) == (FIRST_NUMBER, None)


def test_to_declare_it_again_changes_nothing_and_more_fields_let_it_grow(rig: Rig) -> None:
    declare(rig, TOPIC)
    before = rig.group.in_flight[-1][2].writes if rig.group.in_flight else None
    again = declare(rig, TOPIC).found[0]
    assert (again.version, again.mod_revision) == (1, 1)
    assert before is None or not rig.group.in_flight[-1][2].heard.get(0x05)
    grown = declare(rig, GROWN).found[0]
    assert (grown.number, grown.version, grown.declaration, grown.create_revision) == (FIRST_NUMBER, 2, GROWN, 1)
    assert declare(rig, TOPIC).found[0] == grown  # a program of before gets what there is
    rig.settle()
    for follower in (False, True):
        table = known(rig, follower=follower).watched("topics", FIRST_NUMBER)
        assert table is not None
        assert table.record.__struct_fields__ == ("tenant", "topic", "partitions", "note")


def test_what_can_be_no_table_is_refused_alone(rig: Rig) -> None:
    declare(rig, TOPIC)
    wrong = [
        msgspec.structs.replace(TOPIC, kind="offset"),
        named("kv"),
        named(next(iter(FAMILIES))),
        named("No"),
        named("good"),
    ]
    reply = declare(rig, *wrong)
    assert item_errors(reply) == {0: "conflict", 1: "conflict", 2: "conflict", 3: "invalid_item"}
    assert reply.found[4].number == FIRST_NUMBER + 1
    assert "kind is data" in reply.errors[0].message


def test_there_are_only_so_many(monkeypatch: pytest.MonkeyPatch, rig: Rig) -> None:
    monkeypatch.setattr("metad.state.cluster.declarations.TABLES_MAX", 2)
    assert item_errors(declare(rig, named("a"), named("b"), named("c"), named("a"))) == {2: "quota_exceeded"}
    drop(rig, "a")
    assert item_errors(declare(rig, named("c"), named("d"))) == {1: "quota_exceeded"}


def declare_as(rig: Rig, holder: str, *names: str) -> int:
    """How many tables a holder may declare of these; those refused have no room."""
    command = command_of(methods.DECLARATION_DECLARE, Declare([named(name) for name in names]))
    command.holder = holder
    (outcome,) = rig.group.propose([(command, None)], rig.group.now_ms)
    assert isinstance(outcome, bytes)
    reply = methods.DECLARATION_DECLARE.decode_reply(outcome)
    assert {*item_errors(reply).values()} <= {"quota_exceeded"}
    return len(names) - len(reply.errors)


def test_nobody_declares_more_tables_than_are_left_free(rig: Rig) -> None:
    """Guards everybody else: one client used up all tables that there may be."""
    many = [f"h{number}" for number in range(TABLES_MAX)]
    some = [f"o{number}" for number in range(300)]
    assert declare_as(rig, "hog", *many[:1_000]) == 512
    assert declare_as(rig, "hog", *many[1_000:]) == 0  # also where the first are not committed
    room = rig.group.machine.parts[Declarations].room
    rig.group.lose()
    assert room.held == 0
    assert declare_as(rig, "hog", *many[:1_000]) == 512
    assert declare_as(rig, "other", *some) == 256
    rig.group.apply(len(rig.group.in_flight))
    assert (room.held_by("hog"), room.held) == (512, 768)
    first = known(rig).watched("h0", 0)
    assert declare_as(rig, "other", "h0") == 1  # nothing new
    read = rig.read(methods.DECLARATION_GET, m.Get([DeclarationKey("h0")]))
    assert (read.found[0].declared_by, known(rig).watched("h0", 0)) == ("hog", first)
    rig.group.restart()
    assert declare_as(rig, "hog", "h600") == 0
    drop(rig, *many[:300])
    rig.settle()
    assert declare_as(rig, "other", *some[256:]) == 44
    assert declare_as(rig, "hog", "h600", "h601") == 2


def test_no_table_is_made_before_it_is_asked_for(monkeypatch: pytest.MonkeyPatch, rig: Rig) -> None:
    """Guards every node of a cluster: a thousand tables in a request took half a second and more for their types."""
    made: list[str] = []
    make = DeclaredTable.table

    def noted(declared: DeclaredTable) -> PlainTable[Any]:
        made.append(declared.name)
        return make(declared)

    monkeypatch.setattr(DeclaredTable, "table", noted)
    declare(rig, *(named(f"t{number}") for number in range(1_000)))
    rig.settle()
    assert made == []
    number = FIRST_NUMBER + 7
    assert known(rig).records(number).table is known(rig).watched("t7", number) is known(rig).watched("t7", 0)
    assert made == ["t7"]
    grown = msgspec.structs.replace(named("t7"), indexes=[DeclaredIndex("by_topic", ["topic"])])
    declare(rig, grown)
    rig.settle()
    assert [table.name for table in known(rig).with_added_indexes("data")] == ["t7"]
    assert known(rig).with_added_indexes("offset") == []
    assert made == ["t7", "t7"]


def test_a_retry_declares_nothing_twice(rig: Rig) -> None:
    identity = m.Identity(1, 1, 0)
    first = declare(rig, TOPIC, identity=identity)
    drop(rig, "topics")
    assert declare(rig, TOPIC, identity=identity) == first
    rig.settle()
    assert known(rig).watched("topics", 0) is None


def test_a_node_tells_what_it_has_not_heard_of_from_what_is_no_more(rig: Rig) -> None:
    declare(rig, TOPIC, named("other"))
    drop(rig, "topics")
    rig.settle()
    for follower in (False, True):
        tables = known(rig, follower=follower)
        tables.check(FIRST_NUMBER + 1)
        with pytest.raises(NotFoundError, match="dropped"):
            tables.check(FIRST_NUMBER)
        with pytest.raises(UnknownTableError):
            tables.check(FIRST_NUMBER + 2)
        assert [tables.is_dropped(FIRST_NUMBER + at) for at in range(3)] == [True, False, False]
        assert not tables.is_dropped(next(iter(FAMILIES.values())).number)


def test_a_node_that_starts_anew_or_gets_a_snapshot_knows_the_same(rig: Rig) -> None:
    declare(rig, TOPIC, named("other"))
    drop(rig, "topics")
    declare(rig, GROWN)
    rig.group.restart()
    tables = known(rig)
    with pytest.raises(NotFoundError):
        tables.check(FIRST_NUMBER)
    tables.check(FIRST_NUMBER + 1)
    table = tables.watched("topics", 0)
    assert table is not None
    assert (table.number, table.record.__struct_fields__[-1]) == (FIRST_NUMBER + 2, "note")
    rig.group.machine.parts[Declarations].load()
    assert tables.watched("topics", 0) is not None


def test_a_dropped_last_table_is_dropped_for_a_node_that_starts_anew(rig: Rig) -> None:
    declare(rig, TOPIC)
    drop(rig, "topics")
    rig.group.restart()
    assert known(rig).is_dropped(FIRST_NUMBER)
    assert declare(rig, TOPIC).found[0].number == FIRST_NUMBER + 1


def test_other_groups_know_no_tables_of_their_own() -> None:
    rig = Rig("data")
    with pytest.raises(UnknownTableError):
        known(rig).check(FIRST_NUMBER)


# --- records ---


class Records:
    """Those of a table in a group, by a node that knows this declaration."""

    def __init__(self, group: Group, declaration: Declaration, number: int = FIRST_NUMBER) -> None:
        self.group = group
        self.records = DeclaredRecords(
            PlainTable(
                declaration.name,
                number=number,
                kind=declaration.kind,
                record=record_type(declaration),
                key=declaration.key,
                routing=declaration.key[: declaration.routing],
                indexes=declaration.indexed(),
                expires=declaration.expires,
            )
        )
        self.number = number
        self.plain = self.records.table.plain
        self.made: Any = self.records.table.record

    def _verb(self, code: int) -> Verb[Any, Any]:
        return self.records.verbs[code]

    def put(self, *records: Any, known: int | None = None, expected: int | None = None) -> Any:
        known = len(self.made.__struct_fields__) if known is None else known
        items = [m.TablePutItem(record, expected) for record in records]
        return self._write(self.plain.put, self.plain.put.body(self.number, known, items))

    def _write(self, method: Any, body: Any) -> Any:
        payload = method.encode_request(body)
        request, refused = method.decode_what_fits(payload)
        command = self._verb(method.code).command(request.body, len(payload), refused)
        (outcome,) = self.group.propose([(command, None)], self.group.now_ms)
        self.group.apply(len(self.group.in_flight))
        if isinstance(outcome, MetadError):
            raise outcome
        return method.decode_reply(outcome)

    def get(self, *keys: tuple[str, str]) -> list[Any]:
        method = self.plain.get
        body = method.body(self.number, [self.plain.key(*key) for key in keys])
        verb = self._verb(method.code)
        assert verb.read is not None
        reply = verb.read(self.group.machine.reader, verb.command(body))
        found: list[Any] = method.decode_reply(encode(reply)).found
        return found

    def delete(self, *keys: tuple[str, str], expected: int | None = None) -> Any:
        items = [m.TableDeleteItem(self.plain.key(*key), expected) for key in keys]
        return self._write(self.plain.delete, self.plain.delete.body(self.number, items))

    def list(self, index: str, *fields: str | int | bool, limit: int = 2, **asked: Any) -> list[Any]:
        """All pages, in the order of an index."""
        number, page, found = self.records.table.indexes[index].number, m.Page(limit), []
        verb = self._verb(self.plain.list.code)
        assert verb.read is not None
        while True:
            body = m.TableList(self.number, [*fields], page=page, index=number, **asked)
            reply = self.plain.list.decode_reply(encode(verb.read(self.group.machine.reader, verb.command(body))))
            found += [one.record for one in reply.found]
            if not reply.cursor:
                return found
            page = m.Page(limit, reply.cursor)


@pytest.fixture
def group() -> Group:
    return Group("data", 0, DedupeConfig())


def test_records_have_versions_and_conditions(group: Group) -> None:
    topics = Records(group, TOPIC)
    assert topics.put(topics.made("a", "x", 4), topics.made("a", "y")).versions == [1, 1]
    assert item_errors(topics.put(topics.made("a", "x"), expected=0)) == {0: "conflict"}
    assert topics.put(topics.made("a", "x", 5), expected=1).versions == [2]
    x, y, none = topics.get(("a", "x"), ("a", "y"), ("a", "z"))
    assert (x.record.partitions, x.version, y.record.partitions, none) == (5, 2, 1, None)


def test_an_item_that_does_not_fit_is_refused_alone(group: Group) -> None:
    topics = Records(group, TOPIC)
    reply = topics.put(topics.made("a", "x", 4), topics.made("a", "y", -1), topics.made("a", "z" * 5_000))
    assert item_errors(reply) == {1: "invalid_item", 2: "invalid_item"}
    assert reply.versions == [1, 0, 0]


def test_two_tables_with_the_same_keys_have_nothing_in_common(group: Group) -> None:
    one, two = Records(group, TOPIC), Records(group, named("two"), FIRST_NUMBER + 1)
    one.put(one.made("a", "x", 1))
    assert two.get(("a", "x")) == [None]
    assert two.put(two.made("a", "x", 2)).versions == [1]
    assert one.get(("a", "x"))[0].record.partitions == 1


def test_who_knows_fewer_fields_leaves_the_others_as_they_are(group: Group) -> None:
    """A program of before the table grew, at a node that knows all of them."""
    topics = Records(group, GROWN)
    topics.put(topics.made("a", "x", 4, "kept"), topics.made("a", "y", 4, "too"))
    topics.put(topics.made("a", "x", 5), topics.made("a", "y", 6), topics.made("a", "new", 7), known=3)
    found = topics.get(("a", "x"), ("a", "y"), ("a", "new"))
    assert [(one.record.partitions, one.record.note) for one in found] == [(5, "kept"), (6, "too"), (7, "none")]
    topics.put(topics.made("a", "x", 8), known=4)
    assert topics.get(("a", "x"))[0].record.note == "none"


def test_a_node_that_knows_fewer_fields_drops_none(group: Group) -> None:
    topics = Records(group, TOPIC)
    with pytest.raises(UnknownTableError, match="knows 3 fields"):
        topics.put(topics.made("a", "x"), known=4)


def test_a_record_of_before_the_table_grew_has_the_defaults(group: Group) -> None:
    old, new = Records(group, TOPIC), Records(group, GROWN)
    old.put(old.made("a", "x", 4))
    assert new.get(("a", "x"))[0].record.note == "none"


def test_a_sweep_deletes_rows_and_what_is_remembered_of_them(group: Group) -> None:
    topics = Records(group, TOPIC)
    topics.put(topics.made("a", "x"), topics.made("a", "y"))
    topics.put(topics.made("a", "x"))
    keys = [topics.records.table.key_of(["a", "x"])]
    rig = Rig()
    rig.group = group
    rig.write(methods.TABLE_SWEEP, TableSweep(keys))
    assert [one is None for one in topics.get(("a", "x"), ("a", "y"))] == [True, False]
    assert topics.put(topics.made("a", "x")).versions == [1]


def test_a_count_is_bounded_and_goes_on_behind_its_cursor(group: Group) -> None:
    topics = Records(group, TOPIC)
    for tenant in "abc":
        topics.put(*(topics.made(tenant, f"{number:04}") for number in range(900)))
    table, verb = topics.records.table, topics.records.verbs[methods.TABLE_COUNT.code]

    def counts(limit: int, *fields: str, **asked: Any) -> list[int]:
        page, found = m.Page(limit), list[int]()
        assert verb.read is not None
        while not found or page.cursor:
            body = m.TableList(table.number, [*fields], page=page, **asked)
            reply = verb.read(group.machine.reader, verb.command(body))
            found.append(reply.count)
            page = m.Page(limit, reply.cursor)
        return found

    answers = counts(10_000)
    assert (sum(answers), max(answers) <= 1_280, len(answers) > 2) == (2_700, True, True)
    assert counts(500, "b") == [500, 400]
    assert counts(450, "b") == [450, 450, 0]
    assert counts(10_000, "b", prefix="08") == [100]
    assert counts(10_000, "d") == [0]
    some = [slot for slot in range(1_024) if slot % 3 == 0]
    keys = [table.key_of([tenant, f"{number:04}"]) for tenant in "abc" for number in range(900)]
    assert sum(counts(10_000, slots=slot_bits(some))) == sum(table.slot_of(key) in some for key in keys)
    for wrong, why in (({"index": 9}, "has 0 indexes"), ({"after": ["a", "b"]}, "behind a cursor")):
        with pytest.raises(InvalidRequestError, match=why):
            counts(1, **wrong)


def test_a_delete_of_what_was_listed_spares_what_was_written_anew(group: Group) -> None:
    topics = Records(group, TOPIC)
    topics.put(topics.made("a", "x"), topics.made("a", "y"))
    x, y = topics.get(("a", "x"), ("a", "y"))
    topics.delete(("a", "x"))
    assert topics.put(topics.made("a", "x", 7)).versions == [x.version]
    items = [
        m.TableDeleteItem(topics.plain.key(*key), 1, one.create_revision)
        for key, one in ((("a", "x"), x), (("a", "y"), y))
    ]
    reply = topics._write(topics.plain.delete, topics.plain.delete.body(topics.number, items))
    assert item_errors(reply) == {0: "conflict"}
    assert "create_revision is" in reply.errors[0].message
    assert [one is None for one in topics.get(("a", "x"), ("a", "y"))] == [False, True]


# --- indexes ---

INDEXED = msgspec.structs.replace(
    TOPIC,
    fields=[
        *FIELDS,
        DeclaredField("owner", "str | None", b"\xc0"),
        DeclaredField("size", "int", b"\x00"),
        DeclaredField("durable", "bool", b"\xc2"),
    ],
    routing=1,
    indexes=[DeclaredIndex("by_owner", ["tenant", "owner"]), DeclaredIndex("by_size", ["durable", "size"])],
)


@pytest.mark.parametrize("seed", range(20))
def test_an_index_lists_what_the_records_say(group: Group, seed: int) -> None:
    """Random puts and deletes, some refused, several of one record in a request, some by who knows fewer fields."""
    random, topics = Random(seed), Records(group, INDEXED)
    stored: dict[tuple[str, str], Any] = {}
    texts, sizes = ("", "a", "a\0", "ab", "b"), (-(2**63), -1, 0, 1, 2**63 - 1)
    for _ in range(60):
        keys = [(random.choice(texts), random.choice("xyz")) for _ in range(random.randint(1, 4))]
        if random.random() < 0.3:
            errors = item_errors(topics.delete(*keys, expected=random.choice((None, 1))))
            for position, key in enumerate(keys):
                if position not in errors:
                    del stored[key]
            continue
        known = random.choice((3, 6))
        records = []
        for key in keys:
            rest = (random.choice((None, *texts)), random.choice(sizes), random.random() < 0.5) if known == 6 else ()
            records.append(topics.made(*key, 1, *rest))
        errors = item_errors(topics.put(*records, known=known, expected=random.choice((None, None, 0))))
        for position, (key, record) in enumerate(zip(keys, records, strict=True)):
            if position not in errors:
                kept = {name: getattr(stored.get(key, record), name) for name in _REST} if known == 3 else {}
                stored[key] = msgspec.structs.replace(record, **kept)
    for name in topics.records.table.indexes:
        order = attrgetter(*topics.records.table.indexes[name].names)
        expected = sorted((one for one in stored.values() if one.owner is not None or name != "by_owner"), key=order)
        assert topics.list(name) == expected
        for given in {order(one)[: random.randint(0, 3)] for one in expected}:
            behind = [one for one in expected if order(one)[: len(given)] == given]
            assert topics.list(name, *given) == behind
            middle = behind[len(behind) // 2]
            assert topics.list(name, *given, after=[*order(middle)]) == behind[len(behind) // 2 + 1 :]
        if name == "by_owner":
            assert topics.list(name, "a", prefix="a") == [
                one for one in expected if one.tenant == "a" and one.owner.startswith("a")
            ]
    rows = group.machine.reader.scan(b"", b"\xff" * 64, 10_000).rows
    slots = {
        key: table.slot_of(key[GROUP_PREFIX_BYTES + 1 :])
        for key, _ in rows
        if (table := ROWS[key[GROUP_PREFIX_BYTES]]).moves
    }
    assert {*slots.values()} <= {topics.records.table.slot_of(u32(0) + b"\1" + text(tenant)) for tenant in texts}


_REST = ("owner", "size", "durable")


def test_what_an_index_cannot_list_is_said(group: Group) -> None:
    topics = Records(group, INDEXED)
    for wrong, why in (
        ({"fields": [1]}, "tenant is text"),
        ({"fields": ["a", "b", "x", "y"]}, "4 fields, index by_owner, with the key, has 3"),
        ({"fields": ["a"], "after": ["a"]}, "after: 1 of 3 fields"),
        ({"fields": ["a", "b", "x"], "prefix": "x"}, "prefix"),
    ):
        with pytest.raises(InvalidRequestError, match=why):
            topics.list("by_owner", *wrong.pop("fields"), **wrong)
    for fields in (["true"], [True, True], [True, 2**63], [True, "1"], [1]):
        with pytest.raises(InvalidRequestError, match=r"durable is|size is"):
            topics.list("by_size", *fields)
    assert topics.records.table.index(0) is None
    with pytest.raises(InvalidRequestError, match="none of number 3"):
        topics.records.table.index(3)


def test_a_record_whose_indexed_fields_are_too_long_is_refused(group: Group) -> None:
    topics = Records(group, INDEXED)
    reply = topics.put(topics.made("a", "x", 1, "o" * 4_096), topics.made("a", "y", 1, "o" * 4_000))
    assert item_errors(reply) == {0: "invalid_item"}
    assert "by_owner" in reply.errors[0].message


def test_a_page_of_an_index_has_no_more_than_it_has_room_for(group: Group) -> None:
    more = [DeclaredField("settings", "bytes", b"\xc4\x00"), DeclaredField("until_ms", "u63", b"\x00")]
    large = msgspec.structs.replace(INDEXED, fields=[*INDEXED.fields, *more], expires="until_ms")
    topics = Records(group, large)
    records = [topics.made("a", f"{number:02}", 1, "o", 0, False, b"x" * 900_000) for number in range(40)]
    for record in records:
        topics.put(record)
    topics.put(topics.made("a", "ended", 1, "o", 0, False, b"", 1))
    assert topics.list("by_owner", "a", "o", limit=100) == records
    verb, counted, cursor = topics.records.verbs[methods.TABLE_COUNT.code], list[int](), b""
    assert verb.read is not None
    while cursor or not counted:  # it looks at the records of the index, to know which have ended
        body = m.TableList(topics.number, ["a", "o"], page=m.Page(1_000, cursor), index=1)
        reply = verb.read(group.machine.reader, verb.command(body))
        counted.append(reply.count)
        cursor = reply.cursor
    assert (sum(counted), len(counted) > 1) == (40, True)


@pytest.mark.parametrize(
    ("indexes", "why"),
    [
        ([DeclaredIndex("one", [])], "no field"),
        ([DeclaredIndex("one", ["owner", "owner"])], "twice"),
        ([DeclaredIndex("one", ["owner"]), DeclaredIndex("one", ["size"])], "another has this name"),
        ([DeclaredIndex("One", ["owner"])], "small letters"),
        ([DeclaredIndex("one", ["nothing"])], "no field of type str"),
        ([DeclaredIndex("one", ["places"])], "no field of type str"),
        ([DeclaredIndex("by_owner", ["owner", "tenant"])], "by_owner (owner, tenant)"),
    ],
)
def test_an_index_is_of_fields_and_stays_as_it_is(rig: Rig, indexes: list[DeclaredIndex], why: str) -> None:
    declare(rig, INDEXED)
    fields = [*INDEXED.fields, DeclaredField("places", "list[str]", b"\x90")]
    reply = declare(rig, msgspec.structs.replace(INDEXED, fields=fields, indexes=indexes))
    assert why in reply.errors[0].message


def test_indexes_are_added_at_the_end_and_whoever_knows_fewer_declares_as_before(rig: Rig) -> None:
    fewer = msgspec.structs.replace(INDEXED, indexes=INDEXED.indexes[:1])
    assert declare(rig, fewer).found[0].first_indexes is None
    added = declare(rig, INDEXED).found[0]
    assert (added.declaration, added.version, added.first_indexes) == (INDEXED, 2, 1)
    longer = msgspec.structs.replace(fewer, fields=[*INDEXED.fields, DeclaredField("note", "str", b"\xa4none")])
    both = declare(rig, longer).found[0]
    assert (both.declaration.fields, both.declaration.indexes) == (longer.fields, INDEXED.indexes)
    assert (both.version, both.first_indexes) == (3, 1)
    assert declare(rig, fewer).found[0] == declare(rig, INDEXED).found[0] == both
    rig.settle()
    for follower in (False, True):
        tables = known(rig, follower=follower)
        assert [(one.name, one.first_indexes) for one in tables.with_added_indexes("data")] == [("topics", 1)]
        assert tables.with_added_indexes("offset") == []
    wrong = msgspec.structs.replace(fewer, indexes=[*fewer.indexes, DeclaredIndex("by_note", ["note"])])
    assert "by_note" in declare(rig, wrong).errors[0].message
    drop(rig, "topics")
    rig.settle()
    assert known(rig).with_added_indexes("data") == []


def test_a_node_that_knows_fewer_indexes_refuses_a_listing_by_the_newest(group: Group) -> None:
    topics = Records(group, INDEXED)
    verb = topics.records.verbs[methods.TABLE_LIST.code]
    with pytest.raises(UnknownTableError, match="knows 2 indexes"):
        verb.command(m.TableList(topics.number, index=3))
    with pytest.raises(InvalidRequestError, match="none of number 9"):
        verb.command(m.TableList(topics.number, index=9))


def test_a_sweep_deletes_the_rows_of_indexes(group: Group) -> None:
    topics = Records(group, INDEXED)
    topics.put(topics.made("a", "x", 1, "o"), topics.made("b", "x", 1, "o"))
    table = topics.records.table
    (row,) = table.indexes["by_owner"].rows_of(topics.made("a", "x", 1, "o"))
    rig = Rig()
    rig.group = group
    rig.write(methods.TABLE_SWEEP, TableSweep([row], indexed=True))
    assert [one.tenant for one in topics.list("by_owner")] == ["b"]


def test_the_general_methods_are_those_that_tables_share() -> None:
    assert d.DECLARATION.routing == ()
    assert methods.TABLE_GET.code + 3 == methods.TABLE_LIST.code


# --- defaults that are longer than what is sent ----------------------------------------------------------------------

LONG = encode([{"k" * 10: ["x" * 235]}])
FILLED = [DeclaredField(f"f{number}", "list[dict[str, list[str]]]", LONG) for number in range(50)]
AMPLE = msgspec.structs.replace(TOPIC, name="ample", fields=[*FIELDS, *FILLED])


def put_payload(number: int, known: int, records: list[Any]) -> bytes:
    body = methods.TABLE_PUT.body(number, known, [m.TablePutItem(record) for record in records])
    return methods.TABLE_PUT.encode_request(body)


def test_defaults_count_before_a_put_is_decoded() -> None:
    """Guards leaders: 30 KB became records of 12 MB, a second for which the node did nothing else."""
    tables = KnownTables()
    tables.add(DeclaredTable("ample", 7_000, AMPLE, 1, 1, 1))
    tables.add(DeclaredTable("topics", 7_001, GROWN, 1, 1, 1))

    def filled(number: int, known: int, records: list[Any]) -> int:
        return tables.verb(methods.TABLE_PUT, put_payload(number, known, records))[1]

    each, short = 50 * len(LONG), [["a", f"{number}", 1] for number in range(1_000)]
    assert filled(7_000, 3, short[:100]) == 100 * each
    assert filled(7_000, 53, short[:100]) == 100 * each  # whatever it says that it knows
    assert filled(7_000, 3, [*short[:99], 7]) >= 99 * each
    assert filled(7_000, 43, [[*record, *[[]] * 40] for record in short[:100]]) == 100 * each // 5
    assert filled(7_000, 53, [["a", "b", 1, *[msgspec.Raw(LONG)] * 50]] * 50) == 0
    assert filled(7_001, 3, short) == 0
    for wrong in (short, [*short[1:], 7]):
        with pytest.raises(TooLargeError):
            filled(7_000, 3, wrong)


def test_what_a_program_of_before_leaves_as_it_is_counts_as_written(group: Group) -> None:
    """Guards followers: a put of 30 KB wrote 12 MB again."""
    wide = msgspec.structs.replace(TOPIC, fields=[*FIELDS, DeclaredField("note", "bytes", b"\xc4\x00")])
    records = Records(group, wide)
    many = [records.made("a", f"{number}", 1, bytes(15_000)) for number in range(400)]
    for at in range(0, 400, 50):
        records.put(*many[at : at + 50])
    short = [records.made(record.tenant, record.topic, 2) for record in many]
    with pytest.raises(TooLargeError):
        records.put(*short, known=3)
    assert records.put(*short[:100], known=3).versions == [2] * 100
    one, other = records.get(("a", "99"), ("a", "100"))
    assert (one.record.partitions, len(one.record.note), other.record.partitions) == (2, 15_000, 1)


def test_no_default_is_made_for_an_index_of_other_fields(group: Group) -> None:
    fields = [*FIELDS, *FILLED, DeclaredField("last", "str", b"\xa0")]
    table = Records(group, msgspec.structs.replace(AMPLE, fields=fields, indexes=[DeclaredIndex("by_last", ["last"])]))
    row = encode([["a", "b", 1], 1, 1, 1])
    looked_at = table.records.decoded_indexed(row)
    assert (looked_at.topic, looked_at.last, bytes(looked_at.f0)) == ("b", "", b"")
