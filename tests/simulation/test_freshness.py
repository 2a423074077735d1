"""Every way to read says how fresh it is, and is: clients/README.md has the table, and each path is tried here with a
follower that lags on purpose and is the only node that the reader reaches."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from typed_verbs import namespace_of, tables

from metad_client import (
    BrokerKey,
    Client,
    ConsumerGroup,
    GroupId,
    Inflight,
    KvKey,
    OffsetCommitItem,
    SessionKey,
    SessionProperties,
    Subscription,
    SubscriptionOptions,
)
from metad_wire.families.mqtt import TOPIC_SETTINGS, TopicSettings
from metad_wire.method import For, Method
from metad_wire.methods import METHODS, METHODS_BY_NAME, NEAR
from metad_wire.table import Table
from metad_wire.tables.access import Given, Grant
from sim.nodes.cluster import DATA
from sim.nodes.scenarios.scene import Scene

README = Path(__file__).resolve().parents[2] / "clients" / "README.md"
METADATA, OFFSET = GroupId("metadata", 0), GroupId("offset", 0)


async def written(m: Client) -> None:
    """One record of each kind, all of them acknowledged."""
    await m.brokers.register("b1")
    await m.kv.put("ns", "k", b"1")
    await m.sessions.takeover("b", 1, "acme", "c1")
    await m.sessions.update("b", 1, "acme", "c1", SessionProperties(60, b"1"))
    (
        await m.subscriptions.add_many("b", 1, [Subscription("acme", "c1", "t/#", SubscriptionOptions())])
    ).raise_for_error()
    (await m.inflight.put_many("b", 1, [Inflight("acme", "c1", "p", b"1")])).raise_for_error()
    await m.leases.grant("ns", 60_000, "l1")
    await m.leases.attach("ns", "l1", "k")
    await m.sequences.add("ns", "s1", 5)
    await m.retained.put("acme", "topic", b"1")
    (await m.offsets.commit_many([OffsetCommitItem("acme", "g", "topic", 0, 7, generation=3)])).raise_for_error()
    await m.consumers.join("acme", "g", 30_000, "m1")
    await m.table(TOPIC_SETTINGS).put(TopicSettings("acme", "topic"))
    await m.assignments.create("acme", "r1", "topic")
    await m.plans.create("p1", "rebalance")
    await m.roles.put("r1", [Grant(["read"])])
    await m.features.hold("checked-entries")
    await m.quotas.put("tenant/acme", items_per_s=1_000_000)
    await m.principals.put("metad://client/c1", [Given("r1")])
    await m.tables.declare("t1", TopicSettings, key=("tenant", "topic"))


async def any_of(records: AsyncIterator[Any]) -> bool:
    return bool([record async for record in records])


async def of_image(m: Client) -> bool:
    image = await m.image(["kv", "session", "broker"]).caught_up()
    return all(
        key in image[table]
        for table, key in (
            ("kv", KvKey("ns", "k")),
            ("session", SessionKey("acme", "c1")),
            ("broker", BrokerKey("b1")),
        )
    )


async def of_watch(m: Client) -> bool:
    """What begins with the records has all that was acknowledged."""
    async with m.watch("kv", start="snapshot") as watch:
        async for batch in watch:
            if batch.events:
                return batch.kind == "snapshot"
    return False


async def of_now(m: Client) -> bool:
    """What begins now does not tell of what was acknowledged before."""
    async with m.watch("kv") as watch:
        await watch.opened()
        await m.kv.put("ns", "later", b"1")
        async for batch in watch:
            if batch.events:
                return [event.key.key for event in batch.events] == ["later"]
    return False


async def of_snapshot(m: Client) -> bool:
    async with m.snapshot(DATA, "kv") as snapshot:
        return bool([key async for part in snapshot for rows in part.rows for key in rows.keys])


async def of_generations(m: Client) -> bool:
    return (await m.offsets.generations_many([ConsumerGroup("acme", "g")]))[0] > 0


async def get(table: Table[Any], method: Method[Any, Any], m: Client) -> Any:
    """What a method that reads keys finds of what is written."""
    read = getattr(getattr(m, namespace_of(table)), method.name.partition(".")[2])
    return await read(*(KEY[field] for field in table.got[method].key.__struct_fields__))


PATHS: dict[str, Callable[[Client], Awaitable[Any]]] = {
    "kv.scan": lambda m: any_of(m.kv.scan("ns")),
    "session.list": lambda m: any_of(m.sessions.list("acme")),
    "subscription.list": lambda m: any_of(m.subscriptions.list("acme", "c1")),
    "lease.list": lambda m: any_of(m.leases.list("ns")),
    "lease.keys": lambda m: any_of(m.leases.keys("ns", "l1")),
    "sequence.list": lambda m: any_of(m.sequences.list("ns")),
    "retained.match": lambda m: any_of(m.retained.match("acme", "topic/#")),
    "offset.list": lambda m: any_of(m.offsets.list("acme", "g")),
    "offset.groups": lambda m: any_of(m.offsets.groups("acme")),
    "offset.generations": of_generations,
    "consumer.members": lambda m: any_of(m.consumers.members("acme", "g")),
    "consumer.describe": lambda m: m.consumers.describe("acme", "g"),
    "declaration.list": lambda m: any_of(m.tables.list()),
    "table.get": lambda m: m.table(TOPIC_SETTINGS).get("acme", "topic"),
    "table.list": lambda m: any_of(m.table(TOPIC_SETTINGS).list("acme")),
    "table.count": lambda m: m.table(TOPIC_SETTINGS).count("acme"),
    "plan.list": lambda m: any_of(m.plans.list()),
    "role.list": lambda m: any_of(m.roles.list()),
    "audit.list": lambda m: any_of(m.audit.list()),
    "principal.list": lambda m: any_of(m.principals.list()),
    "feature.list": lambda m: any_of(m.features.list()),
    "quota.list": lambda m: any_of(m.quotas.list()),
    "broker.get": lambda m: m.brokers.get("b1"),
    "broker.list": lambda m: any_of(m.brokers.list()),
    "watch.open: image": of_image,
    "watch.open: snapshot": of_watch,
    "watch.open: now": of_now,
    "watch.open: one group": of_snapshot,
}
KEY: dict[str, Any] = {
    "tenant": "acme",
    "client_id": "c1",
    "namespace": "ns",
    "key": "k",
    "lease": "l1",
    "sequence": "s1",
    "name": "t1",
}
KEY |= {"resource": "r1", "kind": "topic", "plan": "p1", "principal": "metad://client/c1"}
KEY |= {"topic": "topic", "partition": 0, "group": "g", "member": "m1"}
"""The fields of the keys that are written, by name."""
PATHS |= {method.name: partial(get, table, method) for table in tables() for method in table.got}
OTHERS = {
    "system.status": "what the node knows of itself",
    "system.activity": "what the node knows of itself",
    "system.events": "what the node knows of itself",
    "cluster.map": "what the node knows: it may be old",
    "access.may": "what the node knows: it may be old",
    "session.endings": "as kv.get: the same reads of the leader; it is empty once all is done",
    "quota.use": "what the nodes know: it may be old",
    "tenants.endings": "as session.endings",
    "tenants.list": "as kv.get: the same reads of the leaders, each at its own moment",
    "tenants.use": "as kv.get: the same reads of the leaders, each at its own moment",
    "will.list": "as kv.get: the same reads of the leader; a will takes a broker that dies",
    "broker.register": "no read",
    "broker.heartbeat": "no read",
    "broker.serve": "no read",
    "broker.drain": "no read",
    "broker.deregister": "no read",
    "consumer.heartbeat": "no read",
    "lease.keep_alive": "no read",
    "will.wait": "no read",
}


def test_every_method_that_reads_is_in_the_table() -> None:
    """A new one needs a path here, and a word in the README."""
    reads = {method.name for method in METHODS.values() if not method.mutates and method.whose is For.CLIENTS}
    assert reads == {path.partition(":")[0] for path in PATHS} | OTHERS.keys()


def test_the_page_says_how_fresh_each_is() -> None:
    table = README.read_text().partition("| how fresh |")[2].partition("\n\n")[0]
    said = set(re.findall(r"`([a-z]{2,}\.[a-z_]+(?:: [a-z ]+)?)`", table))
    no_read = {name for name, why in OTHERS.items() if why == "no read"}
    assert said == PATHS.keys() | OTHERS.keys() - no_read


@pytest.mark.parametrize("path", PATHS)
def test_what_was_acknowledged_is_read_although_the_only_node_in_reach_lags(path: str) -> None:
    with Scene() as scene:
        for group in (METADATA, DATA, OFFSET):
            scene.transfer("n3", group)
        late = scene.nodes["n1"].environment
        assert late is not None
        late.hang_disk()
        scene.ask(scene.one, written, 20.0)
        reader = scene.client()
        scene.network.partition([reader.name], ["n2", "n3"])
        task = scene.begin(reader, PATHS[path])
        scene.run(1.0)
        assert not task.done() or task.result(), "it has read what the follower has"
        late.unhang_disk()
        scene.network.heal()
        assert scene.run_until(task.done, 30.0), "there is no answer"
        assert task.result(), "it lacks what was acknowledged"


def near(client: Client, freshness_ms: int) -> None:
    """Have all reads of a client ask for so much freshness that any replica may answer."""
    dispatcher = client._dispatcher
    submit = dispatcher.submit

    def submitted(method: Method[Any, Any], *how: Any, **more: Any) -> Any:
        return submit(method, *how, **more | {"freshness_ms": freshness_ms if method.code in NEAR else 0})

    dispatcher.submit = submitted  # type: ignore[method-assign]


def test_each_read_that_may_be_near_is_answered_by_a_follower_alone() -> None:
    """And with all that was acknowledged before the time that it names."""
    paths = {
        path: read for path, read in PATHS.items() if path in METHODS_BY_NAME and METHODS_BY_NAME[path].code in NEAR
    }
    assert len(paths) > 20
    with Scene() as scene:
        for group in (METADATA, DATA, OFFSET):
            scene.transfer("n3", group)
        scene.ask(scene.one, written, 20.0)
        reader = scene.client()
        near(scene.ask(reader, itself), 60_000)
        scene.network.partition([reader.name], ["n2", "n3"])
        scene.run(2.0)
        for name, path in paths.items():
            assert scene.ask(reader, path), name
        asked = scene.nodes["n1"].node
        assert asked is not None
        assert asked.near.served >= len(paths)


async def itself(client: Client) -> Client:
    return client
