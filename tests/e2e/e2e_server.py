"""A real ``metad serve`` process: started, waited for, killed, and its words read."""

from __future__ import annotations

import asyncio
import atexit
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from multiprocessing import connection
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from metad_client import Client
from metad_wire.transport.claims import Claim
from waiting import WAIT_S, wait_until

_STARTS = multiprocessing.get_context("forkserver")
_STARTS.set_forkserver_preload(["metad.embedded", "metad.cli", "metad.process", "metad.supervisor", "metad_client"])
_claims: list[Claim] = []
METAD = Path(sys.executable).with_name("metad")
SMALL = """
[storage]
block_cache_bytes = 8388608
memtable_bytes = 33554432
owner_cache_bytes = 1000000
"""


def free_ports(count: int) -> list[int]:
    """On loopback, for TCP and UDP: claimed until this process ends."""
    _claims.append(Claim(count))
    return list(_claims[-1].ports)


def _main(argv: list[str], stderr: Path, environment: dict[str, str], directory: str) -> None:
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(directory)
    for number, file in ((1, Path(os.devnull)), (2, stderr)):
        os.dup2(os.open(file, os.O_WRONLY | os.O_APPEND), number)
    from metad.cli import main

    status = main(argv)
    atexit._run_exitfuncs()  # as an interpreter that ends does: the log is written beside the loop
    sys.exit(status)


class Copy:
    """``metad`` in a process, used as one of ``subprocess.Popen``: a copy of a process that has imported what a node
    runs. A new interpreter needs a second for that, and tests start a thousand nodes."""

    def __init__(self, command: Sequence[str], stderr: Path) -> None:
        arguments = ([*command[1:]], stderr, {**os.environ}, os.getcwd())
        self._process = _STARTS.Process(target=_main, args=arguments, daemon=True)
        self._process.start()
        self._lock = threading.Lock()  # threads may wait, too
        assert self._process.pid is not None
        self.pid: int = self._process.pid

    def poll(self) -> int | None:
        """Its exit status, if it has ended."""
        with self._lock:
            return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        """Its exit status, once it has ended. Raises subprocess.TimeoutExpired."""
        connection.wait([self._process.sentinel], timeout)
        if (status := self.poll()) is None:
            raise subprocess.TimeoutExpired("metad", timeout or 0)
        return status

    def send_signal(self, number: int) -> None:
        """Nothing if it has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class Server:
    """One process on a data directory. Leaving the block kills it."""

    def __init__(
        self,
        data_dir: Path,
        *,
        config: str = "",
        listen: str = "127.0.0.1:0",
        flags: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
        instead: Sequence[str] = (),
    ) -> None:
        """``instead``: a command in place of all this, if the environment has what the others would say."""
        self.data_dir = data_dir
        self.home = data_dir.with_name(f"{data_dir.name}-{os.urandom(4).hex()}")
        self.home.mkdir(parents=True)
        self.ready_file = self.home / "ready"
        (self.home / "metad.toml").write_text(config + SMALL if "[storage]" not in config else config)
        command = [str(METAD), "serve", "--data-dir", str(data_dir), "--listen", listen]
        command += ["--config", str(self.home / "metad.toml"), "--ready-file", str(self.ready_file), *flags]
        stderr = self.home / "stderr"
        stderr.touch()
        if instead or environment:
            with stderr.open("wb") as file:
                around = {**os.environ, **(environment or {})}
                self.process: subprocess.Popen[bytes] | Copy = subprocess.Popen(
                    [*(instead or command)], stdout=subprocess.DEVNULL, stderr=file, env=around
                )
        else:
            self.process = Copy(command, stderr)
        self.endpoint = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait(WAIT_S)

    def ready(self) -> Self:
        """Wait until it serves."""
        wait_until(lambda: self.ready_file.exists() or self.process.poll() is not None, "ready file")
        assert self.process.poll() is None, self.stderr
        (self.endpoint,) = json.loads(self.ready_file.read_text())["endpoints"]
        return self

    @property
    def url(self) -> str:
        return f"metad://{self.endpoint}"

    @property
    def address(self) -> tuple[str, int]:
        host, _, port = self.endpoint.rpartition(":")
        return host, int(port)

    @property
    def stderr(self) -> str:
        return (self.home / "stderr").read_text()

    def events(self, name: str) -> list[dict[str, Any]]:
        """Its log lines of one kind."""
        lines = [json.loads(line) for line in self.stderr.splitlines() if line.startswith("{")]
        return [line for line in lines if line["event"] == name]

    def terminate(self) -> int:
        """SIGTERM; its exit status."""
        self.process.send_signal(signal.SIGTERM)
        return self.exited()

    def kill(self) -> None:
        """SIGKILL: nothing is flushed any more."""
        self.process.kill()
        self.process.wait(WAIT_S)

    def exited(self) -> int:
        """Its exit status, once it has ended by itself."""
        return self.process.wait(WAIT_S)

    def refused(self, status: int = 1) -> str:
        """The one line with which it refused to go on."""
        assert self.exited() == status, self.stderr
        return self.last_words()

    def last_words(self) -> str:
        """The one line on stderr that is no log line. A stack trace would be more than one."""
        words = [line for line in self.stderr.splitlines() if not line.startswith("{")]
        assert len(words) == 1, self.stderr
        assert words[0].startswith("metad: "), self.stderr
        assert "Traceback" not in self.stderr
        assert not self.ready_file.exists()
        return words[0]

    def quiet(self) -> None:
        """It had nothing to say but log lines."""
        assert [line for line in self.stderr.splitlines() if not line.startswith("{")] == []


def rss_bytes(process: subprocess.Popen[bytes] | Copy) -> int:
    """Resident memory of a process."""
    return int(Path(f"/proc/{process.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


async def until_settled(client: Client) -> dict[str, str]:
    """Wait until every group is led by the node that should lead it."""
    async with asyncio.timeout(120):
        while True:
            reply = await client.cluster.map()
            groups = [] if reply.map is None else reply.map.groups
            wanted = {group.group_id.name: group.preferred for group in groups}
            if groups and reply.leaders == wanted:
                return wanted
            await asyncio.sleep(0.05)
