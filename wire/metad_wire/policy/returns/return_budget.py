"""The cluster's budget of returns: how many items each node may let come back per second. Pure: time is an argument.

The leader of ``metadata-0`` has it, and remembers nothing of it in the log: a new leader has heard of all busy nodes
after a second. A node's own measure is too high while other nodes were idle when it was made. What a node writes costs
the followers as much as itself, so nodes that are busy together answer less each than each alone. So the budget is what
the nodes have been seen to answer *together*, and at least what one can answer alone; each busy node gets a part of it,
in proportion to its own measure.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from ...cluster import ReturnGrant, ReturnReport

GRANT_MS: Final = 3_000
"""For how long a part counts, from when it was asked for."""
_FORGET_S: Final = 60.0
"""What the nodes have answered together counts half after so long."""


class _Heard(NamedTuple):
    per_s: int
    answered_per_s: int
    at_s: float
    until_s: float
    """Its clients have slots until then: they come, to whoever leads their groups by then, even if the node is gone."""
    granted: float


class ReturnBudget:
    """What busy nodes have said lately, and what they were granted."""

    def __init__(self) -> None:
        self._heard: dict[str, _Heard] = {}
        self._together = 0.0
        self._together_s = float("-inf")

    def grant(self, report: ReturnReport, members: int, now_s: float) -> ReturnGrant:
        """The part of a busy node, which asks about once a second. ``members``: of the cluster."""
        heard = self._heard
        for gone in [node for node, one in heard.items() if node != report.node_id and one.until_s < now_s]:
            del heard[gone]
        until_s = now_s + max(GRANT_MS, report.ahead_ms) / 1000
        own = heard.get(report.node_id)
        mine = _Heard(report.per_s, report.answered_per_s, now_s, until_s, own.granted if own is not None else 0.0)
        heard[report.node_id] = mine
        budget = self._budget(now_s)
        fair = report.per_s * min(1.0, budget / max(1, sum(one.per_s for one in heard.values())))
        # What others were granted stays theirs until they ask again. Meanwhile a node has what it would have if nobody
        # could be asked.
        left = budget - sum(one.granted for node, one in heard.items() if node != report.node_id)
        granted = max(min(fair, left), alone(report.per_s, members))
        heard[report.node_id] = mine._replace(granted=granted)
        return ReturnGrant(max(1, int(granted)), GRANT_MS)

    def _budget(self, now_s: float) -> float:
        lately = [one for one in self._heard.values() if now_s - one.at_s <= GRANT_MS / 1000]
        together = float(sum(one.answered_per_s for one in lately))
        faded: float = self._together * 0.5 ** ((now_s - self._together_s) / _FORGET_S)
        if together >= faded:
            self._together, self._together_s = together, now_s
        return max(together, faded, *(float(one.per_s) for one in self._heard.values()))


def alone(per_s: float, members: int) -> float:
    """What a node that nobody grants anything may let come back: as if all nodes were as busy as it is."""
    return per_s / max(1, members)
