"""Hypothesis strategies for messages, derived from what their decoders accept."""

from __future__ import annotations

import functools
from typing import Any

from hypothesis import strategies as st
from msgspec import inspect


@functools.cache
def values_of(class_: Any) -> st.SearchStrategy[Any]:
    """Values of a message class, small lists and texts, integers over their whole range."""
    return _strategy(inspect.type_info(class_))


def _strategy(type_: inspect.Type) -> st.SearchStrategy[Any]:
    match type_:
        case inspect.StructType(cls=cls, fields=fields):
            return st.builds(cls, *(_strategy(field.type) for field in fields))
        case inspect.UnionType(types=types):
            return st.one_of([_strategy(each) for each in types])
        case inspect.ListType(item_type=item):
            return st.lists(_strategy(item), max_size=3)
        case inspect.DictType(key_type=key, value_type=value):
            return st.dictionaries(_strategy(key), _strategy(value), max_size=3)
        case inspect.IntType(ge=low, le=high):
            return st.integers(-(2**63) if low is None else low, 2**64 - 1 if high is None else high)
        case inspect.StrType():
            return st.text(max_size=8)
        case inspect.BytesType():
            return st.binary(max_size=8)
        case inspect.BoolType():
            return st.booleans()
        case inspect.NoneType():
            return st.none()
    raise NotImplementedError(f"no strategy for {type_} yet")
