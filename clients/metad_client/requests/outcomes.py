"""How a reply becomes its callers' outcomes. The server answers by position; the text of an error names what its item
is about, by table and key. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, TypeVar

from msgspec.structs import replace

from metad_wire.messages import ItemError, Message, WriteReply
from metad_wire.methods import Method
from metad_wire.tables import TABLES

from ..errors import InvalidItemError, MetadError, error_of_item

Reply = TypeVar("Reply", bound=Message)

PART_CHARACTERS_MAX: Final = 80
"""Of one field of a key in a text."""
_TABLES: Final = {method.code: table for table in TABLES.values() for method in table.methods}


def about(method: Method[Any, Any], item: Any) -> str:
    """Table and key, as in ``kv config/greeting``."""
    table = _TABLES.get(method.code)
    if table is None:
        return method.name
    keyed = table.routed.get(method)
    holder = item if keyed is None else keyed([item])[0]
    parts = [str(value) for field in table.key if (value := getattr(holder, field, None)) is not None]
    cut = [part if len(part) <= PART_CHARACTERS_MAX else part[: PART_CHARACTERS_MAX - 1] + "…" for part in parts]
    return f"{table.name} {'/'.join(cut)}".rstrip()


def named(method: Method[Any, Any], items: Sequence[Any], reply: Reply) -> Reply:
    """The reply, with errors that say which item they are about. What is wrong with an item as it was given says which
    field that is, instead."""
    errors: list[ItemError] = getattr(reply, "errors", [])
    if not errors:
        return reply
    return replace(reply, errors=[_named(method, items, error) for error in errors])


def _named(method: Method[Any, Any], items: Sequence[Any], error: ItemError) -> ItemError:
    if error.code == InvalidItemError.code or not 0 <= error.index < len(items):
        return error
    text = error_of_item(error).message
    if not error.message:  # the sentence of the class
        text = text[:1].lower() + text[1:].removesuffix(".")
    return replace(error, message=f"{about(method, items[error.index])}: {text}")


Outcome = TypeVar("Outcome")


def with_errors(outcomes: Sequence[Outcome], errors: Sequence[ItemError]) -> list[Outcome | MetadError]:
    """The outcomes by position, with the errors of the items that failed in their places."""
    merged: list[Outcome | MetadError] = list(outcomes)
    for error in errors:
        merged[error.index] = error_of_item(error)
    return merged


def wrote(items: list[Any], reply: WriteReply) -> list[MetadError | None]:
    """None for each item that was written."""
    return with_errors([None] * len(items), reply.errors)
