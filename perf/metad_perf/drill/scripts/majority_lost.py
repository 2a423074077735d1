"""Two of three nodes are gone: nothing can be written, status and clients say why, and all is well after a restart."""

from __future__ import annotations

from ..nodes import Nodes
from ..operator import Operator
from ..script import Drill


async def play(nodes: Nodes, operator: Operator) -> None:
    nodes.kill("n2", "n3")
    await operator.status("critical", "node_unreachable n2", "node_unreachable n3", "group_no_leader data-1")
    await operator.runs(
        "metadctl --timeout 5 put kv config greeting hello",
        exit_status=1,
        says="has no leader; 1 of 3 replicas reachable",
    )
    await nodes.start("n2", "n3")
    await operator.status("ok")
    await operator.writes_go_on()


DRILL = Drill(
    name="majority-lost",
    about="kill -9 of two of three nodes",
    play=play,
    commands=["metadctl status --check", "metadctl --timeout 5 put kv config greeting hello"],
)
