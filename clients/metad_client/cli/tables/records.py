"""``metadctl get|put|delete|list KIND``: single records, as they are stored. What an operator wants to know of brokers,
clients and groups is in commands of their own.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import msgspec

from ...client import Client
from .. import people
from ..grammar import Arguments, Commands, Leaf, Parser, count, limit
from ..printing import Printer
from .bounded import Kind, first, page_size, present, show_raw

_KEY = Kind("key", ("namespace", "key"))
_OFFSET = Kind("offset", ("tenant", "group", "topic", "partition"))
_SEQUENCE = Kind("sequence", ("namespace", "sequence"))


def add(commands: Commands) -> None:
    """Add the commands."""
    get, put = commands.kinds("get", "read one record"), commands.kinds("put", "write one record")
    delete, listing = commands.kinds("delete", "delete one record"), commands.kinds("list", "read many records")
    _add_kv(get, put, delete, listing)
    _add_offsets(get, put, delete)
    _add_sequences(get, put, delete, listing)


def _list(
    listing: Leaf, name: str, prefix: str, records: Callable[[Client], Callable[..., AsyncIterator[Any]]]
) -> None:
    """Add the command that lists the records of a namespace."""

    async def command(m: Client, a: Arguments, printer: Printer) -> None:
        show_raw(
            printer, await first(records(m)(a.namespace, a.prefix, page_size=page_size(a.limit)), a.limit), a.limit
        )

    parser = listing(name, "of one namespace", command)
    parser.add_argument("namespace", metavar="NS")
    parser.add_argument("--prefix", default="", help=prefix)
    limit(parser)


# --- keys ---


def _add_kv(get: Leaf, put: Leaf, delete: Leaf, listing: Leaf) -> None:
    _KEY.key(get("kv", "a key", _KEY.get(lambda m: m.kv.get)))
    parser = _KEY.key(put("kv", "write a key", _put_kv))
    parser.add_argument("value", metavar="VALUE", help="the value; - reads stdin")
    _expected_version(parser, "only if the current version is N; 0: only if the key is absent")
    parser = _KEY.key(delete("kv", "a key", _KEY.drop(lambda m: m.kv.delete, "expected_version")))
    _expected_version(parser, "only if the current version is N")
    _list(listing, "kv", "only keys with this prefix", lambda m: m.kv.scan)


def _expected_version(parser: Parser, help: str) -> None:
    parser.add_argument("--expected-version", type=count, metavar="N", help=help)


async def _put_kv(m: Client, a: Arguments, printer: Printer) -> None:
    printer.one({"version": await m.kv.put(a.namespace, a.key, a.value, expected_version=a.expected_version)})


# --- offsets: those of a group are in `groups consumer get` ---


def _add_offsets(get: Leaf, put: Leaf, delete: Leaf) -> None:
    _OFFSET.key(get("offset", "a consumer group's offset", _get_offset))
    parser = _OFFSET.key(put("offset", "commit an offset", _put_offset))
    parser.add_argument("offset", metavar="OFFSET", type=count)
    parser.add_argument("--generation", type=count, default=0, help="generation of the consumer group")
    parser.add_argument(
        "--expected", type=int, metavar="N", help="only if the current offset is N; -1: only if there is none"
    )
    parser.add_argument("--metadata", default="", help="a note stored with the offset")
    parser.add_argument("--monotonic", action="store_true", help="refuse a lower offset")
    _OFFSET.key(delete("offset", "a consumer group's offset", _OFFSET.drop(lambda m: m.offsets.delete)))


async def _get_offset(m: Client, a: Arguments, printer: Printer) -> None:
    found = present(await m.offsets.fetch(*_OFFSET.named(a)), _OFFSET.missing(a))
    facts = msgspec.structs.asdict(found)
    facts["committed"] = people.when(facts.pop("committed_ms"), int(time.time() * 1_000))
    printer.document(found, facts, [])


async def _put_offset(m: Client, a: Arguments, printer: Printer) -> None:
    await m.offsets.commit(
        a.tenant,
        a.group,
        a.topic,
        a.partition,
        a.offset,
        generation=a.generation,
        expected=a.expected,
        metadata=a.metadata,
        monotonic=a.monotonic,
    )
    printer.one({"committed": a.offset})


# --- sequences ---


def _add_sequences(get: Leaf, put: Leaf, delete: Leaf, listing: Leaf) -> None:
    _SEQUENCE.key(get("sequence", "the value of a sequence", _SEQUENCE.get(lambda m: m.sequences.get)))
    parser = _SEQUENCE.key(put("sequence", "add to a sequence, and print its new value", _add_to_sequence))
    parser.add_argument("delta", metavar="DELTA", type=int, nargs="?", default=1, help="default 1")
    drop = _SEQUENCE.drop(lambda m: m.sequences.delete)
    _SEQUENCE.key(delete("sequence", "a sequence, which begins at 0 again", drop))
    _list(listing, "sequences", "only names with this prefix", lambda m: m.sequences.list)


async def _add_to_sequence(m: Client, a: Arguments, printer: Printer) -> None:
    printer.one({"value": await m.sequences.add(a.namespace, a.sequence, a.delta)})
