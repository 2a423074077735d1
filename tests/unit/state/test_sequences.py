"""Sequences: everybody who adds gets numbers of his own, once."""

from __future__ import annotations

import pytest
from state_rig import Rig, item_errors

from metad_wire import messages as m
from metad_wire import methods
from metad_wire.tables.sequence import (
    SEQUENCE_MAX,
    SequenceAdd,
    SequenceAddItem,
    SequenceAddReply,
    SequenceKey,
    SequenceList,
    SequenceRecord,
)


@pytest.fixture(params=(0, 3), ids=lambda lag: f"lag{lag}")
def rig(request: pytest.FixtureRequest) -> Rig:
    return Rig(lag=request.param)


def add(rig: Rig, *items: SequenceAddItem, identity: m.Identity | None = None) -> SequenceAddReply:
    reply: SequenceAddReply = rig.write(methods.SEQUENCE_ADD, SequenceAdd(list(items)), identity)
    return reply


def test_several_are_added_to_in_one_call_in_order(rig: Rig) -> None:
    reply = add(rig, SequenceAddItem("n", "a"), SequenceAddItem("n", "b", 100), SequenceAddItem("n", "a", 5))
    assert reply.values == [1, 100, 6]
    assert add(rig, SequenceAddItem("n", "b", -1), SequenceAddItem("o", "a")).values == [99, 1]
    rig.settle()
    found = rig.read(
        methods.SEQUENCE_GET, methods.SEQUENCE_GET.body([SequenceKey("n", "b"), SequenceKey("n", "c")])
    ).found
    assert found == [SequenceRecord("n", "b", 99, 2, 1, 2), None]
    assert [s.sequence for s in rig.read(methods.SEQUENCE_LIST, SequenceList("n")).found] == ["a", "b"]


def test_what_does_not_fit_leaves_the_value_as_it_is(rig: Rig) -> None:
    add(rig, SequenceAddItem("n", "a", SEQUENCE_MAX))
    reply = add(rig, SequenceAddItem("n", "a"), SequenceAddItem("n", "b", -1), SequenceAddItem("n", "a", -2))
    assert item_errors(reply) == {0: "conflict", 1: "conflict"}
    assert [error.current for error in reply.errors] == [SEQUENCE_MAX, 0]
    assert reply.values == [0, 0, SEQUENCE_MAX - 2]


def test_a_retry_adds_nothing(rig: Rig) -> None:
    identity = m.Identity(1, 1, 0)
    assert add(rig, SequenceAddItem("n", "a", 10), identity=identity).values == [10]
    assert add(rig, SequenceAddItem("n", "a", 10), identity=identity).values == [10]
    assert add(rig, SequenceAddItem("n", "a", 1)).values == [11]


def test_a_deleted_sequence_begins_again(rig: Rig) -> None:
    add(rig, SequenceAddItem("n", "a", 10))
    delete = m.Items([SequenceKey("n", "a"), SequenceKey("n", "a")])
    assert item_errors(rig.write(methods.SEQUENCE_DELETE, delete)) == {1: "not_found"}
    assert add(rig, SequenceAddItem("n", "a")).values == [1]
