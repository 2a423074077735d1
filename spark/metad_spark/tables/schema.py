"""The tables of a run: columns, types, units. A change of them is a new :data:`FORMAT`.

A run is a folder ``run=ID`` of the tables' folder, with a file for each table, so ``run`` is a partition column for
everything that reads Parquet. A comparison has a row of ``runs`` only. Of the vector model, counts are per node: those
of a storm are their sum, each times ``copies``. Of the model of requests, ``slices`` has what became of the clients of
a slice and a region in each second (:data:`metad_spark.requests.slices.SCHEMA`), and there are no nodes.
"""

from __future__ import annotations

from typing import Final

import pyarrow as pa

from ..requests.slices import SCHEMA

FORMAT: Final = 3
FORMAT_KEY: Final = b"metad.storms.format"
"""In the metadata of every file's schema."""

_METRICS = (
    *(("clients", pa.int64()), ("restored", pa.int64())),
    *((name, pa.float64()) for name in ("t50_s", "t99_s", "t999_s", "p50_s", "p99_s", "p999_s")),
    *(("attempts_per_client", pa.float64()), ("rejected", pa.int64()), ("queue_max", pa.int64())),
    *(("collapsed", pa.bool_()), ("timeouts", pa.int64()), ("wasted", pa.int64()), ("expired", pa.int64())),
)
METRICS: Final = tuple(name for name, _ in _METRICS)
"""Columns of ``runs`` that are those of :class:`metad_spark.models.results.StormResult`."""
_PASS = pa.struct(
    [
        *(("model", pa.string()), ("t999_s", pa.float64()), ("end_s", pa.float64())),
        *(("attempts_per_client", pa.float64()), ("moved", pa.float64()), ("delay_max_s", pa.float64())),
    ]
)
TABLES: Final[dict[str, pa.Schema]] = {
    "runs": pa.schema(
        [
            ("kind", pa.string()),
            ("name", pa.string()),
            ("version", pa.string()),
            ("asked_model", pa.string()),
            ("model", pa.string()),
            ("seed", pa.int64()),
            ("brokers_seed", pa.int64()),
            *_METRICS,
            ("scale", pa.float64()),
            ("settled", pa.bool_()),
            ("delay_max_s", pa.float64()),
            ("passes", pa.list_(_PASS)),
            ("runner", pa.string()),
            ("made", pa.timestamp("ms", tz="UTC")),
            ("scenario", pa.string()),
            ("calibration", pa.string()),
        ]
    ),
    "nodes": pa.schema(
        [
            ("node", pa.int32()),
            *(
                (name, pa.float64())
                for name in (
                    *("copies", "clients", "restored", "attempts", "rejected", "unheard", "timeouts", "left"),
                    *("wasted", "queue_max", "own_s_sum", "kept_max_s"),
                )
            ),
        ]
    ),
    "load": pa.schema(
        [
            *(("node", pa.int32()), ("copies", pa.float64()), ("second", pa.int32())),
            *((name, pa.float64()) for name in ("served", "rejected", "queue_max", "capacity")),
        ]
    ),
    "regions": pa.schema(
        [
            *(("node", pa.int32()), ("copies", pa.float64()), ("region", pa.string()), ("second", pa.int32())),
            *((name, pa.float64()) for name in ("attempts", "restored", "passed")),
        ]
    ),
    "load_fine": pa.schema(
        [("node", pa.int32()), ("copies", pa.float64()), ("at_ms", pa.int32()), ("served", pa.float64())]
    ),
    "regions_fine": pa.schema(
        [
            *(("node", pa.int32()), ("copies", pa.float64()), ("region", pa.string()), ("at_ms", pa.int32())),
            *((name, pa.float64()) for name in ("attempts", "restored")),
        ]
    ),
    "slices": pa.schema([field for field in SCHEMA if field.name != "run"]),
    "histograms": pa.schema(
        [
            *(("node", pa.int32()), ("copies", pa.float64()), ("name", pa.string()), ("bin", pa.int32())),
            *((name, pa.float64()) for name in ("from_s", "to_s", "clients")),
        ]
    ),
}
