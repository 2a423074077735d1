"""QUIC connections take turns: what is kept for each, how much of one is done at a time, and what is left of it."""

from __future__ import annotations

import asyncio
import gc
import weakref
from typing import Any

import pytest
from quic_rig import Handler, Link

from metad_perf.attack import sites as certificates
from metad_wire.transport import split_endpoint
from metad_wire.transport.quic import QuicTransport
from metad_wire.transport.quic import server as quic_server
from metad_wire.transport.quic.carrier import Inbox
from metad_wire.transport.quic.flow.recovery import PACKETS_AT_ONCE

TIMEOUT_S = 120.0
SIZE = 2 * 1024 * 1024
A, B = ("192.0.2.1", 1), ("192.0.2.1", 2)


def test_an_inbox_gives_out_in_order_what_one_address_sent() -> None:
    inbox = Inbox()
    inbox.put([b"1", b"2"], A)
    inbox.put([b"3"], A)
    inbox.put([b"4"], B)
    inbox.put([b"5"], A)
    assert len(inbox) == 5
    assert inbox.take(2) == ([b"1", b"2"], A)
    assert inbox.take(9) == ([b"3"], A)
    assert inbox.take(9) == ([b"4"], B)
    assert len(inbox) == 1
    assert inbox.clear() == 1
    assert not inbox
    assert inbox.clear() == 0


def test_a_connection_that_is_over_needs_no_garbage_collector() -> None:
    link = Link()
    link.connect()
    assert link.server is not None
    assert link.server.handshaken
    gone = [weakref.ref(link.client), weakref.ref(link.server)]
    link.client.let_go()
    link.server.let_go()
    gc.disable()
    try:
        del link
        assert [ref() for ref in gone] == [None, None]
    finally:
        gc.enable()


class Silent(Handler):
    """Counts, and knows when it has all that it expects."""

    def __init__(self) -> None:
        super().__init__()
        self.received = 0
        self.full = asyncio.Event()

    def data_received(self, data: bytes) -> None:
        self.received += len(data)
        if self.received == SIZE:
            self.full.set()


async def test_no_turn_of_the_loop_serves_more_than_its_share(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two send megabytes: each turn acts on a few datagrams of both, and seals a burst at the most."""
    served: list[int] = []
    serve, give = quic_server.Server._serve, quic_server.Server._give

    def noted(server: Any) -> None:
        several = server._several
        served.append(0)
        serve(server)
        if not several:
            served.pop()  # while it was alone it had more

    def counted(server: Any, carrier: Any, most: int) -> int:
        count = give(server, carrier, most)
        if served:
            served[-1] += count
        return count

    monkeypatch.setattr(quic_server.Server, "_serve", noted)
    monkeypatch.setattr(quic_server.Server, "_give", counted)
    accepted: list[Silent] = []
    came = [asyncio.Event(), asyncio.Event()]

    def accept() -> Silent:
        accepted.append(Silent())
        came[len(accepted) - 1].set()
        return accepted[-1]

    listener = await QuicTransport(certificates.node()).listen("127.0.0.1", 0, accept)
    host, port = split_endpoint(listener.endpoint)
    ends = []
    for _ in range(2):
        end = await QuicTransport(certificates.client()).dial(host, port, Silent, TIMEOUT_S)
        end.stream.write(bytes(SIZE))
        ends.append(end)
    async with asyncio.timeout(TIMEOUT_S):
        for number in range(2):
            await came[number].wait()
            await accepted[number].full.wait()
    most = quic_server._SERVED_PER_TURN + quic_server._SERVED_AT_ONCE
    assert max(served) <= most, "the last to have its turn may go over by its own share"
    assert sum(served) > 100
    for end in ends:
        end.stream.abort()
    await listener.close()


def test_a_wide_window_is_sealed_a_burst_at_a_time() -> None:
    link = Link()
    link.connect()
    engine = link.client
    stream = engine.open_stream()
    engine._loss._cc.congestion_window = 10_000_000
    engine._remote_max_data = stream.max_stream_data_remote = 10_000_000
    stream.sender.write(bytes(1_000_000))
    sent = engine.datagrams_to_send(link.now)
    assert 0 < len(sent) <= PACKETS_AT_ONCE + 1
