"""Tasks as one Spark job, a partition each, whose results come back in their order.

What tasks share travels with the function, which Spark sends to each executor once. Nothing is shuffled: a task's input
is its own number. So the same work gives the same results on one core, on many, and through Connect.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Final, TypeVar

from ..errors import SparkFailed
from .progress import mark
from .session import first_line

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

SCHEMA = "task long, result binary"
T = TypeVar("T")


class Jobs:
    """Runs tasks by Spark (:class:`metad_spark.pipeline.context.Runner`)."""

    def __init__(self, session: SparkSession) -> None:
        self.session = session

    def each(
        self, work: Callable[[T], bytes], items: Sequence[T], *, done_file: str | None = None, small: bool = False
    ) -> list[bytes]:
        """``work`` of each item, in their order. ``done_file``: tasks on this machine append a byte each when they end.
        Raises SparkFailed, also for what ``work`` raises."""

        def part(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            import pyarrow as pa

            for batch in batches:
                for index in batch.column(0).to_pylist():
                    result = pa.array([work(items[index])], pa.binary())
                    yield pa.RecordBatch.from_arrays([pa.array([index], pa.int64()), result], names=["task", "result"])
                    mark(done_file)

        count = len(items)
        if not count:
            return []
        try:
            table = self.session.range(0, count, 1, count).mapInArrow(part, SCHEMA).toArrow()
        except Exception as error:  # py4j, gRPC and PySpark each raise their own
            raise SparkFailed(f"a job failed: {cause(error)}") from error
        found = dict(zip(table["task"].to_pylist(), table["result"].to_pylist(), strict=True))
        return [found[index] for index in range(count)]


_PLACES: Final = ("at ", "File ")


def cause(error: BaseException) -> str:
    """The last line of the worker's trace, if there is one: it names the cause."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    ours = f"{SparkFailed.__module__}."  # whose names do not all end in Error
    named = [line for line in lines if line.startswith(ours) or ("Error: " in line and not line.startswith(_PLACES))]
    return named[-1] if named else first_line(error)
