"""``metad-spark census``: who the clients of a cluster are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
from pyspark.sql import functions as F

from metad_wire.cluster import SLOTS

from .asking import opened, rows
from .output import say, table, write_json
from .queries import census as q
from .wording import percent, seconds, short

FORMAT = 1
"""Of the JSON, which ``metad-spark simulate --population`` reads."""


def run(*, source: str, options: dict[str, str], master: str | None, connect: bool, json: Path | None) -> int:
    """Print it. Returns the exit code."""
    with opened(source, options, master=master, connect=connect) as tables:
        groups = tables.groups()
        described = q.sessions_of(
            tables.read("session"),
            tables.read("subscription", ["tenant", "client_id"]),
            tables.read("inflight", ["tenant", "client_id", "value"]),
            tables.whole("broker"),
            tables.now_ms,
        ).cache()
        by = rows(q.census(described))
        people = rows(q.population(described))
        slots = {row["slot"]: row for row in rows(q.by_slot(described))}
        brokers = rows(tables.whole("broker").groupBy("region", "state").agg(F.count("*").alias("brokers")))
        described.unpersist()
    whole = next((row for row in by if row["tenant"] is None and row["region"] is None), None)
    told: dict[str, Any] = {
        "format": FORMAT,
        "source": source,
        "now_ms": tables.now_ms,
        "sessions": 0 if whole is None else whole["sessions"],
        "connected": 0 if whole is None else whole["connected"],
        "census": by,
        "population": people,
        "brokers": sorted(brokers, key=lambda row: (row["region"], row["state"])),
        "slots": {
            name: [slots[slot][name] if slot in slots else 0 for slot in range(SLOTS)]
            for name in ("sessions", "connected")
        },
        "groups": msgspec.to_builtins(groups),
    }
    write_json(json, told)
    _print(told)
    return 0


def _print(told: dict[str, Any]) -> None:
    say(f"{told['sessions']:,} sessions, of which {told['connected']:,} are connected.")
    if not told["sessions"]:
        return
    table(
        "Sessions by tenant and region (of their brokers; ?: not registered)",
        ["tenant", "region", "sessions", "connected", "subscriptions", "in flight", "payload", "its 99 %", "its most"],
        [
            [*_who(row), f"{row['sessions']:,}", percent(row["connected"] / row["sessions"]), *_sizes(row)]
            for row in told["census"]
        ],
    )
    table(
        "How long they stay, and for how long those that are away have been",
        ["tenant", "region", "endless", *(f"{what} {p:g} %" for what in ("expiry", "away") for p in q.PERCENTS)],
        [[*_who(row), percent(row["endless"] / row["sessions"]), *_times(row)] for row in told["census"]],
    )


def _who(row: dict[str, Any]) -> list[str]:
    return [_all(row["tenant"]), _all(row["region"])]


def _sizes(row: dict[str, Any]) -> list[str]:
    most = [_bytes(row["payload_bytes_at"][place]) for place in (2, 3)]
    return [short(row["subscriptions"]), short(row["inflight"]), _bytes(row["payload_bytes"]), *most]


def _times(row: dict[str, Any]) -> list[str]:
    nobody = [None] * len(q.PERCENTS)
    return [_seconds(value) for name in ("expiry_s_at", "last_seen_s_at") for value in row[name] or nobody]


def _all(name: str | None) -> str:
    return "all" if name is None else name or "(none)"


def _bytes(value: float) -> str:
    return f"{short(value)}B" if value >= 1000 else f"{value:g} B"


def _seconds(value: float | None) -> str:
    return "" if value is None else seconds(value)
