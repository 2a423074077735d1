"""The short programs of spark/examples, on real nodes: tables in SQL, a nightly census, and sessions that come over.
A session that is lost, doubled, or taken from the broker that serves it fails these tests."""

from __future__ import annotations

import datetime
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from spark_rig import example

import metad.embedded
from metad_client import (
    SessionDisconnectItem,
    SessionProperties,
    SessionTakeoverItem,
    Will,
    blocking,
)
from metad_spark import register
from metad_spark.cli import main
from metad_spark.pipeline.context import Context
from metad_spark.source import sink as writing
from metad_spark.source.errors import SinkError
from metad_spark.source.options import settings_of
from metad_spark.source.sink import Part, write_here

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def spark(context: Context) -> SparkSession:
    register(context.session)
    return context.session


@pytest.fixture
def url() -> Iterator[str]:
    """One node, whose sessions a test knows by number."""
    with metad.embedded.cluster(nodes=1) as nodes:
        yield nodes.url


def taken(m: blocking.BlockingClient, broker: str, numbers: range, **properties: Any) -> None:
    given = SessionProperties(**{"expiry_interval_s": 3_600, **properties})
    items = [SessionTakeoverItem(f"t{number % 2}", f"c-{number:03}", False, given) for number in numbers]
    m.sessions.takeover_many(broker, 1, items, deadline_s=60).raise_for_error()


def test_tables_in_sql(spark: SparkSession, url: str) -> None:
    tables = example("sql_tables")
    with blocking.connect(url) as m:
        taken(m, "b-1", range(30))
        taken(m, "b-2", range(30, 50))
        tables.create(spark, url)
        try:
            m.subscriptions.add("b-2", 1, "t0", "c-030", "a/#")
            m.subscriptions.add("b-2", 1, "t0", "c-030", "b/#")
            m.sessions.disconnect_many("b-2", 1, [SessionDisconnectItem("t1", "c-031")]).raise_for_error()
            rows = [tuple(row) for row in spark.sql(tables.BY_BROKER).collect()]
            assert rows == [("b-1", 30, 30, None), ("b-2", 20, 19, 2)]
            m.sessions.delete("t0", "c-000")
            (row,) = spark.sql("SELECT count(*) FROM metad_session WHERE broker = 'b-1'").collect()
            assert row == (29,)  # as it is now
        finally:
            for table in tables.TABLES:
                spark.sql(f"DROP TABLE IF EXISTS metad_{table}")


def test_a_census_each_night(spark: SparkSession, url: str, tmp_path: Path) -> None:
    census = example("nightly_census")
    first, second = datetime.date(2026, 11, 29), datetime.date(2026, 11, 30)

    def told(day: datetime.date) -> dict[str, tuple[int, ...]]:
        rows = census.compare(spark, tmp_path, day).collect()
        assert len(rows) == len({row.tenant for row in rows})
        return {row.tenant: (row.sessions, row.connected, row.sessions_grown, row.connected_grown) for row in rows}

    with blocking.connect(url) as m:
        taken(m, "b-1", range(20))
        assert census.add(spark, url, tmp_path, first) == 0
        assert told(first) == {"t0": (10, 10, 10, 10), "t1": (10, 10, 10, 10)}
        taken(m, "b-1", range(20, 25))
        m.sessions.disconnect_many("b-1", 1, [SessionDisconnectItem("t0", "c-000")]).raise_for_error()
        for number in range(1, 20, 2):
            m.sessions.delete("t1", f"c-{number:03}")
        for _ in range(2):  # a job that is run again
            assert census.add(spark, url, tmp_path, second) == 0
            assert told(second) == {"t0": (13, 12, 3, 2), "t1": (2, 2, -8, -8)}
        assert told(first)["t0"] == (10, 10, 10, 10)


def stored(m: blocking.BlockingClient) -> dict[tuple[str, str], Any]:
    found = list(m.sessions.list())
    sessions = {(one.tenant, one.client_id): one for one in found}
    assert len(found) == len(sessions)
    return sessions


def test_sessions_come_over(spark: SparkSession, url: str, tmp_path: Path) -> None:
    bring = example("import_sessions").bring
    will = Will("gone", b"\xff", delay_s=9_999)
    with metad.embedded.cluster(nodes=3) as other, blocking.connect(url) as m, blocking.connect(other.url) as n:
        taken(m, "b-1", range(50), payload=b"\xfe")
        taken(m, "b-2", range(50, 60), will=will)
        taken(m, "b-1", range(60, 62), expiry_interval_s=0)  # they end with their connections
        away = [SessionDisconnectItem(f"t{at % 2}", f"c-{at:03}", 100 + at) for at in range(40, 50)]
        m.sessions.disconnect_many("b-1", 1, away).raise_for_error()
        before = stored(m)
        assert main(["export", "--source", url, "--out", str(tmp_path / "out"), "--tables", "session"]) == 0

        bring(spark, url, other.url)
        first = stored(n)
        assert first.keys() == {key for key, one in before.items() if one.properties.expiry_interval_s}
        for key, one in first.items():
            assert not one.connected
            assert one.broker.startswith("metad-spark-")
            assert one.properties.payload == before[key].properties.payload
            assert (one.properties.will is None) == (before[key].properties.will is None)
            if before[key].expires_ms:
                assert one.expires_ms == pytest.approx(before[key].expires_ms, abs=5_000)
        bring(spark, str(tmp_path / "out"), other.url)  # the same once more
        assert stored(n) == first

        # A client comes back, and its broker keeps something else: that is not overwritten, and the job says so.
        taken(n, "b-9", range(1), payload=b"new")
        owned = stored(n)["t0", "c-000"]
        with pytest.raises(Exception, match="SinkError: session: client 'c-000' of tenant 't0': the cluster has one"):
            bring(spark, url, other.url)
        assert stored(n) == {**first, ("t0", "c-000"): owned}
        assert owned.connected


def test_an_import_that_breaks_off_is_gone_on_with(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = settings_of({"path": url, "table": "session"})
    ends_ms = int(time.time() * 1000) + 500_000
    records: list[dict[str, Any]] = [
        {"tenant": "t", "client_id": f"c-{n}", "connected": False, "expiry_interval_s": 9_999, "expires_ms": ends_ms}
        for n in range(2_500)
    ]
    real = writing._import_some
    done = 0

    async def dies(job: Any, lines: Any, *, repeated: bool) -> int:
        nonlocal done
        done += 1
        if done == 2:
            life = await job.life()  # half of what it does
            one = SessionTakeoverItem("t", "c-1500", False, SessionProperties(9_999))
            await job.m.sessions.takeover_many(life.broker, life.epoch, [one])
            raise OSError("the machine lost power")
        return await real(job, lines, repeated=repeated)

    with blocking.connect(url) as m:
        monkeypatch.setattr(writing, "_import_some", dies)
        with pytest.raises(OSError, match="lost power"):
            write_here(settings, Part("come", 0, 0), records)
        assert len(stored(m)) == 1_001
        m.sessions.takeover("b-1", 1, "t", "c-7", properties=SessionProperties(5, b"it is back"))
        monkeypatch.setattr(writing, "_import_some", real)
        assert write_here(settings, Part("come", 0, 0), records[::-1]) == 2_500
        found = stored(m)
        assert len(found) == 2_500
        back = found.pop(("t", "c-7"))
        assert (back.broker, back.connected, back.properties.payload) == ("b-1", True, b"it is back")
        assert {(one.connected, one.properties.expiry_interval_s) for one in found.values()} == {(False, 9_999)}
        assert all(abs(one.expires_ms - ends_ms) <= 5_000 for one in found.values())
        m.sessions.delete("t", "c-8")
        write_here(settings, Part("come", 0, 0), records)  # the batch was written: it brings nothing back
        assert ("t", "c-8") not in stored(m)
        with pytest.raises(SinkError, match=r"session: a record .*expiry_interval_s"):
            write_here(settings, Part("come", 1, 0), [{"tenant": "t", "client_id": "d", "expiry_interval_s": -1}])
        write_here(settings, Part("come", 1, 0), [{"tenant": "t", "client_id": "d", "expiry_interval_s": 9}])
        with pytest.raises(SinkError, match="batch 0 of query come is over: batch 1 has begun"):
            write_here(settings, Part("come", 0, 0), records)
