"""Sessions: who serves a client, and what its broker keeps of it.

A session is what a broker stores for one of its own clients, and which broker owns it. A broker's *epoch* numbers its
lives.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any
from zlib import crc32

from .. import cluster as c
from .. import messages as m
from ..key import text2
from ..method import For, Lane
from ..table import Keys, Shown, Table


def _encoded(items: Sequence[Any]) -> list[bytes]:
    # 300,000 items a second pass here on their way out: text2 is spelled out, with one check for all of them.
    keys = [f"{item.tenant}\0\x01{item.client_id}\0\x01".encode() for item in items]
    if b"".join(keys).count(0) != 2 * len(keys):
        keys = [text2(item.tenant, item.client_id) for item in items]
    return keys


def _crcs(items: Sequence[Any]) -> Iterable[int]:
    return map(crc32, _encoded(items))


def _keys(items: Sequence[Any]) -> Keys:
    keys = _encoded(items)
    return keys, map(crc32, keys)


def _value_bytes(item: Any) -> int:
    properties: m.SessionProperties | None = getattr(item, "properties", None)
    if properties is None:
        return 0
    size, will = len(properties.payload), properties.will
    return size if will is None else size + len(will.topic.encode()) + len(will.payload) + len(will.properties)


SESSION = Table(
    "session",
    kind="data",
    rows={"owner": 0x10, "properties": 0x11, "attachment": 0x14, "parts": 0x17},
    record=m.Session,
    key=("tenant", "client_id"),
    value_bytes=_value_bytes,
    shows={"owner": Shown(m.SessionKey, m.SessionOwner), "properties": Shown(m.SessionKey, m.SessionProperties)},
    crcs=_crcs,
    keys=_keys,
)
"""``attachment``: the least that may speak for the session; a session may have none. ``parts``: how many subscriptions
and rows in flight it has, and how many bytes, with a copy of them and of the properties while they are short; none if
it has neither."""
SESSION_DUE = Table(
    "session_due", kind="data", rows={"due": 0x15}, record=m.SessionKey, key=("tenant", "client_id"), ordered_by=9
)
"""An index of the sessions that have a deadline, in order: 8 bytes of milliseconds and one that says what is due then
stand in front of the session's key. Retained messages that expire are in it, too, with (tenant, topic)."""
SESSION_TAKEOVER = SESSION.writes(0x0101, "takeover", m.SessionTakeover, m.SessionTakeoverReply, Lane.RECORDS)
SESSION_DISCONNECT = SESSION.writes(0x0102, "disconnect", m.SessionDisconnect, m.WriteReply, Lane.RECORDS)
SESSION_UPDATE = SESSION.writes(0x0103, "update", m.SessionUpdate, m.WriteReply, Lane.RECORDS)
SESSION_GET = SESSION.gets(0x0104, "get", m.SessionKey, m.Session, "The session of each client.")
SESSION_DELETE = SESSION.writes(0x0105, "delete", m.SessionDelete, m.WriteReply, Lane.RECORDS)
SESSION_LIST = SESSION.lists(
    0x0106,
    "list",
    m.SessionList,
    m.Session,
    "Sessions in order of (tenant, client id). ``tenant`` and ``broker`` match exactly, None matches any; "
    "``client_id_prefix`` needs a tenant.",
)
SESSION_END_TENANT = SESSION.writes(0x0107, "end_tenant", m.SessionEndTenant, m.WriteReply, Lane.RECORDS, routed=False)
SESSION_ENDINGS = SESSION.reads(0x0108, "endings", m.SessionEndings, m.SessionEndingsReply, Lane.SCANS, routed=False)
SESSION_SWEEP = SESSION.writes(
    0x0140, "sweep", c.SessionSweep, c.SessionSweepReply, Lane.SCANS, whose=For.NODES, routed=False
)
SESSION_COPY = SESSION.writes(0x075B, "copy", c.SessionCopy, m.WriteReply, Lane.SCANS, whose=For.NODES, routed=False)
SESSION_LOSE = SESSION.writes(0x0141, "lose", c.SessionLose, m.WriteReply, Lane.SCANS, whose=For.NODES, routed=False)
SESSION_END_STEP = SESSION.writes(
    0x0142, "end_step", c.SessionEndStep, c.SessionEndStepReply, Lane.SCANS, whose=For.NODES, routed=False
)
