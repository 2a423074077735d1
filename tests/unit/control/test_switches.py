"""When a feature is switched on: never before all nodes of the map know it and are connected, and never while it is
held. A node that is away may come back as the version before."""

from __future__ import annotations

import pytest

from metad.control.features import SETTLED_S, Switches
from metad_wire.cluster import ClusterMap, NodeRecord
from metad_wire.tables.feature import FEATURES, FeatureRecord, FeatureState

AFTER_S = 60.0
ALL = sorted(FEATURES)


def cluster(**known: list[str]) -> ClusterMap:
    return ClusterMap(1, [NodeRecord(name, "", "", features=features) for name, features in known.items()], [], {})


KNOWING, ONE_OLDER = cluster(a=ALL, b=ALL, c=ALL), cluster(a=ALL, b=ALL, c=[])


class Leader:
    """Node ``a``, which decides."""

    def __init__(self) -> None:
        self.switches = Switches("a", int(1000 * AFTER_S))
        self.records: dict[str, FeatureRecord] = {}

    def due(self, now_s: float, known: ClusterMap = KNOWING, connected: str = "bc") -> list[str]:
        return self.switches.due(known, connected, self.records, now_s)

    def is_so(self, state: FeatureState) -> None:
        self.records = {name: FeatureRecord(name, state) for name in FEATURES}


def test_all_nodes_must_know_it_for_a_while() -> None:
    leader = Leader()
    assert leader.due(0, ONE_OLDER) == leader.due(1000, ONE_OLDER) == []
    assert leader.due(1001) == leader.due(1001 + AFTER_S - 0.1) == []
    assert leader.due(1001 + AFTER_S) == ALL


def test_one_that_goes_back_or_away_lets_the_time_begin_anew() -> None:
    for known, connected in ((ONE_OLDER, "bc"), (KNOWING, "b")):
        leader = Leader()
        leader.due(0)
        assert leader.due(AFTER_S, known, connected) == []
        assert leader.due(AFTER_S + 1) == leader.due(2 * AFTER_S) == []
        assert leader.due(2 * AFTER_S + 1) == ALL


def test_another_leader_counts_anew() -> None:
    leader = Leader()
    leader.due(0)
    leader.switches.forget()
    assert leader.due(AFTER_S) == []
    assert leader.due(2 * AFTER_S) == ALL


@pytest.mark.parametrize("state", ["held", "on"])
def test_what_is_held_or_on_is_left_alone(state: FeatureState) -> None:
    leader = Leader()
    leader.due(0)
    leader.is_so(state)
    assert leader.due(10 * AFTER_S) == []


def test_what_is_allowed_waits_for_a_moment_only() -> None:
    leader = Leader()
    leader.is_so("allowed")
    assert leader.due(0) == leader.due(SETTLED_S - 0.1) == []
    assert leader.due(SETTLED_S) == ALL
    assert leader.due(SETTLED_S, ONE_OLDER) == []


def test_a_node_alone_needs_nobody() -> None:
    leader = Leader()
    alone = cluster(a=ALL)
    leader.due(0, alone, "")
    assert leader.due(AFTER_S, alone, "") == ALL
