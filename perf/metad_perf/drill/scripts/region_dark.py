"""One of three regions is cut off from everything: the others go on, and its nodes come back by themselves."""

from __future__ import annotations

from ..nodes import Nodes
from ..operator import Operator
from ..script import Drill

REGIONS = ("eu", "us", "ap")


async def play(nodes: Nodes, operator: Operator) -> None:
    dark = nodes.names[0 :: len(REGIONS)]
    nodes.cut_off(*dark)
    await operator.status("warning", *(f"node_unreachable {node}" for node in dark), "group_under_replicated")
    await operator.writes_go_on()
    await operator.log(nodes.names[1], "peer_silent", peer=dark[0])
    await operator.log(nodes.names[1], "peer_lost", peer=dark[0])
    nodes.heal()
    await operator.status("ok")


DRILL = Drill(
    name="region-dark",
    about="one of three regions is cut off from the others and from all clients",
    play=play,
    commands=["metadctl status --check"],
    nodes=6,
    regions=REGIONS,
    encrypted=True,
    own_network=True,
)
