"""One node after the other is told to end and started again, as in an upgrade: no call fails."""

from __future__ import annotations

from ..nodes import Nodes
from ..operator import Operator
from ..script import Drill


async def play(nodes: Nodes, operator: Operator) -> None:
    for node in nodes.names:
        await nodes.stop(node)
        await operator.log(node, "stopped", drained=True)
        await nodes.start(node)
        await operator.status("ok")


DRILL = Drill(
    name="rolling-restart",
    about="SIGTERM to one node after the other",
    play=play,
    commands=["metadctl status --check"],
)
