"""Singles that meet travel together, and each caller gets its own outcome and nobody else's."""

from __future__ import annotations

import asyncio

import pytest

from metad_client import (
    ConflictError,
    DeadlineExceededError,
    InternalError,
    InvalidItemError,
    InvalidRequestError,
    Options,
    OverloadedError,
    Takeover,
    connect,
)
from metad_client.requests.batcher import Batcher
from metad_wire import messages as m
from metad_wire.errors import TooLargeError


def puts(client, count, **options):
    return [asyncio.ensure_future(client.kv.put("ns", f"k{i}", str(i).encode(), **options)) for i in range(count)]


async def test_singles_of_one_turn_are_one_request(server, dial):
    client = await dial()
    versions = await asyncio.gather(*puts(client, 100))
    assert versions == list(range(100))
    assert [len(received.body.items) for received in server.received] == [100]
    assert client.statistics().batches == 1


async def test_a_batch_closes_when_it_is_full(server, dial):
    client = await dial(batch_items=40)
    assert await asyncio.gather(*puts(client, 100)) == list(range(100))
    assert [len(received.body.items) for received in server.received] == [40, 40, 20]


async def test_a_batch_closes_when_it_is_large(server, dial):
    client = await dial(batch_bytes=1000)
    await asyncio.gather(*[client.kv.put("ns", f"k{i}", bytes(490)) for i in range(4)])
    assert [len(received.body.items) for received in server.received] == [2, 2]


async def test_linger_waits_for_company(server, dial):
    client = await dial(linger_s=0.5)
    loop = asyncio.get_running_loop()
    start = loop.time()
    first = asyncio.ensure_future(client.kv.put("ns", "a", b"1"))
    await asyncio.sleep(0.3)
    second = asyncio.ensure_future(client.kv.put("ns", "b", b"2"))
    assert await asyncio.gather(first, second) == [1, 2]
    assert loop.time() - start == pytest.approx(0.5, abs=0.01)
    assert len(server.received) == 1


async def test_nobody_lingers_beyond_its_deadline(server, dial):
    client = await dial(linger_s=5, deadline_s=3)
    loop = asyncio.get_running_loop()
    start = loop.time()
    assert await client.kv.put("ns", "a", b"1") == 1
    assert loop.time() - start == pytest.approx(1.5, abs=0.01)
    assert await client.kv.put("ns", "a", b"1", deadline_s=1) == 1
    assert loop.time() - start == pytest.approx(2, abs=0.01)


async def test_what_is_merely_equal_does_not_share_a_request(server, dial):
    """Guards callers whose batch failed because of what another had given for the same number."""
    client = await dial()
    outcomes = await asyncio.gather(
        *[client.sessions.takeover("b1", epoch, "t", "a") for epoch in (1.0, True, 1)], return_exceptions=True
    )
    assert [type(outcome) for outcome in outcomes] == [InvalidRequestError, InvalidRequestError, Takeover]


async def test_only_what_may_share_a_request_does(server, dial):
    client = await dial()
    await asyncio.gather(
        client.sessions.takeover("b1", 1, "t", "a"),
        client.sessions.takeover("b1", 1, "t", "b"),
        client.sessions.takeover("b2", 1, "t", "c"),
        client.sessions.takeover("b1", 2, "t", "d"),
        client.sessions.takeover("b1", 1, "t", "e", restore=True),
        client.offsets.commit("t", "g", "topic", 0, 1),
        client.offsets.commit("t", "g", "topic", 1, 1, monotonic=True),
    )
    taken = [(r.body.broker, r.body.broker_epoch, r.body.restore, len(r.body.items)) for r in server.received[:4]]
    assert taken == [("b1", 1, False, 2), ("b2", 1, False, 1), ("b1", 2, False, 1), ("b1", 1, True, 1)]
    assert [r.body.monotonic for r in server.received[4:]] == [False, True]


async def test_while_enough_batches_are_in_flight_the_next_fills(server, dial, settle):
    server.answer = None
    client = await dial(batches_in_flight=2)
    calls = []
    for i in range(10):
        calls.append(asyncio.ensure_future(client.kv.put("ns", f"k{i}", b"1")))
        await settle()
    assert [len(received.body.items) for received in server.received] == [1, 1]
    server.received[0].reply()
    await server.requests(3)
    assert len(server.received[2].body.items) == 8
    for received in server.received[1:]:
        received.reply()
    await asyncio.gather(*calls)


async def test_a_full_batch_goes_even_so(server, dial, settle):
    server.answer = None
    client = await dial(batches_in_flight=1, batch_items=3)
    calls = puts(client, 1)
    await settle()
    calls += puts(client, 4)
    await settle()
    assert [len(received.body.items) for received in server.received] == [1, 3]
    server.answer = lambda received: received.reply()
    for received in list(server.received):
        received.reply()
    await asyncio.gather(*calls)


async def test_each_caller_gets_its_own_error(server, dial):
    server.answer = lambda received: received.reply(m.KvPutReply([], [m.ItemError(1, 203, "no")], [5, 0, 6]))
    client = await dial()
    first, second, third = await asyncio.gather(*puts(client, 3), return_exceptions=True)
    assert (first, third) == (5, 6)
    assert isinstance(second, ConflictError)


async def test_an_error_of_the_batch_reaches_every_caller_as_its_own(server, dial):
    server.answer = lambda received: received.fail(InternalError("disk"))
    client = await dial()
    first, second = await asyncio.gather(*puts(client, 2), return_exceptions=True)
    assert isinstance(first, InternalError)
    assert isinstance(second, InternalError)
    assert first is not second


async def test_cancelling_before_the_batch_leaves_takes_the_item_out(server, dial, settle):
    client = await dial(linger_s=1)
    calls = puts(client, 3)
    await settle()
    calls[1].cancel()
    outcomes = await asyncio.gather(*calls, return_exceptions=True)
    assert (outcomes[0], outcomes[2]) == (0, 2)
    assert [item.key for item in server.received[0].body.items] == ["k0", "k2"]


async def test_cancelling_in_flight_does_not_hurt_the_others(server, dial):
    server.answer = None
    client = await dial()
    calls = puts(client, 3)
    await server.requests(1)
    calls[1].cancel()
    server.received[0].reply()
    outcomes = await asyncio.gather(*calls, return_exceptions=True)
    assert (outcomes[0], outcomes[2]) == (0, 2)
    assert isinstance(outcomes[1], asyncio.CancelledError)
    assert not server.received[0].cancelled


async def test_when_all_cancel_nothing_is_sent(server, dial, settle):
    client = await dial(linger_s=1)
    calls = puts(client, 2)
    await settle()
    for call in calls:
        call.cancel()
    await asyncio.gather(*calls, return_exceptions=True)
    await asyncio.sleep(2)
    assert server.received == []


async def test_an_item_that_is_too_large_fails_its_caller_only(server, dial):
    """A server refuses a request as a whole; a stranger's large item must not fail everybody who shared it."""

    def answer(received):
        if any(item.key == "k5" for item in received.body.items):
            received.fail(TooLargeError("k5"))
        else:
            received.reply()

    server.answer = answer
    client = await dial()
    outcomes = await asyncio.gather(*puts(client, 16), return_exceptions=True)
    assert isinstance(outcomes.pop(5), TooLargeError)
    assert outcomes == [0, 1, 2, 3, 4, *range(6, 16)]


async def test_an_item_that_cannot_be_encoded_fails_its_caller_only(server, dial):
    client = await dial()
    calls = [client.kv.put("ns", "k", value) for value in (b"1", object(), b"3")]
    first, second, third = await asyncio.gather(*calls, return_exceptions=True)
    assert (first, third) == (1, 3)
    assert isinstance(second, InvalidItemError)
    assert str(second) == "value: expected bytes, got object"


async def test_what_they_share_cannot_be_encoded(dial):
    client = await dial()
    calls = [client.sessions.disconnect(frozenset([object()]), 1, "t", c) for c in "ab"]
    outcomes = await asyncio.gather(*calls, return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [InvalidRequestError, InvalidRequestError]
    assert str(outcomes[0]) == "session.disconnect: broker: expected str, got frozenset"


async def test_a_reply_that_does_not_fit_is_an_error_not_a_hang(server, dial):
    server.answer = lambda received: received.reply(m.KvPutReply([], [m.ItemError(7, 203)], [1]))
    client = await dial()
    outcomes = await asyncio.gather(*puts(client, 2), return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [InternalError, InternalError]


async def test_a_full_queue_is_each_singles_error(server, dial, settle):
    server.answer = None
    server.window_bytes = 1
    client = await dial(waiting_max=1, batch_items=1)
    calls = puts(client, 3)
    await settle()
    assert isinstance(calls[2].exception(), OverloadedError)
    server.answer = lambda received: received.reply()
    server.received[0].reply()
    assert await asyncio.gather(*calls[:2]) == [0, 1]


async def test_batches_that_wait_for_their_slots_keep_nobody_waiting(server, dial, settle):
    slots = iter([5_000, 5_000])

    def answer(received):
        after_ms = next(slots, 0)
        received.fail(OverloadedError(retry_after_ms=after_ms)) if after_ms else received.reply()

    server.answer = None
    client = await dial(batches_in_flight=2)
    loop = asyncio.get_running_loop()
    first = puts(client, 1)
    await server.requests(1)
    second = puts(client, 1)
    await server.requests(2)
    third = puts(client, 3)  # fills its batch, because two are unanswered
    await settle()
    assert len(server.received) == 2
    begun = loop.time()
    server.answer = answer
    for received in list(server.received):
        answer(received)
    assert await asyncio.gather(*third) == [0, 1, 2]
    await asyncio.gather(*puts(client, 1))
    assert loop.time() - begun < 1
    assert await asyncio.gather(*first, *second) == [0, 0]
    assert loop.time() - begun == pytest.approx(5, abs=0.05)
    assert client._requests._batchers == {}


async def test_idle_batchers_are_forgotten(dial):
    client = await dial()
    for epoch in range(50):
        await client.sessions.disconnect("b", epoch, "t", "c")
    assert client._requests._batchers == {}
    assert client.statistics().batches == 50


class Lazy:
    """An object whose load fails, whatever is asked of it."""

    def __getattribute__(self, name):
        raise RuntimeError("not loaded")


class Unhashable(str):
    def __hash__(self):
        raise RuntimeError("no hash")


WRONG = {"lazy": Lazy, "list": lambda: [Lazy()], "dict": lambda: {"a": Lazy()}}


@pytest.mark.parametrize("kind", WRONG)
async def test_an_item_that_raises_when_it_is_looked_at_fails_alone(dial, kind):
    client, wrong = await dial(), WRONG[kind]()
    ids = [f"c{i}" for i in range(5)]
    ids[2] = wrong
    singles = [asyncio.ensure_future(client.sessions.takeover("b", 1, "t", client_id)) for client_id in ids]
    done, _ = await asyncio.wait(singles, timeout=20)
    assert len(done) == 5
    assert [type(single.exception()) for single in singles] == [
        InvalidItemError if at == 2 else type(None) for at in range(5)
    ]
    items = [m.SessionTakeoverItem("t", client_id) for client_id in ids]
    assert [(at, type(error)) for at, error in (await client.sessions.takeover_many("b", 1, items)).errors.items()] == [
        (2, InvalidItemError)
    ]
    with pytest.raises(InvalidRequestError):
        await client.sessions.takeover_many("b", 1, Lazy())


async def test_an_argument_of_all_items_that_raises_is_an_invalid_request(dial):
    client = await dial()
    with pytest.raises(InvalidRequestError):
        await client.sessions.takeover(Unhashable("b"), 1, "t", "c")
    with pytest.raises(InvalidRequestError, match="broker: expected str, got Lazy"):
        await client.sessions.takeover_many(Lazy(), 1, [m.SessionTakeoverItem("t", "c")])


@pytest.mark.parametrize("name", ["submit", "answer"])
async def test_an_exception_that_nobody_expects_leaves_no_caller_waiting(dial, monkeypatch, name):
    """Whatever breaks while a batch is closed or answered: its callers hear of it, and later ones are served."""
    client = await dial()
    await client.kv.put("ns", "k", b"1")

    def broken(*_, **__):
        raise ZeroDivisionError

    if name == "submit":
        monkeypatch.setattr(client._dispatcher, "submit", broken)
    else:
        monkeypatch.setattr(Batcher, "_hand_out", broken)
    answers = await asyncio.wait_for(asyncio.gather(*puts(client, 5), return_exceptions=True), 20)
    assert {type(answer) for answer in answers} == {InternalError}
    assert not any(answer.outcome_known for answer in answers)
    monkeypatch.undo()
    assert await asyncio.gather(*puts(client, 5)) == list(range(5))


async def test_singles_behind_others_that_wait_for_a_map_end_in_time(scripted_server):
    """Guards singles that nobody sent, or ended, once those before them had waited for the map in vain."""
    scripted_server.scripts_map = True
    scripted_server.answer = lambda _: None
    options = Options(batches_in_flight=1)
    async with connect("metad://a", options, transport=scripted_server.transport) as client:
        asked = []
        for number in range(5):
            asked.append(asyncio.ensure_future(client.kv.put("ns", f"k{number}", b"v", deadline_s=0.5)))
            await asyncio.sleep(0.01)
        await asyncio.sleep(5.0)
        assert all(put.done() for put in asked)
        for put in asked:
            assert isinstance(put.exception(), DeadlineExceededError)
