"""The commands of tenants: what one has, and its end."""

from __future__ import annotations

import asyncio
import importlib
import sys
import time
from importlib.util import find_spec
from typing import Final

import msgspec

from metad_wire.families.core import TENANTS
from metad_wire.messages import TenantEnd
from metad_wire.tables.tenants import TableUse

from ...client import Client
from ...errors import InvalidRequestError, NotFoundError
from .. import people
from ..grammar import Arguments, Commands, interval_s, limit
from ..printing import Printer
from .bounded import Bounded, Row, first, show

_LOOK_S: Final = 0.2
_PHASES: Final = ("ends sessions", "drops wills", "deletes retained messages", "deletes the rest", "waits")


def add(verbs: Commands) -> None:
    """Add the commands beside those of the records of tenants."""
    used = verbs.add("used", "all tenants and namespaces that have any record", _used)
    used.add_argument("--prefix", default="", metavar="P", help="only those whose name starts so")
    limit(used)
    verbs.add("describe", "what a tenant has, and what is about to go", _describe).add_argument(
        "tenant", metavar="TENANT"
    )
    end = verbs.add("end", "delete everything of a tenant, in all groups", _end)
    end.add_argument("tenant", metavar="TENANT")
    end.add_argument("--again", metavar="TENANT", help="its name once more, for who is not asked on a terminal")
    end.add_argument("--grace", type=interval_s, default=0, metavar="S", help="nothing happens before; `keep` ends it")
    end.add_argument("--wills", choices=("publish", "drop"), default="drop", help="of its sessions; default drop")
    end.add_argument("--wait", action="store_true", help="until all of it is gone")
    keep = verbs.add("keep", "take back the end of a tenant whose grace is not over", _keep)
    keep.add_argument("tenant", metavar="TENANT")
    if find_spec("metad_backup") is not None:  # it comes with the server, and needs what that needs
        importlib.import_module("metad_backup.commands").add_tenants(verbs)
    endings = verbs.add("endings", "the tenants that are being ended, and how far that is", _endings)
    endings.add_argument("--tenant", metavar="T", help="only this one")


async def _used(m: Client, a: Arguments, printer: Printer) -> None:
    found = await first(m.tenants.list(a.prefix), a.limit)
    show(printer, "tenants", found, lambda name: {"tenant": name}, a.limit)


async def _describe(m: Client, a: Arguments, printer: Printer) -> None:
    record, use, endings = await asyncio.gather(
        m.table(TENANTS).get(a.tenant), m.tenants.use(a.tenant), m.tenants.endings(a.tenant)
    )
    if record is None and not use and not endings:
        raise NotFoundError(f"tenant {a.tenant!r} has nothing: check its name")
    now_ms = _now_ms()
    facts = {} if record is None else msgspec.structs.asdict(record.record)
    printer.document(
        {"tenant": a.tenant, "record": record, "has": use, "endings": endings},
        {"tenant": a.tenant, **{name: value for name, value in facts.items() if value not in (None, "", {})}},
        [("It has", [*map(_use_row, use)]), ("It ends", [ending_row(end, now_ms) for end in endings])],
    )


async def _end(m: Client, a: Arguments, printer: Printer) -> None:
    use = await m.tenants.use(a.tenant)
    again = a.again
    if again is None and use and sys.stdin.isatty() and sys.stderr.isatty():
        for line in _said(use):
            print(line, file=sys.stderr)
        again = await asyncio.to_thread(input, "This deletes all of it. The name of the tenant again: ")
    if use and again != a.tenant:
        what = "; ".join(_said(use))
        raise InvalidRequestError(f"this would delete {what}. Nothing was ordered: give the name again with --again")
    await m.tenants.end(a.tenant, publish_wills=a.wills == "publish", grace_s=a.grace)
    left = True
    while a.wait and left:
        await asyncio.sleep(_LOOK_S)
        left = bool(await m.tenants.endings(a.tenant))
    facts = {"ordered": True, "ended": not left}
    said = "Deleted" if not left else "To be deleted"
    printer.document({**facts, "deletes": use}, facts, [(said, [*map(_use_row, use)])])


async def _keep(m: Client, a: Arguments, printer: Printer) -> None:
    await m.tenants.keep(a.tenant)
    printer.one({"kept": True})


async def _endings(m: Client, a: Arguments, printer: Printer) -> None:
    found, now_ms = await m.tenants.endings(a.tenant), _now_ms()
    show(printer, "endings", Bounded(found, False), lambda end: ending_row(end, now_ms), 0)


def _said(use: list[TableUse]) -> list[str]:
    return [f"{one.records:,} of {one.table} ({people.size(one.bytes)})" for one in use]


def _use_row(use: TableUse) -> Row:
    return {"table": use.table, "records": use.records, "bytes": people.size(use.bytes)}


def ending_row(end: TenantEnd, now_ms: int) -> Row:
    """How far an order to end a tenant is in a group."""
    return {
        "tenant": end.tenant,
        "what": "everything" if end.everything else "sessions",
        "since": people.when(end.at_ms, now_ms),
        "begins": people.when(end.begins_ms, now_ms),
        "wills": "publish" if end.publish_wills else "drop",
        "slots": int.from_bytes(end.slots, "big").bit_count(),
        "now": _PHASES[end.phase] if end.phase < len(_PHASES) else end.phase,
        "sessions ended": end.sessions,
        "others deleted": end.others,
    }


def _now_ms() -> int:
    return int(time.time() * 1000)
