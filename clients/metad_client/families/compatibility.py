"""Says whether a schema can read what another has written: of Avro by Apache's library, of JSON Schema by our rules.

The packages are those of the extra ``schemas``; without them whoever checks is told so.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from metad_wire.program.extras import advice

from ..errors import InvalidItemError, MissingExtraError
from . import json_schema

TEXT_CHARACTERS_MAX: Final = 256 * 1024
"""Of a schema that is checked. A check may take long, and is done in the program that asks for it."""


class Language(NamedTuple):
    """How schemas of one language are read and compared."""

    read: Callable[[str], Any]
    """Raises whatever it does for a text that is no schema."""
    problems: Callable[[Any, Any], list[str]]
    """Why the first cannot read what the second has written; empty if it can."""


def read(kind: str, text: str) -> Any:
    """The schema that a text is. Raises InvalidItemError, MissingExtraError."""
    if len(text) > TEXT_CHARACTERS_MAX:
        raise InvalidItemError(f"text: {len(text)} characters, at most {TEXT_CHARACTERS_MAX}")
    try:
        return LANGUAGES[kind].read(text)
    except ModuleNotFoundError as missing:
        raise MissingExtraError(advice(missing, "schemas")) from None
    except RecursionError:
        raise InvalidItemError("text: it is nested too deeply") from None
    except Exception as error:  # noqa: BLE001 - whatever a library raises for a stranger's text
        said = " ".join(str(error).split())
        raise InvalidItemError(f"text: this is no {kind} schema: {said[:300]}") from None


def problems(kind: str, compatibility: str, new: str, earlier: list[tuple[int, str]]) -> list[str]:
    """Why a new text does not go with those of earlier versions, the newest of them first; empty if it does. Raises
    InvalidItemError, MissingExtraError."""
    mode, _, transitive = compatibility.partition("_")
    schema, found = read(kind, new), []
    for version, text in earlier if transitive else earlier[:1]:
        older = read(kind, text)
        try:
            if mode in ("backward", "full"):
                found += [f"it cannot read version {version}: {why}" for why in LANGUAGES[kind].problems(schema, older)]
            if mode in ("forward", "full"):
                found += [f"version {version} cannot read it: {why}" for why in LANGUAGES[kind].problems(older, schema)]
        except RecursionError:
            raise InvalidItemError("text: it is nested too deeply") from None
    return found


# --- Avro ---


def _avro(text: str) -> Any:
    schema = importlib.import_module("avro.schema").parse(text)
    _check_defaults(schema, set())
    return schema


def _avro_problems(reader: Any, writer: Any) -> list[str]:
    avro: Any = importlib.import_module("avro.compatibility")
    result = avro.ReaderWriterCompatibilityChecker().get_compatibility(reader, writer)
    if result.compatibility is avro.SchemaCompatibilityType.compatible:
        return []
    kinds = ", ".join(sorted({kind.value.replace("_", " ") for kind in result.incompatibilities}))
    return [f"{', '.join(sorted(result.locations))}: {kinds}: {', '.join(sorted(result.messages))}"[:500]]


def _check_defaults(schema: Any, seen: set[int]) -> None:
    """Raise ValueError where the default of a field is none of its type: whoever reads an older record would fail,
    and the library looks only whether there is one."""
    if id(schema) in seen:
        return
    seen.add(id(schema))
    for field in getattr(schema, "fields", ()):
        if field.has_default and not _fits(field.type, field.default):
            raise ValueError(f"{schema.name}.{field.name}: its default is none of its type")
        _check_defaults(field.type, seen)
    for inner in (*getattr(schema, "schemas", ()), getattr(schema, "items", None), getattr(schema, "values", None)):
        if inner is not None:
            _check_defaults(inner, seen)


def _fits(schema: Any, value: Any) -> bool:
    """Whether a JSON value is a default of a type; that of a union is of its first branch, as all readers take it."""
    whole = isinstance(value, int) and not isinstance(value, bool)
    match schema.type:
        case "union":
            return bool(schema.schemas) and _fits(schema.schemas[0], value)
        case "null":
            return value is None
        case "boolean":
            return isinstance(value, bool)
        case "int" | "long":
            bits = 31 if schema.type == "int" else 63
            return whole and -(1 << bits) <= value < 1 << bits
        case "float" | "double":
            return whole or isinstance(value, float)
        case "string":
            return isinstance(value, str)
        case "bytes" | "fixed":
            size = getattr(schema, "size", None)
            return isinstance(value, str) and all(ord(one) < 256 for one in value) and size in (None, len(value))
        case "enum":
            return value in schema.symbols
        case "array":
            return isinstance(value, list) and all(_fits(schema.items, one) for one in value)
        case "map":
            return isinstance(value, dict) and all(_fits(schema.values, one) for one in value.values())
    fields = schema.fields if isinstance(value, dict) else None
    return fields is not None and all(
        _fits(field.type, value[field.name]) if field.name in value else field.has_default for field in fields
    )


LANGUAGES: Final = {
    "avro": Language(_avro, _avro_problems),
    "json": Language(json_schema.checked, json_schema.problems),
}
"""Those that are checked, by the names that schemas have for them."""


def same(kind: str, one: str, other: str) -> bool:
    """Whether two texts are one schema: spaces and the order of fields of JSON say nothing."""
    if one == other:
        return True
    try:
        return kind in LANGUAGES and _ordered(one) == _ordered(other)
    except (ValueError, RecursionError):
        return False


def _ordered(text: str) -> str:
    return json.dumps(json.loads(text), sort_keys=True)
