"""Who has been heard of lately: the leases that whoever leads keeps in memory. Pure: time is an argument.

A lease ends a time to live (ttl) after its holder was last heard of. Nobody may lose it because the service itself was
slow: in an *amnesty* everybody gets a whole ttl from now on, and no less than :data:`RESUME_S`. A leader grants one
when it begins to lead, when it notices that it was not running, and when proofs and answers are slow. What is adopted
from another group is added anew, which gives a whole ttl, too.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)

RESUME_S = 5.0
"""The least that an amnesty gives to a holder that was not heard of since. It has to find a leader first, which may
take longer than a short ttl: a client waits up to 2 s between two dials."""
_SLOW = 0.25
"""Of a ttl: an answer that takes longer has held up its holder."""
_SPARE = 64  # void elements of the queue that are not worth making it anew
LOOKS = 2_000
"""Elements of the queue that one call looks at, some milliseconds of it. Leases of which a leader has heard again wait
for their new end, and an amnesty moves the end of all leases at once."""
_OVER_MAX = 1_000  # leases that are over and have not ended yet: what follows waits for these
SLOW_S = 0.5
"""What was answered or proven only after so long says that the service was slow, or away."""


class _Lease:
    __slots__ = ("ends_s", "heard_s", "number", "queued_s", "ttl_s")

    def __init__(self, ttl_s: float, heard_s: float) -> None:
        self.ttl_s = ttl_s
        self.heard_s = heard_s
        self.ends_s = heard_s + ttl_s
        self.number = 0  # that of its element in the queue; 0: it has none
        self.queued_s = 0.0  # the time of that element


class Liveness(Generic[Key]):
    """The leases of one leader. A lease has at most one element in the queue that counts, and void elements are fewer
    than leases, so the memory is bounded by the keys. To hear of a holder costs two look-ups, and an amnesty costs
    nothing for a lease until it would have ended."""

    def __init__(self) -> None:
        self._leases: dict[Key, _Lease] = {}
        self._queue: list[tuple[float, int, Key]] = []  # no later than the end of the lease
        self._number = 0
        self._over: dict[Key, None] = {}
        self._amnesty_s = float("-inf")
        self.lags = False
        """Whether :meth:`over` has not looked at all leases that may be over."""

    def __len__(self) -> int:
        return len(self._leases)

    def add(self, key: Key, ttl_s: float, at_s: float, least_s: float = 0.0) -> None:
        """Begin a lease at this time, or go on with one that has another ttl from now on. A lease that goes on never
        ends earlier than was promised before. Also for a lease that is over and could not be ended. ``least_s``: how
        long it lasts if that is longer than the ttl."""
        lease = self._leases.get(key)
        if lease is None:
            lease = self._leases[key] = _Lease(ttl_s, at_s)
            lease.ends_s = at_s + max(ttl_s, least_s)
        else:
            lease.ends_s = max(self._end(lease), at_s + max(ttl_s, least_s))
            lease.ttl_s = ttl_s
            lease.heard_s = max(lease.heard_s, at_s)
        if not lease.number:
            self._wait(key, lease)

    def heard(self, key: Key, at_s: float) -> bool:
        """Go on with a lease whose holder was heard of at this time; whether there is one. Times need not be in
        order."""
        lease = self._leases.get(key)
        if lease is None:
            return False
        lease.heard_s = max(lease.heard_s, at_s)
        ends_s = at_s + lease.ttl_s
        if ends_s > lease.ends_s:
            lease.ends_s = ends_s
            if not lease.number:
                self._wait(key, lease)
        if lease.number and lease.queued_s > self._end(lease):  # an amnesty would have lasted longer
            self._wait(key, lease)
        return True

    def answered(self, key: Key, arrived_s: float, now_s: float) -> None:
        """A holder that was heard of at the first time is answered at the second. It speaks again only then, so where
        the answer took a considerable part of a ttl, that goes on from now. Where it took long, others have waited as
        well."""
        lease = self._leases.get(key)
        if lease is not None:
            self.heard(key, now_s if now_s - arrived_s > _SLOW * lease.ttl_s else arrived_s)
            if now_s - arrived_s > SLOW_S:
                self.amnesty(now_s)

    def remove(self, key: Key) -> None:
        """End a lease, if there is one."""
        self._over.pop(key, None)
        if self._leases.pop(key, None) is not None and len(self._queue) > 2 * len(self._leases) + _SPARE:
            self._queue = [element for element in self._queue if self._counts(element)]
            heapq.heapify(self._queue)

    def amnesty(self, now_s: float) -> None:
        """Let no lease end before a whole ttl from now has passed, or :data:`RESUME_S` if that is longer and nothing is
        heard of its holder."""
        self._amnesty_s = max(self._amnesty_s, now_s)

    def over(self, now_s: float, limit: int = _OVER_MAX) -> list[Key]:
        """The keys of leases that are over, up to ``limit``, the first that ended first. They are the same at each
        call until they are removed, added or heard of again, or put aside. It looks at :data:`LOOKS` elements."""
        over, queue = self._over, self._queue
        for key in [*over]:
            if self._end(lease := self._leases[key]) > now_s:
                del over[key]
                if not lease.number:
                    self._wait(key, lease)
        for _ in range(LOOKS):
            if not queue or queue[0][0] > now_s or len(over) >= limit:
                break
            element = heapq.heappop(queue)
            if not self._counts(element):
                continue
            key = element[2]
            lease = self._leases[key]
            if self._end(lease) > now_s:
                self._wait(key, lease)
            else:
                lease.number = 0
                over[key] = None
        self.lags = bool(queue) and queue[0][0] <= now_s and len(over) < limit
        return [*over]

    def put_aside(self, key: Key) -> None:
        """Count a lease that is over no more, until it is heard of."""
        self._over.pop(key, None)

    def ends_s(self, key: Key) -> float | None:
        """When a lease ends if its holder is not heard of any more; None if there is no such lease."""
        lease = self._leases.get(key)
        return None if lease is None else self._end(lease)

    def silence(self, now_s: float) -> float:
        """For which part of its ttl the holder was not heard of whose lease ends first; more than 1: it is over. 0 if
        there is none."""
        return max((1 - (self._end(lease) - now_s) / lease.ttl_s for lease in self._leases.values()), default=0.0)

    def silent_s(self, key: Key, now_s: float) -> float:
        """How much of its ttl a holder has used up; 0 if it has no lease."""
        lease = self._leases.get(key)
        return 0.0 if lease is None else max(0.0, lease.ttl_s - (self._end(lease) - now_s))

    def _end(self, lease: _Lease) -> float:
        if lease.heard_s > self._amnesty_s:
            return lease.ends_s
        return max(lease.ends_s, self._amnesty_s + max(lease.ttl_s, RESUME_S))

    def _wait(self, key: Key, lease: _Lease) -> None:
        self._number += 1
        lease.number, lease.queued_s = self._number, self._end(lease)
        heapq.heappush(self._queue, (lease.queued_s, self._number, key))

    def _counts(self, element: tuple[float, int, Key]) -> bool:
        lease = self._leases.get(element[2])
        return lease is not None and lease.number == element[1]


class Silence(Generic[Key]):
    """Judges who is silent for good: whose lease was over at one look and still is at the next, with proof in between
    that this node leads. What had arrived, or waited for that proof, is heard of meanwhile. If the proof fails or takes
    long, everybody gets a whole lease: holders have waited as long, and may have turned elsewhere."""

    def __init__(
        self,
        over: Callable[[], list[Key]],
        amnesty: Callable[[], None],
        read: Callable[[Callable[[bool], None]], None],
        clock: Callable[[], float],
    ) -> None:
        """``over``: whose lease is over now; ``read``: calls back once it is certain whether this node leads."""
        self._over = over
        self._amnesty = amnesty
        self._read = read
        self._clock = clock
        self._suspects: frozenset[Key] = frozenset()  # whose leases were over when the proof was begun
        self._proving = self._proven = False

    def look(self) -> list[Key]:
        """Who is to be ended. To be called from time to time."""
        over = self._over()
        if self._proven:
            self._proven = False
            if silent := [key for key in over if key in self._suspects]:
                return silent
        if over and not self._proving:
            self._suspects, self._proving = frozenset(over), True
            self.prove(self._proved)
        return []

    def prove(self, done: Callable[[bool], None]) -> None:
        """Say whether it is certain that nobody else leads."""
        begun_s = self._clock()

        def proven(ok: bool) -> None:
            if not ok or self._clock() - begun_s > SLOW_S:
                self._amnesty()
            done(ok)

        self._read(proven)

    def _proved(self, ok: bool) -> None:
        self._proving, self._proven = False, ok
