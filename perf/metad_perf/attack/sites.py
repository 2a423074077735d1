"""The targets: a node that requires certificates, one that accepts tokens as well, three nodes, or one that may open
few files. Blocking.

The certificates of one fleet are made once per process: a node's, a client's, and every wrong kind.
"""

from __future__ import annotations

import atexit
import datetime
import functools
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Final

import msgspec

from metad_client import Options, connect
from metad_wire import messages as m
from metad_wire.errors import MetadError
from metad_wire.operator.authority import Authority, Issued, issue_fleet
from metad_wire.operator.tokens import line_of, new_token
from metad_wire.transport.credentials import Principal, Role, TlsFiles, client_files

from ..faults.members import START_S, Member, temporary_members
from ..running import run_async
from ..spawn import disk_directory, metad_serve, security_of
from .kinds import ALONE, POOR, THREE, TOKENS
from .peer import CROWD, CROWD_BROKER, LARGE_BYTES, LARGE_KEYS, Target
from .quic import REPLAYED
from .tokens import CONNECTIONS_MAX

WRONG: Final = ("untrusted", "expired", "not-yet-valid", "wrong-purpose", "no-purpose", "no-role")
"""Kinds of certificates that every node refuses."""


def node(name: str = "n1") -> TlsFiles:
    """A node's certificate."""
    return _fleet("node", name)


def client(name: str = "app", fleet: Path | None = None) -> TlsFiles:
    """A client's certificate. ``fleet``: the directory of another fleet's authority, and of its files."""
    return _fleet("client", name, fleet)


def admin(name: str = "ops") -> TlsFiles:
    """An administrator's certificate."""
    return _fleet("admin", name)


def short_lived(name: str, seconds: float) -> TlsFiles:
    """A client's certificate that ends soon."""
    end = datetime.datetime.now(datetime.UTC) + datetime.timedelta(seconds=seconds)
    return _kept(f"short-{name}", _authority().issue(Principal(Role.CLIENT, name), not_after=end))


def broker(name: str) -> TlsFiles:
    """A broker's certificate."""
    return _fleet("broker", name)


def anonymous() -> TlsFiles:
    """Files that trust the fleet and hold no certificate."""
    return TlsFiles(ca=node().ca)


def ending(name: str, days: float) -> TlsFiles:
    """A node's certificate that ends soon."""
    end = datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=days)
    return _kept(f"ending-{name}", _authority().issue(Principal(Role.NODE, name), not_after=end))


@functools.cache
def wrong(kind: str, role: Role = Role.CLIENT, name: str = "n1") -> TlsFiles:
    """A certificate of a kind in :data:`WRONG`; its files still trust the right authority."""
    authority = _authority()
    now, day = datetime.datetime.now(datetime.UTC), datetime.timedelta(days=1)
    principal = Principal(role, name)
    if kind == "untrusted":
        issued = Authority.create().issue(principal)
    elif kind == "expired":
        issued = authority.issue(principal, not_before=now - 2 * day, not_after=now - day)
    elif kind == "not-yet-valid":
        issued = authority.issue(principal, not_before=now + day, not_after=now + 2 * day)
    elif kind == "wrong-purpose":
        issued = authority.issue(principal, purposes=("code-signing",))
    elif kind == "no-purpose":
        issued = authority.issue(principal, purposes=())
    elif kind == "no-role":
        issued = authority.issue(principal, roles=False)
    else:
        raise ValueError(f"no kind {kind!r}; there are {', '.join(WRONG)}")
    return _kept(f"wrong-{kind}-{role.value}-{name}", issued)


def _authority() -> Authority:
    ca = Path(node().ca)
    return Authority.load(ca.read_bytes(), (ca.parent / "ca-key.pem").read_bytes())


def _kept(name: str, issued: Issued) -> TlsFiles:
    certificate, key = directory() / f"{name}.pem", directory() / f"{name}.key"
    certificate.write_bytes(issued.certificate)
    key.write_bytes(issued.key)
    return TlsFiles(certificate=str(certificate), key=str(key), ca=node().ca)


@functools.cache
def _fleet(role: str, name: str, fleet: Path | None = None) -> TlsFiles:
    nodes, clients, admins, brokers = ([name] if role == one else [] for one in ("node", "client", "admin", "broker"))
    made = issue_fleet(fleet or directory(), nodes, clients, admins=admins, brokers=brokers)
    return made[f"{role}-{name}"]


@functools.cache
def directory() -> Path:
    """The directory of the files, until the process ends."""
    made = Path(tempfile.mkdtemp(prefix="metad-certificates-"))
    atexit.register(shutil.rmtree, made, ignore_errors=True)
    return made


_NODE = "node-1"
_STATUS_S = 10.0  # for all nodes to report their status
_SETTLED_S = 20.0  # for every group to have a leader
_BATCH = 1_000
_FILES = 256
_GROUPS = """
[groups]
offset = 1
data = 1
"""
"""One of each kind, which attackers name without asking for the map."""
_STORAGE = """
[storage]
memtable_bytes = 33554432
row_cache_bytes = 16777216
"""
"""Small caches, which any writes fill: with large ones all growth would be theirs."""


class Health(msgspec.Struct, frozen=True):
    """The state of the nodes at a moment."""

    processes: dict[str, int]
    terms: dict[str, int]
    leaders: dict[str, str]

    def elections(self, later: Health) -> int:
        """How many there were since, in all groups."""
        return sum(max(later.terms.get(name, term) - term, 0) for name, term in self.terms.items())

    def problem(self, later: Health) -> str:
        """What has become worse; empty: nothing."""
        if gone := sorted(set(self.processes) - set(later.processes)):
            return f"{', '.join(gone)} did not answer afterwards"
        if led := sorted(name for name in self.leaders if not later.leaders.get(name)):
            return f"{', '.join(led)} had no leader afterwards"
        if moved := sorted(name for name, term in self.terms.items() if later.terms.get(name, 0) != term):
            return f"{', '.join(moved)} had elections"
        return ""


class Site:
    """Running nodes, with the addresses and files that an attacker and a good client need."""

    def __init__(self, name: str, members: list[Member], good: TlsFiles) -> None:
        self._members = members
        self._good = good
        self.name = name
        self.options = Options(tls=good, deadline_s=_STATUS_S)

    def url(self, transport: str) -> str:
        """The URL for the SDK."""
        if transport == "quic":
            return "metadq://" + ",".join(member.quic_endpoint for member in self._members)
        return "metads://" + ",".join(member.endpoint for member in self._members)

    def target(self, transport: str) -> Target:
        """The target for the attacker."""
        parts = [
            (member.quic_endpoint if transport == "quic" else member.endpoint).rpartition(":")
            for member in self._members
        ]
        return Target(
            addresses=[(host, int(port)) for host, _, port in parts],
            transport=transport,
            good=client("app") if self.name != THREE else self._good,
            other=client("other") if self.name != THREE else self._good,
            broker=broker("owned") if self.name == ALONE else None,
            none=anonymous(),
            wrong={kind: wrong(kind) for kind in WRONG} if self.name in (ALONE, POOR) else {},
        )

    def prepare(self) -> None:
        """Write the records that attacks read."""
        run_async(self._prepare())

    async def _prepare(self) -> None:
        async with connect(self.url("tls"), self.options) as client:
            for n in range(LARGE_KEYS):
                await client.kv.put("large", f"k{n}", bytes(LARGE_BYTES))
            await client.kv.put("small", "k", b"v")
            items = [
                m.SessionTakeoverItem("crowd", f"c{n}", False, m.SessionProperties(0, b"p" * 100)) for n in range(CROWD)
            ]
            for begin in range(0, CROWD, _BATCH):
                result = await client.sessions.takeover_many(CROWD_BROKER, 1, items[begin : begin + _BATCH])
                result.raise_for_error()

    def rss_bytes(self) -> list[int]:
        """Resident memory of each node now."""
        return [member.rss_bytes() for member in self._members]

    def log_lines(self) -> int:
        """Number of log lines of all nodes so far."""
        return sum(member.log_lines() for member in self._members)

    def ended(self) -> str:
        """The nodes that have ended, and their last words; empty: none."""
        codes = {member: member.ended() for member in self._members}
        return "; ".join(
            f"{member.name} ended with {code}: {member.words()}" for member, code in codes.items() if code is not None
        )

    def health(self) -> Health:
        """The state as soon as every group has a leader, or later if one gets none."""
        until_s = time.monotonic() + _SETTLED_S
        while True:
            found = run_async(self._health())
            if (all(found.leaders.values()) and found.leaders) or time.monotonic() > until_s:
                return found
            time.sleep(0.1)

    async def _health(self) -> Health:
        try:
            async with connect(self.url("tls"), self.options) as client:
                statuses = await client.cluster.statuses()
        except MetadError:
            return Health({}, {}, {})
        mine = {member.name for member in self._members}
        told = {name: status for name, status in statuses.items() if isinstance(status, m.StatusReply) and name in mine}
        groups = [group for status in told.values() for group in status.groups]
        return Health(
            {name: status.pid for name, status in told.items()},
            {name: max(group.term for group in groups if group.name == name) for name in {g.name for g in groups}},
            {
                name: next((group.leader for group in groups if group.name == name and group.leader), "")
                for name in {g.name for g in groups}
            },
        )

    def replayed(self) -> bool:
        """Whether the write that was sent in 0-RTT data took effect."""

        async def look() -> bool:
            async with connect(self.url("tls"), self.options) as client:
                return await client.kv.get(*REPLAYED) is not None

        return run_async(look())


@contextmanager
def site(name: str) -> Iterator[Site]:
    """Start and prepare a site; end and remove it in any case."""
    with ExitStack() as stack:
        directory = Path(tempfile.mkdtemp(prefix="metad-perf-", dir=disk_directory()))
        stack.callback(shutil.rmtree, directory, ignore_errors=True)
        if name == THREE:
            storage = directory / "storage.toml"
            storage.write_text(_STORAGE)
            members = stack.enter_context(
                temporary_members(
                    3, groups="data=1,offset=1", config=storage, namespaces=False, disks=False, scheme="metads"
                )
            )
            assert members.certs is not None
            made = Site(name, members.all, client_files(str(members.certs), "perf"))
        else:
            command = stack.enter_context(_poor(directory)) if name == POOR else metad_serve()
            config = _written(directory, tokens=name == TOKENS)
            member = Member(_NODE, directory, command, config, "127.0.0.1:0", None)
            stack.callback(member.kill)
            made = Site(name, [member], client("perf"))
        for one in made._members:
            one.launch()
        for one in made._members:
            one.wait_ready(START_S)
        made.prepare()
        yield made


@contextmanager
def _poor(directory: Path) -> Iterator[list[str]]:
    """The command of a node that may open few files, and whose log goes into a pipe that is full and that nobody
    reads."""
    pipe = directory / "log"
    os.mkfifo(pipe)
    end = os.open(pipe, os.O_RDWR | os.O_NONBLOCK)
    try:
        with suppress(BlockingIOError):
            while True:
                os.write(end, b"." * 4096)
        with suppress(BlockingIOError):
            while True:
                os.write(end, b".")
        yield ["sh", "-c", f'ulimit -n {_FILES} && exec "$@" 2>"{pipe}"', "sh", *metad_serve()]
    finally:
        os.close(end)


def _written(directory: Path, *, tokens: bool) -> Path:
    """Write the configuration of a single node: default limits, except for connections if it accepts tokens."""
    files = node(_NODE)
    security = security_of(files)
    limits: list[str] = []
    if tokens:
        path = directory / "tokens"
        path.write_text(line_of(new_token("somebody")) + "\n")
        path.chmod(0o600)
        security["tokens_file"] = str(path)
        limits = ["[limits]", f"connections_max = {CONNECTIONS_MAX}"]
    lines = [f'node_id = "{_NODE}"', 'quic = "127.0.0.1:0"', *limits]
    lines += ["[security]", *(f'{field} = "{value}"' for field, value in security.items())]
    config = directory / "metad.toml"
    config.write_text("\n".join(lines) + _GROUPS + _STORAGE)
    return config
