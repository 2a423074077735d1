"""Slices of storms as a job of Spark: a DataFrame of tasks, one in a row, and queries over the rows that they give."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

from ..errors import SparkFailed
from ..requests import slices
from .jobs import cause
from .progress import mark

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

_SCHEMA: Final = (
    "run string, seed long, slice int, second int, kind string, clients long, restored long, attempts long,"
    " refused long, timeouts long, histogram map<int, long>, storm_histogram map<int, long>"
)
"""Of :data:`..requests.slices.SCHEMA`, in Spark's words."""


def rows_of(session: SparkSession, tasks: pa.Table, done_file: str | None = None) -> DataFrame:
    """What the tasks give, a partition for each of them: they last minutes, so none waits behind another while a core
    is idle. ``done_file``: tasks on this machine append a byte each when they end."""
    from pyspark.sql import functions as F

    def part(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for task in batch.to_pylist():
                yield slices.simulated(task)
                mark(done_file)

    places = session.range(0, tasks.num_rows, 1, tasks.num_rows).withColumnRenamed("id", "place")
    wanted = places.join(F.broadcast(session.createDataFrame(tasks)), "place")
    return wanted.mapInArrow(part, _SCHEMA)


def collected(session: SparkSession, tasks: pa.Table, done_file: str | None = None) -> pa.Table:
    """Simulate all tasks, and bring their rows here. A sample of slices fits; what Spark holds back as too much
    (``spark.driver.maxResultSize``) is an error. Raises SparkFailed."""
    with _told():
        return rows_of(session, tasks, done_file).toArrow().cast(slices.SCHEMA)


def summed(
    session: SparkSession, tasks: pa.Table, done_file: str | None = None
) -> tuple[slices.Sums, list[dict[str, Any]]]:
    """Simulate all tasks, and add up their rows by seed and slice, and the curve (restored, attempts) by seed, slice
    and second. Raises SparkFailed."""
    from pyspark.sql import functions as F

    by = ("seed", "slice")
    rows = rows_of(session, tasks, done_file).cache()
    try:
        with _told():
            counts = rows.groupBy(*by).agg(*(F.sum(name).alias(name) for name in slices.COUNTS))
            found: Sequence[dict[str, Any]] = counts.toArrow().to_pylist()
            bins = {}
            for name, column in slices.HISTOGRAMS.items():
                flat = rows.select(*by, F.explode(column).alias("bin", "count"))
                bins[name] = flat.groupBy(*by, "bin").agg(F.sum("count").alias("count")).toArrow().to_pylist()
            curve = rows.groupBy(*by, "second").agg(*(F.sum(name).alias(name) for name in ("restored", "attempts")))
            return slices.sums_of(found, bins), curve.toArrow().to_pylist()
    finally:
        rows.unpersist()


@contextlib.contextmanager
def _told() -> Iterator[None]:
    """Errors of jobs in one line."""
    try:
        yield
    except Exception as error:  # py4j, gRPC and PySpark each raise their own
        raise SparkFailed(f"a job failed: {cause(error)}") from error
