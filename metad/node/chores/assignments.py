"""Drives assignment in the groups of kind ``metadata`` that this node leads: it finds partitions that something may
have to be decided about, and names them in an order. What is decided, if anything, is decided when the order is
evaluated.

It finds them in three places, and remembers nothing that a new leader could not find again.

- *Fences.* Where a fence says something else than when its partitions were gone through last, those that name the
  broker are gone through by the index. That is all that happens when a broker dies, returns, or is quiet.
- *What is due*: partitions that wait for a time, and large resources whose partitions follow a change.
- *Plans* that run or were cancelled: moves begin, so many at a time.

It also looks from time to time who drains, and counts replicas by broker after it has begun to lead.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from functools import partial
from typing import Final

import msgspec

from metad_wire.cluster import METADATA, FenceItem, GroupId
from metad_wire.errors import MetadError, NoPlaceError
from metad_wire.families.assignment import BY_PLAN, PARTITIONS, RESOURCES
from metad_wire.key import text
from metad_wire.messages import Items
from metad_wire.methods import ASSIGNMENT_STEP, PLAN_PROGRESS
from metad_wire.tables.assignment import (
    ASSIGNMENT_DUES,
    DELETING,
    AssignmentStep,
    Due,
    Partition,
    PartitionKey,
    PlannedMove,
    Resource,
    ResourceDone,
)
from metad_wire.tables.plan import GroupProgress, Plan
from metad_wire.tables.table import INDEXES

from ...state.assignment.decide import Now, is_behind
from ...state.assignment.fleet import Choices, Placing
from ...state.assignment.plans import Plans
from ...state.assignment.records import DUE, decode_partition, decode_resource, resource_key
from ...state.assignment.rules import begin
from ...state.cluster.fences import Fences, replica_rows
from ...storage import keys
from ..calls.leader_calls import LeaderCalls
from ..environment import Environment, Timer
from ..health import Health
from ..replicas.driver import GroupDriver
from ..replicas.groups import Groups
from ..requests.requests import Requests
from .chore import Batch

LOOK_S: Final = 0.05
_BATCH: Final = 500
"""Partitions in one order: some ten milliseconds of deciding."""
_LOOKS_MAX: Final = 8
"""So many times as many are read in one go, to find those without a leader."""
_FENCES: Final = 256
"""Fences in one order whose brokers have no more partitions to go through."""
_PLANS_S: Final = 0.5
"""How often plans are looked at; also who drains."""
_DRAINS_MAX: Final = 500
"""Brokers of which it is looked at in one go whether they drain."""
_LOOKED_AT: Final = 500
"""Partitions that are looked at for a plan in one go, some ten milliseconds."""
_PLAN_ROWS: Final = 100
_PASS_S: Final = 1.0
"""A resource that is deleted is looked at so often until its partitions are gone."""
_COUNT_ROWS: Final = 2_000
_ROW: Final = PARTITIONS.rows["record"]
_INDEX_ROW: Final = INDEXES.rows["index"]
_NUMBER: Final = 4


class _Sweep:
    """Through the partitions that name a broker."""

    __slots__ = ("at", "item", "prefix")

    def __init__(self, group: bytes, broker: str, item: FenceItem | None) -> None:
        self.prefix = self.at = replica_rows(group, broker)
        self.item = item
        """The fence that is noted once it is through; None: nothing is."""


class _Pass:
    """Through the partitions of the brokers that a plan takes from."""

    __slots__ = ("at", "givers", "left")

    def __init__(self, givers: Sequence[str]) -> None:
        self.givers = deque(givers)
        self.at = b""
        """Where it goes on with the first of them."""
        self.left = False
        """Whether something was to be moved, now or later."""


class _Led:
    """A group, as long as this node leads it in one term."""

    def __init__(self, driver: GroupDriver, group_id: GroupId) -> None:
        self.driver = driver
        self.id = group_id
        self.term = driver.group.term
        self.batch = Batch(_BATCH)
        self.asking = False
        self.changes = -1
        """Of the fences, when their sweeps were queued."""
        self.sweeps: deque[_Sweep] = deque()
        self.urgent: deque[_Sweep] = deque()
        """The same brokers, for the partitions that they led."""
        self.slots: tuple[bytes, int] = b"", 0
        """Those that the group held when its sweeps were queued, and the move that brought the last of them."""
        self.through: dict[str, tuple[int, bool, int, int]] = {}
        """Fences whose brokers no partition named."""
        self.drains: dict[str, None] = {}
        """Brokers that drained at the last look."""
        self.drains_at = 0
        self.resources: dict[bytes, float] = {}
        """Resources that are looked at again no earlier."""
        self.next_plans_s = 0.0
        self.passes: dict[str, _Pass] = {}
        """By plan."""
        self.told: dict[str, bool] = {}
        """By plan, whether it was said that nothing is left to move."""
        self.telling = 0
        """Reports about plans that are not answered yet."""

    @property
    def prefix(self) -> bytes:
        return self.driver.group.prefix

    def holds(self, key: bytes) -> bool:
        return self.driver.machine.slots.holds_key(key)

    def scan(self, begin: bytes, end: bytes, limit: int) -> list[tuple[bytes, bytes]]:
        return self.driver.machine.reader.engine.scan(begin, end, limit)


class Assignments:
    """Looks often, and gives each group one order at a time."""

    def __init__(
        self, groups: Groups, requests: Requests, leaders: LeaderCalls, environment: Environment, health: Health
    ) -> None:
        self._groups = groups
        self._requests = requests
        self._leaders = leaders
        self._environment = environment
        self._health = health
        self._led: dict[GroupId, _Led] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._timer: Timer | None = None

    def start(self) -> None:
        """Begin to look."""
        if self._health.failure is not None:
            return
        try:
            for group_id, driver in list(self._groups.drivers.items()):
                if group_id.kind == METADATA.kind:
                    self._look_at(group_id, driver)
        finally:
            self._timer = self._environment.call_at(self._environment.now() + LOOK_S, self.start)

    def stop(self) -> None:
        """Look no more."""
        if self._timer is not None:
            self._timer.cancel()
        for task in self._tasks:
            task.cancel()

    def _look_at(self, group_id: GroupId, driver: GroupDriver) -> None:
        if not driver.group.accepting or driver.installing:
            self._led.pop(group_id, None)
            return
        led = self._led.get(group_id)
        if led is None or led.term != driver.group.term or led.driver is not driver:
            led = self._led[group_id] = _Led(driver, group_id)
        if not driver.machine.parts[Placing].counted:
            driver.machine.parts[Placing].count_on(_COUNT_ROWS)
        if not led.asking and not driver.machine.holding.sealed_move:
            self._work(led)

    def _work(self, led: _Led) -> None:
        """Give the next order, if there is anything to do."""
        if led.asking or self._led.get(led.id) is not led or not led.driver.group.accepting:
            return
        self._queue_sweeps(led)
        step = self._leaderless(led) or self._swept(led) or self._due(led) or self._planned(led)
        if step is not None:
            self._order(led, step)

    def _order(self, led: _Led, step: AssignmentStep) -> None:
        led.asking = True
        self._requests.request(ASSIGNMENT_STEP, step, partial(self._answered, led, step), group=led.driver.group.name)

    def _answered(self, led: _Led, step: AssignmentStep, answer: bytes | MetadError) -> None:
        led.asking = False
        led.batch.learn(len(step.items), answer)
        if isinstance(answer, bytes):
            if step.moves:
                self._tell(led, self._begun(led, step, answer))
            self._work(led)
        else:  # the next look begins anew: what is not noted is found again
            led.sweeps.clear()
            led.urgent.clear()
            led.changes = -1

    # --- fences -----------------------------------------------------------------------------------------------

    def _queue_sweeps(self, led: _Led) -> None:
        fences = led.driver.machine.parts[Fences]
        if led.changes == fences.changes:
            return
        led.changes = fences.changes
        holding = led.driver.machine.holding
        if led.slots != (holding.slots, holding.adopted_move):  # what has come names brokers that nobody named here
            led.slots = holding.slots, holding.adopted_move
            led.through.clear()
            led.sweeps.clear()
            led.urgent.clear()
        waiting = {sweep.item.broker: sweep for sweep in led.sweeps if sweep.item is not None}
        for item in fences.unstepped():
            if led.through.get(item.broker) == item.values:
                continue
            known = waiting.get(item.broker)
            if known is None or known.item is None or known.item.values != item.values:
                if known is not None:
                    led.sweeps.remove(known)
                led.sweeps.append(_Sweep(led.prefix, item.broker, item))
                led.urgent.append(_Sweep(led.prefix, item.broker, None))

    def _leaderless(self, led: _Led) -> AssignmentStep | None:
        """The next partitions that are led by a life that is over: they come before those that a broker only followed,
        which are twice as many or more. To find them costs a read of each, a fraction of what a decision does."""
        fences = led.driver.machine.parts[Fences]
        items: list[PartitionKey] = []
        for _ in range(_LOOKS_MAX):
            if not led.urgent or len(items) >= led.batch.size:
                break
            sweep = led.urgent[0]
            rows = led.scan(sweep.at, keys.after_prefix(sweep.prefix), _BATCH)
            for p in self._records(led, [_named(key, led.prefix) for key, _ in rows if led.holds(key)]):
                if p.leader is not None and fences.life(p.leader.broker) != p.leader.broker_epoch:
                    items.append(_key_of(p))
            if len(rows) == _BATCH:
                sweep.at = rows[-1][0] + b"\0"
            else:
                led.urgent.popleft()
        return AssignmentStep(items) if items else None

    def _swept(self, led: _Led) -> AssignmentStep | None:
        """The next partitions that name brokers whose fences have changed, or that drain."""
        items: list[PartitionKey] = []
        stepped: list[FenceItem] = []
        while led.sweeps and len(items) < led.batch.size and len(stepped) < _FENCES:
            sweep = led.sweeps[0]
            limit = led.batch.size - len(items)
            rows = led.scan(sweep.at, keys.after_prefix(sweep.prefix), limit)
            items += [_named(key, led.prefix) for key, _ in rows if led.holds(key)]
            if len(rows) == limit:
                sweep.at = rows[-1][0] + b"\0"
                break
            led.sweeps.popleft()
            if sweep.item is not None:
                if rows or sweep.at != sweep.prefix:
                    stepped.append(sweep.item)
                else:
                    led.through[sweep.item.broker] = sweep.item.values
        if not items and not stepped:
            return None
        slots, adopted_move = led.slots
        return AssignmentStep(items, stepped=stepped, slots=slots, adopted_move=adopted_move)

    # --- what is due ------------------------------------------------------------------------------------------

    def _due(self, led: _Led) -> AssignmentStep | None:
        time = led.driver.machine.time
        now_s = self._environment.now()
        time.next(self._environment.wall_ms(), now_s)
        past_ms, prefix = time.past_ms(now_s), keys.table_prefix(led.prefix, DUE)
        end = prefix + ASSIGNMENT_DUES.key_for(time.newest_ms + 1, b"")
        items: list[PartitionKey] = []
        due: list[Due] = []
        for key, _ in led.scan(prefix, end, led.batch.size):
            at_ms, record = ASSIGNMENT_DUES.split(key[len(prefix) :])
            if not led.holds(key):
                continue
            if int.from_bytes(record[:_NUMBER], "big") == RESOURCES.number:
                waits = bool(items) or now_s < led.resources.get(record, 0.0)
                if not waits and (step := self._followed(led, record, at_ms)) is not None:
                    return step
            elif at_ms <= past_ms:
                items.append(PartitionKey(*PARTITIONS.fields_of(record, 4)))
                due.append(Due(at_ms, record))
        return AssignmentStep(items, due=due) if items else None

    def _followed(self, led: _Led, key: bytes, at_ms: int) -> AssignmentStep | None:
        """The next partitions of a resource that have not followed its change; if there are none, that they have."""
        tenant, resource, kind = RESOURCES.fields_of(key, 3)
        records = keys.table_prefix(led.prefix, _ROW)
        value = led.driver.machine.reader.engine.get(records + key)
        row = None if value is None else decode_resource(value)
        if row is None:
            return AssignmentStep([], due=[Due(at_ms, key)])
        prefix = records + PARTITIONS.key_of((tenant, resource, kind))
        at, empty = prefix, True
        while rows := led.scan(at, keys.after_prefix(prefix), led.batch.size):
            empty = False
            found = [decode_partition(value).record for _, value in rows]
            if behind := [one for one in found if is_behind(one, row.record)]:
                return AssignmentStep([PartitionKey(tenant, resource, kind, one.partition) for one in behind])
            at = rows[-1][0] + b"\0"
        if row.record.state == "deleting" and not empty:
            led.resources[key] = self._environment.now() + _PASS_S
            return None
        led.resources.pop(key, None)
        return AssignmentStep([], done=[ResourceDone(tenant, resource, kind, row.version, at_ms, empty)])

    # --- plans ------------------------------------------------------------------------------------------------

    def _planned(self, led: _Led) -> AssignmentStep | None:
        now_s = self._environment.now()
        if now_s < led.next_plans_s:
            return None
        led.next_plans_s = now_s + _PLANS_S
        self._look_who_drains(led)
        progress: list[GroupProgress] = []
        step = None
        for plan in list(led.driver.machine.parts[Plans].shared.all.values()):
            active = self._moving(led, plan)
            if plan.state == "cancelled":
                if active:
                    step = AssignmentStep([_key_of(one) for one in active if one.move and not one.move.cancelling])
                    if step.items:
                        break
                step = None
            elif plan.state == "running":
                if led.telling:
                    continue  # or what it does now would never be told
                moves, nothing = self._moves(led, plan, plan.moves - len(active))
                idle = nothing and not active
                if moves:  # told once they have begun
                    step = AssignmentStep([], moves=moves)
                    break
                if idle != led.told.get(plan.plan, not idle):
                    progress.append(self._progress(led, plan.plan, 0, idle))
            else:
                led.told.pop(plan.plan, None)
        self._tell(led, progress)
        return step

    def _look_who_drains(self, led: _Led) -> None:
        """Brokers that have begun to drain hand over what they lead."""
        parts = led.driver.machine.parts
        placing = parts[Placing]
        if placing.counted and not placing.counts:
            return  # no broker has a partition, as in a cluster of MQTT
        fences, fleet, plans = parts[Fences].applied_of_all(), placing.fleet, parts[Plans].shared
        names = [*fences]
        some = names[led.drains_at : led.drains_at + _DRAINS_MAX]
        led.drains_at = led.drains_at + _DRAINS_MAX if len(some) == _DRAINS_MAX else 0
        for name in some:
            known = fleet.look(name) if fences[name].live else None
            drains = known is not None and (known.draining or plans.drains(name))
            if drains and name not in led.drains:
                led.sweeps.append(_Sweep(led.prefix, name, None))
                led.drains[name] = None
            elif not drains:
                led.drains.pop(name, None)

    def _moving(self, led: _Led, plan: Plan) -> list[Partition]:
        """The partitions of the group that a plan moves now."""
        prefix = keys.table_prefix(led.prefix, _INDEX_ROW) + BY_PLAN.header + text(plan.plan)
        rows = led.scan(prefix, keys.after_prefix(prefix), 2 * plan.moves)
        return self._records(led, [_named(key, led.prefix) for key, _ in rows if led.holds(key)])

    def _records(self, led: _Led, named: Sequence[PartitionKey]) -> list[Partition]:
        prefix = keys.table_prefix(led.prefix, _ROW)
        wanted = [prefix + PARTITIONS.key_of(msgspec.structs.astuple(key)) for key in named]
        values = led.driver.machine.reader.engine.get_many(wanted)
        return [decode_partition(value).record for value in values if value is not None]

    def _resource(self, led: _Led, p: Partition) -> Resource | None:
        value = led.driver.machine.reader.engine.get(keys.table_prefix(led.prefix, _ROW) + resource_key(p))
        return None if value is None else decode_resource(value).record

    def _moves(self, led: _Led, plan: Plan, room: int) -> tuple[list[PlannedMove], bool]:
        """The next moves of a plan, ``room`` of them at most; and whether nothing is left to move, now or later. It
        looks at :data:`_LOOKED_AT` partitions, and goes on there next time."""
        machine, found = led.driver.machine, list[PlannedMove]()
        if room <= 0 or not machine.parts[Placing].counted:
            return [], False
        choices = Choices(machine.parts, machine.time.newest_ms)
        one = led.passes.get(plan.plan)
        if one is None:
            one = led.passes[plan.plan] = _Pass(plan.brokers if plan.rule == "drain" else choices.givers())
        looked_at, begun = 0, set[PartitionKey]()
        while one.givers and len(found) < room and looked_at < _LOOKED_AT:
            giver = one.givers[0]
            prefix = replica_rows(led.prefix, giver)
            rows = led.scan(max(one.at, prefix), keys.after_prefix(prefix), _PLAN_ROWS)
            for key, _ in rows:
                if len(found) == room:
                    break
                looked_at, one.at = looked_at + 1, key + b"\0"
                named = _named(key, led.prefix)
                for p in self._records(led, [named] if led.holds(key) and named not in begun else []):
                    move = self._move_of(led, plan, choices, p, giver)
                    begun.update([] if move is None else [named])
                    one.left = one.left or move is not None or (plan.rule == "drain" and p.state != DELETING)
                    found += [] if move is None else [move]
            else:
                if len(rows) < _PLAN_ROWS or (plan.rule != "drain" and not choices.gives(giver)):
                    one.givers.popleft()
                    one.at = b""
        if one.givers:
            return found, False
        del led.passes[plan.plan]
        return found, not one.left

    def _move_of(self, led: _Led, plan: Plan, choices: Choices, p: Partition, giver: str) -> PlannedMove | None:
        """The move of a partition away from a broker, if it can be moved now, and that is worth it."""
        resource = self._resource(led, p)
        if p.move is not None or p.leader is None or p.state == DELETING or giver not in p.replicas or resource is None:
            return None
        try:
            placer = choices.placer(resource)
        except NoPlaceError:
            return None
        taker = placer.replacement(p.replicas, giver, needed=False)
        if taker is None or (plan.rule == "add" and taker not in plan.brokers):
            return None
        if plan.rule != "drain" and not placer.gains(giver, taker):
            return None
        wanted = [taker if broker == giver else broker for broker in p.replicas]
        fences = led.driver.machine.parts[Fences]
        dead = [broker for broker in wanted if fences.life(broker) is None]
        needed = {"isr": p.min_isr, "owner": 1}.get(resource.election, len(wanted))
        for broker in dead[: max(0, needed - len(wanted) + len(dead))]:  # else the move could never end
            other = placer.replacement(wanted, broker, needed=False)
            if other is None:
                return None
            wanted[wanted.index(broker)] = other
        now = Now(led.driver.machine.time.newest_ms, 0)
        try:
            begin(p, resource, fences, now, wanted, "", plan.plan, plan.throttle_bytes)
        except MetadError:  # it would be refused: nothing is proposed again and again
            return None
        placer.counts[giver] = placer.counts.get(giver, 0) - 1
        for broker in {*wanted} - {*p.replicas}:
            placer.counts[broker] = placer.counts.get(broker, 0) + 1
        return PlannedMove(p.tenant, p.resource, p.kind, p.partition, wanted, plan.plan, plan.throttle_bytes)

    def _begun(self, led: _Led, step: AssignmentStep, answer: bytes) -> list[GroupProgress]:
        """What an order has begun for its plan: not the moves that were refused."""
        refused = len(ASSIGNMENT_STEP.decode_reply(answer).errors)
        plan, begun = step.moves[0].plan, len(step.moves) - refused
        return [self._progress(led, plan, begun, False)] if begun else []

    def _progress(self, led: _Led, plan: str, begun: int, idle: bool) -> GroupProgress:
        led.told[plan] = idle
        known = self._groups.map
        groups = [] if known is None else [one.group_id.name for one in known.groups if one.kind == METADATA.kind]
        return GroupProgress(plan, led.driver.group.name, begun, idle, groups)

    def _tell(self, led: _Led, progress: list[GroupProgress]) -> None:
        if not progress:
            return
        led.telling += 1

        async def tell() -> None:
            try:
                await self._leaders.ask_group(METADATA, PLAN_PROGRESS, Items(progress))
            except MetadError:
                led.told.clear()
            finally:
                led.telling -= 1

        task = asyncio.get_running_loop().create_task(tell())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _named(key: bytes, group: bytes) -> PartitionKey:
    """The partition that a row of an index is for."""
    index = BY_PLAN  # whichever: the end of the row says where the key begins
    record = index.record_key(key[len(keys.table_prefix(group, _INDEX_ROW)) :])
    return PartitionKey(*PARTITIONS.fields_of(record, 4))


def _key_of(p: Partition) -> PartitionKey:
    return PartitionKey(p.tenant, p.resource, p.kind, p.partition)
