"""One class per verb of ``metad-perf load``: the content of its batches, how to send them, and which answers are right.

A batch is made of message Structs from fresh random keys and values; nothing is kept from one batch to the next and
nothing is encoded ahead. ``send`` checks every reply and returns the failed items. ``prepare_*`` creates the records
that a verb needs.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import msgspec

from metad_client import Client, Record, TablePutItem
from metad_client.results import PutResult, WriteResult
from metad_wire import messages as m

from ..errors import UsageError
from .draw import Names, Values, Walk

TENANT = "tenant-0"
BROKER = "broker-0"  # owner of the created records
TAKEOVER_BROKERS = 16  # take sessions over in turn
KV_NAMESPACES = 64  # a namespace lives in one group; these spread over all groups
PARTITIONS = 64  # of the topic that a consumer group reads
EXPIRY_INTERVAL_S = 3_600
ABSENT = "absent"  # the reply lacks a record that must exist
PRESENT = "present"  # a record was there that must not
DIFFERENT = "different"  # the reply differs from the stored record


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of a workload. ``share``/``shares``: this process's place among the load-generating processes.
    ``epoch`` is the brokers' epoch: it grows from run to run, so that a run fences the one before it."""

    verb: str
    batch: int
    keys: int
    value_bytes: int
    epoch: int
    seed: int = 1
    share: int = 0
    shares: int = 1
    restore: bool = False
    singles: bool = False
    tenant: str = TENANT
    """Of the sessions and offsets."""


class Workload(Protocol):
    """The load of one verb."""

    def batch(self) -> Any:
        """The next batch."""

    async def send(self, batch: Any) -> Sequence[str]:
        """Send it and return a name for each failed item: of its error, or of what is wrong with the reply."""


class SessionUpdate:
    """session.update of existing sessions by their owner: new properties."""

    def __init__(self, client: Client, settings: Settings) -> None:
        rng = random.Random(f"{settings.seed}/{settings.share}")
        self._rng, self._client, self._settings = rng, client, settings
        self._names = session_names(settings.keys)
        self._values = Values(rng, settings.value_bytes)

    def batch(self) -> list[m.SessionUpdateItem]:
        """Uniformly random sessions."""
        item, properties = m.SessionUpdateItem, m.SessionProperties
        count = self._settings.batch
        return [
            item(self._settings.tenant, name, properties(EXPIRY_INTERVAL_S, value))
            for name, value in zip(self._names.pick(self._rng, count), self._values.pick(count), strict=True)
        ]

    async def send(self, batch: list[m.SessionUpdateItem]) -> Sequence[str]:
        return failures(await self._client.sessions.update_many(BROKER, self._settings.epoch, batch))


class SessionTakeover:
    """session.takeover of existing sessions, each from another broker.

    A process walks its own share of the sessions in a scattered order, and every walk is another broker's, so that no
    broker takes over a session that it owns. The stored properties stay, as for a reconnecting client.
    """

    def __init__(self, client: Client, settings: Settings) -> None:
        self._client, self._settings = client, settings
        self._names = session_names(settings.keys)
        self._walk = Walk(random.Random(settings.seed), settings.keys, settings.share, settings.shares)
        if self._walk.length < settings.batch:
            raise UsageError(f"a batch of {settings.batch} needs as many keys per process, not {self._walk.length}")

    def batch(self) -> tuple[str, list[m.SessionTakeoverItem]]:
        """The broker, and the next sessions of the walk."""
        names, item = self._names.at(self._walk.take(self._settings.batch)), m.SessionTakeoverItem
        broker, tenant = f"broker-{1 + self._walk.rounds % TAKEOVER_BROKERS}", self._settings.tenant
        return broker, [item(tenant, name) for name in names]

    async def send(self, batch: tuple[str, list[m.SessionTakeoverItem]]) -> Sequence[str]:
        """An item whose session did not exist has failed too."""
        broker, items = batch
        settings = self._settings
        result = await self._client.sessions.takeover_many(broker, settings.epoch, items, restore=settings.restore)
        absent = result.previous_index.count(-1)
        if settings.restore:
            absent = max(absent, result.restored.count(None))
        return failures(result) or [ABSENT] * absent


class SessionCreate:
    """session.takeover of sessions that nobody has yet, with their properties: names that no other process or run uses,
    for the epoch is in them."""

    def __init__(self, client: Client, settings: Settings) -> None:
        self._client, self._settings = client, settings
        self._values = Values(random.Random(f"{settings.seed}/{settings.share}"), settings.value_bytes)
        self._format = f"{settings.epoch:x}-{settings.share:x}-%07d"
        self._next = 0

    def batch(self) -> list[m.SessionTakeoverItem]:
        """The next names."""
        count, tenant, format_, begin = self._settings.batch, self._settings.tenant, self._format, self._next
        item, properties = m.SessionTakeoverItem, m.SessionProperties
        self._next = begin + count
        return [
            item(tenant, format_ % (begin + at), True, properties(EXPIRY_INTERVAL_S, value))
            for at, value in enumerate(self._values.pick(count))
        ]

    async def send(self, batch: list[m.SessionTakeoverItem]) -> Sequence[str]:
        """An item whose session was there has failed too."""
        result = await self._client.sessions.takeover_many(BROKER, self._settings.epoch, batch)
        return failures(result) or [PRESENT] * (len(batch) - result.previous_index.count(-1))


class SessionGet:
    """session.get of existing sessions."""

    def __init__(self, client: Client, settings: Settings) -> None:
        self._rng, self._client, self._settings = random.Random(f"{settings.seed}/{settings.share}"), client, settings
        self._names = session_names(settings.keys)

    def batch(self) -> list[m.SessionKey]:
        """Uniformly random sessions."""
        key = m.SessionKey
        return [key(self._settings.tenant, name) for name in self._names.pick(self._rng, self._settings.batch)]

    async def send(self, batch: list[m.SessionKey]) -> Sequence[str]:
        """The answer must hold every requested session, whole."""
        sessions = await self._client.sessions.get_many(batch)
        sessions.raise_for_error()
        size = self._settings.value_bytes
        return [
            ABSENT if one is None else DIFFERENT
            for asked, one in zip(batch, sessions, strict=True)
            if one is None or one.client_id != asked.client_id or len(one.properties.payload) != size
        ]


class OffsetCommit:
    """offset.commit: every commit of a process is higher than its last one."""

    def __init__(self, client: Client, settings: Settings) -> None:
        self._rng, self._client, self._settings = random.Random(f"{settings.seed}/{settings.share}"), client, settings
        groups = -(-settings.keys // PARTITIONS)
        self._groups = ["group-%06d" % i for i in range(groups)]  # noqa: UP031
        self._offset = settings.epoch

    def batch(self) -> list[m.OffsetCommitItem]:
        """All partitions of uniformly random consumer groups, because a group's coordinator commits them together; the
        last group is cut when the batch is full."""
        count = self._settings.batch
        begin = self._offset
        self._offset = begin + count
        item, tenant = m.OffsetCommitItem, self._settings.tenant
        groups = self._rng.choices(self._groups, k=-(-count // PARTITIONS))
        return [item(tenant, groups[at // PARTITIONS], "orders", at % PARTITIONS, begin + at) for at in range(count)]

    async def send(self, batch: list[m.OffsetCommitItem]) -> Sequence[str]:
        return failures(await self._client.offsets.commit_many(batch))


class KvPut:
    """kv.put, unconditional."""

    make: Callable[[str, str, bytes], Any] = m.KvPutItem

    def __init__(self, client: Any, settings: Settings) -> None:
        rng = random.Random(f"{settings.seed}/{settings.share}")
        self._rng, self._client, self._settings = rng, client, settings
        self._keys = kv_keys(settings.keys)
        self._values = Values(rng, settings.value_bytes)

    def batch(self) -> list[Any]:
        """Uniformly random keys."""
        count = self._settings.batch
        item = self.make
        return [
            item(namespace, key, value)
            for (namespace, key), value in zip(
                self._rng.choices(self._keys, k=count), self._values.pick(count), strict=True
            )
        ]

    async def send(self, batch: list[Any]) -> Sequence[str]:
        return _put_failures(await self._client.kv.put_many(batch))


class KvGet:
    """kv.get of existing keys."""

    def __init__(self, client: Any, settings: Settings) -> None:
        self._rng, self._client, self._settings = random.Random(f"{settings.seed}/{settings.share}"), client, settings
        self._keys = kv_keys(settings.keys)

    def batch(self) -> list[m.KvKey]:
        """Uniformly random keys."""
        key = m.KvKey
        return [key(namespace, name) for namespace, name in self._rng.choices(self._keys, k=self._settings.batch)]

    async def send(self, batch: list[m.KvKey]) -> Sequence[str]:
        """The answer must hold every requested key, whole."""
        records = await self._client.kv.get_many(batch)
        records.raise_for_error()
        return self._wrong(batch, records)

    def _wrong(self, batch: list[m.KvKey], records: Sequence[Any]) -> Sequence[str]:
        size = self._settings.value_bytes
        return [
            ABSENT if one is None else DIFFERENT
            for asked, one in zip(batch, records, strict=True)
            if one is None or one.key != asked.key or len(one.value) != size
        ]


class Item(Record, frozen=True):
    """A record of a declared table that holds what a key-value record does."""

    namespace: str
    key: str
    value: bytes


async def opened(client: Client, verb: str) -> Any:
    """What the workload of a verb is made with: the records of a declared table (:class:`Item`), or the client."""
    if not verb.startswith("table."):
        return client
    fields = ("namespace", "key")
    return client.table(await client.tables.declare("perf_item", Item, key=fields, routing=fields[:1], kind="data"))


def item_put(namespace: str, key: str, value: bytes) -> TablePutItem[Item]:
    """Writes one record of the declared table."""
    return TablePutItem(Item(namespace, key, value))


class TablePut(KvPut):
    """table.put, unconditional: the keys and values of kv.put."""

    make = staticmethod(item_put)

    async def send(self, batch: list[Any]) -> Sequence[str]:
        return _put_failures(await self._client.put_many(batch))


class TableGet(KvGet):
    """table.get of existing keys: those of kv.get."""

    async def send(self, batch: list[m.KvKey]) -> Sequence[str]:
        found = await self._client.get_many([(key.namespace, key.key) for key in batch])
        found.raise_for_error()
        return self._wrong(batch, [one and one.record for one in found])


VERBS: dict[str, Callable[[Any, Settings], Workload]] = {
    "session.create": SessionCreate,
    "session.takeover": SessionTakeover,
    "session.update": SessionUpdate,
    "session.get": SessionGet,
    "offset.commit": OffsetCommit,
    "kv.put": KvPut,
    "kv.get": KvGet,
    "table.put": TablePut,
    "table.get": TableGet,
}


def _put_failures(result: PutResult) -> Sequence[str]:
    return failures(result) or [ABSENT] * result.versions.count(0)


def failures(result: WriteResult) -> Sequence[str]:
    """The names of the errors of the items that failed."""
    return () if result.ok else [error.name for error in result.errors.values()]


def session_names(count: int) -> Names:
    """The client ids of the key space."""
    return Names("client-%010d", count)


def kv_keys(count: int) -> list[tuple[str, str]]:
    """(namespace, key) of the key space."""
    return [("namespace-%02d" % (i % KV_NAMESPACES), "key-%010d" % i) for i in range(count)]  # noqa: UP031
