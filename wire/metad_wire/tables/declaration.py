"""The tables that programs declare at run time. In ``metadata-0``, so that every node follows them.

A table has a name, which no other has, and a number, which is never given twice. To declare a table again changes
nothing; with further fields at its end, each with a default, or further indexes, it grows. Whoever knows fewer reads
and writes on as before. A table that is dropped answers ``not_found`` from then on, wherever that is known; its records
are deleted little by little, and the same name may be declared anew, with another number.

**Types of fields.** ``str``, ``bytes``, ``bool``, ``float``, ``int`` (64 bits, signed), ``u32``, ``u63``,
``list[T]``, ``dict[str, T]``, and ``T | None``, nested four deep at most. Bounds are those of the field itself; what is
in a list or a map has none of its own.
"""

from __future__ import annotations

from typing import Any, ClassVar, Final

from .. import messages as m
from ..declaration import Declaration, record_type
from ..method import By, For, Lane
from ..table import Shown, Table
from ..text.fields import U32, U63, Batch
from .table import PlainTable

TABLES_MAX: Final = 1_024
"""Declared tables of a cluster, shared by those who declare them (see "Shared room"): ``quota_exceeded``."""
FIRST_NUMBER: Final = 1_024
"""The tables in the code have lower numbers."""


class DeclarationKey(m.Message, frozen=True):
    """The name of a table."""

    name: str


class DeclaredTable(m.Message, frozen=True):
    """Says how a table is declared."""

    name: str
    number: U32
    """Names it in requests."""
    declaration: Declaration
    """The newest: it may have further fields than the one that was asked for."""
    version: U63
    create_revision: U63
    mod_revision: U63
    first_indexes: U32 | None = None
    """How many of its indexes it was declared with; nil: all."""
    declared_by: str = ""
    """Who declared it first, as ``granted_by`` of a lease: its place counts to them (see "Shared room")."""

    def table(self, record: type[m.Message] | None = None) -> PlainTable[Any]:
        """The table. ``record``: a Struct of its records; without one they are of a Struct that is made here."""
        known = self.declaration
        table = PlainTable(
            known.name,
            number=self.number,
            kind=known.kind,
            record=record_type(known) if record is None else record,
            key=known.key,
            routing=known.key[: known.routing],
            indexes=known.indexed(),
            expires=known.expires,
        )
        if self.first_indexes is not None:
            table.first_indexes = self.first_indexes
        return table


class Declare(m.Message, frozen=True):
    """Declare tables. Item errors: ``invalid_item`` if a declaration makes no sense, ``conflict`` if there is a table
    of the name that differs in more than further fields and indexes at the end, ``quota_exceeded``."""

    items: Batch[Declaration]


class DeclareReply(m.Message, frozen=True):
    """The tables as they are now."""

    columns: ClassVar[dict[str, int | None]] = {"found": None}

    revisions: list[m.Revision]
    errors: list[m.ItemError]
    found: list[DeclaredTable | None]


class DeclarationList(m.Message, frozen=True):
    """Lists declared tables."""

    prefix: str = ""
    page: m.Page = m.Page()
    min_revisions: m.Revisions = []  # noqa: RUF012


DECLARATION = Table(
    "declaration",
    kind="metadata",
    rows={"table": 0x05, "count": 0x06},
    record=DeclaredTable,
    key=("name",),
    routing=(),
    shows={"table": Shown(DeclarationKey, DeclaredTable, counted=True)},
)
DECLARATION_DECLARE = DECLARATION.writes(
    0x0610, "declare", Declare, DeclareReply, Lane.RECORDS, by=By.METADATA, routed=False
)
DECLARATION_DROP = DECLARATION.batches(
    0x0611,
    "drop",
    DeclarationKey,
    "Drop tables with all their records. Item errors: not_found.",
    named="keys",
    by=By.METADATA,
    whose=For.ADMINS,
)
DECLARATION_GET = DECLARATION.gets(
    0x0612, "get", DeclarationKey, DeclaredTable, "Each table as declared.", by=By.METADATA
)
DECLARATION_LIST = DECLARATION.lists(
    0x0613,
    "list",
    DeclarationList,
    DeclaredTable,
    "Declared tables whose names start with ``prefix``, in order.",
    by=By.METADATA,
)
