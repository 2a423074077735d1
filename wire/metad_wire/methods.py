"""The method table: code -> name, request body, reply body, and what the ends must know to route and retry it.

A code never changes its meaning. ``mutates``: it goes through the log, and a retry needs an identity.
"""

from __future__ import annotations

from enum import Enum
from typing import Any, Generic, TypeVar

import msgspec

from . import cluster as c
from . import messages as m
from .errors import InvalidRequestError

Body = TypeVar("Body", bound=m.Message)
Reply = TypeVar("Reply", bound=m.Message)

_encoder = msgspec.msgpack.Encoder()
encode = _encoder.encode

MALFORMED = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""What decoding a stranger's payload may raise: ValidationError is a DecodeError; text that is not UTF-8 and
nesting that is too deep come through as Python's own errors."""


class By(Enum):
    """Which node answers a method. Every other fails it with ``not_leader``, and names who leads where it knows."""

    ANY = "any node"
    METADATA = "leader of metadata-0"
    GROUP = "leader of the items' group"
    """Where the items are of several groups: a read needs a leader of all of them; of a write each leader does its
    part, and the other items fail one by one."""


class For(Enum):
    """Who may use a method, where connections say who their holder is."""

    CLIENTS = "clients"
    ADMINS = "administrators"
    """And nodes. What changes the cluster itself: others get ``permission_denied``."""
    NODES = "nodes"
    """On their own port only: for clients it does not exist."""


class Method(Generic[Body, Reply]):
    """One row: how a method's payloads are named, decoded and treated."""

    def __init__(
        self,
        code: int,
        name: str,
        body: type[Body],
        reply: type[Reply],
        *,
        mutates: bool,
        by: By,
        whose: For = For.CLIENTS,
    ) -> None:
        self.code = code
        self.name = name
        self.body = body
        self.reply = reply
        self.mutates = mutates
        self.by = by
        self.whose = whose
        self._request_decoder = msgspec.msgpack.Decoder(m.Request[body])  # type: ignore[valid-type]
        self._reply_decoder = msgspec.msgpack.Decoder(reply)
        if code in METHODS or name in METHODS_BY_NAME:
            raise TypeError(f"method {name} or its code {code:#06x} is taken")
        METHODS[code] = self
        METHODS_BY_NAME[name] = self

    def __repr__(self) -> str:
        return f"<Method {self.name}>"

    def decode_request(self, payload: bytes) -> m.Request[Body]:
        """Raises :class:`InvalidRequestError` where the payload does not fit the body's type."""
        try:
            request: m.Request[Body] = self._request_decoder.decode(payload)
        except MALFORMED as error:
            raise InvalidRequestError(f"{self.name}: {error}") from None
        return request

    def decode_reply(self, payload: bytes) -> Reply:
        """Raises :class:`InvalidRequestError` where the payload does not fit the reply's type."""
        try:
            return self._reply_decoder.decode(payload)
        except MALFORMED as error:
            raise InvalidRequestError(f"{self.name} reply: {error}") from None

    def encode_request(
        self, body: Body, deadline_ms: int = 0, identity: m.Identity | None = None, group: str = "", requires: int = 0
    ) -> bytes:
        """The payload of a REQUEST frame."""
        return encode(m.Request(deadline_ms, identity, body, group, requires))


METHODS: dict[int, Method[Any, Any]] = {}
METHODS_BY_NAME: dict[str, Method[Any, Any]] = {}

STATUS = Method(0x0001, "system.status", m.Status, m.StatusReply, mutates=False, by=By.ANY)

CLUSTER_MAP = Method(0x0002, "cluster.map", c.MapRequest, c.MapReply, mutates=False, by=By.ANY)
CLUSTER_STORE = Method(0x0003, "cluster.store", c.StoreMap, m.WriteReply, mutates=True, by=By.METADATA, whose=For.NODES)
CLUSTER_JOIN = Method(0x0004, "cluster.join", c.Join, c.Done, mutates=False, by=By.METADATA, whose=For.ADMINS)
CLUSTER_LEAVE = Method(0x0005, "cluster.leave", c.Leave, c.Done, mutates=False, by=By.METADATA, whose=For.ADMINS)
CLUSTER_TRANSFER = Method(
    0x0006, "cluster.transfer", c.Transfer, c.Done, mutates=False, by=By.METADATA, whose=For.ADMINS
)
CLUSTER_ADD_GROUP = Method(
    0x0007, "cluster.add_group", c.AddGroup, c.Done, mutates=False, by=By.METADATA, whose=For.ADMINS
)
CLUSTER_REBALANCE = Method(
    0x0008, "cluster.rebalance", c.Rebalance, c.Done, mutates=False, by=By.METADATA, whose=For.ADMINS
)
CLUSTER_MOVED = Method(0x0009, "cluster.moved", c.Moved, c.Done, mutates=False, by=By.METADATA, whose=For.NODES)
GROUP_COMMAND = Method(
    0x000A, "group.command", c.GroupCommand, c.GroupReply, mutates=True, by=By.GROUP, whose=For.NODES
)

SESSION_TAKEOVER = Method(
    0x0101, "session.takeover", m.SessionTakeover, m.SessionTakeoverReply, mutates=True, by=By.GROUP
)
SESSION_DISCONNECT = Method(0x0102, "session.disconnect", m.SessionDisconnect, m.WriteReply, mutates=True, by=By.GROUP)
SESSION_UPDATE = Method(0x0103, "session.update", m.SessionUpdate, m.WriteReply, mutates=True, by=By.GROUP)
SESSION_GET = Method(0x0104, "session.get", m.SessionGet, m.SessionGetReply, mutates=False, by=By.GROUP)
SESSION_DELETE = Method(0x0105, "session.delete", m.SessionDelete, m.WriteReply, mutates=True, by=By.GROUP)
SESSION_LIST = Method(0x0106, "session.list", m.SessionList, m.SessionListReply, mutates=False, by=By.GROUP)

OFFSET_COMMIT = Method(0x0201, "offset.commit", m.OffsetCommit, m.WriteReply, mutates=True, by=By.GROUP)
OFFSET_FETCH = Method(0x0202, "offset.fetch", m.OffsetFetch, m.OffsetFetchReply, mutates=False, by=By.GROUP)
OFFSET_DELETE = Method(0x0203, "offset.delete", m.OffsetDelete, m.WriteReply, mutates=True, by=By.GROUP)
OFFSET_LIST = Method(0x0204, "offset.list", m.OffsetList, m.OffsetListReply, mutates=False, by=By.GROUP)
OFFSET_GENERATIONS = Method(
    0x0205, "offset.generations", m.OffsetGenerations, m.OffsetGenerationsReply, mutates=False, by=By.GROUP
)
OFFSET_RESET_GENERATIONS = Method(
    0x0206, "offset.reset_generations", m.OffsetResetGenerations, m.WriteReply, mutates=True, by=By.GROUP
)

KV_GET = Method(0x0301, "kv.get", m.KvGet, m.KvGetReply, mutates=False, by=By.GROUP)
KV_PUT = Method(0x0302, "kv.put", m.KvPut, m.KvPutReply, mutates=True, by=By.GROUP)
KV_DELETE = Method(0x0303, "kv.delete", m.KvDelete, m.WriteReply, mutates=True, by=By.GROUP)
KV_SCAN = Method(0x0304, "kv.scan", m.KvScan, m.KvScanReply, mutates=False, by=By.GROUP)
KV_TRANSACT = Method(0x0305, "kv.transact", m.KvTransact, m.KvTransactReply, mutates=True, by=By.GROUP)

READS = frozenset(method.code for method in METHODS.values() if not method.mutates and method.by is not By.METADATA)
"""Methods that change nothing, however often they are repeated and by whomever: all that 0-RTT data may ask for."""

BETWEEN_NODES = frozenset(method.code for method in METHODS.values() if method.whose is For.NODES)
"""Methods that clients may not use."""
