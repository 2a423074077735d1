"""The bounds of a field, checked by the decoder: integer ranges and list lengths.

A peer is a stranger. Without a range, a negative number or one over 63 bits would reach the first struct.pack or
RocksDB key that it breaks; without a length, 16 MiB of one-byte items would become a gigabyte of objects before the
server could count them. msgspec checks a list's length before it reads the first item, and a range costs nothing that a
benchmark shows.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, NamedTuple, TypeVar

from msgspec import Meta

from .topics import any_text_fault, filter_fault, topic_fault, unshared_filter_fault

U32 = Annotated[int, Meta(ge=0, le=0xFFFF_FFFF)]
U63 = Annotated[int, Meta(ge=0, le=0x7FFF_FFFF_FFFF_FFFF)]
"""The usual integer: it fits every language's signed 64-bit integer."""
GENERATION_MAX = 2**53 - 1  # exact in every language; no counter gets there, and a peer's -1 is no generation
U53 = Annotated[int, Meta(ge=0, le=GENERATION_MAX)]
U64 = Annotated[int, Meta(ge=0)]  # msgpack has no larger integer
I64 = Annotated[int, Meta(le=0x7FFF_FFFF_FFFF_FFFF)]  # msgpack has no smaller integer

BATCH_ITEMS_MAX = 1_000  # items in one request: larger requests gain nothing, and others wait for each as a whole
TRANSACTIONS_MAX = 1_000  # transactions in one request; each is a batch of its own
TRANSACTION_ITEMS_MAX = 128  # of each list in one transaction, so that one cannot hold up its group for long
KEY_FIELDS_MAX = 16  # in the key of one record; no table has as many
LIST_LIMIT_MAX = 10_000  # records in one page

Qos = Annotated[int, Meta(ge=0, le=2)]
RetainHandling = Annotated[int, Meta(ge=0, le=2)]
SubscriptionId = Annotated[int, Meta(ge=0, le=268_435_455)]  # a variable byte integer of MQTT; 0: none


class Grammar(NamedTuple):
    """In the type of a text: the function that says why one is wrong, or None. :mod:`metad_wire.text.grammar` calls it,
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
Transactions = Annotated[list[T], Meta(max_length=TRANSACTIONS_MAX)]
TransactionItems = Annotated[list[T], Meta(max_length=TRANSACTION_ITEMS_MAX)]
