"""The few of etcd's protobuf messages that the comparison needs, encoded by hand: etcd's API v3, ``etcdserverpb``.

Requests are made before the clock starts, so their cost does not count; of a reply only as much is read as
distinguishes success from failure. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from .protobuf import BOOL, BYTES, MESSAGE, classes

PUT = "/etcdserverpb.KV/Put"
RANGE = "/etcdserverpb.KV/Range"
TXN = "/etcdserverpb.KV/Txn"
LEASE_GRANT = "/etcdserverpb.Lease/LeaseGrant"
LEASE_REVOKE = "/etcdserverpb.Lease/LeaseRevoke"
STATUS = "/etcdserverpb.Maintenance/Status"

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_SUCCEEDED = 2  # of TxnResponse
_KVS, _VALUE = 2, 5  # of RangeResponse, of KeyValue
_TXN_RESPONSE = classes(
    "etcd",
    {
        "KeyValue": {"value": (5, BYTES, "")},
        "RangeResponse": {"kvs*": (2, MESSAGE, "KeyValue")},
        "PutResponse": {"prev_kv": (2, MESSAGE, "KeyValue")},
        "ResponseOp": {
            "response_range": (1, MESSAGE, "RangeResponse"),
            "response_put": (2, MESSAGE, "PutResponse"),
        },
        "TxnResponse": {"succeeded": (2, BOOL, ""), "responses*": (3, MESSAGE, "ResponseOp")},
    },
)["TxnResponse"]


def varint(value: int) -> bytes:
    """A protobuf varint of a number that is not negative."""
    made = bytearray()
    while value > 0x7F:
        made.append(value & 0x7F | 0x80)
        value >>= 7
    made.append(value)
    return bytes(made)


def field(at: int, value: bytes) -> bytes:
    """A length-delimited field: bytes, a string or a message."""
    return varint(at << 3 | _BYTES) + varint(len(value)) + value


def number(at: int, value: int) -> bytes:
    """A varint field."""
    return varint(at << 3 | _VARINT) + varint(value)


def put_request(key: bytes, value: bytes, *, lease: int = 0, previous: bool = False) -> bytes:
    """PutRequest; the answer has the previous value if that is asked for."""
    made = field(1, key) + field(2, value)
    if lease:
        made += number(3, lease)
    return made + number(4, 1) if previous else made


def range_request(key: bytes) -> bytes:
    """RangeRequest of one key, linearizable."""
    return field(1, key)


def lease_grant(lease: int, ttl_s: int) -> bytes:
    """LeaseGrantRequest."""
    return number(1, ttl_s) + number(2, lease)


def lease_revoke(lease: int) -> bytes:
    """LeaseRevokeRequest."""
    return number(1, lease)


def range_op(key: bytes) -> bytes:
    """RequestOp: read a key."""
    return field(1, range_request(key))


def put_op(request: bytes) -> bytes:
    """RequestOp: a PutRequest."""
    return field(2, request)


def delete_op(key: bytes) -> bytes:
    """RequestOp: delete a key."""
    return field(3, field(1, key))


def value_is(key: bytes, value: bytes) -> bytes:
    """Compare: the value of a key equals this one."""
    return number(1, 0) + number(2, 3) + field(3, key) + field(7, value)


def txn(ops: Iterable[bytes], compares: Iterable[bytes] = ()) -> bytes:
    """TxnRequest that does all of these if all compares hold; etcd refuses to put a key twice."""
    return b"".join(field(1, one) for one in compares) + b"".join(field(2, op) for op in ops)


def fields(message: bytes) -> Iterator[tuple[int, int | bytes]]:
    """(number, value) of each field in turn: an int, or the bytes of a length-delimited field. Raises ValueError."""
    at, end = 0, len(message)
    while at < end:
        tag, at = _read_varint(message, at)
        kind = tag & 7
        if kind == _VARINT:
            value, at = _read_varint(message, at)
            yield tag >> 3, value
            continue
        if kind == _BYTES:
            size, at = _read_varint(message, at)
        elif kind in (_FIXED64, _FIXED32):
            size = 8 if kind == _FIXED64 else 4
        else:
            raise ValueError(f"no protobuf message: wire type {kind}")
        if at + size > end:
            raise ValueError("no protobuf message: it is cut off")
        yield tag >> 3, message[at : at + size]
        at += size


def txn_succeeded(reply: bytes) -> bool:
    """Whether a TxnResponse reports success. Looks only at the first two fields, whatever follows them."""
    for at, value in fields(reply):
        if at == _SUCCEEDED:
            return value == 1
        if at > _SUCCEEDED:
            return False
    return False


def range_value(reply: bytes) -> bytes | None:
    """The value of the first key of a RangeResponse; None if there is none."""
    for at, value in fields(reply):
        if at == _KVS:
            assert isinstance(value, bytes)
            found = dict(fields(value)).get(_VALUE, b"")
            assert isinstance(found, bytes)
            return found
    return None


def txn_values(reply: bytes, count: int) -> list[bytes | None] | None:
    """What the last ``count`` operations of a TxnResponse, all of them reads, have found; None if it did not
    succeed."""
    found = txn_previous(reply, 0, count)
    return None if found is None else found[1]


def txn_previous(reply: bytes, puts: int, reads: int) -> tuple[list[bytes | None], list[bytes | None]] | None:
    """Of a TxnResponse whose first ``puts`` operations are puts, and whose last ``reads`` are reads: the values before
    those, and what these have found. None if it did not succeed."""
    decoded = _TXN_RESPONSE.FromString(reply)
    if not decoded.succeeded:
        return None
    replaced = [one.response_put for one in decoded.responses[:puts]]
    return (
        [put.prev_kv.value if put.HasField("prev_kv") else None for put in replaced],
        [kvs[0].value if (kvs := one.response_range.kvs) else None for one in decoded.responses[-reads:]],
    )


class MemberStatus:
    """StatusResponse: a member's own status."""

    def __init__(self, reply: bytes) -> None:
        of_reply = dict(fields(reply))
        header = of_reply.get(1, b"")
        assert isinstance(header, bytes)
        self.member_id = _number(dict(fields(header)).get(2))
        version = of_reply.get(2, b"")
        assert isinstance(version, bytes)
        self.version = version.decode()
        self.leader = _number(of_reply.get(4))
        """Member id of the leader; 0 if there is none."""

    @property
    def leads(self) -> bool:
        """Whether this member is the leader."""
        return self.leader != 0 and self.leader == self.member_id


def _number(value: int | bytes | None) -> int:
    return value if isinstance(value, int) else 0


def _read_varint(message: bytes, at: int) -> tuple[int, int]:
    number = shift = 0
    while True:
        if at >= len(message):
            raise ValueError("no protobuf message: it is cut off")
        byte = message[at]
        at += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number, at
        shift += 7
        if shift > 63:
            raise ValueError("no protobuf message: a varint without an end")
