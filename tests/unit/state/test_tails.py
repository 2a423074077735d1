"""What a newer version wrote behind the fields that this one knows: what survives here, and what does not."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from state_rig import Group, Rig

from metad.config import DedupeConfig
from metad.state.cluster.cluster import MAP_KEY
from metad.state.core import tails
from metad.state.core.slot_assignment import AssignedSlots, SlotAssignment, SlotMoves, moves_key
from metad.state.core.verb import Command
from metad.state.registry import VERBS
from metad.storage import keys
from metad_wire import cluster as c
from metad_wire import messages as m
from metad_wire.cluster import GroupCommand, slot_bits
from metad_wire.key import u32
from metad_wire.methods import (
    CLUSTER_STORE,
    GROUP_COMMAND,
    KV_GET,
    KV_SCAN,
    KV_TRANSACT,
    OFFSET_FETCH,
    OFFSET_LIST,
    SESSION_DISCONNECT,
    SESSION_GET,
    SESSION_LIST,
    SESSION_TAKEOVER,
    SESSION_UPDATE,
    Method,
    encode,
)
from metad_wire.tables.kv import KV
from metad_wire.tables.offset import OFFSET
from metad_wire.tables.session import SESSION

LATER = [{"a": [1, b"\0"]}, None, "later"]
decode = msgspec.msgpack.decode


def longer(record: Any) -> bytes:
    """A record as a newer version writes it."""
    return encode([*decode(encode(record)), *LATER])


def answer(rig: Rig, method: Method[Any, Any], body: Any) -> Any:
    """The reply as it travels, with all that is in it."""
    verb = VERBS[method.code]
    group, command = rig.group, Command(method, body, verb.rows(body))
    if verb.read is not None:
        return decode(encode(verb.read(group.machine.reader, command)))
    (outcome,) = group.propose([(command, None)], rig.now_ms)
    group.apply(1)
    return decode(outcome)


def put_row(rig: Rig, table: int, suffix: bytes, row: bytes) -> None:
    """As a leader of a newer version would have replicated it."""
    group = rig.group
    for engine in (group.engine, group.follower_engine):
        engine.write({keys.table_prefix(group.prefix, table) + suffix: row})


def test_reads_hand_records_on_whole() -> None:
    rig = Rig("data")
    put_row(rig, KV.rows["record"], keys.text2("n", "k"), longer(m.Kv("n", "k", b"v", 1, 1, 1)))
    expected = ["n", "k", b"v", 1, 1, 1, "", *LATER]
    assert answer(rig, KV_GET, KV_GET.body([m.KvKey("n", "k")])) == [[expected], []]
    assert answer(rig, KV_SCAN, m.KvScan("n"))[0] == [expected]
    transaction = m.KvTransaction("n", [m.KvCompare("k", 1, b"v")], [], reads=["k"])
    assert answer(rig, KV_TRANSACT, m.KvTransact([transaction]))[2] == [[True, [expected]]]
    offsets = Rig("offset")
    suffix = keys.text2("t", "g") + keys.text("topic") + u32(3)
    put_row(offsets, OFFSET.rows["offset"], suffix, longer(m.Offset("t", "g", "topic", 3, 7, 0, 0, "")))
    expected = ["t", "g", "topic", 3, 7, 0, 0, "", *LATER]
    assert answer(offsets, OFFSET_FETCH, OFFSET_FETCH.body([m.OffsetKey("t", "g", "topic", 3)])) == [[expected], []]
    assert answer(offsets, OFFSET_LIST, m.OffsetList("t", "g"))[0] == [expected]


def test_a_takeover_and_a_disconnect_leave_a_sessions_properties_whole() -> None:
    """They used to come back from `restore` cut to what this version knows."""
    rig = Rig("data")
    item = m.SessionTakeoverItem("t", "c")
    key = m.SessionKey("t", "c")
    answer(rig, SESSION_TAKEOVER, m.SessionTakeover("old", 1, [item]))
    put_row(rig, SESSION.rows["properties"], keys.text2("t", "c"), longer(m.SessionProperties(60, b"p")))
    expected = [60, b"p", None, *LATER]
    assert answer(rig, SESSION_TAKEOVER, m.SessionTakeover("new", 1, [item], restore=True))[4] == [expected]
    answer(rig, SESSION_DISCONNECT, m.SessionDisconnect("new", 1, [m.SessionDisconnectItem("t", "c")]))
    assert answer(rig, SESSION_GET, SESSION_GET.body([key]))[0][0][6] == expected
    assert answer(rig, SESSION_LIST, m.SessionList())[0][0][6] == expected
    # What a client writes replaces it as a whole.
    changed = m.SessionUpdateItem("t", "c", m.SessionProperties(1))
    answer(rig, SESSION_UPDATE, m.SessionUpdate("new", 1, [changed]))
    assert answer(rig, SESSION_GET, SESSION_GET.body([key]))[0][0][6] == [1, b"", None]


def test_a_retried_restore_hands_them_on_whole_too() -> None:
    rig = Rig("data")
    identity = m.Identity(1, 1, 0)
    rig.write(SESSION_TAKEOVER, m.SessionTakeover("old", 1, [m.SessionTakeoverItem("t", "c")]))
    put_row(rig, SESSION.rows["properties"], keys.text2("t", "c"), longer(m.SessionProperties(60, b"p")))
    body = m.SessionTakeover("new", 1, [m.SessionTakeoverItem("t", "c")], restore=True)
    verb = VERBS[SESSION_TAKEOVER.code]
    rows = verb.rows(body)
    group, command = rig.group, Command(SESSION_TAKEOVER, body, rows)
    (first,) = group.propose([(command, identity)], rig.now_ms)
    group.apply(1)
    (known,) = group.propose([(command, identity)], rig.now_ms)
    group.apply(1)
    recalled = group.machine.recall(known.index, command, identity)
    assert decode(first)[4] == decode(recalled)[4] == [[60, b"p", None, *LATER]]


def test_elements_of_a_request_that_nobody_here_knows_are_skipped_and_not_stored() -> None:
    rig = Rig("data")
    items = [["t", "c", False, [60, b"p", None, *LATER], *LATER]]
    payload = encode([0, None, ["b", 1, items, False, False, *LATER], "", 0, None, 0, b"", *LATER])
    body = SESSION_TAKEOVER.decode_request(payload).body
    answer(rig, SESSION_TAKEOVER, body)
    assert answer(rig, SESSION_GET, SESSION_GET.body([m.SessionKey("t", "c")]))[0][0][6] == [60, b"p", None]


# --- what nodes write --------------------------------------------------------------------------------------


def store(group: Group, body: c.StoreMap) -> Any:
    rows = VERBS[CLUSTER_STORE.code].rows(body)
    (outcome,) = group.propose([(Command(CLUSTER_STORE, body, rows), None)], 0)
    group.apply(1)
    return CLUSTER_STORE.decode_reply(outcome)


def test_a_change_of_the_map_keeps_what_newer_nodes_put_into_it() -> None:
    group = Group("metadata", 0, DedupeConfig())
    nodes = [c.NodeRecord("a", "", "h:1"), c.NodeRecord("b", "", "h:2"), c.NodeRecord("gone", "", "h:3")]
    groups = [c.GroupRecord("data", 0, ["a"], ["a"]), c.GroupRecord("offset", 0, ["a"], ["a"])]
    moves = [c.SlotMove(7, "data", 0, 1, b"")]
    first = c.ClusterMap(1, nodes, groups, {"data": b"s"}, moves)
    assert store(group, c.StoreMap(0, first)).errors == []
    stored = decode(group.engine.get(MAP_KEY) or b"")
    for at in (1, 2, 4):
        for number, record in enumerate(stored[at]):
            record += [f"{at}.{number}", *LATER]
    stored += LATER
    for engine in (group.engine, group.follower_engine):
        engine.write({MAP_KEY: encode(stored)})
    # Another order, one gone, one new, one changed.
    nodes = [c.NodeRecord("new", "", "h:4"), c.NodeRecord("b", "", "h:9", leaving=True), nodes[0]]
    second = c.ClusterMap(2, nodes, list(reversed(groups)), {"data": b"t"}, [])
    assert store(group, c.StoreMap(1, second)).errors == []
    kept = decode(group.engine.get(MAP_KEY) or b"")
    assert msgspec.msgpack.decode(encode(kept), type=c.ClusterMap) == second
    known = tails.fields(c.NodeRecord)
    assert {node[0]: node[known:] for node in kept[1]} == {
        "new": [],
        "b": ["1.1", *LATER],
        "a": ["1.0", *LATER],
    }
    known = tails.fields(c.GroupRecord)
    assert [record[known:] for record in kept[2]] == [["2.1", *LATER], ["2.0", *LATER]]
    assert kept[3:5] == [{"data": b"t"}, []]
    assert kept[tails.fields(c.ClusterMap) :] == LATER
    assert group.engine.get(MAP_KEY) == group.follower_engine.get(MAP_KEY)


@pytest.mark.parametrize("step", ["open", "seal"])
def test_a_step_of_a_move_keeps_what_newer_leaders_put_into_the_groups_row(step: str) -> None:
    group = Group("data", 0, DedupeConfig(), initial_slots=slot_bits([1] if step == "seal" else []))
    held = AssignedSlots(group.initial_slots, base=40)
    for engine in (group.engine, group.follower_engine):
        engine.write({group.machine.parts[SlotAssignment].key: longer(held)})
    group.machine.forget()
    body = GroupCommand(step, 1, 1, slots=slot_bits([1]))
    rows = VERBS[GROUP_COMMAND.code].rows(body)
    (outcome,) = group.propose([(Command(GROUP_COMMAND, body, rows), None)], 0)
    group.apply(1)
    row = decode(group.engine.get(group.machine.parts[SlotAssignment].key) or b"")
    assert row[tails.fields(AssignedSlots) :] == LATER
    assert GROUP_COMMAND.decode_reply(outcome).revisions == [m.Revision("data-0", 41)]


@pytest.mark.parametrize("step", ["adopt", "close"])
def test_the_end_of_a_move_keeps_what_newer_leaders_put_into_the_row_of_moves(step: str) -> None:
    group = Group("data", 0, DedupeConfig(), initial_slots=slot_bits([]))
    assignment, key = group.machine.parts[SlotAssignment], moves_key(group.prefix)
    held = AssignedSlots(
        slot_bits([3]), slot_bits([4]), sealed_move=7, opened_move=8, opened_attempt=1, opened_slots=slot_bits([1])
    )
    moves = SlotMoves({5: slot_bits([3]), 6: slot_bits([4])})
    for engine in (group.engine, group.follower_engine):
        engine.write({assignment.key: encode(held), key: longer(moves)})
    group.machine.forget()
    body = GroupCommand(step, 8 if step == "adopt" else 7, 1, 1, slots=slot_bits([1]))
    (outcome,) = group.propose([(Command(GROUP_COMMAND, body, VERBS[GROUP_COMMAND.code].rows(body)), None)], 0)
    assert isinstance(outcome, bytes), outcome
    group.apply(1)
    brought = {8: slot_bits([1]), 6: slot_bits([4])} if step == "adopt" else {}
    assert decode(group.follower_engine.get(key) or b"") == [{**brought, 5: slot_bits([3])}, *LATER]


def test_records_without_tails_are_written_as_they_are() -> None:
    written = encode([1, 2])
    assert tails.keep(encode([1]), written, 2) is written
    assert tails.keep(encode([1]), written, 2, tails.Inner(5, 1, lambda one: one[0])) is written
