"""``metadctl auth``: who may do what; and ``metadctl quotas``: how much of it."""

from __future__ import annotations

import argparse
import difflib
import typing
from collections.abc import Iterable, Sequence

from metad_wire.errors import NotFoundError
from metad_wire.families import FAMILIES
from metad_wire.table import TABLES
from metad_wire.tables.access import ALL, BUILT_IN, OF_THE_CLUSTER, Given, Grant, PrincipalRoles, Right, Role, Wish
from metad_wire.tables.tenants import EACH, OF_PRINCIPAL, OF_TENANT, Quota, Use, has_tenants
from metad_wire.transport.credentials import Role as Kind
from metad_wire.transport.credentials import principal_named

from ...client import Client
from .. import people
from ..grammar import Arguments, Commands, Parser, count, limit
from ..printing import Printer
from .bounded import Bounded, Row, absent, first, page_size, show

_RIGHTS: typing.Final = typing.get_args(Right)
_OF_RECORDS: typing.Final = sorted(name for name, table in TABLES.items() if has_tenants(table))


def add(commands: Commands) -> None:
    """Add the commands."""
    _, verbs = commands.family("auth", "who may do what: roles, and who has them", _whoami)
    verbs.add("whoami", "who this client is to the nodes, and what it may do", _whoami)
    can = _principal(verbs.add("can", "whether somebody may do something; exit status 1 if not", _can))
    can.add_argument("right", metavar="VERB", choices=_RIGHTS, help=", ".join(_RIGHTS))
    said = f"{', '.join(_OF_RECORDS)}, one of `metadctl tables`, or {', '.join(sorted(OF_THE_CLUSTER))}"
    can.add_argument("table", metavar="TABLE", help=said)
    said = "TENANT/REST or NAMESPACE/REST; * for all records"
    can.add_argument("key", metavar="KEY", nargs="?", default="*", help=said)
    roles = verbs.add("roles", "the roles, also those that are built in", _roles)
    roles.add_argument("--prefix", default="", metavar="P", help="only those whose name starts so")
    bindings = verbs.add("bindings", "who has which roles", _bindings)
    bindings.add_argument("--prefix", default="", metavar="P", help="only those whose URI starts so: metad://client/a")
    for parser in (roles, bindings):
        limit(parser)
    role = verbs.add("role", "make a role, or replace it", _put_role)
    role.add_argument("role", metavar="ROLE")
    said = "RIGHTS[:TABLES[:SCOPE[:PREFIX]]], lists by commas, as in read,write:topic:acme*:orders/; without TABLES all"
    said += " that programs keep records in"
    role.add_argument("grants", metavar="GRANT", type=_grant, nargs="+", help=said)
    role.add_argument("--about", default="", metavar="TEXT", help="what it is for")
    role.add_argument("--undeclared", action="store_true", help="also for tables that are to be declared later")
    verbs.add("drop", "delete a role that nobody has", _drop).add_argument("role", metavar="ROLE")
    for name, help, command in (
        ("grant", "give somebody roles, beside those that he has", _give),
        ("revoke", "take roles from somebody; without ROLE all", _take),
    ):
        parser = _principal(verbs.add(name, help, command))
        said = "ROLE, or ROLE@SCOPE for one tenant or namespace, or for all that begin so: ROLE@acme*"
        parser.add_argument("roles", metavar="ROLE", type=_given, nargs="+" if name == "grant" else "*", help=said)
    _principal(verbs.add("deny", "let somebody do nothing at all, and close his connections", _deny(True)))
    _principal(verbs.add("allow", "the opposite: his roles count again", _deny(False)))
    _add_quotas(commands)


def _principal(parser: Parser) -> Parser:
    said = "URI of a certificate; NAME stands for metad://client/NAME, broker/NAME for metad://broker/NAME"
    parser.add_argument("principal", metavar="PRINCIPAL", type=named, help=said)
    return parser


def named(text: str) -> str:
    """Read an argument: the URI of a principal."""
    kinds = [kind.value for kind in Kind]
    uri = text
    if "://" not in text:
        kind, _, name = text.partition("/")
        uri = f"metad://{kind}/{name}" if name and kind in kinds else f"metad://client/{text}"
    if (found := principal_named(uri)) is None:
        raise argparse.ArgumentTypeError(f"no principal: {text}")
    return found.uri


def _given(text: str) -> Given:
    role, at, scope = text.partition("@")
    if not role or (at and not scope):
        raise argparse.ArgumentTypeError(f"neither ROLE nor ROLE@SCOPE: {text}")
    return Given(role, scope or "*")


def _grant(text: str) -> Grant:
    rights, tables, scope, prefix = [*text.split(":", 3), "", "", ""][:4]
    names = rights.split(",")
    if wrong := [name for name in names if name not in _RIGHTS]:
        raise argparse.ArgumentTypeError(f"no right: {wrong[0]!r}; there are {', '.join(_RIGHTS)}")
    chosen = tables.split(",") if tables else []
    return Grant(names, chosen, scope or "*", prefix)  # type: ignore[arg-type]


async def _whoami(m: Client, a: Arguments, printer: Printer) -> None:
    found = await m.principals.may()
    facts: Row = {
        "principal": found.principal or "nobody is checked here",
        "checked": found.enforced,
        "administers": found.administers,
        "denied": found.denied,
    }
    printer.document(found, facts, [("roles", [_given_row(given) for given in found.roles])])


async def _check_tables(m: Client, names: Iterable[str]) -> None:
    """Raise NotFoundError for the first that is no table: a role for it would give nothing, and say nothing."""
    known = {ALL, *OF_THE_CLUSTER, *_OF_RECORDS, *FAMILIES}
    for name in names:
        if name in known or await m.tables.get(name) is not None:
            continue
        like = difflib.get_close_matches(name, known, 1)
        raise NotFoundError(f"no table {name!r}" + (f": did you mean {like[0]}?" if like else ""))


async def _can(m: Client, a: Arguments, printer: Printer) -> int:
    await _check_tables(m, [a.table])
    scope, _, key = ("", "", "") if a.key == "*" else a.key.partition("/")
    wish = Wish(a.right, a.table, scope, key)
    found = await m.principals.may([wish], principal=a.principal)
    may = found.allowed[0]
    printer.one({"principal": found.principal, "verb": a.right, "table": a.table, "key": a.key, "may": may})
    return 0 if may else 1


async def _roles(m: Client, a: Arguments, printer: Printer) -> None:
    made = await first(m.roles.list(a.prefix, page_size=page_size(a.limit)), a.limit)
    built_in = [role for role in BUILT_IN.values() if role.role.startswith(a.prefix)]
    show(printer, "roles", made._replace(records=built_in + made.records), _role_row, a.limit)


async def _bindings(m: Client, a: Arguments, printer: Printer) -> None:
    found = await first(m.principals.list(a.prefix, page_size=page_size(a.limit)), a.limit)
    show(printer, "bindings", found, _binding_row, a.limit)


async def _put_role(m: Client, a: Arguments, printer: Printer) -> None:
    if not a.undeclared:
        await _check_tables(m, [table for grant in a.grants for table in grant.tables])
    await m.roles.put(a.role, a.grants, about=a.about)
    printer.one(Role(a.role, a.grants, a.about), _role_row(Role(a.role, a.grants, a.about)))


async def _drop(m: Client, a: Arguments, printer: Printer) -> None:
    with absent(f"no role {a.role}"):
        await m.roles.delete(a.role)
    printer.one({"role": a.role, "deleted": True})


async def _give(m: Client, a: Arguments, printer: Printer) -> None:
    await m.principals.change(a.principal, a.roles)
    await _show(m, printer, a.principal)


async def _take(m: Client, a: Arguments, printer: Printer) -> None:
    known = await m.principals.get(a.principal)
    have = [] if known is None else known.roles
    if missing := [given for given in a.roles if given not in have] if a.roles else [] if have else [None]:
        role = "roles" if missing[0] is None else f"role {_text(missing[0])}"
        raise NotFoundError(f"{a.principal} has no {role}")
    await m.principals.change(a.principal, take=a.roles or None)
    await _show(m, printer, a.principal)


def _deny(denied: bool):  # type: ignore[no-untyped-def]
    async def command(m: Client, a: Arguments, printer: Printer) -> None:
        await m.principals.change(a.principal, denied=denied)
        await _show(m, printer, a.principal)

    return command


async def _show(m: Client, printer: Printer, principal: str) -> None:
    found = await m.principals.get(principal) or PrincipalRoles(principal)
    printer.one(found, _binding_row(found))


def _given_row(given: Given) -> Row:
    return {"role": given.role, "scope": given.scope}


def _text(given: Given) -> str:
    return given.role if given.scope == "*" else f"{given.role}@{given.scope}"


def _binding_row(found: PrincipalRoles) -> Row:
    return {"principal": found.principal, "roles": [_text(one) for one in found.roles], "denied": found.denied}


def _role_row(role: Role) -> Row:
    return {"role": role.role, "built in": role.role in BUILT_IN, "grants": _grants(role.grants), "about": role.about}


def _grants(grants: Sequence[Grant]) -> list[str]:
    found = []
    for grant in grants:
        parts = [",".join(grant.rights), ",".join(grant.tables), grant.scope, grant.prefix]
        while parts[-1] == "" or (len(parts) == 3 and parts[-1] == "*"):
            parts.pop()
        found.append(":".join(parts))
    return found


# --- quotas ---

_LIMITS: typing.Final = {
    "items_per_s": "items of requests a second, at each node",
    "bytes_per_s": "bytes of requests a second, at each node",
    "connections": "connections to each node; of principals",
    "watches": "streams of watches at each node; of principals",
    "sessions": "sessions in the cluster; of a tenant",
    "records": "records of all tables in the cluster; of a tenant",
    "bytes": "bytes of these; of a tenant",
}


def _add_quotas(commands: Commands) -> None:
    listing, verbs = commands.family("quotas", "how much tenants and principals may take; or change it", _quotas)
    limit(listing)
    put = _subject(verbs.add("set", "say how much one may take, instead of what was said before", _set_quota))
    for name, help in _LIMITS.items():
        put.add_argument(f"--{name.replace('_', '-')}", type=count, metavar="N", help=help)
    _subject(verbs.add("delete", "limit one no more", _delete_quota))
    use = verbs.add("use", "what they take now, all nodes together", _use)
    use.add_argument("--prefix", default="", metavar="P", help="only subjects that start so: tenant/acme")


def _subject(parser: Parser) -> Parser:
    said = "tenant/NAME or NAME; principal/NAME, with the name or URI of one; * is each that has none of its own"
    parser.add_argument("subject", metavar="SUBJECT", type=_subject_named, help=said)
    return parser


def _subject_named(text: str) -> str:
    if text.startswith(OF_PRINCIPAL) and (name := text.removeprefix(OF_PRINCIPAL)) != EACH:
        return OF_PRINCIPAL + named(name)
    if text in (OF_TENANT, OF_PRINCIPAL):
        raise argparse.ArgumentTypeError(f"no name: {text}")
    return text if text.startswith((OF_TENANT, OF_PRINCIPAL)) else OF_TENANT + text


async def _quotas(m: Client, a: Arguments, printer: Printer) -> None:
    show(printer, "quotas", await first(m.quotas.list(), a.limit), _quota_row, a.limit)


async def _set_quota(m: Client, a: Arguments, printer: Printer) -> None:
    said = {name: getattr(a, name) for name in _LIMITS}
    if not any(value is not None for value in said.values()):
        raise NotFoundError(f"{a.subject}: nothing is limited: name a limit, or delete the quota")
    await m.quotas.put(a.subject, **said)
    printer.one({"set": True})


async def _delete_quota(m: Client, a: Arguments, printer: Printer) -> None:
    with absent(f"{a.subject} has no quota"):
        await m.quotas.delete(a.subject)
    printer.one({"deleted": True})


async def _use(m: Client, a: Arguments, printer: Printer) -> None:
    quotas = {one.subject: one async for one in m.quotas.list()}
    found = await m.quotas.use(a.prefix)
    show(printer, "use", Bounded(found, False), lambda use: _use_row(use, quotas), 0)


def _quota_row(quota: Quota) -> Row:
    return {"subject": quota.subject, **{_title(name): _said(name, getattr(quota, name)) for name in _LIMITS}}


def _use_row(use: Use, quotas: dict[str, Quota]) -> Row:
    kind = use.subject.partition("/")[0]
    quota = quotas.get(use.subject) or quotas.get(f"{kind}/{EACH}") or Quota(use.subject)
    row: Row = {"subject": use.subject}
    for name in _LIMITS:
        taken, most = _said(name, getattr(use, name)), _said(name, getattr(quota, name))
        row[_title(name)] = None if most is None else f"{'?' if taken is None else taken} of {most}"
    return {**row, "refused": use.refused}


def _said(name: str, value: int | None) -> str | None:
    if value is None:
        return None
    return people.size(value) if name.startswith("bytes") else f"{value:,}"


def _title(name: str) -> str:
    return name.replace("_per_s", " a second")
