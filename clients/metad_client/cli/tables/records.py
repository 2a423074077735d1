"""``metadctl get|put|delete|list KIND``: single records, as they are stored. What an operator wants to know of brokers,
clients and groups is in commands of their own.

The commands of plain tables are derived from their declarations (:class:`PlainCommands`).
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import msgspec

from metad_wire.messages import TableRecord
from metad_wire.table import TABLES, PlainTable

from ...client import Client
from .. import people
from ..grammar import Arguments, Commands, Leaf, Parser, count, limit
from ..printing import Printer
from .bounded import Bounded, Kind, absent, first, page_size, present, show_raw

_DEST = "field_"  # in front of a field's name, which may also be an option's name


class PlainCommands:
    """The commands of one table."""

    def __init__(self, table: PlainTable[Any]) -> None:
        self._table = table
        self._record = table.record
        self._values = table.plain.values
        self._fields = {field.name: field for field in msgspec.structs.fields(table.record)}

    def add(self, get: Leaf, put: Leaf, delete: Leaf, listing: Leaf) -> None:
        """Add the commands."""
        name, help = self._table.name, f"a record of table {self._table.name}"
        self._key(get(name, help, self._get))
        parser = delete(name, help, self._delete)
        self._key(parser)
        self._expected(parser, "only if it has version N now")
        parser = put(name, help, self._put)
        self._key(parser)
        for value in self._values:
            field = self._fields[value]
            note = "; - reads stdin" if field.type is bytes else ""
            if field.required:
                parser.add_argument(_DEST + value, metavar=value.upper(), type=_reader(field.type), help=note[2:])
            else:
                default = f"default {field.default!r}{note}"
                parser.add_argument(
                    f"--{value.replace('_', '-')}", dest=_DEST + value, type=_reader(field.type), help=default
                )
        self._expected(parser, "only if it has version N now; 0: only if it is absent")
        parser = listing(name, f"records of table {name}", self._list)
        keys = f"the first of {', '.join(self._table.key)}"
        parser.add_argument("key", nargs="*", metavar="KEY", action=self._first_fields(), help=keys)
        parser.add_argument("--prefix", default="", help="what the next of them starts with")
        limit(parser)

    async def _list(self, m: Client, a: Arguments, printer: Printer) -> None:
        records = m.table(self._table).list(*a.key, prefix=a.prefix, page_size=page_size(a.limit))
        found = await first(records, a.limit)
        show_raw(printer, Bounded([_flat(record) for record in found.records], found.more), a.limit)

    def _first_fields(self) -> type[argparse.Action]:
        """Reads the first fields of the table's key."""
        table = self._table
        readers = [_reader(self._fields[name].type) for name in table.key]

        class FirstFields(argparse.Action):
            def __call__(
                self, parser: argparse.ArgumentParser, namespace: Arguments, values: Any, option: str | None = None
            ) -> None:
                if len(values) > len(readers):
                    raise argparse.ArgumentError(self, f"the key of {table.name} has {len(readers)} fields")
                try:
                    read = [reader(text) for reader, text in zip(readers, values, strict=False)]
                except argparse.ArgumentTypeError as error:
                    raise argparse.ArgumentError(self, str(error)) from None
                setattr(namespace, self.dest, read)

        return FirstFields

    async def _get(self, m: Client, a: Arguments, printer: Printer) -> None:
        printer.one(_flat(present(await m.table(self._table).get(*self._key_of(a)), self._complaint(a))))

    async def _put(self, m: Client, a: Arguments, printer: Printer) -> None:
        given = {name: getattr(a, _DEST + name) for name in self._fields}
        record = self._record(**{name: value for name, value in given.items() if value is not None})
        printer.one({"version": await m.table(self._table).put(record, expected_version=a.expected_version)})

    async def _delete(self, m: Client, a: Arguments, printer: Printer) -> None:
        with absent(self._complaint(a)):
            await m.table(self._table).delete(*self._key_of(a), expected_version=a.expected_version)
        printer.one({"deleted": True})

    def _key(self, parser: argparse.ArgumentParser) -> None:
        for name in self._table.key:
            parser.add_argument(_DEST + name, metavar=name.upper(), type=_reader(self._fields[name].type))

    def _key_of(self, a: Arguments) -> list[Any]:
        return [getattr(a, _DEST + name) for name in self._table.key]

    def _complaint(self, a: Arguments) -> str:
        return f"no {self._table.name} {'/'.join(map(str, self._key_of(a)))}"

    def _expected(self, parser: argparse.ArgumentParser, help: str) -> None:
        parser.add_argument("--expected-version", type=int, metavar="N", help=help)


def _flat(found: TableRecord[Any]) -> dict[str, Any]:
    """A record's fields, followed by its version and revisions."""
    numbers = msgspec.structs.asdict(found)
    return msgspec.structs.asdict(numbers.pop("record")) | numbers


def _reader(type_: Any) -> Callable[[str], Any]:
    """A function that makes a field's value of an argument. A type that is neither text nor bytes is read as JSON."""

    def read(text: str) -> Any:
        if type_ is str:
            return text
        if type_ is bytes:
            return sys.stdin.buffer.read() if text == "-" else text.encode()
        try:
            return msgspec.convert(msgspec.json.decode(text), type_)
        except msgspec.MsgspecError as error:
            raise argparse.ArgumentTypeError(f"{text}: {error}") from None

    return read


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
    for table in TABLES.values():
        if isinstance(table, PlainTable):
            PlainCommands(table).add(get, put, delete, listing)


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
