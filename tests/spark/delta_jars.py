"""Fetches the jars of Delta Lake into the environment, once: ``make setup`` runs it, and the tests need no network."""

from __future__ import annotations

import sys

from delta import configure_spark_with_delta_pip
from pyspark.sql import SparkSession
from spark_rig import DELTA, delta_jars

SPARKS_OWN = "org.apache.hadoop:hadoop-client-api,org.apache.hadoop:hadoop-client-runtime,org.scala-lang:scala-library"
"""Left out: 55 MB that Spark has."""


def main() -> int:
    if not delta_jars():
        builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
        builder = builder.config("spark.jars.ivy", str(DELTA)).config("spark.jars.excludes", SPARKS_OWN)
        configure_spark_with_delta_pip(builder).getOrCreate().stop()
    return 0 if delta_jars() else 1


if __name__ == "__main__":
    sys.exit(main())
