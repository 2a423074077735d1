"""Arguments that make sense for every verb of the SDK, for tests that then make one of them senseless."""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from typing import Any

import msgspec
from plain_bodies import filled
from typed_verbs import is_plain, lists, namespace_of, tables

from metad_client import U63, Compare, Delete, Given, Grant, NewSchema, Put, Resize, Setting, Transaction, Wish
from metad_wire import cluster as c
from metad_wire import messages as m
from metad_wire.declaration import Record
from metad_wire.families import FAMILIES
from metad_wire.method import For, Method
from metad_wire.methods import NEAR
from metad_wire.tables import assignment as a
from metad_wire.tables import consumer as g
from metad_wire.tables import inflight as i
from metad_wire.tables import retained as r
from metad_wire.tables import subscription as s
from metad_wire.tables import will as w
from metad_wire.tables.lease import LeaseGrantItem, LeaseKey
from metad_wire.tables.sequence import SequenceAddItem


class Topic(Record, frozen=True):
    """A record of a table that is declared."""

    tenant: str
    topic: str
    ends_ms: U63 = 0


TOPICS = FAMILIES["topic"]
OVER_TABLES = Transaction(
    compares=[Compare(TOPICS, ("t", "o"), 0, "topic", "o")],
    then=[Put(TOPICS, TOPICS.record("t", "o"))],
    otherwise=[Delete(TOPICS, ("t", "o"))],
    reads=[(TOPICS, ("t", "o"))],
)
RESOURCE = a.ResourceCreate(
    "t", "o", "topic", 2, 2, 2, 1, "position", 2, 60_000, 0, "region", {"tier": "hot"}, {"owner": "ops"}, [["b"]]
)
ALTER = a.ResourceAlter("t", "o", "topic", 1, 1, 0, 0, "none", {"tier": "hot"}, {"owner": "ops"})
RESIZE = Resize("t", "o", 2, 2, 2)
NEW_SCHEMA = NewSchema("t", "s", "avro", '"int"', "none", "about")
SUBSCRIPTION = s.Subscription("t", "c", "f/#", s.SubscriptionOptions(1, True, False, 2, 7))
PROPERTIES = m.SessionProperties(60, b"state")
TRANSACTION = m.KvTransaction("ns", [m.KvCompare("k", 1)], [m.KvOperation("k", b"v")], [m.KvOperation("k2")], ["k"])
GOOD: dict[str, dict[str, Any]] = {
    "brokers.register": {
        "broker": "b9", "lease_s": 5.0, "address": "h:1", "region": "r", "rack": "k", "attributes": {"a": "b"},
        "at_least_epoch": 1, "wait_s": 1.0, "probe_port": 1883, "loading_s": 60.0,
        "clean_epoch": 1, "sole": True, "note": None,
    },
    "brokers.get": {"broker": "b9"},
    "brokers.get_many": {"brokers": ["b9"]},
    "brokers.list": {"prefix": "b", "state": "active", "page_size": 10},
    "brokers.fence": {"broker": "b9", "epoch": 1, "wait_s": 1.0},
    "sessions.takeover_many": {
        "broker": "b", "broker_epoch": 1, "items": [m.SessionTakeoverItem("t", "c", False, PROPERTIES)],
        "restore": True, "restore_parts": True,
    },
    "sessions.update_many": {"broker": "b", "broker_epoch": 1, "items": [m.SessionUpdateItem("t", "c", PROPERTIES)]},
    "sessions.disconnect_many": {"broker": "b", "broker_epoch": 1, "items": [m.SessionDisconnectItem("t", "c", 60)]},
    "sessions.delete_many": {"items": [m.SessionDeleteItem("t", "c")], "broker": "b", "broker_epoch": 1},
    "sessions.end_tenant": {"tenant": "t", "publish_wills": True, "retained": False},
    "sessions.endings": {"tenant": "t"},
    "sessions.takeover": {
        "broker": "b", "broker_epoch": 1, "tenant": "t", "client_id": "c", "clean_start": False,
        "properties": PROPERTIES, "restore": False, "restore_parts": False,
    },
    "sessions.update": {
        "broker": "b", "broker_epoch": 1, "tenant": "t", "client_id": "c", "properties": PROPERTIES, "attachment": 0,
    },
    "sessions.disconnect": {
        "broker": "b", "broker_epoch": 1, "tenant": "t", "client_id": "c", "expiry_interval_s": 60,
        "will_discard": False, "attachment": 7,
    },
    "subscriptions.add_many": {"broker": "b", "broker_epoch": 1, "items": [SUBSCRIPTION]},
    "subscriptions.remove_many": {"broker": "b", "broker_epoch": 1, "keys": [s.SubscriptionKey("t", "c", "f/#")]},
    "subscriptions.add": {
        "broker": "b", "broker_epoch": 1, "tenant": "t", "client_id": "c", "filter": "f/#",
        "options": SUBSCRIPTION.options,
    },
    "subscriptions.remove": {
        "broker": "b", "broker_epoch": 1, "tenant": "t", "client_id": "c", "filter": "f/#",
    },
    "inflight.put_many": {
        "broker": "b", "broker_epoch": 1, "items": [i.Inflight("t", "c", "n", b"v")], "any_owner": False,
    },
    "inflight.delete_many": {"broker": "b", "broker_epoch": 1, "keys": [i.InflightKey("t", "c", "n")]},
    "inflight.put": {
        "broker": "b", "broker_epoch": 1, "tenant": "t", "client_id": "c", "name": "n", "value": b"v",
        "any_owner": False,
    },
    "inflight.delete": {"broker": "b", "broker_epoch": 1, "tenant": "t", "client_id": "c", "name": "n"},
    "wills.claim": {"broker": "b", "broker_epoch": 1, "tenant": "t", "lease_s": 30, "limit": 10},
    "wills.acknowledge_many": {"broker": "b", "broker_epoch": 1, "keys": [w.WillKey("t", "c", "1")]},
    "wills.release_many": {"broker": "b", "broker_epoch": 1, "keys": [w.WillKey("t", "c", "1")]},
    "wills.acknowledge": {"broker": "b", "broker_epoch": 1, "key": w.WillKey("t", "c", "1")},
    "wills.release": {"broker": "b", "broker_epoch": 1, "key": w.WillKey("t", "c", "1")},
    "sessions.delete": {
        "tenant": "t", "client_id": "c", "broker": "b", "broker_epoch": 1, "disconnected_ms": 0, "attachment": 0
    },
    "offsets.commit_many": {
        "items": [m.OffsetCommitItem("t", "g", "o", 0, 5, 1, -1, "note")], "monotonic": False, "member": "m"
    },
    "offsets.generations_many": {"groups": [m.ConsumerGroup("t", "g")], "min_revisions": [], "freshness_ms": 0},
    "offsets.reset_generations_many": {"items": [m.GenerationReset("t", "g", 1, 2)]},
    "offsets.commit": {
        "tenant": "t", "group": "g", "topic": "o", "partition": 0, "offset": 5, "generation": 1, "expected": None,
        "metadata": "note", "monotonic": False, "member": "m",
    },
    "offsets.generation": {"tenant": "t", "group": "g", "min_revisions": [], "freshness_ms": 0},
    "offsets.reset_generation": {"tenant": "t", "group": "g", "expected": 1, "generation": 2},
    "offsets.delete_group": {"tenant": "t", "group": "g"},
    "consumers.join_many": {"items": [g.JoinItem("t", "g", 60_000, 60_000, "m", "i", ["p"], b"d", "h", True)]},
    "consumers.heartbeat_many": {"members": [g.MemberKey("t", "g", "m")]},
    "consumers.assign_many": {"items": [g.AssignItem("t", "g", "m", 1, [g.MemberAssignment("m", b"p")])]},
    "consumers.describe_many": {"groups": [m.ConsumerGroup("t", "g")], "min_revisions": [], "freshness_ms": 0},
    "consumers.join": {
        "tenant": "t", "group": "g", "session_ms": 60_000, "member": "m", "rebalance_ms": 60_000, "instance": "i",
        "protocols": ["p"], "metadata": b"d", "holder": "h", "rebalance": True,
    },
    "consumers.heartbeat": {"tenant": "t", "group": "g", "member": "m"},
    "consumers.assign": {"tenant": "t", "group": "g", "member": "m", "generation": 1, "assignments": {"m": b"p"}},
    "consumers.describe": {"tenant": "t", "group": "g", "min_revisions": [], "freshness_ms": 0},
    "kv.put_many": {"items": [m.KvPutItem("ns", "k", b"v", 1)], "lease": "l"},
    "kv.delete_many": {"items": [m.KvDeleteItem("ns", "k", 1)]},
    "kv.transact_many": {"items": [TRANSACTION]},
    "kv.put": {"namespace": "ns", "key": "k", "value": b"v", "expected_version": None, "lease": "l"},
    "leases.grant_many": {"items": [LeaseGrantItem("ns", 60_000, "l", "h", b"a")]},
    "leases.keep_alive_many": {"leases": [LeaseKey("ns", "l")]},
    "leases.grant": {"namespace": "ns", "ttl_ms": 60_000, "lease": "l", "holder": "h", "attributes": b"a"},
    "leases.keep_alive": {"namespace": "ns", "lease": "l"},
    "sequences.add_many": {"items": [SequenceAddItem("ns", "s", 5)]},
    "sequences.add": {"namespace": "ns", "sequence": "s", "delta": 5},
    "kv.delete": {"namespace": "ns", "key": "k", "expected_version": 1},
    "kv.transact": {"transaction": TRANSACTION},
    "retained.put_many": {"items": [r.RetainedPutItem("t", "a/b", b"v", 1, b"p", 60)]},
    "retained.delete_many": {"items": [r.RetainedDeleteItem("t", "a/b", 1)]},
    "retained.put": {
        "tenant": "t", "topic": "a/b", "payload": b"v", "qos": 1, "properties": b"p", "expiry_interval_s": 60,
    },
    "retained.delete": {"tenant": "t", "topic": "a/b", "revision": 1},
    "tables.declare": {
        "table": "topic", "record": Topic, "key": ["tenant", "topic"], "routing": ["tenant"], "kind": "data",
        "indexes": {"by_topic": ["topic"]}, "expires": "ends_ms", "about": "Topics.",
    },
    "tables.transact": {"transaction": OVER_TABLES},
    "tables.transact_many": {"items": [OVER_TABLES]},
    "tables.open": {"name": "topic_settings", "record": None},
    "tables.list": {"prefix": "t", "page_size": 10, "min_revisions": []},
    "assignments.create": msgspec.structs.asdict(RESOURCE),
    "assignments.alter": msgspec.structs.asdict(ALTER),
    "assignments.resize": msgspec.structs.asdict(a.ResourceResize("t", "o", "topic", 3, 2, 0, [["b"]])),
    "assignments.in_sync": {
        "tenant": "t", "resource": "o", "kind": "topic", "partition": 0, "leader": m.Owner("b", 1), "leader_epoch": 1,
        "partition_epoch": 1, "isr": [m.Owner("b", 1)],
    },
    "assignments.route": {"tenant": "t", "resource": "o", "kind": "topic", "region": "eu", "rack": "r1"},
    "assignments.move": msgspec.structs.asdict(a.MovePartition("t", "o", "topic", 0, ["b"])),
    "assignments.shards.create": msgspec.structs.asdict(
        a.ResourceCreate(
            "t", "o", "", 1, None, 1, 1, "isr", 1, 60_000, 0, "region", {"tier": "hot"}, {"owner": "ops"}, [["b"]]
        )
    )
    | {"settings": FAMILIES["shard"].record("t", "o")},
    "assignments.shards.resize": {
        "tenant": "t", "resource": "o", "partitions": 3, "write_partitions": 2, "replicas": [["b"]]
    },
    "assignments.shards.trim": {"tenant": "t", "resource": "o", "first": 1},
    "assignments.shards.delete": {"tenant": "t", "resource": "o"},
    "plans.create": {"plan": "p", "rule": "drain", "brokers": ["b"], "moves": 5, "throttle_bytes": 1_000_000},
    "roles.put": {"role": "r", "grants": [Grant(["read"], ["kv"], "t", "k")], "about": "a text"},
    "roles.list": {"prefix": "r", "page_size": 10},
    "principals.put": {"principal": "metad://client/c", "roles": [Given("reader", "t")], "denied": True},
    "principals.change": {
        "principal": "metad://client/c",
        "give": [Given("reader", "t")],
        "take": [Given("backup")],
        "denied": False,
    },
    "features.hold": {"feature": "f"},
    "features.allow": {"feature": "f"},
    "features.list": {"prefix": "f", "page_size": 10},
    "quotas.put": {
        "subject": "tenant/t",
        "items_per_s": 1,
        "bytes_per_s": 2,
        "connections": 3,
        "watches": 4,
        "sessions": 5,
        "records": 6,
        "bytes": 7,
    },
    "quotas.list": {"prefix": "t", "page_size": 10},
    "quotas.use": {"prefix": "t", "nodes": ["n1"]},
    "tenants.list": {"prefix": "t"},
    "tenants.use": {"tenant": "t"},
    "tenants.end": {"tenant": "t", "publish_wills": True, "grace_s": 60.0},
    "tenants.keep": {"tenant": "t"},
    "tenants.endings": {"tenant": "t"},
    "principals.list": {"prefix": "metad", "page_size": 10},
    "audit.list": {
        "since_ms": 1,
        "until_ms": 2,
        "who": "metad://client/c",
        "kind": "admin",
        "method_prefix": "role.",
        "newest_first": True,
        "page_size": 10,
    },
    "principals.may": {"wishes": [Wish("read", "kv", "t", "k")], "principal": "metad://client/c", "node": "n1"},
    "plans.pause": {"plan": "p"},
    "plans.resume": {"plan": "p"},
    "plans.cancel": {"plan": "p"},
    "plans.list": {"prefix": "p", "page_size": 10},
    "plans.recommend": {"for_s": 60.0},
    "topics.resize_many": {"items": [RESIZE]},
    "topics.resize": msgspec.structs.asdict(RESIZE),
    "schemas.register_many": {"items": [NEW_SCHEMA]},
    "schemas.register": msgspec.structs.asdict(NEW_SCHEMA),
    "schemas.newest": {"tenant": "t", "subject": "s"},
    "schemas.bind": {
        "tenant": "t", "resource": "o", "subject": "s", "part": "value", "schema_version": None, "refuse": True
    },
    "schemas.followed": {"tenant": "t", "resource": "o"},
    "schemas.followers": {"tenant": "t", "subject": "s", "page_size": 10},
    "users.create": {
        "tenant": "t", "user": "u", "password": "secret", "mechanism": "scram_sha_256", "iterations": 4_096,
        "superuser": False, "enabled": True, "attributes": {"a": "b"},
    },
    "users.set_password": {
        "tenant": "t", "user": "u", "password": "secret", "mechanism": "pbkdf2_sha_256", "iterations": 4_096,
    },
    "users.check": {"tenant": "t", "user": "u", "password": "secret"},
    "config.set_many": {"items": [Setting("topic", "t/o", "n", "v")], "keep": 3},
    "config.set": {"scope_kind": "topic", "scope": "t/o", "name": "n", "value": "v", "keep": 3},
    "config.history": {"scope_kind": "topic", "scope": "t/o", "name": "n"},
    "config.effective": {"scopes": [("topic", "t/o")], "names": ["n"]},
    "cluster.map": {"newer_than": 0},
    "cluster.statuses": {},
    "cluster.activity": {"most": 5, "nodes": ["n1"]},
    "cluster.events": {"since_ms": 0, "cursors": {"n1": b""}, "nodes": ["n1"], "page_size": 10},
    "cluster.compact": {"begin": True, "nodes": ["n1"]},
    "cluster.settings": {"setting": "limits.slow_ms", "nodes": ["n1"]},
    "cluster.set": {"setting": "limits.slow_ms", "value": "1s", "nodes": ["n1"]},
    "cluster.transfer": {"group": "data-0", "to": "nobody"},
    "cluster.prefer": {"group": "data-0", "region": "eu"},
    "cluster.join": {"node": c.NodeRecord("x", "127.0.0.1:1", "")},
    "cluster.leave": {"node_id": "nobody", "lost": False, "fewer": False},
    "cluster.add_group": {"kind": "metadata"},
    "cluster.rebalance": {"replicas": 0, "keep_slots": True},
    "cluster.drain": {"node_id": "nobody", "undo": True},
    "cluster.move_slots": {"to": "data-0", "group": "data-1", "slots": [1, 2], "half": False},
    "cluster.move_replica": {"group": "data-0", "source": "nobody", "target": "n1"},
    "cluster.remove_group": {"group": "data-9"},
    "client.status": {"node": ""},
}  # fmt: skip
"""By verb."""


def near(method: Method[Any, Any]) -> dict[str, int]:
    """The argument of a read that any replica may answer."""
    return {"freshness_ms": 0} if method.code in NEAR else {}


for _name in ("kind", "write_partitions"):
    del GOOD["assignments.shards.create"][_name]
for _table in tables():
    for _method, _got in _table.got.items():
        _verb, _key = f"{namespace_of(_table)}.{_method.name.partition('.')[2]}", filled(_got.key, ["t"])
        GOOD[f"{_verb}_many"] = {"keys": [_key], "min_revisions": [], **near(_method)}
        GOOD[_verb] = msgspec.structs.asdict(_key) | {"min_revisions": [], **near(_method)}
    for _method, _batched in _table.batched.items():
        if _method.whose is For.NODES:
            continue
        _verb, _item = f"{namespace_of(_table)}.{_method.name.partition('.')[2]}", filled(_method.item, ["t"])
        GOOD[f"{_verb}_many"] = {_batched.named: [_item]}
        if is_plain(_method):
            GOOD[_verb] = msgspec.structs.asdict(_item)
    for _method, _listed in lists(_table).items():
        _verb = f"{namespace_of(_table)}.{_method.name.partition('.')[2]}"
        GOOD[_verb] = dict.fromkeys(_listed.asked, "t") | {
            "page_size": 10,
            "min_revisions": [],
            **near(_method),
        }


ENDLESS = {"wills.due"}
"""Iterators that go on for ever."""


def verbs_of(client: Any) -> dict[str, Callable[..., Any]]:
    """Every method that sends a request, of all namespaces that a client has."""
    found: dict[str, Callable[..., Any]] = {"client.status": client.status}
    for name in (
        "brokers",
        "sessions",
        "subscriptions",
        "inflight",
        "wills",
        "offsets",
        "consumers",
        "kv",
        "leases",
        "sequences",
        "retained",
        "cluster",
        "tables",
        "assignments",
        "assignments.shards",  # as those of all other kinds
        "plans",
        "principals",
        "roles",
        "audit",
        "tenants",
        "quotas",
        "features",
        "topics",
        "schemas",
        "users",
        "config",
    ):
        space = attrgetter(name)(client)
        for verb in dir(type(space)):
            if verb.startswith("_") or f"{name}.{verb}" in ENDLESS:
                continue
            if not isinstance(getattr(type(space), verb), property):
                found[f"{name}.{verb}"] = getattr(space, verb)
    return found
