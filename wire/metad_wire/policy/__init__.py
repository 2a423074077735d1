"""The policies that server, SDK, harness and simulation share: pure, seeded, no clock of their own.

Each is written once, here. What the simulation needs for millions of clients at a time is in
:mod:`metad_wire.policy.vector`, which needs numpy and gives the same bits; nothing else here does, and nothing here
imports it. Times are seconds unless the name says otherwise.
"""

from __future__ import annotations

from .admission import Admission
from .backoff import FAMILIES, Backoff, Family
from .budget import RetryBudget
from .draw import draw, uniform
from .path import PathChoice, PathRule, Way
from .returning import ReturnSlots
from .window import BatchWindow

__all__ = [
    "FAMILIES",
    "Admission",
    "Backoff",
    "BatchWindow",
    "Family",
    "PathChoice",
    "PathRule",
    "RetryBudget",
    "ReturnSlots",
    "Way",
    "draw",
    "uniform",
]
