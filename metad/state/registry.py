"""All verbs, by method code, and all parts of what a group keeps in memory."""

from __future__ import annotations

from typing import Any

from metad_wire.methods import METHODS, READ_INDEX, By
from metad_wire.tables import TABLES

from .cluster import brokers, cluster, fences, slot_migration, tenant_ends
from .cluster.dedupe import DedupeWindow
from .cluster.fences import Fences
from .cluster.tenant_ends import TenantEnds
from .consumer import consumers, offset_groups, offsets
from .core.part import StatePart
from .core.plain import verbs_of
from .core.row_cache import HeadCache, RowCache
from .core.slot_assignment import HeldSlots, SlotAssignment
from .core.verb import Verb
from .ends import expiry, tenant_steps
from .kv import kv, leases, sequences
from .live.live_consumers import LiveConsumers
from .live.live_leases import LiveLeases
from .retained import retained
from .session import inflight, owners, sessions, subscriptions, takeover, wills
from .session.will_news import WillNews

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
                takeover,
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
