"""The result of a storm from what its processes say. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import reduce
from typing import Any, Final

import numpy as np

from .broker import REFUSED
from .judge import DAMAGED, GONE, WRONG_OWNER, Verdict
from .orders import Result
from .population import Ints
from .trace import Series

KEYS: Final = (
    "sessions",
    "restored",
    "t50_s",
    "t99_s",
    "t999_s",
    "attempts_per_session",
    "rejected",
    "elections",
    "brokers_fenced",
    "sessions_expired_wrongly",
    "wills_fired_wrongly",
    "goodput_before",
    "goodput_after",
    "rss_max_mib",
    "lost",
)
"""Those that a report always has, and begins with."""
PERCENTILES: Final = (10.0, 50.0, 90.0, 99.0, 99.9, 99.99, 100.0)


def restored_by_s(waited_ns: Ints, percent: float) -> float | None:
    """The time by which that share of all clients was back, each counted from when it lost its connection. None if
    fewer are. ``waited_ns``: -1 for a client that is not back."""
    back = np.sort(waited_ns[waited_ns >= 0])
    wanted = int(np.ceil(len(waited_ns) * percent / 100 - 1e-9))
    if not wanted or wanted > len(back):
        return None
    return float(back[wanted - 1] / 1e9)


def combined(results: Sequence[Result]) -> Series:
    """The series of all processes."""
    return reduce(Series.plus, (one.series for one in results))


def summary(results: Sequence[Result], at_end: Verdict) -> dict[str, Any]:
    """What all processes together say."""
    waited_ns = np.concatenate([one.waited_ns for one in results])
    expected = len(waited_ns)
    restored = int((waited_ns >= 0).sum())
    again = sum(sum(one.repeated.values()) for one in results)
    attempts = sum(one.attempts for one in results)
    verdict = reduce(Verdict.plus, (one.verdict for one in results), at_end)
    returned = reduce(Verdict.plus, (one.verdict for one in results))
    failed: Counter[str] = Counter()
    retried: Counter[str] = Counter()
    for one in results:
        failed.update(one.failed)
        retried.update(one.retried)
    return {
        "returning": expected,
        "restored": restored,
        **{_name(percent): restored_by_s(waited_ns, percent) for percent in (50.0, 99.0, 99.9)},
        "percentiles_s": {f"{percent:g}": restored_by_s(waited_ns, percent) for percent in PERCENTILES},
        "attempts_per_session": (attempts + again) / expected if expected else 0.0,
        "device_attempts": attempts,
        "sdk_attempts_again": again,
        "rejected": sum(one.refused + one.repeated.get(REFUSED, 0) for one in results),
        "failed": dict(failed),
        "sdk_retries_by_reason": dict(retried),
        "lives_lost": sum(one.lives_lost for one in results),
        "sessions_expired_wrongly": max(at_end.faults.get(GONE, 0), returned.faults.get(GONE, 0)),
        "lost": max(_lost(at_end), _lost(returned)),
        "wrong_when_back": returned.faults,
        "wrong_at_the_end": at_end.faults,
        "examples": verdict.examples,
    }


def _lost(verdict: Verdict) -> int:
    return sum(verdict.faults.get(fault, 0) for fault in (GONE, DAMAGED, WRONG_OWNER))


def _name(percent: float) -> str:
    return f"t{f'{percent:g}'.replace('.', '')}_s"
