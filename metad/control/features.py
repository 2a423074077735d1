"""When a feature of the cluster is switched on. Pure: time is an argument.

All nodes of the map say in their records that they know it, and all of them are connected with the leader of
``metadata-0``, all the while: for ``cluster.features_after_ms``, or for a moment if an administrator has allowed it. A
node that goes back to the version before says so within a second of its start, and one that is away may come back as
that. Nothing of this is remembered: another leader counts anew, so a switch comes later, and never sooner.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final

from metad_wire.cluster import ClusterMap
from metad_wire.tables.feature import FEATURES, FeatureRecord

SETTLED_S: Final = 5.0
"""What an administrator has allowed waits for so long: a node that has just started may not have said yet what it
knows."""


class Switches:
    """Decides for the leader of ``metadata-0``."""

    def __init__(self, me: str, after_ms: int) -> None:
        self._me = me
        self.after_s = after_ms / 1000
        self._ready_s: dict[str, float] = {}
        """By feature: since when all nodes know it and are connected."""

    def due(
        self, known: ClusterMap, connected: Collection[str], records: Mapping[str, FeatureRecord], now_s: float
    ) -> list[str]:
        """Return the features whose time has come. ``records`` say how features are."""
        all_there = all(node.node_id in connected for node in known.nodes if node.node_id != self._me)
        found: list[str] = []
        for name in FEATURES:
            record = records.get(name)
            state = "off" if record is None else record.state
            if state in ("on", "held") or not all_there or not all(name in node.features for node in known.nodes):
                self._ready_s.pop(name, None)
                continue
            ready_s = self._ready_s.setdefault(name, now_s)
            if now_s - ready_s >= (SETTLED_S if state == "allowed" else max(SETTLED_S, self.after_s)):
                found.append(name)
        return found

    def forget(self) -> None:
        """This node decides no longer."""
        self._ready_s.clear()
