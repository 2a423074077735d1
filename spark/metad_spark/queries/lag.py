"""How far consumer groups are, and how far behind.

metad keeps what groups have committed. It does not know where topics end: brokers do. So the lag of a partition is
known where somebody says its head. Elsewhere the group that is furthest tells how far behind the others are at least,
and for the only group of a partition nothing is known.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from metad_wire.tables.consumer import GroupState

EXACT: Final = "exact"
AT_LEAST: Final = "at least"
NOTHING: Final = "unknown"
STALE_HEAD: Final = "stale head"
_PARTITION: Final[tuple[str, ...]] = ("tenant", "topic", "partition")


def lag(offsets: DataFrame, heads: DataFrame | None, now_ms: int) -> DataFrame:
    """A row for each committed offset, from the table ``offset`` and, if they are known, the heads of topics (columns
    ``topic``, ``partition``, ``head``, and ``tenant`` if they differ by it; one row for each partition): ``tenant``,
    ``group``, ``topic``, ``partition``, ``offset``, ``committed_s`` (ago), ``head`` (null: not said), ``furthest`` (the
    greatest offset that any group of the tenant has committed), ``lag``, and what is ``known``:

    ``exact``: ``lag`` is head - offset. ``at least``: no head is said, and ``lag`` is furthest - offset. ``unknown``:
    no head is said, and nobody else reads this partition; ``lag`` is null. ``stale head``: the offset is beyond the
    head, which somebody read before the group committed; ``lag`` is null.
    """
    mine = offsets.select("tenant", "group", "topic", "partition", "offset", "committed_ms")
    of_partition = Window.partitionBy(*_PARTITION)
    seen = mine.withColumn("furthest", F.max("offset").over(of_partition)).withColumn(
        "_readers", F.count("*").over(of_partition)
    )
    if heads is None:
        joined = seen.withColumn("head", F.lit(None).cast("long"))
    else:
        by = [name for name in _PARTITION if name in heads.columns]
        joined = seen.join(heads.select(*by, F.col("head").cast("long").alias("head")), by, "left")
    head, offset = F.col("head"), F.col("offset")
    known = (
        F.when(head >= offset, EXACT)
        .when(head.isNotNull(), STALE_HEAD)
        .when(F.col("_readers") > 1, AT_LEAST)
        .otherwise(NOTHING)
    )
    return (
        joined.withColumn("known", known)
        .withColumn(
            "lag",
            F.when(F.col("known") == EXACT, head - offset).when(F.col("known") == AT_LEAST, F.col("furthest") - offset),
        )
        .withColumn("committed_s", F.greatest(F.lit(0.0), (F.lit(now_ms) - F.col("committed_ms")) / 1000))
        .select(*("tenant", "group", "topic", "partition", "offset", "head", "furthest", "lag", "known", "committed_s"))
    )


def worst(lagging: DataFrame, count: int = 20) -> DataFrame:
    """From :func:`lag`: the partitions that are furthest behind, as far as that is known."""
    return lagging.where("lag > 0").orderBy(F.desc("lag"), "tenant", "group", "topic", "partition").limit(count)


def groups(lagging: DataFrame, members: DataFrame) -> DataFrame:
    """From :func:`lag` and the table ``consumer.group``, a row for each consumer group that has offsets or has had
    members: ``partitions``, ``lag`` (the sum of what is known of it), ``lag_max``, how many partitions are ``exact``,
    known ``at_least``, and ``unknown`` (stale heads included), ``committed_s`` (since its last commit); ``state``
    (null: it never had members), ``members``, ``waiting``, ``generation``. The ones furthest behind come first."""
    known = F.col("known")
    sums = lagging.groupBy("tenant", "group").agg(
        F.count("*").alias("partitions"),
        F.sum("lag").alias("lag"),
        F.max("lag").alias("lag_max"),
        F.count_if(known == EXACT).alias("exact"),
        F.count_if(known == AT_LEAST).alias("at_least"),
        F.count_if(known.isin(NOTHING, STALE_HEAD)).alias("unknown"),
        F.min("committed_s").alias("committed_s"),
    )
    words = F.create_map(*(F.lit(one) for state in GroupState for one in (int(state), state.name.lower())))
    live = members.select(
        "tenant", "group", words[F.col("state").cast("int")].alias("state"), "members", "waiting", "generation"
    )
    counts = ["partitions", "exact", "at_least", "unknown"]
    return (
        sums.join(live, ["tenant", "group"], "full")
        .fillna(0, counts)
        .orderBy(F.col("lag").desc_nulls_last(), "tenant", "group")
    )
