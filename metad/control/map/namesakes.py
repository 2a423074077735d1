"""Why a node is refused whose name belongs to a member with another data directory, or with a copy of the same. Pure.

Whoever reads the refusal at night may act on it. So it never advises to remove a member that is alive.
"""

from __future__ import annotations

from ...errors import LOST_DISK
from .seen import Reach


def foreign_directory(node_id: str, endpoint: str, reach: Reach) -> str:
    """Why a node is refused that has another data directory than the member of its name, whose address for nodes is
    ``endpoint`` and which is within this reach."""
    if reach is Reach.ALIVE:
        return (
            f"another node named {node_id} is alive at {endpoint} with its own data directory; give this node another "
            "node_id"
        )
    if reach is Reach.UNKNOWN:
        return (
            f"{node_id} is a member with another data directory, and it is not known yet whether that node is alive; "
            "ask again"
        )
    return f"{node_id} was here with another data directory, and has been out of reach since. {LOST_DISK}"


def copied_directory(node_id: str, endpoint: str) -> str:
    """Why a node is refused that runs on a copy of the data directory of a member that is alive at this address."""
    return (
        f"another node named {node_id} is alive at {endpoint}, and this one runs on a copy of its data directory; stop "
        "this node, or give it another node_id and an empty data directory"
    )
