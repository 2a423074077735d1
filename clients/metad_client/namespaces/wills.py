"""``m.wills``: the wills that are due, for brokers that publish them.

A broker waits for its turn to claim wills. The leader of each group gives turns: to one broker at a time, when there is
something to claim. So there is one request under way in each group, which is answered when it is this broker's turn,
and is made anew when it has waited for long. A turn that comes while the broker does something else is kept here: if it
was too long ago, another broker has had one since, and a claim finds what that one has left.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import suppress

import msgspec

from metad_wire import methods
from metad_wire.messages import Will
from metad_wire.tables.will import (
    WILL_WAIT_MS_MAX,
    ClaimLimit,
    WillAcknowledge,
    WillClaim,
    WillClaimReply,
    WillKey,
    WillRelease,
    WillWait,
)

from ..errors import (
    ConflictError,
    DeadlineExceededError,
    InvalidRequestError,
    MetadError,
    NotFoundError,
    StaleRouteError,
)
from ..requests.batcher import wrote
from ..requests.requests import Requests, Verb
from ..requests.wrong import argument
from ..results import WriteResult
from .declared import _WillDeclared

_ANSWER_S = 5.0
"""The answer to a wait that is over comes within this, or the group is asked again."""


_GROUPS_S = 1.0
"""How often to look whether the client knows of other groups."""


class Turns:
    """Those of one broker."""

    def __init__(
        self,
        requests: Requests,
        broker: str,
        broker_epoch: int,
        tenant: str | None,
        poll_s: float,
        deadline_s: float | None,
    ) -> None:
        self._requests = requests
        self._broker = broker
        self._broker_epoch = broker_epoch
        self._tenant = tenant
        self._wait_s = min(poll_s, WILL_WAIT_MS_MAX / 1000)
        self._deadline_s = deadline_s
        self._waits: dict[str, asyncio.Task[bytes]] = {}

    async def next(self) -> dict[str, bytes]:
        """Wait until it is this broker's turn. Returns in which groups, and behind which cursor there is something to
        claim. Raises MetadError: FencedError once this life of the broker is over."""
        while True:
            try:
                groups = await self._requests.groups(methods.WILL_WAIT, self._deadline_s)
            except DeadlineExceededError:
                continue  # nobody answers
            for group in self._waits.keys() - groups:
                self._waits.pop(group).cancel()
            for group in groups:
                if group not in self._waits:
                    self._waits[group] = asyncio.create_task(self._wait(group))
            done, _ = await asyncio.wait(
                self._waits.values(), timeout=min(self._wait_s, _GROUPS_S), return_when=asyncio.FIRST_COMPLETED
            )
            if done:
                over = [group for group, wait in self._waits.items() if wait in done]
                return {group: self._waits.pop(group).result() for group in over}

    async def close(self) -> None:
        """Wait no more."""
        waits = [*self._waits.values()]
        self._waits.clear()
        for wait in waits:
            wait.cancel()
        await asyncio.gather(*waits, return_exceptions=True)

    async def _wait(self, group: str) -> bytes:
        """Wait for a turn in a group."""
        loop = asyncio.get_running_loop()
        asked = WillWait(self._broker, self._broker_epoch, max(1, round(1000 * self._wait_s)), self._tenant)
        while True:
            again_s = loop.time() + self._wait_s
            try:
                reply = await self._requests.one(methods.WILL_WAIT, asked, self._wait_s + _ANSWER_S, group=group)
                if reply.claimable:
                    return reply.cursor
            except StaleRouteError:
                continue  # a newer map is there; the slots may be in a group that is new
            except MetadError as error:
                if not (error.retryable or isinstance(error, DeadlineExceededError)):
                    raise
            await asyncio.sleep(again_s - loop.time())  # after an error


LEASE_S = 30.0
POLL_S = 10.0


class TakenWill(msgspec.Struct, frozen=True):
    """A will that this broker has claimed. ``claims`` counts all claims of it: with more than one, an earlier claimant
    may have published it before it died. ``due_ms`` is the Unix time since when it is due, by the group's log."""

    key: WillKey
    will: Will
    due_ms: int
    claims: int


class Wills(_WillDeclared):
    """Wills that are due, because a client went without a word and did not come back, or its session has ended. One
    broker claims a will, publishes it and acknowledges it; each is acknowledged once. A broker that dies in between, or
    takes longer than its lease, loses its claim, and the next one publishes the will, perhaps again
    (:attr:`TakenWill.claims`). ``deadline_s`` counts from now, and None means the client's default."""

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
        what is left of the batch after that. Brokers wait for their turns (:class:`WillTurns`): one of them hears of a
        will and claims it, however many iterate here. ``poll_s``: for how long a group is asked for a turn before it is
        asked again.

        Raises FencedError once this life of the broker is over. While nobody answers, it waits.
        """
        if not isinstance(poll_s, int | float) or not poll_s > 0:
            raise InvalidRequestError(f"poll_s: expected a number of seconds, got {poll_s!r}")
        loop = asyncio.get_running_loop()
        turns = Turns(self._requests, broker, broker_epoch, tenant, poll_s, deadline_s)
        rest: list[TakenWill] = []
        acknowledged: set[asyncio.Future[None]] = set()
        try:
            cursors: dict[str, bytes] | None = None  # where it is this broker's turn; None: it may claim everywhere
            while True:
                begun_s = loop.time()
                try:
                    rest = await self._claim(cursors, broker, broker_epoch, tenant, lease_s, limit, deadline_s)
                except MetadError as error:
                    if not (error.retryable or isinstance(error, DeadlineExceededError)):
                        raise
                while rest:
                    if loop.time() > begun_s + lease_s:
                        rest = []  # others may have them by now
                        break
                    taken = rest.pop(0)
                    yield taken
                    acknowledged.add(asyncio.ensure_future(self._acknowledge(broker, broker_epoch, taken.key)))
                await _all(acknowledged)
                cursors = await turns.next()
        finally:
            await turns.close()
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
        cursors: dict[str, bytes] | None,
        broker: str,
        broker_epoch: int,
        tenant: str | None,
        lease_s: float,
        limit: int,
        deadline_s: float | None,
    ) -> list[TakenWill]:
        """:meth:`claim` from these groups, behind their cursors, as far as there are such groups."""
        lease_ms = _lease_ms(lease_s)
        argument("limit", limit, ClaimLimit)
        known = await self._requests.groups(methods.WILL_CLAIM, deadline_s)
        begins = dict.fromkeys(known, b"") if cursors is None else cursors
        left = {group: cursor for group, cursor in begins.items() if group in known}
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
            await _ACKNOWLEDGE.many(self._requests, keys, deadline_s, broker=broker, broker_epoch=broker_epoch)
        )

    async def release_many(
        self, broker: str, broker_epoch: int, keys: Sequence[WillKey], *, deadline_s: float | None = None
    ) -> WriteResult:
        """These wills were not published: others may claim them at once. Item errors are those of
        :meth:`acknowledge_many`."""
        return WriteResult(
            await _RELEASE.many(self._requests, keys, deadline_s, broker=broker, broker_epoch=broker_epoch)
        )

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


def _lease_ms(lease_s: float) -> int:
    if not isinstance(lease_s, int | float) or not 0 < lease_s <= 3600:
        raise InvalidRequestError(f"lease_s: expected a number of seconds up to 3600, got {lease_s!r}")
    return max(1, round(lease_s * 1000))


def _taken(reply: WillClaimReply) -> Iterable[TakenWill]:
    for one, due in zip(reply.claimed, reply.wills, strict=True):
        if due is not None:
            yield TakenWill(WillKey(one.tenant, one.client_id, one.id), due.will, due.due_ms, one.claims)


async def _all(pending: set[asyncio.Future[None]]) -> None:
    """Wait for acknowledgements. Raises what the first of them that failed says."""
    if pending:
        done, _ = await asyncio.wait(pending)
        pending.clear()
        for one in done:
            one.result()


def _size(item: WillKey) -> int:
    return 24 + len(item.tenant) + len(item.client_id) + len(item.id)


_ACKNOWLEDGE: Verb[WillKey, None] = Verb(methods.WILL_ACKNOWLEDGE)
_RELEASE: Verb[WillKey, None] = Verb(methods.WILL_RELEASE)
