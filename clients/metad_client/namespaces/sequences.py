"""``m.sequences``: counters by (namespace, sequence), which are only added to."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing
from typing import TypeAlias

from metad_wire import methods
from metad_wire.messages import Revision
from metad_wire.tables.sequence import (
    SequenceAdd,
    SequenceAddItem,
    SequenceAddReply,
    SequenceDelete,
    SequenceGet,
    SequenceGetReply,
    SequenceKey,
    SequenceList,
    SequenceRecord,
)

from ..errors import MetadError
from ..requests.listing import of_group
from ..requests.outcomes import with_errors, wrote
from ..results import AddResult, ReadResult, WriteResult, newest
from . import Facade

Found: TypeAlias = ReadResult[SequenceRecord | None]


class Sequences(Facade):
    """Sequences by (namespace, sequence).

    A ``*_many`` method reports errors per item in its result, and raises a MetadError only if the whole call failed. An
    item that is wrong by itself is an InvalidItemError. The other methods raise the error of their item; those called
    at the same time share a request. ``deadline_s`` counts from now, and None means the client's default.
    """

    async def add_many(self, items: Sequence[SequenceAddItem], *, deadline_s: float | None = None) -> AddResult:
        """Add to sequences. The result has their new ``values``: with a delta of 100, the 100 numbers up to the value
        are the caller's. Item errors: ConflictError (the value would be below 0, or over 63 bits)."""
        return AddResult(await self._requests.many(methods.SEQUENCE_ADD, items, SequenceAdd, deadline_s))

    async def get_many(
        self, keys: Sequence[SequenceKey], *, min_revisions: Sequence[Revision] = (), deadline_s: float | None = None
    ) -> Found:
        """Read sequences, by position; None for one that does not exist."""
        wanted = newest(min_revisions)
        pieces = await self._requests.many(
            methods.SEQUENCE_GET, keys, lambda part: SequenceGet(part, wanted), deadline_s
        )
        return ReadResult(pieces, lambda reply: reply.sequences, None)

    async def delete_many(self, keys: Sequence[SequenceKey], *, deadline_s: float | None = None) -> WriteResult:
        """Delete sequences: they begin again. Item errors: NotFoundError."""
        return WriteResult(await self._requests.many(methods.SEQUENCE_DELETE, keys, SequenceDelete, deadline_s))

    async def list(
        self,
        namespace: str,
        prefix: str = "",
        *,
        page_size: int = 1000,
        min_revisions: Sequence[Revision] = (),
        deadline_s: float | None = None,
    ) -> AsyncIterator[SequenceRecord]:
        """Sequences whose names start with ``prefix``, in order, read a page at a time; the deadline is each page's."""
        wanted = newest(min_revisions)
        listing = of_group(
            self._requests,
            methods.SEQUENCE_LIST,
            lambda page: SequenceList(namespace, prefix, page, wanted),
            lambda reply: reply.sequences,
            page_size,
            deadline_s,
        )
        async with aclosing(listing):
            async for record in listing:
                yield record

    async def add(self, namespace: str, sequence: str, delta: int = 1, *, deadline_s: float | None = None) -> int:
        """Add to one sequence; returns its new value, as :meth:`add_many` does. Raises ConflictError."""
        item = SequenceAddItem(namespace, sequence, delta)
        return await self._requests.single(methods.SEQUENCE_ADD, None, item, _size, SequenceAdd, _added, deadline_s)

    async def get(
        self,
        namespace: str,
        sequence: str,
        *,
        min_revisions: Sequence[Revision] = (),
        deadline_s: float | None = None,
    ) -> SequenceRecord | None:
        """One sequence, None where there is none."""
        wanted = newest(min_revisions)
        return await self._requests.single(
            methods.SEQUENCE_GET,
            tuple(wanted),
            SequenceKey(namespace, sequence),
            _size,
            lambda items: SequenceGet(items, wanted),
            _got,
            deadline_s,
        )

    async def delete(self, namespace: str, sequence: str, *, deadline_s: float | None = None) -> None:
        """Delete one sequence. Raises NotFoundError."""
        item = SequenceKey(namespace, sequence)
        await self._requests.single(methods.SEQUENCE_DELETE, None, item, _size, SequenceDelete, wrote, deadline_s)


def _size(item: SequenceKey | SequenceAddItem) -> int:
    return 24 + len(item.namespace) + len(item.sequence)


def _added(items: list[SequenceAddItem], reply: SequenceAddReply) -> list[int | MetadError]:
    return with_errors(reply.values, reply.errors)


def _got(items: list[SequenceKey], reply: SequenceGetReply) -> list[SequenceRecord | MetadError | None]:
    return with_errors(reply.sequences, reply.errors)
