"""The payloads of the frames: msgpack arrays, one frozen Struct each.

Evolution: an array grows at its end only, and every field added later has a default; a reader skips the
elements it does not know. Field order is the wire format, so it never changes. tests/golden holds the
bytes of every message.

Batches answer per item: a reply lists the items that failed (:class:`ItemError`, by position in the
request) and is a few bytes long when all went well.
"""

from __future__ import annotations

import enum
from typing import ClassVar, Generic, TypeVar

import msgspec

from .text.fields import BATCH_ITEMS_MAX as BATCH_ITEMS_MAX
from .text.fields import GENERATION_MAX as GENERATION_MAX
from .text.fields import (
    I64,
    U32,
    U53,
    U63,
    U64,
    Batch,
    ClientId,
    Filter,
    KeyFields,
    Limit,
    ListedFields,
    OwnTopic,
    PerGroup,
    Qos,
    RetainHandling,
    SubscriptionId,
    Topic,
    TransactionItems,
    Transactions,
)
from .text.fields import KEY_FIELDS_MAX as KEY_FIELDS_MAX
from .text.fields import LIST_LIMIT_MAX as LIST_LIMIT_MAX
from .text.fields import TRANSACTION_ITEMS_MAX as TRANSACTION_ITEMS_MAX
from .text.fields import TRANSACTIONS_MAX as TRANSACTIONS_MAX

MAGIC = "metad"
PROTOCOL_VERSION = 1
KEY_BYTES_MAX = 4_096
"""All key fields of one record together, as UTF-8, with a few bytes of separators for each: ``invalid_item``."""
VALUE_BYTES_MAX = 1024 * 1024
"""Each ``value`` of a key, each ``payload`` and ``metadata``, each record of a declared table with its key, and of a
session the ``payload`` with the topic, payload and properties of its will: ``invalid_item``."""
# An entry is in memory a dozen times on its way, and followers hear no heartbeat behind it: at 16 MiB that took
# 200 MiB, and cost a busy group its leader; at 5 MiB it still took 100.
CHANGE_BYTES_MAX = 2 * 1024 * 1024
"""The payload of a request that writes or of ``watch.open``, and what a request may change: the rows that it writes
with their keys, and the reply if it has an identity. ``too_large``: send the rest in parts, each with an identity of
its own. The names of a key count twice, those of a session in two rows, those of an offset in up to three. A request of
600 KiB always fits, unless its names hold many NUL characters. A will that becomes due counts too. One session can
always be ended; of several together, what belongs to them beyond one session's bound is too much. So is a write about
records of over 16 MiB together."""
LISTING_BYTES_MAX = 512 * 1024
"""The payload of a request that reads and has no ``items``: ``too_large``."""
BROKER_BYTES_MAX = 256
"""The name of a broker, as UTF-8, in a takeover, a claim and a registration: ``invalid_request``."""


class Message(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Base of what travels: immutable, an array on the wire."""

    columns: ClassVar[dict[str, int | None]] = {}
    """Of the reply to a batch: its lists that have a value for each item, and the value of an item that failed."""


class Feature(enum.IntFlag):
    """What an end can do beyond the protocol's version; bits of ``Hello.features`` and ``Request.requires``."""

    REQUIRES = 1  # looks at Request.requires
    MIN_REVISIONS = 2  # looks at the min_revisions of reads
    LIVES = 4  # looks at Request.life
    REGISTERED = 8  # if a request requires it, its life has a fence: it was registered, and is not forgotten


T = TypeVar("T")


# --- connection ------------------------------------------------------------------------------------------


class Hello(Message, frozen=True):
    """First frame of the client."""

    magic: str
    """Always ``metad``."""
    version_min: U63
    """Oldest version the client speaks."""
    version_max: U63
    """Newest one."""
    features: U64 = 0
    """Bit set of the client's features beyond the version: see Features."""
    credentials: bytes = b""
    """A token, or empty; opaque to the framing."""
    client_name: str = ""
    """For logs and operators; need not be unique."""


class Welcome(Message, frozen=True):
    """The server's answer: the version both speak, the features both have, and what the connection may use."""

    version: U63
    """The version both speak from now on."""
    features: U64
    """The client's features that the server has too."""
    node_id: str
    """Id of the node that answered."""
    cluster_id: str
    """Id of its cluster; empty while the cluster is being formed."""
    window_bytes: U63
    """The credit window (see Flow control)."""
    frame_bytes_max: U32
    """Largest frame either end may send, header included; 16384 to 16777216."""
    idle_ms: U63
    """The server closes a connection that has sent nothing for this many milliseconds; 0: never. Ping at a third of
    it."""
    build: str = ""
    """Version and commit of the server's software, for people; empty from an older one."""


class Credit(Message, frozen=True):
    """Sets the window of the connection."""

    window_bytes: U63
    """The new window; it replaces the previous one."""


class Ping(Message, frozen=True):
    """Payload of PING, echoed in PONG."""

    token: U64
    """Echoed in PONG."""


class Goaway(Message, frozen=True):
    """No further request is taken. Those already on their way are answered: done, or ``draining`` with nothing done."""

    code: U63 = 0
    """An error code that says why, or 0."""
    reason: str = ""
    """For people."""


class Identity(Message, frozen=True):
    """Makes a write happen once however often it is sent."""

    client_id: U64
    """Random, drawn once in the life of a client."""
    seq: U63
    """Grows by one with every write of this client, from 1; a retry repeats it."""
    low: U63
    """Every write with a lower ``seq`` has been answered or given up."""
    age_ms: U63 = 0
    """Milliseconds since the first attempt was sent, rounded up; 0 on the first attempt only."""


class Owner(Message, frozen=True):
    """One life of a broker."""

    broker: str
    broker_epoch: U63
    """One life of the broker: a restarted broker comes back with a higher epoch."""


class Request(Message, Generic[T], frozen=True):
    """Payload of REQUEST. If the group does not hold all items, it refuses the request with ``stale_route``; no other
    group is tried, because only this one remembers an earlier attempt."""

    deadline_ms: U32
    """From receipt; 0: the server's default."""
    identity: Identity | None
    """For a write that must happen once; nil for a read."""
    body: T
    """See the line of the method."""
    group: str = ""
    """Name of the group: see *Routing*; empty for methods that no group answers."""
    requires: U63 = 0
    """Feature bits that the request must not be executed without: see Features."""
    life: Owner | None = None
    """The life of a broker in whose name a write is made: see *broker*."""
    freshness_ms: U32 = 0
    """How old the state may be that answers a read: see *Reading near*; 0: the leader answers."""


class Traced(Request[T], Generic[T], frozen=True):
    """A request with the context of a trace. A client that traces nothing sends none."""

    trace: bytes = b""
    """As W3C's *Trace Context* has it: 16 bytes of the trace's id, 8 of the span's, 1 of flags; others count for
    nothing."""


def trace_context(trace_id: int, span_id: int, flags: int) -> bytes:
    """What ``Traced.trace`` has."""
    return trace_id.to_bytes(16, "big") + span_id.to_bytes(8, "big") + bytes([flags & 0xFF])


class ItemError(Message, frozen=True):
    """Why an item of a batch failed."""

    index: U32
    """Position of the failed item in the request, from 0."""
    code: U63
    """An error code from 200 up."""
    message: str = ""
    """For people."""
    current: I64 | None = None
    """See *Failed conditions*."""


class Revision(Message, frozen=True):
    """A group, by name, as it was once it had applied the entry that made a write."""

    group: str
    """Name of the group that wrote."""
    index: U63
    """See Revisions."""


Revisions = PerGroup[Revision]
"""A read waits until its groups, as far as they are named here, have come so far."""


class WriteReply(Message, frozen=True):
    """Answer of a batch of writes: the revision of the group that wrote, and the items that failed."""

    revisions: list[Revision]
    errors: list[ItemError]


class Page(Message, frozen=True):
    """Where a listing goes on."""

    limit: Limit = 1_000
    """Records of the page, at most."""
    cursor: bytes = b""
    """That of the previous reply; empty: from the beginning."""


# --- reads -----------------------------------------------------------------------------------------------


class Get(Message, Generic[T], frozen=True):
    """Read what there is of some keys."""

    items: Batch[T]
    min_revisions: Revisions = []


class GetReply(Message, Generic[T], frozen=True):
    """By position; nil where there is no record, or where the item failed."""

    columns: ClassVar[dict[str, int | None]] = {"found": None}

    found: list[T | None]
    errors: list[ItemError] = []


class Items(Message, Generic[T], frozen=True):
    """Write what each item says, or refuse the item."""

    items: Batch[T]


class ListReply(Message, Generic[T], frozen=True):
    """Has one page of a listing."""

    found: list[T]
    cursor: bytes
    """Empty: complete."""


# --- sessions --------------------------------------------------------------------------------------------


class SessionKey(Message, frozen=True):
    """Identity of a session; both fields route it."""

    tenant: str
    client_id: ClientId


NEVER_S = 0xFFFF_FFFF
"""The expiry interval of a session that stays until it is deleted."""


class Will(Message, frozen=True):
    """What is to be published for a client that goes without a word (MQTT)."""

    topic: Topic
    payload: bytes = b""
    qos: U32 = 0
    retain: bool = False
    delay_s: U32 = 0
    """Seconds after the disconnect when the will is due; it is due earlier if the session ends."""
    properties: bytes = b""
    """Everything else of the will, in the broker's own encoding."""


class SessionProperties(Message, frozen=True):
    """What a broker keeps of a session."""

    expiry_interval_s: U32 = 0
    """Seconds after the disconnect when the session ends (MQTT 5); 4294967295 (``NEVER_S``): never; 0: at once."""
    payload: bytes = b""
    """Everything else, in the broker's own encoding."""
    will: Will | None = None
    """Nil: the client has none."""


class Session(Message, frozen=True):
    """A session as read."""

    tenant: str
    client_id: ClientId
    connected: bool
    """False once its owner has reported the disconnect, or the owner's life is fenced."""
    broker: str
    """Its owner."""
    broker_epoch: U63
    """The owner's epoch at the takeover."""
    disconnected_ms: U63
    """The time of the group's log in milliseconds; 0 while connected."""
    properties: SessionProperties
    expires_ms: U63 = 0
    """Unix time at which the session ends if the client stays away; 0: never, it is connected, or its broker's life is
    over and metad has not come to it yet."""
    will_ms: U63 = 0
    """The same of its will: when it is due."""


class SessionOwner(Message, frozen=True):
    """The part of a session that says who owns it; a row of its own, which watches report."""

    connected: bool
    broker: str
    broker_epoch: U63
    disconnected_ms: U63
    """When the client disconnected, by the time of the group's log; 0 while connected."""
    stolen: U32 = 0
    """1 if the takeover that wrote the row has ended another life's connection, and the least attachment does not say
    so yet: see Attachments."""
    expires_ms: U63 = 0
    """When the session ends; 0: never, or while connected."""
    will_ms: U63 = 0
    """When the will of the session is due; 0: never, or while connected."""
    outlives: U63 = 0
    """The ``number`` of the last order to end the tenant that the session outlives, because it was taken over after
    that; 0 where no order was pending then."""


class SessionEndTenant(Message, frozen=True):
    """Orders the group to end all sessions that a tenant has in ``slots``, whoever owns them. Ask each group for the
    slots that it holds by the map; if one answers ``stale_route``, ask for these slots again with a newer map. From
    the order's entry on the sessions are over: a ``session.takeover`` finds no session, and begins one that the
    order does not touch. The group clears up by itself, at the pace of the expiry; until it has come to a session,
    reads show it and its owner may write to it. Watches show each end as ``deleted``. The order moves with its
    slots. Orders that are not carried out take 262,144 bytes of a group together, each 1,024 or its row if that is
    longer (see "Shared room"); one more is ``too_large``. One that asks for the same as an earlier one replaces
    that."""

    tenant: str
    publish_wills: bool
    """The wills of the sessions are due as they end; otherwise they are dropped, and so are those of the tenant that
    were due before."""
    retained: bool = False
    """Also delete the retained messages that were put before."""
    slots: bytes = b""


class TenantEnd(Message, frozen=True):
    """An order to end a tenant, and how far a group has come with it."""

    tenant: str
    number: U63
    """The revision of the order's entry, in the group that got it."""
    at_ms: U63
    """The time of that entry."""
    publish_wills: bool
    """As ordered."""
    retained: bool
    """As ordered."""
    slots: bytes
    """A bit map of those that it is about in this group."""
    phase: U32 = 0
    """0: sessions are ended; 1: wills are dropped; 2: retained messages are deleted; 3: all other records are; 4: its
    grace is not over."""
    cursor: bytes = b""
    """The last key of the phase that was looked at."""
    sessions: U63 = 0
    """That were ended so far, also by the group that the order came from."""
    others: U63 = 0
    """Wills that were dropped and messages that were deleted so far."""
    ordered_by: str = ""
    """Who asked for it, as ``granted_by`` of a lease."""
    everything: bool = False
    """Whether it is one of ``tenants.end``."""
    begins_ms: U63 = 0
    """The time at which its grace is over; 0: it has none."""


class TenantMove(Message, frozen=True):
    """Says how a move is in a group."""

    tenant: str
    move: str
    """Id of the move, chosen by who begins it."""
    phase: U32
    """0: the tenant leaves, and is served. 1: it is frozen. 2: it has left. 3: it comes. 4: it came, and is served."""
    attempt: U63
    """The newest. Steps of earlier ones are refused."""
    other: str
    """The other cluster: where it may be reached, for people."""
    index: U63
    """Of the entry that froze the tenant, or with which it began to come."""
    revision: U63 = 0
    """That of the group with the entry that froze the tenant."""
    at_ms: U63 = 0
    """The time of that entry, by the group's log."""


class SessionEndings(Message, frozen=True):
    """The orders that are not carried out. If no group has one for a tenant, all is done that was ordered before."""

    tenant: str | None = None
    """Nil: all."""
    slots: bytes = b""
    min_revisions: Revisions = []


class SessionEndingsReply(Message, frozen=True):
    """In the order of their numbers."""

    endings: list[TenantEnd]
    """In the order of ``number``."""


class SubscriptionOptions(Message, frozen=True):
    """Of one filter, as MQTT 5 has them. metad stores them; what they mean is the broker's business."""

    qos: Qos = 0
    no_local: bool = False
    retain_as_published: bool = False
    retain_handling: RetainHandling = 0
    subscription_id: SubscriptionId = 0
    """Subscription identifier; 0: none."""


class Subscribed(Message, frozen=True):
    """One filter of a client that is named beside it."""

    filter: Filter
    options: SubscriptionOptions = SubscriptionOptions()


class InflightState(Message, frozen=True):
    """One thing in flight for a client that is named beside it."""

    name: str
    value: bytes


class SessionTakeoverItem(Message, frozen=True):
    """One client that has just connected."""

    tenant: str
    client_id: ClientId
    clean_start: bool = False
    """Forget the stored properties: the session begins anew."""
    properties: SessionProperties | None = None
    """Replace the stored ones; nil: keep them, or use the defaults if there are none."""


class SessionTakeover(Message, frozen=True):
    """The clients have connected to this broker, which now owns their sessions. A takeover wins over the ownership
    of any other broker. It fails with ``fenced`` only if the same broker has taken the session with a higher epoch.
    A session that does not exist is created. A session was present before if ``previous[i] >= 0`` and item i did
    not ask for a clean start, and not if its end had come while it was disconnected. A session of a life that is
    fenced counts as disconnected since the fence.

    A takeover cancels the end of a disconnected session, and its will. The will is published all the same if it was
    due already, or if the session ends because its end has come or by a clean start. What belongs to a session that
    ends goes in the same entry.

    **Attachments.** The revision of a takeover (``revisions[0].index``, also in the reply to a retry) is the
    *attachment* of the connections that it made. It tells two connections of one client to one life of a broker apart:
    items of ``session.disconnect``, ``session.update`` and ``session.delete`` may name an attachment, and then fail
    with ``conflict`` unless the client is connected by that very takeover. So a late disconnect of an earlier
    connection changes nothing. For brokers that have not registered (see *broker*) this is best effort. A broker **must
    not** name attachments of its earlier lives.
    """

    broker: str
    broker_epoch: U63
    items: Batch[SessionTakeoverItem]
    restore: bool = False
    """Return the properties stored before this request."""
    restore_parts: bool = False
    """Return the subscriptions and what is in flight; ``too_large`` if either is over 16,384 rows."""


class SessionTakeoverReply(Message, frozen=True):
    """What became of each item."""

    columns: ClassVar[dict[str, int | None]] = {
        "previous": -1,
        "properties": None,
        "subscriptions": None,
        "inflight": None,
    }

    revisions: list[Revision]
    errors: list[ItemError]
    owners: list[Owner]
    """The previous owners, each once."""
    previous: list[I64]
    """By position: index in ``owners`` of the session's previous owner; -1 if there was no session or the item
    failed."""
    properties: list[SessionProperties | None]
    """By position, if ``restore`` was asked for: the properties stored before; nil without a session, at a clean
    start, or if the item failed. Otherwise empty."""
    subscriptions: list[list[Subscribed] | None] = []
    """The same of ``restore_parts``: the filters of the client."""
    inflight: list[list[InflightState] | None] = []
    """The same of ``restore_parts``: what is in flight for the client."""


class SessionDisconnectItem(Message, frozen=True):
    """One client that has gone."""

    tenant: str
    client_id: ClientId
    expiry_interval_s: U32 | None = None
    """Counts instead of that in the properties (MQTT 5, DISCONNECT); nil: that counts."""
    will_discard: bool = False
    """The client has gone in good order: its will is not published."""
    attachment: U63 = 0
    """If not 0, only if the takeover of this revision connects the client: see ``session.takeover``."""


class SessionDisconnect(Message, frozen=True):
    """The clients have disconnected. Their sessions keep their owner. Repeating it changes nothing: the time of the
    first disconnect stays. A session ends, with everything that belongs to it, once its expiry interval has passed
    by the time of the log, and at once if the interval is 0. Its will is due after its delay, or when the session
    ends, whichever is earlier. Item errors: ``not_found``; ``not_owner`` if another broker owns the session;
    ``fenced`` if this broker owns it with another epoch; ``conflict`` if the item's attachment may not speak (see
    ``session.takeover``), also when an item with an attachment is repeated. ``too_large`` if the properties of the
    sessions take more than 16 MiB."""

    broker: str
    broker_epoch: U63
    items: Batch[SessionDisconnectItem]


class SessionUpdateItem(Message, frozen=True):
    """New properties of one session, replacing the old ones as a whole."""

    tenant: str
    client_id: ClientId
    properties: SessionProperties
    attachment: U63 = 0
    """As in SessionDisconnectItem."""


class SessionUpdate(Message, frozen=True):
    """Replaces the properties of sessions that this broker owns. Item errors are those of ``session.disconnect``."""

    broker: str
    broker_epoch: U63
    items: Batch[SessionUpdateItem]


class SessionDeleteItem(Message, frozen=True):
    """Names one session to delete."""

    tenant: str
    client_id: ClientId
    disconnected_ms: U63 = 0
    """If not 0, delete the session only if it is disconnected since exactly then."""
    attachment: U63 = 0
    """As in SessionDisconnectItem."""


class SessionDelete(Message, frozen=True):
    """Deletes sessions and all that belongs to them. Their wills are not published. Item errors: ``not_found``;
    ``conflict`` if the session is not disconnected since exactly ``disconnected_ms``, with its own as ``current``,
    or if the attachment may not speak; if ``broker`` is given, also ``not_owner`` and ``fenced``; if not,
    ``invalid_item`` for an attachment."""

    items: Batch[SessionDeleteItem]
    broker: str = ""
    """If not empty, delete only sessions owned by this broker with this epoch."""
    broker_epoch: U63 = 0


class SessionList(Message, frozen=True):
    """Lists sessions in order of (tenant, client_id), filtered."""

    tenant: str | None = None
    """Nil: all."""
    client_id_prefix: ClientId = ""
    broker: str | None = None
    """The owner, in any life; nil: any."""
    page: Page = Page()
    min_revisions: Revisions = []
    slots: bytes = b""
    after: SessionKey | None = None


# --- offsets ---------------------------------------------------------------------------------------------


class OffsetKey(Message, frozen=True):
    """Identity of an offset; (tenant, group) routes it."""

    tenant: str
    group: str
    topic: OwnTopic
    partition: U32


class Offset(Message, frozen=True):
    """An offset as read."""

    tenant: str
    group: str
    topic: OwnTopic
    partition: U32
    offset: U63
    generation: U63
    """Given by the commit."""
    committed_ms: U63
    """The time of the group's log in milliseconds."""
    metadata: str
    """Given by the commit."""


class OffsetCommitItem(Message, frozen=True):
    """One commit."""

    tenant: str
    group: str
    topic: OwnTopic
    partition: U32
    offset: U63
    """The value to store."""
    generation: U53 = 0
    """Of the consumer group, as counted by its coordinator."""
    expected: I64 | None = None
    """Store only if this is the current offset; -1: only if there is none; nil: unchecked."""
    metadata: str = ""
    """The consumer's own note."""


class OffsetCommit(Message, frozen=True):
    """Stores offsets. Each consumer group remembers the highest generation of its commits. Item errors, in this
    order: ``fenced`` for a lower generation, for a higher one than a group with members has, and if ``member`` is
    not a member; ``conflict`` if ``expected`` does not match; ``offset_regression`` if ``monotonic`` and the offset
    would go back."""

    items: Batch[OffsetCommitItem]
    monotonic: bool = False
    """Refuse to move an offset back."""
    member: str = ""
    """Of the consumer groups, in whose name it is committed; empty: whoever names the generation."""


class OffsetList(Message, frozen=True):
    """Reads offsets of one consumer group, in order of (topic, partition)."""

    tenant: str
    group: str
    topic_prefix: OwnTopic = ""
    page: Page = Page()
    min_revisions: Revisions = []


class ConsumerGroup(Message, frozen=True):
    """Identity of a consumer group; both fields route it."""

    tenant: str
    group: str


class OffsetGenerations(Message, frozen=True):
    """Reads the generation of each consumer group, below which commits are fenced."""

    items: Batch[ConsumerGroup]
    min_revisions: Revisions = []


class OffsetGenerationsReply(Message, frozen=True):
    """By position; 0 where no commit has carried one, or where the item failed."""

    columns: ClassVar[dict[str, int | None]] = {"generations": 0}

    generations: list[U63]
    """By position: the highest generation of a stored commit, or the value it was reset to."""
    errors: list[ItemError] = []


class GenerationReset(Message, frozen=True):
    """Sets a group's generation, if it is as expected."""

    tenant: str
    group: str
    expected: U63
    """The current generation; 0: none."""
    generation: U53 = 0
    """The new generation; 0: none."""


class OffsetResetGenerations(Message, frozen=True):
    """Sets the generation of consumer groups, even to a lower one. Later commits are compared with the new generation.
    0 deletes the generation, as if no commit had carried one. The offsets are not changed. Item error: ``conflict``
    if the current generation is not ``expected``, or the group has members."""

    items: Batch[GenerationReset]


# --- key-value -------------------------------------------------------------------------------------------


class KvKey(Message, frozen=True):
    """Identity of a key; the namespace routes it, so what shares a namespace can share a transaction."""

    namespace: str
    key: str


class Kv(Message, frozen=True):
    """A key as read."""

    namespace: str
    key: str
    value: bytes
    version: U63
    create_revision: U63
    mod_revision: U63
    lease: str = ""
    """The lease that the key is attached to; empty: none."""


class KvPutItem(Message, frozen=True):
    """One key to write."""

    namespace: str
    key: str
    value: bytes
    expected_version: U63 | None = None


class KvPut(Message, frozen=True):
    """Item errors: ``conflict`` if ``expected_version`` is not the version of the key; ``not_found`` if there is no
    lease of the name ``lease`` in the item's namespace; ``quota_exceeded`` if that has as many keys as it may have."""

    items: Batch[KvPutItem]
    lease: str = ""
    """Attach the keys to this lease of their namespace; empty: to none."""


class KvPutReply(Message, frozen=True):
    """The version that each item wrote."""

    columns: ClassVar[dict[str, int | None]] = {"versions": 0}

    revisions: list[Revision]
    errors: list[ItemError]
    versions: list[U63]


class KvDeleteItem(Message, frozen=True):
    """Names one key to delete."""

    namespace: str
    key: str
    expected_version: U63 | None = None


class KvDelete(Message, frozen=True):
    """Item errors: ``not_found`` if the key is absent, whatever version was expected; ``conflict``."""

    items: Batch[KvDeleteItem]


class KvScan(Message, frozen=True):
    """Reads keys of one namespace, in order."""

    namespace: str
    prefix: str = ""
    page: Page = Page()
    min_revisions: Revisions = []


class KvCompare(Message, frozen=True):
    """A condition of a transaction. All that it says must hold."""

    key: str
    version: U63 | None = None
    """The key has this version; 0: it is absent; nil: unchecked."""
    value: bytes | None = None
    """The key has this value; nil: unchecked."""
    create_revision: U63 | None = None
    """This write created the key; 0: it is absent; nil: unchecked."""


class KvOperation(Message, frozen=True):
    """One write of a transaction."""

    key: str
    value: bytes | None = None
    """Put this value; nil: delete the key, if it exists."""
    lease: str = ""
    """Attach the key to this lease; empty: to none."""


class KvTransaction(Message, frozen=True):
    """Does one list of operations or the other, at once, in one namespace."""

    namespace: str
    compares: TransactionItems[KvCompare]
    """Conditions, which must all hold."""
    then: TransactionItems[KvOperation]
    otherwise: TransactionItems[KvOperation] = []
    """Done in order if a compare does not hold; ``then``: if all hold."""
    reads: TransactionItems[str] = []
    """Keys to return, as of after the operations."""


def operations_of(transaction: KvTransaction | TableTransaction) -> int:
    """How many things a transaction asks for, of key-values or of declared tables."""
    t = transaction
    return len(t.compares) + len(t.then) + len(t.otherwise) + len(t.reads)


class KvTransact(Message, frozen=True):
    """Each transaction is atomic and sees the effects of the transactions before it in the batch. Its ``succeeded``
    says which branch was executed. Taking the ``otherwise`` branch is not an error. Item errors, after which nothing
    of the transaction was done: ``not_found`` if an operation names a lease that does not exist, ``quota_exceeded``
    if that has as many keys as it may have."""

    items: Transactions[KvTransaction]


class KvTransactionResult(Message, frozen=True):
    """What a transaction did."""

    succeeded: bool
    """Every compare held."""
    records: list[Kv | None]
    """Answers ``reads`` by position; nil if there is none."""


class KvTransactReply(Message, frozen=True):
    """The result of each transaction."""

    columns: ClassVar[dict[str, int | None]] = {"results": None}

    revisions: list[Revision]
    errors: list[ItemError]
    results: list[KvTransactionResult | None]


# --- declared tables ----------------------------------------------------------------------------------------


class TableRecord(Message, Generic[T], frozen=True):
    """A record of a declared table as read."""

    record: T
    version: U63
    create_revision: U63
    mod_revision: U63


class TablePutItem(Message, Generic[T], frozen=True):
    """One record to write."""

    record: T
    expected_version: U63 | None = None


class TableGet(Message, Generic[T], frozen=True):
    """Read records of a table by their keys. The reply has a ``TableRecord`` of each."""

    table: U32
    items: Batch[T]
    """Keys: arrays of the fields of the table's key."""
    min_revisions: Revisions = []


class TablePut(Message, Generic[T], frozen=True):
    """Write records of a table, whole. A field that a client does not know keeps its value, and has its default in a
    new record."""

    table: U32
    known: U32
    """How many fields of a record the client knows, from the first on: ``unknown_table`` if the table has fewer."""
    items: Batch[TablePutItem[T]]


class TablePutReply(Message, frozen=True):
    """The version that each item wrote."""

    columns: ClassVar[dict[str, int | None]] = {"versions": 0}

    revisions: list[Revision]
    errors: list[ItemError]
    versions: list[U63]


class TableDeleteItem(Message, Generic[T], frozen=True):
    """Names one record to delete."""

    key: T
    expected_version: U63 | None = None
    create_revision: U63 | None = None
    """Only if it was created at this revision; nil: unchecked."""


class TableDelete(Message, Generic[T], frozen=True):
    """Delete records."""

    table: U32
    items: Batch[TableDeleteItem[T]]


class TableList(Message, frozen=True):
    """Lists records of a table, in order of their keys or of an index."""

    table: U32
    fields: ListedFields = []
    """The first fields of the key; of an index: of its fields, with those of the key behind them."""
    prefix: str = ""
    """Of the next field; empty: all."""
    page: Page = Page()
    min_revisions: Revisions = []
    slots: bytes = b""
    after: ListedFields = []
    """Only records behind this key; empty: all."""
    index: U32 = 0
    """In the declaration, from 1 on; 0: the order is that of the keys."""


class TableCountReply(Message, frozen=True):
    """Counts what ``table.list`` would list: of a page, which has room for more records. Add the answers up."""

    count: U63
    cursor: bytes = b""
    """As in a listing; any group takes that of another."""


class TableKey(Message, frozen=True):
    """Names one record of a transaction."""

    table: U32
    """Number of its table."""
    key: KeyFields
    """The fields of its key."""


class TableCompare(Message, frozen=True):
    """A condition of a transaction. All that it says must hold."""

    table: U32
    key: KeyFields
    version: U63 | None = None
    """Holds if the record has this version; 0: if there is none; nil: unchecked."""
    field: str = ""
    """Holds if this field of the record is ``value``, never if there is no record; empty: unchecked."""
    value: bytes = b""
    """Msgpack."""


class TableOperation(Message, frozen=True):
    """One write of a transaction."""

    table: U32
    record: bytes | None = None
    """Msgpack of the record to put, as in ``table.put``; nil: delete the record of ``key``, if there is one."""
    known: U32 = 0
    """How many fields of a record the client knows, as in ``table.put``."""
    key: KeyFields = []
    """Of the record to delete."""


class TableTransaction(Message, frozen=True):
    """Does one list of operations or the other, at once, on records of any tables that route as it does."""

    kind: str
    """Of the groups that keep these tables."""
    route: KeyFields
    """What routes: each table has as many routing fields, and each key begins with these values."""
    compares: TransactionItems[TableCompare]
    """Conditions; an empty array always holds."""
    then: TransactionItems[TableOperation]
    """Executed in order if every compare holds."""
    otherwise: TransactionItems[TableOperation] = []
    """Executed in order if a compare does not hold."""
    reads: TransactionItems[TableKey] = []
    """Records to return, as of after the operations."""


class TableTransact(Message, frozen=True):
    """Run transactions, each as a whole or not at all. The batch is not: one that is refused stops no other. Item
    errors: ``invalid_item`` if a part does not fit its table or its route, ``not_found`` if a table was dropped."""

    items: Transactions[TableTransaction]


class TableTransactionResult(Message, frozen=True):
    """What a transaction did."""

    succeeded: bool
    """Every compare held."""
    versions: list[U63]
    """Of its operations by position: the version that was written; 0 for a deletion."""
    found: list[bytes | None]
    """Answers ``reads`` by position: msgpack of what ``table.get`` returns; nil if there is no record."""


class TableTransactReply(Message, frozen=True):
    """The result of each transaction."""

    columns: ClassVar[dict[str, int | None]] = {"results": None}

    revisions: list[Revision]
    errors: list[ItemError]
    results: list[TableTransactionResult | None]


# --- system ----------------------------------------------------------------------------------------------


class Status(Message, frozen=True):
    """Ask a node how it is."""


class FollowerStatus(Message, frozen=True):
    """Another member of a group, as the group's leader sees it."""

    node_id: str
    state: str
    """``replicate``: it gets every entry; ``probe``: where the logs agree is not known yet; ``snapshot``: it needs or
    gets one; ``lost``: it lacks what it acknowledged, and is not counted."""
    match: U63
    """Log index up to which it durably has what the leader has."""
    reachable: bool
    """Whether the leader is connected to it."""
    obstacle: str = ""
    """Why it does not get what it lacks, for example because its disk is full; empty if nothing is in the way, or
    nothing is known."""


class GroupStatus(Message, frozen=True):
    """Says how one group on this node is."""

    name: str
    kind: str
    """``data``, ``offset`` or ``metadata``."""
    slots: U63
    """Number of hash slots it holds."""
    applied: U63
    """Log index that the state has reached."""
    first: U63
    """First log index that is kept."""
    last: U63
    """Last log index."""
    log_bytes: U63
    """Bytes of log that a restart may have to replay."""
    role: str = ""
    """Of this replica: ``follower``, ``candidate`` or ``leader``."""
    leader: str = ""
    """Id of the leader, if known."""
    term: U63 = 0
    """Raft term."""
    commit: U63 = 0
    """Highest log index known to be committed."""
    voters: list[str] = []
    """Ids of the voters."""
    learners: list[str] = []
    """Ids of the learners, which follow without a vote."""
    configured: U63 = 0
    """Log index of the entry that set voters and learners; they are final once ``commit`` has reached it."""
    followers: list[FollowerStatus] = []
    """The other members, as the leader sees them; only the leader fills it."""
    leaderless_ms: U63 = 0
    """For how long this node has known no leader; 0 if it knows one."""
    fence_entries: U63 = 0
    """Entries that raise fences of brokers and that this replica has applied, since the node's start."""
    waiting_items: U63 = 0
    """Items of writes that wait in front of the group, at its leader."""
    wait_ms: U63 = 0
    """How long these take, by the rate."""
    served_per_s: U63 = 0
    """The rate: items that were begun per second when many waited last; at first an assumption."""
    unlike: list[str] = []
    """Ids of the nodes whose state of the group differs from that of the majority, as the leader found; they get a
    snapshot. Without a majority, of all that were compared."""
    undecided: bool = False
    """Whether there is no such majority."""
    restoring: str = ""
    """Id of the backup that is being put into the group, which serves nothing meanwhile; empty: none."""
    restoring_ms: U63 = 0
    """For how long."""
    sealed_move: U63 = 0
    """Number of the move for which the group has given up slots, and which is not closed; 0: none."""
    opened_move: U63 = 0
    """Number of the last move whose rows it takes or has taken; 0: none."""
    opened_batch: U63 = 0
    """How many batches of these it has."""
    adopted_move: U63 = 0
    """Number of the last move whose slots it has adopted; 0: none."""
    tenants_moving: U32 = 0
    """Tenants on their way to or from another cluster. No slots of the group move meanwhile."""


class Compact(Message, frozen=True):
    """Has a node drop what is deleted from all its files, group by group, beside its work. ``no_room`` if the disk has
    too little room to write the largest store anew."""

    begin: bool = False
    """Begin, unless it is under way; False: only ask how far it is."""


class CompactReply(Message, frozen=True):
    """How far a node is with dropping what is deleted, or was when it ended last."""

    running: bool = False
    """Whether it is under way."""
    done: U32 = 0
    """Parts that are done."""
    parts: U32 = 0
    """All of them; 0: it was never begun since the node's start."""
    before_bytes: U63 = 0
    """Of files when it began."""
    bytes: U63 = 0
    """Of files now."""
    error: str = ""
    """Why it broke off; empty if it did not."""


class LaneStatus(Message, frozen=True):
    """Requests of clients for the groups of a node, of methods of one lane, since the node's start."""

    lane: str
    """As in the table of Methods."""
    admitted: U63
    """Writes that were let in, since the start."""
    refused: U63
    """Requests that were turned away because they would have waited too long, since the start."""


class PeerLink(Message, frozen=True):
    """The connection on which a node sends to another. If the connection is not up, the last three say why, as far as
    known."""

    node_id: str
    """The other node."""
    transport: str
    """``tcp``, ``tls`` or ``quic``."""
    up: bool
    rtt_us: U63 = 0
    """Round-trip time of the path, microseconds; 0 if unknown."""
    refuses: str = ""
    """Not up: why this node refuses the other, or did when it was last reached."""
    refused: str = ""
    """Not up: why the other refuses this node."""
    obstacle: str = ""
    """Not up: any other reason, as far as known."""


class Backlog(Message, frozen=True):
    """What is late or waits in the groups that a node leads: deadlines of sessions, wills and retained messages that
    have passed and are not carried out, fences of lives whose sessions may still look connected, wills that are due and
    not acknowledged, and how many of these no broker has at the moment; orders to end a tenant. Of each group at most
    :data:`BACKLOG_MAX` of each are counted."""

    deadlines: U63 = 0
    """Of sessions, wills and retained messages, that have passed and are not carried out."""
    fences: U63 = 0
    """Of lives of brokers whose sessions may still look connected."""
    wills: U63 = 0
    """Due and not acknowledged."""
    unclaimed: U63 = 0
    """Of these, that no broker has claimed, or whose claim is over."""
    unclaimed_ms: U63 = 0
    """For how long the oldest of these has been due."""
    more: bool = False
    """Some group has more than were counted."""
    tenants: U63 = 0
    """Orders to end a tenant that are not carried out."""


class TurnedAway(Message, frozen=True):
    """Requests that a node turned away because it was busy, and when they come back."""

    requests: U63 = 0
    """That were turned away since the start."""
    early: U63 = 0
    """Times that one of them came before its slot and was told the same again."""
    per_s: U63 = 0
    """Items that may come back per second."""
    ahead_ms: U63 = 0
    """For how long from now on all slots are taken."""
    granted: bool = False
    """``per_s`` is the node's part of the cluster's budget, otherwise what the node knows by itself."""
    paced: U63 = 0
    """Connections that waited until it was their turn to be accepted, since the start."""


ACTIVITY_MAX = 256
"""Of each kind, in one reply."""


class Activity(Message, frozen=True):
    """Ask a node what was slow of late, and who asks it for most."""

    most: U63 = 20
    """Of each kind; more than 256 are as 256."""


class SlowRequest(Message, frozen=True):
    """A request that took longer than ``limits.slow_ms``, from when it had come until it was answered."""

    ended_ms: U63
    """Unix time of the answer."""
    method: str
    client: str
    """Who asked, as in the log; as ``keys``."""
    tenant: str
    """Tenant or namespace of its first item, if it wrote."""
    group: str
    """That it wrote to; empty if it did not."""
    outcome: str
    """``done``, or the name of the error."""
    identity: str
    """``client_id:seq`` of a write; empty without one; as ``keys``."""
    items: U63
    bytes: U63
    took_us: U63
    """Microseconds, as the next two."""
    queued_us: U63
    """Of them, until it was taken into an entry: behind other requests. 0 of a read."""
    applying_us: U63
    """Of them, until its entry was durable on most replicas and was begun to be applied; the rest is to apply it, and
    to answer. As ``took_us`` of a read."""
    trace: str = ""
    """The id of its trace, in hex; empty without one."""


class Loud(Message, frozen=True):
    """Says about how many items somebody asked for of late, by one request of seven: each minute halves what was
    before. Of a batch one key is looked at."""

    name: str
    at_least: U63
    at_most: U63


class ActivityReply(Message, frozen=True):
    """Says what was slow, the newest first, and who asked for most, the most first."""

    slow: list[SlowRequest]
    slow_count: U63
    """Since the start, kept or not."""
    tenants: list[Loud]
    """Or namespaces."""
    clients: list[Loud]
    """By the URI of their certificate or token, or by their host; as ``keys``."""
    brokers: list[Loud]
    """That named their life; as ``keys``."""
    keys: list[Loud]
    """``TABLE KEY``; for administrators only where authorization is on."""


class DiskStatus(Message, frozen=True):
    """The disk of a node's data directory. All are 0 if the node has no disk, or has not looked yet."""

    free_bytes: U63 = 0
    """Room for the node, without what is still to be written of what it has in memory, and without what its reserve
    lacks."""
    total_bytes: U63 = 0
    """Size of the file system."""
    low_bytes: U63 = 0
    """The low-water mark: see Room on the disks."""
    short: U63 = 0
    """1: the node says that it is short of room. 2: it has next to none, and takes no entries either."""
    lasts_ms: U63 | None = None
    """When ``free_bytes`` is down to ``low_bytes``, or to nothing where it is below, if it shrinks on as it did within
    the last minute, half hour or day. Null if it does not shrink, or not that soon."""


BACKLOG_MAX = 1_000
"""``Backlog`` counts no further."""


class CertificateStatus(Message, frozen=True):
    """A certificate that a node uses."""

    key: str
    """Of the node's configuration, whose file has it: ``certificate`` or ``ca``."""
    ends_ms: U63
    """Unix time in milliseconds."""
    lasts_ms: U63
    """Until then, by the node's calendar; 0: it has ended."""


class Tail(Message, frozen=True):
    """What nine of ten took at most in the last minute, about; 0 if there were fewer than 20."""

    sync_us: U63 = 0
    """To make the log durable."""
    apply_us: U63 = 0
    """To apply what is committed, a turn."""
    loop_us: U63 = 0
    """By which the event loop was late for a timer."""


class StatusReply(Message, frozen=True):
    """Says how a node is. Times are since its start."""

    node_id: str
    cluster_id: str
    version: str
    """Version of the server software."""
    pid: U63
    uptime_ms: U63
    """Since the process started."""
    cpu_us: U63
    """User and system time of the process, microseconds."""
    rss_bytes: U63
    """Resident memory; 0 if unknown."""
    fsync: bool
    """False: acknowledged writes may be lost in a power failure."""
    replicas: U63
    """Maximum number of voters of a group."""
    connections: U63
    """Open now."""
    in_flight_bytes: U63
    """Request bytes received and unanswered."""
    entries: U63
    """Written to the log since the start."""
    syncs: U63
    """Of the log since the start."""
    groups: list[GroupStatus]
    region: str = ""
    """Region of the node."""
    links: list[PeerLink] = []
    """Its connections to the other nodes."""
    failing: str = ""
    """Why this node can store nothing; empty if it can."""
    watch_streams: U63 = 0
    """Streams of watches on this node."""
    sessions_ended: U63 = 0
    """Sessions whose time has come and that this node has ended, since the start."""
    wills_due: U63 = 0
    """Wills whose time has come, the same."""
    overdue_ms: U63 = 0
    """For how long the oldest deadline has passed that is not carried out, in groups that this node leads; 0 if there
    is none."""
    backlog: Backlog = Backlog()
    """What is late or waits in groups that this node leads."""
    wills_dropped: U63 = 0
    """Wills that were dropped since the start because no broker published them for too long."""
    turned_away: TurnedAway = TurnedAway()
    """Who was turned away because the node was busy, and when they come back."""
    lanes: list[LaneStatus] = []
    """What came of clients' requests, by lane; empty from older servers."""
    disk: DiskStatus = DiskStatus()
    """The disk of its data directory."""
    authorization: bool = False
    """Whether a client may do what its roles say, and nothing else."""
    certificates: list[CertificateStatus] = []
    """Its own and its authority's; empty without encryption."""
    tail: Tail = Tail()
    """How slow it is at what."""
    settings: dict[str, str] = {}
    """What it has of the settings in which all nodes should be alike, where that is not the default, as JSON."""


# --- what has changed at a node ---


Said = str | int | float | bool | None | list[str]
"""The value of a field of a log line."""


class Events(Message, frozen=True):
    """Ask a node what has changed, as its log tells it. It has the last lines in memory, since its process started."""

    since_ms: U63 = 0
    """Only what was logged then or later, in Unix milliseconds."""
    page: Page = Page()
    """The cursor of an earlier reply asks for what follows it, also of one without ``more``. After a restart of the
    process the cursor counts for nothing."""


class LoggedEvent(Message, frozen=True):
    """Says what has changed."""

    when_ms: U63
    """By the clock of the node, in Unix milliseconds."""
    level: str
    """``info``, ``warning`` or ``error``."""
    event: str
    """Its key: `metad logs` lists them with their fields."""
    fields: dict[str, Said] = {}
    """Texts are cut after 1,000 characters, and lists after 20 items."""
    text: str = ""
    """What the event means, in a sentence."""


class EventsReply(Message, frozen=True):
    """Says what has changed, the oldest first."""

    events: list[LoggedEvent]
    cursor: bytes
    """To go on from here, also later."""
    more: bool
    """There are further ones already."""
    begins_ms: U63
    """Of what was before that, nothing is known here: the process started then, or had no room for more."""
    withheld: U63 = 0
    """Events of this page that are not shown: who asks may not read their tables."""
