"""The Python SDK of metad: sessions, offsets and key-values over self-healing connections to the nodes of a cluster.

::

    from metad_client import connect, SessionTakeoverItem

    async with connect("metad://127.0.0.1:7420") as m:
        result = await m.sessions.takeover_many("broker-1", 7, [SessionTakeoverItem("acme", "device-1")])
        result.raise_for_error()

Layer rule: imports only :mod:`metad_wire`, msgspec and the standard library. The way of a call:

- :mod:`metad_client.namespaces`: the verbs of ``m.sessions``, ``m.subscriptions``, ``m.inflight``, ``m.wills``, …
- :mod:`metad_client.families`: verbs with rules, over tables of families: ``m.topics``, ``m.schemas``, …
- :mod:`metad_client.requests`: encodes items as requests of one group each; joins singles
- :mod:`metad_client.dispatch`: each request from submission to outcome: waiting, in flight, redirected, retried, late
- :mod:`metad_client.watch`: changes of all groups as one iterator
- :mod:`metad_client.connections`: a connection to each node, kept up
- :mod:`metad_client.client`: the whole; :mod:`metad_client.blocking`: the same, without asyncio
- :mod:`metad_client.topics`: who subscribes to a topic, for brokers; it needs no client
- :mod:`metad_client.observer`: what a program may be told about its client
- :mod:`metad_client.limits`: how long a key, a value, a name may be
- :mod:`metad_client.cli`: ``metadctl``
"""

from metad_wire import __version__
from metad_wire.cluster import ClusterMap, Done, FenceItem, GroupId, GroupRecord, MapReply, NodeRecord, SlotMove
from metad_wire.declaration import Declaration, DeclaredField, DeclaredIndex, Record
from metad_wire.messages import (
    ActivityReply,
    Backlog,
    CertificateStatus,
    CompactReply,
    ConsumerGroup,
    DiskStatus,
    EventsReply,
    FollowerStatus,
    GenerationReset,
    GroupStatus,
    Kv,
    KvCompare,
    KvDeleteItem,
    KvKey,
    KvOperation,
    KvPutItem,
    KvTransaction,
    KvTransactionResult,
    LaneStatus,
    LoggedEvent,
    Loud,
    Message,
    Offset,
    OffsetCommitItem,
    OffsetKey,
    Owner,
    PeerLink,
    Revision,
    Session,
    SessionDeleteItem,
    SessionDisconnectItem,
    SessionKey,
    SessionOwner,
    SessionProperties,
    SessionTakeoverItem,
    SessionUpdateItem,
    SlowRequest,
    StatusReply,
    TablePutItem,
    TableRecord,
    Tail,
    TenantEnd,
    TenantMove,
    TurnedAway,
    Will,
)
from metad_wire.operator.backup import BackupBegun, BackupEntries, BackupFile, BackupGroup, Restore, Restored
from metad_wire.operator.moving import (
    TenantCopied,
    TenantCopy,
    TenantPosition,
    TenantPut,
    TenantPutReply,
    TenantStep,
    TenantStepped,
)
from metad_wire.operator.settings import NodeSetting, SettingsReply
from metad_wire.policy import Backoff, PathRule, RetryBudget
from metad_wire.tables.access import (
    AuditEntry,
    BindingChange,
    Given,
    Grant,
    May,
    MayReply,
    PrincipalKey,
    PrincipalRoles,
    Role,
    RoleKey,
    Wish,
)
from metad_wire.tables.assignment import (
    Candidate,
    Claim,
    Elect,
    Explanation,
    InSync,
    MovePartition,
    PartitionKey,
    Release,
    ReportPosition,
    ResourceAlter,
    ResourceCreate,
    ResourceKey,
    ResourceResize,
    Seal,
)
from metad_wire.tables.broker import Broker, BrokerEnded, BrokerKey
from metad_wire.tables.consumer import (
    AssignItem,
    Beat,
    ConsumerGroupInfo,
    GroupState,
    JoinItem,
    Member,
    MemberAssignment,
    MemberKey,
)
from metad_wire.tables.declaration import DeclarationKey, DeclaredTable
from metad_wire.tables.feature import FeatureRecord, FeatureWish
from metad_wire.tables.inflight import Inflight, InflightKey, InflightState
from metad_wire.tables.lease import Lease, LeaseGrantItem, LeaseKey, LeaseKeyItem
from metad_wire.tables.offset import KnownGroup
from metad_wire.tables.plan import NewPlan, Plan, PlanKey, PlanState
from metad_wire.tables.retained import Retained, RetainedDeleteItem, RetainedKey, RetainedPutItem
from metad_wire.tables.sequence import SequenceAddItem, SequenceKey, SequenceRecord
from metad_wire.tables.subscription import Subscribed, Subscription, SubscriptionKey, SubscriptionOptions
from metad_wire.tables.table import PlainTable
from metad_wire.tables.tenants import Quota, QuotaKey, TableUse, Use
from metad_wire.tables.will import DueWill, WillClaimant, WillDue, WillKey
from metad_wire.text.fields import U32, U63
from metad_wire.transport.credentials import TlsFiles, client_files
from metad_wire.watch import ChangeKind, WatchChange, WatchRows

from . import limits
from .assignment.assigned import Assigned
from .assignment.assignments import Assignments
from .assignment.choosing import Choice
from .assignment.in_sync import InSyncReplicas
from .assignment.plans import Plans, Recommendation
from .assignment.route import PartitionRoute
from .assignment.serving import Following, Held, Led, Serving
from .broker_life import BrokerLife, LifeState
from .client import Client, Statistics, VerbStatistics, connect
from .dispatch.calls.call import BOUNDS_S
from .dispatch.states import ClientState
from .endpoint import PORT_DEFAULT
from .errors import (
    CancelledError,
    ClosedError,
    ConflictError,
    ConnectionLostError,
    CreditError,
    DeadlineExceededError,
    DrainingError,
    FencedError,
    ForeignCallError,
    ForkedError,
    FrameError,
    FrameTooLargeError,
    HandshakeError,
    IdentityExpiredError,
    IncompatibleSchemaError,
    IndexBuildingError,
    IneligibleError,
    InternalError,
    InvalidItemError,
    InvalidRequestError,
    LogCutError,
    MetadError,
    MissingExtraError,
    NoCandidateError,
    NoPlaceError,
    NoReplicaError,
    NoRoomError,
    NotFoundError,
    NotFreshError,
    NotLeaderError,
    NotOwnerError,
    NotReplicaError,
    OffsetRegressionError,
    OverloadedError,
    PermissionDeniedError,
    PositionAheadError,
    QuotaError,
    QuotaExceededError,
    ShrinkError,
    SlowReaderError,
    StaleRouteError,
    TenantMovedError,
    TenantMovingError,
    TooEarlyError,
    TooLargeError,
    UnauthenticatedError,
    UnexpectedFrameError,
    UnknownMethodError,
    UnknownOutcomeError,
    UnknownTableError,
    UnsupportedError,
)
from .families.audit import Audit
from .families.backups import Backups
from .families.config import Change, Config, Effective, Setting
from .families.features import Features
from .families.principals import Principals
from .families.quotas import Quotas
from .families.roles import Roles
from .families.schemas import Followed, NewSchema, Schemas
from .families.tenants import Tenants
from .families.topics import Resize, Topics
from .families.users import Users
from .holding.belief import LeaseState
from .holding.lease import HeldLease
from .holding.lock import Lock
from .holding.membership import Assign, Generation, Membership
from .holding.owned import Owned, OwnedResult
from .namespaces.brokers import Brokers
from .namespaces.cluster import Cluster
from .namespaces.consumers import Consumers
from .namespaces.inflight import InflightStates
from .namespaces.kv import KeyValue
from .namespaces.leases import Leases
from .namespaces.offsets import Offsets
from .namespaces.retained import RetainedMessages
from .namespaces.sequences import Sequences
from .namespaces.sessions import Sessions
from .namespaces.subscriptions import Subscriptions
from .namespaces.tables import Compare, Delete, Put, Records, Tables, Transaction
from .namespaces.wills import TakenWill, Wills
from .observer import Begun, Connected, Disconnected, Ended, Observer, Redirected, Retried, StateChanged, Trace
from .options import Options
from .results import (
    AddResult,
    GrantResult,
    JoinResult,
    PutResult,
    ReadResult,
    RuleResult,
    SubscribeResult,
    TablesTransactResult,
    Takeover,
    TakeoverResult,
    TransactionResult,
    TransactResult,
    WriteResult,
)
from .routes import Route
from .watch.event import WatchEvent
from .watch.events import WatchBatch
from .watch.filters import Watched
from .watch.image import Image
from .watch.image_table import ImageTable
from .watch.snapshot import Snapshot, SnapshotPart
from .watch.typed import AnyEvent, AnyTable
from .watch.watch import Watch

__all__ = [
    "BOUNDS_S",
    "PORT_DEFAULT",
    "U32",
    "U63",
    "ActivityReply",
    "AddResult",
    "AnyEvent",
    "AnyTable",
    "Assign",
    "AssignItem",
    "Assigned",
    "Assignments",
    "Audit",
    "AuditEntry",
    "Backlog",
    "Backoff",
    "BackupBegun",
    "BackupEntries",
    "BackupFile",
    "BackupGroup",
    "Backups",
    "Beat",
    "Begun",
    "BindingChange",
    "Broker",
    "BrokerEnded",
    "BrokerKey",
    "BrokerLife",
    "Brokers",
    "CancelledError",
    "Candidate",
    "CertificateStatus",
    "Change",
    "ChangeKind",
    "Choice",
    "Claim",
    "Client",
    "ClientState",
    "ClosedError",
    "Cluster",
    "ClusterMap",
    "CompactReply",
    "Compare",
    "Config",
    "ConflictError",
    "Connected",
    "ConnectionLostError",
    "ConsumerGroup",
    "ConsumerGroupInfo",
    "Consumers",
    "CreditError",
    "DeadlineExceededError",
    "Declaration",
    "DeclarationKey",
    "DeclaredField",
    "DeclaredIndex",
    "DeclaredTable",
    "Delete",
    "Disconnected",
    "DiskStatus",
    "Done",
    "DrainingError",
    "DueWill",
    "Effective",
    "Elect",
    "Ended",
    "EventsReply",
    "Explanation",
    "FeatureRecord",
    "FeatureWish",
    "Features",
    "FenceItem",
    "FencedError",
    "Followed",
    "FollowerStatus",
    "Following",
    "ForeignCallError",
    "ForkedError",
    "FrameError",
    "FrameTooLargeError",
    "Generation",
    "GenerationReset",
    "Given",
    "Grant",
    "GrantResult",
    "GroupId",
    "GroupRecord",
    "GroupState",
    "GroupStatus",
    "HandshakeError",
    "Held",
    "HeldLease",
    "IdentityExpiredError",
    "Image",
    "ImageTable",
    "InSync",
    "InSyncReplicas",
    "IncompatibleSchemaError",
    "IndexBuildingError",
    "IneligibleError",
    "Inflight",
    "InflightKey",
    "InflightState",
    "InflightStates",
    "InternalError",
    "InvalidItemError",
    "InvalidRequestError",
    "JoinItem",
    "JoinResult",
    "KeyValue",
    "KnownGroup",
    "Kv",
    "KvCompare",
    "KvDeleteItem",
    "KvKey",
    "KvOperation",
    "KvPutItem",
    "KvTransaction",
    "KvTransactionResult",
    "LaneStatus",
    "Lease",
    "LeaseGrantItem",
    "LeaseKey",
    "LeaseKeyItem",
    "LeaseState",
    "Leases",
    "Led",
    "LifeState",
    "Lock",
    "LogCutError",
    "LoggedEvent",
    "Loud",
    "MapReply",
    "May",
    "MayReply",
    "Member",
    "MemberAssignment",
    "MemberKey",
    "Membership",
    "Message",
    "MetadError",
    "MissingExtraError",
    "MovePartition",
    "NewPlan",
    "NewSchema",
    "NoCandidateError",
    "NoPlaceError",
    "NoReplicaError",
    "NoRoomError",
    "NodeRecord",
    "NodeSetting",
    "NotFoundError",
    "NotFreshError",
    "NotLeaderError",
    "NotOwnerError",
    "NotReplicaError",
    "Observer",
    "Offset",
    "OffsetCommitItem",
    "OffsetKey",
    "OffsetRegressionError",
    "Offsets",
    "Options",
    "OverloadedError",
    "Owned",
    "OwnedResult",
    "Owner",
    "PartitionKey",
    "PartitionRoute",
    "PathRule",
    "PeerLink",
    "PermissionDeniedError",
    "PlainTable",
    "Plan",
    "PlanKey",
    "PlanState",
    "Plans",
    "PositionAheadError",
    "PrincipalKey",
    "PrincipalRoles",
    "Principals",
    "Put",
    "PutResult",
    "Quota",
    "QuotaError",
    "QuotaExceededError",
    "QuotaKey",
    "Quotas",
    "ReadResult",
    "Recommendation",
    "Record",
    "Records",
    "Redirected",
    "Release",
    "ReportPosition",
    "Resize",
    "ResourceAlter",
    "ResourceCreate",
    "ResourceKey",
    "ResourceResize",
    "Restore",
    "Restored",
    "Retained",
    "RetainedDeleteItem",
    "RetainedKey",
    "RetainedMessages",
    "RetainedPutItem",
    "Retried",
    "RetryBudget",
    "Revision",
    "Role",
    "RoleKey",
    "Roles",
    "Route",
    "RuleResult",
    "Schemas",
    "Seal",
    "SequenceAddItem",
    "SequenceKey",
    "SequenceRecord",
    "Sequences",
    "Serving",
    "Session",
    "SessionDeleteItem",
    "SessionDisconnectItem",
    "SessionKey",
    "SessionOwner",
    "SessionProperties",
    "SessionTakeoverItem",
    "SessionUpdateItem",
    "Sessions",
    "Setting",
    "SettingsReply",
    "ShrinkError",
    "SlotMove",
    "SlowReaderError",
    "SlowRequest",
    "Snapshot",
    "SnapshotPart",
    "StaleRouteError",
    "StateChanged",
    "Statistics",
    "StatusReply",
    "SubscribeResult",
    "Subscribed",
    "Subscription",
    "SubscriptionKey",
    "SubscriptionOptions",
    "Subscriptions",
    "TablePutItem",
    "TableRecord",
    "TableUse",
    "Tables",
    "TablesTransactResult",
    "Tail",
    "TakenWill",
    "Takeover",
    "TakeoverResult",
    "TenantCopied",
    "TenantCopy",
    "TenantEnd",
    "TenantMove",
    "TenantMovedError",
    "TenantMovingError",
    "TenantPosition",
    "TenantPut",
    "TenantPutReply",
    "TenantStep",
    "TenantStepped",
    "Tenants",
    "TlsFiles",
    "TooEarlyError",
    "TooLargeError",
    "Topics",
    "Trace",
    "TransactResult",
    "Transaction",
    "TransactionResult",
    "TurnedAway",
    "UnauthenticatedError",
    "UnexpectedFrameError",
    "UnknownMethodError",
    "UnknownOutcomeError",
    "UnknownTableError",
    "UnsupportedError",
    "Use",
    "Users",
    "VerbStatistics",
    "Watch",
    "WatchBatch",
    "WatchChange",
    "WatchEvent",
    "WatchRows",
    "Watched",
    "Will",
    "WillClaimant",
    "WillDue",
    "WillKey",
    "Wills",
    "Wish",
    "WriteResult",
    "__version__",
    "client_files",
    "connect",
    "limits",
]
