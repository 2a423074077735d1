"""What a stream needs of the node it lives on: the replica whose log it follows, and the connection that it feeds."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Protocol

from metad_wire.errors import MetadError
from metad_wire.watch import WatchOpened

from ..state.core.entry import Entry
from ..storage.engine import Pin


class Outlet(Protocol):
    """Where one stream goes: a request on a client's connection."""

    def room(self) -> int:
        """How many bytes the connection takes now; 0 if its peer does not read. The stream is woken when there is
        more."""

    def wait(self) -> None:
        """There is not enough room: wake the stream when there may be more."""

    def opened(self, payload: bytes) -> None:
        """The stream begins."""

    def refused(self, error: MetadError) -> None:
        """It does not."""

    def event(self, payload: bytes, *, last: bool = False) -> None:
        """Send an event; nothing follows the last one."""


class Replica(Protocol):
    """One group's replica on this node. Its methods may raise StorageError."""

    name: str
    kind: str
    prefix: bytes

    @property
    def applied(self) -> int:
        """The index of the last entry that is, or is just being put, in the state."""

    @property
    def base(self) -> int:
        """The index of the last entry that the log has no more; 0 if it has all."""

    def entries(self, begin: int, end: int, bytes_max: int) -> Iterator[Entry]:
        """The entries from ``begin`` on, below ``end``: at least one, and as many as ``bytes_max`` hold. They are read
        at once, and decoded one by one."""

    def get(self, key: bytes) -> bytes | None:
        """A row of the state."""

    def pin(self) -> Pin:
        """The rows of the state as they are now."""

    def opened(self, *, pinned: bool, proven: bool) -> WatchOpened:
        """What a stream that begins now is told."""

    def read_index(self, done: Callable[[int | MetadError], None]) -> None:
        """Call ``done`` with an index that the group's leader had committed when it proved its lead, after this call;
        or with the reason why none is known. It may never be called."""

    def prove(self, done: Callable[[], None]) -> None:
        """Call ``done`` once :meth:`behind_ms` is as good as it gets: a leader may ask first whether it still leads."""

    def behind_ms(self) -> int:
        """For how long the replica may have lacked what was acknowledged; 0 if it lacks nothing."""

    def silent_ms(self) -> int:
        """For how long a word of its leader has been overdue."""
