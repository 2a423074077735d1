"""What a method is: its code and name, request body, reply body, and what the ends must know to route and retry it.

A code never changes its meaning. ``mutates``: it goes through the log, and a retry needs an identity.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from enum import Enum, IntEnum
from typing import Annotated, Any, Generic, NamedTuple, TypeVar, get_args

import msgspec

from . import messages as m
from .errors import InvalidRequestError
from .faults import MALFORMED as MALFORMED
from .faults import fault_of_encoded, item_type, reason
from .refused import Refused

Body = TypeVar("Body", bound=m.Message)
Reply = TypeVar("Reply", bound=m.Message)

_encoder = msgspec.msgpack.Encoder()
encode = _encoder.encode


class By(Enum):
    """Which node answers a method. Any other node refuses with ``not_leader``, and names the leader if it knows it;
    one without a replica with ``not_replica``."""

    ANY = "any node"
    METADATA = "leader of metadata-0"
    GROUP = "leader of the group"
    """The group that the request names."""
    REPLICA = "replica of the group"
    """Any of the group that the request names, whether it leads or not."""


class For(Enum):
    """Who may use a method, where connections say who their holder is."""

    CLIENTS = "clients"
    ADMINS = "administrators"
    """And nodes. What changes the cluster itself: others get ``permission_denied``."""
    NODES = "nodes"
    """On their own port only: for clients it does not exist."""


class Lane(IntEnum):
    """Before what a method's requests go where work waits. Each method says its own, the lower number first."""

    HEARTBEATS = 0
    """Late, they cost a broker its life."""
    CONTROL = 1
    """What keeps the cluster and everybody's leases right: fences, seals, changes of the cluster, keep-alives."""
    RECORDS = 2
    """Reads and writes of records by their keys."""
    SCANS = 3
    """What reads or ends many records, and what nobody waits for."""


class Route(NamedTuple):
    """How the items of a method are routed: ``kind`` of their groups, and ``crcs``, the CRC-32 of the routing fields of
    each. ``fault`` says why an item would be refused whatever is stored; None if it would not."""

    kind: str
    crcs: Callable[[Sequence[Any]], Iterable[int]]
    fault: Callable[[Any], str | None]


class Head(NamedTuple):
    """What can be said of a request without decoding its items."""

    deadline_ms: int
    identity: m.Identity | None
    group: str
    items: int
    tenant: bytes
    """The first text of the first item, which is the first field of its key: a tenant or a namespace."""


_FIRST_TEXT_BYTES = 512  # of the items, to be looked at: longer texts count by how they begin


class Method(Generic[Body, Reply]):
    """One row: how a method's payloads are named, decoded and treated."""

    def __init__(
        self,
        code: int,
        name: str,
        body: type[Body],
        reply: type[Reply],
        lane: Lane,
        *,
        mutates: bool,
        by: By,
        whose: For = For.CLIENTS,
        repeatable: bool = True,
        shared: bool = False,
    ) -> None:
        """``shared``: several tables have a method of this code, each with types of its own, and only the general one
        is known by its code."""
        self.code = code
        self.name = name
        self.body = body
        self.reply = reply
        self.lane = lane
        self.mutates = mutates
        self.by = by
        self.whose = whose
        self.repeatable = repeatable
        """Whether a copy of its request, by whomever and whenever, does no harm, if it does not mutate."""
        self.table: Any = None
        """The table that declares it."""
        self.route: Route | None = None
        """None if its requests belong to no slot."""
        if shared:
            return
        if code in METHODS or name in METHODS_BY_NAME:
            raise TypeError(f"method {name} or its code {code:#06x} is taken")
        METHODS[code] = self
        METHODS_BY_NAME[name] = self

    @functools.cached_property
    def item(self) -> Any:
        """The type of the items in a request; None if it has no items."""
        return _item_of(self.body)

    # Nobody uses all methods, and their decoders together take longer to make than a command of metadctl.

    @functools.cached_property
    def _request_type(self) -> Any:
        return m.Traced[self.body]  # type: ignore[name-defined]

    @functools.cached_property
    def _request_decoder(self) -> Any:
        return msgspec.msgpack.Decoder(self._request_type)

    @functools.cached_property
    def _reply_decoder(self) -> Any:
        return msgspec.msgpack.Decoder(self.reply)

    @functools.cached_property
    def _head_decoder(self) -> Any:
        return msgspec.msgpack.Decoder(m.Request[_headed(self.body)])  # type: ignore[misc]

    @property
    def kind(self) -> str:
        """Of the groups that answer it."""
        return self.table.kind  # type: ignore[no-any-return]

    @property
    def changes(self) -> bool:
        """Whether it may change anything, records or the cluster itself."""
        return self.mutates or self.whose is not For.CLIENTS

    def __repr__(self) -> str:
        return f"<Method {self.name}>"

    def decode_request(self, payload: bytes) -> m.Request[Body]:
        """Raises :class:`InvalidRequestError` where the payload does not fit the body's type."""
        try:
            request: m.Request[Body] = self._request_decoder.decode(payload)
        except MALFORMED as error:
            raise self._invalid(error) from None
        return request

    def decode_what_fits(self, payload: bytes) -> tuple[m.Request[Body], Refused | None]:
        """:meth:`decode_request`, but items that do not fit their type are left out, and refused one by one."""
        try:
            return self._request_decoder.decode(payload), None
        except MALFORMED as error:
            if self.item is None:
                raise self._invalid(error) from None
            return self._decode_one_by_one(payload)

    def decode_head(self, payload: bytes) -> Head | None:
        """Look at a request without decoding its items, at a tenth of the cost. None if it is malformed."""
        try:
            request = self._head_decoder.decode(payload)
        except MALFORMED:
            return None
        items, tenant = (1, b"") if self.item is None else _first_text(memoryview(request.body.items))
        return Head(request.deadline_ms, request.identity, request.group, items, tenant)

    def _decode_one_by_one(self, payload: bytes) -> tuple[m.Request[Body], Refused]:
        fields: Any
        try:
            request = msgspec.msgpack.decode(payload, type=m.Traced[_unread(self.body)])  # type: ignore[misc]
            fields = msgspec.structs.asdict(request.body)
        except MALFORMED as error:
            raise self._invalid(error) from None
        items: list[Any] = []
        reasons: dict[int, str] = {}
        decode = msgspec.msgpack.Decoder(self.item).decode
        for position, item in enumerate(fields["items"]):
            try:
                items.append(decode(item))
            except MALFORMED as wrong:
                reasons[position] = fault_of_encoded(item, self.item, wrong)
        refused = Refused(len(fields["items"]), reasons)
        body = self.body(**{**fields, "items": items})
        head = request.deadline_ms, request.identity, body, request.group
        rest = request.requires, request.life, request.freshness_ms, request.trace
        return m.Traced(*head, *rest), refused

    def _invalid(self, error: Exception) -> InvalidRequestError:
        return InvalidRequestError(f"{self.name}: {reason(error, self._request_type).removeprefix('body.')}")

    def decode_reply(self, payload: bytes) -> Reply:
        """Raises :class:`InvalidRequestError` where the payload does not fit the reply's type."""
        try:
            reply: Reply = self._reply_decoder.decode(payload)
        except MALFORMED as error:
            raise InvalidRequestError(f"{self.name} reply: {reason(error, self.reply)}") from None
        return reply

    def without_items(self, body: bytes) -> bytes:
        """An encoded body with none of its items. Raises InvalidRequestError."""
        try:
            decoded = msgspec.msgpack.decode(body, type=_headed(self.body))
        except MALFORMED as error:
            raise self._invalid(error) from None
        return encode(msgspec.structs.replace(decoded, items=[]))

    def encode_request(
        self,
        body: Body,
        deadline_ms: int = 0,
        identity: m.Identity | None = None,
        group: str = "",
        requires: int = 0,
        life: m.Owner | None = None,
        freshness_ms: int = 0,
    ) -> bytes:
        """The payload of a REQUEST frame."""
        return encode(m.Request(deadline_ms, identity, body, group, requires, life, freshness_ms))


def _item_of(body: type[m.Message]) -> Any:
    for field in msgspec.structs.fields(body):
        if field.name == "items":
            return item_type(field.type)
    return None


def _first_text(encoded: Any) -> tuple[int, bytes]:
    """How many elements an encoded array has, and the first text in them."""
    items = bytes(memoryview(encoded)[:_FIRST_TEXT_BYTES])
    count, at = _array(items, 0)
    if not count:
        return 0, b""
    inner, at = _array(items, at)
    while inner:  # an item may begin with its key, which is an array, too
        inner, at = _array(items, at)
    first = items[at] if at < len(items) else 0
    if 0xA0 <= first <= 0xBF:
        begin, size = at + 1, first & 0x1F
    elif 0xD9 <= first <= 0xDB:
        begin = at + 1 + (1 << (first - 0xD9))
        size = int.from_bytes(items[at + 1 : begin], "big")
    else:
        return count, b""
    return count, items[begin : begin + size]


def _array(data: bytes, at: int) -> tuple[int, int]:
    """The length of the array that is encoded here, and where its elements begin; 0 and here if it is none."""
    first = data[at] if at < len(data) else 0
    if first & 0xF0 == 0x90:
        return first & 0x0F, at + 1
    if first == 0xDC or first == 0xDD:
        begin = at + (3 if first == 0xDC else 5)
        return int.from_bytes(data[at + 1 : begin], "big"), begin
    return 0, at


@functools.lru_cache(4_096)
def _headed(body: type[m.Message]) -> Any:
    """The type of a body whose items are not looked at."""
    return _with_items(body, lambda _: msgspec.Raw)


@functools.lru_cache(4_096)
def _unread(body: type[m.Message]) -> Any:
    """The type of a body whose items are still to be decoded."""
    return _with_items(body, lambda items: Annotated[list[msgspec.Raw], *get_args(items)[1:]])


def _with_items(body: type[m.Message], of: Callable[[Any], Any]) -> Any:
    fields: list[Any] = []
    for field in msgspec.structs.fields(body):
        kind = of(field.type) if field.name == "items" else field.type
        if field.required:
            fields.append((field.name, kind))
        elif field.default is msgspec.NODEFAULT:
            fields.append((field.name, kind, msgspec.field(default_factory=field.default_factory)))
        else:
            fields.append((field.name, kind, field.default))
    return msgspec.defstruct(body.__name__, fields, frozen=True, array_like=True)


METHODS: dict[int, Method[Any, Any]] = {}
METHODS_BY_NAME: dict[str, Method[Any, Any]] = {}
