"""The memory of requests that wait for a long time, shared fairly by the connections that they came by."""

from __future__ import annotations

from metad_wire.errors import OverloadedError

_AGAIN_MS = 1_000


class FairRoom:
    """Anybody may fill one half of it. Of the other half each connection has the same share, so whoever fills what it
    can keeps nobody else out. It is not the memory for requests in flight: what waits for a minute would keep others
    from that for as long."""

    def __init__(self, bytes_max: int) -> None:
        self._half = bytes_max // 2
        self._held_of: dict[object, int] = {}
        self.held = 0

    def take(self, source: object, size: int) -> None:
        """Count a request. Raises OverloadedError where there is no room."""
        own = self._held_of.get(source, 0)
        if self.held + size > self._half:
            sharing = len(self._held_of) + (not own)
            if own + size > self._half // sharing or self.held + size > 2 * self._half:
                raise OverloadedError(
                    "too many requests wait on this node", retry_after_ms=_AGAIN_MS, retry_jitter_ms=_AGAIN_MS
                )
        self._held_of[source] = own + size
        self.held += size

    def give(self, source: object, size: int) -> None:
        """It is answered."""
        self.held -= size
        own = self._held_of[source] - size
        if own:
            self._held_of[source] = own
        else:
            del self._held_of[source]
