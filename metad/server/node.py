"""One node: takes requests, sends each part to its group, puts the answers together; opens, recovers and closes.

The event loop's turn (:meth:`Node._turn`): requests queue at their groups; once per turn every group with work makes
its entries, every replica does what is due, all of it goes into one log write, and each peer gets one payload. What has
been committed is applied in one batch and answered (:meth:`Node._apply`), and what queued meanwhile is next.
"""

from __future__ import annotations

import asyncio
import logging
import os
import resource
import time
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from metad_wire import messages as m
from metad_wire.cluster import ClusterMap, GroupCommand, MapReply, MapRequest, Moved, slots_in
from metad_wire.errors import (
    ConflictError,
    DeadlineExceededError,
    DrainingError,
    InternalError,
    InvalidRequestError,
    MetadError,
    NotLeaderError,
    OverloadedError,
    UnknownMethodError,
    UnknownOutcomeError,
)
from metad_wire.frame import FRAME_BYTES_MAX, HEADER_BYTES
from metad_wire.methods import (
    BETWEEN_NODES,
    CLUSTER_MAP,
    CLUSTER_MOVED,
    GROUP_COMMAND,
    KV_TRANSACT,
    METHODS,
    STATUS,
    Body,
    Method,
    Reply,
    encode,
)
from metad_wire.policy import BatchWindow

from .. import __version__
from ..config import Config
from ..control.controller import Controller
from ..control.mover import Mover
from ..errors import DamagedStoreError, ServerError, StorageError
from ..logs import event
from ..raft.base import ROLES, Timing, UnsafeStateError
from ..raft.journal import RaftLog, was_here
from ..raft.messages import Configuration, Snapshot
from ..raft.replica import RaftGroup
from ..raft.replicas import PeerProtocolError, Replicas
from ..raft.snapshots import Snapshots, replace_state, restore_log
from ..raft.staging import FileStaging, MemoryStaging
from ..raft.writer import LogWriter
from ..routing.slots import even_slots, slots_of
from ..state import cluster
from ..state.limits import reply_share
from ..state.machine import ALL_SLOTS, Machine
from ..state.owners import OwnerCache
from ..state.registry import CONTROL, VERBS
from ..state.rows import SLOTS, Numbers, Rows, column
from ..state.tables import Command, Verb
from ..state.view import RowCaches, Writes
from ..storage.keys import after_prefix, group_prefix
from .driver import GroupDriver, Work
from .environment import AsyncEnvironment, Environment, Timer
from .stores import Stores, open_stores

Done = Callable[[bytes | MetadError], None]
"""Takes the encoded reply, or why there is none. Called exactly once."""

# This many waiting items are begun although an fsync is under way: past it an entry's fixed cost is small beside its
# items', they are still in the CPU's cache, and the disk and the clients work on them while the next are read.
_AT_ONCE_ITEMS = 128
# What a decoded item takes beside the bytes it came in: the item, its row, its key, its part of a reply. The shortest
# take 6 bytes on the wire, so counting those alone would let a peer fill the memory forty times over.
_ITEM_BYTES = 256
# Writes applied in one turn of the loop: as many as one RocksDB batch takes well (2 ms), and no client waits for more.
_APPLY_ITEMS = 1_000
# Values are checked one by one only in requests that could hold one over the limit.
_CHECK_VALUES_FROM = m.VALUE_BYTES_MAX
_METADATA = ("metadata", 0)
_STEP_S = 10.0  # for one step of a slot move
_EXPIRE_S = 0.1  # between looks at the deadlines of what waits for a leader


class Node:
    """Everything of a server but its sockets. Use :meth:`open`, then :meth:`submit` or :meth:`call`."""

    def __init__(self, config: Config, stores: Stores, environment: Environment) -> None:
        self.config = config
        self.identity = stores.identity
        self.environment = environment
        self.connections = 0
        self.in_flight_bytes = 0
        self.draining = False
        self.closed = False
        self.failure: ServerError | None = None
        self.on_failure: list[Callable[[ServerError], None]] = []
        self.on_change: list[Callable[[], None]] = []
        """Told when the map, or who leads a group, has changed."""
        self.map: ClusterMap | None = None
        self.transmit: Callable[[str, bytes], None] = _nowhere
        """Sends a peer a payload of Raft messages; whoever has the connections sets it."""
        self.transmit_bulk = _nowhere
        """The same for snapshots, which travel beside."""
        self.call_peer: Callable[[str, int, bytes, Done], None] = _nobody
        """Sends a request to a peer, by node id."""
        self.links: Callable[[], list[m.PeerLink]] = list
        """How the connections to peers are, for the status."""
        self._stores = stores
        self._started_s = time.monotonic()
        self._writer = LogWriter(stores.log, environment.syncer(stores.log, fsync=config.fsync), failed=self.fail)
        self._writer.after_durable = self._apply
        self._owners = OwnerCache(config.storage.owner_cache_bytes)
        self._row_caches = RowCaches(config.storage.row_cache_bytes)
        self._window = BatchWindow(
            items_max=config.commit.entry_items_max,
            bytes_max=config.commit.entry_bytes_max,
            linger_s=config.commit.linger_ms / 1000,
        )
        raft = config.raft
        timing = Timing(
            election_s=raft.election_timeout_ms / 1000,
            heartbeat_s=raft.heartbeat_ms / 1000,
            sleep_after_s=raft.sleep_after_ms / 1000,
        )
        self.replicas = Replicas(
            config.node_id,
            self._writer,
            self,
            clock=environment.now,
            schedule=self._replicas_woken,
            transmit=self._transmit,
            timing=timing,
            rng=environment.rng,
        )
        self.drivers: dict[tuple[str, int], GroupDriver] = {}
        self._by_group: dict[RaftGroup, GroupDriver] = {}
        self._slots: dict[str, Numbers] = {"metadata": even_slots(1)}
        self._meant: dict[str, Numbers] = {}  # group -> a slot map of nothing else
        directory = stores.directory
        self.snapshots = Snapshots(
            stores.state,
            MemoryStaging() if directory is None else FileStaging(directory / "snapshots", environment.beside),
            clock=environment.now,
            schedule=self._snapshots_woken,
            transmit=self._transmit_bulk,
            receives=self.replicas.groups.__contains__,
            broken=self.fail,
            rng=environment.rng,
        )
        self._snapshots_timer: Timer | None = None
        self.mover = Mover(self)
        self.controller = Controller(self)
        self._unproven: dict[int, _Unproven] = {}  # reads that wait until it is certain who leads
        self._stalled: dict[GroupDriver, None] = {}  # writes wait there until it is
        self._expiry: Timer | None = None
        self._proofs = 0
        self._dirty: dict[GroupDriver, None] = {}
        self._committed: dict[GroupDriver, None] = {}
        self._turn_scheduled = False
        self._in_turn = False
        self._pumping = False
        self._apply_scheduled = False
        self._waiting_items = 0  # submitted since the last turn
        self._timer: Timer | None = None
        self._timer_s = float("inf")
        self._log_bytes = 0  # appended since the last checkpoint
        self._checkpointing = False
        self._reply_bytes_max = min(config.limits.frame_bytes_max, FRAME_BYTES_MAX) - HEADER_BYTES
        self._reply_alone_bytes = reply_share(self._reply_bytes_max, 1, 1, 1)

    @classmethod
    async def open(
        cls,
        config: Config,
        *,
        stores: Stores | None = None,
        environment: Environment | None = None,
        locked: Callable[[], None] | None = None,
    ) -> Node:
        """Open the stores (or take these), call ``locked``, recover every group; a node without peers serves when this
        returns. Raises :class:`ServerError` where starting would lose data."""
        stores = stores or open_stores(config)
        try:
            if locked is not None:
                locked()
            node = cls(config, stores, environment or AsyncEnvironment())
        except BaseException:
            stores.close()
            raise
        try:
            node.start()
            if not config.cluster.seeds and not config.cluster.join:
                await node.serving()
        except BaseException as error:
            # What is scheduled already must not touch the stores any more, and nothing is flushed.
            node.failure = error if isinstance(error, ServerError) else ServerError("the start was given up")
            await node.close()
            raise
        return node

    # --- requests ----------------------------------------------------------------------------------------

    def submit(self, method: int, payload: bytes, done: Done) -> list[Work]:
        """Begin a request whose payload is still encoded. Never raises: what is wrong with it goes to ``done``.
        Returns what :meth:`cancel` takes."""
        row = METHODS.get(method)
        if row is None or row.code in BETWEEN_NODES:
            done(UnknownMethodError(f"no method {method:#06x}"))
            return []
        return self._attempt(row, row.decode_request, payload, len(payload), done)

    def submit_peer(self, method: int, payload: bytes, done: Done) -> None:
        """The same for another node, which may do what clients may not."""
        row = METHODS.get(method)
        if row is None:
            done(UnknownMethodError(f"no method {method:#06x}"))
        else:
            self._attempt(row, row.decode_request, payload, len(payload), done)

    def _attempt(
        self, method: Method[Any, Any], decode: Callable[[Any], m.Request[Any]], request: Any, size: int, done: Done
    ) -> list[Work]:
        try:
            return self._begin(method, decode(request), size, done)
        except MetadError as error:
            done(error)
        except StorageError as error:
            done(InternalError("the node's storage failed; its log says more"))
            self.fail(error)
        except Exception:
            logging.getLogger("metad").exception("a bug in %s", method.name)
            done(InternalError(f"{method.name} failed; the server's log says why"))
        return []

    def cancel(self, works: list[Work]) -> None:
        """What has not begun will not; the rest runs on. Either way the request is answered."""
        for work in works:
            work.cancelled = True

    async def call(
        self,
        method: Method[Body, Reply],
        body: Body,
        *,
        identity: m.Identity | None = None,
        deadline_ms: int = 0,
        size_bytes: int = 0,
    ) -> Reply:
        """The same from inside the process. ``size_bytes`` counts against the limit on requests in flight. Raises
        :class:`MetadError`."""
        answer: asyncio.Future[bytes | MetadError] = asyncio.get_running_loop().create_future()
        self.request(method, body, _set(answer), identity=identity, deadline_ms=deadline_ms, size_bytes=size_bytes)
        result = await answer
        if isinstance(result, MetadError):
            raise result
        return method.decode_reply(result)

    def request(
        self,
        method: Method[Body, Any],
        body: Body,
        done: Done,
        *,
        identity: m.Identity | None = None,
        deadline_ms: int = 0,
        size_bytes: int = 0,
    ) -> None:
        """The same with a callback."""
        self._attempt(method, _as_is, m.Request(deadline_ms, identity, body), size_bytes, done)

    def _begin(self, method: Method[Any, Any], request: m.Request[Any], size: int, done: Done) -> list[Work]:
        body = request.body
        if method.code in CONTROL:
            self._control(method, body, done)
            return []
        if self.failure is not None:
            raise UnknownOutcomeError("the node has stopped; its log says why")
        verb = VERBS[method.code]
        kind = verb.table.kind
        if method is GROUP_COMMAND:
            kind = body.kind
            if body.step == "sweep":
                self._sweep(body, done)
                return []
        slots = self._slots.get(kind)
        if slots is None:
            raise NotLeaderError("the cluster is being formed")
        items: Any = getattr(body, "items", ())
        if len(items) > m.BATCH_ITEMS_MAX:  # what comes over the wire was counted by its decoder already
            raise InvalidRequestError(f"{len(items)} items in one request, {m.BATCH_ITEMS_MAX} are allowed")
        if size > _CHECK_VALUES_FROM:
            _check_values(items)
        parts = verb.split(body, self._slots_meant(kind, request.group) if request.group else slots)
        held = size + _ITEM_BYTES * (len(items) if method is not KV_TRANSACT else _operations(items))
        if verb.read is not None:
            self._prove(verb, request, parts, held, done)
            return []
        if self.draining:
            raise DrainingError
        if not parts:
            done(encode(verb.merge(body, [])))
            return []
        self._hold(held)
        return self._send(verb, kind, request, parts, size, held, done)

    def _hold(self, held: int) -> None:
        """Count a request that is answered later. Raises OverloadedError."""
        # Alone, a request is always taken: however it is weighed, it fits.
        if self.in_flight_bytes and self.in_flight_bytes + held > self.config.limits.in_flight_bytes_max:
            raise OverloadedError(
                "too many request bytes in flight on this node", retry_after_ms=50, retry_jitter_ms=50
            )
        self.in_flight_bytes += held

    def _deadline_s(self, request: m.Request[Any]) -> float:
        return self.environment.now() + (request.deadline_ms or self.config.limits.deadline_default_ms) / 1000

    def _slots_meant(self, kind: str, group: str) -> Numbers:
        """A slot map by which this group holds everything: whether it does is for its own state to say, which also
        knows what it did before. Another group would do a retry again."""
        meant = self._meant.get(group)
        if meant is None:
            ordinal = group.removeprefix(f"{kind}-")
            if self.map is None or group not in [f"{g.kind}-{g.ordinal}" for g in self.map.groups] or ordinal == group:
                # Its own map may be the old one, and "stale" is for the group to say, which knows what it has done.
                raise NotLeaderError(f"this node knows no group {group} of kind {kind}")
            meant = self._meant[group] = column([int(ordinal)] * SLOTS)
        return meant

    # --- reads -------------------------------------------------------------------------------------------

    def _prove(
        self, verb: Verb[Any, Any], request: m.Request[Any], parts: dict[int, Rows], held: int, done: Done
    ) -> None:
        """Read once it is certain that nobody else leads any of the groups."""
        body = request.body
        groups = [self._driver(verb.table.kind, ordinal).group for ordinal in parts]
        for group in groups:
            if not group.may_read():
                break
        else:
            done(self._read(verb, body, parts))
            return
        for group in groups:
            if not group.is_leader:
                raise self._by_group[group].not_leader()
        self._hold(held)
        self._proofs += 1
        number, missing = self._proofs, len(groups)
        self._unproven[number] = _Unproven(done, held, self._deadline_s(request))
        self._expire_later()

        def proven(ok: bool) -> None:
            nonlocal missing
            if number not in self._unproven:
                return  # answered: another group was lost, or the node
            missing -= 1
            if ok and missing:
                return
            if ok:
                self._answer_unproven(number, self._read_late(verb, body, parts))
            else:
                self._answer_unproven(number, NotLeaderError("the leader changed before the read; nothing was done"))

        for group in groups:
            group.read(proven)

    def _answer_unproven(self, number: int, answer: bytes | MetadError) -> None:
        waiting = self._unproven.pop(number)
        self.in_flight_bytes -= waiting.held
        waiting.done(answer)

    def _expire_later(self) -> None:
        if self._expiry is None:
            self._expiry = self.environment.call_at(self.environment.now() + _EXPIRE_S, self._expire)

    def _expire(self) -> None:
        """Answer what waits for a leader to be sure of itself, past its deadline."""
        self._expiry = None
        if self.failure is not None:
            return
        now_s = self.environment.now()
        for number in [number for number, waiting in self._unproven.items() if waiting.deadline_s < now_s]:
            self._answer_unproven(number, DeadlineExceededError("the deadline passed before the read was begun"))
        for driver in [driver for driver in self._stalled if driver.expire(now_s)]:
            del self._stalled[driver]
        if self._unproven or self._stalled:
            self._expire_later()

    def _read_late(self, verb: Verb[Any, Any], body: Any, parts: dict[int, Rows]) -> bytes | MetadError:
        try:
            return self._read(verb, body, parts)
        except MetadError as error:
            return error
        except StorageError as error:
            self.fail(error)
            return InternalError("the node's storage failed; its log says more")
        except Exception:
            logging.getLogger("metad").exception("a bug in %s", verb.method.name)
            return InternalError(f"{verb.method.name} failed; the server's log says why")

    def _read(self, verb: Verb[Any, Any], body: Any, parts: dict[int, Rows]) -> bytes:
        assert verb.read is not None
        results: list[tuple[Rows, Any]] = []
        for ordinal, rows in parts.items():
            part = self._part(verb, body, rows, len(parts))
            machine = self._driver(verb.table.kind, ordinal).machine
            machine.check_held(rows)
            results.append((rows, verb.read(machine.reader, part)))
        reply = encode(verb.merge(body, results))
        if len(reply) > self._reply_bytes_max:  # keys of 4 KiB can outweigh the records
            raise InvalidRequestError("the reply would not fit a frame: ask for fewer records at once")
        return reply

    # --- writes ------------------------------------------------------------------------------------------

    def _send(
        self,
        verb: Verb[Any, Any],
        kind: str,
        request: m.Request[Any],
        parts: dict[int, Rows],
        size: int,
        held: int,
        done: Done,
    ) -> list[Work]:
        body = request.body
        now_s, deadline_s = self.environment.now(), self._deadline_s(request)
        works: list[Work] = []
        gather = _Gather(self, verb, body, len(parts), held, done)
        items = 0
        for ordinal, rows in parts.items():
            driver = self.drivers.get((kind, ordinal))
            answer = gather.answer_alone if len(parts) == 1 else gather.part(rows)
            if driver is None:
                answer(self._elsewhere(kind, ordinal))
                continue
            items += len(rows)
            work = Work(
                self._part(verb, body, rows, len(parts)), request.identity, deadline_s, size // len(parts), answer
            )
            works.append(work)
            driver.submit(work, now_s)
            self._dirty[driver] = None
        self._waiting_items += items
        if self._waiting_items >= _AT_ONCE_ITEMS and not self._in_turn:
            self._turn()
        elif not self._writer.busy:
            self._schedule_turn()
        return works

    def _part(self, verb: Verb[Any, Any], body: Any, rows: Rows, parts: int) -> Command[Any]:
        """One group's part of a request, and its share of the frame that will carry the reply."""
        if parts == 1:
            return Command(verb.method, body, rows, self._reply_alone_bytes)
        items = len(getattr(body, "items", ()))
        return Command(verb.method, body, rows, reply_share(self._reply_bytes_max, len(rows), items, parts))

    def _driver(self, kind: str, ordinal: int) -> GroupDriver:
        driver = self.drivers.get((kind, ordinal))
        if driver is None:
            raise self._elsewhere(kind, ordinal)
        return driver

    def _elsewhere(self, kind: str, ordinal: int) -> NotLeaderError:
        record = (
            next((g for g in self.map.groups if (g.kind, g.ordinal) == (kind, ordinal)), None) if self.map else None
        )
        leader = "" if record is None else record.preferred
        return NotLeaderError(f"this node has no replica of {kind}-{ordinal}", leader=leader)

    # --- steps of slot moves -----------------------------------------------------------------------------

    async def ask_here(self, command: GroupCommand) -> None:
        """See :class:`metad.control.mover.Host`."""
        await self.call(GROUP_COMMAND, command)

    async def ask_group(self, command: GroupCommand) -> None:
        """See :class:`metad.control.mover.Host`."""
        deadline_s = self.environment.now() + _STEP_S
        target = ""
        while True:
            try:
                await self._ask_group(command, target)
                return
            except (NotLeaderError, OverloadedError) as error:  # nothing was done
                if self.environment.now() >= deadline_s:
                    raise
                target = error.leader
                await asyncio.sleep(0.02)

    async def _ask_group(self, command: GroupCommand, target: str) -> None:
        driver = self.drivers.get((command.kind, command.ordinal))
        if driver is not None and (driver.group.is_leader or not target):
            target = driver.group.leader or ""
        if not target:
            target = self._elsewhere(command.kind, command.ordinal).leader
        if target == self.config.node_id:
            await self.call(GROUP_COMMAND, command)
        else:
            await self._ask_peer(target, GROUP_COMMAND, command)

    async def ask_metadata(self, body: Moved) -> None:
        """See :class:`metad.control.mover.Host`."""
        for _ in range(100):
            leader = self.drivers[_METADATA].group.leader
            try:
                if leader == self.config.node_id:
                    await self.call(CLUSTER_MOVED, body)
                    return
                if leader is not None:
                    await self._ask_peer(leader, CLUSTER_MOVED, body)
                    return
            except (NotLeaderError, ConflictError):  # another change of the map was quicker
                pass
            await asyncio.sleep(0.02)
        raise NotLeaderError("nobody decides about the cluster")

    async def _ask_peer(self, peer: str, method: Method[Any, Any], body: Any) -> None:
        answer: asyncio.Future[bytes | MetadError] = asyncio.get_running_loop().create_future()
        self.call_peer(peer, method.code, method.encode_request(body), _set(answer))
        try:
            async with asyncio.timeout(_STEP_S):
                result = await answer
        except TimeoutError:
            raise UnknownOutcomeError(f"{peer} has not answered in time") from None
        if isinstance(result, MetadError):
            raise result

    def _sweep(self, body: GroupCommand, done: Done) -> None:
        driver = self._driver(body.kind, body.ordinal)
        if not driver.group.ready:
            raise driver.not_leader()

        self.mover.sweep(body, lambda error: done(error or encode(m.WriteReply([], []))))

    # --- what the node itself answers --------------------------------------------------------------------

    def _control(self, method: Method[Any, Any], body: Any, done: Done) -> None:
        if method is STATUS:
            done(encode(self.status()))
        elif method is CLUSTER_MAP:
            done(encode(self.map_reply(body)))
        elif self.failure is not None:
            raise UnknownOutcomeError("the node has stopped; its log says why")
        else:
            self.controller.handle(method, body, done)

    def map_reply(self, body: MapRequest) -> MapReply:
        """The cluster map, and who leads what."""
        known = self.map
        leaders = {driver.group.name: driver.group.leader or "" for driver in self.drivers.values()}
        version = 0 if known is None else known.version
        return MapReply(version, known if version > body.version else None, leaders)

    def status(self) -> m.StatusReply:
        """How this node is."""
        usage = resource.getrusage(resource.RUSAGE_SELF)
        return m.StatusReply(
            node_id=self.identity.node_id,
            cluster_id=self.identity.cluster_id,
            version=__version__,
            pid=os.getpid(),
            uptime_ms=int((time.monotonic() - self._started_s) * 1000),
            cpu_us=int((usage.ru_utime + usage.ru_stime) * 1e6),
            rss_bytes=_rss_bytes(),
            fsync=self.config.fsync,
            replicas=max((len(d.group.configuration.voters) for d in self.drivers.values()), default=0),
            connections=self.connections,
            in_flight_bytes=self.in_flight_bytes,
            entries=self._writer.entries,
            syncs=self._writer.syncs,
            groups=[
                m.GroupStatus(
                    driver.group.name,
                    kind,
                    len(slots_in(driver.machine.holding.slots)),
                    driver.machine.applied,
                    driver.group.log.base_index + 1,
                    driver.group.log.last_index,
                    driver.group.log.bytes,
                    ROLES[driver.group.role],
                    driver.group.leader or "",
                    driver.group.term,
                    driver.group.commit,
                    list(driver.group.configuration.voters),
                    list(driver.group.configuration.learners),
                    driver.group.log.configuration_index,
                )
                for (kind, ordinal), driver in sorted(self.drivers.items())
            ],
            region=self.config.cluster.region,
            links=self.links(),
        )

    # --- the loop's turn ---------------------------------------------------------------------------------

    def _schedule_turn(self) -> None:
        if not self._turn_scheduled:
            self._turn_scheduled = True
            self.environment.call_soon(self._scheduled_turn)

    def _replicas_woken(self) -> None:
        if not self._pumping:  # or their turn comes right now
            self._schedule_turn()

    def _scheduled_turn(self) -> None:
        self._turn_scheduled = False
        self._turn()

    def _turn(self) -> None:
        if self.failure is not None:
            return
        self._waiting_items = 0
        dirty, self._dirty = self._dirty, {}
        self._in_turn = self._pumping = True
        again = False
        try:
            now_s = self.environment.now()
            due_s = self._pump(dirty, now_s)
            self._pumping = False
            if due_s <= now_s:
                # One entry per group and turn: the disk works on it, and its answers go out, while the next is made.
                again = True
                due_s = float("inf")
            replicas_s = self.replicas.turn(now_s)
            if replicas_s <= now_s:
                again = True
            else:
                due_s = min(due_s, replicas_s)
            self._arm(due_s)
        except Exception as error:  # noqa: BLE001 - logged where it ends
            self.stop_for_bug(error)
        finally:
            self._in_turn = self._pumping = False
        if again:
            self._schedule_turn()
        if self._log_bytes >= self.config.storage.log_retained_bytes and not self._checkpointing:
            self.checkpoint()

    def _pump(self, drivers: dict[GroupDriver, None], now_s: float) -> float:
        """Have the groups make entries of what waits; when to look again."""
        due_s = float("inf")
        now_ms = self.environment.wall_ms()
        for driver in drivers:
            before = driver.group.log.bytes
            again_s = driver.pump(now_s, now_ms)
            self._log_bytes += driver.group.log.bytes - before
            if again_s is not None:
                due_s = min(due_s, again_s)
                self._dirty[driver] = None
            elif driver.stalled:
                self._stalled[driver] = None
                self._expire_later()
            if driver.machine.unexpected is not None:
                error, driver.machine.unexpected = driver.machine.unexpected, None
                if isinstance(error, StorageError):
                    self.fail(error)
                    return due_s
                logging.getLogger("metad").error("a bug in %s", driver.group.name, exc_info=error)
        return due_s

    def _arm(self, due_s: float) -> None:
        if due_s == self._timer_s:
            return
        if self._timer is not None:
            if self._timer_s <= due_s and self._timer_s > self.environment.now():
                return  # it comes earlier, and looks again then
            self._timer.cancel()
            self._timer = None
        self._timer_s = due_s
        if due_s < float("inf"):
            self._timer = self.environment.call_at(due_s, self._due)

    def _due(self) -> None:
        late_s = self.environment.now() - self._timer_s
        self._timer, self._timer_s = None, float("inf")
        if late_s > self.replicas.timing.heartbeat_s:
            self.replicas.overslept()
        self._turn()

    def _apply(self) -> None:
        """Apply the oldest of what is committed and answer it; the rest in the turns that follow at once, so that
        clients work on the first answers while the next are made."""
        self._apply_scheduled = False
        if self.failure is not None:
            # What was committed last may be missing from the state. Nothing may be applied behind it, for the applied
            # index would then claim what is not there; the next start replays it from the log.
            return
        if not self._committed:
            if self._dirty:  # what queued while the disk was busy with something else
                self._turn()
            return
        staged: list[GroupDriver] = []
        batches: list[Writes] = []
        items = 0
        try:
            while self._committed and items < _APPLY_ITEMS:
                driver = next(iter(self._committed))
                added, size = driver.stage(batches, _APPLY_ITEMS - items)
                self._log_bytes += size
                items += max(added, 1)
                staged.append(driver)
                if driver.machine.applied < driver.group.applicable:
                    break
                del self._committed[driver]
            self._stores.state.write(*batches)
            for driver in staged:
                driver.finish()
                self._dirty[driver] = None
                if driver.machine.map_changed:
                    self._map_changed(driver)
        except StorageError as error:
            self.fail(error)
            return
        except Exception as error:  # noqa: BLE001 - logged where it ends
            self.stop_for_bug(error)
            return
        if self._committed:
            self._schedule_apply()
        self._turn()

    def _schedule_apply(self) -> None:
        if not self._apply_scheduled:
            self._apply_scheduled = True
            self.environment.call_soon(self._apply)

    def stop_for_bug(self, error: BaseException) -> None:
        """A broken invariant: going on could lose or invent data, and the next start begins from what is on disk."""
        logging.getLogger("metad").error("a bug in the node", exc_info=error)
        self.fail(ServerError(f"stopped by a bug, see the log: {type(error).__name__}: {error}"))

    # --- what the replicas report ------------------------------------------------------------------------

    def committed(self, group: RaftGroup) -> None:
        """See :class:`metad.raft.replicas.Observer`."""
        driver = self._by_group.get(group)
        # Or it was closed, or a snapshot is being installed: then it is told again.
        if driver is not None and not driver.installing:
            self._committed[driver] = None
            self._schedule_apply()

    def role_changed(self, group: RaftGroup) -> None:
        """See :class:`metad.raft.replicas.Observer`."""
        driver = self._by_group.get(group)
        if driver is None:  # it is being opened
            return
        if not group.is_leader:
            driver.demoted()
        else:
            self._dirty[driver] = None
            self._schedule_turn()
        if group.ready:
            event("leading", logging.DEBUG, group=group.name, term=group.term)
        self.environment.call_soon(self._changed)

    def configured(self, group: RaftGroup) -> None:
        """See :class:`metad.raft.replicas.Observer`."""
        self.environment.call_soon(self._changed)

    def snapshot_wanted(self, group: RaftGroup, peer: str) -> None:
        """See :class:`metad.raft.replicas.Observer`."""
        event("snapshot wanted", group=group.name, peer=peer)
        self.snapshots.wanted(group, peer)

    def install_snapshot(self, group: RaftGroup, message: Snapshot) -> None:
        """See :class:`metad.raft.replicas.Observer`."""
        driver = self._by_group[group]
        parts = None if driver.installing else self.snapshots.install(group, message)
        if parts is None:
            return
        driver.installing = True
        self._committed.pop(driver, None)  # it would hold up the others
        started_s = self.environment.now()
        state = self._stores.state

        def done(error: BaseException | None) -> None:
            self.snapshots.installed(group, message)
            if self.failure is not None:
                return
            if isinstance(error, ServerError):
                self.fail(error)
            elif error is not None:
                self.stop_for_bug(error)
            else:
                self._owners.clear()
                machine = self._machine(group.name, group.prefix)
                machine.dedupe.load()
                driver.installed(machine)
                group.snapshot_installed(message)
                if driver.group.kind == "metadata":
                    self._load_map()
                event(
                    "snapshot installed",
                    group=group.name,
                    index=message.index,
                    seconds=round(self.environment.now() - started_s, 3),
                )
                self.environment.call_soon(self._changed)

        self.environment.beside(partial(replace_state, state, group.prefix, message, parts), done, long=True)

    def _tick_snapshots(self) -> None:
        self._snapshots_timer = None
        if self.failure is not None:
            return
        try:
            due_s = self.snapshots.tick(self.environment.now())
        except Exception as error:  # noqa: BLE001 - logged where it ends
            self.stop_for_bug(error)
            return
        if due_s < float("inf") and self._snapshots_timer is None:
            self._snapshots_timer = self.environment.call_at(due_s, self._tick_snapshots)

    def _snapshots_woken(self) -> None:
        if self._snapshots_timer is not None:
            self._snapshots_timer.cancel()
        self._snapshots_timer = self.environment.call_at(self.environment.now(), self._tick_snapshots)

    def unsafe(self, error: UnsafeStateError) -> None:
        """See :class:`metad.raft.replicas.Observer`."""
        self.stop_for_bug(error)

    def _changed(self) -> None:
        if self.failure is None:
            self.controller.reconcile()
            for listener in self.on_change:
                listener()

    # --- peers -------------------------------------------------------------------------------------------

    def peer_connected(self, peer: str) -> None:
        """Payloads reach this node, in order."""
        self.replicas.peer_connected(peer)
        self._schedule_turn()

    def peer_lost(self, peer: str) -> None:
        """They do not any more."""
        self.replicas.peer_lost(peer)
        self.snapshots.peer_lost(peer)
        self._schedule_turn()

    def peer_received(self, peer: str, payload: bytes) -> None:
        """A payload of Raft messages. Raises PeerProtocolError where it is none."""
        if self.failure is not None:
            return
        try:
            self.replicas.receive(peer, payload)
        except PeerProtocolError:
            raise
        except StorageError as error:
            self.fail(error)
        except Exception as error:  # noqa: BLE001 - logged where it ends
            self.stop_for_bug(error)

    def snapshot_received(self, peer: str, payload: bytes) -> None:
        """A payload of the snapshot channel. Raises PeerProtocolError where it is none."""
        if self.failure is None:
            self.snapshots.receive(peer, payload)

    def _transmit(self, peer: str, payload: bytes) -> None:
        self.transmit(peer, payload)

    def _transmit_bulk(self, peer: str, payload: bytes) -> None:
        self.transmit_bulk(peer, payload)

    # --- groups ------------------------------------------------------------------------------------------

    def _machine(self, name: str, prefix: bytes) -> Machine:
        initial = ALL_SLOTS
        if self.map is not None:
            for record in self.map.groups:
                if group_prefix(record.kind, record.ordinal) == prefix and record.kind != "metadata":
                    initial = record.initial_slots
        return Machine(
            name,
            prefix,
            self._stores.state,
            self._owners,
            self._row_caches.open(prefix),
            self.config.dedupe,
            initial_slots=initial,
        )

    def _open_group(self, kind: str, ordinal: int, initial: Configuration) -> GroupDriver:
        name, prefix = f"{kind}-{ordinal}", group_prefix(kind, ordinal)
        log = RaftLog(
            prefix,
            name,
            self._stores.log,
            self._writer,
            initial=initial,
            cache_bytes=self.config.raft.log_cache_bytes,
        )
        if log.removed:
            self._drop_state(prefix, sync=True)
            log.come_back()
        elif restore_log(log, self._stores.state):
            event("snapshot resumed", group=name, index=log.base_index)
        machine = self._machine(name, prefix)
        if log.base_index > machine.applied:
            raise DamagedStoreError(
                f"group {name}: the state ends at entry {machine.applied} but the log begins at "
                f"{log.base_index + 1}: entries between them are lost. Restore the data directory from a backup."
            )
        if log.last_index < machine.applied:
            raise DamagedStoreError(
                f"group {name}: the state has applied entry {machine.applied} but the log ends at {log.last_index}: "
                "the log has lost its tail. Restore the data directory from a backup."
            )
        machine.dedupe.load()
        group = self.replicas.open(name, kind, log, applied=machine.applied)
        driver = GroupDriver(machine, group, window=self._window, pipeline_max=self.config.commit.pipeline_entries_max)
        self.drivers[kind, ordinal] = driver
        self._by_group[group] = driver
        if group.applied < group.applicable:
            self.committed(group)
        return driver

    def close_group(self, driver: GroupDriver) -> None:
        """The node is no replica of this group any more, which is committed: forget it, but for what must never be."""
        group = driver.group
        prefix, term, vote = group.prefix, group.term, group.vote
        event("replica removed", group=group.name, term=term)
        del self.drivers[group.kind, int(group.name.rpartition("-")[2])]
        del self._by_group[group]
        for drivers in (self._dirty, self._committed, self._stalled):
            drivers.pop(driver, None)
        driver.abandon(f"this node has no replica of {group.name} any more")
        self.replicas.close(group)
        self.snapshots.group_closed(group)
        self._owners.clear()

        def dropped() -> None:
            if prefix not in self.replicas.groups and self.failure is None:  # it is not back already
                self._drop_state(prefix, sync=False)

        group.log.remove(term, vote, dropped)
        self._writer.flush()

    def _drop_state(self, prefix: bytes, *, sync: bool) -> None:
        state = self._stores.state
        if sync:
            self._stores.log.sync()  # that the log is dropped, before what it needs is
        state.write({}, delete_ranges=[(prefix, after_prefix(prefix))])
        if sync:
            state.sync()

    def _map_changed(self, driver: GroupDriver) -> None:
        driver.machine.map_changed = False
        self._load_map()
        self.environment.call_soon(self._changed)

    def _load_map(self) -> None:
        """Take over what metadata-0 says: open the groups that are to be here, route by its slots."""
        known = self.map = cluster.read_map(self._stores.state)
        if known is None:
            return
        for record in known.groups:
            key, me = (record.kind, record.ordinal), self.config.node_id
            if key in self.drivers:
                continue
            # A replica that is here stays until its group has let it go, whatever the map wishes for: it may be needed
            # to elect a leader. The first configuration is for who never had one.
            here = was_here(self._stores.log, group_prefix(*key))
            if here is False and me in record.initial:
                self._open_group(*key, Configuration(tuple(record.initial)))
            elif here or me in (*record.replicas, *record.learners):
                self._open_group(*key, Configuration(()))
        self._slots |= {kind: slots_of(packed) for kind, packed in known.slots.items()}

    # --- life --------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Recover every group and begin. Raises DamagedStoreError where log or state lacks something."""
        started_s = time.monotonic()
        # A killed process may have left entries in the system's cache only. The state must never get ahead of what is
        # durable, nor may a read show what a power loss can still take back.
        self._stores.log.sync()
        self._open_group(*_METADATA, self.controller.founders())
        self._load_map()
        event(
            "recovered",
            groups=len(self.drivers),
            entries_to_replay=sum(d.group.log.last_index - d.machine.applied for d in self.drivers.values()),
            state_rebuilt=self._stores.rebuild,
            seconds=round(time.monotonic() - started_s, 3),
        )
        self._schedule_turn()
        self.controller.start()

    def is_serving(self) -> bool:
        """Whether the cluster is formed, and every group with a replica here has a leader that can work."""
        return self.map is not None and all(
            driver.group.ready if driver.group.is_leader else driver.group.leader is not None
            for driver in self.drivers.values()
        )

    async def serving(self) -> None:
        """Wait for :meth:`is_serving`. Raises the error the node failed with meanwhile."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def look() -> None:
            if not waiter.done() and (self.failure is not None or self.is_serving()):
                waiter.set_result(None)

        def failed(_: ServerError) -> None:
            look()

        self.on_change.append(look)
        self.on_failure.append(failed)
        try:
            look()
            await waiter
        finally:
            self.on_change.remove(look)
            self.on_failure.remove(failed)
        if self.failure is not None:
            raise self.failure

    async def run(self) -> None:
        """Wait until the node fails; raises why."""
        failed: asyncio.Future[ServerError] = asyncio.get_running_loop().create_future()

        def report(error: ServerError) -> None:
            if not failed.done():
                failed.set_result(error)

        self.on_failure.append(report)
        try:
            raise self.failure or await failed
        finally:
            self.on_failure.remove(report)

    def checkpoint(self, then: Callable[[], None] | None = None) -> None:
        """Flush the state, then drop what of the log is in it."""
        self._checkpointing = True
        applied = {driver: driver.machine.applied for driver in self.drivers.values()}
        grown, self._log_bytes = self._log_bytes, 0
        started_s = time.monotonic()

        def done(error: BaseException | None) -> None:
            self._checkpointing = False
            if isinstance(error, ServerError):
                self.fail(error)
            elif error is not None:
                self.stop_for_bug(error if isinstance(error, Exception) else RuntimeError(str(error)))
            elif self.failure is None:
                for driver, through in applied.items():
                    held = self.snapshots.held_index(driver.group)
                    driver.group.compact(through if held is None else min(through, held))
                self._schedule_turn()
                event("checkpoint", logging.DEBUG, log_bytes=grown, seconds=round(time.monotonic() - started_s, 3))
            if then is not None:
                then()

        self.environment.beside(self._stores.state.sync, done)

    def fail(self, error: ServerError) -> None:
        """Stop for good: nothing in flight can be told to have happened or not."""
        if self.failure is not None:
            return
        event("node failed", logging.ERROR, error=str(error))
        self.failure = error
        self._abandon("the node has stopped; its log says why")
        for listener in self.on_failure:
            listener(error)

    def _abandon(self, reason: str) -> None:
        """Answer everything that waits."""
        for driver in self.drivers.values():
            driver.abandon(reason)
        for number in list(self._unproven):
            self._answer_unproven(number, UnknownOutcomeError(reason))

    async def drain(self, timeout_s: float) -> bool:
        """Take no more writes and wait for those taken. True if all were answered in time."""
        self.draining = True
        deadline_s = self.environment.now() + timeout_s
        while not all(driver.idle for driver in self.drivers.values()):
            if self.environment.now() >= deadline_s:
                return False
            await asyncio.sleep(0.005)
        return True

    async def close(self) -> None:
        """Flush the state, so that the next start has nothing to replay, and release the stores."""
        self.controller.stop()
        self.mover.stop()
        if self._timer is not None:
            self._timer.cancel()
        if self.failure is None:
            flushed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self.checkpoint(lambda: flushed.set_result(None))
            await flushed
        if self.failure is None:
            self._writer.flush()
        for timer in (self._snapshots_timer, self._expiry):
            if timer is not None:
                timer.cancel()
        self._writer.close()
        self.environment.close()
        self.snapshots.close()
        self._abandon("the node was closed")
        if self.failure is None:
            self.closed = True
            self.failure = ServerError("the node was closed")
        try:
            self._stores.close()
        except StorageError as error:
            event("the stores did not close", logging.ERROR, error=str(error))


class _Unproven(NamedTuple):
    """A read that waits until it is certain who leads."""

    done: Done
    held: int
    deadline_s: float


class _Gather:
    """Puts the parts of one request together again."""

    __slots__ = ("_body", "_done", "_missing", "_node", "_parts", "_size", "_verb")

    def __init__(self, node: Node, verb: Verb[Any, Any], body: Any, parts: int, size: int, done: Done) -> None:
        self._node = node
        self._verb = verb
        self._body = body
        self._missing = parts
        self._size = size
        self._done = done
        self._parts: list[tuple[Rows, tuple[Any, bytes] | MetadError]] = []

    def answer_alone(self, outcome: tuple[Any, bytes] | MetadError) -> None:
        """The only part is the whole."""
        self._node.in_flight_bytes -= self._size
        self._done(outcome if isinstance(outcome, MetadError) else outcome[1])

    def part(self, rows: Rows) -> Callable[[tuple[Any, bytes] | MetadError], None]:
        """Takes the answer to these rows."""

        def answer(outcome: tuple[Any, bytes] | MetadError) -> None:
            self._parts.append((rows, outcome))
            self._missing -= 1
            if not self._missing:
                self._node.in_flight_bytes -= self._size
                self._done(self._merged())

        return answer

    def _merged(self) -> bytes | MetadError:
        errors = [outcome for _, outcome in self._parts if isinstance(outcome, MetadError)]
        if len(errors) == len(self._parts):
            # "Nothing was done" must not be said for a request of which any part may have happened.
            return next((error for error in errors if not error.outcome_known), errors[0])
        # Some groups did their part: the others' items fail one by one.
        refuse = self._verb.refuse
        assert refuse is not None  # only verbs that write have parts in flight
        merged = [
            (rows, refuse(self._body, rows, outcome) if isinstance(outcome, MetadError) else outcome[0])
            for rows, outcome in self._parts
        ]
        try:
            return encode(self._verb.merge(self._body, merged))
        except ValueError:
            # A group answered a retry with what it had done for other rows as well: their slots have moved since.
            return UnknownOutcomeError("parts of this were done where the slots were before")


def _operations(transactions: list[m.KvTransaction]) -> int:
    return sum(len(t.compares) + len(t.then) + len(t.otherwise) + len(t.reads) + 1 for t in transactions)


def _nowhere(peer: str, payload: bytes) -> None:
    """Where payloads go while there are no connections."""


def _nobody(peer: str, method: int, payload: bytes, done: Done) -> None:
    done(NotLeaderError("this node is connected to no other"))


def _as_is(request: m.Request[Any]) -> m.Request[Any]:
    return request


def _set(answer: asyncio.Future[bytes | MetadError]) -> Done:
    def done(result: bytes | MetadError) -> None:
        if not answer.done():
            answer.set_result(result)

    return done


def _check_values(items: Any) -> None:
    for position, item in enumerate(items):
        if isinstance(item, m.KvTransaction):
            sizes = [len(o.value) for o in (*item.then, *item.otherwise) if o.value is not None]
        else:
            properties = getattr(item, "properties", None)
            value = getattr(item, "value", None) if properties is None else properties.payload
            sizes = [len(value) if value is not None else len(getattr(item, "metadata", "").encode())]
        if max(sizes, default=0) > m.VALUE_BYTES_MAX:
            raise InvalidRequestError(
                f"item {position}: its value takes {max(sizes)} bytes, {m.VALUE_BYTES_MAX} are allowed"
            )


def _rss_bytes() -> int:
    try:
        with open("/proc/self/statm") as statm:
            return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0
