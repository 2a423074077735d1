"""One node of a storm by the requested model: called by Spark tasks, tests and proofs."""

from __future__ import annotations

from typing import Literal, get_args

from . import exact, fluid, vector
from .invariants import check_node
from .node_input import NodeInput
from .results import NodeResult

Model = Literal["exact", "vector", "fluid"]
MODELS: tuple[Model, ...] = get_args(Model)


def simulate_node(node_input: NodeInput, seed: int, model: Model) -> NodeResult:
    """What becomes of a node's clients. The same input, seed and model give the same result anywhere; ``exact`` and
    ``vector`` give each other's. Raises SimulationError where the input is more than the model can hold, and where the
    result breaks an invariant."""
    simulate = {"exact": exact.simulate, "vector": vector.simulate, "fluid": fluid.simulate}[model]
    result = simulate(node_input, seed)
    check_node(node_input, result, is_fluid=model == "fluid")
    return result
