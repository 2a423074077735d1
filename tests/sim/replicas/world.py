"""A cluster in one thread and in virtual time: the real log, writer, replicas and encoded messages on simulated disks
and links, with a state machine behind each replica. Everything random comes from one seed, so a run can be repeated.

A node's loop is events: a payload arrived, a turn is due, an fsync is over, entries are to be applied, a client asks.
Between any two of them the node may crash, and disk, network and clock may misbehave. :mod:`metad_judge.invariants`
checks each.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from metad.errors import StorageError
from metad.raft.base import NEVER, ROLES, ROOM, Timing, UnsafeStateError
from metad.raft.log.journal import REGULAR, Metadata
from metad.raft.messages import AnyMessage, Append, Configuration, Snapshot
from metad.raft.replica import RaftGroup
from metad.raft.replicas import Replicas
from metad.raft.roles.membership import ChangeRefusedError
from metad.raft.snapshots.snapshots import Snapshots, replace_state, restore_log
from metad.raft.snapshots.staging import MemoryStaging
from metad.raft.snapshots.transfer import StreamLimits
from metad.storage import keys
from metad.storage.log import DurableMark, LogStore, LogWriter, log_metadata
from metad_judge.invariants import Ledger, Violation, Watch, WatchedLog, same_states
from metad_wire.cluster import GroupId

from ..disk import LogSync, SimDisk, SimFile
from .clock import Clock, Handle
from .machine import Command, Registers, StateMachine
from .network import Link, SimNetwork

_encode = msgspec.msgpack.Encoder().encode
_RAFT, _BULK = b"R", b"B"
"""What a payload is: messages of groups, or of a snapshot's stream."""
EMPTY = Configuration(())
"""What a replica that is yet to be a member starts with: it never campaigns."""


class Settings(NamedTuple):
    """What a world is made of. Times are seconds, chances are per message or event."""

    nodes: int = 3
    spares: int = 0
    groups: int = 1
    timing: Timing = Timing()
    timings: Mapping[str, Timing] = {}
    """Of nodes that are configured in another way."""
    link: Link = Link()
    fsync: tuple[float, float] = (0.001, 0.005)
    slow_fsync: float = 0.0
    """Chance that one takes a hundred times longer."""
    turn: tuple[float, float] = (0.0, 0.001)
    apply_at_once: bool = False
    apply_entries: int = 20
    compact_entries: int = 1 << 30
    """Log entries beyond which the state is flushed and the log compacted."""
    cache_bytes: int = 1 << 20
    """What is in it is kept by compaction."""
    streams: StreamLimits = StreamLimits(
        part_bytes=600, resend_s=0.3, timeout_s=1.5, retry_s=0.1, install_timeout_s=4.0, stale_s=6.0
    )
    """Of snapshots: as production's, for rows and election timeouts that are as much smaller."""
    drift: float = 0.0
    """Clocks run at rates within 1 ± half of this."""
    noticed: tuple[float, float] = (0.001, 0.3)
    """How long until an end learns that its connection is broken."""
    reconnected: tuple[float, float] = (0.001, 0.1)
    redialled: tuple[float, float] = (0.005, 0.4)
    """How long until a dial in vain is answered, and the next."""
    uncounted: bool = False
    """The clock of leases stands still while a machine sleeps; the calendar does not."""
    old: frozenset[str] = frozenset()
    """Nodes of a version that does not part the promise from the election timeout."""


class Disk(SimDisk):
    """One that can be looked into."""

    def durable(self, key: bytes) -> bytes | None:
        """What a power loss would leave of a key."""
        for undo in self._journal:
            for changed, before in undo:
                if changed == key:
                    return before if isinstance(before, bytes) else None
        return self.get(key)


class _Keep(random.Random):
    """Draws one number."""

    def __init__(self, number: int) -> None:
        super().__init__(0)
        self._number = number

    def randint(self, a: int, b: int) -> int:
        return max(a, min(b, self._number))


class Hosted:
    """One replica and what its node keeps for it."""

    def __init__(self, group: RaftGroup, log: WatchedLog, machine: StateMachine, watch: Watch) -> None:
        self.group = group
        self.log = log
        self.machine = machine
        self.watch = watch
        self.pending: dict[int, tuple[int, Asked]] = {}  # index -> (term, who waits)
        self.asked: list[Asked] = []
        self.applying = False
        self.flushing = False
        self.installing: Snapshot | None = None


class Asked:
    """A question of a client, to be answered exactly once: done (and the result), refused (it did not happen and will
    not) or unknown."""

    __slots__ = ("_tell", "answered", "text")

    def __init__(self, text: str, tell: Callable[[str, Any], None]) -> None:
        self.text = text
        self.answered = False
        self._tell = tell

    def answer(self, outcome: str, result: Any = None) -> None:
        """The answer."""
        if self.answered:
            raise Violation("one answer", f"{self.text} is answered again: {outcome} {result}")
        self.answered = True
        self._tell(outcome, result)


class SimSyncer:
    """An fsync takes its time; a crash meanwhile leaves some of it."""

    def __init__(self, node: SimNode) -> None:
        self._node = node

    def sync(self, done: Callable[[StorageError | None], None]) -> None:
        node = self._node
        sync, life = LogSync(node.store), node.life
        node.world.clock.call_later(node.fsync_s(), lambda: self._over(life, sync, done))

    def _over(self, life: int, sync: LogSync, done: Callable[[StorageError | None], None]) -> None:
        node = self._node
        if not node.up or node.life != life or node.hung(lambda: self._over(life, sync, done)):
            return
        sync.finish()
        if node.world.tracing:
            node.trace("fsync is over")
        node.run(life, done, None)

    def close(self) -> None:
        """Nothing runs."""


class WatchedReplicas(Replicas):
    """Looks at what is sent."""

    node: SimNode

    def send(self, group: RaftGroup, peer: str, message: AnyMessage) -> None:
        hosted = self.node.hosted.get(group.prefix)
        if hosted is not None:
            hosted.watch.sends(peer, message)
        if self.node.world.tracing:
            self.node.trace(f"sends {peer} {message}")
        old = self.node.world.settings.old
        if isinstance(message, Append) and not old.isdisjoint((self.node_id, peer)):
            message = msgspec.structs.replace(message, lease_ms=0)
        intercept = self.node.world.intercept
        if intercept is None or intercept(self.node_id, peer, message):
            super().send(group, peer, message)


class SimNode:
    """One node: crash it with :meth:`crash`, wake it with :meth:`start`."""

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.counts_suspension = not world.settings.uncounted
        """Whether its clock goes on while the machine sleeps, as :class:`metad.node.environment.Environment` says."""
        self.name = name
        self.log_disk = Disk()
        self.state_disk = Disk()
        self.mark_file = SimFile()
        self.up = False
        self.life = 0
        self.initial: dict[bytes, Configuration] = {}
        """The replicas it has, by group, and what they begin with."""
        self.hosted: dict[bytes, Hosted] = {}
        self.paused_until = 0.0
        self.disk_slow_until = 0.0
        self.disk_hangs = False
        self.crowded = False
        """Whether many requests wait on it."""
        self.shortage = ROOM
        """How its disk is."""
        self.is_drained = False
        """Whether others are to lead while they can."""
        self._hung: list[Callable[[], None]] = []
        self._rate = 1.0
        self._offset = 0.0
        self._stood_still_s = 0.0

    def drained(self) -> list[str]:
        """The nodes that are to lead nothing, as far as this one goes by it."""
        return [self.name] if self.is_drained else []

    # --- life --------------------------------------------------------------------------------------------

    def start(self) -> None:
        """A new process."""
        world = self.world
        self.life += 1
        self.up = True
        self.paused_until = 0.0
        self._backlog: deque[tuple[Callable[..., None], tuple[Any, ...]]] = deque()
        drift = world.settings.drift
        self._rate = 1.0 + drift * (world.rng.random() - 0.5)
        self._offset = world.rng.uniform(0.0, 1000.0)
        self._turning = False
        self._timer: Handle | None = None
        self._snapshots_timer: Handle | None = None
        self.hosted = {}
        self.store = LogStore(self.log_disk, DurableMark(Path("durable"), lambda _: self.mark_file))
        self.store.sync()  # an earlier life may have left what only the system's cache has
        self.writer = LogWriter(self.store, SimSyncer(self), failed=self._failed)
        self.replicas = WatchedReplicas(
            self.name,
            self.writer,
            self,
            clock=self.now,
            calendar=self.calendar,
            schedule=self._schedule,
            transmit=self._transmit,
            crowded=lambda: self.crowded,
            shortage=lambda: self.shortage,
            timing=world.timings.get(self.name, world.settings.timing),
            rng=random.Random(world.rng.getrandbits(64)),
        )
        self.replicas.node = self
        self.snapshots = Snapshots(
            self.state_disk,
            MemoryStaging(),
            clock=self.now,
            schedule=lambda: self._tick_snapshots_at(self.now()),
            transmit=self._transmit_bulk,
            receives=self.replicas.groups.__contains__,
            broken=self._failed,
            rng=random.Random(world.rng.getrandbits(64)),
            limits=world.settings.streams,
        )
        self.trace("starts")
        for group in self.initial:
            self.open(group)
        told = (self.receive, self.connected, self.lost, self.refused)
        world.network.attach(self.name, *(self._on_loop(call) for call in told))

    def open(self, prefix: bytes) -> None:
        """Take up a replica."""
        world = self.world
        log = WatchedLog(
            GroupId("data", int.from_bytes(prefix[1:], "big")),
            self.store,
            self.writer,
            initial=self.initial[prefix],
            cache_bytes=world.settings.cache_bytes,
        )
        world.repaired += restore_log(log, self.state_disk)
        machine = world.machine(self.state_disk, prefix)
        if machine.applied > log.last_index:
            raise Violation("state behind log", f"{self.name} has applied {machine.applied} of {log.last_index}")
        group = self.replicas.open(log, applied=machine.applied)
        applied = keys.applied(prefix)
        state = self.state_disk
        watch = Watch(
            world.ledgers[prefix], self.name, group, log, lambda: int.from_bytes(state.durable(applied) or b"", "big")
        )
        log.watch = watch
        self.hosted[prefix] = Hosted(group, log, machine, watch)

    def join(self, prefix: bytes, initial: Configuration = EMPTY) -> None:
        """Have a replica from now on."""
        self.initial[prefix] = initial
        if self.up and prefix not in self.hosted:
            self.open(prefix)

    def leave(self, prefix: bytes) -> None:
        """Give a replica up, and its data with it."""
        self.initial.pop(prefix, None)
        hosted = self.hosted.pop(prefix, None)
        if hosted is not None:
            for asked in hosted.asked:
                if not asked.answered:
                    asked.answer("unknown")
            self.replicas.close(hosted.group)
            self.snapshots.group_closed(hosted.group)
        end = keys.after_prefix(prefix)
        for disk in (self.log_disk, self.state_disk):
            disk.write({}, delete_ranges=[(prefix, end)])
            disk.sync()

    def crash(self, *, power: bool = True, keep: int | None = None) -> None:
        """The process dies, and with the power what was not synced: all but a random beginning, or the first ``keep``
        writes of the log; then the durable mark is the newest, which promises most."""
        if not self.up:
            return
        self.trace(f"crashes, {self.log_disk.unsynced} writes unsynced" if power else "is killed")
        self.up = False
        self._hung = []
        self.world.crashes += 1
        for hosted in self.hosted.values():
            for asked in hosted.asked:
                if not asked.answered:
                    asked.answer("unknown")
        self.hosted = {}
        rng = self.world.rng
        if power:
            self.log_disk.crash(rng if keep is None else _Keep(keep), torn=keep is None and rng.random() < 0.5)
            if keep is None:
                self.mark_file.crash(rng)
        self.state_disk.crash(rng)
        self.world.network.detach(self.name)

    def pause(self, seconds: float) -> None:
        """The process gets no CPU for a while."""
        self.trace(f"pauses for {seconds:.3f} s")
        self.paused_until = max(self.paused_until, self.world.clock.now + seconds)

    def suspend(self, seconds: float) -> None:
        """The machine sleeps. Its timers stand still meanwhile; the clock of its leases does not."""
        self.pause(seconds)
        if not self.counts_suspension:
            self._stood_still_s += seconds
        if not self.up:
            return
        if self._timer is not None and self._timer.pending:
            self._timer = self._delayed(self._timer, seconds, self._turn)
        if self._snapshots_timer is not None and self._snapshots_timer.pending:
            self._snapshots_timer = self._delayed(self._snapshots_timer, seconds, self._tick_snapshots)

    def _delayed(self, timer: Handle, seconds: float, call: Callable[..., None]) -> Handle:
        timer.cancel()
        return self.later(timer.time + seconds - self.world.clock.now, call)

    def hang_disk(self) -> None:
        """No fsync ends any more, until :meth:`unhang_disk`."""
        self.trace("has a disk that hangs")
        self.disk_hangs = True

    def unhang_disk(self) -> None:
        """What should have ended meanwhile ends now."""
        self.disk_hangs = False
        hung, self._hung = self._hung, []
        for end in hung:
            end()

    def hung(self, end: Callable[[], None]) -> bool:
        """Whether the disk hangs; then ``end`` is called when it does not any more."""
        if self.disk_hangs:
            self._hung.append(end)
        return self.disk_hangs

    def leads(self, prefix: bytes) -> bool:
        """Whether it does, as far as it knows."""
        hosted = self.hosted.get(prefix)
        return hosted is not None and hosted.group.is_leader

    def configurations(self, prefix: bytes) -> list[Configuration]:
        """All that are in its log, on disk or in memory."""
        stored = self.log_disk.get(log_metadata(prefix))
        found = [] if stored is None else [c for _, c in msgspec.msgpack.decode(stored, type=Metadata).configurations]
        hosted = self.hosted.get(prefix)
        return found if hosted is None else [*found, hosted.group.configuration]

    def now(self) -> float:
        """Its own clock."""
        return self._offset + self._rate * (self.world.clock.now - self._stood_still_s)

    def calendar(self) -> float:
        """What the machine takes for the calendar. It is right soon after a sleep, but for how its clock runs."""
        return self._rate * self.world.clock.now

    def trace(self, text: str) -> None:
        """For who reads a failed run."""
        self.world.trace(f"{self.name} {text}")

    # --- events ------------------------------------------------------------------------------------------

    def run(self, life: int, call: Callable[..., None], *arguments: Any) -> None:
        """Something happens on its loop."""
        if not self.up or self.life != life:
            return
        world = self.world
        if self._backlog or world.clock.now < self.paused_until:
            if not self._backlog:
                world.clock.call_at(self.paused_until, lambda: self._resume(life))
            self._backlog.append((call, arguments))
            return
        self._run(call, arguments)

    def _resume(self, life: int) -> None:
        if self.life != life or not self.up:
            return
        if self.world.clock.now < self.paused_until:
            self.world.clock.call_at(self.paused_until, lambda: self._resume(life))
            return
        self.trace("goes on")
        if self.world.rng.random() < 0.5:
            self.replicas.overslept()
        backlog = self._backlog
        while backlog and self.up and self.life == life:
            self._run(*backlog.popleft())

    def _run(self, call: Callable[..., None], arguments: tuple[Any, ...]) -> None:
        world = self.world
        world.steps += 1
        if world.steps > world.steps_max:
            raise Violation("progress", f"{world.steps_max} steps, and still at {world.clock.now:.3f} s")
        call(*arguments)
        for hosted in self.hosted.values():
            hosted.watch.look()

    def later(self, delay: float, call: Callable[..., None], *arguments: Any) -> Handle:
        """Have it happen."""
        life = self.life
        return self.world.clock.call_later(delay, lambda: self.run(life, call, *arguments))

    def _on_loop(self, call: Callable[..., None]) -> Callable[..., None]:
        life = self.life
        return lambda *arguments: self.run(life, call, *arguments)

    def _schedule(self) -> None:
        if not self._turning:
            self._turning = True
            self.later(self.world.rng.uniform(*self.world.settings.turn), self._turn)

    def _turn(self) -> None:
        self._turning = True  # what asks for a turn now is served by this one, or told by what it returns
        now = self.now()
        due_s = self.replicas.turn(now)
        self._turning = False
        if due_s <= now:
            self._schedule()
        else:
            self._set_timer(due_s)

    def _set_timer(self, due_s: float) -> None:
        if due_s == NEVER:
            return
        at = max((due_s - self._offset) / self._rate + self._stood_still_s, self.world.clock.now) + 1e-6
        timer = self._timer
        if timer is not None and timer.pending:
            if timer.time <= at:
                return  # it comes earlier, and looks again then
            timer.cancel()
        self._timer = self.later(at - self.world.clock.now, self._turn)

    def fsync_s(self) -> float:
        """How long the next one takes."""
        world = self.world
        taken = world.rng.uniform(*world.settings.fsync)
        if not world.calm and (
            world.clock.now < self.disk_slow_until or world.rng.random() < world.settings.slow_fsync
        ):
            taken *= 100
        return taken

    def _transmit(self, peer: str, payload: bytes) -> None:
        self.world.network.send(self.name, peer, _RAFT + payload)

    def _transmit_bulk(self, peer: str, payload: bytes) -> None:
        if peer in self.replicas.connected:
            self.world.network.send(self.name, peer, _BULK + payload)

    def receive(self, peer: Any, payload: bytes) -> None:
        """From the network."""
        if payload[:1] == _RAFT:
            self.replicas.receive(peer, payload[1:])
        else:
            self.snapshots.receive(peer, payload[1:])

    def connected(self, peer: Any) -> None:
        """Payloads may be exchanged."""
        self.trace(f"is connected with {peer}")
        self.replicas.peer_connected(peer)

    def lost(self, peer: Any) -> None:
        """The connection is broken."""
        self.trace(f"has lost {peer}")
        self.replicas.peer_lost(peer)
        self.snapshots.peer_lost(peer)

    def refused(self, peer: Any) -> None:
        """The peer's host says that nobody listens."""
        self.trace(f"is refused by {peer}'s host")
        self.replicas.peer_refused(peer)

    # --- what its groups tell it -------------------------------------------------------------------------

    def committed(self, group: RaftGroup) -> None:
        """See Observer."""
        hosted = self.hosted[group.prefix]
        if self.world.settings.apply_at_once:
            self._apply(hosted)
        elif not hosted.applying:
            hosted.applying = True
            self.later(self.world.rng.uniform(*self.world.settings.turn), self._apply, hosted)

    def role_changed(self, group: RaftGroup) -> None:
        """See Observer."""
        if self.world.tracing:
            self.trace(f"is {ROLES[group.role]} in term {group.term} of {group.leader}")
        hosted = self.hosted.get(group.prefix)
        if hosted is not None and not group.is_leader:
            pending, hosted.pending = hosted.pending, {}
            for _, asked in pending.values():
                asked.answer("unknown")

    def configured(self, group: RaftGroup) -> None:
        """See Observer."""
        self.trace(f"has configuration {group.configuration}")

    def unsafe(self, error: UnsafeStateError) -> None:
        """See Observer."""
        raise Violation("stopped itself", f"{self.name}: {error}")

    def _failed(self, error: StorageError) -> None:
        raise error

    # --- the state machine -------------------------------------------------------------------------------

    def _apply(self, hosted: Hosted) -> None:
        hosted.applying = False
        group, log = hosted.group, hosted.log
        if hosted.installing is not None or self.hosted.get(group.prefix) is not hosted:
            return
        first = group.applied + 1
        end = min(group.applicable, group.applied + self.world.settings.apply_entries) + 1
        if first >= end:
            return
        records: list[bytes] = []
        while first + len(records) < end:
            records += log.records(first + len(records), 1 << 20, end)
        hosted.watch.look()
        for index, record in enumerate(records, first):
            hosted.watch.applies(index, record)
        results = hosted.machine.apply(first, [r[9:] if r[8] == REGULAR else None for r in records])
        if self.world.tracing:
            self.trace(f"applies {first} to {end - 1}")
        group.applied_to(end - 1)
        for index, (record, result) in enumerate(zip(records, results, strict=True), first):
            waiting = hosted.pending.pop(index, None)
            if waiting is not None:
                term, asked = waiting
                if int.from_bytes(record[:8], "big") == term:
                    ledger = self.world.ledgers[group.prefix]
                    ledger.acknowledged = max(ledger.acknowledged, index)
                    asked.answer("done", result)
                else:
                    asked.answer("refused")  # another entry has its place
        if group.applied < group.applicable:
            self.committed(group)
        self._compact(hosted)

    def _compact(self, hosted: Hosted) -> None:
        settings = self.world.settings
        if len(hosted.log) < settings.compact_entries or hosted.flushing or hosted.installing is not None:
            return
        hosted.flushing = True
        self.later(self.fsync_s(), self._flushed, hosted, hosted.machine.applied, self.state_disk.begin_sync())

    def _flushed(self, hosted: Hosted, applied: int, token: int) -> None:
        life = self.life
        if self.hung(lambda: self.run(life, self._flushed, hosted, applied, token)):
            return
        hosted.flushing = False
        self.state_disk.finish_sync(token)
        if self.hosted.get(hosted.group.prefix) is hosted:
            held = self.snapshots.held_index(hosted.group)
            hosted.group.compact(applied if held is None else min(applied, held))
            self.trace(f"compacts through {hosted.log.base_index}")
            self.world.compactions += 1
            self._schedule()

    # --- snapshots ---------------------------------------------------------------------------------------

    def snapshot_wanted(self, group: RaftGroup, peer: str) -> None:
        """See Observer."""
        self.trace(f"is to send {peer} a snapshot")
        self.snapshots.wanted(group, peer)

    def _tick_snapshots_at(self, due_s: float) -> None:
        timer = self._snapshots_timer
        if timer is not None:
            timer.cancel()
        self._snapshots_timer = None
        if due_s < NEVER:
            delay = max(0.0, (due_s - self.now()) / self._rate)
            self._snapshots_timer = self.later(delay, self._tick_snapshots)

    def _tick_snapshots(self) -> None:
        self._snapshots_timer = None
        due_s = self.snapshots.tick(self.now())
        if self._snapshots_timer is None:
            self._tick_snapshots_at(due_s)

    def install_snapshot(self, group: RaftGroup, message: Snapshot) -> None:
        """See Observer."""
        hosted = self.hosted[group.prefix]
        parts = None if hosted.installing is not None else self.snapshots.install(group, message)
        if parts is None:
            return
        self.trace(f"installs {message}")
        hosted.installing = message
        world, life, takes_s = self.world, self.life, self.fsync_s()

        def replace() -> None:  # in a thread: be the loop paused or not
            if self.up and self.life == life and self.hosted.get(group.prefix) is hosted:
                replace_state(self.state_disk, group.prefix, message, parts)

        world.clock.call_later(takes_s * world.rng.random(), replace)
        self.later(takes_s, self._installed, hosted, message)

    def _installed(self, hosted: Hosted, message: Snapshot) -> None:
        life = self.life
        if self.hung(lambda: self.run(life, self._installed, hosted, message)):
            return
        group = hosted.group
        self.snapshots.installed(group, message)
        hosted.installing = None
        if self.hosted.get(group.prefix) is not hosted:
            return
        self.world.snapshots += 1
        hosted.machine = self.world.machine(self.state_disk, group.prefix)
        group.snapshot_installed(message)
        if group.applied < group.applicable:
            self.committed(group)

    # --- what clients and administrators ask --------------------------------------------------------------

    def propose(self, prefix: bytes, command: Command, tell: Callable[[str, Any], None]) -> None:
        """A write; see :class:`Asked`."""
        hosted = self.hosted.get(prefix)
        if hosted is None or not hosted.group.accepting:
            tell("refused", None)
            return
        asked = Asked(command.identity, tell)
        hosted.asked.append(asked)
        index = hosted.group.propose(_encode(command))
        hosted.pending[index] = (hosted.group.term, asked)

    def read(self, prefix: bytes, key: str, tell: Callable[[str, Any], None]) -> None:
        """A read; see :class:`Asked`."""
        hosted = self.hosted.get(prefix)
        if hosted is None:
            tell("refused", None)
            return
        asked = Asked(f"read of {key} at {self.name}", tell)
        hosted.asked.append(asked)
        acknowledged = self.world.ledgers[prefix].acknowledged
        hosted.group.read(lambda may: self._may_read(hosted, key, acknowledged, asked, may=may))

    def _may_read(self, hosted: Hosted, key: str, acknowledged: int, asked: Asked, *, may: bool) -> None:
        if not may:
            asked.answer("refused")
            return
        if hosted.machine.applied < acknowledged:
            raise Violation(
                "fresh reads",
                f"{self.name} reads at {hosted.machine.applied} in term {hosted.group.term}; when it was asked "
                f"{acknowledged} was acknowledged",
            )
        asked.answer("done", hosted.machine.read(key))


class World:
    """The cluster."""

    def __init__(
        self,
        seed: int,
        settings: Settings,
        *,
        machine: Callable[[Disk, bytes], StateMachine] = Registers,
        tracing: bool = False,
    ) -> None:
        self.seed = seed
        self.settings = settings
        self.timings = dict(settings.timings)
        """As nodes that start from now on are configured."""
        self.rng = random.Random(seed)
        self.machine = machine
        self.clock = Clock()
        self.network = SimNetwork(
            self.clock,
            self.rng,
            settings.link,
            noticed=settings.noticed,
            reconnected=settings.reconnected,
            redialled=settings.redialled,
            seed=seed,
        )
        self.intercept: Callable[[str, str, AnyMessage], bool] | None = None
        """Sees every message of a group that is sent; False loses it."""
        self.steps = self.crashes = self.snapshots = self.compactions = self.repaired = 0
        self.steps_max = 100_000
        """More than that is an endless loop."""
        self.tracing = tracing
        self.calm = False
        """No fsync is slow any more."""
        self.traced: list[str] = []
        self.nodes: dict[str, SimNode] = {}
        self.groups = [keys.group_prefix(GroupId("data", ordinal)) for ordinal in range(settings.groups)]
        names = [f"n{number}" for number in range(1, settings.nodes + settings.spares + 1)]
        voters = Configuration(tuple(names[: settings.nodes]))
        self.ledgers = {group: Ledger(group, self._durable, voters) for group in self.groups}
        for name in names:
            node = SimNode(self, name)
            self.nodes[name] = node
            if name in voters.voters:
                for group in self.groups:
                    node.initial[group] = voters
        for node in self.nodes.values():
            node.start()

    def _durable(self, node: str, key: bytes) -> bytes | None:
        return self.nodes[node].log_disk.durable(key)

    def trace(self, text: str) -> None:
        """What happened, if anybody wants to know."""
        if self.tracing:
            self.traced.append(f"{self.clock.now:9.4f} {text}")

    # --- time --------------------------------------------------------------------------------------------

    def run(self, seconds: float) -> None:
        """Let time pass."""
        self.clock.run_until(self.clock.now + seconds)

    def run_until(self, condition: Callable[[], bool], seconds: float, *, every: float = 0.05) -> bool:
        """Let time pass until something is so; False if it is not within ``seconds``."""
        until = self.clock.now + seconds
        while self.clock.now < until:
            if condition():
                return True
            self.run(min(every, until - self.clock.now))
        return condition()

    def deliver(self, source: str, target: str, message: AnyMessage, group: bytes | None = None) -> None:
        """A message arrives, whenever and by whatever way."""
        node = self.nodes[target]
        payload = _encode([(self.groups[0] if group is None else group, message)])
        node.run(node.life, node.replicas.receive, source, payload)

    # --- what to look at ---------------------------------------------------------------------------------

    def leader(self, group: bytes | None = None) -> str | None:
        """Who leads the newest term."""
        prefix = self.groups[0] if group is None else group
        found = [
            (hosted.group.term, node.name)
            for node in self.nodes.values()
            if node.up and (hosted := node.hosted.get(prefix)) is not None and hosted.group.is_leader
        ]
        return max(found)[1] if found else None

    def group(self, node: str, group: bytes | None = None) -> RaftGroup:
        """A node's replica."""
        return self.nodes[node].hosted[self.groups[0] if group is None else group].group

    def forgotten(self, prefix: bytes, name: str) -> bool:
        """Whether a node is in no configuration that counts or may still."""
        return not any(
            name in configuration.members
            for node in self.nodes.values()
            for configuration in node.configurations(prefix)
        )

    def converged(self, prefix: bytes) -> bool:
        """Whether one leads, is ready, and every member has applied everything."""
        name = self.leader(prefix)
        if name is None:
            return False
        leader = self.nodes[name].hosted[prefix]
        if not leader.group.accepting:
            return False
        last = leader.log.last_index
        for member in leader.group.configuration.members:
            node = self.nodes[member]
            hosted = node.hosted.get(prefix) if node.up else None
            if hosted is None or hosted.installing is not None:
                return False
            group = hosted.group
            if not group.applied == group.commit == hosted.log.last_index == hosted.log.durable_index == last:
                return False
            if group.leader != name:
                return False
        return True

    def require_answers(self) -> None:
        """Nobody who asked a node that has lived since is still waiting."""
        for node in self.nodes.values():
            for hosted in node.hosted.values():
                for asked in hosted.asked:
                    if not asked.answered:
                        raise Violation("one answer", f"{asked.text} is never answered by {node.name}")

    def require_convergence(self, seconds: float) -> None:
        """All faults are over: every group comes to one leader and one state, within bounded time."""
        for prefix in self.groups:
            if not self.run_until(lambda prefix=prefix: self.converged(prefix), seconds):  # type: ignore[misc]
                raise Violation("convergence", f"not within {seconds} s: {self.describe(prefix)}")
            name = self.leader(prefix)
            assert name is not None
            members = self.group(name, prefix).configuration.members
            same_states({member: self.nodes[member].hosted[prefix].machine.contents() for member in members})

    def describe(self, prefix: bytes) -> str:
        """Every replica of a group, in a line each."""
        lines = [""]
        for node in self.nodes.values():
            hosted = node.hosted.get(prefix)
            if hosted is None:
                lines.append(f"  {node.name}: {'no replica' if node.up else 'down'}")
                continue
            group, log = hosted.group, hosted.log
            peers = {p: (s.sending.value, s.match, s.next, s.paused) for p, s in group.peers.items()}
            lines.append(
                f"  {node.name}: {ROLES[group.role]} term {group.term} leader {group.leader} "
                f"log {log.base_index}..{log.last_index} (durable {log.durable_index}, last term {log.last_term}) "
                f"commit {group.commit} applied {group.applied} {group.configuration} asleep {group.asleep} "
                f"connected {sorted(group.connected)} peers {peers}"
            )
        return "\n".join(lines)


__all__ = ["ChangeRefusedError", "Settings", "SimNode", "World"]
