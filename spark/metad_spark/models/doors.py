"""The doors of brokers, for arrays of clients: each lets them through one after the other, in the order in which they
come.

Compiled, because whether a client passes depends on all that came before it: one that has given up by its turn costs
the broker nothing."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from .compiled import kept

Ints = npt.NDArray[np.int64]
GONE = -1
"""In place of a time: the client has given up by then."""


@kept
def pass_doors(
    reached_us: Ints, deadline_us: Ints, region: Ints, door: Ints, free_ns: Ints, intervals_ns: Ints, wave_us: int
) -> Ints:
    """When each client passes, or :data:`GONE`. Clients are in the order in which they come. ``free_ns``: when each
    door is free, which is brought up to date. ``intervals_ns``: from one client to the next, by region and point."""
    passes = np.empty(len(reached_us), np.int64)
    last = intervals_ns.shape[1] - 1
    for at in range(len(reached_us)):
        turn_ns = max(reached_us[at] * 1000, free_ns[door[at]])
        pass_us = -(-turn_ns // 1000)
        if pass_us > deadline_us[at]:
            passes[at] = -1
        else:
            passes[at] = pass_us
            free_ns[door[at]] = turn_ns + intervals_ns[region[at], min(pass_us // wave_us, last)]
    return passes
