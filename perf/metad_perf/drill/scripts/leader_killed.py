"""The process of a node that leads groups ends at once: the others go on, and it comes back by a restart."""

from __future__ import annotations

from ..nodes import Nodes
from ..operator import Operator
from ..script import Drill


async def play(nodes: Nodes, operator: Operator) -> None:
    leader = await operator.leader_of("data-0")
    nodes.kill(leader)
    await operator.status("warning", f"node_unreachable {leader}", "group_under_replicated")
    await operator.writes_go_on()
    await nodes.start(leader)
    await operator.status("ok")


DRILL = Drill(
    name="leader-killed",
    about="kill -9 of a node that leads groups",
    play=play,
    commands=["metadctl status --check"],
)
