"""Situations of whole nodes, each played out by hand. A scenario fails by raising."""

from __future__ import annotations

from . import (
    brokers,
    calendars,
    comparisons,
    consumers,
    deaths,
    flood,
    leases,
    metadata,
    moves,
    near,
    nodes,
    overload,
    regrouping,
    retained,
    rooms,
    sessions,
    standstills,
    storms,
    upgrades,
    watches,
    wills,
)
from .scene import SCENARIOS, Scene

__all__ = [
    "SCENARIOS",
    "Scene",
    "brokers",
    "calendars",
    "comparisons",
    "consumers",
    "deaths",
    "flood",
    "leases",
    "metadata",
    "moves",
    "near",
    "nodes",
    "overload",
    "regrouping",
    "retained",
    "rooms",
    "sessions",
    "standstills",
    "storms",
    "upgrades",
    "watches",
    "wills",
]
