"""Every verb asks what it should and returns what it promises."""

from __future__ import annotations

import asyncio

import pytest

import metad_client
from metad_client import (
    ClosedError,
    ConflictError,
    ConsumerGroup,
    FencedError,
    GenerationReset,
    InvalidItemError,
    KvDeleteItem,
    KvKey,
    KvOperation,
    KvPutItem,
    KvTransaction,
    KvTransactionResult,
    NotFoundError,
    OffsetCommitItem,
    OffsetKey,
    Owner,
    Revision,
    SessionKey,
    SessionProperties,
    SessionTakeoverItem,
    SessionUpdateItem,
    Takeover,
)
from metad_wire import messages as m
from metad_wire import methods
from metad_wire.methods import KV_GET, OFFSET_FETCH, SESSION_GET
from metad_wire.tables.retained import RetainedPut, RetainedPutItem

PROPERTIES = SessionProperties(60, b"subscriptions")


async def test_status(dial):
    client = await dial()
    status = await client.status()
    assert status.node_id == "n1"
    assert status.groups[0].name == "data-0"


@pytest.mark.parametrize(
    ("call", "body", "result"),
    [
        (
            lambda c: c.sessions.takeover("b", 2, "t", "c", properties=PROPERTIES),
            m.SessionTakeover("b", 2, [SessionTakeoverItem("t", "c", False, PROPERTIES)], False),
            Takeover(Owner("old", 1), True, None, attachment=1),
        ),
        (
            lambda c: c.sessions.takeover("b", 2, "t", "c", clean_start=True, restore=True),
            m.SessionTakeover("b", 2, [SessionTakeoverItem("t", "c", True, None)], True),
            Takeover(Owner("old", 1), False, SessionProperties(60, b"c"), attachment=1),
        ),
        (
            lambda c: c.sessions.update("b", 2, "t", "c", PROPERTIES, attachment=9),
            m.SessionUpdate("b", 2, [SessionUpdateItem("t", "c", PROPERTIES, 9)]),
            None,
        ),
        (
            lambda c: c.sessions.disconnect("b", 2, "t", "c"),
            m.SessionDisconnect("b", 2, [m.SessionDisconnectItem("t", "c")]),
            None,
        ),
        (
            lambda c: c.sessions.disconnect("b", 2, "t", "c", will_discard=True, attachment=9),
            m.SessionDisconnect("b", 2, [m.SessionDisconnectItem("t", "c", None, True, 9)]),
            None,
        ),
        (
            lambda c: c.sessions.get("t", "c"),
            SESSION_GET.body([SessionKey("t", "c")]),
            "the session",
        ),
        (
            lambda c: c.sessions.delete("t", "c", broker="b", broker_epoch=2, attachment=9),
            m.SessionDelete([m.SessionDeleteItem("t", "c", 0, 9)], "b", 2),
            None,
        ),
        (
            lambda c: c.offsets.commit(
                "t", "g", "topic", 1, 42, generation=3, expected=-1, metadata="m", monotonic=True
            ),
            m.OffsetCommit([OffsetCommitItem("t", "g", "topic", 1, 42, 3, -1, "m")], True),
            None,
        ),
        (
            lambda c: c.offsets.fetch("t", "g", "topic", 1),
            OFFSET_FETCH.body([OffsetKey("t", "g", "topic", 1)]),
            m.Offset("t", "g", "topic", 1, 42, 1, 1_700_000_000_000, ""),
        ),
        (
            lambda c: c.offsets.delete("t", "g", "topic", 1),
            methods.OFFSET_DELETE.body([OffsetKey("t", "g", "topic", 1)]),
            None,
        ),
        (lambda c: c.offsets.generation("t", "g"), m.OffsetGenerations([ConsumerGroup("t", "g")]), 5),
        (
            lambda c: c.offsets.reset_generation("t", "g", 5, 2),
            m.OffsetResetGenerations([GenerationReset("t", "g", 5, 2)]),
            None,
        ),
        (lambda c: c.kv.put("ns", "k", b"7", expected_version=6), m.KvPut([KvPutItem("ns", "k", b"7", 6)]), 7),
        (lambda c: c.kv.get("ns", "k"), KV_GET.body([KvKey("ns", "k")]), m.Kv("ns", "k", b"k", 1, 1, 1)),
        (lambda c: c.kv.delete("ns", "k", expected_version=1), m.KvDelete([KvDeleteItem("ns", "k", 1)]), None),
        (
            lambda c: c.kv.transact(KvTransaction("ns", [], [KvOperation("k", b"v")])),
            m.KvTransact([KvTransaction("ns", [], [KvOperation("k", b"v")])]),
            KvTransactionResult(True, []),
        ),
    ],
)
async def test_a_single(server, dial, a_session, call, body, result):
    client = await dial()
    assert await call(client) == (a_session("t", "c") if result == "the session" else result)
    assert [received.body for received in server.received] == [body]


@pytest.mark.parametrize(
    ("call", "body"),
    [
        (
            lambda c: c.sessions.takeover_many("b", 2, [SessionTakeoverItem("t", "c")], restore=True),
            m.SessionTakeover("b", 2, [SessionTakeoverItem("t", "c")], True),
        ),
        (
            lambda c: c.sessions.update_many("b", 2, [SessionUpdateItem("t", "c", PROPERTIES)]),
            m.SessionUpdate("b", 2, [SessionUpdateItem("t", "c", PROPERTIES)]),
        ),
        (
            lambda c: c.sessions.disconnect_many("b", 2, [m.SessionDisconnectItem("t", "c")]),
            m.SessionDisconnect("b", 2, [m.SessionDisconnectItem("t", "c")]),
        ),
        (
            lambda c: c.sessions.delete_many([m.SessionDeleteItem("t", "c")]),
            m.SessionDelete([m.SessionDeleteItem("t", "c")]),
        ),
        (
            lambda c: c.offsets.commit_many([OffsetCommitItem("t", "g", "topic", 1, 42)], monotonic=True),
            m.OffsetCommit([OffsetCommitItem("t", "g", "topic", 1, 42)], True),
        ),
        (
            lambda c: c.offsets.delete_many([OffsetKey("t", "g", "topic", 1)]),
            methods.OFFSET_DELETE.body([OffsetKey("t", "g", "topic", 1)]),
        ),
        (
            lambda c: c.offsets.reset_generations_many([GenerationReset("t", "g", 5)]),
            m.OffsetResetGenerations([GenerationReset("t", "g", 5, 0)]),
        ),
        (lambda c: c.kv.put_many([KvPutItem("ns", "k", b"7")]), m.KvPut([KvPutItem("ns", "k", b"7")])),
        (lambda c: c.kv.put_many((KvPutItem("ns", "k", b"7"),)), m.KvPut([KvPutItem("ns", "k", b"7")])),
        (
            lambda c: c.retained.put_many([RetainedPutItem("t", "a/b", b"v", expiry_interval_s=60)]),
            RetainedPut([RetainedPutItem("t", "a/b", b"v", 0, b"", 60)]),
        ),
        (lambda c: c.kv.delete_many([KvDeleteItem("ns", "k")]), m.KvDelete([KvDeleteItem("ns", "k")])),
        (lambda c: c.kv.transact_many([KvTransaction("ns", [], [])]), m.KvTransact([KvTransaction("ns", [], [])])),
    ],
)
async def test_a_batch_of_writes(server, dial, call, body):
    client = await dial()
    result = await call(client)
    assert result.ok
    assert result.errors == {}
    assert result.revisions == [m.Revision("data-0", 1)]
    result.raise_for_error()
    assert [received.body for received in server.received] == [body]


async def test_every_read_takes_the_revisions_of_writes(server, dial):
    """The newest of each group: a long batch has more revisions than a read may name."""
    client = await dial()
    put = await client.kv.put_many([KvPutItem("ns", "k", b"7")])
    revisions = [Revision("data-1", 9), Revision("data-1", 4), *put.revisions, Revision("data-1", 7)]
    wanted = [Revision("data-1", 9), Revision("data-0", 1)]
    server.received.clear()
    how = {"min_revisions": revisions}
    kv, offsets, sessions = client.kv, client.offsets, client.sessions
    await kv.get("ns", "k", **how)
    await kv.get_many([KvKey("ns", "k")], **how)
    [record async for record in kv.scan("ns", **how)]
    await offsets.fetch("t", "g", "topic", 1, **how)
    await offsets.fetch_many([OffsetKey("t", "g", "topic", 1)], **how)
    [offset async for offset in offsets.list("t", "g", **how)]
    await offsets.generation("t", "g", **how)
    await offsets.generations_many([ConsumerGroup("t", "g")], **how)
    await sessions.get("t", "c", **how)
    await sessions.get_many([SessionKey("t", "c")], **how)
    [session async for session in sessions.list(**how)]
    assert len(server.received) == 11
    for received in server.received:
        assert received.body.min_revisions == wanted, received.method
    server.received.clear()
    with_and_without = await asyncio.gather(kv.get("ns", "k", **how), kv.get("ns", "k"), kv.get("ns", "k", **how))
    assert len(with_and_without) == 3
    assert sorted((len(r.body.items), len(r.body.min_revisions)) for r in server.received) == [(1, 0), (2, 2)]


async def test_batches_of_reads_answer_by_position(dial, server, a_session):
    client = await dial()
    server.answer = lambda received: received.reply(
        {
            "session.get": SESSION_GET.reply([None, a_session("t", "b")]),
            "offset.fetch": OFFSET_FETCH.reply([None, m.Offset("t", "g", "topic", 1, 5, 0, 0, "")]),
            "kv.get": KV_GET.reply([None, m.Kv("ns", "b", b"", 1, 1, 1)]),
        }[received.method.name]
    )
    missing, found = await client.sessions.get_many([SessionKey("t", "a"), SessionKey("t", "b")])
    assert missing is None
    assert found.client_id == "b"
    missing, found = await client.offsets.fetch_many([OffsetKey("t", "g", "topic", 0), OffsetKey("t", "g", "topic", 1)])
    assert missing is None
    assert found.offset == 5
    missing, found = await client.kv.get_many([KvKey("ns", "a"), KvKey("ns", "b")])
    assert missing is None
    assert found.key == "b"


async def test_listings_read_page_after_page(dial, server):
    client = await dial()
    pages = {
        b"": m.ListReply([m.Kv("ns", "a", b"", 1, 1, 1)], b"after a"),
        b"after a": m.ListReply([], b"still"),  # a page may be empty before the end
        b"still": m.ListReply([m.Kv("ns", "b", b"", 1, 1, 1)], b""),
    }
    server.answer = lambda received: received.reply(pages[received.body.page.cursor])
    assert [record.key async for record in client.kv.scan("ns", "prefix", page_size=7)] == ["a", "b"]
    assert server.received[0].body == m.KvScan("ns", "prefix", m.Page(7, b""))

    server.answer = lambda received: received.reply()
    listed = [session.client_id async for session in client.sessions.list("t", "c", "b1")]
    assert listed == ["c0", "c1", "c2"]
    assert server.received[-1].body == m.SessionList("t", "c", "b1", m.Page(1000), [], b"\xff" * 128)
    assert [offset.topic async for offset in client.offsets.list("t", "g", "top")] == ["topic"]
    assert server.received[-1].body == m.OffsetList("t", "g", "top", m.Page(1000))


async def test_an_empty_batch_asks_nobody(server, dial):
    client = await dial()
    assert (await client.sessions.update_many("b", 1, [])).ok
    taken = await client.sessions.takeover_many("b", 1, [])
    assert (taken.ok, taken.previous_index) == (True, [])
    assert (await client.kv.put_many([])).versions == []
    assert await client.kv.get_many([]) == []
    assert server.received == []


async def test_item_errors_are_mapped_by_position(server, dial):
    client = await dial()
    server.answer = lambda received: received.reply(
        m.WriteReply([], [m.ItemError(0, 200, "gone"), m.ItemError(2, 201, "epoch is 9", 9)])
    )
    result = await client.sessions.update_many("b", 1, [SessionUpdateItem("t", c, PROPERTIES) for c in "abc"])
    assert not result.ok
    assert {index: (type(error), str(error), error.current) for index, error in result.errors.items()} == {
        0: (NotFoundError, "session t/a: gone", None),
        2: (FencedError, "session t/c: epoch is 9", 9),
    }
    with pytest.raises(NotFoundError, match="gone") as raised:
        result.raise_for_error()
    assert raised.value.__notes__ == ["item 0; 2 items failed"]


async def test_a_single_raises_its_items_error(server, dial):
    client = await dial()
    server.answer = lambda received: received.reply(m.KvPutReply([], [m.ItemError(0, 203, "version is 3", 3)], [0]))
    with pytest.raises(ConflictError, match="version is 3") as raised:
        await client.kv.put("ns", "k", b"v", expected_version=1)
    assert raised.value.current == 3
    server.answer = lambda received: received.reply(m.KvTransactReply([], [m.ItemError(0, 203, "no")], [None]))
    with pytest.raises(ConflictError, match="no"):
        await client.kv.transact(KvTransaction("ns", [], []))


async def test_takeover_results_point_at_previous_owners(server, dial):
    client = await dial()
    stored = SessionProperties(60, b"stored")
    server.answer = lambda received: received.reply(
        m.SessionTakeoverReply(
            [m.Revision("data-0", 17)],
            [m.ItemError(3, 201)],
            [Owner("x", 1)],
            [0, -1, 0, -1],
            [stored, None, None, None],
        )
    )
    items = [SessionTakeoverItem("t", "a"), SessionTakeoverItem("t", "b"), SessionTakeoverItem("t", "c", True)]
    result = await client.sessions.takeover_many("b", 2, [*items, SessionTakeoverItem("t", "d")], restore=True)
    assert [result.previous(i) for i in range(4)] == [Owner("x", 1), None, Owner("x", 1), None]
    assert [result.session_present(i) for i in range(4)] == [True, False, False, False]
    assert [result.properties(i) for i in range(4)] == [stored, None, None, None]
    assert list(result.errors) == [3]
    assert result.attachments == [17, 17, 17, 0]


async def test_a_value_that_cannot_be_encoded_is_the_callers_mistake(dial):
    client = await dial()
    result = await client.kv.put_many([KvPutItem("ns", "k", object())])
    assert str(result.errors[0]) == "value: expected bytes, got object (item 0)"
    with pytest.raises(InvalidItemError, match="value: expected bytes, got object"):
        await client.kv.put("ns", "k", object())
    assert client.statistics().requests == 0


async def test_a_closed_client_takes_no_calls(dial):
    client = await dial()
    await client.close()
    await client.close()
    for call in (client.status(), client.kv.put("ns", "k", b""), client.kv.get_many([KvKey("ns", "k")])):
        with pytest.raises(ClosedError, match="nothing was done"):
            await call


def test_everything_public_is_exported():
    for name in metad_client.__all__:
        assert getattr(metad_client, name) is not None
