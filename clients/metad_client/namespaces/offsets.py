"""``m.offsets``: how far consumer groups have read."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing
from typing import TypeAlias

from metad_wire import methods
from metad_wire.messages import (
    ConsumerGroup,
    GenerationReset,
    Offset,
    OffsetCommit,
    OffsetCommitItem,
    OffsetDelete,
    OffsetFetch,
    OffsetFetchReply,
    OffsetGenerations,
    OffsetGenerationsReply,
    OffsetKey,
    OffsetList,
    OffsetResetGenerations,
    Revision,
)

from ..errors import MetadError, NotFoundError
from ..requests.listing import of_group
from ..requests.outcomes import with_errors, wrote
from ..results import WriteResult, by_position, newest
from .facade import Facade

Fetched: TypeAlias = list[Offset | None]

_DELETED_AT_ONCE = 1_000


class Offsets(Facade):
    """Offsets by (tenant, group, topic, partition).

    The ``*_many`` verbs answer per item in their result and raise a MetadError only where the whole call failed;
    the others raise their item's error. Singles that are called at the same time travel together. ``deadline_s``
    is seconds from now, None the client's default. A read waits for its groups to have come as far as ``min_revisions``
    say, of the results of writes; what was answered before it began it sees without them.
    """

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

    async def fetch_many(
        self, keys: Sequence[OffsetKey], *, min_revisions: Sequence[Revision] = (), deadline_s: float | None = None
    ) -> Fetched:
        """The offsets by position; None where nothing was committed."""
        wanted = newest(min_revisions)
        pieces = await self._requests.read_many(
            methods.OFFSET_FETCH, keys, lambda part: OffsetFetch(part, wanted), deadline_s
        )
        return by_position(pieces, lambda reply: reply.offsets, None)

    async def delete_many(self, keys: Sequence[OffsetKey], *, deadline_s: float | None = None) -> WriteResult:
        """Forget offsets. Item errors: NotFoundError."""
        return WriteResult(await self._requests.many(methods.OFFSET_DELETE, keys, OffsetDelete, deadline_s))

    async def generations_many(
        self,
        groups: Sequence[ConsumerGroup],
        *,
        min_revisions: Sequence[Revision] = (),
        deadline_s: float | None = None,
    ) -> Sequence[int]:
        """The highest generation that a commit of each consumer group has carried, by position; 0 where none did."""
        wanted = newest(min_revisions)
        pieces = await self._requests.read_many(
            methods.OFFSET_GENERATIONS, groups, lambda part: OffsetGenerations(part, wanted), deadline_s
        )
        return by_position(pieces, lambda reply: reply.generations, 0)

    async def reset_generations_many(
        self, items: Sequence[GenerationReset], *, deadline_s: float | None = None
    ) -> WriteResult:
        """Set the generations of consumer groups, also back. Item errors: ConflictError (``expected`` differs)."""
        return WriteResult(
            await self._requests.many(methods.OFFSET_RESET_GENERATIONS, items, OffsetResetGenerations, deadline_s)
        )

    async def list(
        self,
        tenant: str,
        group: str,
        topic_prefix: str = "",
        *,
        page_size: int = 1000,
        min_revisions: Sequence[Revision] = (),
        deadline_s: float | None = None,
    ) -> AsyncIterator[Offset]:
        """Offsets of one consumer group in order of (topic, partition), read a page at a time; the deadline is
        each page's."""
        wanted = newest(min_revisions)
        listing = of_group(
            self._requests,
            methods.OFFSET_LIST,
            lambda page: OffsetList(tenant, group, topic_prefix, page, wanted),
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
        self,
        tenant: str,
        group: str,
        topic: str,
        partition: int,
        *,
        min_revisions: Sequence[Revision] = (),
        deadline_s: float | None = None,
    ) -> Offset | None:
        """One offset, None where nothing was committed."""
        wanted = newest(min_revisions)
        return await self._requests.single(
            methods.OFFSET_FETCH,
            tuple(wanted),
            OffsetKey(tenant, group, topic, partition),
            _size(tenant, group, topic),
            lambda items: OffsetFetch(items, wanted),
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

    async def generation(
        self,
        tenant: str,
        group: str,
        *,
        min_revisions: Sequence[Revision] = (),
        deadline_s: float | None = None,
    ) -> int:
        """The highest generation that a commit of a consumer group has carried; 0 where none did."""
        wanted = newest(min_revisions)
        return await self._requests.single(
            methods.OFFSET_GENERATIONS,
            tuple(wanted),
            ConsumerGroup(tenant, group),
            _size(tenant, group, ""),
            lambda items: OffsetGenerations(items, wanted),
            _generations,
            deadline_s,
        )

    async def reset_generation(
        self, tenant: str, group: str, expected: int, generation: int = 0, *, deadline_s: float | None = None
    ) -> None:
        """Set the generation of a consumer group, also back, where it is ``expected`` now: commits of lower ones are
        fenced from then on, and of this one and higher ones are not. Raises ConflictError."""
        await self._requests.single(
            methods.OFFSET_RESET_GENERATIONS,
            None,
            GenerationReset(tenant, group, expected, generation),
            _size(tenant, group, ""),
            OffsetResetGenerations,
            wrote,
            deadline_s,
        )

    async def delete_group(self, tenant: str, group: str, *, deadline_s: float | None = None) -> int:
        """Delete all offsets of a consumer group, then its generation; returns how many offsets were deleted.

        Made of many requests, each with the deadline: what a consumer commits meanwhile may stay or go. Raises
        ConflictError where the group's generation grew meanwhile: it is alive.
        """
        generation = await self.generation(tenant, group, deadline_s=deadline_s)
        deleted = 0
        found: list[OffsetKey] = []

        async def delete() -> int:
            result = await self.delete_many(found, deadline_s=deadline_s)
            absent = sum(isinstance(error, NotFoundError) for error in result.errors.values())
            if absent < len(result.errors):
                raise next(error for error in result.errors.values() if not isinstance(error, NotFoundError))
            return len(found) - absent

        listing = self.list(tenant, group, page_size=_DELETED_AT_ONCE, deadline_s=deadline_s)
        async with aclosing(listing):  # type: ignore[type-var]
            async for offset in listing:
                found.append(OffsetKey(tenant, group, offset.topic, offset.partition))
                if len(found) == _DELETED_AT_ONCE:
                    deleted += await delete()
                    found.clear()
        if found:
            deleted += await delete()
        await self.reset_generation(tenant, group, generation, deadline_s=deadline_s)
        return deleted


def _size(tenant: str, group: str, topic: str) -> int:
    return 32 + len(tenant) + len(group) + len(topic)


def _fetched(items: list[OffsetKey], reply: OffsetFetchReply) -> list[Offset | MetadError | None]:
    return with_errors(reply.offsets, ())


def _generations(items: list[ConsumerGroup], reply: OffsetGenerationsReply) -> list[int | MetadError]:
    return with_errors(reply.generations, ())
