"""``metadctl subscriptions``: the topic filters of clients."""

from __future__ import annotations

from metad_wire.tables.subscription import Subscription, SubscriptionOptions

from ...client import Client
from ..grammar import Arguments, Commands, Parser, broker_life, check_prefix, limit, tenant_and_prefix
from ..printing import Printer
from .bounded import Kind, Row, absent, first, page_size, show

_SUBSCRIPTION = Kind("subscription", ("tenant", "client_id", "filter"))


def add(commands: Commands) -> None:
    """Add the commands. Those of one client are in ``sessions get``."""
    help = "the topic filters of clients; or change some"
    listing, verbs = commands.family("subscriptions", help, _list, check_prefix)
    tenant_and_prefix(listing)
    limit(listing)
    _filter(parser := verbs.add("add", "subscribe a client, in the name of its broker", _add))
    parser.add_argument("--qos", type=int, choices=(0, 1, 2), default=0, help="default 0")
    _filter(verbs.add("remove", "unsubscribe a client, in the name of its broker", _remove))


async def _list(m: Client, a: Arguments, printer: Printer) -> None:
    found = await first(m.subscriptions.list(a.tenant, a.prefix, page_size=page_size(a.limit)), a.limit)
    show(printer, "subscriptions", found, _row, a.limit)


async def _add(m: Client, a: Arguments, printer: Printer) -> None:
    options = SubscriptionOptions(a.qos)
    created = await m.subscriptions.add(a.broker, a.epoch, a.tenant, a.client_id, a.filter, options)
    printer.one({"created": created})


async def _remove(m: Client, a: Arguments, printer: Printer) -> None:
    with absent(_SUBSCRIPTION.missing(a)):
        await m.subscriptions.remove(a.broker, a.epoch, a.tenant, a.client_id, a.filter)
    printer.one({"deleted": True})


def _row(one: Subscription) -> Row:
    return {"tenant": one.tenant, "client": one.client_id, "filter": one.filter, "qos": one.options.qos}


def _filter(parser: Parser) -> None:
    _SUBSCRIPTION.key(parser)
    broker_life(parser, "the owner of the session")
