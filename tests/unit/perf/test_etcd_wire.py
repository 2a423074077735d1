"""etcd's messages by hand, against the protobuf library with the fields as etcd's rpc.proto numbers them."""

from __future__ import annotations

from typing import Any

import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from metad_perf.load.workload import Settings
from metad_perf.peers import etcd_wire
from metad_perf.peers.etcd_client import requests

_U64, _BOOL, _STRING, _MESSAGE, _BYTES = 4, 8, 9, 11, 12
# message -> field: (number, type, message type), repeated where the name ends in *
MESSAGES: dict[str, dict[str, tuple[int, int, str]]] = {
    "ResponseHeader": {"cluster_id": (1, _U64, ""), "member_id": (2, _U64, ""), "raft_term": (4, _U64, "")},
    "PutRequest": {"key": (1, _BYTES, ""), "value": (2, _BYTES, "")},
    "RangeRequest": {"key": (1, _BYTES, ""), "range_end": (2, _BYTES, "")},
    "RequestOp": {"request_range": (1, _MESSAGE, "RangeRequest"), "request_put": (2, _MESSAGE, "PutRequest")},
    "TxnRequest": {"success*": (2, _MESSAGE, "RequestOp"), "failure*": (3, _MESSAGE, "RequestOp")},
    "ResponseOp": {"response_put": (2, _MESSAGE, "PutResponse")},
    "PutResponse": {"header": (1, _MESSAGE, "ResponseHeader")},
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
    txn = pb["TxnRequest"].FromString(etcd_wire.txn_of_puts([(b"a", value), (b"b", b"w")]))
    assert [(op.request_put.key, op.request_put.value) for op in txn.success] == [(b"a", value), (b"b", b"w")]
    assert not txn.failure
    assert pb["RangeRequest"].FromString(etcd_wire.range_request(b"a")) == pb["RangeRequest"](key=b"a")


def test_the_answer_to_a_transaction() -> None:
    header = pb["ResponseHeader"](cluster_id=2**63, member_id=7, raft_term=300)
    put = pb["ResponseOp"](response_put=pb["PutResponse"](header=header))
    reply = pb["TxnResponse"](header=header, succeeded=True, responses=[put] * 1_000)
    assert etcd_wire.txn_succeeded(reply.SerializeToString())
    reply.succeeded = False
    assert not etcd_wire.txn_succeeded(reply.SerializeToString())
    assert not etcd_wire.txn_succeeded(b"")


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


def test_requests_made_ahead_name_no_key_twice_and_differ() -> None:
    settings = Settings(verb="kv.put", batch=1_000, keys=2_000, value_bytes=200, epoch=1)
    made = requests(settings)
    assert len(made) >= 8
    assert len(set(made)) == len(made)
    txn = pb["TxnRequest"].FromString(made[0])
    puts = [op.request_put for op in txn.success]
    assert len({put.key for put in puts}) == len(puts) == 1_000
    assert {len(put.value) for put in puts} == {200}
