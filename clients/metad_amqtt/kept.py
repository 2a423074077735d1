"""What metad keeps of clients and of brokers, and how this broker reads and writes it."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from typing import Final, NamedTuple

import msgspec

from metad_client import (
    BrokerLife,
    Client,
    InflightKey,
    InflightState,
    InvalidItemError,
    MetadError,
    NotFoundError,
    Owned,
    QuotaExceededError,
    Session,
    SessionOwner,
    SessionProperties,
    Subscription,
    SubscriptionKey,
    SubscriptionOptions,
    TakenWill,
    Will,
)

from . import envelope
from .envelope import Envelope

TAKE_S: Final = 10.0
"""A client that connects or subscribes waits no longer for metad: it can be told that it failed."""
NEVER_S: Final = 0xFFFFFFFF
"""The expiry interval of a session that never expires."""


class Taken(NamedTuple):
    """A client's session, as it was when the client connected."""

    owned: Owned
    """The takeover, and the news that it is lost."""
    present: bool
    filters: dict[str, int]
    """What it has subscribed to, with the QoS that it was granted."""
    held: dict[int, Envelope]
    """Messages of QoS 2 that the client has begun to publish, by packet identifier."""
    owed: dict[int, tuple[str, ...]] = {}  # noqa: RUF012 - nobody changes it
    """Messages of QoS 2 that the client has, and for which it gets PUBREL: by packet identifier, with the rows that are
    left of those that have waited."""
    inflight: Sequence[InflightState] = ()
    """All that is in flight for it; those among it, too."""


_HELD: Final = "in/"  # begins the names of messages of QoS 2
_OWED: Final = "out/"  # and those of identifiers
_encode_names: Final = msgspec.msgpack.Encoder().encode
_decode_names: Final = msgspec.msgpack.Decoder(tuple[str, ...]).decode
_LINK_KEY: Final = "link-key"  # the attribute of a broker: its public key, for the other brokers


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
        self._expiry_s = expiry_s
        self.life: BrokerLife | None = None

    @property
    def epoch(self) -> int:
        """Of this life; 0 before it begins."""
        return self.life.epoch if self.life is not None else 0

    async def begin(self, address: str, public: str, lease_s: float, port: int) -> BrokerLife:
        """Begin a life, which ends every earlier one. Other brokers find the address in metad, and the public key.
        ``port`` is the one that this process listens on for them: if its host refuses it, the process has died."""
        self.life = await self._metad.brokers.register(
            self.name, address=address, attributes={_LINK_KEY: public}, lease_s=lease_s, probe_port=port
        )
        return self.life

    async def address_of(self, broker: str, epoch: int) -> tuple[str, str] | None:
        """Where other brokers reach that life, and its public key; None if it is over."""
        found = await self._metad.brokers.get(broker)
        if found is None or found.broker_epoch != epoch or found.least_epoch > epoch:
            return None
        return found.address, found.attributes.get(_LINK_KEY, "")

    async def key_of(self, broker: str, epoch: int) -> str | None:
        """The public key of that life; None if it is over."""
        found = await self.address_of(broker, epoch)
        return None if found is None else found[1]

    async def is_over(self) -> bool:
        """Whether metad knows that this life is over."""
        return await self.address_of(self.name, self.epoch) is None

    async def take(self, client_id: str, *, clean: bool, will: Will | None) -> Taken:
        """A client connects to this broker. Raises FencedError if this is a past life, and NotOwnerError if it has
        connected elsewhere meanwhile."""
        whom = (self.name, self.epoch, self.tenant, client_id)
        properties = SessionProperties(0 if clean else self._expiry_s, will=will)
        owned = await self._metad.owned(
            *whom,
            clean_start=clean,
            properties=properties,
            restore=not clean,
            restore_parts=not clean,
            deadline_s=TAKE_S,
        )
        taken = owned.taken
        owned.drop_restored()
        before = taken.properties
        if clean or not taken.session_present or before is None:
            return Taken(owned, False, {}, {})
        if not before.expiry_interval_s:  # it ended with the connection of a broker that is gone
            anew = await self._metad.owned(*whom, clean_start=True, properties=properties, deadline_s=TAKE_S)
            return Taken(anew, False, {}, {})
        return Taken(
            owned,
            True,
            {one.filter: one.options.qos for one in taken.subscriptions},
            {
                int(one.name.removeprefix(_HELD)): envelope.decode(one.value)
                for one in taken.inflight
                if one.name.startswith(_HELD)
            },
            {
                int(one.name.removeprefix(_OWED)): _decode_names(one.value)
                for one in taken.inflight
                if one.name.startswith(_OWED)
            },
            taken.inflight,
        )

    async def subscribe(self, client_id: str, filters: Mapping[str, int]) -> dict[str, MetadError]:
        """Store filters of a client that is connected here, with their QoS. Returns those that are not stored."""
        items = [
            Subscription(self.tenant, client_id, filter_, SubscriptionOptions(qos=qos))
            for filter_, qos in filters.items()
        ]
        added = await self._metad.subscriptions.add_many(self.name, self.epoch, items, deadline_s=TAKE_S)
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
            await self._metad.inflight.put(*whom, _held(packet_id), envelope.encode(message))

    async def release(self, client_id: str, packet_id: int) -> None:
        """That message is delivered."""
        with contextlib.suppress(NotFoundError):
            await self._metad.inflight.delete(self.name, self.epoch, self.tenant, client_id, _held(packet_id))

    async def owe(self, client_id: str, packet_id: int, waited: Sequence[str]) -> None:
        """A client has a message of QoS 2, and gets PUBREL for it, from this broker or the next."""
        whom = (self.name, self.epoch, self.tenant, client_id)
        with contextlib.suppress(InvalidItemError, QuotaExceededError):
            await self._metad.inflight.put(*whom, _owed(packet_id), _encode_names(waited))

    async def settle(self, client_id: str, packet_id: int, waited: Sequence[str]) -> None:
        """It has answered PUBCOMP."""
        keys = [InflightKey(self.tenant, client_id, name) for name in (*waited, _owed(packet_id))]
        settled = await self._metad.inflight.delete_many(self.name, self.epoch, keys)
        for error in settled.errors.values():
            if not isinstance(error, NotFoundError):
                raise error

    def wills(self) -> AsyncIterator[TakenWill]:
        """Wills that are due, of clients of any broker, for this one to publish."""
        return self._metad.wills.due(self.name, self.epoch, tenant=self.tenant)

    async def find(self, client_id: str) -> Session | None:
        """A session as it is."""
        return await self._metad.sessions.get(self.tenant, client_id)

    def is_here(self, session: Session | SessionOwner | None) -> bool:
        """Whether a client is connected to this very life."""
        return session is not None and session.connected and self.is_mine(session)

    def is_mine(self, session: Session | SessionOwner) -> bool:
        """Whether this very life has the session."""
        return (session.broker, session.broker_epoch) == (self.name, self.epoch)


def _held(packet_id: int) -> str:
    return f"{_HELD}{packet_id}"


def _owed(packet_id: int) -> str:
    return f"{_OWED}{packet_id}"
