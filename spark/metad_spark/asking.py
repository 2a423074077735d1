"""The common part of the commands that query a cluster or a directory: Spark, the tables, errors in one line."""

from __future__ import annotations

import contextlib
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame

from .errors import SparkFailed, UsageError
from .pipeline.session import first_line, open_session
from .queries.tables import Tables
from .source.export import export
from .source.options import settings_of

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
