"""A three-node etcd of our own: started, its leader found, its CPU time read, and in any case ended and cleaned up.

All settings are etcd's defaults, durability above all, except the number of operations that a transaction may have.
"""

from __future__ import annotations

import contextlib
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import psutil

from ..errors import ServerError, UsageError
from ..running import run_async
from ..spawn import disk_directory
from .etcd_client import member_status

TXN_OPS_MAX = 1_000
_START_S = 60.0
_POLL_S = 0.1
_STOP_S = 20.0


def find_etcd() -> str:
    """The path of the program. Raises UsageError that says how to install it."""
    found = shutil.which("etcd")
    if found is None:
        raise UsageError("--peers etcd: etcd is not installed; `make peers` installs it (Debian's etcd-server)")
    return found


class Etcd:
    """The nodes of one cluster in one directory, started once."""

    def __init__(self, directory: Path, nodes: int = 3) -> None:
        self._program = find_etcd()
        self._directory = directory
        ports = _free_ports(2 * nodes)
        self.endpoints = [f"127.0.0.1:{port}" for port in ports[:nodes]]
        self._peers = [f"http://127.0.0.1:{port}" for port in ports[nodes:]]
        self._processes: list[subprocess.Popen[bytes]] = []
        self.leader = ""
        """Endpoint of the leader, once started."""
        self.version = ""

    def settings(self) -> dict[str, object]:
        """The settings, for the report."""
        return {
            "program": "etcd",
            "version": self.version,
            "nodes": len(self.endpoints),
            "fsync": True,
            "flags": ["--max-txn-ops", str(TXN_OPS_MAX)],
            "transport": "gRPC over HTTP/2, no TLS, to the leader",
        }

    def start(self) -> None:
        """Start all nodes and wait until they have a leader."""
        cluster = ",".join(f"e{n}={url}" for n, url in enumerate(self._peers, 1))
        for n, (endpoint, peer) in enumerate(zip(self.endpoints, self._peers, strict=True), 1):
            argv = [self._program, "--name", f"e{n}", "--data-dir", str(self._directory / f"e{n}")]
            argv += ["--listen-client-urls", f"http://{endpoint}", "--advertise-client-urls", f"http://{endpoint}"]
            argv += ["--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer]
            argv += ["--initial-cluster", cluster, "--initial-cluster-state", "new"]
            argv += ["--max-txn-ops", str(TXN_OPS_MAX), "--logger", "zap", "--log-level", "warn"]
            with (self._directory / f"e{n}.log").open("ab") as log:
                self._processes.append(
                    subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)
                )
        until = time.monotonic() + _START_S
        while not self._find_leader():
            for n, process in enumerate(self._processes, 1):
                if process.poll() is not None:
                    words = (self._directory / f"e{n}.log").read_text(errors="replace").splitlines()[-2:]
                    raise ServerError(f"etcd ended with {process.returncode}: {' / '.join(words)}")
            if time.monotonic() > until:
                raise ServerError(f"etcd has no leader after {_START_S:g} s")
            time.sleep(_POLL_S)

    def _find_leader(self) -> bool:
        found = [run_async(member_status(endpoint, 1.0)) for endpoint in self.endpoints]
        for endpoint, status in zip(self.endpoints, found, strict=True):
            if status is not None and status.leads and all(one is not None for one in found):
                self.leader, self.version = endpoint, status.version
                return True
        return False

    def cpu_us(self) -> int:
        """User and system time of all nodes so far."""
        times = [psutil.Process(process.pid).cpu_times() for process in self._processes]
        return round(1e6 * sum(one.user + one.system for one in times))

    def stop(self) -> None:
        """SIGTERM, and SIGKILL for nodes that take too long."""
        for process in self._processes:
            process.terminate()
        until = time.monotonic() + _STOP_S
        for process in self._processes:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, until - time.monotonic()))
        self.kill()

    def kill(self) -> None:
        """SIGKILL for all remaining nodes."""
        for process in self._processes:
            process.kill()
            process.wait()
        self._processes.clear()


@contextlib.contextmanager
def temporary_etcd(nodes: int = 3) -> Iterator[Etcd]:
    """A running cluster in a temporary directory; it is ended and the directory removed in any case."""
    directory = Path(tempfile.mkdtemp(prefix="metad-perf-etcd-", dir=disk_directory()))
    try:
        etcd = Etcd(directory, nodes)
        try:
            etcd.start()
            yield etcd
            etcd.stop()
        finally:
            etcd.kill()
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _free_ports(count: int) -> list[int]:
    """Ports that nobody listens on now."""
    with contextlib.ExitStack() as held:
        ports = []
        for _ in range(count):
            sock = held.enter_context(socket.socket())
            sock.bind(("127.0.0.1", 0))
            ports.append(sock.getsockname()[1])
        return ports
