"""Plans: orders to move partitions between brokers, which metad carries out at its own pace.

A plan is in ``metadata-0``. The leader of each group of kind ``metadata`` carries it out for the partitions of that
group, ``moves`` of them at a time, until nothing is left. What is under way is in the records of the partitions: the
index ``by_plan`` of the table ``partition`` has them.

| rule | what it moves |
|---|---|
| ``drain`` | every replica away from ``brokers``, which get no new ones; they lead only what nobody else can |
| ``add`` | replicas to ``brokers``, until they have their share |
| ``rebalance`` | replicas from who has most of its share to who has least |

| state | meaning |
|---|---|
| ``running`` | groups begin moves |
| ``paused`` | no move begins; those under way go on |
| ``cancelled`` | moves under way are given up, each as soon as that loses nothing |
| ``done`` | every group had nothing left to move; a drained broker gets new replicas again once its plan is deleted |
"""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from .. import messages as m
from ..method import By, For, Lane
from ..table import Shown, Table
from ..text.fields import U63

PLANS_MAX = 1_000
"""Plans that are kept: ``quota_exceeded``."""
PLAN_BROKERS_MAX = 1_000
"""Brokers that a plan names."""
Rule = Literal["drain", "add", "rebalance"]
State = Literal["running", "paused", "cancelled", "done"]
Moves = Annotated[int, Meta(ge=1, le=1_000)]
MOVES_DEFAULT = 10


class PlanKey(m.Message, frozen=True):
    """The name of a plan."""

    plan: str


class NewPlan(m.Message, frozen=True):
    """A plan that begins at once."""

    plan: str
    rule: Rule
    brokers: Annotated[list[str], Meta(max_length=PLAN_BROKERS_MAX)] = []  # noqa: RUF012 - msgspec copies it
    """Of ``drain`` and ``add``."""
    moves: Moves = MOVES_DEFAULT
    """So many partitions of a group are moved at a time."""
    throttle_bytes: U63 | None = None
    """So many bytes a second each broker may copy: it reads that in the records; nil: any."""


class Plan(m.Message, frozen=True):
    """A plan as it is. The fields of ``NewPlan`` mean the same here."""

    plan: str
    rule: Rule
    brokers: list[str]
    moves: Moves
    throttle_bytes: U63 | None
    state: State
    created_ms: U63
    """Unix time."""
    changed_ms: U63
    """Unix time of the last change of its state."""
    begun: U63 = 0
    """How many moves groups have begun, as far as they have told."""
    idle: Annotated[list[str], Meta(max_length=1024)] = []  # noqa: RUF012
    """Groups that had nothing left to move when they looked last."""


class PlanState(m.Message, frozen=True):
    """Let a plan pause, go on, or be cancelled. One that is done, or was cancelled, stays that."""

    plan: str
    state: Literal["running", "paused", "cancelled"]


class GroupProgress(m.Message, frozen=True):
    """Between nodes: what a group did for a plan."""

    plan: str
    """Its name."""
    group: str
    """By name."""
    begun: U63
    """Moves that it has begun since it told last."""
    idle: bool
    """Whether it has nothing left to move."""
    map_groups: Annotated[list[str], Meta(max_length=1024)] = []  # noqa: RUF012
    """All groups of the kind, by the newest map that it knows."""


class PlanList(m.Message, frozen=True):
    """Lists plans."""

    prefix: str = ""
    page: m.Page = m.Page()
    min_revisions: m.Revisions = []  # noqa: RUF012


PLAN = Table(
    "plan",
    kind="metadata",
    rows={"plan": 0x07},
    record=Plan,
    key=("plan",),
    routing=(),
    shows={"plan": Shown(PlanKey, Plan)},
)
PLAN_CREATE = PLAN.batches(
    0x0711,
    "create",
    NewPlan,
    "Begin plans. Item errors: conflict (there is one of the name), not_found (a broker), invalid_item, "
    "quota_exceeded.",
    named="plans",
    by=By.METADATA,
    whose=For.ADMINS,
)
PLAN_SET = PLAN.batches(
    0x0712,
    "set",
    PlanState,
    "Let plans pause, go on, or be cancelled. Item errors: not_found, conflict (it has ended).",
    by=By.METADATA,
    whose=For.ADMINS,
)
PLAN_DELETE = PLAN.batches(
    0x0713,
    "delete",
    PlanKey,
    "Delete plans that have ended. Item errors: not_found, conflict (it has not).",
    named="keys",
    by=By.METADATA,
    whose=For.ADMINS,
)
PLAN_GET = PLAN.gets(0x0714, "get", PlanKey, Plan, "Each plan as it is.", by=By.METADATA)
PLAN_LIST = PLAN.lists(
    0x0715, "list", PlanList, Plan, "Plans whose names start with ``prefix``, in order.", by=By.METADATA
)
PLAN_PROGRESS = PLAN.batches(
    0x0716,
    "progress",
    GroupProgress,
    "What groups did for plans.",
    lane=Lane.CONTROL,
    by=By.METADATA,
    whose=For.NODES,
)
