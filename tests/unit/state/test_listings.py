"""Listings come in the order that PROTOCOL.md promises, "Listings", and a cursor is a place in it and nothing else."""

from __future__ import annotations

import random
from typing import Any

import pytest
from state_rig import Rig

from metad_wire import messages as m
from metad_wire.cluster import SLOTS, slot_bits
from metad_wire.errors import InvalidRequestError, StaleRouteError
from metad_wire.methods import (
    KV_PUT,
    KV_SCAN,
    OFFSET_COMMIT,
    OFFSET_LIST,
    SESSION_DISCONNECT,
    SESSION_LIST,
    SESSION_TAKEOVER,
    SUBSCRIPTION_ADD,
    SUBSCRIPTION_LIST,
    WILL_LIST,
)
from metad_wire.tables.subscription import Subscription, SubscriptionAdd, SubscriptionKey, SubscriptionList
from metad_wire.tables.will import WillKey, WillList

# UTF-16 would have the last two the other way round; a NUL is escaped on its way to the disk.
NAMES = [
    "",
    "\0",
    "\0\0",
    "\x01",
    "a",
    "a\0",
    "a\0b",
    "a\x01",
    "ab",
    "b",
    "\x7f",
    "\x80",
    "ü",
    "\ud7ff",
    "\uffff",
    "\U00010000",
]
PARTITIONS = [0, 1, 9, 10, 255, 256, 65_536, 2**32 - 1]


def pages(rig: Rig, method: Any, body_of: Any, field: str, limit: int) -> list[Any]:
    """All records, each page asked of a rig that knows nothing of the last."""
    found: list[Any] = []
    cursor = b""
    while True:
        reply = rig.read(method, body_of(m.Page(limit, cursor)))
        found += getattr(reply, field)
        cursor = reply.cursor
        if not cursor:
            return found


@pytest.mark.parametrize("limit", [1, 3, 1_000])
def test_sessions_come_by_code_points_of_tenant_and_client_id(limit: int) -> None:
    rig = Rig("data")
    pairs = [(tenant, client) for tenant in NAMES for client in NAMES]
    random.Random(1).shuffle(pairs)
    items = [m.SessionTakeoverItem(*pair) for pair in pairs]
    rig.write(SESSION_TAKEOVER, m.SessionTakeover("b", 1, items))
    found = pages(rig, SESSION_LIST, lambda page: m.SessionList(page=page), "found", limit)
    assert [(one.tenant, one.client_id) for one in found] == sorted(pairs)


@pytest.mark.parametrize("limit", [1, 3, 1_000])
def test_keys_come_by_code_points(limit: int) -> None:
    rig = Rig("data")
    names = random.Random(2).sample(NAMES, len(NAMES))
    rig.write(KV_PUT, m.KvPut([m.KvPutItem(namespace, name, b"") for namespace in ("n", "n\0") for name in names]))
    found = pages(rig, KV_SCAN, lambda page: m.KvScan("n", page=page), "found", limit)
    assert [one.key for one in found] == sorted(NAMES)


@pytest.mark.parametrize("limit", [1, 3, 1_000])
def test_offsets_come_by_code_points_of_the_topic_and_by_number_of_the_partition(limit: int) -> None:
    rig = Rig("offset")
    pairs = [(topic, partition) for topic in NAMES for partition in PARTITIONS]
    random.Random(3).shuffle(pairs)
    rig.write(OFFSET_COMMIT, m.OffsetCommit([m.OffsetCommitItem("t", "g", *pair, 1) for pair in pairs]))
    found = pages(rig, OFFSET_LIST, lambda page: m.OffsetList("t", "g", page=page), "found", limit)
    assert [(one.topic, one.partition) for one in found] == sorted(pairs)


def test_a_cursor_goes_on_at_the_group_that_has_the_slots_now() -> None:
    names = [f"k{i:02}" for i in range(40)]
    puts = m.KvPut([m.KvPutItem("n", name, b"") for name in names])
    before, after = Rig("data"), Rig("data")
    before.write(KV_PUT, puts)
    after.write(KV_PUT, puts)
    first = before.read(KV_SCAN, m.KvScan("n", page=m.Page(15)))
    rest = after.read(KV_SCAN, m.KvScan("n", page=m.Page(1_000, first.cursor)))
    assert [one.key for one in (*first.found, *rest.found)] == names


# --- listings of several groups ---

CLIENTS = [f"c{number:02}" for number in range(50)]


def sessions(rig: Rig, slots: bytes, after: str | None, page: m.Page) -> Any:
    key = None if after is None else m.SessionKey("t", after)
    reply = rig.read(SESSION_LIST, m.SessionList("t", "", None, page, [], slots, key))
    return [one.client_id for one in reply.found], reply.cursor


def subscriptions(rig: Rig, slots: bytes, after: str | None, page: m.Page) -> Any:
    key = None if after is None else SubscriptionKey("t", after, "f")
    reply = rig.read(SUBSCRIPTION_LIST, SubscriptionList("t", "", page, [], slots, key))
    return [one.client_id for one in reply.found], reply.cursor


def wills(rig: Rig, slots: bytes, after: str | None, page: m.Page) -> Any:
    listed = rig.read(WILL_LIST, WillList("t")).found
    key = None if after is None else next(WillKey("t", after, one.id) for one in listed)
    reply = rig.read(WILL_LIST, WillList("t", "", page, [], slots, key))
    return [one.client_id for one in reply.found], reply.cursor


@pytest.fixture
def filled() -> Rig:
    """Each client has a session, a filter and a will that is due."""
    rig = Rig("data")
    kept = m.SessionProperties(60, will=m.Will("gone"))
    takeover = m.SessionTakeover("b", 1, [m.SessionTakeoverItem("t", client, False, kept) for client in CLIENTS])
    rig.write(SESSION_TAKEOVER, takeover)
    rig.write(SESSION_DISCONNECT, m.SessionDisconnect("b", 1, [m.SessionDisconnectItem("t", c, 0) for c in CLIENTS]))
    rig.write(SESSION_TAKEOVER, takeover)
    rig.write(SUBSCRIPTION_ADD, SubscriptionAdd("b", 1, [Subscription("t", c, "f") for c in CLIENTS]))
    rig.settle()
    return rig


LISTINGS = [sessions, subscriptions, wills]


@pytest.mark.parametrize("listing", LISTINGS)
def test_a_group_lists_the_slots_that_are_wanted_and_refuses_those_it_does_not_hold(filled: Rig, listing: Any) -> None:
    everything = listing(filled, b"", None, m.Page())[0]
    assert everything == CLIENTS
    assert listing(filled, slot_bits(range(SLOTS)), None, m.Page())[0] == CLIENTS
    filled.group.initial_slots = slot_bits(range(500))
    filled.group.machine = filled.group._machine(filled.group.engine)
    held = listing(filled, b"", None, m.Page())[0]
    assert 10 < len(held) < 40
    assert listing(filled, slot_bits(range(500)), None, m.Page())[0] == held
    some = listing(filled, slot_bits(range(100)), None, m.Page())[0]
    assert set(some) < set(held)
    assert sorted(some + listing(filled, slot_bits(range(100, 500)), None, m.Page())[0]) == held
    for slots in (slot_bits([500]), slot_bits(range(SLOTS)), slot_bits([3, 1023])):
        with pytest.raises(StaleRouteError):
            listing(filled, slots, None, m.Page())
    for wrong in (b"\xff", b"\0" * 129):
        with pytest.raises(InvalidRequestError, match="slots"):
            listing(filled, wrong, None, m.Page())


@pytest.mark.parametrize("listing", LISTINGS)
def test_a_listing_goes_on_behind_a_key_and_then_behind_its_cursor(filled: Rig, listing: Any) -> None:
    for at, client in enumerate(CLIENTS):
        rest = CLIENTS[at + 1 :]
        found, cursor = listing(filled, b"", client, m.Page(7))
        assert found == rest[:7]
        if len(rest) > 7:
            assert listing(filled, b"", client, m.Page(7, cursor))[0] == rest[7:14]


@pytest.mark.parametrize("listing", [sessions, subscriptions])
def test_a_small_page_of_some_slots_looks_at_few_rows(filled: Rig, listing: Any) -> None:
    """Of a thousand groups each is asked for a record or three: each would look at hundreds."""
    reader, slots = filled.group.machine.reader, slot_bits(range(SLOTS - 1))
    spent = reader.spent
    assert listing(filled, slots, None, m.Page(2))[0] == CLIENTS[:2]
    assert reader.spent - spent <= 2 + 4 * 2  # a session is put together of two rows
