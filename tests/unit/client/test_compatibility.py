"""Schemas that are said to go together do: whatever an older schema wrote, the newer one reads. For Avro another
implementation decodes it; for JSON Schema a validator is asked for many values. And without the extra it is said."""

from __future__ import annotations

import io
import itertools
import json
import sys
from collections import Counter
from typing import Any

import fastavro
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from metad_client import InvalidItemError, MissingExtraError
from metad_client.families import compatibility, json_schema

SOME = settings(max_examples=150, deadline=None)

# --- Avro ---

PRIMITIVES = ("null", "boolean", "int", "long", "float", "double", "bytes", "string")
FIELDS = ("a", "b", "c")


def kept(schema: Any) -> str:
    return str(schema["type"]) if isinstance(schema, dict) else str(schema)


@st.composite
def avro_schemas(draw: st.DrawFn, depth: int = 2, path: str = "R") -> Any:
    """Names follow from the place, so that those of two schemas are alike where these are."""
    kinds = ["primitive", "enum", "fixed", *(["record", "array", "map", "union"] if depth else [])]
    match draw(st.sampled_from(kinds)):
        case "enum":
            symbols = draw(st.lists(st.sampled_from("xyz"), min_size=1, unique=True))
            schema = {"type": "enum", "name": f"{path}_e", "symbols": symbols}
            return schema | ({"default": draw(st.sampled_from(symbols))} if draw(st.booleans()) else {})
        case "fixed":
            return {"type": "fixed", "name": f"{path}_f", "size": draw(st.integers(1, 2))}
        case "array":
            return {"type": "array", "items": draw(avro_schemas(depth - 1, f"{path}_i"))}
        case "map":
            return {"type": "map", "values": draw(avro_schemas(depth - 1, f"{path}_i"))}
        case "union":
            branches = [draw(avro_schemas(depth - 1, f"{path}_{at}")) for at in range(draw(st.integers(1, 3)))]
            plain = {kept(one): one for one in branches if not isinstance(one, list)}
            return [*plain.values()] or ["null"]
        case "record":
            return {"type": "record", "name": f"{path}_r", "fields": draw(avro_fields(depth - 1, path))}
    return draw(st.sampled_from(PRIMITIVES))


@st.composite
def avro_fields(draw: st.DrawFn, depth: int, path: str) -> list[dict[str, Any]]:
    fields = []
    for name in draw(st.lists(st.sampled_from(FIELDS), unique=True)):
        schema = draw(avro_schemas(depth, f"{path}_{name}"))
        fields.append({"name": name, "type": schema})
        if draw(st.booleans()):
            fields[-1]["default"] = default_of(schema)
    return fields


def default_of(schema: Any) -> Any:
    if isinstance(schema, list):
        return default_of(schema[0])
    match kept(schema):
        case "enum":
            return schema["symbols"][0]
        case "fixed":
            return "x" * schema["size"]
        case "record":
            return {field["name"]: default_of(field["type"]) for field in schema["fields"]}
    return {"null": None, "boolean": True, "bytes": "x", "string": "x", "array": [], "map": {}}.get(kept(schema), 1)


@st.composite
def evolved(draw: st.DrawFn, schema: Any) -> Any:
    """A schema that differs a little."""
    if isinstance(schema, list):
        branches = [draw(evolved(one)) for one in draw(st.permutations(schema))]
        return [*{kept(one): one for one in branches if not isinstance(one, list)}.values()] or ["null"]
    match kept(schema):
        case "int" | "long" | "float" if draw(st.booleans()):
            return draw(st.sampled_from(("long", "float", "double")))
        case "bytes" | "string" if draw(st.booleans()):
            return draw(st.sampled_from(("bytes", "string")))
        case "enum":
            return schema | {
                "symbols": list(dict.fromkeys([*schema["symbols"], *draw(st.lists(st.sampled_from("xyz")))]))
            }
        case "array":
            return schema | {"items": draw(evolved(schema["items"]))}
        case "map":
            return schema | {"values": draw(evolved(schema["values"]))}
        case "record":
            fields = [
                {"name": one["name"], "type": draw(evolved(one["type"]))}
                for one in schema["fields"]
                if draw(st.booleans())
            ]
            there = {one["name"] for one in schema["fields"]}
            for name in draw(st.lists(st.sampled_from(FIELDS), unique=True)):
                if name not in there:
                    added = draw(avro_schemas(0, f"{schema['name']}_{name}"))
                    fields.append({"name": name, "type": added, "default": default_of(added)})
            return schema | {"fields": fields}
    return [schema, "null"] if isinstance(schema, str) and schema != "null" and draw(st.booleans()) else schema


def data_of(schema: Any) -> st.SearchStrategy[Any]:
    if isinstance(schema, list):
        return st.one_of([data_of(one) for one in schema])
    match kept(schema):
        case "enum":
            return st.sampled_from(schema["symbols"])
        case "fixed":
            return st.binary(min_size=schema["size"], max_size=schema["size"])
        case "array":
            return st.lists(data_of(schema["items"]), max_size=3)
        case "map":
            return st.dictionaries(st.sampled_from("kl"), data_of(schema["values"]), max_size=2)
        case "record":
            return st.fixed_dictionaries({field["name"]: data_of(field["type"]) for field in schema["fields"]})
    return {
        "null": st.none(),
        "boolean": st.booleans(),
        "int": st.integers(-(2**31), 2**31 - 1),
        "long": st.integers(-(2**63), 2**63 - 1),
        "float": st.floats(width=32, allow_nan=False),
        "double": st.floats(allow_nan=False),
        "bytes": st.text("xyz").map(str.encode),  # as text they are UTF-8
        "string": st.text(),
    }[kept(schema)]


def avro_problems(new: Any, old: Any) -> list[str]:
    return compatibility.problems("avro", "backward", json.dumps(new), [(1, json.dumps(old))])


def test_what_an_older_avro_schema_wrote_a_newer_one_reads() -> None:
    together: Counter[bool] = Counter()

    @SOME
    @given(st.data())
    def look(data: st.DataObject) -> None:
        old = data.draw(avro_schemas())
        new = data.draw(st.one_of(evolved(old), avro_schemas()))
        found = avro_problems(new, old)
        together[not found] += 1
        assert not avro_problems(old, old)
        if found:
            return
        writer, reader = fastavro.parse_schema(old, {}), fastavro.parse_schema(new, {})
        for datum in (data.draw(data_of(old)) for _ in range(3)):
            file = io.BytesIO()
            fastavro.schemaless_writer(file, writer, datum)
            file.seek(0)
            fastavro.schemaless_reader(file, writer, reader)
            assert not file.read()

    look()
    assert min(together[True], together[False]) > 20, "both are worth looking at"


@pytest.mark.parametrize(
    ("new", "old"),
    [
        ("int", "long"),
        ("string", ["null", "string"]),
        ({"type": "fixed", "name": "F", "size": 2}, {"type": "fixed", "name": "F", "size": 3}),
        ({"type": "enum", "name": "E", "symbols": ["a"]}, {"type": "enum", "name": "E", "symbols": ["a", "b"]}),
    ],
)
def test_avro_schemas_that_do_not_go_together(new: Any, old: Any) -> None:
    assert avro_problems(new, old)


@pytest.mark.parametrize(
    ("kind", "default", "fits"),
    [
        ("int", 2**31, False), ("int", True, False), ("long", 2**31, True), ("double", 1, True), ("double", "1", False),
        ("null", None, True), ("null", 0, False), ("bytes", "\u00ff", True), ("bytes", "\u0100", False),
        (["null", "int"], None, True), (["null", "int"], 1, False),
        ({"type": "array", "items": "int"}, [1, "x"], False),
        ({"type": "map", "values": "int"}, {"k": 1}, True), ({"type": "map", "values": "int"}, [], False),
        ({"type": "enum", "name": "E", "symbols": ["a"]}, "b", False),
        ({"type": "record", "name": "I", "fields": [{"name": "x", "type": "int"}]}, {}, False),
        ({"type": "record", "name": "I", "fields": [{"name": "x", "type": "int", "default": 0}]}, {}, True),
    ],
)  # fmt: skip
def test_a_default_is_of_its_type(kind: Any, default: Any, fits: bool) -> None:
    text = json.dumps({"type": "record", "name": "R", "fields": [{"name": "a", "type": kind, "default": default}]})
    if fits:
        compatibility.read("avro", text)
    else:
        with pytest.raises(InvalidItemError, match=r"R\.a: its default is none of its type"):
            compatibility.read("avro", text)


# --- JSON Schema ---

SMALL = [None, True, 0, 1, 2, 1.5, "", "x", "xx"]
LISTS = [list(one) for size in range(3) for one in itertools.product([None, 1, "x"], repeat=size)]
OBJECTS = [
    dict(zip(names, values, strict=True))
    for size in range(3)
    for names in itertools.combinations(FIELDS, size)
    for values in itertools.product([None, 1, 2.5, "x", [], {"a": 1}], repeat=size)
]
VALUES = [*SMALL, *LISTS, *OBJECTS, [[1]], {"a": {"a": {"a": "x"}}}, {"a": ["x"]}]

bounds = st.integers(0, 3)
leaves = st.one_of(
    st.booleans(),
    st.just({}),
    st.builds(
        lambda names: {"type": names}, st.lists(st.sampled_from(sorted(json_schema.TYPES)), min_size=1, unique=True)
    ),
    st.fixed_dictionaries(
        {"type": st.sampled_from(["number", "integer"])}, optional={"minimum": bounds, "exclusiveMaximum": bounds}
    ),
    st.fixed_dictionaries(
        {}, optional={"minLength": bounds, "maxLength": bounds, "pattern": st.sampled_from(["^x", "y"])}
    ),
    st.builds(lambda values: {"enum": values}, st.lists(st.sampled_from(SMALL), min_size=1, max_size=3)),
    st.sampled_from([{"$ref": "#"}, {"$ref": "#/$defs/d"}, {"const": {"a": 1}}]),
)


def containers(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.one_of(
        st.fixed_dictionaries(
            {},
            optional={
                "type": st.sampled_from(["object", ["object", "null"]]),
                "properties": st.dictionaries(st.sampled_from(FIELDS), inner, max_size=3),
                "required": st.lists(st.sampled_from(FIELDS), unique=True),
                "additionalProperties": inner,
                "minProperties": bounds,
                "patternProperties": st.just({"^a": {"type": "string"}}),
                "unevaluatedProperties": st.just(False),
            },
        ),
        st.fixed_dictionaries(
            {},
            optional={
                "type": st.just("array"),
                "items": inner,
                "maxItems": bounds,
                "prefixItems": st.lists(inner, min_size=1, max_size=1),
            },
        ),
        st.fixed_dictionaries({"anyOf": st.lists(inner, min_size=1, max_size=2)}),
    )


json_schemas = st.recursive(leaves, containers, max_leaves=5)
wholes = st.builds(
    lambda schema, inner: schema | {"$defs": {"d": inner}} if isinstance(schema, dict) else schema,
    json_schemas,
    st.recursive(st.sampled_from([{}, {"type": "string"}, False]), containers, max_leaves=3),
)


@st.composite
def narrowed(draw: st.DrawFn, schema: Any) -> Any:
    """The same with something more or less, at some place."""
    if not isinstance(schema, dict):
        return draw(leaves)
    changed = dict(schema)
    for name in draw(st.lists(st.sampled_from(sorted(schema) or ["type"]), max_size=2)):
        changed.pop(name, None)
    match draw(st.integers(0, 3)):
        case 0:
            changed |= draw(leaves.filter(lambda one: isinstance(one, dict)))
        case 1 if isinstance(changed.get("properties"), dict):
            changed["properties"] = {name: draw(narrowed(one)) for name, one in changed["properties"].items()}
        case 2:
            changed["additionalProperties"] = draw(leaves)
    return changed


def allowed(schema: Any) -> list[int]:
    validator = Draft202012Validator(schema)
    found = []
    for at, value in enumerate(VALUES):
        try:
            found += [at] if validator.is_valid(value) else []
        except RecursionError:  # a schema that refers to itself and to nothing else
            return []
    return found


def test_what_an_older_json_schema_allows_a_newer_one_allows() -> None:
    together: Counter[bool] = Counter()

    @SOME
    @given(st.data())
    def look(data: st.DataObject) -> None:
        old = data.draw(wholes)
        new = data.draw(st.one_of(narrowed(old), wholes))
        writer, reader = (json_schema.checked(json.dumps(one)) for one in (old, new))
        found = json_schema.problems(reader, writer)
        together[not found] += 1
        if not found:
            lost = {*allowed(writer)} - {*allowed(reader)}
            assert not [VALUES[at] for at in sorted(lost)]

    look()
    assert min(together[True], together[False]) > 20, "both are worth looking at"


TEXT, INTEGER = {"type": "string"}, {"type": "integer"}
ANY_A, UNSEEN = {"patternProperties": {"^a": {}}}, {"unevaluatedProperties": False}
CLOSED = {"additionalProperties": False}


def node(**fields: Any) -> dict[str, Any]:
    """A schema that refers to itself."""
    return {"$ref": "#/$defs/n", "$defs": {"n": {"properties": {"next": {"$ref": "#/$defs/n"}, **fields}}}}


@pytest.mark.parametrize(
    ("reader", "writer", "problem"),
    [
        ({"required": ["a"]}, {"required": ["a", "b"]}, None),
        ({"required": ["a", "b"]}, {"required": ["b"]}, "/: required: a may be missing"),
        ({"properties": {"a": TEXT}}, {}, "/properties/a: type"),
        ({"properties": {"a": TEXT}}, CLOSED, None),
        ({"properties": {"a": TEXT}}, {"additionalProperties": TEXT}, None),
        ({"properties": {"a": TEXT}} | ANY_A, CLOSED | ANY_A, "/properties/a: patternProperties"),
        (CLOSED, CLOSED | {"properties": {"a": TEXT}}, "/properties/a: nothing is allowed any more"),
        (CLOSED, {}, "/additionalProperties: nothing is allowed any more"),
        (UNSEEN, UNSEEN | {"properties": {"a": TEXT}}, "unevaluatedProperties and"),
        ({"type": ["string", "null"]}, TEXT, None),
        (TEXT, {"type": ["string", "null"]}, "type: null is refused"),
        ({"type": "number"}, INTEGER, None),
        (INTEGER, {"type": "number"}, "type: number is refused"),
        ({"enum": ["a"]}, {"enum": ["a", "b"]}, "'b' is refused"),
        ({"enum": ["a", "b"]}, {"const": "a"}, None),
        ({"enum": ["a"]}, TEXT, "enum is not the same"),
        (INTEGER | {"minimum": 1}, INTEGER | {"minimum": 2}, None),
        (INTEGER | {"minimum": 2}, INTEGER | {"minimum": 1}, "minimum: 2 is narrower than 1"),
        (TEXT | {"maxLength": 2}, TEXT, "maxLength: 2 is narrower than 'none'"),
        (TEXT | {"minLength": 0}, TEXT, None),
        (TEXT, TEXT | {"pattern": "a", "format": "date", "not": {}}, None),
        (TEXT | {"pattern": "a"}, TEXT, "pattern is not the same"),
        ({"items": {"type": "number"}}, {"items": INTEGER}, None),
        ({"items": INTEGER}, {}, "/items: type"),
        ({"items": TEXT}, {"items": TEXT, "prefixItems": [INTEGER]}, "prefixItems is not the same"),
        (node(value={"type": ["string", "integer"]}), node(value=TEXT), None),
        (node(value=INTEGER), node(value=TEXT), "/properties/value: type: string is refused"),
        ({"anyOf": [{"$ref": "#/$defs/d"}]}, {"anyOf": [{"$ref": "#/$defs/d"}]}, "anyOf is not the same"),
        ({"$schema": "http://json-schema.org/draft-07/schema#"}, {}, "$schema: "),
        ({"items": {"$id": "x:y"}}, {"items": {"$id": "x:y"}}, "$id"),
    ],
)
def test_a_rule_of_json_schemas(reader: Any, writer: Any, problem: str | None) -> None:
    found = json_schema.problems(*(json_schema.checked(json.dumps(one)) for one in (reader, writer)))
    if problem is None:
        assert found == []
    else:
        assert problem in found[0]


def test_nothing_is_fetched_for_a_json_schema() -> None:
    """Another schema, by its address, is never asked for."""
    other = {"$ref": "http://127.0.0.1:9/other"}
    assert "is not in this schema" in json_schema.problems(other, {"const": 1})[0]
    assert json_schema.problems({"properties": {"a": {"allOf": [other]}}}, {"const": {"a": 1}})


# --- without the extra ---


@pytest.mark.parametrize("kind", ["avro", "json"])
def test_who_checks_without_the_extra_is_told_which_it_is(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    for name in list(sys.modules):
        if name.partition(".")[0] in ("avro", "jsonschema"):
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "avro", None)
    monkeypatch.setitem(sys.modules, "jsonschema", None)
    with pytest.raises(MissingExtraError, match=r"comes with the extra schemas: .*pip install './clients\[schemas\]'"):
        compatibility.read(kind, "{}")
