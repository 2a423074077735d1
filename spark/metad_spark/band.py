"""The error band of a prediction: the same storm if all costs are as low, and as high, as their measurement allows, and
as far off as predictions of storms that happened were.

A storm is not in proportion to its costs: near a cliff a few percent decide. So the ends of the band are storms of
their own, not a percentage of the one in the middle. The high end also has the groups uneven: 1,024 slots do not divide
evenly into most numbers of groups, and the groups with one slot more end last. Pure.
"""

from __future__ import annotations

from collections.abc import Callable

from msgspec.structs import replace

from metad_wire.cluster import SLOTS

from .calibration import Calibration
from .scenario import CLIENTS_MAX, Scenario

COSTS = ("turn_s", "entry_s", "item_s")
Uneven = Callable[[int], float]
"""How many clients the fullest of so many groups has, over the mean."""
ASSUMED = 0.25
"""Of a calibration that has no intervals: how far a cost is taken to be off. The rounds of one calibration differ by 10
to 15 %, and other machines by more."""


def is_measured(calibration: Calibration) -> bool:
    """Whether every cost that counts has an interval."""
    return all(key in calibration.intervals for key in COSTS if getattr(calibration, key))


def lowest(calibration: Calibration) -> Calibration:
    """All costs at the low end of their intervals."""
    return _at(calibration, 0)


def highest(calibration: Calibration) -> Calibration:
    """All costs at the high end of their intervals."""
    return _at(calibration, 1)


def _at(calibration: Calibration, end: int) -> Calibration:
    factor = 1 + ASSUMED if end else 1 - ASSUMED
    costs = {
        key: min(60.0, calibration.intervals[key][end] if key in calibration.intervals else value * factor)
        for key in COSTS
        for value in (getattr(calibration, key),)
    }
    return replace(calibration, **costs, intervals={})


def unevenness(groups: int) -> float:
    """The slots of the largest of so many groups over the mean: 1 where 1,024 is a multiple of them."""
    return -(-SLOTS // groups) * groups / SLOTS


def heaviest(scenario: Scenario, uneven: Uneven = unevenness) -> Scenario:
    """The storm if every group were as full as the fullest, which is :func:`unevenness` if nothing else is known: one
    with most slots. Each group has so many more clients; the brokers, which do not care for groups, do so many more
    handshakes."""
    factor = uneven(scenario.cluster.groups)
    return replace(
        scenario,
        clients=min(CLIENTS_MAX, round(scenario.clients * factor)),
        brokers=replace(scenario.brokers, connects_per_s=scenario.brokers.connects_per_s * factor),
    )


def in_words(calibration: Calibration) -> str:
    """Where the band comes from."""
    if is_measured(calibration):
        return "the 95 % intervals of the calibration"
    return f"the calibration has no intervals, so its costs are taken to be off by up to {ASSUMED * 100:g} %"
