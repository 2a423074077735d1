"""A listing in pages, forward by the cursor of the SDK, and some pages back from memory. Pure.

Only the pages that were looked at are read, so ten million records cost as much as a hundred.
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator
from typing import Final, Generic, TypeVar

import msgspec

Record = TypeVar("Record")
ROWS_MAX: Final = 200
"""More rows are not read by a person, and make the browser slow."""
PAGE_BYTES_MAX: Final = 4 * 1024 * 1024
"""A page of large records is shorter: it has so many bytes, and the record that goes beyond."""
KEPT_MAX: Final = 20
"""Pages to go back to: some thousand records in memory for each open page of the console."""
KEPT_BYTES_MAX: Final = 16 * 1024 * 1024
"""Of these together, but for the last."""


def size_of(record: object) -> int:
    """About how many bytes a record takes."""
    return len(msgspec.msgpack.encode(record))


class Pager(Generic[Record]):
    """Pages of a listing. :meth:`forward` reads the first one; an error ends it for good."""

    def __init__(self, records: AsyncIterator[Record], rows_max: int = ROWS_MAX, kept_max: int = KEPT_MAX) -> None:
        self._records = records
        self._rows_max = rows_max
        self._kept: deque[list[Record]] = deque(maxlen=kept_max)
        self._sizes: deque[int] = deque(maxlen=kept_max)  # of these, in bytes
        self._at = -1  # in what is kept
        self._read = 0  # pages in all
        self._ahead: list[Record] = []  # one record behind the last page says that there are more
        self._ended = False
        self._broken: Exception | None = None

    @property
    def rows(self) -> list[Record]:
        """The page that is shown; empty before the first."""
        return self._kept[self._at] if self._kept else []

    @property
    def number(self) -> int:
        """Of the page that is shown; the first one is 1, and 0 says that nothing was read."""
        return self._read - (len(self._kept) - 1 - self._at)

    @property
    def has_more(self) -> bool:
        """Whether there is a page behind this one."""
        return self._at < len(self._kept) - 1 or (bool(self._kept) and not self._ended)

    @property
    def has_back(self) -> bool:
        """Whether the page before is still in memory."""
        return self._at > 0

    async def forward(self) -> bool:
        """Show the next page; whether it was read for that, and not kept. Raises what the listing raises, and again
        after that."""
        if self._broken is not None:
            raise self._broken
        if self._at < len(self._kept) - 1:
            self._at += 1
            return False
        if self._ended:
            return False
        try:
            found = await self._page()
        except BaseException as error:
            # The iterator is over then. A caller that goes on must not take that for the end of the records.
            self._broken = error if isinstance(error, Exception) else RuntimeError("the page was not read to its end")
            raise
        self._kept.append(found)
        self._sizes.append(sum(map(size_of, found)))
        while len(self._kept) > 1 and sum(self._sizes) > KEPT_BYTES_MAX:
            self._kept.popleft()
            self._sizes.popleft()
        self._at, self._read = len(self._kept) - 1, self._read + 1
        return True

    def back(self) -> None:
        """Show the page before, if it is still in memory."""
        self._at = max(0, self._at - 1) if self._kept else -1

    async def close(self) -> None:
        """Let the listing go."""
        close = getattr(self._records, "aclose", None)
        if close is not None:
            await close()

    async def _page(self) -> list[Record]:
        found, self._ahead = self._ahead, []
        size = sum(map(size_of, found))
        async for record in self._records:
            if len(found) == self._rows_max or size > PAGE_BYTES_MAX:
                self._ahead = [record]
                return found
            found.append(record)
            size += size_of(record)
        self._ended = True
        return found
