"""RobustMQ MetaService layers: service, core, Raft and storage, and the controllers of MQTT and of a journal on top.

Service: a verdict about the nodes for probes. Core: a cache in the broker that is filled before it serves, and told of
each change. Raft: three replicas of each group, which agree, and a leader that is moved. Storage: a snapshot of a group
beside its writes. The MQTT controller finds a client's filters and what is in flight with its session, in one answer.
The journal controller seals a segment and begins the next one at once, and fences whoever does it too late.

Not yet: a backup of a running node, and metrics over HTTP.
"""

from __future__ import annotations

import subprocess
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import pytest
from e2e_nodes import NAMES, Nodes
from e2e_server import METAD

from metad_client import (
    Client,
    Compare,
    FencedError,
    GroupId,
    Inflight,
    InflightKey,
    NotOwnerError,
    Put,
    SessionKey,
    SessionProperties,
    StatusReply,
    Subscription,
    SubscriptionKey,
    SubscriptionOptions,
    Transaction,
)
from metad_client.topics import Subscribers
from metad_wire.families.core import DYNAMIC_CONFIG, DynamicConfig
from metad_wire.families.journal import SEGMENTS, SHARDS, Segment, Shard
from metad_wire.families.mqtt import AUTO_SUBSCRIPTIONS, AutoSubscription
from waiting import until

SHOWS = """
system.status cluster.map cluster.transfer watch.open table.put table.get table.list table.transact session.takeover
subscription.add subscription.remove subscription.get subscription.list inflight.put inflight.delete inflight.get
"""


async def test_the_nodes_say_that_all_is_well_and_agree(
    m: Client, cluster: Nodes, metadctl: Callable[..., Awaitable[Any]]
) -> None:
    probe = [str(METAD.with_name("metadctl")), "--endpoint", cluster.where, "status", "--check"]

    def is_well() -> bool:
        return subprocess.run(probe, capture_output=True, check=False).returncode == 0

    await until(is_well, "the verdict of a probe")
    leader = (await m.cluster.map()).leaders["data-0"]
    wanted = next(name for name in NAMES if name != leader)
    await metadctl("transfer", "data-0", wanted)

    async def agree() -> bool:
        """Each group has one leader and three voters, and all replicas have applied the same entries."""
        statuses = await m.cluster.statuses()
        replicas: dict[str, list[Any]] = {}
        for status in statuses.values():
            assert isinstance(status, StatusReply)
            for group in status.groups:
                replicas.setdefault(group.name, []).append(group)
        return all(
            len(each) == 3
            and [group.role for group in each].count("leader") == 1
            and len({group.applied for group in each}) == 1
            and {*each[0].voters} == {*NAMES}
            for each in replicas.values()
        ) and any(group.role == "leader" and group.name == "data-0" for group in statuses[wanted].groups)

    await until(agree, "the replicas agree")


async def test_a_cache_is_warm_before_it_serves_and_hears_of_changes(m: Client) -> None:
    settings = m.table(DYNAMIC_CONFIG)
    for number in range(20):
        await settings.put(DynamicConfig("tenant", "layers", f"s{number:02}", "old"))
    async with await m.image(DYNAMIC_CONFIG, prefix="", tenant="tenant").caught_up() as cache:
        assert len(cache[DYNAMIC_CONFIG]) >= 20
        changed: list[str] = []
        cache.on_change(lambda event: changed.append(event.key.name))
        found = await settings.get("tenant", "layers", "s03")
        assert found is not None
        await settings.put(DynamicConfig("tenant", "layers", "s03", "new"), expected_version=found.version)
        await until(lambda: changed == ["s03"], "the change is told")
        assert {r.record.name for r in cache[DYNAMIC_CONFIG].values() if r.record.value == "new"} == {"s03"}
        assert cache.age_ms is not None
    rows = 0
    async for part in m.snapshot(GroupId("metadata", 0), DYNAMIC_CONFIG):
        rows = (0 if part.first else rows) + sum(len(each.keys) for each in part.rows)
    assert rows >= 1


async def test_the_mqtt_controller(m: Client) -> None:
    await m.table(AUTO_SUBSCRIPTIONS).put(AutoSubscription("layers", "news/#", qos=1))
    rules = [found.record.filter async for found in m.table(AUTO_SUBSCRIPTIONS).list("layers")]
    assert rules == ["news/#"]
    await m.sessions.takeover("mqtt-1", 1, "layers", "c1", properties=SessionProperties(3_600))
    filters = ["site/+/door", "$share/workers/jobs/#", *rules]
    added = await m.subscriptions.add_many(
        "mqtt-1", 1, [Subscription("layers", "c1", each, SubscriptionOptions(1)) for each in filters]
    )
    assert added.created == [True] * 3
    await m.inflight.put_many("mqtt-1", 1, [Inflight("layers", "c1", f"out/{number}", b"PUBREC") for number in (1, 2)])
    await m.inflight.delete_many("mqtt-1", 1, [InflightKey("layers", "c1", "out/1")])

    # The client comes back at another broker, which needs one answer to go on with QoS 2 where the first one was.
    taken = await m.sessions.takeover("mqtt-2", 1, "layers", "c1", restore=True, restore_parts=True)
    assert taken.session_present
    assert sorted(each.filter for each in taken.subscriptions) == sorted(filters)
    assert [(each.name, each.value) for each in taken.inflight] == [("out/2", b"PUBREC")]
    late = await m.inflight.put_many("mqtt-1", 1, [Inflight("layers", "c1", "out/3", b"")])
    assert [type(error) for error in late.errors.values()] == [NotOwnerError]
    assert [each.name for each in await m.inflight.get("layers", "c1")] == ["out/2"]
    await m.subscriptions.remove_many("mqtt-2", 1, [SubscriptionKey("layers", "c1", "news/#")])
    assert [each.filter for each in await m.subscriptions.get("layers", "c1")] == sorted(filters[:2])

    routes: Subscribers[SessionKey, int] = Subscribers()
    async for each in m.subscriptions.list("layers"):
        routes.add(each.filter, SessionKey(each.tenant, each.client_id), each.options.qos)
    assert routes.match("site/9/door").subscribers == [(SessionKey("layers", "c1"), 1)]
    assert len(routes.match("jobs/1").groups) == 1
    with pytest.raises(FencedError):
        await m.sessions.takeover("mqtt-2", 0, "layers", "c1")


async def test_the_journal_controller(m: Client) -> None:
    made = Transaction(
        compares=[Compare(SHARDS, ("layers", "log"), version=0)],
        then=[
            Put(SHARDS, Shard("layers", "log", replication=3)),
            Put(SEGMENTS, Segment("layers", "log", 0, "writing", [*NAMES], [*NAMES], "n1", 1, 1)),
        ],
    )
    assert (await m.tables.transact(made)).succeeded
    assert not (await m.tables.transact(made)).succeeded

    async def shrink(epoch: int, in_sync: list[str], leader: str) -> bool:
        """Of a leader that knows this epoch of the segment: these are in sync."""
        found = await m.table(SEGMENTS).get("layers", "log", 0)
        assert found is not None
        new = msgspec.structs.replace(found.record, in_sync=in_sync, leader=leader, segment_epoch=epoch + 1)
        unchanged = Compare(SEGMENTS, ("layers", "log", 0), field="segment_epoch", value=epoch)
        return (await m.tables.transact(Transaction(compares=[unchanged], then=[Put(SEGMENTS, new)]))).succeeded

    assert await shrink(1, ["n2", "n3"], "n2")
    assert not await shrink(1, ["n1"], "n1"), "the old leader does not know that it is none"
    found = await m.table(SEGMENTS).get("layers", "log", 0)
    assert found is not None
    assert (found.record.leader, found.record.in_sync) == ("n2", ["n2", "n3"])
    sealed = msgspec.structs.replace(found.record, state="sealed", last_offset=999, segment_epoch=3)
    roll = Transaction(
        compares=[Compare(SEGMENTS, ("layers", "log", 0), version=found.version)],
        then=[
            Put(SEGMENTS, sealed),
            Put(SEGMENTS, Segment("layers", "log", 1, "writing", [*NAMES], [*NAMES], "n3", 1, 1, first_offset=1_000)),
            Put(SHARDS, Shard("layers", "log", active_segment=1, last_segment=1, replication=3)),
        ],
        reads=[(SHARDS, ("layers", "log"))],
    )
    rolled = await m.tables.transact(roll)
    assert rolled.succeeded
    assert rolled.found[0] is not None
    assert rolled.found[0].record.active_segment == 1
    segments = [(found.record.segment, found.record.state) async for found in m.table(SEGMENTS).list("layers", "log")]
    assert segments == [(0, "sealed"), (1, "writing")]
