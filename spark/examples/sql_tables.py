"""Tables of a cluster in plain SQL: ``CREATE TABLE … USING metad``, and queries that need no Python.

    python spark/examples/sql_tables.py metad://127.0.0.1:7420

Each query reads what the cluster has at that time.
"""

from __future__ import annotations

import sys

from pyspark.sql import SparkSession

from metad_spark import register

CREATE = "CREATE TABLE IF NOT EXISTS metad_{table} USING metad OPTIONS (source '{url}', table '{table}')"
TABLES = ("session", "subscription")
BY_BROKER = """
SELECT broker, count(*) AS sessions, count_if(connected) AS connected, sum(filters) AS subscriptions
FROM metad_session
LEFT JOIN (SELECT tenant, client_id, count(*) AS filters FROM metad_subscription GROUP BY ALL)
    USING (tenant, client_id)
GROUP BY broker
ORDER BY broker
"""


def create(spark: SparkSession, url: str) -> None:
    """Make the tables known to this session's catalog."""
    register(spark)
    for table in TABLES:
        spark.sql(CREATE.format(table=table, url=url))


def main() -> None:
    """The command line."""
    spark = SparkSession.builder.appName("sql-tables").config("spark.ui.enabled", "false").getOrCreate()
    create(spark, sys.argv[1])
    spark.sql(BY_BROKER).show()
    spark.stop()


if __name__ == "__main__":
    main()
