"""Runs a server under test as a child process: start, wait until it serves, kill, stop, and always clean up. And how
processes of clients are started.

Any command that takes ``--data-dir``, ``--listen``, ``--config`` and ``--ready-file`` like ``metad serve``; or ``metad
cluster``, whose nodes are its children. Blocking by design: asyncio code calls it through ``asyncio.to_thread``.
"""

from __future__ import annotations

import contextlib
import functools
import multiprocessing
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from multiprocessing.context import ForkServerContext
from pathlib import Path

import msgspec
import psutil

from metad_wire.operator.authority import AuthorityError, issue_fleet
from metad_wire.program.extras import installed
from metad_wire.transport.credentials import TlsFiles

from .errors import ServerError, UsageError
from .target import scheme_checked, target_of

_POLL_S = 0.002  # interval of checks for the ready file
_LOG_LINES_SHOWN = 3
_KILLED_S = 10.0  # a process with SIGKILL has ended by then


class _Ready(msgspec.Struct):
    endpoints: list[str]
    quic_endpoints: list[str] = []
    pids: dict[str, int] = {}


def program(name: str) -> str:
    """A command of metad: the one installed beside this interpreter, else the one on PATH. Raises ServerError."""
    found = installed(name)
    if found is None:
        raise ServerError(f"the {name} command is not installed beside this Python nor on PATH")
    return found


def metad_serve() -> list[str]:
    """The command that runs one node."""
    return [program("metad"), "serve"]


class Server:
    """One server on one data directory, started any number of times; it keeps the port of its first start."""

    def __init__(
        self,
        directory: Path,
        *,
        command: Sequence[str] | None = None,
        config: Path | None = None,
        listen: str = "127.0.0.1:0",
        scheme: str = "metad",
    ) -> None:
        self._command = list(command) if command is not None else metad_serve()
        self._directory = directory
        self._config = config
        self._endpoints = [listen]
        self._quic_endpoints = [listen]
        self._scheme = scheme
        self._process: subprocess.Popen[bytes] | None = None
        self.pids: dict[str, int] = {}
        """Process ids by node id, from when the nodes became ready."""

    @property
    def command(self) -> list[str]:
        """What runs it, from its next start on."""
        return self._command

    @command.setter
    def command(self, command: Sequence[str]) -> None:
        self._command = list(command)

    @property
    def endpoint(self) -> str:
        """host:port, or those of all nodes separated by commas, known from the first start on."""
        return ",".join(self._endpoints)

    @property
    def target(self) -> str:
        """The endpoint as a target for load: with its scheme, and with certificates if the scheme needs them."""
        if self._scheme == "metad":
            return self.endpoint
        endpoints = self._quic_endpoints if self._scheme == "metadq" else self._endpoints
        return target_of(f"{self._scheme}://{','.join(endpoints)}", certs=str(self._certificates()))

    @property
    def quic_endpoint(self) -> str:
        """host:port over QUIC, if the server serves that."""
        return ",".join(self._quic_endpoints)

    @property
    def pid(self) -> int:
        """Process id of the running process."""
        if self._process is None:
            raise ServerError("the server is not running")
        return self._process.pid

    @property
    def _ready_file(self) -> Path:
        return self._directory / "ready.json"

    @property
    def _log_file(self) -> Path:
        return self._directory / "server.log"

    def launch(self) -> None:
        """Start the process without waiting for it to serve."""
        if self._process is not None:
            raise ServerError("the server is running already")
        self._ready_file.unlink(missing_ok=True)
        argv = [*self._command, "--data-dir", str(self.data_directory()), *self._where()]
        argv += ["--ready-file", str(self._ready_file)]
        if self._config is not None:
            argv += ["--config", str(self._config)]
        with self._log_file.open("ab") as log:
            # A session of its own: Ctrl-C reaches only us, and we stop it.
            self._process = subprocess.Popen(
                argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )

    def _where(self) -> list[str]:
        listen = ["--listen", self._endpoints[0]]
        if self._scheme == "metad":
            return listen
        files = issued(self._certificates(), ["node-1"])["node-node-1"]
        tls = ["--tls-cert", files.certificate, "--tls-key", files.key, "--tls-ca", files.ca]
        return [*listen, "--quic", self._quic_endpoints[0], *tls]

    def _certificates(self) -> Path:
        return self._directory / "certificates"

    def data_directory(self) -> Path:
        """Where it keeps everything."""
        return self._directory / "data"

    def wait_ready(self, timeout_s: float = 120.0) -> None:
        """Return once requests are served. Raises ServerError."""
        until = time.monotonic() + timeout_s
        while not self.ready():
            if time.monotonic() > until:
                raise ServerError(f"the server did not serve within {timeout_s:g} s: {self._last_words()}")
            time.sleep(_POLL_S)

    def ready(self) -> bool:
        """Whether requests are served by now. Raises ServerError if the process has ended."""
        process = self._process
        if process is None:
            raise ServerError("the server is not running")
        with contextlib.suppress(FileNotFoundError, msgspec.DecodeError):  # missing, or half written
            ready = msgspec.json.decode(self._ready_file.read_bytes(), type=_Ready)
            self._endpoints, self.pids = ready.endpoints, ready.pids
            self._quic_endpoints = ready.quic_endpoints or self._quic_endpoints
            return True
        if process.poll() is not None:
            self._process = None
            raise ServerError(f"the server ended with {process.returncode} before it served: {self._last_words()}")
        return False

    def start(self, timeout_s: float = 120.0) -> float:
        """Start and wait until requests are served; returns the seconds that took."""
        begin = time.monotonic()
        self.launch()
        self.wait_ready(timeout_s)
        return time.monotonic() - begin

    def kill(self) -> None:
        """Send SIGKILL, and wait for the end."""
        if self._process is not None:
            process, self._process = self._process, None
            process.kill()
            process.wait()

    def stop(self, timeout_s: float = 60.0) -> float:
        """Send SIGTERM and wait for the drain; returns the seconds that took. SIGKILL and an error if it takes too
        long."""
        begin = time.monotonic()
        process = self._process
        if process is None:
            return 0.0
        process.send_signal(signal.SIGTERM)
        try:
            code = process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise ServerError(f"the server did not drain within {timeout_s:g} s: {self._last_words()}") from None
        finally:
            self.kill()
        if code:
            raise ServerError(f"the server drained with exit code {code}: {self._last_words()}")
        return time.monotonic() - begin

    def members(self) -> list[int]:
        """Process ids of the running nodes."""
        return [] if self._process is None else [self._process.pid]

    def rss_bytes(self) -> int:
        """Resident memory of the nodes now; 0 while none runs."""
        return rss_bytes(self.members())

    def cpu_s(self) -> float:
        """User and system time of the running nodes so far."""
        return cpu_s(self.members())

    def waited_s(self) -> float:
        """For how long its threads were ready to run and had no processor, together; 0 if the system does not say."""
        waited_ns = 0
        with contextlib.suppress(OSError, ServerError, ValueError, IndexError):
            for thread in Path(f"/proc/{self.pid}/task").iterdir():
                waited_ns += int((thread / "schedstat").read_text(encoding="ascii").split()[1])
        return waited_ns / 1e9

    def _last_words(self, count: int = _LOG_LINES_SHOWN) -> str:
        try:
            lines = self._log_file.read_text(errors="replace").splitlines()
        except OSError:
            lines = []
        return " / ".join(line.strip() for line in lines[-count:]) or "it said nothing"


class Shape(msgspec.Struct, frozen=True, kw_only=True):
    """The kind of server that a command starts. ``groups`` as in ``data=4,offset=2``; empty: the default. With another
    ``scheme`` than ``metad`` it gets certificates, and serves TLS and QUIC."""

    nodes: int = 1
    workers: int = 1
    groups: str = ""
    scheme: str = "metad"

    @property
    def is_alone(self) -> bool:
        """Whether it is one process with the default groups."""
        return (self.nodes, self.workers, self.groups) == (1, 1, "")

    def checked(self) -> Shape:
        """This shape. Raises UsageError."""
        scheme_checked(self.scheme)
        if self.nodes < 1 or self.workers < 1:
            raise UsageError("--nodes and --workers must be at least 1")
        return self


class Cluster(Server):
    """The nodes of one cluster on this machine; their supervisor restarts a node that ends."""

    def __init__(self, directory: Path, shape: Shape, *, config: Path | None = None) -> None:
        command = [program("metad"), "cluster", "--nodes", str(shape.nodes), "--workers", str(shape.workers)]
        if shape.groups:
            command += ["--groups", shape.groups]
        if shape.scheme != "metad":
            command += ["--tls"]
        super().__init__(directory, command=command, config=config, scheme=shape.scheme)

    def _where(self) -> list[str]:
        return []

    def _certificates(self) -> Path:
        return self.data_directory() / "certificates"

    def members(self) -> list[int]:
        """Process ids of the running nodes."""
        return [one.pid for one in self._children()]

    def kill(self) -> None:
        """Send SIGKILL to the supervisor and then to the nodes, and wait for the end."""
        children = self._children()
        super().kill()  # the supervisor first: it would restart the nodes
        for child in children:
            with contextlib.suppress(psutil.NoSuchProcess):
                child.kill()
        psutil.wait_procs(children, _KILLED_S)

    def _children(self) -> list[psutil.Process]:
        if self._process is None:
            return []
        with contextlib.suppress(psutil.NoSuchProcess):
            return list(psutil.Process(self._process.pid).children())
        return []


@contextlib.contextmanager
def temporary_server(
    *, command: Sequence[str] | None = None, config: Path | None = None, shape: Shape | None = None
) -> Iterator[Server]:
    """A server in a temporary directory, not started; it is killed and the directory removed in any case. It is a
    :class:`Cluster` if ``shape`` asks for more than one process or for groups."""
    directory = Path(tempfile.mkdtemp(prefix="metad-perf-", dir=disk_directory()))
    if shape is None or shape.is_alone:
        server = Server(
            directory, command=command, config=config, scheme=shape.scheme if shape is not None else "metad"
        )
    else:
        server = Cluster(directory, shape, config=config)
    try:
        yield server
    finally:
        server.kill()
        shutil.rmtree(directory, ignore_errors=True)


@functools.cache
def client_processes() -> ForkServerContext:
    """What starts processes of clients. Each has an interpreter and an event loop of its own, as with "spawn". Each is
    a copy of one that has imported what this process had when it started the first: it takes a moment, and not a
    second of the processor."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(sorted(name for name in sys.modules if name.startswith(f"{__package__}.")))
    return context


def issued(directory: Path, nodes: Sequence[str]) -> dict[str, TlsFiles]:
    """Certificates for nodes, and for one client. Raises ServerError."""
    try:
        return issue_fleet(directory, nodes, ["perf"])
    except AuthorityError as error:
        raise ServerError(str(error)) from None


def security_of(files: TlsFiles) -> dict[str, str]:
    """The ``[security]`` table of a node with these files."""
    return {"certificate": files.certificate, "key": files.key, "ca": files.ca}


def disk_directory() -> Path:
    """The directory for temporary data: the first of the usual places that is on a disk, because fsync on tmpfs is
    free."""
    places = [Path(tempfile.gettempdir()), Path("/var/tmp"), Path.cwd()]
    for place in places:
        if place.is_dir() and _filesystem(place) not in ("tmpfs", "ramfs", "devtmpfs"):
            return place
    return places[0]


def _filesystem(path: Path) -> str:
    """Type of the file system that holds ``path``; empty if the system does not report it."""
    resolved = path.resolve()
    best, kind = -1, ""
    for partition in psutil.disk_partitions(all=True):
        mount = Path(partition.mountpoint)
        if resolved.is_relative_to(mount) and len(mount.parts) >= best:
            best, kind = len(mount.parts), partition.fstype
    return kind


def cpu_s(pids: Iterable[int]) -> float:
    """User and system time so far of those of these processes that run."""
    total = 0.0
    for pid in pids:
        with contextlib.suppress(psutil.Error):
            times = psutil.Process(pid).cpu_times()
            total += times.user + times.system
    return total


def rss_bytes(pids: Iterable[int]) -> int:
    """Resident memory now of those of these processes that run."""
    total = 0
    for pid in pids:
        with contextlib.suppress(psutil.Error):
            total += int(psutil.Process(pid).memory_info().rss)
    return total
