"""The snapshot of a stream: the rows that its filters want, as a pin has them, in pieces. The memory it takes does not
depend on how many rows there are."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import compress
from typing import Final

import numpy as np

from metad_wire.tables import ROWS
from metad_wire.watch import StreamFlag, WatchRows

from ..state.core.slot_assignment import unpack
from ..storage.engine import Pin
from ..storage.keys import after_prefix, table_prefix
from .changes import KEY_AT
from .filters import Interest
from .index import Index

_PIECE_ROWS: Final = 512
"""Rows looked at in one piece, half a millisecond."""
_PIECE_BYTES: Final = 256 * 1024


class PinnedRows:
    """The rows that are still to be sent. ``slots``: a bit map of those wanted that the group has."""

    def __init__(self, pin: Pin, group: bytes, interests: Sequence[Interest], slots: bytes, flags: int) -> None:
        self._pin = pin
        self._keys_only = bool(flags & StreamFlag.KEYS_ONLY)
        mask = unpack(slots)
        self._mask: list[bool] | None = None if mask.all() else np.asarray(mask).tolist()
        self._index: Index[None] = Index(group)
        self._index.add(None, interests)
        self._by_broker = {interest.row for interest in interests if interest.broker}
        ranges: list[tuple[bytes, bytes]] = []
        for row, prefix, _ in sorted(interests):
            begin = table_prefix(group, row) + prefix
            if not ranges or begin >= ranges[-1][1]:  # interests of several brokers may overlap
                ranges.append((begin, after_prefix(begin)))
        self._ranges = ranges[::-1]

    def next(self) -> tuple[list[WatchRows], bool]:
        """Some rows, and whether they were the last."""
        if not self._ranges:
            return [], True
        begin, end = self._ranges.pop()
        found = self._pin.scan(begin, end, _PIECE_ROWS, _PIECE_BYTES)
        if found and (len(found) == _PIECE_ROWS or sum([len(k) + len(v) for k, v in found]) >= _PIECE_BYTES):
            self._ranges.append((found[-1][0] + b"\0", end))
        row = begin[KEY_AT - 1]
        if row in self._by_broker:
            found = [pair for pair in found if self._index.wants(*pair)]
        keys = [key[KEY_AT:] for key, _ in found]
        if (mask := self._mask) is not None and (slots := ROWS[row].slots_of(keys)) is not None:
            wanted = [mask[slot] for slot in slots]
            if not all(wanted):
                keys, found = list(compress(keys, wanted)), list(compress(found, wanted))
        if not keys:
            return [], not self._ranges
        values: list[bytes | None] = [None] * len(keys) if self._keys_only else [value for _, value in found]
        return [WatchRows(row, keys, values)], not self._ranges

    def close(self) -> None:
        """Let the pin go."""
        self._pin.close()
