"""The portal: the same client, without asyncio."""

from __future__ import annotations

import asyncio
import pydoc
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest

from metad_client import (
    ClosedError,
    ConflictError,
    ConnectionLostError,
    InvalidRequestError,
    KvPutItem,
    Options,
    SessionTakeoverItem,
    Takeover,
    blocking,
)
from metad_wire import messages as m


@pytest.fixture
def client(scripted_server):
    with blocking.connect("metad://a", transport=scripted_server.transport) as client:
        yield client
    assert not [thread for thread in threading.enumerate() if thread.name == "metad-client"]


def test_calls_block_and_return_what_the_async_client_does(client):
    assert client.kv.put("ns", "k", b"7") == 7
    assert client.kv.get("ns", "k") == m.Kv("ns", "k", b"k", 1, 1, 1)
    assert client.kv.put_many([KvPutItem("ns", "k", b"7")]).versions == [7]
    assert client.sessions.takeover("b", 1, "t", "c") == Takeover(m.Owner("old", 1), True, attachment=1)
    assert client.sessions.takeover_many("b", 1, [SessionTakeoverItem("t", "c")]).session_present(0)
    assert client.offsets.fetch("t", "g", "topic", 0).offset == 42
    assert client.status().node_id == "n1"
    assert client.statistics().connects == 1


def test_listings_are_iterators(client, scripted_server):
    assert [session.client_id for session in client.sessions.list("t")] == ["c0", "c1", "c2"]
    count = 3 * blocking.CHUNK_RECORDS
    page = [m.Kv("ns", f"k{i:04}", b"", 1, 1, 1) for i in range(count)]
    scripted_server.answer = lambda received: received.reply(m.ListReply(page, b""))
    assert [record.key for record in client.kv.scan("ns")] == [record.key for record in page]
    assert next(iter(client.kv.scan("ns"))) == page[0]  # a listing may be left halfway


def test_errors_are_the_same(client, scripted_server):
    scripted_server.answer = lambda received: received.fail(ConflictError("no"))
    with pytest.raises(ConflictError, match="no"):
        client.kv.put("ns", "k", b"7")
    with pytest.raises(TypeError):
        client.kv.put("ns")
    with pytest.raises(AttributeError):
        client.kv.no_such_verb  # noqa: B018
    with pytest.raises(AttributeError):
        client._private  # noqa: B018


def test_it_looks_like_what_it_stands_for(client):
    assert {"sessions", "offsets", "kv", "status", "close"} <= set(dir(client))
    assert {"put", "put_many", "scan"} <= set(dir(client.kv))
    assert client.kv.put.__doc__.startswith("Write one key")
    assert repr(client.kv) == "<blocking KeyValue>"
    assert repr(blocking.KeyValue.scan).startswith("<blocking scan(self, namespace: 'str', prefix: 'str' = '', *, page")
    assert "Write one key" in pydoc.render_doc(blocking.KeyValue)


def test_threads_share_it(client, scripted_server):
    with ThreadPoolExecutor(16) as pool:
        versions = list(pool.map(lambda i: client.kv.put("ns", f"k{i}", str(i).encode()), range(200)))
    assert versions == list(range(200))
    assert sum(len(received.body.items) for received in scripted_server.received) == 200


def test_a_call_in_flight_ends_when_the_client_is_closed(scripted_server):
    client = blocking.connect("metad://a", transport=scripted_server.transport)
    asked = threading.Event()
    scripted_server.answer = lambda received: asked.set()
    with ThreadPoolExecutor(1) as pool:
        call = pool.submit(client.kv.put, "ns", "k", b"7")
        assert asked.wait(10)
        client.close()
        with pytest.raises(ClosedError):
            call.result(10)
    client.close()
    with pytest.raises(ClosedError, match="nothing was done"):
        client.kv.put("ns", "k", b"7")
    with pytest.raises(ClosedError, match="nothing was done"):
        next(client.kv.scan("ns"))


def test_a_blocking_call_in_the_clients_own_thread_is_refused_and_not_waited_for(client):
    with pytest.raises(RuntimeError, match="the thread that would have to answer"):
        client._portal.call(client.kv.put, "ns", "k", b"7")
    assert client.kv.put("ns", "k", b"7") == 7


def in_a_thread(function: Callable[..., Any], *args: Any) -> Future[Any]:
    """Its outcome. A thread that hangs does not keep the tests from ending."""
    outcome: Future[Any] = Future()

    def run() -> None:
        try:
            outcome.set_result(function(*args))
        except BaseException as error:  # noqa: BLE001 - told to the test
            outcome.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return outcome


def test_whatever_waits_when_the_client_is_closed_ends_with_closed_error(client):
    """Guards waits that are no requests: of a lease that is lost, of a generation that has ended."""
    waits = threading.Event()

    async def for_ever() -> None:
        waits.set()
        await asyncio.Event().wait()

    waiting = in_a_thread(client._portal.run, for_ever())
    assert waits.wait(10)
    client.close()
    with pytest.raises(ClosedError, match="before this had ended"):
        waiting.result(10)


def test_a_call_made_while_the_client_is_closed_does_not_hang(client):
    """Guards calls that came to a loop that had cancelled its tasks, and ran no others."""
    waits, ends, called = threading.Event(), threading.Event(), threading.Event()

    async def ends_slowly() -> None:
        try:
            waits.set()
            await asyncio.Event().wait()
        finally:
            ends.set()
            called.wait(10)

    waiting = in_a_thread(client._portal.run, ends_slowly())
    assert waits.wait(10)
    closing = in_a_thread(client.close)
    assert ends.wait(10)
    try:
        with pytest.raises(ClosedError, match="nothing was done"):
            in_a_thread(client.kv.get, "ns", "k").result(5)
    finally:
        called.set()
    closing.result(10)
    with pytest.raises(ClosedError):
        waiting.result(10)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_calls_do_not_hang_if_the_clients_thread_ends_by_itself(client):
    waits = threading.Event()

    async def for_ever() -> None:
        waits.set()
        await asyncio.Event().wait()

    def leave() -> None:
        raise SystemExit

    waiting = in_a_thread(client._portal.run, for_ever())
    assert waits.wait(10)
    with pytest.raises(SystemExit):
        in_a_thread(client._portal.call, leave).result(10)
    with pytest.raises(ClosedError):
        waiting.result(10)
    client._portal._thread.join(10)
    with pytest.raises(ClosedError, match="nothing was done"):
        client.kv.get("ns", "k")
    client.close()


def test_a_client_that_is_closed_in_its_own_thread_refuses_that_and_lives_on(client):
    with pytest.raises(RuntimeError, match="the thread that would have to answer"):
        client._portal.call(client.close)
    assert client.kv.put("ns", "k", b"7") == 7


def test_a_client_that_cannot_be_opened_leaves_no_thread(scripted_server):
    with pytest.raises(ConnectionLostError, match="refused"):
        blocking.connect("metad://nobody", Options(connect_timeout_s=0), transport=scripted_server.transport)
    with pytest.raises(InvalidRequestError, match="quic"):
        blocking.connect("quic://a")
    assert not [thread for thread in threading.enumerate() if thread.name == "metad-client"]
