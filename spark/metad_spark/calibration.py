"""The cost of serving for a node, read from a file that names its measurement.

A node works in *turns*: it takes up to ``batch_items`` items from each group that it leads, writes an entry for each of
these groups, and has all of them made durable and replicated together. A turn takes

    factor * slowdown * (turn_s + entry_s * groups with items + item_s * items)

where the factor is drawn from the measured distribution. The node does nothing else meanwhile.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from . import toml
from .errors import CalibrationError


class Calibration(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The costs of one node. :func:`load_calibration` raises CalibrationError for values out of range."""

    name: str = "unnamed"
    setting: str = ""
    """The machine, command and date of the measurement."""
    turn_s: float
    """Cost of a turn, whatever its content: fsync, replication, answers."""
    entry_s: float = 0.0
    """Cost of each group that has items in a turn."""
    item_s: float
    """Cost of each item."""
    factors: tuple[float, ...] = (1.0,)
    """Quantiles, evenly spaced, of a turn's time over the formula's; scaled to a mean of 1 when used."""
    fsync: bool = True
    """Whether it was measured with a disk that syncs."""
    r2: float = 0.0
    """Error of the regression that gave ``turn_s`` and ``item_s``."""
    intervals: dict[str, tuple[float, float]] = {}
    """Of a cost, the ends of the interval that its measurement leaves (95 %). Empty: not known."""

    def __post_init__(self) -> None:
        for key in ("turn_s", "entry_s", "item_s"):
            if not 0 <= getattr(self, key) <= 60:
                raise ValueError(f"{key} must be from 0 to 60 s, not {getattr(self, key)!r}")
        if self.turn_s + self.entry_s + self.item_s <= 0:
            raise ValueError("turn_s, entry_s and item_s must not all be 0")
        if not 1 <= len(self.factors) <= 10_000 or min(self.factors) < 0 or sum(self.factors) <= 0:
            raise ValueError("factors must be 1 to 10,000 numbers from 0 on, not all 0")
        for key, (low, high) in self.intervals.items():
            if key not in ("turn_s", "entry_s", "item_s"):
                raise ValueError(f"intervals are of turn_s, entry_s and item_s, not of {key}")
            if not 0 <= low <= getattr(self, key) <= high <= 60:
                raise ValueError(f"intervals.{key} must be two numbers from 0 to 60 s with {key} between them")

    def items_per_s(self, groups: int, batch_items: int, item_weight: float = 1.0) -> float:
        """Items per second of a node that leads ``groups``, at its best: full batches of all of them in every turn."""
        items = groups * batch_items
        return items / (self.turn_s + self.entry_s * groups + self.item_s * item_weight * items)


def load_calibration(name_or_path: str | Path = "default") -> Calibration:
    """A calibration of the package, by name, or one in a TOML file. Raises CalibrationError."""
    return toml.load("calibrations", name_or_path, Calibration, CalibrationError)
