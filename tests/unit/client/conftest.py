"""A metad that a test scripts (``scripted.py``), on a clock of the test's own.

The loop's clock jumps to the next timer whenever nothing else is to be done, so deadlines, backoffs and dead
peers cost no time and come in a fixed order.
"""

from __future__ import annotations

import asyncio
import random
import selectors
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent / "wire"))
sys.path.insert(0, str(Path(__file__).parent))  # the tests have no packages

from scripted import Nodes, Server, a_map, a_session

from metad_client import Client, Observer, Options, connect
from metad_wire import cluster as c
from metad_wire import messages as m
from sim.memory import MemoryTransport


class JumpingSelector(selectors.DefaultSelector):
    """Passes the time that a wait would take."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 1000.0

    def select(self, timeout: float | None = None) -> list[Any]:
        ready = super().select(0)
        if ready:
            return ready
        if timeout is None:  # only another thread can wake the loop
            ready = super().select(10)
            if not ready:
                raise RuntimeError("deadlock: nothing is left that could happen")
            return ready
        self.now += timeout
        return []


class JumpingLoop(asyncio.SelectorEventLoop):
    """An event loop on that selector's clock."""

    def __init__(self) -> None:
        self._jumping = JumpingSelector()
        super().__init__(self._jumping)

    def time(self) -> float:
        return self._jumping.now


def pytest_asyncio_loop_factories(config: pytest.Config, item: pytest.Item) -> dict[str, Any]:
    # Over real sockets a packet on its way through the kernel would look as if nothing were left to happen.
    return {"real": asyncio.new_event_loop} if item.path.name == "test_early.py" else {"jumping": JumpingLoop}


@pytest.fixture
async def server() -> Server:
    server = Server(MemoryTransport())
    await server.listen()
    return server


@pytest.fixture
async def nodes(server: Server) -> Nodes:
    """Three, of which one is listening already."""
    await server.listen("b", "n2")
    await server.listen("c", "n3")
    return Nodes(server)


class Dial:
    """Makes clients of the scripted server; all are closed at the end of the test."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.clients: list[Client] = []

    def make(self, url: str = "metad://a", *, observer: Observer | None = None, **options: Any) -> Client:
        transport, rng = self.server.transport, random.Random(7)
        client = connect(url, Options(**options), observer=observer, transport=transport, rng=rng)
        self.clients.append(client)
        return client

    async def __call__(self, url: str = "metad://a", **options: Any) -> Client:
        return await self.make(url, **options).open()


@pytest.fixture
async def dial(server: Server) -> AsyncIterator[Dial]:
    dial = Dial(server)
    yield dial
    for client in dial.clients:
        await client.close()
    await settle()
    left = [task for task in asyncio.all_tasks() if task is not asyncio.current_task() and "metad" in task.get_name()]
    assert not left, "a closed client leaks no task"
    assert not server.live, "a closed client leaves no connection"


async def settle() -> None:
    """Let everything happen that needs no time to pass."""
    for _ in range(50):
        await asyncio.sleep(0)


@pytest.fixture(name="a_session")
def a_session_fixture() -> Callable[[str, str], m.Session]:
    return a_session


@pytest.fixture(name="a_map")
def a_map_fixture() -> Callable[..., c.ClusterMap]:
    return a_map


@pytest.fixture(name="settle")
def settle_fixture() -> Callable[[], Any]:
    return settle


@pytest.fixture
def scripted_server() -> Server:
    """The server for what brings a loop of its own."""
    server = Server(MemoryTransport())
    asyncio.run(server.listen())
    return server
