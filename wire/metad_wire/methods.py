"""The methods by name: those of the tables, and those that a node answers without one."""

from __future__ import annotations

from typing import Any

from . import cluster as c
from . import messages as m
from . import tables as tables  # all of them: each declares its methods
from .method import METHODS as METHODS
from .method import METHODS_BY_NAME as METHODS_BY_NAME
from .method import Body as Body
from .method import By as By
from .method import For as For
from .method import Head as Head
from .method import Lane as Lane
from .method import Method as Method
from .method import Reply as Reply
from .method import encode as encode
from .operator import backup as bak
from .operator import settings as st
from .tables import broker, consumer, lease
from .tables.access import *  # noqa: F403
from .tables.assignment import *  # noqa: F403
from .tables.broker import *  # noqa: F403
from .tables.cluster import *  # noqa: F403
from .tables.consumer import *  # noqa: F403
from .tables.declaration import *  # noqa: F403
from .tables.feature import *  # noqa: F403
from .tables.inflight import *  # noqa: F403
from .tables.kv import *  # noqa: F403
from .tables.lease import *  # noqa: F403
from .tables.offset import *  # noqa: F403
from .tables.plan import *  # noqa: F403
from .tables.retained import *  # noqa: F403
from .tables.sequence import *  # noqa: F403
from .tables.session import *  # noqa: F403
from .tables.subscription import *  # noqa: F403
from .tables.table import *  # noqa: F403
from .tables.tenants import *  # noqa: F403
from .tables.will import *  # noqa: F403
from .watch import WatchOpen, WatchOpened

STATUS = Method(0x0001, "system.status", m.Status, m.StatusReply, Lane.CONTROL, mutates=False, by=By.ANY)

ACTIVITY = Method(0x000E, "system.activity", m.Activity, m.ActivityReply, Lane.CONTROL, mutates=False, by=By.ANY)
EVENTS = Method(0x074B, "system.events", m.Events, m.EventsReply, Lane.CONTROL, mutates=False, by=By.ANY)
COMPACT = Method(
    *(0x0762, "system.compact", m.Compact, m.CompactReply, Lane.CONTROL), mutates=False, by=By.ANY, whose=For.ADMINS
)

SETTINGS = Method(
    0x0790,
    "system.settings",
    st.GetSettings,
    st.SettingsReply,
    Lane.CONTROL,
    mutates=False,
    by=By.ANY,
    whose=For.ADMINS,
)
SETTING_SET = Method(
    *(0x0791, "system.set", st.SetSetting, st.SettingsReply, Lane.CONTROL),
    mutates=False,
    by=By.ANY,
    whose=For.ADMINS,
    repeatable=False,
)

CLUSTER_MAP = Method(0x0002, "cluster.map", c.MapRequest, c.MapReply, Lane.CONTROL, mutates=False, by=By.ANY)
CLUSTER_JOIN = Method(
    0x0004, "cluster.join", c.Join, c.Done, Lane.CONTROL, mutates=False, by=By.METADATA, whose=For.ADMINS
)
CLUSTER_LEAVE = Method(
    0x0005, "cluster.leave", c.Leave, c.Done, Lane.CONTROL, mutates=False, by=By.METADATA, whose=For.ADMINS
)
CLUSTER_TRANSFER = Method(
    0x0006, "cluster.transfer", c.Transfer, c.Done, Lane.CONTROL, mutates=False, by=By.METADATA, whose=For.ADMINS
)
CLUSTER_ADD_GROUP = Method(
    0x0007, "cluster.add_group", c.AddGroup, c.Done, Lane.CONTROL, mutates=False, by=By.METADATA, whose=For.ADMINS
)
CLUSTER_REBALANCE = Method(
    0x0008, "cluster.rebalance", c.Rebalance, c.Done, Lane.CONTROL, mutates=False, by=By.METADATA, whose=For.ADMINS
)
CLUSTER_DRAIN = Method(
    0x0780, "cluster.drain", c.Drain, c.Done, Lane.CONTROL, mutates=False, by=By.METADATA, whose=For.ADMINS
)
CLUSTER_MOVE_SLOTS = Method(
    0x0781, "cluster.move_slots", c.MoveSlots, c.Done, Lane.CONTROL, mutates=False, by=By.METADATA, whose=For.ADMINS
)
CLUSTER_MOVE_REPLICA = Method(
    0x0782, "cluster.move_replica", c.MoveReplica, c.Done, Lane.CONTROL, mutates=False, by=By.METADATA, whose=For.ADMINS
)
CLUSTER_REMOVE_GROUP = Method(
    0x0783, "cluster.remove_group", c.RemoveGroup, c.Done, Lane.CONTROL, mutates=False, by=By.METADATA, whose=For.ADMINS
)
CLUSTER_MOVED = Method(
    0x0009, "cluster.moved", c.Moved, c.Done, Lane.CONTROL, mutates=False, by=By.METADATA, whose=For.NODES
)
CLUSTER_RETURNS = Method(
    0x000C,
    "cluster.returns",
    c.ReturnReport,
    c.ReturnGrant,
    Lane.CONTROL,
    mutates=False,
    by=By.METADATA,
    whose=For.NODES,
)

READ_INDEX = Method(
    0x000D, "group.read_index", c.ReadIndex, c.ReadIndexReply, Lane.CONTROL, mutates=False, by=By.GROUP, whose=For.NODES
)

_OF_BACKUPS: Any = {"mutates": False, "by": By.ANY, "whose": For.ADMINS, "repeatable": False}
BACKUP_BEGIN = Method(0x0770, "backup.begin", bak.BackupBegin, bak.BackupBegun, Lane.SCANS, **_OF_BACKUPS)
BACKUP_READ = Method(0x0771, "backup.read", bak.BackupRead, bak.BackupPiece, Lane.SCANS, **_OF_BACKUPS)
BACKUP_END = Method(0x0772, "backup.end", bak.BackupEnd, c.Done, Lane.SCANS, **_OF_BACKUPS)
BACKUP_LOG = Method(0x0773, "backup.log", bak.BackupLog, bak.BackupEntries, Lane.SCANS, **_OF_BACKUPS)
GROUP_COMPARE = Method(
    0x0760, "group.compare", c.GroupCompare, c.GroupSum, Lane.CONTROL, mutates=False, by=By.ANY, whose=For.NODES
)
GROUP_REBUILD = Method(
    0x0761, "group.rebuild", c.GroupRebuild, c.GroupRebuilding, Lane.CONTROL, mutates=False, by=By.ANY, whose=For.NODES
)

WATCH_OPEN = Method(0x000B, "watch.open", WatchOpen, WatchOpened, Lane.SCANS, mutates=False, by=By.REPLICA)
"""The reply begins a stream of events, which ends with one that says so, with a CANCEL or with the connection."""

READS = frozenset(
    method.code
    for method in METHODS.values()
    if not method.mutates and method.repeatable and method.by in {By.ANY, By.GROUP} and method.whose is not For.NODES
)
"""Methods that change nothing, however often they are repeated and by whomever: all that 0-RTT data may ask for. A
watch is none of them: a copy of its request would make a node work for nobody. Nor is a keep-alive: a copy would keep
a lease alive whose holder is gone; nor a wait for a turn: a copy would take it from those who use theirs."""

NEAR = frozenset(
    method.code
    for method in METHODS.values()
    if method.code in READS
    and method.by is By.GROUP
    and method.code not in {lease.LEASE_GET.code, lease.LEASE_LIST.code}  # only the leader knows what time is left
)
"""Methods that a replica may answer that does not lead, if it can prove that it is as new as the request wants."""

AHEAD = frozenset(
    method.code for method in (broker.BROKER_HEARTBEAT, lease.LEASE_KEEP_ALIVE, consumer.CONSUMER_HEARTBEAT)
)
"""Methods that keep somebody alive. A server begins their requests before all others that a connection has sent."""

BETWEEN_NODES = frozenset(method.code for method in METHODS.values() if method.whose is For.NODES)
"""Methods that clients may not use."""
