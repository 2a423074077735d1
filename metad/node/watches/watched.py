"""A replica of this node, as the streams of its changes see it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

from metad_wire.errors import MetadError, OverloadedError
from metad_wire.watch import BEHIND_UNKNOWN_MS, Brought, WatchOpened

from ...raft.log.journal import REGULAR
from ...state.core.entry import NO_WRITES, Entry, decode_entry
from ...state.core.slot_assignment import HeldSlots
from ...storage.engine import Engine, Pin
from ...storage.keys import after_prefix
from ..calls.peer_sender import PeerSender
from ..replicas.driver import GroupDriver
from ..requests.near import ask_read_index

_AGAIN_MS = 500  # when to come again to a group that is being restored


class WatchedReplica:
    """A :class:`metad.watch.seams.Replica`."""

    def __init__(self, driver: GroupDriver, state: Engine, peers: PeerSender, now: Callable[[], float]) -> None:
        self.name = driver.group.name
        self.kind = driver.group.group_id.kind
        self.prefix = driver.group.prefix
        self._driver = driver
        self._log = driver.group.log
        self._state = state
        self._peers = peers
        self._now = now

    @property
    def applied(self) -> int:
        return self._driver.machine.applied

    @property
    def base(self) -> int:
        return max(self._log.base_index, self._driver.machine.parts[HeldSlots].restored_at)

    def entries(self, begin: int, end: int, bytes_max: int) -> Iterator[Entry]:
        return (
            decode_entry(self.name, index, data) if data[8] == REGULAR else NO_WRITES
            for index, data in enumerate(self._log.records(begin, bytes_max, end), begin)
        )

    def get(self, key: bytes) -> bytes | None:
        return self._state.get(key)

    def pin(self) -> Pin:
        return self._state.pin(self.prefix, after_prefix(self.prefix))

    def opened(self, *, pinned: bool, proven: bool) -> WatchOpened:
        machine = self._driver.machine
        slots = machine.parts[HeldSlots]
        if slots.restore is not None and not slots.restore.done_at:
            # Nobody is shown a part; and no move that a watch could wait for brings these slots back.
            text = f"{self.name} is being restored from a backup"
            raise OverloadedError(text, retry_after_ms=_AGAIN_MS, retry_jitter_ms=_AGAIN_MS)
        brought = [Brought(move, of_move) for move, of_move in sorted(slots.brought.items())]
        return WatchOpened(
            machine.applied,
            pinned,
            slots.held,
            slots.sealed,
            slots.sealed_move,
            brought,
            self._driver.group.ready,
            machine.revision,
            proven,
        )

    def read_index(self, done: Callable[[int | MetadError], None]) -> None:
        ask_read_index(self._driver, self._peers.call, done)

    def prove(self, done: Callable[[], None]) -> None:
        group = self._driver.group
        if group.is_leader and not group.may_read():
            group.read(lambda _: done())
        else:
            done()

    def behind_ms(self) -> int:
        return _milliseconds(self._driver.group.behind_s(self._now()))

    def silent_ms(self) -> int:
        return _milliseconds(self._driver.group.silent_s(self._now()))


def _milliseconds(seconds: float) -> int:
    """Rounded up: 0 is nothing at all."""
    return math.ceil(min(seconds * 1000, BEHIND_UNKNOWN_MS))
