"""A node at its limits: limits named, overload and drain refused, damage never served."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from server_rig import Answer, Rig

from metad.errors import DamagedStoreError, ServerError, StorageError
from metad.node.disk.stores import pair_stores
from metad.node.node import Node
from metad.raft.log.journal import REGULAR, record
from metad.state.core.verb import SCAN_ROWS_MAX
from metad.state.registry import VERBS
from metad.storage import keys
from metad.storage.log import LogStore, log_entry, log_index
from metad_wire import cluster, methods
from metad_wire import messages as m
from metad_wire.cluster import GroupId
from metad_wire.errors import (
    DeadlineExceededError,
    DrainingError,
    InternalError,
    InvalidItemError,
    InvalidRequestError,
    NotFoundError,
    NotLeaderError,
    OverloadedError,
    TooLargeError,
    UnknownMethodError,
    UnknownOutcomeError,
)
from metad_wire.messages import Identity
from metad_wire.tables.table import DECLARED
from sim.naming import group_of

MIB = 1024 * 1024
MakeRig = Callable[..., Any]


@pytest.fixture
async def make() -> AsyncIterator[MakeRig]:
    rigs: list[Rig] = []

    async def make(**settings: Any) -> Rig:
        rig = Rig(**settings)
        rigs.append(rig)
        await rig.open()
        return rig

    yield make
    for rig in rigs:
        for engine in (rig.log_engine, rig.state_engine):
            engine.broken.clear()
        await rig.close()


def puts(count: int, value: bytes = b"v", start: int = 0) -> m.KvPut:
    """Keys in as many namespaces."""
    return m.KvPut([m.KvPutItem(f"n{i}", "k", value) for i in range(start, start + count)])


# --- requests --------------------------------------------------------------------------------------------


async def test_a_request_is_answered_in_order(make: MakeRig) -> None:
    rig = await make()
    answer = rig.send(methods.KV_PUT, puts(30))
    assert not answer.done
    await rig.settle()
    reply = answer.reply(methods.KV_PUT)
    assert reply.versions == [1] * 30
    assert [revision.group for revision in reply.revisions] == ["data-0"]
    found = await rig.ask(methods.KV_GET, methods.KV_GET.body([m.KvKey(f"n{i}", "k") for i in range(31)]))
    assert [record and record.namespace for record in found.found] == [*(f"n{i}" for i in range(30)), None]
    assert rig.node.status().in_flight_bytes == 0


async def test_nothing_is_answered_before_it_is_durable(make: MakeRig) -> None:
    rig = await make()
    answer = rig.send(methods.KV_PUT, puts(3))
    for _ in range(20):
        await asyncio.sleep(0)
    assert not answer.done
    assert rig.step()
    assert answer.done


@pytest.mark.parametrize(
    "method",
    [
        row
        for row in methods.METHODS.values()
        if row.by is not methods.By.METADATA
        and row.table is not DECLARED
        and row.code not in methods.BETWEEN_NODES | {methods.WATCH_OPEN.code}
        and not row.name.startswith("backup.")  # which are about files, and this node has none
        and row not in (methods.GROUP_PUT_TENANT, methods.GROUP_COPY_TENANT)  # no tenant moves
    ],
    ids=lambda method: method.name,
)
async def test_a_request_of_no_items_has_an_answer(make: MakeRig, method: methods.Method[Any, Any]) -> None:
    rig = await make()
    fields = method.body.__struct_fields__
    values = {"items": [], "broker": "b", "broker_epoch": 1, "tenant": "t", "group": "g"}
    values |= {"namespace": "n", "lease": "l", "filter": "#", "lease_ms": 1_000, "publish_wills": True}
    values |= {"setting": "limits.slow_ms"}
    body = method.body(**{name: values[name] for name in fields if name in values})
    assert isinstance(await rig.ask(method, body), method.reply)


async def test_a_deadline_in_a_disk_failure_is_not_called_undone(make: MakeRig) -> None:
    rig = await make(commit={"pipeline_entries_max": 1})
    rig.send(methods.KV_PUT, m.KvPut([m.KvPutItem("n0", "k", b"first")]))
    await asyncio.sleep(0)
    answer = rig.send(methods.KV_PUT, puts(30), deadline_ms=1)
    rig.turn()
    rig.log_engine.broken["sync"] = StorageError("disk full")
    await rig.settle()
    assert answer.error.outcome_known is False


async def test_an_unknown_method_is_told(make: MakeRig) -> None:
    rig = await make()
    results: list[Any] = []
    rig.node.requests.submit(0x7777, b"", results.append)
    (error,) = results
    assert isinstance(error, UnknownMethodError)
    assert "0x7777" in error.message


@pytest.mark.parametrize(
    "payload", [b"", b"\x93", b"\x93\x00\xc0\x01", b"\xc1", b"garbage", b"\x93\x00\xc0\x91\x91\x00"]
)
async def test_a_malformed_request_is_told(make: MakeRig, payload: bytes) -> None:
    rig = await make()
    for method in methods.METHODS.values():
        if method in (methods.STATUS, methods.CLUSTER_REBALANCE):
            continue  # an empty array: what is in one that is not is of a later version
        if method.by is methods.By.METADATA and method.item is not None:
            continue  # its items are refused one by one
        results: list[Any] = []
        rig.node.requests.submit(method.code, payload, results.append)
        expected = UnknownMethodError if method.code in methods.BETWEEN_NODES else InvalidRequestError
        assert [type(result) for result in results] == [expected], method


VALUE = b"x" * (MIB + 1)


LARGE = m.SessionProperties(0, VALUE)
TOO_LARGE: dict[str, tuple[Any, Any, Any]] = {
    "put": (methods.KV_PUT, m.KvPut, [m.KvPutItem("n", "a", b""), m.KvPutItem("n", "k", VALUE)]),
    "then": (
        methods.KV_TRANSACT,
        m.KvTransact,
        [m.KvTransaction("n", [], []), m.KvTransaction("n", [], [m.KvOperation("k", VALUE)])],
    ),
    "otherwise": (
        methods.KV_TRANSACT,
        m.KvTransact,
        [m.KvTransaction("n", [], []), m.KvTransaction("n", [], [], [m.KvOperation("k", VALUE)])],
    ),
    "takeover": (
        methods.SESSION_TAKEOVER,
        lambda items: m.SessionTakeover("b", 1, items),
        [m.SessionTakeoverItem("t", "a"), m.SessionTakeoverItem("t", "c", False, LARGE)],
    ),
    "update": (
        methods.SESSION_UPDATE,
        lambda items: m.SessionUpdate("b", 1, items),
        [m.SessionUpdateItem("t", "a", m.SessionProperties()), m.SessionUpdateItem("t", "c", LARGE)],
    ),
    "metadata": (
        methods.OFFSET_COMMIT,
        m.OffsetCommit,
        [
            m.OffsetCommitItem("t", "g", "t", 0, 1),
            m.OffsetCommitItem("t", "g", "t", 0, 1, 0, None, "é" * (MIB // 2 + 1)),
        ],
    ),
}


@pytest.mark.parametrize("case", TOO_LARGE)
async def test_a_value_over_the_limit_refuses_its_item(make: MakeRig, case: str) -> None:
    rig = await make()
    method, body, items = TOO_LARGE[case]
    if method is methods.SESSION_UPDATE:
        await rig.ask(methods.SESSION_TAKEOVER, m.SessionTakeover("b", 1, [m.SessionTakeoverItem("t", "a")]))
    (error,) = (await rig.ask(method, body(items))).errors
    assert (error.index, error.code) == (1, InvalidItemError.code)
    assert error.message.startswith("its value takes 104857")
    assert rig.node.status().in_flight_bytes == 0


async def test_values_at_the_limit_are_taken(make: MakeRig) -> None:
    rig = await make()
    assert (await rig.ask(methods.KV_PUT, m.KvPut([m.KvPutItem("n", "k", VALUE[1:])]))).versions == [1]


async def test_the_records_of_a_reply_fit_a_frame(make: MakeRig) -> None:
    rig = await make()
    for i in range(30):
        await rig.ask(methods.KV_PUT, m.KvPut([m.KvPutItem(f"n{i}", "k", bytes(MIB - 100))]))
    for count in (1, 3, 4, 5, 30):
        answer = rig.send(methods.KV_GET, methods.KV_GET.body([m.KvKey(f"n{i}", "k") for i in range(count)]))
        if count < 5:
            assert all(answer.reply(methods.KV_GET).found)
        else:
            assert isinstance(answer.error, InvalidRequestError)


async def test_keys_count_for_what_fits_a_frame(make: MakeRig) -> None:
    rig = await make(groups={"data": 1}, limits={"frame_bytes_max": 4 * MIB})
    keys_ = [m.SessionKey("t", f"{i:04}" + "x" * 3_990) for i in range(900)]
    for start in range(0, 900, 100):
        part = keys_[start : start + 100]
        items = [m.SessionTakeoverItem("t", k.client_id, False, m.SessionProperties(0, bytes(1_500))) for k in part]
        await rig.ask(methods.SESSION_TAKEOVER, m.SessionTakeover("b", 1, items))
    answer = await rig.answered(rig.send(methods.SESSION_GET, methods.SESSION_GET.body(keys_)))
    assert isinstance(answer.error, TooLargeError)
    assert "would not fit a frame" in answer.error.message
    assert all((await rig.ask(methods.SESSION_GET, methods.SESSION_GET.body(keys_[:500]))).found)


async def test_a_read_of_many_records_is_done_in_pieces_between_others_requests(make: MakeRig) -> None:
    rig = await make()
    items = [m.KvPutItem(f"n{i % 8}", f"k{i}", b"%d" % i) for i in range(1_000)]
    await rig.ask(methods.KV_PUT, m.KvPut(items))
    keys_ = [m.KvKey(item.namespace, item.key) for item in items]
    long = rig.send(methods.KV_GET, methods.KV_GET.body(keys_))
    assert not long.done
    before = rig.node.requests.spent
    await asyncio.sleep(0)
    assert rig.node.requests.spent - before <= 300
    short = rig.send(methods.KV_GET, methods.KV_GET.body(keys_[:1]))
    assert short.done
    while not long.done:
        before = rig.node.requests.spent
        await asyncio.sleep(0)
        assert rig.node.requests.spent - before <= 300
    found = [record.value for record in long.reply(methods.KV_GET).found]
    assert found == [item.value for item in items]
    assert rig.node.status().in_flight_bytes == 0


@pytest.mark.parametrize("count", [3, 5])
async def test_a_read_in_pieces_counts_what_all_of_them_found(make: MakeRig, count: int) -> None:
    # Records of a megabyte, far apart in a read of many: together they must fit a reply as in any other read.
    rig = await make(groups={"data": 1})
    for i in range(count):
        await rig.ask(methods.KV_PUT, m.KvPut([m.KvPutItem("n", f"large{i}", bytes(MIB - 1_000))]))
    keys_ = [m.KvKey("n", f"large{i // 200}" if i % 200 == 0 else f"absent{i}") for i in range(1_000)]
    answer = await rig.answered(rig.send(methods.KV_GET, methods.KV_GET.body(keys_)))
    if count > 4:
        assert isinstance(answer.error, TooLargeError)
        assert "ask for fewer" in answer.error.message
    else:
        assert sum(record is not None for record in answer.reply(methods.KV_GET).found) == count
    assert rig.node.status().in_flight_bytes == 0


async def test_a_read_in_pieces_ends_with_its_deadline_and_with_the_node(make: MakeRig) -> None:
    rig = await make(groups={"data": 1})
    keys_ = [m.KvKey("n", f"k{i}") for i in range(1_000)]
    late = rig.send(methods.KV_GET, methods.KV_GET.body(keys_), deadline_ms=1)
    time.sleep(0.002)  # noqa: ASYNC251 - the loop is busy
    await rig.answered(late)
    abandoned = rig.send(methods.KV_GET, methods.KV_GET.body(keys_))
    assert isinstance(late.error, DeadlineExceededError)
    rig.node.health.fail(FULL)
    assert isinstance(abandoned.error, UnknownOutcomeError)
    assert rig.node.status().in_flight_bytes == 0
    await asyncio.sleep(0)


async def test_overload_refuses_and_says_when_to_come_back(make: MakeRig) -> None:
    rig = await make(
        limits={"in_flight_bytes_max": 4 * MIB, "connection_window_bytes": 4 * MIB, "frame_bytes_max": 4 * MIB}
    )
    body = m.KvPut([m.KvPutItem("n", "k", bytes(MIB))])
    taken = [rig.send(methods.KV_PUT, body) for _ in range(4)]
    refused = [answer for answer in taken if answer.done]
    assert len(refused) == 1
    assert isinstance(refused[0].error, OverloadedError)
    assert refused[0].error.retry_after_ms > 0
    await rig.settle()
    assert [answer.reply(methods.KV_PUT).errors for answer in taken if answer is not refused[0]] == [[], [], []]
    assert rig.node.status().in_flight_bytes == 0
    assert not rig.send(methods.KV_PUT, body).done
    await rig.settle()


async def test_who_comes_before_its_slot_is_turned_away_though_there_is_room(make: MakeRig) -> None:
    limits = {"in_flight_bytes_max": 4 * MIB, "connection_window_bytes": 4 * MIB, "frame_bytes_max": 4 * MIB}
    rig = await make(limits=limits | {"returning_per_s": 1})
    body = m.KvPut([m.KvPutItem("n", str(i), bytes(MIB // 10)) for i in range(10)])
    taken = [rig.send(methods.KV_PUT, body, Identity(1, seq, 1)) for seq in range(1, 7)]
    slots = [answer.error.retry_after_ms for answer in taken[3:] if isinstance(answer.error, OverloadedError)]
    assert slots == pytest.approx([50, 10_050, 20_050], abs=3_000)  # ten seconds for ten items
    await rig.settle()
    early = rig.send(methods.KV_PUT, body, Identity(1, 6, 1, 100))
    assert isinstance(early.error, OverloadedError)
    assert 0 < early.error.retry_after_ms <= slots[2]
    assert not rig.send(methods.KV_PUT, body, Identity(1, 7, 1)).done  # what is new finds room
    await rig.settle()
    status = rig.node.status().turned_away
    assert (status.requests, status.early, status.per_s) == (3, 1, 1)
    assert 0 < status.ahead_ms <= 30_050


async def test_small_items_weigh_what_they_take_in_memory(make: MakeRig) -> None:
    # 6 bytes on the wire are a few hundred as objects: counted by their bytes, items could take gigabytes.
    rig = await make(limits={"in_flight_bytes_max": 16 * MIB, "connection_window_bytes": 16 * MIB})
    tiny = m.OffsetCommit([m.OffsetCommitItem("", "", "", 0, 0)] * m.BATCH_ITEMS_MAX)
    answers = [rig.send(methods.OFFSET_COMMIT, tiny) for _ in range(200)]
    assert 30 <= sum(not answer.done for answer in answers) <= 80
    await rig.settle()
    nested = m.KvTransact([m.KvTransaction("", [m.KvCompare("")] * 100, [])] * 10)
    answers = [rig.send(methods.KV_TRANSACT, nested) for _ in range(200)]
    assert 30 <= sum(not answer.done for answer in answers) <= 80
    await rig.settle()
    nested = m.KvTransact([m.KvTransaction("", [m.KvCompare("")] * 128, [])] * 1000)
    assert isinstance(rig.send(methods.KV_TRANSACT, nested).error, InvalidRequestError)
    assert rig.node.status().in_flight_bytes == 0


async def sessions(rig: Rig, count: int) -> None:
    for start in range(0, count, 1_000):
        items = [m.SessionTakeoverItem("t", f"{start + i:05}") for i in range(1_000)]
        await rig.ask(methods.SESSION_TAKEOVER, m.SessionTakeover("b", 1, items))


async def test_a_listing_looks_at_so_many_rows(make: MakeRig) -> None:
    rig = await make()
    await sessions(rig, 5_000)
    before = rig.node.requests.spent
    await rig.ask(methods.SESSION_LIST, m.SessionList(broker="nobody"))
    assert 0 < rig.node.requests.spent - before < 1.2 * SCAN_ROWS_MAX
    found: list[str] = []
    page = m.Page(5_000)
    while True:
        before = rig.node.requests.spent
        reply = await rig.ask(methods.SESSION_LIST, m.SessionList(page=page))
        assert rig.node.requests.spent - before < 6 * SCAN_ROWS_MAX  # those that are answered cost more
        found += [session.client_id for session in reply.found]
        if not reply.cursor:
            break
        page = m.Page(5_000, reply.cursor)
    assert found == [f"{i:05}" for i in range(5_000)]


async def proven_listings(rig: Rig, monkeypatch: pytest.MonkeyPatch, count: int) -> list[Answer]:
    """Listings that waited for one round of heartbeats, which has just been echoed."""
    await sessions(rig, 2_000)
    group = rig.driver("data-0").group
    rounds: list[Callable[[bool], None]] = []
    monkeypatch.setattr(group, "may_read", lambda: False)
    monkeypatch.setattr(group, "read", rounds.append)
    answers = [rig.send(methods.SESSION_LIST, m.SessionList(broker="nobody")) for _ in range(count)]
    for proven in rounds:
        proven(True)
    return answers


async def test_reads_that_are_proven_together_are_answered_in_turns(
    make: MakeRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = await make(groups={"data": 1})
    answers = await proven_listings(rig, monkeypatch, 50)
    turns = 0
    while not all(answer.done for answer in answers):
        before = sum(answer.done for answer in answers)
        await asyncio.sleep(0)
        turns += 1
        assert sum(answer.done for answer in answers) - before <= 2
    assert turns >= 25
    assert rig.node.status().in_flight_bytes == 0


async def test_reads_that_are_proven_and_not_yet_answered_end_with_the_node(
    make: MakeRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = await make(groups={"data": 1})
    answers = await proven_listings(rig, monkeypatch, 5)
    rig.node.health.fail(StorageError("broken"))
    await rig.settle()
    assert {type(answer.error) for answer in answers} == {UnknownOutcomeError}


async def test_a_draining_node_takes_no_writes_and_still_reads(make: MakeRig) -> None:
    rig = await make()
    before = rig.send(methods.KV_PUT, puts(3))
    draining = asyncio.create_task(rig.node.drain(10))
    await asyncio.sleep(0)
    assert isinstance(rig.send(methods.KV_PUT, puts(1)).error, DrainingError)
    assert not draining.done()
    await rig.settle()
    assert before.reply(methods.KV_PUT).versions == [1, 1, 1]
    assert await draining
    assert (await rig.ask(methods.KV_GET, methods.KV_GET.body([m.KvKey("n0", "k")]))).found[0] is not None


async def test_a_draining_node_says_who_leads_what_it_leads_no_longer(make: MakeRig) -> None:
    rig = await make()
    assert await rig.node.drain(0)
    group = rig.driver("data-0").group
    group._elections.follow(group.term + 1)
    group._elections.obey("node-2")
    error = rig.send(methods.KV_PUT, puts(1)).error
    assert isinstance(error, NotLeaderError)
    assert error.leader == "node-2"


async def test_a_drain_ends_at_its_timeout(make: MakeRig) -> None:
    rig = await make()
    answer = rig.send(methods.KV_PUT, puts(1))
    assert not await rig.node.drain(0)
    await rig.close()
    assert isinstance(answer.error, UnknownOutcomeError)


async def test_status_counts(make: MakeRig) -> None:
    rig = await make(groups={"offset": 2, "data": 3})
    bodies = {group_of(rig.node.map, methods.KV_PUT, body): body for body in (puts(1, start=i) for i in range(30))}
    answers = [rig.send(methods.KV_PUT, body) for body in bodies.values()]
    await rig.settle()
    assert [answer.reply(methods.KV_PUT).versions for answer in answers] == [[1]] * 3
    status = await rig.ask(methods.STATUS, m.Status())
    # The first entry of every group is its leader's own, the second of metadata-0 the map.
    assert [(group.name, group.slots, group.applied) for group in status.groups] == [
        ("data-0", 342, 2), ("data-1", 341, 2), ("data-2", 341, 2),
        ("metadata-0", 1024, 2), ("offset-0", 512, 1), ("offset-1", 512, 1),
    ]  # fmt: skip
    assert (rig.entries, rig.syncs, status.in_flight_bytes) == (3, 1, 0)
    assert (status.entries, status.syncs) == (rig.writer.entries, rig.writer.syncs)
    assert status.replicas == 1
    for group in status.groups:
        assert (group.role, group.leader, group.term) == ("leader", "node-1", 1)
        assert (group.commit, group.last, group.first) == (group.applied, group.applied, 1)
        assert (group.voters, group.learners) == (["node-1"], [])


async def test_a_bug_in_a_verb_costs_one_request(make: MakeRig, monkeypatch: pytest.MonkeyPatch) -> None:
    rig = await make()
    verb = VERBS[methods.KV_PUT.code]
    evaluate = verb.evaluate
    assert evaluate is not None

    def broken(view: Any, command: Any) -> Any:
        evaluate(view, command)
        raise ZeroDivisionError("ours")

    monkeypatch.setattr(verb, "evaluate", broken)
    bad = rig.send(methods.KV_PUT, m.KvPut([m.KvPutItem("n", "k", b"half done")]))
    good = rig.send(methods.KV_TRANSACT, m.KvTransact([m.KvTransaction("n", [], [m.KvOperation("k2", b"v")])]))
    await rig.settle()
    assert isinstance(bad.error, InternalError)
    assert good.reply(methods.KV_TRANSACT).errors == []
    records = (await rig.ask(methods.KV_GET, methods.KV_GET.body([m.KvKey("n", "k"), m.KvKey("n", "k2")]))).found
    assert [record and record.value for record in records] == [None, b"v"]
    assert rig.node.failure is None


async def test_a_broken_invariant_stops_the_node(make: MakeRig, monkeypatch: pytest.MonkeyPatch) -> None:
    rig = await make()
    answer = rig.send(methods.KV_PUT, puts(1))
    await asyncio.sleep(0)
    for driver in rig.node.drivers.values():
        driver.machine.applied += 5
    rig.step()
    assert isinstance(answer.error, UnknownOutcomeError)
    assert "applied after" in str(rig.node.failure)


async def test_what_waits_while_the_disk_has_something_else_to_do_is_begun_behind_it(make: MakeRig) -> None:
    # Once wrong: only an fsync that committed something was followed by a turn, and a sleeping group had no other.
    rig = await make(**ONE_UNCACHED)
    for _ in range(3):
        await rig.ask(methods.KV_PUT, puts(1))
    await rig.checkpoint()  # writes how far the log was cut, which commits nothing
    assert rig.writer.busy
    answer = rig.send(methods.KV_PUT, puts(1))
    await rig.settle()
    assert answer.reply(methods.KV_PUT).versions == [4]


async def test_a_request_that_an_answer_gives_rise_to_is_begun(make: MakeRig) -> None:
    # Once wrong: a turn that was asked for within a turn was forgotten.
    rig = await make()
    commit = m.OffsetCommit([m.OffsetCommitItem("t", "g", "t", 0, 7)])
    following: list[Any] = []
    first = rig.node.requests.submit(
        methods.KV_PUT.code,
        methods.KV_PUT.encode_request(puts(1), group="data-0"),
        lambda _: following.append(rig.send(methods.OFFSET_COMMIT, commit)),
    )
    assert first is not None
    rig.node.requests.cancel(first)
    await rig.settle()
    (answer,) = following
    assert answer.reply(methods.OFFSET_COMMIT).errors == []


# --- reads that wait ------------------------------------------------------------------------------------


async def electing(make: MakeRig) -> Rig:
    """A node in its second life, whose groups are led but not ready."""
    rig = await make()
    await rig.ask(methods.KV_PUT, puts(30))
    rig.kill()
    await rig.begin()
    await asyncio.sleep(0)
    assert rig.step()
    groups = [driver.group for driver in rig.node.drivers.values()]
    assert all(group.is_leader and not group.ready for group in groups)
    return rig


READ = methods.KV_GET.body([m.KvKey(f"n{i}", "k") for i in range(30)])


async def test_a_read_waits_for_a_leader_that_may_answer(make: MakeRig) -> None:
    rig = await electing(make)
    answer = rig.send(methods.KV_GET, READ)
    assert not answer.done
    await rig.settle()
    assert all(answer.reply(methods.KV_GET).found)


async def test_a_bug_in_a_read_that_waited_costs_one_request(make: MakeRig, monkeypatch: pytest.MonkeyPatch) -> None:
    # Once wrong: it stopped the node.
    rig = await electing(make)
    bad = rig.send(methods.KV_GET, READ)

    def broken(reader: Any, command: Any) -> Any:
        raise ZeroDivisionError("ours")

    with monkeypatch.context() as patched:
        patched.setattr(VERBS[methods.KV_GET.code], "read", broken)
        await rig.settle()
    assert isinstance(bad.error, InternalError)
    assert rig.node.failure is None
    assert all((await rig.ask(methods.KV_GET, READ)).found)


async def test_a_read_that_waited_and_finds_the_storage_broken_is_answered_once(make: MakeRig) -> None:
    # Once wrong: what ended the node answered it, and the second answer was taken for a bug.
    rig = await electing(make)
    first, second = rig.send(methods.KV_GET, READ), rig.send(methods.KV_GET, READ)
    for name in ("get", "get_many"):
        rig.state_engine.broken[name] = FULL
    await rig.settle()
    assert isinstance(first.error, InternalError)
    assert isinstance(second.error, UnknownOutcomeError)
    assert rig.node.failure is FULL
    assert rig.node.status().in_flight_bytes == 0


@pytest.mark.parametrize("end", ["fail", "close"])
async def test_a_read_that_waits_is_answered_when_the_node_ends(make: MakeRig, end: str) -> None:
    # Once wrong: nobody heard of it again.
    rig = await electing(make)
    answer = rig.send(methods.KV_GET, READ)
    if end == "fail":
        rig.node.health.fail(FULL)
    else:
        await rig.close()
    assert isinstance(answer.error, UnknownOutcomeError)


async def test_a_read_that_waits_is_sent_on_when_its_leader_is_none_any_more(make: MakeRig) -> None:
    rig = await electing(make)
    answer = rig.send(methods.KV_GET, READ)
    rig.driver("data-0").group._elections.follow(7)
    assert isinstance(answer.error, NotLeaderError)
    assert isinstance(rig.send(methods.KV_GET, READ).error, NotLeaderError)
    await rig.settle()
    assert len(answer.results) == 1


@pytest.mark.parametrize(
    "group", ["", "data", "data-", "data-7", "data-\u00b2", "data-00", "x-0", "data-" + "1" * 5_000]
)
async def test_a_group_that_is_not_here_cannot_be_handed_over(make: MakeRig, group: str) -> None:
    # Once wrong: a digit that is no decimal was a bug of the node.
    rig = await make()
    assert isinstance(rig.send(methods.CLUSTER_TRANSFER, cluster.Transfer(group, "node-2")).error, NotFoundError)


# --- a disk that fails -----------------------------------------------------------------------------------


FULL = StorageError("raft: No space left on device")


async def stopped(rig: Rig) -> ServerError:
    """The error that node.run ends with."""
    with pytest.raises(ServerError) as caught:
        await asyncio.wait_for(rig.node.run(), 10)
    return caught.value


async def test_all_that_judge_silence_hear_of_a_standstill(make: MakeRig) -> None:
    rig = await make()
    node = rig.node
    node._lease_ends.stop()
    node._lease_ends.start()
    now_s = node.environment.now()
    assert node._lease_ends._leaderships
    amnesties_s = {driver: driver.machine.time._amnesty_until_s for driver in node.drivers.values()}
    node.standstills._shown_s -= 60.0
    node.standstills.look(now_s)
    assert not node._lease_ends._leaderships, "leases and members get their whole time at the next look"
    assert node.brokers._lives._amnesty_s >= now_s
    for driver, amnesty_s in amnesties_s.items():
        assert driver.group._leadership._excused_until_s > now_s
        assert driver.machine.time._amnesty_until_s > amnesty_s
    assert node.standstills.running_s() < 30.0


LOOKERS: dict[str, Callable[[Node], Any]] = {
    "sweeps": lambda node: node.sweeps,
    "group_status": lambda node: node._statuses,
    "lease_ends": lambda node: node._lease_ends,
}


@pytest.mark.parametrize("looker", LOOKERS)
async def test_who_looks_from_time_to_time_looks_again_after_a_bug(
    make: MakeRig, looker: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guards a node that leads and sweeps nothing any more: its timer was set behind the work."""
    logged: list[BaseException] = []
    monkeypatch.setattr("metad.node.node.bug", lambda where, error: logged.append(error))
    rig = await make(expiry={"consumer_group_ms": 60_000})

    class Breaks:
        def __init__(self) -> None:
            self.looked = 0

        @property
        def drivers(self) -> Any:
            self.looked += 1
            raise ValueError("a bug")

    breaks, one = Breaks(), LOOKERS[looker](rig.node)
    one._groups = breaks
    timer = one._timer
    one._environment.call_soon(one.start)
    await asyncio.sleep(0)
    assert breaks.looked == 1
    assert one._timer is not timer
    assert rig.node.failure is None
    assert [str(error) for error in logged] == ["a bug"]


async def test_a_disk_that_fails_who_looks_from_time_to_time_stops_the_node(make: MakeRig) -> None:
    rig = await make()
    rig.state_engine.broken["scan"] = FULL
    rig.node.environment.call_soon(rig.node.sweeps.start)
    assert str(FULL) in str(await stopped(rig))


@pytest.mark.parametrize(("engine", "call"), [("log", "write"), ("log", "sync"), ("state", "write")])
async def test_a_full_disk_answers_unknown_and_stops_the_node(make: MakeRig, engine: str, call: str) -> None:
    rig = await make(commit={"pipeline_entries_max": 2})
    await rig.ask(methods.KV_PUT, puts(3))
    (rig.log_engine if engine == "log" else rig.state_engine).broken[call] = FULL
    answers = []
    for i in range(5):
        answers.append(rig.send(methods.KV_PUT, puts(1, start=i)))
        await asyncio.sleep(0)
    await rig.settle()
    assert all(isinstance(answer.error, UnknownOutcomeError) for answer in answers)
    assert await stopped(rig) is FULL
    assert isinstance(rig.send(methods.KV_PUT, puts(1)).error, UnknownOutcomeError)
    assert rig.node.status().in_flight_bytes == 0


@pytest.mark.parametrize("error", [FULL, DamagedStoreError("state is damaged: block checksum mismatch")])
@pytest.mark.parametrize(
    ("call", "method", "body"),
    [
        ("get get_many", methods.KV_GET, methods.KV_GET.body([m.KvKey("n0", "k")])),
        ("get", methods.KV_PUT, puts(1)),
        ("get get_many", methods.SESSION_TAKEOVER, m.SessionTakeover("b", 1, [m.SessionTakeoverItem("t", "c")])),
    ],
    ids=["read", "evaluate", "owners"],
)
async def test_a_read_that_fails_fails_its_request_and_stops_the_node(
    make: MakeRig, error: StorageError, call: str, method: Any, body: Any
) -> None:
    # Once wrong: the request got "internal" and the node went on over a state it could not read.
    rig = await make()
    for name in call.split():
        rig.state_engine.broken[name] = error
    answer = rig.send(method, body)
    await rig.settle()
    assert isinstance(answer.error, InternalError | UnknownOutcomeError)
    assert await stopped(rig) is error


async def test_a_repeat_that_cannot_be_read_stops_the_node_and_answers_everybody(make: MakeRig) -> None:
    # Once wrong: the error left the callback of the fsync, and the requests behind it were never answered.
    rig = await make()
    body = m.KvPut([m.KvPutItem("n0", "k", b"v")])
    answers = [rig.send(methods.KV_PUT, body, Identity(1, 1, 0)) for _ in range(2)]
    answers += [rig.send(methods.KV_PUT, puts(30)) for _ in range(2)]
    await asyncio.sleep(0)
    rig.state_engine.broken["get"] = FULL
    rig.step()
    await rig.settle()
    assert all(answer.done for answer in answers)
    assert await stopped(rig) is FULL


async def test_nothing_is_applied_behind_a_write_that_failed(make: MakeRig) -> None:
    # Once wrong: the next fsync applied its entries, with an applied index that claimed the lost one.
    rig = await make()
    first = rig.send(methods.KV_PUT, m.KvPut([m.KvPutItem("n", "first", b"1")]), Identity(1, 1, 0))
    await asyncio.sleep(0)
    second = rig.send(methods.KV_PUT, m.KvPut([m.KvPutItem("n", "second", b"2")] * 300), Identity(1, 2, 0))
    await asyncio.sleep(0)
    rig.state_engine.broken["write"] = FULL
    rig.step()
    rig.state_engine.broken.clear()  # space was freed
    rig.writer._syncing = len(rig.writer._written)
    rig.step()
    await rig.settle()
    assert isinstance(first.error, UnknownOutcomeError)
    assert isinstance(second.error, UnknownOutcomeError)
    rig.kill()
    await rig.open()
    records = (await rig.ask(methods.KV_GET, methods.KV_GET.body([m.KvKey("n", "first")]))).found
    assert records[0] is not None  # it is in the log, so it happened


# --- checkpoints -----------------------------------------------------------------------------------------


ONE_UNCACHED = {"groups": {"data": 1}, "raft": {"log_cache_bytes": 1}}


def log_indexes(rig: Rig, group: bytes) -> list[int]:
    found = rig.log_engine.scan(log_entry(group, 0), log_entry(group, 2**64 - 1), 10**6)
    return [log_index(key) for key, _ in found]


async def test_a_checkpoint_cuts_the_log_through_what_is_flushed_and_keeps_the_last_entry(make: MakeRig) -> None:
    rig = await make(**ONE_UNCACHED)
    group = keys.group_prefix(GroupId("data", 0))
    for i in range(10):
        await rig.ask(methods.KV_PUT, m.KvPut([m.KvPutItem("n", f"k{i}", b"v")]))
    in_flight = rig.send(methods.KV_PUT, puts(1))
    await asyncio.sleep(0)
    assert log_indexes(rig, group) == list(range(1, 13))
    await rig.checkpoint()
    assert log_indexes(rig, group) == [12]
    rig.state_engine.crash()  # what the log no longer has is in the flushed state
    rig.kill()
    await rig.open()
    found = (await rig.ask(methods.KV_SCAN, m.KvScan("n"))).found
    assert len(found) == 10
    assert not in_flight.done


async def test_a_checkpoint_that_cannot_flush_cuts_nothing(make: MakeRig) -> None:
    rig = await make(**ONE_UNCACHED)
    for i in range(5):
        await rig.ask(methods.KV_PUT, m.KvPut([m.KvPutItem("n", f"k{i}", b"v")]))
    rig.state_engine.broken["sync"] = FULL
    await rig.checkpoint()
    assert log_indexes(rig, keys.group_prefix(GroupId("data", 0))) == [1, 2, 3, 4, 5, 6]
    assert await stopped(rig) is FULL


async def test_a_checkpoint_that_the_node_does_not_outlive_cuts_nothing(make: MakeRig) -> None:
    # An index is "applied" a moment before its write; if that fails while a flush runs, the log still has the entry.
    rig = await make(**ONE_UNCACHED)
    for i in range(5):
        await rig.ask(methods.KV_PUT, m.KvPut([m.KvPutItem("n", f"k{i}", b"v")]))
    checkpoint = asyncio.create_task(rig.checkpoint())
    await asyncio.sleep(0)
    rig.node.health.fail(FULL)
    await checkpoint
    assert log_indexes(rig, keys.group_prefix(GroupId("data", 0))) == [1, 2, 3, 4, 5, 6]


async def test_a_checkpoint_keeps_what_the_cache_holds_for_replicas_that_lag(make: MakeRig) -> None:
    rig = await make(groups={"data": 1}, raft={"log_cache_bytes": 40_000})
    group = keys.group_prefix(GroupId("data", 0))
    for i in range(10):
        await rig.ask(methods.KV_PUT, m.KvPut([m.KvPutItem("n", f"k{i}", bytes(10_000))]))
    await rig.checkpoint()
    kept = log_indexes(rig, group)
    assert kept == list(range(kept[0], 12))
    assert sum(len(rig.log_engine.get(log_entry(group, index)) or b"") for index in kept) in range(30_000, 40_000)


async def test_the_log_is_cut_when_it_has_grown_and_again_after_restarts(make: MakeRig) -> None:
    rig = await make(**ONE_UNCACHED, storage={"log_retained_bytes": 40_000})
    group = keys.group_prefix(GroupId("data", 0))
    for life in range(6):  # each writes a third of what starts a checkpoint
        running = asyncio.create_task(rig.node.run())
        for i in range(3):
            await rig.ask(methods.KV_PUT, m.KvPut([m.KvPutItem("n", f"k{life}-{i}", bytes(5_000))]))
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        if life < 5:
            rig.kill()
            rig.state_engine.crash()
            await rig.open()
    assert rig.driver("data-0").group.log.base_index > 0
    assert len(log_indexes(rig, group)) < 18


async def test_closing_leaves_nothing_to_replay(make: MakeRig) -> None:
    rig = await make()
    await rig.ask(methods.KV_PUT, puts(30))
    await rig.close()
    rig.state_engine.crash()
    rig.log_engine.crash()
    node = await rig.begin()
    assert {driver.group.name: driver.machine.applied for driver in node.drivers.values()} == {
        "metadata-0": 2, "offset-0": 1, "data-0": 2,
    }  # fmt: skip
    assert all(driver.group.log.last_index == driver.machine.applied for driver in node.drivers.values())
    assert sum(driver.group.log.bytes for driver in node.drivers.values()) == 0


# --- what is refused at start ----------------------------------------------------------------------------


async def test_a_state_that_is_ahead_of_its_log_is_refused(make: MakeRig) -> None:
    rig = await make(groups={"data": 1})
    await rig.ask(methods.KV_PUT, puts(1))
    await rig.ask(methods.KV_PUT, puts(1))
    rig.kill()
    rig.log_engine.write({log_entry(keys.group_prefix(GroupId("data", 0)), 3): None})
    with pytest.raises(DamagedStoreError, match=r"data-0: the state has applied entry 3 but the log ends at 2"):
        await rig.open()


async def test_a_state_that_is_behind_the_beginning_of_its_log_is_refused(make: MakeRig) -> None:
    rig = await make(**ONE_UNCACHED)
    for _ in range(5):
        await rig.ask(methods.KV_PUT, puts(1))
    await rig.checkpoint()
    rig.kill()
    group = keys.group_prefix(GroupId("data", 0))
    for key, _ in rig.state_engine.scan(group, keys.after_prefix(group), 1000):
        rig.state_engine.write({key: None})
    with pytest.raises(DamagedStoreError, match=r"data-0: the state ends at entry 0 but the log begins at 6.*restore"):
        await rig.open()


async def test_a_hole_in_the_log_is_refused(make: MakeRig) -> None:
    rig = await make(groups={"data": 1})
    rig.state_engine.sync()
    for _ in range(5):
        await rig.ask(methods.KV_PUT, puts(1))
    rig.kill()
    rig.state_engine.crash()
    rig.log_engine.write({log_entry(keys.group_prefix(GroupId("data", 0)), 3): None})
    with pytest.raises(DamagedStoreError, match=r"data-0 lacks entry 3.*restore"):
        await rig.open()


@pytest.mark.parametrize(
    ("entry", "match"),
    [
        (b"garbage", "entry 2 of group data-0 in the log is unreadable.*restore"),
        (
            record(7, REGULAR, methods.encode((3, 0, 1, {}, {}))),
            "entry 2 of group data-0 in the log is unreadable.*restore",
        ),
        (record(1, 77, methods.encode((3, 0, 1, {}, {}))), "entry 2 of group data-0 in the log is unreadable.*restore"),
        (record(1, REGULAR, b"garbage"), "entry 2 of group data-0 in the log is unreadable.*restore"),
        (
            record(1, REGULAR, methods.encode((2, 1, {}, {}))),
            "format 2, this version reads 3 to 4: an older build read it",
        ),
    ],
    ids=["garbage", "term", "kind", "payload", "format"],
)
async def test_an_entry_that_is_none_of_ours_is_refused(make: MakeRig, entry: bytes, match: str) -> None:
    rig = await make(groups={"data": 1})
    rig.state_engine.sync()
    for _ in range(3):
        await rig.ask(methods.KV_PUT, puts(1))
    rig.kill()
    rig.state_engine.crash()
    rig.log_engine.write({log_entry(keys.group_prefix(GroupId("data", 0)), 2): entry})
    with pytest.raises(StorageError, match=match):
        await rig.open()


async def test_a_start_that_is_refused_leaves_nothing_behind(make: MakeRig) -> None:
    rig = await make(groups={"data": 1})
    await rig.ask(methods.KV_PUT, puts(1))
    rig.kill()
    rig.log_engine.write({log_entry(keys.group_prefix(GroupId("data", 0)), 2): None})
    stores = pair_stores(rig.config, LogStore(rig.log_engine), rig.state_engine)
    before, threads = rig.log_engine.scan(b"", b"\xff" * 16, 10**6), threading.active_count()
    with pytest.raises(DamagedStoreError, match="the log has lost its tail"):
        await Node.open(rig.config, stores=stores)
    for _ in range(10):
        await asyncio.sleep(0)
    assert rig.log_engine.scan(b"", b"\xff" * 16, 10**6) == before
    assert threading.active_count() == threads


async def test_a_lost_state_is_made_again_from_a_log_that_reaches_back(make: MakeRig) -> None:
    rig = await make()
    await rig.ask(methods.KV_PUT, puts(30))
    rig.kill()
    rig.state_engine = type(rig.state_engine)()
    node = await rig.open()
    assert node.stores.rebuild
    found = await rig.ask(methods.KV_GET, methods.KV_GET.body([m.KvKey(f"n{i}", "k") for i in range(30)]))
    assert all(found.found)
