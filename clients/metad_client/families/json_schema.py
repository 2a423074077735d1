"""Whether all values that one JSON Schema allows are allowed by another: rules of our own, which are few and careful.

What they cannot show they refuse. Compared are:

- ``type`` (integers are numbers), and ``enum`` and ``const`` of the writer, whose values the reader is asked for;
- ``required``: the reader asks for no field that the writer does not;
- ``properties`` and ``additionalProperties``, one by one. A property that only the reader describes may be there
  already with anything, unless the writer forbids or describes what is additional. One that only the writer describes
  must suit the reader's ``additionalProperties``;
- ``items``, and all lowest and highest numbers, lengths and counts;
- ``$ref`` to a place in the same schema, also where it leads in a circle.

A reader may lack ``pattern``, ``format`` and the like (:data:`DROPPED`). Anything else must be the same in both, and so
must ``$schema``.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Iterator
from typing import Any, Final

TYPES: Final = frozenset({"null", "boolean", "number", "integer", "string", "array", "object"})
DROPPED: Final = frozenset(
    (
        *("pattern", "format", "multipleOf", "uniqueItems", "enum", "const", "not", "anyOf", "oneOf", "allOf"),
        *("propertyNames", "dependentRequired", "contentEncoding", "contentMediaType"),
    )
)
"""A schema without one of these allows more, whatever else it has."""
_TOLD: Final = frozenset(
    (
        *("title", "description", "default", "examples", "$comment", "deprecated", "readOnly", "writeOnly"),
        *("$defs", "definitions"),
    )
)
"""They say nothing of which values are allowed."""
_TYPE_OF: Final = {
    "minimum": "number", "maximum": "number", "exclusiveMinimum": "number", "exclusiveMaximum": "number",
    "minLength": "string", "maxLength": "string", "minItems": "array", "maxItems": "array", "items": "array",
    "minProperties": "object", "maxProperties": "object", "properties": "object", "additionalProperties": "object",
    "required": "object",
}  # fmt: skip
"""The type of the values that each keyword is about."""
_LEAST: Final = frozenset({"minimum", "exclusiveMinimum", "minLength", "minItems", "minProperties"})
_MOST: Final = frozenset({"maximum", "exclusiveMaximum", "maxLength", "maxItems", "maxProperties"})
_COMPARED: Final = frozenset({"type", *_TYPE_OF})
_WHOLE: Final = ("unevaluatedProperties", "unevaluatedItems")
"""What they allow depends on all the rest."""


_LATEST: Final = "https://json-schema.org/draft/2020-12/schema"


def checked(text: str) -> Any:
    """The schema that a text is. Raises ValueError, jsonschema's SchemaError, RecursionError, and ModuleNotFoundError
    without jsonschema."""
    schema = json.loads(text)
    _validator(schema).check_schema(schema)
    return schema


def _validator(schema: Any) -> Any:
    """The class that knows its dialect. Raises ValueError."""
    validators: Any = importlib.import_module("jsonschema.validators")
    named = _dialect(schema)
    found = validators.validator_for({"$schema": named}, default=None)
    if found in (None, validators.Draft3Validator):
        raise ValueError(f"$schema: {named!r:.100} is none that is known; draft 4 is the first")
    return found


def _dialect(schema: Any) -> Any:
    return schema.get("$schema", _LATEST) if isinstance(schema, dict) else _LATEST


def problems(reader: Any, writer: Any) -> list[str]:
    """Why a value that ``writer`` allows may be refused by ``reader``; empty if none is. Raises RecursionError."""
    if _dialect(reader) != _dialect(writer):
        return [f"$schema: {_dialect(writer)} becomes {_dialect(reader)}"]
    for schema in (reader, writer):
        inside = _text(schema).count('"$id": "') - (isinstance(schema, dict) and "$id" in schema)
        if inside:
            return ["$id stands inside of a schema, which is not compared"]
    return list(_Comparison(reader, writer).problems(reader, writer, ""))


class _Comparison:
    """Of two whole schemas, whose parts may refer to others."""

    def __init__(self, reader: Any, writer: Any) -> None:
        self._reader = reader
        self._writer = writer
        self._under_way: set[tuple[str, str]] = set()

    def problems(self, reader: Any, writer: Any, path: str) -> Iterator[str]:
        """Of two parts at one path."""
        if reader is True or reader == {} or writer is False:
            return
        pair = (_text(reader), _text(writer))
        if pair in self._under_way or (pair[0] == pair[1] and "$ref" not in pair[0]):
            return  # a part of itself is as good as the whole
        self._under_way.add(pair)
        try:
            ours, theirs = _resolved(reader, self._reader), _resolved(writer, self._writer)
        except LookupError as error:
            yield f"{path or '/'}: {error}"
            return
        if ours is not reader or theirs is not writer:
            yield from self.problems(ours, theirs, path)
            return
        if reader is False:
            yield f"{path or '/'}: nothing is allowed any more"
            return
        yield from self._parts(reader, {} if writer is True else writer, path)

    def _parts(self, reader: dict[str, Any], writer: dict[str, Any], path: str) -> Iterator[str]:
        place = path or "/"
        if any(name in schema for name in _WHOLE for schema in (reader, writer)):
            yield f"{place}: {' and '.join(_WHOLE)} are not compared"
            return
        if (values := _values(writer)) is not None:
            yield from (f"{place}: {value!r:.80} is refused" for value in values if not self._allows(reader, value))
            return
        types = _types(writer)
        if missing := types - _widened(_types(reader)):
            yield f"{place}: type: {', '.join(sorted(missing))} is refused"
            return
        of_the_whole = set() if path else {"$schema", "$id"}
        for name in sorted((reader.keys() | writer.keys()) - _COMPARED - _TOLD - of_the_whole):
            gone = name in DROPPED and name not in reader
            if not gone and not _same(reader.get(name, _NONE), writer.get(name, _NONE)):
                yield f"{place}: {name} is not the same"
        for name in sorted(_LEAST | _MOST):
            if _about(name, types) and name in reader and not _within(name, reader[name], writer.get(name)):
                yield f"{place}: {name}: {reader[name]!r:.40} is narrower than {writer.get(name, 'none')!r:.40}"
        if "array" in types:
            yield from self._items(reader, writer, path)
        if "object" in types:
            yield from self._fields(reader, writer, path)

    def _items(self, reader: dict[str, Any], writer: dict[str, Any], path: str) -> Iterator[str]:
        one, other = reader.get("items", True), writer.get("items", True)
        if isinstance(one, list) or isinstance(other, list):  # of older drafts: a schema for each place
            if not _same(one, other):
                yield f"{path}/items: it is not the same"
        else:
            yield from self.problems(one, other, f"{path}/items")

    def _fields(self, reader: dict[str, Any], writer: dict[str, Any], path: str) -> Iterator[str]:
        if missing := sorted({*reader.get("required", [])} - {*writer.get("required", [])}):
            yield f"{path or '/'}: required: {', '.join(missing)} may be missing"
        ours, theirs = reader.get("properties", {}), writer.get("properties", {})
        more, others = reader.get("additionalProperties", True), writer.get("additionalProperties", True)
        for name in sorted(ours.keys() | theirs.keys()):
            place = f"{path}/properties/{name}"
            if name in ours and name not in theirs and "patternProperties" in writer:
                yield f"{place}: patternProperties may have allowed anything here"
            else:
                yield from self.problems(ours.get(name, more), theirs.get(name, others), place)
        yield from self.problems(more, others, f"{path}/additionalProperties")

    def _allows(self, reader: Any, value: Any) -> bool:
        """Whether the reader's part allows a value. Nothing is fetched: what refers elsewhere allows none, and so does
        what refers to itself and to nothing else."""
        referencing: Any = importlib.import_module("referencing.exceptions")
        registry = importlib.import_module("referencing").Registry()
        whole = _validator(self._reader)(self._reader, registry=registry)
        try:
            return bool(whole.evolve(schema=reader).is_valid(value))
        except (referencing.Unresolvable, RecursionError):
            return False


_NONE: Final = object()


def _text(schema: Any) -> str:
    return json.dumps(schema, sort_keys=True)


def _same(one: Any, other: Any) -> bool:
    """Whether both are there, alike, and mean the same wherever they stand."""
    if one is _NONE or other is _NONE:
        return False
    text = _text(one)
    return text == _text(other) and "$ref" not in text and "$dynamicRef" not in text and "$recursiveRef" not in text


def _resolved(schema: Any, whole: Any) -> Any:
    """What a reference leads to; anything else as it is. Raises LookupError where that is not in the same schema."""
    if not isinstance(schema, dict) or "$ref" not in schema:
        return schema
    if schema.keys() - {"$ref"} - _TOLD:
        raise LookupError("$ref stands beside other keywords, which is not compared")
    target = schema["$ref"]
    found = whole
    steps = target.removeprefix("#").split("/")[1:] if isinstance(target, str) and target.startswith("#") else None
    if steps is None or target not in ("#", "#" + "".join(f"/{step}" for step in steps)):
        raise LookupError(f"$ref: {target!r:.100} is not in this schema")
    for step in steps:
        name = step.replace("~1", "/").replace("~0", "~")
        if not isinstance(found, dict) or name not in found:
            raise LookupError(f"$ref: there is no {target!r:.100}")
        found = found[name]
    return found


def _values(schema: dict[str, Any]) -> list[Any] | None:
    """All values that may be allowed, if the schema lists them."""
    if "const" in schema:
        return [schema["const"]]
    found = schema.get("enum")
    return found if isinstance(found, list) else None


def _types(schema: dict[str, Any]) -> frozenset[str]:
    """Those of all values that may be allowed."""
    given = schema.get("type")
    if given is None:
        return TYPES
    return frozenset([given] if isinstance(given, str) else given)


def _widened(types: frozenset[str]) -> frozenset[str]:
    return types | {"integer"} if "number" in types else types


def _about(name: str, types: frozenset[str]) -> bool:
    return _TYPE_OF[name] in types or (_TYPE_OF[name] == "number" and "integer" in types)


def _within(name: str, ours: Any, theirs: Any) -> bool:
    """Whether the reader's bound lets through what the writer's does."""
    if theirs is None and name in ("minLength", "minItems", "minProperties"):
        theirs = 0
    if isinstance(ours, bool) or isinstance(theirs, bool) or theirs is None:
        return ours is theirs  # of draft 4
    return bool(ours <= theirs if name in _LEAST else ours >= theirs)
