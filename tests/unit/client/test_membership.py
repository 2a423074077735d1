"""Members of consumer groups: what is left of one that is closed, or given up, in the middle of a join."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from scripted import settled

from metad_client import ClosedError, InvalidRequestError, LeaseState, Membership
from metad_client.errors import (
    ConnectionLostError,
    DeadlineExceededError,
    MetadError,
    NoRoomError,
    UnknownOutcomeError,
)
from metad_wire.tables.consumer import Beat, ConsumerGroupInfo, GroupState, Member


class Group:
    """One consumer group of one member at a time, as :class:`Consumers` shows it."""

    def __init__(self) -> None:
        self.members_by_id: dict[str, int] = {}
        self.joins = 0
        self.left: list[str] = []
        self.generation = 1
        self.state = GroupState.STABLE
        self.arrives = asyncio.Event()  # what is asked is answered
        self.arrives.set()
        self.assigned: Any = None

    async def join(self, tenant: str, group: str, session_ms: int, member: str, **_: Any) -> tuple[str, int]:
        self.joins += 1
        name = member or f"member-{self.joins}"
        return await asyncio.shield(asyncio.ensure_future(self._joined(name)))

    async def _joined(self, name: str) -> tuple[str, int]:
        """What is sent is done, whoever waits no longer for its answer."""
        await self.arrives.wait()
        self.members_by_id[name] = self.generation
        return name, self.generation

    async def heartbeat(self, tenant: str, group: str, member: str, **_: Any) -> Beat | None:
        return Beat(10_000, self.state, self.generation) if member in self.members_by_id else None

    async def leave(self, tenant: str, group: str, member: str, **_: Any) -> None:
        del self.members_by_id[member]
        self.left.append(member)

    async def describe(self, *_: Any, **__: Any) -> ConsumerGroupInfo:
        await self.arrives.wait()
        leader = next(iter(self.members_by_id), "")
        return ConsumerGroupInfo("t", "g", self.state, self.generation, "", leader, 1, 0, 60_000, 0, [], 1)

    async def members(self, *_: Any, **__: Any) -> AsyncIterator[Member]:
        for member in list(self.members_by_id):
            yield self._row(member)

    async def get(self, tenant: str, group: str, member: str, **_: Any) -> Member | None:
        return self._row(member) if member in self.members_by_id else None

    def _row(self, member: str) -> Member:
        return Member(
            "t", "g", member, "", "", 10_000, 60_000, [], b"", self.members_by_id[member], self.generation, b""
        )

    async def assign(self, *asked: Any, **_: Any) -> None:
        self.assigned = asked[-1]
        self.state = GroupState.STABLE


def member_of(group: Any, assign: Any = lambda protocol, members: {}) -> Membership:
    return Membership(
        group,
        group,
        "t",
        "g",
        assign=assign,
        session_s=10.0,
        rebalance_s=60.0,
        protocols=(),
        metadata=b"",
        instance="",
        holder="",
        now=asyncio.get_running_loop().time,
    )


async def begun(how: str) -> tuple[Group, Membership, asyncio.Future[Any]]:
    """A member that joins by this method, while the answer is on its way."""
    group = Group()
    group.arrives.clear()
    member = member_of(group)
    joining = asyncio.ensure_future(getattr(member, how)())
    await settled()
    return group, member, joining


@pytest.mark.parametrize("how", ["opened", "next"])
async def test_a_member_that_is_closed_while_it_joins_is_none(how: str) -> None:
    """Guards members that nobody was behind, to whom the leader assigned all the same; and an assertion in next()."""
    group, member, joining = await begun(how)
    closing = asyncio.ensure_future(member.close())
    await settled()
    group.arrives.set()
    if how == "opened":
        with pytest.raises(ClosedError):
            await joining
    else:
        assert await joining is None
    await closing
    assert group.joins == 1
    assert group.left == ["member-1"]
    assert not group.members_by_id


@pytest.mark.parametrize("how", ["opened", "next"])
async def test_a_member_whose_join_is_cancelled_leaves_before_it_is_closed(how: str) -> None:
    group, member, joining = await begun(how)
    joining.cancel()
    with pytest.raises(asyncio.CancelledError):
        await joining
    closing = asyncio.ensure_future(member.close())
    await settled()
    group.arrives.set()
    await closing
    assert group.left == ["member-1"]


async def test_a_member_whose_opening_is_cancelled_as_it_has_joined_leaves() -> None:
    group = Group()
    member = member_of(group)
    opening = asyncio.ensure_future(member.opened())
    while not member.member:  # noqa: ASYNC110 - one turn after another
        await asyncio.sleep(0)
    assert not opening.done()
    opening.cancel()
    with pytest.raises(asyncio.CancelledError):
        await opening
    await settled()
    assert group.left == ["member-1"]
    assert (member.member, member.state) == ("", LeaseState.SUSPENDED)


async def test_who_joins_again_after_a_cancelled_join_is_one_member() -> None:
    group = Group()
    group.arrives.clear()
    member = member_of(group)
    joining = asyncio.ensure_future(member.opened())
    await settled()
    joining.cancel()
    again = asyncio.ensure_future(member.opened())
    await settled()
    assert group.joins == 1, "what the first has made leaves before the second joins"
    group.arrives.set()
    await again
    assert group.left == ["member-1"]
    assert list(group.members_by_id) == [member.member] == ["member-2"]
    await member.close()


async def test_a_member_that_is_cancelled_while_it_asks_for_a_rebalance_stays_one() -> None:
    group = Group()
    member = await member_of(group).opened()
    group.arrives.clear()
    asking = asyncio.ensure_future(member.rebalance())
    await settled()
    asking.cancel()
    group.generation = 2
    group.arrives.set()
    await settled()
    assert group.left == []
    assert member.state is LeaseState.CONNECTED
    generation = await asyncio.wait_for(member.next(), 60)
    assert generation is not None, "it knows that it has joined"
    assert generation.number == 2
    await member.close()


async def test_two_who_open_a_membership_have_the_same_one() -> None:
    group = Group()
    member = member_of(group)
    assert await asyncio.gather(member.opened(), member.opened()) == [member, member]
    assert group.joins == 1
    await member.close()
    assert group.left == ["member-1"]


async def test_a_member_that_is_closed_has_no_generation_more() -> None:
    group = Group()
    member = await member_of(group).opened()
    group.arrives.clear()
    asking = asyncio.ensure_future(member.next())
    await settled()
    await member.close(leave=False)
    group.arrives.set()
    assert await asking is None
    assert await member.next() is None
    with pytest.raises(ClosedError):
        await member.opened()
    with pytest.raises(ClosedError):
        await member.rebalance()
    assert (group.joins, group.left) == (1, [])


@pytest.mark.parametrize(
    ("assigned", "complaint"),
    [
        ({"worker-b": b"", "worker-a": b"", "member-1": b""}, "assign: no members .*: worker-a, worker-b$"),
        (None, "assign: "),
        ({"member-1": 5}, "assign: "),
    ],
)
async def test_a_leader_that_assigns_to_strangers_is_told_so(assigned: Any, complaint: str) -> None:
    """Guards groups in which nobody got anything, and nobody was told why."""
    group = Group()
    group.state = GroupState.ASSIGNING
    member = member_of(group, lambda protocol, members: assigned)
    with pytest.raises(InvalidRequestError, match=complaint):
        await asyncio.wait_for(member.next(), 60)
    assert group.assigned is None
    await member.close()


@pytest.mark.parametrize("error", [DeadlineExceededError, UnknownOutcomeError, ConnectionLostError, NoRoomError])
@pytest.mark.parametrize("call", ["join", "heartbeat", "describe", "members", "get", "assign"])
async def test_a_member_waits_for_servers_whatever_they_do_not_answer(call: str, error: type[MetadError]) -> None:
    """It ended with the error of a disk that had taken half a second. What a group refuses ends it all the same."""
    group = Group()
    group.state = GroupState.ASSIGNING
    work, failures = getattr(group, call), iter([error("not now"), error("nor now")])

    def fails(*asked: Any, **named: Any) -> Any:
        for failure in failures:
            raise failure
        return work(*asked, **named)

    setattr(group, call, fails)
    member = member_of(group)
    asking = asyncio.wait_for(member.next(), 60)
    if error is NoRoomError and call != "heartbeat":
        with pytest.raises(NoRoomError):
            await asking
    else:
        generation = await asking
        assert generation is not None
        assert generation.number == 1
    await member.close()


@pytest.mark.parametrize("looks", [True, False])
async def test_a_member_whose_servers_were_away_has_the_same_generation_again(looks: bool) -> None:
    """Guards members that let go of their work while nobody answered, and waited for a rebalance that nobody needed."""
    group, slept_s = Group(), 0.0
    member = member_of(group)
    loop = asyncio.get_running_loop()
    member._now = member._alive._now = lambda: loop.time() + slept_s
    first = await member.next()
    assert first is not None
    assert first.is_current
    slept_s += 1_000.0
    if looks:  # a program that lets go at once, or only once the servers are there again
        assert not first.is_current
        member._alive.answered(member._now(), 10.0)
    assert member.state is (LeaseState.CONNECTED if looks else LeaseState.SUSPENDED)
    again = await asyncio.wait_for(member.next(), 5.0)
    assert again is not None
    assert (again.number, again.is_current) == (first.number, True)
    assert group.joins == 1
    third = asyncio.ensure_future(member.next())
    await asyncio.sleep(5.0)
    assert not third.done(), "it let go of what it might have worked on"
    await member.close()
    assert await third is None
