"""The leader of each group, as far as a client knows. Pure; times are of the event loop's clock, in seconds.

A belief may be wrong. Nodes name leaders (in replies for the map, in the hint of a ``not_leader``), and they may be
behind. So if a node has just refused to lead a group, other nodes that name it as leader are not believed.
"""

from __future__ import annotations

REFUSAL_S = 0.5
"""After a node refuses to lead a group, other nodes that name it as leader are ignored for this long."""


class Leaders:
    """Beliefs by group name."""

    def __init__(self) -> None:
        self.by_group: dict[str, str] = {}
        self._refusals: dict[str, tuple[str, float]] = {}  # group -> the node that refused last, and when

    def prefer(self, preferred: dict[str, str]) -> None:
        """Believe in these leaders for groups without a known one."""
        self.by_group = preferred | self.by_group

    def learn(self, group: str, node: str) -> bool:
        """Believe that this node leads the group; returns whether that is new."""
        if self.by_group.get(group) == node:
            return False
        self.by_group[group] = node
        return True

    def forget(self, group: str, node: str) -> bool:
        """Stop believing in this node; False if the client believes in another one."""
        if self.by_group.get(group, node) != node:
            return False
        self.by_group.pop(group, None)
        return True

    def refuse(self, group: str, node: str, now: float) -> None:
        """A node says that it does not lead the group."""
        self._refusals[group] = (node, now)

    def refuted(self, group: str, node: str, now: float) -> bool:
        """Whether a node refused to lead the group a moment ago."""
        refused_by, at = self._refusals.get(group, ("", 0.0))
        return node == refused_by and now - at < REFUSAL_S
