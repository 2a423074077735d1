"""How much room the disk of the data directory has, looked at from time to time, and what the node does about it.

Below the low-water mark (:data:`~metad.raft.base.LOW`) other nodes should lead, no snapshot is taken, and what takes
more room is refused once a group has no quorum of voters with room (``may_grow`` of a replica). The node writes to
files what is in memory and cuts its logs, so that what is deleted makes room. Below a small part of the mark
(:data:`~metad.raft.base.FULL`) its leaders send it no entries either, so that it lives.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Final

from metad_wire.messages import DiskStatus

from ... import log_events
from ...logs import event
from ...raft.base import FULL, LOW, ROOM
from ...storage.engine import Engine
from ...storage.room import BACK, DiskUse, keep_reserve, mark_of, release_reserve
from ..environment import Environment, Queue
from .checkpoints import Checkpoints

_FULL_PART: Final = 8
"""Of the mark: with less room the disk is as good as full."""
_NEAR: Final = 2
"""With less than so many times the mark, what is in memory is written down early."""
_LOOK_PART: Final = 16
"""Of the mark: after so much growth the node looks at once, and not when it is time."""


class DiskRoom:
    """Of one node. What is in memory counts as room that is taken."""

    def __init__(
        self,
        directory: Path | None,
        engines: Sequence[Engine],
        low_room_bytes: int,
        environment: Environment,
        checkpoints: Checkpoints,
    ) -> None:
        self._level = ROOM  # at the last look
        self._directory = directory
        self._engines = engines
        self._low_room_bytes = low_room_bytes
        self._environment = environment
        self._checkpoints = checkpoints
        self._use = DiskUse(0, 0)
        self._grown_bytes = 0  # when that was looked for
        self._missing_bytes = 0  # of the reserve
        self._looking = False

    @property
    def shortage(self) -> int:
        """ROOM, LOW or FULL: a crowd may take what is left between two looks."""
        if not self._use.total_bytes:  # without a disk there is room
            return self._level
        if self._use.free_bytes - self._grown < self._mark // _FULL_PART:
            return FULL
        return self._level or (LOW if self._room() < self._mark else ROOM)

    @property
    def status(self) -> DiskStatus:
        """For the status of the node: what decides whether something is refused."""
        use = self._use
        return DiskStatus(max(0, min(use.free_bytes, self._room())), use.total_bytes, self._mark, self.shortage)

    def has_room_for(self, size: int) -> bool:
        """Whether a file of so many bytes leaves more than the mark."""
        return not self.shortage and (not self._use.total_bytes or self._room() - size >= self._mark)

    @property
    def _mark(self) -> int:
        return mark_of(self._use, self._low_room_bytes)

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
        mark = mark_of(use, self._low_room_bytes)
        for engine in self._engines:
            engine.heed_room(mark)
        if self._directory is not None:
            if use.free_bytes < mark // _FULL_PART and (freed := release_reserve(self._directory, use, mark)):
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
            self._checkpoints.make_room()

    def _room(self) -> int:
        """What is left once all that is in memory is in files, and the reserve is what it should be."""
        return self._use.free_bytes - self._grown - self._checkpoints.unwritten_bytes - self._missing_bytes

    def _judge(self, use: DiskUse, missing_bytes: int, grown_bytes: int) -> None:
        self._use, self._missing_bytes, self._grown_bytes = use, missing_bytes, grown_bytes
        room, mark, before = self._room(), self._mark, self._level
        if use.free_bytes < mark // _FULL_PART:
            self._level = FULL
        elif room < mark or (before and room < BACK * mark):
            self._level = LOW
        else:
            self._level = ROOM
        if self._level > before:
            event(log_events.DISK_SHORT, free_bytes=max(0, room), low_bytes=mark, full=self._level == FULL)
        elif before and not self._level:
            event(log_events.DISK_HAS_ROOM, free_bytes=room, low_bytes=mark)
