"""A client that is used where, when or as it cannot be says so at once."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from metad_client import ClosedError, InvalidRequestError, Options, connect
from metad_wire import messages as m

VERBS = {
    "put": lambda client: client.kv.put("ns", "k", b"1"),
    "wrong single": lambda client: client.kv.put("ns", None, b"1"),
    "put_many": lambda client: client.kv.put_many([m.KvPutItem("ns", "k", b"1")]),
    "no items": lambda client: client.sessions.takeover_many("b", 1, []),
    "wrong items": lambda client: client.sessions.takeover_many("b", 1, [None]),
    "no keys": lambda client: client.offsets.fetch_many([]),
    "transact_many": lambda client: client.kv.transact_many([]),
    "scan": lambda client: all_of(client.kv.scan("ns")),
    "list": lambda client: all_of(client.sessions.list()),
    "map": lambda client: client.cluster.map(),
    "status": lambda client: client.status(),
}


async def all_of(listing: Any) -> list[Any]:
    return [record async for record in listing]


@pytest.mark.parametrize("verb", VERBS)
async def test_a_client_that_was_never_opened_says_so(dial: Any, verb: str) -> None:
    client, clock = dial.make(), asyncio.get_running_loop().time
    began = clock()
    with pytest.raises(ClosedError, match=r"not opened.*nothing was done") as raised:
        await VERBS[verb](client)
    assert raised.value.outcome_known
    assert clock() == began


@pytest.mark.parametrize("verb", VERBS)
async def test_a_closed_client_says_so_whatever_it_is_given(dial: Any, verb: str) -> None:
    client = await dial()
    await client.close()
    with pytest.raises(ClosedError, match="the client is closed; nothing was done") as raised:
        await VERBS[verb](client)
    assert raised.value.outcome_known


@pytest.mark.parametrize("was_open", [False, True])
async def test_a_closed_client_is_not_opened(dial: Any, was_open: bool) -> None:
    client = await dial() if was_open else dial.make()
    await client.close()
    with pytest.raises(ClosedError, match="the client is closed; nothing was done"):
        await client.open()


async def test_a_client_that_is_closed_while_it_is_opened_says_so(server: Any, dial: Any) -> None:
    """Guards programs that took it for a cancellation: a task group ended without an error."""
    server.greets = False
    client = dial.make()
    opening = asyncio.ensure_future(client.open())
    await server.until(lambda: bool(server.live))
    await client.close()
    with pytest.raises(ClosedError, match="closed before it was open") as raised:
        await opening
    assert raised.value.outcome_known


@pytest.mark.parametrize("verb", VERBS)
async def test_a_call_from_another_event_loop_is_refused_and_not_waited_for(server: Any, dial: Any, verb: str) -> None:
    client = await dial()

    def elsewhere() -> None:
        async def call() -> None:
            await asyncio.wait_for(VERBS[verb](client), 5)

        asyncio.run(call())

    with pytest.raises(RuntimeError, match="belongs to the event loop"):
        await asyncio.to_thread(elsewhere)
    assert not server.received
    assert await client.kv.put("ns", "k", b"7") == 7


@pytest.mark.parametrize(
    ("url", "complaint"),
    [
        (None, "url: expected str, got NoneType"),
        (b"metad://h:1", "url: expected str, got bytes"),
        (5, "url: expected str, got int"),
        ("", "write metad://HOST:PORT"),
        ("http://h:1", "no transport for http://"),
        ("metad://h:0", "port 0"),
        ("metad://[::1", "written .ADDRESS."),
        ("metads://h:1", "an authority to trust"),
    ],
)
async def test_connect_names_what_is_wrong_with_a_url(url: Any, complaint: str) -> None:
    with pytest.raises(InvalidRequestError, match=complaint):
        connect(url)


async def test_connect_names_an_observer_that_is_none() -> None:
    """Guards a client that never opened, because its observer could not be told that a node was connected."""
    with pytest.raises(InvalidRequestError, match="observer: expected Observer, got object"):
        connect("metad://h", observer=object())  # type: ignore[arg-type]


async def test_connect_names_what_is_wrong_with_options() -> None:
    with pytest.raises(InvalidRequestError, match="options: expected Options, got dict"):
        connect("metad://h", {"deadline_s": 1})  # type: ignore[arg-type]
    with pytest.raises(InvalidRequestError, match="clear text"):
        connect("metad://h", Options(credentials=b"token"))
