"""Which group an item belongs to: key fields -> bytes -> slot -> group. wire/PROTOCOL.md, "Routing".

Client and server must agree about every byte here: a client that does not would send each item to the wrong leader. The
text encoding is also that of the keys on disk, so that a listing's order is the order of the encoded fields.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, NamedTuple
from zlib import crc32

from . import methods
from .cluster import SLOTS

TEXT_END: Final = b"\0\x01"
SLOT_MASK: Final = SLOTS - 1
"""``crc & SLOT_MASK`` is the slot."""


def text(value: str) -> bytes:
    """One text field: UTF-8 with every 0x00 escaped to 0x00 0xFF, ended by 0x00 0x01."""
    return value.encode().replace(b"\0", b"\0\xff") + TEXT_END


def text2(first: str, second: str) -> bytes:
    """Two text fields; the hot path of every session."""
    raw = f"{first}\0\x01{second}\0\x01".encode()
    if raw.count(0) == 2:
        return raw
    return text(first) + text(second)


class Route(NamedTuple):
    """How the items of a method are routed: ``kind`` of their groups, and their CRCs by position."""

    kind: str
    crcs: Callable[[Sequence[Any]], Iterable[int]]


def _sessions(items: Sequence[Any]) -> Iterable[int]:
    # 300,000 items a second pass here on their way out: text2 is spelled out, with one check for all of them.
    keys = [f"{item.tenant}\0\x01{item.client_id}\0\x01".encode() for item in items]
    if b"".join(keys).count(0) != 2 * len(keys):
        keys = [text2(item.tenant, item.client_id) for item in items]
    return map(crc32, keys)


def _offsets(items: Sequence[Any]) -> Iterable[int]:
    # A consumer commits all its partitions together, so its group is looked up more often than encoded.
    known: dict[tuple[str, str], int] = {}
    crcs: list[int] = []
    for item in items:
        key = (item.tenant, item.group)
        crc = known.get(key)
        if crc is None:
            crc = known[key] = crc32(text2(*key))
        crcs.append(crc)
    return crcs


def _namespaces(items: Sequence[Any]) -> Iterable[int]:
    names = [item.namespace for item in items]
    known = {name: crc32(text(name)) for name in set(names)}
    return [known[name] for name in names]


_SESSION = Route("data", _sessions)
_OFFSET = Route("offset", _offsets)
_KV = Route("data", _namespaces)

ROUTES: Final[dict[int, Route]] = {
    methods.SESSION_TAKEOVER.code: _SESSION,
    methods.SESSION_DISCONNECT.code: _SESSION,
    methods.SESSION_UPDATE.code: _SESSION,
    methods.SESSION_GET.code: _SESSION,
    methods.SESSION_DELETE.code: _SESSION,
    methods.OFFSET_COMMIT.code: _OFFSET,
    methods.OFFSET_FETCH.code: _OFFSET,
    methods.OFFSET_DELETE.code: _OFFSET,
    methods.OFFSET_LIST.code: _OFFSET,  # its body is its only item
    methods.OFFSET_GENERATIONS.code: _OFFSET,
    methods.OFFSET_RESET_GENERATIONS.code: _OFFSET,
    methods.KV_GET.code: _KV,
    methods.KV_PUT.code: _KV,
    methods.KV_DELETE.code: _KV,
    methods.KV_TRANSACT.code: _KV,
    methods.KV_SCAN.code: _KV,  # so is this one's
}
"""By method code. Methods that are not here belong to no group, or as session.list to all of a kind."""

KINDS: Final[dict[int, str]] = {code: route.kind for code, route in ROUTES.items()} | {
    methods.SESSION_LIST.code: _SESSION.kind
}
"""Method code -> kind of the groups that answer it."""


def split(route: Route, items: Sequence[Any], slots: Sequence[int], ordinals: int) -> dict[int, list[int]]:
    """Positions of the items by ordinal of their group, in order. ``slots`` is slot -> ordinal, ``ordinals`` more than
    the highest of them."""
    if len(items) == 1:
        (crc,) = route.crcs(items)
        return {slots[crc & SLOT_MASK]: [0]}
    parts: list[list[int]] = [[] for _ in range(ordinals)]
    for position, crc in enumerate(route.crcs(items)):
        parts[slots[crc & SLOT_MASK]].append(position)
    return {ordinal: positions for ordinal, positions in enumerate(parts) if positions}
