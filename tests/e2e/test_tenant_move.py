"""A tenant moves between two real clusters beside its writers, through the death of metadctl at any step, back where it
came from, and not where it must not."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from e2e_metadctl import metadctl, printed
from serving_brokers import idle_brokers

from metad.embedded import Cluster, cluster
from metad_backup.moving import MoveError, Progress, cancel, move
from metad_client import Client, MetadError, blocking, connect
from metad_client.errors import ConflictError, TenantMovedError, TenantMovingError
from metad_wire import messages as m
from waiting import WAIT_S, until

METADCTL = Path(sys.executable).with_name("metadctl")


@contextmanager
def two(**here: Any) -> Iterator[tuple[Cluster, Cluster]]:
    shape = {"fsync": False, "groups": {"data": 2, "offset": 1}} | here
    with cluster(1, **shape) as source, cluster(1, fsync=False, groups={"data": 3, "offset": 2}) as target:
        yield source, target


def ctl(where: Cluster, *words: str) -> list[str]:
    return [str(METADCTL), "--endpoint", address(where), *words]


def address(of: Cluster) -> str:
    return of.url.partition("//")[2]


class Writer:
    """Writes keys, sessions and offsets of the tenant where it is: first in one cluster, then in the other."""

    def __init__(self, here: Client, there: Client) -> None:
        self.clients = [here, there]
        self.at = 0
        self.kv: dict[str, bytes] = {}
        self.offset = -1
        self.sessions: set[str] = set()
        self.number = self.refused = 0

    async def run(self) -> None:
        while True:
            try:
                await self.one()
            except TenantMovedError:
                self.at = 1
                self.refused += 1
            except TenantMovingError:
                self.refused += 1
                await asyncio.sleep(0.01)

    async def one(self) -> None:
        self.number += 1
        c, key = self.clients[self.at], f"k{self.number % 500}"
        await c.kv.put("t", key, b"%d" % self.number)
        self.kv[key] = b"%d" % self.number
        await c.offsets.commit("t", "g", "topic", 0, self.number)
        self.offset = self.number
        await c.sessions.takeover("b1", 1, "t", f"c{self.number}")
        self.sessions.add(f"c{self.number}")

    async def missed(self, c: Client) -> list[str]:
        found = {one.key: one.value async for one in c.kv.scan("t")}
        lost = [key for key, value in self.kv.items() if found.get(key) != value]
        offset = await c.offsets.fetch("t", "g", "topic", 0)
        lost += [] if offset is not None and offset.offset >= self.offset else ["offset"]
        there = {one.client_id async for one in c.sessions.list("t")}
        return lost + sorted(self.sessions - there)


@asynccontextmanager
async def writing(writer: Writer) -> AsyncIterator[None]:
    task = asyncio.create_task(writer.run())
    try:
        yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


async def test_nothing_is_lost_beside_a_writer_and_watches_there_see_it_come() -> None:
    with two() as (source, target):
        async with connect(source.url) as here, connect(target.url) as there:
            writer = Writer(here, there)
            for _ in range(50):
                await writer.one()
            await here.retained.put("t", "a/b", b"kept")
            await here.kv.put("other", "k", b"v")
            image = await there.image(["kv", "session"]).caught_up()
            watched = asyncio.create_task(_watched(here))
            async with writing(writer):
                done = await move(here, there, "t", address=address(target))
                number = writer.number
                await until(lambda: writer.number > number + 50, "it is written there")
            assert writer.at == 1
            assert done.stopped_ms < 5_000
            assert await writer.missed(there) == []
            (kept,) = [one async for one in there.retained.match("t", "a/#")]
            assert kept.payload == b"kept"
            await until(lambda: len(image["session"]) >= len(writer.sessions), "the image shows what came")
            session = await there.sessions.get("t", "c1")
            assert session is not None
            assert not session.connected
            with pytest.raises(TenantMovedError, match=address(target)):
                await watched
            with pytest.raises(TenantMovedError, match=address(target)):
                await _watched(here)
            with pytest.raises(TenantMovedError, match=address(target)):
                await here.kv.get("t", "k1")
            with pytest.raises(TenantMovedError):
                [one async for one in here.sessions.list("t")]
            assert await here.kv.get("other", "k") is not None
            await here.tenants.end("t")
            await _until_ended(here)
            await here.kv.put("t", "new", b"v")  # its name is free again
            assert {one.table for one in await here.tenants.use("t")} == {"kv"}


async def _watched(c: Client) -> None:
    """Read what changes, until the watch ends."""
    async for _ in c.watch("kv", tenant="t"):
        pass


async def _until_ended(c: Client) -> None:
    async def ended() -> bool:
        return not await c.tenants.endings("t")

    await until(ended, "the tenant is ended")


@pytest.mark.parametrize("what", ["begin", "page", "copy", "follow", "freeze", "came", "left"])
async def test_it_goes_on_wherever_it_died_and_one_cluster_at_most_takes_writes(what: str) -> None:
    with two() as (source, target):
        async with connect(source.url) as here, connect(target.url) as there:
            writer = Writer(here, there)
            for _ in range(20):
                await writer.one()

            class Died(Exception):
                pass

            def tell(at: Progress) -> None:
                if at.what == what:
                    raise Died

            async with writing(writer):
                with pytest.raises(Died):
                    await move(here, there, "t", address=address(target), tell=tell)
                taken = [await _takes(one) for one in (here, there)]
                assert taken == {"left": [False, True]}.get(what, [what not in ("freeze", "came"), taken[1]])
                assert taken.count(True) <= 1
                await move(here, there, "t", address=address(target))
                number = writer.number
                await until(lambda: writer.number > number + 20, "it is written there")
            assert await writer.missed(there) == []
            with pytest.raises(MoveError, match="has moved"):
                await move(here, there, "t", address=address(target))


async def test_leaders_change_in_both_clusters_meanwhile() -> None:
    shape: dict[str, Any] = {"fsync": False, "groups": {"data": 2, "offset": 1}}
    with cluster(3, **shape) as source, cluster(3, **shape) as target:
        async with connect(source.url) as here, connect(target.url) as there:
            writer = Writer(here, there)
            items = [m.KvPutItem("t", f"x{i}", b"v" * 100) for i in range(20_000)]
            (await here.kv.put_many(items)).raise_for_error()
            await writer.one()
            changed = 0

            async def change() -> None:
                nonlocal changed
                while True:
                    for c in (here, there):
                        known = (await c.cluster.map()).map
                        assert known is not None
                        for record in known.groups:
                            node = record.replicas[changed % len(record.replicas)]
                            await c.cluster.transfer(record.group_id.name, node)
                    changed += 1

            changing = asyncio.create_task(change())
            async with writing(writer):
                try:
                    await move(here, there, "t", address=address(target), bytes_per_s=1_000_000)
                finally:
                    changing.cancel()
                number = writer.number
                await until(lambda: writer.number > number + 20, "it is written there")
            assert changed > 1
            assert await writer.missed(there) == []
            assert len({one.key async for one in there.kv.scan("t", "x")}) == 20_000


async def test_a_node_of_each_cluster_dies_meanwhile() -> None:
    """It is not waited for with each page of a log: that took longer than what was written meanwhile."""
    shape: dict[str, Any] = {"fsync": False, "groups": {"data": 1, "offset": 1}}
    with cluster(3, **shape) as source, cluster(3, **shape) as target:
        async with connect(source.url) as here, connect(target.url) as there:
            writer, told = Writer(here, there), list[str]()
            await writer.one()
            first = [(of, await first_asked(c)) for of, c in ((source, here), (target, there))]

            def tell(at: Progress) -> None:
                if not told:
                    for of, node in first:
                        of.kill(node)
                told.append(at.what)

            async with writing(writer):
                await asyncio.wait_for(move(here, there, "t", address=address(target), tell=tell), WAIT_S)
                number = writer.number
                await until(lambda: writer.number > number + 20, "it is written there")
            assert told[-1] == "done"
            assert await writer.missed(there) == []


async def first_asked(c: Client) -> str:
    """The node from which the log of data-0 is read, if it answers."""
    known = (await c.cluster.map()).map
    assert known is not None
    return next(one.preferred for one in known.groups if one.group_id.name == "data-0")


async def _takes(c: Client) -> bool:
    try:
        await c.kv.put("t", "probe", b"v", deadline_s=1.0)
    except MetadError:
        return False
    await c.kv.delete("t", "probe")
    return True


async def test_metadctl_is_killed_goes_on_and_gives_up() -> None:
    with two() as (source, target):
        async with connect(source.url) as here, connect(target.url) as there:
            for begin in range(0, 20_000, 1_000):
                items = [m.KvPutItem("t", f"k{i}", b"v" * 50) for i in range(begin, begin + 1_000)]
                (await here.kv.put_many(items)).raise_for_error()
            words = ctl(source, "tenants", "move", "t", "--to", address(target))
            killed = await asyncio.create_subprocess_exec(*words, "--rate", "1")
            try:
                await until(lambda: there.tenants.use("t"), "some rows have come")
            finally:
                killed.kill()
                await killed.wait()
            done = await _run(*words, "--cancel", "--json")
            assert json.loads(done.stdout)["dropped"] > 0
            assert await there.tenants.use("t") == []
            await here.kv.put("t", "k0", b"after")
            done = await _run(*words, "--json")
            row = json.loads(done.stdout)
            assert row["rows"] >= 20_000
            assert {"tenant", "rows", "seconds", "stopped_ms"} == row.keys()
            found = await there.kv.get("t", "k0")
            assert found is not None
            assert found.value == b"after"
            for c, steps in ((here, {"leave", "freeze", "left", "thaw"}), (there, {"come", "came", "give_up"})):
                lines = [line async for line in c.audit.list(method_prefix="group.")]
                assert {line.names.partition("/")[0] for line in lines} == steps  # and not each batch
            done = await _run(*words, status=1)
            assert "has moved to" in done.stderr
            assert done.stderr.count("\n") == 1


async def _run(*words: str, status: int = 0) -> subprocess.CompletedProcess[str]:
    done = await asyncio.to_thread(subprocess.run, words, capture_output=True, text=True, timeout=WAIT_S, check=False)
    assert done.returncode == status, done.stderr
    return done


def test_a_tenant_with_resources_stays_and_nothing_is_begun() -> None:
    """Once the tenant was left half way: the first group had begun when another one found the resources."""
    with idle_brokers(("b1", "b2")) as source, cluster(1, fsync=False) as target:
        for words in ("orders --kind topic --replication 2", "jobs --kind classic_queue --replication 1"):
            made = printed(source, *f"resources create t {words} --partitions 1".split())
            assert made == {"created": True}
        metadctl(source, "put", "kv", "t", "k", "v")
        words = ("tenants", "move", "t", "--to", address(target))
        status, out, err = metadctl(source, *words, "--json")
        assert (status, err.count("\n")) == (1, 1)
        found = json.loads(out)
        assert (found["tenant"], found["moved"], found["reason"]) == ("t", False, "has_resources")
        assert [(one["resource"], one["kind"], one["partitions"]) for one in found["resources"]] == [
            ("jobs", "classic_queue", 1),
            ("orders", "topic", 1),
        ]
        assert found["more"] is False
        assert "jobs (classic_queue), orders (topic)" in err
        assert "Nothing was done" in err
        assert "metadctl resources delete t RESOURCE KIND" in err
        status, out, err = metadctl(source, *words)
        assert status == 1
        assert "resources, which do not move" in out
        assert metadctl(source, *words, "--cancel")[2].endswith("no move of tenant 't' is under way\n")
        with blocking.connect(target.url) as there:
            assert there.tenants.use("t") == []


async def test_it_is_refused_where_it_must_not_go() -> None:
    with two() as (source, target):
        async with connect(source.url) as here, connect(target.url) as there:
            with pytest.raises(MoveError, match="has nothing"):
                await move(here, there, "t", address="x")
            await here.kv.put("t", "k", b"v")
            with pytest.raises(MoveError, match="same cluster"):
                await move(here, here, "t", address="x")
            await there.kv.put("t", "k", b"v")
            with pytest.raises(MoveError, match="it comes only where it is not"):
                await move(here, there, "t", address="x")
            with pytest.raises(MoveError, match="no move"):
                await cancel(here, there, "t", address="x")
            await there.tenants.end("t")
            await _until_ended(there)

            class Died(Exception):
                pass

            def tell(at: Progress) -> None:
                raise Died

            with pytest.raises(Died):
                await move(here, there, "t", address="x", tell=tell)
            with pytest.raises(ConflictError, match="end it afterwards"):
                await here.tenants.end("t")
            assert await cancel(here, there, "t", address="x") == 0
            await here.tenants.end("t")
            await _until_ended(here)
