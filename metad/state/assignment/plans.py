"""Plans: their rows in ``metadata-0``, and what every node knows of them by its copy of it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final

import msgspec

from metad_wire import messages as m
from metad_wire import methods
from metad_wire.cluster import METADATA
from metad_wire.errors import ConflictError, InvalidItemError, MetadError, NotFoundError, QuotaExceededError
from metad_wire.methods import encode
from metad_wire.tables import plan as w
from metad_wire.tables.plan import PLAN, Plan

from ...config import Config
from ...storage import keys
from ..core.part import Origin, PartContext, StatePart, Writes
from ..core.verb import Command, Reader, Verb, read_keys, read_list, written
from ..core.view import View

_ROW: Final = PLAN.rows["plan"]
_GROUP: Final = keys.group_prefix(METADATA)
_PREFIX: Final = keys.table_prefix(_GROUP, _ROW)
_decode = msgspec.msgpack.Decoder(Plan).decode


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


class Plans(StatePart):
    """Tells the node of the plans in entries of ``metadata-0``."""

    rows = (_ROW,)

    def __init__(self, context: PartContext) -> None:
        self.shared: KnownPlans = context.memory.shared(KnownPlans)
        self._engine = context.engine
        self._is_metadata = context.group == _GROUP

    def load(self) -> None:
        if self._is_metadata:
            for name in [*self.shared.all]:
                self.shared.know(name, None)
            for key, value in self._engine.scan(_PREFIX, keys.after_prefix(_PREFIX), w.PLANS_MAX):
                self.shared.know(_name(key), _decode(value))

    def stage(self, index: int, origin: Origin, writes: Writes) -> None:
        for key, value in writes.items():
            self.shared.know(_name(key), None if value is None else _decode(value))


def _name(key: bytes) -> str:
    (name,) = PLAN.fields_of(key[len(_PREFIX) :], 1)
    return str(name)


Step = Callable[[View, Any, Plan | None], Plan | None]


def _create(view: View, item: w.NewPlan, known: Plan | None) -> Plan | None:
    if known is not None:
        raise ConflictError(f"there is a plan {item.plan!r}, which is {known.state}")
    if (item.rule == "rebalance") == bool(item.brokers):
        raise InvalidItemError(f"brokers: {'none are named' if not item.brokers else 'a rebalance is of all'}")
    if not item.plan or len(view.keys_under(_ROW, _PREFIX, w.PLANS_MAX)) >= w.PLANS_MAX:
        raise QuotaExceededError(f"there are {w.PLANS_MAX} plans: delete those that have ended")
    brokers = [*dict.fromkeys(item.brokers)]
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


def _evaluate(step: Step, view: View, command: Command[m.Items[Any]]) -> m.WriteReply:
    errors: list[m.ItemError] = []
    writes = view.writes_of(_ROW)
    for position, item in enumerate(command.body.items):
        key = _PREFIX + keys.text(item.plan)
        stored = view.get(key)
        known = None if stored is None else _decode(stored)
        try:
            changed = step(view, item, known)
        except MetadError as error:
            errors.append(m.ItemError(position, error.code, error.message))
            continue
        if changed is None or changed != known:
            writes[key] = None if changed is None else encode(changed)
    return written(view, errors)


def _read(reader: Reader, command: Command[m.Get[w.PlanKey]]) -> m.GetReply[Any]:
    return read_keys(reader, command, [_PREFIX + keys.text(item.plan) for item in command.body.items])


VERBS: tuple[Verb[Any, Any], ...] = (
    Verb(methods.PLAN_CREATE, PLAN, evaluate=partial(_evaluate, _create)),
    Verb(methods.PLAN_SET, PLAN, evaluate=partial(_evaluate, _set), grows=False),
    Verb(methods.PLAN_DELETE, PLAN, evaluate=partial(_evaluate, _delete), grows=False),
    Verb(methods.PLAN_PROGRESS, PLAN, evaluate=partial(_evaluate, _progress), grows=False),
    Verb(methods.PLAN_GET, PLAN, read=_read),
    Verb(methods.PLAN_LIST, PLAN, read=partial(read_list, row=_ROW)),
)
