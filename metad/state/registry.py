"""All verbs, by method code, and all parts of what a group keeps in memory."""

from __future__ import annotations

import importlib
import os
import pkgutil
from collections.abc import Iterator
from typing import Any

from metad_wire.methods import METHODS, READ_INDEX, By
from metad_wire.tables.table import DECLARED

from .core.part import StatePart
from .core.verb import Verb

OF_THE_LOG: frozenset[int] = frozenset({READ_INDEX.code})
"""Methods that a group answers by its log, not by its state."""

VERBS: dict[int, Verb[Any, Any]] = {}
for _module in pkgutil.walk_packages([os.path.dirname(__file__)], f"{__package__}."):
    if _module.name.count(".") > __package__.count(".") + 1:  # in a folder
        _verbs: tuple[Verb[Any, Any], ...] = getattr(importlib.import_module(_module.name), "VERBS", ())
        VERBS |= {verb.method.code: verb for verb in _verbs}
"""Each module in a folder here names those of its table."""
CONTROL: frozenset[int] = frozenset(
    method.code
    for method in METHODS.values()
    if method.by is not By.GROUP and not method.mutates and method.code not in VERBS
)
"""Methods that the node answers, not a group's state."""


def _parts(of: type[StatePart] = StatePart) -> Iterator[type[StatePart]]:
    """The parts in the modules here. One that others are made of is none itself."""
    for part in of.__subclasses__():
        if part.__subclasses__():
            yield from _parts(part)
        elif part.__module__.startswith(f"{__package__}."):
            yield part


PARTS: tuple[type[StatePart], ...] = tuple(sorted(_parts(), key=lambda part: part.__name__))
"""What every group keeps in memory of its state. No part knows another, so their order says nothing."""


def _check() -> None:
    """Refuse at import a method that nobody serves."""
    missing = set(METHODS) - set(VERBS) - CONTROL - OF_THE_LOG - {method.code for method in DECLARED.methods}
    if missing:
        raise TypeError(f"methods without a verb: {sorted(METHODS[code].name for code in missing)}")


_check()
