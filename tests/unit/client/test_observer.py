"""What the log and an observer are told: connections, retries with their reasons, redirects, and how requests end. An
observer that fails ends no call, and nothing secret is logged."""

from __future__ import annotations

import asyncio
import logging

import pytest
from scripted import ENDPOINTS

from metad_client import (
    ClosedError,
    ConflictError,
    Connected,
    ConnectionLostError,
    DeadlineExceededError,
    Disconnected,
    Ended,
    KvPutItem,
    NotLeaderError,
    Observer,
    OverloadedError,
    Redirected,
    Retried,
    UnauthenticatedError,
    blocking,
)
from metad_wire import messages as m


class Notes(Observer):
    """Notes everything."""

    def __init__(self) -> None:
        self.events: list[object] = []
        self.connected = self.disconnected = self.retried = self.redirected = self.ended = self.events.append

    def of(self, kind: type) -> list:
        return [event for event in self.events if type(event) is kind]


@pytest.fixture
def log(caplog):
    caplog.set_level(logging.DEBUG, logger="metad_client")

    def lines(level: int = logging.DEBUG) -> list[str]:
        return [record.getMessage() for record in caplog.records if record.levelno >= level]

    return lines


async def test_connections_are_reported_and_their_ends(server, dial, settle, log):
    notes = Notes()
    client = await dial(observer=notes)
    assert notes.events == [Connected(node="n1", endpoint="a:7420", via="given")]
    assert log() == ["connected to node n1 at a:7420 over given"]
    server.live[0].cut()
    await server.until(lambda: len(server.peers) == 2)
    await settle()
    lost = notes.of(Disconnected)[0]
    assert (lost.node, lost.endpoint, type(lost.reason)) == ("n1", "a:7420", ConnectionLostError)
    assert len(notes.of(Connected)) == 2
    server.live[0].goaway()
    await server.until(lambda: len(server.peers) == 3)
    await settle()
    assert notes.of(Disconnected)[1].reason is None
    await client.close()
    assert notes.of(Disconnected)[2:] == [Disconnected(node="n1", endpoint="a:7420", reason=None)]
    ended = "the connection to node n1 at a:7420 has ended in order"
    assert [line for line in log() if not line.startswith("connected")][1:] == [ended, ended]
    assert log(logging.WARNING) == [f"the connection to node n1 at a:7420 is lost: {lost.reason}"]


async def test_a_node_that_cannot_be_reached_is_one_warning_until_it_was_reached(server, dial, settle, log):
    client = await dial()
    for _ in range(2):
        await server.stop_listening()
        server.live[0].cut()
        await asyncio.sleep(60)
        await server.listen()
        await server.until(lambda: bool(server.live))
        await settle()
    warnings = [line for line in log(logging.WARNING) if line.startswith("cannot connect to node n1")]
    assert len(warnings) == 2
    assert len([line for line in log() if line.startswith("cannot connect to node n1")]) > 4
    await client.close()


async def test_the_end_of_each_request_is_reported_with_its_time_and_outcome(server, dial, settle):
    notes = Notes()
    client = await dial(observer=notes)
    await settle()

    await client.kv.put("ns", "k", b"7")
    server.answer = lambda received: received.reply(m.KvPutReply([], [m.ItemError(1, ConflictError.code)], [1, 0]))
    await client.kv.put_many([KvPutItem("ns", "a", b""), KvPutItem("ns", "b", b"")])
    server.answer = lambda received: received.fail(ConflictError("no"))
    with pytest.raises(ConflictError):
        await client.kv.get("ns", "k")
    server.answer = None
    call = asyncio.create_task(client.status())
    await server.requests(4)
    await asyncio.sleep(2)
    call.cancel()
    await asyncio.wait([call])

    done, partly, refused, abandoned = notes.of(Ended)
    assert done == Ended(verb="kv.put", group="data-0", seconds=0, attempts=1, outcome="ok", error=None, refused=0), (
        "the test's clock stands still"
    )
    assert (partly.outcome, partly.refused) == ("ok", 1)
    assert (refused.verb, refused.outcome, type(refused.error)) == ("kv.get", "conflict", ConflictError)
    assert (abandoned.verb, abandoned.group, abandoned.outcome, abandoned.seconds) == (
        "system.status",
        "",
        "abandoned",
        2,
    )


async def test_requests_that_a_closed_client_ends_are_reported(server, dial):
    notes = Notes()
    client = await dial(observer=notes)
    server.answer = None
    call = asyncio.create_task(client.kv.put("ns", "k", b"7"))
    await server.requests(1)
    await client.close()
    with pytest.raises(ClosedError):
        await call
    assert [event.outcome for event in notes.of(Ended)] == ["closed"]


async def test_retries_are_reported_with_their_reason(server, dial, log):
    notes = Notes()
    client = await dial(observer=notes)
    refusals = [OverloadedError("full", retry_after_ms=500), ConnectionLostError("")]

    def answer(received):
        refusal = refusals.pop(0) if refusals else None
        if isinstance(refusal, OverloadedError):
            received.fail(refusal)
        elif refusal is not None:
            received.peer.cut()
        else:
            received.reply()

    server.answer = answer
    assert await client.kv.put("ns", "k", b"7") == 7
    first, second = notes.of(Retried)
    assert (first.verb, first.group, first.attempts, first.reason.message) == ("kv.put", "data-0", 1, "full")
    assert (second.attempts, type(second.reason)) == (2, ConnectionLostError)
    assert "kv.put of data-0 is tried again after attempt 1: full" in log()
    ended = notes.of(Ended)[0]
    assert (ended.attempts, ended.outcome) == (3, "ok")
    assert ended.seconds >= 0.5


async def test_redirects_are_reported(server, nodes, dial, settle, log):
    notes = Notes()
    client = await dial(observer=notes)
    await settle()
    nodes.leaders = {**nodes.leaders, "data-0": "n2"}
    await client.sessions.get_many([m.SessionKey("t", f"c{i}") for i in range(200)])
    assert notes.of(Redirected) == [Redirected(verb="session.get", group="data-0", left="n1", to="n2")]
    assert not notes.of(Retried)
    assert "session.get of data-0 goes from node n1 to node n2" in log()
    assert {event.node for event in notes.of(Connected)} == set(ENDPOINTS)


async def test_a_request_that_is_taken_from_a_silent_node_is_reported(server, nodes, dial, settle):
    notes = Notes()
    client = await dial(observer=notes)
    await settle()
    leader = nodes.leaders["data-0"]
    server.frozen.add(leader)
    call = asyncio.create_task(client.sessions.get_many([m.SessionKey("t", f"c{i}") for i in range(200)]))
    await asyncio.sleep(0.1)
    nodes.leaders = server.leaders = dict.fromkeys(nodes.leaders, "n3")
    await call
    taken = [event for event in notes.of(Redirected) if event.left == leader]
    assert {(event.group, event.to) for event in taken} >= {("data-0", "n3")}


class Faulty(Observer):
    def connected(self, event):
        raise RuntimeError("in connected")

    def ended(self, event):
        raise RuntimeError("in ended")


async def test_an_observer_that_fails_ends_no_call_and_is_logged_once_a_method(server, dial, settle, log):
    client = await dial(observer=Faulty())
    for _ in range(3):
        assert await client.kv.put("ns", "k", b"7") == 7
    server.live[0].cut()
    await server.until(lambda: len(server.peers) == 2)
    await settle()
    errors = log(logging.ERROR)
    assert errors == [
        f"the observer's {name}() raised an exception; this is logged once" for name in ("connected", "ended")
    ]


async def test_credentials_and_contents_are_not_logged(server, dial, log):
    notes = Notes()
    server.greeting_error = UnauthenticatedError("unknown token")
    with pytest.raises(UnauthenticatedError):
        await dial("metad://a", observer=notes, credentials=b"s3cret-token", connect_timeout_s=1)
    server.greeting_error = None
    client = await dial(credentials=b"s3cret-token")
    server.answer = lambda received: received.fail(NotLeaderError())
    with pytest.raises(DeadlineExceededError):
        await client.kv.put("ns", "k", b"s3cret-value", deadline_s=1)
    assert "cannot connect to a:7420: a:7420 refuses this client: unknown token" in log(logging.WARNING)
    assert any("tried again" in line for line in log())
    assert "s3cret" not in "\n".join(log())


def test_a_program_that_configures_no_logging_sees_nothing(scripted_server, capfd, monkeypatch):
    """The last resort of the logging module prints warnings of a library without a handler."""
    monkeypatch.setattr(logging.getLogger(), "handlers", [])
    scripted_server.greeting_error = UnauthenticatedError("unknown token")
    with pytest.raises(UnauthenticatedError):
        blocking.connect("metad://a", transport=scripted_server.transport)
    assert capfd.readouterr() == ("", "")


def test_the_observer_of_a_blocking_client_is_called_in_its_thread_and_cannot_call_the_client(scripted_server, log):
    class Caller(Notes):
        def __init__(self) -> None:
            super().__init__()
            self.ended = self.call
            self.failures: list[Exception] = []

        def call(self, event):
            try:
                client.kv.get("ns", "k")
            except RuntimeError as error:
                self.failures.append(error)

    caller = Caller()
    with blocking.connect("metad://a", observer=caller, transport=scripted_server.transport) as client:
        assert client.kv.put("ns", "k", b"7") == 7
    assert [str(error) for error in caller.failures] == [
        "a blocking call was made in the thread that would have to answer it"
    ]
    assert caller.of(Connected)
