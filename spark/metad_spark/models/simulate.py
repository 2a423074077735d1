"""One node of a storm: called by Spark tasks, tests and proofs."""

from __future__ import annotations

from typing import Final

from . import vector
from .invariants import check_node
from .node_input import NodeInput
from .results import NodeResult

MODEL: Final = "vector"
"""What results say by which they were made."""


def simulate_node(node_input: NodeInput, seed: int) -> NodeResult:
    """What becomes of a node's clients. The same input and seed give the same result anywhere. Raises SimulationError
    where the input is more than the model can hold, and where the result breaks an invariant."""
    result = vector.simulate(node_input, seed)
    check_node(node_input, result)
    return result
