"""Upgrades, node by node, and the way back: what older nodes cannot read is written once all nodes know it, and not
while one of them may still come back as the build before."""

from __future__ import annotations

from metad.state.core.entry import CHECKED_FORMAT, ENTRY_FORMAT, decode_entry

from ..builds import Builds
from ..cluster import DATA
from .scene import Scene, scenario

_AFTER_MS = 6_000
_LONG_S = 10.0
"""More than that."""
_SETTLED_S = 30.0


def _newest_format(scene: Scene) -> int:
    """Of the last entry of a write."""
    scene.put(scene.one, "newest", b"1")
    node = scene.lead().node
    assert node is not None
    log = node.drivers[DATA].group.log
    (record,) = log.records(log.last_index, 1, log.last_index + 1)
    return decode_entry("data-0", log.last_index, record).format


@scenario
def upgraded_node_by_node_and_back() -> None:
    """Nothing is switched on while one node is older; one that has gone back, in time, can read everything."""
    with Builds("n1", "n2", "n3") as builds, Scene(features_after_ms=_AFTER_MS) as scene:
        builds.watch(scene)
        for name in ("n1", "n2"):
            builds.change(scene.nodes[name], older=False)
            scene.require_settled(_SETTLED_S)
            scene.put(scene.one, name, b"1")
        scene.run(_LONG_S)
        assert (_newest_format(scene), builds.on_at(scene)) == (ENTRY_FORMAT, set())
        builds.change(scene.nodes["n3"], older=False)
        scene.run(2.0)
        builds.change(scene.nodes["n1"], older=True)
        scene.require_settled(_SETTLED_S)
        scene.run(_LONG_S)
        assert (_newest_format(scene), builds.on_at(scene)) == (ENTRY_FORMAT, set())
        builds.change(scene.nodes["n1"], older=False)
        assert scene.run_until(lambda: len(builds.on_at(scene)) == 3, _SETTLED_S), "it is not switched on"
        assert _newest_format(scene) == CHECKED_FORMAT
        assert scene.get(scene.two, "n1") == (b"1", 1)
        scene.require_settled(_SETTLED_S)


@scenario
def a_node_that_is_away_may_come_back_as_the_build_before() -> None:
    """It has said that it knows the feature, and then it went: its operator does not like the new build."""
    with Builds() as builds, Scene(features_after_ms=_AFTER_MS) as scene:
        builds.watch(scene)
        scene.run(2.0)
        away = next(sim for sim in scene.nodes.values() if sim is not scene.lead())
        away.crash(power=False)
        scene.run(_LONG_S)
        assert (_newest_format(scene), builds.on_at(scene)) == (ENTRY_FORMAT, set())
        builds.change(away, older=True)
        scene.require_settled(_SETTLED_S)
        scene.run(_LONG_S)
        assert (_newest_format(scene), builds.on_at(scene)) == (ENTRY_FORMAT, set())
