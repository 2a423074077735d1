"""Keeps what a newer version has put behind the fields that this one knows, where a record is read, changed and written
back: while nodes are upgraded one by one, an old leader must not undo what a new one wrote.

Only records that nodes make themselves are treated so. What clients write replaces a record as a whole, and elements of
a request that this version does not know are skipped (wire/PROTOCOL.md, "Payloads").
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec

from metad_wire.methods import encode

_decode = msgspec.msgpack.Decoder().decode


class Inner(NamedTuple):
    """A field that is a list of records, which may have tails as well."""

    at: int
    known: int
    key: Callable[[list[Any]], Any]
    """What tells which record is which."""


def fields(record: type[Any]) -> int:
    """How many this version knows."""
    return len(msgspec.structs.fields(record))


def inner(outer: type[Any], name: str, record: type[Any], key: Callable[[list[Any]], Any]) -> Inner:
    """The field of that name."""
    names = [field.name for field in msgspec.structs.fields(outer)]
    return Inner(names.index(name), fields(record), key)


def keep(stored: bytes, written: bytes, known: int, *lists: Inner) -> bytes:
    """``written``, a record of ``known`` fields, with what ``stored``, the same record before, has behind those."""
    before = _decode(stored)
    tails = [
        {each.key(one): one[each.known :] for one in before[each.at] if len(one) > each.known}
        if each.at < len(before)
        else {}
        for each in lists
    ]
    if len(before) <= known and not any(tails):
        return written
    after = _decode(written)
    for each, found in zip(lists, tails, strict=True):
        for one in after[each.at]:
            one += found.get(each.key(one), [])
    return encode(after + before[known:])
