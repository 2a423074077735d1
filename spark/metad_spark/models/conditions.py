"""The conditions under which the fluid model is within 2 % of the vector model in t99.9 and attempts, and what breaks
them.

They were found by comparing both models in random storms. Outside of them the fluid model's answer is not shown.
"""

from __future__ import annotations

import math

import numpy as np

from .node_input import NodeInput
from .results import NodeResult

ERROR_MAX = 0.02
"""Of t99.9 and of attempts, while all conditions hold."""
NEAR_S = 0.1
"""Times that are nearer than this are not told apart: it is a few of the fluid model's steps."""
_LEFT_SHARE_MAX = 0.001
"""Of attempts."""
_LINGER_US_MAX = 20_000
_BURST_MAX = 1
_ROOM_MIN = 64
_ROOM_SIGMAS = 4.0
_CROWDED_SHARE = 0.5
"""Refused attempts: from here on queues are full because more come than can be served, not by chance."""
_CHANCE_MAX = 0.01
"""Standard deviation of the time that a node's turns take, all together."""


def broken(node_input: NodeInput, result: NodeResult) -> str | None:
    """The condition that a node's storm by the fluid model breaks, in words; None where it may be believed."""
    if result.left > _LEFT_SHARE_MAX * result.attempts:
        return "clients give up at brokers' doors"
    if node_input.window.linger_us > _LINGER_US_MAX:
        return f"brokers linger for more than {_LINGER_US_MAX // 1000} ms"
    if node_input.budget is not None and node_input.budget.burst > _BURST_MAX:
        return "a retry budget allows several retries at once"
    if node_input.returns is not None and node_input.outages:
        return "a node dies that gives out return slots"
    if 0 < node_input.admission.items_max < _room(node_input) and result.rejected < _CROWDED_SHARE * result.attempts:
        return "chance fills a queue that has room for so few items"
    return None


def _room(node_input: NodeInput) -> float:
    """Room that chance hardly ever fills while no more come than can be served: for what comes in a turn, with
    luck, and enough that the queue does not wander from one end to the other."""
    return max(_ROOM_MIN, node_input.batch_items + _ROOM_SIGMAS * math.sqrt(node_input.batch_items))


def is_chance(node_input: NodeInput, result: NodeResult) -> str | None:
    """Whether chance moves a node's storm by more than the fluid model may be off, in words. Comparisons of settings
    leave chance out, so it matters to single storms only."""
    turns = float(result.served_by_s.sum()) / (node_input.groups * node_input.batch_items)
    if float(np.std(node_input.factors)) / math.sqrt(max(1.0, turns)) > _CHANCE_MAX:
        return f"a node's work is some {max(1, round(turns))} full turns, too few for their times to even out"
    return None


def disagreement(first: tuple[float | None, float, float], second: tuple[float | None, float, float]) -> str | None:
    """How two models disagree that must be within :data:`ERROR_MAX` of each other, in words. Each says when 99.9 % are
    back, the share that is back at the end, and the attempts per client."""
    (time_s, share, attempts), (other_s, other_share, other_attempts) = first, second
    if time_s is not None and other_s is not None:
        if abs(time_s - other_s) > max(NEAR_S, ERROR_MAX * other_s):
            return f"99.9 % are back after {time_s:.4g} s by the fluid model, {other_s:.4g} s by the other"
    elif abs(share - other_share) > ERROR_MAX:
        return f"{100 * share:.4g} % are back at the end by the fluid model, {100 * other_share:.4g} % by the other"
    if abs(attempts / max(other_attempts, 1e-9) - 1) > ERROR_MAX:
        return f"{attempts:.4g} attempts per client by the fluid model, {other_attempts:.4g} by the other"
    return None
