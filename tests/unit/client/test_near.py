"""Which replica a read is sent to that need not be answered by the leader. What becomes of it is tried in the
simulation (``sim/nodes/scenarios/near.py``)."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any, cast

from metad_client.dispatch.calls.call import Call
from metad_client.dispatch.router import AVOID_S, CHOSEN_S, Nearest
from metad_wire.transport.credentials import PathSample


class Some(SimpleNamespace):
    """Stands for what has these attributes, and is itself."""

    __hash__ = object.__hash__
    __eq__ = object.__eq__


class World:
    """Nodes by name: region, and round trip in ms."""

    def __init__(self, region: str, **nodes: tuple[str, float]) -> None:
        self.now = 0.0
        self.queues = {
            name: Some(node=name, connection=Some(path_lately=self._path(rtt_ms)))
            for name, (_, rtt_ms) in nodes.items()
        }
        self.suspects: set[Any] = set()
        routes = Some(followers=lambda _: list(nodes), regions={name: where for name, (where, _) in nodes.items()})
        self.leaders: dict[str, str] = {}
        self.nearest = Nearest(
            cast("Any", Some(time=lambda: self.now)),
            region,
            cast("Any", Some(queues=self.queues)),
            cast("Any", Some(by_group=self.leaders)),
            cast("Any", routes),
            cast("Any", Some(connections=self.suspects)),
            random.Random(1),
        )

    @staticmethod
    def _path(rtt_ms: float) -> Any:
        return lambda *, glance: PathSample(rtt_s=rtt_ms / 1000, sent=0, lost=0) if glance else None

    @property
    def chosen(self) -> str:
        found = self.nearest.replica("data-0")
        return "" if found is None else found.node

    def refuses(self, name: str) -> tuple[str, bool]:
        """The leader that is asked then, and whether a replica may be asked again."""
        call = Call(cast("Any", None), b"", 1.0, cast("Any", None), "data-0", freshness_ms=5)
        leader = self.nearest.refused(call, cast("Any", self.queues[name]))
        return "" if leader is None else leader.node, call.is_near


def test_the_own_region_goes_before_a_shorter_way() -> None:
    assert World("ap", a=("eu", 0.1), b=("us", 90.0), c=("ap", 2.0)).chosen == "c"


def test_without_a_region_the_shortest_way_counts() -> None:
    assert World("", a=("eu", 100.0), b=("us", 90.0), c=("ap", 2.0)).chosen == "c"
    assert World("nowhere", a=("eu", 100.0), b=("us", 2.0)).chosen == "b"


def test_reads_spread_over_those_that_are_as_near() -> None:
    world = World("", a=("", 0.1), b=("", 0.3), c=("", 30.0))
    chosen = set()
    for _ in range(40):
        chosen.add(world.chosen)
        world.now += CHOSEN_S
    assert chosen == {"a", "b"}


def test_who_refused_is_left_out_for_a_moment() -> None:
    world = World("ap", a=("eu", 100.0), b=("us", 200.0), c=("ap", 2.0))
    world.leaders["data-0"] = "b"
    assert world.chosen == "c"
    assert world.refuses("c") == ("b", False)
    assert world.chosen == "a"
    world.now += AVOID_S + CHOSEN_S
    assert world.chosen == "c"


def test_without_a_leader_in_reach_a_replica_is_asked_again() -> None:
    world = World("ap", c=("ap", 2.0))
    for leader in ("", "a", "c"):
        world.leaders["data-0"] = leader
        assert world.refuses("c") == ("", True)
        assert world.chosen == "c"


def test_who_is_not_connected_or_does_not_answer_is_not_asked() -> None:
    world = World("ap", a=("eu", 100.0), c=("ap", 2.0))
    assert world.chosen == "c"
    world.suspects.add(world.queues["c"].connection)
    assert world.chosen == "a"
    world.queues["a"].connection = None
    world.now += CHOSEN_S
    assert world.chosen == ""
