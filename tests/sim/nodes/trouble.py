"""Faults and changes for whole clusters: each seed draws its own mix. :mod:`..replicas.chaos` does it
for replicas."""

from __future__ import annotations

import random
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any

import msgspec

from metad.config import CommitConfig, DedupeConfig, ExpiryConfig, RaftConfig, StorageConfig
from metad_client import Client, MetadError, Options
from metad_judge.watch import Wanted
from metad_wire import messages as m
from metad_wire.cluster import METADATA, MOVES_OF_A_MAP, ClusterMap, GroupId, unpack_slots
from metad_wire.methods import (
    KV_DELETE,
    KV_PUT,
    KV_TRANSACT,
    OFFSET_COMMIT,
    SESSION_TAKEOVER,
    Method,
    encode,
)
from metad_wire.tables.feature import LEADER_REGIONS, REMOVED_GROUPS

from ..faults import Faults
from ..naming import group_of
from .actors.cast import Cast
from .actors.residents import Residents
from .builds import Builds
from .cluster import Cluster, Settings, SimNode
from .host import Pace
from .links import Wire
from .watchers import Mirror, Watcher, draw_watcher
from .workload import Caller

TROUBLE_S = 5.0
"""How long faults go on."""
CONVERGE_S = 40.0
ENDED_S = 10.0
TOLD_S = 30.0
"""Watchers come to the end within this time when nothing happens any more."""
_STANDSTILLS = 2  # of the service, in wide seeds, once nothing else happens
_QUIET_S = 9.0  # more than any call may take
_ADMIN_S = 5.0
_KEYS = ("a", "b")
_FORGED: list[tuple[Method[Any, Any], Any]] = [
    (KV_PUT, m.KvPut([m.KvPutItem("forged", "a", b"1")])),
    (KV_PUT, m.KvPut([m.KvPutItem("forged", key, b"2") for key in _KEYS])),
    (KV_DELETE, m.KvDelete([m.KvDeleteItem("forged", "a")])),
    (KV_TRANSACT, m.KvTransact([m.KvTransaction("forged", [], [m.KvOperation("a", b"3")], reads=["a", "b"])])),
    (KV_TRANSACT, m.KvTransact([m.KvTransaction("forged", [m.KvCompare("a", 7)], [], reads=["a"])])),
    (OFFSET_COMMIT, m.OffsetCommit([m.OffsetCommitItem("forged", "group", "topic", 0, 1)])),
    (SESSION_TAKEOVER, m.SessionTakeover("x", 1, [m.SessionTakeoverItem("forged", key) for key in _KEYS], True)),
    (SESSION_TAKEOVER, m.SessionTakeover("y", 1, [m.SessionTakeoverItem("forged", "b")], True)),
    (SESSION_TAKEOVER, m.SessionTakeover("z", 2, [m.SessionTakeoverItem("forged", "b", True)])),
]


def play(
    cluster: Cluster,
    rng: random.Random,
    seconds: float = TROUBLE_S,
    *,
    wide: bool = False,
    builds: Builds | None = None,
) -> list[Watcher]:
    """Clients, actors, watchers and faults, then none, then a look at everything. Raises what went wrong. Returns the
    watchers. ``builds``: nodes are upgraded, too, and go back."""
    cluster.start()
    cast = Cast(cluster, random.Random(rng.getrandbits(64)))
    trouble = Trouble(cluster, rng, wide=wide, builds=builds)
    cluster.run(seconds)
    trouble.end()
    cluster.run(_QUIET_S)
    cluster.require_answers()
    cluster.require_settled(CONVERGE_S)
    cast.settle()
    cluster.require_ended(ENDED_S)
    if wide:
        residents = Residents(cluster, random.Random(rng.getrandbits(64)))
        residents.endure(_STANDSTILLS)
        residents.leave()
    client = cluster.client()

    async def look() -> None:
        caller = Caller(cluster, cluster.history, await client.open(), client.name, rng)
        caller.deadline_s = 10.0  # the client's own
        await caller.look_at_everything()

    cluster.do(client, look())
    cluster.require_settled(CONVERGE_S)
    cluster.history.check()
    trouble.require_told()
    return trouble.watchers


class Trouble(Faults[SimNode]):
    """The clients and faults of one run."""

    power_share = 0.6
    pauses_s = (0.05, 0.3, 1.0, 2.5)
    heals_s = (0.1, 0.5, 1.2, 2.5)

    def __init__(
        self, cluster: Cluster, rng: random.Random, *, wide: bool = False, builds: Builds | None = None
    ) -> None:
        super().__init__(rng, rng.choice([0.3, 0.8, 1.5]))
        self._builds = builds
        self.cluster = cluster
        self._wide = wide
        self._admin = cluster.client(Options(deadline_s=_ADMIN_S))
        for number in range(1, cluster.settings.clients + 1):
            self._client(number)
        self.watchers: list[Watcher] = []
        self.mirrors: list[Mirror] = []
        self._watch(random.Random(rng.getrandbits(64)))
        settings = cluster.settings
        many = settings.nodes > 1
        faults: list[tuple[Callable[[], None], float, bool]] = [
            (self.crash, 3, True),
            (self.crash_leader, 2, many),
            (self.blackout, 0.4, many),
            (self.pause, 2, True),
            (self._partition, 2, many),
            (self._isolate, 2, many),
            (self._cut_one_way, 2, True),
            (self._reset, 1, True),
            (self._slow_link, 1, True),
            (self._slow_disk, 1, True),
            (self._transfer, 2, many),
            (self._step_clock, 2, True),
        ]
        self._faults = [(fault, weight) for fault, weight, fits in faults if fits and rng.random() < 0.6]
        if rng.random() < 0.4:
            self._faults.append((self._rebalance, 1.5))
        if settings.spares:
            self._faults += [(self._join, 1.5), (self._leave, 1.0)]
        if builds is not None:
            self._faults.append((self._change_build, 4.0))
        elif many:
            if rng.random() < 0.4:
                self.later(rng.uniform(0.0, 0.3), lambda: self._allow(REMOVED_GROUPS))
                self.later(rng.uniform(0.0, 1.0), self._regroup)
            if rng.random() < 0.3:
                self._faults.append((self._drain, 2.0))
        if settings.regions:
            self.later(0.0, lambda: self._allow(LEADER_REGIONS))
            self.later(rng.uniform(0.0, 1.0), self._prefer)
        if wide:
            more: list[tuple[Callable[[], None], float, bool]] = [
                (self._hang_disk, 1.5, True),
                (self._stand_still, 1.5, True),
                (self._suspend, 1.5, True),
                (self._swing, 3.0, max(settings.data, settings.metadata) > 1),
                (self._bury, 1.5, many),
                (self._forge, 2.0, True),
            ]
            self._faults += [(fault, weight) for fault, weight, fits in more if fits and rng.random() < 0.6]
            if settings.spares:
                self._faults.append((self._leave_when_others_are_down, 3.0))
                for _ in range(settings.spares):
                    self.later(rng.uniform(0.0, 1.0), self._join)
        self.begin()

    def _client(self, number: int) -> None:
        cluster, rng = self.cluster, self._rng
        name = f"c{number}"
        seeds = [rng.getrandbits(64) for _ in range(cluster.settings.callers)]
        client = cluster.client(Options(connect_timeout_s=60.0, ping_interval_s=rng.choice([0.5, 2.0])))

        def callers(opened: Client) -> list[Caller]:
            made = []
            for at, seed in enumerate(seeds):
                caller = Caller(cluster, cluster.history, opened, f"{name}.{at}", random.Random(seed))
                if self._wide and at == 0:
                    caller.mix[-2:] = 0.5, 1.0
                made.append(caller)
            return made

        client.run(callers)

    def _watch(self, rng: random.Random) -> None:
        """Some watchers, each of which dies now and then and goes on from a token; and now and then an image."""
        cluster = self.cluster
        for number in range(1, rng.choice([1, 2, 3]) + 1):
            watcher = draw_watcher(cluster, rng, f"watcher {number}")
            self.watchers.append(watcher)
            self.later(rng.choice([0.0, rng.uniform(0.0, TROUBLE_S)]), lambda watcher=watcher: self._live(watcher, rng))  # type: ignore[misc]
        if rng.random() < 0.5:
            mirror = Mirror(cluster, "mirror", *rng.sample([Wanted("kv"), Wanted("session"), Wanted("offset")], 2))
            self.mirrors.append(mirror)
            self.later(rng.uniform(0.0, TROUBLE_S), mirror.begin)

    def _live(self, watcher: Watcher, rng: random.Random) -> None:
        """A life of a watcher, and its end."""
        if self.over or watcher.client is not None:
            return
        watcher.begin()

        def die() -> None:
            if not self.over:
                watcher.kill()
                self.later(rng.choice([0.0, rng.uniform(0.0, 3.0)]), lambda: self._live(watcher, rng))

        if rng.random() < 0.8:
            self.later(rng.expovariate(1.0), die)

    def require_told(self) -> None:
        """In quiet, every watcher comes to the end, and so does one that begins at an old token; what they were told is
        what was written."""
        cluster = self.cluster
        for watcher in [*self.watchers]:
            if other := watcher.branch(self._rng):
                other.begin()
                self.watchers.append(other)
        cluster.run_until(lambda: not any(watcher.late for watcher in self.watchers), TOLD_S)
        for watcher in self.watchers:
            watcher.finish()
        for mirror in self.mirrors:
            mirror.finish(TOLD_S)

    def end(self) -> None:
        """No more questions, no more faults, and everything works again."""
        cluster = self.cluster
        self.over = cluster.quiet = True
        cluster.trace("all faults are over")
        cluster.network.heal()
        for node in cluster.nodes.values():
            if self._builds is not None and node.name in self._builds.older:
                self._builds.older.discard(node.name)  # the upgrade ends
                node.crash(power=False)
            if node.environment is not None:
                node.environment.slow_until_s = 0.0
                self._unhang(node)
            if not node.up and node.lives:
                node.start()
        for watcher in self.watchers:
            if watcher.client is None:
                watcher.begin()
        for mirror in self.mirrors:
            if mirror.client is None:
                mirror.begin()

    # --- faults ------------------------------------------------------------------------------------------

    def later(self, seconds: float, what: Callable[[], None]) -> None:
        """See :class:`Faults`."""
        loop = self.cluster.loop
        loop.call_later(seconds, what, context=loop.outside)

    def everybody(self) -> list[SimNode]:
        """See :class:`Faults`."""
        return list(self.cluster.nodes.values())

    def leader(self) -> SimNode | None:
        """See :class:`Faults`."""
        settings = self.cluster.settings
        kind = self._rng.choice(["data", "data", "offset", "metadata"])
        return self.cluster.leader(GroupId(kind, self._rng.randrange(getattr(settings, kind))))

    def heal(self) -> None:
        """See :class:`Faults`."""
        self.cluster.trace("every link is whole again")
        self.cluster.network.heal()

    def _hosts(self) -> list[str]:
        return [*self.cluster.nodes, *(client.name for client in self.cluster.clients)]

    def _partition(self) -> None:
        hosts = self._hosts()
        self._rng.shuffle(hosts)
        cut = self._rng.randint(1, len(hosts) - 1)
        self.cluster.trace(f"{sorted(hosts[:cut])} are cut off")
        self.cluster.network.partition(hosts[:cut], hosts[cut:])
        self.heal_later()

    def _isolate(self) -> None:
        """A leader from the other nodes, but not always from its clients."""
        leader = self.leader()
        if leader is None:
            return
        others = self._hosts() if self._rng.random() < 0.5 else list(self.cluster.nodes)
        self.cluster.trace(f"{leader.name} is cut off from {len(others)} hosts")
        self.cluster.network.partition([leader.name], [host for host in others if host != leader.name])
        self.heal_later()

    def _cut_one_way(self) -> None:
        one, other = self._rng.sample(self._hosts(), 2)
        self.cluster.trace(f"{one} cannot reach {other}")
        self.cluster.network.cut(one, other)
        self.heal_later()

    def _reset(self) -> None:
        one, other = self._rng.sample(self._hosts(), 2)
        self.cluster.network.reset(one, other)

    def _slow_link(self) -> None:
        one, other = self._rng.sample(self._hosts(), 2)
        self.cluster.trace(f"the way from {one} to {other} is slow")
        self.cluster.network.slow(one, other, self._rng.choice([10.0, 100.0, 1000.0]))
        self.heal_later()

    def _slow_disk(self) -> None:
        up = [node for node in self.up() if node.environment is not None]
        if up:
            node = self._rng.choice(up)
            assert node.environment is not None
            node.environment.slow_until_s = self.cluster.loop.now + self._rng.uniform(0.1, 1.5)
            self.cluster.trace(f"{node.name} has a slow disk")

    def _change_build(self) -> None:
        """An operator ends a node, and starts it with the other build: the one before only while nothing is switched
        on."""
        builds, up = self._builds, self.up()
        if builds is None or not up:
            return
        node = self._rng.choice(up)
        wanted = node.name not in builds.older
        node.crash(power=False)

        def wake() -> None:
            if not node.up:
                older = wanted and not builds.on_at(self.cluster)
                self.cluster.trace(f"{node.name} has the build {'before' if older else 'of today'}")
                (builds.older.add if older else builds.older.discard)(node.name)
                node.start()

        self.later(self._rng.uniform(0.01, 0.3), wake)

    # --- of wide runs ---

    def _one(self) -> SimNode | None:
        """One that lives, at best a leader."""
        leader = self.leader() if self._rng.random() < 0.6 else None
        up = [node for node in self.up() if node.environment is not None]
        return leader or (self._rng.choice(up) if up else None)

    def _hang_disk(self) -> None:
        """An fsync does not end for seconds, and the rest of the node runs."""
        node = self._one()
        if node is None or node.environment is None:
            return
        self.cluster.trace(f"the disk of {node.name} hangs")
        node.environment.hang_disk()
        lives = node.lives
        self.later(self._rng.uniform(0.5, 4.0), lambda: self._unhang(node) if node.lives == lives else None)

    def _unhang(self, node: SimNode) -> None:
        if node.process is not None and node.environment is not None:
            node.process.context.run(node.environment.unhang_disk)

    def _suspend(self) -> None:
        """A machine sleeps: nothing reaches it meanwhile."""
        node = self._one()
        if node is None:
            return
        seconds = self._rng.uniform(0.3, 3.0)
        self.cluster.network.partition([node.name], [host for host in self._hosts() if host != node.name])
        node.pause(seconds)
        self.later(seconds + self._rng.uniform(0.0, 0.5), self.heal)

    def _stand_still(self) -> None:
        """The service stands still, for longer than the leases and memberships of the actors last."""
        self.cluster.stand_still(self._rng.choice(["all", "majority", "leader"]), self._rng.uniform(0.5, 4.0))

    def _step_clock(self) -> None:
        """Somebody sets a node's calendar."""
        node = self._one()
        if node is None or node.environment is None:
            return
        step_ms = self._rng.choice([-3_600_000, -60_000, -7_000, -500, 500, 7_000, 60_000, 3_600_000])
        self.cluster.trace(f"the calendar of {node.name} is put forward by {step_ms} ms")
        node.environment.stepped_ms += step_ms

    def _bury(self) -> None:
        """A node is gone for so long that nobody waits for it, and not long enough to be given up."""
        if up := self.up():
            self._bury_one(self._rng.choice(up))

    def _bury_one(self, node: SimNode) -> None:
        node.crash(power=self._rng.random() < self.power_share)

        def wake() -> None:
            if not node.up:
                node.start()

        self.later(self._rng.uniform(2.0, 6.0), wake)

    def _leave_when_others_are_down(self) -> None:
        """A node leaves, at times a founder, and what is to take its place may be gone. Enough stay for replicas."""
        cluster, rng = self.cluster, self._rng
        leader = cluster.leader(METADATA)
        if leader is None or leader.node is None or leader.node.map is None:
            return
        known = leader.node.map.nodes
        staying = [node.node_id for node in known if not node.leaving]
        if len(staying) <= cluster.settings.replicas:
            return
        name = rng.choice(staying)
        replacements = [cluster.nodes[node] for node in staying if node != name and cluster.nodes[node].up]
        if replacements and rng.random() < 0.7:
            self._bury_one(rng.choice(replacements))
        self._administer(f"{name} is to leave", lambda asked: asked.leave(name))

    def _swing(self) -> None:
        """Slots go from one group to another, and back, and the leader of their source dies when the map has heard and
        the source has not closed."""
        rng, cluster = self._rng, self.cluster
        leader = cluster.leader(METADATA)
        if self.over or leader is None or leader.node is None or leader.node.map is None or leader.process is None:
            return
        known = leader.node.map
        several = [kind for kind in ("data", "metadata") if sum(group.kind == kind for group in known.groups) > 1]
        if known.moves or not several:
            return
        kind = rng.choice(several)
        source, target = rng.sample([group.ordinal for group in known.groups if group.kind == kind], 2)
        slots = [slot for slot, holder in enumerate(unpack_slots(known.slots[kind])) if holder == source]
        slots = [slot for slot in slots if rng.random() < 0.5 and (slot or kind != METADATA.kind)]
        number = cluster.grant_move(source, target, slots, kind)
        deadly = rng.random() < 0.6
        mover = GroupId(kind, source)
        self.later(0.002, lambda: self._swung(mover, number, cluster.loop.now + 4.0, deadly=deadly))

    def _swung(self, source: GroupId, number: int, until_s: float, *, deadly: bool) -> None:
        cluster, rng = self.cluster, self._rng
        if self.over or cluster.loop.now > until_s:
            return
        leader = cluster.leader(METADATA)
        known = None if leader is None or leader.node is None else leader.node.map
        done = known is not None and known.version * MOVES_OF_A_MAP >= number and not known.moves
        if not done:
            self.later(0.002, lambda: self._swung(source, number, until_s, deadly=deadly))
            return
        mover = cluster.leader(source)
        if deadly and mover is not None:
            self._down(mover)
        self.later(rng.uniform(0.0, 1.0), self._swing)

    def _forge(self) -> None:
        """A client that uses its identities again, for other things."""
        node = self._one()
        if node is None or node.node is None or node.process is None:
            return
        rng = self._rng
        for _ in range(rng.randint(1, 20)):
            method, body = rng.choice(_FORGED)
            identity = m.Identity(rng.randint(1, 2), rng.randint(1, 6), rng.randint(1, 6), rng.choice([0, 0, 1, 9_999]))
            payload = encode(m.Request(1_000, identity, body, group_of(node.node.map, method, body)))
            node.process.context.run(node.node.requests.submit, method.code, payload, lambda _: None)

    # --- changes -----------------------------------------------------------------------------------------

    def _administer(self, text: str, work: Callable[[Any], Coroutine[Any, Any, Any]]) -> None:
        cluster, admin = self.cluster, self._admin
        cluster.trace(f"asked of the cluster: {text}")

        async def do() -> None:
            with suppress(MetadError):
                client = admin.client or await admin.open()
                cluster.trace(f"{text}: {await work(client.cluster)}")

        cluster.work(admin.process, do(), text)

    def _transfer(self) -> None:
        settings, rng = self.cluster.settings, self._rng
        kind = rng.choice(["data", "data", "offset", "metadata"])
        ordinal = rng.randrange(getattr(settings, kind))
        group, to = GroupId(kind, ordinal).name, f"n{rng.randint(1, settings.nodes)}"
        self._administer(f"{group} to {to}", lambda asked: asked.transfer(group, to))

    def _rebalance(self) -> None:
        kind = self._rng.choice(["data", "data", "offset", "metadata"])

        async def grow(asked: Any) -> Any:
            known = await asked.map()
            if known.map is not None and sum(group.kind == kind for group in known.map.groups) < 4:
                with suppress(MetadError):
                    await asked.add_group(kind)
            return await asked.rebalance()

        self.cluster.moves += 1
        self._administer(f"one more {kind} group, and its share", grow)

    def _known(self) -> ClusterMap | None:
        """The map of the leader of the metadata."""
        leader = self.cluster.leader(METADATA)
        return None if leader is None or leader.node is None else leader.node.map

    def _allow(self, feature: str) -> None:
        """Switch a feature on as soon as somebody leads the metadata."""
        if not self.cluster.switch_on(feature) and not self.over:
            self.later(0.5, lambda: self._allow(feature))

    def _prefer(self) -> None:
        """An operator has a group be led in a region, or in any, and then another."""
        known, rng = self._known(), self._rng
        if self.over:
            return
        self.later(rng.expovariate(2.0), self._prefer)
        if known is not None:
            name = rng.choice(known.groups).group_id.name
            region = rng.choice(["", *sorted({node.region for node in known.nodes} - {""})])
            self._administer(f"{name} in region {region!r}", lambda asked: asked.prefer(name, region))

    def _regroup(self) -> None:
        """An operator changes groups by hand: splits one, merges one away and removes it, or moves a replica or slots.
        Now and then a leader of it dies meanwhile."""
        rng, known = self._rng, self._known()
        if self.over:
            return
        self.later(rng.expovariate(3.0), self._regroup)  # a merge alone leaves nothing to remove
        if known is None:
            return
        kind = rng.choice(["data", "data", "offset", "metadata"])
        of_kind = [record for record in known.groups if record.kind == kind]
        record = rng.choice(of_kind)
        name = record.group_id.name
        other = rng.choice([one for one in of_kind if one is not record] or of_kind).group_id.name
        mine = [slot for slot, holder in enumerate(unpack_slots(known.slots[kind])) if holder == record.ordinal]
        others = [node.node_id for node in known.nodes if node.node_id not in record.replicas]
        self.cluster.moves += 1
        if rng.random() < 0.2:
            deadly = rng.uniform(0.0, 0.5)
            self.later(deadly, lambda: self._down_leader(record.group_id))
        empty = [one for one in of_kind if one.ordinal not in unpack_slots(known.slots[kind])]
        what = rng.choice(["split", "merge", "merge", "remove", "move", "replica"] if other != name else ["split"])
        what = "remove" if empty and rng.random() < 0.7 else what
        if what == "split" and len(of_kind) < 4:
            to = rng.choice(["", other]) if other != name else ""
            self._administer(
                f"half of {name} to {to or 'a new group'}", lambda a: a.move_slots(to, group=name, half=True)
            )
        elif what == "merge":
            self._administer(f"{name} into {other}", lambda a: a.move_slots(other, group=name))
        elif what == "move" and mine:
            slots = rng.sample(mine, rng.randint(1, len(mine)))
            self._administer(f"{len(slots)} slots to {other}", lambda a: a.move_slots(other, slots=slots))
        elif what == "replica" and others:
            source, target = rng.choice(record.replicas), rng.choice(others)
            self._administer(f"{name} from {source} to {target}", lambda a: a.move_replica(name, source, target))
        else:
            gone = rng.choice(empty or of_kind).group_id.name
            self._administer(f"{gone} is removed", lambda a: a.remove_group(gone))

    def _down_leader(self, group: GroupId) -> None:
        leader = self.cluster.leader(group)
        if leader is not None and not self.over:
            self._down(leader)

    def _drain(self) -> None:
        """A node is to lead nothing, or may again."""
        known = self._known()
        if known is not None:
            name, undo = self._rng.choice(known.nodes).node_id, self._rng.random() < 0.4
            self._administer(f"{name} is {'un' * undo}drained", lambda asked: asked.drain(name, undo=undo))

    def _join(self) -> None:
        fresh = [node for node in self.cluster.nodes.values() if not node.lives]
        if not fresh:
            return
        node = self._rng.choice(fresh)
        node.start()
        self._administer("an even spread", lambda asked: asked.rebalance())

    def _leave(self) -> None:
        """Of a node that was spare at first: founders stay."""
        joined = [node for node in self.cluster.nodes.values() if node.config.cluster.join and node.lives]
        if joined:
            name = self._rng.choice(joined).name
            self._administer(f"{name} is to leave", lambda asked: asked.leave(name))


def draw(rng: random.Random, nodes: int, *, wide: bool = False) -> Settings:
    """A cluster of its own for a seed. ``wide``: with nodes that are configured in different ways."""
    heartbeat_ms = rng.choice([50, 100])
    delay = rng.choice([(0.0001, 0.001), (0.0005, 0.005), (0.002, 0.02)])
    spares = rng.choice([0, 0, 0, 1]) if nodes > 1 else 0
    if wide and nodes > 1:
        spares = rng.choice([0, 1, 2])
    settings = Settings(
        nodes=nodes,
        spares=spares,
        metadata=rng.choice([1, 1, 2]),
        offset=1,
        data=rng.choice([1, 2, 2]),
        clients=rng.choice([2, 3, 4]),
        callers=rng.choice([1, 2, 3]),
        wire=Wire(
            delay=delay,
            slow_chance=rng.choice([0.0, 0.0, 0.01]),
            patience=rng.choice([(0.5, 2.0), (3.0, 15.0)]),
        ),
        pace=Pace(
            fsync=rng.choice([(0.0002, 0.001), (0.001, 0.01)]),
            slow_fsync=rng.choice([0.0, 0.01]),
            beside=rng.choice([(0.0005, 0.01), (0.01, 0.3)]),
            drift=rng.choice([0.0, 0.1]),
            skew_s=rng.choice([0.0, 0.5, 60.0, 3_600.0, 86_400.0]),
            calendar_drift=rng.choice([0.0, 0.1, 1.0]),
        ),
        raft=RaftConfig(
            election_timeout_ms=rng.choice([300, 600]),
            heartbeat_ms=heartbeat_ms,
            sleep_after_ms=rng.choice([200, 1_000, 10**9]),
            log_cache_bytes=rng.choice([1, 2_000, 2_000, 10**6]),
        ),
        commit=CommitConfig(pipeline_entries_max=rng.choice([1, 3, 8]), linger_ms=rng.choice([0.0, 0.0, 2.0])),
        storage=StorageConfig(
            engine="memory",
            log_retained_bytes=rng.choice([1_000, 10_000, 10**6]),
            owner_cache_bytes=rng.choice([64, 10**6]),
            row_cache_bytes=rng.choice([500, 10**6]),
        ),
        dedupe=DedupeConfig(identities_max=rng.choice([65_536, 65_536, 20])),
        expiry=ExpiryConfig(amnesty_ms=rng.choice([300, 1_500, 10_000]), batch_sessions=rng.choice([3, 100])),
    )
    if not wide:
        return settings
    apart = random.Random()  # other seeds stay what they were
    apart.setstate(rng.getstate())
    rafts = {}
    if rng.random() < 0.5:
        for number in range(1, nodes + spares + 1):
            election_ms = rng.choice([300, 300, 600, 1_200])
            rafts[f"n{number}"] = msgspec.structs.replace(settings.raft, election_timeout_ms=election_ms)
    return settings._replace(
        rafts=rafts,
        regions=("eu", "us", "eu", "us", "us")[:nodes] if nodes > 1 and apart.random() < 0.4 else (),
        replicas=5 if nodes == 5 and rng.random() < 0.5 else 3,
        dedupe=DedupeConfig(identities_max=rng.choice([65_536, 20, 5])),
    )
