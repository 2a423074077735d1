"""A log that nobody reads: nodes, their supervisor and the MQTT broker go on, and end when they are told to."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from e2e_server import METAD, Server, free_ports

from metad_client import connect
from waiting import WAIT_S, wait_until


@contextmanager
def full_pipe() -> Iterator[tuple[int, int]]:
    """A pipe that takes nothing more: where it is read and written. A process that writes to it waits."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    for size in (4096, 1):
        while True:
            try:
                os.write(writer, b"." * size)
            except BlockingIOError:
                break
    os.set_blocking(writer, True)
    yield reader, writer
    os.close(reader)
    os.close(writer)


def started(command: list[str], pipe: int, *, stdout: int = subprocess.DEVNULL) -> subprocess.Popen[bytes]:
    return subprocess.Popen(command, stdout=stdout, stderr=pipe, env={**os.environ, "METAD_LOG_LEVEL": "debug"})


def end(process: subprocess.Popen[bytes]) -> int:
    """SIGTERM; the exit status."""
    process.send_signal(signal.SIGTERM)
    try:
        return process.wait(WAIT_S)
    finally:
        if process.poll() is None:
            process.kill()


@pytest.mark.parametrize("what", ["node", "workers", "cluster"])
async def test_a_server_whose_log_nobody_reads(tmp_path: Path, what: str) -> None:
    ready = tmp_path / "ready"
    command = [str(METAD), "cluster" if what == "cluster" else "serve", "--data-dir", str(tmp_path / "data")]
    if what == "workers":
        command += ["--workers", "2", "--listen", f"127.0.0.1:{free_ports(1)[0]}"]
    elif what == "node":
        command += ["--listen", "127.0.0.1:0"]
    command += ["--ready-file", str(ready)]
    with full_pipe() as (reader, writer):
        process = started(command, writer)
        try:
            wait_until(lambda: ready.exists() or process.poll() is not None, "ready file")
            async with connect("metad://" + ",".join(json.loads(ready.read_text())["endpoints"])) as m:
                for number in range(50):
                    await m.kv.put("n", f"{number}", b"v")
                assert await m.kv.get("n", "49") is not None
            assert end(process) == 0
        finally:
            process.kill()
        assert os.read(reader, 100) == b"." * 100, "the test has read nothing until now"


async def test_what_was_logged_comes_once_somebody_reads(tmp_path: Path) -> None:
    ready = tmp_path / "ready"
    command = [str(METAD), "serve", "--data-dir", str(tmp_path / "data"), "--listen", "127.0.0.1:0"]
    with full_pipe() as (reader, writer):
        process = started([*command, "--ready-file", str(ready)], writer)
        try:
            wait_until(lambda: ready.exists() or process.poll() is not None, "ready file")
            text = b""
            deadline_s = time.monotonic() + WAIT_S
            while b'"event":"serving"' not in text:
                assert time.monotonic() < deadline_s
                text += os.read(reader, 1 << 16)
            assert b'"event":"listening"' in text
            assert end(process) == 0
        finally:
            process.kill()


async def test_a_broker_whose_lines_nobody_reads(tmp_path: Path) -> None:
    pytest.importorskip("amqtt")
    (port,) = free_ports(1)
    with Server(tmp_path / "data") as server, full_pipe() as (_, writer):
        command = [sys.executable, "-m", "metad_amqtt", "--metad", server.ready().url, "--name", "b"]
        process = started([*command, "--bind", f"127.0.0.1:{port}"], writer, stdout=writer)
        try:
            async with connect(server.url) as m:
                for _ in range(600):
                    if [one async for one in m.brokers.list()]:
                        break
                    await asyncio.sleep(0.1)
                else:
                    raise AssertionError("the broker is not there")
            assert end(process) == 0
        finally:
            process.kill()
