"""Whether this node has left its cluster. Pure.

The group that keeps the map lets a node go that has left, and tells it nothing more. So a node that is leaving, or that
hears of no leader of that group, asks others for their map. A newer map without this node says that it has left. What a
node reads while it follows the log from the beginning proves nothing: it was no member yet in the first maps, and the
name may have been another's. Its data directory's id tells them apart. Nor does a node that was let go say where it is
until it is a member again: what it says names the newest map that has it, and is refused where it has left since.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from metad_wire.cluster import ClusterMap

ASK_S = 1.0
"""How often the others are asked."""


class Departure:
    """What node ``me`` with this data directory knows of its own membership."""

    def __init__(self, me: str, store_id: str) -> None:
        self._me = me
        self._store_id = store_id
        self.member_at = 0
        """The version of the newest map with this node; 0: it knows of none."""
        self._joining = False
        self._asked_s = float("-inf")

    @contextlib.contextmanager
    def joining(self) -> Iterator[None]:
        """The node asks to be taken in, and may be before it hears of it: no map proves meanwhile that it has left."""
        self._joining = True
        try:
            yield
        finally:
            self._joining = False

    def joined(self, version: int) -> None:
        """The map of this version has the node, whether it has heard of that map or not. Older ones prove nothing."""
        self.member_at = max(self.member_at, version)

    def has_left(self, known: ClusterMap) -> bool:
        """Whether this map, of any node, proves that this one has left."""
        record = known.node(self._me)
        if record is not None and record.store_id == self._store_id:
            self.joined(known.version)
            return False
        return 0 < self.member_at < known.version and not self._joining

    def asks(self, mine: ClusterMap, metadata_leader: str | None, now_s: float) -> bool:
        """Whether to ask others for their map now. ``mine`` is this node's."""
        record = mine.node(self._me)
        member = record is not None and not record.leaving and metadata_leader is not None
        return not member and self.asks_again(now_s)

    def asks_again(self, now_s: float) -> bool:
        """Whether it is time to ask again."""
        if now_s - self._asked_s < ASK_S:
            return False
        self._asked_s = now_s
        return True
