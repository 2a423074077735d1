"""New connections are taken at a pace; others wait where they cost nothing, and who gives up takes nobody's turn."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator

import pytest
from hypothesis import given
from hypothesis import strategies as st
from quic_rig import Handler

from metad_perf.attack import sites as certificates
from metad_wire.transport import Stream, split_endpoint
from metad_wire.transport.pace import Pace
from metad_wire.transport.quic import QuicTransport
from metad_wire.transport.tcp import TcpTransport

WAIT_S = 120.0


@given(
    per_s=st.integers(1, 1_000),
    burst=st.integers(1, 100),
    gaps=st.lists(st.floats(0, 0.2), min_size=1, max_size=100),
)
def test_in_no_time_more_are_taken_than_the_burst_and_what_came_meanwhile(
    per_s: int, burst: int, gaps: list[float]
) -> None:
    pace, now, taken = Pace(per_s, burst), 100.0, []
    for gap in gaps:
        now += gap
        if not pace.wait_s(now):
            pace.take(now, waited=False)
            taken.append(now)
    for first in range(len(taken)):
        for last in range(first, len(taken)):
            assert last - first + 1 <= burst + (taken[last] - taken[first]) * per_s + 1e-6
    wait_s = pace.wait_s(now)
    assert not pace.wait_s(now + wait_s + 1e-9)


class Door:
    """Whom a listener has taken, and when."""

    def __init__(self) -> None:
        self.at: list[float] = []
        self.streams: list[Stream] = []
        self._changed = asyncio.Event()

    def one(self) -> Guest:
        return Guest(self)

    def take(self, stream: Stream) -> None:
        self.at.append(asyncio.get_running_loop().time())
        self.streams.append(stream)
        self._changed.set()

    async def until(self, count: int) -> None:
        async with asyncio.timeout(WAIT_S):
            while len(self.at) < count:
                self._changed.clear()
                await self._changed.wait()

    async def close(self) -> None:
        for stream in self.streams:
            stream.abort()
        await asyncio.sleep(0.05)  # until they are gone


class Guest(Handler):
    """Its connection."""

    def __init__(self, door: Door) -> None:
        super().__init__()
        self._door = door

    def connection_made(self, stream: Stream) -> None:
        super().connection_made(stream)
        self._door.take(stream)


@contextlib.asynccontextmanager
async def listening(pace: Pace, door: Door) -> AsyncIterator[tuple[str, int]]:
    listener = await TcpTransport(pace).listen("127.0.0.1", 0, door.one)
    try:
        yield split_endpoint(listener.endpoint)
    finally:
        await listener.close()
        await door.close()


async def test_those_beyond_the_pace_wait_in_the_queue_of_the_socket() -> None:
    pace, door = Pace(10, 3), Door()
    with contextlib.ExitStack() as opened:
        async with listening(pace, door) as at:
            for _ in range(8):
                opened.enter_context(socket.create_connection(at))  # the kernel says that they are connected
            begun = asyncio.get_running_loop().time()
            assert door.at == []
            await door.until(8)
    assert door.at[7] - begun >= 0.5 - 0.01  # five at ten a second
    assert pace.delayed == 5


async def test_who_has_given_up_takes_nobodys_turn() -> None:
    pace, door = Pace(2, 1), Door()
    with contextlib.ExitStack() as opened:
        async with listening(pace, door) as at:
            for _ in range(2):  # the second has to wait
                opened.enter_context(socket.create_connection(at))
            for _ in range(200):
                socket.create_connection(at).close()
            opened.enter_context(socket.create_connection(at)).send(b"x")
            await door.until(3)
    assert (len(door.at), pace.delayed) == (3, 2)


async def test_a_closed_listener_takes_nobody() -> None:
    pace, door = Pace(2, 1), Door()
    with contextlib.ExitStack() as opened:
        async with listening(pace, door) as at:
            for _ in range(2):
                opened.enter_context(socket.create_connection(at))
            await door.until(1)
        await asyncio.sleep(0.6)  # longer than until the next one's turn
        assert len(door.at) == 1
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(at)


async def test_handshakes_of_quic_begin_at_the_same_pace() -> None:
    pace, door, dialled = Pace(4, 1), Door(), Door()
    server = QuicTransport(certificates.node(), pace=pace)
    listener = await server.listen("127.0.0.1", 0, door.one)
    host, port = split_endpoint(listener.endpoint)
    begun = asyncio.get_running_loop().time()
    dials = [QuicTransport(certificates.client()).dial(host, port, dialled.one, WAIT_S) for _ in range(4)]
    await asyncio.gather(*dials)
    assert asyncio.get_running_loop().time() - begun >= 0.75 - 0.01
    assert pace.delayed == 3
    await dialled.close()
    await listener.close()
    await door.close()
