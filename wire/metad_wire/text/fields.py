"""The bounds of a field, checked by the decoder: integer ranges and list lengths.

A peer is a stranger. Without a range, a negative number or one over 63 bits would reach the first struct.pack or
RocksDB key that it breaks; without a length, 16 MiB of one-byte items would become a gigabyte of objects before the
server could count them. msgspec checks a list's length before it reads the first item, and a range costs nothing that a
benchmark shows.

What a topic, a filter or a client id may be is checked by the kind of its field, wherever one stands. A kind is a type
that names a function of :mod:`metad_wire.text.topics`. So a field that is added to a message is checked by what it is
declared to be, on every way in.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Annotated, Any, NamedTuple, TypeVar, Union, get_args, get_origin

import msgspec
from msgspec import Meta

from .topics import any_text_fault, filter_fault, topic_fault, unshared_filter_fault

U32 = Annotated[int, Meta(ge=0, le=0xFFFF_FFFF)]
U63 = Annotated[int, Meta(ge=0, le=0x7FFF_FFFF_FFFF_FFFF)]
"""The usual integer: it fits every language's signed 64-bit integer."""
GENERATION_MAX = 2**53 - 1
"""A generation of a consumer group: ``invalid_item``. Every language has this number; older servers may have stored
higher ones."""
U53 = Annotated[int, Meta(ge=0, le=GENERATION_MAX)]
U64 = Annotated[int, Meta(ge=0)]  # msgpack has no larger integer
I64 = Annotated[int, Meta(le=0x7FFF_FFFF_FFFF_FFFF)]  # msgpack has no smaller integer

BATCH_ITEMS_MAX = 1_000
"""Items of one request: ``invalid_request``. Also all compares, operations and reads of one ``kv.transact``
together: ``too_large``."""
TRANSACTIONS_MAX = 1_000
"""Transactions of one ``kv.transact``: ``invalid_request``."""
TRANSACTION_ITEMS_MAX = 128
"""Each list in a transaction: ``invalid_item``."""
KEY_FIELDS_MAX = 16
"""Fields that a list or a filter names: ``invalid_request``."""
LIST_LIMIT_MAX = 10_000
"""``Page.limit``: ``invalid_request``."""

Qos = Annotated[int, Meta(ge=0, le=2)]
RetainHandling = Annotated[int, Meta(ge=0, le=2)]
SubscriptionId = Annotated[int, Meta(ge=0, le=268_435_455)]  # a variable byte integer of MQTT; 0: none


class Grammar(NamedTuple):
    """In the type of a text: the function that says why one is wrong, or None. :mod:`metad_wire.text.fields` calls it,
    and not the decoder."""

    fault: Callable[[str], str | None]


Topic = Annotated[str, Grammar(topic_fault)]
"""A topic name of MQTT."""
Filter = Annotated[str, Grammar(filter_fault)]
"""A topic filter of MQTT, which may be a shared one."""
UnsharedFilter = Annotated[str, Grammar(unshared_filter_fault)]
ClientId = Annotated[str, Grammar(any_text_fault)]
"""Of a broker's client, or how one begins: any text. What a protocol forbids, its broker refuses."""
OwnTopic = Annotated[str, Grammar(any_text_fault)]
"""A topic of a queue, which is no topic of MQTT: any text."""

Limit = Annotated[int, Meta(ge=1, le=LIST_LIMIT_MAX)]

T = TypeVar("T")
PerGroup = Annotated[list[T], Meta(max_length=1024)]
"""One item for each group of a kind: a kind has no more groups than slots."""
Batch = Annotated[list[T], Meta(max_length=BATCH_ITEMS_MAX)]
KeyFields = Annotated[list[str | U32], Meta(max_length=KEY_FIELDS_MAX)]
ListedFields = Annotated[list[str | int | bool], Meta(max_length=2 * KEY_FIELDS_MAX)]
"""Of an index, and of the key behind it."""
Transactions = Annotated[list[T], Meta(max_length=TRANSACTIONS_MAX)]
TransactionItems = Annotated[list[T], Meta(max_length=TRANSACTION_ITEMS_MAX)]


Check = Callable[[Any], str | None]
"""What is wrong with a value, as ``field: why``; None if nothing is."""


@functools.cache
def check_of(kind: Any, *, left_out: tuple[str, ...] = ()) -> Check | None:
    """What checks values of a type; None if no text in them has a grammar. ``left_out``: fields of it that are not
    looked at."""
    if get_origin(kind) is Annotated:
        inner, *others = get_args(kind)
        for grammar in others:
            if isinstance(grammar, Grammar):
                return None if grammar.fault is any_text_fault else grammar.fault
        return check_of(inner)
    if get_origin(kind) in (Union, types.UnionType):
        (check,) = {check_of(each) for each in get_args(kind)} - {None} or {None}
        return None if check is None else lambda value: None if value is None else check(value)
    if get_origin(kind) is list:
        return _of_list(check_of(get_args(kind)[0]))
    if isinstance(get_origin(kind) or kind, type) and issubclass(get_origin(kind) or kind, msgspec.Struct):
        found = [(one.name, check_of(one.type)) for one in msgspec.structs.fields(kind) if one.name not in left_out]
        return _of_fields([(name, check) for name, check in found if check is not None])
    return None


ColumnCheck = Callable[[Sequence[Any]], dict[int, str]]
"""What is wrong with values, by position."""


@functools.cache
def column_check_of(kind: Any) -> ColumnCheck | None:
    """:func:`check_of` for many values at once: a call for each field, and none for those that are None."""
    check = check_of(kind)
    if check is None:
        return None
    if get_origin(kind) in (Union, types.UnionType):
        (inner,) = {column_check_of(each) for each in get_args(kind)} - {None}
        assert inner is not None
        return _of_those_given(inner)
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        found = [(one.name, column_check_of(one.type)) for one in msgspec.structs.fields(kind)]
        return _of_columns([(name, attrgetter(name), one) for name, one in found if one is not None])
    return lambda values: {at: why for at, value in enumerate(values) if (why := check(value)) is not None}


def _of_those_given(check: ColumnCheck) -> ColumnCheck:
    def check_given(values: Sequence[Any]) -> dict[int, str]:
        given = [at for at, value in enumerate(values) if value is not None]
        return {given[at]: why for at, why in check([values[at] for at in given]).items()} if given else {}

    return check_given


def _of_columns(checks: list[tuple[str, Callable[[Any], Any], ColumnCheck]]) -> ColumnCheck:
    def check_columns(messages: Sequence[Any]) -> dict[int, str]:
        faults: dict[int, str] = {}
        for name, value_of, check in checks:
            for at, why in check(list(map(value_of, messages))).items():
                faults.setdefault(at, f"{name}: {why}")
        return faults

    return check_columns


def _of_list(check: Check | None) -> Check | None:
    if check is None:
        return None

    def check_items(items: list[Any]) -> str | None:
        for at, item in enumerate(items):
            if (why := check(item)) is not None:
                return f"[{at}]: {why}"
        return None

    return check_items


def _of_fields(checks: list[tuple[str, Check]]) -> Check | None:
    if not checks:
        return None

    def check_fields(message: Any) -> str | None:
        for name, check in checks:
            if (why := check(getattr(message, name))) is not None:
                return f"{name}: {why}"
        return None

    return check_fields
