"""``metad serve`` as an operator meets it: ready file, drain, kill -9, and one clear line for every mistake."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import socket
import subprocess
from pathlib import Path

import pytest
from e2e_server import METAD, Server

from metad_client import Client, KvKey, KvPutItem, MetadError, blocking, connect
from metad_client.options import Options
from waiting import wait_until


class Progress:
    """A count to wait for."""

    def __init__(self) -> None:
        self.count = 0
        self._target = 0
        self._reached = asyncio.Event()

    def add(self, count: int) -> None:
        self.count += count
        if self.count >= self._target:
            self._reached.set()

    async def reach(self, target: int) -> None:
        self._target = target
        self._reached.clear()
        if self.count < target:
            await asyncio.wait_for(self._reached.wait(), 120)


class Writers:
    """Tasks that put keys of their own as fast as they are answered, and note what was acknowledged."""

    def __init__(self, client: Client, tasks: int, life: str) -> None:
        self.client = client
        self.life = life
        self.acknowledged: dict[str, bytes] = {}
        self.refused: list[MetadError] = []
        self.unknown: dict[str, bytes] = {}
        self.tasks = [asyncio.create_task(self._write(number)) for number in range(tasks)]
        self.progress = Progress()

    async def _write(self, number: int) -> None:
        turn = 0
        while True:
            turn += 1
            keys = {f"{self.life}-{number}-{turn}-{i}": b"%d" % turn for i in range(1 + number % 3)}
            items = [KvPutItem(f"n{i}", key, value) for i, (key, value) in enumerate(keys.items())]
            try:
                result = await self.client.kv.put_many(items, deadline_s=1.0)
                result.raise_for_error()
                assert list(result.versions) == [1] * len(items)
                self.acknowledged |= keys
                self.progress.add(len(keys))
            except MetadError as error:
                self.refused.append(error)
                self.unknown |= keys
                return


async def check(client: Client, acknowledged: dict[str, bytes]) -> None:
    """Everything acknowledged is there, once."""
    names = list(acknowledged)
    found = await client.kv.get_many([KvKey(f"n{name.rpartition('-')[2]}", name) for name in names])
    found.raise_for_error()
    for name, record in zip(names, found, strict=True):
        assert record is not None, f"{name} was acknowledged and is lost"
        assert (record.value, record.version) == (acknowledged[name], 1)


def test_the_ready_file_appears_whole_and_goes_with_the_server(tmp_path: Path) -> None:
    with Server(tmp_path / "d") as server:
        server.ready()
        assert json.loads(server.ready_file.read_text()) == {
            "endpoints": [server.endpoint],
            "pids": {"node-1": server.process.pid},
        }
        with socket.create_connection(server.address):
            pass
        assert server.terminate() == 0
        assert not server.ready_file.exists()
        server.quiet()
        assert server.events("stopped")[0]["drained"] is True


def test_a_ready_file_of_a_killed_server_is_not_taken_for_the_next_ones(tmp_path: Path) -> None:
    with Server(tmp_path / "d") as first:
        first.ready()
        first.kill()
    stale = first.ready_file.read_text()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        listen = f"127.0.0.1:{taken.getsockname()[1]}"
        arguments = ("--data-dir", tmp_path / "d", "--listen", listen, "--ready-file", first.ready_file)
        assert "cannot listen" in run(*arguments)[1]
    assert not first.ready_file.exists()  # the next one never was ready, and nobody may think so
    first.ready_file.write_text(stale)
    command = [str(METAD), "serve", "--data-dir", str(tmp_path / "d"), "--listen", "127.0.0.1:0"]
    command += ["--ready-file", str(first.ready_file)]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as process:
        try:
            wait_until(
                lambda: first.ready_file.exists() and first.ready_file.read_text() not in ("", stale), "new file"
            )
        finally:
            process.terminate()
            process.wait(120)


def test_sigint_stops_it_too(tmp_path: Path) -> None:
    with Server(tmp_path / "d") as server:
        server.ready()
        server.process.send_signal(signal.SIGINT)
        assert server.exited() == 0
        server.quiet()


async def test_sigterm_drains_what_is_in_flight(tmp_path: Path) -> None:
    with Server(tmp_path / "d") as server:
        server.ready()
        async with connect(server.url, Options(deadline_s=1.0)) as client:
            writers = Writers(client, 60, "a")
            await writers.progress.reach(500)
            server.process.send_signal(signal.SIGTERM)
            await asyncio.gather(*writers.tasks)
        assert await asyncio.to_thread(server.exited) == 0
        server.quiet()
        assert server.events("stopped")[0]["drained"] is True
    assert len(writers.refused) == 60  # nobody hangs
    with Server(tmp_path / "d") as server:
        server.ready()
        assert server.events("recovered")[0]["entries_to_replay"] == 0  # an orderly end leaves nothing to replay
        async with connect(server.url) as client:
            await check(client, writers.acknowledged)


async def test_kill_9_loses_nothing_acknowledged(tmp_path: Path) -> None:
    acknowledged: dict[str, bytes] = {}
    for life in range(4):
        with Server(
            tmp_path / "d", config="[storage]\nlog_retained_bytes = 300000\n[raft]\nlog_cache_bytes = 100000\n"
        ) as server:
            server.ready()
            async with connect(server.url) as client:
                await check(client, acknowledged)
                writers = Writers(client, 40, f"life{life}")
                await writers.progress.reach(1_000 + 700 * life)
                await asyncio.to_thread(server.kill)
                await asyncio.gather(*writers.tasks)
            acknowledged |= writers.acknowledged
            server.quiet()
    with Server(tmp_path / "d") as server:
        server.ready()
        async with connect(server.url) as client:
            await check(client, acknowledged)


async def test_writes_retried_over_a_kill_happen_once(tmp_path: Path) -> None:
    # One client over three lives of the server: what was in flight at a kill is sent again under the same identity.
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        listen = f"127.0.0.1:{probe.getsockname()[1]}"
    server = Server(tmp_path / "d", listen=listen).ready()
    try:
        async with connect(server.url, Options(deadline_s=30.0)) as client:
            done = Progress()

            async def count(number: int) -> None:
                for turn in range(1, 101):
                    # A compare-and-set chain: done twice, or not at all, breaks it.
                    version = await client.kv.put(
                        "n", f"k{number}", b"%d" % turn, expected_version=turn - 1, deadline_s=30
                    )
                    assert version == turn
                    done.add(1)

            tasks = [asyncio.create_task(count(number)) for number in range(20)]
            for target in (300, 900):
                await done.reach(target)
                await asyncio.to_thread(server.kill)
                assert done.count < 2_000
                with server:
                    pass
                server = Server(tmp_path / "d", listen=listen)
                await asyncio.to_thread(server.ready)
            await asyncio.gather(*tasks)
            assert done.count == 2_000
    finally:
        server.__exit__(None, None, None)


# --- mistakes --------------------------------------------------------------------------------------------


def run(*arguments: str | Path) -> tuple[int, str]:
    """Exit status and the one line on stderr of a serve that must fail."""
    done = subprocess.run([str(METAD), "serve", *map(str, arguments)], capture_output=True, text=True, timeout=300)
    words = [line for line in done.stderr.splitlines() if not line.startswith("{")]
    assert len(words) == 1, done.stderr
    assert words[0].startswith("metad: ")
    return done.returncode, words[0]


def test_a_second_server_on_the_same_directory_is_told_so_and_disturbs_nobody(tmp_path: Path) -> None:
    with Server(tmp_path / "d") as first:
        first.ready()
        code, words = run("--data-dir", tmp_path / "d", "--listen", "127.0.0.1:0", "--ready-file", first.ready_file)
        assert code == 1
        assert "is in use by another metad process" in words
        assert first.ready_file.exists()  # once removed by the one that failed
        with blocking.connect(first.url) as client:
            assert client.kv.put("n", "k", b"v") == 1
        assert first.terminate() == 0


@pytest.mark.parametrize(
    ("listen", "match"),
    [
        ("7420", "listen: not HOST:PORT"),
        ("127.0.0.1:", "listen: not a port"),
        ("127.0.0.1:99999", "listen: not a port"),
        ("127.0.0.1:x", "listen: not a port"),
        ("192.0.2.1:1", "cannot listen on 192.0.2.1:1: "),
        ("..:1", "listen: ..:1 is not a loopback address"),
        ("0.0.0.0:0", "listen: 0.0.0.0:0 is every address; set cluster.advertise_clients"),
        ("[::]:0", "listen: [::]:0 is every address; set cluster.advertise_clients"),
        ("no-such-host.invalid:1", "cannot listen on no-such-host.invalid:1: "),
    ],
)
def test_an_address_that_cannot_be_listened_on(tmp_path: Path, listen: str, match: str) -> None:
    config = tmp_path / "metad.toml"
    config.write_text(f"[security]\nplaintext = {'true' if 'cannot listen' in match else 'false'}\n")
    code, words = run("--data-dir", tmp_path / "d", "--listen", listen, "--config", config)
    assert (code, match in words) == (1, True), words


def test_an_address_that_is_taken(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        code, words = run("--data-dir", tmp_path / "d", "--listen", f"127.0.0.1:{taken.getsockname()[1]}")
    assert code == 1
    assert "cannot listen on 127.0.0.1" in words


@pytest.mark.parametrize(
    ("toml", "match"),
    [
        ("listen = ", "metad.toml: Invalid value"),
        ("surprise = 1", "surprise: unknown key"),
        ("[groups]\ndata = 0", "groups.data: 0 is too small"),
        ("[storage]\nengine = 'paper'", "storage.engine"),
    ],
)
def test_a_wrong_configuration(tmp_path: Path, toml: str, match: str) -> None:
    (tmp_path / "metad.toml").write_text(toml)
    code, words = run("--data-dir", tmp_path / "d", "--config", tmp_path / "metad.toml")
    assert (code, match in words) == (1, True), words
    assert not (tmp_path / "d").exists()


def test_no_directory_and_no_file(tmp_path: Path) -> None:
    assert run() == (1, "metad: data_dir: give a directory (--data-dir or METAD_DATA_DIR)")
    code, words = run("--config", tmp_path / "missing.toml")
    assert (code, "cannot read" in words) == (1, True)


def test_a_directory_that_cannot_be_used(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    code, words = run("--data-dir", tmp_path / "file" / "d")
    assert (code, "cannot use the data directory" in words) == (1, True), words
    code, words = run("--data-dir", tmp_path / "file")
    assert (code, "cannot use the data directory" in words) == (1, True), words
    (tmp_path / "nul.toml").write_text('data_dir = "a\\u0000b"')
    code, words = run("--config", tmp_path / "nul.toml")
    assert (code, "cannot use the data directory" in words) == (1, True), words
    if os.getuid():
        (tmp_path / "locked").mkdir(mode=0o500)
        code, words = run("--data-dir", tmp_path / "locked")
        assert (code, "not writable" in words) == (1, True), words


def test_a_ready_file_that_cannot_be_written(tmp_path: Path) -> None:
    code, words = run(
        "--data-dir", tmp_path / "d", "--listen", "127.0.0.1:0", "--ready-file", tmp_path / "no" / "ready"
    )
    assert (code, "cannot write the ready file" in words) == (1, True), words


@pytest.mark.parametrize("field", ["node_id", "cluster_id"])
def test_a_directory_of_another_node_or_cluster(tmp_path: Path, field: str) -> None:
    with Server(tmp_path / "d") as server:
        server.ready()
        assert server.terminate() == 0
    with Server(tmp_path / "d", config=f'{field} = "other"\n') as server:
        words = server.refused()
    assert re.search("the data directory belongs to node 'node-1' of cluster '[0-9a-f]{32}'", words)
    assert "'other'" in words
    with Server(tmp_path / "d") as server:  # and nothing was changed
        server.ready()


def test_groups_stay_as_the_directory_was_made(tmp_path: Path) -> None:
    with Server(tmp_path / "d", config="[groups]\ndata = 5\n") as server:
        server.ready()
        with blocking.connect(server.url) as client:
            for i in range(50):
                client.kv.put(f"n{i}", "k", b"v")
        server.terminate()
    with Server(tmp_path / "d", config="[groups]\ndata = 2\n") as server:
        server.ready()
        with blocking.connect(server.url) as client:
            assert all(client.kv.get(f"n{i}", "k") for i in range(50))
