"""The settings of a node: frozen, keyword-only, every field documented here and nowhere else.

Sizes are bytes, times milliseconds, as the names say. One that is :class:`Live` may be set while the node runs
(``metadctl settings``); to change any other the node has to be started again.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final, NamedTuple, get_args, get_origin, get_type_hints

import msgspec

MIB = 1024 * 1024
_BYTES_MOST = 2**48  # as of all numbers: see checks
_DAY_MS = 86_400_000


class Live(NamedTuple):
    """Marks a setting that may change while the node runs, with its bounds, which hold in a file, too."""

    least: float = 0
    most: float = 0
    """0, as ``least``: it is no number."""
    alike: bool = False
    """All nodes should have the same: clients, or the cluster, notice which node they are at."""


class Section(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of every configuration table."""


class StorageConfig(Section, frozen=True):
    """RocksDB and its memory."""

    engine: str = "rocksdb"
    """``rocksdb``, or ``memory`` for tests and embedding, where nothing survives the process."""
    block_cache_bytes: int = 192 * MIB
    """Cache of data blocks, filters and indexes, shared by log and state."""
    memtable_bytes: int = 272 * MIB
    """Budget of all memtables of log and state together. Beyond it they are flushed."""
    open_files: int = 512
    """Table files that log and state keep open, each. Fewer if the process may not open so many files."""
    owner_cache_bytes: int = 128 * MIB
    """Maximum size of the cache of session owners. The smaller table from which it has grown stays beside it: 8 MiB
    with the default. One owner takes 8 bytes. A node keeps those of the groups that it leads."""
    row_cache_bytes: int = 96 * MIB
    """Cache of rows that commands read before they write them (key-value records, offsets), shared by the groups of a
    node."""
    log_retained_bytes: Annotated[int, Live(1, _BYTES_MOST)] = 96 * MIB
    """After the log has grown by this much, the node flushes the state and truncates the log behind it."""
    watch_retained_bytes: Annotated[int, Live(1, _BYTES_MOST)] = 256 * MIB
    """Bytes of a group's log that are kept for open watches that are behind. Beyond it the log is truncated all the
    same, and such a watch goes on from a snapshot."""
    low_room_bytes: Annotated[int, Live(1, _BYTES_MOST)] = 512 * MIB
    """The low-water mark of the disk of ``data_dir``: with less room, what takes more is refused (``no_room``), while
    deletes, reads and whatever ends by itself go on. A tenth of the disk, if that is less; ``low_room_share`` may make
    it more. Once the disk has less room than 16 times as much, the node keeps a file ``reserve`` beside its data, of a
    quarter of the mark and as much as a start has to write again of the log. A start that finds no room deletes it."""
    low_room_share: Annotated[float, Live(0, 0.5)] = 0.0
    """The mark as a share of the disk: 0.05 is one byte in twenty, and 0.5 the most. The greater of the two marks
    counts. 0: only ``low_room_bytes``."""
    watch_retained_ms: Annotated[int, Live(1, 30 * _DAY_MS)] = 600_000
    """For how long the log is kept for a watch that is behind."""
    compare_every_ms: Annotated[int, Live(1, _DAY_MS)] = 1_000
    """How often a node compares a part, of 2,048 rows, of a group that it leads with what the other replicas have."""


class GroupsConfig(Section, frozen=True):
    """Number of groups of each kind when the cluster forms. ``metadctl groups add`` adds more later."""

    metadata: int = 1
    """Metadata groups: what brokers agree on in tables of kind ``metadata``. The first one also keeps the cluster map,
    the registry of brokers and the declarations of tables."""
    offset: int = 2
    """Offset groups: consumer offsets."""
    data: int = 2
    """Data groups: sessions and key-value records."""


class LimitsConfig(Section, frozen=True):
    """Bounds on what clients may make the server hold. When one is reached, the server answers ``overloaded``, stops
    reading, or closes the connection."""

    connections_max: int = 4_096
    """Connections; further ones are refused. Brokers connect, not devices. Fewer if the process may not open so many
    files: half as many again are for those that have not greeted yet, and storage and other nodes come first."""
    accepts_per_s: int = 1_000
    """Connections of clients that are taken per second, and a quarter of as many at once on top, because a handshake
    costs milliseconds. Further ones wait: over TCP in the kernel's queue, over QUIC with a Retry."""
    connection_window_bytes: int = 32 * MIB
    """Unanswered request bytes of one connection."""
    in_flight_bytes_max: Annotated[int, Live(4 * MIB, _BYTES_MOST)] = 128 * MIB
    """Unanswered request bytes of all connections together, plus what the requests and their items take in memory."""
    unfinished_bytes_max: Annotated[int, Live(4 * MIB, _BYTES_MOST)] = 24 * MIB
    """Bytes of unfinished request frames on all connections together. Beyond it connections take turns, and the one
    whose turn it is has the link to itself. While others wait, a connection that sends less than 16 KiB in a
    tenth of a second of its turn, or needs more than five seconds for a frame, is closed (``overloaded``). The default
    has room for two batches of 10 MB."""
    unbegun_bytes_max: Annotated[int, Live(4 * MIB, _BYTES_MOST)] = 24 * MIB
    """Bytes of requests on all connections together that have come and are not begun, because others have their turn.
    Holders share it, and the connections of each. What does not fit is turned away (``overloaded``)."""
    unsent_bytes_max: Annotated[int, Live(4 * MIB, _BYTES_MOST)] = 24 * MIB
    """Bytes of replies on all connections together that the clients have not read. Beyond it long replies are refused,
    and connections that do not read are closed."""
    frame_bytes_max: int = 16 * MIB
    """Size of one frame."""
    handshake_timeout_ms: Annotated[int, Live(1, _DAY_MS)] = 5_000
    """A connection whose handshake takes longer is closed."""
    idle_timeout_ms: int = 60_000
    """A connection that has sent nothing for this long is closed. Clients ping three times in it."""
    write_stall_timeout_ms: Annotated[int, Live(1, _DAY_MS)] = 10_000
    """A connection that does not read its replies for this long is closed."""
    slow_ms: Annotated[int, Live(0, _DAY_MS)] = 1_000
    """A request of a client that takes longer is slow: the log says so, once a minute for each method, and ``metadctl
    slow`` shows what it waited for. 0: none is."""
    watch_streams_max: Annotated[int, Live(1, 10_000_000)] = 20_000
    """Streams of watches on this node. A watch has one for each group of its tables' kinds."""
    connection_watch_streams_max: Annotated[int, Live(1, 10_000_000)] = 4_096
    """Streams of watches on one connection."""
    watch_held_bytes_max: Annotated[int, Live(1, _BYTES_MOST)] = 16 * MIB
    """Bytes of changes that are ready for all watches together and not sent yet. A watch that finds no room reads them
    from the log later."""
    watch_silence_ms: Annotated[int, Live(1, _DAY_MS)] = 10_000
    """A replica that has not heard its leader for this long although it should have ends its watches, so that they go
    on elsewhere."""
    returning_per_s: Annotated[int, Live(0, 100_000_000)] = 0
    """How many items per second may come back to this node at most, of requests that it has turned away because it was
    busy. 0: as many as it answers when it is busy, which it measures."""
    queue_ms: Annotated[int, Live(1, _DAY_MS, alike=True)] = 10_000
    """How long a request may wait in front of its group, by the rate at which the group was served lately. One that
    would wait longer, or longer than its own deadline, is turned away at once. So is one that could not begin for this
    time, or for half of its deadline. Fences, changes of the cluster and
    keep-alives go before records, and each tenant has its share, so neither waits for a storm of others."""
    deadline_default_ms: Annotated[int, Live(1, _DAY_MS, alike=True)] = 30_000
    """Deadline of a request that gives none."""


class CommitConfig(Section, frozen=True):
    """How requests become log entries."""

    entry_items_max: int = 1_000
    """Items of one log entry. Each entry costs every replica some work, whatever is in it; but the loop does nothing
    else while it evaluates one, some microseconds an item."""
    entry_bytes_max: int = 1 * MIB
    """Request bytes of one log entry. A single larger request becomes an entry by itself."""
    pipeline_entries_max: int = 8
    """Entries of one group that may be on their way to the disk. Further requests wait and share the next entry."""
    linger_ms: float = 0.0
    """How long the first request of an entry waits for others to share the entry. 0: only while earlier entries are
    being synced."""


class ClusterConfig(Section, frozen=True):
    """The other nodes. Without ``seeds`` and ``join`` this node is a cluster of its own."""

    seeds: dict[str, str] = {}
    """The founding nodes, this one included: node id = HOST:PORT of its listener for nodes. Must be the same on all of
    them. A founding node forms the cluster with them, and later dials them first."""
    seed_regions: dict[str, str] = {}
    """The region of each founding node: node id = region. Must be the same on all of them, and equal to ``region`` if
    that is set. It lets the new cluster spread replicas over regions from the start."""
    join: list[str] = []
    """HOST:PORT of the listeners for nodes of an existing cluster, which this node joins. One live node is enough. Or a
    service whose SRV records say where they are: ``_metad-peer._tcp.example.com``, looked up with each attempt."""
    listen: str = ""
    """HOST:PORT that this node binds for other nodes. Empty: its own address in ``seeds``, or with ``join`` a free port
    that only nodes of the same machine reach. With certificates and a region, the port serves both TCP and QUIC."""
    advertise: str = ""
    """HOST:PORT at which other nodes reach this one. Empty: its own address in ``seeds``, or else the address it binds.
    In containers and behind NAT the two differ."""
    advertise_clients: str = ""
    """HOST:PORT at which clients reach this node over TCP, if it differs from ``listen``. Clients are told it by every
    node. It must be set if ``listen`` is every address (``0.0.0.0``)."""
    advertise_quic: str = ""
    """HOST:PORT at which clients reach this node over QUIC, if it differs from ``quic``."""
    region: str = ""
    """Region of this node, if ``seed_regions`` does not give it. Replicas of a group are spread over regions first,
    over machines second. Nodes with certificates use QUIC to nodes of other regions, and TCP to nodes of their own
    region."""
    replicas: int = 3
    """Voters that every group should have, if there are as many machines. Counts when the cluster forms, and is part of
    the cluster map from then on: ``metadctl groups rebalance --replicas N`` changes it there."""
    features_after_ms: Annotated[int, Live(1, 365 * _DAY_MS, alike=True)] = 3_600_000
    """After an upgrade: for how long all nodes must know a new feature, and be connected, before it is switched on for
    ever. Until then nodes may go back to the version before. ``metadctl features hold`` and ``allow`` change that."""


class SecurityConfig(Section, frozen=True):
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
    jwt_keys_file: str = ""
    """File with the public keys of the JWTs that clients may show as tokens, which needs the extra ``jwt``: a JWKS, or
    one key in PEM. A JWT needs ``exp``, and makes its holder a client."""
    jwt_issuer: str = ""
    """What a JWT must have as ``iss``. Empty: it is not looked at."""
    jwt_audience: str = ""
    """What a JWT must have as, or among, its ``aud``. Empty: a JWT that has ``aud`` is refused."""
    jwt_principal_claim: str = "sub"
    """The claim of a JWT that names its holder."""
    administrators: list[str] = []
    """Names of clients, by certificate or token, that may change the cluster (join, leave, transfer, groups). Holders
    of an administrator's certificate (``metadctl certs --admins``) need not be listed."""
    authorization: bool = False
    """Who may do what is checked: who is no administrator may do what its roles say (``metadctl auth``), and nothing
    else. It needs certificates. All nodes of a cluster should agree."""
    plaintext: bool = False
    """Without certificates a node listens on loopback addresses only. True: it listens on others too, and anybody on
    the network path can read and change its data."""

    @property
    def encrypted(self) -> bool:
        """Whether certificates are configured."""
        return bool(self.certificate)


class RaftConfig(Section, frozen=True):
    """Consensus. Nodes may have different values; the node with the longest timeouts decides how soon a lost leader is
    replaced."""

    election_timeout_ms: int = 600
    """A follower that hears nothing from a leader for one to two of these starts an election. It waits for less if it
    has evidence that the leader is dead."""
    heartbeat_ms: int = 100
    """Interval of a leader's heartbeats; at most a third of the election timeout."""
    lease_ms: int = 0
    """How long after it heard the leader a follower votes for nobody else, whatever the evidence: a leader that was
    killed is replaced soon after that. Reads without a round trip rely on it, so it is to be longer than a heartbeat
    takes; it is at most the election timeout. 0: two heartbeats."""
    step_down_ms: int = 0
    """A leader that hears from no quorum for this long leads no longer, at least `lease_ms` and at most two election
    timeouts. Nodes that refuse to be dialled are waited for no longer than `lease_ms`. 0: the election timeout."""
    sleep_after_ms: int = 1_000
    """A group without work for this long stops its heartbeats. It then elects only if a node is lost."""
    log_cache_bytes: int = 8 * MIB
    """Newest entries of a group that are kept in memory and in the log, so that a replica that lags needs no snapshot.
    """

    @property
    def promised_ms(self) -> int:
        """The promise that a leader counts on."""
        return self.lease_ms or 2 * self.heartbeat_ms

    @property
    def patience_ms(self) -> int:
        """For how long a leader that hears from no quorum leads on."""
        return self.step_down_ms or self.election_timeout_ms


class DedupeConfig(Section, frozen=True):
    """Memory of request identities, which makes a retried write happen once. The bounds are per group."""

    identities_max: int = 65_536
    """Unconfirmed identities that are remembered. Beyond it the client with the most of them loses its oldest; retries
    of those writes are refused."""
    reply_bytes_max: int = 16 * MIB
    """Bytes of remembered replies."""


class ExpiryConfig(Section, frozen=True):
    """When what has a deadline is over: sessions of clients that are away, wills that nobody publishes, and consumer
    groups that nobody uses."""

    amnesty_ms: int = 10_000
    """For how long nothing is over, whatever its deadline, after a node begins to lead a group, takes slots over, finds
    its calendar set, or could not keep up: clients may not have reached it in time."""
    sessions_per_s: Annotated[int, Live(1, 10_000_000)] = 5_000
    """How many sessions this node ends per second at most, in all groups that it leads. It ends fewer while it has
    other work: after each batch it rests for four times as long as the batch took, or for about a second. A group that
    has not kept up for half a minute rests half of that, after a minute a third, and so on."""
    batch_sessions: int = 25
    """How many of them it ends at once; nobody else is served meanwhile, for under a millisecond."""
    will_keep_s: Annotated[int, Live(1, 10 * 365 * 86_400, alike=True)] = 7 * 86_400
    """For how many seconds a will that is due waits for a broker that publishes it. Then it is dropped, and the log
    says so. Long before, a warning in the log says that wills wait."""
    consumer_group_ms: Annotated[int, Live(0, 3_650 * _DAY_MS, alike=True)] = 0
    """For how long a consumer group without members may commit nothing before everything of it is deleted: its offsets,
    and its generation. 0: for ever."""


class Config(Section, frozen=True):
    """``metad serve --config FILE`` reads a TOML file with these keys. Command-line flags and environment variables win
    over the file. An unknown key is an error. Sizes are in bytes, times in milliseconds. ``metad config --sample``
    prints a file to start from, and ``metad config --check FILE`` names each problem of a file by its key."""

    listen: str = "127.0.0.1:7420"
    """HOST:PORT for clients over TCP, with TLS if ``[security]`` names certificates."""
    quic: str = ""
    """HOST:PORT for clients over QUIC, which needs certificates. Empty: no QUIC. May be the same as ``listen``."""
    http: str = ""
    """HOST:PORT for ``/metrics``, ``/livez`` and ``/readyz`` over HTTP. On a loopback address in clear text, for all;
    elsewhere over TLS, for clients with a certificate or a token. unix:PATH is a socket, for whoever may open that
    file. Empty: none. The workers of a node share it."""
    data_dir: str = ""
    """Directory of log and state. Required unless ``storage.engine`` is ``memory``."""
    node_id: str = "node-1"
    """Name of this node in its cluster."""
    cluster_id: str = ""
    """Name of the cluster. Empty: a new cluster gets a random name, and a node takes over the name of the cluster it
    joins. A data directory remembers its cluster, and nodes of another cluster are refused."""
    fsync: bool = True
    """False acknowledges writes before they are on disk: only to measure the cost of durability."""
    drain_timeout_ms: Annotated[int, Live(0, _DAY_MS)] = 10_000
    """On SIGTERM, the time limit for handing over the groups that the node leads and for answering requests already
    received."""
    log_level: Annotated[str, Live()] = "info"
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
    expiry: ExpiryConfig = ExpiryConfig()
    """See below."""


OF_ONE_NODE: Final = (
    frozenset({"listen", "quic", "http", "data_dir", "node_id"})
    | {f"cluster.{field}" for field in ("listen", "advertise", "advertise_clients", "advertise_quic", "region", "join")}
    | {f"security.{field}" for field in ("certificate", "key", "ca", "tokens_file", "jwt_keys_file")}
)
"""Settings in which the nodes of a cluster differ, or where they name files of one machine."""


class Declared(NamedTuple):
    """What there is to know of a setting before it has a value."""

    key: str
    """Its section and its name: ``limits.slow_ms``."""
    type: Any
    default: Any
    live: Live | None
    """None: the node has to be started again."""


def _declared() -> dict[str, Declared]:
    defaults, found = Config(), list[Declared]()
    for name in Config.__struct_fields__:
        section = getattr(defaults, name)
        within = f"{name}." if isinstance(section, Section) else ""
        place = section if within else defaults
        hints = get_type_hints(type(place), include_extras=True)
        for field in section.__struct_fields__ if within else (name,):
            hint = hints[field]
            marks = get_args(hint)[1:] if get_origin(hint) is Annotated else ()
            live = next((mark for mark in marks if isinstance(mark, Live)), None)
            plain = get_args(hint)[0] if marks else hint
            found.append(Declared(f"{within}{field}", plain, getattr(place, field), live))
    return {one.key: one for one in found}


SETTINGS: Final = _declared()
"""All settings, by key, in the order of the reference."""


def value_in(config: Config, key: str) -> Any:
    """What a configuration has for a setting."""
    section, _, field = key.rpartition(".")
    return getattr(getattr(config, section) if section else config, field)


def replaced(config: Config, values: Mapping[str, Any]) -> Config:
    """Return a configuration with these values, by key."""
    for key, value in values.items():
        section, _, field = key.rpartition(".")
        if section:
            made = msgspec.structs.replace(getattr(config, section), **{field: value})
            config = msgspec.structs.replace(config, **{section: made})
        else:
            config = msgspec.structs.replace(config, **{field: value})
    return config
