"""Names what an item is about in the text of its error: table and key. The server answers by position."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, TypeVar

from msgspec.structs import replace

from metad_wire.messages import ItemError, Message
from metad_wire.methods import Method
from metad_wire.tables import TABLES

from ..errors import InvalidItemError, error_of_item

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
