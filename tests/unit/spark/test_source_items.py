"""Records become the same requests whatever order they come in, and those that make no sense are refused by name."""

from __future__ import annotations

import random
from typing import Any

import pytest
from pyspark.sql.types import LongType, StringType, StructField, StructType

from metad_client import KvDeleteItem, KvPutItem, OffsetCommitItem, OffsetKey
from metad_spark.source import sink as items
from metad_spark.source.datasource import MetadDataSource
from metad_spark.source.errors import OptionError, SinkError
from metad_spark.source.sink import check_columns, items_of, requests_of, writes_of


def records(count: int) -> list[dict[str, Any]]:
    return [{"namespace": "ns", "key": f"k{n}", "value": b"%d" % n, "change": "written"} for n in range(count)]


def test_records_put_and_delete() -> None:
    given = [
        {"namespace": "ns", "key": "a", "value": b"1", "expected_version": None},
        {"namespace": "ns", "key": "b", "value": None, "change": "deleted"},
        {"namespace": "ns", "key": "c", "value": b"3", "change": "snapshot", "expected_version": 2},
        {"namespace": "ns", "key": "d", "value": None, "change": "expired"},
    ]
    put, deleted = items_of("kv", given)
    assert put == [KvPutItem("ns", "a", b"1"), KvPutItem("ns", "c", b"3", 2)]
    assert deleted == [KvDeleteItem("ns", "b"), KvDeleteItem("ns", "d")]
    offset = {"tenant": "t", "group": "g", "topic": "o", "partition": 3, "offset": 9}
    assert items_of("offset", [offset])[0] == [OffsetCommitItem("t", "g", "o", 3, 9)]
    assert items_of("offset", [offset | {"change": "deleted"}])[1] == [OffsetKey("t", "g", "o", 3)]


def test_requests_do_not_depend_on_the_order_of_records() -> None:
    given = records(2_500)
    cut = requests_of(writes_of("kv").put, items_of("kv", given)[0])
    random.Random(1).shuffle(given)
    assert requests_of(writes_of("kv").put, items_of("kv", given)[0]) == cut
    assert [len(request) for request in cut] == [1000, 1000, 500]


def test_requests_are_bounded_in_bytes() -> None:
    given = [{"namespace": "ns", "key": f"k{n}", "value": bytes(150 * 1024)} for n in range(5)]
    cut = requests_of(writes_of("kv").put, items_of("kv", given)[0])
    assert [len(request) for request in cut] == [2, 2, 1]
    large = [{"namespace": "ns", "key": f"k{n}", "value": bytes(items.BYTES_MAX * 2)} for n in range(2)]
    assert [len(request) for request in requests_of(writes_of("kv").put, items_of("kv", large)[0])] == [1, 1]


@pytest.mark.parametrize(
    ("record", "line"),
    [
        ({"namespace": "ns", "key": None, "value": b""}, "kv: a record .*'namespace': 'ns'.*key"),
        ({"namespace": "ns", "key": 5, "value": b""}, "kv: a record .*key: expected"),
        ({"namespace": "ns", "key": "k", "value": b"", "expected_version": -1}, "kv: a record .*expected_version"),
    ],
)
def test_a_record_that_makes_no_sense_is_named(record: dict[str, Any], line: str) -> None:
    with pytest.raises(SinkError, match=line):
        items_of("kv", [record])


def test_tables_and_columns_that_cannot_be_written_are_refused() -> None:
    with pytest.raises(
        OptionError,
        match="table: 'subscription' cannot be written; there is acl, auto_subscription, binding",
    ):
        writes_of("subscription")
    with pytest.raises(OptionError, match="columns: a write to kv needs 'key'"):
        check_columns("kv", ["namespace", "value"])
    with pytest.raises(OptionError, match="columns: a write to kv has no 'version'"):
        check_columns("kv", ["namespace", "key", "value", "version"])
    check_columns("kv", ["namespace", "key", "value", "change"])
    check_columns("session", ["tenant", "client_id", "expiry_interval_s", "payload", "will", "expires_ms"])
    with pytest.raises(OptionError, match="columns: a write to session has no 'change'; it has tenant, client_id, "):
        check_columns("session", ["tenant", "client_id", "change"])
    with pytest.raises(OptionError, match="columns: a write to session needs 'client_id'"):
        check_columns("session", ["tenant"])


@pytest.mark.parametrize(
    ("options", "overwrite", "line"),
    [
        ({"path": "/x"}, False, "source: /x is a directory"),
        ({}, True, 'mode: only "append"'),
        ({"batch": "3"}, False, "batch: it needs the option query"),
        ({"table": "inflight"}, False, "table: 'inflight' cannot be written"),
    ],
)
def test_a_writer_that_makes_no_sense_is_refused(options: dict[str, str], overwrite: bool, line: str) -> None:
    schema = StructType([StructField(name, StringType()) for name in ("namespace", "key", "value")])
    source = MetadDataSource({"path": "metad://a:1", "table": "kv", **options})
    for make in (source.writer, source.streamWriter):
        with pytest.raises(OptionError, match=line):
            make(schema, overwrite)
    with pytest.raises(OptionError, match="needs 'key'"):
        MetadDataSource({"path": "metad://a:1", "table": "kv"}).writer(
            StructType([StructField("namespace", LongType())]), False
        )
