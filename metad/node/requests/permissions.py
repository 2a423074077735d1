"""May whoever asks do this? One place for every request and watch of clients, by what :mod:`metad_wire.tables.access`
says.

What a request needs follows from the declaration of its method and table. A node decides by its own copy of
``metadata-0``, which may be a moment behind. Where it does not check (``[security] authorization``), certificates of
brokers bind their names all the same: the holder of ``metad://broker/NAME`` speaks for that broker only, and once it
has registered the name, nobody without that certificate speaks for it, whatever the epoch. Names that were registered
in another way are as free as they were. Where nobody is identified, nothing is bound.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from operator import attrgetter
from typing import Any, Final, NamedTuple

import msgspec

from metad_wire import messages as m
from metad_wire.cluster import METADATA
from metad_wire.errors import (
    FencedError,
    InvalidRequestError,
    MetadError,
    NotLeaderError,
    OverloadedError,
    PermissionDeniedError,
)
from metad_wire.method import MALFORMED
from metad_wire.methods import (
    ACCESS_MAY,
    ACTIVITY,
    BACKUP_BEGIN,
    BACKUP_END,
    BROKER_FENCE,
    BROKER_GET,
    BROKER_HEARTBEAT,
    BROKER_LIST,
    BROKER_REGISTER,
    CLUSTER_MAP,
    CONSUMER_HEARTBEAT,
    GROUP_COPY_TENANT,
    GROUP_MOVE_TENANT,
    GROUP_PUT_TENANT,
    GROUP_RESTORE,
    KV_PUT,
    KV_TRANSACT,
    LEASE_ATTACH,
    LEASE_DETACH,
    LEASE_KEEP_ALIVE,
    LEASE_KEYS,
    LEASE_REVOKE,
    METHODS,
    READ_INDEX,
    RETAINED_MATCH,
    SESSION_DELETE,
    SESSION_END_TENANT,
    SESSION_TAKEOVER,
    SETTINGS,
    TABLE_DELETE,
    TABLE_GET,
    TABLE_PUT,
    TABLE_TRANSACT,
    TENANTS_END,
    TENANTS_KEEP,
    WATCH_OPEN,
    WILL_CLAIM,
    For,
    Method,
)
from metad_wire.refused import Refused, narrowed
from metad_wire.table import TABLES, Table
from metad_wire.tables.access import (
    ALL,
    OF_THE_CLUSTER,
    PRINCIPAL,
    PRINCIPAL_BYTES_MAX,
    ROLE,
    AuditKind,
    Given,
    Grant,
    May,
    MayReply,
)
from metad_wire.tables.broker import LIVE
from metad_wire.tables.table import PlainTable
from metad_wire.tables.tenants import SCOPES, TENANTS, is_scoped
from metad_wire.transport.credentials import Principal, Role, may_administer, principal_named
from metad_wire.watch import WatchFilter

from ... import log_events
from ...config import Config
from ...control.audit import line_of
from ...control.host import Done, Hosted, Source
from ...logs import event
from ...state.cluster.access import KnownAccess
from ...state.cluster.brokers import read_broker, registered_by
from ...state.cluster.declarations import KnownTables
from ...state.core.verb import Vouch
from ...state.machine import Machine
from ..replicas.machines import Machines
from .audit import AuditQueue
from .quotas import Quotas

_NAMING: Final = {BROKER_REGISTER.code} | {
    method.code
    for method in METHODS.values()
    if method.whose is For.CLIENTS and {"broker", "broker_epoch"} <= set(method.body.__struct_fields__)
}
"""Methods whose body names the life of a broker that asks."""
_NAMING_ITEMS: Final = {
    method.code
    for method in METHODS.values()
    if {"broker", "broker_epoch"} <= {*getattr(method.item, "__struct_fields__", ())}
}
"""Those whose items do."""
_FREE: Final = {CLUSTER_MAP.code, ACCESS_MAY.code}
"""What everybody may ask."""
_RIGHTS: Final = {
    SESSION_END_TENANT.code: "admin",
    CONSUMER_HEARTBEAT.code: "write",
    LEASE_KEEP_ALIVE.code: "write",
}
_DELETE: Final = ("delete", "remove", "revoke")
_OWNED: Final = "broker"
"""The table of lives."""
_BESIDE: Final = {method.code for method in (KV_TRANSACT, TABLE_TRANSACT, LEASE_ATTACH, LEASE_DETACH, LEASE_REVOKE)}
"""Methods whose items are about more than one record."""
_PARTS: Final = {TABLE_GET.code: "", TABLE_PUT.code: "record", TABLE_DELETE.code: "key"}
"""Of declared tables, whose fields may have any name: which field of an item has those of the key."""
_KNOWN_MAX: Final = 4_096
_UNANSWERED: Final = 1 << 63
"""Above any index."""
_AGAIN_MS: Final = 200
_NAMES_LOGGED: Final = 8
"""Names of what an administrator has changed that are logged."""


class Need(NamedTuple):
    """What a request must be allowed."""

    right: str
    table: str
    scope: str | None
    """The first field of the key; None: all records of the table."""
    key: str = ""
    """What the second one begins with."""

    def __str__(self) -> str:
        where = "of all" if self.scope is None else f"of {self.scope[:256]!r}"
        return f"{self.right} {self.table} {where}" + (f", {self.key[:256]!r}" if self.key else "")


@functools.lru_cache(_KNOWN_MAX)
def right_of(method: Method[Any, Any]) -> str:
    """Which right a method needs; "own" of those that need nothing but to speak for a broker."""
    if (said := _RIGHTS.get(method.code)) is not None:
        return said
    if method.name.startswith("backup."):
        return "read"
    if method.whose is For.ADMINS:
        return "admin"
    if method.code in _LIVES:
        return "own"
    if method.name.partition(".")[2].startswith(_DELETE):
        return "delete"
    return "write" if method.mutates else "read"


_LIVES: Final = {
    method.code
    for method in METHODS.values()
    if method.whose is For.CLIENTS and method.name.startswith(f"{_OWNED}.") and method not in (BROKER_GET, BROKER_LIST)
}


ADMIN: Final = frozenset(code for code, method in METHODS.items() if right_of(method) == "admin")
"""Methods that need the right ``admin``."""
AUDITED: Final = ADMIN - {SETTINGS.code} | {BACKUP_BEGIN.code, BACKUP_END.code}
"""Methods of which the audit trail has a line, as :func:`_is_audited` says."""


# --- what a request needs -----------------------------------------------------------------------------------------


@functools.lru_cache(_KNOWN_MAX)
def _table_of(method: Method[Any, Any]) -> str:
    if method.table is not None:
        return _name(method.table)
    if method is ACTIVITY:  # it names tenants
        return "tenants"
    if method.name.startswith("backup."):
        return "backup"
    return _OWNED if method.name.startswith(f"{_OWNED}.") else "cluster"


def _name(table: Table[Any]) -> str:
    """By which grants name a table."""
    return getattr(table, "ruled_by", "") or table.name


def _text(value: Any) -> str:
    return value if isinstance(value, str) else str(value)


def _part_of(method: Method[Any, Any]) -> str:
    """Which field of an item of this method has the fields of the key; empty: it has them itself."""
    if (part := _PARTS.get(method.code)) is not None:
        return part
    fields = method.item.__struct_fields__
    if method.table.key[0] in fields:
        return ""
    return next((part for part in ("record", "key") if part in fields), "")


@functools.lru_cache(_KNOWN_MAX)
def _scope_of(method: Method[Any, Any]) -> Callable[[Any], Any]:
    """What gives the first field of the key of an item."""
    part, first = _part_of(method), method.table.key[0]
    return attrgetter(f"{part}.{first}" if part else first)


def _of_item(right: str, name: str, key: Sequence[str], item: Any) -> Need:
    second = getattr(item, key[1], "") if len(key) > 1 else ""
    return Need(right, name, _text(getattr(item, key[0])), second if isinstance(second, str) else "")


def _of_body(right: str, name: str, key: Sequence[str], body: Any) -> Need:
    """Of a request without items: its fields say what it is about. An empty one stands for all."""
    scope = getattr(body, key[0], "") if key else ""
    if not scope:
        return Need(right, name, None)
    second = ""
    if len(key) > 1:
        fields = (key[1], f"{key[1]}_prefix", "prefix")
        second = next((getattr(body, field) for field in fields if hasattr(body, field)), "")
    return Need(right, name, scope, second if isinstance(second, str) else "")


def _of_list(right: str, table: PlainTable[Any], body: m.TableList) -> Need:
    """Of a listing of a declared table, by its keys or by an index."""
    name, names = _name(table), (table.index(body.index) or table).names
    given = dict(zip(names, body.fields, strict=False))
    if table.key[0] not in given:
        return Need(right, name, None)
    second: Any = ""
    if len(table.key) > 1:
        at = names.index(table.key[1])
        second = given.get(table.key[1], body.prefix if at == len(given) else "")
    return Need(right, name, _text(given[table.key[0]]), second if isinstance(second, str) else "")


def _of_watch(name: str, wanted: WatchFilter) -> Need:
    """Of one filter of a watch."""
    fields = wanted.fields
    if not fields:
        return Need("read", name, None)
    second: Any = fields[1] if len(fields) > 1 else wanted.prefix
    return Need("read", name, _text(fields[0]), second if isinstance(second, str) else "")


def _of_filter(body: Any) -> Need:
    """Of a topic filter: all topics that begin as it does before its first wildcard."""
    begin = body.filter
    for at, level in enumerate(levels := begin.split("/")):
        if level in ("#", "+"):
            begin = "/".join(levels[:at])
            begin += "/" if at and level == "+" else ""  # "a/#" is about "a", too
            break
    return Need("read", "retained", body.tenant or None, begin)


def _attached(namespace: str, lease: str, key: str) -> tuple[Need, Need]:
    """Of a key that is to go with a lease."""
    return Need("write", "lease", namespace, lease), Need("delete", "kv", namespace, key)


def _of_kv(item: m.KvTransaction) -> Iterator[Need]:
    for compare in item.compares:
        yield Need("read", "kv", item.namespace, compare.key)
    for key in item.reads:
        yield Need("read", "kv", item.namespace, key)
    for operation in (*item.then, *item.otherwise):
        yield Need("delete" if operation.value is None else "write", "kv", item.namespace, operation.key)
        if operation.lease:
            yield from _attached(item.namespace, operation.lease, operation.key)


def _of_transaction(tables: KnownTables, item: m.TableTransaction) -> Iterator[Need]:
    def need(right: str, number: int, key: Sequence[Any]) -> Need:
        name = _name(tables.records(number).table)
        second = key[1] if len(key) > 1 and isinstance(key[1], str) else ""
        return Need(right, name, _text(key[0]) if key else None, second)

    for compare in item.compares:
        yield need("read", compare.table, compare.key)
    for read in item.reads:
        yield need("read", read.table, read.key)
    for operation in (*item.then, *item.otherwise):
        if operation.record is None:
            yield need("delete", operation.table, operation.key)
        else:
            table = tables.records(operation.table).table
            try:
                record = msgspec.msgpack.decode(operation.record, type=table.record)
            except MALFORMED:
                continue  # the transaction is refused for that
            yield need("write", operation.table, [getattr(record, field) for field in table.key])


def _everything(tables: KnownTables, right: str, tenant: str) -> Iterator[Need]:
    """All records of a tenant."""
    for table in {*_SCOPED, *map(_name, tables.of_tenants())}:
        yield Need(right, table, tenant)


def _brokers(method: Method[Any, Any], request: m.Request[Any]) -> Iterable[str]:
    """The brokers for which a request speaks."""
    if request.life is not None:
        yield request.life.broker
    if method.code in _NAMING:
        if request.body.broker or method is not SESSION_DELETE:  # which may be in nobody's name
            yield request.body.broker
    elif method is BROKER_HEARTBEAT:
        yield from dict.fromkeys(beat.broker for beat in request.body.beats)
    elif method.code in _NAMING_ITEMS:
        yield from dict.fromkeys(item.broker for item in request.body.items)


# --- what somebody may ----------------------------------------------------------------------------------------------


class _Denial(NamedTuple):
    """What the trail says of a request that is refused, or of which items are."""

    error: PermissionDeniedError
    """Of the first item."""
    items: int = 0
    """That were asked for."""
    failed: int = 0
    """That are denied."""


class Rights:
    """What one principal may do, as of one state of the roles."""

    def __init__(self, known: KnownAccess, principal: str, own: str) -> None:
        """``own``: the name of the broker whose certificate it has; empty: it has none."""
        binding = known.bindings.get(principal)
        self.denied = binding is not None and binding.denied
        self.roles: list[Given] = [] if binding is None else binding.roles
        self._grants: list[tuple[_Pattern, _Pattern, Grant]] = []
        """The scope of a role as it was given, that of one of its grants, and the grant."""
        if not self.denied:
            for given in self.roles:
                role, scope = known.role(given.role), _pattern(given.scope)
                self._grants += [(scope, _pattern(one.scope), one) for one in (() if role is None else role.grants)]
            if own:
                self._grants.append((_EVERY, _Pattern(own, exact=True), Grant(["own"], [_OWNED])))
        self._named = {table for _, _, grant in self._grants for table in grant.tables}
        self._scopes: dict[tuple[str, str | None, bool, bool], _Scopes] = {}

    def prefixes(self, need: Need, is_scoped: Callable[[str], bool]) -> tuple[str, ...]:
        """With which prefixes the second field of keys may begin; none: nothing is allowed. ``is_scoped``: whether the
        first one of a table is a tenant or a namespace."""
        return self.scopes(need.right, need.table, is_scoped).prefixes(need.scope)

    def scopes(self, right: str, table: str, is_scoped: Callable[[str], bool]) -> _Scopes:
        """The same for each scope."""
        scoped = is_scoped(table)
        # Nothing of what was asked is kept but names of tables that grants have.
        kind = right, table if table in self._named else None, table in OF_THE_CLUSTER, scoped
        scopes = self._scopes.get(kind)
        if scopes is None:
            scopes = self._scopes[kind] = _Scopes()
            for given, granted, grant in self._grants:
                if right in grant.rights and _names(grant, table):
                    if scoped:
                        scopes.add(_both(given, granted), grant.prefix)
                    elif given == _EVERY or table in grant.tables:
                        scopes.add(granted, grant.prefix)
        return scopes

    def allow(self, need: Need, is_scoped: Callable[[str], bool]) -> bool:
        """Whether one of its grants says so."""
        return need.key.startswith(self.prefixes(need, is_scoped))

    def allow_all(self, right: str, table: str, scopes: Iterable[str], is_scoped: Callable[[str], bool]) -> bool:
        """Whether they say so of each of these tenants or namespaces, whatever else the keys are."""
        return all(map(self.scopes(right, table, is_scoped).whole, scopes))


class _Pattern(NamedTuple):
    """Scopes: this one, or all that begin so."""

    text: str
    exact: bool


_EVERY: Final = _Pattern("", exact=False)


def _pattern(scope: str) -> _Pattern:
    return _Pattern(scope[:-1], exact=False) if scope.endswith(ALL) else _Pattern(scope, exact=True)


def _covers(pattern: _Pattern, scope: str) -> bool:
    return scope == pattern.text if pattern.exact else scope.startswith(pattern.text)


def _both(one: _Pattern, other: _Pattern) -> _Pattern | None:
    """The scopes that both stand for; None: there are none."""
    if one.exact or (not other.exact and len(one.text) > len(other.text)):
        one, other = other, one
    return other if _covers(one, other.text) else None


class _Scopes:
    """With which prefixes the second fields of keys may begin, by their scope."""

    def __init__(self) -> None:
        self._exact: dict[str, tuple[str, ...]] = {}
        self._begins: dict[str, tuple[str, ...]] = {}
        self._lengths: set[int] = set()  # of these beginnings
        self._whole: dict[str, bool] = {}

    def add(self, pattern: _Pattern | None, prefix: str) -> None:
        if pattern is None:
            return
        if not pattern.exact:
            self._lengths.add(len(pattern.text))
        of = self._exact if pattern.exact else self._begins
        of[pattern.text] = (*of.get(pattern.text, ()), prefix)

    def prefixes(self, scope: str | None) -> tuple[str, ...]:
        """None: of all records of a table."""
        if scope is None:
            return self._begins.get("", ())
        found = self._exact.get(scope, ())
        for length in self._lengths:
            found += self._begins.get(scope[:length], ())
        return found

    def whole(self, scope: str) -> bool:
        """Whether the second fields may begin with anything. Runs for each request."""
        found = self._whole.get(scope)
        if found is None:
            if len(self._whole) == _KNOWN_MAX:  # whoever asks may name what it likes
                self._whole.clear()
            found = self._whole[scope] = "" in self.prefixes(scope)
        return found


def _names(grant: Grant, table: str) -> bool:
    if not grant.tables:
        return table not in OF_THE_CLUSTER
    return table in grant.tables or ALL in grant.tables


class Permissions:
    """Decides for one node."""

    def __init__(
        self,
        config: Config,
        groups: Hosted,
        machines: Machines,
        audit: AuditQueue,
        quotas: Quotas,
        level: Callable[[Done], None],
    ) -> None:
        """``level``: asks how far ``metadata-0`` is committed."""
        self.known = machines.access
        self.quotas = quotas
        """How much of it."""
        self.enforced = config.security.authorization
        """Whether what is not allowed is refused."""
        self._node_id = config.node_id
        self._groups = groups
        self._audit = audit
        self.tables = machines.tables
        """The declared ones."""
        self._administrators = frozenset(config.security.administrators)
        self._rights: dict[Principal, Rights] = {}
        self._at = -1
        self._bound: dict[str, str] = {}  # broker -> the certificate that it is bound to; empty: none
        self._bound_at: tuple[Machine | None, int] = None, 0  # the state in which that is so
        self._level = level
        self._unheard: dict[m.Owner, int] = {}  # lives that nobody has heard of -> the index that a copy must have

    # --- requests -----------------------------------------------------------------------------------------------

    def begin(
        self,
        method: Method[Any, Any],
        request: m.Request[Any],
        wrong: Refused | None,
        source: Source,
        done: Done,
        size: int,
    ) -> tuple[Any, Refused | None, Done]:
        """What of a request of so many bytes is allowed, as :meth:`admit` says, and what takes the answer. ``wrong``:
        items that are refused already. Raises QuotaError instead where too much is asked for in vain."""
        body, refused = request.body, wrong
        if source.principal is not None:
            try:
                body, refused, denial = self.admit(method, request, wrong, source)
            except PermissionDeniedError:
                self.quotas.denied(method, source, body, size)
                raise
            if denial is not None:
                done = _told(done, functools.partial(self._note_denied, method, source, denial))
            if self.enforced and not method.mutates:
                done = self._allowed_still(method, request, wrong, refused, source, done)
        if _is_audited(method, body):
            done = self._audited(method, request.body, done, source)
        return body, refused, done

    def admit(
        self,
        method: Method[Any, Any],
        request: m.Request[Any],
        refused: Refused | None,
        source: Source,
    ) -> tuple[Any, Refused | None, _Denial | None]:
        """The body of a request with those of its items that are allowed, and the others among those that are refused;
        the third is to be noted. Raises PermissionDeniedError, noted already, if nothing is allowed."""
        principal = source.principal
        if principal is None:
            return request.body, refused, None
        brokers = [*_brokers(method, request)]
        try:
            if not self.enforced or method.code in _FREE or self.administers(principal):
                for broker in brokers:
                    self._check_bound(broker, principal)
                return request.body, refused, None
            rights = self._rights_of(principal)
            for broker in brokers:
                self._check(rights, Need("own", _OWNED, broker), principal)
                self._check_bound(broker, principal)
            for need in self._of_all(method, request.body, rights):
                self._check(rights, need, principal)
            if method.item is None or not request.body.items:
                return request.body, refused, None
            return self._items(method, request.body, refused, rights, source)
        except PermissionDeniedError as error:
            items = 0 if method.item is None else len(request.body.items)
            self._note_denied(method, source, _Denial(error, items, items))
            raise

    def _allowed_still(
        self,
        method: Method[Any, Any],
        request: m.Request[Any],
        wrong: Refused | None,
        refused: Refused | None,
        source: Source,
        done: Done,
    ) -> Done:
        """What takes the answer to a read that was admitted and may have to wait: it is not told what may not be read
        any more. ``wrong`` was given to :meth:`admit`, ``refused`` came from it."""
        known = self.known.changes

        def answered(result: bytes | MetadError) -> None:
            if self.known.changes != known and not isinstance(result, MetadError):
                try:
                    _, again, denial = self.admit(method, request, wrong, source)
                    if denial is not None and len(again or ()) > len(refused or ()):
                        self._note_denied(method, source, denial)
                        raise PermissionDeniedError("what was asked for may not be read any more: ask again")
                except MetadError as error:
                    result = error
            done(result)

        return answered

    def _of_all(self, method: Method[Any, Any], body: Any, rights: Rights) -> Iterator[Need]:
        """What a request needs as a whole of somebody with these rights."""
        right, name = right_of(method), _table_of(method)
        if right == "admin" and method.table in (ROLE, PRINCIPAL):
            yield Need(right, name, None)  # who may write some of them may give itself everything
        elif method is SESSION_END_TENANT:
            yield Need(right, name, body.tenant)
            if body.retained:
                yield Need(right, "retained", body.tenant)
        elif method in (TENANTS_END, TENANTS_KEEP):
            yield from _everything(self.tables, right, body.tenant)
        elif method.table is TENANTS:
            of_all, tenant = Need("read", TENANTS.name, None), getattr(body, "tenant", None)
            # What one has is for operators, and for whoever may read all of it.
            if tenant is None or rights.allow(of_all, self._is_scoped):
                yield of_all
            else:
                yield from _everything(self.tables, "read", tenant)
        elif method is BROKER_GET:
            yield from (Need(right, name, broker) for broker in body.brokers)
        elif method is BROKER_FENCE:
            yield Need(right, name, body.broker)
        elif method is RETAINED_MATCH:
            yield _of_filter(body)
        elif method is SESSION_TAKEOVER:
            shown = ([name] if body.restore else []) + (["subscription", "inflight"] if body.restore_parts else [])
            if shown:
                tenants = {item.tenant for item in body.items}
                for table in shown:
                    if not rights.allow_all("read", table, tenants, self._is_scoped):
                        for item in body.items:
                            yield Need("read", table, item.tenant, item.client_id)
        elif method is LEASE_KEYS:
            yield Need("read", "kv", body.namespace)
            yield _of_body(right, name, method.table.key, body)
        elif method.item is None and right != "own":
            if method is WILL_CLAIM:
                yield _of_body("read", name, method.table.key, body)  # it shows what it claims
            if isinstance(method.table, PlainTable):
                yield _of_list(right, method.table, body)
            else:
                yield _of_body(right, name, () if method.table is None else method.table.key, body)

    def _of_item(self, method: Method[Any, Any], body: Any) -> Callable[[Any], Iterable[Need]]:
        right, name = right_of(method), _table_of(method)
        if method.code == KV_TRANSACT.code:
            return _of_kv
        if method.code == TABLE_TRANSACT.code:
            return lambda item: _of_transaction(self.tables, item)
        key, part = method.table.key, _part_of(method)
        if part:
            return lambda item: (_of_item(right, name, key, getattr(item, part)),)
        if method is KV_PUT and body.lease:
            return lambda item: (_of_item(right, name, key, item), *_attached(item.namespace, body.lease, item.key))
        if method in (LEASE_ATTACH, LEASE_DETACH):
            return lambda item: (
                _of_item(right, name, key, item),
                Need("delete", "kv", item.namespace, item.key),
            )
        if method is LEASE_REVOKE:
            return lambda item: (_of_item(right, name, key, item), Need("delete", "kv", item.namespace))
        return lambda item: (_of_item(right, name, key, item),)

    def _items(
        self,
        method: Method[Any, Any],
        body: Any,
        refused: Refused | None,
        rights: Rights,
        source: Source,
    ) -> tuple[Any, Refused | None, _Denial | None]:
        beside = method.code in _BESIDE or (method is KV_PUT and body.lease)
        if not beside and self._all_may(method, body.items, rights):
            return body, refused, None
        needs, denied = self._of_item(method, body), None
        reasons: dict[int, str | MetadError] = {}
        allowed: set[tuple[str, str, str | None]] = set()  # whatever the second field
        for position, item in enumerate(body.items):
            for need in needs(item):
                if need[:3] in allowed:
                    continue
                prefixes = rights.prefixes(need, self._is_scoped)
                if "" in prefixes:
                    allowed.add(need[:3])
                elif not need.key.startswith(prefixes):
                    assert source.principal is not None
                    reasons[position] = one = _denied(source.principal, need)
                    denied = denied or one
                    break
        if denied is None:
            return body, refused, None
        if refused is None and len(reasons) == len(body.items):
            raise denied  # nothing of it goes on to the group
        return *narrowed(body, refused, reasons), _Denial(denied, len(body.items), len(reasons))

    def _all_may(self, method: Method[Any, Any], items: Sequence[Any], rights: Rights) -> bool:
        """Whether all of the tenants or namespaces of these items are allowed, whatever else their keys are. Runs once
        for each batch."""
        scopes = {*map(_scope_of(method), items)}
        return rights.allow_all(right_of(method), _table_of(method), map(_text, scopes), self._is_scoped)

    def scopes(self, method: Method[Any, Any], body: Any) -> list[str]:
        """The tenant or namespace of each item, or of a body without items; none where records have none, or all are
        meant."""
        if method.code == TABLE_TRANSACT.code:
            needs = (_of_transaction(self.tables, item) for item in body.items)
            return [next((one.scope for one in of if one.scope and self._is_scoped(one.table)), "") for of in needs]
        first = "" if method.table is None or not method.table.key else method.table.key[0]
        if first not in SCOPES:
            return []
        if method.item is None:
            return [scope] if (scope := getattr(body, first, "")) else []
        part = _part_of(method)
        return [getattr(getattr(item, part) if part else item, first, "") for item in body.items]

    def _check(self, rights: Rights, need: Need, principal: Principal) -> None:
        if not rights.allow(need, self._is_scoped):
            raise _denied(principal, need)

    def _is_scoped(self, name: str) -> bool:
        """Whether the keys of a table begin with a tenant or a namespace."""
        if name in TABLES:
            return name in _SCOPED
        table = self.tables.watched(name, 0)
        return table is not None and is_scoped(table)

    def no_administrator(self, method: Method[Any, Any], source: Source | None) -> PermissionDeniedError:
        """The error for a request that is for administrators, where roles do not count."""
        error = PermissionDeniedError(f"{method.name} is for administrators")
        if source is not None:
            self._note_denied(method, source, _Denial(error))
        return error

    def _note_denied(self, method: Method[Any, Any], source: Source, denial: _Denial) -> None:
        error, items, failed = denial
        event(
            log_events.CLIENT_DENIED,
            who=source.holder,
            host=source.host,
            method=method.name,
            detail=error.message,
        )
        names, outcome = error.message, error.name
        self._audit.refused(
            line_of("refused", self._node_id, source, method, names, items=items, failed=failed, outcome=outcome)
        )

    def _audited(self, method: Method[Any, Any], body: Any, done: Done, source: Source) -> Done:
        """What takes the answer to an admitted request of an administrator: it is logged, and noted, who has asked for
        what, and what came of it."""
        items = [] if method.item is None else body.items
        names = [_name_of(method, one) for one in (items[:_NAMES_LOGGED] or [body])]

        def answered(result: bytes | MetadError) -> None:
            failed = 0
            if isinstance(result, NotLeaderError):  # it asks another node
                done(result)
                return
            if not isinstance(result, MetadError):
                failed = len(getattr(method.decode_reply(result), "errors", ()))
            said, outcome = ", ".join(names), result.name if isinstance(result, MetadError) else "done"
            event(
                log_events.AUDITED,
                who=source.holder,
                host=source.host,
                method=method.name,
                names=said,
                items=len(items),
                failed=failed,
                outcome=outcome,
            )
            kind: AuditKind = "life" if method is BROKER_FENCE else "admin"
            self._audit.note(
                line_of(kind, self._node_id, source, method, said, items=len(items), failed=failed, outcome=outcome)
            )
            done(result)

        return answered

    # --- watches ------------------------------------------------------------------------------------------------

    def check_watch(self, filters: Sequence[WatchFilter], source: Source | None) -> None:
        """Raise PermissionDeniedError where a watch would show what may not be read."""
        principal = None if source is None else source.principal
        if source is None or principal is None or not self.enforced or self.administers(principal):
            return
        try:
            rights = self._rights_of(principal)
            for one in filters:
                table = TABLES.get(one.table) or self.tables.watched(one.table, one.number)
                self._check(rights, _of_watch(one.table if table is None else _name(table), one), principal)
        except PermissionDeniedError as error:
            self._note_denied(WATCH_OPEN, source, _Denial(error))
            raise

    # --- who may what -------------------------------------------------------------------------------------------

    def rights(self, principal: Principal) -> Rights:
        """What a principal may, as this node knows."""
        if self._at != self.known.changes or len(self._rights) >= _KNOWN_MAX:
            self._rights, self._at = {}, self.known.changes
        found = self._rights.get(principal)
        if found is None:
            own = principal.name if principal.role is Role.BROKER else ""
            found = self._rights[principal] = Rights(self.known, principal.uri, own)
        return found

    def _rights_of(self, principal: Principal) -> Rights:
        """Raises PermissionDeniedError where it is denied everything."""
        rights = self.rights(principal)
        if rights.denied:
            raise PermissionDeniedError(f"{principal.uri} is denied everything")
        return rights

    def administers(self, principal: Principal | None) -> bool:
        """Whether a principal may do everything: where nobody is checked, it may."""
        return principal is None or may_administer(principal, self._administrators)

    def denies(self, principal: Principal | None) -> bool:
        """Whether a principal may do nothing at all."""
        if principal is None or not self.enforced or self.administers(principal):
            return False
        return self.rights(principal).denied

    def may(self, body: May, source: Source | None) -> MayReply:
        """The answer to ``access.may``. Raises PermissionDeniedError, InvalidRequestError."""
        asking = None if source is None else source.principal
        if asking is None and not body.principal:
            return MayReply("", False, True, False, [], [True] * len(body.wishes))
        about = asking
        if body.principal and (asking is None or body.principal != asking.uri):
            if asking is not None and self.enforced and not self.administers(asking):
                self._check(self.rights(asking), Need("read", "principal", None), asking)
            if (about := principal_named(body.principal)) is None:
                raise InvalidRequestError(f"{body.principal!r} is no principal: metad://client/NAME is one")
        assert about is not None
        rights, administers = self.rights(about), self.administers(about)
        allowed = [
            administers
            or (
                rights.allow(Need(one.right, one.table, one.scope or None, one.key), self._is_scoped)
                if self.enforced
                else one.right != "admin"
            )
            for one in body.wishes
        ]
        return MayReply(about.uri, self.enforced, administers, rights.denied, rights.roles, allowed)

    # --- lives ---------------------------------------------------------------------------------------------------

    def vouch(self, source: Source | None) -> Vouch | None:
        """What is asked about the lives in whose names somebody writes; None: whatever life it names, it has."""
        if not self.enforced or source is None or self.administers(source.principal):
            return None
        return self._vouched

    def _vouched(self, life: m.Owner) -> MetadError | None:
        """Why a life may not write that a group does not know: a registration has not given it, or it is over. This
        node's own copy of ``metadata-0`` decides. While that may lack the registration, the error is one to come back
        after."""
        driver = self._groups.drivers[METADATA]
        known = read_broker(driver.machine.reader.engine, life.broker)
        if known is not None and known.broker_epoch == life.broker_epoch and known.state in LIVE:
            return None
        if not driver.group.may_read() and len(life.broker) <= PRINCIPAL_BYTES_MAX:
            if self._asked(life) > driver.machine.applied:
                return OverloadedError(
                    f"this node has not heard yet of epoch {life.broker_epoch} of broker {life.broker!r}",
                    retry_after_ms=_AGAIN_MS,
                    retry_jitter_ms=_AGAIN_MS // 2,
                )
            del self._unheard[life]
        return FencedError(
            f"epoch {life.broker_epoch} of broker {life.broker[:256]!r} is none that a registration gave and that "
            "lives: with authorization, nothing is written in its name",
            current=None if known is None else known.broker_epoch,
        )

    def _asked(self, life: m.Owner) -> int:
        """The index up to which a copy has all registrations that were answered before this life was named first."""
        found = self._unheard.get(life)
        if found is not None:
            return found

        def answered(result: bytes | MetadError) -> None:
            if isinstance(result, MetadError):
                self._unheard.pop(life, None)  # who comes again asks again
            elif life in self._unheard:
                self._unheard[life] = READ_INDEX.decode_reply(result).index

        if len(self._unheard) >= _KNOWN_MAX:
            self._unheard.clear()
        self._unheard[life] = _UNANSWERED
        self._level(answered)
        return self._unheard.get(life, _UNANSWERED)

    # --- brokers' certificates ----------------------------------------------------------------------------------

    def _check_bound(self, broker: str, principal: Principal) -> None:
        """Raise PermissionDeniedError where a client may not speak for a broker."""
        if principal.role is Role.BROKER and principal.name != broker:
            raise PermissionDeniedError(f"{principal.uri} speaks for no other broker: not for {broker[:256]!r}")
        bound = self._certificate_of(broker)
        if bound and bound != principal.uri:
            raise PermissionDeniedError(
                f"broker {broker!r} is bound to the certificate {bound}: {principal.uri} may not speak for it"
            )

    def _certificate_of(self, broker: str) -> str:
        machine = self._groups.drivers[METADATA].machine
        at = machine, machine.applied
        if at != self._bound_at or len(self._bound) >= _KNOWN_MAX:
            self._bound, self._bound_at = {}, at
        bound = self._bound.get(broker)
        if bound is None:
            holder = registered_by(machine.reader.engine, broker)
            bound = holder if holder.startswith(f"metad://{Role.BROKER.value}/") else ""
            if len(broker) <= PRINCIPAL_BYTES_MAX:
                self._bound[broker] = bound
        return bound


def _told(done: Done, note: Callable[[], None]) -> Done:
    """What takes the answer to a request of which items are denied: with that they are refused. Whoever has an error
    instead asks again, perhaps another node."""

    def answered(result: bytes | MetadError) -> None:
        if not isinstance(result, MetadError):
            note()
        done(result)

    return answered


def _denied(principal: Principal, need: Need) -> PermissionDeniedError:
    return PermissionDeniedError(f"{principal.uri} may not {need}")


def _is_audited(method: Method[Any, Any], body: Any) -> bool:
    """Whether the trail says who has asked for this. Of a restore, and of a tenant that moves, it says when that begins
    and ends, not each batch; of a backup when it begins, and when it is complete."""
    if method in (GROUP_RESTORE, GROUP_MOVE_TENANT):
        return body.step not in ("check", "rows", "look")
    if method in (GROUP_PUT_TENANT, GROUP_COPY_TENANT):
        return False
    if method is BACKUP_END:
        return bool(body.backup)
    return method.code in AUDITED


def _name_of(method: Method[Any, Any], item: Any) -> str:
    """What an item, or a request without items, is about, for people."""
    if method is BACKUP_END:
        return str(item.backup)
    fields = () if method.table is None else method.table.key
    if not fields or not hasattr(item, fields[0]):
        fields = item.__struct_fields__
    values = [getattr(item, field, "") for field in fields]
    said = [str(value) for value in values if not isinstance(value, list | bytes | dict)]
    return "/".join(said)[:PRINCIPAL_BYTES_MAX]


_SCOPED: Final = frozenset(name for name, table in TABLES.items() if is_scoped(table))
