"""``--batch 1``: every item is one call of the SDK's single verb, which joins simultaneous calls into a request.

With ``--request-each`` a batch of 1 is a request of 1 instead, and joining is left to the server. The batches come from
the workload.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from metad_client import Client

from .workload import ABSENT, BROKER, DIFFERENT, VERBS, Settings

Send = Callable[[Client, Settings, Any], Awaitable[str | None]]
"""Sends one item; returns the name of the error in the reply. Raises MetadError."""


class Singles:
    """A workload of one verb, one item at a time."""

    def __init__(self, client: Client, settings: Settings) -> None:
        self._client = client
        self._settings = settings
        self._workload = VERBS[settings.verb](client, settings)
        self._send = SENDS[settings.verb]

    def batch(self) -> Any:
        """The next item, as a batch of one."""
        return self._workload.batch()

    async def send(self, batch: Any) -> Sequence[str]:
        wrong = await self._send(self._client, self._settings, batch)
        return () if wrong is None else (wrong,)


async def _takeover(client: Client, settings: Settings, batch: Any) -> str | None:
    broker, (item,) = batch
    taken = await client.sessions.takeover(
        broker, settings.epoch, item.tenant, item.client_id, restore=settings.restore
    )
    return ABSENT if taken.previous is None or (settings.restore and taken.properties is None) else None


async def _update(client: Client, settings: Settings, batch: Any) -> str | None:
    (item,) = batch
    await client.sessions.update(BROKER, settings.epoch, item.tenant, item.client_id, item.properties)
    return None


async def _get_session(client: Client, settings: Settings, batch: Any) -> str | None:
    (key,) = batch
    session = await client.sessions.get(key.tenant, key.client_id)
    if session is None:
        return ABSENT
    whole = session.client_id == key.client_id and len(session.properties.payload) == settings.value_bytes
    return None if whole else DIFFERENT


async def _commit(client: Client, settings: Settings, batch: Any) -> str | None:
    (item,) = batch
    await client.offsets.commit(item.tenant, item.group, item.topic, item.partition, item.offset)
    return None


async def _put(client: Client, settings: Settings, batch: Any) -> str | None:
    (item,) = batch
    version = await client.kv.put(item.namespace, item.key, item.value)
    return None if version else ABSENT


async def _get_kv(client: Client, settings: Settings, batch: Any) -> str | None:
    (key,) = batch
    record = await client.kv.get(key.namespace, key.key)
    if record is None:
        return ABSENT
    return None if record.key == key.key and len(record.value) == settings.value_bytes else DIFFERENT


SENDS: dict[str, Send] = {
    "session.takeover": _takeover,
    "session.update": _update,
    "session.get": _get_session,
    "offset.commit": _commit,
    "kv.put": _put,
    "kv.get": _get_kv,
}
