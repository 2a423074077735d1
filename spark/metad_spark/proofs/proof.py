"""One proof: the expected and the measured result, and how far apart they may be."""

from __future__ import annotations

import msgspec

THEORY_ERROR_MAX = 0.005
ANCHOR_ERROR_MAX = 0.01
"""Of the vector model in a quantile, a share of refusals, or a drain."""
SLICES_ERROR_MAX = 0.03
"""Of the sum of slices against the storm that is not cut."""
STANDARD_ERRORS_MAX = 3.0


class Proof(msgspec.Struct, frozen=True, kw_only=True):
    """One proof."""

    name: str
    expected: str
    measured: str
    error: float
    """In the unit of the bar; if nothing can be measured, 0 for right and 1 for wrong."""
    bar: float
    """The largest error that passes."""
    unit: str
    """The unit of error and bar."""
    passed: bool


def proof(name: str, expected: str, measured: str, error: float, bar: float, unit: str) -> Proof:
    """It passes if the error is not above the bar."""
    error = float(error)
    return Proof(name=name, expected=expected, measured=measured, error=error, bar=bar, unit=unit, passed=error <= bar)


def anchor(name: str, expected: float, measured: float, unit: str, bar: float = ANCHOR_ERROR_MAX) -> Proof:
    """A number that is known otherwise, and the relative error of the measured one."""
    error = abs(measured / expected - 1)
    return proof(name, f"{expected:.6g} {unit}", f"{measured:.6g} {unit}", error, bar, "of itself")
