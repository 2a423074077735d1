"""What is written again is written once: by a task that is repeated, after a leader was killed or slots have moved in
between, and by a stream that is started again."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

import metad.embedded
from metad_client import KvKey, SequenceAddItem, SequenceKey, blocking
from metad_spark import register
from metad_spark.pipeline.context import Context
from metad_spark.source import sink as writing
from metad_spark.source.errors import SinkError
from metad_spark.source.options import settings_of
from metad_spark.source.sink import Part, write_here

ROWS = 3_000
pytestmark = pytest.mark.slow


def until(what: str, condition: Callable[[], Any]) -> None:
    pause, end = threading.Event(), time.monotonic() + 300
    while not condition():
        assert time.monotonic() < end, f"no {what} in time"
        pause.wait(0.1)


@pytest.fixture(scope="module")
def cluster() -> Iterator[metad.embedded.Cluster]:
    with metad.embedded.cluster(nodes=3) as nodes:
        yield nodes


@pytest.fixture(scope="module")
def spark(context: Context) -> SparkSession:
    register(context.session)
    return context.session


def records(count: int = ROWS, where: str = "ns") -> list[dict[str, Any]]:
    return [{"namespace": f"{where}{n % 50}", "key": f"k{n}", "value": b"%d" % n} for n in range(count)]


def versions(m: blocking.BlockingClient, count: int = ROWS, where: str = "ns") -> set[int]:
    found = m.kv.get_many([KvKey(f"{where}{n % 50}", f"k{n}") for n in range(count)], deadline_s=60)
    found.raise_for_error()
    return {0 if record is None else record.version for record in found}


class Crash(Exception):
    """A task dies in the middle of its work."""


@pytest.fixture
def crashing(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Let the next write die behind so many of its requests, of which one is certainly done."""
    real = writing.write_once

    def after(count: int) -> None:
        begun = 0
        answered = asyncio.Event()

        async def write_once(*args: Any, **kwargs: Any) -> Any:
            nonlocal begun
            begun += 1
            if begun > count:
                await answered.wait()
                monkeypatch.setattr(writing, "write_once", real)
                raise Crash
            reply = await real(*args, **kwargs)
            answered.set()
            return reply

        monkeypatch.setattr(writing, "write_once", write_once)

    return after


def adds(sequence: str) -> list[dict[str, Any]]:
    return [{"namespace": f"ns{n}", "sequence": sequence, "delta": 1} for n in range(200)]


def sums_of(m: blocking.BlockingClient, sequence: str) -> set[int]:
    found = m.sequences.get_many([SequenceKey(f"ns{n}", sequence) for n in range(200)])
    return {record.value for record in found if record is not None}


def test_a_batch_that_is_repeated_is_written_once(
    cluster: metad.embedded.Cluster, crashing: Callable[[int], None]
) -> None:
    """Also where a leader is killed, or slots move, behind an attempt that was done or one that crashed."""
    kv = settings_of({"path": cluster.url, "table": "kv"})
    sums = settings_of({"path": cluster.url, "table": "sequence"})
    with blocking.connect(cluster.url) as m:
        crashing(1)
        with pytest.raises(Crash):
            write_here(kv, Part("q", 4, 0), records())
        assert versions(m) == {0, 1}  # a part of it is there
        until("a leader", lambda: m.cluster.map().leaders["data-0"])
        leader = m.cluster.map().leaders["data-0"]
        cluster.kill(leader)
        assert write_here(kv, Part("q", 4, 0), records()[::-1]) == ROWS  # in whatever order
        assert versions(m) == {1}
        cluster.start(leader)

        write_here(sums, Part("sums", 0, 0), adds("sum"))
        crashing(1)
        with pytest.raises(Crash):
            write_here(sums, Part("crashed", 0, 0), adds("crashed"))
        slots_move(m, 2)
        assert write_here(sums, Part("sums", 0, 0), adds("sum")) == 200  # the groups that did it know it
        for _ in range(2):
            write_here(sums, Part("crashed", 0, 0), adds("crashed"))
            assert sums_of(m, "crashed") == {1}
        slots_move(m, 3)  # those that were moved before, too: the group to which an attempt was sent on has lost them
        write_here(sums, Part("crashed", 0, 0), adds("crashed"))
        assert sums_of(m, "crashed") == {1}
        assert write_here(kv, Part("q", 4, 0), records()) == ROWS
        assert versions(m) == {1}
        write_here(sums, Part("sums", 0, 1), adds("sum"))  # another partition
        write_here(sums, Part("sums", 1, 0), adds("sum"))  # another batch
        assert sums_of(m, "sum") == {3}
        with pytest.raises(SinkError, match="batch 0 of query sums is over: batch 1 has begun"):
            write_here(sums, Part("sums", 0, 0), adds("sum"))


def slots_move(m: blocking.BlockingClient, group: int) -> None:
    """Give a new data group, which gets this number, its share of all others' slots."""
    m.cluster.add_group("data", deadline_s=60)
    m.cluster.rebalance(deadline_s=60)

    def moved() -> bool:
        known = m.cluster.map().map
        return known is not None and not known.moves and group.to_bytes(2, "big") in known.slots["data"]

    until("slots that move", moved)


def test_spark_writes_batches_and_streams(spark: SparkSession, cluster: metad.embedded.Cluster, tmp_path: Path) -> None:
    url = cluster.url
    frame = spark.createDataFrame(
        [tuple(each.values()) for each in records(500, "by-")], "namespace string, key string, value binary"
    )

    def written(batch: DataFrame, number: int) -> None:
        options = {"table": "kv", "query": "copy", "batch": number}
        batch.write.format("metad").options(**options).mode("append").save(url)

    with blocking.connect(url) as m:
        written(frame, 0)
        written(frame, 0)
        assert versions(m, 500, "by-") == {1}
        frame.write.format("metad").option("table", "kv").mode("append").save(url)
        assert versions(m, 500, "by-") == {2}

        m.sequences.add_many([SequenceAddItem("by-0", "other", 5)])
        changes = spark.readStream.format("metad").options(table="kv").load(url).where("namespace like 'by-%'")
        copied = changes.selectExpr("concat('copy-', namespace) as namespace", "key", "value", "change")
        for _ in range(2):
            query = (
                copied.writeStream.format("metad")
                .options(table="kv", query="mirror", checkpointLocation=str(tmp_path / "checkpoint"))
                .trigger(availableNow=True)
                .start(url)
            )
            assert query.awaitTermination(150)
            assert query.exception() is None
            found = m.kv.get_many([KvKey(f"copy-by-{n % 50}", f"k{n}") for n in range(500)])
            assert [record.value for record in found if record is not None] == [b"%d" % n for n in range(500)]
            assert {record.version for record in found if record is not None} == {1}
        m.kv.delete("by-1", "k1")
        query = copied.writeStream.foreachBatch(written_as("hand", url)).trigger(availableNow=True)
        done = query.option("checkpointLocation", str(tmp_path / "hand")).start()
        assert done.awaitTermination(150)
        assert done.exception() is None
        assert {record.version for record in m.kv.scan("copy-by-2")} == {2}


def written_as(query: str, url: str) -> Callable[[DataFrame, int], None]:
    def write(batch: DataFrame, number: int) -> None:
        for _ in range(2):  # as if Spark had done it again
            batch.write.format("metad").options(table="kv", query=query, batch=number).mode("append").save(url)

    return write


@pytest.mark.parametrize(
    ("columns", "options", "line"),
    [
        ("1 as a", {}, "columns: a write to kv has no 'a'; it has namespace, key, value, expected_version, change"),
        ("'n' as namespace, 'k' as key", {}, "columns: a write to kv needs 'value'"),
        (
            "1 as a",
            {"table": "subscription"},
            "table: 'subscription' cannot be written; there is acl, ",
        ),
        ("1 as a", {"batch": "1"}, "batch: it needs the option query"),
        ("1 as a", {"path": "/nowhere"}, "source: /nowhere is a directory"),
    ],
)
def test_what_cannot_be_written_is_one_clear_line(
    spark: SparkSession, columns: str, options: dict[str, str], line: str
) -> None:
    given = {"path": "metad://127.0.0.1:1", "table": "kv", **options}
    with pytest.raises(Exception, match=f"OptionError: {line}"):
        spark.range(1).selectExpr(*columns.split(", ")).write.format("metad").options(**given).mode("append").save()
