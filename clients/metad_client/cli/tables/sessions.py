"""``metadctl sessions``: who serves the clients, who is away and until when, and everything of one client; ``metadctl
subscriptions``: the topic filters of clients."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

from metad_wire.messages import NEVER_S, Session, SessionProperties, Will
from metad_wire.tables.subscription import Subscription, SubscriptionOptions

from ...client import Client
from ...errors import NotFoundError
from .. import people
from ..grammar import Arguments, Commands, Parser, broker_life, check_prefix, count, limit, tenant_and_prefix
from ..printing import Printer
from .bounded import Bounded, Kind, Row, absent, first, page_size, present, say_more, show
from .tenants import ending_row
from .wills import row_of_due

_SESSION = Kind("session", ("tenant", "client_id"))
_SUBSCRIPTION = Kind("subscription", ("tenant", "client_id", "filter"))
COUNTED_DEFAULT = 100_000
SHOWN_MAX = 100
"""Subscriptions, and things in flight, that a person sees of one client."""
_LOOK_S = 0.5


def add(commands: Commands) -> None:
    """Add the commands."""
    listing, verbs = commands.family("sessions", "the sessions of clients; or one of them", _list, check_prefix)
    tenant_and_prefix(listing)
    _choice(listing)
    limit(listing)
    _SESSION.key(verbs.add("get", "everything of one client", _get))
    counting = verbs.add("count", "how many there are, by broker and state", _count, check_prefix)
    tenant_and_prefix(counting)
    counting.add_argument("--broker", metavar="B", help="only those that this broker owns")
    limit(counting, "look at N sessions at most, 0 for all", COUNTED_DEFAULT)
    takeover = _SESSION.key(verbs.add("takeover", "take over a session in a broker's name, or create it", _takeover))
    broker_life(takeover, "the new owner of the session")
    takeover.add_argument("--payload", help="data that the broker stores with it; - reads stdin")
    takeover.add_argument("--expiry", type=count, metavar="S", help="expiry interval in seconds")
    takeover.add_argument("--clean-start", action="store_true", help="end what was stored of the client before")
    delete = _SESSION.drop(lambda m: m.sessions.delete)
    _SESSION.key(verbs.add("delete", "delete a session and all that belongs to it; no will is published", delete))
    ending = verbs.add("end-tenant", "end all sessions of a tenant, and all that belongs to them", _end_tenant)
    ending.add_argument("tenant", metavar="TENANT")
    ending.add_argument(
        "--wills",
        choices=("publish", "drop"),
        required=True,
        help="publish: those of its sessions are due as they end; drop: also those that are due already",
    )
    ending.add_argument("--retained", action="store_true", help="delete its retained messages, too")
    ending.add_argument("--wait", action="store_true", help="until the groups have cleared up")
    endings = verbs.add("endings", "the tenants that are being ended, and how far that is", _endings)
    endings.add_argument("--tenant", metavar="T", help="only this one")
    _add_subscriptions(commands)


def _add_subscriptions(commands: Commands) -> None:
    """Those of one client are in ``sessions get``, too."""
    help = "the topic filters of clients; or change some"
    listing, verbs = commands.family("subscriptions", help, _list_subscriptions, check_prefix)
    tenant_and_prefix(listing)
    limit(listing)
    _filter(parser := verbs.add("add", "subscribe a client, in the name of its broker", _subscribe))
    parser.add_argument("--qos", type=int, choices=(0, 1, 2), default=0, help="default 0")
    _filter(verbs.add("remove", "unsubscribe a client, in the name of its broker", _unsubscribe))


def _filter(parser: Parser) -> None:
    _SUBSCRIPTION.key(parser)
    broker_life(parser, "the owner of the session")


def _choice(parser: Any) -> None:
    parser.add_argument("--broker", metavar="B", help="only those that this broker owns")
    states = parser.add_mutually_exclusive_group()
    states.add_argument("--connected", dest="connected", action="store_true", default=None, help="only connected ones")
    states.add_argument("--away", dest="connected", action="store_false", default=None, help="only disconnected ones")


async def _list(m: Client, a: Arguments, printer: Printer) -> None:
    wanted, now_ms = a.connected, _now_ms()
    listing = m.sessions.list(a.tenant, a.prefix, a.broker, page_size=page_size(a.limit if wanted is None else 0))
    found = await first(listing, a.limit, None if wanted is None else lambda one: one.connected == wanted)
    show(printer, "sessions", found, lambda session: session_row(session, now_ms), a.limit)


async def _get(m: Client, a: Arguments, printer: Printer) -> None:
    key = a.tenant, a.client_id
    session, filters, inflight, dues = await asyncio.gather(
        m.sessions.get(*key), m.subscriptions.get(*key), m.inflight.get(*key), _wills_of(m, *key)
    )
    if not dues:
        session = present(session, _SESSION.missing(a))
    now_ms = _now_ms()
    properties = SessionProperties() if session is None else session.properties
    document = {
        "session": session,
        "subscriptions": filters,
        "inflight": inflight,
        "inflight_count": len(inflight),
        "wills_due": dues,
    }
    facts = {"tenant": a.tenant, "client": a.client_id}
    facts |= {"state": "ended; a will is left"} if session is None else _facts(session, now_ms)
    facts |= {"will": _will(properties.will), "subscriptions": len(filters), "in flight": len(inflight)}
    tables = [
        (_title("subscriptions", len(filters)), [_filter_row(one) for one in filters[:SHOWN_MAX]]),
        (
            _title("in flight", len(inflight)),
            [{"name": one.name, "bytes": len(one.value)} for one in inflight[:SHOWN_MAX]],
        ),
        ("wills that are due", [row_of_due(due, now_ms) for due in dues]),
    ]
    printer.document(document, facts, tables)


async def _wills_of(m: Client, tenant: str, client_id: str) -> list[Any]:
    """Those of one client: others whose id only starts alike come behind them."""
    found = []
    async for due in m.wills.list(tenant, client_id, page_size=SHOWN_MAX):
        if due.client_id != client_id:
            break
        found.append(due)
    return found


async def _count(m: Client, a: Arguments, printer: Printer) -> None:
    found: Counter[tuple[str, bool]] = Counter()
    looked, more = 0, False
    async for session in m.sessions.list(a.tenant, a.prefix, a.broker):
        if a.limit and looked == a.limit:
            more = True
            break
        looked += 1
        found[session.broker, session.connected] += 1
    brokers = sorted({broker for broker, _ in found})
    rows = [{"broker": broker, "connected": found[broker, True], "away": found[broker, False]} for broker in brokers]
    total: Row = {"sessions": looked, "more": more}
    summary = f"{looked} sessions" + (" are counted, and there are more" if more else "")
    printer.page(total | {"brokers": rows}, [summary], [rows] if rows else [])
    if more:
        say_more(a.limit)


async def _takeover(m: Client, a: Arguments, printer: Printer) -> None:
    properties = None
    if a.payload is not None or a.expiry is not None:
        properties = SessionProperties(a.expiry or 0, a.payload or b"")
    taken = await m.sessions.takeover(
        a.broker, a.epoch, a.tenant, a.client_id, clean_start=a.clean_start, properties=properties
    )
    owner = taken.previous
    printer.one(
        {
            "session_present": taken.session_present,
            "previous_broker": owner.broker if owner is not None else None,
            "previous_epoch": owner.broker_epoch if owner is not None else None,
        }
    )


async def _end_tenant(m: Client, a: Arguments, printer: Printer) -> None:
    if not await _has_anything(m, a.tenant, retained=a.retained):
        what = "no session, no will that is due" + (" and no retained message" if a.retained else "")
        raise NotFoundError(f"tenant {a.tenant!r} has {what}: check its name; nothing was ordered")
    await m.sessions.end_tenant(a.tenant, publish_wills=a.wills == "publish", retained=a.retained)
    left = True
    while a.wait and left:
        await asyncio.sleep(_LOOK_S)
        left = bool(await m.sessions.endings(a.tenant))
    printer.one({"ordered": True, "ended": not left})


async def _has_anything(m: Client, tenant: str, *, retained: bool) -> bool:
    """Whether there is anything of a tenant that its end would delete, or is about to."""
    if await m.sessions.endings(tenant):
        return True
    found: list[AsyncIterator[object]] = [m.sessions.list(tenant, page_size=1), m.wills.list(tenant, page_size=1)]
    if retained:
        found.append(m.retained.match(tenant, "#", page_size=1))
        found.append(m.retained.match(tenant, "$SYS/#", page_size=1))
    for records in found:
        async for _ in records:
            return True
    return False


async def _endings(m: Client, a: Arguments, printer: Printer) -> None:
    found, now_ms = await m.sessions.endings(a.tenant), _now_ms()
    show(printer, "endings", Bounded(found, False), lambda end: ending_row(end, now_ms), 0)


def session_row(session: Session, now_ms: int) -> Row:
    """What a person wants to see of a session in a line."""
    return {
        "tenant": session.tenant,
        "client": session.client_id,
        "broker": session.broker,
        "epoch": session.broker_epoch,
        "state": "connected" if session.connected else "away",
        "since": people.when(session.disconnected_ms, now_ms),
        "ends": _ends(session, now_ms),
    }


def _facts(session: Session, now_ms: int) -> Row:
    properties = session.properties
    return {
        "state": "connected" if session.connected else "away",
        "broker": session.broker,
        "epoch": session.broker_epoch,
        "away since": people.when(session.disconnected_ms, now_ms),
        "stays for": _interval(properties.expiry_interval_s),
        "ends": _ends(session, now_ms),
        "will due": people.when(session.will_ms, now_ms),
        "payload": people.size(len(properties.payload)),
    }


def _interval(interval_s: int) -> str:
    """For how long a session stays after its client has gone."""
    if interval_s == NEVER_S:
        return "ever"
    return people.duration(interval_s * 1_000) if interval_s else "no longer than its client"


def _ends(session: Session, now_ms: int) -> str | None:
    """When a session ends whose client stays away."""
    if session.connected:
        return None
    interval_s = session.properties.expiry_interval_s
    if not session.expires_ms and interval_s == NEVER_S:
        return "never"
    # A session whose broker died gets its deadline when the sweep comes to it. This is what it will be.
    return people.when(session.expires_ms or session.disconnected_ms + interval_s * 1_000, now_ms)


def _will(will: Will | None) -> str | None:
    if will is None:
        return None
    delay = f", {people.duration(will.delay_s * 1_000)} after the client has gone" if will.delay_s else ""
    return f"{will.topic}, {people.size(len(will.payload))}{delay}"


def _filter_row(one: Any) -> Row:
    options = one.options
    return {
        "filter": one.filter,
        "qos": options.qos,
        "no local": options.no_local,
        "retain as published": options.retain_as_published,
        "retain handling": options.retain_handling,
        "id": options.subscription_id or None,
    }


async def _list_subscriptions(m: Client, a: Arguments, printer: Printer) -> None:
    found = await first(m.subscriptions.list(a.tenant, a.prefix, page_size=page_size(a.limit)), a.limit)
    show(printer, "subscriptions", found, subscription_row, a.limit)


async def _subscribe(m: Client, a: Arguments, printer: Printer) -> None:
    options = SubscriptionOptions(a.qos)
    created = await m.subscriptions.add(a.broker, a.epoch, a.tenant, a.client_id, a.filter, options)
    printer.one({"created": created})


async def _unsubscribe(m: Client, a: Arguments, printer: Printer) -> None:
    with absent(_SUBSCRIPTION.missing(a)):
        await m.subscriptions.remove(a.broker, a.epoch, a.tenant, a.client_id, a.filter)
    printer.one({"deleted": True})


def subscription_row(one: Subscription) -> Row:
    """What a person wants to see of a subscription in a line."""
    return {"tenant": one.tenant, "client": one.client_id, "filter": one.filter, "qos": one.options.qos}


def _title(what: str, count: int) -> str:
    return f"{what} (the first {SHOWN_MAX} of {count}; --json has all)" if count > SHOWN_MAX else what


def _now_ms() -> int:
    return int(time.time() * 1_000)
