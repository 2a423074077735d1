"""Roles and bindings: their rows in ``metadata-0``, and what every node knows of them by its copy of it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from metad_wire import messages as m
from metad_wire import methods
from metad_wire.errors import ConflictError, InvalidItemError, NotFoundError
from metad_wire.tables import access as w
from metad_wire.tables.access import BUILT_IN, PRINCIPAL, ROLE, PrincipalRoles, Role
from metad_wire.transport.credentials import Role as Kind
from metad_wire.transport.credentials import principal_named

from ...config import Config
from ..core.part import PartContext
from ..core.verb import Command, Verb
from ..core.view import View
from .named_rows import KnownRows, NamedRows

_ROLES = NamedRows(ROLE, Role, w.ROLES_MAX)
_BINDINGS = NamedRows(PRINCIPAL, PrincipalRoles, w.BINDINGS_MAX)


class KnownAccess:
    """The roles and bindings as one node knows them."""

    def __init__(self, config: Config | None = None) -> None:
        self.roles: dict[str, Role] = {}
        """Those that were made; the others are built in."""
        self.bindings: dict[str, PrincipalRoles] = {}
        """By principal."""
        self.changes = 0
        """How often anything has changed."""

    def role(self, name: str) -> Role | None:
        """What a name stands for."""
        return BUILT_IN.get(name) or self.roles.get(name)


class _Known(KnownRows):
    def __init__(self, context: PartContext) -> None:
        super().__init__(context)
        self.shared: KnownAccess = context.memory.shared(KnownAccess)

    def _all(self) -> dict[str, Any]:
        raise NotImplementedError

    def known(self) -> Iterable[str]:
        return self._all()

    def know(self, name: str, record: Any) -> None:
        if record is None:
            self._all().pop(name, None)
        else:
            self._all()[name] = record
        self.shared.changes += 1


class Roles(_Known):
    """Tells the node of roles."""

    rows = (_ROLES.row,)
    named = _ROLES

    def _all(self) -> dict[str, Any]:
        return self.shared.roles


class Bindings(_Known):
    """Tells the node of bindings."""

    rows = (_BINDINGS.row,)
    named = _BINDINGS

    def _all(self) -> dict[str, Any]:
        return self.shared.bindings


def _put_role(view: View, item: Role, known: Role | None) -> Role:
    _not_built_in(item.role)
    _short(item.role)
    if "@" in item.role:
        raise InvalidItemError(f"role {item.role!r}: an @ stands before the scope for which a role is given")
    for grant in item.grants:
        for table in grant.tables:
            _short(table)
        _scope(grant.scope)
    return item


def _delete_roles(view: View, command: Command[m.Items[w.RoleKey]]) -> m.WriteReply:
    holders = {given.role: binding.principal for binding in _BINDINGS.all(view) for given in binding.roles}

    def step(view: View, item: w.RoleKey, known: Role | None) -> None:
        _not_built_in(item.role)
        if known is None:
            raise NotFoundError(f"there is no role {item.role!r}")
        if (holder := holders.get(item.role)) is not None:
            raise ConflictError(f"{holder} has the role {item.role!r}")

    return _ROLES.evaluate(step, view, command)


def _put_binding(view: View, item: PrincipalRoles, known: PrincipalRoles | None) -> PrincipalRoles:
    _principal(item.principal)
    _there(view, item.roles)
    return item


def _change_binding(view: View, item: w.BindingChange, known: PrincipalRoles | None) -> PrincipalRoles | None:
    _principal(item.principal)
    _there(view, item.give)
    known = known or PrincipalRoles(item.principal)
    kept = [] if item.take is None else [given for given in known.roles if given not in item.take]
    roles = [*dict.fromkeys([*kept, *item.give])]
    if len(roles) > w.ROLES_HELD_MAX:
        raise InvalidItemError(f"a principal has at most {w.ROLES_HELD_MAX} roles")
    denied = known.denied if item.denied is None else item.denied
    return PrincipalRoles(item.principal, roles, denied) if roles or denied else None


def _delete_binding(view: View, item: w.PrincipalKey, known: PrincipalRoles | None) -> None:
    if known is None:
        raise NotFoundError(f"{item.principal} has no binding")


def _not_built_in(role: str) -> None:
    if role in BUILT_IN:
        raise ConflictError(f"the role {role!r} is built in")


def _there(view: View, roles: Iterable[w.Given]) -> None:
    for given in roles:
        _scope(given.scope)
        if given.role not in BUILT_IN and _ROLES.get(view, given.role) is None:
            raise NotFoundError(f"there is no role {given.role!r}")


def _principal(uri: str) -> None:
    _short(uri)
    found = principal_named(uri)
    if found is None or found.uri != uri:
        raise InvalidItemError(f"{uri!r} is no principal: metad://client/NAME is one")
    if found.role in (Kind.ADMIN, Kind.NODE):
        raise InvalidItemError(f"{uri} may do everything, whatever is said of it: replace the authority to end that")


def _short(name: str) -> None:
    if not name:
        raise InvalidItemError("a name is empty")
    if (size := len(name.encode())) > w.PRINCIPAL_BYTES_MAX:
        raise InvalidItemError(f"a name of {size} bytes, {w.PRINCIPAL_BYTES_MAX} are allowed")


def _scope(scope: str) -> None:
    if "*" in scope[:-1]:
        raise InvalidItemError(f"scope {scope[:256]!r}: a * stands at its end only")
    if len(scope.encode()) > w.PRINCIPAL_BYTES_MAX:
        raise InvalidItemError(f"a scope has at most {w.PRINCIPAL_BYTES_MAX} bytes")


VERBS: tuple[Verb[Any, Any], ...] = (
    _ROLES.writes(methods.ROLE_PUT, _put_role, grows=True),
    Verb(methods.ROLE_DELETE, ROLE, evaluate=_delete_roles, grows=False),
    _ROLES.lists(methods.ROLE_LIST),
    _BINDINGS.writes(methods.PRINCIPAL_PUT, _put_binding, grows=True),
    _BINDINGS.writes(methods.PRINCIPAL_CHANGE, _change_binding),
    _BINDINGS.writes(methods.PRINCIPAL_DELETE, _delete_binding),
    _BINDINGS.gets(methods.PRINCIPAL_GET),
    _BINDINGS.lists(methods.PRINCIPAL_LIST),
)
