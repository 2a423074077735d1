"""Which node answers which method, as its declaration says: of production servers, and of the scripted nodes that the
client's tests are run against. What the one does and the other does not, those tests could never find.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Protocol

import pytest
from msgspec.structs import replace
from plain_bodies import PLAIN, plain_body
from scripted import METADATA, Nodes, Server

from metad_wire import cluster as c
from metad_wire import messages as m
from metad_wire.cluster import METADATA as METADATA_GROUP
from metad_wire.cluster import GroupId
from metad_wire.connection.frame import FrameType
from metad_wire.connection.session import ClientSession, decode_error
from metad_wire.declaration import Declaration, DeclaredField
from metad_wire.errors import (
    InvalidItemError,
    InvalidRequestError,
    MetadError,
    NotLeaderError,
    NotReplicaError,
    UnknownMethodError,
)
from metad_wire.families import FAMILIES
from metad_wire.methods import BETWEEN_NODES, CLUSTER_TRANSFER, METHODS, By, For, Method
from metad_wire.operator import backup as bak
from metad_wire.operator.moving import TenantCopy, TenantPut, TenantStep
from metad_wire.operator.settings import SetSetting
from metad_wire.routing import KINDS, split
from metad_wire.table import ANY_KIND
from metad_wire.tables import consumer as g
from metad_wire.tables import lease as w
from metad_wire.tables import sequence as s
from metad_wire.tables.access import (
    AuditEntry,
    BindingChange,
    Given,
    Grant,
    PrincipalKey,
    PrincipalRoles,
    Role,
    RoleKey,
)
from metad_wire.tables.assignment import AssignmentStep, PartitionKey
from metad_wire.tables.broker import BrokerBeat, BrokerChange, BrokerGet, BrokerHeartbeat, BrokerRegister
from metad_wire.tables.declaration import DeclarationKey
from metad_wire.tables.inflight import Inflight, InflightDelete, InflightKey, InflightPut
from metad_wire.tables.offset import OffsetDeleteGroups, OffsetExpireGroups
from metad_wire.tables.plan import GroupProgress, NewPlan, PlanKey, PlanState
from metad_wire.tables.retained import (
    RetainedDelete,
    RetainedDeleteItem,
    RetainedPut,
    RetainedPutItem,
)
from metad_wire.tables.subscription import (
    Subscription,
    SubscriptionAdd,
    SubscriptionKey,
    SubscriptionRemove,
)
from metad_wire.tables.table import DECLARED, TableIndexStep
from metad_wire.tables.tenants import Quota, QuotaKey
from metad_wire.tables.will import WillAcknowledge, WillClaim, WillExpire, WillKey, WillRelease, WillWait
from metad_wire.transport import Transport
from metad_wire.watch import WatchFilter, WatchOpen
from sim.memory import MemoryTransport
from sim.nodes.cluster import CLIENT_PORT
from sim.nodes.loop import Process
from sim.nodes.scenarios import Scene

Answer = bytes | MetadError


class Asked(asyncio.Protocol):
    """One request on a connection of its own."""

    def __init__(self, payload: bytes, method: int) -> None:
        self._request = (method, payload)
        self._session = ClientSession()
        self.answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()

    def connection_made(self, stream: Any) -> None:
        self._stream = stream
        stream.write(self._session.data_to_send())

    def data_received(self, data: bytes) -> None:
        self._session.receive_data(data)
        while (frame := self._session.next_event()) is not None:
            if frame.type == FrameType.WELCOME:
                self._session.request(*self._request)
            elif frame.type == FrameType.RESPONSE:
                self.answer.set_result(frame.payload)
            elif frame.type == FrameType.ERROR:
                self.answer.set_result(decode_error(frame.payload))
        if data := self._session.data_to_send():
            self._stream.write(data)


async def ask(transport: Transport, host: str, method: Method[Any, Any], body: Any, group: str) -> Answer:
    payload = method.encode_request(body, 5_000, group=group)
    asked = await transport.dial(host, CLIENT_PORT, lambda: Asked(payload, method.code), timeout_s=5)
    try:
        return await asked.answer
    finally:
        asked._stream.close()


class Cluster(Protocol):
    """Three nodes that can be asked one by one."""

    @property
    def map(self) -> c.ClusterMap: ...

    def leader(self, group: str) -> str: ...

    def ask(self, node: str, method: Method[Any, Any], body: Any, group: str = "") -> Answer: ...


class Scripted:
    """Those of the client's tests."""

    def __init__(self, runner: asyncio.Runner) -> None:
        self._runner = runner
        self._server = Server(MemoryTransport())
        self._hosts = {"n1": "a", "n2": "b", "n3": "c"}
        for node, host in self._hosts.items():
            self._runner.run(self._server.listen(host, node))
        self._nodes = Nodes(self._server)

    @property
    def map(self) -> c.ClusterMap:
        assert self._server.map is not None
        return self._server.map

    def leader(self, group: str) -> str:
        return self._nodes.leaders[group]

    def ask(self, node: str, method: Method[Any, Any], body: Any, group: str = "") -> Answer:
        return self._runner.run(ask(self._server.transport, self._hosts[node], method, body, group))


class Served:
    """Production servers, in virtual time."""

    def __init__(self, scene: Scene) -> None:
        self._scene = scene
        self._process = Process(scene.loop, "asker")

    @property
    def map(self) -> c.ClusterMap:
        node = self._scene.lead(GroupId("metadata", 0)).node
        assert node is not None
        assert node.map is not None
        return node.map

    def leader(self, group: str) -> str:
        found = GroupId.parse(group)
        assert found is not None
        return self._scene.lead(found).name

    def ask(self, node: str, method: Method[Any, Any], body: Any, group: str = "") -> Answer:
        transport = self._scene.network.transport("asker")
        task = self._process.start(ask(transport, node, method, body, group))
        assert self._scene.run_until(task.done, 10.0), f"{node} does not answer {method.name}"
        return task.result()


@pytest.fixture(scope="module", params=["scripted", "served"])
def cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    if request.param == "scripted":
        with asyncio.Runner() as runner:
            yield Scripted(runner)
        return
    with Scene(data=4, offset=2) as scene:
        scene.require_settled(10.0)
        yield Served(scene)


GROUP = 1
"""Ordinal of the groups asked for: not all are led by one node."""
ITEMS: dict[str, Callable[[str], Any]] = {
    "group.read_index": lambda _: c.ReadIndex(),
    "session.takeover": lambda name: m.SessionTakeover("b", 1, [m.SessionTakeoverItem("t", name)]),
    "session.disconnect": lambda name: m.SessionDisconnect("b", 1, [m.SessionDisconnectItem("t", name)]),
    "session.update": lambda name: m.SessionUpdate(
        "b", 1, [m.SessionUpdateItem("t", name, m.SessionProperties(1, b""))]
    ),
    "session.delete": lambda name: m.SessionDelete([m.SessionDeleteItem("t", name)]),
    "subscription.add": lambda name: SubscriptionAdd("b", 1, [Subscription("t", name, "f")]),
    "subscription.remove": lambda name: SubscriptionRemove("b", 1, [SubscriptionKey("t", name, "f")]),
    "inflight.put": lambda name: InflightPut("b", 1, [Inflight("t", name, "n", b"v")]),
    "inflight.delete": lambda name: InflightDelete("b", 1, [InflightKey("t", name, "n")]),
    "will.claim": lambda name: WillClaim("b", 1, 1000),
    "will.acknowledge": lambda name: WillAcknowledge("b", 1, [WillKey("t", name, "1")]),
    "will.release": lambda name: WillRelease("b", 1, [WillKey("t", name, "1")]),
    "will.wait": lambda name: WillWait("b", 1),
    "will.expire": lambda name: WillExpire([WillKey("t", name, "1")], 1),
    "offset.commit": lambda name: m.OffsetCommit([m.OffsetCommitItem("t", name, "topic", 0, 1)]),
    "offset.generations": lambda name: m.OffsetGenerations([m.ConsumerGroup("t", name)]),
    "offset.reset_generations": lambda name: m.OffsetResetGenerations([m.GenerationReset("t", name, 0, 0)]),
    "offset.delete_groups": lambda name: OffsetDeleteGroups([m.ConsumerGroup("t", name)]),
    "offset.expire_groups": lambda name: OffsetExpireGroups([m.ConsumerGroup("t", name)], 1),
    "consumer.join": lambda name: g.ConsumerJoin([g.JoinItem("t", name, 60_000)]),
    "consumer.heartbeat": lambda name: g.ConsumerHeartbeat([g.MemberKey("t", name, "m")]),
    "consumer.assign": lambda name: g.ConsumerAssign([g.AssignItem("t", name, "m", 1, [])]),
    "consumer.describe": lambda name: g.ConsumerDescribe([m.ConsumerGroup("t", name)]),
    "consumer.expire": lambda name: g.ConsumerExpire([g.MemberKey("t", name, "m")]),
    "kv.put": lambda name: m.KvPut([m.KvPutItem(name, "k", b"v")]),
    "kv.delete": lambda name: m.KvDelete([m.KvDeleteItem(name, "k")]),
    "kv.transact": lambda name: m.KvTransact([m.KvTransaction(name, [], [])]),
    "lease.grant": lambda name: w.LeaseGrant([w.LeaseGrantItem(name, 60_000)]),
    "lease.keep_alive": lambda name: w.LeaseKeepAlive([w.LeaseKey(name, "l")]),
    "lease.expire": lambda name: w.LeaseExpire([w.LeaseKey(name, "l")]),
    "assignment.step": lambda name: AssignmentStep([PartitionKey("t", name, "topic", 0)]),
    "sequence.add": lambda name: s.SequenceAdd([s.SequenceAddItem(name, "s")]),
    "retained.put": lambda name: RetainedPut([RetainedPutItem("t", name, b"v")]),
    "retained.delete": lambda name: RetainedDelete([RetainedDeleteItem("t", name)]),
    **{method: partial(lambda method, name: plain_body(method, [[name]]), method) for method in PLAIN},
}
"""Bodies about a record with this name."""


def body_of(method: Method[Any, Any], known: c.ClusterMap) -> Any:
    """One that changes nothing about who leads what, and about records of one group."""
    match method.name:
        case "cluster.store":
            return c.StoreMap(0, known)
        case "cluster.moved":
            return c.Moved(1)
        case "cluster.returns":
            return c.ReturnReport("n1", 1)
        case "group.command":
            return c.GroupCommand("close", 1)
        case "group.fence":
            return c.GroupFence([c.FenceItem("nobody", 1)])
        case "session.sweep":
            return c.SessionSweep([])
        case "broker.change":
            return BrokerChange([])
        case "broker.register":
            return BrokerRegister("b1")
        case "broker.heartbeat":
            return BrokerHeartbeat([BrokerBeat("b1", 1)])
        case "broker.serve" | "broker.drain" | "broker.deregister" | "broker.fence":
            return method.body("nobody", 1)
        case "broker.get":
            return BrokerGet(["b1"])
        case "session.lose" | "session.copy":
            return method.body([])
        case "session.end_step":
            return c.SessionEndStep([], b"", 0, b"", b"", True)
        case "session.end_tenant":
            return m.SessionEndTenant("nobody", True)
        case "feature.change" | "feature.switch":
            return method.body([method.item("checked-entries", "held")])
        case "quota.put":
            return method.body([Quota("tenant/nobody", 1)])
        case "quota.delete":
            return method.body([QuotaKey("tenant/nobody")])
        case "quota.counts":
            return method.body(known.nodes[0].node_id, [])
        case "group.compare":
            return method.body(f"data-{GROUP}", 0, b"", 1)
        case "group.rebuild":
            return method.body(f"data-{GROUP}")
        case "tenants.end" | "tenants.keep" | "tenants.use":
            return method.body("nobody")
        case "tenants.endings" | "tenants.list" | "quota.list" | "quota.use" | "session.endings" | "feature.list":
            return method.body()
        case "tenants.rest":
            return method.body(b"", 3)
        case "cluster.join":
            return c.Join(known.nodes[0])
        case "cluster.leave":
            return c.Leave("nobody")
        case "cluster.transfer":
            record = known.group(GroupId("data", GROUP))
            assert record is not None
            return c.Transfer(f"data-{GROUP}", record.preferred)
        case "cluster.add_group":
            return c.AddGroup("metadata")  # which is refused
    if method.name in OF_ONE_BODY:
        return OF_ONE_BODY[method.name]
    if method.name in ABOUT_ALL:
        return method.body(ABOUT_ALL[method.name])
    if method.by is not By.GROUP:
        return method.body()
    return about_a_record(method, known)


OF_ONE_BODY: dict[str, Any] = {
    "cluster.drain": c.Drain("nobody", undo=True),
    "cluster.move_slots": c.MoveSlots(f"data-{GROUP}", slots=c.slot_bits([0])),
    "cluster.move_replica": c.MoveReplica(f"data-{GROUP}", "nobody", "nobody"),
    "cluster.remove_group": c.RemoveGroup(f"data-{GROUP}"),
    "watch.open": WatchOpen([WatchFilter("kv")]),
    "system.set": SetSetting("limits.slow_ms", "1s"),
    "backup.begin": bak.BackupBegin("b1"),
    "backup.end": bak.BackupEnd("b1"),
    "backup.read": bak.BackupRead("b1", "CURRENT", 0, 1),
    "backup.log": bak.BackupLog(METADATA, 0, 1),
    "group.restore": bak.Restore("check", "b1", 1),
    "group.move_tenant": TenantStep("look", "t"),
    "group.put_tenant": TenantPut("t", "m1", 1, 1),
    "group.copy_tenant": TenantCopy("t", "m1"),
}
ABOUT_ALL: dict[str, list[Any]] = {
    "declaration.declare": [Declaration("device", "data", [DeclaredField("tenant", "str")], ["tenant"], 1)],
    "declaration.get": [DeclarationKey("device")],
    "declaration.drop": [DeclarationKey("device")],
    "plan.create": [NewPlan("p", "rebalance")],
    "plan.set": [PlanState("p", "paused")],
    "plan.delete": [PlanKey("p")],
    "plan.get": [PlanKey("p")],
    "plan.progress": [GroupProgress("p", METADATA, 0, True)],
    "audit.note": [AuditEntry("", 0, "admin", "n1", "", "10.0.0.7", "role.put")],
    "role.put": [Role("r", [Grant(["read"])])],
    "role.delete": [RoleKey("r")],
    "principal.put": [PrincipalRoles("metad://client/c", [Given("reader")])],
    "principal.change": [BindingChange("metad://client/c", [Given("reader")])],
    "principal.delete": [PrincipalKey("metad://client/c")],
    "principal.get": [PrincipalKey("metad://client/c")],
}
"""Of those about what is in ``metadata-0``."""


def group_of(method: Method[Any, Any]) -> str:
    """The group that is asked. There is one of the kind ``metadata``."""
    kind = "data" if method.by is By.REPLICA else KINDS.get(method.code, METADATA_GROUP.kind)
    alone = method.by is By.METADATA or method.table is DECLARED or kind == METADATA_GROUP.kind
    return METADATA if alone else f"{kind}-{GROUP}"


def about_a_record(method: Method[Any, Any], known: c.ClusterMap) -> Any:
    """The same, of a method that groups answer."""
    if method.table is DECLARED and method.whose is For.NODES:
        step = TableIndexStep(1_024, 0, [], c.slot_bits(range(8)))
        return step if method.body is TableIndexStep else method.body([])
    make = ITEMS[method.name]
    route = FAMILIES["topic_settings"].method(method).route if method.table is DECLARED else method.route
    if route is None:
        return make("")
    slots = c.unpack_slots(known.slots[route.kind])
    for number in range(1_000):
        body = make(f"r{number}")
        if group_of(method) == METADATA:
            return body  # of the only group of its kind
        if split(route, getattr(body, "items", [body]), slots, max(slots) + 1) == {GROUP: [0]}:
            return body
    raise AssertionError("no record is in that group")


@pytest.mark.parametrize("method", METHODS.values(), ids=lambda method: method.name)
def test_a_method_is_answered_by_whom_it_declares(cluster: Cluster, method: Method[Any, Any]) -> None:
    known = cluster.map
    body = body_of(method, known)
    group = group_of(method)
    for node in ("n1", "n2", "n3"):
        answer = cluster.ask(node, method, body, group if method.by in (By.GROUP, By.REPLICA) else "")
        if method.code in BETWEEN_NODES:
            assert isinstance(answer, UnknownMethodError)
            continue
        if method.by in (By.ANY, By.REPLICA) or cluster.leader(group) == node:
            assert not isinstance(answer, NotLeaderError | UnknownMethodError), f"{node}: {answer}"
        else:
            assert isinstance(answer, NotLeaderError), f"{node}: {answer!r}"
            assert answer.leader == cluster.leader(group)


@pytest.mark.parametrize("method", [METHODS[code] for code in KINDS], ids=lambda method: method.name)
def test_a_method_of_groups_needs_a_group(cluster: Cluster, method: Method[Any, Any]) -> None:
    body = body_of(method, cluster.map)
    for node in ("n1", "n2", "n3"):
        answer = cluster.ask(node, method, body)
        assert isinstance(answer, InvalidRequestError), f"{node}: {answer!r}"


@pytest.mark.parametrize(
    "method", [method for method in METHODS.values() if method.by is By.REPLICA], ids=lambda method: method.name
)
def test_a_method_of_replicas_needs_one(cluster: Cluster, method: Method[Any, Any]) -> None:
    body = body_of(method, cluster.map)
    for node in ("n1", "n2", "n3"):
        nameless = cluster.ask(node, method, body)
        assert isinstance(nameless, InvalidRequestError), f"{node}: {nameless!r}"
        elsewhere = cluster.ask(node, method, body, "data-77")
        assert isinstance(elsewhere, NotReplicaError), f"{node}: {elsewhere!r}"


def with_a_long_key(method: Method[Any, Any], item: Any) -> Any:
    """The item, but of a record whose key is over the limit."""
    long = "x" * (m.KEY_BYTES_MAX + 1)
    if method.name in PLAIN:
        return plain_body(method.name, [[long]]).items[0]
    if isinstance(item, m.KvTransaction):
        return replace(item, reads=[long])
    fields = ("lease", "sequence", "key", "client_id", "topic", "group")
    field = next(name for name in fields if name in item.__struct_fields__)
    return replace(item, **{field: long})


@pytest.mark.parametrize(
    "method",
    [one for one in METHODS.values() if one.item is not None and one.by is By.GROUP and one.whose is not For.NODES],
    ids=lambda method: method.name,
)
def test_a_bad_item_is_refused_alone(cluster: Cluster, method: Method[Any, Any]) -> None:
    body = body_of(method, cluster.map)
    (good,) = body.items
    mixed = replace(body, items=[5, good, with_a_long_key(method, good), good, None])
    group = group_of(method)
    answer = cluster.ask(cluster.leader(group), method, mixed, group)
    assert isinstance(answer, bytes), answer
    reply = method.decode_reply(answer)
    refused = {error.index: error.message for error in reply.errors if error.code == InvalidItemError.code}
    assert refused[0] == "expected array, got int"
    assert refused[2].startswith("its key fields take ")
    assert refused[4] == "expected array, got None"
    assert refused.keys() == {0, 2, 4}
    for name, missing in reply.columns.items():
        column = getattr(reply, name)
        assert not column or [len(column), *(column[at] for at in refused)] == [5, missing, missing, missing]
    assert any(getattr(reply, name) for name in reply.columns) or not reply.columns


def test_what_is_about_a_group_may_be_decided_by_others(cluster: Cluster) -> None:
    """Or the suite could not tell who answers a transfer."""
    assert cluster.leader(f"data-{GROUP}") != cluster.leader(METADATA)
    body = body_of(CLUSTER_TRANSFER, cluster.map)
    assert isinstance(cluster.ask(cluster.leader(METADATA), CLUSTER_TRANSFER, body), bytes)


def test_everything_that_is_routed_is_answered_by_leaders_of_groups() -> None:
    assert (
        set(KINDS)
        == {method.code for method in METHODS.values() if method.by is By.GROUP}
        - {method.code for method in METHODS.values() if method.table is not None and method.kind == ANY_KIND}
        - BETWEEN_NODES
    )
