"""Plans: their rows in ``metadata-0``, and what every node knows of them by its copy of it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from metad_wire import methods
from metad_wire.errors import ConflictError, InvalidItemError, NotFoundError
from metad_wire.tables import plan as w
from metad_wire.tables.broker import BROKER
from metad_wire.tables.plan import PLAN, Plan

from ...config import Config
from ...storage import keys
from ..cluster.named_rows import GROUP, KnownRows, NamedRows
from ..core.part import PartContext
from ..core.verb import Verb
from ..core.view import View

_PLANS = NamedRows(PLAN, Plan, w.PLANS_MAX)
_BROKERS = keys.table_prefix(GROUP, BROKER.rows["record"])


class KnownPlans:
    """The plans as one node knows them."""

    def __init__(self, config: Config | None = None) -> None:
        self.all: dict[str, Plan] = {}
        self._drained: frozenset[str] = frozenset()

    def know(self, name: str, plan: Plan | None) -> None:
        """A plan is so now; None: it is no more."""
        if plan is None:
            self.all.pop(name, None)
        else:
            self.all[name] = plan
        drains = [one for one in self.all.values() if one.rule == "drain" and one.state != "cancelled"]
        self._drained = frozenset(broker for one in drains for broker in one.brokers)

    def drains(self, broker: str) -> bool:
        """Whether a plan drains this broker, or has."""
        return broker in self._drained

    def cancelled(self, name: str) -> bool:
        """Whether a plan was cancelled. Not one that this node does not know: it may be newer than its copy."""
        return (plan := self.all.get(name)) is not None and plan.state == "cancelled"


class Plans(KnownRows):
    """Tells the node of the plans in entries of ``metadata-0``."""

    rows = (_PLANS.row,)
    named = _PLANS

    def __init__(self, context: PartContext) -> None:
        super().__init__(context)
        self.shared: KnownPlans = context.memory.shared(KnownPlans)

    def known(self) -> Iterable[str]:
        return self.shared.all

    def know(self, name: str, record: Plan | None) -> None:
        self.shared.know(name, record)


def _create(view: View, item: w.NewPlan, known: Plan | None) -> Plan | None:
    if known is not None:
        raise ConflictError(f"there is a plan {item.plan!r}, which is {known.state}")
    if not item.plan:
        raise InvalidItemError("plan: it has no name")
    if (item.rule == "rebalance") == bool(item.brokers):
        raise InvalidItemError(f"brokers: {'none are named' if not item.brokers else 'a rebalance is of all'}")
    brokers = [*dict.fromkeys(item.brokers)]
    for broker in brokers:
        if view.get(_BROKERS + keys.text(broker)) is None:
            raise NotFoundError(f"there is no broker {broker!r}")
    return Plan(item.plan, item.rule, brokers, item.moves, item.throttle_bytes, "running", view.now_ms, view.now_ms)


def _set(view: View, item: w.PlanState, known: Plan | None) -> Plan | None:
    known = _there(item.plan, known)
    if known.state in ("cancelled", "done"):
        raise ConflictError(f"plan {item.plan!r} has ended: it is {known.state}")
    return msgspec.structs.replace(known, state=item.state, changed_ms=view.now_ms, idle=[])


def _delete(view: View, item: w.PlanKey, known: Plan | None) -> Plan | None:
    known = _there(item.plan, known)
    if known.state not in ("cancelled", "done"):
        raise ConflictError(f"plan {item.plan!r} is {known.state}: cancel it first")
    return None


def _progress(view: View, item: w.GroupProgress, known: Plan | None) -> Plan | None:
    """It is done once all groups, by the map that the last of them knows, had nothing left since its state changed."""
    known = _there(item.plan, known)
    idle = {*known.idle} - {item.group} | ({item.group} if item.idle else set())
    done = known.state == "running" and idle >= {*item.map_groups} != set()
    return msgspec.structs.replace(
        known,
        begun=known.begun + item.begun,
        idle=sorted(idle),
        state="done" if done else known.state,
        changed_ms=view.now_ms if done else known.changed_ms,
    )


def _there(name: str, known: Plan | None) -> Plan:
    if known is None:
        raise NotFoundError(f"there is no plan {name!r}")
    return known


VERBS: tuple[Verb[Any, Any], ...] = (
    _PLANS.writes(methods.PLAN_CREATE, _create, grows=True),
    _PLANS.writes(methods.PLAN_SET, _set),
    _PLANS.writes(methods.PLAN_DELETE, _delete),
    _PLANS.writes(methods.PLAN_PROGRESS, _progress),
    _PLANS.gets(methods.PLAN_GET),
    _PLANS.lists(methods.PLAN_LIST),
)
