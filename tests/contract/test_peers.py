"""One suite for all systems that ``metad-perf compare`` knows: each adapter does what :mod:`metad_perf.peers.peer`
says, on three nodes of the real system. A system that is not installed is skipped, metad itself never is. One that
must run already is tested at ``METAD_PEER_NAME=HOST:PORT``.

It guards the comparison: a peer whose takeover does not change the owner, or whose read does not come back, would be
fast.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from pathlib import Path

import pytest
import uvloop

from metad_perf.errors import UsageError
from metad_perf.peers import catalog, etcd_client, grpc_peer, metad_peer
from metad_perf.peers.catalog import KINDS, METAD, Chosen
from metad_perf.peers.metad_peer import MetadNodes
from metad_perf.peers.peer import Answer, Call, Client, Peer
from metad_perf.spawn import Shape

LAPSED_WITHIN_S = 120.0
_LOOK_S = 0.2
_SUITE = itertools.count()
Work = Callable[[Client, str], Awaitable[None]]


class Running:
    """A system with its nodes."""

    def __init__(self, name: str, peer: Peer) -> None:
        self.name, self.peer = name, peer

    def do(self, work: Work) -> None:
        """Run the work on a client; it gets a prefix that no other work has."""

        async def run() -> None:
            async with catalog.open_client(self.name, self.peer.endpoints(), 2) as client:
                await work(client, f"t{next(_SUITE)}")

        # The loop of a load-generating process.
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(run())


@pytest.fixture(scope="module", params=KINDS)
def running(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    name: str = request.param
    directory: Path = tmp_path_factory.mktemp(name)
    try:
        given = os.environ.get(f"METAD_PEER_{name.upper()}", "")
        peer = MetadNodes(Shape(nodes=3)) if name == METAD else Chosen(name, given).make(directory)
    except UsageError as error:
        pytest.skip(str(error))
    try:
        peer.start()
        yield Running(name, peer)
    finally:
        peer.stop()


async def _done(call: Call) -> Answer:
    answer = await call()
    assert not answer.failed
    return answer


async def _values(call: Call) -> list[bytes | None]:
    return list((await _done(call)).values)


def test_keys_are_written_and_read_one_at_a_time(running: Running) -> None:
    async def work(client: Client, prefix: str) -> None:
        key = f"{prefix}/one"
        assert await _values(client.get([key])) == [None]
        await _done(client.insert([(key, b"first")]))
        assert await _values(client.get([key])) == [b"first"]
        put = client.put([(key, b"second")])
        await _done(put)
        await _done(put)  # a call can be repeated
        assert await _values(client.get([key])) == [b"second"]
        await _done(client.delete([key]))
        assert await _values(client.get([key])) == [None]

    running.do(work)


def test_a_batch_of_a_thousand_is_written_and_read_by_position(running: Running) -> None:
    async def work(client: Client, prefix: str) -> None:
        keys = [f"{prefix}/{i}" for i in range(1_000)]
        await _done(client.insert([(key, b"v" * 200) for key in keys]))
        values = [b"%d" % i * 40 for i in range(1_000)]
        await _done(client.put(list(zip(keys, values, strict=True))))
        assert await _values(client.get(keys)) == values
        assert await _values(client.get([keys[5], f"{prefix}/absent", keys[0]])) == [values[5], None, values[0]]
        await _done(client.delete(keys[:10]))
        assert await _values(client.get(keys[:12])) == [None] * 10 + values[10:12]

    running.do(work)


async def _take(client: Client, names: Sequence[str], owner: str) -> Answer:
    await _done(client.enter(owner))
    return await _done(client.take_over(names, owner))


def test_a_takeover_changes_the_owners_and_reads_the_properties(running: Running) -> None:
    async def work(client: Client, prefix: str) -> None:
        names = [f"{prefix}-{i}" for i in range(1_000)]
        properties = [b"%d" % i * 40 for i in range(1_000)]
        await _done(client.create(list(zip(names, properties, strict=True)), "broker-a"))
        assert await _values(client.owners(names)) == [b"broker-a"] * 1_000
        assert list((await _take(client, names[:900], "broker-b")).values) == properties[:900]
        assert await _values(client.owners(names)) == [b"broker-b"] * 900 + [b"broker-a"] * 100
        assert list((await _take(client, names[:1], "broker-c")).values) == properties[:1]
        assert await _values(client.owners(names[:2])) == [b"broker-c", b"broker-b"]

    running.do(work)


def test_a_takeover_says_who_owned_the_session_before(running: Running) -> None:
    async def work(client: Client, prefix: str) -> None:
        names = [f"{prefix}-{i}" for i in range(4)]
        await _done(client.create([(name, b"v") for name in names], "broker-a"))
        await _take(client, names[:2], "broker-b")
        answer = await _take(client, names, "broker-c")
        assert list(answer.before) == ([b"broker-b"] * 2 + [b"broker-a"] * 2 if KINDS[running.name].fenced else [])

    running.do(work)


def test_takeovers_of_a_session_at_the_same_time_name_each_other(running: Running) -> None:
    """Each owner but the last is the former one of exactly one other."""
    if not KINDS[running.name].fenced:
        pytest.skip("it does not say who owned a session before")

    async def work(client: Client, prefix: str) -> None:
        names = [f"{prefix}-{i}" for i in range(3)]
        await _done(client.create([(name, b"v") for name in names], "broker-first"))
        brokers = [f"{prefix}-broker-{i}" for i in range(6)]
        for broker in brokers:
            await _done(client.enter(broker))
        answers = await asyncio.gather(*[_done(client.take_over(names, broker)) for broker in brokers])
        for at, last in enumerate(await _values(client.owners(names))):
            assert last is not None
            named = [answer.before[at] for answer in answers]
            assert sorted([*named, last]) == sorted([b"broker-first", *[broker.encode() for broker in brokers]])

    running.do(work)


def test_an_earlier_life_of_a_broker_takes_nothing_from_a_later_one(running: Running) -> None:
    if not KINDS[running.name].fenced:
        pytest.skip("no epoch is checked there")

    async def work(client: Client, prefix: str) -> None:
        names, broker = [f"{prefix}-{i}" for i in range(10)], f"{prefix}-broker"
        await _done(client.create([(name, b"v") for name in names], "broker-a"))
        await _take(client, names, broker)
        async with catalog.open_client(running.name, running.peer.endpoints(), 2) as restarted:
            await _take(restarted, names[:5], broker)
            late = await client.take_over(names[:5], broker)()
            assert len(late.failed) == 5
            again = await _done(restarted.take_over(names, broker))
            assert list(again.before) == [broker.encode()] * 10

    running.do(work)


def test_calls_at_the_same_time_get_their_own_answers(running: Running) -> None:
    async def work(client: Client, prefix: str) -> None:
        records = [(f"{prefix}/{i}", b"%d" % i) for i in range(200)]
        await asyncio.gather(*[_done(client.insert([one])) for one in records])
        answers = await asyncio.gather(*[_values(client.get([key])) for key, _ in records])
        assert answers == [[value] for _, value in records]

    running.do(work)


def test_a_takeover_of_what_is_not_there_is_told(running: Running) -> None:
    async def work(client: Client, prefix: str) -> None:
        await _done(client.enter("broker-a"))
        answer = await client.take_over([f"{prefix}-absent"], "broker-a")()
        assert len(answer.failed) == 1

    running.do(work)


def test_a_lapsing_session_begins_and_ends(running: Running) -> None:
    async def work(client: Client, prefix: str) -> None:
        names = [f"{prefix}-{i}" for i in range(20)]
        await _done(client.begin([(name, name.encode()) for name in names[1:]]))
        await _done(client.begin([(names[0], b"alone")]))
        assert await _values(client.alive(names)) == [b"alone"] + [name.encode() for name in names[1:]]
        await _done(client.end(names[:1]))
        await _done(client.end(names[5:]))
        assert await _values(client.alive(names[:1] + names[5:])) == [None] * 16

    running.do(work)


def test_a_lapsing_session_that_nobody_keeps_ends_by_itself(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (etcd_client, grpc_peer, metad_peer):
        monkeypatch.setattr(module, "LAPSING_S", 1)

    async def work(client: Client, prefix: str) -> None:
        names = [f"{prefix}-{i}" for i in range(20)]
        async with catalog.open_client(running.name, running.peer.endpoints(), 2) as other:
            await _done(other.begin([(name, b"v") for name in names]))
            assert await _values(client.alive(names)) == [b"v"] * 20
            await other.abandon()
            until = time.monotonic() + LAPSED_WITHIN_S
            while any(await _values(client.alive(names))):
                assert time.monotonic() < until, "they live on"
                await asyncio.sleep(_LOOK_S)

    running.do(work)


def test_the_nodes_tell_what_a_reader_must_know(running: Running) -> None:
    settings = running.peer.settings()
    if "endpoints" in settings:
        pytest.skip("nothing is known of nodes that we have not started")
    nodes = 1 if KINDS[running.name].alone else 3
    assert settings["nodes"] == nodes
    assert isinstance(settings["fsync"], bool)
    assert settings["transport"]
    assert running.peer.endpoints().count(":") == nodes
    assert running.peer.cpu_us() > 0
    assert running.peer.rss_bytes() > 1_000_000
