"""The disk of a node is full: the node ends and says why, the others go on, and it comes back when there is room."""

from __future__ import annotations

from ..nodes import Nodes
from ..operator import Operator
from ..script import Drill

NO_ROOM = "No space left on device"


async def play(nodes: Nodes, operator: Operator) -> None:
    full = await operator.leader_of("data-0")
    await nodes.fill_disk(full)
    await operator.ends(full, says=NO_ROOM)
    await operator.status("warning", f"node_unreachable {full}", "group_under_replicated")
    await operator.writes_go_on()

    # As long as there is no room, a restart does not help, and harms nothing.
    nodes.launch(full)
    await operator.ends(full, says=NO_ROOM)

    nodes.free_disk(full)
    await nodes.start(full)
    await operator.status("ok")


DRILL = Drill(
    name="disk-full",
    about="the disk of a node that leads groups is filled up",
    play=play,
    commands=["metadctl status --check"],
    small_disks=True,
)
