"""``metadctl get|put|delete|list KIND``: single records, as they are stored. What an operator wants to know of brokers,
clients and groups is in commands of their own."""

from __future__ import annotations

import time

import msgspec

from metad_wire.table import TABLES, PlainTable

from ...client import Client
from .. import people
from ..grammar import Arguments, Commands, Leaf, Parser, consumer_group, count, limit
from ..printing import Printer
from .bounded import absent, first, page_size, present, say_more
from .plain import PlainCommands


def add(commands: Commands) -> None:
    """Add the commands."""
    get, put = commands.kinds("get", "read one record"), commands.kinds("put", "write one record")
    delete, listing = commands.kinds("delete", "delete one record"), commands.kinds("list", "read many records")
    _add_kv(get, put, delete, listing)
    _add_offsets(get, put, delete)
    _add_sequences(get, put, delete, listing)
    for table in TABLES.values():
        if isinstance(table, PlainTable):
            PlainCommands(table).add(get, put, delete, listing)


# --- keys ---


def _add_kv(get: Leaf, put: Leaf, delete: Leaf, listing: Leaf) -> None:
    _kv_key(get("kv", "a key", _get_kv))
    _kv_key(parser := put("kv", "write a key", _put_kv))
    parser.add_argument("value", metavar="VALUE", help="the value; - reads stdin")
    _expected_version(parser, "only if the current version is N; 0: only if the key is absent")
    _kv_key(parser := delete("kv", "a key", _delete_kv))
    _expected_version(parser, "only if the current version is N")
    parser = listing("kv", "of one namespace", _list_kv)
    parser.add_argument("namespace", metavar="NS")
    parser.add_argument("--prefix", default="", help="only keys with this prefix")
    limit(parser)


def _kv_key(parser: Parser) -> None:
    parser.add_argument("namespace", metavar="NS")
    parser.add_argument("key", metavar="KEY")


def _expected_version(parser: Parser, help: str) -> None:
    parser.add_argument("--expected-version", type=count, metavar="N", help=help)


async def _get_kv(m: Client, a: Arguments, printer: Printer) -> None:
    printer.one(present(await m.kv.get(a.namespace, a.key), f"no key {a.namespace}/{a.key}"))


async def _put_kv(m: Client, a: Arguments, printer: Printer) -> None:
    printer.one({"version": await m.kv.put(a.namespace, a.key, a.value, expected_version=a.expected_version)})


async def _delete_kv(m: Client, a: Arguments, printer: Printer) -> None:
    with absent(f"no key {a.namespace}/{a.key}"):
        await m.kv.delete(a.namespace, a.key, expected_version=a.expected_version)
    printer.one({"deleted": True})


async def _list_kv(m: Client, a: Arguments, printer: Printer) -> None:
    found = await first(m.kv.scan(a.namespace, a.prefix, page_size=page_size(a.limit)), a.limit)
    printer.many(found.records)
    if found.more:
        say_more(a.limit)


# --- offsets: those of a group are in `groups consumer get` ---


def _add_offsets(get: Leaf, put: Leaf, delete: Leaf) -> None:
    _offset_key(get("offset", "a consumer group's offset", _get_offset))
    _offset_key(parser := put("offset", "commit an offset", _put_offset))
    parser.add_argument("offset", metavar="OFFSET", type=count)
    parser.add_argument("--generation", type=count, default=0, help="generation of the consumer group")
    parser.add_argument(
        "--expected", type=int, metavar="N", help="only if the current offset is N; -1: only if there is none"
    )
    parser.add_argument("--metadata", default="", help="a note stored with the offset")
    parser.add_argument("--monotonic", action="store_true", help="refuse a lower offset")
    _offset_key(delete("offset", "a consumer group's offset", _delete_offset))


def _offset_key(parser: Parser) -> None:
    consumer_group(parser)
    parser.add_argument("topic", metavar="TOPIC")
    parser.add_argument("partition", metavar="PARTITION", type=count)


async def _get_offset(m: Client, a: Arguments, printer: Printer) -> None:
    found = present(await m.offsets.fetch(a.tenant, a.group, a.topic, a.partition), _no_offset(a))
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


async def _delete_offset(m: Client, a: Arguments, printer: Printer) -> None:
    with absent(_no_offset(a)):
        await m.offsets.delete(a.tenant, a.group, a.topic, a.partition)
    printer.one({"deleted": True})


def _no_offset(a: Arguments) -> str:
    return f"no offset {a.tenant}/{a.group}/{a.topic}/{a.partition}"


# --- sequences ---


def _add_sequences(get: Leaf, put: Leaf, delete: Leaf, listing: Leaf) -> None:
    _sequence(get("sequence", "the value of a sequence", _get_sequence))
    _sequence(parser := put("sequence", "add to a sequence, and print its new value", _add_to_sequence))
    parser.add_argument("delta", metavar="DELTA", type=int, nargs="?", default=1, help="default 1")
    _sequence(delete("sequence", "a sequence, which begins at 0 again", _delete_sequence))
    parser = listing("sequences", "of one namespace", _list_sequences)
    parser.add_argument("namespace", metavar="NS")
    parser.add_argument("--prefix", default="", help="only names with this prefix")
    limit(parser)


def _sequence(parser: Parser) -> None:
    parser.add_argument("namespace", metavar="NS")
    parser.add_argument("sequence", metavar="SEQUENCE")


async def _get_sequence(m: Client, a: Arguments, printer: Printer) -> None:
    printer.one(present(await m.sequences.get(a.namespace, a.sequence), f"no sequence {a.namespace}/{a.sequence}"))


async def _add_to_sequence(m: Client, a: Arguments, printer: Printer) -> None:
    printer.one({"value": await m.sequences.add(a.namespace, a.sequence, a.delta)})


async def _delete_sequence(m: Client, a: Arguments, printer: Printer) -> None:
    with absent(f"no sequence {a.namespace}/{a.sequence}"):
        await m.sequences.delete(a.namespace, a.sequence)
    printer.one({"deleted": True})


async def _list_sequences(m: Client, a: Arguments, printer: Printer) -> None:
    found = await first(m.sequences.list(a.namespace, a.prefix, page_size=page_size(a.limit)), a.limit)
    printer.many(found.records)
    if found.more:
        say_more(a.limit)
