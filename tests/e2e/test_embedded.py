"""``metad.embedded``: what a broker's tests run on. A cluster's nodes are real processes that die and come back with
what they acknowledged, nothing is left behind, and what goes wrong is told in the words of the node."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from pathlib import Path

import pytest

from metad import embedded
from metad.errors import ConfigError, ServerError
from metad_client import KvPutItem, SessionProperties, blocking, connect
from waiting import wait_until

LASTING = SessionProperties(86_400)
SMALL = {"election_timeout_ms": 300, "heartbeat_ms": 50}


def running(pid: int | None) -> bool:
    return pid is not None and Path(f"/proc/{pid}").exists()


def test_acknowledged_writes_survive_each_end_of_a_node(tmp_path: Path) -> None:
    """kill -9, an orderly stop and a pause of the leader, each while the blocking client writes on."""
    with embedded.cluster(nodes=3, data_dir=tmp_path, raft=SMALL) as cluster:
        assert cluster.nodes == ["n1", "n2", "n3"]
        assert len({*map(cluster.pid, cluster.nodes), os.getpid()}) == 4
        with blocking.connect(cluster.url) as m:
            assert m.kv.put("ns", "key", b"0") == 1
            version = 1
            for end, begin in (("kill", "start"), ("stop", "start"), ("pause", "resume")):
                leader = m.cluster.map().leaders["data-0"]
                getattr(cluster, end)(leader)
                assert (cluster.pid(leader) is None) == (end != "pause")
                version = m.kv.put("ns", "key", end.encode(), expected_version=version, deadline_s=30)
                getattr(cluster, begin)(leader)
                assert running(cluster.pid(leader))
                found = m.kv.get("ns", "key")
                assert found is not None
                assert (found.value, found.version) == (end.encode(), version)
        assert '"serving"' in cluster.log("n1")
        pids = [cluster.pid(node) for node in cluster.nodes]
    assert not any(map(running, pids))
    assert (tmp_path / "n1" / "data").is_dir()


async def test_a_cluster_serves_asyncio_code_and_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The settings of this process's environment are not the nodes'."""
    monkeypatch.setenv("METAD_NODE_ID", "of-the-environment")
    async with embedded.cluster(nodes=1, groups={"data": 3}) as cluster:
        directory = cluster._directory
        async with connect(cluster.url) as m:
            assert (await m.status()).node_id == "n1"
            assert {"data-0", "data-1", "data-2"} <= set((await m.cluster.map()).leaders)
            before = cluster.endpoint("n1")
            await m.kv.put("ns", "key", b"value")
            cluster.kill("n1")
            cluster.kill("n1")  # it stays killed
            await asyncio.to_thread(cluster.start, "n1")
            assert cluster.endpoint("n1") == before
            found = await m.kv.get("ns", "key")
            assert found is not None
        pid = cluster.pid("n1")
    assert not running(pid)
    assert not directory.exists()


def test_a_node_that_ended_by_itself_is_an_error_at_the_end() -> None:
    """A test that passes although a node has crashed would hide it."""

    def crash(cluster: embedded.Cluster) -> None:
        pid = cluster.pid("n1")
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda: cluster.pid("n1") is None, "its end")

    with pytest.raises(ServerError, match="n1 ended by itself"), embedded.cluster(nodes=1) as cluster:
        crash(cluster)
    cluster = embedded.cluster(nodes=1)
    cluster.__enter__()
    crash(cluster)
    cluster.__exit__(ZeroDivisionError, ZeroDivisionError(), None)  # the test's own failure comes first


def test_mistakes_are_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="at least 1 node"):
        embedded.cluster(nodes=0)
    with pytest.raises(ConfigError, match="unknown key"), embedded.cluster(nodes=1, data_dir=tmp_path, rafts={}):
        pass
    with embedded.cluster(nodes=1, data_dir=tmp_path / "new") as cluster:
        with pytest.raises(ValueError, match="no node 'n2'; there are n1"):
            cluster.kill("n2")
        with pytest.raises(ServerError, match="n1 runs already"):
            cluster.start("n1")
        with pytest.raises(ServerError, match="started once"), cluster:
            pass
        assert running(cluster.pid("n1"))
    with pytest.raises(ServerError, match="closed"):
        cluster.start("n1")
    with pytest.raises(ConfigError, match="is not empty"), embedded.cluster(nodes=1, data_dir=tmp_path):
        pass


def test_a_node_that_cannot_start_says_why(tmp_path: Path) -> None:
    """Its disk is replaced by a file between its death and its start."""
    with embedded.cluster(nodes=1, data_dir=tmp_path) as cluster:
        cluster.kill("n1")
        (tmp_path / "n1" / "data").rename(tmp_path / "lost")
        (tmp_path / "n1" / "data").touch()
        with pytest.raises(ServerError, match=r"n1 ended before it served: .*metad: .*data"):
            cluster.start("n1")
        cluster.kill("n1")


async def test_a_cancelled_start_leaves_no_process(tmp_path: Path) -> None:
    cluster = embedded.cluster(nodes=3, data_dir=tmp_path)
    entering = asyncio.create_task(cluster.__aenter__())
    all_run = lambda: len(cluster.nodes) == 3 and all(map(cluster.pid, cluster.nodes))  # noqa: E731
    await asyncio.to_thread(wait_until, all_run, "three processes")
    pids = [cluster.pid(node) for node in cluster.nodes]
    entering.cancel()
    with pytest.raises(asyncio.CancelledError):
        await entering
    assert not any(map(running, pids))


def test_a_server_in_a_thread_serves_blocking_code_and_several_loops(tmp_path: Path) -> None:
    async def write(url: str) -> int:
        async with connect(url) as m:
            return await m.kv.put("ns", "key", b"")

    with embedded.serve_in_thread() as server, blocking.connect(server.url) as m:
        assert [asyncio.run(write(server.url)) for _ in range(2)] == [1, 2]
        assert m.kv.put("ns", "key", b"") == 3
    with embedded.serve_in_thread(tmp_path) as server:
        assert asyncio.run(write(server.url)) == 1
    with embedded.serve_in_thread(tmp_path) as server:
        assert asyncio.run(write(server.url)) == 2
    with pytest.raises(ConfigError, match="unknown key"), embedded.serve_in_thread(nonsense=1):
        pass
    assert not {"metad-server", "metad-client"} & {thread.name for thread in threading.enumerate()}


def files_of_state(directory: Path) -> set[Path]:
    return set(directory.glob("**/state/*.sst"))


async def test_the_state_is_flushed_once_few_writes_follow_many(tmp_path: Path) -> None:
    """Else reads of many records would go on looking into each memtable."""
    async with embedded.serve(tmp_path) as server, connect(server.url) as m, asyncio.timeout(100):
        await m.kv.put("ns", "few", b"-" * 1_000)
        files = files_of_state(tmp_path)
        items = [KvPutItem("ns", f"key-{number}", b"-" * 5_000) for number in range(1_000)]
        (await m.kv.put_many(items)).raise_for_error()
        while files_of_state(tmp_path) <= files:  # noqa: ASYNC110 - files tell nobody
            await asyncio.sleep(0.1)
        last = await m.kv.get("ns", "key-999")
        assert last is not None
        assert last.value == b"-" * 5_000


async def test_time_passes_for_a_server_when_a_test_says_so(tmp_path: Path) -> None:
    async with embedded.serve() as server, connect(server.url) as m:
        for client_id, seconds in (("a", 3_600), ("b", 0.5), ("c", 0)):
            await m.sessions.takeover("b1", 1, "acme", client_id, properties=LASTING)
            await m.sessions.disconnect("b1", 1, "acme", client_id)
            await server.advance(seconds)
        a, b, c = [session.disconnected_ms async for session in m.sessions.list("acme")]
        assert 3_600_000 <= b - a < 3_700_000
        assert 500 <= c - b < 100_000
        assert await m.kv.put("ns", "key", b"") == 1
        groups = (await m.status()).groups
        assert {group.leader for group in groups} == {"node-1"}
    async with embedded.serve(tmp_path) as server:
        with pytest.raises(ServerError, match="cannot be moved"):
            await server.advance(1)


async def test_a_session_ends_in_the_hour_that_a_test_lets_pass() -> None:
    async with embedded.serve() as server, connect(server.url) as m:
        for client_id, expiry_s in (("short", 60), ("long", 7_200)):
            await m.sessions.takeover("b1", 1, "acme", client_id, properties=SessionProperties(expiry_s))
            await m.sessions.disconnect("b1", 1, "acme", client_id)
        await server.advance(3_600)
        assert [session.client_id async for session in m.sessions.list("acme")] == ["long"]
        await server.advance(3_700)
        assert [session.client_id async for session in m.sessions.list("acme")] == []


def test_time_passes_for_a_server_in_a_thread() -> None:
    with embedded.serve_in_thread() as server, blocking.connect(server.url) as m:
        times = []
        for client_id in ("a", "b"):
            m.sessions.takeover("b1", 1, "acme", client_id, properties=LASTING)
            m.sessions.disconnect("b1", 1, "acme", client_id)
            server.advance(60)
            times += [found.disconnected_ms for found in [m.sessions.get("acme", client_id)] if found is not None]
        assert 60_000 <= times[1] - times[0] < 100_000
