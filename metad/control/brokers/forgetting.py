"""Which brokers that ended long ago are forgotten, so that there is room for new names. Pure.

Every group keeps a fence for each broker. Where brokers take a new name at each start, the ended ones would fill the
registry. They are forgotten, the first that ended first, once the registry is nearly full: those that their owner or an
administrator has ended at once, the others once a day has passed.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from metad_wire.tables import broker as b
from metad_wire.tables.broker import Broker

BROKERS_MAX: Final = 4_096
"""Names in the registry: every group keeps a fence for each, and an adoption of slots carries all of them."""
FORGET_FROM: Final = BROKERS_MAX * 7 // 8
"""From so many on, those that ended are forgotten."""
NAME_BYTES: Final = 1_024
"""What a name takes of :data:`NAMES_BYTES_MAX` at least; with a longer record, as much as that."""
NAMES_BYTES_MAX: Final = BROKERS_MAX * NAME_BYTES
"""Of the records that are not freed. Who registers shares it with others, see :class:`FairRoom`."""
FORGET_AFTER_MS: Final = 24 * 3_600_000
"""After their end. Nothing that a life of theirs has sent is under way by then."""
AT_ONCE_MAX: Final = 256


def to_forget(records: Iterable[Broker], count: int, now_ms: int) -> list[Broker]:
    """The brokers to forget next, of all ``count`` records."""
    if count < FORGET_FROM:
        return []
    ended = [
        record
        for record in records
        if record.state not in b.LIVE
        and record.fenced
        and (record.freed or record.changed_ms + FORGET_AFTER_MS <= now_ms)
    ]
    ended.sort(key=lambda record: (not record.freed, record.changed_ms))
    return ended[:AT_ONCE_MAX]
