"""The slots that a group holds: a row of the group's own state, so that every leader of it knows."""

from __future__ import annotations

import msgspec
import numpy as np

from metad_wire.cluster import SLOTS
from metad_wire.errors import StaleRouteError
from metad_wire.tables.cluster import GROUP

from ..storage import keys
from .part import Origin, PartContext, StatePart, Writes
from .rows import Numbers, Rows

ALL_SLOTS = b"\xff" * (SLOTS // 8)
"""A bit map."""
_SLOT_MASK = SLOTS - 1


class AssignedSlots(msgspec.Struct, frozen=True, array_like=True):
    """The row of a group's state. Slots are bit maps of :data:`SLOTS` bits."""

    slots: bytes
    sealed: bytes = b""
    """Slots given up in a move that is not closed."""
    sealed_move: int = 0
    opened_move: int = 0
    """The move whose rows are imported, and the attempt and the batch that were last."""
    opened_attempt: int = 0
    opened_batch: int = 0
    adopted_move: int = 0
    """The last move whose slots were adopted."""
    base: int = 0
    """A revision of the group is the log index of an entry and this. It only grows: an adoption of slots raises it so
    far that every later write has a higher revision than those of the source in these slots."""
    opened_slots: bytes = b""
    """Those that the attempt is for."""


_decode = msgspec.msgpack.Decoder(AssignedSlots).decode


def pack(slots: Numbers) -> bytes:
    """A mask of booleans as a bit map."""
    return np.packbits(slots).tobytes()


def unpack(bits: bytes) -> Numbers:
    """The reverse: one boolean per slot."""
    return np.unpackbits(np.frombuffer(bits, np.uint8)).astype(bool) if bits else np.zeros(SLOTS, bool)


class SlotAssignment(StatePart):
    """The slots that a group holds: those of the newest entry that was evaluated or applied."""

    rows = (GROUP.rows["state"],)

    def __init__(self, context: PartContext) -> None:
        self.key = keys.table_prefix(context.group, GROUP.rows["state"]) + b"slots"
        """Of the :class:`AssignedSlots`."""
        self._engine = context.engine
        self._initial = AssignedSlots(context.initial_slots)

    def load(self) -> None:
        self.forget()
        self.applied_base = self.holding.base
        """The base of the applied state."""

    def forget(self) -> None:
        self._changed = 0  # the entry in flight that changed it last
        self._hold(self.decode(self._engine.get(self.key)))

    def evaluated(self, index: int, origin: Origin, writes: Writes) -> None:
        if self.key in writes:
            self._hold(self.decode(writes[self.key]))
            self._changed = index

    def stage(self, index: int, origin: Origin, writes: Writes) -> None:
        if self.key in writes:
            holding = self.decode(writes[self.key])
            self.applied_base = holding.base
            if index >= self._changed:  # or a later entry that is in flight has changed it
                self._hold(holding)

    def decode(self, row: bytes | None) -> AssignedSlots:
        """The :class:`AssignedSlots` in a row; None: that of a group which has no row yet."""
        return self._initial if row is None else _decode(row)

    def _hold(self, holding: AssignedSlots) -> None:
        self.holding = holding
        self._mask = unpack(holding.slots)
        self.holds_all = bool(self._mask.all())

    @property
    def mask(self) -> Numbers | None:
        """A boolean per slot; None if the group holds all of its kind."""
        return None if self.holds_all else self._mask

    def holds(self, crcs: Numbers) -> bool:
        """Whether the group holds the slots of all rows with these CRC-32s."""
        return bool(self._mask[crcs & _SLOT_MASK].all())

    def check(self, rows: Rows) -> None:
        """Raise StaleRouteError if the group does not hold the slots of all rows. A request that is about all rows is
        refused if some are on their way: neither group shows them then."""
        if self.holds_all:
            return
        if not self.holds(rows.crcs) if len(rows) else self.holding.sealed_move:
            raise StaleRouteError
