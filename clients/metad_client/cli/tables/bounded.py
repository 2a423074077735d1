"""The first records of a listing, and whether there are more."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any, Generic, NamedTuple, TypeVar

from ...errors import NotFoundError
from ..printing import Printer

Record = TypeVar("Record")
Row = dict[str, Any]
PAGE_MAX = 1_000


class Bounded(NamedTuple, Generic[Record]):
    """``more``: the listing has further records than these."""

    records: list[Record]
    more: bool


def page_size(limit: int) -> int:
    """One record more than is shown tells whether there are more."""
    return min(PAGE_MAX, limit + 1) if limit else PAGE_MAX


async def first(
    records: AsyncIterator[Record], limit: int, keep: Callable[[Record], bool] | None = None
) -> Bounded[Record]:
    """The first ``limit`` records (0: all) that ``keep`` accepts."""
    found: list[Record] = []
    async with contextlib.aclosing(records):  # type: ignore[type-var]
        async for record in records:
            if keep is not None and not keep(record):
                continue
            if limit and len(found) == limit:
                return Bounded(found, True)
            found.append(record)
    return Bounded(found, False)


def say_more(limit: int) -> None:
    """Tell a person that the output is not whole."""
    sys.stderr.write(f"metadctl: the first {limit} are shown; --limit 0 shows all\n")


def show(printer: Printer, name: str, found: Bounded[Record], row_of: Callable[[Record], Row], limit: int) -> None:
    """Print a listing: ``{name: records, "more": …}`` for programs, a table of ``row_of`` for people."""
    printer.listing(name, found.records, found.more, [row_of(record) for record in found.records])
    if found.more:
        say_more(limit)


def present(record: Record | None, complaint: str) -> Record:
    """The record. Raises NotFoundError if there is none."""
    if record is None:
        raise NotFoundError(complaint)
    return record


@contextlib.contextmanager
def absent(complaint: str) -> Iterator[None]:
    """Say which record is not there."""
    try:
        yield
    except NotFoundError:
        raise NotFoundError(complaint) from None
