"""Before a node ends, others lead what it leads: an election that is ordered takes milliseconds, one that waits for
silence takes an election timeout."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable

from ...raft.base import CANDIDATE
from ...raft.replica import RaftGroup
from ...raft.roles.membership import CAUGHT_UP_ENTRIES, ChangeRefusedError

LAG_ENTRIES_MAX = 1_000
"""Who lacks more gets no group: while a voter is brought up to date the group takes no writes."""
AGAIN_S = 1.0
"""A group that comes back, by a leader that has not heard that this node ends, is handed over again, but not at once:
where all nodes end together it would go round in circles."""


class Handover:
    """Hands over the groups that a node leads, as often as :meth:`step` is called. Nodes that are ``drained`` get them
    only from one that ends (``at_all_costs``), and last."""

    def __init__(
        self,
        groups: Callable[[], Iterable[RaftGroup]],
        clock: Callable[[], float],
        drained: Callable[[], Collection[str]],
        *,
        at_all_costs: bool = True,
    ) -> None:
        self._groups = groups
        self._clock = clock
        self._drained = drained
        self._at_all_costs = at_all_costs
        self._given: dict[str, tuple[str, float]] = {}  # group -> to whom, and when

    def step(self) -> bool:
        """Begin what can be begun; whether there is anything to wait for: a group that is on its way, to others or to
        this node, or one whose new leader is not known yet, so that clients could not be told where to go."""
        waiting = False
        for group in self._groups():
            if group.is_leader:
                waiting |= self._give(group)
            elif group.role == CANDIDATE:
                waiting = True  # another leader prefers this node, and has not heard that it ends
            elif group.name in self._given:
                waiting |= group.leader is None
        return waiting

    def _give(self, group: RaftGroup) -> bool:
        to, at_s = self._given.get(group.name, ("", float("-inf")))
        if group.ready and not group.accepting:  # on its way, by us or because the map prefers another leader
            return not to or to in group.connected
        if self._clock() - at_s < AGAIN_S:
            return False  # its transfer was given up, or all nodes are ending
        target = self._successor(group)
        if target is None:
            return False
        try:
            group.transfer(target)
        except ChangeRefusedError:  # not yet: a change of its replicas is being committed
            return True
        self._given[group.name] = (target, self._clock())
        return True

    def _successor(self, group: RaftGroup) -> str | None:
        """A voter that can be reached and whose log has nearly everything: of those that have room on their disks, have
        caught up, and applied it, the one that is given least, so that no node gets all; None where there is none.
        Whoever leads next applies first what it has to, so nobody is waited for because of that."""
        load = Counter(to for to, _ in self._given.values())
        voters = [voter for voter in group.configuration.voters if voter in group.connected]
        lags = {voter: lag for voter in voters if (lag := group.lag(voter)) is not None}
        last_index = group.log.last_index
        candidates = [voter for voter in lags if last_index - group.peers[voter].match <= LAG_ENTRIES_MAX]
        short, drained = group.short_of_room(), self._drained()
        if not self._at_all_costs:
            candidates = [voter for voter in candidates if voter not in drained]
        return min(
            candidates,
            key=lambda v: (v in short, v in drained, lags[v] > CAUGHT_UP_ENTRIES, load[v], lags[v], v),
            default=None,
        )
