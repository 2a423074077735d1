"""The commands of what belongs to sessions: subscriptions, what is in flight, and wills that are due."""

from __future__ import annotations

import argparse
from collections.abc import AsyncIterator, Callable
from typing import Any

from metad_wire.tables.subscription import SubscriptionOptions

from ..client import Client
from ..errors import NotFoundError
from .printing import Printer

Arguments = argparse.Namespace
Leaf = Callable[[str, str, Any], argparse.ArgumentParser]
"""Adds a command for a kind of record: (its name, help, its function)."""


def add(get: Leaf, put: Leaf, delete: Leaf) -> None:
    """Add the commands for one client."""
    _client(get("subscriptions", "the topic filters of a client", _get_subscriptions))
    _client(get("inflight", "what is in flight for a client", _get_inflight))
    _filter(parser := put("subscription", "subscribe a client, in the name of its broker", _put_subscription))
    parser.add_argument("--qos", type=int, choices=(0, 1, 2), default=0, help="default 0")
    _filter(delete("subscription", "unsubscribe a client, in the name of its broker", _delete_subscription))


def add_lists(
    listing: Leaf, first: Callable[[AsyncIterator[Any], int], Any], page: Callable[[Arguments], int]
) -> list[argparse.ArgumentParser]:
    """Add the listings; returns their parsers. ``first`` limits the records shown, ``page`` computes the size of a
    page."""

    async def subscriptions(m: Client, a: Arguments, printer: Printer) -> None:
        printer.many(await first(m.subscriptions.list(a.tenant, a.prefix, page_size=page(a)), a.limit))

    async def wills(m: Client, a: Arguments, printer: Printer) -> None:
        printer.many(await first(m.wills.list(a.tenant, a.prefix, page_size=page(a)), a.limit))

    parsers = [
        listing("subscriptions", "by tenant and client id", subscriptions),
        listing("wills", "those that are due, and who has claimed them", wills),
    ]
    for parser in parsers:
        parser.add_argument("--tenant", help="only those of this tenant")
        parser.add_argument("--prefix", default="", help="only client ids with this prefix; needs --tenant")
    return parsers


async def _get_subscriptions(m: Client, a: Arguments, printer: Printer) -> None:
    printer.many(list(await m.subscriptions.get(a.tenant, a.client_id)))


async def _get_inflight(m: Client, a: Arguments, printer: Printer) -> None:
    printer.many(list(await m.inflight.get(a.tenant, a.client_id)))


async def _put_subscription(m: Client, a: Arguments, printer: Printer) -> None:
    options = SubscriptionOptions(a.qos)
    created = await m.subscriptions.add(a.broker, a.epoch, a.tenant, a.client_id, a.filter, options)
    printer.one({"created": created})


async def _delete_subscription(m: Client, a: Arguments, printer: Printer) -> None:
    try:
        await m.subscriptions.remove(a.broker, a.epoch, a.tenant, a.client_id, a.filter)
    except NotFoundError:
        raise NotFoundError(f"no subscription {a.tenant}/{a.client_id}/{a.filter}") from None
    printer.one({"deleted": True})


def _client(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("tenant", metavar="TENANT")
    parser.add_argument("client_id", metavar="CLIENT")


def _filter(parser: argparse.ArgumentParser) -> None:
    _client(parser)
    parser.add_argument("filter", metavar="FILTER")
    parser.add_argument("--broker", required=True, help="the owner of the session")
    parser.add_argument("--epoch", required=True, type=int, help="epoch of the broker")
