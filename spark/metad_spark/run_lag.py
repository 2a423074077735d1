"""``metad-spark lag``: how far consumer groups are behind, as far as anybody knows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from .asking import opened, rows
from .errors import UsageError
from .output import say, table, write_json
from .queries import lag as q
from .wording import seconds, short

_SHOWN = 20
_READERS = {".csv": "csv", ".json": "json", ".parquet": "parquet"}


def run(
    *,
    source: str,
    options: dict[str, str],
    heads: Path | None,
    count: int,
    master: str | None,
    connect: bool,
    json: Path | None,
) -> int:
    """Print it. Returns the exit code."""
    if heads is not None and heads.suffix not in _READERS:
        raise UsageError(f"--heads {heads}: it must be a {', '.join(_READERS)} file")
    with opened(source, options, master=master, connect=connect) as tables:
        said = None if heads is None else _heads(tables.spark, heads)
        lagging = q.lag(tables.read("offset"), said, tables.now_ms).cache()
        groups = rows(q.groups(lagging, tables.read("consumer.group")))
        worst = rows(q.worst(lagging, count))
        lagging.unpersist()
    told: dict[str, Any] = {"source": source, "now_ms": tables.now_ms, "heads": str(heads or "")}
    told |= {name: sum(row[name] for row in groups) for name in ("partitions", "exact", "at_least", "unknown")}
    told |= {"groups": groups, "worst": worst}
    write_json(json, told)
    _print(told)
    return 0


def _heads(spark: SparkSession, path: Path) -> DataFrame:
    reader = spark.read.options(header=True, multiLine=True)
    found: DataFrame = getattr(reader, _READERS[path.suffix])(str(path))
    missing = {"topic", "partition", "head"} - set(found.columns)
    if missing:
        raise UsageError(f"--heads {path}: it has no column {min(missing)}; it needs topic, partition, head")
    by = [name for name in ("tenant", "topic", "partition") if name in found.columns]
    typed = found.select(
        *(found[name].cast("long" if name == "partition" else "string").alias(name) for name in by),
        found["head"].cast("long").alias("head"),
    )
    if typed.groupBy(*by).count().where("count > 1").limit(1).collect():
        raise UsageError(f"--heads {path}: it says the head of a partition twice")
    return typed


def _print(told: dict[str, Any]) -> None:
    say(
        f"{len(told['groups']):,} consumer groups with {told['partitions']:,} committed offsets. The lag of"
        f" {told['exact']:,} is known, that of {told['at_least']:,} is at least what another group has read more, and"
        f" that of {told['unknown']:,} is not known."
    )
    if not told["heads"]:
        say("metad does not know where topics end. --heads FILE (topic, partition, head) says it.")
    if told["groups"]:
        table(
            "Consumer groups, the ones furthest behind first",
            [
                "tenant",
                "group",
                "partitions",
                "lag",
                "largest",
                "known of",
                "at least of",
                "last commit",
                "state",
                "members",
            ],
            [_group(row) for row in told["groups"][:_SHOWN]],
        )
    if len(told["groups"]) > _SHOWN:
        say(f"... and {len(told['groups']) - _SHOWN} more: --json has all of them.")
    if told["worst"]:
        table(
            "Partitions, the ones furthest behind first",
            ["tenant", "group", "topic", "partition", "offset", "head", "furthest", "lag", "last commit"],
            [_partition(row) for row in told["worst"]],
        )


def _group(row: dict[str, Any]) -> list[str]:
    lag = "?" if row["lag"] is None else short(row["lag"])
    largest = "?" if row["lag_max"] is None else short(row["lag_max"])
    counts = [f"{row[name]:,}" for name in ("exact", "at_least")]
    ago = "" if row["committed_s"] is None else f"{seconds(row['committed_s'])} ago"
    members = "" if row["members"] is None else str(row["members"])
    return [
        row["tenant"],
        row["group"],
        f"{row['partitions']:,}",
        lag,
        largest,
        *counts,
        ago,
        row["state"] or "",
        members,
    ]


def _partition(row: dict[str, Any]) -> list[str]:
    head = "?" if row["head"] is None else f"{row['head']:,}"
    lag = f"{row['lag']:,}" if row["known"] == q.EXACT else f"over {row['lag']:,}"
    ago = f"{seconds(row['committed_s'])} ago"
    texts = [row["tenant"], row["group"], row["topic"], str(row["partition"]), f"{row['offset']:,}"]
    return [*texts, head, f"{row['furthest']:,}", lag, ago]
