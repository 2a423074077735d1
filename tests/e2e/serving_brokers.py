"""Brokers of the scenarios, which do what metad assigns to them. Their logs are numbers: how many records there are."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import AsyncExitStack, ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from e2e_nodes import Nodes

from metad import embedded
from metad_client import BrokerLife, Client, FencedError, MetadError, blocking, connect
from metad_client.assignment.serving import Following, Held, Key, Led, Serving
from metad_client.errors import NoPlaceError, NoReplicaError
from metad_client.namespaces.brokers import _BEGUN, _Note
from metad_wire.tables.assignment import Partition
from waiting import until


@contextmanager
def idle_brokers(names: Iterable[str]) -> Iterator[embedded.Server]:
    """A node with brokers that live, and do nothing."""
    with ExitStack() as stack:
        server = stack.enter_context(embedded.serve_in_thread())
        for name in names:
            m = stack.enter_context(blocking.connect(server.url))
            assert m.brokers.register(name, lease_s=60).unfenced == []
        yield server


class Broker:
    """One life of a broker."""

    def __init__(self, client: Client, life: BrokerLife) -> None:
        self.client, self.life, self.name = client, life, life.broker
        self.logs: dict[Key, tuple[int, int]] = {}
        """The epoch of the last record, and how many there are."""
        self.may_stop = asyncio.Event()
        """It stops and deletes only while this is set."""
        self.may_stop.set()
        self.serving: Serving

    @property
    def led(self) -> dict[Key, Led]:
        return self.serving.led

    async def lead(self, led: Led) -> None:
        if led.record.election != "owner":
            led.begin(self.logs.setdefault(led.key, (0, 0))[1])

    async def follow(self, followed: Following) -> None:
        self.logs.setdefault(followed.key, (0, 0))

    async def release(self, held: Held) -> None:
        await self.may_stop.wait()
        if held.gone:
            self.logs.pop(held.key, None)

    async def elect(self, followed: Following) -> tuple[int, int]:
        return self.logs.get(followed.key, (0, 0))

    def append(self, key: Key, records: int = 1) -> int:
        """Append as the leader; how many records there are then. Raises FencedError."""
        led = self.led.get(key)
        if led is None:
            raise FencedError(f"{self.name} does not lead {key}")
        led.check()
        self.logs[key] = (led.leader_epoch, self.logs[key][1] + records)
        led.appended(self.logs[key][1])
        return self.logs[key][1]


async def joined(
    stack: AsyncExitStack, cluster: Nodes, name: str, *kinds: str, lease_s: float = 2.0, **about: Any
) -> Broker:
    """A broker that lives, and serves these kinds."""
    client = await stack.enter_async_context(connect(cluster.url))
    life = await client.brokers.register(name, lease_s=lease_s, **about)
    stack.push_async_callback(ended, life)  # plans share out among all brokers that live
    broker = Broker(client, life)
    broker.serving = await stack.enter_async_context(
        client.serve(
            *kinds,
            on_lead=broker.lead,
            on_follow=broker.follow,
            on_release=broker.release,
            on_elect=broker.elect,
        )
    )
    stack.callback(broker.may_stop.set)  # also where a test has failed
    return broker


async def killed_as_it_registers(
    monkeypatch: pytest.MonkeyPatch, client: Client, name: str, *, note: Path, lease_s: float
) -> None:
    """What is left of a broker that is killed when metad has begun its life, before its note says so."""
    write = _Note.write

    def killing(said: _Note, path: Path) -> None:
        if said.state == _BEGUN:
            raise OSError("killed")
        write(said, path)

    with monkeypatch.context() as patch:
        patch.setattr(_Note, "write", killing)
        with pytest.raises(OSError, match="killed"):
            await client.brokers.register(name, lease_s=lease_s, sole=True, note=note)


async def ended(life: BrokerLife) -> None:
    """End a life, if it is not over already."""
    with suppress(MetadError):
        await life.end()


async def created(m: Client, tenant: str, resource: str, kind: str, **how: Any) -> None:
    """Make a resource."""
    await placed(lambda: m.assignments.create(tenant, resource, kind, **how))


async def placed(create: Callable[[], Awaitable[None]]) -> None:
    """Make a resource. A node may hear of a new broker's labels after the broker has heard that it lives."""

    async def is_placed() -> bool:
        with suppress(NoPlaceError):
            await create()
            return True
        return False

    await until(is_placed, "enough brokers that may have it")


async def parts(m: Client, tenant: str, resource: str) -> list[Partition]:
    """The partitions of a resource, in order."""
    return [found.record async for found in m.assignments.partitions.list(tenant, resource)]


def replicate(brokers: Iterable[Broker]) -> None:
    """Each follower fetches once what its leader has, and each leader says who is in sync, if that has changed."""
    known = {broker.name: broker for broker in brokers}
    for leader in known.values():
        for key, led in leader.led.items():
            if led.in_sync is None:
                continue
            for follower in [known[name] for name in led.record.replicas if name in known]:
                held = follower.serving.held.get(key)
                if isinstance(held, Following) and held.leader_epoch == led.leader_epoch and held.leader == led.me:
                    with suppress(FencedError, NoReplicaError):
                        led.fetched(follower.life.owner, led.leader_epoch, leader.logs[key][1])
                        follower.logs[key] = leader.logs[key]
        leader.serving.propose()
