"""What to set in metad for a scenario's cluster, and what each setting costs. Pure.

Only keys that ``metad config`` knows; a test compares every one with metad's declarations, and checks whole
configurations by metad's own rules."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from .calibration import Calibration
from .changes import queue_s, serves
from .footprint import (
    CONNECTIONS_MAX,
    IN_FLIGHT_BYTES,
    MIB,
    OWNER_CACHE_BYTES,
    WIRE_BYTES,
    Footprint,
    footprint,
)
from .scenario import Scenario

_ENTRY_BYTES = MIB
"""``commit.entry_bytes_max`` by default."""
_QUEUE_MS_MAX = 3_600_000
"""In place of no bound, which metad does not have: nobody waits for so long."""


@dataclass(frozen=True, kw_only=True)
class Setting:
    """One key of metad's configuration."""

    key: str
    """As in ``groups.data``."""
    value: int
    cost: str
    """What it costs the operator, in words."""


def settings(scenario: Scenario, calibration: Calibration) -> list[Setting]:
    """What differs from metad's defaults, or must be as the simulation took it. The same on all nodes."""
    cluster, needs = scenario.cluster, footprint(scenario)
    led = cluster.groups / cluster.nodes
    turn_s = calibration.turn_s + led * (calibration.entry_s + calibration.item_s * cluster.batch_items)
    found = [
        Setting(
            key="groups.data",
            value=cluster.groups,
            cost=f"{led * calibration.entry_s * 1000:.1f} ms of each turn, for {led:.3g} groups a node",
        ),
        Setting(
            key="commit.entry_items_max",
            value=cluster.batch_items,
            cost=f"a full turn takes {turn_s * 1000:.0f} ms, and who comes then waits for it",
        ),
        Setting(
            key="limits.queue_ms",
            value=queue_ms(scenario, calibration),
            cost="who waits in front of a group waits no longer; more are turned away where it is shorter",
        ),
    ]
    entry_bytes = cluster.batch_items * WIRE_BYTES
    if entry_bytes > _ENTRY_BYTES:
        found.append(_bytes("commit.entry_bytes_max", entry_bytes, "of each entry on the disk and on the network"))
    if scenario.returns.of_capacity:
        per_node = scenario.returns.of_capacity * serves(scenario, calibration) / cluster.nodes
        found.append(
            Setting(
                key="limits.returning_per_s",
                value=max(1, round(per_node)),
                cost="who is turned away comes back no faster, also where a node could do more",
            )
        )
    return found + _memory(needs)


def queue_ms(scenario: Scenario, calibration: Calibration) -> int:
    """metad bounds a queue by the time that it takes, the simulation by items."""
    return max(1, min(_QUEUE_MS_MAX, round(1000 * min(queue_s(scenario, calibration), _QUEUE_MS_MAX / 1000))))


def _memory(needs: Footprint) -> list[Setting]:
    """Budgets that are too small by default."""
    found = []
    if needs.in_flight_bytes > IN_FLIGHT_BYTES:
        found.append(_bytes("limits.in_flight_bytes_max", needs.in_flight_bytes, "of memory, when all queues are full"))
    if needs.owner_cache_bytes > OWNER_CACHE_BYTES:
        found.append(_bytes("storage.owner_cache_bytes", needs.owner_cache_bytes, "of memory"))
    if needs.connections > CONNECTIONS_MAX:
        found.append(
            Setting(key="limits.connections_max", value=needs.connections, cost="memory of connections, and handshakes")
        )
    return found


def _bytes(key: str, value: int, what: str) -> Setting:
    return Setting(key=key, value=value, cost=f"{value / MIB:,.0f} MiB {what}")


def to_toml(chosen: list[Setting]) -> str:
    """The settings as a part of a file for ``metad serve --config``."""
    sections: dict[str, list[str]] = {}
    for setting in chosen:
        section, _, key = setting.key.partition(".")
        sections.setdefault(section, []).append(f"{key} = {msgspec.json.encode(setting.value).decode()}")
    return "\n".join(line for section, lines in sections.items() for line in (f"[{section}]", *lines, "")) + ""
