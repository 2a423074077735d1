"""Writes sessions into a cluster: those of another cluster, or of a directory that ``metad-spark export`` wrote.

    python spark/examples/import_sessions.py /data/exported metad://10.0.0.1:7420

Each comes as one whose client is away, and ends when it was to end. One that a broker of the cluster has, and that
differs, ends the job: nothing of a client that is served there is overwritten. A job that broke off is started again,
and leaves alone what it has brought.
"""

from __future__ import annotations

import sys

from pyspark.sql import SparkSession

from metad_spark import register

COLUMNS = "tenant,client_id,connected,expires_ms,will_ms,expiry_interval_s,payload,will"
"""Who served a session is of its own cluster, and does not come."""


def bring(spark: SparkSession, source: str, target: str) -> None:
    """Write the sessions. Raises PySparkException with the first one that is refused."""
    register(spark)
    sessions = spark.read.format("metad").options(table="session", columns=COLUMNS).load(source)
    sessions.write.format("metad").option("table", "session").mode("append").save(target)


def main() -> None:
    """The command line."""
    source, target = sys.argv[1:]
    spark = SparkSession.builder.appName("import-sessions").config("spark.ui.enabled", "false").getOrCreate()
    bring(spark, source, target)
    spark.stop()


if __name__ == "__main__":
    main()
