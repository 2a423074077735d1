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
KEY_BYTES_MAX = 4_096  # of all key fields of one record together, UTF-8 encoded
VALUE_BYTES_MAX = 1024 * 1024  # of one record's value
CHANGE_BYTES_MAX = 2 * 1024 * 1024
"""What one request may change in one group, as it goes to the log: rows with their keys, and the reply where it is
remembered; a long key counts twice or three times, for it is in the row too. No request that writes may be longer
itself. An entry is in memory a dozen times on its way, and followers hear no heartbeat behind it: at 16 MiB that took
200 MiB, and cost a busy group its leader; at 5 MiB it still took 100. Room for a record of the largest size, or for a
thousand small ones."""
LISTING_BYTES_MAX = 512 * 1024
"""No request that reads and names no items may be longer: a prefix of megabytes is encoded before it is compared."""
BROKER_BYTES_MAX = 256  # of a broker's name, UTF-8 encoded; every session it takes over carries it


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
    """First frame of the client. ``features`` is a bit set of what it can do beyond the version; ``credentials``
    is opaque to the protocol (a token, or empty)."""

    magic: str
    version_min: U63
    version_max: U63
    features: U64 = 0
    credentials: bytes = b""
    client_name: str = ""


class Welcome(Message, frozen=True):
    """The server's answer: the version both speak, the features both have, and what the connection may use."""

    version: U63
    features: U64
    node_id: str
    cluster_id: str
    window_bytes: U63  # request bytes that may be unanswered at once
    frame_bytes_max: U32
    idle_ms: U63  # the server closes a connection that sends nothing for this long; ping before it


class Credit(Message, frozen=True):
    """Sets the window of the connection to ``window_bytes`` from now on."""

    window_bytes: U63


class Ping(Message, frozen=True):
    """Payload of PING, echoed in PONG."""

    token: U64


class Goaway(Message, frozen=True):
    """No further request is taken. Those already on their way are answered: done, or ``draining`` with nothing
    done. ``code`` is an error code that says why, or 0."""

    code: U63 = 0
    reason: str = ""


class Identity(Message, frozen=True):
    """Makes a write happen once however often it is sent. ``client_id``: random u64 of the client's life;
    ``seq``: grows by one per write, a retry repeats it; ``low``: every write below it has been answered or given
    up, its memory may go, and it never passes one that may still be retried; ``age_ms``: time since the first
    attempt was sent, 0 on the first only."""

    client_id: U64
    seq: U63
    low: U63
    age_ms: U63 = 0


class Owner(Message, frozen=True):
    """One life of a broker."""

    broker: str
    broker_epoch: U63


class Request(Message, Generic[T], frozen=True):
    """Payload of REQUEST. ``deadline_ms`` counts from receipt, 0 means the server's default; a request not begun by
    then is not done. ``identity`` is for writes. ``group`` names the group that answers, for methods that a group
    answers. If it does not hold all items, it refuses the request with :class:`~metad_wire.errors.StaleRouteError`; no
    other group is tried, because only this one remembers an earlier attempt. ``requires``: bits of :class:`Feature`; a
    server that does not know one of them must not do the request. ``life``: the life of a broker in whose name a write
    is made; if the group has fenced it, the request is refused as a whole with
    :class:`~metad_wire.errors.FencedError`."""

    deadline_ms: U32
    identity: Identity | None
    body: T
    group: str = ""
    requires: U63 = 0
    life: Owner | None = None


class ItemError(Message, frozen=True):
    """Item number ``index`` of the batch (from 0) failed with error ``code``, which is 200 or higher. ``current`` is
    what the item was compared with and did not match: a version (0: absent), an offset (-1: none), a generation or an
    epoch."""

    index: U32
    code: U63
    message: str = ""
    current: I64 | None = None


class Revision(Message, frozen=True):
    """A group, by name, as it was once it had applied the entry that made a write. ``index`` grows with the group's
    log, also where slots come to it; it is comparable within the group only."""

    group: str
    index: U63


Revisions = PerGroup[Revision]
"""A read waits until its groups, as far as they are named here, have come so far."""


class WriteReply(Message, frozen=True):
    """Answer of a batch of writes: the revision of the group that wrote, and the items that failed."""

    revisions: list[Revision]
    errors: list[ItemError]


class Page(Message, frozen=True):
    """Where a listing goes on: an empty cursor means from the start."""

    limit: Limit = 1_000
    cursor: bytes = b""


# --- reads -----------------------------------------------------------------------------------------------


class Get(Message, Generic[T], frozen=True):
    """Read what there is of some keys."""

    items: Batch[T]
    min_revisions: Revisions = []


class GetReply(Message, Generic[T], frozen=True):
    """By position; None where there is no record, or where the item failed."""

    columns: ClassVar[dict[str, int | None]] = {"found": None}

    found: list[T | None]
    errors: list[ItemError] = []


class Items(Message, Generic[T], frozen=True):
    """Write what each item says, or refuse the item."""

    items: Batch[T]


class ListReply(Message, Generic[T], frozen=True):
    """One page; it may hold fewer than the limit, even none, while ``cursor`` is not empty."""

    found: list[T]
    cursor: bytes


# --- sessions --------------------------------------------------------------------------------------------


class SessionKey(Message, frozen=True):
    """Identity of a session; both fields route it."""

    tenant: str
    client_id: ClientId


NEVER_S = 0xFFFF_FFFF
"""The expiry interval of a session that stays until it is deleted."""


class Will(Message, frozen=True):
    """What is to be published for a client that goes without a word (MQTT). ``delay_s`` counts from when it has gone;
    the will is due earlier if the session ends. ``properties`` is the broker's own encoding of what else it has."""

    topic: Topic
    payload: bytes = b""
    qos: U32 = 0
    retain: bool = False
    delay_s: U32 = 0
    properties: bytes = b""


class SessionProperties(Message, frozen=True):
    """What a broker keeps of a session: for how many seconds after the client has gone the session stays
    (:data:`NEVER_S`: until it is deleted; 0: it ends at once), the broker's own encoding of the rest, and the will."""

    expiry_interval_s: U32 = 0
    payload: bytes = b""
    will: Will | None = None


class Session(Message, frozen=True):
    """A session as read. ``disconnected_ms`` is Unix time, 0 while connected. ``expires_ms`` is when it ends and
    ``will_ms`` when its will is due if the client stays away; 0: never, it is connected, or its broker's life is over
    and metad has not come to it yet."""

    tenant: str
    client_id: ClientId
    connected: bool
    broker: str
    broker_epoch: U63
    disconnected_ms: U63
    properties: SessionProperties
    expires_ms: U63 = 0
    will_ms: U63 = 0


class SessionOwner(Message, frozen=True):
    """The part of a session that says who owns it; a row of its own, which watches report. ``expires_ms`` is when a
    disconnected session ends, ``will_ms`` when its will is due; 0: never, or it is connected. ``stolen`` is 1 if the
    takeover that wrote the row has ended another life's connection, and the least attachment does not say so yet.
    ``outlives`` is the last :attr:`TenantEnd.number` that the session outlives, because it was taken over after that; 0
    where no such order was pending then."""

    connected: bool
    broker: str
    broker_epoch: U63
    disconnected_ms: U63
    stolen: U32 = 0
    expires_ms: U63 = 0
    will_ms: U63 = 0
    outlives: U63 = 0


class SessionEndTenant(Message, frozen=True):
    """Order a group to end all sessions that a tenant has in ``slots``, a bit map of those that the group holds by the
    client's map (none named: all that it holds). A takeover that follows finds no session; the group ends them one by
    one, after its reply. ``publish_wills``: their wills are due as they end. Otherwise these are dropped, and so are
    those of the tenant that are due already. ``retained``: its retained messages are deleted, too."""

    tenant: str
    publish_wills: bool
    retained: bool = False
    slots: bytes = b""


class TenantEnd(Message, frozen=True):
    """Such an order, and how far a group has come with it in ``slots``. ``number`` is the revision of its entry in the
    group that got it, ``at_ms`` the time of that. In ``phase`` 0 it ends sessions, in 1 it drops wills that are due, in
    2 it deletes retained messages, each in the order of their keys; ``cursor`` is the last key that was looked at.
    ``sessions`` were ended so far by the group that had the slots at each time, ``others`` are wills and messages.
    ``ordered_by``: the holder of the certificate or token that asked for it (a URI), or its host where nobody is
    checked."""

    tenant: str
    number: U63
    at_ms: U63
    publish_wills: bool
    retained: bool
    slots: bytes
    phase: U32 = 0
    cursor: bytes = b""
    sessions: U63 = 0
    others: U63 = 0
    ordered_by: str = ""


class SessionEndings(Message, frozen=True):
    """The orders to end tenants that a group has not carried out yet (``tenant`` None: of any tenant). ``slots`` is
    that of a SessionList."""

    tenant: str | None = None
    slots: bytes = b""
    min_revisions: Revisions = []


class SessionEndingsReply(Message, frozen=True):
    """In the order of their numbers."""

    endings: list[TenantEnd]


class SubscriptionOptions(Message, frozen=True):
    """Of one filter, as MQTT 5 has them. metad stores them; what they mean is the broker's business."""

    qos: Qos = 0
    no_local: bool = False
    retain_as_published: bool = False
    retain_handling: RetainHandling = 0
    subscription_id: SubscriptionId = 0


class Subscribed(Message, frozen=True):
    """One filter of a client that is named beside it."""

    filter: Filter
    options: SubscriptionOptions = SubscriptionOptions()


class InflightState(Message, frozen=True):
    """One thing in flight for a client that is named beside it."""

    name: str
    value: bytes


class SessionTakeoverItem(Message, frozen=True):
    """One client that has just connected. ``clean_start`` drops the properties that were stored; ``properties``
    replaces them, None keeps them, or creates the defaults where there are none to keep."""

    tenant: str
    client_id: ClientId
    clean_start: bool = False
    properties: SessionProperties | None = None


class SessionTakeover(Message, frozen=True):
    """``broker`` in its life ``broker_epoch`` now owns these sessions. Wins over any other broker; an item whose
    session the same broker owns in a higher epoch is fenced. ``restore`` asks for the properties stored until now,
    ``restore_parts`` for the session's subscriptions and what is in flight."""

    broker: str
    broker_epoch: U63
    items: Batch[SessionTakeoverItem]
    restore: bool = False
    restore_parts: bool = False


class SessionTakeoverReply(Message, frozen=True):
    """``previous[i]`` is the index in ``owners`` of item i's previous owner, or -1 where there was no session or the
    item failed.
    A session was present iff ``previous[i] >= 0`` and item i did not ask for a clean start. ``properties[i]``
    is set where a session was present and ``restore`` was asked for; otherwise the list is empty. The same holds of
    ``subscriptions`` and ``inflight``, and ``restore_parts``."""

    columns: ClassVar[dict[str, int | None]] = {
        "previous": -1,
        "properties": None,
        "subscriptions": None,
        "inflight": None,
    }

    revisions: list[Revision]
    errors: list[ItemError]
    owners: list[Owner]
    previous: list[I64]
    properties: list[SessionProperties | None]
    subscriptions: list[list[Subscribed] | None] = []
    inflight: list[list[InflightState] | None] = []


class SessionDisconnectItem(Message, frozen=True):
    """One client that has gone. ``expiry_interval_s`` counts instead of that in the properties (None: that counts).
    ``will_discard``: it has gone in good order, so its will is not published. ``attachment``: the revision of the
    takeover that connected it; a newer one, and any end of that connection, make the item fail (conflict). 0: that does
    not count."""

    tenant: str
    client_id: ClientId
    expiry_interval_s: U32 | None = None
    will_discard: bool = False
    attachment: U63 = 0


class SessionDisconnect(Message, frozen=True):
    """The clients have gone; their sessions stay with their owner until they are taken over, over, or deleted."""

    broker: str
    broker_epoch: U63
    items: Batch[SessionDisconnectItem]


class SessionUpdateItem(Message, frozen=True):
    """New properties of one session, replacing the old ones as a whole. ``attachment`` counts as it does for a
    disconnect."""

    tenant: str
    client_id: ClientId
    properties: SessionProperties
    attachment: U63 = 0


class SessionUpdate(Message, frozen=True):
    """Only the owner may update: an item whose session belongs to another broker answers not_owner, to another
    life of this one fenced."""

    broker: str
    broker_epoch: U63
    items: Batch[SessionUpdateItem]


class SessionDeleteItem(Message, frozen=True):
    """One session. If ``disconnected_ms`` is not 0, the session must be disconnected since exactly then.
    ``attachment`` counts as it does for a disconnect."""

    tenant: str
    client_id: ClientId
    disconnected_ms: U63 = 0
    attachment: U63 = 0


class SessionDelete(Message, frozen=True):
    """Delete sessions and all that belongs to them; with a non-empty ``broker`` only those it owns. Their wills are
    dropped."""

    items: Batch[SessionDeleteItem]
    broker: str = ""
    broker_epoch: U63 = 0


class SessionList(Message, frozen=True):
    """Sessions in order of (tenant, client_id), filtered. ``tenant`` and ``broker`` match exactly (None: any);
    ``client_id_prefix`` needs a tenant. ``slots`` is a bit map of those that are wanted, all of which the group must
    hold (empty: those that it holds); only sessions behind the key ``after``."""

    tenant: str | None = None
    client_id_prefix: ClientId = ""
    broker: str | None = None
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
    """An offset as read. ``committed_ms`` is the leader's Unix time."""

    tenant: str
    group: str
    topic: OwnTopic
    partition: U32
    offset: U63
    generation: U63
    committed_ms: U63
    metadata: str


class OffsetCommitItem(Message, frozen=True):
    """One commit. ``generation`` below the highest this consumer group has shown is fenced. ``expected`` (None:
    unchecked; -1: no offset yet) makes it a compare-and-set."""

    tenant: str
    group: str
    topic: OwnTopic
    partition: U32
    offset: U63
    generation: U53 = 0
    expected: I64 | None = None
    metadata: str = ""


class OffsetCommit(Message, frozen=True):
    """``monotonic`` refuses to move an offset back (the same again is fine). Checked in this order: generation,
    ``expected``, ``monotonic``. ``member``: of the consumer groups, in whose name it is committed; only if it is one,
    and in its group's generation. Empty: whoever names the generation."""

    items: Batch[OffsetCommitItem]
    monotonic: bool = False
    member: str = ""


class OffsetList(Message, frozen=True):
    """Offsets of one consumer group, in order of (topic, partition)."""

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
    """Read the generations of consumer groups."""

    items: Batch[ConsumerGroup]
    min_revisions: Revisions = []


class OffsetGenerationsReply(Message, frozen=True):
    """By position; 0 where no commit has carried one, or where the item failed."""

    columns: ClassVar[dict[str, int | None]] = {"generations": 0}

    generations: list[U63]
    errors: list[ItemError] = []


class GenerationReset(Message, frozen=True):
    """Put ``generation`` (0: none) in place of ``expected``, which the group's generation must be now."""

    tenant: str
    group: str
    expected: U63
    generation: U53 = 0


class OffsetResetGenerations(Message, frozen=True):
    """Set generations of consumer groups, also back."""

    items: Batch[GenerationReset]


# --- key-value -------------------------------------------------------------------------------------------


class KvKey(Message, frozen=True):
    """Identity of a key; the namespace routes it, so what shares a namespace can share a transaction."""

    namespace: str
    key: str


class Kv(Message, frozen=True):
    """A key as read. ``version`` counts the writes since it was created; the revisions are those of the entries
    that created it and wrote it last, and only grow, whichever group the key is in. ``lease``: the lease of the
    namespace that it is attached to, with whose end it is deleted; empty if there is none."""

    namespace: str
    key: str
    value: bytes
    version: U63
    create_revision: U63
    mod_revision: U63
    lease: str = ""


class KvPutItem(Message, frozen=True):
    """``expected_version`` (None: unchecked; 0: must not exist) makes it a compare-and-set."""

    namespace: str
    key: str
    value: bytes
    expected_version: U63 | None = None


class KvPut(Message, frozen=True):
    """Write keys. ``lease``: attach them to the lease of this name in their namespace; empty: to none, and a key that
    was attached to one is so no longer."""

    items: Batch[KvPutItem]
    lease: str = ""


class KvPutReply(Message, frozen=True):
    """``versions`` by position; 0 where the item failed."""

    columns: ClassVar[dict[str, int | None]] = {"versions": 0}

    revisions: list[Revision]
    errors: list[ItemError]
    versions: list[U63]


class KvDeleteItem(Message, frozen=True):
    """``expected_version`` (None: unchecked) makes it a compare-and-delete."""

    namespace: str
    key: str
    expected_version: U63 | None = None


class KvDelete(Message, frozen=True):
    """Delete keys; an absent one answers not_found."""

    items: Batch[KvDeleteItem]


class KvScan(Message, frozen=True):
    """Keys of one namespace that start with ``prefix``, in order."""

    namespace: str
    prefix: str = ""
    page: Page = Page()
    min_revisions: Revisions = []


class KvCompare(Message, frozen=True):
    """True iff the key has this ``version`` (None: unchecked; 0: absent), this ``value`` (None: unchecked) and this
    ``create_revision`` (None: unchecked; 0: absent), which no other life of the key has."""

    key: str
    version: U63 | None = None
    value: bytes | None = None
    create_revision: U63 | None = None


class KvOperation(Message, frozen=True):
    """``value`` None deletes the key if it is there; otherwise it is put, and attached to ``lease`` as by a
    :class:`KvPut`."""

    key: str
    value: bytes | None = None
    lease: str = ""


class KvTransaction(Message, frozen=True):
    """If every compare holds, do ``then``, otherwise ``otherwise``; all in one namespace, all at once. ``reads``
    are answered as of after it."""

    namespace: str
    compares: TransactionItems[KvCompare]
    then: TransactionItems[KvOperation]
    otherwise: TransactionItems[KvOperation] = []
    reads: TransactionItems[str] = []


class KvTransact(Message, frozen=True):
    """A batch of transactions; each is atomic by itself, not the batch."""

    items: Transactions[KvTransaction]


class KvTransactionResult(Message, frozen=True):
    """``succeeded``: the compares held. ``records`` answers ``reads`` by position."""

    succeeded: bool
    records: list[Kv | None]


class KvTransactReply(Message, frozen=True):
    """``results`` by position; None where the item failed."""

    columns: ClassVar[dict[str, int | None]] = {"results": None}

    revisions: list[Revision]
    errors: list[ItemError]
    results: list[KvTransactionResult | None]


# --- plain tables ----------------------------------------------------------------------------------------


class TableRecord(Message, Generic[T], frozen=True):
    """A record of a plain table as read. ``version`` counts the writes since it was created; the revisions are those of
    the entries that created it and wrote it last."""

    record: T
    version: U63
    create_revision: U63
    mod_revision: U63


class TablePutItem(Message, Generic[T], frozen=True):
    """``expected_version`` (None: unchecked; 0: must not exist) makes it a compare-and-set."""

    record: T
    expected_version: U63 | None = None


class TablePut(Message, Generic[T], frozen=True):
    """Write records."""

    items: Batch[TablePutItem[T]]


class TablePutReply(Message, frozen=True):
    """``versions`` by position; 0 where the item failed."""

    columns: ClassVar[dict[str, int | None]] = {"versions": 0}

    revisions: list[Revision]
    errors: list[ItemError]
    versions: list[U63]


class TableDeleteItem(Message, Generic[T], frozen=True):
    """``key`` has the fields of the table's key. ``expected_version`` (None: unchecked) makes it a
    compare-and-delete."""

    key: T
    expected_version: U63 | None = None


class TableDelete(Message, Generic[T], frozen=True):
    """Delete records; an absent one answers not_found."""

    items: Batch[TableDeleteItem[T]]


class TableList(Message, frozen=True):
    """Records whose key begins with ``fields``, in order of their keys. If the next field of the key is text, it starts
    with ``prefix``. If ``fields`` lack a routing field, every group has a listing of its own: of the ``slots`` that
    are wanted of it, a bit map (empty: those that it holds), and behind the key ``after`` (empty: from the first)."""

    fields: KeyFields = []
    prefix: str = ""
    page: Page = Page()
    min_revisions: Revisions = []
    slots: bytes = b""
    after: KeyFields = []


# --- system ----------------------------------------------------------------------------------------------


class Status(Message, frozen=True):
    """Ask a node how it is."""


class FollowerStatus(Message, frozen=True):
    """Another member of a group, as the group's leader sees it. ``state`` is ``replicate`` (it gets every entry),
    ``probe`` (the leader does not know yet where the logs agree), ``snapshot`` (it needs or gets one) or ``lost`` (it
    lacks what it acknowledged, and is not counted any more)."""

    node_id: str
    state: str
    match: U63  # log index up to which it has durably what the leader has
    reachable: bool
    obstacle: str = ""  # why it does not get what it lacks; empty if nothing is in the way, or nothing is known


class GroupStatus(Message, frozen=True):
    """One group on this node. ``applied`` and ``last`` are log indexes; ``log_bytes`` what a restart may replay."""

    name: str
    kind: str
    slots: U63
    applied: U63
    first: U63
    last: U63
    log_bytes: U63
    role: str = ""  # follower, candidate or leader
    leader: str = ""  # node id, as far as known
    term: U63 = 0
    commit: U63 = 0
    voters: list[str] = []
    learners: list[str] = []
    configured: U63 = 0  # index of the entry that made them so
    followers: list[FollowerStatus] = []  # of the leader only
    leaderless_ms: U63 = 0  # since when this node has known no leader; 0 if it knows one
    fence_entries: U63 = 0  # that raise fences of brokers and were applied here, since the node's start
    waiting_items: U63 = 0  # of writes in front of it, at its leader
    wait_ms: U63 = 0  # how long these take, by the rate
    served_per_s: U63 = 0  # the rate: items begun per second when many waited last; at first an assumption


class LaneStatus(Message, frozen=True):
    """Requests of clients for the groups of a node, of methods of one lane, since the node's start."""

    lane: str
    admitted: U63  # writes that were let in
    refused: U63  # requests that were turned away because they would have waited too long


class PeerLink(Message, frozen=True):
    """The connection on which a node sends to another. ``transport`` is ``tcp``, ``tls`` or ``quic``; ``rtt_us`` is 0
    where it is not known. If the connection is not up, the last three say why, as far as known."""

    node_id: str
    transport: str
    up: bool
    rtt_us: U63 = 0
    refuses: str = ""  # why this node refuses the other
    refused: str = ""  # why the other refuses this node
    obstacle: str = ""  # why there is no connection otherwise


class Backlog(Message, frozen=True):
    """What is late or waits in the groups that a node leads: deadlines of sessions, wills and retained messages that
    have passed and are not carried out, fences of lives whose sessions may still look connected, wills that are due and
    not acknowledged, and how many of these no broker has at the moment; orders to end a tenant. Of each group at most
    :data:`BACKLOG_MAX` of each are counted."""

    deadlines: U63 = 0
    fences: U63 = 0
    wills: U63 = 0
    unclaimed: U63 = 0
    unclaimed_ms: U63 = 0  # for how long the oldest of these has been due
    more: bool = False  # some group has more than were counted
    tenants: U63 = 0  # orders to end a tenant that are not carried out


class TurnedAway(Message, frozen=True):
    """Whom a node turned away since its start because it was busy, and when they come back: at ``per_s`` items per
    second, and all these slots are taken for ``ahead_ms`` from now on. ``early`` counts those that came before their
    slot and were told the same again, ``paced`` the connections that waited until it was their turn to be accepted.
    ``granted``: ``per_s`` is this node's part of the cluster's budget, otherwise what the node knows by itself."""

    requests: U63 = 0
    early: U63 = 0
    per_s: U63 = 0
    ahead_ms: U63 = 0
    granted: bool = False
    paced: U63 = 0


class DiskStatus(Message, frozen=True):
    """The disk of a node's data directory. Below ``low_bytes`` of room the node takes nothing that grows. All are 0 if
    the node has no disk, or has not looked yet."""

    free_bytes: U63 = 0
    total_bytes: U63 = 0
    low_bytes: U63 = 0
    short: U63 = 0
    """1: the node says that it is short of room. 2: it has next to none, and takes no entries either."""


BACKLOG_MAX = 1_000


class StatusReply(Message, frozen=True):
    """A node's state. Times are since its start; ``cpu_us`` is user and system time of the whole process."""

    node_id: str
    cluster_id: str
    version: str
    pid: U63
    uptime_ms: U63
    cpu_us: U63
    rss_bytes: U63
    fsync: bool
    replicas: U63
    connections: U63
    in_flight_bytes: U63
    entries: U63  # written to the log since start
    syncs: U63  # of the log since start
    groups: list[GroupStatus]
    region: str = ""
    links: list[PeerLink] = []
    failing: str = ""  # why this node can store nothing; empty if it can
    watch_streams: U63 = 0  # of watches, on this node
    sessions_ended: U63 = 0  # since start, by their deadlines, in groups that this node leads
    wills_due: U63 = 0  # since start, the same
    overdue_ms: U63 = 0  # for how long a deadline has passed that is not carried out
    backlog: Backlog = Backlog()
    wills_dropped: U63 = 0  # since start, because no broker has published them for too long
    turned_away: TurnedAway = TurnedAway()
    lanes: list[LaneStatus] = []
    disk: DiskStatus = DiskStatus()
