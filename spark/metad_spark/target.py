"""The target of a storm: a share of all clients must be back by a time."""

from __future__ import annotations

import re
from dataclasses import dataclass

from .errors import UsageError

SHARES = {"t50": 0.5, "t99": 0.99, "t999": 0.999}
"""The names of the result's keys, without their unit."""
_UNITS_S = {"s": 1.0, "min": 60.0, "h": 3600.0}
_FORM = re.compile(r"(t50|t99|t999)(?:_s)?<=?(\d+(?:\.\d+)?)(s|min|h)?")


@dataclass(frozen=True, kw_only=True)
class Target:
    """``key`` (of :data:`SHARES`) within ``seconds``."""

    key: str = "t999"
    seconds: float = 300.0

    @property
    def share(self) -> float:
        """Share of all clients."""
        return SHARES[self.key]

    def __str__(self) -> str:
        return f"{self.share * 100:g} % back in {self.seconds:g} s"


def parse_target(text: str) -> Target:
    """A target written as ``t999<=300s`` or ``t99 <= 5 min``. Raises UsageError that says how to write one."""
    found = _FORM.fullmatch(text.replace(" ", ""))
    if found is None or float(found[2]) <= 0:
        raise UsageError(f'{text!r} is no target: write one as "t999<=300s" ({", ".join(SHARES)}; s, min, h)')
    return Target(key=found[1], seconds=float(found[2]) * _UNITS_S[found[3] or "s"])
