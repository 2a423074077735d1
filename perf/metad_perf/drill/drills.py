"""All drills, in the order of OPERATE.md."""

from __future__ import annotations

from typing import Final

from .script import Drill
from .scripts import (
    disk_full,
    leader_killed,
    majority_lost,
    node_lost_with_disk,
    region_dark,
    rolling_restart,
    second_node_of_one_name,
    wrong_certificate,
)

_ALL: Final = (
    leader_killed,
    rolling_restart,
    node_lost_with_disk,
    disk_full,
    majority_lost,
    region_dark,
    second_node_of_one_name,
    wrong_certificate,
)
DRILLS: Final[dict[str, Drill]] = {script.DRILL.name: script.DRILL for script in _ALL}
