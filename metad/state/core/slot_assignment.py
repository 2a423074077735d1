"""The slots that a group holds: a row of the group's own state, so that every leader of it knows."""

from __future__ import annotations

from typing import Final

import msgspec
import numpy as np

from metad_wire.cluster import SLOTS
from metad_wire.errors import StaleRouteError
from metad_wire.tables.cluster import GROUP

from ...storage import keys
from .part import Origin, PartContext, StatePart, Writes
from .view import Numbers, Rows

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


RESTORES: Final = 1 << 62
"""The number of the move that seals a group's slots while a backup is put into it. No map orders one so high."""


class RestoreState(msgspec.Struct, frozen=True, array_like=True):
    """The row of a group into which a backup is put, or was: its id, the attempt and the last batch, the bit map of the
    slots that the group had before. ``done_at`` is the index of the entry with which it had them again, 0 until
    then."""

    backup: str
    attempt: int
    batch: int
    slots: bytes
    done_at: int = 0
    began_ms: int = 0
    """The time of the group's log when it gave up its slots: times in the rows were put ahead to this."""


class SlotMoves(msgspec.Struct, frozen=True, array_like=True):
    """The row beside that of :class:`AssignedSlots`: which moves have brought the slots that a group holds or has
    sealed. Who reads from the group tells by it whether it has newer rows of a slot than another group."""

    brought: dict[int, bytes]
    """Move -> bit map. The group was made with the slots that it does not name, or has adopted them before it kept this
    row."""


_decode = msgspec.msgpack.Decoder(AssignedSlots).decode
_decode_restore = msgspec.msgpack.Decoder(RestoreState).decode
_decode_moves = msgspec.msgpack.Decoder(SlotMoves).decode


def pack(slots: Numbers) -> bytes:
    """A mask of booleans as a bit map."""
    return np.packbits(slots).tobytes()


def unpack(bits: bytes) -> Numbers:
    """The reverse: one boolean per slot."""
    return np.unpackbits(np.frombuffer(bits, np.uint8)).astype(bool) if bits else np.zeros(SLOTS, bool)


def state_key(group: bytes) -> bytes:
    """Of the :class:`AssignedSlots` in a group's state."""
    return keys.table_prefix(group, GROUP.rows["state"]) + b"slots"


def moves_key(group: bytes) -> bytes:
    """Of the :class:`SlotMoves` in a group's state."""
    return keys.table_prefix(group, GROUP.rows["state"]) + b"moves"


def restore_key(group: bytes) -> bytes:
    """Of what the group's state says about the backup that it was restored from."""
    return keys.table_prefix(group, GROUP.rows["state"]) + b"restore"


def decode_restore(row: bytes | None) -> RestoreState | None:
    """The :class:`RestoreState` in a row; None: nothing was ever restored there."""
    return None if row is None else _decode_restore(row)


def adopted_move(row: bytes | None) -> int:
    """The last move whose slots were adopted, as the row :class:`AssignedSlots` says; 0 if there is none."""
    return 0 if row is None else _decode(row).adopted_move


def decode_slots(row: bytes | None, initial: bytes) -> AssignedSlots:
    """The :class:`AssignedSlots` in a row; None: those of a group that was made with the slots ``initial``."""
    return AssignedSlots(initial) if row is None else _decode(row)


def slots_brought(held: bytes, sealed: bytes, moves: SlotMoves) -> dict[int, bytes]:
    """Move -> bit map of the slots that it brought, of all that are held or sealed. Move 0: the group was made with
    them."""
    left = unpack(held) | unpack(sealed)
    found: dict[int, bytes] = {}
    for move, slots in sorted(moves.brought.items(), reverse=True):
        mine = unpack(slots) & left
        if mine.any():
            found[move] = pack(mine)
            left &= ~mine
    if left.any():
        found[0] = pack(left)
    return found


def decode_moves(row: bytes | None) -> SlotMoves:
    """The :class:`SlotMoves` in a row; None: that of a group which has no row yet."""
    return SlotMoves({}) if row is None else _decode_moves(row)


def is_held(held: Numbers, key: bytes) -> bool:
    """Whether the slot of a key is among those that are held."""
    slot = keys.slot_of_key(key[keys.GROUP_PREFIX_BYTES :])
    return slot is None or bool(held[slot])


class SlotAssignment(StatePart):
    """The slots that a group holds: those of the newest entry that was evaluated or applied."""

    rows = (GROUP.rows["state"],)

    def __init__(self, context: PartContext) -> None:
        self.key = state_key(context.group)
        self._engine = context.engine
        self._initial = context.initial_slots

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
        return decode_slots(row, self._initial)

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

    def holds_key(self, key: bytes) -> bool:
        """Whether the group holds the slot of a row with this key."""
        return self.holds_all or is_held(self._mask, key)

    def check(self, rows: Rows) -> None:
        """Raise StaleRouteError if the group does not hold the slots of all rows. A request that is about all rows is
        refused if some are on their way: neither group shows them then."""
        if self.holds_all:
            return
        if not self.holds(rows.crcs) if len(rows) else self.holding.sealed_move:
            raise self.stale()

    def stale(self) -> StaleRouteError:
        """Say why a request about other slots is not done."""
        if self.holding.sealed_move == RESTORES:
            return StaleRouteError("a backup is being put into the cluster, which serves nothing before that is done")
        return StaleRouteError()


class HeldSlots(StatePart):
    """The slots that a group held once the newest entry was applied, or is being applied: what is in flight on a leader
    does not count, unlike in :class:`SlotAssignment`."""

    rows = (GROUP.rows["state"],)

    def __init__(self, context: PartContext) -> None:
        self._key, self._moves_key = state_key(context.group), moves_key(context.group)
        self._restore_key = restore_key(context.group)
        self._engine = context.engine
        self._initial = context.initial_slots

    def load(self) -> None:
        self._learn(self._engine.get(self._key))
        self._moves = decode_moves(self._engine.get(self._moves_key))
        self._learn_restore(self._engine.get(self._restore_key))

    def stage(self, index: int, origin: Origin, writes: Writes) -> None:
        if self._key in writes:
            self._learn(writes[self._key])
        if self._moves_key in writes:
            self._moves = decode_moves(writes[self._moves_key])
        if self._restore_key in writes:
            self._learn_restore(writes[self._restore_key])

    def _learn_restore(self, row: bytes | None) -> None:
        self.restore = decode_restore(row)
        """What backup is put into the group, or was; None: none ever was."""

    @property
    def restored_at(self) -> int:
        """The index of the entry with which the group began to serve what a backup had; 0 if it never did."""
        return 0 if self.restore is None else self.restore.done_at

    def _learn(self, row: bytes | None) -> None:
        assigned = decode_slots(row, self._initial)
        self.held = assigned.slots
        """A bit map."""
        self.sealed = assigned.sealed
        """A bit map of those that are given up in a move that is not closed; empty if there are none."""
        self.sealed_move = assigned.sealed_move
        """That move."""
        self.adopted_move = assigned.adopted_move
        """The last move whose slots were adopted."""

    @property
    def brought(self) -> dict[int, bytes]:
        """:func:`slots_brought` of all that are held or sealed."""
        return slots_brought(self.held, self.sealed, self._moves)
