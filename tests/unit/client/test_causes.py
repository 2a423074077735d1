"""Every cause of failure on every path: what the table says is what the program gets, and at once where waiting would
not help. A class of errors without a row, or a path that does something else, fails here."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

import pytest
from scripted import Nodes, Received, Server, a_map, settled
from watch_server import WatchNodes

from metad_client import (
    Client,
    ConnectionLostError,
    DeadlineExceededError,
    MetadError,
    NotLeaderError,
    UnauthenticatedError,
    blocking,
    cli,
)
from metad_client.causes import CAUSES, Cause, Remedy, error_of_dial, stays
from metad_client.connections.dialer import typed
from metad_wire.errors import ERRORS, error_of
from metad_wire.methods import CLUSTER_MAP
from metad_wire.transport.credentials import CertificateError, TlsError

DEADLINE_S = 30.0
ON_THE_WIRE = [cause for cause in CAUSES if cause.error.code]
BY_ERROR = {cause.error: cause for cause in CAUSES}


def told(cause: Cause) -> MetadError:
    """The error as a node's words make it."""
    return cause.error(f"because of {cause.error.name}")


def at_a_dial(cause: Cause) -> Cause:
    """The row of a node's refusal to greet: what is no metad at all is a handshake that failed."""
    return BY_ERROR[error_of_dial(told(cause)) or cause.error]


def is_final(cause: Cause) -> bool:
    return stays(told(cause))


wire_causes = pytest.mark.parametrize("cause", ON_THE_WIRE, ids=lambda cause: cause.error.name)


def subclasses(kind: type[MetadError]) -> set[type[MetadError]]:
    below = {each for sub in kind.__subclasses__() for each in subclasses(sub)}
    return {kind, *below} if kind.__module__.startswith(("metad_client", "metad_wire")) else below


# --- the table ---


def test_every_class_of_errors_has_one_row() -> None:
    rows = [cause.error for cause in CAUSES]
    assert len(rows) == len(set(rows))
    missing = {kind for kind in subclasses(MetadError) if not kind.__name__.startswith("_")} - {MetadError} - set(rows)
    assert not missing, f"no row in metad_client/causes.py: {sorted(kind.__name__ for kind in missing)}"
    assert set(ERRORS.values()) <= set(rows)


@pytest.mark.parametrize("cause", CAUSES, ids=lambda cause: cause.error.name)
def test_what_is_retried_by_itself_is_what_the_wire_calls_retryable(cause: Cause) -> None:
    assert cause.error.retryable is (cause.remedy is Remedy.WAIT)
    assert cause.what


@pytest.mark.parametrize(
    ("foreign", "kind"),
    [
        (CertificateError("expired"), "unauthenticated"),
        (TlsError("no TLS"), "handshake_failed"),
        (ConnectionRefusedError(), "connection_lost"),
        (TimeoutError(), "connection_lost"),
        (OSError(113, "No route to host"), "connection_lost"),
    ],
)
def test_foreign_errors_of_a_dial_become_metads(foreign: OSError, kind: str) -> None:
    error = typed(foreign, "a:7420", 5.0)
    assert error.name == kind
    assert "a:7420" in str(error)


# --- dial ---


@wire_causes
async def test_dial(server: Server, dial: Any, cause: Cause) -> None:
    server.greeting_error = told(cause)
    loop, expected = asyncio.get_running_loop(), at_a_dial(cause)
    began_s = loop.time()
    with pytest.raises(expected.error, match=f"because of {cause.error.name}"):
        await dial(connect_timeout_s=DEADLINE_S)
    waited = expected.remedy is Remedy.WAIT
    assert (loop.time() - began_s >= DEADLINE_S) is waited
    if is_final(expected):
        assert loop.time() == began_s


# --- redial ---


async def refused_from_now_on(client: Client, server: Server, error: MetadError) -> None:
    server.greeting_error = error
    for peer in list(server.live):
        peer.cut()
    await settled()


@wire_causes
async def test_redial(server: Server, dial: Any, cause: Cause) -> None:
    client = await dial()
    await refused_from_now_on(client, server, told(cause))
    loop, expected = asyncio.get_running_loop(), at_a_dial(cause)
    began_s = loop.time()
    calls = [client.kv.put("ns", "k", b"7", deadline_s=DEADLINE_S), client.status(deadline_s=DEADLINE_S)]
    final = is_final(expected)
    for call in asyncio.as_completed(calls):
        with pytest.raises(expected.error if final else DeadlineExceededError, match=cause.error.name) as raised:
            await call
        assert raised.value.outcome_known
    assert (loop.time() - began_s < 5) is final  # the first dial waits for a moment
    if final:
        began_s = loop.time()
        with pytest.raises(expected.error):
            await client.kv.put("ns", "k", b"7", deadline_s=DEADLINE_S)
        assert loop.time() == began_s, "what is known is said at once"
    server.greeting_error = None
    await server.until(lambda: bool(server.live))
    await settled()
    assert await client.kv.put("ns", "k", b"8", deadline_s=DEADLINE_S) == 8, "the client goes on to dial"


async def test_redial_of_one_node_that_refuses_while_others_accept(server: Server, nodes: Nodes, dial: Any) -> None:
    """The others cannot answer for it, and do not hide why it does not."""
    nodes.place(data=1)
    client = await dial("metad://a,b,c")
    await server.until(lambda: len(server.live) == 3)
    await settled()
    leader = nodes.leaders["data-0"]
    server.refused_at.add(leader)
    for peer in server.live_of(leader):
        peer.cut()
    began_s = asyncio.get_running_loop().time()
    with pytest.raises(UnauthenticatedError, match=f"{leader} leads data-0, and .*withdrawn"):
        await client.kv.get("ns", "k", deadline_s=DEADLINE_S)
    assert asyncio.get_running_loop().time() - began_s < 5
    nodes.leaders["data-0"] = next(peer.node for peer in server.live)
    assert await client.kv.get("ns", "k", deadline_s=DEADLINE_S) is not None, "another node leads by then"


# --- in flight ---


@wire_causes
async def test_in_flight(server: Server, dial: Any, cause: Cause) -> None:
    """A node answers with the error once."""
    client = await dial()
    asked: list[Received] = []

    def answer(received: Received) -> None:
        asked.append(received)
        received.fail(told(cause)) if len(asked) == 1 else received.reply()

    server.answer = answer
    call = client.kv.get("ns", "k", deadline_s=DEADLINE_S)
    if cause.remedy is Remedy.WAIT:
        assert await call is not None
        assert len(asked) == 2
        return
    began_s = asyncio.get_running_loop().time()
    with pytest.raises(cause.error, match=f"because of {cause.error.name}"):
        await call
    assert len(asked) == 1
    assert asyncio.get_running_loop().time() == began_s


@wire_causes
async def test_the_connection_ends_in_flight(server: Server, dial: Any, cause: Cause) -> None:
    client = await dial()
    first: list[Received] = []

    def answer(received: Received) -> None:
        if first:
            received.reply()
            return
        first.append(received)
        if is_final(cause):
            server.greeting_error = told(cause)
        received.peer.session.fail_connection(told(cause))
        received.peer.flush()

    server.answer = answer
    call = client.kv.put("ns", "k", b"7", deadline_s=DEADLINE_S)
    if not is_final(cause):
        assert await call == 7, "another connection answers"
        return
    began_s = asyncio.get_running_loop().time()
    with pytest.raises(cause.error, match=f"because of {cause.error.name}") as raised:
        await call
    assert not raised.value.outcome_known, "the write was on its way"
    assert asyncio.get_running_loop().time() - began_s < 5


# --- watch ---


@pytest.mark.parametrize("how", ["opens", "ends"])
@wire_causes
async def test_watch(server: Server, dial: Any, cause: Cause, how: str) -> None:
    nodes = WatchNodes(server)
    server.map = a_map({"n1": "a:7420"}, data=2)
    client = await dial()
    group = nodes.group_with("ns")
    if how == "opens":
        nodes.refusals["n1", ""] = told(cause)
    watch = client.watch("kv")
    if how == "ends":
        await watch.opened()
        for stream in list(nodes.live):
            stream.end(told(cause))
    else:
        await settled()
    nodes.refusals.clear()
    if cause.remedy in (Remedy.WAIT, Remedy.ANEW):
        await asyncio.sleep(10)
        await watch.opened()
        await settled()
        group.put("k", b"1")
        async with asyncio.timeout(DEADLINE_S):
            batch = await anext(watch)
            while not batch.events:
                batch = await anext(watch)
        assert [event.record.value for event in batch.events] == [b"1"]
        return
    began_s = asyncio.get_running_loop().time()
    with pytest.raises(cause.error, match=f"because of {cause.error.name}"):
        await anext(watch)
    assert asyncio.get_running_loop().time() == began_s


@wire_causes
async def test_watch_when_the_node_refuses_the_client_later(server: Server, dial: Any, cause: Cause) -> None:
    WatchNodes(server)
    server.map = a_map({"n1": "a:7420"}, data=2)
    client = await dial()
    watch = await client.watch("kv").opened()
    await refused_from_now_on(client, server, told(cause))
    waiting = asyncio.ensure_future(anext(watch))
    await asyncio.sleep(10)
    expected = at_a_dial(cause)
    assert waiting.done() is is_final(expected)
    if waiting.done():
        assert type(waiting.exception()) is expected.error
    waiting.cancel()
    with suppress(asyncio.CancelledError, MetadError):
        await waiting


# --- the question for the map ---


@wire_causes
async def test_map_refresh(server: Server, dial: Any, cause: Cause) -> None:
    server.scripts_map = True
    refused = True

    def answer(received: Received) -> None:
        if received.method is not CLUSTER_MAP:
            received.reply()
        elif refused:
            received.fail(told(cause))
        else:
            received.peer.tell_map(received.request_id, 0)

    server.answer = answer
    client = await dial()
    loop = asyncio.get_running_loop()
    began_s = loop.time()
    final = is_final(cause)
    with pytest.raises(cause.error if final else DeadlineExceededError) as raised:
        await client.kv.put("ns", "k", b"7", deadline_s=DEADLINE_S)
    assert raised.value.outcome_known
    assert (loop.time() - began_s < 5) is final
    refused = False
    if not final:
        assert await client.kv.put("ns", "k", b"7", deadline_s=DEADLINE_S) == 7


async def test_a_node_that_cannot_tell_the_map_now_is_no_refusal(server: Server, dial: Any) -> None:
    server.map = None
    client = await dial()
    with pytest.raises(DeadlineExceededError) as raised:
        await client.kv.put("ns", "k", b"7", deadline_s=1)
    assert isinstance(raised.value.__cause__, NotLeaderError | ConnectionLostError | None)


# --- the blocking client, and metadctl ---


@wire_causes
def test_blocking(scripted_server: Server, cause: Cause) -> None:
    asked: list[Received] = []

    def answer(received: Received) -> None:
        asked.append(received)
        received.fail(told(cause)) if len(asked) == 1 else received.reply()

    with blocking.connect("metad://a", transport=scripted_server.transport) as client:
        scripted_server.answer = answer
        if cause.remedy is Remedy.WAIT:
            assert client.kv.get("ns", "k") is not None
            return
        with pytest.raises(cause.error, match=f"because of {cause.error.name}"):
            client.kv.get("ns", "k")


@pytest.mark.parametrize("error", [cause.error for cause in CAUSES], ids=lambda error: error.name)
async def test_no_answer_makes_a_loop_without_a_wait(server: Server, dial: Any, error: type[MetadError]) -> None:
    """A server that says "too early" for ever got the call again as fast as it answered."""
    server.answer = lambda received: received.fail(error("again"))
    client = await dial()
    with pytest.raises(MetadError):
        await client.kv.put("ns", "k", b"v", deadline_s=10)
    assert len(server.received) <= 60


@wire_causes
@pytest.mark.parametrize("when", ["it greets", "it answers"])
def test_metadctl(scripted_server: Server, capsys: Any, cause: Cause, when: str) -> None:
    def answer(received: Received) -> None:
        received.fail(told(cause))

    scripted_server.answer = answer
    if when == "it greets":
        scripted_server.greeting_error = told(cause)
    status = cli.main(
        ["--endpoint", "a", "--timeout", "0.3", "get", "kv", "ns", "k"], transport=scripted_server.transport
    )
    printed = capsys.readouterr()
    assert status == 1
    assert printed.out == ""
    retold = {"not_leader": "data-0 has no leader"}  # by what the client knows
    name = cause.error.name
    assert (name if when == "it greets" else retold.get(name, name)) in printed.err
    assert len(printed.err.splitlines()) == 1
    assert type(error_of(told(cause).body())) is cause.error
