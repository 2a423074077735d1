"""A metad that a test scripts: one server or the nodes of a cluster, behind the in-memory transport.

The server is the wire's own ServerSession; what it answers is up to the test. :class:`Nodes` answer what nodes of a
cluster do, and ``tests/contract/test_answers.py`` holds them to what real ones do.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

sys.path.insert(1, str(Path(__file__).resolve().parent.parent / "wire"))

from plain_bodies import found

from metad_wire import cluster as c
from metad_wire import messages as m
from metad_wire.connection.frame import Frame, FrameType
from metad_wire.connection.session import ServerSession
from metad_wire.declaration import Declaration, DeclaredField
from metad_wire.errors import (
    InvalidRequestError,
    MetadError,
    NotLeaderError,
    NotReplicaError,
    UnauthenticatedError,
    UnknownMethodError,
)
from metad_wire.families import FAMILIES
from metad_wire.method import For
from metad_wire.methods import (
    BETWEEN_NODES,
    CLUSTER_MAP,
    CONSUMER_GET,
    KV_GET,
    LEASE_GET,
    METHODS,
    OFFSET_FETCH,
    RETAINED_GET,
    SEQUENCE_GET,
    SESSION_GET,
    By,
    encode,
)
from metad_wire.operator import backup as bak
from metad_wire.operator import moving as mv
from metad_wire.refused import Refused, without
from metad_wire.tables import broker as b
from metad_wire.tables import consumer as g
from metad_wire.tables import lease, sequence
from metad_wire.tables import subscription as s
from metad_wire.tables import will as w
from metad_wire.tables.access import (
    AuditEntry,
    AuditList,
    Given,
    Grant,
    May,
    MayReply,
    PrincipalList,
    PrincipalRoles,
    Role,
    RoleList,
)
from metad_wire.tables.declaration import DeclarationList, Declare, DeclaredTable, DeclareReply
from metad_wire.tables.feature import FeatureList, FeatureRecord
from metad_wire.tables.offset import (
    KnownGroup,
    OffsetDeleteGroups,
    OffsetDeleteGroupsReply,
    OffsetGroups,
)
from metad_wire.tables.plan import Plan, PlanList
from metad_wire.tables.retained import (
    Retained,
    RetainedMatch,
)
from metad_wire.tables.table import DECLARED, TABLE_COUNT
from metad_wire.tables.tenants import Quota, QuotaList
from metad_wire.transport import Listener
from metad_wire.watch import WatchOpen, WatchOpened
from sim.memory import MemoryTransport

METADATA = "metadata-0"
ENDPOINTS = {"n1": "a:7420", "n2": "b:7420", "n3": "c:7420"}


class Received:
    """A request as the server got it; answer it once."""

    def __init__(self, peer: Peer, request_id: int, method: int, payload: bytes) -> None:
        self.peer = peer
        self.request_id = request_id
        self.method = METHODS[method]
        self.payload = payload
        if self.method.table is DECLARED and self.method.whose is not For.NODES:
            number = msgspec.msgpack.decode(payload)[2][0]
            named = [table for table in FAMILIES.values() if table.number == number]
            self.method = named[0].method(self.method) if named else self.method
        self.request, self.refused = self.method.decode_what_fits(payload)
        items = getattr(self.request.body, "items", [])
        table = self.method.table
        faults = {at: fault for at, item in enumerate(items) if table and (fault := table.fault(item)) is not None}
        if faults:
            self.refused = (self.refused or Refused(len(items), {})).and_also(faults)
            body = replace(self.request.body, items=without(items, faults))
            self.request = replace(self.request, body=body)
        self.cancelled = False

    @property
    def body(self) -> Any:
        return self.request.body

    @property
    def identity(self) -> m.Identity:
        assert self.request.identity is not None
        return self.request.identity

    @property
    def body_bytes(self) -> bytes:
        """The body as it travelled."""
        head = b"\x97" + encode(self.request.deadline_ms) + encode(self.request.identity)
        request = self.request
        tail = b"".join(map(encode, (request.group, request.requires, request.life, request.freshness_ms)))
        assert self.payload.startswith(head)
        assert self.payload.endswith(tail)
        return self.payload[len(head) : -len(tail)]

    def reply(self, reply: m.Message | None = None) -> None:
        """Answer; without a reply with what a server would say when all is well but the items that it refuses."""
        if reply is None:
            reply = m.TableCountReply(0) if self.method.code == TABLE_COUNT.code else all_well(self.body)
            if self.refused is not None:
                reply = self.refused.widened(reply)
        self.peer.session.respond(self.request_id, encode(reply))
        self.peer.flush()

    def fail(self, error: MetadError) -> None:
        self.peer.session.fail(self.request_id, error)
        self.peer.flush()


def declared_well(body: Any) -> m.Message:
    """The same, of declared tables, which have no records."""
    revisions = [m.Revision("data-0", 1)]
    match body:
        case Declare():
            return DeclareReply(revisions, [], [DeclaredTable(one.name, 1_024, one, 1, 1, 1) for one in body.items])
        case DeclarationList():
            declared = Declaration("topic", "data", [DeclaredField("tenant", "str")], ["tenant"], 1)
            return m.ListReply([DeclaredTable("topic", 1_024, declared, 1, 1, 1)], b"")
        case m.TableGet():
            return m.GetReply([None] * len(body.items))
        case m.TablePut():
            return m.TablePutReply(revisions, [], [1] * len(body.items))
        case m.TableDelete():
            return m.WriteReply(revisions, [])
        case m.TableTransact():
            done = [m.TableTransactionResult(True, [1] * len(one.then), [None] * len(one.reads)) for one in body.items]
            return m.TableTransactReply(revisions, [], [*done])
    return m.ListReply([], b"")


LISTED: dict[type, m.Message] = {
    PlanList: Plan("p", "drain", ["b"], 10, None, "running", 1, 1),
    RoleList: Role("r", [Grant(["read"])]),
    FeatureList: FeatureRecord("f", "on"),
    QuotaList: Quota("tenant/t", 1),
    PrincipalList: PrincipalRoles("metad://client/c", [Given("r")]),
    AuditList: AuditEntry("1", 1, "admin", "n1", "metad://client/c", "10.0.0.7", "role.put"),
}

OF_A_NODE: dict[type, m.Message] = {
    m.Status: m.StatusReply(
        *("n1", "c1", "0.1.0", 1, 2000, 3000, 4 << 20, True, 1, 1, 0, 5, 5),
        [m.GroupStatus("data-0", "data", 1024, 5, 1, 5, 100, "leader", "n1", 3, 5, ["n1", "n2"])],
        sessions_ended=7,
        wills_due=4,
        overdue_ms=2_000,
        backlog=m.Backlog(3, 2, 5, 1, 60_000),
    ),
    m.Events: m.EventsReply(
        [m.LoggedEvent(1_700_000_000_000, "info", "leader_gained", {"group": "data-0", "term": 3})],
        *(b"1:1", False, 1_600_000_000_000),
    ),
}


OF_A_BACKUP: dict[type[m.Message], m.Message] = {
    bak.BackupBegin: bak.BackupBegun("n1", "store", "cluster", "1", 1, [], []),
    bak.BackupRead: bak.BackupPiece(b"data"),
    bak.BackupLog: bak.BackupEntries([], 1, 1, "cluster"),
    bak.Restore: bak.Restored([m.Revision("data-0", 1)], []),
    mv.TenantStep: mv.TenantStepped([m.Revision("data-0", 1)], []),
    mv.TenantPut: mv.TenantPutReply([m.Revision("data-0", 1)], []),
    mv.TenantCopy: mv.TenantCopied({}, b"", 1),
}


def all_well(body: Any) -> m.Message:
    """The reply to a request where everything succeeds and every read finds something."""
    revisions = [m.Revision("data-0", 1)]
    match body:
        case m.Status() | m.Events():
            return OF_A_NODE[type(body)]
        case May():
            return MayReply("metad://client/c", True, False, False, [], [True] * len(body.wishes))
        case c.Join() | c.Leave() | c.Transfer() | c.AddGroup() | c.Rebalance() | bak.BackupEnd():
            return c.Done("under way", 2)
        case c.Drain() | c.MoveSlots() | c.MoveReplica() | c.RemoveGroup():
            return c.Done("under way", 2)
        case bak.BackupBegin() | bak.BackupRead() | bak.BackupLog() | bak.Restore():
            return OF_A_BACKUP[type(body)]
        case mv.TenantStep() | mv.TenantPut() | mv.TenantCopy():
            return OF_A_BACKUP[type(body)]
        case m.SessionTakeover():
            count = len(body.items)
            restored = [m.SessionProperties(60, i.client_id.encode()) for i in body.items] if body.restore else []
            return m.SessionTakeoverReply(revisions, [], [m.Owner("old", 1)], [0] * count, list(restored))
        case m.Get() if isinstance(body, SESSION_GET.body):
            return SESSION_GET.reply([a_session(key.tenant, key.client_id) for key in body.items])
        case s.SubscriptionAdd():
            return s.SubscriptionAddReply(revisions, [], [True] * len(body.items))
        case s.SubscriptionList():
            return m.ListReply([s.Subscription("t", "c", "f")], b"")
        case w.WillClaim():
            return w.WillClaimReply(revisions, [w.ClaimedWill("t", "c", "1", 1)], [w.WillDue(m.Will("t"), 1)], b"")
        case Declare() | DeclarationList() | m.TableGet() | m.TablePut() | m.TableDelete() | m.TableList():
            return declared_well(body)
        case m.TableTransact():
            return declared_well(body)
        case PlanList() | RoleList() | PrincipalList() | AuditList() | QuotaList() | FeatureList():
            return m.ListReply([LISTED[type(body)]], b"")
        case w.WillWait():
            return w.WillWaitReply(True, b"")
        case w.WillList():
            return m.ListReply([w.DueWill("t", "c", "1", m.Will("t"), 1)], b"")
        case m.Get() if isinstance(body, OFFSET_FETCH.body):
            return OFFSET_FETCH.reply(
                [m.Offset(k.tenant, k.group, k.topic, k.partition, 42, 1, 1_700_000_000_000, "") for k in body.items]
            )
        case m.OffsetGenerations():
            return m.OffsetGenerationsReply([5] * len(body.items))
        case m.Get() if isinstance(body, KV_GET.body):
            return KV_GET.reply([m.Kv(k.namespace, k.key, k.key.encode(), 1, 1, 1) for k in body.items])
        case m.KvPut():
            return m.KvPutReply(revisions, [], [int(item.value) if item.value.isdigit() else 1 for item in body.items])
        case m.KvTransact():
            return m.KvTransactReply(revisions, [], [m.KvTransactionResult(True, []) for _ in body.items])
        case lease.LeaseGrant():
            return lease.LeaseGrantReply(revisions, [], [item.lease or "1.1" for item in body.items])
        case lease.LeaseKeepAlive():
            return lease.LeaseKeepAliveReply([60_000] * len(body.items))
        case m.Get() if isinstance(body, LEASE_GET.body):
            return LEASE_GET.reply([a_lease(key.namespace, key.lease) for key in body.items])
        case lease.LeaseList():
            return m.ListReply([a_lease(body.namespace, "l")], b"")
        case lease.LeaseKeys():
            return m.ListReply(["k"], b"")
        case sequence.SequenceAdd():
            return sequence.SequenceAddReply(revisions, [], [max(item.delta, 0) for item in body.items])
        case m.Get() if isinstance(body, SEQUENCE_GET.body):
            records = [sequence.SequenceRecord(k.namespace, k.sequence, 1, 1, 1, 1) for k in body.items]
            return SEQUENCE_GET.reply(records)
        case sequence.SequenceList():
            return m.ListReply([sequence.SequenceRecord(body.namespace, "s", 1, 1, 1, 1)], b"")
        case m.SessionList():
            return m.ListReply([a_session("t", f"c{i}") for i in range(3)], b"")
        case m.SessionEndings():
            return m.SessionEndingsReply(
                [m.TenantEnd("t", 7, 1_700_000_000_000, True, False, body.slots, 2, b"", 3, 1)]
            )
        case m.OffsetList():
            return m.ListReply([m.Offset(body.tenant, body.group, "topic", 0, 42, 1, 0, "")], b"")
        case m.KvScan():
            return m.ListReply([m.Kv(body.namespace, "k", b"v", 1, 1, 1)], b"")
        case OffsetDeleteGroups():
            return OffsetDeleteGroupsReply(revisions, [], [3] * len(body.items), [False] * len(body.items))
        case g.ConsumerJoin():
            joined = [item.member or "1.1" for item in body.items]
            return g.ConsumerJoinReply(revisions, [], list(joined), [1] * len(body.items))
        case g.ConsumerHeartbeat():
            return g.ConsumerHeartbeatReply([g.Beat(60_000, 3, 1) for _ in body.items])
        case m.Get() if isinstance(body, CONSUMER_GET.body):
            return CONSUMER_GET.reply([a_member(key.tenant, key.group, key.member) for key in body.items])
        case g.ConsumerMembers():
            return m.ListReply([a_member(body.tenant, body.group, "1.1")], b"")
        case g.ConsumerDescribe():
            return g.ConsumerDescribeReply([a_group(key.tenant, key.group) for key in body.items])
        case OffsetGroups():
            return m.ListReply([KnownGroup(body.tenant, "group", 5)], b"")
        case m.Get() if isinstance(body, RETAINED_GET.body):
            return RETAINED_GET.reply([Retained(k.tenant, k.topic, k.topic.encode()) for k in body.items])
        case RetainedMatch():
            return m.ListReply([Retained(body.tenant, "topic", b"v")], b"")
        case b.BrokerList() | b.BrokerGet():
            listed = [b.Broker("b1", 7, "active", 10_000, "h:1", attributes={"version": "5"}, fenced=True)]
            return m.ListReply([*listed], b"") if isinstance(body, b.BrokerList) else b.BrokerGetReply([*listed])
        case b.BrokerFence():
            return b.BrokerEnded(b.Broker(body.broker, 7, "fenced", 10_000), ["data-0"])
        case WatchOpen():
            return WatchOpened(1, pinned=True, held=b"")
        case m.Get():
            return found(body)
    return m.WriteReply(revisions, [])


def a_member(tenant: str, group: str, member: str) -> g.Member:
    return g.Member(tenant, group, member, "", "holder", 60_000, 60_000, ["range"], b"", 1, 1, b"p0")


def a_group(tenant: str, group: str) -> g.ConsumerGroupInfo:
    return g.ConsumerGroupInfo(tenant, group, 3, 1, "range", "1.1", 1, 0, 60_000, 0, ["range"], 100)


def a_lease(namespace: str, name: str) -> lease.Lease:
    return lease.Lease(namespace, name, 60_000, "holder", b"", 1, 1, 1, left_ms=42_000)


def a_session(tenant: str, client_id: str) -> m.Session:
    return m.Session(
        tenant=tenant,
        client_id=client_id,
        broker="b1",
        broker_epoch=1,
        connected=True,
        disconnected_ms=0,
        properties=m.SessionProperties(60, b"state"),
    )


class Peer:
    """The server's end of one connection."""

    def __init__(self, server: Server, node: str) -> None:
        self.server = server
        self.node = node
        self.session = ServerSession()
        self.stream: Any = None
        self.gone = False

    def flush(self) -> None:
        data = self.session.data_to_send()
        if data and not self.gone:
            self.stream.write(data)

    def goaway(self) -> None:
        self.session.goaway()
        self.flush()

    def cut(self) -> None:
        """The connection breaks."""
        self.stream.abort()

    def connection_made(self, stream: Any) -> None:
        self.stream = stream
        self.server.peers.append(self)

    def data_received(self, data: bytes) -> None:
        server = self.server
        server.chunks += 1
        if server.deaf or self.node in server.frozen:
            return
        self.session.receive_data(data)
        try:
            while (frame := self.session.next_event()) is not None:
                self.act(frame)
        except MetadError:
            self.flush()
            self.stream.close()
        self.flush()
        server.notify()

    def act(self, frame: Frame) -> None:
        server = self.server
        if frame.type == FrameType.HELLO:
            if self.node in server.refused_at:
                self.session.fail_connection(UnauthenticatedError("the token is withdrawn"))
            elif server.greeting_error is not None:
                self.session.fail_connection(server.greeting_error)
            elif server.greets:
                self.greet()
        elif frame.type == FrameType.REQUEST and frame.method == CLUSTER_MAP.code and not server.scripts_map:
            self.tell_map(frame.request_id, CLUSTER_MAP.decode_request(frame.payload).body.version)
        elif frame.type == FrameType.REQUEST:
            try:
                received = Received(self, frame.request_id, frame.method, frame.payload)
            except InvalidRequestError as error:
                self.session.fail(frame.request_id, error)
                return
            server.received.append(received)
            if server.answer is not None:
                server.answer(received)
        elif frame.type == FrameType.CREDIT:
            server.granted(self, frame)
        elif frame.type == FrameType.CANCEL:
            for received in server.received:
                if received.peer is self and received.request_id == frame.request_id:
                    received.cancelled = True

    def greet(self) -> None:
        server = self.server
        limits = server.window_bytes, server.frame_bytes_max, server.idle_ms
        self.session.welcome(m.Welcome(1, 0, self.node, server.cluster_id, *limits))
        self.flush()

    def tell_map(self, request_id: int, known: int) -> None:
        server = self.server
        server.map_requests.append((self.node, known))
        leaders = {} if self.node in server.mapless else server.leaders_by.get(self.node, server.leaders)
        newest = None if self.node in server.mapless else server.map
        version = newest.version if newest is not None else 0
        reply = c.MapReply(version, newest if version > known else None, leaders)
        self.session.respond(request_id, encode(reply))

    def eof_received(self) -> bool:
        return False

    def pause_writing(self) -> None: ...

    def resume_writing(self) -> None: ...

    def connection_lost(self, exc: Exception | None) -> None:
        self.gone = True
        self.server.notify()


class Server:
    """Several endpoints of one scripted server, or of the nodes of a cluster. ``answer`` is called with each request;
    None leaves them open. ``map`` None: the cluster is being formed."""

    def __init__(self, transport: MemoryTransport) -> None:
        self.transport = transport
        self.peers: list[Peer] = []
        self.received: list[Received] = []
        self.chunks = 0
        self.answer: Callable[[Received], None] | None = Received.reply
        self.granted: Callable[[Peer, Frame], None] = lambda _, __: None
        self.greets = True
        self.greeting_error: MetadError | None = None
        self.refused_at: set[str] = set()  # nodes that do not know the client's token any more
        self.deaf = False
        self.frozen: set[str] = set()  # nodes that read nothing
        self.mapless: set[str] = set()  # nodes that wait for a cluster to take them in
        self.cluster_id = "c1"
        self.map: c.ClusterMap | None = a_map({"n1": "a:7420"})
        self.leaders: dict[str, str] = {}  # group -> node; those the map prefers where it is not said
        self.leaders_by: dict[str, dict[str, str]] = {}  # what single nodes say instead
        self.scripts_map = False  # whether questions for the map are the test's too
        self.map_requests: list[tuple[str, int]] = []  # (node asked, version known)
        self.window_bytes = 8 * 1024 * 1024
        self.frame_bytes_max = 16 * 1024 * 1024
        self.idle_ms = 60_000
        self._changed = asyncio.Event()
        self._listeners: dict[str, Listener] = {}

    async def listen(self, host: str = "a", node: str = "n1") -> None:
        self._listeners[host] = await self.transport.listen(host, 7420, lambda: Peer(self, node))

    async def stop_listening(self, host: str = "a") -> None:
        await self._listeners.pop(host).close()

    def notify(self) -> None:
        self._changed.set()

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait for something that shows at the server."""
        while not condition():
            self._changed.clear()
            await self._changed.wait()

    async def requests(self, count: int) -> list[Received]:
        """Wait until so many requests have come, ever."""
        await self.until(lambda: len(self.received) >= count)
        return self.received

    @property
    def live(self) -> list[Peer]:
        return [peer for peer in self.peers if not peer.gone]

    def live_of(self, node: str) -> list[Peer]:
        return [peer for peer in self.live if peer.node == node]


def a_map(nodes: dict[str, str], *, data: int = 1, offset: int = 1, version: int = 1) -> c.ClusterMap:
    """A map with these nodes and their endpoints, groups spread over them and slots over the groups."""
    names = list(nodes)
    counts = {"metadata": 1, "offset": offset, "data": data}
    groups = [
        c.GroupRecord(kind, ordinal, names, names, names[ordinal % len(names)])
        for kind, count in counts.items()
        for ordinal in range(count)
    ]
    slots = {kind: c.pack_slots([slot * count // c.SLOTS for slot in range(c.SLOTS)]) for kind, count in counts.items()}
    return c.ClusterMap(version, [c.NodeRecord(node, at, "") for node, at in nodes.items()], groups, slots)


class Nodes:
    """Three scripted nodes that know who leads, and refuse what they do not lead."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.hints = True
        self.leaders: dict[str, str] = {}
        server.answer = self.answer
        self.place(data=4, offset=2)

    def place(self, version: int = 1, nodes: dict[str, str] = ENDPOINTS, **groups: int) -> None:
        """Another map, with leaders as it prefers them."""
        self.server.map = known = a_map(nodes, version=version, **groups)
        self.leaders = self.server.leaders = {g.group_id.name: g.preferred for g in known.groups}

    def group_of(self, received: Received) -> str | None:
        """The group whose leader answers a request; None if any node does."""
        return METADATA if received.method.by is By.METADATA else received.request.group or None

    def refuse(self, received: Received) -> bool:
        """Whether it was refused: by a node that does not lead, or because clients may not."""
        if received.method.code in BETWEEN_NODES:
            received.fail(UnknownMethodError())
            return True
        group = self.group_of(received)
        if received.method.by is By.REPLICA:
            return self._refuse_elsewhere(received, group)
        if group is None and received.method.by is By.GROUP:
            received.fail(InvalidRequestError("the request names no group"))
            return True
        leader = self.leaders.get(group or "", received.peer.node)
        if received.peer.node != leader:
            received.fail(NotLeaderError(leader=leader if self.hints else ""))
        return received.peer.node != leader

    def _refuse_elsewhere(self, received: Received, group: str | None) -> bool:
        """What any replica answers; each node has one of each group."""
        if group is None:
            received.fail(InvalidRequestError("the request names no group"))
        elif group not in self.leaders:
            received.fail(NotReplicaError())
        return group not in self.leaders

    def answer(self, received: Received) -> None:
        if not self.refuse(received):
            received.reply()

    def of(self, group: str) -> list[Received]:
        """The requests that were about a group."""
        return [received for received in self.server.received if self.group_of(received) == group]


async def settled() -> None:
    """Whatever needs no time has happened."""
    for _ in range(60):
        await asyncio.sleep(0)
