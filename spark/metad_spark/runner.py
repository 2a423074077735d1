"""The seam between what wants nodes simulated (storms, coupling, sizing) and what does it: this process, or Spark.

Both give the same results in the same order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from .cases import NodeCase
from .results import NodeResult
from .simulate import Model, simulate_node


@dataclass(frozen=True, kw_only=True)
class Task:
    """A node to simulate."""

    case: NodeCase
    seed: int
    model: Model


Runner = Callable[[Sequence[Task]], list[NodeResult]]
"""Simulates nodes and gives their results in the tasks' order: :func:`run_here`, or ``Stage.run``, which is one Spark
job."""


def run_here(tasks: Sequence[Task]) -> list[NodeResult]:
    """One after the other in this process, for tests, proofs and small storms."""
    return [simulate_node(task.case, task.seed, task.model) for task in tasks]
