"""Groups of processes: the workers of a node, or the nodes of a local cluster.

A worker is a member of the cluster like any other: its own process, data directory, ports and groups. Its name,
``node/number``, makes it a worker: replicas of one group never share the part before the slash, which is one machine.
So a node uses as many cores as it has workers, and nothing else in metad knows about them.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import signal
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from metad_wire.cluster import GROUP_KINDS
from metad_wire.operator.authority import AuthorityError, issue_fleet
from metad_wire.transport import join_endpoint, split_endpoint
from metad_wire.transport.claims import Claim
from metad_wire.transport.credentials import TlsFiles

from . import log_events
from .config import UNIX, Config, bound_for_nodes, collide, is_region, to_toml, validated
from .errors import ConfigError, RefusedError, ServerError
from .logs import event
from .node.disk.stores import nodes_in
from .ready_file import write_ready
from .server.access import Access
from .server.lamps.http_port import Door, HttpPort
from .server.lamps.machine import ShowsWorkers
from .server.network import in_clear
from .service_manager import ServiceManager

_READY_POLL_S = 0.05
_RESTART_S = 1.0  # between the end of a process and its next start


class Member:
    """One process, given by its configuration."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.process: asyncio.subprocess.Process | None = None
        self.ready_file = Path()
        self.endpoint = ""
        self.quic_endpoint = ""
        self.http_socket = Path()
        """Where the supervisor asks what the port of all members shows."""
        self.restarts = 0
        self.given_up = False
        """Every other node refuses it, or it has left its cluster, so it is not started again."""
        self.left = False
        """It was told to leave its cluster, and has left it."""

    @property
    def name(self) -> str:
        """Its node id."""
        return self.config.node_id

    @property
    def runs(self) -> bool:
        """Whether there is a process of it."""
        return self.process is not None and self.process.returncode is None


def workers_of(config: Config, workers: int, *, held: contextlib.ExitStack | None = None) -> list[Config]:
    """The configurations of a node's workers. Worker ``w`` listens ``w`` ports above the configured ones, for clients
    and for peers, so every node must have as many workers as the others. ``held`` gets the claim on ports that are
    chosen here: nobody else takes them until it is closed. Raises ConfigError."""
    cluster = config.cluster
    if cluster.join:
        raise ConfigError("workers: a node that joins has one worker; start it without --workers")
    _check_parts(Path(config.data_dir), [f"worker-{w}" for w in range(workers)])
    seeds = cluster.seeds or {config.node_id: f"127.0.0.1:{_stable_port(Path(config.data_dir), workers, held)}"}
    addresses = {
        field: endpoint
        for field in ("listen", "advertise", "advertise_clients", "advertise_quic")
        if (endpoint := getattr(cluster, field))
    }
    expanded = {f"{node}/{w}": _above(endpoint, w) for node, endpoint in seeds.items() for w in range(workers)}
    regions = {f"{node}/{w}": region for node, region in cluster.seed_regions.items() for w in range(workers)}
    configs = [
        validated(
            msgspec.structs.replace(
                config,
                node_id=f"{config.node_id}/{w}",
                listen=_above(config.listen, w),
                quic=_above(config.quic, w),
                data_dir=str(Path(config.data_dir) / f"worker-{w}"),
                cluster=msgspec.structs.replace(
                    cluster,
                    seeds=expanded,
                    seed_regions=regions,
                    **{field: _above(endpoint, w) for field, endpoint in addresses.items()},
                ),
            )
        )
        for w in range(workers)
    ]
    for one, other in itertools.product(configs, repeat=2):
        if collide(one.listen, bound_for_nodes(other)) or collide(one.quic, bound_for_nodes(other)):
            raise ConfigError(
                f"workers: {one.node_id} would listen for clients where {other.node_id} listens for other nodes, on "
                f"{bound_for_nodes(other)}. Each worker takes the next port: let {workers} ports lie between the two"
            )
    return configs


def local_fleet(config: Config, nodes: int) -> dict[str, TlsFiles]:
    """Certificates for a local cluster, in its data directory: ``node-n1`` and so on, and ``admin-local`` for its
    users. The authority stays over restarts, the other certificates are renewed. Raises ConfigError."""
    directory = Path(config.data_dir) / "certificates"
    try:
        fleet = issue_fleet(directory, _names(nodes), [], ["127.0.0.1", "localhost"], admins=["local"])
    except AuthorityError as error:
        raise ConfigError(str(error)) from None
    return fleet


def _names(nodes: int) -> list[str]:
    return [f"n{n + 1}" for n in range(nodes)]


def local_cluster(
    config: Config,
    nodes: int,
    workers: int,
    *,
    fleet: Mapping[str, TlsFiles] | None = None,
    regions: Sequence[str] = (),
    held: contextlib.ExitStack | None = None,
) -> list[Config]:
    """The configurations of ``nodes`` nodes on this machine, each with ``workers`` workers, assigned to ``regions`` in
    turn. A cluster keeps its ports, which are recorded in its data directory. With a ``fleet`` of certificates it is
    encrypted, and serves QUIC on the same port numbers as TCP. ``held`` is that of :func:`workers_of`."""
    directory = Path(config.data_dir)
    _check_parts(directory, _names(nodes))
    base = _stable_port(directory, 2 * nodes * workers, held)
    seeds = {node: f"127.0.0.1:{base + n * workers}" for n, node in enumerate(_names(nodes))}
    where = {node: regions[n % len(regions)] for n, node in enumerate(seeds)} if regions else {}
    configs: list[Config] = []
    for n, node in enumerate(seeds):
        listen = f"127.0.0.1:{base + (nodes + n) * workers}"
        cluster = msgspec.structs.replace(config.cluster, region=where.get(node, config.cluster.region))
        if nodes > 1:
            cluster = msgspec.structs.replace(cluster, seeds=seeds, seed_regions=where)
        else:
            cluster = msgspec.structs.replace(cluster, seeds={})
        one = msgspec.structs.replace(
            config, node_id=node, listen=listen, data_dir=str(directory / node), cluster=cluster
        )
        if fleet:
            files = fleet[f"node-{node}"]
            security = msgspec.structs.replace(
                config.security, certificate=files.certificate, key=files.key, ca=files.ca
            )
            one = msgspec.structs.replace(one, quic=listen, security=security)
        configs += workers_of(one, workers) if workers > 1 else [validated(one)]
    return configs


def _check_parts(directory: Path, wanted: Sequence[str]) -> None:
    """Raise ConfigError if a data directory holds data that a start of these would not see."""
    if (directory / "raft").exists():
        raise ConfigError(
            f"{directory} holds the data of one node: start it with `metad serve` and without --workers. How many "
            "workers a node has is decided when it starts first"
        )
    others = [part for part in nodes_in(directory) if part not in wanted]
    if others:
        raise ConfigError(f"{directory} also holds the data of {', '.join(others)}: start as many as before")


def _above(endpoint: str, count: int) -> str:
    """The address so many ports above; of an empty one, none."""
    if not endpoint:
        return ""
    host, port = split_endpoint(endpoint)
    return join_endpoint(host, port + count if port else 0)


def _stable_port(directory: Path, count: int, held: contextlib.ExitStack | None) -> int:
    """The first of ``count`` free ports, the same at every start. They are this process's before they are noted."""
    note = directory / "ports.json"
    try:
        directory.mkdir(parents=True, exist_ok=True)
        if note.exists():
            noted = json.loads(note.read_text())
            if noted["count"] != count:
                raise ConfigError(
                    f"{directory} belongs to a cluster of another shape; give this one its own --data-dir"
                )
            claim = Claim(count, int(noted["first"]))
        else:
            claim = Claim(count)
            note.write_text(json.dumps({"first": claim.first, "count": count}) + "\n")
    except (OSError, ValueError, KeyError, OverflowError) as error:
        raise ConfigError(f"cannot use {directory}: {error}") from None
    if held is None:
        claim.close()
    else:
        held.enter_context(claim)
    return claim.first


class Supervisor:
    """Runs members, restarts those that end unexpectedly, and ends all of them when told to. Its own HTTP port, at the
    configured address, shows them all."""

    def __init__(
        self,
        configs: Sequence[Config],
        ready_file: Path | None,
        environment: Mapping[str, str],
        manager: ServiceManager,
        config_file: Path | None = None,
    ) -> None:
        """``environment`` is that of the members. ``manager`` is told of all of them together. ``config_file``: what
        people edit; each member reads a file that is made of it."""
        self._config_file = config_file
        self._environment = environment
        self._manager = manager
        self.members = [Member(config) for config in configs]
        self._ready_file = ready_file
        self._http: HttpPort | None = None
        self._stopping = asyncio.Event()
        self._told = "every process has ended"

    def _stop(self, name: str) -> None:
        self._told = name
        self._stopping.set()
        self._manager.stopping("all processes end")

    def _status(self) -> str:
        serving = [one for one in self.members if one.runs]
        return f"{len(serving)} of {len(self.members)} processes run"

    def _open_http(self) -> None:
        """Raises ConfigError."""
        config = self.members[0].config
        if not config.http:
            return
        if "http" in in_clear(config):
            event(log_events.CLEAR_TEXT, field="http", endpoint=config.http)
        door = Door(config, Access(config.security, encrypted=True), time.time) if Door.has(config) else None
        self._http = HttpPort(config.http, ShowsWorkers(self._sockets), door)

    def _sockets(self) -> dict[str, str]:
        return {one.name: str(one.http_socket) if one.runs else "" for one in self.members if not one.left}

    async def run(self) -> str:
        """Run until SIGTERM or SIGINT, and return which it was. Raises ServerError if a member ended before it ever
        served, RefusedError if all of them were given up."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stop, number.name)
        self._open_http()
        beating = asyncio.create_task(self._manager.keep_alive(self._status))
        with tempfile.TemporaryDirectory(prefix="metad-") as scratch:
            try:
                async with asyncio.TaskGroup() as tasks:
                    for position, member in enumerate(self.members):
                        member.ready_file = Path(scratch) / f"{position}.ready"
                        config_file = Path(scratch) / f"{position}.toml"
                        member.http_socket = Path(scratch) / f"{position}.http"
                        http = f"{UNIX}{member.http_socket}" if self._http is not None else ""
                        config_file.write_text(to_toml(msgspec.structs.replace(member.config, http=http)))
                        tasks.create_task(self._keep(member, config_file))
            except* ServerError as group:
                raise group.exceptions[0] from None
            finally:
                beating.cancel()
                if self._http is not None:
                    await self._http.close()
                if self._ready_file is not None:
                    self._ready_file.unlink(missing_ok=True)
        if all(member.given_up for member in self.members):
            raise RefusedError("no process may take part in its cluster; their logs say what to do")
        return self._told

    async def _keep(self, member: Member, config_file: Path) -> None:
        stop = asyncio.create_task(self._stopping.wait())
        command = [sys.executable, "-m", "metad.cli", "serve", "--config", str(config_file)]
        while not self._stopping.is_set():
            member.ready_file.unlink(missing_ok=True)
            process = member.process = await asyncio.create_subprocess_exec(
                *command,
                "--ready-file",
                str(member.ready_file),
                *("--made-of", "" if self._config_file is None else str(self._config_file)),
                env=self._environment,
                start_new_session=True,  # a Ctrl-C is for the supervisor, which passes it on once
            )
            ended = asyncio.create_task(process.wait())
            ready = asyncio.create_task(self._await_ready(member))
            try:
                await asyncio.wait((stop, ended), return_when=asyncio.FIRST_COMPLETED)
            finally:
                ready.cancel()
                if not ended.done():
                    with contextlib.suppress(ProcessLookupError):
                        process.terminate()
                    await ended
            if self._stopping.is_set():
                return
            status = ended.result()
            if status == 0:  # it has left its cluster; its log says so
                member.left = True
                event(log_events.MEMBER_LEFT, member=member.name)
                return
            if status == RefusedError.exit_status:  # LeftError has the same
                member.given_up = True
                event(log_events.MEMBER_GIVEN_UP, member=member.name, status=status)
                await self._look_ready()
                return
            if not member.endpoint:
                self._stopping.set()
                raise ServerError(f"{member.name} ended with status {status} before it served; its log says why")
            member.restarts += 1
            event(log_events.MEMBER_ENDED, member=member.name, status=status, restarts=member.restarts)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(asyncio.shield(stop), _RESTART_S)

    async def _await_ready(self, member: Member) -> None:
        while True:
            try:
                ready: Mapping[str, Any] = json.loads(member.ready_file.read_text())
                break
            except (OSError, ValueError):
                await asyncio.sleep(_READY_POLL_S)
        member.endpoint = ready["endpoints"][0]
        member.quic_endpoint = ready.get("quic_endpoints", [""])[0]
        await self._look_ready()

    async def _look_ready(self) -> None:
        """Write the ready file if every process serves that was not given up."""
        serving = [one for one in self.members if not one.given_up]
        if serving and all(one.endpoint for one in serving):
            await self._write_ready(serving)

    async def _write_ready(self, serving: Sequence[Member]) -> None:
        pids = {one.name: one.process.pid for one in serving if one.process is not None}
        body: dict[str, Any] = {
            "endpoints": [one.endpoint for one in serving],
            "pids": pids,
            "written": time.time(),
        }
        if all(one.quic_endpoint for one in serving):
            body["quic_endpoints"] = [one.quic_endpoint for one in serving]
        if self._http is not None:
            body["http_endpoints"] = [self._http.endpoint]
        event(log_events.ALL_SERVING, endpoints=body["endpoints"])
        if self._ready_file is not None:
            await write_ready(self._ready_file, body)
        self._manager.ready(self._status())


def parse_regions(text: str) -> list[str]:
    """``eu,us,ap`` -> names; an empty text has none. Raises ConfigError."""
    regions = [part.strip() for part in text.split(",")] if text else []
    for region in regions:
        if not is_region(region):
            raise ConfigError(f"--regions: {region!r} is not a valid region name")
    return regions


def parse_groups(text: str) -> dict[str, int]:
    """``metadata=4,offset=2,data=4`` -> counts. Raises ConfigError."""
    counts: dict[str, int] = {}
    for part in text.split(","):
        kind, _, count = part.partition("=")
        if kind not in GROUP_KINDS or not count.isdigit() or not int(count):
            raise ConfigError(f"--groups: {part!r} is not metadata=N, offset=N or data=N")
        counts[kind] = int(count)
    return counts
