"""Checks messages by the kinds of their fields: what a topic, a filter or a client id may be, wherever one stands.

A kind is a type of :mod:`metad_wire.text.fields` that names a function of :mod:`metad_wire.text.topics`. So a field
that is added to a message is checked by what it is declared to be, on every way in.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Callable
from typing import Annotated, Any, Union, get_args, get_origin

import msgspec

from .fields import Grammar
from .topics import any_text_fault

Check = Callable[[Any], str | None]
"""What is wrong with a value, as ``field: why``; None if nothing is."""


@functools.cache
def check_of(kind: Any, *, left_out: tuple[str, ...] = ()) -> Check | None:
    """What checks values of a type; None if no text in them has a grammar. ``left_out``: fields of it that are not
    looked at."""
    if get_origin(kind) is Annotated:
        inner, *others = get_args(kind)
        for grammar in others:
            if isinstance(grammar, Grammar):
                return None if grammar.fault is any_text_fault else grammar.fault
        return check_of(inner)
    if get_origin(kind) in (Union, types.UnionType):
        (check,) = {check_of(each) for each in get_args(kind)} - {None} or {None}
        return None if check is None else lambda value: None if value is None else check(value)
    if get_origin(kind) is list:
        return _of_list(check_of(get_args(kind)[0]))
    if isinstance(get_origin(kind) or kind, type) and issubclass(get_origin(kind) or kind, msgspec.Struct):
        found = [(one.name, check_of(one.type)) for one in msgspec.structs.fields(kind) if one.name not in left_out]
        return _of_fields([(name, check) for name, check in found if check is not None])
    return None


def _of_list(check: Check | None) -> Check | None:
    if check is None:
        return None

    def check_items(items: list[Any]) -> str | None:
        for at, item in enumerate(items):
            if (why := check(item)) is not None:
                return f"[{at}]: {why}"
        return None

    return check_items


def _of_fields(checks: list[tuple[str, Check]]) -> Check | None:
    if not checks:
        return None

    def check_fields(message: Any) -> str | None:
        for name, check in checks:
            if (why := check(getattr(message, name))) is not None:
                return f"{name}: {why}"
        return None

    return check_fields
