"""Listings: page after page, of one group, or of several groups in one order."""

from __future__ import annotations

import heapq
import math
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from functools import partial
from operator import attrgetter
from typing import Any, Generic, TypeAlias, TypeVar

from msgspec import convert
from msgspec.structs import fields

from metad_wire.messages import LIST_LIMIT_MAX, ListReply, Message, Page, Revision
from metad_wire.methods import Method
from metad_wire.text.fields import Limit

from ..dispatch.calls.call import Call
from ..errors import StaleRouteError
from ..results import newest
from .requests import Requests
from .wrong import argument, fresh

Record = TypeVar("Record")
Key: TypeAlias = "tuple[str | int, ...]"
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
        page: Page,
        deadline_s: float | None,
        freshness_ms: int,
        *,
        follows: bool,
    ) -> None:
        self._follows = follows
        self.moved = False
        self._requests = requests
        self._method = method
        self._group = group
        self._body_of = body_of
        self._page = page
        self._deadline_s = deadline_s
        self._freshness_ms = freshness_ms
        self._call: Call | None = None
        self._complete = False
        self.records: Sequence[Record] = ()
        self.read = 0  # of these

    def ask(self) -> None:
        """Ask for the next page."""
        body = self._body_of(self._page)
        self._call = self._requests.begin(
            self._method, body, self._deadline_s, self._group, freshness_ms=self._freshness_ms
        )

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
            self.records, self.read = reply.found, 0
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


class Listing(Generic[Record]):
    """The listing of such records that a method is for, as its table declares it."""

    def __init__(self, method: Method[Any, ListReply[Record]], names: Sequence[str] = (), *, alike: int = 0) -> None:
        """``names``: the fields by which the records are in order, if not by those of the table. ``alike``: how many
        fields are in front of them that the request gives and all records share."""
        names = names or method.table.listed[method].order
        self._method, self._alike = method, alike
        order: Callable[[Record], Any] = attrgetter(*names)
        self._key_of: Callable[[Record], Key] = order if len(names) > 1 else lambda record: (order(record),)
        self._after = next((field.type for field in fields(method.body) if field.name == "after"), None)

    async def of_group(
        self,
        requests: Requests,
        page_size: int,
        deadline_s: float | None,
        min_revisions: Sequence[Revision] | None = None,
        freshness_ms: int = 0,
        /,
        **asked: Any,
    ) -> AsyncGenerator[Record, None]:
        """What one group lists, in order. The deadline is each page's."""
        body_of = self._body_of(asked, min_revisions)
        argument("page_size", page_size, Limit)
        freshness_ms = fresh(freshness_ms)
        group = await requests.group_of(self._method, body_of(Page()), deadline_s)
        page = Page(page_size)
        pages: _Pages[Record] = _Pages(
            requests, self._method, group, body_of, page, deadline_s, freshness_ms, follows=True
        )
        while await pages.more():
            for record in pages.records:
                yield record

    async def of_all_groups(
        self,
        requests: Requests,
        page_size: int,
        deadline_s: float | None,
        min_revisions: Sequence[Revision] | None = None,
        freshness_ms: int = 0,
        /,
        **asked: Any,
    ) -> AsyncGenerator[Record, None]:
        """What all groups list, in one order. Each group's leader is asked for its share of a page, and for more once
        that share is used up: so no record is read twice, and few pages wait for a second answer of a group.

        No record is left out or comes twice while slots move. A request names the slots that are wanted of the group,
        as a bit map, and the key behind which the listing begins (None: at its begin). If a group no longer holds them,
        the listing goes on behind its last record with a newer map."""
        body_of = self._body_of(asked, min_revisions)
        argument("page_size", page_size, Limit)
        freshness_ms = fresh(freshness_ms)
        behind: dict[str, Any] = {}
        while True:
            slots = await requests.slots(self._method, deadline_s)
            page = Page(_share(page_size, len(slots)))
            streams: list[_Pages[Record]] = [
                _Pages(
                    requests,
                    self._method,
                    group,
                    partial(body_of, slots=held, **behind),
                    page,
                    deadline_s,
                    freshness_ms,
                    follows=False,
                )
                for group, held in slots.items()
            ]
            merged, last = _merged(streams, self._key_of), None
            try:
                async with aclosing(merged):
                    async for record in merged:
                        last = record
                        yield record
                return
            except StaleRouteError:
                if not any(stream.moved for stream in streams):
                    raise
            if last is not None:
                key = (*asked["fields"][: self._alike], *self._key_of(last)) if self._alike else self._key_of(last)
                behind = {"after": key[0] if self._after is str else convert(key, self._after)}

    def _body_of(self, asked: dict[str, Any], min_revisions: Sequence[Revision] | None) -> Callable[..., Message]:
        if min_revisions is not None:
            asked["min_revisions"] = newest(min_revisions)
        return lambda page, **more: self._method.body(page=page, **asked, **more)


def _share(page_size: int, groups: int) -> int:
    """How many records a group is asked for at a time. A page has ``mean`` of each group on average, and hashes spread
    them so that few groups have two standard deviations more. A group that has more costs the page a round trip of its
    own, behind those before it."""
    mean = page_size / groups
    return page_size if groups == 1 else min(page_size, math.ceil(mean + 2 * math.sqrt(mean)) + 1)


class Counting:
    """Counts what a listing would list, by the method that counts. No record counts twice, or not at all, because slots
    move: each slot is counted on behind the same cursor by the group that has it now."""

    def __init__(self, method: Method[Any, Any]) -> None:
        self._method = method

    async def totals(
        self,
        requests: Requests,
        deadline_s: float | None,
        min_revisions: Sequence[Revision],
        freshness_ms: int = 0,
        /,
        *,
        one_group: bool,
        **asked: Any,
    ) -> AsyncGenerator[int, None]:
        """How many were counted so far, after each round of answers. The deadline is each answer's."""
        revisions, freshness_ms = newest(min_revisions), fresh(freshness_ms)

        def body_of(slots: bytes = b"", cursor: bytes = b"") -> Message:
            body: Message = self._method.body(
                page=Page(LIST_LIMIT_MAX, cursor), slots=slots, min_revisions=revisions, **asked
            )
            return body

        places = await self._places(requests, body_of, deadline_s, one_group=one_group)
        left = [(group, slots, b"") for group, slots in places.items()]
        total = 0
        while left:
            parts, left, moved = left, [], []
            calls = [
                requests.begin(self._method, body_of(slots, cursor), deadline_s, group, freshness_ms=freshness_ms)
                for group, slots, cursor in parts
            ]
            try:
                for (group, slots, cursor), call in zip(parts, calls, strict=True):
                    try:
                        reply = await requests.reply(call)
                    except StaleRouteError:
                        if not call.moved:
                            raise
                        moved.append((slots, cursor))
                        continue
                    total += reply.count
                    if reply.cursor:
                        left.append((group, slots, reply.cursor))
            finally:
                for call in calls:
                    requests.abandon(call)
            if moved:
                places = await self._places(requests, body_of, deadline_s, one_group=one_group)
                for slots, cursor in moved:
                    left += [(group, both, cursor) for group, held in places.items() if (both := _common(slots, held))]
            yield total

    async def _places(
        self, requests: Requests, body_of: Callable[..., Message], deadline_s: float | None, *, one_group: bool
    ) -> dict[str, bytes]:
        """The groups that are asked, and for which slots: bit maps; all that it is about if it is one group."""
        if one_group:
            return {await requests.group_of(self._method, body_of(), deadline_s): b""}
        return await requests.slots(self._method, deadline_s)


def _common(slots: bytes, held: bytes) -> bytes | None:
    """The slots in two bit maps, both empty for what is not about slots; None if there are none."""
    both = bytes(one & other for one, other in zip(slots, held, strict=True))
    return both if any(both) or not slots else None


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
