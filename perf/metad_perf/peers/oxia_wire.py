"""The few of Oxia's protobuf messages that the comparison needs, encoded by hand: its public client protocol, version
1.

Pure. A record belongs to a shard, which the client chooses. Oxia's own clients choose by a hash of the key; here it is
another hash, so they would not find these records.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable

from .etcd_wire import field, fields, number
from .protobuf import BYTES, ENUM_AS_INT, MESSAGE, classes

_SERVICE = "/io.oxia.proto.v1.OxiaClient/"
ASSIGNMENTS, WRITE_STREAM, READ = f"{_SERVICE}GetShardAssignments", f"{_SERVICE}WriteStream", f"{_SERVICE}Read"
CREATE_SESSION, KEEP_ALIVE = f"{_SERVICE}CreateSession", f"{_SERVICE}KeepAlive"
CLOSE_SESSION = f"{_SERVICE}CloseSession"
NAMESPACE = "default"
_SHARD, _PUTS, _DELETES = 1, 2, 3  # of WriteRequest
KEY_NOT_FOUND = 1
_REPLIES = classes(
    "oxia",
    {
        "Written": {"status": (1, ENUM_AS_INT, "")},
        "WriteResponse": {"puts*": (1, MESSAGE, "Written"), "deletes*": (2, MESSAGE, "Written")},
        "GetResponse": {"status": (1, ENUM_AS_INT, ""), "value": (3, BYTES, "")},
        "ReadResponse": {"gets*": (1, MESSAGE, "GetResponse")},
    },
)


def assignments_request() -> bytes:
    """ShardAssignmentsRequest."""
    return field(1, NAMESPACE.encode())


def leaders(reply: bytes) -> dict[int, str]:
    """Of a ShardAssignments: each shard's leader, as host:port; empty if the namespace is not there."""
    found: dict[int, str] = {}
    for at, entry in fields(reply):
        if at != 1 or not isinstance(entry, bytes):
            continue
        named = dict(fields(entry))
        namespace = named.get(2, b"")
        if named.get(1) != NAMESPACE.encode() or not isinstance(namespace, bytes):
            continue
        for inner, shard in fields(namespace):
            if inner == 1 and isinstance(shard, bytes):
                about = dict(fields(shard))
                leader, shard_id = about.get(2, b""), about.get(1, 0)
                assert isinstance(leader, bytes)
                assert isinstance(shard_id, int)
                found[shard_id] = leader.decode()
    return found


def of_stream(shard: int) -> tuple[tuple[str, str], ...]:
    """The metadata of a stream of writes."""
    return (("namespace", NAMESPACE), ("shard-id", str(shard)))


def place_of(key: str, shards: int) -> int:
    """Which of so many shards a key belongs to."""
    return zlib.crc32(key.encode()) % shards


def put(key: str, value: bytes, *, session: int | None = None) -> bytes:
    """PutRequest, as a field of a WriteRequest. With a session the record ends with it."""
    made = field(1, key.encode()) + field(2, value)
    return field(_PUTS, made if session is None else made + number(4, session))


def delete(key: str) -> bytes:
    """DeleteRequest, as a field of a WriteRequest."""
    return field(_DELETES, field(1, key.encode()))


def get(key: str) -> bytes:
    """GetRequest with its value, as a field of a ReadRequest."""
    return field(2, field(1, key.encode()) + number(2, 1))


def to_shard(shard: int, parts: Iterable[bytes]) -> bytes:
    """WriteRequest or ReadRequest."""
    return number(_SHARD, shard) + b"".join(parts)


def statuses(reply: bytes) -> list[int]:
    """Of a WriteResponse: those that are not OK."""
    decoded = _REPLIES["WriteResponse"].FromString(reply)
    return [one.status for of_kind in (decoded.puts, decoded.deletes) for one in of_kind if one.status]


def values(reply: bytes) -> list[bytes | int]:
    """Of a ReadResponse: each value, or the status of a get that is not OK."""
    return [one.status or one.value for one in _REPLIES["ReadResponse"].FromString(reply).gets]


def create_session(shard: int, timeout_ms: int, client: str) -> bytes:
    """CreateSessionRequest."""
    return number(1, shard) + number(2, timeout_ms) + field(3, client.encode())


def session_of(reply: bytes) -> int:
    """Of a CreateSessionResponse."""
    session = dict(fields(reply)).get(1, 0)
    assert isinstance(session, int)
    return session


def of_session(shard: int, session: int) -> bytes:
    """SessionHeartbeat or CloseSessionRequest."""
    return number(1, shard) + number(2, session)
