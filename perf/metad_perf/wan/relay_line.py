"""One direction of an emulated path: whether and when a packet that is sent now arrives. Pure; time and random numbers
are passed in.

In the order of a real path: the packet waits in the bottleneck's queue (which drops what it cannot hold), is put on the
line at the line's rate, may be lost, and travels for the delay, give or take the jitter. A line keeps the order of
packets despite jitter; only packets that are drawn to be late are overtaken.
"""

from __future__ import annotations

import random

import msgspec

_NS_PER_MS = 1_000_000
PACKETS_HELD_MAX = 65_536  # of one direction: 90 MiB of full packets; 100 Mbit/s hold 8,000 for a second
_DELAY_MS_MAX = 60_000.0


class Path(msgspec.Struct, frozen=True, kw_only=True):
    """The properties of one direction. Raises ValueError for a value out of range."""

    delay_ms: float = 0.0
    """One way."""
    jitter_ms: float = 0.0
    """Added to the delay, uniform in ± this; at most the delay."""
    loss_pct: float = 0.0
    """Share of all packets, each lost by itself."""
    reorder_pct: float = 0.0
    """Share of all packets: they come ``reorder_ms`` late, while later ones do not wait for them."""
    reorder_ms: float = 1.0
    mbit_per_s: float = 0.0
    """Rate of the bottleneck, IP headers included; 0: no bottleneck."""
    queue_bytes: int = 256 * 1024
    """Bytes that may wait before the bottleneck; one more packet is dropped."""
    cut: bool = False
    """Nothing arrives, except packets already on their way."""

    def __post_init__(self) -> None:
        """Check the ranges."""
        if not 0 <= self.delay_ms <= _DELAY_MS_MAX or not 0 <= self.jitter_ms <= self.delay_ms:
            raise ValueError(f"a delay is 0 to {_DELAY_MS_MAX:g} ms, and jitter at most the delay")
        if not (0 <= self.loss_pct <= 100 and 0 <= self.reorder_pct <= 100):
            raise ValueError("loss and reorder are 0 to 100 per cent")
        if self.reorder_ms < 0 or self.mbit_per_s < 0 or self.queue_bytes < 0:
            raise ValueError("reorder_ms, mbit_per_s and queue_bytes are not below 0")


class Counts(msgspec.Struct, kw_only=True):
    """A direction's counts of packets so far."""

    packets: int = 0
    """Packets that came in."""
    bytes: int = 0
    lost: int = 0
    """Lost by chance, as configured."""
    dropped: int = 0
    """Dropped by a full queue."""
    cut: int = 0
    overtaken: int = 0
    """Drawn to be late."""


class Line:
    """One direction. ``seed`` fixes its random numbers: the same packets have the same fate."""

    def __init__(self, path: Path, seed: str) -> None:
        self._random = random.Random(seed).random
        self.counts = Counts()
        self.held = 0
        """Packets that have a due time and have not been delivered; the owner lowers it."""
        self.shape(path)

    def shape(self, path: Path) -> None:
        """Use this path from now on; packets on their way keep their due times."""
        self.path = path
        self._delay_ns = round(path.delay_ms * _NS_PER_MS)
        self._jitter_ns = round(path.jitter_ms * _NS_PER_MS)
        self._reorder_ns = round(path.reorder_ms * _NS_PER_MS)
        self._loss = path.loss_pct / 100
        self._reorder = path.reorder_pct / 100
        self._ns_per_byte = 8_000 / path.mbit_per_s if path.mbit_per_s else 0.0
        self._queue_ns = path.queue_bytes * self._ns_per_byte
        self._free_ns = 0.0  # when the bottleneck has sent everything that waits
        self._last_due_ns = 0

    def due_ns(self, now_ns: int, size_bytes: int) -> int | None:
        """When the packet arrives, ns on the clock of ``now_ns``; None: never."""
        counts, path = self.counts, self.path
        counts.packets += 1
        counts.bytes += size_bytes
        if path.cut:
            counts.cut += 1
            return None
        begin_ns: float = now_ns
        if self._ns_per_byte:
            begin_ns = max(begin_ns, self._free_ns)
            if begin_ns - now_ns > self._queue_ns:
                counts.dropped += 1
                return None
            begin_ns += size_bytes * self._ns_per_byte
            self._free_ns = begin_ns
        if self._loss and self._random() < self._loss:  # lost on the line: it has used the bottleneck
            counts.lost += 1
            return None
        if self.held >= PACKETS_HELD_MAX:
            counts.dropped += 1
            return None
        self.held += 1
        due_ns = int(begin_ns) + self._delay_ns
        if self._jitter_ns:
            due_ns += int((2 * self._random() - 1) * self._jitter_ns)
        if self._reorder and self._random() < self._reorder:
            counts.overtaken += 1
            return due_ns + self._reorder_ns
        if due_ns < self._last_due_ns:
            due_ns = self._last_due_ns
        self._last_due_ns = due_ns
        return due_ns
