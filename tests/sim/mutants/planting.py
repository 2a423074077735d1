"""A bug, and how it is planted. A simulation that does not find planted bugs would not find bugs that nobody planted.

A mutant replaces a piece of a function's source. If the piece is not there any more, the mutant must be rewritten:
planting it raises LookupError.
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from types import CodeType, FunctionType
from typing import Any, NamedTuple

import metad.raft

_RAFT = {
    module.name.rpartition(".")[2]: module.name
    for module in pkgutil.walk_packages(metad.raft.__path__, "metad.raft.")
    if not module.ispkg
}


class Mutant(NamedTuple):
    """One bug."""

    name: str
    breaks: str
    """The rule, in a few words."""
    edits: tuple[tuple[str, str, str], ...]
    """(function, with its class if it has one; what is there; what is put there). A module without a dot is one of
    ``metad.raft``, whichever folder it is in."""
    scenarios: tuple[str, ...] = ()
    """That are expected to object, the best first."""


def one_edit(name: str, breaks: str, target: str, old: str, new: str, *scenarios: str) -> Mutant:
    """A mutant of one edit: most are."""
    return Mutant(name, breaks, ((target, old, new),), scenarios)


@contextmanager
def planted(mutant: Mutant) -> Iterator[None]:
    """While this lasts the bug is in the code: also for whoever has the function from a table or by another name."""
    before: list[tuple[FunctionType, CodeType]] = []
    try:
        pieces: dict[str, list[tuple[str, str]]] = {}
        for target, old, new in mutant.edits:
            pieces.setdefault(target, []).append((old, new))
        for target, replaced in pieces.items():
            module_name, _, path = target.partition(":")
            module = importlib.import_module(_RAFT.get(module_name, module_name))
            class_name, _, function_name = path.rpartition(".")
            owner = getattr(module, class_name) if class_name else module
            function = _undecorated(vars(owner)[function_name])
            before.append((function, function.__code__))
            function.__code__ = _mutated(mutant, function, replaced)
        yield
    finally:
        for function, code in reversed(before):
            function.__code__ = code


def _mutated(mutant: Mutant, function: FunctionType, pieces: list[tuple[str, str]]) -> CodeType:
    source = textwrap.dedent(inspect.getsource(function))
    for old, new in pieces:
        if source.count(old) != 1:
            raise LookupError(f"mutant {mutant.name}: {old!r} is {source.count(old)} times in {function.__qualname__}")
        source = source.replace(old, new)
    # Names that begin with two underscores are mangled, and super() looks for the class it was written in. A function
    # of a module has no class, and may call itself by its name there.
    is_of_class = "." in function.__qualname__
    if is_of_class:
        source = f"def make(__class__):\n{textwrap.indent(source, '    ')}\n    return {function.__name__}\n"
    made = dict(vars(sys.modules[function.__module__]))
    exec(compile(source, f"<mutant {mutant.name}>", "exec"), made)
    return _undecorated(made["make"](object) if is_of_class else made[function.__name__]).__code__


def _undecorated(attribute: Any) -> FunctionType:
    function = attribute.fget if isinstance(attribute, property) else getattr(attribute, "__func__", attribute)
    assert isinstance(function, FunctionType), function
    return function
