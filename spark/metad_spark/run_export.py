"""``metad-spark export``: the tables of a cluster as a directory that Spark, or anything else, reads as Parquet."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import msgspec

from .source.export import export
from .source.options import settings_of


def run(*, source: str, out: Path, tables: list[str], given: dict[str, str], json: Path | None) -> int:
    """Write the directory, and say what it has. Returns the exit code."""
    began_s = time.monotonic()
    settings = settings_of({"source": source, **given}, table_needed=False)
    made = export(settings, out, tables, lambda group: print(f"{group} is written", file=sys.stderr))
    wall_s = time.monotonic() - began_s
    counts = {name: sum(file.rows for file in files) for name, files in made.tables.items()}
    size = sum(file.bytes for files in made.tables.values() for file in files)
    width = max(map(len, counts))
    for name, count in counts.items():
        print(f"{name:{width}}  {count:>12,}")
    print(f"{out}: {sum(counts.values()):,} records, {size / 2**20:,.1f} MiB, {wall_s:.1f} s")
    if json is not None:
        result = {"directory": str(out), "tables": counts, "bytes": size, "wall_s": wall_s}
        json.write_bytes(msgspec.json.format(msgspec.json.encode(result), indent=1) + b"\n")
    return 0
