"""One node: takes requests, sends each part to its group, puts the answers together; opens, recovers and closes.

The event loop's turn: requests queue at their groups; once per turn every group with work makes its entries
(:meth:`Node._turn`), all of which go into one log write. When an fsync returns, everything it made durable is applied
in one batch and answered (:meth:`Node._apply`), and what queued meanwhile is next.
"""

from __future__ import annotations

import asyncio
import logging
import os
import resource
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from metad_wire import messages as m
from metad_wire.errors import (
    DrainingError,
    InternalError,
    InvalidRequestError,
    MetadError,
    OverloadedError,
    UnknownMethodError,
    UnknownOutcomeError,
)
from metad_wire.frame import FRAME_BYTES_MAX, HEADER_BYTES
from metad_wire.methods import KV_TRANSACT, METHODS, STATUS, Body, Method, Reply, encode
from metad_wire.policy import BatchWindow

from .. import __version__
from ..config import Config
from ..errors import DamagedStoreError, ServerError, StorageError
from ..logs import event
from ..raft.single import SingleReplica
from ..raft.writer import LogWriter
from ..routing.slots import even_slots
from ..state.limits import reply_share
from ..state.machine import Machine
from ..state.owners import OwnerCache
from ..state.registry import VERBS
from ..state.rows import Numbers, Rows
from ..state.tables import Command, Verb
from ..state.view import Writes
from .driver import GroupDriver, Work
from .stores import Stores, open_stores

Done = Callable[[bytes | MetadError], None]
"""Takes the encoded reply, or why there is none. Called exactly once."""

_REPLAY_BYTES = 4 * 1024 * 1024  # of entries applied in one batch at recovery
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


class Node:
    """Everything of a server but its sockets. Use :meth:`open`, then :meth:`submit` or :meth:`call`."""

    def __init__(self, config: Config, stores: Stores) -> None:
        self.config = config
        self.identity = stores.identity
        self.connections = 0
        self.in_flight_bytes = 0
        self.failed: asyncio.Future[ServerError] = asyncio.get_running_loop().create_future()
        self.draining = False
        self._stores = stores
        self._loop = asyncio.get_running_loop()
        self._started_s = time.monotonic()
        self._writer = LogWriter(stores.log, fsync=config.fsync, failed=self.fail)
        self._writer.after_durable = self._apply
        self._owners = OwnerCache(config.storage.owner_cache_bytes)
        window = BatchWindow(
            items_max=config.commit.entry_items_max,
            bytes_max=config.commit.entry_bytes_max,
            linger_s=config.commit.linger_ms / 1000,
        )
        self._drivers: dict[str, list[GroupDriver]] = {}
        self._slots: dict[str, Numbers] = {}
        for kind, count in stores.identity.groups.items():
            self._slots[kind] = even_slots(count)
            self._drivers[kind] = []
            for ordinal in range(count):
                replica = SingleReplica(kind, ordinal, stores.log, self._writer)
                machine = Machine(replica.name, replica.prefix, stores.state, self._owners, config.dedupe)
                self._drivers[kind].append(
                    GroupDriver(
                        machine,
                        replica,
                        window=window,
                        pipeline_max=config.commit.pipeline_entries_max,
                        committed=self._committed_now,
                    )
                )
        self._all = [driver for drivers in self._drivers.values() for driver in drivers]
        self._dirty: dict[GroupDriver, None] = {}
        self._turn_scheduled = False
        self._waiting_items = 0  # submitted since the last turn
        self._linger: asyncio.TimerHandle | None = None
        self._committed: deque[tuple[GroupDriver, Any]] = deque()
        self._log_bytes = 0  # appended since the last checkpoint
        self._reply_bytes_max = min(config.limits.frame_bytes_max, FRAME_BYTES_MAX) - HEADER_BYTES
        self._reply_alone_bytes = reply_share(self._reply_bytes_max, 1, 1, 1)
        self._checkpoint_wanted = asyncio.Event()
        self._checkpoints = ThreadPoolExecutor(1, "metad-checkpoint")

    @classmethod
    async def open(
        cls, config: Config, *, stores: Stores | None = None, locked: Callable[[], None] | None = None
    ) -> Node:
        """Open the stores (or take these), call ``locked``, recover every group. Raises :class:`ServerError` where
        starting would lose data."""
        stores = stores or open_stores(config)
        try:
            if locked is not None:
                locked()
            node = cls(config, stores)
            node._recover()
        except BaseException:
            stores.close()
            raise
        node._writer.start()
        return node

    # --- requests ----------------------------------------------------------------------------------------

    def submit(self, method: int, payload: bytes, done: Done) -> list[Work]:
        """Begin a request whose payload is still encoded. Never raises: what is wrong with it goes to ``done``.
        Returns what :meth:`cancel` takes."""
        row = METHODS.get(method)
        if row is None:
            done(UnknownMethodError(f"no method {method:#06x}"))
            return []
        return self._attempt(row, row.decode_request, payload, len(payload), done)

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
        answer: asyncio.Future[bytes | MetadError] = self._loop.create_future()
        self._attempt(method, _as_is, m.Request(deadline_ms, identity, body), size_bytes, _set(answer))
        result = await answer
        if isinstance(result, MetadError):
            raise result
        return method.decode_reply(result)

    def _begin(self, method: Method[Any, Any], request: m.Request[Any], size: int, done: Done) -> list[Work]:
        if method is STATUS:
            done(encode(self.status()))
            return []
        if self.failed.done():
            raise UnknownOutcomeError("the node has stopped; its log says why")
        body = request.body
        verb = VERBS[method.code]
        items: Any = getattr(body, "items", ())
        if len(items) > m.BATCH_ITEMS_MAX:  # what comes over the wire was counted by its decoder already
            raise InvalidRequestError(f"{len(items)} items in one request, {m.BATCH_ITEMS_MAX} are allowed")
        if size > _CHECK_VALUES_FROM:
            _check_values(items)
        parts = verb.split(body, self._slots[verb.table.kind])
        if verb.read is not None:
            drivers = self._drivers[verb.table.kind]
            results: list[tuple[Rows, Any]] = []
            for ordinal, rows in parts.items():
                part = self._part(verb, body, rows, len(parts))
                results.append((rows, verb.read(drivers[ordinal].machine.reader, part)))
            reply = encode(verb.merge(body, results))
            if len(reply) > self._reply_bytes_max:  # keys of 4 KiB can outweigh the records
                raise InvalidRequestError("the reply would not fit a frame: ask for fewer records at once")
            done(reply)
            return []
        if self.draining:
            raise DrainingError
        # Alone, a request is always taken: however it is weighed, it fits.
        held = size + _ITEM_BYTES * (len(items) if method is not KV_TRANSACT else _operations(items))
        if self.in_flight_bytes and self.in_flight_bytes + held > self.config.limits.in_flight_bytes_max:
            raise OverloadedError(
                "too many request bytes in flight on this node", retry_after_ms=50, retry_jitter_ms=50
            )
        if not parts:
            done(encode(verb.merge(body, [])))
            return []
        self.in_flight_bytes += held
        return self._send(verb, request, parts, size, held, done)

    def _send(
        self,
        verb: Verb[Any, Any],
        request: m.Request[Any],
        parts: dict[int, Rows],
        size: int,
        held: int,
        done: Done,
    ) -> list[Work]:
        body, drivers = request.body, self._drivers[verb.table.kind]
        now_s = self._loop.time()
        deadline_s = now_s + (request.deadline_ms or self.config.limits.deadline_default_ms) / 1000
        works: list[Work] = []
        gather = _Gather(self, verb, body, len(parts), held, done)
        items = 0
        for ordinal, rows in parts.items():
            driver = drivers[ordinal]
            items += len(rows)
            work = Work(
                self._part(verb, body, rows, len(parts)),
                request.identity,
                deadline_s,
                size // len(parts),
                gather.answer_alone if len(parts) == 1 else gather.part(rows),
            )
            works.append(work)
            driver.submit(work, now_s)
            self._dirty[driver] = None
        self._waiting_items += items
        if self._waiting_items >= _AT_ONCE_ITEMS:
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
            replicas=1,
            connections=self.connections,
            in_flight_bytes=self.in_flight_bytes,
            entries=self._writer.entries,
            syncs=self._writer.syncs,
            groups=[
                m.GroupStatus(
                    driver.group.name,
                    driver.group.kind,
                    self._slots[driver.group.kind].tolist().count(ordinal),
                    driver.machine.applied,
                    driver.group.first_index,
                    driver.group.last_index,
                    driver.group.log_bytes,
                )
                for drivers in self._drivers.values()
                for ordinal, driver in enumerate(drivers)
            ],
        )

    # --- the loop's turn ---------------------------------------------------------------------------------

    def _schedule_turn(self) -> None:
        if not self._turn_scheduled:
            self._turn_scheduled = True
            self._loop.call_soon(self._scheduled_turn)

    def _scheduled_turn(self) -> None:
        self._turn_scheduled = False
        self._turn()

    def _turn(self) -> None:
        self._waiting_items = 0
        dirty, self._dirty = self._dirty, {}
        try:
            self._pump(dirty)
        except Exception as error:  # noqa: BLE001 - logged where it ends
            self._stop_for_bug(error)

    def _pump(self, drivers: dict[GroupDriver, None]) -> None:
        if self.failed.done():
            return
        now_s, now_ms = self._loop.time(), time.time_ns() // 1_000_000
        due_s: float | None = None
        for driver in drivers:
            before = driver.group.log_bytes
            again_s = driver.pump(now_s, now_ms)
            self._log_bytes += driver.group.log_bytes - before
            if again_s is not None:
                due_s = again_s if due_s is None else min(due_s, again_s)
                self._dirty[driver] = None
            if driver.machine.unexpected is not None:
                error, driver.machine.unexpected = driver.machine.unexpected, None
                if isinstance(error, StorageError):
                    self.fail(error)
                    return
                logging.getLogger("metad").error("a bug in %s", driver.group.name, exc_info=error)
        self._writer.flush()
        if due_s is not None:
            if due_s <= now_s:
                # One entry per group and turn: the disk works on it, and its answers go out, while the next is made.
                self._schedule_turn()
            elif self._linger is None:
                self._linger = self._loop.call_at(due_s, self._lingered)
        if self._log_bytes >= self.config.storage.log_retained_bytes:
            self._checkpoint_wanted.set()

    def _lingered(self) -> None:
        self._linger = None
        self._turn()

    def _committed_now(self, committed: tuple[GroupDriver, Any]) -> None:
        self._committed.append(committed)

    def _apply(self) -> None:
        """Apply the oldest of what is committed and answer it; the rest in the turns that follow at once, so that
        clients work on the first answers while the next are made."""
        if self.failed.done():
            # What was committed last may be missing from the state. Nothing may be applied behind it, for the applied
            # index would then claim what is not there; the next start replays it from the log.
            self._committed.clear()
        if not self._committed:
            return
        committed: list[tuple[GroupDriver, Any]] = []
        items = 0
        while self._committed and items < _APPLY_ITEMS:
            driver, entry = self._committed.popleft()
            committed.append((driver, entry))
            items += len(entry.effects)
        if self._committed:
            self._loop.call_soon(self._apply)
        batches: list[Writes] = []
        try:
            for driver, entry in committed:
                driver.stage(entry, batches)
            self._stores.state.write(*batches)
            for driver, entry in committed:
                driver.finish(entry)
                self._dirty[driver] = None
        except StorageError as error:
            self.fail(error)
            return
        except Exception as error:  # noqa: BLE001 - logged where it ends
            self._stop_for_bug(error)
            return
        self._turn()

    def _stop_for_bug(self, error: Exception) -> None:
        """A broken invariant: going on could lose or invent data, and the next start begins from what is on disk."""
        logging.getLogger("metad").error("a bug in the node", exc_info=error)
        self.fail(ServerError(f"stopped by a bug, see the log: {type(error).__name__}: {error}"))

    # --- life --------------------------------------------------------------------------------------------

    def _recover(self) -> None:
        """Apply what the log has and the state has not. Raises DamagedStoreError where either lacks something."""
        started_s = time.monotonic()
        # A killed process may have left entries in the system's cache only. The state must never get ahead of what is
        # durable, nor may a read show what a power loss can still take back.
        self._stores.log.sync()
        replayed = 0
        for driver in self._all:
            machine, group = driver.machine, driver.group
            if group.first_index > machine.applied + 1:
                raise DamagedStoreError(
                    f"group {group.name}: the state ends at entry {machine.applied} but the log begins at "
                    f"{group.first_index}: entries between them are lost. Restore the data directory from a backup."
                )
            if group.last_index < machine.applied:
                raise DamagedStoreError(
                    f"group {group.name}: the state has applied entry {machine.applied} but the log ends at "
                    f"{group.last_index}: the log has lost its tail. Restore the data directory from a backup."
                )
            machine.dedupe.load()
            replayed += self._replay(driver)
        event(
            "recovered",
            groups=len(self._all),
            entries_replayed=replayed,
            state_rebuilt=self._stores.rebuild,
            seconds=round(time.monotonic() - started_s, 3),
        )

    def _replay(self, driver: GroupDriver) -> int:
        machine, group = driver.machine, driver.group
        begin = machine.applied + 1
        batches: list[Writes] = []
        size = 0
        while machine.applied < group.last_index:
            for index, entry in group.read(machine.applied + 1, group.last_index + 1):
                machine.stage(index, machine.decode(index, entry), batches)
                size += len(entry)
                group.log_bytes += len(entry)
                if size >= _REPLAY_BYTES:
                    self._stores.state.write(*batches)
                    batches, size = [], 0
        self._stores.state.write(*batches)
        machine.staged()
        # Counted as if appended now, or a node that is killed again and again would never shorten its log.
        self._log_bytes += group.log_bytes
        return machine.applied - begin + 1

    async def run(self) -> None:
        """Flush the state and shorten the log whenever the log has grown enough. Runs until cancelled; returns by
        raising the error the node failed with."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._watch_failure())
            while True:
                await self._checkpoint_wanted.wait()
                self._checkpoint_wanted.clear()
                await self._checkpoint()

    async def _watch_failure(self) -> None:
        raise await asyncio.shield(self.failed)

    async def _checkpoint(self) -> None:
        if self.failed.done():
            return
        applied = {driver: driver.machine.applied for driver in self._all}
        grown, self._log_bytes = self._log_bytes, 0
        before = {driver: driver.group.log_bytes for driver in self._all}
        started_s = time.monotonic()
        try:
            await self._loop.run_in_executor(self._checkpoints, self._stores.state.sync)
            if self.failed.done():
                return  # an index in ``applied`` may be of an entry whose write failed
            for driver, through in applied.items():
                driver.group.truncate(through)
                driver.group.log_bytes -= before[driver]
        except StorageError as error:
            self.fail(error)
            return
        event("checkpoint", logging.DEBUG, log_bytes=grown, seconds=round(time.monotonic() - started_s, 3))

    def fail(self, error: ServerError) -> None:
        """Stop for good: nothing in flight can be told to have happened or not."""
        if self.failed.done():
            return
        event("node failed", logging.ERROR, error=str(error))
        self.failed.set_result(error)
        for driver in self._all:
            driver.abandon("the node has stopped; its log says why")

    async def drain(self, timeout_s: float) -> bool:
        """Take no more writes and wait for those taken. True if all were answered in time."""
        self.draining = True
        deadline_s = self._loop.time() + timeout_s
        while not all(driver.idle for driver in self._all):
            if self._loop.time() >= deadline_s:
                return False
            await asyncio.sleep(0.005)
        return True

    async def close(self) -> None:
        """Flush the state, so that the next start has nothing to replay, and release the stores."""
        if self._linger is not None:
            self._linger.cancel()
        if not self.failed.done():
            await self._checkpoint()
        self._writer.close()
        self._checkpoints.shutdown()
        for driver in self._all:
            driver.abandon("the node was closed")
        self._committed.clear()
        try:
            self._stores.close()
        except StorageError as error:
            self.fail(error)


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
        return encode(self._verb.merge(self._body, merged))


def _operations(transactions: list[m.KvTransaction]) -> int:
    return sum(len(t.compares) + len(t.then) + len(t.otherwise) + len(t.reads) + 1 for t in transactions)


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
