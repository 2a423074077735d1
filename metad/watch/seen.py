"""The values that a stream has seen in the log, for those who ask for the value before: what is behind the stream is
overwritten in the state already."""

from __future__ import annotations

from typing import Final

from ..state.part import Origin
from .changes import Change, EntryChanges

_BYTES_MAX: Final = 1024 * 1024
"""Of keys and values; the oldest are forgotten."""
_KEY_BYTES: Final = 100  # of a key that is remembered, beside itself and its value


class Seen:
    """The newest values of keys, as the log has them up to some entry."""

    def __init__(self) -> None:
        self._values: dict[bytes, bytes | None] = {}
        self._bytes = 0

    def pass_by(self, changes: EntryChanges, found: list[Change]) -> None:
        """The stream comes to an entry, and these are the changes that it wants: give them the values before, where
        they are known, and remember those that they bring."""
        if changes.entry.origin == Origin.MIGRATION and len(changes.entry):
            # It may bring newer values of the same keys, which were written in another group.
            self._values.clear()
            self._bytes = 0
        for change in found:
            key = change.key
            if key in self._values:
                before = self._values.pop(key)
                self._bytes -= _size(key, before)
                if not change.before_known:
                    change.replaces(before)
            self._values[key] = change.value
            self._bytes += _size(key, change.value)
        while self._bytes > _BYTES_MAX:
            key = next(iter(self._values))
            self._bytes -= _size(key, self._values.pop(key))


def _size(key: bytes, value: bytes | None) -> int:
    return _KEY_BYTES + len(key) + (0 if value is None else len(value))
