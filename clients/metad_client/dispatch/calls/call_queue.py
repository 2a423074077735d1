"""Calls that wait to be sent, in order, and the bound on how many of them there may be."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sized

from ...errors import OverloadedError
from .call import Call


class Backlog:
    """The waiting calls of a client, in queues and in ``retrying``: at most ``calls_max``, with ``bytes_max`` of bodies
    in queues."""

    def __init__(self, calls_max: int, bytes_max: int, retrying: Sized) -> None:
        self._calls_max = calls_max
        self._bytes_max = bytes_max
        self._retrying = retrying
        self._queued = 0
        self._queued_bytes = 0

    @property
    def calls(self) -> int:
        """The number of calls that wait for room, for a leader, or for their next attempt."""
        return self._queued + len(self._retrying)

    def check(self, size_bytes: int) -> None:
        """Raises OverloadedError if there is no room for another call with a body of this size."""
        if self.calls >= self._calls_max:
            raise OverloadedError(f"{self.calls} requests wait already in this client; nothing was done")
        if self._queued and self._queued_bytes + size_bytes > self._bytes_max:
            raise OverloadedError(f"{self._queued_bytes} bytes wait already in this client; nothing was done")

    def count(self, calls: int, size_bytes: int) -> None:
        """Add to the counts of waiting calls and bytes."""
        self._queued += calls
        self._queued_bytes += size_bytes


class CallQueue(OrderedDict[Call, None]):
    """The calls that wait in one place, in the order of sending."""

    def __init__(self, backlog: Backlog) -> None:
        super().__init__()
        self._backlog = backlog

    def add(self, call: Call, *, first: bool = False, probes: str = "") -> None:
        """Put a call at the end, or at the front. ``probes`` is for :meth:`Call.waits`."""
        self[call] = None
        if first:
            self.move_to_end(call, last=False)
        call.waits(self, probes)
        self._backlog.count(1, len(call.body))

    def remove(self, call: Call) -> None:
        """Take a call out."""
        del self[call]
        call.waits(None, call.probes)
        self._backlog.count(-1, -len(call.body))
