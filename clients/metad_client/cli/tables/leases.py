"""``metadctl leases``: who holds leases, for how long, and which keys go with them."""

from __future__ import annotations

from metad_wire.tables.lease import Lease

from ...client import Client
from .. import people
from ..grammar import Arguments, Commands, limit, needs
from ..printing import Printer
from .bounded import Kind, Row, first, page_size, present, say_more, show

_LEASE = Kind("lease", ("namespace", "lease"))
_NEEDS = needs("namespace", "leases are listed by namespace")


def add(commands: Commands) -> None:
    """Add the commands."""
    listing, verbs = commands.family("leases", "the leases of a namespace; or one of them", _list, _NEEDS)
    listing.add_argument("--namespace", metavar="NS", help="required: whose leases to list")
    listing.add_argument("--prefix", default="", metavar="P", help="only names with this prefix")
    limit(listing)
    limit(_LEASE.key(verbs.add("get", "a lease, and the keys attached to it", _get)), "show at most N keys, 0 for all")
    revoke = _LEASE.drop(lambda m: m.leases.revoke)
    _LEASE.key(verbs.add("revoke", "end a lease, and delete the keys attached to it", revoke))


async def _list(m: Client, a: Arguments, printer: Printer) -> None:
    found = await first(m.leases.list(a.namespace, a.prefix, page_size=page_size(a.limit)), a.limit)
    show(printer, "leases", found, _row, a.limit)


async def _get(m: Client, a: Arguments, printer: Printer) -> None:
    lease = present(await m.leases.get(*_LEASE.named(a)), _LEASE.missing(a))
    found = await first(m.leases.keys(a.namespace, a.lease, page_size=page_size(a.limit)), a.limit)
    document = {"lease": lease, "keys": found.records, "more": found.more}
    printer.document(document, _facts(lease), [("keys", [{"key": key} for key in found.records])])
    if found.more:
        say_more(a.limit)


def _row(lease: Lease) -> Row:
    """What a person wants to see of a lease in a line."""
    return {
        "lease": lease.lease,
        "holder": lease.holder or None,
        "left": people.duration(lease.left_ms),
        "of": people.duration(lease.ttl_ms),
        "keys": lease.keys,
    }


def _facts(lease: Lease) -> Row:
    facts = {"namespace": lease.namespace} | _row(lease)
    return facts | {"attributes": people.size(len(lease.attributes)), "granted as revision": lease.create_revision}
