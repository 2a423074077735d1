"""How a session learns what ``format("metad")`` is."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_PUSHDOWN = "spark.sql.python.filterPushdown.enabled"


def register(spark: SparkSession) -> None:
    """Teach this session ``format("metad")``. It needs the package where Spark's Python runs, too. Filters of queries
    narrow what is read if ``spark.sql.python.filterPushdown.enabled`` is true when this is called."""
    from .datasource import MetadDataSource, PushingDataSource

    pushes = spark.conf.get(_PUSHDOWN, "false") == "true"
    spark.dataSource.register(PushingDataSource if pushes else MetadDataSource)
