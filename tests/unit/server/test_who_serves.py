"""Who a server is: what it says and what its certificate says must be one thing."""

from __future__ import annotations

import pytest

from metad_client import Options, UnauthenticatedError, connect
from metad_perf.attack import sites as certificates
from metad_wire import messages as m
from metad_wire.connection.frame import FrameType, encode_frame
from metad_wire.methods import encode
from metad_wire.transport import Stream
from metad_wire.transport.tls import TlsTransport
from sim.memory import MemoryTransport


class Greeter:
    """A server that says it is somebody, and nothing else."""

    def __init__(self, node_id: str) -> None:
        self._node_id = node_id
        self._stream: Stream | None = None

    def connection_made(self, stream: Stream) -> None:
        self._stream = stream

    def data_received(self, data: bytes) -> None:
        if self._stream is not None:
            welcome = m.Welcome(1, 0, self._node_id, "c", 2**20, 2**20, 60_000)
            self._stream.write(encode_frame(FrameType.WELCOME, encode(welcome)))
            self._stream = None

    def eof_received(self) -> bool | None:
        return None

    def connection_lost(self, exc: Exception | None) -> None:
        pass

    def pause_writing(self) -> None:
        pass

    def resume_writing(self) -> None:
        pass


async def greeted_by(certificate: str, says: str) -> None:
    below = MemoryTransport()
    listener = await TlsTransport(below, certificates.node(certificate)).listen("h", 1, lambda: Greeter(says))
    options = Options(connect_timeout_s=0, deadline_s=5.0)
    client = connect("metads://h:1", options, transport=TlsTransport(below, certificates.client()))
    try:
        await client.open()
    finally:
        await client.close()
        await listener.close()


@pytest.mark.parametrize("says", ["n1", "n1/3"])
async def test_a_server_is_the_node_of_its_certificate_or_a_worker_of_it(says: str) -> None:
    await greeted_by("n1", says)


@pytest.mark.parametrize("says", ["n2", "n11", "", "n1x/0"])
async def test_a_server_that_says_it_is_another_node_is_refused(says: str) -> None:
    with pytest.raises(UnauthenticatedError, match="its certificate is that of node 'n1'"):
        await greeted_by("n1", says)
