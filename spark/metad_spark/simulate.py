"""One node of a storm by the model that is asked for: what a Spark task, a test or a proof calls."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from .cases import NodeCase
from .results import NodeResult

Model = Literal["exact", "vector", "fluid"]
MODELS: tuple[Model, ...] = get_args(Model)


def simulate_node(case: NodeCase, seed: int, model: Model) -> NodeResult:
    """What becomes of a node's clients. The same case, seed and model give the same result anywhere; ``exact`` and
    ``vector`` give each other's. Raises SimulationError where the case is more than the model can hold."""
    if model == "exact":
        from .exact import simulate
    elif model == "vector":
        from .vector import simulate
    else:
        from .fluid import simulate
    return simulate(case, seed)


@dataclass(frozen=True, kw_only=True)
class Task:
    """A node to simulate."""

    case: NodeCase
    seed: int
    model: Model


Runner = Callable[[Sequence[Task]], list[NodeResult]]
"""Simulates nodes and gives their results in the tasks' order: :func:`run_here`, or one Spark job."""


def run_here(tasks: Sequence[Task]) -> list[NodeResult]:
    """One after the other in this process, for tests, proofs and small storms."""
    return [simulate_node(task.case, task.seed, task.model) for task in tasks]
