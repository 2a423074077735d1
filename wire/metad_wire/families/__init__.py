"""The families: tables of the metadata that brokers of each kind keep, declared in the code as programs declare theirs.

A module that is added here is a family that all ends know. A table has a number below 1024, which no other has or will
have, and from its declaration all the rest follows.
"""

from __future__ import annotations

import importlib
import pkgutil
import types
from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeVar

from ..declaration import declaration_of
from ..messages import Message
from ..table import Table
from ..tables import TABLES
from ..tables.declaration import FIRST_NUMBER
from ..tables.table import PlainTable

Record = TypeVar("Record", bound=Message)

FAMILIES: Final[dict[str, PlainTable[Any]]] = {}
"""The tables of all families, by name."""


def family(
    number: int,
    name: str,
    record: type[Record],
    *,
    key: Sequence[str],
    routing: Sequence[str] | None = None,
    kind: str = "metadata",
    indexes: Mapping[str, Sequence[str]] = types.MappingProxyType({}),
) -> PlainTable[Record]:
    """Declare a table. Raises TypeError if it makes no sense, or another has its name or number."""
    declaration_of(name, record, kind=kind, key=key, routing=routing, indexes=indexes)
    if name in TABLES or name in FAMILIES:
        raise TypeError(f"there is a table {name} already")
    if not 0 < number < FIRST_NUMBER or any(table.number == number for table in FAMILIES.values()):
        raise TypeError(f"{name}: number {number} is taken, or none of a table in the code")
    table = FAMILIES[name] = PlainTable(
        name, number=number, kind=kind, record=record, key=key, routing=routing, indexes=indexes
    )
    return table


NAMES: Final = [module.name for module in pkgutil.iter_modules(__path__)]
for _name in NAMES:
    importlib.import_module(f"{__name__}.{_name}")

KNOWN: Final[dict[str, Table[Any]]] = {**TABLES, **FAMILIES}
"""All tables in the code, by name."""
