"""A publisher of QoS 2 whose handshake is cut: it sends packet by packet, as no client library does."""

from __future__ import annotations

import socket
from typing import Final

from .device import WAIT_S

_IDENTIFIER: Final = b"\x00\x07"


def _text(text: str) -> bytes:
    data = text.encode()
    return len(data).to_bytes(2, "big") + data


class CutPublisher:
    """One connection. A message is short: its packet's length has one byte."""

    def __init__(self, port: int, client_id: str) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), WAIT_S)
        self._send(0x10, b"\x00\x04MQTT\x04\x00\x00\x3c" + _text(client_id))
        first, body = self._next()
        if first != 0x20 or body[1]:
            raise ConnectionRefusedError(f"CONNACK {body.hex()}")
        self.session_present = bool(body[0])

    def begin(self, topic: str, payload: bytes) -> None:
        """PUBLISH of QoS 2, and wait for PUBREC: from now on the broker has the message."""
        self._send(0x34, _text(topic) + _IDENTIFIER + payload)
        self._expect(0x50)

    def finish(self) -> None:
        """PUBREL, and wait for PUBCOMP."""
        self._send(0x62, _IDENTIFIER)
        self._expect(0x70)

    def ends(self) -> bool:
        """Wait until the broker has closed the connection."""
        try:
            return self._socket.recv(1) == b""
        except ConnectionError:
            return True

    def close(self) -> None:
        """End the connection without a word."""
        self._socket.close()

    def _expect(self, first: int) -> None:
        found = self._next()
        if found != (first, _IDENTIFIER):
            raise ConnectionError(f"packet {found[0]:#x} {found[1].hex()}, not {first:#x}")

    def _send(self, first: int, body: bytes) -> None:
        self._socket.sendall(bytes([first, len(body)]) + body)

    def _next(self) -> tuple[int, bytes]:
        head = self._socket.recv(2, socket.MSG_WAITALL)
        if len(head) < 2:
            raise ConnectionError("the broker has closed the connection")
        return head[0], self._socket.recv(head[1], socket.MSG_WAITALL) if head[1] else b""
