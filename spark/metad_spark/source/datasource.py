"""What Spark asks for when a program says ``format("metad")``."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any, Final

import msgspec
from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructField, StructType

from metad_wire.families import KNOWN

from .directory import listing_of
from .errors import OptionError
from .groups import declaration_of
from .options import Settings, settings_of, stated
from .reader import MetadReader
from .schema import changes_schema_of
from .sink import MetadWriter, stream_writer
from .stream import MetadStreamReader

_OPTIONS: Final = "metad"
"""In the metadata of the first column: the options of a table that ``CREATE TABLE`` has made. Spark keeps its schema,
and reads it without its options."""


def _settings(options: Mapping[str, str]) -> Settings:
    """The options, with what the cluster says of a table that a program has declared."""
    settings = settings_of(options)
    if settings.table.partition(".")[0] in KNOWN:
        return settings
    if settings.is_live:
        declared = declaration_of(settings)
    else:
        declared = listing_of(settings.directory).declared.get(settings.table, b"")
    return msgspec.structs.replace(settings, declared=declared)


class MetadDataSource(DataSource):
    """``spark.read.format("metad").option("table", "session").load("metad://host:port")``."""

    @classmethod
    def name(cls) -> str:
        """What stands in ``format(...)``."""
        return "metad"

    @functools.cached_property
    def _settings(self) -> Settings:
        return _settings(self.options)

    def schema(self) -> StructType:
        """The columns of the table, or those that the program names."""
        settings = self._settings
        whole = changes_schema_of(settings.table, settings.declared)
        unknown = [name for name in settings.names if name not in whole.names]
        if unknown:
            raise OptionError(f"columns: {settings.table} has no {unknown[0]!r}; it has {', '.join(whole.names)}")
        first, *others = [whole[name] for name in settings.names or whole.names]
        if options := stated(self.options):
            first = StructField(first.name, first.dataType, first.nullable, {_OPTIONS: options})
        return StructType([first, *others])

    def reader(self, schema: StructType) -> MetadReader:
        """What reads a table at once."""
        return MetadReader(self._of(schema), schema)

    def streamReader(self, schema: StructType) -> MetadStreamReader:
        """What follows the changes of a table."""
        return MetadStreamReader(self._of(schema), schema)

    def _of(self, schema: StructType) -> Settings:
        """The options; those of a table of the catalog are in its schema."""
        kept = schema.fields[0].metadata.get(_OPTIONS, {})
        return _settings({**kept, **self.options}) if kept else self._settings

    def writer(self, schema: StructType, overwrite: bool) -> MetadWriter:
        """What writes a DataFrame."""
        return MetadWriter(self._settings, schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> Any:
        """What writes a stream."""
        return stream_writer(self._settings, schema, overwrite)
