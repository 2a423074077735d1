"""Wills that nobody publishes, dropped by the leader of their group."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from state_rig import Rig
from sweep_rig import HOUR_MS, World, do

from metad.node.chores import sweeps as unclaimed_wills
from metad.node.chores.chore import Means
from metad.node.chores.sweeps import UnclaimedWills
from metad.node.replicas.driver import GroupDriver
from metad_wire import messages as m
from metad_wire import methods
from metad_wire.errors import NotLeaderError
from metad_wire.tables.will import WILL


def test_the_event_says_how_many_the_node_has_had_dropped_in_all_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its field says so, whichever group's chore drops them."""
    said: list[tuple[int, int]] = []
    monkeypatch.setattr(unclaimed_wills, "event", lambda _, *, count, dropped=0, **more: said.append((count, dropped)))
    counts: Counter[str] = Counter()

    def kind(driver: GroupDriver, batch: int, means: Means, /) -> UnclaimedWills:
        return UnclaimedWills(driver, HOUR_MS, means._replace(counts=counts))

    for wills in (3, 2):
        group = Rig().group
        names = [f"c{number}" for number in range(wills)]
        will = m.SessionProperties(60, b"", m.Will("gone"))
        items: list[Any] = [m.SessionTakeoverItem("t", name, properties=will) for name in names]
        do(group, methods.SESSION_TAKEOVER, m.SessionTakeover("b", 1, items))
        gone = [m.SessionDisconnectItem("t", name) for name in names]
        do(group, methods.SESSION_DISCONNECT, m.SessionDisconnect("b", 1, gone))
        world = World(kind, WILL.rows["due"], group, monkeypatch)
        world.turns()
        assert not world.asked, "a broker may still claim them"
        world.advance(2 * HOUR_MS)
        world.refusal = NotLeaderError("elsewhere")
        world.turns()
        world.advance(HOUR_MS)
        world.refusal = None
        world.turns()
        assert world.asked == [names, names], "the next pass finds what an order did not do"
    assert [each for each in said if each[1]] == [(3, 3), (2, 5)]
