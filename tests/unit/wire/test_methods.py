"""The method table, and what a stranger's payload can do to its decoders: nothing but InvalidRequestError."""

from __future__ import annotations

import struct
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from wire_strategies import values_of

from metad_wire import errors, messages
from metad_wire.errors import InvalidRequestError
from metad_wire.methods import (
    KV_GET,
    KV_PUT,
    KV_SCAN,
    KV_TRANSACT,
    METHODS,
    METHODS_BY_NAME,
    OFFSET_COMMIT,
    By,
    For,
    Lane,
    Method,
)
from metad_wire.methods import encode as pack
from metad_wire.tables.table import DECLARED
from metad_wire.text.fields import BATCH_ITEMS_MAX, LIST_LIMIT_MAX, TRANSACTION_ITEMS_MAX, TRANSACTIONS_MAX

few = settings(max_examples=15, deadline=None)  # of each of many methods
each_method = pytest.mark.parametrize("method", METHODS.values(), ids=lambda method: method.name)
BEHIND = b"\x99\x00\xc0\x91\x90\xa0\x00\xc0\x00\xc4\x00"
"""A request with all the fields that there are, and one more."""
NEST = b"\x91" * 100_000


def test_codes_and_names_agree() -> None:
    assert {method.code: method for method in METHODS.values()} == METHODS
    assert {method.name: method for method in METHODS.values()} == METHODS_BY_NAME
    assert all(0 < code < 0x10000 for code in METHODS)


def test_what_changes_the_cluster_is_not_for_every_client() -> None:
    """What the leader of metadata-0 decides is about all of the cluster, so nobody can forget to say whose it is."""
    for_clients = {m.name for m in METHODS.values() if m.by is By.METADATA and m.whose is For.CLIENTS}
    assert for_clients == {
        *(f"broker.{name}" for name in ("register", "heartbeat", "serve", "drain", "deregister", "get", "list")),
        *(f"declaration.{name}" for name in ("declare", "get", "list")),
        *(
            "plan.get",
            "plan.list",
            "role.list",
            "quota.list",
            "feature.list",
            "principal.get",
            "principal.list",
            "audit.list",
        ),
    }, "brokers say by themselves how they are, and programs which tables they bring"
    assert {method.name for method in METHODS.values() if method.whose is For.ADMINS} == {
        *("system.compact", "system.settings", "system.set"),
        *("broker.fence", "declaration.drop", "assignment.elect", "assignment.move"),
        *(f"plan.{name}" for name in ("create", "set", "delete")),
        *("tenants.end", "tenants.keep", "quota.put", "quota.delete", "feature.change"),
        *("role.put", "role.delete", "principal.put", "principal.change", "principal.delete"),
        *(f"cluster.{name}" for name in ("join", "leave", "transfer", "add_group", "rebalance")),
        *(f"cluster.{name}" for name in ("drain", "move_slots", "move_replica", "remove_group")),
        *(f"backup.{name}" for name in ("begin", "read", "end", "log")),
        "group.restore",
        "group.copy_tenant",
        "group.move_tenant",
        "group.put_tenant",
    }


def test_the_lane_of_each_method_says_what_it_is_for() -> None:
    """What goes before a storm of records must be little: nobody declares a lane by the way."""
    assert {method.name for method in METHODS.values() if method.lane is Lane.HEARTBEATS} == {"broker.heartbeat"}
    assert {method.name for method in METHODS.values() if method.lane is Lane.CONTROL} == {
        *("quota.use", "quota.counts"),
        *("system.status", "system.activity", "system.events", "system.compact", "system.settings", "system.set"),
        *(f"broker.{name}" for name in ("register", "serve", "drain", "deregister", "fence", "get", "list", "change")),
        *(
            f"cluster.{name}"
            for name in ("map", "join", "leave", "transfer", "add_group", "rebalance", "moved", "returns")
        ),
        *(f"cluster.{name}" for name in ("drain", "move_slots", "move_replica", "remove_group")),
        *("cluster.store", "group.command", "group.fence", "group.read_index", "group.compare", "group.rebuild"),
        *("lease.keep_alive", "lease.expire", "consumer.heartbeat", "assignment.step", "plan.progress", "access.may"),
    }
    for method in METHODS.values():
        if "page" in method.body.__struct_fields__ and method.lane is not Lane.CONTROL:
            assert method.lane is Lane.SCANS, method
        if method.whose is For.NODES:
            assert method.lane is not Lane.RECORDS, f"{method} is asked by no client"


def test_a_taken_code_or_name_is_refused() -> None:
    for code, name in ((KV_GET.code, "kv.copy"), (0x0399, KV_GET.name)):
        with pytest.raises(TypeError, match="taken"):
            Method(code, name, KV_GET.body, KV_GET.reply, Lane.RECORDS, mutates=False, by=By.GROUP)
    assert METHODS[KV_GET.code] is KV_GET
    assert "kv.copy" not in METHODS_BY_NAME
    assert 0x0399 not in METHODS


@each_method
@few
@given(data=st.data())
def test_requests_round_trip(method: Method[Any, Any], data: st.DataObject) -> None:
    body = data.draw(values_of(method.body))
    identity = data.draw(st.none() | values_of(messages.Identity))
    deadline_ms = data.draw(st.integers(0, 2**32 - 1))
    payload = method.encode_request(body, deadline_ms, identity)
    assert method.decode_request(payload) == messages.Traced(deadline_ms, identity, body)


@each_method
@few
@given(data=st.data())
def test_replies_round_trip(method: Method[Any, Any], data: st.DataObject) -> None:
    reply = data.draw(values_of(method.reply))
    assert method.decode_reply(pack(reply)) == reply


@pytest.mark.parametrize(
    "class_",
    [
        messages.Hello,
        messages.Welcome,
        messages.Credit,
        messages.Ping,
        messages.Goaway,
        errors.ErrorBody,
    ],
)
@few
@given(data=st.data())
def test_connection_messages_round_trip(class_: type, data: st.DataObject) -> None:
    value = data.draw(values_of(class_))
    assert msgspec.msgpack.decode(pack(value), type=class_) == value


@each_method
@few
@given(payload=st.binary(max_size=200))
def test_garbage_is_an_invalid_request(method: Method[Any, Any], payload: bytes) -> None:
    for decode in (method.decode_request, method.decode_reply):
        try:
            decode(payload)
        except InvalidRequestError:
            continue


@each_method
@few
@given(data=st.data())
def test_a_damaged_request_is_an_invalid_request_or_another_one(method: Method[Any, Any], data: st.DataObject) -> None:
    payload = bytearray(method.encode_request(data.draw(values_of(method.body))))
    for _ in range(data.draw(st.integers(1, 4))):
        payload[data.draw(st.integers(0, len(payload) - 1))] = data.draw(st.integers(0, 255))
    del payload[data.draw(st.integers(0, len(payload))) :]
    try:
        request = method.decode_request(bytes(payload))
    except InvalidRequestError:
        return
    assert type(request.body) is method.body


@pytest.mark.parametrize(
    ("payload", "complaint"),
    [
        pytest.param(b"", "truncated", id="empty"),
        pytest.param(b"\xc1", "malformed", id="byte that msgpack never uses"),
        pytest.param(b"\x93\x00\xc0\x91", "truncated", id="cut"),
        pytest.param(b"\x93\x00\xc0\x91\x90\x00", "trailing", id="trailing junk"),
        pytest.param(b"\x92\x00\xc0", "body: it is missing", id="no body"),
        pytest.param(b"\x93\x00\xc0\x91\x91\x92\xa1\xff\xa1k", "UTF-8", id="text that is not UTF-8"),
        pytest.param(b"\x93\x00\xc0\x91\x91\x92\xc4\x01n\xa1k", "str", id="bytes for text"),
        pytest.param(b"\x93\x00\xc0\x91\xc0", "array", id="nil for a list"),
        pytest.param(b"\x93\xa10\xc0\x91\x90", "int", id="text for an integer"),
        pytest.param(b"\x93\xc3\xc0\x91\x90", "int", id="a boolean for an integer"),
        pytest.param(b"\x93\xff\xc0\x91\x90", ">= 0", id="negative deadline"),
        pytest.param(b"\x93\xcf" + b"\xff" * 8 + b"\xc0\x91\x90", "<=", id="deadline over 32 bits"),
        pytest.param(b"\x93\x00\xc0\x81\x00\x90", "array", id="a map for an array"),
        pytest.param(b"\x93\x00\xc0\x91" + NEST + b"\xc0", "missing", id="deep where a struct should be"),
        pytest.param(
            BEHIND + NEST + b"\xc0",
            "deeply",
            id="deep behind the known fields",
        ),
        pytest.param(BEHIND + b"\x81\x00" * 100_000 + b"\xc0", "deeply", id="deep maps"),
        pytest.param(b"\x93\x00\xc0\x91\xdd\xff\xff\xff\xff", "length", id="a list that claims 2**32 items"),
        pytest.param(BEHIND + b"\xdd\xff\xff\xff\xff", "truncated", id="the same, skipped"),
        pytest.param(
            BEHIND + b"\xc6\xff\xff\xff\xff",
            "truncated",
            id="bytes that claim 4 GiB",
        ),
    ],
)
def test_malformed_requests(payload: bytes, complaint: str) -> None:
    """Guards the catch list: text that is not UTF-8 used to escape as UnicodeDecodeError."""
    with pytest.raises(InvalidRequestError, match=complaint):
        KV_GET.decode_request(payload)


def test_malformed_replies() -> None:
    for payload in (b"", b"\x91\x91\x96\xa1\xff\xa1k\xc4\x00\x01\x01\x01", b"\x92\x90" + NEST + b"\xc0"):
        with pytest.raises(InvalidRequestError, match=r"kv\.get reply"):
            KV_GET.decode_reply(payload)


def array_header(items: int) -> bytes:
    return b"\xdd" + struct.pack(">I", items)


def test_a_batch_is_counted_before_it_is_built() -> None:
    """Guards memory: a frame of tiny items used to become objects a hundred times its size before the check."""
    full = b"\x93\x00\xc0\x91" + array_header(BATCH_ITEMS_MAX) + b"\x92\xa0\xa0" * BATCH_ITEMS_MAX
    assert len(KV_GET.decode_request(full).body.items) == BATCH_ITEMS_MAX
    for method in METHODS.values():
        names = [field.name for field in msgspec.structs.fields(method.body)]
        if "items" not in names:
            continue
        before = b"\x00\x00" if method.table is DECLARED else b"\xa0\x00"
        # The items themselves are missing: only a decoder that looks at the length first finds fault with it.
        head = b"\x93\x00\xc0" + bytes([0x90 + len(names)]) + before[: names.index("items")]
        payload = head + array_header(10_001)
        with pytest.raises(InvalidRequestError, match="of length <= "):
            method.decode_request(payload)


def test_a_transaction_is_counted_before_it_is_built() -> None:
    many = b"\x93\x00\xc0\x91" + array_header(TRANSACTIONS_MAX + 1)
    with pytest.raises(InvalidRequestError, match=f"<= {TRANSACTIONS_MAX}"):
        KV_TRANSACT.decode_request(many)
    for position in range(4):
        lists: list[list[Any]] = [[], [], [], []]
        lists[position] = ["k" if position == 3 else ["k"]] * (TRANSACTION_ITEMS_MAX + 1)
        with pytest.raises(InvalidRequestError, match=f"<= {TRANSACTION_ITEMS_MAX}"):
            KV_TRANSACT.decode_request(pack([0, None, [[["n", *lists]]]]))
        lists[position].pop()
        KV_TRANSACT.decode_request(pack([0, None, [[["n", *lists]]]]))


@pytest.mark.parametrize("limit", [0, -1, LIST_LIMIT_MAX + 1])
def test_a_page_limit_out_of_range_is_refused(limit: int) -> None:
    with pytest.raises(InvalidRequestError, match="expected int"):
        KV_SCAN.decode_request(pack([0, None, ["n", "", [limit]]]))
    for fine in (1, LIST_LIMIT_MAX):
        assert KV_SCAN.decode_request(pack([0, None, ["n", "", [fine]]])).body.page.limit == fine


def test_integers_that_no_key_or_column_holds_are_refused() -> None:
    def commit(partition: int = 0, offset: int = 0, expected: int | None = None) -> bytes:
        return pack([0, None, [[["t", "g", "o", partition, offset, 0, expected, ""]]]])

    assert OFFSET_COMMIT.decode_request(commit(2**32 - 1, 2**63 - 1, -1)).body.items[0].expected == -1
    for payload in (commit(2**32), commit(-1), commit(0, 2**63), commit(0, -1), commit(0, 0, 2**63)):
        with pytest.raises(InvalidRequestError, match="expected int"):
            OFFSET_COMMIT.decode_request(payload)


def test_identity_takes_the_whole_range_of_a_random_client_id() -> None:
    identity = messages.Identity(2**64 - 1, 1, 1)
    assert KV_PUT.decode_request(KV_PUT.encode_request(messages.KvPut([]), 0, identity)).identity == identity
    with pytest.raises(InvalidRequestError):
        KV_PUT.decode_request(pack([0, [-1, 1, 1, 0], [[]]]))
