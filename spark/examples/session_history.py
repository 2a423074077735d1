"""Follows the sessions of a cluster into two tables in Parquet: what they are, and the history of what they were.

    python spark/examples/session_history.py metad://127.0.0.1:7420 /data/sessions

brings the tables up to now and prints a census; from then on the same command adds what has happened meanwhile, and
``--follow`` goes on for ever.

This is change data capture as AUTO CDC of Spark's declarative pipelines does it, type 1 (what is) and type 2 (what was,
from when to when). AUTO CDC itself needs a target that supports MERGE and refuses Parquet, so ``foreachBatch`` merges
here. Every batch is in the tables exactly once: files are written under the number of the batch, and count from the
moment on at which ``state.json`` names that batch. A batch that is done again overwrites its own files, or finds that
it is in already.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F

from metad_spark import register

KEY = ["tenant", "client_id", "row"]
"""A session is two rows, which change apart: ``owner`` (who serves it) and ``properties``."""
VALUES = ["connected", "broker", "broker_epoch", "expiry_interval_s", "revision"]
SIZE = "payload_bytes"
BUCKETS = 16
"""A batch rewrites only those sixteenths of the open versions that it touches."""
OPEN = "tenant string, client_id string, row string, connected boolean, broker string, broker_epoch bigint,"
OPEN += " expiry_interval_s bigint, revision bigint, payload_bytes int, from_ms bigint, bucket int"
CLOSED = OPEN.replace("bucket int", "to_ms bigint")


class Target:
    """The tables in a directory: ``open`` has the versions that hold, ``closed`` those that have ended, by batch."""

    def __init__(self, spark: SparkSession, directory: Path) -> None:
        self._spark = spark
        self._directory = directory

    def merge(self, changes: DataFrame, batch: int) -> None:
        """Add a batch of changes of the table ``session``, as ``foreachBatch`` gives it: once, however often."""
        state = self._state()
        if batch <= state["batch"]:
            return
        events = changes.select(
            *KEY,
            *VALUES,
            F.octet_length("payload").alias(SIZE),
            F.col("time_ms").alias("from_ms"),
            (F.col("slot") % BUCKETS).cast("int").alias("bucket"),
            F.col("change").isin("deleted", "expired").alias("gone"),
            # All changes of a key are in one partition in their order. Revisions begin anew where a slot moves to.
            (F.monotonically_increasing_id() + 1).alias("place"),
        ).persist()
        touched = sorted(row.bucket for row in events.select("bucket").distinct().collect())
        before = self._open(changes.sparkSession, state, touched).withColumns(
            {"gone": F.lit(False), "place": F.lit(0).cast("long")}
        )
        in_order = Window.partitionBy(*KEY).orderBy("place")
        versions = (
            before.unionByName(events)
            .withColumns({"to_ms": F.lead("from_ms").over(in_order), "last": F.lead("place").over(in_order).isNull()})
            .where("not gone")
            .persist()
        )
        holding, ended = versions.where("last"), versions.where("not last")
        opened = self._directory / "open" / f"batch={batch}"
        holding.select(*KEY, *VALUES, SIZE, "from_ms", "bucket").write.partitionBy("bucket").mode("overwrite").parquet(
            str(opened)
        )
        ended.select(*KEY, *VALUES, SIZE, "from_ms", "to_ms").write.mode("overwrite").parquet(
            str(self._directory / "closed" / f"batch={batch}")
        )
        events.unpersist()
        versions.unpersist()
        buckets = {name: at for name, at in state["buckets"].items() if int(name) not in touched}
        buckets |= {str(name): batch for name in touched if (opened / f"bucket={name}").exists()}
        self._commit({"batch": batch, "buckets": buckets})
        self._sweep({*state["buckets"].values(), *buckets.values()})

    def sessions(self) -> DataFrame:
        """What the sessions are: a row for each."""
        found = self._open(self._spark, self._state(), range(BUCKETS)).drop("bucket", "from_ms")
        owners = found.where("row = 'owner'").drop("row", "expiry_interval_s", "revision", SIZE)
        properties = found.where("row = 'properties'").select(*KEY[:2], "expiry_interval_s", SIZE)
        return owners.join(properties, KEY[:2], "left")

    def history(self) -> DataFrame:
        """Every version of each row: it held from ``from_ms`` (0: from before the stream began) until ``to_ms`` (null:
        it holds)."""
        state = self._state()
        folders = (self._directory / "closed" / f"batch={batch}" for batch in range(state["batch"] + 1))
        closed = self._read(self._spark, [folder for folder in folders if folder.exists()], CLOSED)
        holding = (
            self._open(self._spark, state, range(BUCKETS)).drop("bucket").withColumn("to_ms", F.lit(None).cast("long"))
        )
        return closed.unionByName(holding)

    def _open(self, spark: SparkSession, state: dict[str, Any], buckets: list[int] | range) -> DataFrame:
        at = {name: state["buckets"].get(str(name)) for name in buckets}
        folders = [
            self._directory / "open" / f"batch={batch}" / f"bucket={name}"
            for name, batch in at.items()
            if batch is not None
        ]
        return self._read(spark, folders, OPEN)

    def _read(self, spark: SparkSession, folders: list[Path], schema: str) -> DataFrame:
        if not folders:
            return spark.createDataFrame([], schema)
        base = folders[0].parents[len(folders[0].relative_to(self._directory).parts) - 2]
        reader = spark.read.schema(schema).option("basePath", str(base))
        return reader.parquet(*map(str, folders)).drop("batch")

    def _state(self) -> dict[str, Any]:
        with contextlib.suppress(FileNotFoundError):
            found: dict[str, Any] = json.loads((self._directory / "state.json").read_bytes())
            return found
        return {"batch": -1, "buckets": {}}

    def _commit(self, state: dict[str, Any]) -> None:
        """From here on the batch is in the tables."""
        new = self._directory / "state.new"
        with new.open("w") as file:
            json.dump(state, file)
            file.flush()
            os.fsync(file.fileno())
        new.replace(self._directory / "state.json")

    def _sweep(self, kept: set[int]) -> None:
        """Remove open versions that neither this state nor the one before it names: somebody may still read those."""
        for folder in (self._directory / "open").glob("batch=*"):
            if int(folder.name.partition("=")[2]) not in kept:
                shutil.rmtree(folder)


def follow(spark: SparkSession, url: str, directory: Path, *, ever: bool = False, rows_max: int = 100_000) -> Target:
    """Bring the tables up to now, or keep them so. Spark's checkpoint is among them: they belong together."""
    register(spark)
    directory.mkdir(parents=True, exist_ok=True)
    target = Target(spark, directory)
    changes = spark.readStream.format("metad").options(table="session", rowsMax=rows_max).load(url)
    writer = changes.writeStream.foreachBatch(target.merge).option("checkpointLocation", str(directory / "checkpoint"))
    query = (writer.trigger(processingTime="1 second") if ever else writer.trigger(availableNow=True)).start()
    query.awaitTermination()
    return target


def census(sessions: DataFrame) -> DataFrame:
    """Sessions by tenant: how many, how many of them connected, and the sizes of their payloads."""
    return (
        sessions.groupBy("tenant")
        .agg(
            F.count("*").alias("sessions"),
            F.count_if("connected").alias("connected"),
            F.sum(SIZE).alias(SIZE),
        )
        .orderBy("tenant")
    )


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("source", help="as in metad://host:port")
    parser.add_argument("directory", type=Path)
    parser.add_argument("--follow", action="store_true", help="go on until this is ended")
    args = parser.parse_args()
    spark = SparkSession.builder.appName("session-history").config("spark.ui.enabled", "false").getOrCreate()
    target = follow(spark, args.source, args.directory, ever=args.follow)
    census(target.sessions()).show()
    spark.stop()


if __name__ == "__main__":
    main()
