"""How a session learns what ``format("metad")`` is."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def register(spark: SparkSession) -> None:
    """Teach this session ``format("metad")``. It needs the package where Spark's Python runs, too. Filters of queries
    narrow what is read where ``spark.sql.python.filterPushdown.enabled`` is true when a query is planned."""
    from .datasource import MetadDataSource

    spark.dataSource.register(MetadDataSource)
