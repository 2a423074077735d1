"""The nodes of a peer as child processes: started with a log each, measured, killed, and in any case ended.

What the systems have in common; each adapter says which command runs a node and how to see that the nodes serve.
"""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from metad_wire.transport.claims import Claim

from ..errors import ServerError
from ..spawn import cpu_s, rss_bytes
from .peer import MissingError

START_S = 90.0
_POLL_S = 0.1
_STOP_S = 20.0


class Nodes:
    """The processes of one system, started once."""

    def __init__(self, system: str, directory: Path) -> None:
        self._system, self._directory = system, directory
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._claims: list[Claim] = []

    def ports(self, count: int) -> range:
        """Ports for the nodes, which nobody else takes until they have been stopped."""
        self._claims.append(Claim(count))
        return self._claims[-1].ports

    def start(self, name: str, argv: Sequence[str]) -> None:
        """Start one node, which works in the directory. Ctrl-C reaches only us, and we stop it."""
        with self._log(name).open("ab") as log:
            self._processes[name] = subprocess.Popen(
                argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True, cwd=self._directory
            )

    def wait(self, ready: Callable[[], bool], timeout_s: float = START_S) -> None:
        """Return when ``ready`` says so. Raises ServerError if a node ends or it takes too long."""
        until = time.monotonic() + timeout_s
        while not ready():
            for name, process in self._processes.items():
                if process.poll() is not None:
                    raise ServerError(f"{self._system}: {name} ended with {process.returncode}: {self._words(name)}")
            if time.monotonic() > until:
                first = next(iter(self._processes), "")
                raise ServerError(f"{self._system} does not serve after {timeout_s:g} s: {self._words(first)}")
            time.sleep(_POLL_S)

    def cpu_us(self) -> int:
        """User and system time of the running nodes so far."""
        return round(1e6 * cpu_s(process.pid for process in self._processes.values()))

    def rss_bytes(self) -> int:
        """Memory of the running nodes now."""
        return rss_bytes(process.pid for process in self._processes.values())

    def kill(self, name: str) -> None:
        """SIGKILL to one node."""
        process = self._processes.pop(name)
        process.kill()
        process.wait()

    def stop(self) -> None:
        """SIGTERM to all, and SIGKILL to those that take too long."""
        for process in self._processes.values():
            process.terminate()
        until = time.monotonic() + _STOP_S
        for process in self._processes.values():
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, until - time.monotonic()))
        for name in list(self._processes):
            self.kill(name)
        for claim in self._claims:
            claim.close()

    def _log(self, name: str) -> Path:
        return self._directory / f"{name}.log"

    def _words(self, name: str) -> str:
        with contextlib.suppress(OSError):
            lines = self._log(name).read_text(errors="replace").splitlines()
            return " / ".join(line.strip() for line in lines[-2:]) or "it said nothing"
        return "it said nothing"


def find(system: str, program: str, package: str) -> str:
    """The path of an installed program. Raises MissingError, which says how to get it."""
    # Debian has servers in sbin, which need not be on the PATH of a user.
    found = shutil.which(program) or shutil.which(program, path="/usr/sbin:/usr/local/sbin")
    if found is None:
        raise missing(system, package)
    return found


def missing(system: str, package: str) -> MissingError:
    """The error that names the package."""
    return MissingError(f"--peers {system}: {system} is not installed; `make peers` installs it (Debian's {package})")
