"""Listings: page after page, of one group, or of several groups in one order."""

from __future__ import annotations

import heapq
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from functools import partial
from typing import Any, Generic, TypeVar

from metad_wire.messages import Message, Page
from metad_wire.methods import Method
from metad_wire.text.fields import Limit

from ..dispatch.calls.call import Call
from ..errors import StaleRouteError
from .requests import Requests
from .wrong import argument

Body = TypeVar("Body", bound=Message)
Reply = TypeVar("Reply", bound=Message)
Record = TypeVar("Record")
Key = TypeVar("Key", bound="Sequence[str | int] | str")
"""What tells the records of a listing apart, in their order."""


class _Pages(Generic[Record]):
    """The pages of one group, and how far they were read. If slots have moved that the request is about, there is a
    newer map, and ``follows`` is set, the records go on in the group that has them now. If it is not set, :meth:`more`
    raises StaleRouteError, and sets ``moved``."""

    def __init__(
        self,
        requests: Requests,
        method: Method[Any, Any],
        group: str,
        body_of: Callable[[Page], Message],
        records_of: Callable[[Any], Sequence[Record]],
        page: Page,
        deadline_s: float | None,
        *,
        follows: bool,
    ) -> None:
        self._follows = follows
        self.moved = False
        self._requests = requests
        self._method = method
        self._group = group
        self._body_of = body_of
        self._records_of = records_of
        self._page = page
        self._deadline_s = deadline_s
        self._call: Call | None = None
        self._complete = False
        self.records: Sequence[Record] = ()
        self.read = 0  # of these

    def ask(self) -> None:
        """Ask for the next page."""
        self._call = self._requests.begin(self._method, self._body_of(self._page), self._deadline_s, self._group)

    async def more(self) -> bool:
        """Make ``records`` the next ones; False if none are left."""
        while not self._complete:
            if self._call is None:
                self.ask()
            assert self._call is not None
            try:
                reply = await self._requests.reply(self._call)
            except StaleRouteError:
                if not self._call.moved:
                    raise
                self._call = None
                if not self._follows:
                    self.moved = True
                    raise
                body = self._body_of(self._page)
                self._group = await self._requests.group_of(self._method, body, self._deadline_s)
                continue
            self._call = None
            self.records, self.read = self._records_of(reply), 0
            self._page = Page(self._page.limit, reply.cursor)
            self._complete = not reply.cursor
            if self.records:
                return True
        self.records = ()
        return False

    def abandon(self) -> None:
        """Cancel the question for the next page."""
        if self._call is not None:
            self._requests.abandon(self._call)


async def of_group(
    requests: Requests,
    method: Method[Body, Reply],
    body_of: Callable[[Page], Body],
    records_of: Callable[[Reply], Sequence[Record]],
    page_size: int,
    deadline_s: float | None,
) -> AsyncGenerator[Record, None]:
    """A listing that one group answers, in order."""
    argument("page_size", page_size, Limit)
    group = await requests.group_of(method, body_of(Page()), deadline_s)
    page = Page(page_size)
    pages: _Pages[Record] = _Pages(requests, method, group, body_of, records_of, page, deadline_s, follows=True)
    while await pages.more():
        for record in pages.records:
            yield record


async def of_all_groups(
    requests: Requests,
    method: Method[Body, Reply],
    body_of: Callable[[bytes, Key | None, Page], Body],
    records_of: Callable[[Reply], Sequence[Record]],
    key_of: Callable[[Record], Key],
    page_size: int,
    deadline_s: float | None,
) -> AsyncGenerator[Record, None]:
    """A listing that is spread over all groups, in order of ``key_of``. Each group's leader is asked for its share of a
    page, and for more once that share is used up: so no record is read twice.

    No record is left out or comes twice while slots move. A request names the slots that are wanted of the group, as a
    bit map, and the key behind which the listing begins (None: at its begin). If a group no longer holds them, the
    listing goes on behind its last record with a newer map."""
    argument("page_size", page_size, Limit)
    last: Key | None = None
    while True:
        slots = await requests.slots(method, deadline_s)
        page = Page(-(-page_size // len(slots)))
        streams: list[_Pages[Record]] = [
            _Pages(requests, method, group, partial(body_of, held, last), records_of, page, deadline_s, follows=False)
            for group, held in slots.items()
        ]
        merged = _merged(streams, key_of)
        try:
            async with aclosing(merged):
                async for record in merged:
                    last = key_of(record)
                    yield record
            return
        except StaleRouteError:
            if not any(stream.moved for stream in streams):
                raise


async def _merged(streams: list[_Pages[Record]], key_of: Callable[[Record], Key]) -> AsyncGenerator[Record, None]:
    """The records of all streams in order of ``key_of``."""
    try:
        for stream in streams:
            stream.ask()
        heap: list[tuple[Any, int]] = []  # (key of a group's next record, which group)
        for number, stream in enumerate(streams):
            if await stream.more():
                heap.append((key_of(stream.records[0]), number))
        heapq.heapify(heap)
        while heap:
            number = heap[0][1]
            stream = streams[number]
            yield stream.records[stream.read]
            stream.read += 1
            if stream.read < len(stream.records) or await stream.more():
                heapq.heapreplace(heap, (key_of(stream.records[stream.read]), number))
            else:
                heapq.heappop(heap)
    finally:
        for stream in streams:
            stream.abandon()
