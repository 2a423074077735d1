"""``m.assignments.route``: what a client of a broker fleet asks when it has a message, or wants to read.

It is a :class:`metad_client.Route` of the partitions of one resource that also knows the resource and the addresses of
its brokers. :mod:`.choosing` says how it chooses.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Sequence
from random import Random
from typing import Final, TypeVar

from metad_wire.families.assignment import PARTITIONS
from metad_wire.messages import Owner, TableRecord
from metad_wire.policy import Backoff
from metad_wire.tables.assignment import Partition, Resource

from ..causes import stays
from ..errors import (
    ConflictError,
    DeadlineExceededError,
    InvalidRequestError,
    MetadError,
    NoCandidateError,
    NotFoundError,
    UnknownOutcomeError,
    another,
)
from ..namespaces.brokers import Brokers
from ..namespaces.tables import Records
from ..options import DEADLINE_S_MAX, Options
from ..requests.wrong import argument
from ..routes import Rest, Route
from .choosing import Choice, Copy, Near, To, Wanted, wanted

Connection = TypeVar("Connection")
Answer = TypeVar("Answer")

AGAIN: Final = Backoff(base_s=0.2, cap_s=0.5, family="equal")
"""How long after a reading for requests the next one begins, if several follow each other."""
CALM_S: Final = 3.0
"""So long after such a reading the next one is the first again, and begins at once."""
AGE_S: Final = 60.0
"""A copy of this age is read anew beside the next request: no broker refuses a client that has not heard that a
resource has more partitions."""
READ_S: Final = 5.0
"""The deadline of each part of a reading."""
ANSWER_S: Final = 3.0
"""How long a connection may take, and the answer to what may be asked again."""
TRIES_MAX: Final = 3
"""Attempts of a request between two readings: brokers that all refuse it are not asked one after the other."""
SHUN_S: Final = 5.0
"""So long a broker that did not answer is chosen after the others."""
_BROKERS_MAX: Final = 1_000  # of one call


class PartitionRoute(Route[Partition]):
    """The partitions of one resource, for who sends to its brokers or reads from them::

        route = await m.assignments.route("acme", "orders", "topic", rack="r1")

        async def connect(choice: Choice) -> Connection:
            return await connections.to(choice.broker.address)

        async def send(connection: Connection, choice: Choice) -> int:
            return await connection.append(choice.partition, choice.leader_epoch, message)  # may raise StaleRouteError

        offset = await route.ask(connect, send, key="customer-7")

    There are two functions, so that nobody has to say whether a request was sent: what ``connect`` raises means that
    nothing was done, and after an error of ``send`` nobody knows. And there is no loop in the program, so that none
    sends twice because its loop was not left.
    """

    def __init__(
        self,
        partitions: Records[Partition],
        resources: Records[Resource],
        brokers: Brokers,
        key: tuple[str, str, str],
        near: Near,
        options: Options,
        rng: Random,
    ) -> None:
        super().__init__(partitions, PARTITIONS.name, key, PARTITIONS.key[len(key) :])
        self._resources, self._brokers = resources, brokers
        self._deadline_s, self._rng = options.deadline_s, rng
        self._copy = Copy(key, None, {}, {}, near)
        self._copy_of = 0  # the number of the reading
        self._turn = rng.randrange(1 << 16)  # clients begin at different partitions
        self._shunned: dict[Owner, float] = {}  # until when
        self._renewing: asyncio.Task[None] | None = None
        self._renewals = 0  # that have ended
        self._in_a_row = 0
        self._renewed_s = float("-inf")

    async def _listed(self, deadline_s: float | None) -> dict[Rest, TableRecord[Partition]]:
        number, key = self._begun, self.key
        resource = await self._resources.get(*key, deadline_s=deadline_s)  # first: later it may have more partitions
        found = await super()._listed(deadline_s)
        names = {name for row in found.values() for name in row.record.replicas}
        names.update(row.record.leader.broker for row in found.values() if row.record.leader is not None)
        each, known = sorted(names), []
        for at in range(0, len(each), _BROKERS_MAX):
            known += await self._brokers.get_many(each[at : at + _BROKERS_MAX], deadline_s=deadline_s)
        brokers = {one.broker: one for one in known if one is not None}
        copy = self._copy
        self._copy = Copy(key, None if resource is None else resource.record, found, brokers, copy.near, copy.shunned)
        self._copy_of = number
        return found

    # --- choices ---

    def choose(
        self,
        *,
        key: bytes | str | None = None,
        partition: int | None = None,
        order: Sequence[int] | None = None,
        to: To = "write",
    ) -> Choice:
        """Whom to ask now, by the copy as it is, for a program that sends by itself. The arguments are those of
        :meth:`ask`. Raises NoCandidateError if nobody can be asked now, NotFoundError, ConflictError,
        InvalidRequestError."""
        want = wanted(to, key, partition, order)
        found = self._chosen(want)
        if found is None:
            raise self._nobody(want)
        return found

    def _chosen(self, want: Wanted, tried: Collection[tuple[int, str]] = ()) -> Choice | None:
        self._turn += 1
        return self._copy.choose(want, self._turn, tried)

    def _nobody(self, want: Wanted) -> NoCandidateError:
        tenant, resource, kind = self.key
        which = "any partition" if want.partition is None else f"partition {want.partition}"
        return NoCandidateError(f"nobody who lives can be asked about {which} of {kind} {tenant}/{resource}")

    def _shun(self, owner: Owner | None = None) -> None:
        """Choose a broker after the others for a while, and no longer those whose while is over."""
        loop = asyncio.get_running_loop()
        shunned = {one: until_s for one, until_s in self._shunned.items() if until_s > loop.time()}
        if owner is not None:
            shunned[owner] = loop.time() + SHUN_S
            loop.call_at(shunned[owner], self._shun)
        self._shunned = shunned
        if self._copy.shunned != shunned.keys():
            self._copy = self._copy.shunning(shunned)

    # --- requests ---

    async def ask(
        self,
        connect: Callable[[Choice], Awaitable[Connection]],
        send: Callable[[Connection, Choice], Awaitable[Answer]],
        *,
        key: bytes | str | None = None,
        partition: int | None = None,
        order: Sequence[int] | None = None,
        to: To = "write",
        again: bool | None = None,
        deadline_s: float | None = None,
    ) -> Answer:
        """Choose, connect and send, until somebody answers. Returns what ``send`` returns.

        ``key``: the partition of the key; ``partition``: this one; ``order``: the first of these that can be asked;
        none of them: any, in turn and the nearest first. ``to``: ``"write"`` and ``"read"`` ask the leader,
        ``"read_any"`` a replica too (see :mod:`.choosing`).

        Another attempt follows if ``connect`` raises OSError, EOFError or TimeoutError, or takes over 3 s, and if
        either raises an error of metad that may pass and says that nothing was done. StaleRouteError is such a one:
        ``send`` raises it where the broker refuses the ``leader_epoch``. Then the route is read anew, once for all who
        wait, and every 0.1 to 0.5 s at most. Where other partitions or brokers are left, up to two of them are asked
        before that. ``again``: whether to send again also if nobody knows what was done, because ``send`` raises one of
        the other errors above, or takes over 3 s. By default only what reads is sent again.

        Raises UnknownOutcomeError if it was sent, and nobody knows whether it was done; NotFoundError and ConflictError
        (takes no writes) by a copy that is new; what else the functions raise; and at the deadline what was in the way
        last, such as NoCandidateError (nobody can be asked) or StaleRouteError: then nothing was done."""
        asking = Asking(self, wanted(to, key, partition, order), again, deadline_s)
        if asking.is_late:
            asking.renew()
        while True:
            choice = asking.choose()
            if choice is None:
                await asking.renewed()
                continue
            sent = False
            try:
                async with asyncio.timeout(choice.wait_s) as limit:
                    connection = await connect(choice)
                    choice, sent = asking.sends(choice), True
                    limit.reschedule(self._now_s() + choice.wait_s)
                    return await send(connection, choice)
            except Exception as error:  # noqa: BLE001 - it is judged
                asking.failed(choice, error, sent)

    def _renew(self) -> asyncio.Task[None]:
        """Have the copy read anew as soon as that may be; it is one reading for all."""
        if self._renewing is None or self._renewing.done():
            self._renewing = asyncio.create_task(self._renewed(), name=f"renewing {self!r}")
            self._renewing.add_done_callback(_retrieve)
        return self._renewing

    async def _renewed(self) -> None:
        is_first = self._now_s() - self._renewed_s > CALM_S
        self._in_a_row = 0 if is_first else self._in_a_row + 1
        if not is_first:
            wait_s = AGAIN.delay_s(self._in_a_row - 1, self._rng)
            await asyncio.sleep(self._renewed_s + wait_s - self._now_s())
        try:
            await self.refresh(deadline_s=READ_S)
        finally:
            self._renewals += 1
            self._renewed_s = self._now_s()


class Asking:
    """What one request knows: whom it has asked, and until when. Blocking programs use it as well."""

    def __init__(self, route: PartitionRoute, want: Wanted, again: bool | None, deadline_s: float | None) -> None:
        """Raises InvalidRequestError."""
        seconds = route._deadline_s if deadline_s is None else deadline_s
        if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 <= seconds <= DEADLINE_S_MAX:
            raise InvalidRequestError(f"deadline_s: expected seconds, up to {DEADLINE_S_MAX:.0f}, got {deadline_s!r}")
        argument("again", again, bool | None)
        self._route, self._want, self._writes = route, want, want.to == "write"
        self._again = not self._writes if again is None else again
        self._until_s = route._now_s() + seconds
        self._begun, self._renewals = route._begun, route._renewals
        self._tried: set[tuple[int, str]] = set()
        self._doubt = False  # whether an attempt may have done what it was to do
        self._obstacle: Exception | None = None  # what was in the way last

    @property
    def left_s(self) -> float:
        """Until the deadline."""
        return max(0.0, self._until_s - self._route._now_s())

    @property
    def is_late(self) -> bool:
        """Whether the copy is to be read anew beside the request."""
        return self._route._now_s() - self._route._begun_s > AGE_S

    def renew(self) -> None:
        """In the loop: have the copy read anew."""
        self._route._renew()

    def choose(self) -> Choice | None:
        """Whom to ask now, but nobody twice about a partition between two readings; None: after the next reading.
        Raises at the deadline, and what the copy says if it is newer than the request."""
        route = self._route
        if self._renewals != route._renewals:
            self._renewals = route._renewals
            self._tried.clear()
        left_s = self.left_s
        if left_s <= 0:
            raise self._over()
        if len(self._tried) >= TRIES_MAX:
            return None
        try:
            choice = route._chosen(self._want, self._tried)
        except (NotFoundError, ConflictError) as error:
            if route._copy_of > self._begun:
                raise
            self._obstacle = error
            return None
        if choice is None:
            if not self._tried:
                self._obstacle = route._nobody(self._want)
            return None
        self._tried.add((choice.partition, choice.broker.broker))
        return choice._replace(wait_s=min(left_s, ANSWER_S))

    def sends(self, choice: Choice) -> Choice:
        """The choice for who sends, once there is a connection."""
        left_s = self.left_s
        return choice._replace(wait_s=min(left_s, ANSWER_S) if self._again else left_s)

    async def renewed(self) -> None:
        """Wait until the copy was read anew, or for the deadline. Raises what waiting does not change."""
        try:
            async with asyncio.timeout(self.left_s):
                await asyncio.shield(self._route._renew())
        except TimeoutError:
            pass
        except MetadError as error:
            if stays(error):
                raise another(error) from error
            self._obstacle = error

    def failed(self, choice: Choice, error: Exception, sent: bool) -> None:
        """In the loop: note an attempt that has failed, and have the copy read anew. Raises what the caller is to hear
        of it."""
        lost = isinstance(error, OSError | EOFError | TimeoutError)
        known = not sent  # that nothing was done
        if isinstance(error, MetadError):
            known = known or error.outcome_known
            if error.outcome_known and not error.retryable:
                raise error
        elif not lost:
            raise error
        self._obstacle = error
        self._route._renew()
        if lost:
            self._route._shun(Owner(choice.broker.broker, choice.broker.broker_epoch))
        if not known:
            self._doubt = True
            if not self._again:
                raise self._unknown() from error

    def _unknown(self) -> UnknownOutcomeError:
        return UnknownOutcomeError(f"it may have been done: {type(self._obstacle).__name__}: {self._obstacle}")

    def _over(self) -> MetadError:
        """The error at the deadline."""
        what = self._obstacle
        if self._doubt and self._writes:
            over: MetadError = self._unknown()
        elif isinstance(what, MetadError):
            over = another(what, outcome_known=True)
        else:
            why = "no attempt was made" if what is None else f"{type(what).__name__}: {what}"
            over = DeadlineExceededError(f"nobody has answered by the deadline: {why}", outcome_known=True)
        over.__cause__ = what
        return over


def _retrieve(task: asyncio.Task[None]) -> None:
    if not task.cancelled():
        task.exception()  # nobody may be left who waits for it
