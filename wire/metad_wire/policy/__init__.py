"""The policies of SDK, server and simulation: pure, seeded, without a clock of their own.

Each is written once, here. :mod:`metad_wire.policy.vector` has draws and backoffs for millions of clients at a time: it
needs numpy and computes the same bits. So does the simulation's machine code (``metad_spark/models/vector_steps.py``).
Besides, only :mod:`metad_wire.policy.seats`, which places replicas, needs numpy. Times are seconds unless the name says
otherwise.
"""

from __future__ import annotations

from .backoff import FAMILIES, Backoff, Family
from .draw import draw, uniform
from .path import PathChoice, PathRule, Way
from .rates import Admission, BatchWindow, QueueRate, RetryBudget
from .returns import ReturnSlots

__all__ = [
    "FAMILIES",
    "Admission",
    "Backoff",
    "BatchWindow",
    "Family",
    "PathChoice",
    "PathRule",
    "QueueRate",
    "RetryBudget",
    "ReturnSlots",
    "Way",
    "draw",
    "uniform",
]
