"""Hypothesis strategies for messages, derived from what their decoders accept."""

from __future__ import annotations

import functools
from typing import Any

from hypothesis import strategies as st
from msgspec import inspect

TEXTS = st.text(max_size=8)


@functools.cache
def values_of(class_: Any, texts: st.SearchStrategy[str] = TEXTS) -> st.SearchStrategy[Any]:
    """Values of a message class: small lists, these texts, integers over their whole range and often small ones."""
    return _strategy(inspect.type_info(class_), texts)


def _strategy(type_: inspect.Type, texts: st.SearchStrategy[str]) -> st.SearchStrategy[Any]:
    of = functools.partial(_strategy, texts=texts)
    match type_:
        case inspect.StructType(cls=cls, fields=fields):
            return st.builds(cls, *(of(field.type) for field in fields))
        case inspect.UnionType(types=types):
            return st.one_of([of(each) for each in types])
        case inspect.ListType(item_type=item):
            return st.lists(of(item), max_size=3)
        case inspect.DictType(key_type=key, value_type=value):
            return st.dictionaries(of(key), of(value), max_size=3)
        case inspect.IntType(ge=low, le=high):
            low, high = -(2**63) if low is None else int(low), 2**64 - 1 if high is None else int(high)
            return st.integers(max(low, 0), min(high, max(low, 0) + 3)) | st.integers(low, high)
        case inspect.StrType(max_length=longest):
            return texts.map(lambda text: text[:longest])
        case inspect.BytesType():
            return st.binary(max_size=8)
        case inspect.BoolType():
            return st.booleans()
        case inspect.NoneType():
            return st.none()
        case inspect.AnyType():
            return st.none() | st.integers(-9, 9) | st.lists(texts, max_size=2)
        case inspect.LiteralType(values=values):
            return st.sampled_from([*values])
        case inspect.FloatType():
            return st.floats(allow_nan=False)
    raise NotImplementedError(f"no strategy for {type_} yet")
