"""What commands have in common: records that are named by their key, and the first ones of a listing."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any, Generic, NamedTuple, TypeVar

from ...client import Client
from ...errors import NotFoundError
from ..grammar import Arguments, Command, Parser, count
from ..printing import Printer

Record = TypeVar("Record")
Row = dict[str, Any]
_METAVARS = {"namespace": "NS", "client_id": "CLIENT"}
PAGE_MAX = 1_000
PROGRESS_S = 3.0


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


class Progress:
    """Tells a person on stderr, every few seconds, how many records a long command has ``done`` something with."""

    def __init__(self, done: str) -> None:
        self._done = done
        self._told_s = time.monotonic()

    def __call__(self, count: int) -> None:
        if (now_s := time.monotonic()) - self._told_s >= PROGRESS_S:
            self._told_s = now_s
            sys.stderr.write(f"metadctl: {count} records are {self._done} so far\n")


def show(printer: Printer, name: str, found: Bounded[Record], row_of: Callable[[Record], Row], limit: int) -> None:
    """Print a listing: ``{name: records, "more": …}`` for programs, a table of ``row_of`` for people."""
    printer.listing(name, found.records, found.more, [row_of(record) for record in found.records])
    if found.more:
        say_more(limit)


def show_raw(printer: Printer, found: Bounded[Any], limit: int) -> None:
    """Print a listing of records as they are stored."""
    printer.many(found.records)
    if found.more:
        say_more(limit)


class Kind(NamedTuple):
    """A kind of record that commands name by the fields of its key. ``what``: one of them, which may name fields."""

    what: str
    fields: tuple[str, ...]

    def key(self, parser: Parser) -> Parser:
        """Add the arguments."""
        for field in self.fields:
            metavar = _METAVARS.get(field, field.upper())
            parser.add_argument(field, metavar=metavar, type=count if field == "partition" else str)
        return parser

    def named(self, a: Arguments) -> tuple[Any, ...]:
        """The fields of the key that was named."""
        return tuple(getattr(a, field) for field in self.fields)

    def missing(self, a: Arguments) -> str:
        """Say that there is none with that key."""
        if "{" in self.what:
            return f"no {self.what.format_map(vars(a))}"
        return f"no {self.what} {'/'.join(map(str, self.named(a)))}"

    def get(self, get: Callable[[Client], Callable[..., Awaitable[Any]]]) -> Command:
        """A command that prints one."""

        async def command(m: Client, a: Arguments, printer: Printer) -> None:
            printer.one(present(await get(m)(*self.named(a)), self.missing(a)))

        return command

    def drop(
        self, drop: Callable[[Client], Callable[..., Awaitable[None]]], *options: str, said: str = "deleted"
    ) -> Command:
        """A command that deletes one, on the conditions that these options name."""

        async def command(m: Client, a: Arguments, printer: Printer) -> None:
            with absent(self.missing(a)):
                await drop(m)(*self.named(a), **{option: getattr(a, option) for option in options})
            printer.one({said: True})

        return command


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
