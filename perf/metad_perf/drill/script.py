"""What a drill is: a cluster, the commands of its runbook, and a script that plays it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

import msgspec

from ..faults import disks, netns
from .nodes import Nodes
from .operator import Operator

Script = Callable[[Nodes, Operator], Awaitable[None]]


class Drill(msgspec.Struct, frozen=True, kw_only=True):
    """One drill."""

    name: str
    about: str
    """What happens, in a few words."""
    play: Script
    commands: Sequence[str]
    """All commands that the operator runs, as they are in the drill's section of docs/OPERATE.md."""
    nodes: int = 3
    regions: Sequence[str] = ()
    """The regions of the nodes, in turn."""
    encrypted: bool = False
    small_disks: bool = False
    """Each node has a small disk of its own, which can be filled."""
    own_network: bool = False
    """Each node has a network namespace of its own, which can be cut off."""
    newcomers: bool = False
    """Further nodes come."""

    def missing(self) -> str:
        """What this machine lacks to play it; empty if nothing."""
        needs = [disks.missing() if self.small_disks else "", netns.missing(cuts=False) if self.own_network else ""]
        return "; ".join(filter(None, needs))
