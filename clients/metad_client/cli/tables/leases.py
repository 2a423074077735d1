"""``metadctl leases``: who holds leases, for how long, and which keys go with them."""

from __future__ import annotations

from metad_wire.tables.lease import Lease

from ...client import Client
from .. import people
from ..grammar import Arguments, Commands, Parser, limit
from ..printing import Printer
from .bounded import Row, absent, first, page_size, present, say_more, show


def add(commands: Commands) -> None:
    """Add the commands."""
    listing, verbs = commands.family("leases", "the leases of a namespace; or one of them", _list, _check)
    listing.add_argument("--namespace", metavar="NS", help="required: whose leases to list")
    listing.add_argument("--prefix", default="", metavar="P", help="only names with this prefix")
    limit(listing)
    _lease(get := verbs.add("get", "a lease, and the keys attached to it", _get))
    limit(get, "show at most N keys, 0 for all")
    _lease(verbs.add("revoke", "end a lease, and delete the keys attached to it", _revoke))


def _check(a: Arguments) -> None:
    if a.namespace is None:
        raise ValueError("--namespace is missing: leases are listed by namespace")


async def _list(m: Client, a: Arguments, printer: Printer) -> None:
    found = await first(m.leases.list(a.namespace, a.prefix, page_size=page_size(a.limit)), a.limit)
    show(printer, "leases", found, _row, a.limit)


async def _get(m: Client, a: Arguments, printer: Printer) -> None:
    lease = present(await m.leases.get(a.namespace, a.lease), f"no lease {a.namespace}/{a.lease}")
    found = await first(m.leases.keys(a.namespace, a.lease, page_size=page_size(a.limit)), a.limit)
    document = {"lease": lease, "keys": found.records, "more": found.more}
    printer.document(document, _facts(lease), [("keys", [{"key": key} for key in found.records])])
    if found.more:
        say_more(a.limit)


async def _revoke(m: Client, a: Arguments, printer: Printer) -> None:
    with absent(f"no lease {a.namespace}/{a.lease}"):
        await m.leases.revoke(a.namespace, a.lease)
    printer.one({"deleted": True})


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


def _lease(parser: Parser) -> None:
    parser.add_argument("namespace", metavar="NS")
    parser.add_argument("lease", metavar="LEASE")
