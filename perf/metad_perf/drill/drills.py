"""All drills."""

from __future__ import annotations

from typing import Final

from .script import Drill
from .scripts import (
    disk_full,
    leader_killed,
    majority_lost,
    region_dark,
    rolling_restart,
    wrong_certificate,
)

_ALL: Final = (
    leader_killed,
    rolling_restart,
    disk_full,
    majority_lost,
    region_dark,
    wrong_certificate,
)
DRILLS: Final[dict[str, Drill]] = {script.DRILL.name: script.DRILL for script in _ALL}
