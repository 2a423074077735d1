"""A whole cluster in one thread and in virtual time: production servers, nodes, peer connections and SDK clients, on
simulated disks and links. Everything random comes from one seed.

:mod:`..replicas.world` does the same with replicas alone, a hundred times as fast and with sharper eyes for Raft; what
happens above a replica (evaluation, identities, checkpoints, snapshots on the wire, the map, slot moves, routing) is
looked after here.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Coroutine, Iterable, Mapping
from typing import Any, NamedTuple, Self

import msgspec

from metad.config import (
    ClusterConfig,
    CommitConfig,
    Config,
    DedupeConfig,
    ExpiryConfig,
    GroupsConfig,
    LimitsConfig,
    RaftConfig,
    StorageConfig,
    validated,
)
from metad.control.map.decisions import changed
from metad.control.map.upkeep import lacking
from metad.errors import LeftError, RefusedError
from metad.node.node import Node
from metad.raft.base import ROLES
from metad.raft.replica import RaftGroup
from metad.server.network import Network
from metad.server.serve import Server
from metad.state.core.due import DUE, DueKind
from metad.storage import keys
from metad.storage.log import log_entry
from metad_client import Client, Options, connect
from metad_judge.history import History
from metad_judge.invariants import Violation
from metad_judge.written import Key, Written, is_shown
from metad_wire import messages as m
from metad_wire.cluster import METADATA, MOVES_OF_A_MAP, ClusterMap, GroupId, SlotMove, slot_bits, slots_count
from metad_wire.messages import SessionOwner
from metad_wire.methods import FEATURE_SWITCH
from metad_wire.tables.feature import FeatureRecord
from metad_wire.tables.retained import RETAINED, Retained
from metad_wire.tables.session import SESSION

from .host import Disks, Pace, SimEnvironment
from .links import SimNetwork, Wire
from .loop import PROCESS, Process, StuckError, VirtualLoop
from .workload import Caller

CLIENT_PORT, PEER_PORT = 7420, 7421
_OWNER = SESSION.rows["owner"]
_MESSAGE = RETAINED.rows["message"]
_LOOK_S = 0.05
_CALLBACKS_MAX = 4_000_000
DATA = GroupId("data", 0)
OFFSET = GroupId("offset", 0)


class Settings(NamedTuple):
    """What a cluster is made of."""

    nodes: int = 3
    spares: int = 0
    """Nodes that may join."""
    metadata: int = 1
    offset: int = 1
    data: int = 2
    clients: int = 3
    callers: int = 2
    """Tasks that share a client."""
    wire: Wire = Wire()
    pace: Pace = Pace()
    raft: RaftConfig = RaftConfig(election_timeout_ms=300, heartbeat_ms=50, sleep_after_ms=500)
    rafts: Mapping[str, RaftConfig] = {}
    """Of nodes that are configured in another way."""
    skews_s: Mapping[str, int] = {}
    """By how much the calendars of nodes are ahead, beside what the pace says."""
    replicas: int = 3
    regions: tuple[str, ...] = ()
    """Of the nodes, by their number."""
    commit: CommitConfig = CommitConfig()
    storage: StorageConfig = StorageConfig(engine="memory")
    dedupe: DedupeConfig = DedupeConfig()
    expiry: ExpiryConfig = ExpiryConfig()
    limits: LimitsConfig = LimitsConfig()
    features_after_ms: int = 3_600_000


class SimNode:
    """One node through all its lives."""

    def __init__(self, cluster: Cluster, name: str, config: Config) -> None:
        self.cluster = cluster
        self.name = name
        self.config = config
        self.disks = Disks(self._applied)
        self.applied_to: dict[GroupId, int] = {}
        self.process: Process | None = None
        self.environment: SimEnvironment | None = None
        self.server: Server | None = None
        self.lives = 0
        self.left = False
        """It has left the cluster, and does not start again."""
        self.outside = False
        """It is of before a recovery, or of another one, and is to end: what it does is not judged."""

    @property
    def up(self) -> bool:
        """Whether it runs, be it that it is still starting."""
        return self.process is not None

    @property
    def node(self) -> Node | None:
        """Once it has started."""
        return None if self.server is None else self.server.node

    def start(self) -> None:
        """A new process, unless it has left."""
        if self.left:
            return
        assert self.process is None
        cluster = self.cluster
        self.lives += 1
        cluster.network.boot(self.name)
        cluster.trace(f"{self.name} starts")
        process = self.process = Process(cluster.loop, self.name)
        environment = self.environment = SimEnvironment(cluster.loop, cluster.rng, cluster.settings.pace)
        environment.stepped_ms = 1000 * cluster.settings.skews_s.get(self.name, 0)

        async def serve() -> None:
            network = Network.only(cluster.network.transport(self.name))
            stores = self.disks.open(self.config)
            self.server = await Server.start(self.config, network, stores=stores, environment=environment)
            await self.server.run()

        process.start(serve()).add_done_callback(self._ended, context=cluster.loop.outside)

    def _ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            if isinstance(error, LeftError) or (self.outside and isinstance(error, RefusedError)):
                self.left = True
                if self.server is None:  # it was refused at its start
                    self.crash(power=False)
                else:
                    self.end()
                return
            self.cluster.fail(Violation("nodes do not fail", f"{self.name}: {type(error).__name__}: {error}"))

    def _applied(self, group: GroupId, index: int) -> None:
        """Its state of a group has come to a further index, or again so far, in another life."""
        if self.outside:
            return
        written = self.cluster.written
        try:
            for at in range(min(self.applied_to.get(group, 0), index - 1) + 1, index + 1):
                record = self._record(group, at)
                if record is not None:
                    written.apply(self.name, group, at, record, self.cluster.loop.now)
        except Violation as error:
            self.cluster.fail(error)
        self.applied_to[group] = index
        for hears in list(self.cluster.on_applied):
            hears(self.name, group, index)

    def _record(self, group: GroupId, index: int) -> bytes | None:
        """An entry of its log; None if a snapshot has taken its place."""
        driver = None if self.node is None else self.node.drivers.get(group)
        if driver is None:  # it is starting: what it applies it has read from the disk
            return self.disks.log.get(log_entry(keys.group_prefix(group), index))
        log = driver.group.log
        records: list[bytes] = log.records(index, 1, index + 1) if log.base_index < index <= log.last_index else []
        return records[0] if records else None

    def crash(self, *, power: bool = True) -> None:
        """The process dies, or the power fails."""
        if self.process is None:
            return
        cluster, process = self.cluster, self.process
        cluster.trace(f"{self.name} {'loses power' if power else 'is killed'}")
        cluster.crashes += 1
        cluster.network.crash(process, self.name, silently=power and cluster.rng.random() < 0.5)
        self.process = self.server = self.environment = None
        self.disks.crash(cluster.rng, power=power)

    def end(self) -> asyncio.Task[bool]:
        """Have it stop in order, as SIGTERM does; the process is over when that is done."""
        assert self.process is not None
        assert self.server is not None
        self.cluster.trace(f"{self.name} is told to end")
        task = self.process.start(self.server.stop())
        task.add_done_callback(lambda _: self.crash(power=False), context=self.cluster.loop.outside)
        return task

    def lose_disk(self) -> None:
        """It dies, and nothing of its data is left."""
        self.crash()
        self.cluster.trace(f"{self.name} has lost its disk")
        self.disks = Disks(self._applied)
        self.left = False

    def join(self) -> None:
        """A new process that is to join the cluster, be it that it founded it once."""
        cluster = self.config.cluster
        founders = [each for each in self.cluster.nodes.values() if each is not self]
        join = [f"{each.name}:{PEER_PORT}" for each in founders]
        listen = f"{self.name}:{PEER_PORT}"
        cluster = msgspec.structs.replace(cluster, seeds={}, seed_regions={}, join=join, listen=listen)
        self.config = msgspec.structs.replace(self.config, cluster=cluster)
        self.start()

    def pause(self, seconds: float) -> None:
        """It gets no CPU for a while."""
        if self.process is not None:
            self.cluster.trace(f"{self.name} pauses for {seconds:.3f} s")
            self.process.pause(seconds)


class SimClient:
    """An SDK client in a process of its own."""

    def __init__(self, cluster: Cluster, name: str, options: Options) -> None:
        self.cluster = cluster
        self.name = name
        self.process = Process(cluster.loop, name)
        self._options = options
        self._rng = random.Random(cluster.rng.getrandbits(64))
        self.client: Client | None = None

    async def open(self) -> Client:
        """In its process."""
        cluster = self.cluster
        founders = [node for node in cluster.nodes.values() if node.config.cluster.seeds or len(cluster.nodes) == 1]
        url = "metad://" + ",".join(f"{node.name}:{CLIENT_PORT}" for node in founders)
        transport = cluster.network.transport(self.name)
        self.client = connect(url, self._options, transport=transport, rng=self._rng, clock=lambda: cluster.loop.now)
        return await self.client.open()

    def run(self, callers: list[Caller] | Callable[[Client], list[Caller]]) -> None:
        """Open the client, and have callers ask."""

        async def work() -> None:
            client = await self.open()
            made = callers(client) if callable(callers) else callers
            for caller in made:
                self.cluster.work(self.process, caller.run(), caller._name)

        self.cluster.work(self.process, work(), self.name)


class Cluster:
    """See the module. To be used as a context manager; inside, :meth:`run` lets time pass."""

    def __init__(self, seed: int, settings: Settings, *, tracing: bool = False) -> None:
        self.seed = seed
        self.settings = settings
        self.rng = random.Random(seed)
        self.loop = VirtualLoop()
        self.loop.callbacks_max = _CALLBACKS_MAX
        self.network = SimNetwork(self.loop, settings.wire, self.rng.getrandbits(64))
        self.history = History()
        self.written = Written(self.settings.expiry.amnesty_ms / 1000)
        self.on_applied: list[Callable[[str, GroupId, int], None]] = []
        """Who hears that a node's replica of a group has come to a further index."""
        self.tracing = tracing
        self.traced: list[str] = []
        self.quiet = False
        self.crashes = self.snapshots = self.moves = 0
        self.elections: dict[tuple[str, int], str] = {}
        self._committed: dict[str, dict[int, int]] = {}
        self._configurations: dict[str, tuple[int, Any]] = {}
        self._map_of_change: dict[str, int] = {}  # which map the leader of a group had when its voters changed last
        self.changes = 0
        self._failure: BaseException | None = None
        self._working = 0
        self._log = _Log(self)
        self.nodes: dict[str, SimNode] = {}
        for number in range(1, settings.nodes + settings.spares + 1):
            self._add(f"n{number}", founder=number <= settings.nodes)
        self.clients: list[SimClient] = []

    def _add(self, name: str, *, founder: bool) -> None:
        settings = self.settings
        founders = [f"n{number}" for number in range(1, settings.nodes + 1)]
        peer = f"{name}:{PEER_PORT}"
        if settings.nodes == 1 and not settings.spares:
            cluster = ClusterConfig()
        elif founder:
            seeds = {each: f"{each}:{PEER_PORT}" for each in founders}
            cluster = ClusterConfig(
                seeds=seeds,
                seed_regions=dict(zip(seeds, settings.regions, strict=False)),
                replicas=settings.replicas,
            )
        else:
            join = [f"{each}:{PEER_PORT}" for each in founders]
            cluster = ClusterConfig(join=join, listen=peer, replicas=settings.replicas)
        cluster = msgspec.structs.replace(cluster, features_after_ms=settings.features_after_ms)
        config = Config(
            listen=f"{name}:{CLIENT_PORT}",
            node_id=name,
            cluster=cluster,
            groups=GroupsConfig(metadata=settings.metadata, offset=settings.offset, data=settings.data),
            raft=settings.rafts.get(name, settings.raft),
            commit=settings.commit,
            storage=settings.storage,
            dedupe=settings.dedupe,
            expiry=settings.expiry,
            limits=settings.limits,
        )
        self.nodes[name] = SimNode(self, name, validated(config))

    def __enter__(self) -> Self:
        self._log.install()
        return self

    def __exit__(self, *_: object) -> None:
        self._log.remove()
        self.loop.abandon()

    # --- what happens ------------------------------------------------------------------------------------

    def trace(self, text: str) -> None:
        """What happened, if anybody wants to know."""
        if self.tracing:
            self.traced.append(f"{self.loop.now:9.4f} {text}")

    def fail(self, error: BaseException) -> None:
        """The run is over: something broke."""
        if self._failure is None:
            self.trace(f"VIOLATION {error}")
            self._failure = error

    def work(self, process: Process, work: Coroutine[Any, Any, Any], name: str) -> asyncio.Task[Any]:
        """Have a client's process do something that must not fail."""
        self._working += 1

        def over(task: asyncio.Task[Any]) -> None:
            self._working -= 1
            if not task.cancelled() and (error := task.exception()) is not None:
                self.fail(
                    error if isinstance(error, Violation) else Violation("clients do not fail", f"{name}: {error!r}")
                )

        task = process.start(work)
        task.add_done_callback(over, context=self.loop.outside)
        return task

    def run(self, seconds: float) -> None:
        """Let time pass. Raises what went wrong meanwhile."""
        until = self.loop.now + seconds
        while self.loop.now < until:
            self._turn(min(_LOOK_S, until - self.loop.now))

    def run_until(self, condition: Callable[[], bool], seconds: float) -> bool:
        """Let time pass until something is so; False if it is not within ``seconds``."""
        until = self.loop.now + seconds
        while self.loop.now < until:
            if condition():
                return True
            self._turn(_LOOK_S / 5)
        return condition()

    def do(self, client: SimClient, work: Coroutine[Any, Any, Any], seconds: float = 30.0) -> Any:
        """Have a client do something, and wait for it."""
        task = client.process.start(work)
        if not self.run_until(task.done, seconds):
            raise Violation("progress", f"{client.name}: {work} takes more than {seconds} s")
        return task.result()

    def _turn(self, seconds: float) -> None:
        self.loop.call_later(seconds, self.loop.stop, context=self.loop.outside)
        try:
            self.loop.run_forever()
        except StuckError as error:
            self.fail(Violation("progress", str(error)))
        if self._failure is None and self.loop.errors:
            context = self.loop.errors[0]
            self.fail(Violation("nothing escapes", f"{context['message']}: {context.get('exception')!r}"))
        if self._failure is not None:
            raise self._failure
        self.look()

    def start(self) -> None:
        """Start the founders, and wait for the cluster to be formed."""
        founders = list(self.nodes.values())[: self.settings.nodes]
        for node in founders:
            node.start()
        if not self.run_until(self.serving, 20.0):
            raise Violation("formation", self.describe())

    def stand_still(self, who: str, seconds: float) -> None:
        """Let ``all`` nodes do nothing for a while, a ``majority`` of them, or the ``leader`` of the metadata alone."""
        up = [node for node in self.nodes.values() if node.up]
        leader = self.leader(METADATA)
        up.sort(key=lambda node: node is not leader)
        count = {"all": len(up), "majority": len(up) // 2 + 1, "leader": 1}[who]
        self.trace(f"a standstill of {who}")
        for node in up[:count]:
            node.pause(seconds)

    def grant_move(self, source: int, target: int, slots: Iterable[int], kind: str = "data") -> int:
        """Have the leader of the metadata put a slot move into the map. Returns its number."""
        leader = self.leader(METADATA)
        assert leader is not None
        assert leader.process is not None
        assert leader.node is not None
        assert leader.node.map is not None
        known, bits = leader.node.map, slot_bits(slots)
        number = (known.version + 1) * MOVES_OF_A_MAP
        self.trace(f"{slots_count(bits)} slots of {kind}-{source} are to go to {kind}-{target}")
        self.moves += 1
        decision = changed(known, "moved by hand", moves=[SlotMove(number, kind, source, target, bits)])
        leader.process.context.run(leader.node.controller._grant, decision, lambda _: None)
        return number

    def client(self, options: Options | None = None) -> SimClient:
        """One more."""
        client = SimClient(self, f"c{len(self.clients) + 1}", options or Options())
        self.clients.append(client)
        return client

    # --- what must hold ----------------------------------------------------------------------------------

    def begin_anew(self, written: Written) -> None:
        """Groups were taken up without a majority: this is what was written, and what nodes had promised is over."""
        self.written = written
        for known in (self.elections, self._committed, self._configurations, self._map_of_change):
            known.clear()
        for sim in self.nodes.values():
            sim.applied_to.clear()

    def look(self) -> None:
        """At every replica of every node."""
        for sim in self.nodes.values():
            node = sim.node
            if node is None or sim.outside:
                continue
            if node.failure is not None and not node.closed:
                raise Violation("nodes do not fail", f"{sim.name}: {node.failure}")
            for driver in node.drivers.values():
                group = driver.group
                if group.is_leader:
                    other = self.elections.setdefault((group.name, group.term), sim.name)
                    if other != sim.name:
                        raise Violation("election safety", f"{other} and {sim.name} lead {group.name} {group.term}")
                    if sim.name in group.configuration.learners:
                        raise Violation("learners lead nothing", f"{sim.name} leads {group.name}")
                    at, before = group.log.configuration_index, self._configurations.get(group.name)
                    # One that is not committed yet may go back again.
                    if at <= group.commit and (before is None or at > before[0]):
                        if before is not None:
                            self.changes += 1
                            self._copies(node, group, before[1].voters)
                        self._configurations[group.name] = at, group.configuration
                if group.applied > group.commit or driver.machine.applied > group.commit:
                    raise Violation("apply after commit", f"{sim.name}: {group.name}")
                term = group.log.term_at(group.commit)
                if term is not None and group.commit:
                    known = self._committed.setdefault(group.name, {}).setdefault(group.commit, term)
                    if known != term:
                        raise Violation("state machine safety", f"{group.name}: {group.commit} of {known} and {term}")

    def _copies(self, node: Node, group: RaftGroup, before: tuple[str, ...]) -> None:
        """A voter is let go when there are as many as there should be without it. (Or when it is gone for so long that
        it is given up, which here nobody is.) The leader that began this knew the map of the change before, or a later
        one that another may have in place of it by the time it is committed."""
        after, since = group.configuration.voters, self._map_of_change.get(group.name, 0)
        fewest = min(
            (
                len(record.replicas)
                for known in self.written.maps
                for record in known.groups
                if known.version >= since and record.group_id == group.group_id
            ),
            default=0,
        )
        if set(before) - set(after) and len(after) < min(len(before), fewest):
            raise Violation("copies", f"{group.name} on {before} became {after}, no map wanted fewer than {fewest}")
        if node.map is not None:
            self._map_of_change[group.name] = node.map.version

    def serving(self) -> bool:
        """Whether every node that is up knows a formed cluster with leaders."""
        return all(
            sim.node is not None and sim.node.map is not None and sim.node.groups.are_led()
            for sim in self.nodes.values()
            if sim.up
        )

    def leader(self, group: GroupId = DATA) -> SimNode | None:
        """The node that leads the newest term of a group."""
        found = [
            (driver.group.term, sim.name)
            for sim in self.nodes.values()
            if sim.node is not None
            and not sim.outside
            and (driver := sim.node.drivers.get(group)) is not None
            and driver.group.is_leader
        ]
        return self.nodes[max(found)[1]] if found else None

    def switch_on(self, feature: str) -> bool:
        """Switch a feature on at once, at the leader of the metadata; False if there is none. What an administrator
        allows is switched on once all nodes are there for a while, which is too late for a run of seconds."""
        leader = self.leader(METADATA)
        if leader is None or leader.node is None or leader.process is None:
            return False
        switch = FEATURE_SWITCH.encode_request(m.Items([FeatureRecord(feature, "on")]))
        leader.process.context.run(leader.node.requests.submit_peer, FEATURE_SWITCH.code, switch, lambda _: None)
        return True

    def unsettled(self) -> str:
        """What is not yet as it should be when nothing happens any more; empty if nothing is."""
        leader = self.leader(METADATA)
        if leader is None or leader.node is None or leader.node.map is None:
            return "nobody leads metadata-0"
        known = leader.node.map
        if known.moves:
            return f"{len(known.moves)} slot moves are open"
        if few := lacking(known):
            return f"{few[0].group_id.name} has replicas on {few[0].replicas} only, {known.replicas} are wanted"
        for record in known.groups:
            lead = self.leader(record.group_id)
            name = record.group_id.name
            if lead is None or lead.node is None:
                return f"nobody leads {name}"
            group = lead.node.drivers[record.group_id].group
            if not group.accepting:
                return f"{name} is not ready at {lead.name}"
            drained = {node.node_id for node in known.nodes if node.drained}
            if not drained.issuperset(record.replicas) and (one := drained & {lead.name, record.preferred}):
                return f"{', '.join(sorted(one))} is drained, and leads {name} or is to"
            able = [n for n in known.nodes if n.region == record.region and not (n.drained or n.leaving)]
            there = {node.node_id for node in able if self.nodes[node.node_id].up}.intersection(record.replicas)
            if record.region and there and lead.name not in there:
                return f"{name} is led by {lead.name}, and {sorted(there)} are in {record.region}"
            members = group.configuration.members
            if set(group.configuration.voters) != set(record.replicas):
                return f"{name} is on {group.configuration.voters}, not on {record.replicas}"
            for member in members:
                node = self.nodes[member].node
                driver = None if node is None else node.drivers.get(record.group_id)
                if driver is None or driver.installing:
                    return f"{member} has no {name}"
                if not driver.machine.applied == driver.group.commit == group.log.last_index:
                    return f"{member} has applied {driver.machine.applied} of {group.log.last_index} of {name}"
        return self._removed(known)

    def _removed(self, known: ClusterMap) -> str:
        """What is left of groups that were removed; empty if nothing is."""
        for kind in known.ordinals:
            for ordinal in range(known.next_ordinal(kind)):
                group = GroupId(kind, ordinal)
                prefix = keys.group_prefix(group)
                for node in self.nodes.values() if known.has_removed(group) else ():
                    if node.node is not None and group in node.node.drivers:
                        return f"{node.name} has a replica of {group.name}, which was removed"
                    if node.up and node.disks.state.scan(prefix, keys.after_prefix(prefix), 1):
                        return f"{node.name} has rows of {group.name}, which was removed"
        return ""

    def require_settled(self, seconds: float) -> None:
        """All faults are over: everything is mended within bounded time, and all replicas are equal."""
        if not self.run_until(lambda: not self.unsettled(), seconds):
            raise Violation("convergence", f"not within {seconds} s: {self.unsettled()}{self.describe()}")
        self.same_states()

    def same_states(self) -> None:
        """Every replica of a group holds the same, byte for byte."""
        leader = self.leader(METADATA)
        assert leader is not None
        assert leader.node is not None
        assert leader.node.map is not None
        for record in leader.node.map.groups:
            self._as_written(record.group_id)
            self._deadlines(record.group_id)
            lead = self.leader(record.group_id)
            assert lead is not None
            assert lead.node is not None
            members = lead.node.drivers[record.group_id].group.configuration.members
            prefix = keys.group_prefix(record.group_id)
            mark = keys.snapshot_mark(prefix)
            first: dict[bytes, bytes] | None = None
            for member in members:
                rows = dict(self.nodes[member].disks.state.scan(prefix, keys.after_prefix(prefix), 1 << 30))
                if rows.pop(mark, None) is not None:
                    self.snapshots += 1
                if first is None:
                    first = rows
                elif rows != first:
                    differ = [key for key in {*rows, *first} if rows.get(key) != first.get(key)]
                    shown = ", ".join(f"{k.hex()}: {first.get(k)!r} / {rows.get(k)!r}" for k in sorted(differ)[:3])
                    raise Violation("same states", f"{record.group_id.name}: {members[0]} / {member}: {shown}")

    def _deadlines(self, group: GroupId) -> None:
        """The index of deadlines has exactly those of the sessions that are away; and one of each retained message that
        expires, beside others that were replaced."""
        lead = self.leader(group)
        assert lead is not None
        assert lead.node is not None
        mask = lead.node.drivers[group].machine.slots.mask
        prefix = keys.group_prefix(group)
        expected: dict[bytes, bytes | None] = {}
        found: dict[bytes, bytes | None] = {}
        ends: dict[bytes, int] = {}  # when retained messages expire
        latest: dict[bytes, int] = {}  # the last deadlines of their topics
        for key, value in lead.disks.state.scan(prefix, keys.after_prefix(prefix), 1 << 30):
            behind = key[keys.GROUP_PREFIX_BYTES :]
            if behind[0] not in (_OWNER, DUE, _MESSAGE):
                continue
            if mask is not None and not mask[keys.slot_of_key(behind) or 0]:
                continue
            if behind[0] == _OWNER:
                owner = msgspec.msgpack.decode(value, type=SessionOwner)
                for kind, at_ms in ((1, owner.will_ms), (2, owner.expires_ms)):
                    if at_ms:
                        expected[prefix + bytes((DUE,)) + at_ms.to_bytes(8, "big") + bytes((kind,)) + behind[1:]] = b""
            elif behind[0] == _MESSAGE:
                ends[behind[1:]] = msgspec.msgpack.decode(value, type=Retained).expires_ms
            elif behind[9] == DueKind.RETAINED:
                topic, at_ms = behind[10:], int.from_bytes(behind[1:9], "big")
                latest[topic] = max(at_ms, latest.get(topic, 0))
            else:
                found[key] = value
        for topic, ends_ms in ends.items():
            if ends_ms > latest.get(topic, 0):
                raise Violation("deadlines", f"{group.name} of {lead.name}: {topic!r} has none")
        if found != expected:
            differ = sorted(found.keys() ^ expected.keys())
            raise Violation("deadlines", f"{group.name} of {lead.name}: {differ[:3]} are not in both")

    def _as_written(self, group: GroupId) -> None:
        """Its leader holds what the entries say that were applied."""
        lead, known = self.leader(group), self.written.known(group)
        assert lead is not None
        prefix = keys.group_prefix(group)
        rows = {}
        for key, value in lead.disks.state.scan(prefix, keys.after_prefix(prefix), 1 << 30):
            if is_shown(key[keys.GROUP_PREFIX_BYTES :]):
                rows[Key.stored(key[keys.GROUP_PREFIX_BYTES :])] = value
        if rows != self.written.rows_at(group.name, known):
            raise Violation("same states", f"{group.name} of {lead.name} is not what was written until {known}")

    def require_ended(self, seconds: float) -> None:
        """No session is there that should have ended long ago."""
        durations = self.written.durations
        if not self.run_until(lambda: not durations.overdue(self.loop.now), seconds):
            raise Violation("durations", f"never ended: {durations.overdue(self.loop.now)[:3]}")

    def require_answers(self) -> None:
        """Nobody waits any more."""
        if self.history.open:
            raise Violation("deadlines", f"never answered: {sorted(self.history.open.values())}")

    def describe(self) -> str:
        """Every replica, in a line each."""
        lines = [""]
        for sim in self.nodes.values():
            if sim.node is None:
                lines.append(f"  {sim.name}: {'starts' if sim.up else 'down'}")
                continue
            for driver in sim.node.drivers.values():
                group, log = driver.group, driver.group.log
                peers = {p: (s.sending.value, s.match, s.next, s.paused) for p, s in group.peers.items()}
                lines.append(
                    f"  {sim.name} {group.name}: {ROLES[group.role]} term {group.term} leader {group.leader} "
                    f"log {log.base_index}..{log.last_index} (durable {log.durable_index}) commit {group.commit} "
                    f"applied {driver.machine.applied} {group.configuration} installing {driver.installing} "
                    f"asleep {group.asleep} connected {sorted(group.connected)} peers {peers}"
                )
        return "\n".join(lines)


class _Log(logging.Handler):
    """What the nodes log goes to the trace; an error among it is a violation."""

    def __init__(self, cluster: Cluster) -> None:
        super().__init__()
        self._cluster = cluster
        self._logger = logging.getLogger("metad")
        self._before: tuple[list[logging.Handler], int, bool] = ([], 0, True)

    def install(self) -> None:
        logger = self._logger
        self._before = (logger.handlers[:], logger.level, logger.propagate)
        logger.handlers[:] = [self]
        logger.propagate = False
        logger.setLevel(logging.DEBUG if self._cluster.tracing else logging.ERROR)

    def remove(self) -> None:
        logger = self._logger
        logger.handlers[:], level, logger.propagate = self._before
        logger.setLevel(level)

    def emit(self, record: logging.LogRecord) -> None:
        process = PROCESS.get()
        noted = {key: value for key, value in getattr(record, "fields", {}).items() if key != "seconds"}  # real ones
        fields = " ".join(f"{key}={value}" for key, value in noted.items())
        text = f"{process.name if process else '?'}: {record.getMessage()} {fields}"
        self._cluster.trace(text)
        sim = None if process is None else self._cluster.nodes.get(process.name)
        judged = sim is None or not sim.outside
        if record.levelno >= logging.ERROR and process is not None and process.alive and judged:
            error = record.exc_info[1] if record.exc_info else None
            self._cluster.fail(Violation("nothing goes wrong", f"{text} {error!r}"))
