"""A dial that shows whether anybody listens: over the real sockets and in the simulation."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from metad.control.brokers.evidence import Answer
from metad.server.network import Probe
from metad_wire.transport import Stream, Transport, split_endpoint
from metad_wire.transport.tcp import TcpTransport
from sim.nodes.links import SimNetwork
from sim.nodes.loop import VirtualLoop

HOST = "127.0.0.1"
TRANSPORTS: dict[str, tuple[Callable[[], Transport], Callable[[], asyncio.AbstractEventLoop]]] = {
    "tcp": (TcpTransport, asyncio.new_event_loop),
    "simulated": (lambda: SimNetwork(VirtualLoop.running()).transport(HOST), VirtualLoop),
}


def contract(test: Callable[[Transport], Awaitable[None]]) -> Callable[..., None]:
    def held_by(kind: str) -> None:
        new_transport, new_loop = TRANSPORTS[kind]

        async def run() -> None:
            async with asyncio.timeout(120):
                await test(new_transport())

        with asyncio.Runner(loop_factory=new_loop) as runner:
            runner.run(run())

    held_by.__name__ = test.__name__
    return pytest.mark.parametrize("kind", TRANSPORTS)(held_by)


class Guest:
    """What a broker sees of a probe."""

    def __init__(self, ended: asyncio.Event) -> None:
        self.received = b""
        self._ended = ended

    def connection_made(self, stream: Stream) -> None:
        stream.write(b"hello")

    def data_received(self, data: bytes) -> None:
        self.received += data

    def eof_received(self) -> bool | None:
        return None

    def pause_writing(self) -> None:
        pass

    def resume_writing(self) -> None:
        pass

    def connection_lost(self, exc: Exception | None) -> None:
        self._ended.set()


def asked(probe: Probe, port: int) -> asyncio.Future[Answer]:
    answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
    probe(HOST, port, answer.set_result)
    return answer


@contract
async def test_who_listens_is_reached_and_hears_nothing(transport: Transport) -> None:
    guest = Guest(ended := asyncio.Event())
    listener = await transport.listen(HOST, 0, lambda: guest)
    assert await asked(Probe(transport), split_endpoint(listener.endpoint)[1]) is Answer.ACCEPTED
    await ended.wait()
    assert guest.received == b""
    await listener.close()


@contract
async def test_where_nobody_listens_any_more_the_dial_is_refused(transport: Transport) -> None:
    listener = await transport.listen(HOST, 0, lambda: Guest(asyncio.Event()))
    port = split_endpoint(listener.endpoint)[1]
    await listener.close()
    assert await asked(Probe(transport), port) is Answer.REFUSED


class Broken:
    """A network in which dials fail like this."""

    def __init__(self, error: Exception | None) -> None:
        self._error = error

    async def dial(self, *_: object) -> None:
        if self._error is None:
            await asyncio.Event().wait()
        else:
            raise self._error


@pytest.mark.parametrize(
    "error", [TimeoutError(), OSError(113, "no route"), RuntimeError("a bug"), ConnectionResetError()]
)
async def test_anything_else_says_nothing(error: Exception) -> None:
    assert await asked(Probe(Broken(error)), 1) is Answer.UNKNOWN  # type: ignore[arg-type]


async def test_a_probe_that_is_stopped_tells_nobody() -> None:
    probe = Probe(Broken(None))  # type: ignore[arg-type]
    answer = asked(probe, 1)
    await asyncio.sleep(0)
    probe.stop()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert not answer.done()
