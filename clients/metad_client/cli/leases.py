"""The commands of leases and sequences."""

from __future__ import annotations

import argparse
from collections.abc import AsyncIterator, Callable
from typing import Any

from ..client import Client
from ..errors import NotFoundError
from .printing import Printer

Arguments = argparse.Namespace
Leaf = Callable[[str, str, Any], argparse.ArgumentParser]
"""Adds a command for a kind of record: (its name, help, its function)."""
First = Callable[[AsyncIterator[Any], int], Any]
"""Limits what is shown."""
Page = Callable[[Arguments], int]
"""Computes the size of a page."""


def add(get: Leaf, put: Leaf, delete: Leaf) -> None:
    """Add the commands for one lease, or one sequence."""
    _lease(get("lease", "a lease, and how many keys go with it", _get_lease))
    _lease(delete("lease", "end a lease, and delete the keys attached to it", _revoke))
    _sequence(get("sequence", "the value of a sequence", _get_sequence))
    parser = put("sequence", "add to a sequence, and print its new value", _add_to_sequence)
    _sequence(parser)
    parser.add_argument("delta", metavar="DELTA", type=int, nargs="?", default=1, help="default 1")
    _sequence(delete("sequence", "a sequence, which begins at 0 again", _delete_sequence))


def add_lists(listing: Leaf, first: First, page: Page) -> list[argparse.ArgumentParser]:
    """Add the listings; returns their parsers."""

    async def leases(m: Client, a: Arguments, printer: Printer) -> None:
        printer.many(await first(m.leases.list(a.namespace, a.prefix, page_size=page(a)), a.limit))

    async def keys(m: Client, a: Arguments, printer: Printer) -> None:
        found = await first(m.leases.keys(a.namespace, a.lease, page_size=page(a)), a.limit)
        printer.many([{"namespace": a.namespace, "key": key} for key in found])

    async def sequences(m: Client, a: Arguments, printer: Printer) -> None:
        printer.many(await first(m.sequences.list(a.namespace, a.prefix, page_size=page(a)), a.limit))

    parsers = [
        listing("leases", "of one namespace", leases),
        listing("lease-keys", "the keys attached to one lease", keys),
        listing("sequences", "of one namespace", sequences),
    ]
    for parser in parsers:
        parser.add_argument("namespace", metavar="NS")
    for parser in (parsers[0], parsers[2]):
        parser.add_argument("--prefix", default="", help="only names with this prefix")
    parsers[1].add_argument("lease", metavar="LEASE")
    return parsers


async def _get_lease(m: Client, a: Arguments, printer: Printer) -> None:
    lease = await m.leases.get(a.namespace, a.lease)
    if lease is None:
        raise NotFoundError(f"no lease {a.namespace}/{a.lease}")
    printer.one(lease)


async def _revoke(m: Client, a: Arguments, printer: Printer) -> None:
    try:
        await m.leases.revoke(a.namespace, a.lease)
    except NotFoundError:
        raise NotFoundError(f"no lease {a.namespace}/{a.lease}") from None
    printer.one({"deleted": True})


async def _get_sequence(m: Client, a: Arguments, printer: Printer) -> None:
    sequence = await m.sequences.get(a.namespace, a.sequence)
    if sequence is None:
        raise NotFoundError(f"no sequence {a.namespace}/{a.sequence}")
    printer.one(sequence)


async def _add_to_sequence(m: Client, a: Arguments, printer: Printer) -> None:
    printer.one({"value": await m.sequences.add(a.namespace, a.sequence, a.delta)})


async def _delete_sequence(m: Client, a: Arguments, printer: Printer) -> None:
    try:
        await m.sequences.delete(a.namespace, a.sequence)
    except NotFoundError:
        raise NotFoundError(f"no sequence {a.namespace}/{a.sequence}") from None
    printer.one({"deleted": True})


def _lease(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("namespace", metavar="NS")
    parser.add_argument("lease", metavar="LEASE")


def _sequence(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("namespace", metavar="NS")
    parser.add_argument("sequence", metavar="SEQUENCE")
