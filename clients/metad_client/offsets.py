"""``m.offsets``: how far consumer groups have read."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing
from typing import TypeAlias

from metad_wire import methods
from metad_wire.messages import (
    Offset,
    OffsetCommit,
    OffsetCommitItem,
    OffsetDelete,
    OffsetFetch,
    OffsetFetchReply,
    OffsetKey,
    OffsetList,
)

from .errors import MetadError
from .listing import of_group
from .outcomes import with_errors, wrote
from .requests import Requests
from .results import WriteResult, by_position

Fetched: TypeAlias = list[Offset | None]


class Offsets:
    """Offsets by (tenant, group, topic, partition).

    The ``*_many`` verbs answer per item in their result and raise a MetadError only where the whole call failed;
    the others raise their item's error. Singles that are called at the same time travel together. ``deadline_s``
    is seconds from now, None the client's default.
    """

    def __init__(self, requests: Requests) -> None:
        self._requests = requests

    async def commit_many(
        self, items: Sequence[OffsetCommitItem], *, monotonic: bool = False, deadline_s: float | None = None
    ) -> WriteResult:
        """Commit offsets; ``monotonic`` refuses to move one back.

        Item errors: FencedError (a newer generation has been seen), ConflictError (``expected`` differs),
        OffsetRegressionError.
        """
        return WriteResult(
            await self._requests.many(
                methods.OFFSET_COMMIT, items, lambda part: OffsetCommit(part, monotonic), deadline_s
            )
        )

    async def fetch_many(self, keys: Sequence[OffsetKey], *, deadline_s: float | None = None) -> Fetched:
        """The offsets by position; None where nothing was committed."""
        pieces = await self._requests.read_many(methods.OFFSET_FETCH, keys, OffsetFetch, deadline_s)
        return by_position(pieces, lambda reply: reply.offsets, None)

    async def delete_many(self, keys: Sequence[OffsetKey], *, deadline_s: float | None = None) -> WriteResult:
        """Forget offsets. Item errors: NotFoundError."""
        return WriteResult(await self._requests.many(methods.OFFSET_DELETE, keys, OffsetDelete, deadline_s))

    async def list(
        self,
        tenant: str,
        group: str,
        topic_prefix: str = "",
        *,
        page_size: int = 1000,
        deadline_s: float | None = None,
    ) -> AsyncIterator[Offset]:
        """Offsets of one consumer group in order of (topic, partition), read a page at a time; the deadline is
        each page's."""
        listing = of_group(
            self._requests,
            methods.OFFSET_LIST,
            lambda page: OffsetList(tenant, group, topic_prefix, page),
            lambda reply: reply.offsets,
            page_size,
            deadline_s,
        )
        async with aclosing(listing):
            async for offset in listing:
                yield offset

    async def commit(
        self,
        tenant: str,
        group: str,
        topic: str,
        partition: int,
        offset: int,
        *,
        generation: int = 0,
        expected: int | None = None,
        metadata: str = "",
        monotonic: bool = False,
        deadline_s: float | None = None,
    ) -> None:
        """Commit one offset: see :meth:`commit_many`. ``expected`` (-1: no offset yet) makes it a compare-and-set."""
        await self._requests.single(
            methods.OFFSET_COMMIT,
            monotonic,
            OffsetCommitItem(tenant, group, topic, partition, offset, generation, expected, metadata),
            _size(tenant, group, topic) + len(metadata),
            lambda items: OffsetCommit(items, monotonic),
            wrote,
            deadline_s,
        )

    async def fetch(
        self, tenant: str, group: str, topic: str, partition: int, *, deadline_s: float | None = None
    ) -> Offset | None:
        """One offset, None where nothing was committed."""
        return await self._requests.single(
            methods.OFFSET_FETCH,
            None,
            OffsetKey(tenant, group, topic, partition),
            _size(tenant, group, topic),
            OffsetFetch,
            _fetched,
            deadline_s,
        )

    async def delete(
        self, tenant: str, group: str, topic: str, partition: int, *, deadline_s: float | None = None
    ) -> None:
        """Forget one offset. Raises NotFoundError."""
        await self._requests.single(
            methods.OFFSET_DELETE,
            None,
            OffsetKey(tenant, group, topic, partition),
            _size(tenant, group, topic),
            OffsetDelete,
            wrote,
            deadline_s,
        )


def _size(tenant: str, group: str, topic: str) -> int:
    return 32 + len(tenant) + len(group) + len(topic)


def _fetched(items: list[OffsetKey], reply: OffsetFetchReply) -> list[Offset | MetadError | None]:
    return with_errors(reply.offsets, ())
