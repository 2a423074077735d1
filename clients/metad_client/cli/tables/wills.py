"""``metadctl wills``: wills that are due, for how long, and which broker publishes them."""

from __future__ import annotations

import time

from metad_wire.tables.will import DueWill

from ...client import Client
from .. import people
from ..grammar import Arguments, Commands, check_prefix, limit, tenant_and_prefix
from ..printing import Printer
from .bounded import Row, first, page_size, show


def add(commands: Commands) -> None:
    """Add the command."""
    listing = commands.add("wills", "the wills that are due, and who has claimed them", _list, check_prefix)
    tenant_and_prefix(listing)
    listing.add_argument("--unclaimed", action="store_true", help="only those that no broker has at the moment")
    limit(listing)


async def _list(m: Client, a: Arguments, printer: Printer) -> None:
    now_ms = int(time.time() * 1_000)
    listing = m.wills.list(a.tenant, a.prefix, page_size=page_size(0 if a.unclaimed else a.limit))
    found = await first(listing, a.limit, (lambda due: not _is_claimed(due, now_ms)) if a.unclaimed else None)
    show(printer, "wills", found, lambda due: row_of_due(due, now_ms), a.limit)


def row_of_due(due: DueWill, now_ms: int) -> Row:
    """What a person wants to see of a will in a line."""
    claimant = due.claimant
    row: Row = {
        "tenant": due.tenant,
        "client": due.client_id,
        "topic": due.will.topic,
        "bytes": len(due.will.payload),
        "due": people.when(due.due_ms, now_ms),
        "claimed by": None,
        "until": None,
        "claims": 0 if claimant is None else claimant.claims,
    }
    if claimant is not None and _is_claimed(due, now_ms):
        row["claimed by"] = f"{claimant.broker}, epoch {claimant.broker_epoch}"
        row["until"] = people.when(claimant.until_ms, now_ms)
    return row


def _is_claimed(due: DueWill, now_ms: int) -> bool:
    return due.claimant is not None and due.claimant.until_ms > now_ms
