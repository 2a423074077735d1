"""The families: tables of the metadata that brokers of each kind keep, declared in the code as programs declare theirs.

A module that is added here is a family that all ends know. A table has a number below 1024, which no other has or will
have: each family has a hundred of its own. From its declaration all the rest follows, its command of ``metadctl`` too.
"""

from __future__ import annotations

import importlib
import pkgutil
import types
from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeVar

from ..messages import Message
from ..table import Table
from ..tables import TABLES
from ..tables.declaration import FIRST_NUMBER
from ..tables.table import PlainTable

Record = TypeVar("Record", bound=Message)

FAMILIES: Final[dict[str, PlainTable[Any]]] = {}
"""The tables of all families, by name."""
PLURALS: Final[dict[str, str]] = {}
"""What people call the records of each, by the name of the table: as in ``metadctl topics``."""
SECRETS: Final[dict[str, frozenset[str]]] = {}
"""The fields that nobody is shown who has not asked for them, by the name of the table."""


def family(
    number: int,
    name: str,
    record: type[Record],
    *,
    key: Sequence[str],
    routing: Sequence[str] | None = None,
    kind: str = "metadata",
    indexes: Mapping[str, Sequence[str]] = types.MappingProxyType({}),
    plural: str = "",
    secret: Sequence[str] = (),
    ruled_by: str = "",
    hears: str = "",
) -> PlainTable[Record]:
    """Declare a table. ``plural``: what its records are called, by default its name with an s; ``metadctl`` has a
    command of that name. ``secret``: fields that it prints only if it is told to. ``ruled_by``, ``hears``:
    as in :class:`PlainTable`. Raises TypeError if it makes no
    sense, or another has its name, number or plural."""
    plural = plural or f"{name.replace('_', '-')}s"
    if name in TABLES or name in FAMILIES or plural in PLURALS.values():
        raise TypeError(f"there is a table {name}, or one whose records are called {plural}, already")
    if not 0 < number < FIRST_NUMBER or any(table.number == number for table in FAMILIES.values()):
        raise TypeError(f"{name}: number {number} is taken, or none of a table in the code")
    table = FAMILIES[name] = PlainTable(
        name,
        number=number,
        kind=kind,
        record=record,
        key=key,
        routing=routing,
        indexes=indexes,
        ruled_by=ruled_by,
        hears=hears,
    )
    PLURALS[name], SECRETS[name] = plural, frozenset(secret)
    return table


NAMES: Final = [module.name for module in pkgutil.iter_modules(__path__)]
for _name in NAMES:
    importlib.import_module(f"{__name__}.{_name}")

KNOWN: Final[dict[str, Table[Any]]] = {**TABLES, **FAMILIES}
"""All tables in the code, by name."""
