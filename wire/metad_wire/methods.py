"""The methods by name: those of the tables, and those that a node answers without one."""

from __future__ import annotations

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
from .tables.broker import BROKER_CHANGE as BROKER_CHANGE
from .tables.broker import BROKER_DEREGISTER as BROKER_DEREGISTER
from .tables.broker import BROKER_DRAIN as BROKER_DRAIN
from .tables.broker import BROKER_FENCE as BROKER_FENCE
from .tables.broker import BROKER_GET as BROKER_GET
from .tables.broker import BROKER_HEARTBEAT as BROKER_HEARTBEAT
from .tables.broker import BROKER_LIST as BROKER_LIST
from .tables.broker import BROKER_REGISTER as BROKER_REGISTER
from .tables.cluster import CLUSTER_STORE as CLUSTER_STORE
from .tables.cluster import GROUP_COMMAND as GROUP_COMMAND
from .tables.cluster import GROUP_FENCE as GROUP_FENCE
from .tables.consumer import CONSUMER_ASSIGN as CONSUMER_ASSIGN
from .tables.consumer import CONSUMER_DESCRIBE as CONSUMER_DESCRIBE
from .tables.consumer import CONSUMER_EXPIRE as CONSUMER_EXPIRE
from .tables.consumer import CONSUMER_GET as CONSUMER_GET
from .tables.consumer import CONSUMER_HEARTBEAT as CONSUMER_HEARTBEAT
from .tables.consumer import CONSUMER_JOIN as CONSUMER_JOIN
from .tables.consumer import CONSUMER_LEAVE as CONSUMER_LEAVE
from .tables.consumer import CONSUMER_MEMBERS as CONSUMER_MEMBERS
from .tables.inflight import INFLIGHT_DELETE as INFLIGHT_DELETE
from .tables.inflight import INFLIGHT_GET as INFLIGHT_GET
from .tables.inflight import INFLIGHT_PUT as INFLIGHT_PUT
from .tables.kv import KV_DELETE as KV_DELETE
from .tables.kv import KV_GET as KV_GET
from .tables.kv import KV_PUT as KV_PUT
from .tables.kv import KV_SCAN as KV_SCAN
from .tables.kv import KV_TRANSACT as KV_TRANSACT
from .tables.lease import LEASE_ATTACH as LEASE_ATTACH
from .tables.lease import LEASE_DETACH as LEASE_DETACH
from .tables.lease import LEASE_EXPIRE as LEASE_EXPIRE
from .tables.lease import LEASE_GET as LEASE_GET
from .tables.lease import LEASE_GRANT as LEASE_GRANT
from .tables.lease import LEASE_KEEP_ALIVE as LEASE_KEEP_ALIVE
from .tables.lease import LEASE_KEYS as LEASE_KEYS
from .tables.lease import LEASE_LIST as LEASE_LIST
from .tables.lease import LEASE_REVOKE as LEASE_REVOKE
from .tables.offset import OFFSET_COMMIT as OFFSET_COMMIT
from .tables.offset import OFFSET_DELETE as OFFSET_DELETE
from .tables.offset import OFFSET_DELETE_GROUPS as OFFSET_DELETE_GROUPS
from .tables.offset import OFFSET_EXPIRE_GROUPS as OFFSET_EXPIRE_GROUPS
from .tables.offset import OFFSET_FETCH as OFFSET_FETCH
from .tables.offset import OFFSET_GENERATIONS as OFFSET_GENERATIONS
from .tables.offset import OFFSET_GROUPS as OFFSET_GROUPS
from .tables.offset import OFFSET_LIST as OFFSET_LIST
from .tables.offset import OFFSET_RESET_GENERATIONS as OFFSET_RESET_GENERATIONS
from .tables.retained import RETAINED_DELETE as RETAINED_DELETE
from .tables.retained import RETAINED_GET as RETAINED_GET
from .tables.retained import RETAINED_MATCH as RETAINED_MATCH
from .tables.retained import RETAINED_PUT as RETAINED_PUT
from .tables.sequence import SEQUENCE_ADD as SEQUENCE_ADD
from .tables.sequence import SEQUENCE_DELETE as SEQUENCE_DELETE
from .tables.sequence import SEQUENCE_GET as SEQUENCE_GET
from .tables.sequence import SEQUENCE_LIST as SEQUENCE_LIST
from .tables.session import SESSION_DELETE as SESSION_DELETE
from .tables.session import SESSION_DISCONNECT as SESSION_DISCONNECT
from .tables.session import SESSION_END_STEP as SESSION_END_STEP
from .tables.session import SESSION_END_TENANT as SESSION_END_TENANT
from .tables.session import SESSION_ENDINGS as SESSION_ENDINGS
from .tables.session import SESSION_GET as SESSION_GET
from .tables.session import SESSION_LIST as SESSION_LIST
from .tables.session import SESSION_LOSE as SESSION_LOSE
from .tables.session import SESSION_SWEEP as SESSION_SWEEP
from .tables.session import SESSION_TAKEOVER as SESSION_TAKEOVER
from .tables.session import SESSION_UPDATE as SESSION_UPDATE
from .tables.subscription import SUBSCRIPTION_ADD as SUBSCRIPTION_ADD
from .tables.subscription import SUBSCRIPTION_GET as SUBSCRIPTION_GET
from .tables.subscription import SUBSCRIPTION_LIST as SUBSCRIPTION_LIST
from .tables.subscription import SUBSCRIPTION_REMOVE as SUBSCRIPTION_REMOVE
from .tables.will import WILL_ACKNOWLEDGE as WILL_ACKNOWLEDGE
from .tables.will import WILL_CLAIM as WILL_CLAIM
from .tables.will import WILL_EXPIRE as WILL_EXPIRE
from .tables.will import WILL_LIST as WILL_LIST
from .tables.will import WILL_RELEASE as WILL_RELEASE
from .tables.will import WILL_WAIT as WILL_WAIT
from .watch import WatchOpen, WatchOpened

STATUS = Method(0x0001, "system.status", m.Status, m.StatusReply, Lane.CONTROL, mutates=False, by=By.ANY)

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

AHEAD = frozenset(method.code for method in (BROKER_HEARTBEAT, LEASE_KEEP_ALIVE, CONSUMER_HEARTBEAT))
"""Methods that keep somebody alive. A server begins their requests before all others that a connection has sent."""

BETWEEN_NODES = frozenset(method.code for method in METHODS.values() if method.whose is For.NODES)
"""Methods that clients may not use."""
