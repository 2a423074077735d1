"""Quotas: their rows in ``metadata-0``, what every node knows of them by its copy, and which tenants have no room left.

What is stored is counted by chores (:mod:`metad.node.chores.tenants`), and refused by the leaders of groups: nothing of
it is replicated, as nothing is of the room on their disks.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, NamedTuple

from metad_wire import methods
from metad_wire.errors import InvalidItemError, MetadError, NoRoomError, NotFoundError, QuotaExceededError
from metad_wire.tables import tenants as t
from metad_wire.tables.access import PRINCIPAL_BYTES_MAX
from metad_wire.tables.tenants import EACH, OF_PRINCIPAL, OF_TENANT, QUOTA, Quota
from metad_wire.transport.credentials import principal_named

from ...config import Config
from ..core.part import PartContext
from ..core.verb import Verb
from ..core.view import View
from .named_rows import KnownRows, NamedRows

_TOLD_S: Final = 300.0
"""What a node has told of a group counts for so long."""
_ROWS = NamedRows(QUOTA, Quota, t.QUOTAS_MAX)


class Held(NamedTuple):
    """What a tenant has."""

    sessions: int
    records: int
    bytes: int

    def plus(self, other: Held) -> Held:
        """Add what another has."""
        return Held(*(one + more for one, more in zip(self, other, strict=True)))

    def minus(self, other: Held) -> Held:
        """Without the other; nothing is less than nothing."""
        return Held(*(max(0, one - less) for one, less in zip(self, other, strict=True)))


NOTHING: Final = Held(0, 0, 0)


class KnownQuotas:
    """The quotas as one node knows them, and the tenants that may store no more."""

    def __init__(self, config: Config | None = None) -> None:
        self.by_subject: dict[str, Quota] = {}
        self.sessions_left: dict[str, int] = {}
        """By tenant whose sessions are limited: how many more it may have."""
        self.full: dict[str, str] = {}
        """Tenants that have as many records, or bytes, as they may have, and why."""
        self.totals: dict[str, Held] = {}
        """By tenant: what it has in the whole cluster, as far as it is counted."""
        self.limited: dict[str, Quota] = {}
        """By tenant, those whose records are limited."""
        self._here: dict[str, dict[str, Held]] = {}  # by tenant and group: what the groups have that this node leads
        self._elsewhere: dict[str, Held] = {}  # by tenant: what the others have

    def know(self, subject: str, quota: Quota | None) -> None:
        """A subject has this quota now; None: it has none."""
        self.by_subject.pop(subject, None)
        tenant = subject.removeprefix(OF_TENANT) if subject.startswith(OF_TENANT) else ""
        self.limited.pop(tenant, None)
        if quota is not None:
            self.by_subject[subject] = quota
            if _limits_records(quota):
                self.limited[tenant] = quota
        self._settle(tenant)

    def of(self, kind: str, name: str) -> Quota | None:
        """The quota of a tenant or a principal: its own, or that of each."""
        return self.by_subject.get(kind + name) or self.by_subject.get(kind + EACH)

    def count(self, group: str, tenant: str, held: Held) -> None:
        """A group that this node leads has so much of a tenant."""
        self._here.setdefault(tenant, {})[group] = held
        self._settle(tenant)

    def begun(self, sessions: dict[str, int]) -> None:
        """So many sessions of tenants begin, and are not counted yet."""
        for tenant, count in sessions.items():
            if tenant in self.sessions_left:
                self.sessions_left[tenant] -= count

    def forget(self, group: str) -> None:
        """This node leads a group no more."""
        for tenant, groups in self._here.items():
            if groups.pop(group, None) is not None:
                self._settle(tenant)

    def report(self, node_id: str) -> t.QuotaCounts | None:
        """What the groups have that this node leads; None if nobody's records are limited."""
        if not self.limited:
            return None
        here = [(tenant, *one) for tenant, groups in self._here.items() for one in groups.items()]
        return t.QuotaCounts(node_id, [t.TenantCount(tenant, group, *held) for tenant, group, held in here])

    def heard(self, told: t.QuotaCounts, totals: t.QuotaTotals) -> None:
        """All groups together have so much, with what was ``told`` of those of this node."""
        own: dict[str, Held] = {}
        for one in told.counts:
            own[one.tenant] = own.get(one.tenant, NOTHING).plus(Held(one.sessions, one.records, one.bytes))
        self._elsewhere = {
            one.tenant: Held(one.sessions, one.records, one.bytes).minus(own.get(one.tenant, NOTHING))
            for one in totals.counts
        }
        for tenant in self.limited:
            self._settle(tenant)

    def _settle(self, tenant: str) -> None:
        """Say anew what a tenant has, and may have."""
        for known in (self.totals, self.sessions_left, self.full):
            known.pop(tenant, None)
        quota = self.limited.get(tenant)
        if quota is None:
            self._here.pop(tenant, None)
            return
        total = self._elsewhere.get(tenant, NOTHING)
        for held in self._here.get(tenant, {}).values():
            total = total.plus(held)
        self.totals[tenant] = total
        if quota.sessions is not None:
            self.sessions_left[tenant] = quota.sessions - total.sessions
        for what in ("records", "bytes"):
            most, has = getattr(quota, what), getattr(total, what)
            if most is not None and has >= most:
                self.full[tenant] = f"tenant {tenant[:256]!r} has {has} {what}, and may have {most}: delete some"


class TenantTotals:
    """What the leaders of groups have told the leader of ``metadata-0``, who remembers nothing of it in the log."""

    def __init__(self) -> None:
        self._told: dict[tuple[str, str], tuple[float, Held]] = {}

    def add(self, body: t.QuotaCounts, now_s: float) -> t.QuotaTotals:
        """Take in what a node tells, and say what all have."""
        for one in body.counts:
            self._told[one.tenant, one.group] = now_s, Held(one.sessions, one.records, one.bytes)
        self._told = {key: told for key, told in self._told.items() if told[0] > now_s - _TOLD_S}
        totals: dict[str, Held] = {}
        for (tenant, _), (_, held) in self._told.items():
            totals[tenant] = totals.get(tenant, NOTHING).plus(held)
        return t.QuotaTotals([t.TenantCount(tenant, "", *held) for tenant, held in totals.items()])


class Quotas(KnownRows):
    """Tells the node of quotas."""

    rows = (_ROWS.row,)
    named = _ROWS

    def __init__(self, context: PartContext) -> None:
        super().__init__(context)
        self.shared: KnownQuotas = context.memory.shared(KnownQuotas)

    def known(self) -> Iterable[str]:
        return self.shared.by_subject

    def know(self, name: str, record: Any) -> None:
        self.shared.know(name, record)


def may_refuse(view: View) -> bool:
    """Whether :func:`refusal` may say no to anybody: one look for a batch."""
    return bool(view.no_room or view.parts[Quotas].shared.full)


def refusal(view: View, tenant: str) -> MetadError | None:
    """Why nothing more may be stored for a tenant: the disk has no room, or the tenant has all that it may have. For
    verbs that find out by item whether they store more."""
    if view.no_room:
        return NoRoomError(view.no_room)
    why = view.parts[Quotas].shared.full.get(tenant)
    return None if why is None else QuotaExceededError(why)


def _limits_records(quota: Quota) -> bool:
    return (quota.sessions, quota.records, quota.bytes) != (None, None, None)


def _put(view: View, item: Quota, known: Quota | None) -> Quota:
    kind = next((kind for kind in (OF_TENANT, OF_PRINCIPAL) if item.subject.startswith(kind)), "")
    name = item.subject.removeprefix(kind)
    if not kind or not name:
        raise InvalidItemError(f"subject {item.subject[:256]!r}: expected tenant/NAME or principal/URI")
    if (size := len(name.encode())) > PRINCIPAL_BYTES_MAX:
        raise InvalidItemError(f"subject: a name of {size} bytes, {PRINCIPAL_BYTES_MAX} are allowed")
    if kind == OF_PRINCIPAL and name != EACH:
        found = principal_named(name)
        if found is None or found.uri != name:
            raise InvalidItemError(f"{name[:256]!r} is no principal: metad://client/NAME is one")
    if _limits_records(item) and (kind != OF_TENANT or name == EACH):
        raise InvalidItemError("sessions, records, bytes: only of a tenant that is named")
    if (item.connections, item.watches) != (None, None) and kind != OF_PRINCIPAL:
        raise InvalidItemError("connections, watches: only of principals")
    return item


def _delete(view: View, item: t.QuotaKey, known: Quota | None) -> None:
    if known is None:
        raise NotFoundError(f"{item.subject[:256]!r} has no quota")


VERBS: tuple[Verb[Any, Any], ...] = (
    _ROWS.writes(methods.QUOTA_PUT, _put, grows=True),
    _ROWS.writes(methods.QUOTA_DELETE, _delete),
    _ROWS.lists(methods.QUOTA_LIST),
)
