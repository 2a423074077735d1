"""A bounded memory of who owns which session, so that a storm's writes need no read.

Every takeover, update and disconnect must know a session's owner. Owners are few (one row per broker life, shared
by all its sessions) and sessions many, so a slot holds only a check value and the number of an owner row: 10 bytes.
The table is direct-mapped: a newer key simply replaces an older one, whose owner is then read from the engine
again. It starts small and doubles up to its bound; doubling empties it, for it is only a cache.

A lookup trusts a 64-bit check made of two independent hashes (the process-seeded SipHash of the key and the CRC-32
that routes it) beside the slot number: a wrong owner is less likely than 1 in 10^19 per lookup.

Only rows of *connected* sessions are kept, because those repeat. For any other the answer is "unknown".
"""

from __future__ import annotations

from array import array

_SLOT_BYTES = 10
_SLOTS_MIN = 1 << 14
_ROWS_MAX = 65_535  # numbers 1..65535 fit the 16-bit column; 0 is an empty slot


class OwnerCache:
    """(key, routing hash) -> owner row, or None for "ask the engine"."""

    def __init__(self, bytes_max: int) -> None:
        self._slots_max = max(_SLOTS_MIN, 1 << (max(1, bytes_max // _SLOT_BYTES).bit_length() - 1))
        self._rows: list[bytes | None] = [None]
        self._numbers: dict[bytes, int] = {}
        self._reset(min(_SLOTS_MIN, self._slots_max))

    def get(self, key: bytes, crc: int) -> bytes | None:
        """The owner row last put for the key, if it is still here."""
        hashed = hash(key)
        slot = hashed & self._mask
        if self._checks[slot] == ((hashed >> 24) & 0xFF_FFFF_FFFF) ^ (crc << 32):
            return self._rows[self._owners[slot]]
        return None

    def put(self, key: bytes, crc: int, row: bytes) -> None:
        """Remember the owner row of a connected session."""
        number = self._numbers.get(row)
        if number is None:
            number = self._number(row)
        hashed = hash(key)
        slot = hashed & self._mask
        if not self._owners[slot]:
            self._used += 1
            if self._used > self._grow_at:
                self._reset(self._slots * 2)
                number = self._number(row)
                slot = hashed & self._mask
        self._checks[slot] = ((hashed >> 24) & 0xFF_FFFF_FFFF) ^ (crc << 32)
        self._owners[slot] = number

    def forget(self, key: bytes, crc: int) -> None:
        """The key has no connected owner any more."""
        hashed = hash(key)
        slot = hashed & self._mask
        if self._checks[slot] == ((hashed >> 24) & 0xFF_FFFF_FFFF) ^ (crc << 32):
            self._owners[slot] = 0
            self._checks[slot] = 0

    def clear(self) -> None:
        """Forget everything."""
        self._reset(self._slots)

    def _number(self, row: bytes) -> int:
        if len(self._rows) > _ROWS_MAX:
            self._reset(self._slots)
        number = len(self._rows)
        self._rows.append(row)
        self._numbers[row] = number
        return number

    def _reset(self, slots: int) -> None:
        self._slots = slots
        self._mask = slots - 1
        self._used = 0
        # Three quarters full is where doubling costs less than the lookups that collide; at the bound it never grows.
        self._grow_at = slots * 3 // 4 if slots < self._slots_max else slots
        self._checks = array("Q", bytes(8 * slots))
        self._owners = array("H", bytes(2 * slots))
        self._rows = [None]
        self._numbers = {}
