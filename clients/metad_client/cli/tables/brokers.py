"""``metadctl brokers``: which brokers there are, in which life, and the end of one."""

from __future__ import annotations

import time

from metad_wire.tables import broker as b
from metad_wire.tables.broker import Broker

from ...client import Client
from .. import people
from ..grammar import Arguments, Commands, count, limit
from ..printing import Printer
from .bounded import Row, first, page_size, present, show


def add(commands: Commands) -> None:
    """Add the commands."""
    listing, verbs = commands.family("brokers", "the brokers and their lives; or end one", _list)
    listing.add_argument("--prefix", default="", metavar="P", help="only those whose name starts so")
    listing.add_argument("--state", default="", choices=b.STATES, help="only those in this state")
    limit(listing)
    verbs.add("get", "one broker", _get).add_argument("broker", metavar="BROKER")
    fence = verbs.add("fence", "end a life of a broker: no group writes in its name", _fence)
    fence.add_argument("broker", metavar="BROKER")
    fence.add_argument("--epoch", type=count, default=0, metavar="N", help="only if this is its last life")


async def _list(m: Client, a: Arguments, printer: Printer) -> None:
    now_ms = int(time.time() * 1_000)
    found = await first(m.brokers.list(a.prefix, state=a.state, page_size=page_size(a.limit)), a.limit)
    show(printer, "brokers", found, lambda broker: broker_row(broker, now_ms), a.limit)


async def _get(m: Client, a: Arguments, printer: Printer) -> None:
    broker = present(await m.brokers.get(a.broker), f"no broker {a.broker}")
    now_ms = int(time.time() * 1_000)
    facts = broker_row(broker, now_ms) | {
        "rack": broker.rack or None,
        "registered": people.when(broker.registered_ms, now_ms),
        "lives are over below epoch": broker.least_epoch,
        "since when": people.when(broker.fenced_ms, now_ms),
        "none serves below epoch": broker.quiet_epoch,
        "began unclean last with epoch": broker.unclean_epoch or None,
    }
    attributes = [{"attribute": name, "value": value} for name, value in sorted(broker.attributes.items())]
    printer.document(broker, facts, [("attributes", attributes)])


async def _fence(m: Client, a: Arguments, printer: Printer) -> None:
    ended = await m.brokers.fence(a.broker, a.epoch)
    printer.one(
        {"broker": ended.broker.broker, "state": ended.broker.state, "epoch": ended.broker.broker_epoch}
        | {"unfenced_groups": ended.unfenced}
    )


def broker_row(broker: Broker, now_ms: int) -> Row:
    """What a person wants to see of a broker in a line."""
    return {
        "broker": broker.broker,
        "epoch": broker.broker_epoch,
        "state": broker.state,
        "since": people.when(broker.changed_ms, now_ms),
        "address": broker.address or None,
        "region": broker.region or None,
        "load": broker.load,
        "lease": people.duration(broker.lease_ms),
        "earlier lives": _earlier(broker),
    }


def _earlier(broker: Broker) -> str:
    """A record does not say whether there were any, unless it has a trace of one."""
    if not broker.fenced:
        return "being fenced"
    return "fenced" if broker.unclean_epoch or broker.quiet_epoch < broker.broker_epoch else "none, or fenced"
