"""``metadctl retained``: the messages that topics retain, by a filter of MQTT."""

from __future__ import annotations

import time

from metad_wire.tables.retained import Retained

from ...client import Client
from .. import people
from ..grammar import Arguments, Commands, Parser, count, interval_s, limit
from ..printing import Printer
from .bounded import Row, absent, first, page_size, present, show


def add(commands: Commands) -> None:
    """Add the commands."""
    listing, verbs = commands.family("retained", "the messages that topics retain; or one of them", _list, _check)
    listing.add_argument("--tenant", metavar="T", help="required: whose messages to list")
    listing.add_argument("--filter", default="#", metavar="F", help="only topics that this filter matches; default #")
    limit(listing)
    _topic(verbs.add("get", "the message that a topic retains", _get))
    _topic(parser := verbs.add("put", "let a topic retain a message", _put))
    parser.add_argument("payload", metavar="PAYLOAD", help="- reads stdin; empty: delete the message")
    parser.add_argument("--qos", type=int, choices=(0, 1, 2), default=0, help="default 0")
    parser.add_argument("--expiry", type=interval_s, metavar="S", help="seconds until it expires; default never")
    _topic(parser := verbs.add("delete", "delete the message that a topic retains", _delete))
    parser.add_argument("--revision", type=count, default=0, metavar="N", help="only if this revision wrote it")


def _check(a: Arguments) -> None:
    if a.tenant is None:
        raise ValueError("--tenant is missing: retained messages are listed by tenant")


async def _list(m: Client, a: Arguments, printer: Printer) -> None:
    now_ms = int(time.time() * 1_000)
    found = await first(m.retained.match(a.tenant, a.filter, page_size=page_size(a.limit)), a.limit)
    show(printer, "retained", found, lambda message: _row(message, now_ms), a.limit)


async def _get(m: Client, a: Arguments, printer: Printer) -> None:
    message = present(await m.retained.get(a.tenant, a.topic), _complaint(a))
    facts = {"tenant": message.tenant} | _row(message, int(time.time() * 1_000))
    printer.document(message, facts | {"revision": message.revision}, [])


async def _put(m: Client, a: Arguments, printer: Printer) -> None:
    await m.retained.put(a.tenant, a.topic, a.payload, qos=a.qos, expiry_interval_s=a.expiry)
    printer.one({"retained": bool(a.payload)})


async def _delete(m: Client, a: Arguments, printer: Printer) -> None:
    with absent(_complaint(a)):
        await m.retained.delete(a.tenant, a.topic, revision=a.revision)
    printer.one({"deleted": True})


def _row(message: Retained, now_ms: int) -> Row:
    """What a person wants to see of a message in a line."""
    return {
        "topic": message.topic,
        "qos": message.qos,
        "bytes": len(message.payload),
        "expires": people.when(message.expires_ms, now_ms) or "never",
        "payload": people.payload(message.payload),
    }


def _topic(parser: Parser) -> None:
    parser.add_argument("tenant", metavar="TENANT")
    parser.add_argument("topic", metavar="TOPIC")


def _complaint(a: Arguments) -> str:
    return f"no retained message {a.tenant}/{a.topic}"
