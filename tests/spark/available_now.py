"""Whether a stream that is told to end with all that there is ends with all of it, run after run, beside load.

    python tests/spark/available_now.py --runs 20 --keys 500000

Each run is a new query with ``trigger(availableNow=True)``. Beside it a client writes other keys as fast as it can, and
a process for each core computes. Exit code 1: a run was not whole.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import os
import sys
import tempfile
import time
from pathlib import Path

from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

import metad.embedded
from metad_client import Client, KvPutItem, connect
from metad_spark import register
from metad_spark.pipeline.session import open_session

STARTS = 20
NOT_STARTED = "Python worker failed to connect back"
"""Spark waits 10 s for a Python that it starts, which no setting changes, and ends the query if the machine is slower.
Such a query has read nothing: a new one takes its place, and that is told."""
BATCH = 1_000
NAMESPACES = 50


def burn() -> None:
    while True:
        sum(range(100_000))


async def put(m: Client, prefix: str, begin: int) -> None:
    items = [KvPutItem(f"{prefix}{n % NAMESPACES}", f"k{n}", b"%d" % n) for n in range(begin, begin + BATCH)]
    (await m.kv.put_many(items, deadline_s=300)).raise_for_error()


async def fill(url: str, keys: int) -> None:
    async with connect(url) as m:
        for begin in range(0, keys, 8 * BATCH):
            await asyncio.gather(*(put(m, "due-", at) for at in range(begin, min(begin + 8 * BATCH, keys), BATCH)))


def beside(url: str) -> None:
    async def write() -> None:
        async with connect(url) as m:
            while True:
                await put(m, "other-", 0)

    asyncio.run(write())


def keys_of(spark: SparkSession, url: str, folder: Path) -> tuple[int, int]:
    """How many of the keys that there were the query has written, and how many rows of them."""
    changes = spark.readStream.format("metad").options(table="kv").load(url).select("namespace", "key")
    writer = changes.where("namespace like 'due-%'").writeStream.format("parquet")
    writer = writer.option("checkpointLocation", str(folder / "checkpoint")).option("path", str(folder / "out"))
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination()
    written = spark.read.parquet(str(folder / "out"))
    return written.distinct().count(), written.count()


def started(spark: SparkSession, url: str) -> tuple[int, int]:
    """What a query has written that Spark was able to start."""
    for left in reversed(range(STARTS)):
        with tempfile.TemporaryDirectory(prefix="available-now-") as folder:
            try:
                return keys_of(spark, url, Path(folder))
            except StreamingQueryException as error:
                if not left or NOT_STARTED not in str(error):
                    raise
        print(f"  {NOT_STARTED}: a new query is started", flush=True)
    raise AssertionError("the last start has returned or raised")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--keys", type=int, default=500_000)
    args = parser.parse_args()
    whole = 0
    with metad.embedded.cluster(nodes=3) as cluster, open_session(master="local[2]") as spark:
        asyncio.run(fill(cluster.url, args.keys))
        register(spark)
        spawn = multiprocessing.get_context("spawn")
        load = [spawn.Process(target=burn, daemon=True) for _ in range(os.cpu_count() or 1)]
        load.append(spawn.Process(target=beside, args=(cluster.url,), daemon=True))
        for process in load:
            process.start()
        for run in range(1, args.runs + 1):
            began = time.monotonic()
            found, rows = started(spark, cluster.url)
            whole += found == rows == args.keys
            took = f"{time.monotonic() - began:.0f} s"
            print(f"run {run}: {found:,} of {args.keys:,} keys in {rows:,} rows in {took}", flush=True)
        for process in load:
            process.kill()
    print(f"{whole} of {args.runs} runs were whole")
    return 0 if whole == args.runs else 1


if __name__ == "__main__":
    sys.exit(main())
