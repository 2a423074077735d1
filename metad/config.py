"""Configuration: frozen, keyword-only, every field documented here and nowhere else.

``metad config`` prints the reference made from these docstrings. A file is TOML with one table per Struct field of
:class:`Config`; an unknown key is an error. Sizes are in bytes, times in milliseconds, as the names say.
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
_NUMBER_MAX = 2**48  # a larger number is a mistake, and would break timers or RocksDB


class _Section(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of every configuration table."""


class StorageConfig(_Section, frozen=True):
    """RocksDB and its memory."""

    engine: str = "rocksdb"
    """``rocksdb``, or ``memory`` for tests and embedding, where nothing survives the process."""
    block_cache_bytes: int = 192 * MIB
    """Cache of data blocks, filters and indexes, shared by log and state."""
    memtable_bytes: int = 208 * MIB
    """Budget of all memtables of log and state together. Beyond it they are flushed."""
    owner_cache_bytes: int = 128 * MIB
    """Maximum size of the cache of session owners. One owner takes 8 bytes."""
    row_cache_bytes: int = 96 * MIB
    """Cache of rows that commands read before they write them (key-value records, offsets), shared by the groups of a
    node."""
    log_retained_bytes: int = 64 * MIB
    """After the log has grown by this much, the node flushes the state and truncates the log behind it."""


class GroupsConfig(_Section, frozen=True):
    """Number of groups of each kind when the cluster forms. ``metadctl groups add`` adds more later."""

    offset: int = 2
    """Offset groups: consumer offsets."""
    data: int = 2
    """Data groups: sessions and key-value records."""


class LimitsConfig(_Section, frozen=True):
    """Bounds on what clients may make the server hold. When one is reached, the server answers ``overloaded``, stops
    reading, or closes the connection."""

    connections_max: int = 4_096
    """Connections; further ones are refused. Brokers connect, not devices."""
    connection_window_bytes: int = 32 * MIB
    """Unanswered request bytes of one connection."""
    in_flight_bytes_max: int = 128 * MIB
    """Unanswered request bytes of all connections together, plus the memory of their items."""
    unfinished_bytes_max: int = 24 * MIB
    """Bytes of unfinished request frames on all connections together. Beyond it connections take turns, and the one
    whose turn it is has the link to itself. The default has room for two batches of 10 MB."""
    unsent_bytes_max: int = 24 * MIB
    """Bytes of replies on all connections together that the clients have not read. Beyond it long replies are refused,
    and connections that do not read are closed."""
    frame_bytes_max: int = 16 * MIB
    """Size of one frame."""
    handshake_timeout_ms: int = 5_000
    """A connection whose handshake takes longer is closed."""
    idle_timeout_ms: int = 60_000
    """A connection that has sent nothing for this long is closed. Clients ping three times in it."""
    write_stall_timeout_ms: int = 10_000
    """A connection that does not read its replies for this long is closed."""
    deadline_default_ms: int = 30_000
    """Deadline of a request that gives none."""


class CommitConfig(_Section, frozen=True):
    """How requests become log entries."""

    entry_items_max: int = 256
    """Items of one log entry. The limit is small so that the disk writes one entry while the next is evaluated."""
    entry_bytes_max: int = 1 * MIB
    """Request bytes of one log entry. A single larger request becomes an entry by itself."""
    pipeline_entries_max: int = 8
    """Entries of one group that may be on their way to the disk. Further requests wait and share the next entry."""
    linger_ms: float = 0.0
    """How long the first request of an entry waits for others to share the entry. 0: only while earlier entries are
    being synced."""


class ClusterConfig(_Section, frozen=True):
    """The other nodes. Without ``seeds`` and ``join`` this node is a cluster of its own."""

    seeds: dict[str, str] = {}
    """The founding nodes, this one included: node id = HOST:PORT of its listener for nodes. Must be the same on all of
    them. A founding node forms the cluster with them, and later dials them first."""
    seed_regions: dict[str, str] = {}
    """The region of each founding node: node id = region. Must be the same on all of them, and equal to ``region`` if
    that is set. It lets the new cluster spread replicas over regions from the start."""
    join: list[str] = []
    """HOST:PORT of the listeners for nodes of an existing cluster, which this node joins. One live node is enough."""
    listen: str = "127.0.0.1:0"
    """HOST:PORT for other nodes, used with ``join``. A founding node listens on its own address in ``seeds`` instead.
    With certificates and a region, the port serves both TCP and QUIC."""
    advertise: str = ""
    """HOST:PORT at which other nodes reach this one, if it differs from the address it listens on."""
    advertise_clients: str = ""
    """HOST:PORT at which clients reach this node over TCP, if it differs from ``listen``."""
    advertise_quic: str = ""
    """HOST:PORT at which clients reach this node over QUIC, if it differs from ``quic``."""
    region: str = ""
    """Region of this node, if ``seed_regions`` does not give it. Replicas of a group are spread over regions first,
    over machines second. Nodes with certificates use QUIC to nodes of other regions, and TCP to nodes of their own
    region."""
    replicas: int = 3
    """Voters of a new group, if there are as many nodes."""


class SecurityConfig(_Section, frozen=True):
    """Encryption and access. With certificates every connection is encrypted, and a client shows a certificate or a
    token. The files may be replaced while the node runs; later handshakes use the new ones."""

    certificate: str = ""
    """PEM file: this node's certificate, followed by intermediate ones. ``metadctl certs`` issues those of a fleet."""
    key: str = ""
    """PEM file: the key of ``certificate``."""
    ca: str = ""
    """PEM file: the trusted authority, or several, for the certificates of clients and nodes. It should sign for
    nothing else."""
    require_client_certificate: bool = False
    """Clients need a certificate even if they have a token."""
    tokens_file: str = ""
    """File with the hashes of the tokens that clients may show instead of a certificate. ``metadctl token`` writes it.
    """
    administrators: list[str] = []
    """Names of clients, by certificate or token, that may change the cluster (join, leave, transfer, groups). Holders
    of an administrator's certificate (``metadctl certs --admins``) need not be listed."""
    plaintext: bool = False
    """Without certificates a node listens on loopback addresses only. True: it listens on others too, and anybody on
    the network path can read and change its data."""

    @property
    def encrypted(self) -> bool:
        """Whether certificates are configured."""
        return bool(self.certificate)


class RaftConfig(_Section, frozen=True):
    """Consensus. Nodes may have different values; the node with the longest timeouts decides how soon a lost leader is
    replaced."""

    election_timeout_ms: int = 600
    """A follower that hears nothing from a leader for one to two of these starts an election."""
    heartbeat_ms: int = 100
    """Interval of a leader's heartbeats; at most a third of the election timeout."""
    sleep_after_ms: int = 1_000
    """A group without work for this long stops its heartbeats. It then elects only if a node is lost."""
    log_cache_bytes: int = 8 * MIB
    """Newest entries of a group that are kept in memory and in the log, so that a replica that lags needs no snapshot.
    """


class DedupeConfig(_Section, frozen=True):
    """Memory of request identities, which makes a retried write happen once. The bounds are per group."""

    identities_max: int = 65_536
    """Unconfirmed identities that are remembered. Beyond it the client with the most of them loses its oldest; retries
    of those writes are refused."""
    reply_bytes_max: int = 16 * MIB
    """Bytes of remembered replies."""


class Config(_Section, frozen=True):
    """``metad serve --config FILE`` reads a TOML file with these keys. Command-line flags win over the file. An unknown
    key is an error. Sizes are in bytes, times in milliseconds."""

    listen: str = "127.0.0.1:7420"
    """HOST:PORT for clients over TCP, with TLS if ``[security]`` names certificates."""
    quic: str = ""
    """HOST:PORT for clients over QUIC, which needs certificates. Empty: no QUIC. May be the same as ``listen``."""
    data_dir: str = ""
    """Directory of log and state. Required unless ``storage.engine`` is ``memory``."""
    node_id: str = "node-1"
    """Name of this node in its cluster."""
    cluster_id: str = ""
    """Name of the cluster. Empty: a new cluster gets a random name, and a node takes over the name of the cluster it
    joins. A data directory remembers its cluster, and nodes of another cluster are refused."""
    fsync: bool = True
    """False acknowledges writes before they are on disk: only to measure the cost of durability."""
    drain_timeout_ms: int = 10_000
    """On SIGTERM, the time limit for handing over the groups that the node leads and for answering requests already
    received."""
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
                if not value <= _NUMBER_MAX:  # written so that it catches nan
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
                ("security.tokens_file", security.tokens_file),  # a token sent in clear text is no secret
            ):
                if wanted:
                    raise ConfigError(f"{where}: needs security.certificate, security.key and security.ca")
        elif security.plaintext:
            raise ConfigError("security.plaintext: cannot be set together with certificates")
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
        """The region of this node, from ``region`` or ``seed_regions``."""
        cluster = self.cluster
        named = {f"cluster.seed_regions.{node}": region for node, region in cluster.seed_regions.items()}
        for where, region in (named | {"cluster.region": cluster.region} if cluster.region else named).items():
            if not is_region(region):
                raise ConfigError(f"{where}: {region!r} is not a valid region name")
        for node in cluster.seed_regions:
            if node not in cluster.seeds:
                raise ConfigError(f"cluster.seed_regions: {node!r} is not among cluster.seeds")
        mine = cluster.seed_regions.get(self.node_id, cluster.region)
        if cluster.region not in ("", mine):
            raise ConfigError(f"cluster.region: cluster.seed_regions says {mine!r}")
        return mine

    def _check_advertised(self) -> None:
        """A node of a cluster that listens on every address must name the one at which others reach it."""
        cluster = self.cluster
        if not cluster.seeds and not cluster.join:
            return
        for field, listens, advertised in (
            ("advertise", cluster.seeds.get(self.node_id, cluster.listen), cluster.advertise),
            ("advertise_clients", self.listen, cluster.advertise_clients),
            ("advertise_quic", self.quic, cluster.advertise_quic),
        ):
            if listens.rpartition(":")[0] in ("0.0.0.0", "[::]", "::") and not advertised:
                raise ConfigError(f"cluster.{field}: {listens} is every address; name one that others reach")


def is_region(name: str) -> bool:
    """Whether this is a valid name of a region."""
    return 1 <= len(name.encode()) <= REGION_BYTES_MAX and name.isprintable() and name == name.strip()


def _section_name(section: _Section) -> str:
    return type(section).__name__.removesuffix("Config").lower()


def load_config(path: Path | None, overrides: dict[str, Any]) -> Config:
    """Read TOML (None: defaults), apply the overrides (of a table: only the given keys), validate. Raises
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
    """The text of a file that :func:`load_config` reads back as this configuration."""
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
