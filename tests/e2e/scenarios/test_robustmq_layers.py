"""RobustMQ MetaService layers: service, core, Raft and storage, and the controllers of MQTT and of a journal on top.

Service: a verdict about the nodes for probes. Core: a cache in the broker that is filled before it serves, and told of
each change. Raft: three replicas of each group, which agree, and a leader that is moved. Storage: a snapshot of a group
beside its writes; a backup of the cluster, which has what is written behind it in an archive, and is restored into
another. The MQTT controller finds a client's filters and what is in flight with its session, in one answer.
The journal controller is metad: the leader of a segment seals it, and the next one begins in the same entry; whoever
does it too late is refused. A replica whose broker is dead is made anew elsewhere. Old segments are trimmed, and a
shard is deleted: what was there counts as gone once its brokers have said that they deleted it, also those that died
meanwhile and came back.

Not yet: a snapshot of one group that is put back alone.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, ClassVar

import pytest
from e2e_nodes import NAMES, Nodes
from serving_brokers import Broker, joined, parts, placed, replicate

from metad.embedded import cluster as served
from metad_backup.copies import opened
from metad_backup.following import Follower
from metad_backup.moving import move
from metad_backup.repository import Repository
from metad_backup.restoring import restore
from metad_backup.showing import Shown
from metad_backup.taking import take
from metad_client import (
    ActivityReply,
    Client,
    ConflictError,
    FencedError,
    GroupId,
    Inflight,
    InflightKey,
    NotOwnerError,
    SessionKey,
    SessionProperties,
    StatusReply,
    Subscription,
    SubscriptionKey,
    SubscriptionOptions,
    TenantMovedError,
    connect,
)
from metad_client.assignment.serving import Led
from metad_client.topics import Subscribers
from metad_wire.families.core import DYNAMIC_CONFIG, DynamicConfig
from metad_wire.families.journal import SHARDS, Shard
from metad_wire.families.mqtt import AUTO_SUBSCRIPTIONS, AutoSubscription
from waiting import until

SHOWS = """
assignment.create assignment.seal assignment.resize assignment.release assignment.delete
backup.begin backup.read backup.end backup.log group.restore group.move_tenant group.put_tenant group.copy_tenant
system.status system.activity cluster.map cluster.transfer watch.open table.put table.get table.list session.takeover
subscription.add subscription.remove subscription.get subscription.list inflight.put inflight.delete inflight.get
"""


async def test_the_nodes_say_that_all_is_well_and_agree(
    m: Client, cluster: Nodes, metadctl: Callable[..., Awaitable[Any]]
) -> None:
    async def is_well() -> bool:
        return (await metadctl("status"))["verdict"] == "ok"

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

    # Who asks for most is known a moment later: one request of seven is looked at.
    async def is_loud() -> bool:
        await m.kv.put("loud-and-clear", "k", b"v")
        return any(
            "loud-and-clear" in [each.name for each in reply.tenants]
            for reply in (await m.cluster.activity()).values()
            if isinstance(reply, ActivityReply)
        )

    await until(is_loud, "somebody is loud")
    assert any(row["name"] == "loud-and-clear" for row in await metadctl("loud"))
    assert isinstance(await metadctl("slow"), list)


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


async def test_the_journal_controller(m: Client, cluster: Nodes) -> None:
    system = {"system": "journal"}
    async with AsyncExitStack() as stack:
        joins = [await joined(stack, cluster, f"journal-{each}", "shard", attributes=system) for each in "abcd"]
        brokers = {broker.name: broker for broker in joins}
        how: dict[str, Any] = {"labels": system, "repair_after_ms": 200, "spread": "none"}
        await placed(lambda: m.assignments.shards.create("layers", "log", **how))
        (first,) = await parts(m, "layers", "log")
        assert first.leader is not None
        leader, key = brokers[first.leader.broker], ("layers", "log", "shard", 0)
        await until(lambda: key in leader.led, "it leads")
        leader.append(key, 1_000)
        acknowledging = asyncio.create_task(leader.led[key].acknowledged(1_000))
        await until(lambda: replicate(brokers.values()) or acknowledging.done(), "all have the records")

        # It is full. The next segment begins in the entry that seals it, once.
        await leader.led[key].seal(1_000)
        with pytest.raises(ConflictError):
            await leader.led[key].seal(1_000)
        sealed, active = await parts(m, "layers", "log")
        assert (sealed.state, sealed.end, active.state, active.end) == ("sealed", 1_000, "online", None)

        # The broker that leads the active one dies. It seals nothing any more, and another broker gets its replicas.
        assert active.leader is not None
        dead = brokers.pop(active.leader.broker)
        await m.brokers.fence(dead.name)
        with pytest.raises(FencedError):
            await m.assignments.seal("layers", "log", "shard", 1, dead.name, dead.life.epoch, active.leader_epoch, 5)

        async def repaired() -> bool:
            replicate(brokers.values())
            return all({*part.replicas} == {*brokers} and part.move is None for part in await parts(m, "layers", "log"))

        await until(repaired, "the replicas are made anew")
        (spare,) = {*brokers} - {*first.replicas}
        assert brokers[spare].logs[key] == (1, 1_000)

        # The sealed segment is trimmed. It is there until the last of its replicas has said that it deleted it.
        brokers[spare].may_stop.clear()
        await m.assignments.shards.trim("layers", "log", 1)

        async def only_one_has_it() -> bool:
            found = await m.assignments.partitions.get(*key)
            return found is not None and found.record.state == "deleting" and found.record.replicas == [spare]

        await until(only_one_has_it, "the others have deleted it")
        brokers[spare].may_stop.set()

        async def trimmed() -> bool:
            return [part.partition for part in await parts(m, "layers", "log")] == [1]

        await until(trimmed, "the segment is gone")
        await m.assignments.shards.delete("layers", "log")

        async def deleted() -> bool:
            return await m.assignments.resources.get("layers", "log", "shard") is None

        await until(deleted, "the shard is gone")
        assert not any(broker.logs for broker in brokers.values())


class Restarts:
    """Brokers of shards, each of which may be killed, and begin again with all that it has on disk."""

    SYSTEM: ClassVar = {"system": "restarts"}

    def __init__(self, m: Client, cluster: Nodes, stack: AsyncExitStack) -> None:
        self._m, self._cluster, self._stack = m, cluster, stack
        self.brokers: dict[str, Broker] = {}

    async def started(self, name: str) -> Broker:
        old = self.brokers.get(name)
        clean = 0
        if old is not None:
            await old.client.close()
            clean = old.life.epoch
        joins = joined(self._stack, self._cluster, name, "shard", attributes=self.SYSTEM, clean_epoch=clean)
        new = self.brokers[name] = await joins
        if old is not None:
            new.logs = old.logs
        return new

    async def written(self, segment: int, records: int) -> Led:
        """So many records are acknowledged in a segment, beside those that it has. Who leads it."""
        key = ("layers2", "log", "shard", segment)
        await until(lambda: any(key in each.led for each in self.brokers.values()), "somebody leads it")
        (leader,) = [each for each in self.brokers.values() if key in each.led]
        led, end = leader.led[key], leader.append(key, records)
        acknowledging = asyncio.create_task(led.acknowledged(end))
        await until(lambda: replicate(self.brokers.values()) or acknowledging.done(), "they are acknowledged")
        await acknowledging
        return led

    async def left(self, segment: int) -> list[str] | None:
        """Who has not deleted a segment yet; None: it is gone."""
        now = await self._m.assignments.partitions.get("layers2", "log", "shard", segment)
        return None if now is None else now.record.replicas if now.record.state == "deleting" else []

    async def deleted_but_by(self, name: str, segment: int) -> None:
        """All others have deleted it. That one dies, and is back."""

        async def only_one() -> bool:
            return await self.left(segment) == [name]

        async def gone() -> bool:
            return await self.left(segment) is None

        await until(only_one, "the others have deleted it")
        await self.started(name)
        await until(gone, "the segment is gone")


async def test_a_backup_with_what_was_written_behind_it_goes_into_another_cluster(m: Client, tmp_path: Path) -> None:
    repository = Repository(str(tmp_path / "backups"), create=True)
    life = await m.brokers.register("backed-up")
    properties = SessionProperties(3_600, b"p")
    await m.sessions.takeover("backed-up", life.epoch, "layers", "c1", properties=properties)
    manifest = await take(m, repository)
    await m.table(DYNAMIC_CONFIG).put(DynamicConfig("cluster", "layers", "behind", "1"))
    follower = Follower(m, repository, manifest)

    async def archived() -> bool:
        await follower.round()  # reads from replicas, which are some milliseconds behind
        with opened(repository, manifest, _soon_ms(), scratch=tmp_path) as copy:
            return any(Shown(copy).records(DYNAMIC_CONFIG.name, ["cluster", "layers", "behind"]))

    await until(archived, "it is archived")
    with opened(repository, manifest, _soon_ms(), scratch=tmp_path) as copy, served(1, groups={"data": 2}) as other:
        async with connect(other.url) as there:
            assert (await restore(there, copy)).rows > 0
            found = await there.sessions.get("layers", "c1")
            assert found is not None
            assert found.properties.payload == b"p"
            assert not found.connected, "its broker's life is over"
            assert await there.table(DYNAMIC_CONFIG).get("cluster", "layers", "behind") is not None


def _soon_ms() -> int:
    return time.time_ns() // 1_000_000 + 1_000


async def test_a_tenant_that_must_leave_goes_to_another_cluster(m: Client) -> None:
    life = await m.brokers.register("moved-from")
    await m.sessions.takeover("moved-from", life.epoch, "leaves", "c1", properties=SessionProperties(3_600, b"p"))
    await m.kv.put("leaves", "k", b"v")
    with served(1, groups={"data": 3}) as other:
        async with connect(other.url) as there:
            done = await move(m, there, "leaves", address=other.url)
            assert done.stopped_ms < 10_000
            found = await there.sessions.get("leaves", "c1")
            assert found is not None
            assert not found.connected, "its broker has to take it over there"
            with pytest.raises(TenantMovedError, match=other.url):
                await m.kv.put("leaves", "k", b"late")
    await m.tenants.end("leaves")


async def test_a_shard_outlives_the_restarts_of_its_brokers(m: Client, cluster: Nodes) -> None:
    shards, settings = m.assignments.shards, Shard("layers2", "log", topic="orders", segment_messages=10)
    async with AsyncExitStack() as stack:
        restarts = Restarts(m, cluster, stack)
        for name in ("restart-a", "restart-b", "restart-c"):
            await restarts.started(name)
        for _ in range(2):
            await placed(lambda: shards.create("layers2", "log", settings=settings, labels=restarts.SYSTEM))
        await (await restarts.written(0, 10)).seal(10)
        leader = (await restarts.written(1, 4)).me.broker
        await restarts.started(leader)
        led = await restarts.written(1, 6)
        assert restarts.brokers[led.me.broker].logs[led.key][1] == 10, "none of the four is lost"
        await led.seal(10)
        await restarts.written(2, 1)
        found = await parts(m, "layers2", "log")
        assert [(part.state, part.end) for part in found] == [("sealed", 10), ("sealed", 10), ("online", None)]

        # A broker dies that has not deleted the oldest segment. That is there until it is back, and has.
        late = found[0].replicas[-1]
        restarts.brokers[late].may_stop.clear()
        await shards.trim("layers2", "log", 1)
        await restarts.deleted_but_by(late, 0)
        assert {key[3] for key in restarts.brokers[late].logs} == {1, 2}

        # The whole shard goes in the same way, and its settings with it.
        restarts.brokers[late].may_stop.clear()
        await shards.delete("layers2", "log")
        assert await m.table(SHARDS).get("layers2", "log") is None
        with pytest.raises(ConflictError, match="is being deleted"):
            await shards.create("layers2", "log", settings=settings, labels=restarts.SYSTEM)
        await restarts.deleted_but_by(late, 2)

        async def deleted() -> bool:
            return await m.assignments.resources.get("layers2", "log", "shard") is None

        await until(deleted, "the shard is gone")
        assert not restarts.brokers[late].logs
