"""Consumer groups of real nodes: a member that is killed, one that comes back, and a leader that is killed."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import pytest
from e2e_nodes import Nodes

from metad_client import Client, FencedError, Generation, GroupState, Member, Membership, blocking, connect
from metad_client.options import Options

OPTIONS = Options(deadline_s=60, connect_timeout_s=60)
PATIENCE_S = 120.0
PARTS = 12
CONSUMER = """
import sys
from metad_client import blocking

def share_out(protocol, members):
    return {member.member: bytes(range(at, 12, len(members))) for at, member in enumerate(members)}

with blocking.connect(sys.argv[1]) as m:
    with m.consume("t", sys.argv[2], assign=share_out, session_s=3, instance=sys.argv[3], holder="a process") as member:
        for generation in member:
            print(generation.number, generation.member, *generation.assignment, flush=True)
            generation.ended()
"""


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nodes]:
    with Nodes(tmp_path_factory.mktemp("consumers")) as nodes:
        yield nodes


def share_out(_: str, members: Sequence[Member]) -> Mapping[str, bytes]:
    return {member.member: bytes(range(at, PARTS, len(members))) for at, member in enumerate(members)}


async def until(member: Membership, is_so: Callable[[Generation], bool]) -> Generation:
    """Go through the generations of a member up to one of these."""
    async with asyncio.timeout(PATIENCE_S):
        async for generation in member:
            if is_so(generation):
                return generation
            await generation.ended()
    raise AssertionError("the membership has ended")


async def leader_of(m: Client, group: str) -> str:
    """The node that leads the metad group that has a consumer group."""
    result = await m.offsets.commit_many([])
    assert result.ok
    async with asyncio.timeout(PATIENCE_S):
        while True:
            for status in (await m.cluster.statuses()).values():
                for each in getattr(status, "groups", ()):
                    if each.name == group and each.leader:
                        return str(each.leader)


async def process(nodes: Nodes, tmp_path: Path, group: str, instance: str = "") -> asyncio.subprocess.Process:
    program = tmp_path / "consumer.py"
    program.write_text(CONSUMER)
    return await asyncio.create_subprocess_exec(
        sys.executable, str(program), nodes.url, group, instance, stdout=asyncio.subprocess.PIPE
    )


async def told(consumer: asyncio.subprocess.Process) -> list[str]:
    assert consumer.stdout is not None
    line = await asyncio.wait_for(consumer.stdout.readline(), PATIENCE_S)
    return line.decode().split()


async def killed(consumer: asyncio.subprocess.Process) -> None:
    if consumer.returncode is None:
        with suppress(ProcessLookupError):
            consumer.kill()
    await consumer.wait()


async def test_the_others_get_what_a_member_had_that_is_killed(nodes: Nodes, tmp_path: Path) -> None:
    consumer = await process(nodes, tmp_path, "killed")
    try:
        _, other, *parts = await told(consumer)
        assert len(parts) == PARTS
        async with (
            connect(nodes.url, OPTIONS) as m,
            m.consume("t", "killed", assign=share_out, session_s=5, holder="the other") as member,
        ):
            mine = await until(member, lambda generation: len(generation.assignment) == PARTS // 2)
            assert {each.holder async for each in m.consumers.members("t", "killed")} == {"a process", "the other"}
            await mine.commit("topic", 0, 5)
            await m.offsets.commit("t", "killed", "topic", 1, 7, generation=mine.number, member=other)
            await killed(consumer)
            await mine.ended()
            await mine.commit("topic", 0, 6)  # what is done, before the next generation begins
            whole = await until(member, lambda generation: len(generation.assignment) == PARTS)
            assert whole.number > mine.number
            with pytest.raises(FencedError):
                await mine.commit("topic", 0, 7)
            with pytest.raises(FencedError):
                await m.offsets.commit("t", "killed", "topic", 1, 8, generation=whole.number, member=other)
            await whole.commit("topic", 0, 8)
            found = await m.offsets.fetch("t", "killed", "topic", 0)
            assert found is not None
            assert (found.offset, found.generation) == (8, whole.number)
    finally:
        await killed(consumer)


async def test_who_comes_back_within_its_time_has_what_it_had(nodes: Nodes, tmp_path: Path) -> None:
    consumer = await process(nodes, tmp_path, "placed", "place-1")
    try:
        number, first, *parts = await told(consumer)
        await killed(consumer)
        consumer = await process(nodes, tmp_path, "placed", "place-1")
        again, second, *same = await told(consumer)
        assert same == parts
        assert second != first
        async with connect(nodes.url, OPTIONS) as m:
            with pytest.raises(FencedError):
                await m.offsets.commit("t", "placed", "topic", 0, 1, generation=int(again), member=first)
            # On a slow machine it may have come back too late, and then the group has rebalanced.
            assert int(again) >= int(number)
    finally:
        await killed(consumer)


async def test_a_group_outlives_the_leader_of_its_metad_group(nodes: Nodes) -> None:
    async with (
        connect(nodes.url, OPTIONS) as m,
        connect(nodes.url, OPTIONS) as other,
        m.consume("t", "led", assign=share_out, session_s=30) as one,
        other.consume("t", "led", assign=share_out, session_s=30) as two,
    ):
        follow = asyncio.create_task(until(two, lambda generation: len(generation.assignment) == PARTS // 2))
        first = await until(one, lambda generation: len(generation.assignment) == PARTS // 2)
        second = await follow
        assert first.number == second.number
        assert sorted(first.assignment + second.assignment) == list(range(PARTS))
        node = await leader_of(m, "offset-0")
        nodes.kill(node)
        await first.commit("topic", 0, 1)
        await second.commit("topic", 1, 1)
        info = await m.consumers.describe("t", "led")
        assert info is not None
        assert (info.state, info.generation, info.members) == (GroupState.STABLE, first.number, 2)
        following = asyncio.create_task(until(two, lambda generation: generation.number > second.number))
        await second.ended()
        assert not second.is_current, "who asks for the next generation has let go of this one"
        await one.rebalance()
        third = await until(one, lambda generation: generation.number > first.number)
        fourth = await following
        assert sorted(third.assignment + fourth.assignment) == list(range(PARTS))
        nodes.restart(node)


def test_the_blocking_client_is_a_member_too(nodes: Nodes) -> None:
    with blocking.connect(nodes.url, OPTIONS) as m:
        with m.consume("t", "blocked", assign=share_out, session_s=30) as member:
            generation = next(iter(member))
            assert generation.is_current
            assert generation.is_leader
            assert list(generation.assignment) == list(range(PARTS))
            generation.commit("topic", 3, 9)
            assert [each.member for each in m.consumers.members("t", "blocked")] == [generation.member]
        assert list(m.consumers.members("t", "blocked")) == [], "it has left"
        assert m.offsets.delete_group("t", "blocked") == 1
        assert m.consumers.describe("t", "blocked") is None
