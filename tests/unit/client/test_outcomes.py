"""``outcome_known`` belongs to what happened to a call, not to the class of its error alone."""

from __future__ import annotations

import asyncio

import pytest

from metad_client import (
    CancelledError,
    ClosedError,
    ConflictError,
    ConnectionLostError,
    DeadlineExceededError,
    IdentityExpiredError,
    InternalError,
    KvKey,
    KvPutItem,
    MetadError,
    OverloadedError,
    UnknownOutcomeError,
    blocking,
)
from metad_wire import messages as m

ONE = [KvPutItem("ns", "k", b"1")]
KEYS = [KvKey("ns", "k")]
WRITES = {
    "put_many": lambda client: client.kv.put_many(ONE, deadline_s=2),
    "put": lambda client: client.kv.put("ns", "k", b"1", deadline_s=2),
    "add_group": lambda client: client.cluster.add_group("data", deadline_s=2),
    "leave": lambda client: client.cluster.leave("n9", deadline_s=2),
}
READS = {
    "get_many": lambda client: client.kv.get_many(KEYS, deadline_s=2),
    "get": lambda client: client.kv.get("ns", "k", deadline_s=2),
    "list": lambda client: anext(client.sessions.list(deadline_s=2)),
    "status": lambda client: client.status(deadline_s=2),
    "map": lambda client: client.cluster.map(deadline_s=2),
}
each_write = pytest.mark.parametrize("call", WRITES.values(), ids=WRITES)
each_read = pytest.mark.parametrize("call", READS.values(), ids=READS)


async def error_of(call):
    """What the caller is told."""
    with pytest.raises(MetadError) as raised:
        await call
    error = raised.value
    assert error.outcome_known or "nothing was done" not in str(error)
    assert error.outcome_known or "did not happen" not in str(error)
    assert not error.outcome_known or "may have happened" not in str(error)
    return error


@each_write
async def test_a_write_that_was_sent_and_not_answered_is_in_doubt(server, dial, call):
    client = await dial()
    server.answer = None
    error = await error_of(call(client))
    assert (type(error), error.outcome_known) == (DeadlineExceededError, False)


async def test_a_deadline_blames_no_leader_that_has_the_call(server, dial):
    """Guards a message that sent its reader to look for a leader, which was known and slow."""
    client = await dial()
    server.answer = None
    error = await error_of(client.kv.put("ns", "k", b""))
    assert str(error) == "kv.put: the deadline passed without an answer; the write may have happened"


@each_read
async def test_a_read_changes_nothing_whatever_becomes_of_it(server, dial, call):
    client = await dial()
    server.answer, server.scripts_map = None, True
    error = await error_of(call(client))
    assert (type(error), error.outcome_known) == (DeadlineExceededError, True)
    server.answer = lambda received: received.fail(InternalError("disk"))
    assert (await error_of(call(client))).outcome_known
    server.answer = lambda received: received.fail(UnknownOutcomeError())
    assert (await error_of(call(client))).outcome_known
    server.answer = lambda received: received.reply(m.Ping(7))
    assert (await error_of(call(client))).outcome_known


@each_read
async def test_a_read_of_a_client_that_is_closed_has_changed_nothing(server, dial, call):
    client = await dial()
    server.answer, server.scripts_map = None, True
    waiting = asyncio.ensure_future(call(client))
    await server.until(lambda: server.received)
    await client.close()
    error = await error_of(waiting)
    assert (type(error), error.outcome_known) == (ClosedError, True)


@pytest.mark.parametrize("call", [WRITES["put_many"], WRITES["put"]], ids=["put_many", "put"])
async def test_a_write_that_could_not_be_sent_is_known(server, dial, call):
    server.map = None  # no leader is known
    client = await dial()
    error = await error_of(call(client))
    assert (type(error), error.outcome_known) == (DeadlineExceededError, True)
    assert "nothing was done" in str(error)


@each_write
async def test_a_write_whose_attempts_were_all_refused_is_known(server, dial, call):
    client = await dial()
    server.answer = lambda received: received.fail(OverloadedError())
    assert (await error_of(call(client))).outcome_known
    server.answer = lambda received: received.fail(OverloadedError(retry_after_ms=1_500))
    assert (await error_of(call(client))).outcome_known


@each_write
async def test_one_attempt_in_doubt_is_enough(server, dial, call):
    client = await dial()
    seen = len(server.received)

    def answer(received):
        received.fail(UnknownOutcomeError() if len(server.received) == seen + 1 else OverloadedError())

    server.answer = answer
    assert not (await error_of(call(client))).outcome_known


@pytest.mark.parametrize("error", [DeadlineExceededError("not begun; nothing was done"), CancelledError("gone")])
async def test_a_server_that_has_not_begun_says_so(server, dial, error):
    client = await dial()
    server.answer = lambda received: received.fail(error)
    assert (await error_of(client.kv.put_many(ONE))).outcome_known

    def second(received):
        if len(server.received) == 2:
            received.peer.cut()
        else:
            received.fail(error)

    server.answer = second
    assert not (await error_of(client.kv.put_many(ONE))).outcome_known


@pytest.mark.parametrize("error", [InternalError("disk"), IdentityExpiredError("too late")])
async def test_what_a_server_cannot_know_a_write_cannot(server, dial, error):
    client = await dial()
    server.answer = lambda received: received.fail(error)
    assert not (await error_of(client.kv.put("ns", "k", b""))).outcome_known


async def test_what_is_never_repeated_is_in_doubt_once_its_connection_is_lost(server, dial):
    client = await dial()
    server.answer = lambda received: received.peer.cut()
    error = await error_of(client.cluster.add_group("data"))
    assert (type(error), error.outcome_known) == (ConnectionLostError, False)


async def test_a_closed_client(server, dial, settle):
    client = await dial()
    server.answer = None
    waiting = asyncio.ensure_future(client.kv.put_many(ONE))
    await server.requests(1)
    await client.close()
    assert not (await error_of(waiting)).outcome_known
    for call in (client.kv.put("ns", "k", b""), client.kv.put_many(ONE), client.kv.get("ns", "k"), client.status()):
        error = await error_of(call)
        assert (type(error), error.outcome_known) == (ClosedError, True)


async def test_each_piece_of_a_call_has_its_own(server, nodes, dial):
    client = await dial(batch_items=1)
    usual = server.answer

    def answer(received):
        if received.body.items[0].key == "1":
            received.fail(InternalError("disk"))
        elif received.body.items[0].key == "2":
            received.fail(OverloadedError(retry_after_ms=60_000))
        else:
            usual(received)

    server.answer = answer
    result = await client.kv.put_many([KvPutItem("ns", str(i), b"") for i in range(3)])
    assert {at: error.outcome_known for at, error in result.errors.items()} == {1: False, 2: True}


async def test_nobody_answers(server, dial):
    await server.stop_listening()
    error = await error_of(dial(connect_timeout_s=1))
    assert (type(error), error.outcome_known) == (ConnectionLostError, True)


def test_a_closed_blocking_client():
    portal = blocking.portal.Portal()
    portal.start()
    portal.stop()
    with pytest.raises(ClosedError) as raised:
        portal.run(asyncio.sleep(0))
    assert raised.value.outcome_known


def test_an_error_has_what_its_class_says_if_nobody_knows_better():
    assert not InternalError().outcome_known
    assert InternalError(outcome_known=True).outcome_known
    assert not ConflictError(outcome_known=False).outcome_known
    assert not InternalError.outcome_known
