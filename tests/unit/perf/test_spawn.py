"""Server processes: started, found ready, killed, and cleaned up whatever happens. The servers are little scripts."""

from __future__ import annotations

import sys
from pathlib import Path

import psutil
import pytest

from metad_perf.errors import ServerError
from metad_perf.spawn import Server, disk_directory, temporary_server

SERVES = """
import json, os, signal, sys, time
args = dict(zip(sys.argv[1::2], sys.argv[2::2]))
os.makedirs(args["--data-dir"], exist_ok=True)
listen = args["--listen"].replace(":0", ":4711")
signal.signal(signal.SIGTERM, lambda *_: sys.exit({exit}))
with open(args["--ready-file"] + ".tmp", "w") as ready:
    json.dump({{"endpoints": [listen], "args": sys.argv}}, ready)
os.replace(args["--ready-file"] + ".tmp", args["--ready-file"])
while True:
    signal.pause()
"""


def _command(script: str) -> list[str]:
    return [sys.executable, "-c", script]


def test_starts_stops_and_keeps_its_port(tmp_path: Path) -> None:
    server = Server(tmp_path, command=_command(SERVES.format(exit=0)))
    server.start()
    assert server.endpoint == "127.0.0.1:4711"
    assert server.rss_bytes() > 0
    server.stop()
    assert server.rss_bytes() == 0
    server.start()
    assert server.endpoint == "127.0.0.1:4711"
    pid = server.pid
    server.kill()
    assert not psutil.pid_exists(pid)
    with pytest.raises(ServerError, match="not running"):
        server.pid  # noqa: B018 - it raises


def test_a_second_launch_is_refused(tmp_path: Path) -> None:
    server = Server(tmp_path, command=_command(SERVES.format(exit=0)))
    server.start()
    try:
        with pytest.raises(ServerError, match="running already"):
            server.launch()
    finally:
        server.kill()


def test_the_last_words_of_a_server_that_does_not_serve(tmp_path: Path) -> None:
    server = Server(tmp_path, command=_command("import sys; print('disk is on fire', file=sys.stderr); sys.exit(3)"))
    with pytest.raises(ServerError, match=r"ended with 3 .* disk is on fire"):
        server.start()


def test_a_server_that_drains_badly(tmp_path: Path) -> None:
    server = Server(tmp_path, command=_command(SERVES.format(exit=7)))
    server.start()
    with pytest.raises(ServerError, match="exit code 7"):
        server.stop()


def test_a_temporary_server_leaves_nothing_behind_after_a_failure() -> None:
    used: list[tuple[int, Path]] = []

    def use() -> None:
        with temporary_server(command=_command(SERVES.format(exit=0))) as server:
            server.start()
            used.append((server.pid, server._directory))
            raise RuntimeError("test")

    with pytest.raises(RuntimeError, match="test"):
        use()
    ((pid, directory),) = used
    assert not psutil.pid_exists(pid)
    assert not directory.exists()


def test_temporary_data_goes_to_a_directory() -> None:
    assert disk_directory().is_dir()
