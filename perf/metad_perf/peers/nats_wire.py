"""The few of NATS's and JetStream's messages that the comparison needs. Pure.

Requests of JetStream are messages with a reply subject; the reply comes as a message to it. A reply subject here is
``_M.CALL.ITEM``, so that a reply tells which call's which item it answers.
"""

from __future__ import annotations

import msgspec

INBOX = b"_M"
CONNECT = (
    b'CONNECT {"verbose":false,"pedantic":false,"headers":true,"no_responders":true,"lang":"metad-perf"}\r\n'
    b"SUB " + INBOX + b".> 1\r\nPING\r\n"
)
PONG = b"PONG\r\n"
DELETED = b"KV-Operation: DEL"
PURGED = b"KV-Operation: PURGE\r\nNats-Rollup: sub"
_VERSION = b"NATS/1.0"
_END = b"\r\n"


class Message(msgspec.Struct, frozen=True):
    """One message to us. ``status`` 0: a message; another: why there is none."""

    subject: bytes
    headers: bytes
    payload: bytes
    status: int = 0


class Pinged(msgspec.Struct, frozen=True):
    """The server wants a PONG."""


class Refused(msgspec.Struct, frozen=True):
    """An error of the connection."""

    text: str


Event = Message | Pinged | Refused


def published(subject: bytes, reply: bytes, payload: bytes) -> bytes:
    """PUB."""
    return b"PUB %b %b %d\r\n%b\r\n" % (subject, reply, len(payload), payload)


def published_with(headers: bytes, subject: bytes, reply: bytes) -> bytes:
    """HPUB without a payload."""
    head = _VERSION + _END + headers + _END + _END
    return b"HPUB %b %b %d %d\r\n%b\r\n" % (subject, reply, len(head), len(head), head)


def reply_to(call: int, item: int) -> bytes:
    """The reply subject of an item."""
    return b"%b.%d.%d" % (INBOX, call, item)


def bucket(name: str, *, replicas: int, ttl_s: int) -> bytes:
    """The stream of a bucket of keys with one value each; ``ttl_s`` 0: they stay."""
    return msgspec.json.encode(
        {
            "name": f"KV_{name}",
            "subjects": [f"$KV.{name}.>"],
            "max_msgs_per_subject": 1,
            "max_age": ttl_s * 1_000_000_000,
            "max_bytes": -1,
            "max_msgs": -1,
            "max_consumers": -1,
            "max_msg_size": -1,
            "storage": "file",
            "num_replicas": replicas,
            "discard": "new",
            "retention": "limits",
            "allow_rollup_hdrs": True,
            "allow_direct": True,
            "duplicate_window": min(120, ttl_s or 120) * 1_000_000_000,
        }
    )


def cut(received: bytearray) -> list[Event]:
    """What has arrived whole. Raises ValueError."""
    data = bytes(received)
    events: list[Event] = []
    at = 0
    while (end := data.find(_END, at)) >= 0:
        words = data[at:end].split()
        kind = words[0].upper() if words else b""
        after = end + 2
        if kind in (b"MSG", b"HMSG"):
            size = int(words[-1])
            if after + size + 2 > len(data):
                break
            head = int(words[-2]) if kind == b"HMSG" else 0
            events.append(_message(words[1], data[after : after + head], data[after + head : after + size]))
            after += size + 2
        elif kind == b"PING":
            events.append(Pinged())
        elif kind == b"-ERR":
            events.append(Refused(data[at:end].decode(errors="replace")))
        elif kind not in (b"INFO", b"PONG", b"+OK"):
            raise ValueError(f"no message of NATS begins with {kind!r}")
        at = after
    del received[:at]
    return events


def _message(subject: bytes, headers: bytes, payload: bytes) -> Message:
    if not headers:
        return Message(subject, b"", payload)
    words = headers.partition(_END)[0].split()
    return Message(subject, headers, payload, int(words[1]) if len(words) > 1 else 0)
