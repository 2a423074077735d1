"""Checkpoints: the state is flushed now and then, and the logs are cut behind it.

A node that is calm flushes what earlier writes have left in memtables: reads of several records look into each, and
dozens of them take four times as long as the one file that they become. And a crowd that comes finds the memtables
empty, those of the log, too, so that they hold what it writes until it has gone: a flush takes a tenth of the processor
from it. The logs stay then, for replicas that lag; they are cut to what has been flushed once they are as long as they
may be.

A range that had millions of records which are deleted, as after many sessions have expired, is compacted once a scan
has taken long to pass it.

The disk's room is looked at from time to time. Below the low-water mark (:data:`~metad.raft.base.LOW`) other nodes
should lead, no snapshot is taken, and what takes more room is refused once a group has no quorum of voters with room
(``may_grow`` of a replica). The node writes to files what is in memory and cuts its logs, so that what is deleted makes
room. Below a small part of the mark (:data:`~metad.raft.base.FULL`) its leaders send it no entries either, so that it
lives.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Final

import msgspec

from metad_wire.errors import NoRoomError
from metad_wire.messages import Compact, CompactReply, DiskStatus

from ... import log_events
from ...config import Config, StorageConfig
from ...errors import DiskFullError, StorageError
from ...logs import event
from ...raft.base import FULL, LOW, ROOM
from ...storage.engine import Engine
from ...storage.keys import after_prefix
from ...storage.room import BACK, DiskUse, Trend, keep_reserve, lend_reserve, mark_of, release_reserve
from ..environment import Environment, Queue, Timer
from ..health import Health
from ..replicas.driver import GroupDriver
from ..replicas.groups import Agenda, Groups
from ..watches.watches import Watches
from .node_snapshots import NodeSnapshots

_CALM_S: Final = 5.0
_CALM_PART: Final = 8
"""The node is calm while it writes less in that time than this part of what waits to be flushed. So a file of the state
is worth the writes of 40 s at least, and compaction has little to do."""
_WORTH_BYTES: Final = 4 * 1024 * 1024
"""Of log, that are worth a file of the state and one of the log."""
_ROUNDS: Final = 2
"""The first writes the state down, so that the log is cut; the second drops what was cut."""
_AGAIN_S: Final = 20.0
"""From one attempt to make room to the next, if nothing is written meanwhile."""
_COMPACT_S: Final = 2.0
"""From one compaction to the next, or four times what it has taken."""


class Checkpoints:
    """Keeps the logs within ``storage.log_retained_bytes``, and flushes state and log while the node is calm."""

    def __init__(
        self,
        config: Config,
        state: Engine,
        log: Engine,
        groups: Groups,
        snapshots: NodeSnapshots,
        watches: Watches,
        agenda: Agenda,
        environment: Environment,
        health: Health,
    ) -> None:
        self._directory = None if config.storage.engine == "memory" else Path(config.data_dir)
        self._state = state
        self._log = log
        self._groups = groups
        self._snapshots = snapshots
        self._watches = watches
        self._agenda = agenda
        self._environment = environment
        self._health = health
        self.log_retained_bytes = config.storage.log_retained_bytes
        self._log_bytes = 0  # in the logs: appended since they were cut
        self.grown_bytes = 0
        """Appended to the log or applied from it, since the start."""
        self._unflushed_bytes = 0  # of these, since the state was flushed last
        self._in_memory_bytes = 0  # since state and log were
        self._flushed: dict[GroupDriver, int] = {}  # what that flush has of each group
        self.flushing = False
        """Whether a thread writes the state's memtables to files."""
        self._compacting = False
        self._compact_from_s = 0.0
        self._rounds = _ROUNDS  # until all that can be dropped from the files is
        self._again_s = 0.0  # when that is tried once more, as others may have made room
        self._timer: Timer | None = None

    def stop(self) -> None:
        """Wait no longer for the node to be calm."""
        if self._timer is not None:
            self._timer.cancel()

    def log_grown(self, size: int) -> None:
        """Note that so many bytes more are in the log, or have been applied from it."""
        self._log_bytes += size
        self._unflushed_bytes += size
        self._in_memory_bytes += size
        self._rounds = _ROUNDS
        self.grown_bytes += size
        self._watches.log_grown(size)
        if self._log_bytes >= self.log_retained_bytes and not self.flushing:
            if 2 * self._unflushed_bytes <= self._log_bytes:
                self._cut()
            else:
                self.make()
        elif self._in_memory_bytes >= _WORTH_BYTES and self._timer is None:
            self._wait_for_calm()

    def look(self) -> None:
        """Have a thread drop what is deleted where scans take long to pass it. It is asked for now and then."""
        now_s = self._environment.now()
        if self._compacting or now_s < self._compact_from_s or (worn := self._state.take_worn()) is None:
            return
        self._compacting = True

        def done(error: BaseException | None) -> None:
            over_s = self._environment.now()
            self._compacting = False
            self._compact_from_s = over_s + max(_COMPACT_S, 4 * (over_s - now_s))
            if isinstance(error, DiskFullError):  # what is there stays as it is
                event(log_events.NO_ROOM_TO_COMPACT, error=str(error))
            elif error is not None:
                self._health.stop_for(error)
            else:
                event(log_events.COMPACTED, seconds=round(over_s - now_s, 3))

        self._environment.beside(partial(self._state.compact, *worn), done, Queue.LONG)

    @property
    def unwritten_bytes(self) -> int:
        """About how many bytes of files are still to be written of what is in memory."""
        return (self._in_memory_bytes + self._unflushed_bytes) // 2  # each byte counts when logged and when applied

    def make_room(self, spare_bytes: int) -> None:
        """The disk has little room: write down what is in memory, cut the logs, and have a thread drop from the files
        what is deleted, where that leaves ``spare_bytes`` of room all the time. It is asked for now and then, and does
        what has become due meanwhile."""
        now_s = self._environment.now()
        due = self._rounds or self.unwritten_bytes >= _WORTH_BYTES or now_s >= self._again_s
        if self.flushing or self._compacting or now_s < self._compact_from_s or not due:
            return
        self._rounds = max(0, self._rounds - 1)
        self._again_s = now_s + _AGAIN_S
        self._compacting = True
        self._in_memory_bytes = 0

        def done() -> None:
            over_s = self._environment.now()
            self._compacting = False
            self._compact_from_s = over_s + 4 * (over_s - now_s)
            self._cut()

        logs = [driver.group.log for driver in self._groups.drivers.values()]
        log_bytes = None if any(log.has_earlier for log in logs) else sum(log.bytes for log in logs)
        self._flush(partial(self._reclaim, log_bytes, spare_bytes), done)

    def _reclaim(self, log_bytes: int | None, spare_bytes: int) -> None:
        self._empty_memtables()
        try:
            for engine, left_bytes in ((self._state, None), (self._log, log_bytes)):
                lacking_bytes = engine.reclaim(left_bytes, spare_bytes)
                if lacking_bytes and not spare_bytes and self._lend(lacking_bytes):
                    engine.reclaim(left_bytes)
        except (StorageError, OSError) as error:  # what is there stays as it is
            event(log_events.NO_ROOM_TO_COMPACT, error=str(error))

    def _lend(self, lacking_bytes: int) -> int:
        """Give the reserve up for what makes more room than that takes. Returns its bytes."""
        return 0 if self._directory is None else lend_reserve(self._directory, lacking_bytes)

    def make(self, then: Callable[[], None] | None = None) -> None:
        """Flush the state, then drop the entries that are in it from the logs."""

        def done() -> None:
            self._cut()
            if then is not None:
                then()

        self._flush(self._state.sync, done)

    def _wait_for_calm(self) -> None:
        look = partial(self._look, self._in_memory_bytes)
        self._timer = self._environment.call_at(self._environment.now() + _CALM_S, look)

    def _look(self, before_bytes: int) -> None:
        """Flush state and log if the node is calm now."""
        self._timer = None
        if self._health.failure is not None:
            return
        if self.flushing or _CALM_PART * (self._in_memory_bytes - before_bytes) > self._in_memory_bytes:
            self._wait_for_calm()
        else:
            self._in_memory_bytes = 0
            self._flush(self._empty_memtables)

    def _empty_memtables(self) -> None:
        self._state.sync()
        self._log.flush()

    def _flush(self, work: Callable[[], None], then: Callable[[], None] | None = None) -> None:
        self.flushing = True
        applied = {driver: driver.machine.applied for driver in self._groups.drivers.values()}
        flushed, self._unflushed_bytes = self._unflushed_bytes, 0
        started_s = time.monotonic()

        def done(error: BaseException | None) -> None:
            self.flushing = False
            if error is not None:
                self._health.stop_for(error)
            else:
                self._flushed = applied
                event(log_events.CHECKPOINT, log_bytes=flushed, seconds=round(time.monotonic() - started_s, 3))
            if then is not None:
                then()

        self._environment.beside(work, done)

    def _cut(self) -> None:
        """Drop what has been flushed from the logs."""
        if self._health.failure is not None:
            return
        self._log_bytes = self._unflushed_bytes
        for driver in self._groups.drivers.values():
            through = self._flushed.get(driver)
            if through is None:
                continue  # its group has come since
            held = self._snapshots.streams.held_index(driver.group)
            driver.group.compact(self._watches.held_index(driver, through if held is None else min(through, held)))
        self._agenda.schedule()


_FULL_PART, _FULL_PART_MOST = 8, 2
"""Of the mark: with less room the disk is as good as full."""
_FULL_BYTES: Final = 16 * 1024 * 1024
"""The same, but for disks so small that it would be more than half of the mark: entries of large requests are on their
way, and each is written three times before the first of them is dropped."""
_NEAR: Final = 2
"""With less than so many times the mark, what is in memory is written down early."""
_LOOK_PART: Final = 16
"""Of the mark: after so much growth the node looks at once, and not when it is time."""


def _full(mark: int) -> int:
    """With less room than this the disk is as good as full."""
    return max(mark // _FULL_PART, min(mark // _FULL_PART_MOST, _FULL_BYTES))


class Compaction:
    """Drops what is deleted from all files, because somebody wants that: range by range, so that it can be said how far
    it is, and so that what else waits for its turn beside the loop has it."""

    def __init__(self, engines: Sequence[Engine], room: DiskRoom, groups: Groups, environment: Environment) -> None:
        self._engines = engines
        self._room = room
        self._groups = groups
        self._environment = environment
        self._left: list[tuple[Engine, bytes, bytes]] = []
        self._status = CompactReply()

    def ask(self, body: Compact) -> CompactReply:
        """Begin, if that is wanted, and say how far it is. Raises NoRoomError."""
        if body.begin and not self._status.running:
            self._begin()
        self._status = msgspec.structs.replace(self._status, bytes=self._files_bytes())
        return self._status

    def _begin(self) -> None:
        largest = max(engine.files_bytes for engine in self._engines)
        if not self._room.has_room_for(largest):
            raise NoRoomError(f"the disk has too little room to write {largest:,} bytes anew beside the old files")
        prefixes = sorted(driver.group.prefix for driver in self._groups.drivers.values())
        self._left = [(engine, prefix, after_prefix(prefix)) for engine in self._engines for prefix in prefixes]
        self._status = CompactReply(True, 0, len(self._left), self._files_bytes())
        self._environment.beside(self._flush, self._flushed, Queue.LONG)

    def _flush(self) -> None:
        for engine in self._engines:
            engine.flush()

    def _flushed(self, error: BaseException | None) -> None:
        """What was in memory is in files, and counts as it was."""
        self._status = msgspec.structs.replace(self._status, before_bytes=self._files_bytes())
        if error is None:
            self._next()
        else:
            self._done(error)

    def _files_bytes(self) -> int:
        return sum(engine.files_bytes for engine in self._engines)

    def _next(self) -> None:
        engine, begin, end = self._left.pop(0)
        if not self._room.has_room_for(engine.files_bytes):
            self._status = msgspec.structs.replace(self._status, running=False, error="the disk has too little room")
            return
        self._environment.beside(partial(engine.compact, begin, end), self._done, Queue.LONG)

    def _done(self, error: BaseException | None) -> None:
        done = self._status.done + (error is None)
        running = bool(self._left) and error is None
        text = "" if error is None else str(error)
        self._status = msgspec.structs.replace(self._status, running=running, done=done, error=text)
        if running:
            self._next()
        else:
            event(
                log_events.COMPACTED_ALL, bytes=self._files_bytes(), before_bytes=self._status.before_bytes, error=text
            )


class DiskRoom:
    """Of one node. What is in memory counts as room that is taken."""

    def __init__(
        self,
        directory: Path | None,
        engines: Sequence[Engine],
        config: StorageConfig,
        environment: Environment,
        checkpoints: Checkpoints,
    ) -> None:
        self._level = ROOM  # at the last look
        self._directory = directory
        self._engines = engines
        self.config = config
        self._environment = environment
        self._checkpoints = checkpoints
        self._use = DiskUse(0, 0)
        self._mark = 0
        self._grown_bytes = 0  # when that was looked for
        self._missing_bytes = 0  # of the reserve
        self._looking = False
        self._trend = Trend()

    @property
    def shortage(self) -> int:
        """ROOM, LOW or FULL: a crowd may take what is left between two looks."""
        if not self._use.total_bytes:  # without a disk there is room
            return self._level
        taken = self._grown + sum(engine.reclaiming_bytes for engine in self._engines)
        if self._use.free_bytes - taken < _full(self._mark):
            return FULL
        return self._level or (LOW if self._room() < self._mark else ROOM)

    @property
    def status(self) -> DiskStatus:
        """For the status of the node: what decides whether something is refused."""
        use = self._use
        free_bytes, short = max(0, min(use.free_bytes, self._room())), self.shortage
        return DiskStatus(free_bytes, use.total_bytes, self._mark, short, self._lasts_ms(free_bytes, short))

    def _lasts_ms(self, free_bytes: int, short: int) -> int | None:
        """Until there is as little room as the mark; where there is less, until there is none."""
        lasts_s = self._trend.lasts_s(free_bytes - (0 if short else self._mark))
        return None if lasts_s is None else round(lasts_s * 1_000)

    def has_room_for(self, size: int) -> bool:
        """Whether a file of so many bytes leaves more than the mark."""
        return not self.shortage and (not self._use.total_bytes or self._room() - size >= self._mark)

    @property
    def _grown(self) -> int:
        """Bytes that were written since the last look."""
        return self._checkpoints.grown_bytes - self._grown_bytes

    def start(self) -> None:
        """Look at once: before this the node must not serve."""
        use = self._environment.disk_use(self._directory)
        if use is not None:
            self._judge(use, 0, self._checkpoints.grown_bytes)

    def grown(self) -> None:
        """Something was written. Look again if it was much."""
        if self._grown * _LOOK_PART > self._mark:
            self.look()

    def look(self) -> None:
        """Look again, beside the loop, as a disk may hang. It is asked for now and then."""
        if self._looking or not self._use.total_bytes:
            return
        self._looking = True
        found: list[tuple[DiskUse, int]] = []
        seen = partial(self._seen, found, self._checkpoints.grown_bytes)
        self._environment.beside(partial(self._measure, found), seen, Queue.LOOKS)

    def _measure(self, found: list[tuple[DiskUse, int]]) -> None:
        use, missing = self._environment.disk_use(self._directory), 0
        if use is None:
            return
        mark = mark_of(use, self.config)
        files_bytes = sum(engine.files_bytes for engine in self._engines)
        for engine in self._engines:
            engine.heed_room(mark, files_bytes)
        if self._directory is not None:
            if use.free_bytes < _full(mark) and (freed := release_reserve(self._directory, use, mark)):
                event(log_events.RESERVE_RELEASED, free_bytes=use.free_bytes, reserve_bytes=freed)
            missing = keep_reserve(self._directory, use, mark)
            use = self._environment.disk_use(self._directory) or use
        found.append((use, missing))

    def _seen(self, found: list[tuple[DiskUse, int]], grown_bytes: int, error: BaseException | None) -> None:
        self._looking = False
        if error is not None:
            event(log_events.DISK_NOT_SEEN, error=str(error))
        if found:
            self._judge(*found[0], grown_bytes)
        # What is to make room takes some first: to try it without would stop the node.
        if self._room() + self._missing_bytes > 0 and (self._level or self._room() < _NEAR * self._mark):
            self._checkpoints.make_room(0 if self._level else self._mark)

    def _room(self) -> int:
        """What is left once all that is in memory is in files, and the reserve is what it should be."""
        return self._use.free_bytes - self._grown - self._checkpoints.unwritten_bytes - self._missing_bytes

    def _judge(self, use: DiskUse, missing_bytes: int, grown_bytes: int) -> None:
        self._use, self._missing_bytes, self._grown_bytes = use, missing_bytes, grown_bytes
        self._mark = mark_of(use, self.config)
        self._trend.see(self._environment.now(), use.free_bytes - missing_bytes)
        room, mark, before = self._room(), self._mark, self._level
        if use.free_bytes < _full(mark):
            self._level = FULL
        elif room < mark or (before and room < BACK * mark):
            self._level = LOW
        else:
            self._level = ROOM
        if self._level > before:
            free_bytes = max(0, room)
            event(
                log_events.DISK_SHORT,
                free_bytes=free_bytes,
                low_bytes=mark,
                full=self._level == FULL,
                total_bytes=use.total_bytes,
                lasts_ms=self._lasts_ms(free_bytes, self._level),
            )
        elif before and not self._level:
            event(log_events.DISK_HAS_ROOM, free_bytes=room, low_bytes=mark)
