"""What metad keeps of clients and of brokers, and how this broker reads and writes it."""

from __future__ import annotations

from typing import Final, NamedTuple

import msgspec

from metad_client import Client, Kv, NotFoundError, NotOwnerError, Session, SessionProperties

NEVER_S: Final = 0xFFFFFFFF
"""The expiry interval of a session that never expires."""


class Kept(msgspec.Struct, frozen=True, array_like=True):
    """The payload of a session. ``filters``: what the client has subscribed to, with the QoS that it was granted.
    ``clean``: the session ends with its connection, as the client has asked."""

    filters: dict[str, int] = {}
    clean: bool = False


class BrokerRecord(msgspec.Struct, frozen=True, array_like=True):
    """One life of a broker: where others reach it, and the word that they show."""

    address: str
    word: str


class Taken(NamedTuple):
    """A client's session, as it was when the client connected."""

    present: bool
    filters: dict[str, int]


_encode = msgspec.msgpack.Encoder().encode
_kept = msgspec.msgpack.Decoder(Kept).decode
_broker = msgspec.msgpack.Decoder(BrokerRecord).decode


def kept_of(session: Session) -> Kept:
    """What a session keeps; nothing if another program has made it."""
    return _decoded(session.properties)


def broker_of(record: Kv) -> BrokerRecord:
    """What a broker says of itself."""
    return _broker(record.value)


def _decoded(properties: SessionProperties) -> Kept:
    try:
        return _kept(properties.payload) if properties.payload else Kept()
    except msgspec.MsgspecError:
        return Kept()


class Store:
    """metad, as one life of a broker sees it."""

    def __init__(self, metad: Client, name: str, tenant: str, expiry_s: int) -> None:
        self._metad = metad
        self.name = name
        self.tenant = tenant
        self.brokers = f"mqtt/{tenant}/brokers"
        """The namespace of the brokers: a key for each, whose version is the epoch of its newest life."""
        self._expiry_s = expiry_s
        self.epoch = 0

    async def begin(self, life: BrokerRecord) -> None:
        """Begin a life, and tell the other brokers of it."""
        self.epoch = await self._metad.kv.put(self.brokers, self.name, _encode(life))

    async def take(self, client_id: str, *, clean: bool) -> Taken:
        """A client connects to this broker. Raises FencedError if this is a past life."""
        fresh = self._properties(Kept(clean=clean))
        if not clean:
            taken = await self._metad.sessions.takeover(self.name, self.epoch, self.tenant, client_id, restore=True)
            kept = _decoded(taken.properties) if taken.properties is not None else Kept()
            if taken.session_present and not kept.clean:
                return Taken(True, kept.filters)
        # What is there, if anything, ended with the connection of a broker that is gone.
        await self._metad.sessions.takeover(
            self.name, self.epoch, self.tenant, client_id, clean_start=True, properties=fresh
        )
        return Taken(False, {})

    async def keep(self, client_id: str, kept: Kept) -> None:
        """Store the subscriptions of a client that is connected here. Raises NotOwnerError if it is not any more."""
        await self._metad.sessions.update(self.name, self.epoch, self.tenant, client_id, self._properties(kept))

    async def leave(self, client_id: str, *, end: bool) -> bool:
        """A client has gone, and its session ends or stays. False if it is connected elsewhere."""
        try:
            if end:
                await self._metad.sessions.delete(self.tenant, client_id, broker=self.name, broker_epoch=self.epoch)
            else:
                await self._metad.sessions.disconnect(self.name, self.epoch, self.tenant, client_id)
        except (NotOwnerError, NotFoundError):
            return False
        return True

    async def find(self, client_id: str) -> Session | None:
        """A session as it is."""
        return await self._metad.sessions.get(self.tenant, client_id)

    def is_here(self, session: Session | None) -> bool:
        """Whether a client is connected to this very life."""
        return session is not None and session.connected and self.is_mine(session)

    def is_mine(self, session: Session) -> bool:
        """Whether this very life has the session."""
        return (session.broker, session.broker_epoch) == (self.name, self.epoch)

    def _properties(self, kept: Kept) -> SessionProperties:
        return SessionProperties(0 if kept.clean else self._expiry_s, _encode(kept))
