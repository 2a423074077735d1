"""Calls on more items than one request holds: cut, pipelined, put together again."""

from __future__ import annotations

import asyncio

import pytest

from metad_client import (
    FencedError,
    InternalError,
    InvalidRequestError,
    KvKey,
    KvPutItem,
    KvTransaction,
    Owner,
    SessionKey,
    SessionProperties,
    SessionTakeoverItem,
    SessionUpdateItem,
    TooLargeError,
)
from metad_client.requests.requests import PIECES_IN_FLIGHT
from metad_wire import messages as m

UPDATES = [SessionUpdateItem("t", f"c{i}", SessionProperties(0, b"")) for i in range(25)]


async def test_items_are_cut_and_answers_put_in_order(server, dial, settle):
    server.answer = None
    client = await dial(batch_items=10)
    call = asyncio.ensure_future(client.kv.put_many([KvPutItem("ns", f"k{i}", str(i).encode()) for i in range(25)]))
    await server.requests(3)
    assert [len(received.body.items) for received in server.received] == [10, 10, 5]
    for received in reversed(server.received):
        received.reply()
    result = await call
    assert result.ok
    assert result.versions == list(range(25))
    assert len(result.revisions) == 3


async def test_a_caller_that_changes_its_list_meanwhile_changes_no_call(server, dial, settle):
    """Guards calls that ended with an IndexError after a part was written."""
    server.answer = None
    client = await dial(batch_items=1)
    count = 2 * PIECES_IN_FLIGHT
    items = [KvPutItem("ns", f"k{i}", str(i).encode()) for i in range(count)]
    call = asyncio.ensure_future(client.kv.put_many(items))
    await server.requests(PIECES_IN_FLIGHT)
    items.clear()
    server.answer = lambda received: received.reply()
    for received in list(server.received):
        received.reply()
    assert (await call).versions == list(range(count))


async def test_error_positions_are_the_callers(server, dial):
    client = await dial(batch_items=10)
    server.answer = lambda received: received.reply(
        m.WriteReply([], [m.ItemError(3, 201)] if received.body.items[0].client_id == "c10" else [])
    )
    result = await client.sessions.update_many("b", 1, UPDATES)
    assert list(result.errors) == [13]
    assert isinstance(result.errors[13], FencedError)


async def test_previous_owners_of_all_pieces_share_one_list(server, dial):
    client = await dial(batch_items=2)
    replies = iter(
        [
            m.SessionTakeoverReply([], [], [Owner("x", 1)], [0, -1], []),
            m.SessionTakeoverReply([], [], [Owner("y", 1), Owner("x", 1)], [1, 0], [SessionProperties(1), None]),
            m.SessionTakeoverReply([], [], [], [-1], []),
        ]
    )
    server.answer = lambda received: received.reply(next(replies))
    items = [SessionTakeoverItem("t", c) for c in "abcde"]
    result = await client.sessions.takeover_many("b", 1, items, restore=True)
    assert result.owners == [Owner("x", 1), Owner("y", 1)]
    assert result.previous_index == [0, -1, 0, 1, -1]
    assert [result.session_present(i) for i in range(5)] == [True, False, True, True, False]
    assert result.restored == [None, None, SessionProperties(1), None, None]


async def test_a_piece_that_fails_as_a_whole_is_told_per_item(server, dial):
    """What the other pieces say (who owned a session before) cannot be asked again, so it must not be lost."""

    def answer(received):
        if received.body.items[0].client_id == "c10":
            received.fail(InternalError("disk"))
        else:
            received.reply()

    server.answer = answer
    client = await dial(batch_items=10)
    result = await client.sessions.update_many("b", 1, UPDATES)
    assert list(result.errors) == list(range(10, 20))
    assert {type(error) for error in result.errors.values()} == {InternalError}
    taken = await client.sessions.takeover_many("b", 1, [SessionTakeoverItem("t", f"c{i}") for i in range(25)])
    assert taken.previous_index == [0] * 10 + [-1] * 10 + [0] * 5
    assert taken.attachments == [1] * 10 + [0] * 10 + [1] * 5


async def test_when_every_piece_fails_the_call_raises(server, dial):
    server.answer = lambda received: received.fail(InternalError("disk"))
    client = await dial(batch_items=10)
    with pytest.raises(InternalError, match="disk"):
        await client.sessions.update_many("b", 1, UPDATES)


async def test_a_read_that_lacks_a_piece_answers_for_the_others(server, dial):
    def answer(received):
        if received.body.items[0].key == "k2":
            received.fail(InternalError("disk"))
        else:
            received.reply()

    server.answer = answer
    client = await dial(batch_items=2)
    found = await client.kv.get_many([KvKey("ns", f"k{i}") for i in range(5)])
    assert [kv and kv.key for kv in found] == ["k0", "k1", None, None, "k4"]
    assert sorted(found.errors) == [2, 3]
    with pytest.raises(InternalError, match="disk"):
        found.raise_for_error()
    with pytest.raises(InternalError, match="disk"):
        await client.kv.get_many([KvKey("ns", "k2")])


async def test_reads_are_put_in_order(dial):
    client = await dial(batch_items=2)
    assert [kv.key for kv in await client.kv.get_many([KvKey("ns", f"k{i}") for i in range(5)])] == [
        f"k{i}" for i in range(5)
    ]
    keys = [SessionKey("t", f"c{i}") for i in range(5)]
    assert [session.client_id for session in await client.sessions.get_many(keys)] == [key.client_id for key in keys]


async def test_reads_refused_for_their_size_are_asked_in_halves(server, dial):
    def answer(received):
        if len(received.body.items) > 2:
            received.fail(TooLargeError("the reply would be too large"))
        else:
            received.reply()

    server.answer = answer
    client = await dial()
    assert [kv.key for kv in await client.kv.get_many([KvKey("ns", f"k{i}") for i in range(9)])] == [
        f"k{i}" for i in range(9)
    ]


async def test_one_read_that_is_refused_raises(server, dial):
    client = await dial()
    for error, requests in ((InvalidRequestError("no"), 1), (TooLargeError("no"), 3)):
        server.received.clear()
        server.answer = lambda received, error=error: received.fail(error)
        with pytest.raises(type(error), match="no"):
            await client.kv.get_many([KvKey("ns", "a"), KvKey("ns", "b")])
        assert len(server.received) == requests


@pytest.mark.parametrize("count", [2, 9, 40])
async def test_writes_refused_for_their_size_are_sent_in_halves(server, dial, count):
    """Each half is a write of its own; what is too large alone fails alone."""

    def answer(received):
        keys = [item.key for item in received.body.items]
        received.fail(TooLargeError("send it in parts")) if len(keys) > 2 or "k1" in keys else received.reply()

    server.answer = answer
    client = await dial(batch_items=16)
    result = await client.kv.put_many([KvPutItem("ns", f"k{i}", b"%d" % i) for i in range(count)])
    assert {at: error.name for at, error in result.errors.items()} == {1: "too_large"}
    assert result.versions == [0 if i == 1 else i for i in range(count)]
    identities = [received.identity.seq for received in server.received]
    assert len(set(identities)) == len(identities)


PUTS = [KvPutItem("ns", f"k{i}", b"%d" % i) for i in range(4)]


def sent(server):
    """How many items each attempt had, and the number of its identity, from that of the first on."""
    first = server.received[0].identity.seq
    return [(len(received.body.items), received.identity.seq - first) for received in server.received]


async def test_a_write_in_doubt_is_not_sent_in_halves_unless_its_identity_is_spent(server, dial):
    def answer(received):
        received.peer.cut() if len(server.received) == 1 else received.fail(TooLargeError("send it in parts"))

    server.answer = answer
    client = await dial()
    with pytest.raises(TooLargeError) as raised:
        await client.kv.put_many(PUTS)
    assert not raised.value.outcome_known
    assert sent(server) == [(4, 0), (4, 0), (0, 0)]


@pytest.mark.parametrize("single", [False, True])
async def test_a_write_that_is_too_large_and_in_doubt_spends_its_identity_and_is_sent_in_halves(server, dial, single):
    """No attempt of before can be done any more, wherever it is: it has the same identity."""

    def answer(received):
        if len(server.received) in (1, 3):
            received.peer.cut()
        elif len(received.body.items) > 2:
            received.fail(TooLargeError("send it in parts"))
        else:
            received.reply()

    server.answer = answer
    client = await dial()
    if single:
        versions = await asyncio.gather(*(client.kv.put(item.namespace, item.key, item.value) for item in PUTS))
        assert versions == [0, 1, 2, 3]
        assert sent(server)[:4] == [(4, 0), (4, 0), (0, 0), (0, 0)]
    else:
        result = await client.kv.put_many(PUTS)
        assert (result.errors, result.versions) == ({}, [0, 1, 2, 3])
        assert sent(server) == [(4, 0), (4, 0), (0, 0), (0, 0), (2, 1), (2, 2)]


async def test_a_write_that_is_too_large_and_was_done_before_has_its_reply(server, dial):
    def answer(received):
        if len(server.received) == 1:
            received.peer.cut()
        elif len(server.received) == 2:
            received.fail(TooLargeError("send it in parts"))
        elif received.body.items:
            received.reply()
        else:
            received.fail(InvalidRequestError("this identity was used for another request"))

    server.answer = answer
    client = await dial()
    assert (await client.kv.put_many(PUTS)).versions == [0, 1, 2, 3]
    assert sent(server) == [(4, 0), (4, 0), (0, 0), (4, 0)]


async def test_items_that_do_not_fit_a_frame_are_cut_by_size(server, dial):
    server.frame_bytes_max = 64 * 1024
    client = await dial()
    result = await client.kv.put_many([KvPutItem("ns", f"k{i}", bytes(20_000)) for i in range(10)])
    assert len(result.versions) == 10
    assert [len(received.body.items) for received in server.received] == [2, 3, 2, 3]
    assert max(len(received.payload) for received in server.received) < 64 * 1024


async def test_one_item_over_the_frame_limit_is_refused_here(server, dial):
    server.frame_bytes_max = 64 * 1024
    client = await dial()
    with pytest.raises(InvalidRequestError, match="over the limit"):
        await client.kv.put_many([KvPutItem("ns", "k", bytes(70_000))])
    assert server.received == []
    assert await client.kv.put("ns", "k", b"1") == 1  # the connection is unharmed


async def test_a_long_call_does_not_take_the_whole_queue(server, dial, settle):
    server.answer = None
    client = await dial(batch_items=1)
    call = asyncio.ensure_future(client.sessions.update_many("b", 1, UPDATES))
    await settle()
    assert len(server.received) == PIECES_IN_FLIGHT
    server.received[0].reply()
    await server.requests(PIECES_IN_FLIGHT + 1)
    server.answer = lambda received: received.reply()
    for received in server.received[1:]:
        received.reply()
    assert (await call).ok


async def test_cancelling_cancels_every_piece(server, dial, settle):
    server.answer = None
    client = await dial(batch_items=10)
    call = asyncio.ensure_future(client.sessions.update_many("b", 1, UPDATES))
    await server.requests(3)
    call.cancel()
    await server.until(lambda: all(received.cancelled for received in server.received))
    assert client.statistics().in_flight == 0


async def test_transactions_have_a_limit_of_their_own(server, dial):
    client = await dial(batch_items=m.BATCH_ITEMS_MAX)
    result = await client.kv.transact_many([KvTransaction("ns", [], [])] * (m.TRANSACTIONS_MAX + 1))
    assert len(result.results) == m.TRANSACTIONS_MAX + 1
    assert [len(received.body.items) for received in server.received] == [m.TRANSACTIONS_MAX, 1]
