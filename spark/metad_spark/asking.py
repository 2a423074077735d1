"""The common part of the commands that query a cluster or an exported directory: Spark, the tables as DataFrames and
what is known besides, errors in one line."""

from __future__ import annotations

import contextlib
import re
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from metad_wire.cluster import SLOTS, unpack_slots

from .errors import SparkFailed, UsageError
from .pipeline.session import first_line, open_session
from .source.directory import listing_of
from .source.export import export
from .source.options import Settings, settings_of
from .source.registering import register


class Groups(msgspec.Struct, frozen=True):
    """Which group of each kind has which slot. ``nodes``: members of the cluster."""

    nodes: int
    ordinals: dict[str, list[int]]
    """Per kind its groups."""
    slots: dict[str, list[int]]
    """Per kind, by slot: the group."""


class Tables:
    """The tables of one source. ``options``: those of ``format("metad")``. Raises OptionError, DirectoryError."""

    def __init__(self, spark: SparkSession, source: str, options: dict[str, str]) -> None:
        register(spark)
        self.spark = spark
        self._options = options
        self.settings: Settings = settings_of({"source": source, **options}, table_needed=False)
        live = self.settings.is_live
        self.now_ms = int(time.time() * 1000) if live else listing_of(self.settings.directory).made_ms
        """When this was so, in Unix time."""

    def read(self, table: str, columns: Sequence[str] = ()) -> DataFrame:
        """A table; of the columns those that are named, or all."""
        reader = self.spark.read.format("metad").options(**self._options).option("table", table)
        if columns:
            reader = reader.option("columns", ",".join(columns))
        return reader.load(self.settings.source)

    def whole(self, table: str, columns: Sequence[str] = ()) -> DataFrame:
        """A table that has no tenants."""
        options = {name: text for name, text in self._options.items() if name not in ("tenant", "prefix")}
        reader = self.spark.read.format("metad").options(**options).option("table", table)
        if columns:
            reader = reader.option("columns", ",".join(columns))
        return reader.load(self.settings.source)

    def groups(self) -> Groups:
        """From the cluster map."""
        (row,) = self.whole("cluster", ["nodes", "groups", "slots"]).collect()
        return groups_of(row.asDict(recursive=True))


def groups_of(record: dict[str, Any]) -> Groups:
    """From a record of the table ``cluster``."""
    slots = {kind: unpack_slots(bytes(table)) for kind, table in record["slots"].items()}
    ordinals: dict[str, list[int]] = {kind: [] for kind in slots}
    for group in record["groups"]:
        if group["kind"] in ordinals:
            ordinals[group["kind"]].append(group["ordinal"])
    assert all(len(table) == SLOTS for table in slots.values())
    return Groups(len(record["nodes"]), {kind: sorted(each) for kind, each in ordinals.items()}, slots)


_OURS = re.compile(r"metad_spark\.[a-z_.]*errors\.(\w+: .*)")


@contextlib.contextmanager
def opened(source: str, options: dict[str, str], *, master: str | None, connect: bool) -> Iterator[Tables]:
    """The tables of a source, in a Spark of their own. Raises OptionError, DirectoryError, SparkFailed."""
    settings_of({"source": source, **options}, table_needed=False)  # a mistake is told before Spark starts
    with open_session(master=master, connect=connect) as session:
        try:
            yield Tables(session, source, options)
        except PySparkException as error:
            told = _OURS.search(str(error))
            raise SparkFailed(told[1] if told else first_line(error)) from error


@contextlib.contextmanager
def of_one_moment(
    source: str, options: dict[str, str], tables: list[str], *, master: str | None, connect: bool
) -> Iterator[Tables]:
    """The same, with all tables of a group as of one moment: a cluster is exported to a directory first."""
    settings = settings_of({"source": source, **options}, table_needed=False)
    if not settings.is_live:
        with opened(source, options, master=master, connect=connect) as found:
            yield found
        return
    if master is not None and not master.startswith("local"):
        raise UsageError("a cluster is exported here first; export it to where Spark sees it, and name that")
    with tempfile.TemporaryDirectory(prefix="metad-spark-") as folder:
        export(settings, Path(folder, "export"), tables, lambda group: None)
        kept = {name: text for name, text in options.items() if name in ("tenant", "prefix")}
        with opened(str(Path(folder, "export")), kept, master=master, connect=connect) as found:
            yield found


def rows(frame: DataFrame) -> list[dict[str, Any]]:
    """All of a DataFrame, which must be small."""
    return [row.asDict(recursive=True) for row in frame.collect()]
