"""Sessions that a program owns: of the connections of a client exactly one stays, and each other one hears of it,
whatever comes first: the answer, or the news."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import pytest

from metad import embedded
from metad_client import (
    Client,
    ClosedError,
    ConflictError,
    FencedError,
    InvalidItemError,
    InvalidRequestError,
    MetadError,
    NotFoundError,
    NotOwnerError,
    Owned,
    Revision,
    SessionKey,
    SessionOwner,
    SessionProperties,
    SessionTakeoverItem,
    Takeover,
    blocking,
    connect,
)
from metad_client.holding.owned import Following
from metad_client.requests.behind import Behind
from metad_client.watch.event import WatchEvent
from metad_client.watch.events import WatchBatch
from metad_wire.cluster import SLOTS
from metad_wire.messages import Owner, Session
from metad_wire.watch import ChangeKind
from waiting import until

WAIT_S = 30.0
ALL = (1 << SLOTS) - 1


@pytest.fixture
async def clients() -> AsyncIterator[tuple[Client, Client]]:
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(embedded.serve())
        one = await stack.enter_async_context(connect(server.url))
        two = await stack.enter_async_context(connect(server.url))
        yield one, two


async def why(owned: Owned) -> MetadError:
    async with asyncio.timeout(WAIT_S):
        return await owned.lost()


async def test_of_hundreds_of_connections_at_one_instant_one_each_stays(clients: tuple[Client, Client]) -> None:
    names = [f"c{number}" for number in range(300)]
    tries = [client.owned(broker, 1, "t", name) for name in names for client, broker in zip(clients, "ab", strict=True)]
    found = await asyncio.gather(*tries, return_exceptions=True)
    taken = [one for one in found if isinstance(one, Owned)]
    assert all(isinstance(one, Owned | NotOwnerError) for one in found)
    await until(lambda: len([one for one in taken if one.error is None]) <= len(names))
    held = {one.key.client_id: one for one in taken if one.error is None}
    sessions = await clients[0].sessions.get_many([SessionKey("t", name) for name in names])
    assert [held[name].owner.broker for name in names] == [session.broker for session in sessions if session]


async def test_the_news_may_come_before_the_answer(
    clients: tuple[Client, Client], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first broker learns that its takeover was done when the second has the client, and its watch has told it."""
    one, two = clients
    heard, takeover = asyncio.Event(), one.sessions.takeover
    first = await one.owned("a", 1, "t", "before")

    async def late(*arguments: Any, **settings: Any) -> Any:
        taken = await takeover(*arguments, **settings)
        await two.owned("b", 1, "t", "c")
        await two.owned("b", 1, "t", "before")  # the watch of the first is behind both
        await why(first)
        heard.set()
        return taken

    monkeypatch.setattr(one.sessions, "takeover", late)
    with pytest.raises(NotOwnerError, match="client 'c' of tenant 't' has connected to broker 'b'"):
        await one.owned("a", 1, "t", "c")
    assert heard.is_set()
    assert len(one._ownership) == 0


async def test_whatever_ends_a_connection_is_told(clients: tuple[Client, Client]) -> None:
    one, two = clients
    names = ["elsewhere", "again", "restarted", "gone", "left", "stays"]
    owned = {name: await one.owned("a", 1, "t", name) for name in names}
    told: list[tuple[str, str]] = []
    for name, each in owned.items():
        each.on_lost(lambda error, name=name: told.append((name, error.name)))
    await two.sessions.takeover("b", 1, "t", "elsewhere")
    newer = await one.owned("a", 1, "t", "again")
    await two.sessions.takeover("a", 2, "t", "restarted")
    await two.sessions.delete("t", "gone")
    await two.sessions.disconnect("a", 1, "t", "left", expiry_interval_s=600)
    errors = {name: type(await why(owned[name])) for name in names[:-1]}
    assert errors == {
        "elsewhere": NotOwnerError,
        "again": ConflictError,
        "restarted": FencedError,
        "gone": NotFoundError,
        "left": ConflictError,
    }
    assert sorted(name for name, _ in told) == sorted(names[:-1])
    late: list[str] = []
    owned["gone"].on_lost(lambda error: late.append(error.name))
    assert late == ["not_found"], "who asks too late hears at once"
    assert newer.error is owned["stays"].error is None
    assert len(one._ownership) == 2
    assert await owned["stays"].disconnect(expiry_interval_s=600)
    assert not await owned["elsewhere"].disconnect()
    assert ("stays", "conflict") not in told, "the program knows what it does itself"
    assert len(one._ownership) == 1


async def test_a_client_that_comes_again_and_again_has_its_last_connection(clients: tuple[Client, Client]) -> None:
    found = await asyncio.gather(*(clients[0].owned("a", 1, "t", "c") for _ in range(200)), return_exceptions=True)
    assert all(isinstance(one, Owned | ConflictError) for one in found)
    (held,) = [one for one in found if isinstance(one, Owned) and one.error is None]
    assert await held.disconnect()


async def test_many_at_once(clients: tuple[Client, Client]) -> None:
    one, two = clients
    items = [SessionTakeoverItem("t", name, properties=SessionProperties(60, b"p")) for name in "abca"]
    items.append(SessionTakeoverItem("t", "x" * 5_000))
    result = await one.owned_many("a", 1, items, restore=True)
    assert [each is not None for each in result] == [False, True, True, True, False]
    assert (type(result.errors[0]), type(result.errors[4])) == (ConflictError, InvalidItemError)
    again = await two.owned_many("b", 1, items[:3], restore=True)
    assert again.ok
    assert [each.taken.properties for each in again if each] == [SessionProperties(60, b"p")] * 3
    for each in result:
        assert each is None or isinstance(await why(each), NotOwnerError)
    held = again[0]
    assert held is not None
    held.drop_restored()
    assert held.taken.properties is None
    assert held.taken.session_present
    with pytest.raises(ConflictError):
        result.raise_for_error()
    with pytest.raises(InvalidRequestError):
        await one.owned("", 1, "t", "c")


async def test_nobody_waits_for_it_any_more(clients: tuple[Client, Client], monkeypatch: pytest.MonkeyPatch) -> None:
    """A takeover that was done for a caller who was cancelled leaves no client connected, and no trace."""
    one, two = clients
    done, go_on, takeover = asyncio.Event(), asyncio.Event(), one.sessions.takeover

    async def slow(*arguments: Any, **settings: Any) -> Any:
        taken = await takeover(*arguments, **settings)
        done.set()
        await go_on.wait()
        return taken

    monkeypatch.setattr(one.sessions, "takeover", slow)
    task = asyncio.create_task(one.owned("a", 1, "t", "c", properties=SessionProperties(600)))
    await done.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    go_on.set()
    async with asyncio.timeout(WAIT_S):
        while (session := await two.sessions.get("t", "c")) is None or session.connected:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    await until(lambda: len(one._ownership) == 0)


async def test_a_client_that_is_closed_owns_nothing(clients: tuple[Client, Client]) -> None:
    owned = await clients[0].owned("a", 1, "t", "c")
    await clients[0].close()
    assert isinstance(await why(owned), ClosedError)


def test_without_asyncio() -> None:
    with embedded.serve_in_thread() as server, blocking.connect(server.url) as one, blocking.connect(server.url) as two:
        owned = one.owned("a", 1, "t", "c")
        assert owned.error is None
        (other,) = two.owned_many("b", 1, [SessionTakeoverItem("t", "c")])
        assert isinstance(owned.lost(), NotOwnerError)
        assert not owned.disconnect()
        assert other is not None
        assert other.disconnect()


class Told:
    """A watch that says what the test wants, and the sessions as they are."""

    def __init__(self, sessions: dict[str, Session | None]) -> None:
        self.batches: asyncio.Queue[WatchBatch | None] = asyncio.Queue()
        self.sessions = sessions
        self.asked: list[str] = []

    def __aiter__(self) -> Told:
        return self

    async def __anext__(self) -> WatchBatch:
        batch = await self.batches.get()
        if batch is None:
            raise StopAsyncIteration
        return batch

    async def get_many(self, keys: list[SessionKey]) -> Any:
        self.asked += [key.client_id for key in keys]

        class Found(list[Session | None]):
            errors: dict[int, MetadError] = {}  # noqa: RUF012

        return Found([self.sessions[key.client_id] for key in keys])

    def snapshot(self, *shown: str) -> None:
        """After a gap: all sessions that this broker has, by the record."""
        batch = WatchBatch("snapshot", "data-0", "c", {}, slots=ALL, first=True, last=True)
        owner = SessionOwner(True, "a", 1, 0)
        revision = Revision("data-0", 0)
        batch._events = [
            WatchEvent(
                "session", "owner", ChangeKind.WRITTEN, SessionKey("t", name), owner, None, False, revision, 0, 0
            )
            for name in shown
        ]
        self.batches.put_nowait(batch)


async def test_what_a_gap_may_have_hidden_is_looked_for() -> None:
    """Sessions that the snapshot after the gap does not show are read, and those alone; one whose takeover is not
    answered yet as soon as it is."""
    mine = Session("t", "", True, "a", 1, 0, SessionProperties())
    theirs = Session("t", "", True, "b", 1, 0, SessionProperties())
    told = Told({"shown": mine, "newer": mine, "lost": theirs, "ended": None, "under way": theirs})
    following = Following(told, told, Behind(told, "test"))  # type: ignore[arg-type]
    owned = {name: Owned(following, Owner("a", 1), SessionKey("t", name)) for name in told.sessions}
    following.expect([*owned.values()])
    for name, one in owned.items():
        one._taken = Takeover(None, False, attachment=0 if name == "under way" else 7)
    running = asyncio.create_task(following.run())
    told.snapshot("shown")
    await until(lambda: owned["ended"].error)
    assert sorted(told.asked) == ["ended", "lost", "newer"]
    assert isinstance(owned["lost"].error, NotOwnerError)
    assert isinstance(owned["ended"].error, NotFoundError)
    following.answered(owned["under way"], Takeover(None, False, attachment=9))
    assert isinstance(await why(owned["under way"]), NotOwnerError)
    assert owned["shown"].error is owned["newer"].error is None
    told.batches.put_nowait(None)
    await running
    assert isinstance(owned["shown"].error, ClosedError)
    assert len(following) == 0
