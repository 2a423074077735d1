"""The topics, by their numbers: what a broker keeps of each, and the table that has it."""

from __future__ import annotations

from typing import Any, Final, Literal

import msgspec

from metad_client import U32, Client, Record
from metad_wire.tables.table import PlainTable

_TENANTS: Final = 100
_OWNED: Final = 50  # topics of an owner, in a tenant
_SETTINGS: Final = {
    "cleanup.policy": "delete",
    "compression.type": "lz4",
    "max.message.bytes": "1048588",
    "message.timestamp.type": "CreateTime",
    "min.insync.replicas": "2",
    "retention.bytes": "-1",
    "segment.bytes": "1073741824",
}


class Topic(Record, frozen=True):
    """What a broker keeps of a topic."""

    tenant: str
    topic: str
    owner: str
    partitions: U32 = 1
    replication: U32 = 3
    permission: Literal["private", "read", "write"] = "private"
    attributes: dict[str, str] = msgspec.field(default_factory=dict)


def topic_of(number: int, partitions: int = 1) -> Topic:
    """A topic by its number."""
    tenant, topic = key_of(number)
    permission: Any = ("private", "read", "write")[number % 3]
    attributes = {**_SETTINGS, "retention.ms": str(3_600_000 + number)}
    return Topic(tenant, topic, _owner_of(number), partitions, 3, permission, attributes)


def key_of(number: int) -> tuple[str, str]:
    """Its key: tenant and topic."""
    return f"tenant-{number % _TENANTS:02}", f"orders-{number:09}"


def number_of(topic: str) -> int:
    """The number in its name."""
    return int(topic[-9:])


def owned_with(number: int, topics: int) -> tuple[tuple[str, str], int]:
    """Tenant and owner of a topic, and how many of so many topics are theirs."""
    first = number // _TENANTS // _OWNED * _OWNED * _TENANTS + number % _TENANTS
    return (key_of(number)[0], _owner_of(number)), len(range(first, min(topics, first + _OWNED * _TENANTS), _TENANTS))


def _owner_of(number: int) -> str:
    return f"owner-{number // _TENANTS // _OWNED:05}"


async def declared(client: Client, kind: str) -> PlainTable[Topic]:
    """The table, kept by groups of a kind."""
    key, indexes = ("tenant", "topic"), {"by_owner": ("tenant", "owner")}
    return await client.tables.declare("perf_topic", Topic, key=key, kind=kind, indexes=indexes)
