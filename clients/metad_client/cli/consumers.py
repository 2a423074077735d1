"""``metadctl groups consumer``: consumer groups, their generations, and where each is in its topics."""

from __future__ import annotations

import asyncio
import time

from metad_wire.messages import Offset
from metad_wire.tables.offset import KnownGroup

from ..client import Client
from ..errors import NotFoundError
from . import people
from .bounded import Row, first, page_size, say_more, show
from .grammar import Arguments, Commands, consumer_group, count, limit
from .printing import Printer


def add(commands: Commands) -> None:
    """Add the commands."""
    listing, verbs = commands.family("consumer", "the consumer groups of a tenant; or one of them", _list, _check)
    listing.add_argument("--tenant", metavar="T", help="required: whose groups to list")
    listing.add_argument("--prefix", default="", metavar="P", help="only groups with this prefix")
    limit(listing)
    consumer_group(get := verbs.add("get", "the generation and the offsets of a consumer group", _get))
    get.add_argument("--prefix", default="", metavar="P", help="only topics with this prefix")
    limit(get, "show at most N offsets, 0 for all")
    consumer_group(reset := verbs.add("reset", "set the generation of a consumer group, even to a lower one", _reset))
    reset.add_argument("generation", metavar="GENERATION", type=count, help="the new generation; 0: none")
    reset.add_argument("--expected", required=True, type=count, metavar="N", help="only if the generation is N now")
    consumer_group(verbs.add("delete", "delete all offsets of a consumer group, and its generation", _delete))


def _check(a: Arguments) -> None:
    if a.tenant is None:
        raise ValueError("--tenant is missing: consumer groups are listed by tenant")


async def _list(m: Client, a: Arguments, printer: Printer) -> None:
    found = await first(m.offsets.groups(a.tenant, a.prefix, page_size=page_size(a.limit)), a.limit)
    show(printer, "groups", found, _row, a.limit)


async def _get(m: Client, a: Arguments, printer: Printer) -> None:
    offsets = m.offsets.list(a.tenant, a.group, a.prefix, page_size=page_size(a.limit))
    generation, found = await asyncio.gather(m.offsets.generation(a.tenant, a.group), first(offsets, a.limit))
    if not generation and not found.records and not a.prefix:
        raise NotFoundError(f"no consumer group {a.tenant}/{a.group}")
    now_ms = int(time.time() * 1_000)
    document = {"tenant": a.tenant, "group": a.group, "generation": generation}
    tables = [("offsets", [_offset_row(offset, now_ms) for offset in found.records])]
    printer.document(document | {"offsets": found.records, "more": found.more}, document, tables)
    if found.more:
        say_more(a.limit)


async def _reset(m: Client, a: Arguments, printer: Printer) -> None:
    await m.offsets.reset_generation(a.tenant, a.group, a.expected, a.generation)
    printer.one({"generation": a.generation})


async def _delete(m: Client, a: Arguments, printer: Printer) -> None:
    printer.one({"offsets_deleted": await m.offsets.delete_group(a.tenant, a.group)})


def _row(group: KnownGroup) -> Row:
    return {"tenant": group.tenant, "group": group.group, "generation": group.generation}


def _offset_row(offset: Offset, now_ms: int) -> Row:
    """What a person wants to see of an offset: the end of the topic, which the broker knows, less this is the lag."""
    return {
        "topic": offset.topic,
        "partition": offset.partition,
        "offset": offset.offset,
        "generation": offset.generation,
        "committed": people.when(offset.committed_ms, now_ms),
        "metadata": offset.metadata or None,
    }
