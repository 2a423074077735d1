"""Deaths of leaders, as their peers' connections tell of them."""

from __future__ import annotations

from typing import Final

from metad.config import RaftConfig

from ..cluster import PEER_PORT, SimNode
from .scene import Scene, scenario

_PATIENT: Final = RaftConfig(election_timeout_ms=3_000, heartbeat_ms=100, lease_ms=200, sleep_after_ms=100_000)
_SOON_S: Final = 0.6
"""A promise, a dial, and a vote. Silence is waited for five times as long."""


@scenario
def killed_leader_is_replaced_soon() -> None:
    """Its host refuses who dials it."""
    with Scene(raft=_PATIENT) as scene:
        leader = scene.lead()
        assert scene.put(scene.one, "a", b"1") == 1
        leader.crash(power=False)
        assert scene.run_until(lambda: scene.leader() not in (None, leader), _SOON_S), "nobody else leads"
        assert scene.put(scene.one, "a", b"2") == 2
        leader.start()
        scene.require_settled(20.0)


@scenario
def host_that_vanishes_is_waited_for() -> None:
    """Nobody answers who dials it: the leader may live, and others may hear it."""
    with Scene(raft=_PATIENT) as scene:
        leader = scene.lead()
        assert leader.process is not None
        others = [sim for sim in scene.nodes.values() if sim is not leader]
        led = {sim.name: _led(sim) for sim in others}
        scene.network.crash(leader.process, leader.name, silently=True)
        scene.run(2.0)
        assert {sim.name: _led(sim) for sim in others} == led, "silence was taken for death"


def _led(sim: SimNode) -> list[str]:
    assert sim.node is not None
    return [group.name for group in sim.node.replicas.groups.values() if group.is_leader]


@scenario
def leader_behind_a_firewall_is_replaced() -> None:
    """Its host refuses who dials it, and it lives: it can be heard, and hears nobody."""
    with Scene(raft=_PATIENT) as scene:
        leader = scene.lead()
        assert scene.put(scene.one, "a", b"1") == 1
        scene.network.reject(leader.name, PEER_PORT)
        for name in scene.nodes:
            if name != leader.name:
                scene.network.reset(leader.name, name)
        assert scene.run_until(lambda: scene.leader() not in (None, leader), 5.0), "nobody else leads"
        assert scene.put(scene.one, "a", b"2") == 2
        assert scene.get(scene.two, "a") == (b"2", 2)
