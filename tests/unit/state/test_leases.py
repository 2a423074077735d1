"""Leases: what is attached to them and ends with them, and who may say that one is over."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from state_rig import MIB, Group, Rig, command_of, contents, item_errors

from metad.config import DedupeConfig
from metad.state.core.part import Origin
from metad.state.core.slot_assignment import ALL_SLOTS
from metad.state.core.verb import Command
from metad.state.core.view import View
from metad.state.live.live_leases import LEASE_BYTES, LiveLeases
from metad.state.machine import Machine
from metad.state.registry import VERBS
from metad.storage import keys
from metad_wire import messages as m
from metad_wire import methods
from metad_wire.cluster import GroupCommand, slot_bits
from metad_wire.errors import TooLargeError
from metad_wire.messages import KvKey as Key
from metad_wire.messages import KvOperation as Do
from metad_wire.messages import KvPutItem as Put
from metad_wire.messages import KvTransaction as Transaction
from metad_wire.tables import lease as w
from metad_wire.tables.kv import KV
from metad_wire.tables.lease import LEASE

TTL_MS = 10_000


@pytest.fixture(params=(0, 3), ids=lambda lag: f"lag{lag}")
def rig(request: pytest.FixtureRequest) -> Rig:
    return Rig(lag=request.param)


def grant(rig: Rig, name: str = "L", namespace: str = "n", ttl_ms: int = TTL_MS) -> str:
    reply: w.LeaseGrantReply = rig.write(
        methods.LEASE_GRANT, w.LeaseGrant([w.LeaseGrantItem(namespace, ttl_ms, name, "holder", b"a")])
    )
    (granted,) = reply.leases
    assert granted is not None
    return granted


def put(rig: Rig, *items: Put, lease: str = "") -> m.KvPutReply:
    reply: m.KvPutReply = rig.write(methods.KV_PUT, m.KvPut(list(items), lease))
    return reply


def leases_of(rig: Rig, *names: str) -> dict[str, str]:
    """Key -> the lease that its record names, of the records there are; the rows that say the same are compared."""
    rig.settle()
    records = rig.read(methods.KV_GET, methods.KV_GET.body([Key("n", name) for name in names])).found
    found = {record.key: record.lease for record in records if record is not None}
    check_rows(rig)
    return found


def check_rows(rig: Rig) -> None:
    """Every record that names a lease has a row of the lease's keys and no other; every lease counts its keys."""
    rig.settle()
    group = rig.group

    def rows(row: int) -> list[tuple[bytes, bytes]]:
        prefix = keys.table_prefix(group.prefix, row)
        found = group.engine.scan(prefix, keys.after_prefix(prefix), 10_000)
        return [(key[len(prefix) :], value) for key, value in found]

    expected: set[bytes] = set()
    count: dict[bytes, tuple[int, int]] = {}
    for suffix, value in rows(KV.rows["record"]):
        record = methods.KV_GET.decode_reply(b"\x91\x91" + value).found[0]
        assert record is not None
        if record.lease:
            lease = keys.text2(record.namespace, record.lease)
            expected.add(lease + keys.text(record.key))
            before = count.get(lease, (0, 0))
            size = len(group.prefix) + 1 + len(suffix) + len(group.prefix) + 1 + len(lease + keys.text(record.key))
            count[lease] = before[0] + 1, before[1] + size
    assert {key for key, _ in rows(LEASE.rows["key"])} == expected
    for suffix, value in rows(LEASE.rows["lease"]):
        lease_row = methods.LEASE_GET.decode_reply(b"\x91\x91" + value).found[0]
        assert lease_row is not None
        assert (lease_row.keys, lease_row.key_bytes) == count.pop(suffix, (0, 0))
    assert not count, "a record names a lease that does not exist"


def live(machine: Machine) -> LiveLeases:
    return machine.parts[LiveLeases]


def expire(rig: Rig, *names: str) -> None:
    rig.write(methods.LEASE_EXPIRE, w.LeaseExpire([w.LeaseKey("n", name) for name in names]))


def keep_alive(rig: Rig, *names: str, arrived_s: float | None = None) -> list[int]:
    command = command_of(methods.LEASE_KEEP_ALIVE, w.LeaseKeepAlive([w.LeaseKey("n", name) for name in names]))
    command.arrived_s = arrived_s
    read = VERBS[methods.LEASE_KEEP_ALIVE.code].read
    assert read is not None
    ttls: list[int] = read(rig.group.machine.reader, command).ttl_ms
    return ttls


# --- grants ----------------------------------------------------------------------------------------------


def test_a_lease_is_read_as_it_was_granted(rig: Rig) -> None:
    assert grant(rig) == "L"
    rig.settle()
    found = rig.read(methods.LEASE_GET, methods.LEASE_GET.body([w.LeaseKey("n", "L"), w.LeaseKey("n", "M")])).found
    assert found == [w.Lease("n", "L", TTL_MS, "holder", b"a", 1, 1, 1, 0, 0, TTL_MS), None]


def test_a_lease_is_read_with_the_time_that_is_left(rig: Rig) -> None:
    def left() -> int:
        (got,) = rig.read(methods.LEASE_GET, methods.LEASE_GET.body([w.LeaseKey("n", "L")])).found
        (listed,) = rig.read(methods.LEASE_LIST, w.LeaseList("n")).found
        assert got == listed
        return int(got.left_ms)

    grant(rig)
    rig.settle()
    rig.group.now_s += 4
    assert left() == pytest.approx(TTL_MS - 4_000, abs=1)
    keep_alive(rig, "L")
    assert left() == pytest.approx(TTL_MS, abs=1)
    rig.group.now_s += 60
    assert left() == 0


def test_a_name_is_granted_once(rig: Rig) -> None:
    grant(rig)
    item = w.LeaseGrantItem("n", TTL_MS, "L")
    reply = rig.write(methods.LEASE_GRANT, w.LeaseGrant([item, w.LeaseGrantItem("o", TTL_MS, "L"), item]))
    assert item_errors(reply) == {0: "conflict", 2: "conflict"}
    assert reply.leases == [None, "L", None]


def test_names_that_the_server_makes_differ(rig: Rig) -> None:
    group = rig.group
    item = w.LeaseGrantItem("n", TTL_MS)
    commands = [(command_of(methods.LEASE_GRANT, w.LeaseGrant([item, item, item])), None) for _ in range(3)]
    names: list[str | None] = []
    while len(names) < 9:  # commands of one entry have one revision
        outcomes = group.propose(commands[len(names) // 3 :], rig.now_ms)
        for outcome in outcomes:
            names += methods.LEASE_GRANT.decode_reply(outcome).leases
    assert len(set(names)) == 9
    assert None not in names


def test_a_group_has_so_many_leases_and_no_more(rig: Rig) -> None:
    for machine in (rig.group.machine, rig.group.follower):
        machine.parts[LiveLeases].room.size_max = 3 * LEASE_BYTES + 100
    items = [w.LeaseGrantItem("n", TTL_MS, f"l{number}") for number in range(5)]
    assert item_errors(rig.write(methods.LEASE_GRANT, w.LeaseGrant(items[:2]))) == {}
    rig.settle()
    assert item_errors(rig.write(methods.LEASE_GRANT, w.LeaseGrant(items[2:]))) == {
        1: "quota_exceeded",
        2: "quota_exceeded",
    }
    rig.write(methods.LEASE_REVOKE, m.Items([w.LeaseKey("n", "l0")]))
    rig.settle()
    assert item_errors(rig.write(methods.LEASE_GRANT, w.LeaseGrant(items[4:]))) == {}


def test_who_takes_all_leases_that_it_can_leaves_others_theirs(rig: Rig) -> None:
    """Leases of a day, granted by one client, filled a group for everybody and for a day."""
    room = rig.group.machine.parts[LiveLeases].room
    room.size_max = 16 * LEASE_BYTES

    def fill(holder: str, size: int = 0) -> int:
        body = w.LeaseGrant([w.LeaseGrantItem("n", TTL_MS, f"{holder}-{number}", "h" * size) for number in range(20)])
        command = Command(methods.LEASE_GRANT, body, VERBS[methods.LEASE_GRANT.code].rows(body))
        command.holder = holder
        (outcome,) = rig.group.propose([(command, None)], rig.now_ms)
        rig.settle()
        reply = methods.LEASE_GRANT.decode_reply(outcome)
        assert {error.code for error in reply.errors} <= {208}
        return sum(name is not None for name in reply.leases)

    assert fill("first") <= 20
    room.size_max = 2 * room.held
    held = room.held_by("first")
    assert fill("first") == 0
    assert room.held_by("first") == held
    assert fill("second", 100) == pytest.approx(held // 2 // (LEASE_BYTES + 100), abs=1)
    rig.group.restart()
    restarted = rig.group.machine.parts[LiveLeases].room
    assert (restarted.held_by("first"), len(restarted)) == (held, 2)
    lease = rig.read(methods.LEASE_GET, methods.LEASE_GET.body([w.LeaseKey("n", "first-0")])).found[0]
    assert lease.granted_by == "first"


@pytest.mark.parametrize(
    "item",
    [
        w.LeaseGrantItem("n", w.LEASE_TTL_MS_MIN - 1),
        w.LeaseGrantItem("n", w.LEASE_TTL_MS_MAX + 1),
        w.LeaseGrantItem("n", TTL_MS, "x" * (w.LEASE_NAME_BYTES_MAX + 1)),
        w.LeaseGrantItem("n", TTL_MS, "é" * (w.LEASE_NAME_BYTES_MAX // 2 + 1)),
    ],
    ids=["too short", "too long", "name too long", "name too long in bytes"],
)
def test_a_grant_out_of_bounds_is_refused_alone(rig: Rig, item: w.LeaseGrantItem) -> None:
    reply = rig.write(methods.LEASE_GRANT, w.LeaseGrant([item, w.LeaseGrantItem("n", TTL_MS, "good")]))
    assert item_errors(reply) == {0: "invalid_item"}
    assert reply.leases == [None, "good"]


# --- keys ------------------------------------------------------------------------------------------------


def test_a_put_attaches_moves_and_detaches(rig: Rig) -> None:
    grant(rig)
    grant(rig, "M")
    assert put(rig, Put("n", "a", b"1"), Put("n", "b", b"1"), Put("n", "c", b"1"), lease="L").versions == [1, 1, 1]
    put(rig, Put("n", "b", b"2"), lease="M")
    put(rig, Put("n", "c", b"2"), Put("n", "d", b"1"))
    assert put(rig, Put("n", "a", b"2"), lease="L").versions == [2]
    assert leases_of(rig, "a", "b", "c", "d") == {"a": "L", "b": "M", "c": "", "d": ""}


def test_a_batch_without_a_lease_detaches_by_columns_too(rig: Rig) -> None:
    grant(rig)
    put(rig, *(Put("n", f"k{i}", b"1") for i in range(5)), lease="L")
    assert put(rig, *(Put("n", f"k{i}", b"2") for i in range(3))).versions == [2, 2, 2]
    assert leases_of(rig, *(f"k{i}" for i in range(5))) == {"k0": "", "k1": "", "k2": "", "k3": "L", "k4": "L"}
    assert rig.read(methods.LEASE_KEYS, w.LeaseKeys("n", "L")).found == ["k3", "k4"]


def test_a_lease_is_remembered_of_a_record_that_no_cache_has(rig: Rig) -> None:
    grant(rig)
    put(rig, Put("n", "a", b"1"), lease="L")
    rig.settle()
    rig.group.restart()
    put(rig, Put("n", "a", b"2"))
    assert leases_of(rig, "a") == {"a": ""}


def test_a_put_to_a_lease_that_is_not_there_fails_alone(rig: Rig) -> None:
    grant(rig)
    reply = put(rig, Put("n", "a", b"1"), Put("other", "a", b"1"), lease="L")
    assert item_errors(reply) == {1: "not_found"}
    assert reply.versions == [1, 0]
    assert item_errors(put(rig, Put("n", "b", b"1"), lease="gone")) == {0: "not_found"}
    assert leases_of(rig, "a", "b") == {"a": "L"}


def test_a_deleted_key_is_forgotten_by_its_lease(rig: Rig) -> None:
    grant(rig)
    put(rig, Put("n", "a", b"1"), Put("n", "b", b"1"), lease="L")
    rig.write(methods.KV_DELETE, m.KvDelete([m.KvDeleteItem("n", "a")]))
    put(rig, Put("n", "a", b"1"))
    assert leases_of(rig, "a", "b") == {"a": "", "b": "L"}


def test_a_transaction_attaches_some_of_what_it_puts(rig: Rig) -> None:
    grant(rig)
    put(rig, Put("n", "old", b"1"), lease="L")
    body = m.KvTransact([Transaction("n", [], [Do("a", b"1", "L"), Do("b", b"1"), Do("old"), Do("a", b"2", "L")])])
    assert rig.write(methods.KV_TRANSACT, body).results[0].succeeded
    assert leases_of(rig, "a", "b", "old") == {"a": "L", "b": ""}


def test_a_transaction_with_a_lease_that_is_not_there_does_nothing(rig: Rig) -> None:
    grant(rig)
    transactions = [
        Transaction("n", [], [Do("a", b"1"), Do("b", b"1", "gone")]),
        Transaction("n", [], [Do("c", b"1", "L")], reads=["c"]),
    ]
    reply = rig.write(methods.KV_TRANSACT, m.KvTransact(transactions))
    assert item_errors(reply) == {0: "not_found"}
    assert reply.results[0] is None
    assert reply.results[1].records[0].lease == "L"
    assert leases_of(rig, "a", "b", "c") == {"c": "L"}


def test_keys_are_attached_and_detached_as_they_are(rig: Rig) -> None:
    grant(rig)
    grant(rig, "M")
    put(rig, Put("n", "a", b"1"), Put("n", "b", b"1"))
    attach = m.Items([w.LeaseKeyItem("n", "L", name) for name in ("a", "b", "none")])
    assert item_errors(rig.write(methods.LEASE_ATTACH, attach)) == {2: "not_found"}
    moved = m.Items([w.LeaseKeyItem("n", "M", "b"), w.LeaseKeyItem("n", "gone", "a")])
    assert item_errors(rig.write(methods.LEASE_ATTACH, moved)) == {1: "not_found"}
    assert leases_of(rig, "a", "b") == {"a": "L", "b": "M"}
    detach = m.Items([w.LeaseKeyItem("n", "L", "a"), w.LeaseKeyItem("n", "L", "b")])
    assert item_errors(rig.write(methods.LEASE_DETACH, detach)) == {1: "conflict"}
    assert leases_of(rig, "a", "b") == {"a": "", "b": "M"}
    (record,) = rig.read(methods.KV_GET, methods.KV_GET.body([Key("n", "a")])).found
    assert (record.value, record.version) == (b"1", 3)


def test_a_key_that_the_lease_has_already_is_not_written_again(rig: Rig) -> None:
    grant(rig)
    put(rig, Put("n", "a", b"1"), lease="L")
    attach = m.Items([w.LeaseKeyItem("n", "L", "a")])
    assert rig.write(methods.LEASE_ATTACH, attach).errors == []
    rig.settle()
    (record,) = rig.read(methods.KV_GET, methods.KV_GET.body([Key("n", "a")])).found
    assert (record.version, record.lease) == (1, "L")


def test_a_lease_has_so_many_keys_and_no_more(monkeypatch: pytest.MonkeyPatch, rig: Rig) -> None:
    monkeypatch.setattr("metad.state.kv.lease_keys.LEASE_KEYS_MAX", 3)
    grant(rig)
    reply = put(rig, *(Put("n", f"k{i}", b"1") for i in range(5)), lease="L")
    assert item_errors(reply) == {3: "quota_exceeded", 4: "quota_exceeded"}
    transaction = Transaction("n", [], [Do("k0"), Do("k3", b"1", "L"), Do("k4", b"1", "L")])
    full = rig.write(methods.KV_TRANSACT, m.KvTransact([transaction]))
    assert item_errors(full) == {0: "quota_exceeded"}
    again = put(rig, Put("n", "k0", b"2"), lease="L")
    assert (again.errors, again.versions) == ([], [2]), "it has the key already"
    assert leases_of(rig, *(f"k{i}" for i in range(5))) == {"k0": "L", "k1": "L", "k2": "L"}


def test_the_largest_lease_ends_in_one_entry(rig: Rig) -> None:
    grant(rig)
    count = 0
    while not put(rig, Put("n", f"{count:04000}", b"1"), lease="L").errors:
        count += 1
    assert count > 50
    assert item_errors(rig.write(methods.LEASE_REVOKE, m.Items([w.LeaseKey("n", "L")]))) == {}
    assert leases_of(rig, *(f"{i:04000}" for i in range(count))) == {}


def test_a_lease_of_large_records_ends_too(rig: Rig) -> None:
    """To read them all would be more than one command may read, and the lease could never end."""
    grant(rig)
    for number in range(20):
        put(rig, Put("n", f"k{number}", bytes(MIB)), lease="L")
    rig.settle()
    rig.group.restart()
    assert item_errors(rig.write(methods.LEASE_REVOKE, m.Items([w.LeaseKey("n", "L")]))) == {}
    assert leases_of(rig, "k0", "k19") == {}
    assert put(rig, Put("n", "k0", b"1")).versions == [1]


def test_one_request_ends_leases_of_so_many_keys_and_no_more(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards other clients: a request that was refused in the end had looked at 20,000 keys before, for free."""
    monkeypatch.setattr("metad.state.kv.leases.REVOKED_KEYS_MAX", 3)
    for lease in ("L", "M"):
        grant(rig, lease)
        put(rig, *(Put("n", f"{lease}{number}", b"1") for number in range(2)), lease=lease)
    rig.settle()
    both = m.Items([w.LeaseKey("n", "L"), w.LeaseKey("n", "M")])
    looked_at: list[bytes] = []
    monkeypatch.setattr("metad.state.kv.lease_keys.Attachments.keys_of", lambda _, lease: looked_at.append(lease) or [])
    with pytest.raises(TooLargeError):
        rig.write(methods.LEASE_REVOKE, both)
    assert looked_at == []
    monkeypatch.undo()
    again = m.Items([w.LeaseKey("n", "L"), w.LeaseKey("n", "L")])
    assert item_errors(rig.write(methods.LEASE_REVOKE, again)) == {1: "not_found"}
    assert leases_of(rig, "L0", "L1", "M0", "M1") == {"M0": "M", "M1": "M"}


# --- the end ---------------------------------------------------------------------------------------------


def test_a_revoked_lease_takes_its_keys_with_it_in_one_entry(rig: Rig) -> None:
    grant(rig)
    grant(rig, "LL")
    put(rig, Put("n", "a", b"1"), Put("n", "b", b"1"), lease="L")
    put(rig, Put("n", "c", b"1"), lease="LL")
    put(rig, Put("n", "d", b"1"))
    before = rig.group.last
    both = m.Items([w.LeaseKey("n", "L"), w.LeaseKey("n", "L"), w.LeaseKey("n", "none")])
    assert item_errors(rig.write(methods.LEASE_REVOKE, both)) == {1: "not_found", 2: "not_found"}
    assert rig.group.last == before + 1
    assert leases_of(rig, "a", "b", "c", "d") == {"c": "LL", "d": ""}


def test_keys_in_flight_end_with_their_lease(rig: Rig) -> None:
    grant(rig)
    rig.lag = 10
    put(rig, Put("n", "a", b"1"), Put("n", "b", b"1"), lease="L")
    rig.write(methods.KV_DELETE, m.KvDelete([m.KvDeleteItem("n", "b")]))
    put(rig, Put("n", "b", b"mine"))
    rig.write(methods.LEASE_REVOKE, m.Items([w.LeaseKey("n", "L")]))
    assert leases_of(rig, "a", "b") == {"b": ""}


def test_a_lease_that_is_over_ends_by_order_and_the_entry_says_why(rig: Rig) -> None:
    grant(rig)
    put(rig, Put("n", "a", b"1"), lease="L")
    rig.settle()
    rig.group.now_s += TTL_MS / 1000
    expire(rig, "L")
    assert leases_of(rig, "a") == {}
    assert rig.group.machine.reader.parts[LiveLeases].any is False
    entry = rig.group.log[-1]
    assert entry is not None
    assert VERBS[methods.LEASE_EXPIRE.code].origin is Origin.EXPIRY


def test_an_order_leaves_alone_what_is_not_over(rig: Rig) -> None:
    grant(rig)
    put(rig, Put("n", "a", b"1"), lease="L")
    rig.settle()
    rig.group.now_s += TTL_MS / 1000 - 0.001
    expire(rig, "L", "none")
    assert leases_of(rig, "a") == {"a": "L"}


# --- who was heard of ------------------------------------------------------------------------------------


def test_a_lease_lasts_from_when_its_holder_was_heard_of() -> None:
    rig = Rig()
    grant(rig)
    group, part = rig.group, live(rig.group.machine)
    group.now_s += 9
    assert keep_alive(rig, "L", "none", arrived_s=group.now_s - 0.4) == [TTL_MS, 0]
    group.now_s += 9.5
    assert part.over(ALL_SLOTS) == []
    group.now_s += 0.2
    assert part.over(ALL_SLOTS) == [keys.text2("n", "L")]


def test_a_keep_alive_that_waited_long_says_that_others_have_waited_as_well() -> None:
    rig = Rig()
    for name in "LM":
        grant(rig, name)
    group, part = rig.group, live(rig.group.machine)
    group.now_s += 9
    assert keep_alive(rig, "L", arrived_s=group.now_s - 0.6) == [TTL_MS]
    group.now_s += 9.9
    assert part.over(ALL_SLOTS) == []
    group.now_s += 0.2
    assert sorted(part.over(ALL_SLOTS)) == [keys.text2("n", "L"), keys.text2("n", "M")]


def test_a_lease_whose_end_is_on_its_way_is_not_kept_alive() -> None:
    rig = Rig(lag=1)
    grant(rig)
    rig.settle()
    rig.group.now_s += TTL_MS / 1000
    expire(rig, "L")
    assert rig.group.in_flight
    assert keep_alive(rig, "L") == [0]
    rig.group.machine.forget()  # another leads: the entry may never be committed
    assert keep_alive(rig, "L") == [TTL_MS]


def test_a_lease_whose_end_was_not_committed_is_over_again() -> None:
    """Guards leases for ever: what was over while its end was on its way was not looked at again."""
    rig = Rig(lag=1)
    grant(rig)
    rig.settle()
    rig.group.now_s += TTL_MS / 1000
    part = live(rig.group.machine)
    assert part.over(ALL_SLOTS) == [keys.text2("n", "L")]
    expire(rig, "L")
    assert part.over(ALL_SLOTS) == []
    rig.group.machine.forget()
    assert part.over(ALL_SLOTS) == [keys.text2("n", "L")]


def test_a_holder_that_was_heard_of_between_order_and_entry_keeps_its_lease() -> None:
    rig = Rig()
    grant(rig)
    rig.group.now_s += TTL_MS / 1000
    assert live(rig.group.machine).over(ALL_SLOTS) == [keys.text2("n", "L")]
    keep_alive(rig, "L")
    expire(rig, "L")
    assert keep_alive(rig, "L") == [TTL_MS]
    assert live(rig.group.machine).over(ALL_SLOTS) == []


def test_a_name_that_is_granted_again_is_a_lease_like_any_other() -> None:
    rig = Rig()
    for _ in range(2):
        grant(rig)
        rig.write(methods.LEASE_REVOKE, m.Items([w.LeaseKey("n", "L")]))
    grant(rig)
    assert keep_alive(rig, "L") == [TTL_MS]
    rig.group.now_s += TTL_MS / 1000
    assert live(rig.group.machine).over(ALL_SLOTS) == [keys.text2("n", "L")]


def test_a_lease_in_flight_counts_while_the_last_one_before_it_ends() -> None:
    """Guards the look for leases: where there are none, nobody asks which lease a record is attached to."""
    rig = Rig()
    grant(rig)
    rig.lag = 10
    rig.write(methods.LEASE_REVOKE, m.Items([w.LeaseKey("n", "L")]))
    grant(rig, "M")
    put(rig, Put("n", "a", b"1"), lease="M")
    rig.group.apply(1)
    put(rig, Put("n", "a", b"2"))
    assert leases_of(rig, "a") == {"a": ""}
    check_rows(rig)


def test_an_attached_key_does_not_prolong_a_lease() -> None:
    rig = Rig()
    grant(rig)
    rig.group.now_s += TTL_MS / 1000
    put(rig, Put("n", "a", b"1"), lease="L")
    assert live(rig.group.machine).over(ALL_SLOTS) == [keys.text2("n", "L")]


def test_in_an_amnesty_everybody_gets_a_full_lease_also_who_was_over() -> None:
    rig = Rig()
    grant(rig)
    grant(rig, "M", ttl_ms=60_000)
    part = live(rig.group.machine)
    rig.group.now_s += 59
    assert part.over(ALL_SLOTS) == [keys.text2("n", "L")]
    part.amnesty()
    assert part.over(ALL_SLOTS) == []
    rig.group.now_s += 9.9
    assert part.over(ALL_SLOTS) == []
    rig.group.now_s += 0.1
    assert part.over(ALL_SLOTS) == [keys.text2("n", "L")]
    rig.group.now_s += 50
    assert sorted(part.over(ALL_SLOTS)) == [keys.text2("n", "L"), keys.text2("n", "M")]


def test_a_restarted_node_knows_the_leases_and_gives_them_full_time() -> None:
    rig = Rig()
    grant(rig)
    put(rig, Put("n", "a", b"1"), lease="L")
    rig.group.now_s += 9
    rig.group.restart()
    part = live(rig.group.machine)
    assert (len(part), part.any) == (1, True)
    rig.group.now_s += 9.9
    assert part.over(ALL_SLOTS) == []
    rig.group.now_s += 0.1
    assert part.over(ALL_SLOTS) == [keys.text2("n", "L")]


def test_who_adopts_a_slot_gives_its_leases_full_time() -> None:
    slots = slot_bits(range(1024))
    source = Group("data", 0, DedupeConfig())
    target = Group("data", 1, DedupeConfig(), initial_slots=slot_bits([]))
    item = w.LeaseGrantItem("n", TTL_MS, "L")
    source.propose([(command_of(methods.LEASE_GRANT, w.LeaseGrant([item])), None)], 0)
    source.propose([(command_of(methods.KV_PUT, m.KvPut([Put("n", "a", b"1")], "L")), None)], 0)
    source.apply(2)
    prefix = source.prefix
    rows = {
        key[len(prefix) :]: value
        for row in (*KV.rows.values(), *LEASE.rows.values())
        for key, value in source.engine.scan(prefix + bytes((row,)), prefix + bytes((row + 1,)), 100)
    }
    assert len(rows) == 3

    def step(name: str, **fields: Any) -> None:
        body = GroupCommand(name, 1, 1, slots=slots, **fields)
        (outcome,) = target.propose([(command_of(methods.GROUP_COMMAND, body), None)], 0)
        assert isinstance(outcome, bytes), outcome
        target.apply(1)

    step("open")
    step("import", rows=rows, batch=1)
    part = live(target.machine)
    target.now_s += 30  # the copy takes long, and nobody can say a word meanwhile
    assert part.over(ALL_SLOTS) == [keys.text2("n", "L")]
    step("adopt", batch=2, revision=7, sealed_index=7)
    assert part.over(ALL_SLOTS) == []
    target.now_s += 9.9
    assert part.over(ALL_SLOTS) == []
    target.now_s += 0.1
    assert part.over(ALL_SLOTS) == [keys.text2("n", "L")]
    (outcome,) = target.propose([(command_of(methods.LEASE_EXPIRE, w.LeaseExpire([w.LeaseKey("n", "L")])), None)], 0)
    assert isinstance(outcome, bytes)
    target.apply(1)
    kv_prefix = keys.table_prefix(target.prefix, KV.rows["record"])
    assert target.engine.scan(kv_prefix, keys.after_prefix(kv_prefix), 10) == []


def test_many_that_are_over_end_in_several_orders(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("metad.state.kv.leases.ENTRY_BYTES_FULL", 300)
    names = [f"l{i}" for i in range(8)]
    for name in names:
        grant(rig, name)
        put(rig, Put("n", f"key of {name}", b"1"), lease=name)
    rig.settle()
    rig.group.now_s += TTL_MS / 1000
    part = live(rig.group.machine)
    orders = 0
    while over := part.over(ALL_SLOTS):
        expire(rig, *(keys.split_text(lease, len(keys.text("n")))[0] for lease in over))
        orders += 1
    assert 2 < orders <= 8
    assert leases_of(rig, *(f"key of {name}" for name in names)) == {}


# --- whatever is done ------------------------------------------------------------------------------------

KEYS = st.sampled_from(["a", "b", "c\0", ""])
NAMES = st.sampled_from(["L", "M", "L\0"])
ANY = st.sampled_from(["", "L", "M", "gone"])
OPERATIONS = st.builds(Do, KEYS, st.none() | st.just(b"w"), ANY)
DONE = st.one_of(
    st.builds(
        lambda names: (methods.LEASE_GRANT, w.LeaseGrant([w.LeaseGrantItem("n", TTL_MS, name) for name in names])),
        st.lists(NAMES, min_size=1, max_size=3),
    ),
    st.builds(
        lambda names: (methods.LEASE_REVOKE, m.Items([w.LeaseKey("n", name) for name in names])),
        st.lists(NAMES, min_size=1, max_size=2),
    ),
    st.builds(
        lambda names: (methods.LEASE_EXPIRE, w.LeaseExpire([w.LeaseKey("n", name) for name in names])),
        st.lists(NAMES, min_size=1, max_size=2),
    ),
    st.builds(
        lambda items, lease: (methods.KV_PUT, m.KvPut([Put("n", key, b"v", version) for key, version in items], lease)),
        st.lists(st.tuples(KEYS, st.none() | st.integers(0, 2)), min_size=1, max_size=4),
        ANY,
    ),
    st.builds(
        lambda names: (methods.KV_DELETE, m.KvDelete([m.KvDeleteItem("n", key) for key in names])),
        st.lists(KEYS, min_size=1, max_size=3),
    ),
    st.builds(
        lambda parts: (methods.KV_TRANSACT, m.KvTransact([Transaction("n", [], part) for part in parts])),
        st.lists(st.lists(OPERATIONS, max_size=4), min_size=1, max_size=3),
    ),
    st.builds(
        lambda attach, items: (
            (methods.LEASE_ATTACH, m.Items(items)) if attach else (methods.LEASE_DETACH, m.Items(items))
        ),
        st.booleans(),
        st.lists(st.builds(w.LeaseKeyItem, st.just("n"), NAMES, KEYS), min_size=1, max_size=3),
    ),
)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(DONE, st.integers(0, 6), st.booleans()), max_size=25))
def test_rows_of_leases_and_records_agree_whatever_is_done(steps: list[tuple[Any, int, bool]]) -> None:
    """And what is in flight, or was forgotten by a restart, makes no difference to any answer."""
    prompt, late = Rig(), Rig(lag=4)
    for (method, body), seconds, restarts in steps:
        answers = []
        for rig in (prompt, late):
            rig.group.now_s += seconds
            answers.append(rig.write(method, body))
            if method is methods.LEASE_GRANT:  # a lease lasts from when its grant was applied
                rig.settle()
        assert answers[0] == answers[1]
        if restarts:
            late.settle()
            late.group.restart()
            prompt.group.restart()
    for rig in (prompt, late):
        check_rows(rig)
    assert contents(prompt.group.engine) == contents(late.group.engine)


def test_names_that_a_client_has_guessed_cost_little(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig()
    revision = int(grant(rig, "").split(".")[0], 16) + 2
    guessed = [w.LeaseGrantItem("n", TTL_MS, f"{revision:x}.{n}", "holder", b"") for n in range(1, 901)]
    assert item_errors(rig.write(methods.LEASE_GRANT, w.LeaseGrant(guessed))) == {}
    looked: list[bytes] = []
    get = View.get

    def noted(view: View, key: bytes) -> bytes | None:
        looked.append(key)
        return get(view, key)

    monkeypatch.setattr(View, "get", noted)
    assert grant(rig, "") == f"{revision:x}.1023"
    assert len(looked) <= 10
