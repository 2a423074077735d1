"""A broker through its lives: each has a client of the SDK, is registered, and sends heartbeats."""

from __future__ import annotations

import asyncio
from collections import Counter

from metad_client import BrokerLife, Client, LifeState, Observer, Options
from metad_client.errors import OverloadedError
from metad_client.observer import Ended, Retried
from metad_wire.messages import Owner
from metad_wire.policy import Backoff

from ..target import open_client
from .plan import Storm, broker_name, ignores_slots

_TAKEOVER = "session.takeover"
_DEADLINE_S = 60.0


class Retries(Observer):
    """The SDK's retries of takeovers: requests, and the clients in them, by the name of the reason."""

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        """Count from now on: the storm begins, and what stored its clients is not of it."""
        self.reasons: Counter[str] = Counter()
        self.clients: Counter[str] = Counter()
        self.requests = 0

    def retried(self, event: Retried) -> None:
        if event.verb == _TAKEOVER:
            self.reasons[event.reason.name] += 1
            self.clients[event.reason.name] += event.items

    def ended(self, event: Ended) -> None:
        self.requests += event.verb == _TAKEOVER


REFUSED = OverloadedError("").name
"""The reason of a retry after a server has turned a request away."""


class Broker:
    """One broker."""

    def __init__(self, target: str, storm: Storm, number: int) -> None:
        self._target = target
        self._storm = storm
        self.number = number
        self.ready = asyncio.Event()
        """Set while it takes clients."""
        self.lives: list[Owner] = []
        """All, in order."""
        self.lives_lost = 0
        """That it did not end itself."""
        self._retries = Retries()
        self._client: Client | None = None
        self._life: BrokerLife | None = None

    @property
    def client(self) -> Client:
        """The client of its life."""
        assert self._client is not None
        return self._client

    @property
    def owner(self) -> Owner:
        """Its life, as sessions name it."""
        return self.lives[-1]

    @property
    def retries(self) -> Retries:
        """Those of its SDK, in all its lives."""
        return self._retries

    @property
    def is_lost(self) -> bool:
        """Whether its life has ended, and it does not know yet."""
        return self.ready.is_set() and self._life is not None and self._life.state is LifeState.LOST

    async def begin(self) -> None:
        """Begin the next life."""
        options = Options(
            deadline_s=_DEADLINE_S,
            client_name=broker_name(self.number),
            repeat_refused=self._storm.sdk_retries,
            backoff=Backoff(retry_after="ignore" if ignores_slots(self._storm, self.number) else "honour"),
        )
        self._client = open_client(self._target, options, self._retries)
        await self._client.open()
        self._life = await self._client.brokers.register(broker_name(self.number), lease_s=self._storm.lease_s)
        self.lives.append(self._life.owner)
        self.ready.set()

    async def end(self) -> None:
        """Close the client at once: what is in flight never gets an answer."""
        self.ready.clear()
        client, self._client = self._client, None
        if client is not None:
            await client.close()

    async def restart(self) -> None:
        """A new process of the broker, in a newer life."""
        await self.end()
        await self.begin()

    async def recover(self) -> None:
        """Its life was lost: it closes all clients, and begins anew."""
        self.lives_lost += 1
        await self.restart()
