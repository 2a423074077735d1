"""A bounded memory of who owns which session, so that a storm's writes need no read.

Every takeover, update and disconnect must know a session's owner. Owners are few (one row per broker life, shared
by all its sessions) and sessions many, so a slot holds only a check value and the number of an owner row: 10 bytes.
The table is direct-mapped: a newer key simply replaces an older one, whose owner is then read from the engine
again. It starts small and grows by large steps up to its bound; growing empties it, for it is only a cache.

A lookup trusts a 64-bit check beside the slot number, made of two independent hashes: the process-seeded SipHash of
the key, whose low bits choose the slot, xor the CRC-32 that routes it. A wrong owner is as likely as two such values
agreeing by chance, 1 in 10^19 per lookup.

Only rows of *connected* sessions are kept, because those repeat. For any other the answer is "unknown".
"""

from __future__ import annotations

from array import array

_SLOT_BYTES = 10
_SLOTS_MIN = 1 << 16
_GROWTH = 8
_TRUE = 0xC3  # msgpack
_ROWS_MAX = 65_535  # numbers 1..65535 fit the 16-bit column; 0 is an empty slot


class OwnerCache:
    """(session key, its CRC-32) -> owner row, or None for "ask the engine".

    The key is without group and table: a session lives in one group only.
    """

    def __init__(self, bytes_max: int) -> None:
        self._slots_max = max(_SLOTS_MIN, 1 << (max(1, bytes_max // _SLOT_BYTES).bit_length() - 1))
        self._rows: list[bytes | None] = [None]
        self._numbers: dict[bytes, int] = {}
        self._checks: array[int] = array("q")
        self._owners: array[int] = array("H")
        self._slots = self._mask = self._used = self._grow_at = 0
        self._reset(min(_SLOTS_MIN, self._slots_max))

    def get(self, key: bytes, crc: int) -> bytes | None:
        """The owner row last learned for the key, if it is still here."""
        hashed = hash(key)
        check = hashed ^ crc
        slot = hashed & self._mask
        if self._checks[slot] == check:
            return self._rows[self._owners[slot]]
        slot ^= 1
        if self._checks[slot] == check:
            return self._rows[self._owners[slot]]
        return None

    def columns(self) -> tuple[array[int], array[int], int, list[bytes | None]]:
        """(checks, owner numbers, slot mask, owner rows) for a loop that spells :meth:`get` out. Valid until the next
        :meth:`learn`."""
        return self._checks, self._owners, self._mask, self._rows

    def learn(self, key: bytes, crc: int, row: bytes | None) -> None:
        """This is the key's owner row in the engine now; None if it has none."""
        hashed = hash(key)
        check = hashed ^ crc
        slot = hashed & self._mask
        checks = self._checks
        if checks[slot] != check:
            if checks[slot ^ 1] == check:
                slot ^= 1
            elif row is not None and row[1] == _TRUE:
                slot = self._make_room(hashed)
                checks = self._checks
            else:
                return
        # Behind the array header, the first element of an owner row says whether it is connected.
        if row is None or row[1] != _TRUE:
            checks[slot] = 0
            self._owners[slot] = 0
            self._used -= 1
            return
        number = self._numbers.get(row)
        if number is None:
            if len(self._rows) > _ROWS_MAX:
                self._reset(self._slots)
                self._used = 1
                checks = self._checks
            number = self._numbers[row] = len(self._rows)
            self._rows.append(row)
        checks[slot] = check
        self._owners[slot] = number

    def _make_room(self, hashed: int) -> int:
        """A slot of the key's pair: an empty one, or the first, whose key moves to the second and out of there."""
        slot = hashed & self._mask
        if self._owners[slot]:
            other = slot ^ 1
            if not self._owners[other]:
                self._used += 1
            self._checks[other], self._owners[other] = self._checks[slot], self._owners[slot]
        else:
            self._used += 1
        if self._used > self._grow_at:
            self._reset(min(self._slots * _GROWTH, self._slots_max))
            self._used = 1
            slot = hashed & self._mask
        return slot

    def clear(self) -> None:
        """Forget everything."""
        self._reset(self._slots)

    def _reset(self, slots: int) -> None:
        self._slots = slots
        self._mask = slots - 1
        self._used = 0
        # At a quarter hardly a pair holds three keys. At the bound it never grows.
        self._grow_at = slots // 4 if slots < self._slots_max else slots
        self._checks = array("q", bytes(8 * slots))
        self._owners = array("H", bytes(2 * slots))
        self._rows = [None]
        self._numbers = {}
