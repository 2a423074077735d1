"""The slot map: which group of a kind holds which slot. A slot is ``CRC-32(routing fields, as encoded) mod 1024``."""

from __future__ import annotations

from metad_wire.cluster import unpack_slots

from ..state.rows import SLOTS, Numbers, column


def even_slots(groups: int) -> Numbers:
    """Slot -> ordinal of its group, in runs of equal length (give or take one)."""
    if not 1 <= groups <= SLOTS:
        raise ValueError(f"{groups} groups: there must be 1 to {SLOTS}, the number of slots")
    return column(slot * groups // SLOTS for slot in range(SLOTS))


def slots_of(packed: bytes) -> Numbers:
    """The same from the cluster map."""
    return column(unpack_slots(packed))
