"""The example that follows sessions into Delta Lake, from a real cluster, and through crashes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from spark_rig import example as example_of

import metad.embedded
from metad_client import SessionDisconnectItem, SessionProperties, SessionTakeoverItem, SessionUpdateItem, blocking
from metad_spark import register
from metad_spark.pipeline.context import Context

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600), pytest.mark.usefixtures("delta")]
COUNT = 60


@pytest.fixture(scope="module")
def example() -> ModuleType:
    return example_of("session_history")


@pytest.fixture(scope="module")
def spark(context: Context, example: ModuleType) -> Iterator[SparkSession]:
    """The session, while its catalog is Delta's."""
    register(context.session)
    conf = context.session.conf
    changed = [key for key in example.DELTA if conf.isModifiable(key)]
    for key in changed:
        conf.set(key, example.DELTA[key])
    yield context.session
    for key in changed:
        conf.unset(key)


@pytest.fixture(scope="module")
def cluster() -> Iterator[str]:
    with metad.embedded.cluster(nodes=1) as nodes:
        yield nodes.url


def taken(m: blocking.Client, broker: str, numbers: range, size: int | None = None) -> None:
    properties = None if size is None else SessionProperties(3_600, b"x" * size)
    items = [SessionTakeoverItem(f"t{number % 2}", f"c-{number:03}", False, properties) for number in numbers]
    m.sessions.takeover_many(broker, 1, items, deadline_s=60).raise_for_error()


def stored(m: blocking.Client) -> dict[tuple[str, str], tuple[Any, ...]]:
    return {
        (one.tenant, one.client_id): (
            *(one.connected, one.broker, one.properties.expiry_interval_s, len(one.properties.payload)),
        )
        for one in m.sessions.list()
    }


def told(sessions: Any) -> dict[tuple[str, str], tuple[Any, ...]]:
    rows = sessions.collect()
    found = {
        (row.tenant, row.client_id): (row.connected, row.broker, row.expiry_interval_s, row.payload_bytes)
        for row in rows
    }
    assert len(found) == len(rows), "a session is in it twice"
    return found


def versions(target: Any, client: str, row: str = "owner") -> list[tuple[Any, ...]]:
    """Of one row: each version, in order, and whether the next one begins where it ends."""
    rows = target.history().where(f"client_id = '{client}' and row = '{row}'").collect()
    ordered = sorted(rows, key=lambda one: one.revision)
    assert [one.to_ms for one in ordered[:-1]] == [one.from_ms for one in ordered[1:]], "no gap and no overlap"
    return [(one.broker, one.connected) if row == "owner" else one.payload_bytes for one in ordered]


def test_sessions_and_their_history(
    spark: SparkSession, example: ModuleType, cluster: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "sessions"
    with blocking.connect(cluster) as m:
        taken(m, "b-1", range(COUNT), size=10)
        target = example.follow(spark, cluster, folder)
        assert told(target.sessions()) == stored(m)
        assert target.history().where("to_ms is not null").count() == 0

        # Two changes of one session in a batch, one that ends, and one that begins anew.
        taken(m, "b-2", range(20), size=25)
        taken(m, "b-3", range(10))
        m.sessions.disconnect_many("b-3", 1, [SessionDisconnectItem("t0", "c-000")]).raise_for_error()
        m.sessions.update_many("b-1", 1, [SessionUpdateItem("t1", "c-021", SessionProperties(7, b"y" * 99))])
        m.sessions.delete("t1", "c-055")
        m.sessions.delete("t0", "c-056")
        taken(m, "b-4", range(56, 57), size=3)
        taken(m, "b-4", range(100, 103), size=4)
        wanted = stored(m)
        assert len(wanted) == COUNT + 2

        # The first attempt at this batch dies behind its merge: Spark does it again.
        real = example.Target.merge

        def dies(self: object, changes: DataFrame, batch: int) -> None:
            real(self, changes, batch)
            raise OSError("the machine lost power")

        with monkeypatch.context() as patch:
            patch.setattr(example.Target, "merge", dies)
            with pytest.raises(Exception, match="the machine lost power"):
                example.follow(spark, cluster, folder)
        assert told(target.sessions()) == wanted

        target = example.follow(spark, cluster, folder)
        assert told(target.sessions()) == wanted
        assert versions(target, "c-000") == [("b-1", True), ("b-2", True), ("b-3", True), ("b-3", False)]
        assert versions(target, "c-015") == [("b-1", True), ("b-2", True)]
        assert versions(target, "c-015", "properties") == [10, 25]
        assert versions(target, "c-021", "properties") == [10, 99]
        assert versions(target, "c-030") == [("b-1", True)]
        assert versions(target, "c-101") == [("b-4", True)]
        ended = target.history().where("client_id = 'c-055'").collect()
        assert len(ended) == 2
        assert all(row.to_ms for row in ended), "it has ended, and so has its history"
        again = target.history().where("client_id = 'c-056' and row = 'owner'").collect()
        assert sorted((row.broker, row.to_ms is None) for row in again) == [("b-1", False), ("b-4", True)]

        counted = {row.tenant: row for row in example.census(target.sessions()).collect()}
        assert sum(row.sessions for row in counted.values()) == len(wanted)
        assert sum(row.payload_bytes for row in counted.values()) == sum(size for *_, size in wanted.values())
        assert counted["t0"].connected == sum(each[0] for key, each in wanted.items() if key[0] == "t0")


def test_a_batch_that_is_done_again_changes_nothing(
    spark: SparkSession, example: ModuleType, cluster: str, tmp_path: Path
) -> None:
    with blocking.connect(cluster) as m:
        taken(m, "b-1", range(200, 210), size=1)
        changes = spark.read.format("metad").option("table", "session").load(cluster)
        # As a stream has them: each row of a record is by itself.
        owners = changes.selectExpr(*(name for name in changes.columns if name != "row"), "'owner' as row")
        target = example.Target(spark, tmp_path / "sessions")
        target.merge(owners, 0)
        before = target.history().count()
        assert before >= 10
        target.merge(owners, 0)
        assert target.history().count() == before
        target.merge(owners, 1)
        assert target.history().where("to_ms is null").count() == before
