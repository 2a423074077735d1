"""A member of a consumer group: it joins, says that it lives, and is told of each generation what it is assigned."""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Final, Self

from metad_wire.tables.consumer import Beat, ConsumerGroupInfo, GroupState, Member

from ..causes import stays
from ..errors import (
    ClosedError,
    ConflictError,
    FencedError,
    InvalidRequestError,
    MetadError,
    NotFoundError,
    NotOwnerError,
)
from ..iterating import AsyncParts
from ..namespaces.consumers import Consumers, protocols_of
from ..namespaces.offsets import Offsets
from ..requests.behind import Behind
from ..requests.wrong import argument
from .belief import SPEAK, LeaseState
from .kept_alive import KeptAlive

_TIMEOUT_S_MIN, _TIMEOUT_S_MAX = 0.5, 24 * 3600.0
_DEADLINE_S_MIN = 0.1
_ASK_S_MIN, _ASK_S_MAX = 0.02, 1.0
"""How often a member asks while it waits for a generation: seldom, if that takes long."""

Assign = Callable[[str, Sequence[Member]], Mapping[str, bytes]]
"""What the leader of a generation assigns: of the protocol and the members, to each member by its id."""


class Generation:
    """One generation of a consumer group, as one member has it. Made by :class:`Membership`.

    ``number`` fences: what is guarded by it refuses lower ones, as commits of offsets do. ``assignment`` is what the
    leader gave to this member.
    """

    def __init__(
        self,
        membership: Membership,
        offsets: Offsets,
        info: ConsumerGroupInfo,
        member: str,
        assignment: bytes,
        over: asyncio.Event,
    ) -> None:
        self._membership = membership
        self._offsets = offsets
        self._over = over
        self.number: Final = info.generation
        self.protocol: Final = info.protocol
        self.member: Final = member
        self.is_leader: Final = info.leader == member
        self.assignment: Final = assignment

    def __repr__(self) -> str:
        return f"<Generation {self.number} of {self._membership.tenant}/{self._membership.group}>"

    @property
    def is_current(self) -> bool:
        """Whether what is assigned may be worked on now. Look before each piece of work. If it is not, although the
        group does not rebalance, the servers may be away: :meth:`Membership.next` gives the same generation again once
        they say that the member is still one."""
        if self._over.is_set():
            return False
        if self._membership.state is LeaseState.CONNECTED:
            return True
        self._membership._doubted()
        return False

    async def ended(self) -> None:
        """Wait until the group rebalances, or the member is none any more. Commit what is done, then ask for the next
        generation."""
        await self._over.wait()

    async def commit(
        self, topic: str, partition: int, offset: int, *, metadata: str = "", deadline_s: float | None = None
    ) -> None:
        """Commit one offset in the name of the member. Raises FencedError if the next generation has begun, or the
        member is none any more."""
        await self._offsets.commit(
            self._membership.tenant,
            self._membership.group,
            topic,
            partition,
            offset,
            generation=self.number,
            metadata=metadata,
            member=self.member,
            deadline_s=deadline_s,
        )


class Membership(AsyncParts[Generation]):
    """A member that lives by itself until it is closed, and the generations that it is in::

        async with m.consume("acme", "billing", assign=share_out) as member:
            async for generation in member:
                while generation.is_current:
                    work(generation.assignment)
                    await generation.commit("orders", 3, offset)

    To ask for the next generation says that the member has let go of what it had; the others wait for that, up to
    ``rebalance_s``. A member that is lost joins anew, with nothing.
    """

    def __init__(
        self,
        consumers: Consumers,
        offsets: Offsets,
        tenant: str,
        group: str,
        *,
        assign: Assign,
        session_s: float,
        rebalance_s: float,
        protocols: Sequence[str],
        metadata: bytes,
        instance: str,
        holder: str,
        now: Callable[[], float],
    ) -> None:
        for name, value in (("session_s", session_s), ("rebalance_s", rebalance_s)):
            if not isinstance(value, int | float) or not _TIMEOUT_S_MIN <= value <= _TIMEOUT_S_MAX:
                raise InvalidRequestError(f"{name}: expected {_TIMEOUT_S_MIN} to {_TIMEOUT_S_MAX:.0f}, got {value!r}")
        self.tenant: Final = tenant
        self.group: Final = group
        self._consumers = consumers
        self._offsets = offsets
        self._assign = assign
        self._session_s = float(session_s)
        self._rebalance_s = float(rebalance_s)
        self._protocols = protocols_of(protocols)
        self._metadata = metadata
        self._instance = instance
        self._holder = holder
        self._now = now
        self._member = ""
        self._joined = 0
        self._alive = KeptAlive(
            self._session_s, now, self._speak, self._lost, told=LeaseState.SUSPENDED, name="metad-member"
        )
        self._current: Generation | None = None  # what the program has
        self._over = asyncio.Event()  # whether that is over
        self._last = 0  # the number of the last one that the program had
        self._turn = asyncio.Lock()  # one join at a time
        self._behind = Behind(self, "metad-member")
        self._closed = False
        self._stays = False  # a member, although it is closed

    def __repr__(self) -> str:
        return f"<Membership {self.tenant}/{self.group}/{self._member}>"

    @property
    def member(self) -> str:
        """The id of the member; empty until it has joined. A member that was lost has another one next."""
        return self._member

    @property
    def state(self) -> LeaseState:
        """What may be believed now: look before each use."""
        return self._alive.state

    def on_state(self, listener: Callable[[LeaseState], None]) -> Callable[[], None]:
        """Call ``listener`` with each new :attr:`state`, as soon as it is noticed, in the client's own thread. Returns
        what ends that."""
        return self._alive.on_state(listener)

    async def opened(self) -> Self:
        """Join, and begin to say that the member lives. If this is cancelled, a member that was made by then leaves.
        Raises a MetadError, ClosedError if it was closed."""
        async with self._turn:
            if self._alive.belief is None:
                await self._join_in_turn()
        self._check_open()
        return self

    async def rebalance(self) -> None:
        """Have the leader assign anew, because there is something new to assign: the group begins a rebalance."""
        await self._join(rebalance=True)
        self._check_open()

    async def close(self, *, leave: bool = True) -> None:
        """End the generation, and leave the group; the others get what the member had. With ``leave=False`` it is a
        member for ``session_s`` more: a program that comes back with the same ``instance`` until then has its place
        and its assignment again. Safe to call again."""
        self._closed, self._stays = True, not leave
        self._let_go()
        self._alive.stop()
        async with self._turn:  # behind a join that is under way
            await self._behind.over()
            if leave and self._alive.lose():
                await self._leave(self._member)

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError("the membership is closed")

    async def __aenter__(self) -> Self:
        return await self.opened()

    # --- generations -------------------------------------------------------------------------------------

    async def next(self) -> Generation | None:
        """Let go of the generation that there is, and wait for the next one, however long no server answers; None once
        the membership is closed. Raises a MetadError where the group refuses the member, InvalidRequestError where
        ``assign`` names others than its members, and whatever ``assign`` raises."""
        if self.state is not LeaseState.CONNECTED:
            self._doubted()
        self._let_go()
        wait_s = _ASK_S_MIN
        while not self._closed:
            try:
                if self.state is LeaseState.LOST or self._alive.belief is None:
                    await self._join_anew()
                    continue
                beat = await self._ask()
                if beat is None:
                    continue
                generation = await self._advance(beat)
            except MetadError as error:
                if stays(error):
                    raise
                generation = None  # no server answers now; whatever was done of it, the next beat says what to do
            if self._closed:
                return None
            if generation is not None:
                self._current, self._last = generation, generation.number
                return generation
            await asyncio.sleep(wait_s)
            wait_s = min(2 * wait_s, _ASK_S_MAX, SPEAK * self._session_s)
        return None

    async def _advance(self, beat: Beat) -> Generation | None:
        """Do what this member has to do for the next generation; the generation once it is there."""
        if beat.state == GroupState.JOINING:
            if self._joined <= beat.generation:
                await self._join()
            return None
        if beat.generation != self._joined or beat.generation == self._last:
            return None  # an older answer than that to the join, or nothing has happened yet
        info = await self._consumers.describe(self.tenant, self.group, deadline_s=self._deadline_s)
        if info is None or info.generation != self._joined:
            return None
        if info.state == GroupState.ASSIGNING and info.leader == self._member:
            await self._lead(info)
            return None
        if info.state != GroupState.STABLE:
            return None
        row = await self._consumers.get(self.tenant, self.group, self._member, deadline_s=self._deadline_s)
        if row is None or row.joined != info.generation:
            return None
        assignment = row.assignment if row.assigned == info.generation else b""
        self._over = asyncio.Event()
        return Generation(self, self._offsets, info, self._member, assignment, self._over)

    async def _lead(self, info: ConsumerGroupInfo) -> None:
        """Assign something to each member, unless the group rebalances meanwhile."""
        members = [
            member
            async for member in self._consumers.members(self.tenant, self.group, deadline_s=self._deadline_s)
            if member.joined == info.generation
        ]
        assignments = self._assign(info.protocol, members)
        argument("assign", assignments, Mapping[str, bytes])
        strangers = assignments.keys() - {member.member for member in members}
        if strangers:
            raise InvalidRequestError(f"assign: no members of the generation: {', '.join(sorted(strangers))}")
        with contextlib.suppress(FencedError, NotOwnerError, ConflictError, NotFoundError):
            await self._consumers.assign(
                self.tenant, self.group, self._member, info.generation, assignments, deadline_s=self._deadline_s
            )

    def _doubted(self) -> None:
        """The program does not work on what it has, because nobody knows whether it has it."""
        self._last = 0

    def _let_go(self) -> None:
        """The program has done with what it had."""
        self._over.set()
        self._current = None

    # --- alive -------------------------------------------------------------------------------------------

    @property
    def _deadline_s(self) -> float:
        return max(_DEADLINE_S_MIN, self._session_s)

    async def _join_anew(self) -> None:
        """The member is none any more, or may be none. If it still is one, it is the same as before."""
        self._alive.forget()
        self._joined, self._last = 0, 0
        try:
            await self._join()
        except NotFoundError:  # the place is free
            if not self._instance or not self._member:
                raise
            self._member = ""
            await self._join()

    async def _join(self, *, rebalance: bool = False) -> None:
        async with self._turn:
            await self._join_in_turn(rebalance=rebalance)

    async def _join_in_turn(self, *, rebalance: bool = False) -> None:
        """Join, unless the membership is closed."""
        await self._behind.over()
        if self._closed:
            return
        is_new, unwanted = self._alive.belief is None, asyncio.Event()
        joining = self._behind.go_on(self._join_now(rebalance, unwanted))
        try:
            await asyncio.shield(joining)
        except asyncio.CancelledError:
            unwanted.set()
            if is_new and self._alive.belief is not None:  # in this very moment
                self._alive.forget()
                self._behind.go_on(self._leave(self._member))
                self._member = ""
            raise

    async def _join_now(self, rebalance: bool, unwanted: asyncio.Event) -> None:
        sent_s = self._now()
        member, joined = await self._consumers.join(
            self.tenant,
            self.group,
            math.ceil(self._session_s * 1000),
            self._member,
            rebalance_ms=math.ceil(self._rebalance_s * 1000),
            instance=self._instance,
            protocols=self._protocols,
            metadata=self._metadata,
            holder=self._holder,
            rebalance=rebalance,
            deadline_s=None if self._alive.belief is None else self._deadline_s,
        )
        if self._alive.belief is not None:
            self._member, self._joined = member, joined
            self._alive.answered(sent_s, self._session_s)
        elif not self._closed and not unwanted.is_set():
            self._member, self._joined = member, joined
            self._alive.begin(sent_s)
        elif not self._stays:
            await self._leave(member)

    async def _leave(self, member: str) -> None:
        with contextlib.suppress(NotFoundError, ClosedError):
            await self._consumers.leave(self.tenant, self.group, member, deadline_s=self._deadline_s)

    async def _ask(self) -> Beat | None:
        """What the group does; None if no server says so now."""
        sent_s, member, belief = self._now(), self._member, self._alive.belief
        try:
            beat = await self._consumers.heartbeat(self.tenant, self.group, member, deadline_s=self._deadline_s)
        except ClosedError:
            raise
        except MetadError:
            await asyncio.sleep(_ASK_S_MIN)
            return None  # the next one asks again, and doubts meanwhile
        if belief is not self._alive.belief:
            return None
        self._alive.answered(sent_s, 0.0 if beat is None else beat.session_ms / 1000)
        if beat is not None and self._current is not None and self._rebalances(beat, self._current):
            self._over.set()
        return beat

    @staticmethod
    def _rebalances(beat: Beat, current: Generation) -> bool:
        return beat.state != GroupState.STABLE or beat.generation != current.number

    async def _speak(self, _: float) -> None:
        with contextlib.suppress(ClosedError):
            await self._ask()

    def _lost(self) -> None:
        self._over.set()  # whichever that is by then
