"""A table's columns as Spark and Arrow know them."""

from __future__ import annotations

import types
import typing
from typing import Any

import msgspec
import pyarrow as pa
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DoubleType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from .errors import OptionError
from .shapes import CHANGE, CHANGE_TIME, REVISION, ROW, SLOT, TIME_MS, Column, Shape, shape_of

_SPARK = {bool: BooleanType(), int: LongType(), float: DoubleType(), str: StringType(), bytes: BinaryType()}
_ARROW: dict[type[DataType], pa.DataType] = {
    BooleanType: pa.bool_(),
    LongType: pa.int64(),
    DoubleType: pa.float64(),
    StringType: pa.string(),
    BinaryType: pa.binary(),
    TimestampType: pa.timestamp("us", "UTC"),
}


def schema_of(table: str, declared: bytes = b"") -> StructType:
    """The columns of ``TABLE`` or ``TABLE.ROW`` (``session``, ``offset``, ``offset.generation``): those of its key,
    which are never null; those of each of its rows, null where a record has no such row; ``slot``; and ``revision``.
    Raises OptionError if there is no such table."""
    return schema_of_shape(shape_of(table, declared))


def schema_of_shape(shape: Shape) -> StructType:
    """The same of a shape."""
    never_null = {*(key.name for key in shape.keys), SLOT, REVISION}
    return StructType([_field(column, column.name not in never_null) for column in shape.columns])


def changes_schema_of(table: str, declared: bytes = b"") -> StructType:
    """What ``format("metad")`` has: these columns, and what has happened (``change``, ``row``, ``time_ms``, and
    the same as a timestamp, ``change_time``). A record that is read at once and one that is followed have the same
    columns, because Spark does not say which is wanted."""
    happened = [
        StructField(CHANGE, StringType(), False),
        StructField(ROW, StringType()),
        StructField(TIME_MS, LongType(), False),
        StructField(CHANGE_TIME, TimestampType()),
    ]
    return StructType([*schema_of(table, declared).fields, *happened])


def arrow_of(schema: StructType) -> pa.Schema:
    """The same columns in Arrow, as Spark wants them."""
    return pa.schema([_arrow_field(field) for field in schema.fields])


def _field(column: Column, nullable: bool) -> StructField:
    return StructField(column.name, _spark_type(column.type, column.name), nullable)


def _spark_type(declared: Any, name: str) -> DataType:
    origin = typing.get_origin(declared)
    if origin is typing.Annotated:
        return _spark_type(typing.get_args(declared)[0], name)
    if origin in (typing.Union, types.UnionType):
        (inner,) = [each for each in typing.get_args(declared) if each is not type(None)]
        return _spark_type(inner, name)
    if origin is typing.Literal:
        return _spark_type(type(typing.get_args(declared)[0]), name)
    if origin is list:
        (inner,) = typing.get_args(declared)
        return ArrayType(_spark_type(inner, name), containsNull=_may_be_none(inner))
    if origin is dict:
        key, value = typing.get_args(declared)
        return MapType(_spark_type(key, name), _spark_type(value, name), valueContainsNull=_may_be_none(value))
    if isinstance(declared, type) and issubclass(declared, msgspec.Struct):
        return StructType([_field(Column(field.name, field.type), True) for field in msgspec.structs.fields(declared)])
    for known, spark in _SPARK.items():
        if isinstance(declared, type) and issubclass(declared, known):
            return spark
    raise OptionError(f"table: column {name} is of a type that Spark has no name for: {declared}")


def _may_be_none(declared: Any) -> bool:
    return type(None) in typing.get_args(declared)


def _arrow_field(field: StructField) -> pa.Field:
    return pa.field(field.name, _arrow_type(field.dataType), nullable=field.nullable)


def _arrow_type(spark: DataType) -> pa.DataType:
    if isinstance(spark, StructType):
        return pa.struct([_arrow_field(field) for field in spark.fields])
    if isinstance(spark, ArrayType):
        return pa.list_(pa.field("element", _arrow_type(spark.elementType), nullable=spark.containsNull))
    if isinstance(spark, MapType):
        value = pa.field("value", _arrow_type(spark.valueType), nullable=spark.valueContainsNull)
        return pa.map_(pa.field("key", _arrow_type(spark.keyType), nullable=False), value)
    return _ARROW[type(spark)]
