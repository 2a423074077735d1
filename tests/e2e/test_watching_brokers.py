"""The example of the README: two brokers on two nodes see each other's changes in one iterator each, while a leader is
killed and slots move to new groups. And what lasts longer: a watch and an image through all of it, word for word."""

from __future__ import annotations

import ast
import asyncio
from collections import Counter, defaultdict
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pages import blocks

from metad import embedded
from metad_client import Client, ConflictError, ConnectionLostError, Kv, Watch, connect

ROOT = Path(__file__).resolve().parents[2]
SMALL = {"election_timeout_ms": 300, "heartbeat_ms": 50}
TIMEOUT_S = 240.0


def readme_example() -> str:
    (block,) = [block for block in blocks((ROOT / "README.md").read_text(), "python") if "async def broker(" in block]
    return block


async def disturb(cluster: embedded.Cluster, m: Client) -> None:
    """A rebalance to a new group, the death of a leader, another rebalance, and the dead node comes back."""
    await one_more_group(m)
    leader = (await m.cluster.map()).leaders["data-0"]
    cluster.kill(leader)
    await one_more_group(m)
    await asyncio.to_thread(cluster.start, leader)


async def one_more_group(m: Client) -> None:
    """Nothing that changes the cluster is sent again by itself; one group more than meant does no harm."""
    for change in (partial(m.cluster.add_group, "data"), m.cluster.rebalance):
        while True:
            try:
                await change(deadline_s=60)
                break
            except ConnectionLostError:
                continue
            except ConflictError:  # slots are still on their way
                await settled(m)


async def settled(m: Client) -> None:
    """No slot is on its way."""
    while True:
        known = (await m.cluster.map()).map
        if known is not None and not known.moves:
            return
        await asyncio.sleep(0.05)


@pytest.mark.slow
async def test_the_brokers_of_the_readme_see_each_others_changes() -> None:
    definition = ast.parse(readme_example())
    names: dict[str, Any] = {}
    kept = [node for node in definition.body if not isinstance(node, ast.Assign | ast.Expr)]
    assert len(kept) == 3, "two imports and a function"
    exec(compile(ast.Module(kept, []), "README.md", "exec"), names)
    clients = [[f"{letter}{number}" for number in range(400)] for letter in "ab"]
    async with (
        embedded.cluster(nodes=3, groups={"data": 2}, raft=SMALL) as cluster,
        asyncio.timeout(TIMEOUT_S),
        connect(cluster.url) as m,
    ):
        n1, n2 = (f"{cluster.endpoint(node)},{cluster.endpoint('n3')}" for node in ("n1", "n2"))
        one = asyncio.create_task(names["broker"]("broker-1", n1, clients[0], 800))
        two = asyncio.create_task(names["broker"]("broker-2", n2, clients[1], 800))
        await disturb(cluster, m)
        expected = sorted([(client, "broker-1") for client in clients[0]] + [(c, "broker-2") for c in clients[1]])
        assert sorted(await one) == expected
        assert sorted(await two) == expected


class Following:
    """What a watch has told, by key."""

    def __init__(self) -> None:
        self.versions: dict[str, list[int]] = defaultdict(list)
        self.order: dict[str, list[int]] = defaultdict(list)
        self.tokens: list[tuple[str, dict[str, int]]] = []
        self.kinds: Counter[str] = Counter()

    async def follow(self, watch: Watch, until: dict[str, int]) -> None:
        """Read until the newest versions are there."""
        async for batch in watch:
            self.kinds[batch.kind] += 1
            for event in batch.events:
                assert isinstance(event.record, Kv)
                self.versions[event.record.key].append(event.record.version)
                self.order[event.record.key].append(event.version)
            self.tokens.append((batch.token, {key: versions[-1] for key, versions in self.versions.items()}))
            if until and {key: versions[-1] for key, versions in self.versions.items()} == until:
                return


@pytest.mark.slow
async def test_watches_and_images_miss_nothing_through_a_rebalance_and_the_death_of_a_leader() -> None:
    async with (
        embedded.cluster(nodes=3, groups={"data": 2}, raft=SMALL) as cluster,
        asyncio.timeout(TIMEOUT_S),
        connect(cluster.url) as m,
        connect(cluster.url) as other,
    ):
        followed, until = Following(), dict[str, int]()
        watch = await other.watch("kv", progress_s=0.2).opened()
        image = await other.image("kv").caught_up()
        changed = asyncio.Event()
        image.on_change(lambda _: changed.set())
        reading = asyncio.create_task(followed.follow(watch, until))
        written: Counter[str] = Counter()
        stopping = False

        async def write(number: int) -> None:
            while not stopping:
                written[f"k{number}"] = await m.kv.put(f"ns{number}", f"k{number}", b"", deadline_s=60)

        writers = [asyncio.create_task(write(number)) for number in range(20)]
        await disturb(cluster, m)
        await settled(m)
        stopping = True
        await asyncio.gather(*writers)
        until.update(written, last=1)
        await m.kv.put("last", "last", b"")  # the reader goes on to it, should it have seen all others
        await reading
        assert dict(followed.versions) == {key: list(range(1, version + 1)) for key, version in until.items()}
        assert all(versions == sorted(set(versions)) for versions in followed.order.values())
        assert followed.kinds["progress"]
        assert not followed.kinds["gap"]
        while {record.key: record.version for record in image["kv"].values()} != until:
            changed.clear()
            await changed.wait()
        # from any token, exactly what followed
        for token, seen in followed.tokens[:: max(1, len(followed.tokens) // 10)]:
            again, left = Following(), {key: version for key, version in until.items() if seen.get(key) != version}
            if left:
                await again.follow(other.watch("kv", token=token), left)
            assert dict(again.versions) == {
                key: list(range(seen.get(key, 0) + 1, version + 1)) for key, version in left.items()
            }


async def test_a_watch_of_a_plain_server_outlives_its_restart(tmp_path: Path) -> None:
    with embedded.cluster(nodes=1, data_dir=tmp_path, raft=SMALL) as cluster:
        async with connect(cluster.url) as m, asyncio.timeout(TIMEOUT_S):
            watch = await m.watch("kv", tenant="ns").opened()
            for end in ("kill", "stop"):
                await m.kv.put("ns", "key", b"before")
                await asyncio.to_thread(getattr(cluster, end), "n1")
                await asyncio.to_thread(cluster.start, "n1")
                await m.kv.put("ns", "key", b"behind", deadline_s=60)
            seen: list[bytes] = []
            while len(seen) < 4:
                seen += [event.record.value for event in (await anext(watch)).events]
            assert seen == [b"before", b"behind"] * 2


async def test_a_watch_of_brokers_shows_states_addresses_and_classes_of_load() -> None:
    async with embedded.serve() as server, connect(server.url) as watcher, connect(server.url) as m:
        seen: list[tuple[str, str, int]] = []
        async with asyncio.timeout(60.0), watcher.watch("broker", start="snapshot") as watch:
            life = await m.brokers.register("b1", address="10.0.0.1:1883", lease_s=1.0, loading_s=60.0)
            life.report(1_000)
            async for batch in watch:
                for event in batch.events:
                    assert event.record is not None
                    seen.append((event.record.state, event.record.address, event.record.load_class))
                if seen[-1:] == [("loading", "10.0.0.1:1883", 10)]:
                    await life.serve()
                elif seen[-1:] == [("active", "10.0.0.1:1883", 10)]:
                    await life.end()
                elif seen and seen[-1][0] == "gone":
                    break
        assert next(state for state, *_ in seen) == "loading"
        assert ("active", "10.0.0.1:1883", 10) in seen
