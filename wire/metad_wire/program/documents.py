"""A record as a document, the line of a file: the fields of its key, and those of its rows beside them.

``metadctl --json`` and ``metadctl export`` write records so. Bytes are text if they are UTF-8, and otherwise a field
whose name ends in ``_base64``; an infinite number is text. A row of Parquet, whose bytes are bytes, is read in the same
way.
"""

from __future__ import annotations

import base64
import functools
from collections.abc import Callable, Collection, Mapping
from typing import Any, NamedTuple, TypeVar

import msgspec
from msgspec import NODEFAULT, inspect

Record = TypeVar("Record", bound=msgspec.Struct)
_BASE64 = "_base64"


class _Field(NamedTuple):
    read: Callable[[Any], Any]
    """Its value, of what the document has. Raises ValueError."""
    may_be_none: bool
    default: Callable[[], Any] | None
    """None: it is required."""


def read_document(document: Mapping[str, Any], record: type[Record], others: Collection[str] = ()) -> Record:
    """The record that a document is. ``others``: fields that it may have and that say nothing of the record. Raises
    ValueError."""
    fields = _fields(record)
    for name in document:
        if name not in fields and name not in others and name.removesuffix(_BASE64) not in fields:
            raise ValueError(f"there is no field {name!r:.80}; there is {', '.join(sorted({*fields, *others}))}")
    values: dict[str, Any] = {}
    for name, field in fields.items():
        given, encoded = document.get(name), None if name + _BASE64 in fields else document.get(name + _BASE64)
        if given is not None and encoded is not None:
            raise ValueError(f"{name} and {name}{_BASE64} are both given")
        if encoded is not None:
            given = {"base64": encoded}
        if given is None and not (field.may_be_none and name in document):
            if field.default is None:
                raise ValueError(f"{name} is missing")
            values[name] = field.default()
            continue
        try:
            values[name] = field.read(given)
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from None
    return record(**values)


def read_value(value: Any, kind: Any) -> Any:
    """A value of a document, of a type. Raises ValueError."""
    return _reader(kind)(value)


def _reader(kind: Any) -> Callable[[Any], Any]:
    bare = _bare(inspect.type_info(kind))

    def read(value: Any) -> Any:
        try:
            return msgspec.convert(bare(value), kind, builtin_types=(bytes,))
        except (msgspec.ValidationError, TypeError, AttributeError) as error:
            raise ValueError(str(error)) from None

    return read


@functools.cache
def _fields(record: type[msgspec.Struct]) -> dict[str, _Field]:
    found: dict[str, _Field] = {}
    for field in msgspec.structs.fields(record):
        kind = inspect.type_info(field.type)
        may_be_none = isinstance(kind, inspect.UnionType) and kind.includes_none
        found[field.name] = _Field(_reader(field.type), may_be_none, _default(field))
    return found


def _default(field: msgspec.structs.FieldInfo) -> Callable[[], Any] | None:
    if field.default is not NODEFAULT:
        value = field.default
        return lambda: value
    return None if field.default_factory is NODEFAULT else field.default_factory


def _bare(kind: inspect.Type) -> Callable[[Any], Any]:
    """Makes what msgspec converts of a value of a document."""
    match kind:
        case inspect.BytesType():
            return _bytes
        case inspect.FloatType():
            return _float
        case inspect.StructType(cls=cls):
            return lambda value: _struct(value, cls)
        case inspect.ListType(item_type=item):
            each = _bare(item)
            return lambda value: [each(one) for one in value] if isinstance(value, list | tuple) else value
        case inspect.DictType(value_type=item):
            each = _bare(item)
            return lambda value: {name: each(one) for name, one in _pairs(value, item)}
        case inspect.UnionType(types=kinds):
            others = [one for one in kinds if not isinstance(one, inspect.NoneType)]
            one = _bare(others[0]) if len(others) == 1 else _same
            return lambda value: None if value is None else one(value)
    return _same


def _same(value: Any) -> Any:
    return value


def _bytes(value: Any) -> bytes:
    if isinstance(value, dict) and [*value] == ["base64"]:
        return base64.b64decode(value["base64"], validate=True)
    if isinstance(value, str):
        return value.encode()
    if not isinstance(value, bytes):
        raise ValueError(f"expected text, got {type(value).__name__}; bytes that are no text: NAME_base64")
    return value


def _float(value: Any) -> Any:
    """JSON has no infinity and no NaN."""
    return float(value) if value in ("inf", "-inf", "nan") else value


def _struct(value: Any, cls: type[msgspec.Struct]) -> Any:
    """A nested record, as the array that it is on the wire."""
    if not isinstance(value, dict):
        raise ValueError(f"expected an object, got {type(value).__name__}")
    return msgspec.to_builtins(read_document(value, cls), builtin_types=(bytes,))


def _pairs(value: Any, kind: inspect.Type) -> list[tuple[Any, Any]]:
    pairs = [*value.items()] if isinstance(value, dict) else [*value]  # Parquet has pairs
    if not isinstance(kind, inspect.BytesType):
        return pairs
    return [
        (name.removesuffix(_BASE64), {"base64": one}) if str(name).endswith(_BASE64) else (name, one)
        for name, one in pairs
    ]
