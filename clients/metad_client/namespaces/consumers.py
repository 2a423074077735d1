"""``m.consumers``: the members of consumer groups. :mod:`metad_client.holding.membership` keeps one alive."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

from metad_wire import methods
from metad_wire.messages import ConsumerGroup, Revision
from metad_wire.tables.consumer import (
    AssignItem,
    Beat,
    ConsumerGroupInfo,
    ConsumerJoinReply,
    JoinItem,
    MemberAssignment,
    MemberKey,
    Protocols,
)

from ..errors import InvalidRequestError, MetadError
from ..requests.batcher import with_errors
from ..requests.requests import Verb
from ..requests.wrong import argument
from ..results import JoinResult, ReadResult, WriteResult
from .declared import _ConsumerDeclared

Beats: TypeAlias = ReadResult[Beat | None]
Described: TypeAlias = ReadResult[ConsumerGroupInfo | None]


class Consumers(_ConsumerDeclared):
    """Members by (tenant, group, member).

    A ``*_many`` method reports errors per item in its result, and raises a MetadError only if the whole call failed. An
    item that is wrong by itself (a name is too long, a time out of bounds) is an InvalidItemError. The other methods
    raise the error of their item; those called at the same time share a request. ``deadline_s`` counts from now, and
    None means the client's default. With ``freshness_ms`` the nearest replica answers a read that can prove that it has
    all that was acknowledged so long before, or else the leader. A program that is a member uses
    :meth:`metad_client.Client.consume`.
    """

    async def join_many(self, items: Sequence[JoinItem], *, deadline_s: float | None = None) -> JoinResult:
        """Become members, or join the next generation. Item errors: QuotaExceededError (the group is full),
        ConflictError (no protocol in common), FencedError (another has the place), NotFoundError."""
        return JoinResult(await _JOIN.many(self._requests, items, deadline_s))

    async def heartbeat_many(self, members: Sequence[MemberKey], *, deadline_s: float | None = None) -> Beats:
        """Say that members live. By position: what the group does, and for how many milliseconds from when this was
        called it is a member; None if it is none."""
        return await _HEARTBEAT.read(self._requests, members, deadline_s)

    async def assign_many(self, items: Sequence[AssignItem], *, deadline_s: float | None = None) -> WriteResult:
        """Store what the leaders of generations assign, each once. Item errors: FencedError (another generation),
        NotOwnerError (another leader), ConflictError (assigned, or a rebalance), NotFoundError."""
        return WriteResult(await _ASSIGN.many(self._requests, items, deadline_s))

    async def describe_many(
        self,
        groups: Sequence[ConsumerGroup],
        *,
        min_revisions: Sequence[Revision] = (),
        freshness_ms: int = 0,
        deadline_s: float | None = None,
    ) -> Described:
        """Read what consumer groups do, by position; None for one that never had a member."""
        return await _DESCRIBE.read(self._requests, groups, deadline_s, min_revisions, freshness_ms)

    async def join(
        self,
        tenant: str,
        group: str,
        session_ms: int,
        member: str = "",
        *,
        rebalance_ms: int = 60_000,
        instance: str = "",
        protocols: Sequence[str] = (),
        metadata: bytes = b"",
        holder: str = "",
        rebalance: bool = False,
        deadline_s: float | None = None,
    ) -> tuple[str, int]:
        """Become a member, or join the next generation. Returns the id, which the server makes if none is given, and
        the generation that the member is in or waits for."""
        known = protocols_of(protocols)
        item = JoinItem(tenant, group, session_ms, rebalance_ms, member, instance, known, metadata, holder, rebalance)
        return await _JOIN.one(self._requests, item, deadline_s)

    async def heartbeat(self, tenant: str, group: str, member: str, *, deadline_s: float | None = None) -> Beat | None:
        """Say that one member lives, as :meth:`heartbeat_many` does."""
        item = MemberKey(tenant, group, member)
        return await _HEARTBEAT.one(self._requests, item, deadline_s)

    async def assign(
        self,
        tenant: str,
        group: str,
        member: str,
        generation: int,
        assignments: Mapping[str, bytes],
        *,
        deadline_s: float | None = None,
    ) -> None:
        """Store what ``member``, the leader of a generation, assigns to its members, as :meth:`assign_many` does.
        Members that are not named get nothing."""
        argument("assignments", assignments, Mapping[str, bytes])
        what = [MemberAssignment(name, value) for name, value in assignments.items()]
        item = AssignItem(tenant, group, member, generation, what)
        await _ASSIGN.one(self._requests, item, deadline_s)

    async def describe(
        self,
        tenant: str,
        group: str,
        *,
        min_revisions: Sequence[Revision] = (),
        freshness_ms: int = 0,
        deadline_s: float | None = None,
    ) -> ConsumerGroupInfo | None:
        """What one consumer group does; None if it never had a member."""
        return await _DESCRIBE.one_read(
            self._requests, ConsumerGroup(tenant, group), deadline_s, min_revisions, freshness_ms
        )


def protocols_of(protocols: Sequence[str]) -> list[str]:
    """The protocols that a member knows. Raises InvalidRequestError."""
    if not isinstance(protocols, Sequence):
        raise InvalidRequestError(f"protocols: expected a sequence of str, got {type(protocols).__name__}")
    argument("protocols", [*protocols], Protocols)
    return [*protocols]


def _joined(items: list[JoinItem], reply: ConsumerJoinReply) -> list[tuple[str, int] | MetadError]:
    names = [name or "" for name in reply.members]
    return with_errors(list(zip(names, reply.joined, strict=True)), reply.errors)


_JOIN: Verb[JoinItem, tuple[str, int]] = Verb(methods.CONSUMER_JOIN, _joined)
_HEARTBEAT: Verb[MemberKey, Beat | None] = Verb(methods.CONSUMER_HEARTBEAT)
_ASSIGN: Verb[AssignItem, None] = Verb(methods.CONSUMER_ASSIGN)
_DESCRIBE: Verb[ConsumerGroup, ConsumerGroupInfo | None] = Verb(methods.CONSUMER_DESCRIBE)
