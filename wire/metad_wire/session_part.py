"""Keys of what belongs to sessions and is found by a further text, as the filters of a client."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any

from . import messages as m
from .key import TEXT_END, text, text2
from .table import Keys, Table

_END = TEXT_END.decode()


def part_keys(sessions: Table[m.Session], field: str) -> Callable[[Sequence[Any]], Keys]:
    """What makes the keys of items whose last field of the key is this one. A storm's subscriptions pass here, so it is
    a call per column: the session's part is made as sessions make it."""
    text_of = attrgetter(field)

    def keys(items: Sequence[Any]) -> Keys:
        encoded, crcs = sessions.keys(items)
        names = list(map(text_of, items))
        ends = [f"{name}{_END}".encode() for name in names]
        if b"".join(ends).count(0) != len(ends):
            ends = list(map(text, names))
        return list(map(bytes.__add__, encoded, ends)), crcs

    return keys


def part_key_bytes(field: str) -> Callable[[Any], int]:
    """What says how long the key of an item is, or that of the session where the item has no such field."""

    def key_bytes(item: Any) -> int:
        session = len(text2(item.tenant, item.client_id))
        return session if isinstance(item, m.SessionKey) else session + len(text(getattr(item, field)))

    return key_bytes
