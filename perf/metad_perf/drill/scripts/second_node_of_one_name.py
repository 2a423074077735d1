"""A second machine is configured as n3 while n3 lives: it is refused and told so, and n3 goes on."""

from __future__ import annotations

from ..nodes import Nodes
from ..operator import Operator
from ..script import Drill


async def play(nodes: Nodes, operator: Operator) -> None:
    nodes.newcomer("n3", called="the second n3")
    nodes.launch("the second n3")
    await operator.log("the second n3", "refused_by_peer", says="another node named n3 is alive at")
    await operator.log("n1", "peer_refused", says="another node named n3 is alive at")
    await operator.ends("the second n3", says="another node named n3 is alive at", exit_status=3, within_s=60.0)
    await operator.status("ok")
    await operator.writes_go_on()


DRILL = Drill(
    name="second-node-of-one-name",
    about="another machine starts with the node id of a living node",
    play=play,
    commands=["metadctl status --check"],
    newcomers=True,
)
