"""What a watch and an image show of each table, for type checkers: :mod:`metad_client.watch.typed` is made of the
declarations when this file is run."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any, get_args

import metad_client
from metad_client.watch.image import label_of
from metad_wire.table import ANY_KIND, TABLES, Table
from metad_wire.tables.table import PlainTable

PATH = Path(metad_client.__path__[0]) / "watch" / "typed.py"
TEXT = '''"""What a watch and an image show of each table, for type checkers. Of a declared table its Struct says it.

This module is made of the declarations by ``python tests/unit/client/typed_tables.py``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, Literal, TypeAlias, TypeVar, overload

{imports}
from .event import Event, Listened, Wanted, WatchEvent
from .image_table import ImageTable

Record = TypeVar("Record", bound=Message)
TableName = Literal[{names}]
"""A table that has rules of its own, by its name."""
AnyTable: TypeAlias = TableName | Table[Any]
"""A table, by its name or its declaration."""
{aliases}
AnyEvent: TypeAlias = {events}
"""An event of any table. Its ``table`` says of which."""


class _Unsaid:
    """Stands first, so that ``WatchBatch`` without more is one of anything."""


class OfTables(Generic[Wanted]):
    """What tells of the tables that a program wants."""

    @overload
    def _told(self: OfTables[_Unsaid]) -> list[WatchEvent[Any, Any, Any]]: ...
    @overload  # a declared table is a table
    def _told(  # type: ignore[overload-overlap]
        self: OfTables[PlainTable[Record]],
    ) -> list[WatchEvent[Any, TableRecord[Record]]]: ...
{gets}
    @overload
    def _told(self: OfTables[TableName]) -> list[AnyEvent]: ...
    @overload
    def _told(self: OfTables[AnyTable]) -> list[AnyEvent | WatchEvent]: ...
    def _told(self) -> Any:
        raise NotImplementedError("for type checkers")


class ImageTables(OfTables[Wanted]):
    """The tables of an image, by name or by declaration."""

    def on_change(self: Listened[Event], listener: Callable[[Event], None]) -> Callable[[], None]:
        """Call ``listener`` with each event, once the image shows it, in the client's own thread: also with each record
        that a snapshot has changed. Returns what ends that."""
        return self._listen(listener)

    def _listen(self, listener: Callable[[Any], None]) -> Callable[[], None]:
        raise NotImplementedError

    def _table(self, name: str) -> ImageTable[Any, Any]:
        raise NotImplementedError

    @overload  # a declared table is a table
    def __getitem__(  # type: ignore[overload-overlap]
        self, table: PlainTable[Record]
    ) -> ImageTable[Any, TableRecord[Record]]: ...
{items}
    def __getitem__(self, table: str | Table[Any]) -> ImageTable[Any, Any]:
        return self._table(table.name if isinstance(table, Table) else table)
'''


class Names:
    """The names that a written module uses, and what it imports for them."""

    def __init__(self, module: str, *names: str) -> None:
        self._names: dict[str, set[str]] = {}
        self.add(module, *names)

    def add(self, module: str, *names: str) -> None:
        """Use these names of a module."""
        self._names.setdefault(module, set()).update(names)

    def of(self, kind: Any) -> str:
        """A type as it is written there."""
        if arguments := get_args(kind):
            return f"{kind.__name__}[{', '.join(map(self.of, arguments))}]"
        if kind is not None and kind.__module__ != "builtins":
            self.add(kind.__module__, kind.__name__)
        return "None" if kind is None else str(kind.__name__)

    @property
    def imports(self) -> str:
        """The lines that import them."""
        return "\n".join(f"from {of} import {', '.join(sorted(names))}" for of, names in sorted(self._names.items()))


def text() -> str:
    """Of the module."""
    names = Names("metad_wire.messages", "Message", "TableRecord")
    names.add("metad_wire.table", "Table")
    names.add("metad_wire.tables.table", "PlainTable")
    name = names.of

    def named(label: str, table: Table[Any]) -> str:
        declared = f" | Table[{name(table.record)}]" if label == table.name and table.record is not None else ""
        return f'Literal["{label}"]{declared}'

    aliases, gets, items = [], [], []
    for table in tables():
        alias = f"_{table.name.title()}Event"
        key, record = (
            " | ".join(dict.fromkeys(map(name, column)))
            for column in zip(*((s.key, s.record) for s in table.shows.values()), strict=True)
        )
        aliases.append(f'{alias}: TypeAlias = WatchEvent[{key}, {record}, Literal["{table.name}"]]')
        of = f"OfTables[{named(table.name, table)}]"
        gets.append(f"    @overload\n    def _told(self: {of}) -> list[{alias}]: ...")
        shown = {label_of(table, row): (shown.key, shown.record) for row, shown in table.shows.items()}
        if table.name not in shown:
            shown[table.name] = (next(iter(table.shows.values())).key, table.record)
        for label, (key_type, kind) in shown.items():
            result = f"ImageTable[{name(key_type)}, {name(kind)}]"
            items.append(f"    @overload\n    def __getitem__(self, table: {named(label, table)}) -> {result}: ...")
    return formatted(
        TEXT.format(
            imports=names.imports,
            names=", ".join(f'"{table.name}"' for table in tables()),
            aliases="\n".join(aliases),
            events=" | ".join(alias.partition(":")[0] for alias in aliases),
            gets="\n".join(gets),
            items="\n".join(items),
        )
    )


def tables() -> list[Table[Any]]:
    """Those that have rules of their own, and can be watched."""
    found = [table for table in TABLES.values() if table.shows and table.kind != ANY_KIND]
    return sorted((one for one in found if not isinstance(one, PlainTable)), key=lambda table: table.name)


def formatted(source: str, path: Path = PATH) -> str:
    """As the linter wants it."""
    for command in (["check", "--select", "I", "--fix"], ["format"]):
        run = [sys.executable, "-m", "ruff", *command, "--quiet", "--stdin-filename", str(path), "-"]
        source = subprocess.run(run, input=source, capture_output=True, text=True, check=True).stdout
    return source


if __name__ == "__main__":
    PATH.write_text(text(), encoding="utf-8")
