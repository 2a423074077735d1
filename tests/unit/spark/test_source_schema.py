"""Every declared table is a schema, which says what reads return, and needs neither numba nor the simulator."""

from __future__ import annotations

import subprocess
import sys
import types
from collections.abc import Iterator
from typing import Any
from unittest import mock

import msgspec
import pytest
from pyspark.sql.datasource import DataSourceReader, EqualTo
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import ArrayType, LongType, StringType, StructType

from metad_spark.source import shapes
from metad_spark.source.datasource import MetadDataSource
from metad_spark.source.errors import OptionError
from metad_spark.source.registering import register
from metad_spark.source.schema import arrow_of, changes_schema_of, schema_of
from metad_wire.families import KNOWN
from metad_wire.messages import Message, Session
from metad_wire.table import ANY_KIND
from metad_wire.tables.table import PlainTable
from metad_wire.text.fields import U32


@pytest.mark.parametrize("table", shapes.names())
def test_a_schema_has_the_key_first_and_each_column_once(table: str) -> None:
    schema = schema_of(table)
    names = schema.fieldNames()
    keys = [column.name for column in shapes.shape_of(table).keys]
    assert names[: len(keys)] == keys
    assert not any(field.nullable for field in schema.fields[: len(keys)])
    assert len(set(names)) == len(names)
    assert "revision" in names


@pytest.mark.parametrize("table", shapes.names())
def test_arrow_has_the_types_that_spark_expects(table: str) -> None:
    assert arrow_of(schema_of(table)).equals(to_arrow_schema(schema_of(table)))


def test_every_table_that_a_watch_shows_has_a_schema() -> None:
    shown = {name for name, table in KNOWN.items() if table.shows and table.kind != ANY_KIND}
    assert shown | {"broker"} == {name.partition(".")[0] for name in shapes.names()}


def test_a_session_has_what_a_read_of_it_returns() -> None:
    names = schema_of("session").fieldNames()
    read = {field.name for field in msgspec.structs.fields(Session)} - {"properties"}
    assert read <= set(names)
    assert {"expiry_interval_s", "payload", "will", "slot"} <= set(names)
    assert isinstance(schema_of("session")["will"].dataType, StructType)


def test_a_list_has_nulls_where_its_items_may_be_nil() -> None:
    schema = schema_of("config_history")
    assert schema["values"].dataType == ArrayType(StringType(), containsNull=True)
    assert schema["changed_at_ms"].dataType == ArrayType(LongType(), containsNull=False)


def test_a_row_by_name_has_its_own_key() -> None:
    assert schema_of("offset.generation").fieldNames() == ["tenant", "group", "generation", "slot", "revision"]
    assert "payload" not in schema_of("session.owner").fieldNames()


@pytest.fixture
def readings() -> Iterator[str]:
    class Reading(Message, frozen=True):
        tenant: str
        sensor: str
        quality: U32 = 0

    # In a module, because the declaration makes other types from it.
    module = types.ModuleType("readings")
    module.__dict__.update(Reading=Reading)
    table = PlainTable("reading", number=900, kind="data", record=Reading, key=("tenant", "sensor"))
    with mock.patch.dict(KNOWN, reading=table):
        yield "reading"
    shapes.shape_of.cache_clear()


def test_a_plain_table_has_a_schema_from_its_declaration_alone(readings: str) -> None:
    names = schema_of(readings).fieldNames()
    assert names == [
        *("tenant", "sensor", "quality", "version", "create_revision", "mod_revision", "slot", "revision"),
    ]
    assert isinstance(schema_of(readings)["sensor"].dataType, StringType)
    assert isinstance(schema_of(readings)["quality"].dataType, LongType)


def test_a_table_that_is_not_there_is_one_line() -> None:
    with pytest.raises(OptionError, match=r"no table 'sessions' to read; there is acl, auto_subscription, binding"):
        schema_of("sessions")
    with pytest.raises(OptionError, match=r"no table 'session\.count'"):
        schema_of("session.count")
    with pytest.raises(OptionError, match="no table 'group'"):
        schema_of("group")  # every group has one; nobody reads it
    with pytest.raises(OptionError, match="table: name one"):
        MetadDataSource({"path": "metad://a:1"}).schema()


def test_a_session_of_spark_is_told_by_name() -> None:
    """Spark refuses a reader that takes filters where it does not give any, by the function behind the method."""
    told: list[type[MetadDataSource]] = []
    spark = types.SimpleNamespace(dataSource=types.SimpleNamespace(register=told.append))
    register(spark)  # type: ignore[arg-type]
    (source,) = told
    assert source.name() == "metad"
    opened = source({"table": "kv", "path": "metad://a:1"})
    assert opened.schema() == changes_schema_of("kv")
    reader = opened.reader(opened.schema())
    assert reader.pushFilters.__func__ is DataSourceReader.pushFilters
    filters: list[Any] = [EqualTo(("namespace",), "a")]
    assert reader.pushFilters(filters) == filters
    assert reader.settings.tenant == "a"


def test_neither_numba_nor_the_simulator_is_needed() -> None:
    asks = (
        "import sys; sys.modules['numba'] = sys.modules['psutil'] = sys.modules['rich'] = None\n"
        "from metad_spark import register\n"
        "import metad_spark.source.datasource\n"
        "print([name for name in sys.modules if name.startswith(('metad_spark.models', 'metad.', 'metad_perf'))])"
    )
    said = subprocess.run([sys.executable, "-c", asks], capture_output=True, text=True, timeout=300)
    assert (said.returncode, said.stdout.strip()) == (0, "[]"), said.stderr
