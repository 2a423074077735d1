"""A query follows a cluster of three nodes whose leader is killed and whose slots move, and is itself stopped and
started again: every change comes once."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery

import metad.embedded
from metad_client import KvDeleteItem, KvPutItem, SessionProperties, SessionTakeoverItem, SessionUpdateItem, blocking
from metad_spark import register
from metad_spark.pipeline.context import Context

NAMESPACES = 20
pytestmark = pytest.mark.slow


def until(what: str, condition: Callable[[], Any], query: StreamingQuery | None = None) -> None:
    pause, end = threading.Event(), time.monotonic() + 300
    while not condition():
        if query is not None and (error := query.exception()) is not None:
            raise error
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


class Writer(threading.Thread):
    """Writes new keys, and one key of each namespace again and again, until it is told to end."""

    def __init__(self, url: str) -> None:
        super().__init__()
        self.rounds = 0
        self.ending = threading.Event()
        self.error: BaseException | None = None
        self._url = url

    def run(self) -> None:
        try:
            with blocking.connect(self._url) as m:
                while not self.ending.wait(0.02):
                    items = [KvPutItem(f"ns{n}", f"k{self.rounds}", b"") for n in range(NAMESPACES)]
                    items += [KvPutItem(f"ns{n}", "counter", b"%d" % self.rounds) for n in range(NAMESPACES)]
                    m.kv.put_many(items, deadline_s=100).raise_for_error()
                    self.rounds += 1
        except BaseException as error:  # noqa: BLE001 - told to the test
            self.error = error

    def more(self, rounds: int = 5) -> None:
        """Wait until it has written some more."""
        wanted = self.rounds + rounds
        until("writes", lambda: self.error is not None or self.rounds >= wanted)
        assert self.error is None


def frame(spark: SparkSession, url: str, table: str, **options: Any) -> DataFrame:
    return spark.readStream.format("metad").options(table=table, **options).load(url)


def written(frame: DataFrame, folder: Path, *, now: bool = False) -> StreamingQuery:
    """The stream as Parquet, which Spark writes exactly once."""
    writer = frame.writeStream.format("parquet")
    writer = writer.option("checkpointLocation", str(folder / "checkpoint")).option("path", str(folder / "out"))
    return (writer.trigger(availableNow=True) if now else writer).start()


def all_of_it(frame: DataFrame, folder: Path) -> None:
    """Write what there is now."""
    query = written(frame, folder, now=True)
    assert query.awaitTermination(150)
    assert query.exception() is None


def batches(query: StreamingQuery) -> int:
    return -1 if query.lastProgress is None else int(query.lastProgress["batchId"])


def test_every_change_comes_once(spark: SparkSession, cluster: metad.embedded.Cluster, tmp_path: Path) -> None:
    changes = frame(spark, cluster.url, "kv", rowsMax=500, query="census").drop("value")
    writer = Writer(cluster.url)
    writer.start()
    try:
        with blocking.connect(cluster.url) as m:
            writer.more()
            query = written(changes, tmp_path)
            until("batches", lambda: batches(query) >= 1, query)
            leader = m.cluster.map().leaders["data-0"]
            cluster.kill(leader)
            writer.more()
            cluster.start(leader)
            seen = batches(query)
            until("batches after a kill", lambda: batches(query) > seen, query)
            m.cluster.add_group("data", deadline_s=60)
            m.cluster.rebalance(deadline_s=60)
            until("slots that move", lambda: _moved(m))
            writer.more()
            query.stop()
            writer.more()
            query = written(changes, tmp_path)
            seen = batches(query)
            until("batches after a restart", lambda: batches(query) > seen, query)
            query.stop()
            all_of_it(changes, tmp_path)
            writer.more()
            writer.ending.set()
            writer.join()
            assert writer.error is None
            all_of_it(changes, tmp_path)  # Spark says that a batch is written when it begins the next one
            told = {offset.topic: offset.offset for offset in m.offsets.list("metad-spark", "census")}
            assert set(told) == {"kv/data-0", "kv/data-1", "kv/data-2"}
            status = m.cluster.statuses().values()
            applied = {g.name: g.applied for node in status for g in node.groups if g.role == "leader"}  # type: ignore[union-attr]
            assert all(offset <= applied[topic.removeprefix("kv/")] for topic, offset in told.items())
    finally:
        writer.ending.set()
        writer.join()
    rows = spark.read.parquet(str(tmp_path / "out")).collect()
    keys = [(row.namespace, row.key) for row in rows if row.key != "counter"]
    assert len(keys) == len(set(keys)) == writer.rounds * NAMESPACES
    counters: dict[str, list[int]] = {}
    for row in rows:
        if row.key == "counter":
            counters.setdefault(row.namespace, []).append(row.version)
    for versions in counters.values():  # of what was there at the beginning, only the newest
        assert sorted(versions) == list(range(min(versions), writer.rounds + 1))
    assert len(counters) == NAMESPACES
    assert {row.change for row in rows} == {"snapshot", "created", "changed"}


def _moved(m: blocking.BlockingClient) -> bool:
    known = m.cluster.map().map
    return known is not None and not known.moves and b"\0\2" in known.slots["data"]


def test_rows_of_a_session_come_one_by_one_and_end_with_what_there_was(
    spark: SparkSession, cluster: metad.embedded.Cluster, tmp_path: Path
) -> None:
    with blocking.connect(cluster.url) as m:
        items = [SessionTakeoverItem("acme", f"c-{n}", False, SessionProperties(5, b"%d" % n)) for n in range(10)]
        m.sessions.takeover_many("b-1", 1, items, deadline_s=60).raise_for_error()
        sessions = frame(spark, cluster.url, "session", tenant="acme", slotRanges=3)
        sessions = sessions.withWatermark("change_time", "1 minute")  # as it is
        all_of_it(sessions, tmp_path)
        rows = spark.read.parquet(str(tmp_path / "out")).collect()
        assert sorted((row.client_id, row.row, row.change) for row in rows) == sorted(
            (f"c-{n}", row, "snapshot") for n in range(10) for row in ("owner", "properties")
        )
        m.sessions.update_many("b-1", 1, [SessionUpdateItem("acme", "c-3", SessionProperties(9, b"new"))])
        m.sessions.takeover("b-2", 1, "acme", "c-4")
        m.sessions.delete("acme", "c-5")
        m.sessions.takeover("b-2", 1, "other", "c-1")  # of a tenant that is not wanted
        all_of_it(sessions, tmp_path)
        all_of_it(sessions, tmp_path)  # nothing has happened
        after = [row for row in spark.read.parquet(str(tmp_path / "out")).collect() if row.change != "snapshot"]
        found = {(row.client_id, row.row, row.change): row for row in after}
        assert len(after) == len(found) == 4
        assert found["c-3", "properties", "changed"].payload == b"new"
        assert found["c-3", "properties", "changed"].broker is None
        assert found["c-4", "owner", "changed"].broker == "b-2"
        assert found["c-5", "owner", "deleted"].connected is None
        last = found["c-5", "properties", "deleted"]
        assert last.change_time.timestamp() == last.time_ms / 1_000 > 0


def test_a_stream_may_begin_now(spark: SparkSession, cluster: metad.embedded.Cluster, tmp_path: Path) -> None:
    with blocking.connect(cluster.url) as m:
        m.kv.put("later", "a", b"1")
        keys = frame(spark, cluster.url, "kv", tenant="later", start="now", columns="key,change,revision")
        all_of_it(keys, tmp_path)
        revision = m.kv.put("later", "b", b"2")
        m.kv.delete_many([KvDeleteItem("later", "a")]).raise_for_error()
        all_of_it(keys, tmp_path)
    rows = spark.read.parquet(str(tmp_path / "out")).collect()
    assert {(row.key, row.change) for row in rows} == {("b", "created"), ("a", "deleted")}
    assert min(row.revision for row in rows) > 0
    assert revision == 1


@pytest.mark.parametrize(
    ("options", "line"),
    [
        (
            {"table": "kv", "path": "/nowhere"},
            "OptionError: source: /nowhere is a directory, and nothing changes in it",
        ),
    ],
)
def test_what_cannot_be_followed_is_one_clear_line(
    spark: SparkSession, cluster: metad.embedded.Cluster, tmp_path: Path, options: dict[str, str], line: str
) -> None:
    stream = spark.readStream.format("metad").options(**{"path": cluster.url, **options}).load()
    with pytest.raises(Exception, match=line):
        all_of_it(stream, tmp_path)
