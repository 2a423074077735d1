"""All tables and verbs, by method code. Adding a table means adding its module here."""

from __future__ import annotations

from typing import Any

from metad_wire.methods import METHODS, By

from . import cluster, kv, offsets, ownership, sessions
from .tables import Table, Verb

TABLES: tuple[Table, ...] = (cluster.CLUSTER, sessions.SESSION, offsets.OFFSET, kv.KV)

CONTROL: frozenset[int] = frozenset(
    method.code for method in METHODS.values() if method.by is not By.GROUP and not method.mutates
)
"""Methods that the node answers, not a group's state."""

VERBS: dict[int, Verb[Any, Any]] = {
    verb.method.code: verb for module in (cluster, ownership, sessions, offsets, kv) for verb in module.VERBS
}


def _check() -> None:
    """Refuse at import what would corrupt data later: two tables on one key byte, a method nobody serves."""
    numbers = [number for table in TABLES for number in table.numbers]
    if len(numbers) != len(set(numbers)):
        raise TypeError("two tables share a table byte")
    missing = set(METHODS) - set(VERBS) - CONTROL
    if missing:
        raise TypeError(f"methods without a verb: {sorted(METHODS[code].name for code in missing)}")


_check()
