"""A cluster's tables as DataFrames, from the cluster or from an exported directory; and what is known besides."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import msgspec
from pyspark.sql import DataFrame, SparkSession

from metad_wire.cluster import SLOTS, unpack_slots

from ..source.directory import listing_of
from ..source.options import Settings, settings_of
from ..source.registering import register


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
