"""Targets that no cluster can meet, by counting alone: each reason is a bound that holds whatever it does. Pure.

A search that finds nothing is no proof. These are: clients cannot be back before they know that they were disconnected
and have done a handshake; nodes cannot serve more than their capacity times the time; nor brokers do more handshakes.
"""

from __future__ import annotations

import math

from .calibration import Calibration
from .models.node_input import brokers_of
from .scenario import BROKERS_MAX, ROUND_TRIPS, Scenario
from .target import Target

_OFF = 1.02
_OFF_S = 0.1
"""By these a bound is loosened: times are read from bins, and the first entries are on their way at once."""
_SIGMAS = 4.0


def why_impossible(scenario: Scenario, calibration: Calibration, target: Target, nodes_max: int) -> str:
    """Why no cluster of up to ``nodes_max`` nodes meets the target, in words; empty where that is not certain."""
    most_s = target.seconds * _OFF + _OFF_S
    if (knows_s := earliest_s(scenario, target.share)) > most_s:
        share = f"{target.share * 100:g} % of the clients"
        return f"{share} cannot be back before {knows_s:.4g} s: by then they have not learned of it and shaken hands"
    wanted = target.share * scenario.clients
    # Entries without end: the rest of a turn costs nothing then.
    item_s = calibration.item_s * scenario.sessions.item_weight() * min(1.0, *_slowdowns(scenario))
    if item_s and (least_s := wanted * item_s / nodes_max) > most_s:
        return (
            f"{nodes_max:,} nodes, the most that there can be, need {least_s:.4g} s to serve {wanted:,.0f} clients at"
            f" {item_s * 1e6:.3g} us each, the high end of what one costs"
        )
    if (brokers := brokers_least(scenario, target)) > BROKERS_MAX:
        return f"it takes {brokers:,} brokers to do that many handshakes in time, and {BROKERS_MAX:,} are the most"
    return ""


def _slowdowns(scenario: Scenario) -> list[float]:
    """Of the nodes that die: those that take over may be faster."""
    return [1.0, *(change.slowdown for change in scenario.leader_changes)]


def brokers_least(scenario: Scenario, target: Target) -> int:
    """No fewer brokers can do the handshakes in time; 1 where handshakes cost them nothing."""
    brokers = scenario.brokers
    if not brokers.connects_per_s:
        return 1
    wanted = target.share * scenario.clients / (brokers.connects_per_s * (target.seconds * _OFF + _OFF_S))
    # Each region has one broker at least, so a scenario may have more than it counts.
    spare = sum(brokers_of(scenario)) - brokers.count
    return max(1, math.ceil(wanted) - spare)


def earliest_s(scenario: Scenario, share: float) -> float:
    """Before that, so large a share of the clients cannot be back: not so many have begun a handshake long enough
    before. Chance is allowed for."""
    share -= _SIGMAS * math.sqrt(share * (1 - share) / scenario.clients) + 1 / scenario.clients
    disconnect = scenario.disconnect
    widths = [(1 - disconnect.silent_share, disconnect.spread_s)]
    widths += [(disconnect.silent_share * each.share, each.keepalive_s) for each in disconnect.keepalives]
    low, high = 0.0, max(width for _, width in widths)
    for _ in range(60):
        middle = (low + high) / 2
        begun = sum(part * (min(1.0, middle / width) if width else 1.0) for part, width in widths)
        low, high = (middle, high) if begun < share else (low, middle)
    rtt_s = min(region.rtt_ms for region in scenario.regions if region.share) / 1000
    trips = min(n for n, part in zip(ROUND_TRIPS, scenario.transports.shares(), strict=True) if part)
    return low + rtt_s * trips
