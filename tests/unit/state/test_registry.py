"""What is registered is all that there is: a module or a part that nobody names would be missing without a word."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator

import metad.state
from metad.state import registry
from metad.state.core.part import StatePart

MODULES = [
    importlib.import_module(module.name)
    for module in pkgutil.walk_packages(metad.state.__path__, f"{metad.state.__name__}.")
]
TABLES = [module for module in MODULES if isinstance(getattr(module, "VERBS", None), tuple)]


def subclasses(of: type[StatePart]) -> Iterator[type[StatePart]]:
    for each in of.__subclasses__():
        yield each
        yield from subclasses(each)


def test_the_verbs_of_every_module_are_registered() -> None:
    assert len(TABLES) > 10
    registered = set(map(id, registry.VERBS.values()))
    missing = [module.__name__ for module in TABLES if not registered.issuperset(map(id, module.VERBS))]
    assert missing == []


def test_every_part_is_registered() -> None:
    def whole(part: type[StatePart]) -> bool:
        return not getattr(part, "__abstractmethods__", None) and not part.__subclasses__()

    parts = {part for part in subclasses(StatePart) if part.__module__.startswith("metad.state.") and whole(part)}
    assert parts == set(registry.PARTS)


def test_two_verbs_never_have_one_method() -> None:
    codes = [verb.method.code for module in TABLES for verb in module.VERBS]
    assert len(codes) == len(set(codes))
