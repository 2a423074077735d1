"""A node loses its disk and comes back empty: the others refuse it until it is replaced, and fill the new one."""

from __future__ import annotations

from ..nodes import Nodes
from ..operator import Operator
from ..script import Drill

FORGOTTEN = "n3 was here with another data directory"


async def play(nodes: Nodes, operator: Operator) -> None:
    nodes.kill("n3")
    nodes.wipe("n3")
    nodes.launch("n3")
    await operator.status("warning", "node_refused n3", "group_under_replicated")
    await operator.writes_go_on()
    await operator.ends("n3", says=FORGOTTEN, exit_status=3, within_s=60.0)

    nodes.kill("n3")  # nobody may start it again
    said = await operator.runs("metadctl replace n3", says="n3 is no member any more")
    nodes.wipe("n3")
    nodes.configure("n3", toml_in(said))
    nodes.launch("n3")
    await operator.runs("metadctl replace n3 --wait", says="every group has all its replicas")
    await operator.status("ok")


def toml_in(said: str) -> str:
    """The configuration that ``metadctl replace`` prints."""
    lines = [line for line in said.splitlines() if " = " in line or line.startswith("[")]
    return "\n".join([*lines, ""])


DRILL = Drill(
    name="node-lost-with-disk",
    about="kill -9 of a node, and its data directory is lost",
    play=play,
    commands=["metadctl status --check", "metadctl replace n3", "metadctl replace n3 --wait"],
)
