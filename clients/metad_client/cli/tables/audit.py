"""``metadctl audit``: who has administered what, and who was refused."""

from __future__ import annotations

import time
import typing

from metad_wire.tables.access import AuditEntry, AuditKind

from ...client import Client
from .. import people
from ..grammar import Arguments, Commands, limit, since
from ..printing import Printer
from .access import named
from .bounded import Row, first, page_size, show


def add(commands: Commands) -> None:
    """Add the command."""
    listing = commands.add("audit", "who has administered what, and who was refused; the newest first", _list)
    since(listing, 0)
    said = "only of this principal: a URI; NAME stands for metad://client/NAME, broker/NAME for metad://broker/NAME"
    listing.add_argument("--who", type=named, metavar="PRINCIPAL", help=said)
    kinds = typing.get_args(AuditKind)
    listing.add_argument("--kind", choices=kinds, metavar="KIND", help=", ".join(kinds))
    listing.add_argument("--method", default="", metavar="P", help="only of methods whose names start so, as in role.")
    limit(listing)


async def _list(m: Client, a: Arguments, printer: Printer) -> None:
    lines = m.audit.list(
        since_ms=a.since,
        who=a.who or "",
        kind=a.kind or "",
        method_prefix=a.method,
        newest_first=True,
        page_size=page_size(a.limit),
    )
    now_ms = int(time.time() * 1_000)
    show(printer, "audit", await first(lines, a.limit), lambda line: audit_row(line, now_ms), a.limit)


def audit_row(line: AuditEntry, now_ms: int) -> Row:
    """What a person wants to see of a line."""
    times = f"{line.method}, {line.times} times" if line.times > 1 else line.method
    outcome = f"{line.outcome}, {line.failed} of {line.items} failed" if line.failed else line.outcome
    row = {
        "when": people.when(max(0, line.when_ms - line.waited_ms), now_ms),
        "kind": line.kind,
        "who": line.who or None,
        "host": line.host,
        "method": times,
        "about": line.names,
        "outcome": outcome,
        "node": line.node,
    }
    return row | {"not noted before it": line.dropped} if line.dropped else row
