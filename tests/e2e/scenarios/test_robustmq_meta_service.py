"""RobustMQ meta service: cluster coordination, metadata, business data of clients, and control, as one service.

A client that knows one node finds all. Groups of each of the three kinds are added while programs write, and slots
move to them without losing a write. Topics and users are records; sessions, retained messages and wills have verbs of
their own, in batches that say of each client whether its session was there and who had it. A broker that dies leaves
its clients to another one, and their wills are published once. The tasks of connectors and share groups have one owner
each: metad chooses it, replaces it once its lease is over, and hands a task over only after its owner has stopped.

Not yet: how many sessions a node holds is measured by ``metad-perf``, not shown here.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, aclosing
from typing import Any

from e2e_nodes import NAMES, PAUSE_S, Nodes
from serving_brokers import created, joined, parts, placed

from metad_client import (
    Client,
    ConflictError,
    Given,
    Grant,
    KvPutItem,
    OffsetCommitItem,
    RetainedPutItem,
    SessionDisconnectItem,
    SessionProperties,
    SessionTakeoverItem,
    TablePutItem,
    Will,
    connect,
)
from metad_wire.cluster import GroupId, unpack_slots
from metad_wire.families.core import TOPICS, Topic
from waiting import until

SHOWS = """
system.status cluster.map cluster.add_group cluster.rebalance cluster.drain cluster.move_slots cluster.move_replica
cluster.remove_group table.put table.list kv.put offset.commit
session.takeover session.disconnect session.update session.get session.list session.delete session.end_tenant
session.endings retained.put retained.get retained.match retained.delete
will.wait will.claim will.acknowledge will.release will.list
assignment.create assignment.elect assignment.release assignment.move
role.put role.list role.delete principal.put principal.change principal.get principal.list principal.delete access.may
audit.list
tenants.list tenants.use tenants.end tenants.keep tenants.endings quota.put quota.delete quota.list quota.use
feature.change feature.list
"""
CLIENTS = 1_000


class Writer:
    """Writes a record of each kind of group, again and again; each must have as many versions as rounds."""

    def __init__(self, m: Client) -> None:
        self._m = m
        self.rounds = 0
        self.stopping = False

    async def run(self) -> None:
        while not self.stopping:
            puts = [TablePutItem(Topic("robust", f"t{i}", partitions=self.rounds + 1), self.rounds) for i in range(40)]
            (await self._m.table(TOPICS).put_many(puts)).raise_for_error()
            keys = [KvPutItem(f"robust{i}", "key", b"", self.rounds) for i in range(40)]
            (await self._m.kv.put_many(keys)).raise_for_error()
            expected = self.rounds if self.rounds else -1
            commits = [OffsetCommitItem("robust", f"g{i}", "t", 0, self.rounds + 1, 0, expected) for i in range(40)]
            (await self._m.offsets.commit_many(commits)).raise_for_error()
            self.rounds += 1
            await asyncio.sleep(PAUSE_S)


async def test_the_cluster_grows_in_groups_of_each_kind_while_it_is_written_to(
    m: Client, cluster: Nodes, metadctl: Callable[..., Awaitable[Any]]
) -> None:
    async with connect(f"metad://{cluster.endpoints['n1']}") as client:
        known = (await client.cluster.map()).map
        assert known is not None
        assert [node.node_id for node in known.nodes] == [*NAMES]
        assert sorted(await client.cluster.statuses()) == [*NAMES]
    before = Counter(group.kind for group in known.groups)
    writer = Writer(m)
    writing = asyncio.create_task(writer.run())
    for kind in ("metadata", "offset", "data"):
        await metadctl("groups", "add", "--kind", kind)
    await metadctl("groups", "rebalance")

    async def spread() -> bool:
        now = (await m.cluster.map()).map
        assert now is not None
        counts = {kind: Counter(unpack_slots(now.slots[kind])) for kind in before}
        return not now.moves and all(
            len(counts[kind]) == before[kind] + 1 and max(counts[kind].values()) - min(counts[kind].values()) <= 1
            for kind in before
        )

    await until(spread, "the slots are spread")
    grown = writer.rounds
    await until(lambda: writing.done() or writer.rounds > grown + 2, "the writes go on")

    # The way back from too many groups, while a node is serviced.
    await metadctl("node", "drain", "n1", "--wait")
    now = (await m.cluster.map()).map
    assert now is not None
    (first, *_, last) = [group.group_id.name for group in now.groups if group.kind == "data"]
    await metadctl("groups", "merge", last, "--into", first, "--wait")
    await m.features.allow("removed-groups")

    async def removed() -> bool:
        try:
            return "is removed" in (await m.cluster.remove_group(last)).text
        except ConflictError:  # the feature is not on yet
            return False

    await until(removed, "the group is removed")
    await metadctl("node", "undrain", "n1", "--wait")
    await metadctl("groups", "rebalance", "--replicas", "2")
    now = (await m.cluster.map()).map
    record = None if now is None else now.group(GroupId.parse(first))
    assert record is not None
    (free,) = {*NAMES} - {*record.replicas}
    await metadctl("groups", "move", first, "--from", record.replicas[0], "--to", free, "--wait")
    await metadctl("groups", "rebalance", "--replicas", "3")
    writer.stopping = True
    await writing
    versions = [found.version async for found in m.table(TOPICS).list("robust")]
    assert versions == [writer.rounds] * 40

    async def is_well() -> bool:
        return bool((await metadctl("status"))["verdict"] == "ok")

    await until(is_well, "all is well")


async def test_sessions_retained_messages_and_wills(
    m: Client, cluster: Nodes, metadctl: Callable[..., Awaitable[Any]]
) -> None:
    props = SessionProperties(3_600, b"what the broker keeps", Will("robust/gone", b"gone", 1))
    items = [SessionTakeoverItem("robust", f"c{i:04}", properties=props if i < 2 else None) for i in range(CLIENTS)]
    async with connect(cluster.url) as one, connect(cluster.url) as two:
        life1 = await one.brokers.register("robust-1", lease_s=2)
        life2 = await two.brokers.register("robust-2", lease_s=20)
        taken = await one.sessions.takeover_many(life1.broker, life1.epoch, items)
        taken.raise_for_error()
        assert not any(taken.session_present(i) for i in range(CLIENTS))
        await one.sessions.update(life1.broker, life1.epoch, "robust", "c0005", SessionProperties(60, b"new"))

        # The first broker dies; the other one takes its clients over as they come, and learns who had them.
        await one.close()
        come = [SessionTakeoverItem("robust", f"c{i:04}") for i in range(2, CLIENTS)]
        taken = await two.sessions.takeover_many(life2.broker, life2.epoch, come, restore=True)
        taken.raise_for_error()
        assert all(taken.session_present(i) for i in range(CLIENTS - 2))
        assert {owner.broker for owner in taken.owners} == {"robust-1"}
        restored = taken.properties(3)
        assert restored is not None
        assert restored.payload == b"new"
        assert [s.client_id async for s in m.sessions.list(broker="robust-1")] == ["c0000", "c0001"]
        assert len([s async for s in m.sessions.list("robust", "c00", page_size=30)]) == 100

        # The two that did not come back have wills: those are due once the first broker is known to be dead.
        published = []
        async with aclosing(two.wills.due(life2.broker, life2.epoch, tenant="robust", poll_s=0.5)) as due:
            async for will in due:
                published.append(will.key.client_id)
                await two.retained.put("robust", will.will.topic, will.will.payload, qos=will.will.qos)
                if len(published) == 2:
                    await two.wills.acknowledge(life2.broker, life2.epoch, will.key)
                    break
        assert sorted(published) == ["c0000", "c0001"]
        assert [will async for will in m.wills.list("robust")] == []
        # A broker that cannot publish a will gives it to the others.
        await two.sessions.takeover(life2.broker, life2.epoch, "robust", "c0001", properties=props)
        gone = SessionDisconnectItem("robust", "c0001", expiry_interval_s=0)
        assert (await two.sessions.disconnect_many(life2.broker, life2.epoch, [gone])).ok
        assert await m.sessions.get("robust", "c0001") is None
        for _ in range(2):
            (claimed,) = await two.wills.claim(life2.broker, life2.epoch, tenant="robust")
            await two.wills.release(life2.broker, life2.epoch, claimed.key)

        batch = [RetainedPutItem("robust", f"site/{i}/door", b"open") for i in range(50)]
        assert (await two.retained.put_many(batch)).ok
        assert len([found async for found in m.retained.match("robust", "site/+/door")]) == 50
        await two.retained.delete("robust", "site/7/door")
        assert await m.retained.get("robust", "site/7/door") is None
        await two.sessions.delete("robust", "c0002", broker=life2.broker, broker_epoch=life2.epoch)

        # A tenant ends as a whole.
        ended = await metadctl("sessions", "end-tenant", "robust", "--wills", "drop", "--retained", "--wait")
        assert ended == {"ordered": True, "ended": True}
        assert [s async for s in m.sessions.list("robust")] == []
        assert [found async for found in m.retained.match("robust", "#")] == []


async def test_connectors_and_share_groups_have_one_owner(m: Client, cluster: Nodes) -> None:
    system = {"system": "robust"}
    async with AsyncExitStack() as stack:
        brokers = {
            name: await joined(stack, cluster, name, "connector", "share_group", lease_s=1, attributes=system)
            for name in ("robust-a", "robust-b", "robust-c")
        }
        await created(m, "robust2", "sink", "connector", partitions=6, replication=2, election="owner", labels=system)
        await placed(lambda: m.assignments.share_groups.create("robust2", "jobs", labels=system))
        await until(lambda: sum(len(broker.led) for broker in brokers.values()) == 7, "all tasks run")
        assert len({key for broker in brokers.values() for key in broker.led}) == 7

        # A task is handed over: its owner stops first, and says so.
        (task, *_) = await parts(m, "robust2", "sink")
        key = ("robust2", "sink", "connector", task.partition)
        first, second = (brokers[name] for name in task.replicas)
        first.may_stop.clear()
        await m.assignments.elect(*key, broker=second.name)
        await until(lambda: key not in first.led, "it is told")
        (task, *_) = await parts(m, "robust2", "sink")
        assert (task.state, task.target, task.leader) == ("releasing", second.name, first.life.owner)
        assert key not in second.led
        first.may_stop.set()
        await until(lambda: key in second.led, "the next owner")
        # Its new owner gives it back by itself.
        led = second.led[key]
        await second.client.assignments.release(*key, second.name, second.life.epoch, led.leader_epoch)
        await until(lambda: led.over and key in first.led, "the preferred owner")

        # A broker dies: what it owned goes to others, and not before its lease is over.
        others = [broker for broker in brokers.values() if broker is not first]
        lost = {*first.led}
        served = [*first.led.values()]
        await first.client.close()
        await until(lambda: lost <= {key for broker in others for key in broker.led}, "the tasks of the dead one")
        assert not any(led.serves for led in served)

        # The only replica of the share group is moved: also its owner stops first.
        (group,) = await parts(m, "robust2", "jobs")
        assert group.leader is not None
        (other,) = [broker for broker in others if broker.name != group.leader.broker]
        await m.assignments.move("robust2", "jobs", "share_group", 0, [other.name])
        await until(lambda: ("robust2", "jobs", "share_group", 0) in other.led, "the share group")


async def test_two_teams_have_roles_that_every_node_knows(m: Client, cluster: Nodes) -> None:
    """What is refused, and to whom, is in ``tests/e2e/test_security.py``: these nodes ask nobody who he is."""
    teams = {name: f"metad://client/{name}" for name in ("team-a", "team-b")}
    await m.roles.put("topics", [Grant(["read", "write"], ["topic"])], about="of a team")
    for name, principal in teams.items():
        await m.principals.put(principal, [Given("topics", name)])
        await m.principals.change(principal, [Given("reader", "shared")])
    assert [role.role async for role in m.roles.list()] == ["topics"]
    assert [one.principal async for one in m.principals.list("metad://client/team-")] == [*teams.values()]
    for name in NAMES:
        async with connect(f"metad://{cluster.endpoints[name]}") as near:
            for team, principal in teams.items():

                async def knows(near: Client = near, team: str = team, principal: str = principal) -> bool:
                    answer = await near.principals.may(principal=principal)
                    return answer.roles == [Given("topics", team), Given("reader", "shared")]

                await until(knows, "the node has heard of it")
    for principal in teams.values():
        await m.principals.delete(principal)
        assert await m.principals.get(principal) is None
    await m.roles.delete("topics")

    async def noted() -> bool:
        return ("role.delete", "topics") in [(line.method, line.names) async for line in m.audit.list(kind="admin")]

    await until(noted, "what was administered stands in the audit trail")


async def test_a_tenant_ends_with_all_that_it_has(m: Client, metadctl: Callable[..., Awaitable[Any]]) -> None:
    """``metadctl`` asks for the name again, which no test types."""
    tenants = ("leaving", "staying")
    for tenant in tenants:
        await m.kv.put(tenant, "key", b"value")
        await m.offsets.commit(tenant, "group", "topic", 0, 1)
        await m.retained.put(tenant, "site/door", b"open")
        await m.table(TOPICS).put(Topic(tenant, "orders"))
    assert {*tenants} <= {tenant async for tenant in m.tenants.list()}
    had = await m.tenants.use("leaving")
    assert [(one.table, one.records) for one in had] == [("kv", 1), ("offset", 1), ("retained", 1), ("topic", 1)]

    await m.tenants.end("leaving", grace_s=3_600)
    assert {end.phase for end in await m.tenants.endings("leaving")} == {4}, "nothing happens yet"
    await m.tenants.keep("leaving")
    assert await m.tenants.endings("leaving") == []
    assert await m.tenants.use("leaving") == had

    ended = await metadctl("tenants", "end", "leaving", "--again", "leaving", "--wait")
    assert ended["ended"]
    assert await m.tenants.use("leaving") == []
    assert "leaving" not in {tenant async for tenant in m.tenants.list("l")}
    assert len(await m.tenants.use("staying")) == len(had)


async def test_a_tenant_is_limited_in_what_it_asks_for_and_in_what_it_stores(m: Client) -> None:
    await m.features.hold("checked-entries")  # an upgrade may go back as long as that is so
    known = {one.feature: one.state async for one in m.features.list()}
    assert known["checked-entries"] == "held"
    await m.quotas.put("tenant/limited", sessions=20)
    await m.quotas.put("tenant/greedy", items_per_s=10)
    assert [quota.subject async for quota in m.quotas.list("tenant/")] == ["tenant/greedy", "tenant/limited"]
    epoch = (await m.brokers.register("of-quotas")).epoch
    found = 0

    async def is_full() -> bool:
        nonlocal found
        found += 10
        items = [SessionTakeoverItem("limited", f"c{found + number}") for number in range(10)]
        return bool((await m.sessions.takeover_many("of-quotas", epoch, items)).errors)

    await until(is_full, "no more sessions than that")
    items = [SessionTakeoverItem("limited", "c11"), SessionTakeoverItem("other", "c")]
    assert not (await m.sessions.takeover_many("of-quotas", epoch, items)).errors, "what is there may be taken over"

    async def refused() -> bool:
        """The SDK comes again when it is told to, so the calls only take their time."""
        await m.kv.put_many([KvPutItem("greedy", f"k{number}", b"") for number in range(20)])
        (use,) = await m.quotas.use("tenant/greedy")
        return use.refused > 0

    await until(refused, "the greedy one is refused")
    use = {one.subject: one for one in await m.quotas.use("tenant/")}
    assert use["tenant/limited"].sessions
    for subject in use:
        await m.quotas.delete(subject)
