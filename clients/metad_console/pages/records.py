"""Records: of any table, by tenant and prefix, decoded, page by page. Nothing is read that is not shown."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from typing import Any, Final, NamedTuple

import msgspec
from nicegui import ui

from metad_client import Client
from metad_client.cli.groups import known_group_row, offset_row
from metad_client.cli.printing import flat, plain
from metad_client.cli.tables.declared import told_of
from metad_client.cli.tables.sessions import session_row, subscription_row
from metad_client.cli.tables.wills import row_of_due
from metad_client.errors import MetadError
from metad_wire.families import FAMILIES, SECRETS
from metad_wire.messages import Kv, Session, TableRecord

from .. import actions
from ..forms import Field, filters
from ..frame import button, dialog, frame, label, problem, reason, tag
from ..listings import READ_S, SCOPES, Listed, Row
from ..pager import ROWS_MAX
from ..sessions import Session as Signed

PAGE: Final = ROWS_MAX + 1
"""One more says whether there are others."""
DOCUMENT_CHARS_MAX: Final = 65_536
"""Of one record, as JSON: a browser shows more slowly what nobody reads."""
TABLES_MAX: Final = 1_000
"""Declared tables to choose from."""


class Asked(NamedTuple):
    """What a person wants to see."""

    kind: str
    scope: str
    """Tenant or namespace; empty: any."""
    group: str
    prefix: str


class Kind(NamedTuple):
    """Records that the SDK has methods for."""

    scope: str
    """What the first field is."""
    needs: tuple[str, ...]
    """What must be given to list them."""
    records: Callable[[Client, Asked], AsyncIterator[Any]]
    row: Callable[[Any, int], Row]
    prefix: str = "Begins with"


def _generic(record: Any, now_ms: int) -> Row:
    """A record as people read it, whatever it is."""
    return dict(told_of(name, value) for name, value in flat(plain(record)).items())


KINDS: Final = {
    "session": Kind(
        "Tenant",
        (),
        lambda m, a: m.sessions.list(a.scope or None, a.prefix if a.scope else "", page_size=PAGE, deadline_s=READ_S),
        session_row,
        "Client begins with",
    ),
    "kv": Kind(
        "Namespace",
        ("scope",),
        lambda m, a: m.kv.scan(a.scope, a.prefix, page_size=PAGE, deadline_s=READ_S),
        _generic,
        "Key begins with",
    ),
    "consumer group": Kind(
        "Tenant",
        ("scope",),
        lambda m, a: m.offsets.groups(a.scope, a.prefix, page_size=PAGE, deadline_s=READ_S),
        lambda record, _: known_group_row(record),
        "Group begins with",
    ),
    "offset": Kind(
        "Tenant",
        ("scope", "group"),
        lambda m, a: m.offsets.list(a.scope, a.group, a.prefix, page_size=PAGE, deadline_s=READ_S),
        offset_row,
        "Topic begins with",
    ),
    "subscription": Kind(
        "Tenant",
        (),
        lambda m, a: m.subscriptions.list(
            a.scope or None, a.prefix if a.scope else "", page_size=PAGE, deadline_s=READ_S
        ),
        lambda record, _: subscription_row(record),
        "Client begins with",
    ),
    "retained": Kind(
        "Tenant",
        ("scope",),
        lambda m, a: m.retained.match(a.scope, a.prefix or "#", page_size=PAGE, deadline_s=READ_S),
        _generic,
        "Filter, as in site/#",
    ),
    "will": Kind(
        "Tenant",
        (),
        lambda m, a: m.wills.list(a.scope or None, a.prefix if a.scope else "", page_size=PAGE, deadline_s=READ_S),
        row_of_due,
        "Client begins with",
    ),
    "lease": Kind(
        "Namespace",
        ("scope",),
        lambda m, a: m.leases.list(a.scope, a.prefix, page_size=PAGE, deadline_s=READ_S),
        _generic,
    ),
    "sequence": Kind(
        "Namespace",
        ("scope",),
        lambda m, a: m.sequences.list(a.scope, a.prefix, page_size=PAGE, deadline_s=READ_S),
        _generic,
    ),
}


def page(kind: str = "session", scope: str = "", group: str = "", prefix: str = "") -> None:
    """Build it. The arguments are those of the form."""
    asked = Asked(kind, scope, group, prefix)
    known = KINDS.get(kind)
    with frame("/records", "Records", "Of any table, page by page.") as session:
        names = [*KINDS, *sorted(FAMILIES)]
        fields = [
            Field("kind", "Records", kind, names if kind in names else [kind, *names]),
            Field("scope", "First field of the key" if known is None else known.scope, scope),
        ]
        if kind == "offset":
            fields.append(Field("group", "Consumer group", group))
        fields.append(Field("prefix", "Begins with" if known is None else known.prefix, prefix))
        made = filters("/records", fields)
        _add_declared(session, made["kind"], {*names, kind})
        missing = [name for name in (() if known is None else known.needs) if not getattr(asked, name)]
        if missing:
            assert known is not None
            wanted = " and a ".join(known.scope.lower() if name == "scope" else "consumer group" for name in missing)
            label(f"Give a {wanted}: these records are listed by it.", "notice")
            return
        _list(session, asked, known)
        if session.may_write and scope and (known is None or known.scope == "Tenant"):
            button(f"End tenant {scope} …", lambda: actions.end_tenant(session, scope), "danger")


def _add_declared(session: Signed, select: ui.element, there: set[str]) -> None:
    """Add the tables that programs have declared to the choices, once the page is there."""

    async def add() -> None:
        try:
            listing = (await session.client()).tables.list(page_size=TABLES_MAX, deadline_s=READ_S)
            names = [table.name async for table in listing if table.name not in there]
        except MetadError:
            return  # who may not see them may still write a name into the address
        with select:
            for name in names[:TABLES_MAX]:
                tag("option", name, value=name)

    ui.timer(0, add, once=True)


def _list(session: Signed, asked: Asked, known: Kind | None) -> None:
    what = f"records of {asked.kind}" + (f" of {asked.scope}" if asked.scope else "")
    row = _row_of_table(asked.kind) if known is None else known.row
    Listed[Any](
        session,
        what,
        lambda m: _of_table(m, asked) if known is None else known.records(m, asked),
        lambda record: _without_scope(row(record, int(time.time() * 1_000)), asked.scope),
        lambda record: _open(session, asked, record),
    )


def _without_scope(row: Row, scope: str) -> Row:
    """A row without the tenant or namespace that all records share: its first column then tells them apart."""
    return {name: value for name, value in row.items() if not (scope and name in SCOPES and value == scope)}


async def _of_table(m: Client, asked: Asked) -> AsyncIterator[TableRecord[Any]]:
    """The records of a table that has no methods of its own in the SDK."""
    table = await m.tables.open(asked.kind, deadline_s=READ_S)
    first = [asked.scope] if asked.scope else []
    listing = m.table(table).list(*first, prefix=asked.prefix, page_size=PAGE, deadline_s=READ_S)
    async with aclosing(listing):  # type: ignore[type-var]
        async for record in listing:
            yield record


def _row_of_table(kind: str) -> Callable[[TableRecord[Any], int], Row]:
    def row(found: TableRecord[Any], now_ms: int) -> Row:
        return dict(told_of(name, value) for name, value in plain(_fields(kind, found)).items())

    return row


def _fields(kind: str, found: TableRecord[Any]) -> dict[str, Any]:
    """The fields of a record and its numbers, without secrets."""
    numbers = msgspec.structs.asdict(found)
    hidden = SECRETS.get(kind, frozenset[str]())
    fields = msgspec.structs.asdict(numbers.pop("record"))
    return {name: value for name, value in fields.items() if name not in hidden} | numbers


# --- one record ---


def _open(session: Signed, asked: Asked, record: Any) -> None:
    """Show the whole of one record, and what may be done with it."""
    fields = _fields(asked.kind, record) if isinstance(record, TableRecord) else record
    text = json.dumps(plain(fields), indent=2, ensure_ascii=False)
    cut = f"\n… {len(text) - DOCUMENT_CHARS_MAX:,} characters more" if len(text) > DOCUMENT_CHARS_MAX else ""
    with dialog(f"One record of {asked.kind}", "record") as shown:
        with tag("pre", tabindex="0"):
            ui.label(_seen(text[:DOCUMENT_CHARS_MAX]) + cut).props["tag"] = "span"
        failed = problem("")
        with tag("div", classes="row-of-buttons"):
            if session.may_write:
                _delete_button(session, asked, record, failed, shown)
            button("Close", shown.close, "primary")


def _seen(text: str) -> str:
    """Lines of JSON, with what would turn the direction of writing, or is invisible, as JSON writes it."""
    return "".join(one if one.isprintable() or one == "\n" else json.dumps(one)[1:-1] for one in text)


def _delete_button(session: Signed, asked: Asked, record: Any, failed: ui.label, shown: ui.dialog) -> None:
    async def ask() -> None:
        try:
            chosen = await _deletion(session, asked, record)
        except MetadError as error:
            failed.set_text(reason(error, "the table"))
            return
        shown.close()
        actions.ask(session, chosen)

    if isinstance(record, Kv | Session) or (isinstance(record, TableRecord) and not _ruled(asked.kind)):
        button("Delete …", ask, "danger")


def _ruled(kind: str) -> bool:
    return kind in FAMILIES and bool(FAMILIES[kind].ruled_by)


async def _deletion(session: Signed, asked: Asked, record: Any) -> actions.Action:
    if isinstance(record, Kv):
        return actions.delete_key(record)
    if isinstance(record, Session):
        return actions.delete_session(record)
    table = await (await session.client()).tables.open(asked.kind, deadline_s=READ_S)
    return actions.delete_record(table, record)
