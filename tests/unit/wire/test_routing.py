"""Client and server send every item to the same group, and it is the one that PROTOCOL.md says."""

from __future__ import annotations

import random
from functools import partial
from typing import Any
from zlib import crc32

import pytest
from hypothesis import given
from hypothesis import strategies as st
from plain_bodies import PLAIN, plain_body
from wire_document import PROTOCOL, tables

from metad.state.registry import VERBS
from metad_wire import messages as m
from metad_wire.cluster import SLOTS, pack_slots, unpack_slots
from metad_wire.methods import (
    METHODS,
    METHODS_BY_NAME,
)
from metad_wire.routing import ROUTES, split, text, text2
from metad_wire.tables import consumer as g
from metad_wire.tables import lease as w
from metad_wire.tables import sequence as s
from metad_wire.tables.assignment import AssignmentStep, PartitionKey
from metad_wire.tables.inflight import Inflight, InflightDelete, InflightKey, InflightPut
from metad_wire.tables.offset import OffsetDeleteGroups, OffsetExpireGroups
from metad_wire.tables.retained import (
    RetainedDelete,
    RetainedDeleteItem,
    RetainedPut,
    RetainedPutItem,
)
from metad_wire.tables.subscription import (
    Subscription,
    SubscriptionAdd,
    SubscriptionKey,
    SubscriptionRemove,
)
from metad_wire.tables.will import WillAcknowledge, WillExpire, WillKey, WillRelease

names = st.one_of(st.sampled_from(["", "a", "ab", "\0", "a\0", "\0\x01", "ü", "\U0001f600"]), st.text(max_size=5))
slot_maps = st.builds(
    lambda groups, seed: random.Random(seed).choices(range(groups), k=SLOTS), st.integers(1, 20), st.integers(0, 99)
)
PROPERTIES = m.SessionProperties(1, b"p")


def members(tenants: list[str], groups: list[str]) -> list[g.MemberKey]:
    return [g.MemberKey(tenant, group, "member") for tenant, group in zip(tenants, groups, strict=True)]


BODIES: dict[str, Any] = {
    "session.takeover": lambda a, b: m.SessionTakeover("b", 1, list(map(m.SessionTakeoverItem, a, b))),
    "session.disconnect": lambda a, b: m.SessionDisconnect("b", 1, list(map(m.SessionDisconnectItem, a, b))),
    "session.update": lambda a, b: m.SessionUpdate(
        "b", 1, [m.SessionUpdateItem(x, y, PROPERTIES) for x, y in zip(a, b, strict=True)]
    ),
    "subscription.add": lambda a, b: SubscriptionAdd("b", 1, list(map(Subscription, a, b, ["f"] * len(a)))),
    "subscription.remove": lambda a, b: SubscriptionRemove("b", 1, list(map(SubscriptionKey, a, b, ["f"] * len(a)))),
    "inflight.put": lambda a, b: InflightPut("b", 1, [Inflight(x, y, "n", b"") for x, y in zip(a, b, strict=True)]),
    "inflight.delete": lambda a, b: InflightDelete("b", 1, list(map(InflightKey, a, b, ["n"] * len(a)))),
    "will.acknowledge": lambda a, b: WillAcknowledge("b", 1, list(map(WillKey, a, b, ["1"] * len(a)))),
    "will.release": lambda a, b: WillRelease("b", 1, list(map(WillKey, a, b, ["1"] * len(a)))),
    "will.expire": lambda a, b: WillExpire(list(map(WillKey, a, b, ["1"] * len(a))), 1),
    "session.delete": lambda a, b: m.SessionDelete(list(map(m.SessionDeleteItem, a, b))),
    "offset.commit": lambda a, b: m.OffsetCommit(
        [m.OffsetCommitItem(x, y, "topic", 1, 2) for x, y in zip(a, b, strict=True)]
    ),
    "offset.generations": lambda a, b: m.OffsetGenerations(list(map(m.ConsumerGroup, a, b))),
    "offset.reset_generations": lambda a, b: m.OffsetResetGenerations(
        [m.GenerationReset(x, y, 1) for x, y in zip(a, b, strict=True)]
    ),
    "offset.delete_groups": lambda a, b: OffsetDeleteGroups(list(map(m.ConsumerGroup, a, b))),
    "offset.expire_groups": lambda a, b: OffsetExpireGroups(list(map(m.ConsumerGroup, a, b)), 1),
    "consumer.join": lambda a, b: g.ConsumerJoin([g.JoinItem(x, y, 1_000) for x, y in zip(a, b, strict=True)]),
    "consumer.heartbeat": lambda a, b: g.ConsumerHeartbeat(members(a, b)),
    "consumer.assign": lambda a, b: g.ConsumerAssign(
        [g.AssignItem(x, y, "m", 1, []) for x, y in zip(a, b, strict=True)]
    ),
    "consumer.describe": lambda a, b: g.ConsumerDescribe(list(map(m.ConsumerGroup, a, b))),
    "consumer.expire": lambda a, b: g.ConsumerExpire(members(a, b)),
    "kv.put": lambda a, b: m.KvPut([m.KvPutItem(x, y, b"") for x, y in zip(a, b, strict=True)]),
    "kv.delete": lambda a, b: m.KvDelete(list(map(m.KvDeleteItem, a, b))),
    "kv.transact": lambda a, b: m.KvTransact([m.KvTransaction(x, [], []) for x in a]),
    "lease.grant": lambda a, b: w.LeaseGrant([w.LeaseGrantItem(x, 1_000, y) for x, y in zip(a, b, strict=True)]),
    "lease.keep_alive": lambda a, b: w.LeaseKeepAlive(list(map(w.LeaseKey, a, b))),
    "lease.expire": lambda a, b: w.LeaseExpire(list(map(w.LeaseKey, a, b))),
    "assignment.step": lambda a, b: AssignmentStep([PartitionKey(x, y, "topic", 0) for x, y in zip(a, b, strict=True)]),
    "sequence.add": lambda a, b: s.SequenceAdd(list(map(s.SequenceAddItem, a, b))),
    "retained.put": lambda a, b: RetainedPut([RetainedPutItem(x, y, b"v") for x, y in zip(a, b, strict=True)]),
    "retained.delete": lambda a, b: RetainedDelete(list(map(RetainedDeleteItem, a, b))),
    **{
        name: partial(lambda name, a, b: plain_body(name, list(zip(a, b, strict=True))), name)
        for name, table in PLAIN.items()
        if METHODS_BY_NAME[name] in table.routed
    },
}


def test_every_method_of_a_table_is_routed() -> None:
    routed = {METHODS[code].name for code in ROUTES}
    assert routed == set(BODIES)
    assert routed == {verb.method.name for verb in VERBS.values()} - {
        "session.list",
        "subscription.list",
        "will.claim",
        "will.list",
        "will.wait",
        "session.sweep",
        "retained.match",
        "offset.groups",
        "session.lose",
        "session.end_tenant",
        "session.endings",
        *(f"tenants.{verb}" for verb in ("end", "keep", "endings", "list", "use", "rest")),
        "table.sweep",
        "table.index",
        "table.expire",
        "table.transact",
        *(f"declaration.{verb}" for verb in ("declare", "drop", "get", "list")),
        *(f"plan.{verb}" for verb in ("create", "set", "delete", "get", "list", "progress")),
        *(f"feature.{verb}" for verb in ("change", "switch", "list")),
        *(f"quota.{verb}" for verb in ("put", "delete", "list")),
        *(f"role.{verb}" for verb in ("put", "delete", "list")),
        *("audit.note", "audit.list"),
        *(f"principal.{verb}" for verb in ("put", "change", "delete", "get", "list")),
        "session.copy",
        "session.end_step",
        "cluster.store",
        "broker.change",
        "group.command",
        "group.fence",
        "group.restore",
        "group.copy_tenant",
        "group.move_tenant",
        "group.put_tenant",
    }


@pytest.mark.parametrize("name", BODIES)
@given(
    pairs=st.lists(st.tuples(names, names), min_size=1, max_size=20),
    slots=slot_maps,
)
def test_client_and_server_agree_on_the_slots(name: str, pairs: list[tuple[str, str]], slots: list[int]) -> None:
    body = BODIES[name](*map(list, zip(*pairs, strict=True)))
    (verb,) = (verb for verb in VERBS.values() if verb.method.name == name)
    route = ROUTES[verb.method.code]
    assert route.kind == verb.table.kind
    items = getattr(body, "items", [body])
    ours = split(route, items, slots, max(slots) + 1)
    theirs: dict[int, list[int]] = {}
    for position, crc in enumerate(verb.rows(body).crcs):
        theirs.setdefault(slots[int(crc) % SLOTS], []).append(position)
    assert ours == theirs


@given(names, names)
def test_a_slot_is_the_crc_of_the_encoded_fields(tenant: str, client_id: str) -> None:
    slots = list(range(SLOTS))
    item = m.SessionKey(tenant, client_id)
    (slot,) = split(ROUTES[0x0104], [item], slots, SLOTS)
    assert slot == crc32(text(tenant) + text(client_id)) % SLOTS == crc32(text2(tenant, client_id)) % SLOTS


def test_the_document_has_the_same_slots() -> None:
    for _, _, fields, encoded, crc, slot in tables(PROTOCOL.read_text(encoding="utf-8"))["Routing"]:
        values = [field.split()[1].strip("`") for field in fields.split(", ")]
        data = b"".join(map(text, values))
        assert (data.hex(), f"{crc32(data):08x}", str(crc32(data) % SLOTS)) == (encoded, crc, slot)


def test_slot_tables_travel_as_they_are() -> None:
    slots = [slot % 7 for slot in range(SLOTS)]
    assert unpack_slots(pack_slots(slots)) == slots
    with pytest.raises(ValueError, match="2046 bytes"):
        unpack_slots(pack_slots(slots)[2:])
