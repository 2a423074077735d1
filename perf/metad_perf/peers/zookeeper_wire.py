"""The few of ZooKeeper's messages that the comparison needs, encoded by hand in jute, its record format. Pure.

A request is a frame with its length, an xid and a type. ZooKeeper answers the requests of a connection in their order,
so every request here has the same xid.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence

CREATE, DELETE, GET, SET, PING, CHECK, MULTI, MULTI_READ, CLOSE = 1, 2, 4, 5, 11, 13, 14, 22, -11
NO_NODE, BAD_VERSION, NODE_EXISTS = -101, -103, -110
_XID, _PING_XID, _WATCH_XID = 1, -2, -1
_ERROR = -1  # type of a part of a multi's reply
_END = struct.pack(">i?i", -1, True, -1)  # of a multi
_ACL_OPEN = struct.pack(">ii", 1, 31) + struct.pack(">i", 5) + b"world" + struct.pack(">i", 6) + b"anyone"
_STAT_BYTES, _VERSION_AT = 68, 32
_REPLY = struct.Struct(">iqi")
_PART = struct.Struct(">i?i")
_INT = struct.Struct(">i")
Part = tuple[int, bytes]
"""One request without its header: its type and its body."""


def _buffer(data: bytes) -> bytes:
    return _INT.pack(len(data)) + data


def _frame(body: bytes) -> bytes:
    return _INT.pack(len(body)) + body


def connect(timeout_ms: int) -> bytes:
    """ConnectRequest of a new session."""
    return _frame(struct.pack(">iqiq", 0, 0, timeout_ms, 0) + _buffer(bytes(16)) + b"\0")


def connected(reply: bytes) -> int:
    """The session's timeout in ms, as the server decided; 0 if it refused the session."""
    _, timeout_ms = struct.unpack_from(">ii", reply)
    return int(timeout_ms)


PING_REQUEST = _frame(struct.pack(">ii", _PING_XID, PING))
CLOSE_REQUEST = _frame(struct.pack(">ii", _XID, CLOSE))


def create(path: bytes, data: bytes, *, ephemeral: bool = False) -> Part:
    """CreateRequest."""
    return CREATE, _buffer(path) + _buffer(data) + _ACL_OPEN + _INT.pack(1 if ephemeral else 0)


def set_data(path: bytes, data: bytes, version: int = -1) -> Part:
    """SetDataRequest for a version of the data, or for any."""
    return SET, _buffer(path) + _buffer(data) + _INT.pack(version)


def check(path: bytes, version: int) -> Part:
    """CheckVersionRequest, for a multi."""
    return CHECK, _buffer(path) + _INT.pack(version)


def delete(path: bytes) -> Part:
    """DeleteRequest for any version."""
    return DELETE, _buffer(path) + _INT.pack(-1)


def get(path: bytes) -> Part:
    """GetDataRequest without a watch."""
    return GET, _buffer(path) + b"\0"


def request(part: Part) -> bytes:
    """One request."""
    kind, body = part
    return _frame(struct.pack(">ii", _XID, kind) + body)


def multi(parts: Iterable[Part], kind: int = MULTI) -> bytes:
    """All of these or none (MULTI), or only reads (MULTI_READ)."""
    made = [_PART.pack(one, False, -1) + body for one, body in parts]
    return _frame(struct.pack(">ii", _XID, kind) + b"".join(made) + _END)


def cut(received: bytearray) -> list[bytes]:
    """The complete replies, but for those to pings. (The answer to a connect has a version of 0 for its xid.)"""
    replies, at, end = [], 0, len(received)
    while end - at >= 4:
        (size,) = _INT.unpack_from(received, at)
        if end - at - 4 < size:
            break
        reply = bytes(received[at + 4 : at + 4 + size])
        at += 4 + size
        if _INT.unpack_from(reply)[0] not in (_PING_XID, _WATCH_XID):
            replies.append(reply)
    del received[:at]
    return replies


def error_of(reply: bytes) -> int:
    """0, or why a request failed."""
    return int(_REPLY.unpack_from(reply)[2])


def error_of_multi(reply: bytes) -> int:
    """0, or why a multi failed as a whole: the first of its parts with an error of its own."""
    return first_error(reply)[0]


def first_error(reply: bytes) -> tuple[int, int]:
    """0, or why a multi failed as a whole, and the position of the part whose error that is; -1: of none."""
    if whole := error_of(reply):
        return whole, -1
    at, position = _REPLY.size, 0
    if _PART.unpack_from(reply, at)[0] != _ERROR:
        return 0, -1
    while at + _PART.size <= len(reply):
        kind, done, _ = _PART.unpack_from(reply, at)
        if done or kind != _ERROR:
            break
        (error,) = _INT.unpack_from(reply, at + _PART.size)
        if error not in (0, -2):  # -2: it would have been done, but for another
            return int(error), position
        at += _PART.size + 4
        position += 1
    return -1, -1


def version_of(reply: bytes) -> int:
    """The version of the data, of a SetDataResponse."""
    return int(_INT.unpack_from(reply, _REPLY.size + _VERSION_AT)[0])


def value_of(reply: bytes) -> bytes:
    """The data of a GetDataResponse."""
    (size,) = _INT.unpack_from(reply, _REPLY.size)
    return reply[_REPLY.size + 4 : _REPLY.size + 4 + size]


def values_of(reply: bytes) -> Sequence[bytes | None]:
    """The data of each part of a MULTI_READ; None for a part that failed."""
    return [None if one is None else one[0] for one in versioned(reply)]


def versioned(reply: bytes) -> Sequence[tuple[bytes, int] | None]:
    """The data of each part of a MULTI_READ, with its version; None for a part that failed."""
    values: list[tuple[bytes, int] | None] = []
    at, end = _REPLY.size, len(reply)
    while at < end:
        kind, done, _ = _PART.unpack_from(reply, at)
        at += _PART.size
        if done:
            break
        (size,) = _INT.unpack_from(reply, at)
        at += 4
        if kind == _ERROR:  # the number was the error
            values.append(None)
            continue
        size = max(0, size)
        values.append((reply[at : at + size], _INT.unpack_from(reply, at + size + _VERSION_AT)[0]))
        at += size + _STAT_BYTES
    return values
