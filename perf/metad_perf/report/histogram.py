"""Latencies of one process, and their sum over processes, as HDR histograms (Gil Tene, hdrhistogram.org).

Recording must cost the load generator as little as possible, so a latency is appended to a list, which is folded into
the histogram when it is long. Microseconds in, milliseconds out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from hdrh.histogram import HdrHistogram

LATENCY_US_MAX = 3_600_000_000  # an hour; longer latencies are recorded as an hour
SIGNIFICANT_DIGITS = 3
_PENDING_MAX = 20_000  # bounds the list; folding this many takes a few milliseconds


class Latencies:
    """Records latencies in nanoseconds, answers percentiles in milliseconds."""

    def __init__(self) -> None:
        self._pending: list[int] = []
        self._histogram = HdrHistogram(1, LATENCY_US_MAX, SIGNIFICANT_DIGITS)

    def note(self, latency_ns: int) -> None:
        """Record one latency."""
        pending = self._pending
        pending.append(latency_ns // 1_000)
        if len(pending) >= _PENDING_MAX:
            self._fold()

    def extend(self, latencies_ns: Sequence[int]) -> None:
        """Record several."""
        self._pending += [latency_ns // 1_000 for latency_ns in latencies_ns]
        if len(self._pending) >= _PENDING_MAX:
            self._fold()

    def _fold(self) -> None:
        for latency_us, count in Counter(self._pending).items():
            self._histogram.record_value(min(max(latency_us, 1), LATENCY_US_MAX), count)
        self._pending.clear()

    @property
    def count(self) -> int:
        """The number of recorded latencies."""
        self._fold()
        return int(self._histogram.get_total_count())

    def percentile_ms(self, percentile: float) -> float:
        """The latency that ``percentile`` per cent of the requests stayed within; 0 if there were none."""
        self._fold()
        if not self._histogram.get_total_count():
            return 0.0
        return float(self._histogram.get_value_at_percentile(percentile)) / 1_000

    def max_ms(self) -> float:
        """The longest latency."""
        self._fold()
        return float(self._histogram.get_max_value()) / 1_000

    def encode(self) -> bytes:
        """The histogram as HDR V2 bytes, to be merged elsewhere."""
        self._fold()
        return bytes(self._histogram.encode())

    @classmethod
    def merged(cls, encoded: Iterable[bytes]) -> Latencies:
        """The sum of encoded histograms."""
        total = cls()
        for one in encoded:
            total._histogram.decode_and_add(one)
        return total
