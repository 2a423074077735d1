"""All verbs, by method code."""

from __future__ import annotations

from typing import Any

from metad_wire.methods import METHODS, By

from . import cluster, kv, offsets, ownership, sessions
from .tables import Verb

CONTROL: frozenset[int] = frozenset(
    method.code for method in METHODS.values() if method.by is not By.GROUP and not method.mutates
)
"""Methods that the node answers, not a group's state."""

VERBS: dict[int, Verb[Any, Any]] = {
    verb.method.code: verb for module in (cluster, ownership, sessions, offsets, kv) for verb in module.VERBS
}


def _check() -> None:
    """Refuse at import a method that nobody serves."""
    missing = set(METHODS) - set(VERBS) - CONTROL
    if missing:
        raise TypeError(f"methods without a verb: {sorted(METHODS[code].name for code in missing)}")


_check()
