"""QoS 2 of one client whose session stays: what metad must know before the next packet of a handshake is sent."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from amqtt.session import IncomingApplicationMessage

from metad_client import MetadError

from .envelope import Envelope
from .kept import Store


class Handshakes:
    """A method that stores something is False if that failed; then ``failed`` has been called, and the packet must not
    be sent."""

    def __init__(self, store: Store, client_id: str, failed: Callable[[MetadError], None]) -> None:
        self._store = store
        self._client_id = client_id
        self._failed = failed

    async def held(self, message: IncomingApplicationMessage) -> bool:
        """Before PUBREC to the client: it need not send the message again."""
        kept = Envelope(message.topic, bytes(message.data), message.qos or 0, message.retain)
        try:
            await self._store.hold(self._client_id, message.packet_id or 0, kept)
        except MetadError as error:
            self._failed(error)
            return False
        return True

    async def received(self, packet_id: int, waited: Sequence[str]) -> bool:
        """Before PUBREL to the client: it has the message, which nobody must send again. ``waited``: its rows, if it
        has waited."""
        try:
            await self._store.owe(self._client_id, packet_id, waited)
        except MetadError as error:
            self._failed(error)
            return False
        return True

    async def completed(self, packet_id: int, waited: Sequence[str]) -> None:
        """After PUBCOMP of the client."""
        try:
            await self._store.settle(self._client_id, packet_id, waited)
        except MetadError as error:
            self._failed(error)
