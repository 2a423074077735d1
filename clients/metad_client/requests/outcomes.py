"""How a reply becomes its callers' outcomes. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

from metad_wire.messages import ItemError, WriteReply

from ..errors import MetadError, error_of_item

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
