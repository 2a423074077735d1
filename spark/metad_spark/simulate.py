"""One node of a storm by the model that is asked for: what a Spark task, a test or a proof calls."""

from __future__ import annotations

from typing import Literal, get_args

from . import exact, fluid, vector
from .cases import NodeCase
from .results import NodeResult

Model = Literal["exact", "vector", "fluid"]
MODELS: tuple[Model, ...] = get_args(Model)


def simulate_node(case: NodeCase, seed: int, model: Model) -> NodeResult:
    """What becomes of a node's clients. The same case, seed and model give the same result anywhere; ``exact`` and
    ``vector`` give each other's. Raises SimulationError where the case is more than the model can hold."""
    if model == "exact":
        return exact.simulate(case, seed)
    if model == "vector":
        return vector.simulate(case, seed)
    return fluid.simulate(case, seed)
