"""The queue of writes in front of one group, shared fairly between the connections that fill it.

A connection may have a window full of requests here, a thousand items each. In one common line, another client's
request would wait until all of them are done. So every source has a line of its own, and the lines take turns: each
turn is worth :data:`SHARE_ITEMS` items. The requests of one source keep their order.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from typing import Generic, Protocol, TypeVar

from .precedence import SMALL_ITEMS

SHARE_ITEMS = SMALL_ITEMS
"""Items of one turn. A turn ends after the request that reaches it, so a large request is a turn of its own."""


class Queued(Protocol):
    """A request in the queue."""

    source: object
    """The sender: hashable, and the same object for each of its requests."""

    @property
    def items(self) -> int:
        """The amount of work."""


WorkT = TypeVar("WorkT", bound=Queued)


class FairQueue(Generic[WorkT]):
    """Lines that take turns. The caller that fills the queue bounds it."""

    def __init__(self) -> None:
        self.items = 0
        """The items of all waiting requests."""
        self._lines: dict[object, deque[WorkT]] = {}
        self._turns: deque[object] = deque()  # the sources, each once
        self._left = SHARE_ITEMS  # of the first source's turn
        self._back: deque[WorkT] = deque()  # given back: first, whatever their source

    def __bool__(self) -> bool:
        return bool(self._turns or self._back)

    def __iter__(self) -> Iterator[WorkT]:
        yield from self._back
        for source in self._turns:
            yield from self._lines[source]

    @property
    def given_back(self) -> bool:
        """Whether the first request was taken before."""
        return bool(self._back)

    def add(self, work: WorkT) -> None:
        """Append a request to its source's line."""
        line = self._lines.get(work.source)
        if line is None:
            self._lines[work.source] = deque((work,))
            self._turns.append(work.source)
        else:
            line.append(work)
        self.items += work.items

    def first(self) -> WorkT:
        """The request that :meth:`pop` takes next. The queue must not be empty."""
        return self._back[0] if self._back else self._lines[self._turns[0]][0]

    def pop(self) -> WorkT:
        """Take the first request."""
        if self._back:
            work = self._back.popleft()
            self.items -= work.items
            return work
        source = self._turns[0]
        line = self._lines[source]
        work = line.popleft()
        self.items -= work.items
        self._left -= work.items
        if not line:
            del self._lines[source]
            self._turns.popleft()
            self._left = SHARE_ITEMS
        elif self._left <= 0:
            self._turns.rotate(-1)
            self._left = SHARE_ITEMS
        return work

    def skip(self) -> bool:
        """End the turn of the first source; returns whether another source is first now."""
        if self._back or len(self._turns) < 2:
            return False
        self._turns.rotate(-1)
        self._left = SHARE_ITEMS
        return True

    def give_back(self, works: Iterable[WorkT]) -> None:
        """Put the requests taken last in front again, in their order."""
        works = list(works)
        self._back.extendleft(reversed(works))
        self.items += sum(work.items for work in works)

    def put_back(self, works: Iterable[WorkT], after: object) -> None:
        """Put the requests taken last back into the lines of their sources, because what source ``after`` asked was as
        much work as a turn is worth, whatever its items said: the turn is over, and the others are next."""
        works = list(works)
        for work in reversed(works):
            self._lines.setdefault(work.source, deque()).appendleft(work)
            self.items += work.items
        waiting = dict.fromkeys(work.source for work in works) | dict.fromkeys(self._turns)
        is_waiting = after in waiting
        waiting.pop(after, None)
        self._turns = deque(waiting)
        if is_waiting:
            self._turns.append(after)
        self._left = SHARE_ITEMS

    def drain(self) -> list[WorkT]:
        """Take all requests."""
        works = list(self)
        self._lines.clear()
        self._turns.clear()
        self._back.clear()
        self.items, self._left = 0, SHARE_ITEMS
        return works
