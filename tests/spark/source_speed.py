"""How fast Spark reads sessions from a cluster of three nodes and from an export of it, and what other work feels; and
how fast a stream takes what has changed in all of them.

    python tests/spark/source_speed.py --sessions 5000000

Leave the machine alone meanwhile. The bars on two cores: 150,000 rows/s from the cluster with no p99 of another verb
more than doubled, 500,000 rows/s from the directory.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import shutil
import tempfile
import threading
import time
from pathlib import Path

from pyspark.sql import Observation, SparkSession, functions

import metad.embedded
from metad_client import SessionProperties, SessionTakeoverItem, connect
from metad_spark import register
from metad_spark.pipeline.session import open_session
from metad_spark.source.export import export
from metad_spark.source.options import settings_of

PUTS_PER_S = 200
QUIET_S = 10.0


async def fill(url: str, sessions: int) -> None:
    async with connect(url) as m:

        async def broker(number: int) -> None:
            for begin in range(number * 1000, sessions, 8000):
                items = [
                    SessionTakeoverItem(
                        f"tenant-{n % 20}", f"client-{n:09d}", False, SessionProperties(3600, os.urandom(24))
                    )
                    for n in range(begin, min(sessions, begin + 1000))
                ]
                (await m.sessions.takeover_many(f"broker-{number}", 1, items, deadline_s=120)).raise_for_error()

        await asyncio.gather(*[broker(number) for number in range(8)])


class Others(threading.Thread):
    """Single puts and gets at a pace, and how long they take."""

    def __init__(self, url: str) -> None:
        super().__init__(daemon=True)
        self.url = url
        self.ending = threading.Event()
        self.took: dict[str, list[tuple[float, float]]] = {"put": [], "get": []}

    def run(self) -> None:
        asyncio.run(self._run())

    async def _run(self) -> None:
        async with connect(self.url) as m:
            due, number, tasks = time.perf_counter(), 0, set()

            async def one(verb: str, number: int, due: float) -> None:
                if verb == "put":
                    await m.kv.put(f"ns{number % 50}", f"k{number}", b"x" * 64)
                else:
                    await m.kv.get(f"ns{number % 50}", f"k{number - 1}")
                self.took[verb].append((due, time.perf_counter() - due))

            while not self.ending.is_set():
                number, due = number + 1, due + 1 / PUTS_PER_S
                await asyncio.sleep(due - time.perf_counter())
                task = asyncio.create_task(one("put" if number % 2 else "get", number, due))
                tasks.add(task)
                task.add_done_callback(tasks.discard)
            await asyncio.gather(*tasks)

    def p99_ms(self, since: float) -> dict[str, float]:
        found = {verb: sorted(took for at, took in each if at >= since) for verb, each in self.took.items()}
        return {verb: round(each[int(len(each) * 0.99)] * 1000, 2) for verb, each in found.items() if each}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--sessions", type=int, default=5_000_000)
    parser.add_argument("--columns", default="", help="as the option of a DataFrame")
    args = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="source-speed-"))
    with metad.embedded.cluster(nodes=3) as cluster:
        began = time.monotonic()
        asyncio.run(fill(cluster.url, args.sessions))
        print(f"filled in {time.monotonic() - began:.0f} s", flush=True)
        began = time.monotonic()
        export(settings_of({"path": cluster.url}, table_needed=False), folder / "out", ["session"], lambda _: None)
        wall_s = time.monotonic() - began
        print(f"export: {args.sessions / wall_s:,.0f} rows/s", flush=True)
        with open_session(master="local[2]") as spark:
            register(spark)
            for source in (cluster.url, str(folder / "out")):
                spark.read.format("metad").options(table="session", tenant="nobody").load(source).count()  # warms up
                others = Others(cluster.url)
                others.start()
                quiet = time.perf_counter()
                time.sleep(QUIET_S)
                before = others.p99_ms(quiet + 1)
                began, busy = time.monotonic(), time.perf_counter()
                rows = whole(spark, source, args.columns)
                wall_s = time.monotonic() - began
                after = others.p99_ms(busy)
                others.ending.set()
                others.join()
                what = "cluster" if source == cluster.url else "directory"
                print(f"{what}: {rows / wall_s:,.0f} rows/s ({rows:,} in {wall_s:.1f} s)", flush=True)
                print(f"  p99 in ms, before {before}, meanwhile {after}", flush=True)
            follow(spark, cluster.url, str(folder / "checkpoint"))  # where it begins
            asyncio.run(fill(cluster.url, args.sessions))
            changes, wall_s = follow(spark, cluster.url, str(folder / "checkpoint"))
            print(f"stream: {changes / wall_s:,.0f} changes/s ({changes:,} in {wall_s:.1f} s)", flush=True)
    shutil.rmtree(folder)


def whole(spark: SparkSession, source: str, columns: str) -> int:
    """Read every wanted column of every row, and do nothing with them. Returns how many rows there were."""
    seen = Observation("read")
    frame = spark.read.format("metad").options(table="session", columns=columns).load(source)
    frame.observe(seen, functions.count(functions.lit(1)).alias("rows")).write.format("noop").mode("overwrite").save()
    return int(seen.get["rows"])


def follow(spark: SparkSession, url: str, checkpoint: str) -> tuple[int, float]:
    """Take all changes up to now, and do nothing with them. Returns how many there were, and how long it took in s."""
    changes = spark.readStream.format("metad").options(table="session", start="now").load(url)
    writer = changes.writeStream.format("noop").option("checkpointLocation", checkpoint)
    began = time.monotonic()
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination()
    return sum(each["numInputRows"] for each in query.recentProgress), time.monotonic() - began


if __name__ == "__main__":
    main()
