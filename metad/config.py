"""Configuration: frozen, keyword-only, every field documented here and nowhere else.

``metad config`` prints the reference made from these docstrings. A file is TOML with one table per Struct field of
:class:`Config`; an unknown key is an error. Sizes are bytes, times milliseconds, as the names say.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
import tomllib
from pathlib import Path
from typing import Any

import msgspec

from .errors import ConfigError

MIB = 1024 * 1024
REGION_BYTES_MAX = 64
_NUMBER_MAX = 2**48  # more is a mistake, and would break what takes it: timers, RocksDB


class _Section(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of every configuration table."""


class StorageConfig(_Section, frozen=True):
    """RocksDB and the memory it may use."""

    engine: str = "rocksdb"
    """``rocksdb``, or ``memory`` for tests and embedding: nothing survives the process."""
    block_cache_bytes: int = 192 * MIB
    """Cache of data blocks, filters and indexes, shared by log and state."""
    memtable_bytes: int = 208 * MIB
    """Budget of all memtables of log and state together; past it they are flushed."""
    owner_cache_bytes: int = 128 * MIB
    """Most that the cache of session owners may grow to. 8 bytes hold one session's owner."""
    row_cache_bytes: int = 96 * MIB
    """Rows that commands read before they write them (key-value records, offsets), shared by the groups of a node."""
    log_retained_bytes: int = 64 * MIB
    """Once the log has grown by this much, the state is flushed and the log behind it truncated."""


class GroupsConfig(_Section, frozen=True):
    """How many groups of each kind a new data directory gets. An existing one keeps what it was made with."""

    offset: int = 2
    """Offset groups: consumer offsets."""
    data: int = 2
    """Data groups: sessions and key-value records."""


class LimitsConfig(_Section, frozen=True):
    """Bounds on what clients may make the server hold. Reaching one answers ``overloaded`` or closes the connection."""

    connections_max: int = 4_096
    """Connections; one more is refused. Brokers connect, not devices."""
    connection_window_bytes: int = 32 * MIB
    """Request bytes one connection may have unanswered."""
    in_flight_bytes_max: int = 128 * MIB
    """Request bytes, and memory of their items, that all connections together may have unanswered."""
    unfinished_bytes_max: int = 24 * MIB
    """Bytes of unfinished request frames on all connections together; past it connections wait for their turn. Room
    for two batches of 10 MB: who goes on has the link to himself."""
    unsent_bytes_max: int = 24 * MIB
    """Bytes of replies that the peers of all connections together have not taken. Past it long replies are refused, and
    connections that do not read are cut off."""
    frame_bytes_max: int = 16 * MIB
    """One frame."""
    handshake_timeout_ms: int = 5_000
    """A connection that has not finished its handshake by then is closed."""
    idle_timeout_ms: int = 60_000
    """A connection that has sent nothing for this long is closed; clients ping three times in it."""
    write_stall_timeout_ms: int = 10_000
    """A connection that does not read its replies for this long is closed."""
    deadline_default_ms: int = 30_000
    """Deadline of a request that names none."""


class CommitConfig(_Section, frozen=True):
    """How requests become log entries."""

    entry_items_max: int = 256
    """Items of one log entry. Small enough that the disk works on one while the next is evaluated."""
    entry_bytes_max: int = 1 * MIB
    """Request bytes that go into one log entry; a larger single request is one entry by itself."""
    pipeline_entries_max: int = 8
    """Entries of one group that may be on their way to the disk; more requests wait and share the next entry."""
    linger_ms: float = 0.0
    """How long the first request of an entry waits for company. 0: only as long as earlier entries are being synced."""


class ClusterConfig(_Section, frozen=True):
    """The other nodes. Without any, this node is a cluster of its own."""

    seeds: dict[str, str] = {}
    """The founding nodes, this one included: node id = HOST:PORT of its peer listener. The same on all of them; it
    counts when the cluster is formed, and names whom to connect to first afterwards."""
    seed_regions: dict[str, str] = {}
    """Founding node id = the region it is in; the same on all of them, and each one's ``region`` too. Known when the
    cluster is formed, so that replicas are spread over regions from the start."""
    join: list[str] = []
    """HOST:PORT of peer listeners of a cluster that exists, to become a member of. Any live one will do."""
    listen: str = "127.0.0.1:0"
    """HOST:PORT for other nodes, where ``seeds`` or ``join`` say that there are any. With certificates and a region it
    is a port of TCP and of QUIC."""
    advertise: str = ""
    """HOST:PORT under which other nodes reach this one, where that is not what it listens on."""
    advertise_clients: str = ""
    """The same for clients over TCP."""
    advertise_quic: str = ""
    """The same for clients over QUIC."""
    region: str = ""
    """Where this node is, where ``seed_regions`` does not say it. Replicas of a group are spread over regions first,
    over machines second. Nodes with certificates speak QUIC to those of another region, and TCP to those of their own.
    """
    replicas: int = 3
    """Voters of a new group, as far as there are nodes."""


class SecurityConfig(_Section, frozen=True):
    """Who gets in. With certificates, every connection is encrypted, and a client shows a certificate or a token. The
    files may be replaced while the node runs: the handshakes that follow use the new ones."""

    certificate: str = ""
    """PEM file: this node's certificate, then intermediate ones. ``metadctl certs`` makes a fleet's."""
    key: str = ""
    """PEM file: its key."""
    ca: str = ""
    """PEM file: the authority (or several) whose certificates are believed, of clients and nodes. It should sign for
    nobody else."""
    require_client_certificate: bool = False
    """Clients need a certificate, whatever token they have."""
    tokens_file: str = ""
    """File with the hashes of the tokens that clients may show instead of a certificate; ``metadctl token`` writes
    it."""
    administrators: list[str] = []
    """Names of clients, by certificate or token, that may change the cluster (join, leave, transfer, groups). Holders
    of an administrator's certificate (``metadctl certs --admins``) may without being named."""
    plaintext: bool = False
    """Without certificates a node listens on loopback addresses only. True: on others too, where everybody on the way
    may read and write what it keeps."""

    @property
    def encrypted(self) -> bool:
        """Whether there are certificates."""
        return bool(self.certificate)


class RaftConfig(_Section, frozen=True):
    """Consensus. Nodes may differ here, but the most patient ones decide how soon a lost leader is replaced."""

    election_timeout_ms: int = 600
    """A follower that hears nothing for one to two of these calls an election."""
    heartbeat_ms: int = 100
    """How often a leader says that it lives; at most a third of the election timeout."""
    sleep_after_ms: int = 1_000
    """A group without work for this long stops its heartbeats, and elects only if a node is lost."""
    log_cache_bytes: int = 8 * MIB
    """Newest entries of a group kept in memory and in the log, so that a replica that lags needs no snapshot."""


class DedupeConfig(_Section, frozen=True):
    """Memory of request identities, which makes a retried write happen once. Per group."""

    identities_max: int = 65_536
    """Unconfirmed identities kept. Past it the client with the most loses its oldest; their retries are refused."""
    reply_bytes_max: int = 16 * MIB
    """Bytes of remembered replies."""


class Config(_Section, frozen=True):
    """Everything. ``metad serve --config FILE`` reads it; command-line flags win over the file."""

    listen: str = "127.0.0.1:7420"
    """HOST:PORT for clients over TCP: with TLS where ``[security]`` names certificates."""
    quic: str = ""
    """HOST:PORT for clients over QUIC, which needs certificates. Empty: none. May be the same as ``listen``."""
    data_dir: str = ""
    """Where log and state live. Required unless ``storage.engine`` is ``memory``."""
    node_id: str = "node-1"
    """Name of this node in its cluster."""
    cluster_id: str = ""
    """Name of the cluster. Empty: it gets a random one when it forms, and a node takes over that of the cluster it
    joins. A data directory remembers the one it belongs to, and nodes of another are refused."""
    fsync: bool = True
    """False acknowledges before the disk has it: only for measuring what durability costs."""
    drain_timeout_ms: int = 10_000
    """On SIGTERM, how long handing over what the node leads and requests already taken may last."""
    log_level: str = "info"
    """debug, info, warning or error. Logs are JSON lines on stderr."""
    storage: StorageConfig = StorageConfig()
    """See below."""
    groups: GroupsConfig = GroupsConfig()
    """See below."""
    cluster: ClusterConfig = ClusterConfig()
    """See below."""
    security: SecurityConfig = SecurityConfig()
    """See below."""
    raft: RaftConfig = RaftConfig()
    """See below."""
    limits: LimitsConfig = LimitsConfig()
    """See below."""
    commit: CommitConfig = CommitConfig()
    """See below."""
    dedupe: DedupeConfig = DedupeConfig()
    """See below."""

    def validated(self) -> Config:
        """This configuration, or :class:`ConfigError` naming the field that is wrong."""
        if self.storage.engine not in ("rocksdb", "memory"):
            raise ConfigError(f"storage.engine: {self.storage.engine!r} is neither 'rocksdb' nor 'memory'")
        if self.storage.engine == "rocksdb" and not self.data_dir:
            raise ConfigError("data_dir: give a directory (--data-dir)")
        if self.log_level not in ("debug", "info", "warning", "error"):
            raise ConfigError(f"log_level: {self.log_level!r} is not one of debug, info, warning, error")
        for section in (self.storage, self.groups, self.cluster, self.raft, self.limits, self.commit, self.dedupe):
            for field in section.__struct_fields__:
                value = getattr(section, field)
                if not isinstance(value, int | float):
                    continue
                if value < (0 if field == "linger_ms" else 1):
                    raise ConfigError(f"{_section_name(section)}.{field}: {value} is too small")
                if not value <= _NUMBER_MAX:  # so put, it catches nan
                    raise ConfigError(f"{_section_name(section)}.{field}: {value} is too large")
        for kind in ("offset", "data"):
            if getattr(self.groups, kind) > 1024:
                raise ConfigError(f"groups.{kind}: at most 1024, the number of slots")
        if not 4 * MIB <= self.limits.frame_bytes_max <= 1024 * MIB:
            raise ConfigError("limits.frame_bytes_max: at least 4 MiB, which holds any page, and at most 1 GiB")
        if self.limits.connection_window_bytes < self.limits.frame_bytes_max:
            raise ConfigError("limits.connection_window_bytes: must hold at least one frame of frame_bytes_max")
        for field in ("in_flight_bytes_max", "unfinished_bytes_max", "unsent_bytes_max"):
            if getattr(self.limits, field) < self.limits.frame_bytes_max:
                raise ConfigError(f"limits.{field}: must hold at least one frame of frame_bytes_max")
        security = self.security
        named = [field for field in ("certificate", "key", "ca") if getattr(security, field)]
        if named and len(named) < 3:
            raise ConfigError("security: certificate, key and ca go together")
        if not named:
            for where, wanted in (
                ("quic", self.quic),
                ("security.require_client_certificate", security.require_client_certificate),
                ("security.administrators", security.administrators),
                ("security.tokens_file", security.tokens_file),  # in clear text a token is soon everybody's
            ):
                if wanted:
                    raise ConfigError(f"{where}: needs security.certificate, security.key and security.ca")
        elif security.plaintext:
            raise ConfigError("security.plaintext: with certificates nothing is in clear text")
        if self.raft.heartbeat_ms * 3 > self.raft.election_timeout_ms:
            raise ConfigError("raft.heartbeat_ms: at most a third of raft.election_timeout_ms")
        self._check_advertised()
        endpoints = {f"cluster.seeds.{node}": endpoint for node, endpoint in self.cluster.seeds.items()}
        endpoints |= {f"cluster.join[{at}]": endpoint for at, endpoint in enumerate(self.cluster.join)}
        for where, endpoint in endpoints.items():
            host, _, port = endpoint.rpartition(":")
            if not host or not port.isdecimal() or not 0 < int(port) < 65_536:
                raise ConfigError(f"{where}: {endpoint!r} is not HOST:PORT")
        if self.cluster.seeds and self.cluster.join:
            raise ConfigError("cluster.join: a founding node (cluster.seeds) does not join")
        if self.cluster.seeds and self.node_id not in self.cluster.seeds:
            raise ConfigError(f"cluster.seeds: this node, {self.node_id!r}, is not among them")
        if not 0 <= self.drain_timeout_ms <= _NUMBER_MAX:
            raise ConfigError("drain_timeout_ms: must not be negative, nor without end")
        if not 1 <= len(self.node_id.encode()) <= 256:
            raise ConfigError("node_id: must take 1 to 256 bytes")
        if len(self.cluster_id.encode()) > 256:
            raise ConfigError("cluster_id: must take at most 256 bytes")
        if not self.node_id.isprintable() or self.node_id != self.node_id.strip():
            raise ConfigError(f"node_id: {self.node_id!r} has characters that cannot be seen")
        region = self._checked_region()
        return msgspec.structs.replace(self, cluster=msgspec.structs.replace(self.cluster, region=region))

    def _checked_region(self) -> str:
        """Where this node is, as itself or its seeds say."""
        cluster = self.cluster
        named = {f"cluster.seed_regions.{node}": region for node, region in cluster.seed_regions.items()}
        for where, region in (named | {"cluster.region": cluster.region} if cluster.region else named).items():
            if not is_region(region):
                raise ConfigError(f"{where}: {region!r} is no name of a region")
        for node in cluster.seed_regions:
            if node not in cluster.seeds:
                raise ConfigError(f"cluster.seed_regions: {node!r} is not among cluster.seeds")
        mine = cluster.seed_regions.get(self.node_id, cluster.region)
        if cluster.region not in ("", mine):
            raise ConfigError(f"cluster.region: cluster.seed_regions says {mine!r}")
        return mine

    def _check_advertised(self) -> None:
        """A node of a cluster that listens on every address has to say which one it is reached by."""
        cluster = self.cluster
        if not cluster.seeds and not cluster.join:
            return
        for field, listens, advertised in (
            ("advertise", cluster.seeds.get(self.node_id, cluster.listen), cluster.advertise),
            ("advertise_clients", self.listen, cluster.advertise_clients),
            ("advertise_quic", self.quic, cluster.advertise_quic),
        ):
            if listens.rpartition(":")[0] in ("0.0.0.0", "[::]", "::") and not advertised:
                raise ConfigError(f"cluster.{field}: {listens} is every address; say by which this node is reached")


def is_region(name: str) -> bool:
    """Whether a region may be called so."""
    return 1 <= len(name.encode()) <= REGION_BYTES_MAX and name.isprintable() and name == name.strip()


def _section_name(section: _Section) -> str:
    return type(section).__name__.removesuffix("Config").lower()


def load_config(path: Path | None, overrides: dict[str, Any]) -> Config:
    """Read TOML (None: defaults), put overrides on top (of a table: those of its keys that are given), validate. Raises
    :class:`ConfigError`."""
    try:
        raw = tomllib.loads(path.read_text()) if path is not None else {}
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: {error}") from None
    for field, value in overrides.items():
        known = raw.get(field)
        raw[field] = known | value if isinstance(known, dict) and isinstance(value, dict) else value
    try:
        return msgspec.convert(raw, Config).validated()
    except msgspec.ValidationError as error:
        raise ConfigError(f"{path or 'configuration'}: {error}") from None


def to_toml(config: Config) -> str:
    """A file that :func:`load_config` reads back as this configuration."""
    plain: list[str] = []
    tables: list[str] = []
    for field in Config.__struct_fields__:
        value = getattr(config, field)
        if isinstance(value, _Section):
            tables += [f"[{field}]", *(f"{key} = {_toml(getattr(value, key))}" for key in value.__struct_fields__)]
        else:
            plain.append(f"{field} = {_toml(value)}")
    return "\n".join([*plain, *tables, ""])


def _toml(value: Any) -> str:
    """TOML's strings, numbers and lists are JSON's; its tables are not."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_toml(key)} = {_toml(item)}" for key, item in value.items()) + "}"
    return msgspec.json.encode(value).decode()


def reference() -> str:
    """The configuration reference, as Markdown made from the docstrings."""
    lines = ["# Configuration", "", (inspect.getdoc(Config) or "").strip(), ""]
    sections: list[tuple[str, type[_Section]]] = [("Top level", Config), *_sections()]
    for title, section in sections:
        if section is not Config:
            lines += [f"## `[{title}]`", "", (inspect.getdoc(section) or "").strip(), ""]
        lines += ["| key | default | what it does |", "| --- | --- | --- |"]
        for field, text in _field_docs(section).items():
            default = getattr(section(), field)
            if not isinstance(default, _Section):
                shown = msgspec.json.encode(default).decode()
                lines.append(f"| `{field}` | `{shown}` | {text} |")
        lines.append("")
    return "\n".join(lines)


def _sections() -> list[tuple[str, type[_Section]]]:
    defaults = Config()
    return [
        (field, type(value))
        for field in Config.__struct_fields__
        if isinstance(value := getattr(defaults, field), _Section)
    ]


def _field_docs(section: type[_Section]) -> dict[str, str]:
    """Field name -> the string literal behind it in the class body."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(section))).body[0]
    assert isinstance(tree, ast.ClassDef)
    docs: dict[str, str] = {}
    field = ""
    for node in tree.body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            field = node.target.id
        elif field and isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            docs[field] = " ".join(str(node.value.value).split())
            field = ""
    return docs
