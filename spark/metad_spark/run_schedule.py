"""``metad-spark schedule``: writes a storm's first attempts as Parquet, reads them back, and reports what is there."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from .calibration import load_calibration
from .errors import SparkFailed, UsageError
from .output import say, table, write_json
from .pipeline.context import open_context
from .pipeline.jobs import cause
from .pipeline.progress import mark
from .pipeline.schedule import SCHEMA, Part, batches, parts
from .reduced import scaled
from .scenario import load_scenario

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

FOLDER = "first_attempts"


def run(
    *,
    scenario: str,
    calibration: str | None,
    clients: int | None,
    seed: int,
    out: str,
    scale: float,
    generators: int,
    master: str | None,
    connect: bool,
    json: Path | None,
) -> int:
    """Write ``OUT/first_attempts/part-*.parquet``, one for each generator, and ``OUT/manifest.json`` if OUT is a folder
    of this machine."""
    whole = load_scenario(scenario)
    costs = load_calibration(calibration or whole.calibration)
    if clients is not None:
        whole = msgspec.structs.replace(whole, clients=clients)
    small = scaled(whole, scale)
    here = None if "://" in out else Path(out).absolute()
    if here is not None and here.exists() and any(here.iterdir()):
        raise UsageError(f"{out} is not empty")
    work = parts(small, costs, seed=seed, generators=generators)
    target = f"{out.rstrip('/') if here is None else here}/{FOLDER}"
    with open_context(master=master, connect=connect) as context:
        with context.steps.step(f"writing {small.clients:,} first attempts", generators) as done_file:
            _write(context.session, work, target, done_file)
        with context.steps.step("reading them back"):
            files = _written(context.session, target)
        cost = context.cost()
    if sum(file["rows"] for file in files) != small.clients or len(files) != generators:
        raise SparkFailed(f"{target} does not hold what was written: {files}")
    cluster = small.cluster
    per_node = [
        cluster.groups // cluster.nodes + (node < cluster.groups % cluster.nodes) for node in range(cluster.nodes)
    ]
    serves = sum(costs.items_per_s(groups, cluster.batch_items, small.sessions.item_weight()) for groups in per_node)
    manifest: dict[str, Any] = {
        "scenario": whole.name,
        "seed": seed,
        "scale": scale,
        "clients": small.clients,
        "clients_of_the_storm": whole.clients,
        "items_per_s": serves * scale,
        "queue_items": cluster.queue_items,
        "groups": cluster.groups,
        "client_timeout_s": small.client_timeout_s,
        "horizon_s": small.horizon_s,
        "policies": {sdk.name: msgspec.to_builtins(sdk.backoff()) for sdk in small.sdks},
        "regions": {region.name: {"rtt_ms": region.rtt_ms, "loss": region.loss} for region in small.regions},
        "columns": SCHEMA,
        "folder": FOLDER,
        "files": files,
    }
    if here is not None:
        write_json(here / "manifest.json", manifest)
    write_json(json, manifest | cost)
    table(
        f"{small.clients:,} first attempts, a storm of {whole.clients:,} at {scale:g}",
        ["file", "rows", "from s", "to s"],
        [[file["file"], f"{file['rows']:,}", f"{file['first_s']:.3f}", f"{file['last_s']:.3f}"] for file in files],
    )
    say(
        f"Replay it against a cluster that serves {serves * scale:,.0f} items/s and holds {cluster.queue_items:,} items"
        f" in a group's queue; times are as they are. {cost['wall_s']:.1f} s, {cost['rss_max_mib']:,.0f} MiB."
    )
    return 0


def _write(session: SparkSession, work: Sequence[Part], target: str, done_file: str) -> None:
    frame = session.range(0, len(work), 1, len(work)).mapInArrow(_writer(work, done_file), SCHEMA)
    try:
        frame.write.option("compression", "zstd").parquet(target)
    except Exception as error:  # py4j, gRPC and PySpark each raise their own
        raise SparkFailed(f"{target} could not be written: {cause(error)}") from error


def _writer(work: Sequence[Part], done_file: str) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    packed = [zlib.compress(msgspec.msgpack.encode(part), 1) for part in work]

    def generate(numbers: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in numbers:
            for index in batch.column(0).to_pylist():
                yield from batches(msgspec.msgpack.decode(zlib.decompress(packed[index]), type=Part))
                mark(done_file)

    return generate


def _written(session: SparkSession, target: str) -> list[dict[str, Any]]:
    from pyspark.sql import functions as F

    try:
        found = (
            session.read.parquet(target)
            .groupBy(F.col("_metadata.file_name").alias("file"))
            .agg(F.count("*").alias("rows"), F.min("t_ns").alias("first"), F.max("t_ns").alias("last"))
            .orderBy("file")
            .toArrow()
            .to_pylist()
        )
    except Exception as error:
        raise SparkFailed(f"{target} could not be read back: {cause(error)}") from error
    return [
        {
            "generator": generator,
            "file": row["file"],
            "rows": row["rows"],
            "first_s": row["first"] / 1e9,
            "last_s": row["last"] / 1e9,
        }
        for generator, row in enumerate(found)
    ]
