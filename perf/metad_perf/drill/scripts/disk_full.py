"""The disk of a node is full: others lead what it led, it takes part as far as it can, and it starts without room."""

from __future__ import annotations

from ..nodes import Nodes
from ..operator import Operator
from ..script import Drill


async def play(nodes: Nodes, operator: Operator) -> None:
    full = await operator.leader_of("data-0")
    await nodes.fill_disk(full)
    await operator.status("critical", f"disk_full {full}")
    await operator.log(full, "leader_lost", group="data-0")
    await operator.writes_go_on()

    nodes.kill(full)
    await nodes.start(full)
    await operator.status("critical", f"disk_full {full}")
    await operator.writes_go_on()

    nodes.free_disk(full)
    await operator.status("ok")


DRILL = Drill(
    name="disk-full",
    about="the disk of a node that leads groups is filled up",
    play=play,
    commands=["metadctl status --check"],
    small_disks=True,
)
