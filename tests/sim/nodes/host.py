"""What a simulated node stands on: disks that outlive it, and its environment on the virtual loop. Fsyncs and work
beside the loop take their time, clocks drift and disagree; a crash loses what was not durable, and never more."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from metad.config import Config
from metad.errors import StorageError
from metad.node.disk.stores import Stores, pair_stores
from metad.node.environment import Queue, Timer
from metad.storage.engine import NO_WRITES, Writes
from metad.storage.keys import GROUP_PREFIX_BYTES, applied
from metad.storage.log import DurableMark, LogStore
from metad.storage.room import DiskUse
from metad_wire.cluster import GROUP_KINDS, GroupId

from ..disk import LogSync, SimDisk, SimFile
from .loop import VirtualLoop

_EPOCH_MS = 1_700_000_000_000
_APPLIED = applied(b"")


class Pace(NamedTuple):
    """How quick a host is. Seconds; chances are per fsync."""

    fsync: tuple[float, float] = (0.0005, 0.003)
    slow_fsync: float = 0.0
    """Chance that one takes a hundred times longer."""
    beside: tuple[float, float] = (0.0005, 0.01)
    drift: float = 0.0
    """Clocks run at rates within 1 ± half of this."""
    skew_s: float = 0.0
    """Calendars differ from the truth by up to this."""
    calendar_drift: float = 0.0
    """Calendars run at rates within 1 ± half of this, whatever the clocks do."""


class StateDisk(SimDisk):
    """Says when a group's state has come to a further index, before anybody else can know."""

    def __init__(self, applied: Callable[[GroupId, int], None]) -> None:
        super().__init__()
        self._applied = applied
        self._replacing = False

    def write(self, *batches: Writes, delete_ranges: Sequence[tuple[bytes, bytes]] = ()) -> None:
        super().write(*batches, delete_ranges=delete_ranges)
        if self._replacing:
            return
        for writes in batches:
            for key, value in writes.items():
                if value is not None and key.endswith(_APPLIED) and len(key) == len(_APPLIED) + GROUP_PREFIX_BYTES:
                    self._applied(group_of_prefix(key[:GROUP_PREFIX_BYTES]), int.from_bytes(value, "big"))

    def replace(self, begin: bytes, end: bytes, parts: Sequence[bytes | Path], writes: Writes = NO_WRITES) -> None:
        self._replacing = True  # a snapshot is installed: no entry is applied
        try:
            super().replace(begin, end, parts, writes)
        finally:
            self._replacing = False


class Disks:
    """Of one node, through all its lives. ``applied`` hears of every group whose state has come to a further index."""

    def __init__(self, applied: Callable[[GroupId, int], None]) -> None:
        self.log = SimDisk()
        self.state = StateDisk(applied)
        self.mark = SimFile()

    def open(self, config: Config) -> Stores:
        """For a new life."""
        return pair_stores(config, LogStore(self.log, DurableMark(Path("durable"), lambda _: self.mark)), self.state)

    def crash(self, rng: random.Random, *, power: bool) -> None:
        """The process has died, or the power has failed."""
        if power:
            self.log.crash(rng, torn=rng.random() < 0.5)
            self.mark.crash(rng)
        # The state has no log of its own: what was in memory is lost with the process.
        self.state.crash(rng)


def group_of_prefix(prefix: bytes) -> GroupId:
    """The group whose keys begin so."""
    return GroupId(GROUP_KINDS[prefix[0] - 1], int.from_bytes(prefix[1:], "big"))


class SimSyncer:
    """Covers what was written before it began."""

    def __init__(self, environment: SimEnvironment, store: LogStore) -> None:
        self._environment = environment
        self._store = store

    def sync(self, done: Callable[[StorageError | None], None]) -> None:
        """See :class:`metad.storage.log.Syncer`."""
        sync = LogSync(self._store)

        def over() -> None:
            if self._environment.hung(over):
                return
            error: StorageError | None = None
            try:
                sync.finish()
            except StorageError as caught:
                error = caught
            done(error)

        self._environment.loop.call_later(self._environment.fsync_s(), over)

    def close(self) -> None:
        """Nothing runs."""


class SimEnvironment:
    """Implements :class:`metad.node.environment.Environment`. To be made in the node's process."""

    def __init__(self, loop: VirtualLoop, rng: random.Random, pace: Pace) -> None:
        self.loop = loop
        self.pace = pace
        self.slow_until_s = 0.0
        """The disk is slow."""
        self.stepped_ms = 0
        """By how much somebody has put the calendar forward, or back."""
        self._disk_hangs = False
        self._hung: list[Callable[[], None]] = []
        self.rng = random.Random(rng.getrandbits(64))
        self._rng = random.Random(rng.getrandbits(64))
        self._rate = 1.0 + pace.drift * (rng.random() - 0.5)
        self._offset_s = rng.uniform(0.0, 1000.0)
        self._skew_ms = int(1000 * pace.skew_s * rng.uniform(-1.0, 1.0))
        drift = pace.calendar_drift
        self._calendar_rate = 1.0 + drift * (rng.random() - 0.5) if drift else 1.0  # nothing is drawn in vain
        self._free_s = dict.fromkeys(Queue, 0.0)
        self.disk = DiskUse(1 << 40, 1 << 40)

    def catch(self, caught: Callable[[Exception], None]) -> None:
        """See Environment. Here it escapes, and the loop notes it: no callback is to raise."""

    def now(self) -> float:
        """See Environment."""
        return self._offset_s + self._rate * self.loop.now

    def stand_still(self, seconds: float) -> None:
        """The monotonic clock has not noticed that so much of its time has passed."""
        self._offset_s -= seconds

    def is_behind(self) -> bool:
        return False

    def wall_ms(self) -> int:
        """See Environment."""
        return _EPOCH_MS + self._skew_ms + self.stepped_ms + int(1000 * self._calendar_rate * self.loop.now)

    def call_soon(self, callback: Callable[[], None]) -> None:
        """See Environment."""
        self.loop.call_soon(callback)

    def call_at(self, when_s: float, callback: Callable[[], None]) -> Timer:
        """See Environment."""
        return self.loop.call_at((when_s - self._offset_s) / self._rate, callback)

    def syncer(self, store: LogStore, *, fsync: bool) -> SimSyncer:
        """See Environment."""
        return SimSyncer(self, store)

    def fsync_s(self) -> float:
        """How long the next fsync takes."""
        taken = self._rng.uniform(*self.pace.fsync)
        slow = self.loop.now < self.slow_until_s or self._rng.random() < self.pace.slow_fsync
        return taken * 100 if slow else taken

    def hang_disk(self) -> None:
        """No fsync ends any more, until :meth:`unhang_disk`."""
        self._disk_hangs = True

    def unhang_disk(self) -> None:
        """What should have ended meanwhile ends now. To be called in the node's process."""
        self._disk_hangs = False
        hung, self._hung = self._hung, []
        for end in hung:
            self.loop.call_soon(end)

    def hung(self, end: Callable[[], None]) -> bool:
        """Whether the disk hangs; then ``end`` is called when it does not any more."""
        if self._disk_hangs:
            self._hung.append(end)
        return self._disk_hangs

    def beside(
        self, work: Callable[[], None], done: Callable[[BaseException | None], None], queue: Queue = Queue.FLUSHES
    ) -> None:
        """See Environment. The work is done at some moment before its end."""
        loop = self.loop
        begin_s = max(loop.now, self._free_s[queue])
        takes_s = self._rng.uniform(*self.pace.beside) * (10 if queue is Queue.LONG else 1)
        self._free_s[queue] = begin_s + takes_s
        outcome: list[Any] = [None]

        def do() -> None:
            try:
                work()
            except Exception as error:  # noqa: BLE001 - whatever it is, the node is told
                outcome[0] = error

        def over() -> None:
            if not self.hung(over):
                done(outcome[0])

        loop.call_at(begin_s + takes_s * self._rng.random(), do)
        loop.call_at(begin_s + takes_s, over)

    def disk_use(self, directory: Path | None) -> DiskUse:
        """See Environment."""
        return self.disk

    def close(self) -> None:
        """Nothing runs."""
