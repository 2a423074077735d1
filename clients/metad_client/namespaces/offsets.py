"""``m.offsets``: the committed offsets of consumer groups."""

from __future__ import annotations

from collections.abc import Sequence

from metad_wire import methods
from metad_wire.messages import (
    ConsumerGroup,
    GenerationReset,
    OffsetCommitItem,
    Revision,
)
from metad_wire.tables.offset import OffsetDeleteGroupsReply

from ..errors import MetadError
from ..requests.batcher import with_errors
from ..requests.requests import Verb
from ..results import ReadResult, WriteResult
from .declared import _OffsetDeclared


class Offsets(_OffsetDeclared):
    """Offsets by (tenant, group, topic, partition).

    A ``*_many`` method reports errors per item in its result, and raises a MetadError only if the whole call failed. An
    item that is wrong by itself (a key or value is too long, a field of a wrong type) is an InvalidItemError.
    The other methods raise the error of their item; those called at the same time share a request. ``deadline_s``
    counts from now, and None means the client's default. A read sees every write that was answered before the read
    began. With ``min_revisions``, from the results of other writes, it also waits until its groups have reached them.
    With ``freshness_ms`` the nearest replica answers that can prove that it has all that was acknowledged so long
    before, or else the leader.
    A key that ``fetch_many`` could not read has the value of an absent record: ``raise_for_error`` tells them apart.
    """

    async def commit_many(
        self,
        items: Sequence[OffsetCommitItem],
        *,
        monotonic: bool = False,
        member: str = "",
        deadline_s: float | None = None,
    ) -> WriteResult:
        """Commit offsets. ``monotonic`` refuses an offset below the current one. ``member``: in whose name; it must be
        a member of the consumer groups.

        Item errors: FencedError (a newer generation has begun or has committed, or there is no such member),
        ConflictError (``expected`` differs), OffsetRegressionError.
        """
        return WriteResult(await _COMMIT.many(self._requests, items, deadline_s, monotonic=monotonic, member=member))

    async def generations_many(
        self,
        groups: Sequence[ConsumerGroup],
        *,
        min_revisions: Sequence[Revision] = (),
        freshness_ms: int = 0,
        deadline_s: float | None = None,
    ) -> ReadResult[int]:
        """Read the highest generation that has committed in each consumer group, by position; 0 if none has."""
        return await _GENERATIONS.read(self._requests, groups, deadline_s, min_revisions, freshness_ms)

    async def reset_generations_many(
        self, items: Sequence[GenerationReset], *, deadline_s: float | None = None
    ) -> WriteResult:
        """Set the generations of consumer groups, even to lower ones. Item errors: ConflictError (``expected``
        differs)."""
        return WriteResult(await _RESET_GENERATIONS.many(self._requests, items, deadline_s))

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
        member: str = "",
        deadline_s: float | None = None,
    ) -> None:
        """Commit one offset, as :meth:`commit_many` does. With ``expected`` it is a compare-and-set; -1 expects that
        there is no offset yet."""
        await _COMMIT.one(
            self._requests,
            OffsetCommitItem(tenant, group, topic, partition, offset, generation, expected, metadata),
            deadline_s,
            monotonic=monotonic,
            member=member,
        )

    async def generation(
        self,
        tenant: str,
        group: str,
        *,
        min_revisions: Sequence[Revision] = (),
        freshness_ms: int = 0,
        deadline_s: float | None = None,
    ) -> int:
        """Read the highest generation that has committed in a consumer group; 0 if none has."""
        return await _GENERATIONS.one_read(
            self._requests, ConsumerGroup(tenant, group), deadline_s, min_revisions, freshness_ms
        )

    async def reset_generation(
        self, tenant: str, group: str, expected: int, generation: int = 0, *, deadline_s: float | None = None
    ) -> None:
        """Set the generation of a consumer group, even to a lower one, if it is ``expected`` now. Later commits of
        lower generations are fenced. Raises ConflictError."""
        await _RESET_GENERATIONS.one(self._requests, GenerationReset(tenant, group, expected, generation), deadline_s)

    async def delete_group(self, tenant: str, group: str, *, deadline_s: float | None = None) -> int:
        """Delete everything of a consumer group without members: its offsets, and at last its generation. Returns the
        number of offsets deleted. The call makes as many requests as it takes, each with this deadline; called again,
        it goes on. Raises ConflictError if the group has members."""
        total, left = 0, True
        while left:
            deleted, left = await _DELETE_GROUPS.one(self._requests, ConsumerGroup(tenant, group), deadline_s)
            total += deleted
        return total


def _deleted(items: list[ConsumerGroup], reply: OffsetDeleteGroupsReply) -> list[tuple[int, bool] | MetadError]:
    """How many offsets, and whether there are more."""
    return with_errors(list(zip(reply.deleted, reply.left, strict=True)), reply.errors)


_COMMIT: Verb[OffsetCommitItem, None] = Verb(methods.OFFSET_COMMIT)
_GENERATIONS: Verb[ConsumerGroup, int] = Verb(methods.OFFSET_GENERATIONS)
_RESET_GENERATIONS: Verb[GenerationReset, None] = Verb(methods.OFFSET_RESET_GENERATIONS)
_DELETE_GROUPS: Verb[ConsumerGroup, tuple[int, bool]] = Verb(methods.OFFSET_DELETE_GROUPS, _deleted)
