"""``m.plans``: orders to move partitions between brokers, which metad carries out at its own pace."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Sequence
from typing import Final

import msgspec

from metad_wire.tables.broker import BROKER_LIST, DRAINING, LIVE, Broker
from metad_wire.tables.plan import MOVES_DEFAULT, PLAN_LIST, NewPlan, Plan, PlanState, Rule

from ..namespaces.declared import _PLAN_CREATE, _PLAN_SET, _PlanDeclared
from ..requests.listing import Listing
from ..requests.wrong import sequence


class Recommendation(msgspec.Struct, frozen=True):
    """How many brokers there should be."""

    loaded: list[str]
    """Those that have had too much for long."""
    brokers: int
    """That live, and do not drain."""
    more: int
    """So many more are needed; 0: none."""


class Plans(_PlanDeclared):
    """Plans by name. Only administrators change them. A ``*_many`` method reports errors per item in its result."""

    async def create(
        self,
        plan: str,
        rule: Rule,
        brokers: Sequence[str] = (),
        *,
        moves: int = MOVES_DEFAULT,
        throttle_bytes: int | None = None,
        deadline_s: float | None = None,
    ) -> None:
        """Begin one plan. Raises ConflictError, InvalidItemError, QuotaExceededError."""
        item = NewPlan(plan, rule, sequence("brokers", brokers, "str"), moves, throttle_bytes)
        await _PLAN_CREATE.one(self._requests, item, deadline_s)

    async def pause(self, plan: str, *, deadline_s: float | None = None) -> None:
        """Let no further move begin. Raises NotFoundError, ConflictError."""
        await _PLAN_SET.one(self._requests, PlanState(plan, "paused"), deadline_s)

    async def resume(self, plan: str, *, deadline_s: float | None = None) -> None:
        """Let moves begin again. Raises NotFoundError, ConflictError."""
        await _PLAN_SET.one(self._requests, PlanState(plan, "running"), deadline_s)

    async def cancel(self, plan: str, *, deadline_s: float | None = None) -> None:
        """Give up the moves that are under way, and begin no others. Raises NotFoundError, ConflictError."""
        await _PLAN_SET.one(self._requests, PlanState(plan, "cancelled"), deadline_s)

    def list(self, prefix: str = "", *, page_size: int = 1000, deadline_s: float | None = None) -> AsyncIterator[Plan]:
        """Plans whose names start with ``prefix``, in order."""
        return _LIST.of_group(self._requests, page_size, deadline_s, (), prefix=prefix)

    async def recommend(self, *, for_s: float = 300.0, deadline_s: float | None = None) -> Recommendation:
        """Whether more brokers are needed, where loads are percents of what a broker can do: by default if one has had
        80 or more for five minutes. As many more as bring the average to 60."""
        living = [broker async for broker in _BROKERS.of_group(self._requests, 1000, deadline_s, prefix="", state="")]
        living = [broker for broker in living if broker.state in LIVE and broker.state != DRAINING]
        loaded = [broker.broker for broker in living if broker.loaded_ms >= 1000 * for_s]
        wanted = math.ceil(sum(broker.load for broker in living) / _COMFORTABLE)
        return Recommendation(loaded, len(living), max(1, wanted - len(living)) if loaded else 0)


_COMFORTABLE: Final = 60
_LIST: Listing[Plan] = Listing(PLAN_LIST)
_BROKERS: Listing[Broker] = Listing(BROKER_LIST)
