"""Resources, partitions and brokers of a fleet, for tests of the clients' side."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from metad_client import Owner
from metad_wire.tables import broker as b
from metad_wire.tables.assignment import Partition, Resource

KEY = ("acme", "orders", "topic")
ID, EPOCH = 7, 5


def resource(partitions: int, *, first: int = 0, writes: int | None = None, **more: Any) -> Resource:
    writes = partitions if writes is None else writes
    return Resource(*KEY, ID, partitions, first, writes, 3, 2, "isr", 1, None, 0, "rack", {}, {}, **more)


def broker(name: str, *, epoch: int = EPOCH, state: str = b.ACTIVE, region: str = "", rack: str = "") -> b.Broker:
    return b.Broker(name, epoch, state, 10_000, f"{name}:9092", region, rack)


def partition(number: int, *replicas: str, led: bool = True, **more: Any) -> Partition:
    lives = [Owner(name, EPOCH) for name in replicas]
    state = more.pop("state", "online" if led else "readable")
    known = Partition(*KEY, number, ID, [*replicas], lives[0] if led else None, 40 + number, 9, lives, state=state)
    return replace(known, **more)
