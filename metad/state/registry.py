"""All verbs, by method code, and all parts of what a group keeps in memory."""

from __future__ import annotations

from typing import Any

from metad_wire.methods import METHODS, READ_INDEX, By
from metad_wire.tables import TABLES

from . import (
    brokers,
    cluster,
    consumers,
    expiry,
    fences,
    inflight,
    kv,
    leases,
    offset_groups,
    offsets,
    owners,
    retained,
    sequences,
    sessions,
    slot_migration,
    subscriptions,
    tenant_ends,
    tenant_steps,
    wills,
)
from .dedupe import DedupeWindow
from .fences import Fences
from .live_consumers import LiveConsumers
from .live_leases import LiveLeases
from .part import StatePart
from .plain import verbs_of
from .row_cache import HeadCache, RowCache
from .slot_assignment import HeldSlots, SlotAssignment
from .tables import Verb
from .tenant_ends import TenantEnds
from .will_news import WillNews

CONTROL: frozenset[int] = frozenset(
    method.code for method in METHODS.values() if method.by is not By.GROUP and not method.mutates
)
"""Methods that the node answers, not a group's state."""
OF_THE_LOG: frozenset[int] = frozenset({READ_INDEX.code})
"""Methods that a group answers by its log, not by its state."""

VERBS: dict[int, Verb[Any, Any]] = {
    verb.method.code: verb
    for verbs in (
        *(
            module.VERBS
            for module in (
                cluster,
                slot_migration,
                fences,
                brokers,
                sessions,
                expiry,
                tenant_ends,
                tenant_steps,
                subscriptions,
                inflight,
                wills,
                offsets,
                offset_groups,
                consumers,
                kv,
                leases,
                sequences,
                retained,
            )
        ),
        *map(verbs_of, TABLES.values()),
    )
    for verb in verbs
}


PARTS: tuple[type[StatePart], ...] = (
    RowCache,
    DedupeWindow,
    SlotAssignment,
    HeldSlots,
    Fences,
    TenantEnds,
    cluster.MapChanges,
    owners.SessionOwners,
    HeadCache,
    LiveLeases,
    LiveConsumers,
    WillNews,
)
"""What every group keeps in memory of its state."""


def _check() -> None:
    """Refuse at import a method that nobody serves."""
    missing = set(METHODS) - set(VERBS) - CONTROL - OF_THE_LOG
    if missing:
        raise TypeError(f"methods without a verb: {sorted(METHODS[code].name for code in missing)}")


_check()
