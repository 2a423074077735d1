"""What a collapse is, for every model: goodput stays under half of what is offered for :data:`KEEPALIVES` keepalives.

Offered is what clients attempt, goodput the clients that come back. A storm that is merely long serves more than it
turns away once its queues are full and clients wait longer between attempts. One that collapses works for clients that
have given up, and its retries keep it there. Pure.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from ..scenario import Disconnect
from ..wording import seconds

KEEPALIVES: Final = 2.0
"""For so many on end. A client that was restored and is cut off again would have noticed it twice by then."""
GOODPUT: Final = 0.5
"""Of what is offered: with less, most of the work is for nothing."""
OUT: Final = 0.001
"""Of the clients: with fewer that are not back, the storm is over."""
_MOMENTS: Final = 10
"""Of a keepalive: goodput and offered load are those of a moment, because retries come in bursts."""


def keepalive_s(disconnect: Disconnect) -> float:
    """The mean keepalive of the clients."""
    return sum(each.share * each.keepalive_s for each in disconnect.keepalives)


def collapsed(
    clients: float, restored: npt.NDArray[np.float64], attempts: npt.NDArray[np.float64], keepalive: float
) -> bool:
    """Whether a storm of so many clients collapses. ``restored`` and ``attempts``: of all clients, in each second after
    the trigger, until the scenario's end. ``keepalive``: seconds. Where the scenario ends before, it must last for half
    of the scenario, and half a keepalive at least, up to the end."""
    moment = max(1, round(keepalive / _MOMENTS))
    sums = [np.concatenate([np.zeros(moment), np.cumsum(each)]) for each in (restored, attempts)]
    goodput, offered = (each[moment:] - each[:-moment] for each in sums)
    # Where nobody tries for a moment, what was before goes on: clients wait for their next attempt.
    last_tried = np.maximum.accumulate(np.where(offered > 0, np.arange(len(offered)), 0))
    poor = (goodput < GOODPUT * offered)[last_tried] & (clients - np.cumsum(restored) > OUT * clients)
    longest, last = _runs(poor)
    return longest >= KEEPALIVES * keepalive or last >= max(keepalive, len(restored)) / 2


def _runs(seconds_of: npt.NDArray[np.bool_]) -> tuple[int, int]:
    """The longest run of true values, and the one at the end."""
    ends = np.flatnonzero(np.diff(np.concatenate([[False], seconds_of, [False]]).astype(np.int8)))
    lengths = ends[1::2] - ends[::2]
    last = int(lengths[-1]) if len(lengths) and seconds_of[-1] else 0
    return int(lengths.max(initial=0)), last


def in_words(keepalive: float, collapses: Sequence[bool]) -> str:
    """What a collapse is, and how many of the seeds do."""
    times = f"{KEEPALIVES:g} keepalives ({seconds(math.ceil(KEEPALIVES * keepalive))})"
    of = f"{sum(collapses)} of {len(collapses)} seeds collapse" if len(collapses) > 1 else "It collapses"
    return f"{of}: for {times} or to the end, under half of what clients attempt succeeds."
