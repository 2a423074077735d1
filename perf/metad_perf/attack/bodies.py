"""Random requests of any method, generated from the types of its body: mostly allowed, a few not. Pure."""

from __future__ import annotations

import random
from typing import Any

import msgspec
from msgspec import inspect

from metad_wire.methods import METHODS, By, For, Method

_TEXTS = ("", "a", "b", "k0", "large", "crowd", "\0", "é" * 7, "x" * 300)
_NUMBERS = (0, 1, 2, 7, 2**31, 2**32 - 1, 2**63 - 1, 2**64 - 1, -1, -(2**63))
_ITEMS_MAX = 4
_NONE_SHARE = 0.3


def methods_of_records(*, mutating: bool) -> list[Method[Any, Any]]:
    """Every method that changes records, or every method about records."""
    return [
        one
        for one in METHODS.values()
        if one.by is By.GROUP and one.whose is not For.NODES and (one.mutates or not mutating)
    ]


def methods_of_brokers() -> list[Method[Any, Any]]:
    """Every method of the registry of brokers that is for clients."""
    return [one for one in METHODS.values() if one.name.startswith("broker.") and one.whose is For.CLIENTS]


def random_body(rng: random.Random, method: Method[Any, Any]) -> Any:
    """A random body of the method, in the form that MessagePack decodes: a list."""
    return _made(rng, inspect.type_info(method.body))


def _made(rng: random.Random, kind: inspect.Type) -> Any:
    if isinstance(kind, inspect.Metadata):
        return _made(rng, kind.type)
    if isinstance(kind, inspect.StructType):
        return [_made(rng, field.type) for field in kind.fields]
    if isinstance(kind, inspect.UnionType):
        some = [one for one in kind.types if not isinstance(one, inspect.NoneType)]
        may_lack = len(some) < len(kind.types)
        return None if may_lack and rng.random() < _NONE_SHARE else _made(rng, rng.choice(some))
    if isinstance(kind, inspect.ListType):
        return [_made(rng, kind.item_type) for _ in range(rng.randrange(_ITEMS_MAX))]
    if isinstance(kind, inspect.DictType):
        return {_made(rng, kind.key_type): _made(rng, kind.value_type) for _ in range(rng.randrange(_ITEMS_MAX))}
    if isinstance(kind, inspect.IntType):
        least = -(2**63) if kind.ge is None else kind.ge
        most = 2**63 - 1 if kind.le is None else kind.le
        return rng.choice([least, most, *[number for number in _NUMBERS if least <= number <= most]])
    if isinstance(kind, inspect.StrType):
        return rng.choice(_TEXTS)
    if isinstance(kind, inspect.BytesType):
        return rng.randbytes(rng.choice((0, 1, 128, 2_000)))
    if isinstance(kind, inspect.BoolType):
        return rng.random() < 0.5
    return None


def encoded(body: Any, *, identity: Any = None, deadline_ms: int = 0, group: str = "") -> bytes:
    """The payload of a REQUEST with this body."""
    return msgspec.msgpack.encode([deadline_ms, identity, body, group])
