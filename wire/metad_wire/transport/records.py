"""Finds where the records of a TLS stream end (RFC 8446, 5.1). Pure: looks at five bytes of each, and decrypts nothing.

OpenSSL processes records without data, such as new keys, in one call as long as it has any. A caller that feeds it a
limited number at a time bounds how long that call takes.
"""

from __future__ import annotations

from typing import Final

_HEAD_BYTES: Final = 5
_LENGTH_AT: Final = 3  # u16, the length of what follows the head


class Records:
    """Follows a stream chunk by chunk. ``whole`` counts the records that have ended."""

    def __init__(self) -> None:
        self.whole = 0
        self._left = 0  # bytes left of the current record, once its length is known
        self._head = b""  # of the next record, while it is incomplete

    def advance(self, data: bytes, at: int, count: int) -> int:
        """The offset where ``count`` records from ``at`` on have ended, or the end of the data if that comes first."""
        end = len(data)
        while at < end:
            if not self._left:
                known = len(self._head)
                head = self._head + data[at : at + _HEAD_BYTES - known]
                if len(head) < _HEAD_BYTES:
                    self._head = head
                    return end
                self._head = b""
                self._left = _HEAD_BYTES - known + int.from_bytes(head[_LENGTH_AT:], "big")
            step = min(self._left, end - at)
            at += step
            self._left -= step
            if not self._left:
                self.whole += 1
                count -= 1
                if not count:
                    break
        return at
