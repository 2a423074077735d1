"""Nodes that stream snapshots over a network that does what a test wants, on virtual time."""

from __future__ import annotations

import random
from collections.abc import Callable

import msgspec
from journal_rig import Rig

from metad.errors import StorageError
from metad.raft.base import Traffic
from metad.raft.messages import Configuration, Snapshot
from metad.raft.roles.leadership import Progress
from metad.raft.snapshots.snapshots import Snapshots, replace_state
from metad.raft.snapshots.staging import MemoryStaging, Staging
from metad.raft.snapshots.transfer import AnyStreamMessage, StreamLimits
from metad.storage import keys
from metad.storage.engine import Engine
from metad.storage.memory import MemoryEngine
from metad_wire.cluster import GroupId
from metad_wire.tables.kv import KV

LIMITS = StreamLimits(part_bytes=100)
decode = msgspec.msgpack.Decoder(AnyStreamMessage).decode
Verdict = Callable[[str, str, AnyStreamMessage], list[AnyStreamMessage]]
"""What the network makes of a message (from, to, message)."""


class FakeGroup:
    """What the snapshots need of a leader's group; a log behind which an entry was applied."""

    def __init__(self, kind: str, ordinal: int, peers: list[str], applied: int = 7) -> None:
        self.prefix = keys.group_prefix(GroupId(kind, ordinal))
        self.name = f"{kind}-{ordinal}"
        self.log = Rig().log
        self.log.restart(applied, 3, Configuration(("a", "b"), ("c",)))
        self.term = 4
        self.is_leader = True
        self.leader = "a"
        self.peers = {peer: Progress(1, 0.0, Traffic()) for peer in peers}
        for progress in self.peers.values():
            progress.wait_for_snapshot()
        self.streamed: list[tuple[str, Snapshot]] = []
        self.failed: list[str] = []
        self.woken = 0

    def wake(self) -> None:
        self.woken += 1

    def snapshot_streamed(self, peer: str, message: Snapshot) -> None:
        self.streamed.append((peer, message))

    def snapshot_failed(self, peer: str, why: str = "") -> None:
        self.failed.append(peer)
        self.peers[peer].probe_from(1)

    def fill(self, engine: Engine, count: int = 50) -> dict[bytes, bytes]:
        pairs = {keys.table_prefix(self.prefix, KV.rows["record"]) + b"%04d" % i: b"v%d" % i for i in range(count)}
        pairs[keys.applied(self.prefix)] = keys.u64(self.log.base_index)
        engine.write(pairs)
        return pairs

    def pairs(self, engine: Engine) -> dict[bytes, bytes]:
        return dict(engine.scan(self.prefix, keys.after_prefix(self.prefix), 1_000_000))


class World:
    """Nodes by name; what they say is delivered when :meth:`run` lets it."""

    def __init__(
        self,
        names: str = "ab",
        limits: StreamLimits = LIMITS,
        staging: Callable[[str], Staging] = lambda name: MemoryStaging(),
        engine: Callable[[str], Engine] = lambda name: MemoryEngine(),
    ) -> None:
        self.now = 0.0
        self.queue: list[tuple[str, str, bytes]] = []
        self.network: Verdict = lambda source, target, message: [message]
        self.heard: list[tuple[str, str, AnyStreamMessage]] = []
        self.broken: list[StorageError] = []
        self.receives = lambda prefix: True
        self.room_bytes = 1 << 40  # on the disk of each, for what is staged
        self.engines = {name: engine(name) for name in names}
        self.staging = {name: staging(name) for name in names}
        self.due = dict.fromkeys(names, float("inf"))
        self.nodes = {name: self._node(name, limits, seed) for seed, name in enumerate(names)}

    def _node(self, name: str, limits: StreamLimits, seed: int) -> Snapshots:
        def schedule() -> None:
            self.due[name] = self.now

        return Snapshots(
            self.engines[name],
            self.staging[name],
            clock=lambda: self.now,
            schedule=schedule,
            transmit=lambda peer, payload: self.queue.append((name, peer, payload)),
            receives=lambda prefix: self.receives(prefix),
            has_room=lambda size: self.nodes[name]._receiver.staged_bytes + size <= self.room_bytes,
            broken=self.broken.append,
            rng=random.Random(seed),
            limits=limits,
        )

    def step(self) -> bool:
        """Deliver what is on its way and let who is due act; whether anything happened."""
        queue, self.queue = self.queue, []
        for source, target, payload in queue:
            for message in self.network(source, target, decode(payload)):
                self.heard.append((source, target, message))
                if target in self.nodes:
                    self.nodes[target].receive(source, msgspec.msgpack.encode(message))
        acted = False
        for name, node in self.nodes.items():
            if self.due[name] <= self.now:
                self.due[name] = node.tick(self.now)
                acted = True
        return acted or bool(queue)

    def run(self, until: float = 1000.0, done: Callable[[], bool] = lambda: False) -> None:
        """Go on until ``done``, until nothing more will happen, or until that time."""
        for _ in range(100_000):
            if done():
                return
            if not self.step():
                due = min(self.due.values())
                if due > until:
                    self.now = max(self.now, min(until, due)) if until < 1000.0 else self.now
                    return
                self.now = due
        raise AssertionError("never comes to an end")

    def of(self, kind: type[AnyStreamMessage]) -> list[AnyStreamMessage]:
        """What was delivered."""
        return [message for _, _, message in self.heard if isinstance(message, kind)]

    def install(self, group: FakeGroup, peer: str, message: Snapshot) -> None:
        """What a node does that Raft tells to."""
        parts = self.nodes[peer].install(group, message)  # type: ignore[arg-type]
        assert parts is not None
        replace_state(self.engines[peer], group.prefix, message, parts)
        self.nodes[peer].installed(group, message)  # type: ignore[arg-type]
        group.peers[peer].replicate_from(message.index + 1)
