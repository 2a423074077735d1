"""Follows the sessions of a cluster into a table of Delta Lake: what they are, and the history of what they were.

    pip install ./clients '.[delta]'
    python spark/examples/session_history.py metad://127.0.0.1:7420 /data/sessions

brings the table up to now and prints a census; from then on the same command adds what has happened meanwhile, and
``--follow`` goes on for ever. The first start needs a network: Spark fetches Delta's jars then, and keeps them.

A row of the table is a version of a session's row, and from when to when it held: slowly changing dimension, type 2.
What is, type 1, are the versions that have not ended. Each batch is one merge, which Delta does as a whole or not at
all, and remembers by the number of the batch: one that Spark does again changes nothing.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from delta import DeltaTable, configure_spark_with_delta_pip
from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F

from metad_spark import register

KEY = ["tenant", "client_id", "row"]
"""A session is two rows, which change apart: ``owner`` (who serves it) and ``properties``."""
VALUES = ["connected", "broker", "broker_epoch", "expiry_interval_s", "revision", "payload_bytes"]
VERSION = "tenant string, client_id string, row string, connected boolean, broker string, broker_epoch bigint,"
VERSION += " expiry_interval_s bigint, revision bigint, payload_bytes int, from_ms bigint, to_ms bigint"
DELTA: dict[str, bool | float | int | str | None] = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
}
IDENTITY = "spark.databricks.delta.write"
SAME = "new.first AND held.to_ms IS NULL"
SAME += " AND held.tenant = new.tenant AND held.client_id = new.client_id AND held.row = new.row"


class Target:
    """The table in a directory."""

    def __init__(self, spark: SparkSession, directory: Path) -> None:
        self._spark = spark
        self._table = str(directory / "versions")

    def merge(self, changes: DataFrame, batch: int) -> None:
        """Add a batch of changes of the table ``session``, as ``foreachBatch`` gives it: once, however often."""
        spark = changes.sparkSession
        spark.createDataFrame([], VERSION).write.format("delta").mode("ignore").save(self._table)
        # All changes of a key are in one partition in their order. Revisions begin anew where a slot moves to.
        in_order = Window.partitionBy(*KEY).orderBy("place")
        events = (
            changes.withColumns(
                {
                    "payload_bytes": F.octet_length("payload"),
                    "gone": F.col("change").isin("deleted", "expired"),
                    "place": F.monotonically_increasing_id(),
                }
            )
            .withColumnRenamed("time_ms", "from_ms")
            .withColumns({"to_ms": F.lead("from_ms").over(in_order), "number": F.row_number().over(in_order)})
            .select(*KEY, *VALUES, "from_ms", "to_ms", "gone", "number")
        ).persist()
        ends = events.where("number = 1").withColumn("first", F.lit(True))
        begins = events.where("not gone").withColumn("first", F.lit(False))
        names = [*KEY, *VALUES, "from_ms", "to_ms"]
        for name, value in {"txnAppId": "session-history", "txnVersion": str(batch)}.items():
            spark.conf.set(f"{IDENTITY}.{name}", value)
        (
            DeltaTable.forPath(spark, self._table)
            .alias("held")
            .merge(ends.unionByName(begins).alias("new"), SAME)
            .whenMatchedUpdate(set={"to_ms": "new.from_ms"})
            .whenNotMatchedInsert("NOT new.first", {name: f"new.{name}" for name in names})
            .execute()
        )
        for name in ("txnAppId", "txnVersion"):  # of this merge only
            spark.conf.unset(f"{IDENTITY}.{name}")
        events.unpersist()

    def history(self) -> DataFrame:
        """Every version of each row: it held from ``from_ms`` (0: from before the stream began) until ``to_ms`` (null:
        it holds)."""
        return self._spark.read.format("delta").load(self._table)

    def sessions(self) -> DataFrame:
        """What the sessions are: a row for each."""
        holding = self.history().where("to_ms is null")
        owners = holding.where("row = 'owner'").select(*KEY[:2], "connected", "broker", "broker_epoch")
        properties = holding.where("row = 'properties'").select(*KEY[:2], "expiry_interval_s", "payload_bytes")
        return owners.join(properties, KEY[:2], "left")


def follow(spark: SparkSession, url: str, directory: Path, *, ever: bool = False, rows_max: int = 100_000) -> Target:
    """Bring the table up to now, or keep it so. Spark's checkpoint is beside it: they belong together."""
    register(spark)
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
            F.sum("payload_bytes").alias("payload_bytes"),
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
    builder = SparkSession.builder.appName("session-history").config("spark.ui.enabled", "false").config(map=DELTA)
    spark = configure_spark_with_delta_pip(builder).getOrCreate()
    census(follow(spark, args.source, args.directory.absolute(), ever=args.follow).sessions()).show()
    spark.stop()


if __name__ == "__main__":
    main()
