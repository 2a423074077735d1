"""A write that is sent again is the same write; a deadline ends everything, and says what is known."""

from __future__ import annotations

import asyncio

import pytest

from metad_client import (
    Backoff,
    ConflictError,
    ConnectionLostError,
    DeadlineExceededError,
    IdentityExpiredError,
    InternalError,
    InvalidRequestError,
    KvKey,
    KvPutItem,
    NotLeaderError,
    OverloadedError,
    UnknownOutcomeError,
)
from metad_client.dispatch.calls.call import GivenIdentity
from metad_client.once import write_once
from metad_wire import messages as m
from metad_wire.methods import KV_PUT, encode

ONE = [KvPutItem("ns", "k", b"1")]


def start(coroutine):
    return asyncio.ensure_future(coroutine)


@pytest.mark.parametrize("error", [OverloadedError(), NotLeaderError(), UnknownOutcomeError()])
async def test_a_retry_is_the_same_write(server, dial, error):
    server.answer = lambda received: received.fail(error) if len(server.received) < 3 else received.reply()
    client = await dial()
    assert (await client.kv.put_many(ONE)).ok
    first, second, third = server.received
    assert first.body_bytes == second.body_bytes == third.body_bytes
    assert (first.identity.client_id, first.identity.seq) == (third.identity.client_id, third.identity.seq)
    assert first.identity.age_ms == 0
    assert 0 < second.identity.age_ms <= third.identity.age_ms
    assert first.request.deadline_ms == 10_000
    assert third.request.deadline_ms < second.request.deadline_ms < 10_000
    statistics = client.statistics()
    assert (statistics.requests, statistics.answers, statistics.retries) == (1, 3, 2)


async def test_the_age_of_a_retry_is_never_zero(server, dial):
    """Zero says that no attempt came before, and would let a server skip looking for one."""
    server.answer = lambda received: received.fail(OverloadedError()) if len(server.received) < 2 else received.reply()
    client = await dial(backoff=Backoff(base_s=0))
    await client.kv.put_many(ONE)
    assert [received.identity.age_ms for received in server.received] == [0, 1]


async def test_low_is_the_lowest_unanswered_write(server, dial):
    server.answer = None
    client = await dial()
    calls = [start(client.kv.put_many(ONE)) for _ in range(3)]
    await server.requests(3)
    assert [(r.identity.seq, r.identity.low) for r in server.received] == [(1, 1), (2, 1), (3, 1)]
    server.received[1].reply()
    await calls[1]
    calls.append(start(client.kv.put_many(ONE)))
    await server.requests(4)
    assert (server.received[3].identity.seq, server.received[3].identity.low) == (4, 1)
    server.received[0].reply()
    await calls[0]
    calls.append(start(client.kv.put_many(ONE)))
    await server.requests(5)
    assert (server.received[4].identity.seq, server.received[4].identity.low) == (5, 3)
    for received in server.received[2:]:
        received.reply()
    await asyncio.gather(*calls)


async def test_low_does_not_pass_a_write_that_will_be_retried(server, dial):
    server.answer = lambda received: received.fail(OverloadedError(retry_after_ms=1000)) if seq(received) == 1 else None
    seq = lambda received: received.identity.seq  # noqa: E731
    client = await dial()
    waiting = start(client.kv.put_many(ONE))
    await server.requests(1)
    server.answer = lambda received: received.reply()
    await client.kv.put_many(ONE)
    assert (server.received[1].identity.seq, server.received[1].identity.low) == (2, 1)
    await waiting
    await client.kv.put_many(ONE)
    assert server.received[-1].identity.low == 3


async def test_a_reply_that_cannot_be_decoded_is_not_the_callers_fault(server, dial):
    server.answer = lambda received: received.reply(m.Ping(7))
    client = await dial()
    for call in (client.kv.put_many(ONE), client.kv.get_many([KvKey("ns", "k")]), client.kv.put("ns", "k", b"")):
        with pytest.raises(InternalError, match="reply"):
            await call


@pytest.mark.parametrize("deadline_s", [0, -1, float("nan"), float("inf"), "5", b"", [1], 1j])
async def test_deadlines_that_make_no_sense(server, dial, deadline_s):
    client = await dial()
    for call in (
        client.kv.put_many(ONE, deadline_s=deadline_s),
        client.kv.put("ns", "k", b"", deadline_s=deadline_s),
        client.status(deadline_s=deadline_s),
    ):
        with pytest.raises(InvalidRequestError, match="deadline_s: expected a number over 0"):
            await call
    assert client._requests._batchers == {}


async def test_reads_carry_no_identity_and_are_retried(server, dial):
    server.answer = lambda received: received.fail(OverloadedError()) if len(server.received) < 2 else received.reply()
    client = await dial()
    assert (await client.kv.get_many([KvKey("ns", "k")]))[0].key == "k"
    assert [received.request.identity for received in server.received] == [None, None]


async def test_a_return_slot_is_kept(server, dial):
    loop = asyncio.get_running_loop()
    times = []

    def answer(received):
        times.append(loop.time())
        if len(times) == 1:
            received.fail(OverloadedError(retry_after_ms=3000, retry_jitter_ms=500))
        else:
            received.reply()

    server.answer = answer
    client = await dial()
    await client.kv.put_many(ONE)
    assert 2.5 <= times[1] - times[0] <= 3.51


async def test_calls_that_were_turned_away_together_come_back_each_at_its_slot(server, dial, settle):
    loop = asyncio.get_running_loop()
    times = {}

    def answer(received):
        back = times.setdefault(received.identity.seq, [])
        back.append(loop.time())
        if len(back) == 1:
            received.fail(OverloadedError(retry_after_ms=1_000 * received.identity.seq))
        else:
            received.reply()

    server.answer = answer
    client = await dial()
    calls = [start(client.kv.put_many(ONE)) for _ in range(5)]
    await server.requests(5)
    await settle()
    statistics = client.statistics()
    assert (statistics.turned_away, statistics.returning, statistics.waiting) == (5, 5, 5)
    await asyncio.gather(*calls)
    assert [second - first for first, second in times.values()] == pytest.approx([1, 2, 3, 4, 5], abs=0.05)
    statistics = client.statistics()
    assert (statistics.turned_away, statistics.returning, statistics.retries) == (5, 0, 5)


async def test_a_caller_may_be_told_at_once_that_it_was_turned_away(server, dial):
    server.answer = lambda received: received.fail(OverloadedError(retry_after_ms=700, retry_jitter_ms=70))
    client = await dial(repeat_refused=False)
    with pytest.raises(OverloadedError) as refused:
        await client.kv.put_many(ONE)
    assert (refused.value.retry_after_ms, refused.value.retry_jitter_ms) == (700, 70)
    assert len(server.received) == 1
    server.answer = lambda received: received.fail(NotLeaderError()) if len(server.received) < 4 else received.reply()
    assert (await client.kv.put_many(ONE)).ok, "other errors are retried as ever"
    assert client.statistics().retries == 2


async def test_a_refusal_behind_an_attempt_in_doubt_is_repeated(server, dial):
    """The caller would take "nothing was done" for the truth."""
    errors = [UnknownOutcomeError(), OverloadedError()]
    server.answer = lambda received: received.fail(errors.pop(0)) if errors else received.reply()
    client = await dial(repeat_refused=False)
    assert (await client.kv.put_many(ONE)).ok
    assert len(server.received) == 3


async def test_a_return_slot_behind_the_deadline_is_told_at_once(server, dial):
    loop = asyncio.get_running_loop()
    server.answer = lambda received: received.fail(OverloadedError("busy", retry_after_ms=60_000))
    client = await dial()
    begun = loop.time()
    with pytest.raises(OverloadedError, match="busy") as raised:
        await client.kv.put_many(ONE)
    assert raised.value.retry_after_ms == 60_000
    assert loop.time() - begun < 1


@pytest.mark.parametrize("error", [InternalError("disk"), ConflictError("no"), IdentityExpiredError("too late")])
async def test_other_errors_are_not_retried(server, dial, error):
    server.answer = lambda received: received.fail(error)
    client = await dial()
    with pytest.raises(type(error), match=str(error)):
        await client.kv.put_many(ONE)
    assert len(server.received) == 1


async def test_a_lost_connection_is_retried_on_the_next(server, dial):
    server.answer = None
    client = await dial()
    calls = [start(client.kv.put_many(ONE)), start(client.kv.get_many([KvKey("ns", "k")]))]
    await server.requests(2)
    server.answer = lambda received: received.reply()
    server.peers[0].cut()
    await asyncio.gather(*calls)
    write, read, *again = server.received
    assert sorted(r.method.name for r in again) == ["kv.get", "kv.put"]
    retried = next(r for r in again if r.method.name == "kv.put")
    assert retried.peer is not write.peer
    assert retried.identity.seq == write.identity.seq
    assert retried.identity.age_ms > 0
    assert read.request.identity is None
    assert client.statistics().reconnects == 1


async def test_a_deadline_on_an_unanswered_write_leaves_it_in_doubt(server, dial):
    loop = asyncio.get_running_loop()
    server.answer = None
    client = await dial()
    begun = loop.time()
    with pytest.raises(DeadlineExceededError, match=r"kv\.put.* the write may have happened"):
        await client.kv.put_many(ONE, deadline_s=2)
    assert loop.time() - begun == pytest.approx(2, abs=0.05)
    await server.until(lambda: server.received[0].cancelled)
    assert server.received[0].request.deadline_ms == 2000


async def test_a_deadline_on_a_read_speaks_of_no_write(server, dial):
    server.answer = None
    client = await dial()
    with pytest.raises(DeadlineExceededError) as raised:
        await client.kv.get("ns", "k", deadline_s=1)
    assert "write" not in str(raised.value)


async def test_the_default_deadline(server, dial):
    loop = asyncio.get_running_loop()
    server.answer = None
    client = await dial(deadline_s=0.25)
    begun = loop.time()
    for call in (client.kv.put("ns", "k", b""), client.kv.put_many(ONE), client.status()):
        with pytest.raises(DeadlineExceededError):
            await call
    assert loop.time() - begun == pytest.approx(0.75, abs=0.1)


async def test_deadlines_of_many_calls_end_each_in_time(server, dial):
    loop = asyncio.get_running_loop()
    server.answer = None
    client = await dial()

    async def ends_after(deadline_s):
        begun = loop.time()
        with pytest.raises(DeadlineExceededError):
            await client.kv.put_many(ONE, deadline_s=deadline_s)
        return loop.time() - begun

    wanted = [3.0, 0.5, 7.0, 0.5, 1.0, 0.02]
    took = await asyncio.gather(*map(ends_after, wanted))
    assert took == pytest.approx(wanted, abs=0.05)


async def test_a_known_failure_at_the_deadline_is_the_error_itself(server, dial):
    server.answer = lambda received: received.fail(OverloadedError("busy"))
    client = await dial()
    with pytest.raises(OverloadedError, match="busy"):
        await client.kv.put_many(ONE, deadline_s=1)
    assert len(server.received) > 1


async def test_an_attempt_in_doubt_is_not_forgotten_behind_a_known_failure(server, dial):
    """The first attempt was lost with its connection: that the second was refused says nothing about the first."""
    server.answer = None
    client = await dial()
    call = start(client.kv.put_many(ONE, deadline_s=1))
    await server.requests(1)
    server.answer = lambda received: received.fail(OverloadedError("busy"))
    server.peers[0].cut()
    with pytest.raises(DeadlineExceededError, match="may have happened") as raised:
        await call
    assert isinstance(raised.value.__cause__, OverloadedError)


async def test_a_write_that_was_never_sent_did_not_happen(server, dial, settle):
    client = await dial()
    await server.stop_listening()
    server.peers[0].cut()
    await settle()
    with pytest.raises(DeadlineExceededError, match="nothing was done") as raised:
        await client.kv.put_many(ONE, deadline_s=1)
    assert "data-0 has no leader; 0 of 1 replicas reachable: connection refused by a:7420" in str(raised.value)
    assert isinstance(raised.value.__cause__, NotLeaderError)
    assert isinstance(raised.value.__cause__.__cause__, ConnectionLostError)
    assert server.received == []


async def test_a_cancelled_await_cancels_at_the_server(server, dial):
    server.answer = None
    client = await dial()
    call = start(client.kv.put_many(ONE))
    other = start(client.kv.put_many(ONE))
    await server.requests(2)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    await server.until(lambda: server.received[0].cancelled)
    assert not server.received[1].cancelled
    server.received[0].reply()  # crosses the cancellation
    server.received[1].reply()
    assert (await other).ok
    assert client.statistics().in_flight == 0


async def test_a_call_cancelled_while_it_waits_for_its_retry(server, dial, settle):
    server.answer = lambda received: received.fail(OverloadedError(retry_after_ms=5000))
    client = await dial()
    call = start(client.kv.put_many(ONE))
    await server.requests(1)
    await settle()
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    await asyncio.sleep(6)
    assert len(server.received) == 1
    assert client.statistics().waiting == 0


# --- an identity that the program names ---


async def test_a_write_with_a_named_identity_keeps_it_in_every_attempt(server, dial):
    server.answer = lambda received: received.fail(OverloadedError()) if len(server.received) < 3 else received.reply()
    client = await dial()
    reply = await write_once(client, KV_PUT, m.KvPut(ONE), "data-0", client_id=2**64 - 1, seq=77, low=70, age_ms=500)
    assert not reply.errors
    await client.kv.put_many(ONE)
    first, second, third, other = [received.identity for received in server.received]
    assert {(each.client_id, each.seq, each.low) for each in (first, second, third)} == {(2**64 - 1, 77, 70)}
    assert 500 == first.age_ms < second.age_ms <= third.age_ms
    assert (other.seq, other.low) == (1, 1)  # the client's own series goes on as if nothing had been
    assert other.client_id != first.client_id


async def test_a_named_identity_that_was_never_tried_has_no_age(server, dial):
    client = await dial()
    await write_once(client, KV_PUT, m.KvPut(ONE), "data-0", client_id=1, seq=1, low=1)
    assert server.received[0].identity == m.Identity(1, 1, 1, 0)


async def test_items_of_a_named_identity_are_checked_as_others_are(server, dial):
    client = await dial()
    with pytest.raises(InvalidRequestError, match=r"namespace|surrogates"):
        await write_once(client, KV_PUT, m.KvPut([KvPutItem("\ud800", "k", b"")]), "data-0", client_id=1, seq=1, low=1)
    assert not server.received


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("client_id", 2**64),
        ("client_id", -1),
        ("seq", 2**63),
        ("low", None),
        ("age_ms", 0.5),
        ("group", "\ud800"),
        ("group", None),
    ],
)
async def test_a_named_identity_that_cannot_be_sent_is_refused(server, dial, name, value):
    client = await dial()
    given = {"group": "data-0", "client_id": 1, "seq": 1, "low": 1, name: value}
    with pytest.raises(InvalidRequestError, match=f"^{name}: "):
        await write_once(client, KV_PUT, m.KvPut(ONE), **given)
    assert not server.received


async def test_a_call_that_cannot_be_encoded_fails_alone(server, dial):
    """Guards the client: what one waiting call raised ended the task that keeps the connections."""
    await server.stop_listening("a")
    client = dial.make()
    opening = start(client.open())
    await asyncio.sleep(0)
    body, deadline = encode(m.KvPut(ONE)), asyncio.get_running_loop().time() + 5
    identity = GivenIdentity(2**64, 1, 1)
    wrong = client._dispatcher.submit(KV_PUT, body, deadline, "data-0", identity=identity)
    right = start(client.kv.put_many(ONE))
    await server.listen()
    await opening
    with pytest.raises(InvalidRequestError, match=r"kv\.put"):
        await wrong.future
    assert (await right).versions
    assert (await client.kv.put_many(ONE)).versions
