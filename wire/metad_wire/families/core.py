"""What brokers of any protocol keep: tenants, topics, connectors, who may do what, schemas and settings."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from ..messages import Message
from ..text.fields import U32, U63
from . import family

Some = Annotated[int, Meta(ge=1, le=0xFFFF_FFFF)]
"""A u32 from 1 on."""
Copies = Annotated[int, Meta(ge=1, le=32_767)]
"""How many brokers have the data: an i16 in the protocols that say it."""
Name = Annotated[str, Meta(min_length=1)]


class Tenant(Message, frozen=True):
    """A tenant, and what it may use. Limits are nil where there is none."""

    tenant: str
    about: str = ""
    """For people."""
    connections_max: U63 | None = None
    """Of its clients, at one broker."""
    connects_per_second: U32 | None = None
    """New connections that one broker accepts."""
    sessions_max: U63 | None = None
    """In the whole cluster."""
    topics_max: U63 | None = None
    """In the whole cluster."""
    publishes_per_second: U32 | None = None
    """Messages that one broker accepts."""
    attributes: dict[str, str] = {}  # noqa: RUF012 - msgspec copies it
    """Anything else that its brokers should know."""


class Namespace(Message, frozen=True):
    """A part of a tenant, with what holds for all topics in it that say nothing else."""

    tenant: str
    namespace: str
    """Unique within the tenant."""
    about: str = ""
    """For people."""
    retention_ms: U63 | None = None
    """For how long messages stay that every consumer has read; nil: as the broker is configured."""
    retention_bytes: U63 | None = None
    """How much of these stays, for each partition; nil: as the broker is configured."""
    backlog_bytes: U63 | None = None
    """How much may wait for a consumer, for each topic; nil: any."""
    expiry_ms: U63 | None = None
    """After which a message is not delivered any more; nil: never."""
    regions: list[str] = []  # noqa: RUF012 - msgspec copies it
    """Names of the regions that have its messages; none: where its brokers are."""
    attributes: dict[str, str] = {}  # noqa: RUF012 - msgspec copies it
    """Anything else that its brokers should know."""


class Topic(Message, frozen=True):
    """A topic, with all that brokers agree on before they serve it."""

    tenant: str
    topic: str
    """Unique within the tenant; with its namespace in front, where the protocol has one."""
    partitions: Some = 1
    """How many parts of it are read and written apart from each other."""
    replication: Copies = 1
    """How many brokers have each partition."""
    read_queues: U32 = 0
    """Of each broker, to consume from; 0: the topic has partitions, and no queues."""
    write_queues: U32 = 0
    """Of each broker, to publish to. While a topic shrinks, they are fewer than the others."""
    permission: Annotated[int, Meta(ge=0, le=15)] = 6
    """Sum of 8 (has priority), 4 (may be read), 2 (may be written), 1 (hands its settings down to topics that are made
    from it)."""
    ordered: bool = False
    """Whether a queue stays at its broker, so that the order of its messages is kept while that is away."""
    tags: Literal["single", "multiple"] = "single"
    """How many tags a message may have, by which consumers choose."""
    storage: Literal["memory", "file", "object"] = "file"
    """Where its messages are."""
    cleanup: Literal["delete", "compact", "compact_delete"] = "delete"
    """What becomes of old messages: they go, or the newest of each key stays, or both."""
    retention_ms: U63 | None = None
    """For how long messages stay; nil: as the broker is configured."""
    retention_bytes: U63 | None = None
    """How much of a partition stays; nil: as the broker is configured."""
    topic_id: str = ""
    """A name that no later topic gets, such as a UUID; empty: it has none."""
    attributes: dict[str, str] = {}  # noqa: RUF012 - msgspec copies it
    """Anything else that its brokers should know."""


class Connector(Message, frozen=True):
    """Moves messages between a topic and another system. Its ``config`` has no secrets: it names where they are."""

    tenant: str
    connector: str
    """Unique within the tenant."""
    plugin: Name
    """What moves them: the kind of the other system, or the name of a class."""
    direction: Literal["source", "sink"] = "sink"
    """Whether messages come from the other system or go to it."""
    topic: str = ""
    """Of the tenant; empty: ``config`` says which topics."""
    state: Literal["running", "paused", "stopped"] = "running"
    """What it should do. A stopped one has no tasks."""
    tasks_max: Some = 1
    """How many tasks share the work, at most: so many partitions has the resource of kind ``connector``."""
    failure: Literal["discard", "retry", "dead_letter", "stop"] = "retry"
    """What becomes of a message that the other system refuses, and of its task."""
    retries_max: U32 = 3
    """Of a message, before it is discarded, becomes a dead letter, or stops the task."""
    retry_wait_ms: U63 = 1_000
    """Before each of them."""
    dead_letters: str = ""
    """The topic that has messages which were refused; empty: none."""
    config: dict[str, str] = {}  # noqa: RUF012 - msgspec copies it
    """Of the plugin."""


class ConnectorTask(Message, frozen=True):
    """How one task of a connector fares, as whoever does it writes. Who that is, the ``partition`` of its number says,
    of the resource of kind ``connector`` that has the connector's name."""

    tenant: str
    connector: str
    """Whose task it is."""
    task: U32
    """Counted from 0."""
    state: Literal["running", "paused", "restarting", "failed"] = "running"
    """What it does."""
    leader_epoch: U63 = 0
    """Of the partition, for whoever writes this: with a lower one than is here it has lost the task."""
    changed_at_ms: U63 = 0
    """Unix time of the last change of ``state``."""
    error: Annotated[str, Meta(max_length=4_096)] = ""
    """Why it has failed, for people; empty: it has not."""
    config: dict[str, str] = {}  # noqa: RUF012 - msgspec copies it
    """Of the plugin, for this task."""


class User(Message, frozen=True):
    """A user of a tenant, who proves a password that is stored nowhere: there is only a hash of it."""

    tenant: str
    user: str
    """Unique within the tenant."""
    mechanism: Literal["scram_sha_256", "scram_sha_512", "pbkdf2_sha_256", "pbkdf2_sha_512"]
    """How ``hash`` was made of the password. Of SCRAM it is the StoredKey of RFC 5802."""
    salt: Annotated[bytes, Meta(min_length=8, max_length=64)]
    """Random, of this user only."""
    iterations: Annotated[int, Meta(ge=4_096, le=0x7FFF_FFFF)]
    """Of the derivation: 4096 is the least that SCRAM allows, which is little for other mechanisms."""
    hash: Annotated[bytes, Meta(min_length=32, max_length=64)]
    """32 bytes of SHA-256, 64 of SHA-512."""
    server_key: Annotated[bytes, Meta(max_length=64)] = b""
    """Of SCRAM: with it the broker proves to the client that it knows the user."""
    superuser: bool = False
    """Whether it may do everything in its tenant, whatever the rules say."""
    enabled: bool = True
    """Whether it may connect."""
    attributes: dict[str, str] = {}  # noqa: RUF012 - msgspec copies it
    """Anything else that its brokers should know."""


class Acl(Message, frozen=True):
    """A rule that allows something or denies it. A denial goes before; what no rule allows is up to the broker."""

    tenant: str
    rule: str
    """Unique within the tenant."""
    permission: Literal["allow", "deny"]
    """What it does."""
    principal_kind: Literal["user", "client", "any"] = "user"
    """Whether ``principal`` is the name of a user or of a client."""
    principal: str = ""
    """Whom it is about; empty: everybody of that kind."""
    host: str = ""
    """The client's address, or network as ``10.0.0.0/8``; empty: any."""
    operation: Literal[
        "all",
        "read",
        "write",
        "create",
        "delete",
        "alter",
        "describe",
        "alter_configs",
        "describe_configs",
        "cluster_action",
        "idempotent_write",
        "publish",
        "subscribe",
        "retain",
        "configure",
    ] = "all"
    """What it is about."""
    resource_kind: Literal[
        "any",
        "topic",
        "group",
        "cluster",
        "transactional_id",
        "delegation_token",
        "user",
        "exchange",
        "queue",
        "connector",
        "schema",
    ] = "topic"
    """What ``resource`` is a name of."""
    pattern: Literal["literal", "prefix", "filter", "regex"] = "literal"
    """How ``resource`` is compared with a name: a filter is one of MQTT."""
    resource: str = ""
    """To what it applies; empty: to all of that kind."""
    about: str = ""
    """For people."""


class BlacklistEntry(Message, frozen=True):
    """Keeps a client out."""

    tenant: str
    kind: Literal["user", "user_regex", "client", "client_regex", "address", "network"]
    """What ``entry`` is, and is compared with."""
    entry: str
    """A name, a regular expression, an address, or a network as ``10.0.0.0/8``."""
    ends_at_ms: U63 | None = None
    """Unix time from which it is void; nil: it stays until it is deleted."""
    reason: str = ""
    """For people."""


class Schema(Message, frozen=True):
    """One version of what the messages about a subject look like. It never changes; a newer one has another number."""

    tenant: str
    subject: str
    """Unique within the tenant."""
    schema_version: Some
    """Counted from 1."""
    kind: Literal["avro", "json", "protobuf"]
    """The language of ``text``."""
    text: Annotated[str, Meta(min_length=1)]
    """The schema itself."""
    schema_id: U32 = 0
    """The number that messages carry which follow it; 0: they carry none."""
    references: dict[str, str] = {}  # noqa: RUF012 - msgspec copies it
    """Schemas that ``text`` names: the name there, and subject and version as ``SUBJECT/VERSION``."""
    about: str = ""
    """For people."""


class SchemaBinding(Message, frozen=True):
    """Says which schema the messages of a topic, or of what else has any, follow."""

    tenant: str
    resource: str
    """Name of the topic."""
    subject: str
    """Of the schema."""
    part: Literal["value", "key"] = "value"
    """What of a message follows it."""
    schema_version: Some | None = None
    """Nil: the newest."""
    refuse: bool = True
    """Whether a message that does not follow it is refused; otherwise the broker only reports it."""


class SchemaSubject(Message, frozen=True):
    """What holds for all versions of a subject's schema. Whoever registers one writes it."""

    tenant: str
    subject: str
    """Unique within the tenant."""
    compatibility: Literal[
        "none", "backward", "backward_transitive", "forward", "forward_transitive", "full", "full_transitive"
    ] = "backward"
    """What a new version can do: read what the version before wrote (backward), be read by it (forward), or both
    (full). Transitive: that of all versions before."""
    newest: U32 = 0
    """The highest version that there has been; 0: none yet."""


class DynamicConfig(Message, frozen=True):
    """One setting that brokers take over while they run. It is no place for secrets."""

    scope_kind: Literal["cluster", "region", "broker", "tenant", "namespace", "topic", "group", "client"]
    """For what it holds. The narrower scope goes before."""
    scope: str
    """Its name: of what belongs to a tenant as ``TENANT/NAME``; empty: all of that kind."""
    name: str
    """Of the setting."""
    value: str
    """As the broker writes it."""


class ConfigHistory(Message, frozen=True):
    """The newest values that a setting has had. Whoever sets it with the SDK writes it."""

    scope_kind: Literal["cluster", "region", "broker", "tenant", "namespace", "topic", "group", "client"]
    """As of the setting."""
    scope: str
    """As of the setting."""
    name: str
    """Of the setting."""
    values: list[str | None] = []  # noqa: RUF012 - msgspec copies it
    """The oldest first, the one that holds last; nil: it was not set."""
    changed_at_ms: list[U63] = []  # noqa: RUF012 - msgspec copies it
    """Unix time from which each held, by the clock of whoever set it; 0: nobody knows."""


class UserQuota(Message, frozen=True):
    """How much a user, a client or an address may take of one thing."""

    tenant: str
    entity_kind: Literal["user", "client", "user_client", "address"]
    """Whose quota it is; of ``user_client``: of a user at one client."""
    entity: str
    """The name, as ``USER/CLIENT`` of both; empty: of each that has no quota of its own."""
    quota: str
    """What is limited, such as ``producer_byte_rate`` or ``connection_creation_rate``."""
    value: float
    """Per second, or as the broker counts it; not negative."""


class SpreadKey(Message, frozen=True):
    """A small value of a namespace that is spread: each key has a slot of its own, so a namespace is as large and as
    fast as all groups of kind ``data`` together. A namespace of ``kv`` is one slot: it is for keys that are changed
    together, or end with a lease."""

    namespace: Name
    """Of who keeps them, as in ``kv``."""
    key: str
    """Unique within the namespace."""
    value: bytes
    """As whoever writes it means it."""


TENANTS = family(201, "tenant", Tenant, key=("tenant",))
NAMESPACES = family(202, "namespace", Namespace, key=("tenant", "namespace"), routing=("tenant",))
TOPICS = family(203, "topic", Topic, key=("tenant", "topic"))
CONNECTORS = family(204, "connector", Connector, key=("tenant", "connector"))
CONNECTOR_TASKS = family(
    205, "connector_task", ConnectorTask, key=("tenant", "connector", "task"), routing=("tenant", "connector")
)
USERS = family(206, "user", User, key=("tenant", "user"), secret=("salt", "hash", "server_key"))
ACLS = family(207, "acl", Acl, key=("tenant", "rule"), routing=("tenant",))
BLACKLIST = family(
    208, "blacklist", BlacklistEntry, key=("tenant", "kind", "entry"), routing=("tenant",), plural="blacklist"
)
SCHEMAS = family(209, "schema", Schema, key=("tenant", "subject", "schema_version"), routing=("tenant", "subject"))
SCHEMA_BINDINGS = family(
    210,
    "schema_binding",
    SchemaBinding,
    key=("tenant", "resource", "subject"),
    routing=("tenant", "resource"),
    indexes={"by_subject": ("tenant", "subject")},
)
SCHEMA_SUBJECTS = family(214, "schema_subject", SchemaSubject, key=("tenant", "subject"))
DYNAMIC_CONFIG = family(
    211,
    "dynamic_config",
    DynamicConfig,
    key=("scope_kind", "scope", "name"),
    routing=("scope_kind", "scope"),
    plural="config",
)
CONFIG_HISTORY = family(
    215,
    "config_history",
    ConfigHistory,
    key=("scope_kind", "scope", "name"),
    routing=("scope_kind", "scope"),
    plural="config-history",
)
USER_QUOTAS = family(
    212,
    "user_quota",
    UserQuota,
    key=("tenant", "entity_kind", "entity", "quota"),
    routing=("tenant",),
)
SPREAD_KEYS = family(213, "spread_key", SpreadKey, key=("namespace", "key"), kind="data")
