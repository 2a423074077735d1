"""Keeping a connection up: the window, goaway, other endpoints, dead peers, closing."""

from __future__ import annotations

import asyncio
import gc

import pytest

from metad_client import (
    ClosedError,
    ConnectionLostError,
    DeadlineExceededError,
    HandshakeError,
    InternalError,
    KvPutItem,
    NotLeaderError,
    OverloadedError,
    UnauthenticatedError,
    connect,
)
from metad_wire import messages as m
from metad_wire.methods import CLUSTER_MAP
from sim.memory import MemoryTransport

ONE = [KvPutItem("ns", "k", b"1")]


def start(coroutine):
    return asyncio.ensure_future(coroutine)


# --- the window ---


async def test_requests_of_one_turn_leave_in_one_write(server, dial):
    client = await dial()
    before = server.chunks
    await asyncio.gather(*[client.kv.put_many(ONE) for _ in range(50)])
    assert server.chunks - before == 1


async def test_calls_wait_for_the_window_in_order(server, dial, settle):
    server.answer = None
    server.window_bytes = 250  # two or three of these
    client = await dial()
    calls = [start(client.kv.put_many([KvPutItem("ns", f"k{i}", b"1")])) for i in range(10)]
    await settle()
    first = len(server.received)
    assert 0 < first < 10
    assert client.statistics().waiting == 10 - first
    server.answer = lambda received: received.reply()
    for received in list(server.received):
        received.reply()
    await asyncio.gather(*calls)
    assert [received.body.items[0].key for received in server.received] == [f"k{i}" for i in range(10)]
    assert client.statistics().waiting == 0


async def test_a_new_window_lets_the_waiting_go(server, dial, settle):
    server.answer = None
    server.window_bytes = 1
    client = await dial()
    calls = [start(client.kv.put_many(ONE)) for _ in range(10)]
    await settle()
    assert len(server.received) == 1  # one alone may be larger than the window
    server.peers[0].session.set_window(1 << 20)
    server.peers[0].flush()
    await server.requests(10)
    for received in list(server.received):
        received.reply()
    await asyncio.gather(*calls)


async def test_who_waits_beyond_the_bound_is_overloaded(server, dial, settle):
    server.answer = None
    server.window_bytes = 1
    client = await dial(waiting_max=2)
    calls = [start(client.kv.put_many(ONE)) for _ in range(4)]
    await settle()
    with pytest.raises(OverloadedError, match="nothing was done"):
        await calls[3]
    server.answer = lambda received: received.reply()
    server.received[0].reply()
    await asyncio.gather(*calls[:3])


async def test_the_queue_is_bounded_in_bytes_too(server, dial, settle):
    server.answer = None
    server.window_bytes = 1
    client = await dial(waiting_bytes_max=1000)
    big = [KvPutItem("ns", "k", bytes(600))]
    calls = [start(client.kv.put_many(big)) for _ in range(3)]
    await settle()
    with pytest.raises(OverloadedError, match="bytes wait"):
        await calls[2]
    calls[1].cancel()  # makes room again
    await settle()
    calls[2] = start(client.kv.put_many(big))
    server.answer = lambda received: received.reply()
    server.received[0].reply()
    await asyncio.gather(calls[0], calls[2])
    assert len(server.received) == 2


# --- goaway ---


async def test_after_goaway_old_requests_are_answered_and_new_ones_go_elsewhere(server, dial, settle):
    server.answer = None
    client = await dial()
    old = start(client.kv.put_many(ONE))
    await server.requests(1)
    server.peers[0].goaway()
    await settle()
    new = start(client.kv.put_many(ONE))
    await server.requests(2)
    assert server.received[1].peer is server.peers[1]
    assert not server.peers[0].gone
    server.received[1].reply()
    assert (await new).ok
    server.received[0].reply()
    assert (await old).ok
    await server.until(lambda: server.peers[0].gone)  # the last answer ends it
    assert client.statistics().retries == 0


async def test_a_draining_connection_that_breaks_is_retried(server, dial):
    server.answer = None
    client = await dial()
    call = start(client.kv.put_many(ONE))
    await server.requests(1)
    server.peers[0].goaway()
    server.answer = lambda received: received.reply()
    server.peers[0].cut()
    assert (await call).ok
    assert server.received[1].identity.seq == server.received[0].identity.seq


async def test_a_draining_connection_without_requests_is_closed(server, dial):
    await dial()
    server.peers[0].goaway()
    await server.until(lambda: server.peers[0].gone and len(server.live) == 1)


async def test_cancelling_the_last_request_ends_a_draining_connection(server, dial, settle):
    server.answer = None
    client = await dial()
    call = start(client.kv.put_many(ONE))
    await server.requests(1)
    server.peers[0].goaway()
    await settle()
    call.cancel()
    await server.until(lambda: server.peers[0].gone)
    assert server.received[0].cancelled


# --- endpoints ---


async def test_endpoints_are_tried_in_turn(server, dial):
    client = await dial("metad://nobody,nowhere:1,a")
    assert client.statistics().endpoint == "a:7420"


async def test_when_an_endpoint_goes_the_next_takes_over(server, dial):
    await server.listen("b")
    client = await dial("metad://a,b")
    await server.stop_listening("a")
    server.peers[0].cut()
    assert (await client.kv.put_many(ONE)).ok
    assert client.statistics().endpoint == "b:7420"


async def test_a_node_is_out_of_reach_for_what_its_own_endpoint_says(nodes, dial):
    """Once wrong: the last endpoint of the user that failed was named, whosever it was."""
    await nodes.server.stop_listening("c")
    client = await dial("metad://a,nobody")
    statuses = await client.cluster.statuses(deadline_s=3)
    assert str(statuses["n3"].__cause__) == "connection refused by c:7420"


async def test_a_server_that_comes_back_is_found(server, dial):
    client = await dial()
    await server.stop_listening()
    server.peers[0].cut()
    call = start(client.kv.put_many(ONE))
    await asyncio.sleep(5)
    await server.listen()
    assert (await call).ok
    assert client.statistics().reconnects == 1


async def test_a_client_reconnects_when_told_and_tries_again_what_was_in_flight(server, dial):
    server.answer = None
    client = await dial()
    call = start(client.kv.put("ns", "k", b"4"))
    (lost,) = await server.requests(1)
    client.reconnect()
    again = (await server.requests(2))[1]
    assert (lost.peer.gone, again.peer is not lost.peer) == (True, True)
    assert again.identity.seq == lost.identity.seq, "one write"
    again.reply()
    assert await call == 4
    assert client.statistics().reconnects == 1


async def test_opening_waits_for_a_server_to_come(dial):
    client = dial.make()
    await dial.server.stop_listening()
    opening = start(client.open())
    await asyncio.sleep(3)
    await dial.server.listen()
    await opening
    assert (await client.kv.put_many(ONE)).ok


async def test_opening_gives_up_in_time(server, dial):
    await server.stop_listening()
    begun = asyncio.get_running_loop().time()
    with pytest.raises(ConnectionLostError, match="connection refused by a:7420"):
        await dial(connect_timeout_s=4)
    assert asyncio.get_running_loop().time() - begun == pytest.approx(4, abs=0.1)


async def test_a_node_that_waits_for_a_cluster_does_not_keep_a_client(nodes, dial):
    """A wiped node, or one whose join target is gone, answered HELLO, and clients waited there for good."""
    server = nodes.server
    server.mapless = {"n1"}
    client = await dial("metad://a,b")
    assert (await client.kv.put_many(ONE, deadline_s=10)).ok
    server.mapless = set()
    assert (await client.kv.put_many(ONE, deadline_s=10)).ok


async def test_a_cluster_that_forms_is_waited_for(server, dial, settle):
    await server.listen("b", "n2")
    formed, server.map = server.map, None
    client = await dial("metad://a,b")
    call = start(client.kv.put_many(ONE, deadline_s=60))
    await asyncio.sleep(20)
    assert not call.done()
    server.map = formed
    assert (await call).ok


async def test_opening_may_try_each_endpoint_just_once(server, dial):
    await server.stop_listening()
    begun = asyncio.get_running_loop().time()
    with pytest.raises(ConnectionLostError, match="connection refused by b:7420"):
        await dial("metad://a,b", connect_timeout_s=0)
    assert asyncio.get_running_loop().time() == begun


async def test_an_endpoint_that_does_not_greet_costs_the_handshake_timeout(server, dial):
    server.greets = False
    with pytest.raises(ConnectionLostError, match="no answer from a:7420 within 2 s"):
        await dial(handshake_timeout_s=2, connect_timeout_s=0)


async def test_a_hung_endpoint_does_not_hold_up_the_others(server, dial):
    """Each hung endpoint that was named before a healthy one cost its whole handshake timeout."""
    await server.listen("hung", "n9")
    server.frozen.add("n9")
    begun = asyncio.get_running_loop().time()
    client = await dial("metad://hung,nobody,a,b")
    assert asyncio.get_running_loop().time() - begun == pytest.approx(0.25), "a refused one is followed at once"
    assert client.statistics().endpoint == "a:7420"
    assert server.peers[0].gone
    assert len(server.live) == 1


async def test_an_endpoint_may_still_greet_while_the_next_is_dialled(server, dial, settle):
    await server.listen("b")
    server.greets = False
    opening = start(dial("metad://a,b,nobody"))
    await server.until(lambda: len(server.peers) == 2)
    server.peers[0].greet()
    client = await opening
    await settle()
    assert client.statistics().endpoint == "a:7420"
    assert server.live == [server.peers[0]]


async def test_only_endpoints_that_were_dialled_are_named(server, dial):
    server.greets = False
    await server.listen("b")
    with pytest.raises(ConnectionLostError, match=r"^no answer from a:7420 within 0\.2 s$"):
        await dial("metad://a,b,c", connect_timeout_s=0.2)
    with pytest.raises(ConnectionLostError, match=r"^no answer from a:7420, b:7420 within 0\.4 s$"):
        await dial("metad://a,b,c", connect_timeout_s=0.4)


async def test_a_server_that_does_not_want_us_is_not_asked_again(server, dial):
    server.greeting_error = UnauthenticatedError("who are you?")
    with pytest.raises(UnauthenticatedError, match="who are you"):
        await dial()
    assert len(server.peers) == 1


async def test_a_peer_of_another_protocol_is_named(dial, server):
    class Web:
        def connection_made(self, stream):
            self.stream = stream

        def data_received(self, data):
            self.stream.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")

        def eof_received(self):
            return False

        def connection_lost(self, exc): ...

    await server.transport.listen("web", 7420, Web)
    with pytest.raises(HandshakeError, match="web:7420 does not speak metad's protocol"):
        await dial("metad://web")


async def test_opening_can_be_cancelled(server, dial):
    server.greets = False
    client = dial.make()
    opening = start(client.open())
    await server.until(lambda: len(server.peers) == 1)
    opening.cancel()
    with pytest.raises(asyncio.CancelledError):
        await opening
    await server.until(lambda: not server.live)


# --- dead peers ---


async def test_a_quiet_connection_is_kept_alive(server, dial):
    server.idle_ms = 3000
    client = await dial()
    before = server.chunks
    await asyncio.sleep(30)
    assert server.chunks - before == pytest.approx(30, abs=2)  # every idle_ms / 3
    assert client.statistics().connects == 1


async def test_a_busy_connection_is_not_pinged(server, dial):
    server.idle_ms = 3000
    client = await dial()
    await asyncio.sleep(0.5)
    before = server.chunks
    for _ in range(20):
        await client.kv.put_many(ONE)
        await asyncio.sleep(0.45)
    assert server.chunks - before == 20


async def test_a_dead_peer_is_noticed_and_left(server, dial):
    await server.listen("b")
    client = await dial("metad://a,b", ping_interval_s=1)
    await asyncio.sleep(1)
    server.deaf = True
    begun = asyncio.get_running_loop().time()
    call = start(client.kv.put_many(ONE))
    await server.until(lambda: server.peers[0].gone)
    assert asyncio.get_running_loop().time() - begun == pytest.approx(3, abs=0.01)
    server.deaf = False
    assert (await call).ok
    assert client.statistics().endpoint == "b:7420"


async def test_a_peer_that_breaks_the_protocol_is_left(server, dial):
    client = await dial()
    server.peers[0].stream.write(b"\xff" * 64)
    assert (await client.kv.put_many(ONE)).ok
    assert client.statistics().reconnects == 1


async def test_connections_that_break_at_once_are_not_dialled_in_a_hurry(server, dial):
    client = await dial()
    begun = asyncio.get_running_loop().time()
    for _ in range(12):
        server.live[0].cut()
        count = len(server.peers)
        await server.until(lambda count=count: len(server.peers) > count)
    assert asyncio.get_running_loop().time() - begun > 1
    assert client.statistics().reconnects >= 11


# --- closing ---


async def test_closing_ends_what_is_pending(server, dial, settle):
    server.answer = None
    server.window_bytes = 1
    client = await dial()
    calls = [start(client.kv.put_many(ONE)), start(client.kv.put_many(ONE)), start(client.kv.put("ns", "k", b"1"))]
    await settle()
    await client.close()
    sent, waiting, single = await asyncio.gather(*calls, return_exceptions=True)
    assert [type(error) for error in (sent, waiting, single)] == [ClosedError] * 3
    assert "may have happened" in str(sent)
    assert "nothing was done" in str(waiting)
    await server.until(lambda: not server.live)


async def test_closing_while_the_nodes_are_asked_who_leads_is_quiet(server, dial):
    complaints = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context["message"]))
    client = await dial()
    server.scripts_map = True  # and the question is left open

    def refuse(received):
        if received.method is not CLUSTER_MAP:
            received.fail(NotLeaderError())

    server.answer = refuse
    call = start(client.kv.put("ns", "k", b"1"))
    await server.until(lambda: any(received.method is CLUSTER_MAP for received in server.received))
    await client.close()
    with pytest.raises(ClosedError):
        await call
    gc.collect()
    assert complaints == []


async def test_leaving_the_block_closes(server):
    async with connect("metad://a", transport=server.transport) as client:
        assert await client.kv.put("ns", "k", b"3") == 3
    assert [task for task in asyncio.all_tasks() if task.get_name() == "metad-client"] == []
    await server.until(lambda: not server.live)


async def test_a_client_is_opened_once(dial):
    client = await dial()
    with pytest.raises(RuntimeError, match="once"):
        await client.open()


async def test_a_bug_in_the_supervisor_is_loud(server, dial, monkeypatch):
    client = dial.make()

    async def broken(endpoint):
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr(client._manager._dialer, "dial", broken)
    with pytest.raises(ZeroDivisionError):
        await client.open()
    dial.clients.clear()
    with pytest.raises(ClosedError):
        await client.kv.put_many(ONE)


async def test_statistics_add_up(server, dial):
    client = await dial()
    await client.kv.put_many(ONE)
    await asyncio.gather(client.kv.put("ns", "a", b"1"), client.kv.put("ns", "b", b"1"))
    statistics = client.statistics()
    assert (statistics.requests, statistics.answers, statistics.batches) == (2, 2, 1)
    assert (statistics.in_flight, statistics.waiting, statistics.retries) == (0, 0, 0)
    assert (statistics.connects, statistics.reconnects, statistics.endpoint) == (1, 0, "a:7420")


async def test_an_unknown_error_code_is_an_internal_error(server, dial):
    class FromTheFuture(InternalError, code=999_999, name="future"):
        """Not known to an older client."""

    from metad_wire.errors import ERRORS

    del ERRORS[999_999]
    server.answer = lambda received: received.fail(FromTheFuture("new"))
    client = await dial()
    with pytest.raises(InternalError, match="unknown error code 999999: new"):
        await client.kv.put_many(ONE)


async def test_two_clients_have_identities_of_their_own(server):
    transport: MemoryTransport = server.transport
    for _ in range(2):
        async with connect("metad://a", transport=transport) as client:
            await client.kv.put_many(ONE)
    first, second = (received.identity for received in server.received)
    assert first.client_id != second.client_id
    assert first == m.Identity(first.client_id, 1, 1, 0)


async def test_an_answer_that_nobody_waits_for_ends_a_suspicion(server, dial, settle):
    """A node that stood still answers what was asked before. Else nobody would ask it again."""
    server.answer = None
    client = await dial()
    with pytest.raises(DeadlineExceededError):
        await client.kv.get("ns", "k", deadline_s=0.2)
    suspects = client._dispatcher._suspects
    assert suspects.given_up
    server.received[0].reply()
    await settle()
    assert not suspects.given_up
