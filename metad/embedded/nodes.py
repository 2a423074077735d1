"""A cluster on this machine for tests of failover. Each node is a process like any other: only a process can be killed
in the middle of a write, forgets what it had in memory, and comes back from its disk.

Needs none of the server's packages itself; the processes do.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from metad_wire.transport.claims import Claim

from ..config import Config, load_config, to_toml
from ..config.environment import VARIABLES
from ..errors import ConfigError, ServerError

_POLL_S = 0.005  # interval of looks at the ready file
_START_S = 60.0
_STOP_S = 30.0  # longer than drain_timeout_ms
_LINES_SHOWN = 3
# Nodes of a test share a machine, and have little data.
_SMALL = {"block_cache_bytes": 8 << 20, "memtable_bytes": 32 << 20, "owner_cache_bytes": 1_000_000}


class Node:
    """One process, started any number of times on the same directory and ports."""

    def __init__(self, config: Config, home: Path) -> None:
        self.name = config.node_id
        self.endpoint = config.listen
        self._home = home
        self._config_file, self._ready_file, self._log_file = home / "metad.toml", home / "ready", home / "log"
        home.mkdir(parents=True)
        self._config_file.write_text(to_toml(config))
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int | None:
        """Its process id; None while it does not run."""
        return self._process.pid if self._process is not None and self._process.poll() is None else None

    @property
    def log(self) -> str:
        """What it has logged, over all its starts."""
        return self._log_file.read_text(errors="replace") if self._log_file.exists() else ""

    def launch(self) -> None:
        """Start the process, and do not wait for it."""
        if self.pid is not None:
            raise ServerError(f"{self.name} runs already")
        self._ready_file.unlink(missing_ok=True)
        command = [sys.executable, "-m", "metad.cli", "serve", "--config", str(self._config_file)]
        environment = {name: value for name, value in os.environ.items() if name not in VARIABLES}
        with self._log_file.open("ab") as log:
            self._process = subprocess.Popen(
                [*command, "--ready-file", str(self._ready_file)],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # a Ctrl-C is for the test, which ends the nodes
            )

    def wait_ready(self, until: float) -> None:
        """Return once it serves. Raises ServerError."""
        while not self._ready_file.exists():
            if self._process is None:
                raise ServerError(f"{self.name} was ended before it served")
            if self._process.poll() is not None:
                raise ServerError(f"{self.name} ended before it served: {self.last_words()}")
            if time.monotonic() > until:
                raise ServerError(f"{self.name} did not serve within {_START_S:g} s: {self.last_words()}")
            time.sleep(_POLL_S)

    def send(self, number: signal.Signals) -> None:
        """Send a signal; nothing happens while it does not run."""
        if self._process is not None:
            self._process.send_signal(number)

    def end(self, number: signal.Signals, timeout_s: float) -> None:
        """Send a signal that ends it, and wait until it has ended. Raises ServerError after killing it."""
        process = self._process
        if process is None:
            return
        process.send_signal(number)
        try:
            process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise ServerError(f"{self.name} did not end within {timeout_s:g} s: {self.last_words()}") from None
        finally:
            self._process = None

    def ended_by_itself(self) -> int | None:
        """The status with which it ended although nobody asked it to; None if it did not."""
        return self._process.poll() if self._process is not None else None

    def last_words(self) -> str:
        """The last lines of its log."""
        return " / ".join(self.log.splitlines()[-_LINES_SHOWN:]) or "it said nothing"


class Cluster:
    """Nodes ``n1``, ``n2`` … on this machine, each a process; :func:`cluster` makes one.

    Every method waits until it is done, some for a second or two. Call those with ``await asyncio.to_thread(…)`` where
    the event loop must go on, for example while the broker under test is to notice something.
    """

    def __init__(self, nodes: int, data_dir: Path | None, settings: dict[str, Any]) -> None:
        self._count = nodes
        self._settings = settings
        self._data_dir = data_dir
        self._directory = Path()
        self._claim: Claim | None = None  # on the nodes' ports
        self._nodes: dict[str, Node] = {}
        self._lock = threading.Lock()
        self._begun = self._closed = False

    # --- of all nodes ---

    @property
    def url(self) -> str:
        """What a client connects to: all nodes, and so it finds one that lives."""
        return f"metad://{','.join(node.endpoint for node in self._nodes.values())}"

    @property
    def nodes(self) -> list[str]:
        """The names of the nodes: the ``node_id`` of each."""
        return list(self._nodes)

    def __enter__(self) -> Self:
        self._begin()
        try:
            self._form()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        ended = [node for node in self._nodes.values() if node.ended_by_itself() is not None]
        said = "; ".join(f"{node.name} ended by itself: {node.last_words()}" for node in ended)
        self.close()
        if said and error is None:
            raise ServerError(said)

    async def __aenter__(self) -> Self:
        self._begin()
        try:
            await asyncio.to_thread(self._form)
        except BaseException:
            self.close()  # which ends the forming, too, if this task was cancelled
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.__exit__(kind, error, traceback)

    def close(self) -> None:
        """Kill all nodes. Safe to call again."""
        with self._lock:
            self._closed = True
            for node in self._nodes.values():
                node.send(signal.SIGKILL)
            for node in self._nodes.values():
                node.end(signal.SIGKILL, _STOP_S)
            if self._claim is not None:
                self._claim.close()
            if self._data_dir is None and self._directory != Path():
                shutil.rmtree(self._directory, ignore_errors=True)

    # --- of one node ---

    def endpoint(self, node: str) -> str:
        """host:port of a node; it stays over restarts."""
        return self._node(node).endpoint

    def pid(self, node: str) -> int | None:
        """The process id of a node; None while it does not run."""
        return self._node(node).pid

    def log(self, node: str) -> str:
        """What a node has logged: JSON lines."""
        return self._node(node).log

    def kill(self, node: str) -> None:
        """SIGKILL: the node ends in the middle of what it does. A node that does not run stays so."""
        self._node(node).end(signal.SIGKILL, _STOP_S)

    def stop(self, node: str) -> None:
        """SIGTERM: the node hands over its groups, answers what it has taken, and ends. Raises ServerError."""
        self._node(node).end(signal.SIGTERM, _STOP_S)

    def start(self, node: str) -> None:
        """Start a node that was killed or stopped, on its disk; return once it serves. Raises ServerError."""
        one = self._node(node)
        with self._lock:
            self._launch(one)
        one.wait_ready(time.monotonic() + _START_S)

    def pause(self, node: str) -> None:
        """SIGSTOP: the node hangs. Its connections stay open."""
        self._node(node).send(signal.SIGSTOP)

    def resume(self, node: str) -> None:
        """SIGCONT: a paused node goes on."""
        self._node(node).send(signal.SIGCONT)

    def _node(self, name: str) -> Node:
        if name not in self._nodes:
            raise ValueError(f"there is no node {name!r}; there are {', '.join(self._nodes) or 'none yet'}")
        return self._nodes[name]

    def _begin(self) -> None:
        with self._lock:
            if self._begun:
                raise ServerError("a cluster is started once")
            self._begun = True

    def _form(self) -> None:
        with self._lock:
            self._directory = self._made_directory()
            for config in self._configs():
                self._nodes[config.node_id] = Node(config, Path(config.data_dir).parent)
            for node in self._nodes.values():
                self._launch(node)
        until = time.monotonic() + _START_S
        for node in self._nodes.values():
            node.wait_ready(until)

    def _launch(self, node: Node) -> None:
        if self._closed:
            raise ServerError("the cluster is closed")
        node.launch()

    def _made_directory(self) -> Path:
        if self._data_dir is None:
            return Path(tempfile.mkdtemp(prefix="metad-"))
        with contextlib.suppress(FileNotFoundError):
            if any(self._data_dir.iterdir()):
                raise ConfigError(f"{self._data_dir} is not empty: an embedded cluster begins with no data")
        return self._data_dir

    def _configs(self) -> list[Config]:
        names = [f"n{n + 1}" for n in range(self._count)]
        try:
            self._claim = Claim(2 * self._count)
        except OSError as error:
            raise ConfigError(str(error)) from None
        ports = iter(self._claim.ports)
        seeds = {name: f"127.0.0.1:{next(ports)}" for name in names}
        configs = []
        for name in names:
            overrides: dict[str, Any] = {
                "node_id": name,
                "listen": f"127.0.0.1:{next(ports)}",
                "data_dir": str(self._directory / name / "data"),
                **self._settings,
            }
            overrides["storage"] = _SMALL | overrides.get("storage", {})
            founded = {"seeds": seeds} if self._count > 1 else {}
            overrides["cluster"] = founded | overrides.get("cluster", {})
            configs.append(load_config(None, overrides))
        return configs


def cluster(nodes: int = 3, data_dir: str | Path | None = None, **settings: Any) -> Cluster:
    """A cluster on free loopback ports, from the beginning to the end of a ``with`` or ``async with`` block. The block
    begins once every node serves, which takes about three seconds.

    ``settings`` are those of the configuration file, nested tables as dicts: ``groups={"data": 4}``. With ``data_dir``,
    which must be empty, data and logs stay; without, they are removed. Raises :class:`metad.errors.ServerError` if it
    cannot start, and at the end of the block if a node had ended by itself.
    """
    if nodes < 1:
        raise ConfigError(f"a cluster has at least 1 node, not {nodes}")
    return Cluster(nodes, Path(data_dir) if data_dir is not None else None, settings)
