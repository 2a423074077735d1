"""``metad-spark schedule``: writes a storm's first attempts as Parquet, reads them back, and reports what is there.

The task that writes a part makes and sorts it; each load generator has one. Only first attempts: a replay is a closed
loop, in which retries follow the cluster's answers. A generator plays whole brokers, because clients of one broker
share its batches.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import numpy.typing as npt

from .calibration import Calibration
from .errors import UsageError
from .models.node_input import NodeInput, node_inputs, transport_name
from .models.population import broker_bases, firsts_us, kinds_of
from .scenario import Scenario

if TYPE_CHECKING:
    import pyarrow as pa
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from .calibration import load_calibration
from .errors import SparkFailed
from .output import say, table, write_json
from .pipeline.context import open_context
from .pipeline.jobs import cause
from .pipeline.progress import mark
from .reduced import scaled
from .scenario import load_scenario

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

SCHEMA = "t_ns long, client_id long, group int, region string, transport string, policy string, batch_hint int"
ROWS_MAX = 25_000_000
"""Rows of one generator: they are sorted in memory, at some 60 bytes each."""
_BATCH_ROWS = 65_536
Ints = npt.NDArray[np.int64]


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """The schedule of one load generator."""

    generator: int
    generators: int
    seed: int
    inputs: tuple[bytes, ...]
    """All nodes, encoded."""


def parts(scenario: Scenario, calibration: Calibration, *, seed: int, generators: int) -> list[Part]:
    """The part of each generator. Raises UsageError if that is more than one can sort."""
    rows = scenario.clients / generators
    if rows > ROWS_MAX:
        wanted = -(-scenario.clients // ROWS_MAX)
        raise UsageError(
            f"{scenario.clients:,} clients are too many for {generators} generators; take {wanted}, or a lower --scale"
        )
    if generators > scenario.brokers.count:
        raise UsageError(f"--generators must be at most the scenario's brokers, {scenario.brokers.count}")
    inputs = tuple(node_input.encode() for node_input in node_inputs(scenario, calibration))
    return [
        Part(generator=generator, generators=generators, seed=seed, inputs=inputs) for generator in range(generators)
    ]


def rows(part: Part) -> dict[str, Any]:
    """The part's rows as columns, sorted by time and client: ``t_ns, client_id, group`` as numbers, ``kind`` as an
    index into ``names`` (region, transport, policy), and ``batch_hint``: the number of clients that its broker has for
    the group within the same linger."""
    found: list[tuple[Ints, ...]] = []
    names: list[tuple[str, str, str]] = []
    first_group = 0
    linger_us = items_max = 1
    for data in part.inputs:
        node_input = NodeInput.decode(data)
        kind = kinds_of(node_input)
        number = np.arange(node_input.clients, dtype=np.int64)
        bases = broker_bases(node_input)
        region_of = np.array([each.region for each in node_input.kinds], dtype=np.int64)[kind]
        place = number // node_input.groups % np.array(node_input.brokers, dtype=np.int64)[region_of]
        broker = np.array(bases, dtype=np.int64)[region_of] + place
        mine = broker % part.generators == part.generator
        times = firsts_us(node_input, part.seed)[mine]
        number, broker = number[mine], broker[mine]
        found.append(
            (
                times,
                number + node_input.first_client,
                number % node_input.groups + first_group,
                kind[mine].astype(np.int64) + len(names),
                broker,
            )
        )
        names += [
            (node_input.regions[each.region], transport_name(each.transport), node_input.sdks[each.sdk])
            for each in node_input.kinds
        ]
        first_group += node_input.groups
        linger_us, items_max = max(1, node_input.window.linger_us), node_input.window.items_max
    columns = [np.concatenate(column) for column in zip(*found, strict=True)]
    order = np.lexsort((columns[1], columns[0]))
    times, client, group, kinds, brokers = (column[order] for column in columns)
    together = (times // linger_us * (int(brokers.max(initial=0)) + 1) + brokers) * first_group + group
    _, inverse, counts = np.unique(together, return_inverse=True, return_counts=True)
    hint = np.minimum(counts, items_max)[inverse]
    return {
        "t_ns": times * 1000,
        "client_id": client,
        "group": group,
        "kind": kinds,
        "names": names,
        "batch_hint": hint,
    }


def batches(part: Part) -> Iterator[pa.RecordBatch]:
    """:func:`rows` as Arrow, by :data:`SCHEMA`."""
    import pyarrow as pa

    columns = rows(part)
    words: Sequence[Any] = [pa.array(column) for column in zip(*columns["names"], strict=True)]
    for at in range(0, len(columns["t_ns"]), _BATCH_ROWS):
        here = slice(at, at + _BATCH_ROWS)
        kind = pa.array(columns["kind"][here])
        yield pa.RecordBatch.from_arrays(
            [
                pa.array(columns["t_ns"][here], pa.int64()),
                pa.array(columns["client_id"][here], pa.int64()),
                pa.array(columns["group"][here].astype(np.int32), pa.int32()),
                *(column.take(kind) for column in words),
                pa.array(columns["batch_hint"][here].astype(np.int32), pa.int32()),
            ],
            names=["t_ns", "client_id", "group", "region", "transport", "policy", "batch_hint"],
        )


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
