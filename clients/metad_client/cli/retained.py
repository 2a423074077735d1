"""The commands of retained messages: get, put, delete, and list by a topic filter."""

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


def add(get: Leaf, put: Leaf, delete: Leaf) -> None:
    """Add the commands for one message."""
    what = "the message that a topic retains"
    _key(get("retained", what, _get))
    _key(parser := put("retained", what, _put))
    parser.add_argument("payload", metavar="PAYLOAD", help="- reads stdin; empty: delete the message")
    parser.add_argument("--qos", type=int, choices=(0, 1, 2), default=0, help="default 0")
    parser.add_argument("--expiry", type=_seconds, metavar="S", help="seconds until it expires; default never")
    _key(parser := delete("retained", what, _delete))
    parser.add_argument(
        "--revision", type=int, default=0, metavar="N", help="only if the entry of this revision wrote it"
    )


def add_list(
    listing: Leaf, first: Callable[[AsyncIterator[Any], int], Any], page: Callable[[Arguments], int]
) -> argparse.ArgumentParser:
    """Add the listing; returns its parser. ``first`` limits what is shown, ``page`` computes the size of a page."""

    async def run(m: Client, a: Arguments, printer: Printer) -> None:
        printer.many(await first(m.retained.match(a.tenant, a.filter, page_size=page(a)), a.limit))

    parser = listing("retained", "the messages whose topics match a filter of MQTT", run)
    parser.add_argument("tenant", metavar="TENANT")
    parser.add_argument("filter", metavar="FILTER", nargs="?", default="#", help="default #")
    return parser


async def _get(m: Client, a: Arguments, printer: Printer) -> None:
    message = await m.retained.get(a.tenant, a.topic)
    if message is None:
        raise NotFoundError(_complaint(a))
    printer.one(message)


async def _put(m: Client, a: Arguments, printer: Printer) -> None:
    await m.retained.put(a.tenant, a.topic, a.payload, qos=a.qos, expiry_interval_s=a.expiry)
    printer.one({"retained": bool(a.payload)})


async def _delete(m: Client, a: Arguments, printer: Printer) -> None:
    try:
        await m.retained.delete(a.tenant, a.topic, revision=a.revision)
    except NotFoundError:
        raise NotFoundError(_complaint(a)) from None
    printer.one({"deleted": True})


def _key(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("tenant", metavar="TENANT")
    parser.add_argument("topic", metavar="TOPIC")


def _complaint(a: Arguments) -> str:
    return f"no retained message {a.tenant}/{a.topic}"


def _seconds(text: str) -> int:
    seconds = int(text)
    if not 0 <= seconds <= 0xFFFF_FFFF:
        raise argparse.ArgumentTypeError(f"not between 0 and 2**32 - 1 seconds: {text}")
    return seconds
