"""The commands of plain tables, derived from their declarations: get, put, delete and list."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from typing import Any

import msgspec

from metad_wire.messages import TableRecord
from metad_wire.table import PlainTable

from ...client import Client
from ..grammar import Arguments, Leaf, limit
from ..printing import Printer
from .bounded import Bounded, absent, first, page_size, present, show_raw

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
