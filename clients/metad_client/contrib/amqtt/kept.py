"""What metad keeps of clients and of brokers, and how this broker reads and writes it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

import msgspec

from metad_client import (
    Client,
    InvalidItemError,
    Kv,
    MetadError,
    NotFoundError,
    NotOwnerError,
    QuotaExceededError,
    Session,
    SessionOwner,
    SessionProperties,
    Subscription,
    SubscriptionKey,
    SubscriptionOptions,
)

from . import envelope
from .envelope import Envelope

NEVER_S: Final = 0xFFFFFFFF
"""The expiry interval of a session that never expires."""


class BrokerRecord(msgspec.Struct, frozen=True, array_like=True):
    """One life of a broker: where others reach it, and the word that they show."""

    address: str
    word: str


class Taken(NamedTuple):
    """A client's session, as it was when the client connected."""

    present: bool
    filters: dict[str, int]
    """What it has subscribed to, with the QoS that it was granted."""
    held: dict[int, Envelope]
    """Messages of QoS 2 that the client has begun to publish, by packet identifier."""


_encode = msgspec.msgpack.Encoder().encode
_broker = msgspec.msgpack.Decoder(BrokerRecord).decode


def broker_of(record: Kv) -> BrokerRecord:
    """What a broker says of itself."""
    return _broker(record.value)


def ends_with_connection(session: Session) -> bool:
    """Whether the client has asked for a clean session."""
    return session.properties.expiry_interval_s == 0


class Store:
    """metad, as one life of a broker sees it."""

    def __init__(self, metad: Client, name: str, tenant: str, expiry_s: int) -> None:
        if expiry_s < 1:
            raise ValueError("expiry_s: at least 1; a session of 0 s would end with its connection")
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
        whom = (self.name, self.epoch, self.tenant, client_id)
        if not clean:
            taken = await self._metad.sessions.takeover(*whom, restore=True)
            if taken.session_present and taken.properties is not None and taken.properties.expiry_interval_s:
                return await self._restored(client_id)
        # What is there, if anything, ended with the connection of a broker that is gone.
        properties = SessionProperties(0 if clean else self._expiry_s)
        await self._metad.sessions.takeover(*whom, clean_start=True, properties=properties)
        return Taken(False, {}, {})

    async def _restored(self, client_id: str) -> Taken:
        filters, states = await asyncio.gather(
            self._metad.subscriptions.get(self.tenant, client_id), self._metad.inflight.get(self.tenant, client_id)
        )
        return Taken(
            True,
            {one.filter: one.options.qos for one in filters},
            {int(one.name): envelope.decode(one.value) for one in states},
        )

    async def subscribe(self, client_id: str, filters: Mapping[str, int]) -> dict[str, MetadError]:
        """Store filters of a client that is connected here, with their QoS. Returns those that are not stored."""
        items = [
            Subscription(self.tenant, client_id, filter_, SubscriptionOptions(qos=qos))
            for filter_, qos in filters.items()
        ]
        added = await self._metad.subscriptions.add_many(self.name, self.epoch, items)
        return {items[position].filter: error for position, error in added.errors.items()}

    async def unsubscribe(self, client_id: str, filters: Iterable[str]) -> None:
        """Drop filters of a client that is connected here; it need not have them."""
        keys = [SubscriptionKey(self.tenant, client_id, filter_) for filter_ in dict.fromkeys(filters)]
        removed = await self._metad.subscriptions.remove_many(self.name, self.epoch, keys)
        for error in removed.errors.values():
            if not isinstance(error, NotFoundError):
                raise error

    async def hold(self, client_id: str, packet_id: int, message: Envelope) -> None:
        """A client has begun to publish a message of QoS 2. One that is too large, or one too many, is held by this
        broker alone."""
        whom = (self.name, self.epoch, self.tenant, client_id)
        with contextlib.suppress(InvalidItemError, QuotaExceededError):
            await self._metad.inflight.put(*whom, str(packet_id), envelope.encode(message))

    async def release(self, client_id: str, packet_id: int) -> None:
        """That message is delivered."""
        with contextlib.suppress(NotFoundError):
            await self._metad.inflight.delete(self.name, self.epoch, self.tenant, client_id, str(packet_id))

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

    def is_here(self, session: Session | SessionOwner | None) -> bool:
        """Whether a client is connected to this very life."""
        return session is not None and session.connected and self.is_mine(session)

    def is_mine(self, session: Session | SessionOwner) -> bool:
        """Whether this very life has the session."""
        return (session.broker, session.broker_epoch) == (self.name, self.epoch)
