"""A directory gives back what was written, as little of it as is wanted, and says in one line what is wrong with it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql.types import LongType, StringType, StructField, StructType

from metad_client import MapReply
from metad_spark.source import directory, groups, live
from metad_spark.source.datasource import MetadDataSource
from metad_spark.source.errors import ClusterError, DirectoryError, OptionError
from metad_spark.source.options import Settings, settings_of
from metad_spark.source.reader import MetadReader, narrowed
from metad_spark.source.schema import arrow_of, schema_of
from metad_spark.source.shapes import names, shape_of
from metad_wire.families import FAMILIES

SESSIONS = arrow_of(schema_of("session"))


def sessions(tenant: str, count: int, *, begin: int = 0) -> pa.Table:
    records = [
        {
            "tenant": tenant,
            "client_id": f"c-{number:04}",
            "connected": True,
            "broker": f"b-{number % 3}",
            "broker_epoch": 1,
            "disconnected_ms": 0,
            "stolen": 0,
            "expires_ms": 0,
            "will_ms": 0,
            "expiry_interval_s": 5,
            "payload": b"x",
            "will": None,
            "slot": number % 1024,
            "revision": 9,
        }
        for number in range(begin, begin + count)
    ]
    return pa.Table.from_pylist(records, schema=SESSIONS)


def wills(claimed: list[bool]) -> pa.Table:
    schema = arrow_of(schema_of("will"))
    will = {"topic": "t", "payload": b"", "qos": 0, "retain": False, "delay_s": 0, "properties": b""}
    records = [
        {
            "tenant": "acme",
            "client_id": str(number),
            "id": "1",
            "will": will,
            "due_ms": 1,
            **dict.fromkeys(("broker_epoch", "until_ms", "claims"), 1 if claim else None),
            "broker": "b" if claim else None,
            "slot": 0,
            "revision": 9,
        }
        for number, claim in enumerate(claimed)
    ]
    return pa.Table.from_pylist(records, schema=schema)


@pytest.fixture
def exported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(directory, "ROW_GROUP_ROWS", 100)
    writer = directory.Writer(tmp_path / "out", "cluster-1")
    writer.write("session", "data-0", 9, pa.concat_tables([sessions("acme", 500), sessions("zeta", 500)]))
    writer.write("session", "data-1", 9, sessions("acme", 70, begin=500))
    writer.write("will", "data-0", 9, wills([True, False, True]))
    writer.finish(["session", "will", "kv"])
    return tmp_path / "out"


def settings(exported: Path, **options: str) -> Settings:
    return settings_of({"path": str(exported), "table": "session", **options})


def read(exported: Path, filters: Sequence[Any] = (), **options: Any) -> list[dict[str, Any]]:
    given = {"path": str(exported), **options}
    reader = MetadReader(settings_of(given), MetadDataSource(given).schema())
    assert list(reader.pushFilters(list(filters))) == list(filters)
    schema = arrow_of(MetadDataSource(given).schema())
    found: list[dict[str, Any]] = []
    for partition in reader.partitions():
        for batch in reader.read(partition):
            assert batch.schema.equals(schema)
            found += batch.to_pylist()
    return found


def test_it_has_all_records_of_all_groups(exported: Path) -> None:
    found = read(exported, table="session", columns=",".join(SESSIONS.names))
    whole = [*sessions("acme", 500).to_pylist(), *sessions("zeta", 500).to_pylist()]
    assert found == [*whole, *sessions("acme", 70, begin=500).to_pylist()]
    assert read(exported, table="kv") == []


def test_columns_tenant_and_prefix(exported: Path) -> None:
    found = read(exported, table="session", columns="client_id, slot", tenant="acme", prefix="c-05")
    assert found == [{"client_id": f"c-{number:04}", "slot": number} for number in range(500, 570)]
    assert {record["tenant"] for record in read(exported, table="session", prefix="z")} == {"zeta"}
    assert read(exported, table="session", tenant="nobody") == []


def test_row_groups_without_the_tenant_are_not_read(exported: Path) -> None:
    parts = directory.parts(settings(exported, tenant="zeta"), shape_of("session"))
    assert sum(len(part.row_groups) for part in parts) == 5
    assert sum(len(part.row_groups) for part in directory.parts(settings(exported), shape_of("session"))) == 11


def test_many_records_are_several_partitions(exported: Path) -> None:
    sizes = [len(part.row_groups) for part in directory.parts(settings(exported), shape_of("session"))]
    assert sizes == [4, 4, 2, 1]


def test_one_row_of_a_table_is_read_from_the_whole(exported: Path) -> None:
    assert read(exported, table="session.owner", columns="client_id", tenant="zeta", prefix="c-0001") == [
        {"client_id": "c-0001"}
    ]
    claims = read(exported, table="will.claim", columns="client_id")
    assert claims == [{"client_id": "0"}, {"client_id": "2"}]
    assert len(read(exported, table="will.due")) == 3


def test_each_row_is_stored_once() -> None:
    stored = [name for name in directory.stored_names() if name not in FAMILIES]  # which share their row
    assert "offset.generation" in stored
    assert "session.owner" not in stored
    rows = [row.number for name in stored for row in shape_of(name).rows]
    assert len(rows) == len(set(rows))
    assert {row.number for name in names() if name not in FAMILIES for row in shape_of(name).rows} == set(rows)


def test_a_column_that_the_directory_does_not_have_is_null(exported: Path) -> None:
    file = exported / "will" / "data-0-0.parquet"
    pq.write_table(wills([True, False, True]).drop_columns(["claims"]), file)
    assert read(exported, table="will", columns="client_id,claims") == [
        {"client_id": str(number), "claims": None} for number in range(3)
    ]


def test_what_is_wrong_is_one_line(exported: Path, tmp_path: Path) -> None:
    with pytest.raises(DirectoryError, match=r"it has no metad-snapshot.json: metad-spark export makes such a"):
        read(tmp_path, table="session")
    with pytest.raises(DirectoryError, match=r"out: it has no table offset; it has kv, session, will"):
        read(exported, table="offset")
    with pytest.raises(DirectoryError, match="out: it is not empty"):
        directory.Writer(exported, "again")
    with pytest.raises(
        OptionError, match=r"tables: no table 'session\.owner' can be exported; there is acl, auto_subscription"
    ):
        directory.check_names(["session.owner"])
    pq.write_table(wills([True]), exported / "will" / "data-0-0.parquet")
    with pytest.raises(DirectoryError, match=r"data-0-0.parquet: it has 1 records, and metad-snapshot.json says 3"):
        read(exported, table="will")
    (exported / "will" / "data-0-0.parquet").write_bytes(b"nothing")
    with pytest.raises(DirectoryError, match=r"data-0-0.parquet: "):
        read(exported, table="will")
    listing = exported / directory.LIST
    listing.write_bytes(listing.read_bytes().replace(b'"format": 1', b'"format": 2'))
    with pytest.raises(DirectoryError, match="it is of format 2, and this version knows 1"):
        read(exported, table="session")
    listing.write_bytes(b"{")
    with pytest.raises(DirectoryError, match=r"metad-snapshot.json: "):
        read(exported, table="session")


def test_a_schema_of_the_program_chooses_columns_and_must_fit(exported: Path) -> None:
    settings = settings_of({"path": str(exported), "table": "session"})
    some = StructType([StructField("slot", LongType(), False)])
    reader = MetadReader(settings, some)
    assert next(iter(reader.read(reader.partitions()[0]))).schema.names == ["slot"]
    with pytest.raises(OptionError, match="columns: session has no 'slut'"):
        MetadReader(settings, StructType([StructField("slut", LongType())]))
    with pytest.raises(OptionError, match="columns: slot is bigint, not string"):
        MetadReader(settings, StructType([StructField("slot", StringType())]))


# --- options ---


def test_options_are_known_in_any_case_and_others_refused() -> None:
    given = {"path": "metad://a:1", "Table": "session", "slotRanges": "4", "slot_ranges": "4", "TIMEOUTS": "2.5"}
    settings = settings_of(given)
    assert (settings.table, settings.slot_ranges, settings.timeout_s, settings.is_live) == ("session", 4, 2.5, True)
    assert settings_of({"path": "file:///x", "table": "kv"}).directory == Path("/x")


def test_a_table_of_a_catalog_has_the_options_that_were_stated() -> None:
    of_spark = {"provider": "metad", "owner": "root", "path": "file:/warehouse/kv", "source": "metad://a:1"}
    settings = settings_of({**of_spark, "option.source": "metad://a:1", "table": "kv", "option.table": "kv"})
    assert (settings.source, settings.table) == ("metad://a:1", "kv")


@pytest.mark.parametrize(
    ("given", "line"),
    [
        ({"table": "kv"}, "source: name a cluster or a directory"),
        ({"path": "/x"}, "table: name one"),
        ({"path": "/x", "table": "kv", "tenat": "a"}, "tenat: there is no such option; there is batch, ca, "),
        ({"path": "/x", "table": "kv", "slotRanges": "many"}, "slotRanges: "),
        ({"path": "/x", "table": "kv", "slotRanges": "0"}, "slotRanges: from 1 to 1024, not 0"),
        ({"path": "/x", "table": "kv", "timeoutS": "0"}, "timeoutS: over 0, not 0"),
        ({"path": "/x", "table": "kv", "rowsMax": "-1"}, "rowsMax: not below 0, not -1"),
        ({"path": "/x", "table": "kv", "start": "then"}, "start: snapshot or now, not 'then'"),
        ({"path": "http://x", "table": "kv"}, "source: "),
        ({"path": "/x", "source": "/y", "table": "kv"}, "source: load"),
    ],
)
def test_options_that_make_no_sense_are_one_line(given: dict[str, str], line: str) -> None:
    with pytest.raises(OptionError, match=f"^{line}"):
        settings_of(given)


class EqualTo(msgspec.Struct):
    attribute: tuple[str, ...]
    value: object


class StringStartsWith(EqualTo):
    pass


class GreaterThan(EqualTo):
    pass


class GreaterThanOrEqual(EqualTo):
    pass


class LessThan(EqualTo):
    pass


class In(EqualTo):
    pass


@pytest.mark.parametrize(
    ("filters", "tenant", "prefix"),
    [
        ([EqualTo(("tenant",), "acme")], "acme", ""),
        ([EqualTo(("tenant",), "acme"), StringStartsWith(("client_id",), "c")], "acme", "c"),
        ([EqualTo(("tenant",), "acme"), EqualTo(("client_id",), "c-1")], "acme", "c-1"),
        ([StringStartsWith(("tenant",), "ac")], None, "ac"),
        ([StringStartsWith(("client_id",), "c")], None, ""),  # it is behind the tenant, which is any
        ([EqualTo(("will", "topic"), "t"), GreaterThan(("tenant",), "a"), EqualTo(("slot",), 5)], None, ""),
        ([GreaterThanOrEqual(("tenant",), "acm"), LessThan(("tenant",), "acz")], None, "ac"),
        ([GreaterThan(("tenant",), "a"), LessThan(("tenant",), "b")], None, ""),
        ([EqualTo(("tenant",), "a"), In(("client_id",), ("c-10", "c-12"))], "a", "c-1"),
        ([EqualTo(("tenant",), "a"), GreaterThan(("client_id",), "c-1"), LessThan(("client_id",), "c-2")], "a", "c-"),
        ([In(("tenant",), ("a", "b")), EqualTo(("tenant",), "b")], "b", ""),
        ([In(("tenant",), tuple(f"t{number}" for number in range(100)))], None, "t"),
        ([EqualTo(("tenant",), "x" * 20_000)], None, ""),  # no group takes such a long filter
        ([EqualTo(("tenant",), "a"), EqualTo(("tenant",), "b")], None, ""),
    ],
)
def test_filters_narrow_what_is_read(filters: list[Any], tenant: str | None, prefix: str) -> None:
    settings = narrowed(Settings(source="/x", table="session"), shape_of("session"), filters)
    assert (settings.tenant, settings.prefix) == (tenant, prefix)


def test_several_tenants_are_read_each_by_itself(exported: Path) -> None:
    known = settings(exported)
    found = narrowed(known, shape_of("session"), [In(("tenant",), ("acme", "zeta")), EqualTo(("client_id",), "c-1")])
    assert [(one.tenant, one.prefix) for one in found.watched(["owner"])] == [("acme", "c-1"), ("zeta", "c-1")]
    some = read(exported, [In(("tenant",), ("acme", "none"))], table="session")
    assert some == [row for row in read(exported, table="session") if row["tenant"] == "acme"]


@pytest.mark.parametrize(
    ("filters", "left"),
    [
        ([EqualTo(("slot",), 5)], {5}),
        ([In(("slot",), (1, 2, 2_000))], {1, 2}),
        ([GreaterThanOrEqual(("slot",), 1_020)], {1_020, 1_021, 1_022, 1_023}),
        ([GreaterThan(("slot",), 3), LessThan(("slot",), 5)], {3, 4, 5}),  # Spark looks at the ends again
        ([EqualTo(("slot",), -1)], set()),
    ],
)
def test_filters_leave_slots(filters: list[Any], left: set[int]) -> None:
    assert narrowed(Settings(source="/x", table="session"), shape_of("session"), filters).slots == left
    assert narrowed(Settings(source="/x", table="broker"), shape_of("broker"), filters).slots is None


@pytest.mark.parametrize("outside", ["../elsewhere.parquet", "/elsewhere.parquet", "session/../../elsewhere.parquet"])
def test_a_list_names_files_of_its_own_directory_only(exported: Path, outside: str) -> None:
    """A directory may come from someone else, and is read with the rights of whoever reads it."""
    listing = msgspec.json.decode((exported / directory.LIST).read_bytes())
    listing["tables"]["session"][0]["path"] = outside
    (exported / directory.LIST).write_bytes(msgspec.json.encode(listing))
    with pytest.raises(DirectoryError, match=r"it names .*elsewhere\.parquet, which is not in "):
        read(exported, table="session")


def test_a_table_without_tenants_takes_none(exported: Path) -> None:
    with pytest.raises(OptionError, match="tenant, prefix: broker has none"):
        read(exported, table="broker", tenant="acme")


def test_a_cluster_that_is_not_formed_in_time_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = Settings(source="metad://a:1", table="session", timeout_s=0.01)

    class Forming:
        """A client of a cluster without a map."""

        def __init__(self, *_: object) -> None:
            self.cluster = self

        async def __aenter__(self) -> Forming:
            return self

        async def __aexit__(self, *_: object) -> None:
            pass

        async def map(self) -> MapReply:
            return MapReply(0, None, {})

    monkeypatch.setattr(groups, "connect", Forming)
    with pytest.raises(ClusterError, match=r"metad://a:1: no node has said within 0\.01 s which groups there are"):
        live.plan(settings, shape_of("session"))


def test_filters_do_not_widen_what_the_program_chose() -> None:
    chosen = Settings(source="/x", table="session", tenant="acme")
    assert narrowed(chosen, shape_of("session"), [EqualTo(("tenant",), "other")]).tenant == "acme"
    listed = Settings(source="/x", table="broker")
    assert narrowed(listed, shape_of("broker"), [EqualTo(("broker",), "b")]) == listed
