"""etcd's messages by hand, against the protobuf library with the fields as etcd's rpc.proto numbers them."""

from __future__ import annotations

from typing import Any

import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from metad_perf.peers import etcd_wire

_I64, _U64, _BOOL, _STRING, _MESSAGE, _BYTES = 3, 4, 8, 9, 11, 12
# message -> field: (number, type, message type), repeated where the name ends in *
MESSAGES: dict[str, dict[str, tuple[int, int, str]]] = {
    "ResponseHeader": {"cluster_id": (1, _U64, ""), "member_id": (2, _U64, ""), "raft_term": (4, _U64, "")},
    "PutRequest": {"key": (1, _BYTES, ""), "value": (2, _BYTES, ""), "lease": (3, _I64, ""), "prev_kv": (4, _BOOL, "")},
    "RangeRequest": {"key": (1, _BYTES, ""), "range_end": (2, _BYTES, "")},
    "DeleteRangeRequest": {"key": (1, _BYTES, "")},
    "LeaseGrantRequest": {"TTL": (1, _I64, ""), "ID": (2, _I64, "")},
    "LeaseRevokeRequest": {"ID": (1, _I64, "")},
    "RequestOp": {
        "request_range": (1, _MESSAGE, "RangeRequest"),
        "request_put": (2, _MESSAGE, "PutRequest"),
        "request_delete_range": (3, _MESSAGE, "DeleteRangeRequest"),
    },
    "Compare": {"result": (1, _I64, ""), "target": (2, _I64, ""), "key": (3, _BYTES, ""), "value": (7, _BYTES, "")},
    "TxnRequest": {
        "compare*": (1, _MESSAGE, "Compare"),
        "success*": (2, _MESSAGE, "RequestOp"),
        "failure*": (3, _MESSAGE, "RequestOp"),
    },
    "KeyValue": {"key": (1, _BYTES, ""), "version": (4, _I64, ""), "value": (5, _BYTES, "")},
    "RangeResponse": {
        "header": (1, _MESSAGE, "ResponseHeader"),
        "kvs*": (2, _MESSAGE, "KeyValue"),
        "count": (4, _I64, ""),
    },
    "ResponseOp": {"response_range": (1, _MESSAGE, "RangeResponse"), "response_put": (2, _MESSAGE, "PutResponse")},
    "PutResponse": {"header": (1, _MESSAGE, "ResponseHeader"), "prev_kv": (2, _MESSAGE, "KeyValue")},
    "TxnResponse": {
        "header": (1, _MESSAGE, "ResponseHeader"),
        "succeeded": (2, _BOOL, ""),
        "responses*": (3, _MESSAGE, "ResponseOp"),
    },
    "StatusResponse": {
        "header": (1, _MESSAGE, "ResponseHeader"),
        "version": (2, _STRING, ""),
        "leader": (4, _U64, ""),
    },
}


def _pb() -> dict[str, Any]:
    file = descriptor_pb2.FileDescriptorProto(name="t.proto", package="t", syntax="proto3")
    for name, fields in MESSAGES.items():
        message = file.message_type.add(name=name)
        for field, (number, kind, of) in fields.items():
            made = message.field.add(name=field.rstrip("*"), number=number)
            made.type = kind  # type: ignore[assignment]
            made.label = 3 if field.endswith("*") else 1
            if of:
                made.type_name = f".t.{of}"
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"t.{name}")) for name in MESSAGES}


pb = _pb()


@pytest.mark.parametrize("value", [b"", b"x", b"v" * 127, b"v" * 128, b"v" * 70_000])
def test_puts_and_transactions(value: bytes) -> None:
    assert pb["PutRequest"].FromString(etcd_wire.put_request(b"key", value)) == pb["PutRequest"](
        key=b"key", value=value
    )
    leased = etcd_wire.put_request(b"key", value, lease=2**62)
    assert pb["PutRequest"].FromString(leased) == pb["PutRequest"](key=b"key", value=value, lease=2**62)
    put = etcd_wire.put_op(etcd_wire.put_request(b"a", value))
    txn = pb["TxnRequest"].FromString(etcd_wire.txn([put, etcd_wire.range_op(b"b"), etcd_wire.delete_op(b"c")]))
    first, second, third = txn.success
    assert (first.request_put.key, first.request_put.value) == (b"a", value)
    assert (second.request_range.key, third.request_delete_range.key) == (b"b", b"c")
    assert not txn.failure
    assert not txn.compare
    before = etcd_wire.put_op(etcd_wire.put_request(b"a", value, previous=True))
    guarded = pb["TxnRequest"].FromString(etcd_wire.txn([before], [etcd_wire.value_is(b"epoch", b"7")]))
    (compare,) = guarded.compare
    assert (compare.result, compare.target, compare.key, compare.value) == (0, 3, b"epoch", b"7")
    assert guarded.success[0].request_put.prev_kv
    assert pb["RangeRequest"].FromString(etcd_wire.range_request(b"a")) == pb["RangeRequest"](key=b"a")


def test_the_answer_to_a_transaction() -> None:
    header = pb["ResponseHeader"](cluster_id=2**63, member_id=7, raft_term=300)
    put = pb["ResponseOp"](response_put=pb["PutResponse"](header=header))
    reply = pb["TxnResponse"](header=header, succeeded=True, responses=[put] * 1_000)
    assert etcd_wire.txn_succeeded(reply.SerializeToString())
    reply.succeeded = False
    assert not etcd_wire.txn_succeeded(reply.SerializeToString())
    assert not etcd_wire.txn_succeeded(b"")


def test_what_a_transaction_has_found_and_replaced() -> None:
    def replaced(value: bytes) -> Any:
        return pb["ResponseOp"](response_put=pb["PutResponse"](prev_kv=pb["KeyValue"](value=value)))

    absent = pb["ResponseOp"](response_put=pb["PutResponse"]())
    found = pb["ResponseOp"](response_range=pb["RangeResponse"](kvs=[pb["KeyValue"](value=b"read")]))
    nothing = pb["ResponseOp"](response_range=pb["RangeResponse"]())
    reply = pb["TxnResponse"](succeeded=True, responses=[replaced(b"a"), absent, replaced(b""), found, nothing, found])
    assert etcd_wire.txn_previous(reply.SerializeToString(), 3, 3) == ([b"a", None, b""], [b"read", None, b"read"])
    reply.succeeded = False
    assert etcd_wire.txn_previous(reply.SerializeToString(), 3, 3) is None


def test_who_leads() -> None:
    header = pb["ResponseHeader"](member_id=2**64 - 1)
    status = etcd_wire.MemberStatus(
        pb["StatusResponse"](header=header, version="3.4.23", leader=2**64 - 1).SerializeToString()
    )
    assert (status.version, status.leads) == ("3.4.23", True)
    assert not etcd_wire.MemberStatus(pb["StatusResponse"](header=header, leader=5).SerializeToString()).leads
    assert not etcd_wire.MemberStatus(b"").leads


@pytest.mark.parametrize("message", [b"\x0a", b"\x0a\x05abc", b"\x80", b"\x0b", b"\x09\x00", b"\x08" + b"\xff" * 11])
def test_what_is_no_message(message: bytes) -> None:
    with pytest.raises(ValueError, match="no protobuf message"):
        list(etcd_wire.fields(message))


def test_leases() -> None:
    grant = pb["LeaseGrantRequest"].FromString(etcd_wire.lease_grant(2**62 - 1, 5))
    assert (grant.TTL, grant.ID) == (5, 2**62 - 1)
    assert pb["LeaseRevokeRequest"].FromString(etcd_wire.lease_revoke(7)).ID == 7


def test_what_reads_find() -> None:
    header = pb["ResponseHeader"](member_id=7)
    found = [
        pb["RangeResponse"](header=header, kvs=[pb["KeyValue"](key=b"k", version=3, value=value)], count=1)
        for value in (b"one", b"")
    ]
    none = pb["RangeResponse"](header=header)
    assert [etcd_wire.range_value(one.SerializeToString()) for one in (*found, none)] == [b"one", b"", None]
    put = pb["ResponseOp"](response_put=pb["PutResponse"](header=header))
    reads = [pb["ResponseOp"](response_range=one) for one in (*found, none)]
    reply = pb["TxnResponse"](header=header, succeeded=True, responses=[put, *reads])
    assert etcd_wire.txn_values(reply.SerializeToString(), 3) == [b"one", b"", None]
    reply.succeeded = False
    assert etcd_wire.txn_values(reply.SerializeToString(), 3) is None
