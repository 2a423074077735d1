"""A client floods a server with far more than it can begin: heartbeats and cancels behind the flood, on the very
connection of the flood, are heeded at once."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from e2e_server import Server, rss_bytes

from metad_wire import messages as m
from metad_wire import methods
from metad_wire.connection.frame import Frame, FrameDecoder, FrameType, encode_frame
from metad_wire.connection.session import decode_error
from metad_wire.methods import Method, encode
from metad_wire.tables import broker as b

MIB = 1024 * 1024
CONFIG = """
log_level = "warning"
[groups]
offset = 1
data = 1
"""
FLOOD = 400
"""Requests of :data:`ITEMS` items, 26 KB each: they fit the window, and one connection's room for what is not begun."""
ITEMS = 500
GROWTH_BYTES_MAX = 160 * MIB
"""The flood itself, and the room for requests in flight."""
BEAT, CANCELLED = 1_000_001, FLOOD


class Peer:
    """A raw connection. What it sends leaves in a thread, so that it reads meanwhile."""

    def __init__(self, server: Server) -> None:
        self.socket = socket.create_connection(server.address)
        self.socket.settimeout(60)
        self._decoder = FrameDecoder()
        self._sending: list[threading.Thread] = []
        self.send(encode_frame(FrameType.HELLO, encode(m.Hello("metad", 1, 1))))
        assert self.next().type == FrameType.WELCOME

    def send(self, data: bytes) -> None:
        thread = threading.Thread(target=self.socket.sendall, args=(data,), daemon=True)
        thread.start()
        self._sending.append(thread)

    def next(self) -> Frame:
        while (frame := self._decoder.next()) is None:
            data = self.socket.recv(MIB)
            assert data, "the server has closed the connection"
            self._decoder.feed(data)
        return frame

    def answers(self, count: int) -> Iterator[Frame]:
        for _ in range(count):
            yield self.next()

    def ask(self, method: Method[Any, Any], body: Any, request_id: int) -> Any:
        self.send(request(method, body, request_id))
        answer = self.next()
        assert (answer.type, answer.request_id) == (FrameType.RESPONSE, request_id), answer
        return method.decode_reply(answer.payload)

    def close(self) -> None:
        for thread in self._sending:
            thread.join(60)
        self.socket.close()


def request(method: Method[Any, Any], body: Any, request_id: int, group: str = "") -> bytes:
    payload = method.encode_request(body, 0, None, group)
    return encode_frame(FrameType.REQUEST, payload, request_id, method.code)


@pytest.mark.timeout(240)
def test_heartbeats_and_cancels_wait_for_nothing_of_a_flood(tmp_path: Path) -> None:
    with Server(tmp_path / "d", config=CONFIG) as server:
        server.ready()
        peer = Peer(server)
        epoch = peer.ask(methods.BROKER_REGISTER, b.BrokerRegister("b1", 600_000), 1).broker_epoch
        flood = [
            request(
                methods.KV_PUT,
                m.KvPut([m.KvPutItem("flood", f"{number}/{item}", bytes(32)) for item in range(ITEMS)]),
                number + 1,
                "data-0",
            )
            for number in range(1, FLOOD)
        ]
        beat = request(methods.BROKER_HEARTBEAT, b.BrokerHeartbeat([b.BrokerBeat("b1", epoch)]), BEAT)
        before_bytes = rss_bytes(server.process)
        peer.send(b"".join(flood) + beat + encode_frame(FrameType.CANCEL, b"", CANCELLED))
        order: list[int] = []
        others: set[str] = set()
        grown_bytes = 0
        for answer in peer.answers(FLOOD):
            order.append(answer.request_id)
            if answer.type == FrameType.ERROR:
                error = decode_error(answer.payload)
                others.add(error.name)
                assert answer.request_id != BEAT, error
                assert error.name != "overloaded" or error.retry_after_ms + error.retry_jitter_ms > 0
                if answer.request_id == CANCELLED:
                    assert error.name in {"cancelled", "overloaded"}
            elif answer.request_id == BEAT:
                reply = methods.BROKER_HEARTBEAT.decode_reply(answer.payload)
                assert reply.leases_ms == [600_000]
            if len(order) % 50 == 0:
                grown_bytes = max(grown_bytes, rss_bytes(server.process) - before_bytes)
        assert sorted(order) == [*range(2, FLOOD + 1), BEAT]
        assert others <= {"overloaded", "cancelled"}
        assert order.index(BEAT) < FLOOD // 2, (
            f"{order.index(BEAT)} of {FLOOD} answers came before that of the heartbeat"
        )
        assert grown_bytes < GROWTH_BYTES_MAX
        peer.close()
        assert server.terminate() == 0
        server.quiet()
