"""The values that a stream has seen in the log, for those who ask for the value before: what is behind the stream is
overwritten in the state already."""

from __future__ import annotations

from typing import Final

from ..state.core.part import Origin
from .changes import Change, EntryChanges, with_previous
from .filters import OWNER

_BYTES_MAX: Final = 1024 * 1024
"""Of keys and values; the oldest are forgotten."""
_KEY_BYTES: Final = 100  # of a key that is remembered, beside itself and its value


class Seen:
    """The newest values of keys, as the log has them up to some entry."""

    def __init__(self, group: bytes) -> None:
        self._group = group
        self._values: dict[tuple[int, bytes], bytes | None] = {}
        self._bytes = 0

    def passed_by(self, changes: EntryChanges, found: list[Change]) -> list[Change]:
        """The stream comes to an entry, and these are the changes that it wants. Returns them with the values before,
        where they are known, and remembers those that they bring."""
        if changes.entry.origin == Origin.MIGRATION and len(changes.entry):
            # It may bring newer values of the same keys, which were written in another group.
            self._values.clear()
            self._bytes = 0
        told = [self._told(changes, change) for change in found]
        self.shrink(_BYTES_MAX)
        return told

    def shrink(self, bytes_max: int) -> None:
        """Forget the oldest values, until no more bytes are left."""
        while self._bytes > bytes_max:
            at = next(iter(self._values))
            self._bytes -= _size(at[1], self._values.pop(at))

    def _told(self, changes: EntryChanges, change: Change) -> Change:
        row, _, key, value, _, _ = change
        at = row, key
        known = at in self._values
        before = self._values.pop(at, None)
        if known:
            self._bytes -= _size(key, before)
        self._values[at] = value
        self._bytes += _size(key, value)
        if row == OWNER:
            owner = changes.owner_before(self._group + bytes((row,)) + key)
            if owner is not None:
                return with_previous(change, owner or None)
        return with_previous(change, before) if known else change


def _size(key: bytes, value: bytes | None) -> int:
    return _KEY_BYTES + len(key) + (0 if value is None else len(value))
