"""A table as data: what a program says of its records, so that every node and every other program knows them.

A :class:`Declaration` is made of a Struct, or comes from a file or another program. From it the same follows as from a
Struct in the code: how a record is checked, stored, routed, listed, watched and shown.

The type of a field is written as in Python: ``str``, ``bytes``, ``bool``, ``float``, ``int`` (64 bits, signed),
``u32``, ``u63``, ``list[T]``, ``dict[str, T]``, and ``T | None``. A declaration grows at the end only: what it has
stays as it is, and a further field has a default. So a record that was written before can be read, and a program that
does not know a field yet leaves it as it is.
"""

from __future__ import annotations

import keyword
import re
import types
import typing
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta, inspect

from .faults import MALFORMED, reason
from .messages import Message
from .text.fields import KEY_FIELDS_MAX, U32, U63

FIELDS_MAX: Final = 64
"""Fields of a table: ``invalid_request``."""
NAME_CHARACTERS_MAX: Final = 64
"""The name of a table or a field: ``invalid_request``."""
INDEXES_MAX: Final = 8
"""Indexes of a table: ``invalid_request``."""
DECLARATION_BYTES_MAX: Final = 16 * 1024
"""A declaration: ``invalid_request``."""
CHOICES_MAX: Final = 64
"""The values that a text may have: ``invalid_request``."""
TABLE_KINDS: Final = ("metadata", "data", "offset")
"""The kinds of groups that may hold a table."""

INDEXED: Final = ("str", "bool", "int", "u32", "u63")
"""The types of fields that an index may have."""

_NESTED_MAX: Final = 4
_NAME: Final = re.compile(rf"[a-z][a-z0-9_]{{0,{NAME_CHARACTERS_MAX - 1}}}")
_NAMED: Final = f"a small letter, and behind it small letters, digits and _, {NAME_CHARACTERS_MAX} at most"
_NUMBERS: Final = {"int": (-(2**63), 2**63 - 1), "u32": (0, 2**32 - 1), "u63": (0, 2**63 - 1)}
_SIMPLE: Final[dict[str, Any]] = {"str": str, "bytes": bytes, "bool": bool, "float": float, "u32": U32, "u63": U63}
_SIMPLE["int"] = Annotated[int, Meta(ge=_NUMBERS["int"][0], le=_NUMBERS["int"][1])]
_NAMES: Final = {
    inspect.StrType: "str",
    inspect.BytesType: "bytes",
    inspect.BoolType: "bool",
    inspect.FloatType: "float",
}
_encode: Final = msgspec.msgpack.Encoder().encode


class Record(Message, frozen=True):
    """The base of the records that a program declares: arrays, to whose end fields may be added."""


class DeclaredField(Message, frozen=True):
    """Says what one field of a table's records is."""

    name: str
    """As that of a table."""
    type: str
    """As in *Types of fields*."""
    default: bytes | None = None
    """Msgpack: what the field is where a record lacks it; nil: every record has it."""
    least: int | None = None
    """Of a number; nil: what the type allows."""
    most: int | None = None
    length_least: U32 = 0
    """Of a text, bytes, an array or a map."""
    length_most: U32 | None = None
    """Characters of a text, bytes, or items; nil: any."""
    choices: Annotated[list[str], Meta(max_length=CHOICES_MAX)] = []  # noqa: RUF012 - msgspec copies it
    """The values that a text may have; none: any."""
    about: str = ""


class DeclaredIndex(Message, frozen=True):
    """Another order in which records are listed."""

    name: str
    """As that of a table."""
    fields: Annotated[list[str], Meta(max_length=KEY_FIELDS_MAX)]
    """The names of fields: of type ``str``, ``bool``, ``int``, ``u32`` or ``u63``. A record that has nil in one of them
    is not listed."""


class Declaration(Message, frozen=True):
    """What the records of a table are."""

    name: str
    """Of small letters, digits and underscores; no other table has it."""
    kind: str
    """Of the groups that hold the records: ``metadata``, ``data`` or ``offset``."""
    fields: Annotated[list[DeclaredField], Meta(max_length=FIELDS_MAX)]
    """In the order in which a record has them."""
    key: Annotated[list[str], Meta(max_length=KEY_FIELDS_MAX)]
    """The names of the fields that identify a record, in the order of listings: texts, or ``u32`` behind those that
    route."""
    routing: U32
    """How many of them route: records that agree in them live in one group."""
    about: str = ""
    indexes: Annotated[list[DeclaredIndex], Meta(max_length=INDEXES_MAX)] = []  # noqa: RUF012 - msgspec copies it
    """Other orders in which the records are listed. More may be added."""
    expires: str = ""
    """A field of type ``u63``: the Unix time in milliseconds at which a record ends; 0: never."""

    def indexed(self) -> dict[str, list[str]]:
        """The fields of each index, by its name."""
        return {index.name: index.fields for index in self.indexes}


# --- from a Struct ---------------------------------------------------------------------------------------------------


def declaration_of(
    name: str,
    record: type[msgspec.Struct],
    *,
    kind: str,
    key: Sequence[str],
    routing: Sequence[str] | None = None,
    indexes: Mapping[str, Sequence[str]] = types.MappingProxyType({}),
    expires: str = "",
    about: str = "",
) -> Declaration:
    """The declaration that a Struct with ``array_like=True`` is. ``indexes``: the fields of each, by its name. Raises
    TypeError where it cannot be one."""
    key = _names("key", key)
    routing = key if routing is None else _names("routing", routing)
    if not isinstance(indexes, Mapping):
        raise TypeError(f"indexes: expected the fields of each by its name, got {indexes!r}")
    if key[: len(routing)] != routing:
        raise TypeError(f"{name}: the routing fields are not the first of the key")
    ordered = [DeclaredIndex(index, _names(f"indexes: {index}", names)) for index, names in indexes.items()]
    found = Declaration(name, kind, fields_of(record), key, len(routing), about, ordered, expires)
    if (why := fault_of(found)) is not None:
        raise TypeError(why)
    return found


def fields_of(record: type[msgspec.Struct]) -> list[DeclaredField]:
    """The fields of a Struct as a declaration has them. Raises TypeError where it can be that of no table."""
    if not isinstance(record, type) or not issubclass(record, msgspec.Struct):
        raise TypeError(f"record: expected a subclass of metad_client.Record, got {record!r}")
    if not record.__struct_config__.array_like:
        raise TypeError(
            f"{record.__name__}: make it a subclass of metad_client.Record, to whose end fields can be added"
        )
    struct = inspect.type_info(record)
    assert isinstance(struct, inspect.StructType)
    return [_field(f"{record.__name__}.{field.name}", field) for field in struct.fields]


def _names(place: str, given: Any) -> list[str]:
    """Names of fields. Raises TypeError."""
    if isinstance(given, Sequence) and not isinstance(given, str) and all(isinstance(name, str) for name in given):
        return [*given]
    raise TypeError(f'{place}: expected names of fields, as ("tenant", "queue"), got {given!r}')


def _field(place: str, field: inspect.Field) -> DeclaredField:
    default: bytes | None = None
    if not field.required:
        default = _encode(field.default_factory() if field.default is msgspec.NODEFAULT else field.default)
    kind = field.type
    choices: list[str] = []
    base = _without_none(kind)
    if isinstance(base, inspect.LiteralType):
        choices = [each for each in base.values if isinstance(each, str)]
        if len(choices) < len(base.values):
            raise TypeError(f"{place}: only texts can be choices")
    text = _text_of(place, kind)
    least = most = length_most = None
    length_least = 0
    match base:
        case inspect.IntType(ge=ge, le=le, gt=gt, lt=lt):
            low, high = _NUMBERS[text.partition(" ")[0]]
            at_least = ge if ge is not None else gt + 1 if gt is not None else low
            at_most = le if le is not None else lt - 1 if lt is not None else high
            least, most = (None if at_least == low else at_least), (None if at_most == high else at_most)
        case inspect.StrType() | inspect.BytesType() | inspect.ListType() | inspect.DictType():
            length_least, length_most = base.min_length or 0, base.max_length
    return DeclaredField(field.name, text, default, least, most, length_least, length_most, choices)


def _without_none(kind: inspect.Type) -> inspect.Type:
    if isinstance(kind, inspect.UnionType):
        others = [each for each in kind.types if not isinstance(each, inspect.NoneType)]
        if len(others) == 1:
            return others[0]
    return kind


def _text_of(place: str, kind: inspect.Type) -> str:
    """A type as a declaration writes it. Raises TypeError."""
    inner = _without_none(kind)
    if inner is not kind:
        return f"{_text_of(place, inner)} | None"
    match kind:
        case inspect.StrType(pattern=None) | inspect.BytesType() | inspect.BoolType() | inspect.FloatType():
            return _NAMES[type(kind)]
        case inspect.IntType(ge=ge, le=le, multiple_of=None):
            exact = [name for name, bounds in _NUMBERS.items() if bounds == (ge, le)]
            return (
                exact[0] if exact else "u32" if ge is not None and ge >= 0 and le is not None and le < 2**32 else "int"
            )
        case inspect.LiteralType():
            return "str"
        case inspect.ListType(item_type=item):
            return f"list[{_within(place, item)}]"
        case inspect.DictType(key_type=inspect.StrType(), value_type=value):
            return f"dict[str, {_within(place, value)}]"
    raise TypeError(
        f"{place}: a field is a str, bytes, bool, int, float, a list or dict of them, or one of them or None; "
        "there are no patterns, and a Struct within a Struct is bytes that the program encodes"
    )


def _within(place: str, kind: inspect.Type) -> str:
    """The type of what is in a list or map: a declaration says no bounds of it."""
    text, bare = _text_of(place, kind), _without_none(kind)
    bounds = [getattr(bare, name, None) for name in ("ge", "le", "gt", "lt", "min_length", "max_length")]
    if isinstance(bare, inspect.LiteralType) or (any(each is not None for each in bounds) and text not in _NUMBERS):
        raise TypeError(f"{place}: what is in a list or map has no bounds of its own")
    if isinstance(bare, inspect.IntType) and (bare.ge, bare.le) not in {(None, None), *_NUMBERS.values()}:
        raise TypeError(f"{place}: what is in a list or map has no bounds of its own")
    return text


# --- to a Struct -----------------------------------------------------------------------------------------------------


def record_type(declaration: Declaration) -> type[Message]:
    """A Struct for the records of a table that no code of this program has. The declaration has no fault."""
    fields: list[Any] = []
    for field in declaration.fields:
        kind = _bounded(field)
        if field.default is None:
            fields.append((field.name, kind))
            continue
        default = msgspec.msgpack.decode(field.default, type=kind)
        if isinstance(default, list | dict):
            encoded = field.default
            fields.append((field.name, kind, msgspec.field(default_factory=_maker(encoded, kind))))
        else:
            fields.append((field.name, kind, default))
    title = declaration.name.title().replace("_", "")
    made: Any = msgspec.defstruct(title, fields, bases=(Message,), frozen=True, array_like=True)
    return typing.cast("type[Message]", made)


def _maker(encoded: bytes, kind: Any) -> Any:
    decode = msgspec.msgpack.Decoder(kind).decode
    return lambda: decode(encoded)


def _bounded(field: DeclaredField) -> Any:
    """The type of a field, with its bounds. Raises ValueError."""
    text, optional = field.type.removesuffix(" | None"), field.type.endswith(" | None")
    kind = parsed_type(text)
    if field.choices:
        if text != "str":
            raise ValueError("only a text has choices")
        kind = Literal[tuple(field.choices)]
    elif text in _NUMBERS:
        low, high = _NUMBERS[text]
        least, most = low if field.least is None else field.least, high if field.most is None else field.most
        if not low <= least <= most <= high:
            raise ValueError(f"its bounds are no part of those of {text}")
        kind = Annotated[int, Meta(ge=least, le=most)]
    elif field.least is not None or field.most is not None:
        raise ValueError("only a number has a least and a most")
    if field.length_least or field.length_most is not None:
        if text in {"bool", "float", *_NUMBERS} or field.choices:
            raise ValueError("a number, a bool and a choice have no length")
        if field.length_most is not None and field.length_least > field.length_most:
            raise ValueError("its least length is over its most")
        kind = Annotated[kind, Meta(min_length=field.length_least or None, max_length=field.length_most)]
    return kind | None if optional else kind


def parsed_type(text: str, depth: int = 1) -> Any:
    """A type as a declaration writes it. Raises ValueError."""
    if depth > _NESTED_MAX:
        raise ValueError(f"its type is nested more than {_NESTED_MAX} deep")
    if text.endswith(" | None"):
        return parsed_type(text.removesuffix(" | None"), depth) | None
    if text in _SIMPLE:
        return _SIMPLE[text]
    for head in ("list[", "dict[str, "):
        if text.startswith(head) and text.endswith("]"):
            inner: Any = parsed_type(text[len(head) : -1], depth + 1)
            return list[inner] if head == "list[" else dict[str, inner]
    raise ValueError(f"there is no type {text[:80]!r}")


# --- what may be declared --------------------------------------------------------------------------------------------


def fault_of(declaration: Declaration) -> str | None:
    """Why this can be no table; None if it can."""
    name = declaration.name
    if not _NAME.fullmatch(name):
        return f"a table cannot be called {name[:80]!r}: {_NAMED}"
    if declaration.kind not in TABLE_KINDS:
        return f"{name}: a table is kept by groups of kind {', '.join(TABLE_KINDS)}, not {declaration.kind[:80]!r}"
    if (size := len(_encode(declaration))) > DECLARATION_BYTES_MAX:
        return f"{name}: the declaration takes {size} bytes, {DECLARATION_BYTES_MAX} are allowed"
    names = [field.name for field in declaration.fields]
    if len(set(names)) < len(names):
        return f"{name}: two fields have one name"
    defaults = False
    for field in declaration.fields:
        if (why := _field_fault(field)) is not None:
            return f"{name}.{field.name[:80]}: {why}"
        if defaults and field.default is None:
            return f"{name}.{field.name}: it has no default, and stands behind fields that have one"
        defaults = field.default is not None
    return _key_fault(declaration) or _index_fault(declaration) or _expires_fault(declaration)


def _field_fault(field: DeclaredField) -> str | None:
    if not _NAME.fullmatch(field.name) or keyword.iskeyword(field.name):
        return f"a field is called by {_NAMED}, and no word of Python"
    try:
        kind = _bounded(field)
    except ValueError as error:
        return str(error)
    if field.default is not None:
        try:
            msgspec.msgpack.decode(field.default, type=kind)
        except MALFORMED as error:
            return f"its default: {reason(error, kind)}"
    return None


def _key_fault(declaration: Declaration) -> str | None:
    name, key = declaration.name, declaration.key
    fields = {field.name: field for field in declaration.fields}
    if not key or not 0 < declaration.routing <= len(key):
        return f"{name}: a table has a key, and at least its first field routes"
    for number, part in enumerate(key):
        field = fields.get(part)
        if field is None or part in key[:number]:
            return f"{name}: {part[:80]!r} stands in the key and is no field, or stands there twice"
        if field.type == "u32" and number < declaration.routing:
            return (
                f"{name}.{part}: a number does not route, and by default all fields of the key do: give routing=, the "
                "texts in front of it"
            )
        if field.type not in ("str", "u32"):
            return f"{name}.{part}: a field of the key is a str or, behind those that route, a u32"
        if field.default is not None:
            return f"{name}.{part}: a field of the key has no default"
    return None


def _index_fault(declaration: Declaration) -> str | None:
    kinds = {field.name: field.type.removesuffix(" | None") for field in declaration.fields}
    for number, index in enumerate(declaration.indexes):
        place = f"{declaration.name}: index {index.name[:80]}"
        if not _NAME.fullmatch(index.name) or any(index.name == one.name for one in declaration.indexes[:number]):
            return f"{place}: another has this name, or it is not of {_NAMED}"
        if not index.fields or len(set(index.fields)) < len(index.fields):
            return f"{place} has no field, or has one twice"
        for part in index.fields:
            if kinds.get(part) not in INDEXED:
                return f"{place}: {part[:80]!r} is no field of type {', '.join(INDEXED)}"
    return None


def _expires_fault(declaration: Declaration) -> str | None:
    name = declaration.expires
    if not name or name in {field.name for field in declaration.fields if field.type == "u63"}:
        return None
    return f"{declaration.name}: records expire by a field of type u63, and {name[:80]!r} is none"


def difference(old: Declaration, new: Declaration) -> str | None:
    """Why records of the one are no records of the other; None if one of them only has further fields, and one of them
    further indexes, at its end."""
    for what in ("kind", "key", "routing", "expires"):
        if (before := getattr(old, what)) != (after := getattr(new, what)):
            return f"{what} is {_shown(before)}, and the declaration says {_shown(after)}"
    both = min(len(old.indexes), len(new.indexes))
    if old.indexes[:both] != new.indexes[:both]:
        return f"indexes is {_shown(old.indexes)}, and the declaration says {_shown(new.indexes)}"
    for number, (before, after) in enumerate(zip(old.fields, new.fields, strict=False)):
        for what in DeclaredField.__struct_fields__:
            was, is_now = getattr(before, what), getattr(after, what)
            if was != is_now and what != "about":
                return (
                    f"field {number + 1} is {before.name} with {what} {_shown(was)}, and the declaration "
                    f"says {after.name} with {what} {_shown(is_now)}"
                )
    return None


def _shown(value: Any) -> str:
    if isinstance(value, bytes):
        value = msgspec.msgpack.decode(value)
    if isinstance(value, DeclaredIndex):
        return f"{value.name} ({', '.join(value.fields)})"
    return ", ".join(map(_shown, value)) or "none" if isinstance(value, list) else str(value) or "none"
