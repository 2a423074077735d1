"""``metad.embedded.node``: brokers that are the cluster themselves. The program of README.md runs on three brokers; one
is killed, all become nodes of their own on the same directories, and nothing is lost. A host keeps its signals and its
logging, and hears of the end of its node."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import re
import signal
import subprocess
import sys
import threading
from contextlib import AsyncExitStack, ExitStack
from pathlib import Path
from typing import Any

import pytest
from e2e_server import METAD, free_ports, until_settled
from pages import blocks

from metad import embedded
from metad.errors import ConfigError, ServerError, StorageError
from metad.storage.log import LogStore
from metad_client import Options, blocking, connect
from waiting import WAIT_S, wait_until

PAGE = (Path(__file__).resolve().parents[2] / "README.md").read_text()
(PROGRAM,) = (block for block in blocks(PAGE, "python") if block.startswith("# carrier.py\n"))
STORAGE = {"block_cache_bytes": 8 << 20, "memtable_bytes": 32 << 20, "owner_cache_bytes": 1_000_000}
NAMES = ("b1", "b2", "b3")


def seeds() -> dict[str, str]:
    return dict(zip(NAMES, (f"127.0.0.1:{port}" for port in free_ports(3)), strict=True))


def settings(name: str, founders: dict[str, str]) -> dict[str, Any]:
    return {"node_id": name, "listen": "127.0.0.1:0", "cluster": {"seeds": founders}, "storage": STORAGE}


@pytest.fixture
def others() -> set[threading.Thread]:
    """Threads that other tests of this process have left: those of handshakes are shared, and stay."""
    return {*threading.enumerate()}


def threads(others: set[threading.Thread]) -> list[str]:
    return [one.name for one in {*threading.enumerate()} - others if one.name.startswith("metad-")]


class Process:
    """A broker or a server, in the folder of all of them."""

    def __init__(self, folder: Path, name: str, *command: str) -> None:
        self.output = folder / f"{name}.{os.urandom(3).hex()}.out"
        with self.output.open("wb") as output:
            self.process = subprocess.Popen(command, cwd=folder, stdout=output, stderr=subprocess.STDOUT)

    def said(self, text: str) -> None:
        """Wait until it has said this."""
        wait_until(lambda: text in self.output.read_text() or self.process.poll() is not None, text)
        assert text in self.output.read_text(), self.output.read_text()

    def end(self, number: signal.Signals = signal.SIGKILL) -> str:
        self.process.send_signal(number)
        self.process.wait(WAIT_S)
        return self.output.read_text()


def test_three_brokers_are_the_cluster_until_it_gets_machines_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "carrier.py").write_text(PROGRAM)
    founders = seeds()
    listen = dict(zip(NAMES, (f"127.0.0.1:{port}" for port in free_ports(3)), strict=True))
    known = ",".join(f"{name}={address}" for name, address in founders.items())

    def carrier(name: str) -> Process:
        return Process(tmp_path, name, sys.executable, "carrier.py", name, listen[name], known)

    with ExitStack() as left:
        running = {name: carrier(name) for name in NAMES}
        left.callback(lambda: [one.end() for one in running.values()])
        for name in NAMES:
            running[name].said(f"{name} begins life 1")
        with blocking.connect(f"metad://{listen['b2']},{listen['b3']}", Options(deadline_s=60)) as m:
            assert not m.sessions.takeover("b1", 1, "acme", "device").session_present
            running["b1"].end()
            assert m.sessions.takeover("b2", 1, "acme", "device").previous is not None
            running["b1"] = carrier("b1")
            running["b1"].said("b1 begins life 2")
            for name in NAMES:
                said = running[name].end(signal.SIGINT)
                assert "KeyboardInterrupt" in said, said  # the host's own end, not the node's
                running[name] = Process(tmp_path, name, str(METAD), "serve", "--config", f"{name}.toml")
                running[name].said('"event":"serving"')
                assert m.kv.put("count", name, b"") == 1
            session = m.sessions.get("acme", "device")
            assert session is not None
            assert (session.broker, session.broker_epoch) == ("b2", 1)
            records = {name: m.kv.get("brokers", name) for name in NAMES}
            assert {name: record and record.version for name, record in records.items()} == {"b1": 2, "b2": 1, "b3": 1}
            assert list(m.cluster.statuses()) == list(NAMES)


def test_the_page_shows_the_command_that_goes_on() -> None:
    assert "metad serve --config b1.toml\n" in PAGE
    assert re.search(r"python carrier\.py b1 \S+ b1=\S+,b2=\S+,b3=\S+`", PAGE)


async def test_a_busy_broker_does_not_cost_its_node_the_lead(tmp_path: Path, others: set[threading.Thread]) -> None:
    """The broker's loop stands still for longer than an election takes. A node on that loop would be deposed."""
    founders = seeds()
    raft = {"election_timeout_ms": 300, "heartbeat_ms": 50}
    nodes = [embedded.node(tmp_path / name, **settings(name, founders), raft=raft) for name in NAMES]
    async with AsyncExitStack() as stack:
        await asyncio.gather(*map(stack.enter_async_context, nodes))
        m = await stack.enter_async_context(connect(nodes[0].url))
        await m.kv.put("ns", "key", b"")
        before = await until_settled(m)

        def writes() -> int:
            with blocking.connect(nodes[1].url) as other:
                return max(other.kv.put("ns", "key", b"") for _ in range(20))

        writing = threading.Thread(target=writes)
        writing.start()
        while writing.is_alive():  # blocks this loop on purpose
            writing.join(0.5)
        assert (await m.cluster.map()).leaders == before
        assert await m.kv.put("ns", "key", b"") == 22
        assert all(node.running for node in nodes)
    assert not any(node.running for node in nodes)
    assert not threads(others)


def test_a_host_keeps_its_signals_and_its_logging(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD, signal.SIGPIPE)
    policy = asyncio.get_event_loop_policy()
    logger = logging.getLogger("metad")

    def of_the_host() -> list[object]:
        switch = sys.getswitchinterval()
        logs = (list(logger.handlers), logger.propagate, logger.level)
        return [*map(signal.getsignal, numbers), policy, switch, gc.get_threshold(), logs]

    before, frozen = of_the_host(), gc.get_freeze_count()
    with caplog.at_level(logging.INFO, "metad"):
        before[-1] = (list(logger.handlers), logger.propagate, logger.level)
        with embedded.node(tmp_path, storage=STORAGE, listen="127.0.0.1:0") as node, blocking.connect(node.url) as m:
            assert m.kv.put("ns", "key", b"") == 1
            assert of_the_host() == before
            assert gc.get_freeze_count() <= frozen, "what dies is frozen no more"
            with pytest.raises(ServerError, match="started once"), node:
                pass
    said = {record.message: vars(record)["fields"] for record in caplog.records if record.name == "metad"}
    assert said["serving"]["endpoint"] == node.endpoint
    assert "stopped" in said


async def test_the_end_of_a_node_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, others: set[threading.Thread]
) -> None:
    """In order, by a leave, and by a broken disk."""
    broken = threading.Event()
    sync = LogStore.sync

    def failing(store: LogStore) -> None:
        if broken.is_set():
            raise StorageError("the disk is gone")
        sync(store)

    monkeypatch.setattr(LogStore, "sync", failing)
    async with embedded.node(tmp_path / "one", storage=STORAGE, listen="127.0.0.1:0") as node:
        ended = asyncio.create_task(node.ended())
    assert await ended == "its host has ended it"
    node = embedded.node(tmp_path / "two", storage=STORAGE, listen="127.0.0.1:0")
    await node.__aenter__()
    ended = asyncio.create_task(node.ended())
    async with connect(node.url, Options(deadline_s=1)) as m:
        broken.set()
        writing = asyncio.create_task(m.kv.put("ns", "key", b""))
        with pytest.raises(StorageError, match="the disk is gone"):
            await ended
        await asyncio.wait((writing,))
        assert writing.exception() is not None
    assert not node.running
    with pytest.raises(StorageError, match="the disk is gone"):
        await node.__aexit__(None, None, None)
    await node.__aexit__(ZeroDivisionError, ZeroDivisionError(), None)  # the host's own error comes first
    assert not threads(others)


async def test_a_node_that_cannot_start_says_why_and_leaves_nothing(
    tmp_path: Path, others: set[threading.Thread]
) -> None:
    with pytest.raises(ConfigError, match="unknown key"):
        embedded.node(tmp_path, nonsense=1)
    async with embedded.node(tmp_path, storage=STORAGE, listen="127.0.0.1:0") as node:
        with pytest.raises(ServerError, match="in use by another metad process"):
            async with embedded.node(tmp_path, storage=STORAGE, listen="127.0.0.1:0"):
                pass
        with pytest.raises(ConfigError, match="cannot listen"):
            embedded.node(tmp_path / "other", storage=STORAGE, listen=node.endpoint).__enter__()
    alone = embedded.node(tmp_path / "alone", **settings("b1", seeds()))
    with pytest.raises(ServerError, match="b1 does not serve yet"):
        _ = alone.url
    entering = asyncio.create_task(alone.__aenter__())  # no majority: it waits
    await asyncio.to_thread(wait_until, lambda: "metad-b1" in threads(others), "its thread")
    entering.cancel()
    with pytest.raises(asyncio.CancelledError):
        await entering
    assert not alone.running
    assert not threads(others)


def test_a_configuration_file_has_the_settings(tmp_path: Path) -> None:
    written = tmp_path / "metad.toml"
    written.write_text('node_id = "of-the-file"\nlisten = "127.0.0.1:1"\n')
    node = embedded.node(tmp_path / "data", config=written, listen="127.0.0.1:0", storage=STORAGE)
    again = tmp_path / "again.toml"
    again.write_text(node.toml)
    with node, blocking.connect(node.url) as m:
        assert m.status().node_id == "of-the-file"
        m.kv.put("ns", "key", b"")
    with embedded.node(tmp_path / "data", config=again) as node, blocking.connect(node.url) as m:
        assert m.kv.put("ns", "key", b"") == 2
