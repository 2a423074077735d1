"""Times as a logarithmic histogram that merges by adding, because quantile sketches of the tail do not.

Bin i holds the times from ``TIME_MIN_S * RATIO**i`` on; the first also shorter ones. Bins 0.2 % wide, read with
interpolation, are finer than any question needs.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

TIME_MIN_S = 0.001
RATIO = 1.002
BINS = math.ceil(math.log(8_000.0 / TIME_MIN_S) / math.log(RATIO))
"""Up to more than two hours: the longest horizon and the answers after it."""
_LOG = math.log(RATIO)

Counts = npt.NDArray[np.float64]


def bin_of(times_s: npt.NDArray[np.float64]) -> npt.NDArray[np.int64]:
    """The bin of each time."""
    bins = (np.log(np.maximum(times_s, TIME_MIN_S) / TIME_MIN_S) / _LOG).astype(np.int64)
    return np.minimum(bins, BINS - 1)


def counted(times_us: npt.NDArray[np.integer]) -> Counts:
    """The histogram of times in microseconds."""
    return np.bincount(bin_of(times_us.astype(np.float64) * 1e-6), minlength=BINS).astype(np.float64)


def quantile_s(counts: Counts, share: float, total: float) -> float | None:
    """The time by which ``share`` of ``total`` has come; None if the histogram holds less."""
    wanted = share * total
    sums = np.cumsum(counts)
    if not total or sums[-1] < wanted * (1 - 1e-12):
        return None
    at = int(np.searchsorted(sums, wanted * (1 - 1e-12)))
    before = float(sums[at - 1]) if at else 0.0
    inside = (wanted - before) / float(counts[at]) if counts[at] else 1.0
    return float(TIME_MIN_S * RATIO ** (at + min(max(inside, 0.0), 1.0)))
