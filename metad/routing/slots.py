"""The slot map: which group of a kind holds which slot. A slot is ``CRC-32(routing fields, as encoded) mod 1024``."""

from __future__ import annotations

from ..state.rows import SLOTS, Numbers, column


def even_slots(groups: int) -> Numbers:
    """Slot -> ordinal of its group, in runs of equal length (give or take one)."""
    if not 1 <= groups <= SLOTS:
        raise ValueError(f"{groups} groups: there must be 1 to {SLOTS}, the number of slots")
    return column(slot * groups // SLOTS for slot in range(SLOTS))
