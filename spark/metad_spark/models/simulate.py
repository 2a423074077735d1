"""One node of a storm by the model that is asked for: what a Spark task, a test or a proof calls."""

from __future__ import annotations

from typing import Literal, get_args

from . import exact, fluid, vector
from .node_input import NodeInput
from .results import NodeResult

Model = Literal["exact", "vector", "fluid"]
MODELS: tuple[Model, ...] = get_args(Model)


def simulate_node(node_input: NodeInput, seed: int, model: Model) -> NodeResult:
    """What becomes of a node's clients. The same input, seed and model give the same result anywhere; ``exact`` and
    ``vector`` give each other's. Raises SimulationError where the input is more than the model can hold."""
    if model == "exact":
        return exact.simulate(node_input, seed)
    if model == "vector":
        return vector.simulate(node_input, seed)
    return fluid.simulate(node_input, seed)
