"""The targets: a node that requires certificates, one that accepts tokens as well, three nodes, some that check roles,
or one that may open few files. Blocking.

The certificates of one fleet are made once per process: a node's, a client's, and every wrong kind.
"""

from __future__ import annotations

import asyncio
import atexit
import datetime
import functools
import importlib.util
import json
import os
import secrets
import shutil
import tempfile
import time
from base64 import urlsafe_b64encode
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from metad_client import Client, Options, connect
from metad_wire import messages as m
from metad_wire.errors import MetadError
from metad_wire.families.core import TOPICS, Topic
from metad_wire.operator.authority import Authority, Issued, issue_fleet
from metad_wire.operator.tokens import line_of, new_token
from metad_wire.program.running import run_async
from metad_wire.tables.inflight import Inflight
from metad_wire.tables.lease import LeaseGrantItem
from metad_wire.tables.retained import RetainedPutItem
from metad_wire.tables.subscription import Subscription
from metad_wire.transport.credentials import Principal, Role, TlsFiles, client_files

from ..errors import ServerError
from ..faults.members import START_S, Member, temporary_members
from ..load.workload import kv_keys
from ..spawn import disk_directory, metad_serve, security_of
from .kinds import ALONE, POOR, SMALL, TENANTS, THREE, TOKENS
from .peer import CROWD, CROWD_BROKER, LARGE_BYTES, LARGE_KEYS, Target
from .quic import REPLAYED
from .tenants import DUE, HONEST, MALLORY, ROLES
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


Result = TypeVar("Result")
_NODE = "node-1"
_ROOM_BYTES = 96 * 1024 * 1024  # that a small disk has above its low-water mark
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
        self.options = self._admin = Options(tls=good, deadline_s=_STATUS_S)

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

    def harm(self) -> str:
        """What of an honest tenant is not as it was; empty: nothing, or there is no such tenant."""
        return ""

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
            async with connect(self.url("tls"), self._admin) as client:
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


# --- an honest tenant beside an insider ------------------------------------------------------------------------------

KEYS: Final = 10_000
"""Of the good client: they are there before anything is attacked, so that a disk that is short has room for them."""
_SOME: Final = 20
_LEASE_S: Final = 3_600.0
_KNOWN_LOOKS: Final = 1_000


class Doors:
    """What nodes know tokens by, and what of it everybody has."""

    def __init__(self, directory: Path) -> None:
        self.token = new_token(MALLORY)
        key = ec.generate_private_key(ec.SECP256R1()).public_key()
        self.public_key = key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
        self._directory, self._numbers = directory, key.public_numbers()

    def security(self) -> dict[str, str]:
        """The settings of nodes, as TOML. Makes the files that they name."""
        known = self._directory / "tokens"
        known.write_text(f"{line_of(self.token)}\n{line_of(new_token(HONEST))}\n")
        known.chmod(0o600)
        found = {"authorization": "true", "administrators": '["perf"]', "tokens_file": f'"{known}"'}
        if importlib.util.find_spec("jwt") is None:  # without it a JWT is a wrong token
            return found
        x, y = (
            urlsafe_b64encode(number.to_bytes(32, "big")).rstrip(b"=").decode()
            for number in (self._numbers.x, self._numbers.y)
        )
        keys = self._directory / "keys.json"
        keys.write_text(json.dumps({"keys": [{"kty": "EC", "crv": "P-256", "x": x, "y": y, "kid": "a"}]}))
        return found | {"jwt_keys_file": f'"{keys}"', "jwt_issuer": '"metad-perf"', "jwt_audience": '"metad"'}


class HonestTenant:
    """What it has. ``doors``: of the nodes."""

    def __init__(self, doors: Doors) -> None:
        self.secret = secrets.token_hex(16)
        self.doors = doors
        self._before: Mapping[str, Any] = {}
        self._administered: set[str] = set()

    async def admit(self, admin: Client, nodes: Sequence[str]) -> None:
        """Give both tenants their roles. Raises ServerError if nodes do not hear of them."""
        for role, grants, given in ROLES:
            await admin.roles.put(role, grants)
            await admin.principals.put(f"metad://client/{role}", given)
        for node in nodes:
            for _ in range(_KNOWN_LOOKS):
                if (await admin.principals.may(principal=f"metad://client/{MALLORY}", node=node)).roles:
                    break
                await asyncio.sleep(0.01)
            else:
                raise ServerError(f"{node} does not hear of roles")

    async def settle(self, own: Client, admin: Client) -> None:
        """Write all records, and remember them."""
        secret, many, broker = self.secret.encode(), range(_SOME), f"{HONEST}-broker"
        life = await own.brokers.register(broker, lease_s=_LEASE_S, attributes={"a": self.secret})
        at = broker, life.epoch
        sessions = [m.SessionTakeoverItem(HONEST, f"c{n}", False, m.SessionProperties(86_400, secret)) for n in many]
        will = m.SessionProperties(86_400, b"", m.Will(f"t/{self.secret}", secret))
        due = [f"w{n}" for n in range(DUE)]
        (await own.sessions.takeover_many(*at, sessions)).raise_for_error()
        (await own.subscriptions.add_many(*at, [Subscription(HONEST, "c0", f"f/{self.secret}")])).raise_for_error()
        (await own.inflight.put_many(*at, [Inflight(HONEST, "c0", "i", secret)])).raise_for_error()
        (await own.kv.put_many([m.KvPutItem(HONEST, f"k{n}", secret) for n in many])).raise_for_error()
        (await own.kv.put_many([m.KvPutItem(HONEST, "spare", secret)])).raise_for_error()
        (await own.retained.put_many([RetainedPutItem(HONEST, f"t{n}", secret) for n in many])).raise_for_error()
        commit = m.OffsetCommitItem(HONEST, "g", "t", 0, 7, metadata=self.secret)
        (await own.offsets.commit_many([commit])).raise_for_error()
        lease = LeaseGrantItem(HONEST, int(_LEASE_S * 1_000), "l", self.secret, secret)
        (await own.leases.grant_many([lease])).raise_for_error()
        await own.sequences.add(HONEST, "s", 5)
        await own.table(TOPICS).put_many([Topic(HONEST, "t", attributes={"a": self.secret})])
        for begin in range(0, DUE, _BATCH):
            some = due[begin : begin + _BATCH]
            items = [m.SessionTakeoverItem(HONEST, name, False, will) for name in some]
            (await own.sessions.takeover_many(*at, items)).raise_for_error()
            gone = [m.SessionDisconnectItem(HONEST, name) for name in some]
            (await own.sessions.disconnect_many(*at, gone)).raise_for_error()
        places = kv_keys(KEYS)
        for begin in range(0, KEYS, _BATCH):
            puts = [m.KvPutItem(*place, bytes(200)) for place in places[begin : begin + _BATCH]]
            (await own.kv.put_many(puts)).raise_for_error()
        self._before = await self._records(own, admin)
        self._administered = await _administered(admin)

    async def _records(self, own: Client, admin: Client) -> Mapping[str, Any]:
        broker = await admin.brokers.get(f"{HONEST}-broker")
        lease = await own.leases.get(HONEST, "l")
        return {
            "broker": broker and (broker.broker_epoch, broker.least_epoch, broker.attributes),
            "sessions": [one async for one in own.sessions.list(HONEST, "c")],
            "subscriptions": await own.subscriptions.get(HONEST, "c0"),
            "in flight": await own.inflight.get(HONEST, "c0"),
            "key-values": [one async for one in own.kv.scan(HONEST, "k")],
            "retained": [one async for one in own.retained.match(HONEST, "#")],
            "offsets": [one async for one in own.offsets.list(HONEST, "g")],
            "lease": lease and (lease.lease, lease.create_revision, lease.attributes),
            "sequences": [one async for one in own.sequences.list(HONEST)],
            "topics": [one async for one in own.table(TOPICS).list(HONEST)],
            "wills": [(one.client_id, one.id, one.claimant) async for one in own.wills.list(HONEST)],
            "roles": [one async for one in admin.roles.list()],
            "bindings": [one async for one in admin.principals.list()],
            "orders to end it": [*await own.sessions.endings(HONEST), *await admin.tenants.endings(HONEST)],
        }

    async def harm(self, own: Client, admin: Client) -> str:
        """What is not as it was; empty: nothing."""
        now, after = await self._records(own, admin), await _administered(admin)
        changed = [name for name, found in now.items() if found != self._before[name]]
        if not self._administered <= after:
            changed.append("lines of administrators")
        return f"not as before: {', '.join(changed)}" if changed else ""


async def _administered(admin: Client) -> set[str]:
    return {line.id async for line in admin.audit.list(kind="admin")}


class TenantsSite(Site):
    """Nodes that check roles, with an honest tenant and an attacker that has another. ``certs``: the directory of the
    nodes' certificates."""

    def __init__(self, name: str, members: list[Member], certs: Path, doors: Doors) -> None:
        super().__init__(name, members, client(HONEST, certs))
        self._certs, self._tenant = certs, HonestTenant(doors)
        self._admin = Options(tls=client_files(str(certs), "perf"), deadline_s=_STATUS_S)

    def target(self, transport: str) -> Target:
        """The target for the attacker."""
        mallory = client(MALLORY, self._certs)
        return msgspec.structs.replace(
            super().target(transport),
            good=mallory,
            other=self._good,
            none=TlsFiles(ca=mallory.ca),
            secret=self._tenant.secret,
            token=self._tenant.doors.token,
            public_key=self._tenant.doors.public_key,
        )

    def harm(self) -> str:
        return run_async(self._with_clients(self._tenant.harm))

    async def _prepare(self) -> None:
        async with connect(self.url("tls"), self._admin) as admin:
            await self._tenant.admit(admin, [member.name for member in self._members])
        await self._with_clients(self._tenant.settle)

    async def _with_clients(self, call: Callable[[Client, Client], Awaitable[Result]]) -> Result:
        url = self.url("tls")
        async with connect(url, self.options) as own, connect(url, self._admin) as admin:
            return await call(own, admin)


@contextmanager
def _tenants(directory: Path, name: str) -> Iterator[TenantsSite]:
    """Nodes that check roles, not started: three, or one whose disk has little room."""
    doors = Doors(directory)
    settings = "\n".join(f"{key} = {value}" for key, value in doors.security().items())
    config = directory / "checked.toml"
    config.write_text(f"{_STORAGE}[security]\n{settings}\n")
    is_small = name == SMALL
    count, replicas = (1, 1) if is_small else (3, 0)
    with temporary_members(
        count,
        groups="data=1,offset=1",
        config=config,
        namespaces=False,
        disks=is_small,
        scheme="metads",
        replicas=replicas,
    ) as members:
        assert members.certs is not None
        for one in members.all if is_small else ():
            assert one.disk is not None
            use = os.statvfs(one.disk.directory)
            free, low = use.f_bavail * use.f_frsize, use.f_blocks * use.f_frsize // 10
            with (one.disk.directory / "ballast").open("wb") as ballast:
                os.posix_fallocate(ballast.fileno(), 0, free - low - _ROOM_BYTES)
        yield TenantsSite(name, members.all, members.certs, doors)


@contextmanager
def site(name: str) -> Iterator[Site]:
    """Start and prepare a site; end and remove it in any case."""
    with ExitStack() as stack:
        directory = Path(tempfile.mkdtemp(prefix="metad-perf-", dir=disk_directory()))
        stack.callback(shutil.rmtree, directory, ignore_errors=True)
        made: Site
        if name in (TENANTS, SMALL):
            made = stack.enter_context(_tenants(directory, name))
        elif name == THREE:
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
