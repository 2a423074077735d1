"""The end of a tenant in a whole node: nothing of it is left in the state, and nothing of others is touched."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import msgspec
import numpy as np
import pytest
from golden_rows import MESSAGES, message_value, rows
from server_rig import Rig, VirtualEnvironment

from metad.state.cluster import tenancy
from metad.state.cluster.declarations import KnownTables
from metad.state.cluster.tenancy import places
from metad.state.core.slot_assignment import is_held, pack, unpack
from metad.storage.keys import group_prefix, text
from metad_wire import messages as m
from metad_wire import methods
from metad_wire.cluster import GroupId
from metad_wire.declaration import Declaration, DeclaredField
from metad_wire.errors import InvalidRequestError, MetadError
from metad_wire.families import FAMILIES
from metad_wire.families.assignment import PARTITIONS
from metad_wire.methods import TABLE_LIST, Method
from metad_wire.tables.assignment import Release, ResourceCreate
from metad_wire.tables.broker import BrokerBeat, BrokerHeartbeat, BrokerRegister
from metad_wire.tables.consumer import ConsumerJoin, JoinItem
from metad_wire.tables.declaration import Declare
from metad_wire.tables.inflight import Inflight, InflightPut
from metad_wire.tables.lease import LeaseGrantItem
from metad_wire.tables.retained import RetainedPutItem
from metad_wire.tables.sequence import SequenceAddItem
from metad_wire.tables.subscription import Subscription, SubscriptionAdd
from metad_wire.tables.tenants import TenantsEnd, TenantsEndings, TenantsKeep, TenantsList, TenantsUse
from metad_wire.tables.will import WillClaim, WillKey

GROUPS = ("metadata-0", "offset-0", "data-0")
GOLDEN = {row.name: message_value(row) for row in rows(MESSAGES)}
OWN = "own"
"""A table that a program has declared."""


class World(Rig):
    """A node with two tenants that have records of every table, on a loop in virtual time."""

    environment = VirtualEnvironment

    async def begun(self) -> World:
        await self.open()
        fields = [DeclaredField(name, "str") for name in ("namespace", "key", "value")]
        declared = await self.ask(
            methods.DECLARATION_DECLARE, Declare([Declaration(OWN, "offset", fields, ["namespace", "key"], 1)])
        )
        self.own = declared.found[0].number
        self.epoch = (await self.ask(methods.BROKER_REGISTER, BrokerRegister("b"))).broker_epoch
        return self

    async def fill(self, tenant: str) -> None:
        """Records of every table, some of which belong to others."""
        will = m.SessionProperties(60, b"p", m.Will("gone", b"bye"))
        keys = [f"k{number}" for number in range(5)]
        sessions = [m.SessionTakeoverItem(tenant, key, False, will) for key in keys]
        await self.done(methods.SESSION_TAKEOVER, m.SessionTakeover("b", self.epoch, sessions))
        await self.done(methods.SUBSCRIPTION_ADD, SubscriptionAdd("b", self.epoch, [Subscription(tenant, "k0", "a/#")]))
        await self.done(methods.INFLIGHT_PUT, InflightPut("b", self.epoch, [Inflight(tenant, "k1", "1", b"v")]))
        away = [m.SessionDisconnectItem(tenant, key) for key in keys[3:]]
        await self.done(methods.SESSION_DISCONNECT, m.SessionDisconnect("b", self.epoch, away))
        await self.done(methods.RETAINED_PUT, m.Items([RetainedPutItem(tenant, topic, b"v") for topic in ("a", "$b")]))
        await self.done(methods.LEASE_GRANT, m.Items([LeaseGrantItem(tenant, 60_000, "l")]))
        await self.done(methods.KV_PUT, m.KvPut([m.KvPutItem(tenant, key, b"v") for key in keys]))
        await self.done(methods.KV_PUT, m.KvPut([m.KvPutItem(tenant, "attached", b"v")], "l"))
        await self.done(methods.SEQUENCE_ADD, m.Items([SequenceAddItem(tenant, "s", 1)]))
        commits = [m.OffsetCommitItem(tenant, f"g{n % 3}", "t", n, n, 1 if n % 3 else 0) for n in range(1_500)]
        for at in (0, 1_000):
            await self.done(methods.OFFSET_COMMIT, methods.OFFSET_COMMIT.body(commits[at : at + 1_000]))
        await self.done(methods.CONSUMER_JOIN, ConsumerJoin([JoinItem(tenant, "members", 60_000, protocols=["p"])]))
        for table in FAMILIES.values():
            if not table.ruled_by and table.key[0] in ("tenant", "namespace"):
                golden = GOLDEN[table.record.__name__]
                record = msgspec.structs.replace(golden, **{table.key[0]: tenant})
                await self.put(table.number, record, f"{table.kind}-0")
        await self.put(self.own, [tenant, "k", "v"], "offset-0")
        resource = ResourceCreate(tenant, "r", "topic", 3, replicas=[["b"]] * 3)
        await self.done(methods.ASSIGNMENT_CREATE, m.Items([resource]))

    async def put(self, number: int, record: Any, group: str) -> None:
        fields = len(record) if isinstance(record, list) else len(record.__struct_fields__)
        await self.done(methods.TABLE_PUT, methods.TABLE_PUT.body(number, fields, [m.TablePutItem(record)]), group)

    async def done(self, method: Method[Any, Any], body: Any, group: str = "") -> Any:
        answer = await self.answered(self.send(method, body, group=group or f"{method.kind}-0"))
        assert not isinstance(answer.results[0], MetadError), answer.results[0]
        reply = answer.reply(method)
        assert not getattr(reply, "errors", []), (method, reply.errors)
        return reply

    async def everywhere(self, method: Method[Any, Any], body: Any) -> list[Any]:
        return [await self.done(method, body, group) for group in GROUPS]

    def rows(self, tenant: str) -> dict[bytes, bytes]:
        """All that has the tenant in its key."""
        found = self.state_engine.scan(b"", b"\xff" * 8, 1_000_000)
        return {key: value for key, value in found if text(tenant) in key}

    async def endings(self, tenant: str | None = None) -> list[m.TenantEnd]:
        replies = await self.everywhere(methods.TENANTS_ENDINGS, TenantsEndings(tenant))
        return [end for reply in replies for end in reply.endings]

    async def until(self, is_so: Callable[[], Awaitable[bool]]) -> None:
        end_s = asyncio.get_running_loop().time() + 30
        while not await is_so():
            assert asyncio.get_running_loop().time() < end_s, await self.endings()
            await self.done(methods.BROKER_HEARTBEAT, BrokerHeartbeat([BrokerBeat("b", self.epoch)]), "metadata-0")
            await asyncio.sleep(0.1)
            await self.settle()

    async def time_passes(self) -> None:
        """For some passes."""
        for _ in range(40):
            await asyncio.sleep(0.1)
            await self.settle()

    async def is_gone(self) -> bool:
        await self.let_go()
        return not await self.endings()

    async def use(self, tenant: str) -> dict[str, int]:
        """Its records, by table."""
        found: Counter[str] = Counter()
        for group in GROUPS:
            cursor = b""
            while True:
                reply = await self.done(methods.TENANTS_USE, TenantsUse(tenant, cursor), group)
                found.update({one.table: one.records for one in reply.found})
                if not (cursor := reply.cursor):
                    break
        return {table: count for table, count in found.items() if count}

    async def let_go(self) -> None:
        """The broker has deleted what it had of resources that are being deleted."""
        found = await self.done(TABLE_LIST, m.TableList(PARTITIONS.number), "metadata-0")
        there = [msgspec.convert(one.record, PARTITIONS.record) for one in found.found]
        items = [
            Release(one.tenant, one.resource, one.kind, one.partition, "b", self.epoch, one.leader_epoch)
            for one in there
            if one.state == "deleting"
        ]
        if items:
            await self.done(methods.ASSIGNMENT_RELEASE, m.Items(items))


@pytest.fixture
async def world(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[World]:
    monkeypatch.setattr("metad.node.chores.tenants._AGAIN_S", 0.05)
    made = await World().begun()
    try:
        yield made
    finally:
        await made.close()


async def test_all_of_a_tenant_goes_and_nothing_of_others(world: World) -> None:
    await world.fill("acme")
    await world.fill("acme2")
    known = KnownTables()
    with_records = {one.table for group in GROUPS for one in places(prefix_of(group), known) if one.is_record}
    assert {*await world.use("acme")} >= with_records - {"will"} | {OWN}, "a table that this test does not fill"
    others = world.rows("acme2")
    await world.everywhere(methods.TENANTS_END, TenantsEnd("acme"))
    await world.until(world.is_gone)
    assert world.rows("acme") == {}
    assert await world.use("acme") == {}
    assert {key: value for key, value in world.rows("acme2").items() if others.get(key) != value} == {}
    assert world.rows("acme2").keys() == others.keys()
    for group in GROUPS:
        names = await world.done(methods.TENANTS_LIST, TenantsList(), group)
        assert names.names == ["acme2"]
        assert not names.more


async def test_resources_are_waited_for_and_so_are_wills_that_are_to_be_published(world: World) -> None:
    await world.fill("acme")
    await world.everywhere(methods.TENANTS_END, TenantsEnd("acme", publish_wills=True))

    async def waits() -> bool:
        return {*await world.use("acme")} == {"will", "resource", "partition"}

    await world.until(waits)
    await world.time_passes()
    assert {end.phase for end in await world.endings()} == {3}
    assert await world.use("acme") == {"will": 5, "resource": 1, "partition": 3}
    claimed = await world.done(methods.WILL_CLAIM, WillClaim("b", world.epoch, 60_000, tenant="acme"))
    assert len(claimed.claimed) == 5
    keys = [WillKey(one.tenant, one.client_id, one.id) for one in claimed.claimed]
    await world.done(methods.WILL_ACKNOWLEDGE, methods.WILL_ACKNOWLEDGE.body("b", world.epoch, keys))
    await world.until(world.is_gone)
    assert world.rows("acme") == {}


async def test_nothing_happens_before_the_grace_is_over_and_then_nobody_takes_it_back(world: World) -> None:
    await world.fill("acme")
    before = world.rows("acme")
    await world.everywhere(methods.TENANTS_END, TenantsEnd("acme", grace_ms=3_600_000))
    assert {end.phase for end in await world.endings()} == {4}
    await world.time_passes()
    there = {key: value for key, value in world.rows("acme").items() if key[3:4] != b"\x04"}  # without the orders
    assert there == before
    await world.everywhere(methods.TENANTS_KEEP, TenantsKeep("acme"))
    assert await world.endings() == []

    await world.everywhere(methods.TENANTS_END, TenantsEnd("acme", grace_ms=300))

    async def begun() -> bool:
        return all(end.phase != 4 for end in await world.endings())

    await world.until(begun)
    await world.everywhere(methods.TENANTS_KEEP, TenantsKeep("acme"))
    await world.until(world.is_gone)
    assert world.rows("acme") == {}


async def test_what_lives_on_is_what_came_after_the_order(world: World) -> None:
    """Sessions and retained messages say by themselves whether they are older."""
    await world.fill("acme")
    await world.everywhere(methods.TENANTS_END, TenantsEnd("acme"))
    sessions = [m.SessionTakeoverItem("acme", "k0"), m.SessionTakeoverItem("acme", "new")]
    await world.done(methods.SESSION_TAKEOVER, m.SessionTakeover("b", world.epoch, sessions))
    await world.done(methods.RETAINED_PUT, m.Items([RetainedPutItem("acme", "new", b"v")]))
    await world.until(world.is_gone)
    assert await world.use("acme") == {"session": 2, "retained": 1}


@pytest.mark.parametrize(
    "body", [TenantsEnd("t" * 5_000), TenantsEnd("t", slots=b"x"), TenantsEnd("t", grace_ms=31 * 86_400_000)]
)
async def test_what_makes_no_sense_is_refused(world: World, body: TenantsEnd) -> None:
    answer = await world.answered(world.send(methods.TENANTS_END, body, group="data-0"))
    assert isinstance(answer.results[0], InvalidRequestError)
    assert await world.endings() == []


def prefix_of(group: str) -> bytes:
    known = GroupId.parse(group)
    assert known is not None
    return group_prefix(known)


# --- what a verifier planted -----------------------------------------------------------------------------------------


async def test_pages_of_what_a_tenant_has_add_up_to_what_it_has(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    await world.fill("acme")
    whole = await world.use("acme")
    assert whole["kv"] == 6
    for name, bound in (("PAGE_ROWS", 3), ("PAGE_BYTES", 60)):
        with monkeypatch.context() as small:
            small.setattr(tenancy, name, bound)
            assert await world.use("acme") == whole, name


async def test_names_are_told_page_by_page_and_each_once(world: World) -> None:
    names = ["acme", "acme2", "b", "c"]
    for name in names:
        await world.done(methods.KV_PUT, m.KvPut([m.KvPutItem(name, "k", b"")]))
    found: list[str] = []
    for _ in range(2 * len(names)):
        reply = await world.done(methods.TENANTS_LIST, TenantsList(after=found[-1] if found else "", limit=1), "data-0")
        found += reply.names
        if not reply.more:
            break
    assert (found, reply.more) == (names, False)


async def test_an_order_for_some_slots_leaves_the_records_of_others(world: World) -> None:
    keys = [f"n{number}" for number in range(40)]
    for key in keys:
        await world.done(methods.RETAINED_PUT, m.Items([RetainedPutItem("acme", key, b"v")]))
        await world.done(methods.SEQUENCE_ADD, m.Items([SequenceAddItem("acme", key, 1)]))
    half = pack(np.arange(1024) < 512)
    before = len(world.rows("acme"))
    await world.done(methods.TENANTS_END, TenantsEnd("acme", slots=half), "data-0")
    await world.until(world.is_gone)
    assert 0 < len(world.rows("acme")) < before
    held = unpack(half)
    assert not [key for key in world.rows("acme") if key[:3] == group_prefix(GroupId("data", 0)) and is_held(held, key)]


async def test_what_has_begun_is_not_taken_back_by_an_order_that_waits(world: World) -> None:
    """A second order, with a grace, replaced one that had begun, and `keep` took that back: half of it lived."""
    await world.fill("acme")
    await world.everywhere(methods.TENANTS_END, TenantsEnd("acme"))
    await world.everywhere(methods.TENANTS_END, TenantsEnd("acme", grace_ms=3_600_000))
    await world.everywhere(methods.TENANTS_KEEP, TenantsKeep("acme"))
    await world.until(world.is_gone)
    assert not world.rows("acme")


async def test_an_order_is_kept_by_its_own_name_and_replaced_by_its_own_kind(world: World) -> None:
    for name in ("acme", "acme2"):
        await world.fill(name)
        await world.everywhere(methods.TENANTS_END, TenantsEnd(name, grace_ms=3_600_000))
    await world.everywhere(methods.TENANTS_KEEP, TenantsKeep("acme"))
    assert {end.tenant for end in await world.endings()} == {"acme2"}
    await world.everywhere(methods.TENANTS_END, TenantsEnd("acme", grace_ms=3_600_000))
    await world.done(methods.SESSION_END_TENANT, m.SessionEndTenant("acme", True, False), "data-0")
    waiting = [end for end in await world.endings("acme") if end.everything]
    assert len(waiting) == len(GROUPS), "an end of its sessions is another order"


async def test_what_is_written_while_an_order_waits_goes_with_it(world: World) -> None:
    await world.everywhere(methods.TENANTS_END, TenantsEnd("acme", grace_ms=1_000))
    await world.fill("acme")
    await world.until(world.is_gone)
    assert not world.rows("acme")


async def test_an_order_with_a_shorter_grace_waits_for_no_other(world: World) -> None:
    for name, grace_ms in (("acme", 3_600_000), ("brief", 300)):
        await world.done(methods.KV_PUT, m.KvPut([m.KvPutItem(name, "k", b"")]))
        await world.everywhere(methods.TENANTS_END, TenantsEnd(name, grace_ms=grace_ms))

    async def is_over() -> bool:
        return not await world.endings("brief")

    await world.until(is_over)
    assert world.rows("acme")
    assert not [value for value in world.rows("brief").values() if value]
