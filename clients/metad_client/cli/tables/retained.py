"""``metadctl retained``: the messages that topics retain, by a filter of MQTT."""

from __future__ import annotations

import time

from metad_wire.tables.retained import Retained

from ...client import Client
from .. import people
from ..grammar import Arguments, Commands, count, interval_s, limit, needs
from ..printing import Printer
from .bounded import Kind, Row, first, page_size, present, show

_MESSAGE = Kind("retained message", ("tenant", "topic"))
_NEEDS = needs("tenant", "retained messages are listed by tenant")


def add(commands: Commands) -> None:
    """Add the commands."""
    listing, verbs = commands.family("retained", "the messages that topics retain; or one of them", _list, _NEEDS)
    listing.add_argument("--tenant", metavar="T", help="required: whose messages to list")
    listing.add_argument("--filter", default="#", metavar="F", help="only topics that this filter matches; default #")
    limit(listing)
    _MESSAGE.key(verbs.add("get", "the message that a topic retains", _get))
    parser = _MESSAGE.key(verbs.add("put", "let a topic retain a message", _put))
    parser.add_argument("payload", metavar="PAYLOAD", help="- reads stdin; empty: delete the message")
    parser.add_argument("--qos", type=int, choices=(0, 1, 2), default=0, help="default 0")
    parser.add_argument("--expiry", type=interval_s, metavar="S", help="seconds until it expires; default never")
    delete = _MESSAGE.drop(lambda m: m.retained.delete, "revision")
    parser = _MESSAGE.key(verbs.add("delete", "delete the message that a topic retains", delete))
    parser.add_argument("--revision", type=count, default=0, metavar="N", help="only if this revision wrote it")


async def _list(m: Client, a: Arguments, printer: Printer) -> None:
    now_ms = int(time.time() * 1_000)
    found = await first(m.retained.match(a.tenant, a.filter, page_size=page_size(a.limit)), a.limit)
    show(printer, "retained", found, lambda message: _row(message, now_ms), a.limit)


async def _get(m: Client, a: Arguments, printer: Printer) -> None:
    message = present(await m.retained.get(a.tenant, a.topic), _MESSAGE.missing(a))
    facts = {"tenant": message.tenant} | _row(message, int(time.time() * 1_000))
    printer.document(message, facts | {"revision": message.revision}, [])


async def _put(m: Client, a: Arguments, printer: Printer) -> None:
    await m.retained.put(a.tenant, a.topic, a.payload, qos=a.qos, expiry_interval_s=a.expiry)
    printer.one({"retained": bool(a.payload)})


def _row(message: Retained, now_ms: int) -> Row:
    """What a person wants to see of a message in a line."""
    return {
        "topic": message.topic,
        "qos": message.qos,
        "bytes": len(message.payload),
        "expires": people.when(message.expires_ms, now_ms) or "never",
        "payload": people.payload(message.payload),
    }
