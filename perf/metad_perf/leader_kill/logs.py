"""What the nodes say of a kill, in their logs. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Any, NamedTuple

import msgspec


class Said(NamedTuple):
    """When, in milliseconds after the kill, another node said that its connection is lost, and by group that it
    leads. None and no entry: it was not said."""

    detected_ms: float | None
    led_ms: dict[str, float]


def said(lines: Iterable[str], *, node: str, groups: Iterable[str], killed_unix_s: float, end_unix_s: float) -> Said:
    """``lines`` of the logs of the other nodes; ``groups``: those that the killed node led."""
    lost: list[float] = []
    led: dict[str, float] = {}
    wanted = set(groups)
    for line in lines:
        try:
            told: dict[str, Any] = msgspec.json.decode(line, type=dict)
            at_s = datetime.fromisoformat(told["ts"]).timestamp()
        except (msgspec.DecodeError, KeyError, ValueError):
            continue  # not of our log: a traceback, or half a line
        # The log has whole milliseconds, cut off.
        if not killed_unix_s - 0.001 <= at_s <= end_unix_s:
            continue
        after_ms = max(0.0, (at_s - killed_unix_s) * 1e3)
        if told.get("event") == "peer_lost" and told.get("peer") == node:
            lost.append(after_ms)
        elif told.get("event") == "leader_gained" and told.get("group") in wanted:
            group = str(told["group"])
            led[group] = min(led.get(group, after_ms), after_ms)
    return Said(min(lost, default=None), dict(sorted(led.items())))
