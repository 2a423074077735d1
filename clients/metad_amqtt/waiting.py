"""Messages for clients that are away: in-flight state of their sessions. Any broker appends; the one to which the
client comes back finds them with the takeover, and they end with the session.

A row has 64 KiB at most, so a large message is several. metad bounds what a session may have; what comes then is
dropped, as mosquitto does. A client that comes back gets each message at least once.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import Container, Iterable, Sequence
from typing import Final, NamedTuple

from metad_client import Client, InflightKey, InflightState, NotFoundError, QuotaExceededError
from metad_wire.tables.inflight import INFLIGHT_BYTES_MAX, INFLIGHT_VALUE_BYTES_MAX

from . import envelope
from .envelope import Envelope
from .kept import Store
from .seldom import Seldom

_PREFIX: Final = "w/"
_DIGITS: Final = 16
_PIECES_MAX: Final = 1 + INFLIGHT_BYTES_MAX // INFLIGHT_VALUE_BYTES_MAX
_UNFINISHED_NS: Final = 3_600 * 10**9
"""A broker that has not stored the rest of a message after so long has died meanwhile."""

log = logging.getLogger("metad_client.amqtt")


class Waiting(NamedTuple):
    """One message that waits, and its rows."""

    names: tuple[str, ...]
    message: Envelope


class Found(NamedTuple):
    """What waits for a client."""

    messages: list[Waiting]
    rubbish: list[str]
    """Rows that are no message."""


def found_in(states: Iterable[InflightState], delivered: Container[str] = ()) -> Found:
    """What waits, in order, among all that is in flight for a client. Rows that are ``delivered`` are rubbish."""
    pieces: dict[str, dict[str, bytes]] = {}
    for state in states:
        if state.name.startswith(_PREFIX):
            pieces.setdefault(state.name.rpartition("/")[0], {})[state.name] = state.value
    messages: list[Waiting] = []
    rubbish: list[str] = []
    for number, parts in pieces.items():
        if not all(parts.values()) or any(name in delivered for name in parts):  # it was dropped, or the client has it
            rubbish += parts
        elif int(next(iter(parts)).rpartition("-")[2]) == len(parts):
            messages.append(Waiting(tuple(parts), envelope.decode(b"".join(parts.values()))))
        elif time.time_ns() - int(number[len(_PREFIX) :][:_DIGITS], 16) > _UNFINISHED_NS:
            rubbish += parts
    return Found(messages, rubbish)


class WaitingMessages:
    """The queues of all clients of a tenant."""

    def __init__(self, metad: Client, store: Store) -> None:
        self._inflight = metad.inflight
        self._store = store
        self._nonce = secrets.token_hex(4)  # no two brokers choose the same name
        self._last = 0
        self._full = Seldom(log)

    async def append(self, client_id: str, message: Envelope) -> bool:
        """Store a message, whichever broker has the session. False if there is no session, or no room."""
        data = envelope.encode(message)
        count = -(-len(data) // INFLIGHT_VALUE_BYTES_MAX)
        if count > _PIECES_MAX:
            self._count_dropped(client_id)
            return False
        self._last = max(self._last + 1, time.time_ns())
        number = f"{_PREFIX}{self._last:0{_DIGITS}x}{self._nonce}"
        names = [f"{number}/{piece}-{count}" for piece in range(count)]
        values = [data[at : at + INFLIGHT_VALUE_BYTES_MAX] for at in range(0, len(data), INFLIGHT_VALUE_BYTES_MAX)]
        results = await asyncio.gather(
            *(self._put(client_id, name, value) for name, value in zip(names, values, strict=True)),
            return_exceptions=True,
        )
        faults = [result for result in results if isinstance(result, BaseException)]
        if not faults:
            return True
        unexpected = [one for one in faults if not isinstance(one, NotFoundError | QuotaExceededError)]
        if unexpected:
            raise unexpected[0]
        if any(isinstance(one, QuotaExceededError) for one in faults):
            self._count_dropped(client_id)
            stored = [name for name, result in zip(names, results, strict=True) if result is None]
            await asyncio.gather(*(self._put(client_id, name, b"") for name in stored), return_exceptions=True)
        return False

    async def read(self, client_id: str) -> Found:
        """All that waits."""
        return found_in(await self._inflight.get(self._store.tenant, client_id))

    async def remove(self, client_id: str, names: Sequence[str]) -> None:
        """These are delivered. The session must be this broker's."""
        keys = [InflightKey(self._store.tenant, client_id, name) for name in names]
        deleted = await self._inflight.delete_many(self._store.name, self._store.epoch, keys)
        for error in deleted.errors.values():
            if not isinstance(error, NotFoundError):
                raise error

    async def _put(self, client_id: str, name: str, value: bytes) -> None:
        whom = (self._store.name, self._store.epoch, self._store.tenant, client_id)
        await self._inflight.put(*whom, name, value, any_owner=True)

    def _count_dropped(self, client_id: str) -> None:
        self._full.warn("a message for %s is dropped: no more may wait for one client", client_id)

    @property
    def dropped(self) -> int:
        """Messages that did not find room. Each was the newest of its session."""
        return self._full.count
