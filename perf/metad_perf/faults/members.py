"""The nodes of the fault run: each a ``metad serve`` of our own, in a namespace and on a disk of its own if the machine
allows it, so that each can be killed, paused, cut off, filled up and slowed down separately. Blocking."""

from __future__ import annotations

import contextlib
import json
import shutil
import signal
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from metad_wire.transport.claims import Claim
from metad_wire.transport.credentials import TlsFiles

from ..errors import ServerError
from ..spawn import Server, disk_directory, issued, metad_serve, security_of
from ..target import target_of
from .disks import Disk
from .netns import Network

_PEER_PORT, _CLIENT_PORT = 7500, 7420  # each node has a namespace of its own
START_S = 60.0


class Member(Server):
    """One node. ``name`` is its node id."""

    def __init__(self, name: str, directory: Path, command: list[str], config: Path, listen: str, disk: Disk | None):
        super().__init__(directory, command=command, config=config, listen=listen)
        self.name = name
        self.disk = disk
        self.paused = False

    def data_directory(self) -> Path:
        return super().data_directory() if self.disk is None else self.disk.directory / "data"

    @property
    def runs(self) -> bool:
        """Whether its process is there."""
        return self._process is not None and self._process.poll() is None

    def ended(self) -> int | None:
        """Exit code of a process that ended by itself; None while it runs or if we ended it."""
        process = self._process
        code = None if process is None else process.poll()
        if code is not None:
            self._process = None
        return code

    def pause(self) -> None:
        """SIGSTOP."""
        self.paused = True
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        """SIGCONT."""
        self.paused = False
        self._signal(signal.SIGCONT)

    def terminate(self) -> None:
        """SIGTERM, without waiting for the end."""
        self._signal(signal.SIGTERM)

    def wipe(self) -> None:
        """Remove everything in its data directory, as if its disk were replaced. It must not run."""
        shutil.rmtree(self.data_directory(), ignore_errors=True)

    def configure(self, text: str) -> None:
        """Replace its configuration file."""
        assert self._config is not None
        self._config.write_text(text)

    def reconfigure(self, changes: Mapping[str, str]) -> None:
        """Replace parts of its configuration file, each of which is there. Raises ServerError."""
        assert self._config is not None
        text = self._config.read_text()
        for before, after in changes.items():
            if before not in text:
                raise ServerError(f"{before!r} is not in the configuration of {self.name}")
            text = text.replace(before, after)
        self.configure(text)

    def log(self) -> list[str]:
        """All lines of its log so far."""
        try:
            return self._log_file.read_text(errors="replace").splitlines()
        except OSError:
            return []

    def words(self, lines: int = 3) -> str:
        """The last lines of its log."""
        return self._last_words(lines)

    def log_lines(self) -> int:
        """Number of log lines so far."""
        return len(self.log())

    def _signal(self, number: signal.Signals) -> None:
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                self._process.send_signal(number)


class Cuts(Protocol):
    """Means to keep nodes apart."""

    def cut(self, source: int, target: int) -> None:
        """From now on no packet from ``source`` reaches ``target``."""

    def cut_off(self, n: int) -> None:
        """From now on no packet reaches or leaves node ``n``."""

    def heal(self) -> None:
        """Let everything arrive again."""


class Visit(Protocol):
    """Makes a node that is to join, in an empty directory of its own; not started."""

    def __call__(self, name: str, files: TlsFiles | None = None, /) -> Member:
        """``files``: its certificate; None: one of the fleet's, if it has any."""


class Members:
    """All nodes of the run."""

    def __init__(
        self,
        members: list[Member],
        network: Cuts | None,
        scheme: str,
        certs: Path | None,
        visit: Visit | None = None,
    ) -> None:
        self.all = members
        self.visit = visit
        """Makes a node that is to join; None if none can be made."""
        self.network = network
        self._scheme = scheme
        self.certs = certs
        """The directory of the fleet's certificates."""

    @property
    def endpoints(self) -> str:
        """The endpoints of all nodes, separated by commas."""
        return ",".join(member.endpoint for member in self.all)

    @property
    def target(self) -> str:
        """A target that names all nodes, for load."""
        certs = str(self.certs or "")
        return target_of(f"{self._scheme}://{self.endpoints}", certs=certs, name="perf" if certs else "")

    def start(self) -> None:
        """Start all nodes and wait until each serves."""
        for member in self.all:
            member.launch()
        for member in self.all:
            member.wait_ready(START_S)


@contextlib.contextmanager
def temporary_members(
    count: int,
    *,
    groups: str,
    config: Path | None,
    namespaces: bool,
    cuts: bool = True,
    disks: bool,
    hangs: bool = False,
    visitors: int = 0,
    replicas: int = 0,
    regions: Sequence[str] = (),
    scheme: str = "metad",
) -> Iterator[Members]:
    """Nodes in temporary directories, not started; everything is ended and removed in any case. ``cuts``: two nodes can
    be cut off from each other. ``hangs``: their disks can hang. ``visitors``: nodes may join; namespaces beside.
    ``replicas`` of each group, 0: the configured number. ``regions``: where the nodes are, in turn."""
    directory = Path(tempfile.mkdtemp(prefix="metad-perf-", dir=disk_directory()))
    network = Network(count + visitors, cuts=cuts) if namespaces else None
    mounted: list[Disk] = []
    members: list[Member] = []
    guests: list[Member] = []
    held = contextlib.ExitStack()
    try:
        if network is not None:
            network.make()
            hosts = [(network.address(n), _CLIENT_PORT, _PEER_PORT) for n in range(count + 1)]
        else:
            ports = held.enter_context(Claim(2 * count + 2)).ports
            hosts = [("127.0.0.1", ports[2 * n], ports[2 * n + 1]) for n in range(count + 1)]
        seeds = {f"n{n + 1}": f"{host}:{peer}" for n, (host, _, peer) in enumerate(hosts[:count])}
        where = {name: regions[n % len(regions)] for n, name in enumerate(seeds)} if regions else {}
        certs = directory / "certificates" if scheme != "metad" else None
        fleet = {} if certs is None else issued(certs, list(seeds))
        for n, name in enumerate(seeds):
            home = directory / name
            home.mkdir()
            disk = None
            if disks:
                disk = Disk(home, hangs=hangs)
                mounted.append(disk)
                disk.make()
            written = home / "metad.toml"
            files = fleet.get(f"node-{name}")
            clear = network is not None
            written.write_text(
                _config(config, name, seeds, groups, replicas=replicas, regions=where, files=files, clear=clear)
            )
            command = [*(network.prefix(n) if network is not None else []), *metad_serve()]
            host, port, _ = hosts[n]
            if files is not None:
                command += ["--quic", f"{host}:{port}"]
            members.append(Member(name, home, command, written, f"{host}:{port}", disk))

        def visit(name: str, files: TlsFiles | None = None, /) -> Member:
            home = directory / f"visitor-{len(guests) + 1}"
            home.mkdir()
            written = home / "metad.toml"
            host, port, peer_port = hosts[count]
            if files is None and certs is not None:
                files = issued(certs, [name])[f"node-{name}"]
            at, clear = f"{host}:{peer_port}", network is not None
            written.write_text(
                _config(config, name, seeds, "", joins_at=at, replicas=replicas, files=files, clear=clear)
            )
            command = [*(network.prefix(count) if network is not None else []), *metad_serve()]
            visitor = Member(name, home, command, written, f"{host}:{port}", None)
            guests.append(visitor)
            return visitor

        yield Members(members, network, scheme, certs, visit if visitors else None)
    finally:
        for disk in mounted:
            disk.unhang()  # a process that waits for the disk cannot be killed
        for member in (*members, *guests):
            member.kill()
        for disk in mounted:
            disk.remove()
        if network is not None:
            network.remove()
        held.close()
        shutil.rmtree(directory, ignore_errors=True)


def _config(
    base: Path | None,
    name: str,
    seeds: dict[str, str],
    groups: str,
    *,
    joins_at: str = "",
    replicas: int = 0,
    regions: Mapping[str, str] | None = None,
    files: TlsFiles | None = None,
    clear: bool = False,
) -> str:
    """The given configuration, with this node's settings before, in and after it. ``joins_at``: it is no founder, and
    listens for its peers there. ``clear``: its addresses are not loopback ones, but no other machine reaches them. TOML
    has each table once: a base that sets ``[cluster]`` or ``[groups]`` cannot be used."""
    text = base.read_text() if base is not None else ""
    for table in ("[cluster]", "[groups]") if groups else ("[cluster]",):
        if table in text:
            raise ServerError(f"{base}: {table} is for the command to set")
    if joins_at:
        cluster = [f"join = {json.dumps([*seeds.values()])}", f'listen = "{joins_at}"']
    else:
        cluster = [f"seeds = {_inline(seeds)}", f'listen = "{seeds[name]}"']
    if regions:
        cluster += [f"seed_regions = {_inline(regions)}", f'region = "{regions[name]}"']
    security = [f'{field} = "{path}"' for field, path in security_of(files).items()] if files is not None else []
    if security and "[security]" in text:
        text = text.replace("[security]", "\n".join(["[security]", *security]))
    lines = [f'node_id = "{name}"', text, "[cluster]", *cluster]
    if replicas:
        lines.append(f"replicas = {replicas}")
    if security and "[security]" not in text:
        lines += ["[security]", *security]
    elif clear and "[security]" not in text:
        lines += ["[security]", "plaintext = true"]
    if groups:
        lines += ["[groups]", *(part.replace("=", " = ") for part in groups.split(","))]
    return "\n".join([*lines, ""])


def _inline(table: Mapping[str, str]) -> str:
    """A table of TOML in one line."""
    pairs = ", ".join(f'{key} = "{value}"' for key, value in table.items())
    return f"{{ {pairs} }}"
