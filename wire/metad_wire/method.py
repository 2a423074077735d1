"""What a method is: its code and name, request body, reply body, and what the ends must know to route and retry it.

A code never changes its meaning. ``mutates``: it goes through the log, and a retry needs an identity.
"""

from __future__ import annotations

from enum import Enum
from typing import Any, Generic, TypeVar

import msgspec

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
    """Which node answers a method. Any other node refuses with ``not_leader``, and names the leader if it knows it."""

    ANY = "any node"
    METADATA = "leader of metadata-0"
    GROUP = "leader of the group"
    """The group that the request names."""


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
