"""One message on its way from its publisher to its subscribers."""

from __future__ import annotations

import msgspec


class Envelope(msgspec.Struct, frozen=True, array_like=True):
    """A published message. ``qos`` is the publisher's, and then the one at which a subscriber gets it. ``retained``: it
    was stored before the subscriber subscribed, and the packet says so."""

    topic: str
    payload: bytes
    qos: int = 0
    retained: bool = False

    def at(self, qos: int) -> Envelope:
        """The same for a subscription of this QoS."""
        return self if qos >= self.qos else msgspec.structs.replace(self, qos=qos)


encode = msgspec.msgpack.Encoder().encode
decode = msgspec.msgpack.Decoder(Envelope).decode
