"""Moving slots from one group to another while both work. :mod:`metad.state.moving.slot_migration` has the steps.

The mover runs on the node that leads the source. It copies the slots' rows in key order and notes what is written
meanwhile (the *tail*); when the tail is short it seals the slots, sends the rest, has the target adopt them, and the
map say so. Between sealing and the map clients ask again: that is the only moment in which a write waits.

Whatever breaks off, the next mover begins again, or finishes: the groups' own logs say how far it came. The target
guards itself by the number of the attempt, which grows with the source's term. The source's steps are for the leader
that copies and nobody else: were they passed on to its successor, a tail could be sent that lacks what that one wrote.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator, Mapping
from functools import partial
from typing import Any, Protocol

from metad_wire import cluster as c
from metad_wire.cluster import MOVES_OF_A_MAP, ClusterMap, GroupCommand, GroupId, GroupReply, SlotMove
from metad_wire.errors import ConflictError, InternalError, MetadError, NotLeaderError
from metad_wire.tables import moving_rows

from .. import log_events
from ..logs import event
from ..state.cluster.fences import Fences
from ..state.cluster.tenant_ends import TenantEnds
from ..state.cluster.tenant_moves import TenantMoves
from ..state.core.entry import Entry
from ..state.core.slot_assignment import unpack
from ..state.moving import slot_migration
from ..storage import keys
from .host import Replica

_ROWS = 500  # of one batch
_BYTES = 512 * 1024  # a row of the largest value still fits an entry with it
_SHORT_TAIL = 500  # rows that may be left when the slots are sealed ...
_SHORT_TAIL_BYTES = 2 * 1024 * 1024  # ... and their bytes: writes of the slots wait while they are sent
_TAILS_MAX = 20  # sent before the slots are sealed in any case
_TAIL_BYTES = 16 * 1024 * 1024  # a tail that has more is sent while rows are still copied
_TAIL_ROW_BYTES = 256  # what a row in memory takes beside its own bytes
_AGAIN_S = 1.0
ATTEMPTS_OF_A_TERM = 1_000_000
"""More than a term can have. The number of an attempt is the source's term times this, and more."""

Tail = dict[bytes, "bytes | None"]


class Host(Protocol):
    """The node, as a mover sees it."""

    @property
    def drivers(self) -> Mapping[GroupId, Replica]:
        """The replicas on this node."""

    async def ask_here(self, group: GroupId, command: GroupCommand) -> GroupReply:
        """Have this node, as the group's leader, carry out a step. Raises MetadError."""

    async def ask_group(self, group: GroupId, command: GroupCommand, *, patient: bool = False) -> GroupReply:
        """Have a group's leader, wherever it is, carry out a step. ``patient``: however long it takes, unless the
        connection to it is lost. Raises MetadError."""

    async def ask_metadata(self, body: c.Moved) -> None:
        """Have the map say that slots have moved. Raises MetadError."""


class Migrations:
    """All moves whose source is led by this node."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._wanted: set[int] = set()
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._attempts: dict[int, int] = {}  # the last of each move
        self._sweeps: set[asyncio.Task[None]] = set()
        self._newest_sweeps: dict[GroupId, GroupCommand] = {}  # the order of each

    def follow(self, known: ClusterMap) -> None:
        """Work on those moves of the map that are this node's to work on."""
        moves = known.moves
        self._wanted = {move.move for move in moves}
        for driver in self._host.drivers.values():
            sealed = driver.machine.holding.sealed_move
            if sealed and sealed not in self._tasks and driver.group.ready and _is_done(sealed, known):
                self._start(sealed, self._close(driver, sealed))
        busy: set[GroupId] = set()
        for move in sorted(moves, key=lambda one: one.move):
            groups = {move.source_id, move.target_id}
            waits = bool(busy & groups)
            busy |= groups
            if waits:
                continue
            source = self._host.drivers.get(move.source_id)
            if source is None or not source.group.ready or move.move in self._tasks:
                continue
            if source.machine.holding.sealed_move in (0, move.move):  # or the one before is not closed yet
                self._start(move.move, self._run(move, source))

    def _start(self, number: int, work: Coroutine[Any, Any, None]) -> None:
        task = self._tasks[number] = asyncio.get_running_loop().create_task(work)
        task.add_done_callback(partial(self._ended, number))

    def _ended(self, number: int, task: asyncio.Task[None]) -> None:
        self._tasks.pop(number, None)
        if not task.cancelled() and (bug := task.exception()) is not None:
            event(log_events.BUG, exc_info=bug, where=f"slot move {number}")

    def stop(self) -> None:
        """Break off everything. The groups' logs say how far it came."""
        for task in (*self._tasks.values(), *self._sweeps):
            task.cancel()

    async def _close(self, driver: Replica, move: int) -> None:
        """Finish a move whose mover came as far as the map, and no further."""
        try:
            await self._host.ask_here(driver.group.group_id, GroupCommand("close", move))
        except MetadError as error:
            event(log_events.SLOT_MOVE_NOT_CLOSED, move=move, error=error.name, detail=str(error))
        else:
            self.sweep(driver, GroupCommand("sweep", 0), _ignore)

    async def _run(self, move: SlotMove, driver: Replica) -> None:
        while driver.group.ready and move.move in self._wanted:
            term = driver.group.term
            attempt = max(term * ATTEMPTS_OF_A_TERM, self._attempts.get(move.move, 0)) + 1
            self._attempts[move.move] = attempt
            try:
                await _Migration(self._host, move, driver, term, attempt).run()
            except MetadError as error:
                event(log_events.SLOT_MOVE_BROKE_OFF, move=move.move, error=error.name, detail=str(error))
                await asyncio.sleep(_AGAIN_S)
            else:
                del self._attempts[move.move]
                self.sweep(driver, GroupCommand("sweep", 0), _ignore)
                return

    def sweep(self, driver: Replica, order: GroupCommand, done: Callable[[MetadError | None], None]) -> None:
        """Drop the rows of slots that a group does not hold, which this node leads; then say so. In a target, before it
        imports, those are what earlier attempts have left. An earlier sweep of the group ends: who asked for it has
        begun again, or somebody else has."""
        self._newest_sweeps[driver.group.group_id] = order
        task = asyncio.get_running_loop().create_task(self._sweep(driver, order))
        self._sweeps.add(task)
        task.add_done_callback(partial(self._swept, done))

    def _swept(self, done: Callable[[MetadError | None], None], task: asyncio.Task[None]) -> None:
        self._sweeps.discard(task)
        if task.cancelled():  # the node stops, so whoever waits loses the connection
            return
        outcome = task.exception()
        if outcome is None or isinstance(outcome, MetadError):
            done(outcome)
        else:  # whoever asked waits as long as it takes, so it has to be told
            event(log_events.BUG, exc_info=outcome, where="a sweep")
            done(InternalError("a sweep failed; the server's log says why"))

    async def _sweep(self, driver: Replica, order: GroupCommand) -> None:
        group = driver.group
        driver.machine.parts[TenantMoves].check_still()
        if sealed := driver.machine.holding.sealed_move:
            raise ConflictError(f"slots of {group.name} are sealed by move {sealed}, which is not closed yet")
        held = unpack(driver.machine.holding.slots)
        dropped = 0
        for row in moving_rows(group.group_id.kind):
            for page in _pages(driver, row):
                if not group.ready:
                    raise NotLeaderError("another leads the group that is swept")
                if self._newest_sweeps[group.group_id] is not order:
                    raise ConflictError("a later sweep of the group has begun")
                rows: Tail = {key: None for key, _ in page if not held[keys.slot_of_key(key) or 0]}
                if rows:
                    dropped += len(rows)
                    command = GroupCommand("drop", order.move, order.attempt, rows=rows)
                    await self._host.ask_here(group.group_id, command)
                await asyncio.sleep(0)
        event(log_events.ROWS_DROPPED, group=group.name, rows=dropped)


def _is_done(move: int, known: ClusterMap) -> bool:
    """Whether the map has heard of a move's end. One older than the move has not even heard of its beginning."""
    return known.version >= move // MOVES_OF_A_MAP and all(one.move != move for one in known.moves)


class _Migration:
    """One attempt."""

    def __init__(self, host: Host, move: SlotMove, driver: Replica, term: int, attempt: int) -> None:
        self._host = host
        self._move = move
        self._driver = driver
        self._term = term
        self._attempt = attempt
        self._batch = 0
        self._slots = unpack(move.slots)
        self._tail: Tail = {}
        self._tail_bytes = 0  # that were noted: a row that is written again counts again
        self._moved = 0
        self._ahead_ms = 0  # the target's log is ahead of the source's by so much

    async def run(self) -> None:
        move, machine = self._move, self._driver.machine
        before_ms = machine.reader.now_ms()  # what the answer takes makes deadlines late, not early
        opened = await self._target("open")
        if opened.adopted:
            await self._finish()  # an earlier leader came that far
            return
        self._ahead_ms = opened.now_ms - before_ms
        if machine.holding.sealed_move == move.move:
            await self._source("unseal")  # it did not, and can no more: its attempt is void
        machine.parts[TenantMoves].check_still()
        machine.parts[TenantEnds].check_carried()  # before slots are sealed for an adoption that would be refused
        event(log_events.SLOT_MOVE_BEGAN, move=move.move, source=move.source, target=move.target, attempt=self._attempt)
        await self._target("sweep", patient=True)
        with self._driver.listening(self._note):
            await self._copy()
            await self._shorten_tail()
            sealed = await self._source("seal")
            await self._send_tail()
            self._batch += 1
            await self._target("adopt", sealed=sealed)
        await self._finish()
        event(log_events.SLOTS_MOVED, move=move.move, source=move.source, target=move.target, rows=self._moved)

    async def _finish(self) -> None:
        # In this order: until the map names the target, a listing would not ask it, and a source that is sealed has
        # listings wait. Where the second is not reached, the next mover does it.
        await self._host.ask_metadata(c.Moved(self._move.move))
        await self._source("close")

    def _note(self, entry: Entry) -> None:
        """An entry was applied while rows are copied. Its origin does not matter: the target must have every row as it
        is when the slots are sealed."""
        for writes in entry:
            for key, value in writes.items():
                behind = key[keys.GROUP_PREFIX_BYTES :]
                slot = keys.slot_of_key(behind)
                if slot is not None and self._slots[slot]:
                    self._tail[behind] = value
                    self._tail_bytes += len(behind) + len(value or b"") + _TAIL_ROW_BYTES

    async def _copy(self) -> None:
        """Send the rows. Between two pages the tail may be sent: an entry is noted when it is written to the engine, so
        a page that is read later has each row of the tail as it was noted, or newer."""
        for row in moving_rows(self._move.kind):
            for page in _pages(self._driver, row):
                rows: Tail = {key: value for key, value in page if self._slots[keys.slot_of_key(key) or 0]}
                if rows:
                    await self._import(rows)
                else:
                    await asyncio.sleep(0)
                if self._tail_bytes > _TAIL_BYTES:
                    await self._send_tail()

    async def _shorten_tail(self) -> None:
        """Send the tail, and what is written meanwhile, until it is short. Writers that are as fast as this would make
        it longer each time, so they have to wait for the rest."""
        for _ in range(_TAILS_MAX):
            size = self._tail_bytes
            if len(self._tail) <= _SHORT_TAIL and size <= _SHORT_TAIL_BYTES:
                return
            await self._send_tail()
            if self._tail_bytes >= size:
                return

    async def _send_tail(self) -> None:
        tail, self._tail, self._tail_bytes = self._tail, {}, 0
        part: Tail = {}
        size = 0
        for key, value in tail.items():
            part[key] = value
            size += len(key) + len(value or b"")
            if len(part) >= _ROWS or size >= _BYTES:
                await self._import(part)
                part, size = {}, 0
        if part:
            await self._import(part)

    async def _import(self, rows: Tail) -> None:
        self._batch += 1
        self._moved += len(rows)
        await self._target("import", slot_migration.translated(rows, self._ahead_ms))

    async def _target(
        self, step: str, rows: Tail | None = None, sealed: GroupReply | None = None, *, patient: bool = False
    ) -> GroupReply:
        """``sealed``: the source's answer to the seal, for the adoption. It has been applied here, so the source's
        fences are those of then or later: one that comes to the source now comes to the target as well. So are its
        orders to end tenants, with which it does not go on while slots are sealed."""
        move, parts = self._move, self._driver.machine.parts
        return await self._host.ask_group(
            move.target_id,
            GroupCommand(
                step,
                move.move,
                self._attempt,
                self._batch,
                move.slots,
                {} if rows is None else rows,
                0 if sealed is None else sealed.revisions[0].index,
                move.source,
                0 if sealed is None else sealed.index,
                0,
                [] if sealed is None else parts[Fences].carried(self._driver.machine.reader.now_ms()),
                [] if sealed is None else slot_migration.ends_ahead(parts[TenantEnds].carried(), self._ahead_ms),
                [] if sealed is None else parts[TenantMoves].carried(),
            ),
            patient=patient,
        )

    async def _source(self, step: str) -> GroupReply:
        move = self._move
        if self._driver.group.term != self._term:  # this node leads again, but others wrote meanwhile
            raise NotLeaderError("another led the source meanwhile")
        command = GroupCommand(step, move.move, self._attempt, 0, move.slots, other=move.target)
        return await self._host.ask_here(self._driver.group.group_id, command)


def _pages(driver: Replica, row: int) -> Iterator[list[tuple[bytes, bytes]]]:
    """The rows that have this byte, in key order, a page at a time: (key behind the group prefix, value). Each page is
    of its own moment."""
    engine = driver.machine.reader.engine
    prefix = keys.table_prefix(driver.group.prefix, row)
    begin, end = prefix, keys.after_prefix(prefix)
    while True:
        page = engine.scan(begin, end, _ROWS, _BYTES)
        if not page:
            return
        begin = page[-1][0] + b"\0"
        yield [(key[keys.GROUP_PREFIX_BYTES :], value) for key, value in page]


def _ignore(_: MetadError | None) -> None:
    """Rows that are left are hidden, and dropped before the slots come back."""
