"""A nightly job: adds the day's census to a table, and compares it with the last one before.

    python spark/examples/nightly_census.py metad://10.0.0.1:7420 /data/census
    python spark/examples/nightly_census.py /data/exported /data/census --day 2026-11-29

The table is Parquet with a folder for each day. A job that is run again replaces its day, and nothing else.
"""

from __future__ import annotations

import argparse
import datetime
import json
import sys
import tempfile
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from metad_spark.cli import main as metad_spark

COUNTS = ("sessions", "connected", "subscriptions")
DAY = "tenant string, region string, sessions bigint, connected bigint, subscriptions bigint"


def add(spark: SparkSession, source: str, table: Path, day: datetime.date) -> int:
    """Take a census, and write it as that of the day. Returns the exit status of ``metad-spark census``."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "census.json"
        if status := metad_spark(["census", "--source", source, "--json", str(out)]):
            return status
        census = json.loads(out.read_bytes())["census"]
    names = [part.split()[0] for part in DAY.split(", ")]
    rows = [tuple(row[name] for name in names) for row in census]
    rows = [row for row in rows if None not in row]  # the others are sums of these
    spark.createDataFrame(rows, DAY).coalesce(1).write.mode("overwrite").parquet(str(table / f"day={day}"))
    return 0


def compare(spark: SparkSession, table: Path, day: datetime.date) -> DataFrame:
    """How each tenant and region has changed since the last census before the day: a row for each that was or is there,
    with its counts and by how much they have grown. Of the first census, everything is new."""
    whole = spark.read.schema(f"{DAY}, day date").parquet(str(table))
    (before,) = whole.where(F.col("day") < F.lit(day)).agg(F.max("day")).collect()[0]
    new = whole.where(F.col("day") == F.lit(day)).drop("day")
    old = whole.where(F.col("day") == F.lit(before)).select(
        "tenant", "region", *(F.col(name).alias(f"{name}_old") for name in COUNTS)
    )
    both = new.join(old, ["tenant", "region"], "full").na.fill(0)
    grown = [(F.col(name) - F.col(f"{name}_old")).alias(f"{name}_grown") for name in COUNTS]
    return both.select("tenant", "region", *COUNTS, *grown).orderBy("tenant", "region")


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description="Adds the day's census to a table, and compares it with the last one.")
    parser.add_argument("source", help="as in metad://host:port, or a directory that metad-spark export wrote")
    parser.add_argument("table", type=Path)
    parser.add_argument("--day", type=datetime.date.fromisoformat, default=datetime.date.today())
    args = parser.parse_args()
    spark = SparkSession.builder.appName("nightly-census").config("spark.ui.enabled", "false").getOrCreate()
    status = add(spark, args.source, args.table, args.day)
    if not status:
        compare(spark, args.table, args.day).show()
    spark.stop()
    return status


if __name__ == "__main__":
    sys.exit(main())
