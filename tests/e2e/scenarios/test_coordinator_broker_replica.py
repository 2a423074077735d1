"""Coordinator, broker and replica design (Coo-M-S): coordinators place, masters serve, replicas wait to be promoted.

metad is the coordinator. It places the partitions, with labels as hot and cold ones. When a master dies, its replicas
promise to take nothing of it any more, say how far they are, and the one that is farthest is promoted with the next
``leader_epoch``; the dead one's life is fenced. A client routes by key with a copy, and a master refuses a route that
is old. A master that joins gets its share, and one that leaves is emptied, by plans that are throttled, pause, go on
and are cancelled.

Not yet: placement does not look at the load that heartbeats report, and there are no metrics over HTTP.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from zlib import crc32

import pytest
from e2e_nodes import Nodes
from serving_brokers import Broker, created, joined, parts, placed, replicate

from metad_client import Choice, Client, FencedError, StaleRouteError
from metad_wire.families.assignment import PARTITIONS
from metad_wire.tables.plan import Plan
from waiting import until

SHOWS = """
broker.register broker.heartbeat broker.fence offset.commit offset.fetch table.list
assignment.create assignment.report assignment.in_sync assignment.alter
plan.create plan.set plan.get plan.list plan.delete
"""
PARTS = 8
HOT = {"system": "coms", "tier": "hot"}
COLD = {"system": "coms", "tier": "cold"}


async def test_a_master_is_promoted_by_position_and_two_never_serve(m: Client, cluster: Nodes) -> None:
    async with AsyncExitStack() as stack:
        names = [f"coms-{number}" for number in range(1, 4)]
        masters = {name: await joined(stack, cluster, name, "master", attributes=HOT) for name in names}
        await placed(lambda: m.assignments.masters.create("coms", "t", PARTS, labels=HOT, repair_after_ms=0))
        await until(lambda: sum(len(each.led) for each in masters.values()) == PARTS, "each has a master")

        # A client routes by key, with a copy.
        copy = await m.assignments.route("coms", "t", "master")
        at_master = await masters["coms-1"].client.routes(PARTITIONS, "coms", "t", "master")
        part = copy.choose(key=b"a key").partition
        assert part == crc32(b"a key") % PARTS
        known = copy[part]
        assert known.record.leader is not None
        dead, key = masters[known.record.leader.broker], ("coms", "t", "master", part)
        old, epoch = dead.led[key], known.record.leader_epoch
        await dead.client.offsets.commit("coms", "written", "t", part, 10, generation=epoch)
        dead.append(key, 10)
        near, far = [masters[name] for name in names if name != dead.name]
        near.logs[key], far.logs[key] = (epoch, 7), (epoch, 9)  # replicas are behind, one more than the other

        await m.brokers.fence(dead.name)
        await until(lambda: key in far.led, "the promotion")
        await until(lambda: old.over, "the old one hears of it")
        new = far.led[key]
        assert new.leader_epoch == epoch + 1
        assert [each.name for each in masters.values() if key in each.led] == [far.name]
        with pytest.raises(FencedError):
            dead.append(key)
        with pytest.raises(FencedError):
            await dead.client.offsets.commit("coms", "written", "t", part, 11, generation=epoch)
        await far.client.offsets.commit("coms", "written", "t", part, 12, generation=new.leader_epoch)
        with pytest.raises(FencedError):  # by a route that is old, at whatever master
            await m.offsets.commit("coms", "written", "t", part, 13, generation=epoch)
        await at_master.refresh()
        with pytest.raises(StaleRouteError):
            await at_master.check(known.mod_revision, part)
        records = far.append(key, 0)

        async def connect(choice: Choice) -> Broker:
            return masters[choice.broker.broker]

        async def send(master: Broker, choice: Choice) -> int:
            await at_master.check(choice.found.mod_revision, part)
            return master.append(key)

        assert copy[part] == known
        assert await copy.ask(connect, send, key=b"a key") == records + 1
        assert copy[part].record.leader == far.life.owner
        written = await m.offsets.fetch("coms", "written", "t", part)
        assert written is not None
        assert (written.offset, written.generation) == (12, epoch + 1)


async def test_masters_join_and_leave_and_partitions_turn_cold(m: Client, cluster: Nodes) -> None:
    async with AsyncExitStack() as stack:
        masters = {
            name: await joined(stack, cluster, name, "bin", attributes=HOT) for name in ("coms-a", "coms-b", "coms-c")
        }
        await created(m, "coms2", "t", "bin", partitions=PARTS, replication=2, labels=HOT)
        made = await parts(m, "coms2", "t")
        assert all({*part.replicas} <= {*masters} for part in made)

        def has(name: str) -> Callable[[], Awaitable[int]]:
            async def count() -> int:
                replicate(masters.values())
                return sum(name in part.replicas and part.move is None for part in await parts(m, "coms2", "t"))

            return count

        async def moving() -> set[int | None]:
            return {part.move.throttle_bytes for part in await parts(m, "coms2", "t") if part.move is not None}

        def ended(plan: str) -> Callable[[], Awaitable[Plan | None]]:
            async def is_done() -> Plan | None:
                replicate(masters.values())
                found = await m.plans.get(plan)
                return found if found is not None and found.state == "done" else None

            return is_done

        # A master joins. What moves to it is throttled, and given up where the plan is cancelled.
        new = masters["coms-d"] = await joined(stack, cluster, "coms-d", "bin", attributes=HOT)
        await m.plans.create("coms-in", "add", ["coms-d"], moves=1, throttle_bytes=1_000_000)
        await until(moving, "a move")
        assert await moving() == {1_000_000}
        await m.plans.pause("coms-in")
        assert [plan.state async for plan in m.plans.list("coms-")] == ["paused"]
        await m.plans.resume("coms-in")
        await m.plans.cancel("coms-in")

        async def still() -> bool:
            return not await moving()

        await until(still, "it is given up")
        await until(lambda: not new.logs, "what it had begun to copy is deleted")
        await m.plans.delete("coms-in")
        await m.plans.create("coms-in", "add", ["coms-d"])
        done = await until(ended("coms-in"), "it has its share")
        assert 0 < done.begun == await has("coms-d")() < PARTS

        # One leaves: it is emptied, and leads nothing any more.
        await m.plans.create("coms-out", "drain", ["coms-a"])
        await until(ended("coms-out"), "nothing is left there")
        assert await has("coms-a")() == 0
        assert not masters["coms-a"].led

        # The partitions turn cold: new ones, and those that are moved, go where cold ones are.
        for name in ("coms-x", "coms-y"):
            masters[name] = await joined(stack, cluster, name, "bin", attributes=COLD)
        await m.assignments.alter("coms2", "t", "bin", labels=COLD)
        await m.plans.create("coms-cold", "drain", ["coms-b", "coms-c", "coms-d"])
        await until(ended("coms-cold"), "all are cold")
        assert {name for part in await parts(m, "coms2", "t") for name in part.replicas} == {"coms-x", "coms-y"}
