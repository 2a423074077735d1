"""Disks that are short of room, and what that means to leaders and clients."""

from __future__ import annotations

from metad.storage.room import DiskUse
from metad_wire.errors import NoRoomError

from ..cluster import SimNode
from ..host import SimEnvironment
from .scene import Scene, scenario

_TOTAL_BYTES = 1 << 40
_LOW, _AMPLE = DiskUse(100 << 20, _TOTAL_BYTES), DiskUse(_TOTAL_BYTES, _TOTAL_BYTES)


def _disk(sim: SimNode, use: DiskUse) -> None:
    assert sim.node is not None
    assert isinstance(sim.node.environment, SimEnvironment)
    sim.node.environment.disk = use


@scenario
def leader_without_room_hands_over() -> None:
    """Whoever is preferred: the group goes back once there is room."""
    with Scene() as scene:
        scene.transfer("n2")
        _disk(scene.nodes["n2"], _LOW)
        assert scene.run_until(lambda: scene.leader() not in (None, scene.nodes["n2"]), 3.0), "it leads on"
        for number in range(8):
            scene.put(scene.one, f"k{number}", b"v")
            scene.run(0.5)
            assert scene.leader() is not scene.nodes["n2"], "it leads again, and has no room"
        _disk(scene.nodes["n2"], _AMPLE)
        assert scene.run_until(lambda: scene.leader() is scene.nodes["n2"], 10.0), "it is not given the group back"
        assert scene.put(scene.two, "k0", b"w") == 2


@scenario
def what_grows_waits_for_a_quorum_of_disks_with_room() -> None:
    """One full disk stops nobody; with two, puts are refused at once, and deletes are not."""
    with Scene() as scene:
        leader = scene.lead()
        others = [sim for sim in scene.nodes.values() if sim is not leader]
        _disk(others[0], _LOW)
        scene.run(2.0)
        assert scene.put(scene.one, "a", b"1") == 1
        _disk(others[1], _LOW)
        scene.run(2.0)
        begun_s = scene.loop.now
        refused = ""
        try:
            scene.put(scene.one, "b", b"1")
        except NoRoomError as error:
            refused = str(error)
        assert refused, "it was taken, and two of three disks have no room for it"
        assert all(sim.name in refused for sim in others)
        assert scene.loop.now - begun_s < 0.5, "a client was kept waiting"
        scene.ask(scene.one, lambda client: client.kv.delete("space", "a"))
        assert scene.get(scene.two, "a") is None
        _disk(others[0], _AMPLE)
        scene.run(2.0)
        assert scene.put(scene.one, "b", b"1") == 1
        scene.require_settled(20.0)
