"""A calendar of due times for millions of entries that are added unsorted and taken bucket by bucket.

An entry is one number, the time in microseconds above the client's number, so that sorting needs no indirection. Two
levels keep both adding and taking linear: *slots* of 64 buckets collect distant entries unsorted, and are sorted and
cut into buckets when their time comes.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]

CLIENT_BITS = 31
CLIENT_MASK = (1 << CLIENT_BITS) - 1
_TIME_MAX_US = (1 << 32) - 1
_BUCKETS = 64
_NONE: Ints = np.empty(0, np.int64)


class Calendar:
    """Entries by buckets of ``step_us``, the first of which begins at ``begin_us``, 0 or before. New entries must be
    due after the bucket that was taken last."""

    def __init__(self, step_us: int, begin_us: int, horizon_us: int) -> None:
        self._step_us = step_us
        self._begin_us = begin_us
        self._horizon = horizon_us - begin_us << CLIENT_BITS
        self._slots: list[list[Ints]] = [[] for _ in range((horizon_us - begin_us) // (step_us * _BUCKETS) + 1)]
        self._buckets: list[list[Ints]] = [[] for _ in range(_BUCKETS)]
        self._open = -1
        self._entries = 0

    def __len__(self) -> int:
        return self._entries

    def _edges(self, first: int, last: int, width_us: int) -> Ints:
        return np.arange(first, last, dtype=np.int64) * width_us << CLIENT_BITS

    def times_us(self, taken: Ints) -> Ints:
        """When entries are due."""
        return (taken >> CLIENT_BITS) + self._begin_us

    def add(self, time_us: Ints, client: Ints) -> None:
        """Clients and times in any order; times from the horizon on are dropped."""
        if not len(client):
            return
        added = np.sort((np.minimum(time_us - self._begin_us, _TIME_MAX_US) << CLIENT_BITS) | client)
        if len(added) and added[-1] >= self._horizon:
            added = added[: np.searchsorted(added, self._horizon)]
        if not len(added):
            return
        self._entries += len(added)
        slot_us = self._step_us * _BUCKETS
        first = int(added[0] >> CLIENT_BITS) // slot_us
        last = int(added[-1] >> CLIENT_BITS) // slot_us
        assert first >= self._open, "an entry is due in the past"
        cuts = [0, *np.searchsorted(added, self._edges(first + 1, last + 1, slot_us)).tolist(), len(added)]
        for slot in range(first, last + 1):
            begin, end = cuts[slot - first], cuts[slot - first + 1]
            if begin < end:
                if slot == self._open:
                    self._cut(added[begin:end])
                else:
                    self._slots[slot].append(added[begin:end])

    def _cut(self, ordered: Ints) -> None:
        """Put sorted entries of the open slot into its buckets."""
        base = self._open * _BUCKETS
        first = int(ordered[0] >> CLIENT_BITS) // self._step_us
        last = int(ordered[-1] >> CLIENT_BITS) // self._step_us
        cuts = [0, *np.searchsorted(ordered, self._edges(first + 1, last + 1, self._step_us)).tolist(), len(ordered)]
        for bucket in range(first, last + 1):
            begin, end = cuts[bucket - first], cuts[bucket - first + 1]
            if begin < end:
                self._buckets[bucket - base].append(ordered[begin:end])

    def take(self, bucket: int) -> Ints:
        """The entries of a bucket, sorted by time and client. Buckets are taken in order."""
        slot = bucket // _BUCKETS
        if slot != self._open:
            self._open = slot
            chunks, self._slots[slot] = self._slots[slot], []
            if chunks:
                self._cut(np.sort(np.concatenate(chunks)))
        found = self._buckets[bucket % _BUCKETS]
        if not found:
            return _NONE
        self._buckets[bucket % _BUCKETS] = []
        taken = found[0] if len(found) == 1 else np.sort(np.concatenate(found))
        self._entries -= len(taken)
        return taken
