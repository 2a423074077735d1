"""Messages for clients that are away, in metad: any broker appends, and the one to which the client comes back takes
them.

They are key-value records in a namespace of the client: its messages by number, and a counter that bounds them. A
client that comes back gets each at least once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from metad_client import Client, KvCompare, KvDeleteItem, KvOperation, KvTransaction

from . import envelope
from .envelope import Envelope

WAITING_MAX: Final = 1_000
"""Messages of one client since it was last up to date. Further ones are dropped: MQTT leaves that to the broker."""
_COUNTER: Final = "next"  # behind all numbers, in the order of keys
_AT_ONCE: Final = 100  # a transaction has 128 items


class Waiting(NamedTuple):
    """One message that waits."""

    key: str
    message: Envelope


class WaitingMessages:
    """The queues of all clients of a tenant."""

    def __init__(self, metad: Client, tenant: str) -> None:
        self._kv = metad.kv
        self._tenant = tenant

    async def append(self, client_id: str, messages: Sequence[Envelope]) -> int:
        """Append, all of them or as many as the bound leaves room for. Returns how many were dropped."""
        namespace = self._of(client_id)
        left = list(messages)
        while left:
            counter = await self._kv.get(namespace, _COUNTER)
            number, version = (int(counter.value), counter.version) if counter is not None else (0, 0)
            part = left[: min(_AT_ONCE, WAITING_MAX - number)]
            if not part:
                return len(left)
            puts = [KvOperation(_key(number + i), envelope.encode(message)) for i, message in enumerate(part)]
            puts.append(KvOperation(_COUNTER, str(number + len(part)).encode()))
            done = await self._kv.transact(KvTransaction(namespace, [KvCompare(_COUNTER, version)], puts))
            if done.succeeded:
                del left[: len(part)]
        return 0

    async def read(self, client_id: str) -> tuple[list[Waiting], int]:
        """All that waits, in order, and the version of the counter for :meth:`finish`; 0 if nothing ever waited."""
        found: list[Waiting] = []
        version = 0
        async for record in self._kv.scan(self._of(client_id)):
            if record.key == _COUNTER:
                version = record.version
            else:
                found.append(Waiting(record.key, envelope.decode(record.value)))
        return found, version

    async def remove(self, client_id: str, keys: Sequence[str]) -> None:
        """These are delivered."""
        namespace = self._of(client_id)
        await self._kv.delete_many([KvDeleteItem(namespace, key) for key in keys])

    async def finish(self, client_id: str, version: int) -> bool:
        """Nothing waits any more, so count from 0 again. False if something has come since :meth:`read`."""
        if not version:
            return True
        drop = KvTransaction(self._of(client_id), [KvCompare(_COUNTER, version)], [KvOperation(_COUNTER)])
        return (await self._kv.transact(drop)).succeeded

    async def clear(self, client_id: str) -> None:
        """The session has ended."""
        namespace = self._of(client_id)
        keys = [record.key async for record in self._kv.scan(namespace)]
        await self._kv.delete_many([KvDeleteItem(namespace, key) for key in keys])

    def _of(self, client_id: str) -> str:
        return f"mqtt/{self._tenant}/waiting/{client_id}"


def _key(number: int) -> str:
    return f"{number:09}"
