"""Transactions over declared tables, beside a model of them."""

from __future__ import annotations

from random import Random
from typing import Any

import msgspec
import pytest
from state_rig import Rig, item_errors

from metad.state.cluster.declarations import Declarations
from metad_wire import messages as m
from metad_wire import methods
from metad_wire.declaration import Declaration, DeclaredField, DeclaredIndex
from metad_wire.errors import TooLargeError, UnknownTableError
from metad_wire.tables.declaration import FIRST_NUMBER, DeclaredTable

KEY = [DeclaredField("vhost", "str"), DeclaredField("name", "str")]
VALUE, NOTE = DeclaredField("value", "int", b"\x00"), DeclaredField("note", "str", b"\xa4none")
QUEUE = Declaration(
    "queue", "data", [*KEY, VALUE, NOTE], ["vhost", "name"], 1, "", [DeclaredIndex("by_value", ["vhost", "value"])]
)
EXCHANGE = Declaration("exchange", "data", [*KEY, VALUE, NOTE], ["vhost", "name"], 1)
ALONE = Declaration("alone", "data", [*KEY, VALUE, NOTE], ["vhost", "name"], 2)
OTHER = Declaration("other", "metadata", [*KEY, VALUE, NOTE], ["vhost", "name"], 1)
TABLES = [
    DeclaredTable(one.name, FIRST_NUMBER + at, one, 1, 1, 1) for at, one in enumerate((QUEUE, EXCHANGE, ALONE, OTHER))
]
QUEUES, EXCHANGES, SINGLE, ELSEWHERE = (table.number for table in TABLES)


@pytest.fixture(params=(0, 3), ids=lambda lag: f"lag{lag}")
def rig(request: pytest.FixtureRequest) -> Rig:
    rig = Rig("data", lag=request.param)
    for machine in (rig.group.machine, rig.group.follower):
        for table in TABLES:
            machine.parts[Declarations].known.add(table)
    return rig


def put(number: int, *record: Any, known: int = 4) -> m.TableOperation:
    return m.TableOperation(number, msgspec.msgpack.encode(record), known)


def drop(number: int, *key: str) -> m.TableOperation:
    return m.TableOperation(number, key=[*key])


def field(number: int, key: list[str | int], name: str, value: Any) -> m.TableCompare:
    return m.TableCompare(number, key, None, name, msgspec.msgpack.encode(value))


def transact(rig: Rig, *items: m.TableTransaction, identity: m.Identity | None = None) -> Any:
    return rig.write(methods.TABLE_TRANSACT, m.TableTransact([*items]), identity)


def transaction(*then: m.TableOperation, compares: Any = (), otherwise: Any = (), reads: Any = ()) -> Any:
    return m.TableTransaction("data", ["v"], [*compares], [*then], [*otherwise], [*reads])


def records(found: list[bytes | None]) -> list[Any]:
    return [None if one is None else msgspec.msgpack.decode(one) for one in found]


class Model:
    """What transactions are to do."""

    def __init__(self) -> None:
        self.rows: dict[tuple[int, str], tuple[list[Any], int]] = {}

    def holds(self, one: m.TableCompare) -> bool:
        record, version = self.rows.get((one.table, str(one.key[1])), ([], 0))
        if one.version not in (None, version):
            return False
        at = ("vhost", "name", "value", "note").index(one.field) if one.field else None
        return at is None or (version > 0 and record[at] == msgspec.msgpack.decode(one.value))

    def do(self, one: m.TableOperation) -> int:
        if one.record is None:
            self.rows.pop((one.table, str(one.key[1])), None)
            return 0
        given = msgspec.msgpack.decode(one.record)
        place = one.table, given[1]
        stored, version = self.rows.get(place, ([*given[:2], 0, "none"], 0))
        self.rows[place] = [*given, *stored[len(given) :]], version + 1
        return version + 1


@pytest.mark.parametrize("seed", range(15))
def test_they_do_what_the_model_does(rig: Rig, seed: int) -> None:
    random, model = Random(seed), Model()

    def place() -> tuple[int, str]:
        return random.choice((QUEUES, EXCHANGES)), random.choice("abcd")

    def operation() -> m.TableOperation:
        number, name = place()
        if random.random() < 0.3:
            return drop(number, "v", name)
        if random.random() < 0.3:
            return put(number, "v", name, random.randint(0, 3), known=3)
        return put(number, "v", name, random.randint(0, 3), random.choice("xy"))

    def compare() -> m.TableCompare:
        number, name = place()
        if random.random() < 0.5:
            return m.TableCompare(number, ["v", name], random.choice((None, 0, 1, 2)))
        return field(number, ["v", name], "value", random.randint(0, 3))

    for number in range(40):
        batch = [
            transaction(
                *(operation() for _ in range(random.randint(0, 4))),
                compares=[compare() for _ in range(random.randint(0, 2))],
                otherwise=[operation() for _ in range(random.randint(0, 2))],
                reads=[m.TableKey(one, ["v", name]) for one, name in (place(),)],
            )
            for _ in range(random.randint(1, 3))
        ]
        identity = m.Identity(1, number + 1, 0)
        reply = transact(rig, *batch, identity=identity)
        assert reply.errors == []
        for one, result in zip(batch, reply.results, strict=True):
            succeeded = all(map(model.holds, one.compares))
            versions = [model.do(operation) for operation in (one.then if succeeded else one.otherwise)]
            assert (result.succeeded, result.versions) == (succeeded, versions)
            (read,), (found,) = one.reads, records(result.found)
            record, version = model.rows.get((read.table, str(read.key[1])), (None, 0))
            assert (found and found[:2]) == (record and [record, version])
        if random.random() < 0.2:  # a retry does nothing again, and reads what is there now
            again = transact(rig, *batch, identity=identity)
            assert [(one.succeeded, one.versions) for one in again.results] == [
                (one.succeeded, one.versions) for one in reply.results
            ]
            for one, result in zip(batch, again.results, strict=True):
                (read,), (found,) = one.reads, records(result.found)
                assert (found and found[0]) == model.rows.get((read.table, str(read.key[1])), (None, 0))[0]
    rig.settle()
    known = rig.group.machine.parts[Declarations].known.records(QUEUES)
    verb = known.verbs[methods.TABLE_LIST.code]
    assert verb.read is not None
    for index in (0, 1):
        found = verb.read(rig.group.machine.reader, verb.command(m.TableList(QUEUES, ["v"], index=index))).found
        expected = [record for (number, _), (record, _) in sorted(model.rows.items()) if number == QUEUES]
        if index:
            expected.sort(key=lambda record: record[2])
        assert [msgspec.msgpack.decode(raw)[0] for raw in found] == expected


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        (transaction(put(QUEUES, "v", "a", "one")), "value: "),
        (transaction(put(QUEUES, "v", "a", 2**64 - 1)), "value: "),
        (transaction(put(QUEUES, "w", "a")), "its routing fields are w"),
        (transaction(drop(QUEUES, "w", "a")), "its routing fields are w"),
        (transaction(drop(QUEUES, "v")), "1 of 2 fields"),
        (transaction(m.TableOperation(QUEUES, key=["v", 1])), "name is text"),
        (transaction(drop(QUEUES, "v", "a" * 5_000)), "4096 are allowed"),
        (transaction(put(QUEUES, "v", "a" * 5_000)), "4096 are allowed"),
        (transaction(put(SINGLE, "v", "a")), "alone: its routing fields are v, a"),
        (transaction(put(ELSEWHERE, "v", "a")), "other is kept by groups of kind metadata"),
        (transaction(compares=[field(QUEUES, ["v", "a"], "nothing", 1)]), "queue has no field 'nothing'"),
        (transaction(compares=[field(QUEUES, ["v", "a"], "value", "x")]), "value: "),
        (transaction(reads=[m.TableKey(QUEUES, ["w", "a"])]), "its routing fields are w"),
        (msgspec.structs.replace(transaction(), kind="metadata"), "this is a group of kind data"),
    ],
)
def test_what_does_not_fit_is_refused_as_a_whole_and_alone(rig: Rig, wrong: Any, why: str) -> None:
    first = put(QUEUES, "v", "before")
    wrong = msgspec.structs.replace(wrong, then=[first, *wrong.then])
    late = msgspec.structs.replace(wrong, then=[first], otherwise=wrong.then)
    reply = transact(rig, wrong, late, transaction(reads=[m.TableKey(QUEUES, ["v", "before"])]))
    assert item_errors(reply) == {0: "invalid_item", 1: "invalid_item"}
    assert why in reply.errors[0].message
    assert records(reply.results[2].found) == [None]


def test_a_table_that_is_not_known_yet_is_no_error_of_an_item(rig: Rig) -> None:
    for operation in (put(ELSEWHERE + 1, "v", "a"), put(QUEUES, "v", "a", known=5)):
        with pytest.raises(UnknownTableError):
            transact(rig, transaction(put(QUEUES, "v", "b")), transaction(operation))
    assert records(transact(rig, transaction(reads=[m.TableKey(QUEUES, ["v", "b"])])).results[0].found) == [None]
    rig.group.machine.parts[Declarations].known.drop("exchange")
    assert item_errors(transact(rig, transaction(put(EXCHANGES, "v", "a")))) == {0: "not_found"}


def test_bounds(rig: Rig) -> None:
    large = put(QUEUES, "v", "a", 0, "x" * 1_100_000)
    assert item_errors(transact(rig, transaction(large))) == {0: "invalid_item"}
    assert item_errors(transact(rig, transaction(*[put(QUEUES, "v", "a")] * 129))) == {0: "invalid_item"}


def test_defaults_count_before_the_operations_of_a_request_are_decoded(rig: Rig) -> None:
    """Guards leaders: they were made for both lists of operations, and for all of them before anything was counted."""
    long = [DeclaredField(f"f{number}", "list[str]", msgspec.msgpack.encode(["x" * 235])) for number in range(50)]
    ample = Declaration("ample", "data", [*KEY, *long], ["vhost", "name"], 1)
    for machine in (rig.group.machine, rig.group.follower):
        machine.parts[Declarations].known.add(DeclaredTable("ample", 7_000, ample, 1, 1, 1))
    holds = [field(QUEUES, ["v", "none"], "value", 1)]
    short = [put(7_000, "v", f"{number}", known=2) for number in range(100)]
    refused = [transaction(*short, compares=holds)] * 2
    with pytest.raises(TooLargeError):
        transact(rig, *refused)
    assert transact(rig, refused[0]).results[0].succeeded is False
    assert transact(rig, transaction(*short)).results[0].versions == [1] * 100
