"""Spark reads a real cluster of three nodes, and what is exported from it, through ``format("metad")``."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import metad.embedded
from metad_client import (
    U32,
    OffsetCommitItem,
    Record,
    SessionProperties,
    SessionTakeoverItem,
    TablePutItem,
    blocking,
)
from metad_spark import register
from metad_spark.cli import main
from metad_spark.pipeline.context import Context
from metad_wire.declaration import TABLE_KINDS
from metad_wire.families.core import ACLS, Acl
from metad_wire.families.mqtt import TOPIC_SETTINGS, TopicSettings

SESSIONS = 600
TOPICS = 200
PUSHDOWN = "spark.sql.python.filterPushdown.enabled"
Load = Callable[..., DataFrame]

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def cluster() -> Iterator[str]:
    with metad.embedded.cluster(nodes=3, groups={"metadata": 2}) as nodes:
        with blocking.connect(nodes.url) as m:
            for begin in range(0, SESSIONS, 200):
                items = [
                    SessionTakeoverItem(
                        f"t{number % 3}", f"c-{number:05}", False, SessionProperties(number, b"%d" % number)
                    )
                    for number in range(begin, begin + 200)
                ]
                m.sessions.takeover_many(f"b-{begin // 200}", 7, items, deadline_s=60).raise_for_error()
            commits = [OffsetCommitItem("t0", f"g{number}", "topic", number, 10 * number, 3) for number in range(50)]
            m.offsets.commit_many(commits, deadline_s=60).raise_for_error()
            topics = [TablePutItem(TopicSettings(f"t{number}", "topic")) for number in range(TOPICS)]
            m.table(TOPIC_SETTINGS).put_many(topics, deadline_s=60).raise_for_error()
        yield nodes.url


@pytest.fixture(scope="module")
def exported(cluster: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("exported")
    told = out / "told.json"
    assert main(["export", "--source", cluster, "--out", str(out / "all"), "--json", str(told)]) == 0
    counts = json.loads(told.read_text())["tables"]
    assert (counts["session"], counts["offset"], counts["offset.generation"]) == (SESSIONS, 50, 50)
    assert (counts["topic_settings"], counts["cluster"]) == (TOPICS, 1), "the one is in slots, the other in none"
    return out / "all"


@pytest.fixture(scope="module")
def spark(context: Context) -> SparkSession:
    register(context.session)
    return context.session


@pytest.fixture(params=["cluster", "directory"])
def load(request: pytest.FixtureRequest, spark: SparkSession, cluster: str) -> Load:
    def loaded(table: str, **options: Any) -> DataFrame:
        source = cluster if request.param == "cluster" else str(request.getfixturevalue("exported"))
        return spark.read.format("metad").options(table=table, **options).load(source)

    return loaded


def test_every_session_comes_once_and_whole(load: Load) -> None:
    rows = load("session").collect()
    assert len(rows) == SESSIONS
    found = {(row.tenant, row.client_id): row for row in rows}
    assert len(found) == SESSIONS
    for number in range(SESSIONS):
        row = found[f"t{number % 3}", f"c-{number:05}"]
        assert (row.broker, row.broker_epoch, row.connected) == (f"b-{number // 200}", 7, True)
        assert (row.expiry_interval_s, row.payload, row.will) == (number, b"%d" % number, None)
    assert len({(row.revision) for row in rows}) <= 2  # each of the two groups at one
    assert {row.slot for row in rows} <= set(range(1024))


def test_other_tables_and_single_rows(load: Load) -> None:
    offsets = {(row.group, row.partition): (row.offset, row.generation) for row in load("offset").collect()}
    assert offsets == {(f"g{number}", number): (10 * number, 3) for number in range(50)}
    assert {row.generation for row in load("offset.generation").collect()} == {3}
    assert load("session.owner").count() == SESSIONS
    assert load("subscription").count() == 0
    (cluster,) = load("cluster").collect()
    assert {node.node_id for node in cluster.nodes} == {"n1", "n2", "n3"}


def test_columns_tenant_prefix_and_partitions(load: Load) -> None:
    frame = load("session", columns="client_id,slot", tenant="t1", prefix="c-000")
    assert frame.columns == ["client_id", "slot"]
    wanted = {f"c-{number:05}" for number in range(100) if number % 3 == 1}
    assert {row.client_id for row in frame.collect()} == wanted
    assert load("session", columns="broker").groupBy("broker").count().count() == 3


class Topic(Record, frozen=True):
    """A table of a program."""

    tenant: str
    topic: str
    partitions: U32 = 1
    share: float = 0.5
    owner: str | None = None
    labels: list[str] = []  # noqa: RUF012 - msgspec copies it


def test_a_table_that_a_program_declares_is_read_and_written(spark: SparkSession, cluster: str) -> None:
    with blocking.connect(cluster) as m:
        table = m.tables.declare("device", Topic, key=("tenant", "topic"))
        topics = [Topic(f"t{number % 3}", f"topic-{number}", number, labels=["a"]) for number in range(50)]
        m.table(table).put_many([TablePutItem(topic) for topic in topics]).raise_for_error()

        def read(**options: str) -> DataFrame:
            return spark.read.format("metad").options(table="device", **options).load(cluster)

        found = read(tenant="t1")
        assert {
            (row.tenant, row.topic): (row.partitions, row.share, row.owner, row.labels, row.version)
            for row in found.collect()
        } == {("t1", topic.topic): (topic.partitions, 0.5, None, ["a"], 1) for topic in topics if topic.tenant == "t1"}
        assert {row.tenant: row["count"] for row in read().groupBy("tenant").count().collect()} == {
            "t0": 17,
            "t1": 17,
            "t2": 16,
        }
        more = spark.createDataFrame([("t9", "one", 7, "ann"), ("t9", "two", 8, None)], _TOPIC_COLUMNS)
        more.write.format("metad").mode("append").option("table", "device").save(cluster)
        assert [(r.record.topic, r.record.partitions, r.record.owner) for r in m.table(table).list("t9")] == [
            ("one", 7, "ann"),
            ("two", 8, None),
        ]
        with pytest.raises(Exception, match="no table 'topics' to read"):
            spark.read.format("metad").option("table", "topics").load(cluster).count()


def test_an_export_has_families_and_what_programs_declare(
    spark: SparkSession, cluster: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with blocking.connect(cluster) as m:
        for kind in TABLE_KINDS:
            table = m.tables.declare(f"of_{kind}", Topic, key=("tenant", "topic"), kind=kind)
            items = [TablePutItem(Topic("acme", f"{kind}-{at}", at)) for at in range(30)]
            m.table(table).put_many(items).raise_for_error()
        m.table(ACLS).put(Acl("acme", "10", "deny"))
    out = tmp_path / "out"
    assert main(["export", "--source", cluster, "--out", str(out)]) == 0
    for kind in TABLE_KINDS:
        found = spark.read.format("metad").option("table", f"of_{kind}").load(str(out)).collect()
        assert {(one.tenant, one.topic, one.partitions) for one in found} == {
            ("acme", f"{kind}-{at}", at) for at in range(30)
        }
    (acl,) = spark.read.format("metad").option("table", "acl").load(str(out)).collect()
    assert (acl.tenant, acl.rule, acl.permission) == ("acme", "10", "deny")
    one = ["export", "--source", cluster, "--out", str(tmp_path / "one"), "--tables"]
    assert main([*one, "of_data"]) == 0
    capsys.readouterr()
    assert main([*one, "of_nothing"]) != 0
    assert "no table 'of_nothing' can be exported" in capsys.readouterr().err


_TOPIC_COLUMNS = "tenant string, topic string, partitions long, owner string"


def test_slot_ranges_are_more_partitions_of_the_same(spark: SparkSession, cluster: str) -> None:
    frame = spark.read.format("metad").options(table="session", slotRanges=3).load(cluster)
    assert frame.rdd.getNumPartitions() == 6
    assert frame.select("client_id").distinct().count() == frame.count() == SESSIONS


def test_filters_are_pushed_where_spark_has_that_on(spark: SparkSession, cluster: str) -> None:
    """Whether it is on is looked at by each read: where it was on when the session learned of the source, and off
    later, every read failed."""
    frame = spark.read.format("metad").option("table", "session").load(cluster)
    some = frame.where("tenant = 't2' and client_id like 'c-0000%' and connected")
    several = frame.where("tenant in ('t0', 't2') and client_id between 'c-00000' and 'c-00003'")
    slot = frame.where("tenant = 't1'").first().slot  # type: ignore[union-attr]
    of_a_slot = frame.where(f"slot = {slot}").count()
    for pushes in ("true", "false", "true"):
        spark.conf.set(PUSHDOWN, pushes)
        try:
            assert {row.client_id for row in some.collect()} == {"c-00002", "c-00005", "c-00008"}
            assert {row.client_id for row in several.collect()} == {"c-00000", "c-00002", "c-00003"}
            assert frame.where(f"slot = {slot}").count() == of_a_slot > 0
            assert frame.where(F.col("tenant") == "x" * 200_000).count() == 0  # no group takes such a long filter
        finally:
            spark.conf.set(PUSHDOWN, "false")


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({"table": "session.count"}, "OptionError: table: there is no table 'session.count' to read; there is "),
        ({"table": "sessions"}, "ClusterError: metad://127.0.0.1:1: connection refused"),  # it may be declared there
        ({"table": "session", "tenat": "a"}, "OptionError: tenat: there is no such option; there is batch"),
        ({"table": "kv"}, "ClusterError: metad://127.0.0.1:1: connection refused"),
        ({"table": "kv", "path": "/nowhere"}, "DirectoryError: /nowhere: it has no metad-snapshot.json"),
    ],
)
def test_what_is_wrong_is_one_clear_line_at_the_end(spark: SparkSession, options: dict[str, str], line: str) -> None:
    given = {"path": "metad://127.0.0.1:1", "timeoutS": "1", **options}
    with pytest.raises(Exception, match="PYTHON_DATA_SOURCE_ERROR") as raised:
        spark.read.format("metad").options(**given).load().count()
    (said,) = [each for each in str(raised.value).splitlines() if "metad_spark.source.errors" in each]
    assert line in said
