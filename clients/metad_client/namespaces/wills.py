"""``m.wills``: the wills that are due, for brokers that publish them."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import aclosing, suppress

import msgspec

from metad_wire import methods
from metad_wire.messages import Owner, Page, Revision, Will
from metad_wire.tables.will import (
    ClaimLimit,
    DueWill,
    WillAcknowledge,
    WillClaim,
    WillClaimReply,
    WillKey,
    WillList,
    WillRelease,
)
from metad_wire.watch import ChangeKind

from ..dispatch.dispatcher import Dispatcher
from ..errors import ConflictError, DeadlineExceededError, InvalidRequestError, MetadError, NotFoundError
from ..requests.listing import of_all_groups
from ..requests.outcomes import wrote
from ..requests.requests import Requests
from ..requests.wrong import argument
from ..results import WriteResult, newest
from ..watch.events import WatchBatch
from ..watch.filters import Watched
from ..watch.watch import Watch, open_watch
from .facade import Facade
from .will_turns import Turns

LEASE_S = 30.0
POLL_S = 5.0


class TakenWill(msgspec.Struct, frozen=True):
    """A will that this broker has claimed. ``claims`` counts all claims of it: with more than one, an earlier claimant
    may have published it before it died. ``due_ms`` is the Unix time since when it is due, by the group's log."""

    key: WillKey
    will: Will
    due_ms: int
    claims: int


class Wills(Facade):
    """Wills that are due, because a client went without a word and did not come back, or its session has ended. One
    broker claims a will, publishes it and acknowledges it; each is acknowledged once. A broker that dies in between, or
    takes longer than its lease, loses its claim, and the next one publishes the will, perhaps again
    (:attr:`TakenWill.claims`). ``deadline_s`` counts from now, and None means the client's default."""

    def __init__(self, requests: Requests, dispatcher: Dispatcher) -> None:
        super().__init__(requests)
        self._dispatcher = dispatcher

    async def due(
        self,
        broker: str,
        broker_epoch: int,
        *,
        tenant: str | None = None,
        lease_s: float = LEASE_S,
        poll_s: float = POLL_S,
        limit: int = 100,
        deadline_s: float | None = None,
    ) -> AsyncIterator[TakenWill]:
        """Wills for this broker to publish, as they become due, without end::

            async for taken in m.wills.due("broker-1", epoch):
                await publish(taken.will)

        A will is acknowledged once the loop asks for the next one. So call :meth:`acknowledge` for the last one before
        you leave the loop; what was claimed and not yielded is then released to other brokers. ``lease_s`` is how long
        a claim keeps others away: whoever publishes a batch of ``limit`` wills should be done by then, and does not get
        what is left of the batch after that. ``poll_s``: how often to look for what dead brokers have left. Brokers
        take turns (:mod:`.will_turns`): there is about one claim for each will, however many brokers iterate here.

        Raises FencedError once this life of the broker is over. While nobody answers, it waits.
        """
        if not isinstance(poll_s, int | float) or not poll_s > 0:
            raise InvalidRequestError(f"poll_s: expected a number of seconds, got {poll_s!r}")
        loop = asyncio.get_running_loop()
        news = _News(self._dispatcher, broker, tenant)
        rest: list[TakenWill] = []
        acknowledged: set[asyncio.Future[None]] = set()
        try:
            groups: set[str] | None = None  # None: all of them
            while True:
                begun_s = loop.time()
                try:
                    if groups is not None and not groups:
                        groups = await self._claimable(broker, broker_epoch, tenant, deadline_s)
                    if groups is None or groups:
                        rest = await self._claim(groups, broker, broker_epoch, tenant, lease_s, limit, deadline_s)
                except MetadError as error:
                    if not (error.retryable or isinstance(error, DeadlineExceededError)):
                        raise
                found = len(rest)
                while rest:
                    if loop.time() > begun_s + lease_s:
                        rest = []  # others may have them by now
                        break
                    taken = rest.pop(0)
                    yield taken
                    acknowledged.add(asyncio.ensure_future(self._acknowledge(broker, broker_epoch, taken.key)))
                await _all(acknowledged)
                if found < limit:  # otherwise there may be more
                    groups = await news.wait(poll_s)
        finally:
            await news.close()
            await _all(acknowledged)
            if rest:
                with suppress(MetadError):
                    await self.release_many(broker, broker_epoch, [taken.key for taken in rest])

    async def claim(
        self,
        broker: str,
        broker_epoch: int,
        *,
        tenant: str | None = None,
        lease_s: float = LEASE_S,
        limit: int = 100,
        deadline_s: float | None = None,
    ) -> list[TakenWill]:
        """Claim wills that nobody has, ``limit`` of them or a few more, from all groups. ``tenant``: only of this one.
        None are left if the list is empty. Raises FencedError; if a group cannot be asked and no other has any, why."""
        return await self._claim(None, broker, broker_epoch, tenant, lease_s, limit, deadline_s)

    async def _claim(
        self,
        groups: set[str] | None,
        broker: str,
        broker_epoch: int,
        tenant: str | None,
        lease_s: float,
        limit: int,
        deadline_s: float | None,
    ) -> list[TakenWill]:
        """:meth:`claim` from these groups, as far as there are such groups."""
        lease_ms = _lease_ms(lease_s)
        argument("limit", limit, ClaimLimit)
        known = await self._requests.groups(methods.WILL_CLAIM, deadline_s)
        left: dict[str, bytes] = {group: b"" for group in known if groups is None or group in groups}
        found: list[TakenWill] = []
        failed: MetadError | None = None
        while left and len(found) < limit:
            share = -(-(limit - len(found)) // len(left))
            asked = {
                group: WillClaim(broker, broker_epoch, lease_ms, share, tenant, cursor)
                for group, cursor in left.items()
            }
            replies = await asyncio.gather(
                *(
                    self._requests.one(methods.WILL_CLAIM, body, deadline_s, group=group)
                    for group, body in asked.items()
                ),
                return_exceptions=True,
            )
            for group, reply in zip(asked, replies, strict=True):
                if isinstance(reply, MetadError):
                    failed = reply
                    del left[group]
                elif isinstance(reply, BaseException):
                    raise reply
                else:
                    found += _taken(reply)
                    left[group] = reply.cursor
                    if not reply.cursor:
                        del left[group]
        if failed is not None and not found:
            raise failed
        return found

    async def acknowledge_many(
        self, broker: str, broker_epoch: int, keys: Sequence[WillKey], *, deadline_s: float | None = None
    ) -> WriteResult:
        """These wills are published. Item errors: NotFoundError (acknowledged before), ConflictError (another life has
        claimed it since)."""
        return WriteResult(
            await self._requests.many(
                methods.WILL_ACKNOWLEDGE, keys, lambda part: WillAcknowledge(broker, broker_epoch, part), deadline_s
            )
        )

    async def release_many(
        self, broker: str, broker_epoch: int, keys: Sequence[WillKey], *, deadline_s: float | None = None
    ) -> WriteResult:
        """These wills were not published: others may claim them at once. Item errors are those of
        :meth:`acknowledge_many`."""
        return WriteResult(
            await self._requests.many(
                methods.WILL_RELEASE, keys, lambda part: WillRelease(broker, broker_epoch, part), deadline_s
            )
        )

    async def list(
        self,
        tenant: str | None = None,
        client_id_prefix: str = "",
        *,
        page_size: int = 1000,
        min_revisions: Sequence[Revision] = (),
        deadline_s: float | None = None,
    ) -> AsyncIterator[DueWill]:
        """List the wills that are due, in order of (tenant, client id, id), a page at a time. The deadline is that of
        each page. ``tenant`` matches exactly, None matches any; ``client_id_prefix`` needs a tenant. A will that stays
        comes once, wherever its slot moves."""
        wanted = newest(min_revisions)
        listing = of_all_groups(
            self._requests,
            methods.WILL_LIST,
            lambda slots, after, page: WillList(
                tenant, client_id_prefix, page, wanted, slots, None if after is None else WillKey(*after)
            ),
            lambda reply: reply.wills,
            lambda one: (one.tenant, one.client_id, one.id),
            page_size,
            deadline_s,
        )
        async with aclosing(listing):
            async for one in listing:
                yield one

    async def acknowledge(
        self, broker: str, broker_epoch: int, key: WillKey, *, deadline_s: float | None = None
    ) -> None:
        """This will is published, as :meth:`acknowledge_many` says it."""
        await self._requests.single(
            methods.WILL_ACKNOWLEDGE,
            (broker, broker_epoch),
            key,
            _size,
            lambda items: WillAcknowledge(broker, broker_epoch, items),
            wrote,
            deadline_s,
        )

    async def release(self, broker: str, broker_epoch: int, key: WillKey, *, deadline_s: float | None = None) -> None:
        """This will was not published, as :meth:`release_many` says it."""
        await self._requests.single(
            methods.WILL_RELEASE,
            (broker, broker_epoch),
            key,
            _size,
            lambda items: WillRelease(broker, broker_epoch, items),
            wrote,
            deadline_s,
        )

    async def _acknowledge(self, broker: str, broker_epoch: int, key: WillKey) -> None:
        # It took longer than the lease, and another broker has it; or nobody knows, and another one may get it.
        with suppress(NotFoundError, ConflictError, DeadlineExceededError):
            await self.acknowledge(broker, broker_epoch, key)

    async def _claimable(
        self, broker: str, broker_epoch: int, tenant: str | None, deadline_s: float | None
    ) -> set[str]:
        """The groups with wills that this broker could claim: to look costs less than to claim, and what others have
        claimed is left to them."""
        groups = await self._requests.groups(methods.WILL_LIST, deadline_s)

        async def look(group: str) -> bool:
            page = Page(1)
            while True:
                body = WillList(tenant, page=page, claimable_by=Owner(broker, broker_epoch))
                reply = await self._requests.one(methods.WILL_LIST, body, deadline_s, group=group)
                if reply.wills or not reply.cursor:
                    return bool(reply.wills)
                page = Page(1, reply.cursor)

        found = await asyncio.gather(*map(look, groups))
        return {group for group, any_there in zip(groups, found, strict=True) if any_there}


def _lease_ms(lease_s: float) -> int:
    if not isinstance(lease_s, int | float) or not 0 < lease_s <= 3600:
        raise InvalidRequestError(f"lease_s: expected a number of seconds up to 3600, got {lease_s!r}")
    return max(1, round(lease_s * 1000))


def _taken(reply: WillClaimReply) -> Iterable[TakenWill]:
    for one, due in zip(reply.claimed, reply.wills, strict=True):
        if due is not None:
            yield TakenWill(WillKey(one.tenant, one.client_id, one.id), due.will, due.due_ms, one.claims)


class _News:
    """What a broker hears of wills that are due, and of claims: who is to claim them follows from both."""

    def __init__(self, dispatcher: Dispatcher, broker: str, tenant: str | None) -> None:
        # A will may be long, and a broker needs it only if it publishes it; of a claim it needs the broker.
        self._due = open_watch(dispatcher, Watched("will", tenant=tenant, rows=("due",)), keys_only=True)
        self._claims = open_watch(dispatcher, Watched("will", tenant=tenant, rows=("claim",)))
        self._turns = Turns(broker, random.Random())

    async def close(self) -> None:
        await self._due.close()
        await self._claims.close()

    async def wait(self, poll_s: float) -> set[str] | None:
        """The groups in which it is this broker's turn; none if it is time to look for what is left, and None if that
        is to be done at once in all groups, because what has become due is not known."""
        loop = asyncio.get_running_loop()
        poll_at_s = loop.time() + poll_s * (0.5 + random.random())
        while True:
            next_s = self._turns.next_s
            until_s = poll_at_s if next_s is None else min(poll_at_s, next_s)
            heard: list[WatchBatch] = []
            batch = await _next(self._due, until_s)
            while batch is not None:
                heard.append(batch)
                batch = await _next(self._due, 0.0)
            while (batch := await _next(self._claims, 0.0)) is not None:  # first: what was claimed long ago is no news
                for event in batch.events:
                    if event.record is not None:
                        self._turns.claimed(event.key, event.record.broker, loop.time())
            for batch in heard:
                if batch.kind == "gap":
                    return None
                for event in batch.events:
                    if event.kind in (ChangeKind.DELETED, ChangeKind.EXPIRED):
                        self._turns.gone(event.key)
                    else:
                        self._turns.due(batch.group, event.key, loop.time())
            if groups := self._turns.take(loop.time()):
                return groups
            if loop.time() >= poll_at_s:
                return set()


async def _next(watch: Watch, until_s: float) -> WatchBatch | None:
    """The next batch, if one comes until then."""
    try:
        async with asyncio.timeout_at(until_s):
            return await watch.next()
    except TimeoutError:
        return None


async def _all(pending: set[asyncio.Future[None]]) -> None:
    """Wait for acknowledgements. Raises what the first of them that failed says."""
    if pending:
        done, _ = await asyncio.wait(pending)
        pending.clear()
        for one in done:
            one.result()


def _size(item: WillKey) -> int:
    return 24 + len(item.tenant) + len(item.client_id) + len(item.id)
