"""What processes of this machine have used, by their ids."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable

import psutil


def cpu_s(pids: Iterable[int]) -> float:
    """User and system time so far of those of these processes that run."""
    total = 0.0
    for pid in pids:
        with contextlib.suppress(psutil.Error):
            times = psutil.Process(pid).cpu_times()
            total += times.user + times.system
    return total


def rss_bytes(pids: Iterable[int]) -> int:
    """Resident memory now of those of these processes that run."""
    total = 0
    for pid in pids:
        with contextlib.suppress(psutil.Error):
            total += int(psutil.Process(pid).memory_info().rss)
    return total
