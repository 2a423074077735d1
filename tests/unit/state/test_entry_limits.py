"""No accepted request makes an entry that cannot be replicated: what commands may change, what an entry may hold, and
what a frame between nodes carries.
"""

from __future__ import annotations

import os
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from state_rig import MIB, Group, command_of, item_errors
from wire_strategies import values_of

from metad.config import DedupeConfig
from metad.raft.replicas import PAYLOAD_BYTES_MAX
from metad.raft.roles.leader import APPEND_BYTES_MAX
from metad.state.core.entry import RECORD_HEADER_BYTES
from metad.state.core.limits import (
    ENDED_BYTES_MAX,
    ENTRY_BYTES_FULL,
    ENTRY_BYTES_MAX,
    LOOKED_AT_BYTES_MAX,
)
from metad.state.machine import change_estimate
from metad.state.registry import VERBS
from metad_wire import messages as m
from metad_wire import methods
from metad_wire.connection.frame import FRAME_BYTES_MAX
from metad_wire.connection.peer import PEER_FRAME_BYTES_MAX
from metad_wire.errors import TooLargeError
from metad_wire.messages import CHANGE_BYTES_MAX, Identity
from metad_wire.methods import BETWEEN_NODES, Method
from sim.naming import kind_of

WRITES = [verb.method for verb in VERBS.values() if verb.evaluate and verb.method.code not in BETWEEN_NODES]
HEARTBEATS_BYTES = MIB // 2  # of 4,096 groups, some hundred bytes each
NOW_MS = 1_700_000_000_000


def group_of(method: Method[Any, Any]) -> Group:
    return Group(kind_of(method), 0, DedupeConfig())


def changed(group: Group) -> int:
    """Bytes that the newest entry writes."""
    effects = group.in_flight[-1][2]
    return sum(len(key) + len(value or b"") for writes in effects for key, value in writes.items())


def spread(operations: int, first: int = 0, value: bytes = b"") -> list[m.KvTransaction]:
    """Transactions of so many puts, a hundred of which share a long namespace: some 8 KB each."""
    return [
        m.KvTransaction(f"{n:04000}", [], [m.KvOperation(f"{i}", value) for i in range(100)])
        for n in range(first, first + operations // 100)
    ]


def test_the_largest_entry_fits_a_frame_between_nodes() -> None:
    # A payload takes messages until it is full, and one more; a message takes records until it is full, and one more.
    record = RECORD_HEADER_BYTES + ENTRY_BYTES_MAX
    assert PAYLOAD_BYTES_MAX + APPEND_BYTES_MAX + record + HEARTBEATS_BYTES <= PEER_FRAME_BYTES_MAX
    # And a thousand small items with a large one are one request.
    assert MIB + m.BATCH_ITEMS_MAX * 400 <= CHANGE_BYTES_MAX


# NUL is two bytes in a key. Whatever is in several rows is long here, for only then does it show.
LONG = st.sampled_from(["", "a", "b" * 60, "\0" * 40, "\0" * 120])
# Those that say themselves how much they change: few bytes of them name many rows.
COUNTED = (methods.KV_TRANSACT, methods.LEASE_REVOKE, methods.LEASE_ATTACH, methods.LEASE_DETACH)
COUNTED += (methods.CONSUMER_JOIN, methods.CONSUMER_LEAVE, methods.CONSUMER_ASSIGN, methods.OFFSET_DELETE_GROUPS)
COUNTED += (methods.SESSION_END_TENANT,)
CHANGES = st.sampled_from([method for method in WRITES if method not in COUNTED]).flatmap(
    lambda method: st.tuples(st.just(method), values_of(method.body, LONG))
)


@settings(max_examples=100, deadline=None)
@given(st.lists(CHANGES, min_size=1, max_size=8))
def test_no_write_changes_more_than_is_estimated(attempts: list[tuple[Method[Any, Any], Any]]) -> None:
    groups = {kind: Group(kind, 0, DedupeConfig()) for kind in ("data", "offset", "metadata")}
    for method, body in attempts:
        if not getattr(body, "items", True):
            continue
        size = len(method.encode_request(body))
        command = command_of(method, body, size=size)
        group = groups[kind_of(method)]
        group.propose([(command, None)], NOW_MS)
        assert changed(group) <= change_estimate(size, command.items)
        group.apply(1)


@pytest.mark.parametrize("size", [0, 1, 16 * MIB], ids=["of unknown size", "small", "large"])
def test_a_transaction_that_grows_too_much_is_refused_and_leaves_nothing(size: int) -> None:
    # 200 KB that made an entry of 41 MB: no follower could take it, and the group wrote nothing until its leader died.
    group = group_of(methods.KV_TRANSACT)
    body = m.KvTransact(spread(800))
    assert len(methods.KV_TRANSACT.encode_request(body)) < 300_000
    (outcome,) = group.propose([(command_of(methods.KV_TRANSACT, body, size=size), Identity(1, 1, 0))], NOW_MS)
    assert isinstance(outcome, TooLargeError)
    assert changed(group) == 0
    (outcome,) = group.propose([(command_of(methods.KV_TRANSACT, m.KvTransact(spread(200))), None)], NOW_MS)
    assert isinstance(outcome, bytes)
    assert MIB < changed(group) < CHANGE_BYTES_MAX


def test_a_transaction_stops_as_soon_as_it_grows_too_much() -> None:
    group = group_of(methods.KV_TRANSACT)
    before = len(group.engine.scan(b"", b"\xff" * 16, 10**9))
    body = m.KvTransact(spread(800, value=bytes(1_000)))
    group.propose([(command_of(methods.KV_TRANSACT, body), None)], NOW_MS)
    assert len(group.machine._view.writes) <= CHANGE_BYTES_MAX // 8_000
    assert len(group.engine.scan(b"", b"\xff" * 16, 10**9)) == before


@pytest.mark.parametrize(
    ("method", "body"),
    [
        (methods.KV_PUT, m.KvPut([m.KvPutItem("n", f"{i:04080}", b"") for i in range(1_000)])),
        (
            methods.OFFSET_COMMIT,
            m.OffsetCommit([m.OffsetCommitItem("t", f"{i:04000}", "t", 0, 0, 1) for i in range(1_000)]),
        ),
        (
            methods.SESSION_TAKEOVER,
            m.SessionTakeover("b", 1, [m.SessionTakeoverItem("t", f"{i:04000}") for i in range(1_000)]),
        ),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
def test_long_keys_count_as_often_as_they_are_written(method: Method[Any, Any], body: Any) -> None:
    group = group_of(method)
    size = len(method.encode_request(body))
    assert size < FRAME_BYTES_MAX
    (outcome,) = group.propose([(command_of(method, body, size=size), None)], NOW_MS)
    assert isinstance(outcome, TooLargeError)
    assert "in parts" in str(outcome)
    fewer = type(body)(**{f: getattr(body, f) for f in body.__struct_fields__} | {"items": body.items[:100]})
    (outcome,) = group.propose([(command_of(method, fewer, size=size // 10), None)], NOW_MS)
    assert isinstance(outcome, bytes)
    assert item_errors(method.decode_reply(outcome)) == {}


def test_a_full_request_of_values_is_one_entry() -> None:
    group = group_of(methods.KV_PUT)
    bodies = (
        m.KvPut([m.KvPutItem("n", f"{i}", os.urandom(MIB - 300)) for i in range(2)]),
        m.KvPut([m.KvPutItem("namespace", f"some/key/of/some/length/{i}", os.urandom(4_900)) for i in range(400)]),
    )
    for seq, body in enumerate(bodies):
        size = len(methods.KV_PUT.encode_request(body))
        assert CHANGE_BYTES_MAX - MIB // 2 < size <= CHANGE_BYTES_MAX
        (outcome,) = group.propose([(command_of(methods.KV_PUT, body, size=size), Identity(1, seq, 0))], NOW_MS)
        assert isinstance(outcome, bytes)


def test_an_entry_takes_no_command_once_it_is_full() -> None:
    group = group_of(methods.KV_TRANSACT)
    bodies = [m.KvTransact(spread(100, n)) for n in range(9)]  # 0.8 MB each
    commands = [(command_of(methods.KV_TRANSACT, body, size=1), None) for body in bodies]
    assert len(group.propose(commands, NOW_MS)) == 2
    assert ENTRY_BYTES_FULL <= len(group.log[-1]) < ENTRY_BYTES_FULL + MIB


def test_the_largest_entry_is_no_larger_than_is_said() -> None:
    group = group_of(methods.KV_TRANSACT)
    # Window rows of small writes, which the last command confirms and so deletes.
    for seq in range(1, 3_000):
        body = m.KvPut([m.KvPutItem("n", "k", b"v")])
        group.propose([(command_of(methods.KV_PUT, body, size=10), Identity(1, seq, 0))], NOW_MS)
    group.apply(10_000)
    almost = m.KvTransact(spread(100))
    largest = m.KvTransact(spread(200, 1))
    outcomes = group.propose(
        [
            (command_of(methods.KV_TRANSACT, almost, size=1), None),
            (command_of(methods.KV_TRANSACT, largest, size=1), Identity(1, 3_000, 3_000)),
        ],
        NOW_MS,
    )
    assert all(isinstance(outcome, bytes) for outcome in outcomes)
    assert ENTRY_BYTES_MAX - ENDED_BYTES_MAX - 3 * MIB < len(group.log[-1]) <= ENTRY_BYTES_MAX


@pytest.mark.parametrize(
    "body",
    [
        m.KvDelete([m.KvDeleteItem("n", f"{i}", 1) for i in range(70)]),
        m.KvPut([m.KvPutItem("n", f"{i}", b"") for i in range(70)]),
        m.KvTransact([m.KvTransaction("n", [m.KvCompare(f"{i}", None, b"x")], []) for i in range(70)]),
        m.KvTransact([m.KvTransaction("n", [m.KvCompare(f"{i}", 1) for i in range(70)], [])]),
    ],
    ids=["delete", "put", "by value", "by version"],
)
def test_a_command_reads_a_bounded_number_of_bytes(body: Any) -> None:
    # Ten thousand names of a megabyte each take 100 KB of request, and would take seconds in which nobody is served.
    method = next(method for method in WRITES if method.body is type(body))
    group = group_of(method)
    for i in range(70):
        body_of_one = m.KvPut([m.KvPutItem("n", f"{i}", bytes(MIB))])
        group.propose([(command_of(methods.KV_PUT, body_of_one), None)], NOW_MS)
    group.apply(100)
    group.machine.forget()
    assert 70 * MIB > LOOKED_AT_BYTES_MAX
    (outcome,) = group.propose([(command_of(method, body, size=100), None)], NOW_MS)
    assert isinstance(outcome, TooLargeError)
    assert "fewer" in str(outcome)
    assert changed(group) == 0


def test_versions_that_are_remembered_are_compared_without_reading() -> None:
    group = group_of(methods.KV_PUT)
    group.propose([(command_of(methods.KV_PUT, m.KvPut([m.KvPutItem("n", "k", bytes(MIB))])), None)], NOW_MS)
    group.apply(1)
    body = m.KvTransact([m.KvTransaction("n", [m.KvCompare("k", 1)] * 100, []) for _ in range(9)])
    (outcome,) = group.propose([(command_of(methods.KV_TRANSACT, body), None)], NOW_MS)
    assert all(result.succeeded for result in methods.KV_TRANSACT.decode_reply(outcome).results)
    assert group.machine._view.looked_at == 0


@pytest.mark.parametrize(("method", "body"), [(methods.KV_PUT, m.KvPut([])), (methods.KV_SCAN, m.KvScan("n"))])
def test_a_request_without_items_is_work_too(method: Method[Any, Any], body: Any) -> None:
    """It once counted nothing, so any number of them shared an entry, and a turn."""
    assert command_of(method, body).items == 1
